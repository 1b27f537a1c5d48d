# SPDX-License-Identifier: MIT OR Apache-2.0
"""Commands that do something to jobs, and qselect and qterm."""
import sys

from ..errors import Refused
from ..wire import ask
from . import common


def qdel():
    opts, jobs = common.options("qdel", "xW:")
    chosen = dict(opts)
    words = dict(history="-x" in chosen, force=chosen.get("-W") == "force")
    common.of_each("qdel", jobs, lambda job: ask("deletejob", job=job, **words))


def qalter():
    opts, jobs = common.options("qalter", "a:A:c:e:h:j:k:l:m:M:N:o:p:P:r:S:u:W:")
    pairs, attributes = [], {}
    for flag, text in opts:
        if flag == "-l":
            pairs += common.resources(text)
        elif flag == "-W":
            attributes.update([text.split("=", 1)])
        elif flag in ("-N", "-p", "-h", "-r", "-A"):
            attributes[{"-N": "Job_Name", "-p": "Priority", "-h": "Hold_Types", "-r": "Rerunable", "-A": "Account_Name"}[flag]] = text
        else:
            sys.exit("qalter: the stand-in for PBS has no option %s" % flag)
    common.of_each("qalter", jobs, lambda job: ask("modifyjob", job=job, resources=pairs, attributes=attributes))


def qhold():
    opts, jobs = common.options("qhold", "h:")
    common.of_each("qhold", jobs, lambda job: ask("holdjob", job=job, holds=dict(opts).get("-h", "u").replace(" ", "")))


def qrls():
    opts, jobs = common.options("qrls", "h:")
    common.of_each("qrls", jobs, lambda job: ask("releasejob", job=job, holds=dict(opts).get("-h", "u").replace(" ", "")))


def qrun():
    opts, jobs = common.options("qrun", "aH:")
    vnodes = dict(opts).get("-H")
    status = 0
    for job in jobs:
        try:
            ask("runjob", job=job, vnodes=vnodes)
        except Refused as why:
            unknown = why.code == 15062
            common.say("qrun", why, vnodes if unknown else common.full(job))
            # Whatever it is.
            status = 2
    sys.exit(status)


def qrerun():
    opts, jobs = common.options("qrerun", "W:")
    common.of_each("qrerun", jobs, lambda job: ask("rerunjob", job=job))


def qsig():
    opts, jobs = common.options("qsig", "s:")
    common.of_each("qsig", jobs, lambda job: ask("signaljob", job=job, signal=dict(opts).get("-s", "SIGTERM")))


def qselect():
    opts, _ = common.options("qselect", "s:u:xq:N:Hl:")
    chosen = dict(opts)
    try:
        found = ask("statjob", jobs=[], history="-x" in chosen or "-H" in chosen)
    except Refused as why:
        sys.exit(common.say("qselect", why))
    for name, has in found.items():
        if has["job_state"] in chosen.get("-s", has["job_state"]) and has["euser"] == chosen.get("-u", has["euser"]):
            print(name)


def qterm():
    common.options("qterm", "t:fsmFi")
    try:
        ask("terminate")
    except Refused as why:
        sys.exit(common.say("qterm", why))


def pbs_rstat():
    """There are no reservations."""
    common.options("pbs_rstat", "fFSB")


def pbs_rsub():
    sys.exit("pbs_rsub: the stand-in for PBS has no reservations")
