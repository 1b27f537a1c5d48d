# SPDX-License-Identifier: MIT OR Apache-2.0
"""What commands have in common: their release, their options, and how they say what the server refuses."""
import getopt
import sys

from ..errors import Refused
from ..records import VERSION, conf


def options(name, letters):
    """Options and other words of the command line; a wrong one ends the command as it ends PBS's."""
    if sys.argv[1:] == ["--version"]:
        print("pbs_version = %s" % VERSION)
        sys.exit(0)
    try:
        return getopt.gnu_getopt(sys.argv[1:], letters)
    except getopt.GetoptError as why:
        sys.stderr.write("%s: %s\n" % (name, why))
        sys.exit(2)


def say(name, why, about=""):
    """Says why something is refused; the status of the command."""
    if why.code == 111:
        sys.stderr.write("Connection refused\n%s: cannot connect to server %s (errno=111)\n" % (name, conf().get("PBS_SERVER")))
        return 111
    sys.stderr.write("%s: %s %s\n" % (name, why.text, about) if about else "%s: %s\n" % (name, why.text))
    return why.code % 256


def of_each(name, jobs, do):
    """Does something to each job, whatever becomes of the others; ends with the status of the last one that is refused."""
    status = 0
    for job in jobs:
        try:
            do(job)
        except Refused as why:
            status = say(name, why, full(job))
    sys.exit(status)


def full(job):
    """The whole name of a job."""
    return job if "." in job else "%s.%s" % (job, conf().get("PBS_SERVER"))


def resources(text):
    """Pairs of `-l name=value,name=value`; a comma in quotes cuts nothing."""
    from ..values import split

    found = []
    for word in split(text, ","):
        name, is_one, value = word.partition("=")
        if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
            value = value[1:-1]
        found.append((name.strip(), value if is_one else ""))
    return found
