# SPDX-License-Identifier: MIT OR Apache-2.0
"""pbs_mom: what a host has, its jobs, its hooks, and its talk with the server."""
import json
import os
import selectors
import signal
import socket
import time

from . import hooks, running, starting, wire
from .records import Log, conf, host, load, path, save, write
from .values import Resources

# A hook has a job run again, or a program was refused: how such a run ends.
HOOK_RERUN, HOOK_REFUSES = -16, -17
# So often a server that is not there is looked for, in seconds.
AGAIN = 0.3


def vnodes():
    """What the host has by itself, and what files of `pbs_mom -s insert` say instead."""
    with open("/proc/meminfo") as file:
        memory = file.readline().split()[1]
    found = {host(): {"ncpus": str(os.cpu_count()), "mem": memory + "kb", "arch": "linux"}}
    folder = path("mom_priv", "config.d")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as file:
            for line in file:
                vnode, is_one, rest = line.strip().partition(": resources_available.")
                if is_one:
                    key, value = [word.strip() for word in rest.split("=", 1)]
                    found.setdefault(vnode, {})[key] = value
    return found


def read(name):
    """The text of a file; empty where there is none."""
    try:
        with open(name) as file:
            return file.read()
    except FileNotFoundError:
        return ""


class Mom:
    """A mom and her loop."""

    def __init__(self):
        self.name, self.log = host(), Log("mom_logs", "pbs_mom")
        self.vnodes = vnodes()
        self.jobs = {}
        kept = load(path("mom_priv", "hooks", "stand_in.json"), {"hooks": {}, "known": {}})
        self.hooks, self.known = kept["hooks"], kept["known"]
        self.server, self.look_at, self.over = None, 0, False
        # Hooks that run in the background with what is done then; periodic ones, and when each is run next.
        self.runs, self.periodic, self.next = {}, set(), {}

    def resources(self):
        return Resources({name: {"type": one[0], "flag": one[1]} for name, one in self.known.items()})

    # The loop.

    def serve(self, ready):
        self.selector = selectors.DefaultSelector()
        self.listener = wire.listen(wire.of_mom(self.name))
        self.wake, wake = socket.socketpair()
        for one in (self.wake, wake):
            one.setblocking(False)
        self.held_open = [wake]
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "over", True))
        signal.signal(signal.SIGHUP, lambda *_: None)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(self.wake, selectors.EVENT_READ, lambda: self.wake.recv(4096))
        self.log("Svr", "pbs_mom", "Mom of %s is there" % self.name, 2)
        for held in running.kept():
            # As a mom of PBS that starts without -p: what was here is ended.
            self.jobs[held.id] = held
            self.do_discard({"job": held.id})
        self.connect()
        ready()
        while not self.over:
            # The server's words first: a task may come right behind its job.
            events = sorted(self.selector.select(0.25), key=lambda event: self.server is None or event[0].fileobj is not self.server.socket)
            for key, _ in events:
                if key.fd in self.selector.get_map():
                    key.data()
            self.reap()
            self.due()

    def open_files(self):
        return [key.fd for key in self.selector.get_map().values()] + [one.fileno() for one in self.held_open]

    def connect(self):
        self.look_at = time.monotonic() + AGAIN
        try:
            self.server = wire.connect(wire.SERVER)
        except OSError:
            return
        self.selector.register(self.server.socket, selectors.EVENT_READ, self.hear)
        known = {held.id: held.run for held in self.jobs.values() if not held.ending}
        self.tell("hello", vnodes=self.vnodes, pcpus=os.cpu_count(), jobs=known)
        for held in self.jobs.values():
            if held.session and held.is_first_host:
                self.tell_started(held)

    def tell(self, what, **words):
        if self.server:
            self.server.send(dict(words, tells=what, mom=self.name))

    def hear(self):
        lines = self.server.lines()
        if lines is None:
            self.selector.unregister(self.server.socket)
            self.server.close()
            self.server = None
            return
        for words in lines:
            getattr(self, "do_" + words["do"])(words)

    # Hooks.

    def do_hooks(self, words):
        """Keeps the hooks that the server has for moms, and no others."""
        folder = path("mom_priv", "hooks")
        self.known = words["known"]
        for name in set(self.hooks) - set(words["hooks"]):
            for end in (".HK", ".PY", ".CF"):
                if os.path.exists(os.path.join(folder, name + end)):
                    os.unlink(os.path.join(folder, name + end))
        self.hooks = words["hooks"]
        for name, hook in self.hooks.items():
            settings = "hook_name=%s\n" % name + "".join("%s=%s\n" % item for item in hook["attributes"].items())
            for end, text in ((".HK", settings), (".PY", hook["script"]), (".CF", hook["config"])):
                if text and text != read(os.path.join(folder, name + end)):
                    write(os.path.join(folder, name + end), text, 0o700)
                    self.log("Hook", name + end, "copy hook-related file request received", 0x400)
        save(os.path.join(folder, "stand_in.json"), {"hooks": self.hooks, "known": self.known})

    def files(self, name):
        return [path("mom_priv", "hooks", name + end) for end in (".PY", ".CF")]

    def about(self, name, event):
        """What every hook of a mom is told."""
        return {"event": event, "hook": name, "requestor": "pbs_mom", "requestor_host": self.name, "local": self.name, "known": self.known,
                "ask": lambda what, one: wire.ask("fact", what=what, name=one), "conf": conf()}

    def background(self, name, facts, then):
        """Runs a hook that nobody waits for; `then` is called with what came of it."""
        run = hooks.Run(name, self.hooks[name], self.files(name), facts, self.open_files())
        self.runs[run.pid] = run
        self.selector.register(run.fd, selectors.EVENT_READ, lambda: self.go_on(run, then))

    def go_on(self, run, then):
        if run.take():
            self.selector.unregister(run.fd)
            self.runs.pop(run.pid)
            result = run.result()
            for line in result["logged"]:
                self.log("Hook", run.name, line, 0x400, "pbs_python")
            if not result["accept"]:
                self.log("Hook", run.name, result["message"], 0x400)
            then(result)

    def tell_of_host(self, name):
        """The event in which a mom tells a hook what she has."""
        listed = [held for held in self.jobs.values() if held.ending is None or held.substate == "58"]
        jobs, runs = {held.id: held.facts() for held in listed}, {held.id: held.run for held in listed}
        vnodes = {vnode: {"resources_available": dict(has)} for vnode, has in self.vnodes.items()}
        self.periodic.add(name)
        self.background(name, dict(self.about(name, "exechost_periodic"), vnodes=vnodes, jobs=jobs), lambda result: self.done_periodic(name, result, runs))

    def done_periodic(self, name, result, runs):
        """What came of that event; what it wants of a job is about the run that was told, and not about one that has come meanwhile."""
        self.periodic.discard(name)
        freq = self.hooks.get(name, {"attributes": {}})["attributes"].get("freq", "120")
        self.next[name] = time.monotonic() + int(freq)
        if not result["accept"]:
            return
        self.log("Hook", name, "periodic hook accepted", 0x400)
        self.take_vnodes(result)
        for job, what in result["jobs"].items():
            self.tell("wants", job=job, run=runs[job], wanted=what)

    def take_vnodes(self, result):
        """Keeps what a hook sets of vnodes, and tells the server."""
        for vnode, new in result["vnodes"].items():
            for resource, text in new["resources"].items():
                if text == "":
                    self.vnodes.setdefault(vnode, {}).pop(resource, None)
                else:
                    self.vnodes.setdefault(vnode, {})[resource] = text
        if result["vnodes"]:
            self.tell("vnodes", vnodes=result["vnodes"])

    # Jobs.

    def do_run(self, words):
        held = running.Held(words["job"])
        if held.id in self.jobs:
            self.jobs.pop(held.id).signal(signal.SIGKILL)
        self.jobs[held.id] = held
        held.make()
        self.log("Job", held.id, "Started, pid = %d" % os.getpid())
        if held.is_first_host:
            self.start_script(held)

    def start_script(self, held):
        out, err = held.outputs()
        script, other = os.pipe()
        # The login shell reads the name of the script, and runs it.
        os.write(other, (held.script() + "\n").encode())
        os.close(other)
        shell = held.attributes.get("Shell_Path_List", "").split("@")[0] or "/bin/sh"
        self.start(held, [shell, ["-" + os.path.basename(shell)]], (script, out, err), None)

    def start(self, held, program, streams, whom):
        """Starts a program of a job; `whom`: who is told of its end."""
        ours, report = os.pipe()
        held.number += whom is not None
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            starting.become(held, program, streams, self, report, held.number)
        os.close(report)
        for fd in set(streams):
            os.close(fd)
        held.tasks[pid] = whom
        said = []
        self.selector.register(ours, selectors.EVENT_READ, lambda: self.started(held, pid, ours, said))

    def started(self, held, pid, fd, said):
        """A program runs now, or a hook has refused it."""
        data = os.read(fd, 65536)
        if data:
            said.append(data)
            return
        self.selector.unregister(fd)
        os.close(fd)
        is_script = held.is_first_host and held.session is None
        if said:
            refused = json.loads(b"".join(said))
            self.log("Job", held.id, refused["message"])
            if is_script:
                held.status = HOOK_RERUN if refused["rerun"] else HOOK_REFUSES
                held.attributes["refused"] = "rerun" if refused["rerun"] else "exit"
                if pid not in held.tasks:
                    self.ended(held)
        elif pid in held.tasks or is_script:
            held.session = held.session or pid
            held.substate = "42" if held.substate == "41" else held.substate
            held.begun = time.time()
            held.save()
            if is_script:
                self.tell_started(held)
                if pid not in held.tasks:
                    self.ended(held)

    def tell_started(self, held):
        user_home = starting.variables(held, 1, False)["HOME"]
        self.tell("started", job=held.id, run=held.run, session=held.session, jobdir=user_home)

    def reap(self):
        """Programs that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 256 + os.WTERMSIG(status)
            for held in list(self.jobs.values()):
                if pid in held.tasks:
                    self.task_ended(held, pid, code)

    def task_ended(self, held, pid, code):
        is_script = held.is_first_host and held.session in (None, pid) and held.tasks[pid] is None
        whom = held.tasks.pop(pid)
        if whom:
            whom.send({"exit": code})
            whom.close()
            return
        if is_script:
            if held.status is None:
                held.status = code
            # Whether it was refused is told in the report, which may come later.
            if held.session or "refused" in held.attributes:
                self.ended(held)

    def ended(self, held):
        """The script has ended: all else of the job ends, too."""
        if held.ending:
            return
        held.ending = "ends"
        held.signal(signal.SIGKILL)
        kind = held.attributes.pop("refused", "exit")
        self.tell("ended", job=held.id, run=held.run, kind=kind, status=held.status, used=held.used())
        if held.status not in (HOOK_RERUN,) and not held.deliver():
            self.log("Job", held.id, "Unable to copy its output")
        self.run_end(held)

    def run_end(self, held):
        """The hooks of an end, then nothing of the run is left."""
        held.substate = "58"
        names = hooks.wanted(self.hooks, "execjob_end")

        def next_one(result=None):
            if result and result["accept"]:
                # Before the server counts the end.
                self.take_vnodes(result)
            while names:
                name = names.pop(0)
                if name in self.hooks:
                    self.background(name, dict(self.about(name, "execjob_end"), job=held.facts(), vnodes=held.vnodes(self)), next_one)
                    return
            if self.jobs.get(held.id) is held:
                del self.jobs[held.id]
                held.remove()
            self.log("Job", held.id, "no active tasks; obit sent")
            self.tell("left", job=held.id, run=held.run)

        next_one()

    def do_kill(self, words):
        held = self.jobs.get(words["job"])
        if held and not held.ending:
            self.log("Job", held.id, "signal %d on request of the server" % words["signal"])
            held.end(words["signal"])

    def do_end(self, words):
        """The script of the job has ended elsewhere, and with it what runs of the job here."""
        held = self.jobs.get(words["job"])
        if held and not held.ending:
            held.ending, held.status = "ends", words["status"]
            held.signal(signal.SIGKILL)
            self.run_end(held)

    def do_discard(self, words):
        """The server has nothing to do with this run any more."""
        held = self.jobs.get(words["job"])
        if held and not held.ending:
            held.ending, held.status = "ends", -20
            held.signal(signal.SIGKILL)
            self.run_end(held)

    def do_signal(self, words):
        held = self.jobs.get(words["job"])
        if not held:
            return
        name = words["signal"]
        if name in ("suspend", "resume"):
            held.substate = "43" if name == "suspend" else "42"
            held.signal(signal.SIGSTOP if name == "suspend" else signal.SIGCONT)
        else:
            held.signal(int(name) if name.isdigit() else getattr(signal, "SIG" + name.replace("SIG", "")))

    # Tasks.

    def accept(self):
        """pbsdsh wants a program of a job started here."""
        connection, _ = self.listener.accept()
        talk = wire.Talk(connection)
        data, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        words = json.loads(data)
        held = self.jobs.get(words["job"])
        if held is None or held.ending or talk.user not in ("root", held.attributes["euser"]):
            talk.send({"refused": "no such job here"})
            talk.close()
            for fd in fds:
                os.close(fd)
            return
        talk.send({"taken": True})
        self.start(held, [words["argv"][0], words["argv"]], tuple(fds), talk)

    # What is done when it is time.

    def due(self):
        now = time.monotonic()
        if self.server is None and now > self.look_at:
            self.connect()
        for run in self.runs.values():
            if run.is_late():
                run.kill()
        for name in hooks.wanted(self.hooks, "exechost_periodic"):
            if name not in self.periodic and now >= self.next.get(name, 0):
                self.tell_of_host(name)
        for held in list(self.jobs.values()):
            if held.ending:
                continue
            if held.kill_at and now > held.kill_at:
                held.end(signal.SIGKILL)
            if held.session and held.is_first_host and held.is_over_time() and not held.kill_at:
                self.log("Job", held.id, "walltime exceeded limit")
                held.end(signal.SIGTERM)


def main(ready):
    Mom().serve(ready)
