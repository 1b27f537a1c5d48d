# SPDX-License-Identifier: MIT OR Apache-2.0
"""The module `pbs` that a hook imports, for one event.

It is as strict as PBS's own where a hook could err: values are set by their types alone, what an event does not let be set raises, resources that
this PBS was not told of raise, and the names of a list are there only once something of it was read.
"""
import types

from .jobs import ORDER
from .values import FORMS, bytes_of, seconds

# PBS's numbers.
EVENTS = {"QUEUEJOB": 1, "MODIFYJOB": 2, "RESVSUB": 4, "MOVEJOB": 8, "RUNJOB": 0x10, "PROVISION": 0x20, "EXECJOB_BEGIN": 0x40, "EXECJOB_PROLOGUE": 0x80,
          "EXECJOB_EPILOGUE": 0x100, "EXECJOB_END": 0x200, "EXECJOB_PRETERM": 0x400, "EXECJOB_LAUNCH": 0x800, "EXECHOST_PERIODIC": 0x1000,
          "EXECHOST_STARTUP": 0x2000, "EXECJOB_ATTACH": 0x4000, "PERIODIC": 0x8000, "MODIFYRESV": 0x4000000}
LEVELS = {"LOG_ERROR": 3, "LOG_WARNING": 4, "LOG_DEBUG": 7, "EVENT_ERROR": 1, "EVENT_DEBUG": 128}
STATES = {"ND_FREE": 0, "ND_OFFLINE": 1, "ND_DOWN": 2, "ND_BUSY": 0x10, "ND_JOB_EXCLUSIVE": 0x40, "ND_STATE_UNKNOWN": 0x200}
# Which attributes of jobs are numbers or words of yes and no; all others are texts.
NUMBERS = ("Exit_status", "run_count", "run_version", "session_id", "substate", "Priority", "Execution_Time", "ctime", "mtime", "qtime", "etime", "stime")
TRUTHS = ("Rerunable", "array")
# Attributes of jobs that there are, set or not, and of vnodes.
KNOWN = ORDER + ("id", "reserve_ID", "cookie", "depend", "group_list", "interactive")
OF_VNODES = ("name", "state", "comment", "queue", "sharing", "Mom", "Port", "ntype", "pcpus", "jobs", "resv_enable", "license", "pbs_version",
             "last_state_change_time", "last_used_time")


class EventIncompatibleError(Exception):
    """The event has no such thing."""


class BadAttributeValueError(Exception):
    """A value that an attribute cannot have, or one that cannot be set."""


class BadAttributeValueTypeError(Exception):
    """A value of another type than the attribute's."""


class UnsetAttributeNameError(Exception):
    """There is no such attribute."""


class BadResourceValueError(Exception):
    """A value that a resource cannot have."""


class BadResourceValueTypeError(Exception):
    """A value of another type than the resource's."""


class UnsetResourceNameError(Exception):
    """There is no such resource."""


ERRORS = (EventIncompatibleError, BadAttributeValueError, BadAttributeValueTypeError, UnsetAttributeNameError, BadResourceValueError, BadResourceValueTypeError,
          UnsetResourceNameError)


class pbs_int(int):
    pass


class pbs_float(float):
    pass


class pbs_str(str):
    pass


class pbs_bool(int):
    """Yes and no; as texts they are 1 and 0."""


class Opaque:
    """A value that equals nothing but itself and is read by str()."""

    def __init__(self, value):
        if isinstance(value, Opaque):
            value = str(value)
        if not isinstance(value, str):
            raise TypeError("%r is no text" % (value,))
        self._text = value
        self.check(value)

    def check(self, text):
        """Raises where the text is none of the type."""

    def __str__(self):
        return self._text


class select(Opaque):
    def check(self, text):
        for chunk in text.split("+"):
            words = chunk.split(":")
            if any("=" not in word or word.startswith("=") for word in words[words[0].isdigit() :]):
                raise BadResourceValueError("invalid select: %s" % text)


class place(Opaque):
    def check(self, text):
        try:
            FORMS["place"](text)
        except ValueError:
            raise BadResourceValueError("invalid place: %s" % text)


class exec_vnode(Opaque):
    pass


class size(Opaque):
    def check(self, text):
        try:
            bytes_of(text)
        except AttributeError:
            raise TypeError("no size: %s" % text)


class duration(Opaque):
    def check(self, text):
        seconds(text)


# As which type a hook finds a value, and as which it may set one.
WANTS = {"long": int, "float": float, "string": str, "string_array": str, "boolean": bool, "size": size, "duration": duration, "select": select, "place": place}


FOUND = dict(WANTS, long=pbs_int, float=pbs_float, string=pbs_str, string_array=pbs_str)


def held(kind, text):
    """A text of PBS's as the hook finds it."""
    if kind == "boolean":
        return pbs_bool(text == "True")
    return FOUND[kind](text)


class List:
    """Resources of a job or a vnode."""

    def __init__(self, where, values, known, is_settable, is_lazy):
        typed = {name: held(known[name][0], text) for name, text in values.items() if name in known}
        self.__dict__.update(_where=where, _held=typed, _known=known, _settable=is_settable, _read=not is_lazy, changed={})

    def keys(self):
        return list(self._held) if self._read else []

    def __getitem__(self, name):
        self.__dict__["_read"] = True
        if name not in self._known:
            raise AttributeError(name)
        return self._held.get(name)

    def __setitem__(self, name, value):
        if not self._settable:
            raise BadAttributeValueError("%s cannot be set in this event" % self._where)
        if name not in self._known:
            raise UnsetResourceNameError("resource attribute '%s' not found" % name)
        # An empty text, or None, takes a resource away, whatever its type.
        value = "" if value is None else value
        kind = self._known[name][0]
        if value != "" and type(value) not in (WANTS[kind], FOUND[kind]):
            raise BadResourceValueTypeError("%s[%s] wants %s, not %r" % (self._where, name, WANTS[kind].__name__, value))
        self._held[name] = held(kind, str(value)) if value != "" else value
        self.changed[name] = str(value)


class Job:
    """A job, or a reservation, with the attributes that are read and the few that an event lets be set."""

    def __init__(self, facts, known, settable=(), may_rerun=False, is_lazy=False):
        self.__dict__.update(_settable=settable, _may_rerun=may_rerun, changed={}, wanted=None)
        typed = {"id": "", "queue": ""}
        for name, text in facts.items():
            if name in NUMBERS:
                typed[name] = pbs_int(text)
            elif name in TRUTHS:
                typed[name] = pbs_bool(text == "True")
            elif name == "exec_vnode":
                typed[name] = exec_vnode(text)
            elif isinstance(text, str):
                typed[name] = text
        self.__dict__["_attributes"] = typed
        for name in ("Resource_List", "resources_used"):
            is_settable = name in settable
            self.__dict__[name] = List(name, facts.get(name, {}), known, is_settable, is_lazy)

    def __getattr__(self, name):
        if name not in KNOWN:
            raise AttributeError(name)
        return self._attributes.get(name)

    def __setattr__(self, name, value):
        if name not in KNOWN:
            raise UnsetAttributeNameError("job attribute '%s' not found" % name)
        if name not in self._settable:
            raise BadAttributeValueError("job attribute '%s' is readonly" % name)
        if type(value) is not int:
            raise BadAttributeValueTypeError("%s wants int" % name)
        self.changed[name] = str(value)

    def rerun(self):
        if not self._may_rerun:
            raise NotImplementedError("rerun(): only for mom hooks")
        self.__dict__["wanted"] = "rerun"

    def delete(self):
        if not self._may_rerun:
            raise NotImplementedError("delete(): only for mom hooks")
        self.__dict__["wanted"] = "delete"


class Vnode:
    """A vnode of a mom, or one that the server knows."""

    def __init__(self, facts, known, is_settable, is_lazy):
        lists = ("resources_available", "resources_assigned")
        attributes = dict.fromkeys(OF_VNODES)
        attributes.update((name, value) for name, value in facts.items() if name not in lists)
        self.__dict__.update(_settable=is_settable, _attributes=attributes, changed={})
        for name in lists:
            self.__dict__[name] = List(name, facts.get(name, {}), known, is_settable and name == "resources_available", is_lazy)

    def __getattr__(self, name):
        if name not in self._attributes:
            raise AttributeError(name)
        return self._attributes[name]

    def __setattr__(self, name, value):
        is_state = name == "state" and value in (STATES["ND_FREE"], STATES["ND_OFFLINE"])
        is_comment = name == "comment" and (value is None or isinstance(value, str) and "\n" not in value)
        wanted = {"state": int, "comment": (str, type(None))}.get(name)
        if self._settable and wanted and not isinstance(value, wanted):
            raise BadAttributeValueTypeError("vnode attribute '%s' cannot be %r" % (name, value))
        if not self._settable or not (is_state or is_comment):
            raise BadAttributeValueError("vnode attribute '%s' cannot be %r" % (name, value))
        self.changed[name] = value


class Env(dict):
    """Variables of a program: PBS joins them by commas, and cuts them there again where no backslash stands before one."""

    def __setitem__(self, name, value):
        if not isinstance(value, str):
            raise BadAttributeValueError("env wants texts")
        super().__setitem__(name, value)

    def __str__(self):
        return ",".join("%s=%s" % item for item in self.items())


class Event:
    """`pbs.event()`: what an event has, by its type."""

    def __init__(self, facts, known):
        kind = facts["event"]
        self.__dict__.update(type=EVENTS[kind.upper()], requestor=facts["requestor"], requestor_host=facts["requestor_host"], hook_name=facts["hook"],
                             accepted=None, message="", _has={})
        settable = {"queuejob": ("Resource_List", "Execution_Time"), "modifyjob": ("Resource_List", "Execution_Time"), "runjob": ("Resource_List", "Execution_Time"),
                    "resvsub": ("Resource_List",), "modifyresv": ("Resource_List",)}.get(kind, ())
        for name in ("job", "resv"):
            if name in facts:
                # Of a job that the server has already nothing is named before something is read.
                self._has[name] = Job(facts[name], known, settable, kind.startswith("execjob"), kind == "runjob")
            if name + "_o" in facts:
                self._has[name + "_o"] = Job(facts[name + "_o"], known)
        if "vnodes" in facts:
            is_settable = kind in ("exechost_periodic", "execjob_end")
            self._has["vnode_list"] = {name: Vnode(one, known, is_settable, False) for name, one in facts["vnodes"].items()}
        if "jobs" in facts:
            self._has["job_list"] = {name: Job(one, known, may_rerun=True) for name, one in facts["jobs"].items()}
        if "env" in facts:
            self._has.update(env=Env(facts["env"]), argv=facts["argv"], progname=facts["progname"])

    def __getattr__(self, name):
        if name not in self._has:
            raise EventIncompatibleError('"%s" not found in self._param' % name)
        return self._has[name]

    def __setattr__(self, name, value):
        raise BadAttributeValueError("event attribute '%s' is readonly" % name)

    def accept(self, ecode=0):
        self.__dict__["accepted"] = True
        raise SystemExit(str(ecode))

    def reject(self, emsg="", ecode=255):
        if not isinstance(emsg, str) or "\n" in emsg:
            raise BadAttributeValueError("a message is one line")
        self.__dict__.update(accepted=False, message=emsg)
        raise SystemExit(str(ecode))


class Server:
    """`pbs.server()`: what the server says of vnodes and jobs."""

    def __init__(self, ask, known, is_lazy):
        self._ask, self._known, self._is_lazy = ask, known, is_lazy

    def vnode(self, name):
        if not isinstance(name, str):
            raise TypeError("the name of a vnode is a text")
        facts = self._ask("vnode", name)
        return None if facts is None else Vnode(facts, self._known, False, self._is_lazy)

    def job(self, name):
        if not isinstance(name, str):
            raise TypeError("the name of a job is a text")
        facts = self._ask("job", name)
        return None if facts is None else Job(facts, self._known, is_lazy=self._is_lazy)


def new_vnode(name, known, of_mom):
    """A vnode that a hook makes; only a mom's has a use for it."""
    if not isinstance(name, str):
        raise (BadAttributeValueTypeError if of_mom else AssertionError)("the name of a vnode is a text")
    return Vnode({"name": name}, known, True, False)


class Module:
    """The module for one event, and what came of it."""

    def __init__(self, facts):
        self.event, self.logged = Event(facts, facts["known"]), []
        made = types.ModuleType("pbs")
        for numbers in (EVENTS, LEVELS, STATES):
            made.__dict__.update(numbers)
        for kind in (select, place, exec_vnode, size, duration) + ERRORS:
            made.__dict__[kind.__name__] = kind
        server = Server(facts["ask"], facts["known"], not facts["event"].startswith("exec"))
        made.event, made.server, made.logmsg = lambda: self.event, lambda: server, self.log
        made.get_local_nodename = lambda: facts["local"]
        made.vnode = lambda name: new_vnode(name, facts["known"], facts["event"].startswith("exec"))
        made.hook_config_filename = facts["config"]
        made.pbs_conf = facts["conf"]
        self.made = made

    def log(self, level, message):
        if not isinstance(level, int) or not isinstance(message, str):
            raise TypeError("a level and a text")
        self.logged.append(message)

    def outcome(self):
        """What came of the event, in texts."""
        event = self.event
        found = {"accept": event.accepted is not False, "message": event.message, "logged": self.logged, "job": {}, "vnodes": {}, "jobs": {}, "env": None}
        about = event._has.get("job") or event._has.get("resv")
        if about is not None:
            found["job"] = dict(about.changed, Resource_List=about.Resource_List.changed, wanted=about.wanted)
        for name, one in event._has.get("vnode_list", {}).items():
            if one.changed or one.resources_available.changed:
                kinds = {key: one.resources_available._known[key][0] for key in one.resources_available.changed}
                found["vnodes"][name] = dict(one.changed, resources=one.resources_available.changed, kinds=kinds)
        found["jobs"] = {name: job.wanted for name, job in event._has.get("job_list", {}).items() if job.wanted}
        if "env" in event._has:
            found["env"] = str(event.env)
        return found
