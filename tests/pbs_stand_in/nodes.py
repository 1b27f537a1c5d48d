# SPDX-License-Identifier: MIT OR Apache-2.0
"""Vnodes as the server has them: what a manager, a mom and a hook have set, what jobs have of them, and in which state they are."""
import time

from . import values
from .records import VERSION

# A mom has values of her own; those of a manager or a hook hold over them.
OF_MOM, SET = "mom", "set"


class Node:
    """A vnode. `resources` has for each name its value and who has set it."""

    def __init__(self, kept):
        self.kept = kept
        self.name, self.resources = kept["name"], kept["resources"]

    @staticmethod
    def new(name, mom):
        now = int(time.time())
        resources = {"host": ["%s" % mom, OF_MOM], "vnode": [name, OF_MOM]}
        return Node({"name": name, "mom": mom, "resources": resources, "offline": False, "comment": "", "changed": now, "used": 0, "seen": "",
                     "sharing": "default_shared", "pcpus": 0, "queue": "", "resv_enable": "True"})

    def value(self, name):
        """A resource, as a text; None where it has none."""
        found = self.resources.get(name)
        return found[0] if found else None

    def set_resource(self, name, text, who):
        if text == "":
            self.resources.pop(name, None)
        elif who == SET or self.resources.get(name, ["", OF_MOM])[1] == OF_MOM:
            self.resources[name] = [text, who]


class Nodes:
    """All vnodes, with what jobs have of them."""

    def __init__(self, kept, resources):
        self.all, self.resources = {name: Node(one) for name, one in kept.items()}, resources
        # Of each vnode the jobs there, and what each has.
        self.taken = {name: {} for name in self.all}
        # Hosts whose mom is there.
        self.up = set()

    def kept(self):
        return {name: node.kept for name, node in self.all.items()}

    def add(self, name, mom):
        self.all[name], self.taken[name] = Node.new(name, mom), {}
        return self.all[name]

    def remove(self, name):
        del self.all[name], self.taken[name]

    def of_mom(self, mom):
        return [node for node in self.all.values() if node.kept["mom"] == mom]

    def take(self, job):
        """A run has what its exec_vnode says, from its start to its end."""
        for vnode, wants in job.parts(self.resources):
            if vnode in self.taken:
                self.taken[vnode].setdefault(job.id, []).append((wants, job.resources.get("place", "free")))
                counted = [name for name in wants if self.resources.counts(name)]
                self.all[vnode].kept["counted"] = sorted({*counted, *self.all[vnode].kept.get("counted", [])})
        self.note_states()

    def give_back(self, job):
        now = int(time.time())
        for name, jobs in self.taken.items():
            if jobs.pop(job.id, None) is not None:
                self.all[name].kept["used"] = now
        self.note_states()

    def assigned(self, name):
        """What jobs have of a vnode, as numbers, by resource that is counted."""
        sums = {}
        for runs in self.taken[name].values():
            for wants, _ in runs:
                for resource, text in wants.items():
                    if self.resources.counts(resource):
                        kind = self.resources.get(resource)[0]
                        sums[resource] = sums.get(resource, 0) + values.amount(kind, text)
        return sums

    def left(self, name, resource):
        """How much of a counted resource a vnode has left; 0 where it has none."""
        kind, text = self.resources.get(resource)[0], self.all[name].value(resource)
        return (values.amount(kind, text) if text else 0) - self.assigned(name).get(resource, 0)

    def is_exclusive(self, name):
        return any("excl" in place for runs in self.taken[name].values() for _, place in runs)

    def state(self, node):
        words = []
        if node.kept["mom"] not in self.up:
            words = ["state-unknown", "down"] if not node.kept["pcpus"] else ["down"]
        if node.kept["offline"]:
            words.append("offline")
        if not words and self.is_exclusive(node.name):
            words.append("job-exclusive")
        if not words and node.value("ncpus") and self.taken[node.name] and self.left(node.name, "ncpus") <= 0:
            words.append("job-busy")
        return ",".join(words) or "free"

    def note_states(self):
        """Notes when states have changed."""
        for node in self.all.values():
            state = self.state(node)
            if state != node.kept["seen"]:
                node.kept.update(seen=state, changed=int(time.time()))

    def shown(self, node):
        """What pbsnodes shows of a vnode, in its order."""
        kept = node.kept
        found = {"Mom": kept["mom"], "Port": "15002"}
        if kept["pcpus"]:
            found["pbs_version"] = VERSION
        found.update(ntype="PBS", state=self.state(node))
        if kept["pcpus"]:
            found["pcpus"] = str(kept["pcpus"])
        if self.taken[node.name]:
            found["jobs"] = ", ".join("%s/%d" % (job, place) for place, job in enumerate(self.taken[node.name]))
        found["resources_available"] = {name: value[0] for name, value in sorted(node.resources.items())}
        # What was assigned once is shown from then on.
        once = [name for name in kept.get("counted", []) if self.resources.get(name)]
        assigned = {name: values.shown(self.resources.get(name)[0], 0) for name in (*values.ALWAYS_ASSIGNED, *once)}
        for name, count in self.assigned(node.name).items():
            assigned[name] = values.shown(self.resources.get(name)[0], count)
        found["resources_assigned"] = dict(sorted(assigned.items()))
        found["comment"], found["queue"] = kept["comment"], kept["queue"]
        found.update(resv_enable=kept["resv_enable"], sharing=kept["sharing"], license="l", last_state_change_time=str(kept["changed"]))
        if kept["used"]:
            found["last_used_time"] = str(kept["used"])
        return {name: value for name, value in found.items() if value != ""}

