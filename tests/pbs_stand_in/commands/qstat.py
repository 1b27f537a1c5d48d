# SPDX-License-Identifier: MIT OR Apache-2.0
"""qstat: jobs, queues (-Q) and the server (-B), in short, in full (-f), and as JSON."""
import sys

from .. import show
from ..errors import Refused
from ..records import conf
from ..wire import ask
from . import common

WIDTH = 79


def main():
    opts, words = common.options("qstat", "aBfF:HinpQrstTu:xwWD:1")
    chosen = dict(opts)
    status, found = 0, {}
    what = "Server" if "-B" in chosen else "Queue" if "-Q" in chosen else "Jobs"
    history = "-x" in chosen or "-H" in chosen
    try:
        if what == "Server":
            found = ask("statserver")
        elif what == "Queue":
            found = ask("statque", queues=[word.split("@")[0] for word in words])
        elif not words:
            found = ask("statjob", jobs=[], history=history)
        for word in words if what == "Jobs" else ():
            try:
                found.update(ask("statjob", jobs=[word], history=history))
            except Refused as why:
                status = refused(why, common.full(word))
    except Refused as why:
        sys.exit(common.say("qstat", why))
    if chosen.get("-F") == "json":
        print(show.document(conf().get("PBS_SERVER"), what, {name: show.plain(one) for name, one in found.items()}))
    elif "-f" in chosen:
        head = {"Server": "Server: ", "Queue": "Queue: ", "Jobs": "Job Id: "}[what]
        for name, one in found.items():
            print(head + name)
            print(show.lines(one, 4, True, WIDTH))
    else:
        short(what, found)
    sys.exit(status)


def refused(why, job):
    if why.code % 1000 == 139:
        sys.stderr.write("qstat: %s %s, use -x or -H to obtain historical job information\n" % (job, why.text))
        return why.code % 256
    return common.say("qstat", why, job)


def short(what, found):
    """A line for each."""
    if what == "Jobs" and found:
        print("Job id            Name             User              Time Use S Queue\n----------------  ---------------- ----------------  -------- - -----")
        for name, one in found.items():
            used = one.get("resources_used", {}).get("cput", "0")
            print("%-17s %-16s %-16s %9s %s %-16s" % (name[:17], one["Job_Name"][:15], one["euser"][:15], used, one["job_state"], one["queue"]))
    elif what != "Jobs":
        for name, one in found.items():
            print("%-16s %5s %s" % (name, one["total_jobs"], one["state_count"]))
