# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job on a mom: its files, its sessions, its output, and how it ends."""
import os
import pwd
import shutil
import signal
import time

from . import values
from .records import host, load, path, save, write


class Held:
    """A job that a mom has. On its first host its script runs, elsewhere tasks alone."""

    def __init__(self, told, kept=None):
        self.told = told
        self.id, self.attributes, self.hosts = told["id"], told["attributes"], told["hosts"]
        self.run = self.attributes["run_version"]
        self.is_first_host = self.hosts[0] == host()
        kept = kept or {"session": None, "begun": time.time()}
        self.session, self.begun = kept["session"], kept["begun"]
        # Programs by their process, and which is to be told of the end of each.
        self.tasks, self.number = {}, 1
        self.substate, self.status, self.kill_at = "42" if self.session else "41", None, None
        # What becomes of it when the hooks of its end have ended: whether the server is told.
        self.ending = None

    # Files.

    def make(self):
        user = pwd.getpwnam(self.attributes["euser"])
        write(path("aux", self.id), "".join(name + "\n" for name in self.told["nodefile"]), 0o644)
        temporary = "/var/tmp/pbs." + self.id
        os.makedirs(temporary, mode=0o700, exist_ok=True)
        os.chown(temporary, user.pw_uid, user.pw_gid)
        if self.is_first_host:
            with open(self.script(), "w", errors="surrogateescape") as file:
                os.fchmod(file.fileno(), 0o700)
                os.fchown(file.fileno(), user.pw_uid, user.pw_gid)
                file.write(self.told["script"])
        self.save()

    def save(self):
        save(path("mom_priv", "jobs", self.id + ".JB"), {"told": self.told, "session": self.session, "begun": self.begun})

    def script(self):
        return path("mom_priv", "jobs", self.id + ".SC")

    def remove(self):
        for name in (path("mom_priv", "jobs", self.id + ".JB"), self.script(), path("aux", self.id), self.spool("OU"), self.spool("ER")):
            if os.path.exists(name):
                os.unlink(name)
        shutil.rmtree("/var/tmp/pbs." + self.id, ignore_errors=True)

    def spool(self, end):
        return path("spool", "%s.%s" % (self.id, end))

    def outputs(self):
        """Standard output and error of the script, which may be the same."""
        user = pwd.getpwnam(self.attributes["euser"])
        opened = {}
        for end in ("OU", "ER"):
            opened[end] = os.open(self.spool(end), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.fchown(opened[end], user.pw_uid, user.pw_gid)
        both = {"oe": ("OU", "OU"), "eo": ("ER", "ER")}.get(self.attributes["Join_Path"], ("OU", "ER"))
        return [opened[end] for end in both]

    def deliver(self):
        """Copies what the script has written to where its user wants it, as that user."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                user = pwd.getpwnam(self.attributes["euser"])
                os.initgroups(user.pw_name, user.pw_gid)
                os.setgid(user.pw_gid)
                os.setuid(user.pw_uid)
                for end, attribute, joined in (("OU", "Output_Path", "eo"), ("ER", "Error_Path", "oe")):
                    if self.attributes["Join_Path"] != joined and os.path.exists(self.spool(end)):
                        to = self.attributes[attribute].split(":", 1)[1]
                        to = os.path.join(to, "%s.%s" % (self.id, end)) if to.endswith("/") or os.path.isdir(to) else to
                        shutil.copyfile(self.spool(end), to)
                status = 0
            finally:
                os._exit(status)
        return os.waitpid(pid, 0)[1] == 0

    # Processes.

    def sessions(self):
        return {pid for pid in [self.session] + list(self.tasks) if pid}

    def processes(self):
        """All processes of its sessions."""
        found, sessions = [], self.sessions()
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open("/proc/%s/stat" % name, "rb") as stat:
                        # Its name there, in brackets, can be any bytes.
                        if int(stat.read().rsplit(b")", 1)[1].split()[3]) in sessions:
                            found.append(int(name))
                except (OSError, IndexError):
                    continue
        return found

    def signal(self, number):
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def end(self, signal_number):
        """Ends its programs, by SIGKILL some seconds later where that signal is another."""
        self.signal(signal_number)
        self.signal(signal.SIGCONT)
        self.kill_at = time.monotonic() + 10 if signal_number != signal.SIGKILL else None

    # What is told of it.

    def used(self):
        return {"cpupercent": "0", "cput": "00:00:00", "mem": "0kb", "ncpus": "1", "vmem": "0kb", "walltime": values.duration(str(int(time.time() - self.begun)))}

    def facts(self):
        """What hooks are told of it."""
        found = {name: text for name, text in self.attributes.items() if name not in ("comment", "exec_host", "Hold_Types", "Rerunable")}
        found.update(id=self.id, job_state="E" if self.substate == "58" else "R", substate=self.substate)
        if self.session:
            found.update(session_id=str(self.session))
        if self.substate != "41":
            found["resources_used"] = self.used()
        if self.status is not None:
            found["Exit_status"] = str(self.status)
        return found

    def vnodes(self, mom):
        """The vnodes of all of its hosts, as a hook of this one is told of them."""
        names = [name for name, _ in values.parts(self.attributes["exec_vnode"], mom.resources())]
        return {name: {"resources_available": dict(mom.vnodes.get(name, {}))} for name in names}

    def is_over_time(self):
        limit = self.attributes["Resource_List"].get("walltime")
        return limit is not None and time.time() - self.begun > values.seconds(limit)


def kept():
    """Jobs that a mom of before has left."""
    folder = path("mom_priv", "jobs")
    for name in os.listdir(folder):
        if name.endswith(".JB"):
            known = load(os.path.join(folder, name), None)
            yield Held(known["told"], known)
