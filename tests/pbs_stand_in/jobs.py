# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job as the server has it: its attributes by PBS's names, as texts, and the rules by which they are checked and completed."""
import time

from . import values
from .errors import BAD_VALUE, BESIDE_SELECT, NO_ATTRIBUTE, READ_ONLY, Refused

# Attributes that users set.
SETTABLE = ("Job_Name", "Hold_Types", "Join_Path", "Keep_Files", "Mail_Points", "Output_Path", "Error_Path", "Priority", "Rerunable", "Execution_Time",
            "Account_Name", "Shell_Path_List", "Variable_List", "project", "Checkpoint", "Mail_Users", "User_List", "array_indices_submitted")
# Those that a manager sets besides.
OF_MANAGERS = ("run_count", "comment")
# In this order they are shown.
ORDER = ("Job_Name", "Job_Owner", "resources_used", "job_state", "queue", "server", "Account_Name", "Checkpoint", "ctime", "Error_Path", "exec_host",
         "exec_vnode", "Execution_Time", "Hold_Types", "Join_Path", "Keep_Files", "Mail_Points", "mtime", "Output_Path", "Priority", "qtime", "Rerunable",
         "Resource_List", "schedselect", "Shell_Path_List", "stime", "obittime", "session_id", "jobdir", "substate", "Variable_List", "euser", "egroup",
         "hashname", "queue_rank", "queue_type", "comment", "etime", "array", "array_indices_submitted", "run_count", "Exit_status",
         "Submit_arguments", "project", "run_version", "Submit_Host")
TIMES = ("ctime", "mtime", "qtime", "etime", "stime", "obittime", "Execution_Time")
# What a run has, and is gone with it where the job is queued again.
OF_A_RUN = ("exec_host", "exec_vnode", "session_id", "jobdir", "resources_used", "stime", "obittime")
SUBSTATES = {"Q": "10", "H": "20", "W": "30", "R": "42", "S": "43", "E": "50", "F": "92"}
# PBS holds a job that was started more often.
MOST_RUNS = 20


class Job:
    """One job. `hosts` are those of its run, the first with its script; `left` those that have ended it."""

    def __init__(self, kept):
        self.kept = kept
        self.id, self.attributes, self.script = kept["id"], kept["attributes"], kept["script"]

    @staticmethod
    def new(name, attributes, script):
        return Job({"id": name, "attributes": attributes, "script": script, "hosts": [], "left": [], "ends": None})

    @property
    def state(self):
        return self.attributes["job_state"]

    @property
    def resources(self):
        return self.attributes["Resource_List"]

    @property
    def user(self):
        return self.attributes["euser"]

    def set_state(self, state, substate=None):
        self.attributes.update(job_state=state, substate=substate or SUBSTATES[state], mtime=str(int(time.time())))

    def number(self, name):
        """An attribute as a number; 0 where it is not set."""
        return int(self.attributes.get(name, "0"))

    def wait(self):
        """The state of a job that does not run, by its holds and its time."""
        late = self.number("Execution_Time") > time.time()
        self.set_state("H" if self.attributes["Hold_Types"] != "n" else "W" if late else "Q")
        if self.state == "Q":
            # Since when it could have run.
            self.attributes.setdefault("etime", str(int(time.time())))

    def requeue(self, status):
        """It waits again; `status` is how its run has ended."""
        for name in OF_A_RUN:
            self.attributes.pop(name, None)
        self.attributes["Exit_status"] = str(status)
        self.kept.update(hosts=[], left=[], ends=None)
        if self.number("run_count") > MOST_RUNS:
            self.attributes.update(Hold_Types="s", comment="job held, too many failed attempts to run")
        self.wait()

    def parts(self, resources):
        """Vnodes of its run with what is taken of each."""
        given = self.attributes.get("exec_vnode")
        return values.parts(given, resources) if given else []


def check(name, text, is_manager):
    """A value of an attribute that is no resource.

    Raises Refused.
    """
    if name not in SETTABLE and not (is_manager and name in OF_MANAGERS):
        raise Refused(READ_ONLY if name in ORDER else NO_ATTRIBUTE, name)
    try:
        if name in ("Priority", "run_count", "Execution_Time"):
            return values.long(text)
        if name == "Rerunable":
            return values.boolean(text)
        if name == "Hold_Types" and not text or set(text) - set("nuosp") and name == "Hold_Types":
            raise ValueError(text)
    except ValueError:
        raise Refused(BAD_VALUE, name)
    return text


def asked(pairs, resources, is_manager):
    """Resources that a user asks for, by name. An empty value takes one away, and is None.

    Raises Refused.
    """
    found = {}
    for name, text in pairs:
        known = resources.get(name)
        if known and "r" in known[1] and not is_manager:
            raise Refused(READ_ONLY, "Resource_List." + name)
        if known and text == "" and name not in ("select", "place"):
            # As PBS takes `-l name`: nothing is set.
            found[name] = None
            continue
        found[name] = resources.value(name, text, "Resource_List")
    return found


def complete(wanted, resources, defaults, new):
    """What a job asks for with all that follows from it: select, place, totals, and schedselect behind it. `new` are the names that a user has set just now.

    Raises Refused.
    """
    asked_in_chunks = [name for name in new if "h" in resources.get(name)[1] and name not in ("select", "place")]
    if "select" in wanted:
        # Totals follow from select, and only a user's own stand against it.
        if ("select" in new or "place" in new or new) and asked_in_chunks:
            raise Refused(BESIDE_SELECT, asked_in_chunks[0])
        kept = {name: text for name, text in wanted.items() if not (resources.counts(name) or name == "nodect")}
        found = values.chunks(wanted["select"], resources)
        kept.setdefault("place", "free")
    else:
        kept = dict(wanted)
        in_chunk = {name: text for name, text in wanted.items() if "h" in resources.get(name)[1]}
        for name, text in defaults.items():
            in_chunk.setdefault(name, text)
        found = [(1, in_chunk)]
        kept.update(select=values.written(found))
        kept.setdefault("place", "pack")
    full = [(count, dict(wants, **{name: text for name, text in defaults.items() if name not in wants})) for count, wants in found]
    kept.update(values.totals(full, resources))
    return dict(sorted(kept.items())), values.written(full)
