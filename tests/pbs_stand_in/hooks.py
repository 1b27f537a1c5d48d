# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hooks: what is kept of one, and how it runs, in a process of its own that its alarm ends.

The process is a child of the one for which the hook runs, as with PBS: a hook for the launch of a program looks at its parent.
"""
import json
import os
import select
import signal
import sys
import time
import traceback

from . import hook_module

# By event the side that runs it. Those of PBS that are not here are refused: a hook for them would never run.
EVENTS = {
    "queuejob": "server", "modifyjob": "server", "runjob": "server", "resvsub": "server", "modifyresv": "server",
    "execjob_launch": "mom", "execjob_end": "mom", "exechost_periodic": "mom",
}
DEFAULTS = {"type": "site", "enabled": "true", "event": '""', "user": "pbsadmin", "alarm": "30", "order": "1", "debug": "false", "fail_action": "none"}
ORDER = ("type", "enabled", "event", "user", "alarm", "freq", "order", "debug", "fail_action")


def wanted(hooks, event):
    """Names of the hooks that are run for an event, in their order."""
    found = [name for name, hook in hooks.items() if hook["attributes"]["enabled"] == "true" and event in hook["attributes"]["event"].split(",") and hook["script"]]
    return sorted(found, key=lambda name: (int(hooks[name]["attributes"]["order"]), name))


def is_of_moms(hook):
    """Whether moms run it."""
    return any(EVENTS.get(event) == "mom" for event in hook["attributes"]["event"].split(","))


class Run:
    """A hook that runs."""

    def __init__(self, name, hook, files, facts, close=(), errors=None):
        """`files` are those of script and configuration, `close` what the process is not to hold open, `errors` where its standard error goes."""
        self.name, self.limit = name, time.monotonic() + int(hook["attributes"]["alarm"])
        self.fd, other = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                for one in close:
                    os.close(one)
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
                if errors is not None:
                    os.dup2(errors, 2)
                os.write(other, json.dumps(outcome(files, facts)).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(other)
        self.text = b""

    def fileno(self):
        return self.fd

    def take(self):
        """Reads what has come; True at the end of all."""
        data = os.read(self.fd, 1 << 20)
        self.text += data
        return not data

    def result(self):
        """What came of it; where it has ended without a word, a refusal."""
        os.close(self.fd)
        try:
            return json.loads(self.text)
        except ValueError:
            return dict(FAILED, message="request rejected as hook '%s' got alarm, or has died" % self.name)

    def is_late(self):
        return time.monotonic() > self.limit

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        """Waits for its end, or for its alarm."""
        while True:
            ready, _, _ = select.select([self.fd], [], [], max(0, self.limit - time.monotonic()))
            if not ready:
                self.kill()
            if self.take():
                break
        os.waitpid(self.pid, 0)
        return self.result()


FAILED = {"accept": False, "message": "", "logged": [], "job": {}, "vnodes": {}, "jobs": {}, "env": None}


def outcome(files, facts):
    """Runs a hook in this process."""
    script, config = files
    config = config if os.path.exists(config) else None
    module = hook_module.Module(dict(facts, config=config))
    if config:
        os.environ["PBS_HOOK_CONFIG_FILE"] = config
    sys.modules["pbs"] = module.made
    try:
        with open(script) as file:
            code = compile(file.read(), script, "exec")
        exec(code, {"__name__": "__main__"})
    except SystemExit:
        pass
    except BaseException:
        said = traceback.format_exc()
        words = "request rejected as filter hook '%s' encountered an exception. Please inform Admin" % facts["hook"]
        return dict(FAILED, message=words, logged=module.logged + said.splitlines())
    # A hook that says nothing accepts.
    return module.outcome()
