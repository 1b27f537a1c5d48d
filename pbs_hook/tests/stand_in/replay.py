# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a hook on recorded events of standard input, each of which a line of `%%` ends, with daemons that say what they said then. What came of each is
printed the same way, with what the daemons were told.

    replay.py HOOK SITE    SITE is JSON: `resources` that this PBS was told of, and `users` with their numbers of user and group

A line `said=` of an event is JSON: a daemon, and the lines that it says in one talk. So is a line `told=` of what is printed, without the greeting.
"""
import collections
import grp
import io
import json
import os
import pwd
import socket
import sys
import threading
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pbs

DAEMONS = ("gpuosd", "gpuos_mover")
# Seconds for what a daemon is told by the way, and how often an event is tried that took too long.
WITHIN = 60
TRIES = 20
SLOW = "it took longer than"
# Where gpuosd was then: programs are told a socket beside it.
GPUOSD = "/run/gpuos/gpuosd.sock"


class Daemon:
    """One that says what is in its queue, talk by talk, and keeps what it was told."""

    def __init__(self, path):
        self.says, self.told, self.changed = collections.deque(), [], threading.Condition()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(16)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            self.talk(self.listener.accept()[0])

    def talk(self, stream):
        lines, said = (self.says.popleft() if self.says else (0, []))
        heard = b""
        with stream, stream.makefile("rb") as file:
            # What was not recorded is answered by nothing.
            for _ in range(lines):
                heard += file.readline()
            try:
                stream.sendall("".join(line + "\n" for line in said).encode())
            except OSError:
                # Who only tells something is gone.
                pass
        with self.changed:
            self.told.append(heard.decode().splitlines())
            self.changed.notify_all()

    def wait(self, talks):
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.told) >= talks, WITHIN):
                self.told.append(["nothing came"])


def main():
    """One event after another."""
    with open(sys.argv[1]) as file:
        before, line, after = file.read().partition("\nPATIENCE = 3\n")
    if not line:
        sys.exit("the hook has no line PATIENCE = 3")
    code = compile("%s\nPATIENCE = 60\n%s" % (before, after), sys.argv[1], "exec")
    with open(sys.argv[2]) as file:
        site = json.load(file)
    with open(pbs.hook_config_filename) as file:
        known = json.load(file)
    pbs._KNOWN.update(site["resources"])
    daemons = {name: Daemon(known[key] + ".root") for name, key in zip(DAEMONS, ("gpuosd", "mover"))}
    users = site["users"]
    # Numbers of the recording in place of those of this machine; who is not among them is unknown by a KeyError, as ever.
    pwd.getpwnam = lambda name: types.SimpleNamespace(pw_uid=users[name][0], pw_gid=users[name][1])
    grp.getgrnam = lambda name: types.SimpleNamespace(gr_gid=users[name][1])
    is_file, session, kill = os.path.isfile, os.getsid, os.kill
    os.path.isfile = lambda path: path == known["preload"] or is_file(path)
    os.kill = lambda pid, signal: pbs.killed.append(pid) if pid in pbs.sessions() else kill(pid, signal)

    def run(event):
        talks = [json.loads(line[len("said=") :]) for line in event.splitlines() if line.startswith("said=")]
        for name, daemon in daemons.items():
            daemon.told = []
            daemon.says = collections.deque((talk[1], talk[2:]) for talk in talks if talk[0] == name)
        pbs.load(event)
        job = pbs.event()._param.get("job")
        # The first program of a job leads its session.
        first = pbs.event().type == pbs.EXECJOB_LAUNCH and pbs.event().env.get("PBS_TASKNUM") == "1"
        os.getsid = (lambda _: int(str(job.session_id or 0))) if first else session
        notes, sys.stderr = sys.stderr, io.StringIO()
        try:
            exec(code, {"__name__": "__main__"})
        except SystemExit:
            pass
        finally:
            notes, sys.stderr = sys.stderr.getvalue(), notes
        for name, daemon in daemons.items():
            daemon.wait(sum(talk[0] == name for talk in talks))
        return notes + "".join(pbs.logged)

    for event in sys.stdin.read().split("%%\n")[:-1]:
        for _ in range(TRIES):
            said = run(event)
            if SLOW not in said:
                break
        if "cannot decide" in said or "failed on this event" in said:
            sys.exit("%s\n%s" % (said, event))
        told = ["told=" + json.dumps([name] + talk[1:]) for name in DAEMONS for talk in daemons[name].told]
        sys.stdout.write(pbs.outcome().replace(known["gpuosd"], GPUOSD) + "".join(line + "\n" for line in told) + "%%\n")
        sys.stdout.flush()


main()
