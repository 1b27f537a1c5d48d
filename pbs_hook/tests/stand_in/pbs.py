# SPDX-License-Identifier: MIT OR Apache-2.0
"""A stand-in for the module `pbs` that PBS's own Python has, for one event after another, as strict as that one where a hook could err.

Values equal nothing but themselves and are read by str(). What an event lets be set is set, anything else raises. accept() and reject()
end the hook by SystemExit. An event is the text that PBS keeps for a hook with debug=true; what came of it is such a text, too. Written
for these tests from how PBS behaves; no line of PBS is in it.
"""
import os
import re
import time

QUEUEJOB, MODIFYJOB, RESVSUB, RUNJOB, PERIODIC, EXECJOB_LAUNCH = 1, 2, 4, 16, 0x2000, 0x10000
EXECHOST_PERIODIC, EXECJOB_END, MODIFYRESV = 0x800, 0x200, 0x400000
LOG_WARNING, LOG_DEBUG = 4, 7
ND_FREE, ND_OFFLINE = 0, 1
ND_JOB_EXCLUSIVE = 64

_TYPES = {
    "queuejob": QUEUEJOB,
    "modifyjob": MODIFYJOB,
    "resvsub": RESVSUB,
    "modifyresv": MODIFYRESV,
    "runjob": RUNJOB,
    "periodic": PERIODIC,
    "execjob_launch": EXECJOB_LAUNCH,
    "execjob_end": EXECJOB_END,
    "exechost_periodic": EXECHOST_PERIODIC,
}
# Resources that vnodes have counts of.
_COUNTED = ("gpuos_share_parts", "gpuos_share_fits", "gpuos_mig_compute", "gpuos_mig_memory", "gpuos_mig_fits", "gpuos_linked")
_NAMED = dict({"ncpus": "long", "ngpus": "long", "mem": "size"}, **{name: "long" for name in _COUNTED})
_LINE = re.compile(r"(?P<of>.*)\.(?P<name>[A-Za-z_]+)(\[(?P<resource>[^\]]+)\])?$")
_ATTRIBUTE = re.compile(r'pbs\.(?P<of>event\(\)\.vnode_list\[|server\(\)\.vnode\(|event\(\)\.job_list\[|server\(\)\.job\()"?(?P<which>.*?)"?[\])]\.(?P<name>\w+)$')
_VNODE = re.compile(r'pbs\.(?:event\(\)\.vnode_list\[|server\(\)\.vnode\()"?(?P<vnode>.*?)"?[\])]\.(?P<rest>[a-z_]+)\[(?P<name>\w+)\]$')
_PARAM = re.compile(r"pbs\.event\(\)\.((?:job|resv)(?:_o)?)\.")
_OF_HELD = re.compile(r'pbs\.event\(\)\.job_list\["(?P<job>.*?)"\]\.(?P<of>Resource_List|resources_used)\[(?P<name>\w+)\]$')
# Resources that every PBS has, and those that gpuos adds.
_KNOWN = set("select place ncpus mem ngpus walltime nodect nodes host vnode arch".split())

_MODIFYRESV = MODIFYRESV
hook_config_filename = os.environ.get("PBS_HOOK_CONFIG_FILE")
_event = None


class EventIncompatibleError(Exception):
    pass


class BadAttributeValueError(Exception):
    pass


class UnsetResourceNameError(Exception):
    pass


class _Value:
    """A value of PBS's: only str() tells what it is."""

    def __init__(self, value):
        if isinstance(value, _Value):
            value = str(value)
        if not isinstance(value, str):
            raise BadAttributeValueError("%r is no text" % (value,))
        self._text = value

    def __str__(self):
        return self._text


class select(_Value):
    pass


class place(_Value):
    pass


class size(_Value):
    pass


class _Resources:
    """Resource_List or resources_available: what has a type takes that type alone."""

    _WANTS = {"select": select, "place": place, "mem": size, "ncpus": int, "ngpus": int, "nodect": int, "gpuos_vetoes": int}
    _WANTS.update((name, int) for name in _COUNTED)

    def __init__(self, where, settable):
        self.__dict__.update(_held={}, _where=where, _settable=settable, _changed={}, _read=False)

    def keys(self):
        # Of a job that the server has already, nothing is there before something is read.
        return list(self._held) if self._read else []

    def __getitem__(self, name):
        self.__dict__["_read"] = True
        if name not in _KNOWN and name not in self._held:
            raise AttributeError(name)
        return self._held.get(name)

    def __setitem__(self, name, value):
        if not self._settable:
            raise AssertionError("%s cannot be set in this event" % self._where)
        if name not in _KNOWN:
            raise UnsetResourceNameError("resource attribute '%s' not found" % name)
        wanted = self._WANTS.get(name, str)
        # An empty text takes a resource away, whatever its type.
        if type(value) is not wanted and value != "":
            raise BadAttributeValueError("%s wants %s, not %r" % (name, wanted.__name__, value))
        self._held[name] = value
        self._changed[name] = str(value)


class _Job:
    def __init__(self, settable, attributes):
        self.__dict__.update(
            Resource_List=_Resources("Resource_List", settable), _attributes=attributes, _changed={}, _settable=settable
        )
        self.__dict__["resources_used"] = _Resources("resources_used", False)

    def __getattr__(self, name):
        return self._attributes.get(name)

    def __setattr__(self, name, value):
        if name != "Execution_Time" or not self._settable:
            raise AssertionError("job attribute '%s' is readonly" % name)
        if type(value) is not int:
            raise BadAttributeValueError("Execution_Time wants int")
        self._changed[name] = str(value)

    def rerun(self):
        # In an event of a mom, which of these is one.
        if _event.type != EXECJOB_LAUNCH:
            raise NotImplementedError("rerun(): only for mom hooks")
        self._changed["_rerun"] = "True"


class vnode:
    """One that a mom has, or that the server knows."""

    def __init__(self, name, settable=True):
        if not isinstance(name, str):
            raise BadAttributeValueError("the name of a vnode is a text")
        self.__dict__.update(name=name, resources_available=_Resources("resources_available", settable), _settable=settable)
        self.__dict__.update(resources_assigned=_Resources("resources_assigned", False), state=None, comment=None, _changed={})

    def __setattr__(self, name, value):
        if name in ("state", "comment") and self._settable:
            if name == "state" and value not in (ND_FREE, ND_OFFLINE) or name == "comment" and not isinstance(value, (str, type(None))):
                raise BadAttributeValueError("vnode attribute '%s' cannot be %r" % (name, value))
            if isinstance(value, str) and "\n" in value:
                raise BadAttributeValueError("a comment is one line")
            self._changed[name] = {ND_FREE: "free", ND_OFFLINE: "offline", None: ""}[value] if name == "state" or value is None else value
            return
        raise BadAttributeValueError("vnode attribute '%s' cannot be %r" % (name, value))


class _HeldJob:
    """A job of a mom, or one that the server tells of: its attributes, and what becomes of it."""

    def __init__(self, settable):
        self.__dict__.update(_attributes={}, _settable=settable, _wanted=set())
        self.__dict__.update((name, _Resources(name, False)) for name in ("Resource_List", "resources_used"))

    def __getattr__(self, name):
        return self._attributes.get(name)

    def __setattr__(self, name, value):
        raise AssertionError("job attribute '%s' is readonly" % name)

    def rerun(self):
        self._wanted.add("_rerun")

    def delete(self):
        self._wanted.add("_delete")


class _Env(dict):
    """Variables: PBS joins them by commas, and cuts them there again where no backslash stands before one."""

    def __setitem__(self, name, value):
        if not isinstance(value, str):
            raise BadAttributeValueError("env wants texts")
        super().__setitem__(name, value)

    def __str__(self):
        return ",".join("%s=%s" % item for item in self.items())


def _cut(text):
    """What a program would find of such a text."""
    parts = re.findall(r"((?:\\.|[^,\\])+)", text)
    pairs = (part.split("=", 1) for part in parts if "=" in part)
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in pairs}


class _Event:
    def __init__(self, lines):
        self.__dict__["_param"] = {}
        self.__dict__["_server"] = {}
        self.__dict__["_server_jobs"] = {}
        named = [value for key, value in lines if key == "pbs.event().type"]
        kind = _TYPES[named[0]]
        self.__dict__.update(type=kind, _kind=named[0], _accepted=None, _message="", _local="")
        self.__dict__["requestor"] = "user"
        of_job = kind in (QUEUEJOB, MODIFYJOB, RUNJOB, EXECJOB_LAUNCH, EXECJOB_END)
        if of_job:
            self._param["job"] = _Job(kind in (QUEUEJOB, MODIFYJOB, RUNJOB), {})
        if kind == MODIFYJOB:
            self._param["job_o"] = _Job(False, {})
        if kind in (RESVSUB, _MODIFYRESV):
            self._param["resv"] = _Job(True, {})
        if kind == _MODIFYRESV:
            self._param["resv_o"] = _Job(False, {})
        if kind in (EXECJOB_LAUNCH, EXECJOB_END, EXECHOST_PERIODIC):
            self._param["vnode_list"] = {}
        if kind == EXECHOST_PERIODIC:
            self._param["job_list"] = {}
        if kind == EXECJOB_LAUNCH:
            self._param.update(env=_Env(), argv=[], progname="")
        for key, value in lines:
            self._read(key, value)

    def _read(self, key, value):
        of_vnode = _VNODE.match(key)
        attribute = _ATTRIBUTE.match(key)
        of_held = _OF_HELD.match(key)
        if key == "pbs.get_local_nodename()":
            self.__dict__["_local"] = value
        elif key == "pbs.event().requestor":
            self.__dict__["requestor"] = value
        elif key == "pbs.server().scheduling":
            self.__dict__["_scheduling"] = value
        elif of_held:
            job = self._param["job_list"].setdefault(of_held.group("job"), _HeldJob(True))
            getattr(job, of_held.group("of"))._held[of_held.group("name")] = _Value(value)
        elif attribute:
            self._attribute(attribute.group("of"), attribute.group("which"), attribute.group("name"), value)
        elif of_vnode:
            known = self._server if key.startswith("pbs.server") else self._param.get("vnode_list", {})
            name = of_vnode.group("vnode")
            one = known.setdefault(name, vnode(name, self.type == EXECHOST_PERIODIC and known is not self._server))
            if of_vnode.group("rest") in ("resources_available", "resources_assigned"):
                getattr(one, of_vnode.group("rest"))._held[of_vnode.group("name")] = _Value(value)
        elif key == "pbs.event().env":
            for name, text in (part.split("=", 1) for part in re.split(r"(?<!\\),", value.strip('"')) if "=" in part):
                dict.__setitem__(self._param["env"], name, text)
            self.__dict__["_before"] = _cut(str(self._param["env"]))
        elif _PARAM.match(key):
            parts = _LINE.match(key)
            job = self._param[_PARAM.match(key).group(1)]
            if parts.group("name") in ("Resource_List", "resources_used"):
                getattr(job, parts.group("name"))._held[parts.group("resource")] = _Value(value)
            elif not parts.group("resource"):
                job._attributes[parts.group("name")] = _Value(value)

    def _attribute(self, of, which, name, value):
        if "job" in of:
            known = self._server_jobs if of.startswith("server") else self._param.get("job_list", {})
            known.setdefault(which, _HeldJob(not of.startswith("server")))._attributes[name] = _Value(value)
        else:
            known = self._server if of.startswith("server") else self._param.get("vnode_list", {})
            one = known.setdefault(which, vnode(which, not of.startswith("server")))
            one.__dict__[name] = int(value) if name == "state" and value.isdigit() else _Value(value)

    def __getattr__(self, name):
        try:
            return self._param[name]
        except KeyError:
            raise EventIncompatibleError('"%s" not found in self._param' % name)

    def __setattr__(self, name, value):
        if self.type != EXECJOB_LAUNCH or name not in ("env", "argv", "progname"):
            raise BadAttributeValueError("event attribute '%s' is readonly" % name)
        self._param[name] = value

    def accept(self, ecode=0):
        self.__dict__["_accepted"] = True
        raise SystemExit(str(ecode))

    def reject(self, emsg="", ecode=255):
        if not isinstance(emsg, str) or "\n" in emsg:
            raise BadAttributeValueError("a message is one line")
        self.__dict__.update(_accepted=False, _message=emsg)
        raise SystemExit(str(ecode))

    def _outcome(self):
        """What came of it, as PBS writes it, but only what is new."""
        lines = ["pbs.event().accept=%s" % self._accepted, "pbs.event().reject=%s" % (not self._accepted)]
        if not self._accepted:
            lines.append("pbs.event().reject_msg=" + self._message)
        for of in ("job", "resv"):
            job = self._param.get(of)
            if job is not None:
                new = [("Resource_List[%s]" % name, value) for name, value in job.Resource_List._changed.items()]
                lines += ["pbs.event().%s.%s=%s" % (of, name, value) for name, value in sorted(new + list(job._changed.items()))]
        if self.type == EXECHOST_PERIODIC:
            for name, one in sorted(self._param["job_list"].items()):
                lines += ['pbs.event().job_list["%s"].%s=True' % (name, wanted) for wanted in sorted(one._wanted)]
            for name, one in sorted(self._param["vnode_list"].items()):
                head, new = 'pbs.event().vnode_list["%s"].' % name, sorted(one.resources_available._changed.items())
                lines += ["%s%s=%s" % (head, key, value) for key, value in sorted(one._changed.items())]
                lines += ["%sresources_available[%s,%s]=%s" % (head, key, _NAMED.get(key, "string"), value) for key, value in new]
            lines += ["kill=%d" % pid for pid in killed]
        if self.type == EXECJOB_LAUNCH:
            before = self.__dict__.get("_before", {})
            after = _cut(str(self._param["env"]))
            lines += ["pbs.event().env[%s]=%s" % item for item in sorted(after.items()) if before.get(item[0]) != item[1]]
            lines += ["pbs.event().env[%s]" % name for name in sorted(before) if name not in after]
        return "\n".join(lines) + "\n"


class _Server:
    @property
    def scheduling(self):
        return _event.__dict__.get("_scheduling", True)

    def vnode(self, name):
        return _event._server.get(str(name)) or vnode(str(name), False)

    def job(self, name):
        return _event._server_jobs.get(str(name))


def event():
    return _event


def server():
    return _Server()


def get_local_nodename():
    return _event._local


def logmsg(level, text):
    if not isinstance(level, int) or not isinstance(text, str):
        raise TypeError("a level and a text")
    logged.append(text)


logged = []
# Processes that the hook has ended; nothing of this machine is.
killed = []


def sessions():
    """Sessions of the jobs of a mom."""
    jobs = _event._param.get("job_list", {}) if _event else {}
    return [int(str(job.session_id)) for job in jobs.values() if job.session_id is not None]


_real = time.monotonic, time.sleep, os.getsid


def _ticking(tick):
    """A clock that goes on by so many seconds each time that somebody looks, and a sleep that takes as long as it says."""
    now = [1000.0]

    def look():
        now[0] += tick
        return now[0] - tick

    def sleep(seconds):
        now[0] += seconds

    return look, sleep


def load(text):
    """Makes this event the one that is."""
    global _event
    del logged[:]
    del killed[:]
    # Not every PBS has this event.
    globals().update(MODIFYRESV=_MODIFYRESV)
    if "lacks=MODIFYRESV" in text.splitlines():
        del globals()["MODIFYRESV"]
    lines = [line.split("=", 1) for line in text.splitlines() if "=" in line]
    moments = [int(value) for key, value in lines if key == "now"]
    if moments:
        time.time = lambda: moments[0]
    ticks = [int(value) for key, value in lines if key == "ticks"]
    time.monotonic, time.sleep = _ticking(ticks[0]) if ticks else _real[:2]
    # Of this process the kernel says 0 where its session is that of another namespace.
    leads = [int(value) for key, value in lines if key == "getsid"]
    os.getsid = (lambda _: leads[0]) if leads else _real[2]
    _event = _Event(lines)


def outcome():
    """What the hook did with it; a hook that ended in another way than by accept() or reject() is accepted by PBS, and fails here."""
    if _event._accepted is None:
        raise AssertionError("the hook ended without a verdict")
    return _event._outcome()
