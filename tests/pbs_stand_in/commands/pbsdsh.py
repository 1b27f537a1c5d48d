# SPDX-License-Identifier: MIT OR Apache-2.0
"""pbsdsh: starts a program of a job on each of its vnodes, or on that of a number (-n), and waits for all."""
import json
import os
import socket
import sys
import time

from .. import wire
from ..records import path
from . import common

# So long a mom may take to know of a job that runs elsewhere already, in seconds.
PATIENCE = 10


def main():
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    sys.argv[1:], command = given[:at], given[at + 1 :]
    opts, words = common.options("pbsdsh", "c:n:osuv")
    chosen, job = dict(opts), os.environ.get("PBS_JOBID", "")
    with open(path("aux", job)) as file:
        hosts = file.read().split()
    if "-u" in chosen:
        hosts = list(dict.fromkeys(hosts))
    if "-n" in chosen:
        hosts = [hosts[int(chosen["-n"])]]
    talks = [spawn(host, job, command or words) for host in hosts]
    sys.exit(max(wait(talk) for talk in talks))


def spawn(host, job, argv):
    """A program on a host; it has the files that this one has."""
    limit = time.monotonic() + PATIENCE
    while True:
        talk = wire.connect(wire.of_mom(host))
        socket.send_fds(talk.socket, [json.dumps({"job": job, "argv": argv}).encode()], [0, 1, 2])
        talk.said = []
        if "taken" in heard(talk):
            return talk
        talk.close()
        if time.monotonic() > limit:
            sys.exit("pbsdsh: the mom of %s does not know job %s" % (host, job))
        time.sleep(0.1)


def heard(talk):
    """What a mom says next; nothing where she has gone."""
    while not talk.said:
        lines = talk.lines()
        if lines is None:
            return {}
        talk.said += lines
    return talk.said.pop(0)


def wait(talk):
    """The exit status of a program."""
    return heard(talk).get("exit", 254)
