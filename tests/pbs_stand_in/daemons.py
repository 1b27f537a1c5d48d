# SPDX-License-Identifier: MIT OR Apache-2.0
"""How daemons start, the two that only live (pbs_comm and pbs_sched), and what makes a PBS_HOME."""
import os
import signal
import sys

from . import mom, server
from .records import VERSION, Log, conf, path, write

SCHED_CONFIG = "# The stand-in for PBS has no scheduler: nobody reads this file but gpuos.\nresources: \"ncpus, mem, arch, host, vnode, aoe, eoe\"\n"
FOLDERS = {"aux": 0o755, "checkpoint": 0o700, "comm_logs": 0o755, "mom_logs": 0o755, "mom_priv": 0o751, "mom_priv/hooks": 0o750, "mom_priv/jobs": 0o751,
           "mom_priv/config.d": 0o700, "sched_logs": 0o755, "sched_priv": 0o750, "server_logs": 0o755, "server_priv": 0o750,
           "server_priv/accounting": 0o755, "server_priv/hooks": 0o750, "server_priv/jobs": 0o750, "spool": 0o1777, "undelivered": 0o1777}


def in_a_lab():
    """A stand-in has nothing to do on a machine outside of a lab, whose /etc and users are real."""
    if not os.environ.get("GPUOS_LAB_HOST"):
        sys.exit("%s: this is gpuos's stand-in for PBS, which runs in labs alone" % sys.argv[0])


def habitat():
    """pbs_habitat: makes the PBS_HOME of this host."""
    in_a_lab()
    for name, mode in FOLDERS.items():
        os.makedirs(path(name), exist_ok=True)
        os.chmod(path(name), mode)
    write(path("pbs_version"), VERSION + "\n", 0o644)
    write(path("pbs_environment"), "TZ=UTC\nPATH=/bin:/usr/bin\n", 0o644)
    write(path("mom_priv", "config"), "", 0o644)
    if conf().get("PBS_START_SCHED") == "1":
        write(path("sched_priv", "sched_config"), SCHED_CONFIG, 0o644)


def start(lock, run):
    """Goes to the background; the caller goes on when the daemon is there."""
    in_a_lab()
    ready, there = os.pipe()
    if os.fork():
        os.close(there)
        sys.exit(0 if os.read(ready, 1) else 1)
    os.close(ready)
    os.setsid()
    os.chdir("/")
    os.umask(0o022)
    write(lock, "%d\n" % os.getpid(), 0o644)
    run(lambda: os.write(there, b"1") and os.close(there))


def pbs_server():
    start(path("server_priv", "server.lock"), server.main)


def pbs_mom():
    if sys.argv[1:3] == ["-s", "insert"]:
        in_a_lab()
        with open(sys.argv[4]) as file:
            write(path("mom_priv", "config.d", sys.argv[3]), file.read())
        return
    start(path("mom_priv", "mom.lock"), mom.main)


def live(folder, who):
    """What a daemon does that does nothing: it is there until it is told to end."""

    def run(ready):
        log = Log(folder, who)
        signal.signal(signal.SIGHUP, lambda *_: log("Svr", who, "reconfigure"))
        log("Svr", who, "%s of the stand-in is there" % who)
        ready()
        while True:
            signal.pause()

    return run


def pbs_sched():
    """Lives, and schedules nothing."""
    start(path("sched_priv", "sched.lock"), live("sched_logs", "pbs_sched"))


def pbs_comm():
    start(path("server_priv", "comm.lock"), live("comm_logs", "pbs_comm"))


def pbs_iff():
    """The kernel says who a user is: this file is there as an installation without it would be refused."""
    sys.exit("pbs_iff: nobody asks the stand-in for it")


def pbs_python():
    """PBS's own Python."""
    os.execv(sys.executable, [sys.executable] + sys.argv[1:])
