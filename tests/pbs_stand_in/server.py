# SPDX-License-Identifier: MIT OR Apache-2.0
"""pbs_server: what it keeps, whom it talks to, and what it does of itself. What it is asked is in requests.py, manage.py and status.py."""
import collections
import os
import selectors
import signal
import sys
import time

from . import hooks, manage, requests, status, wire
from .errors import FINISHED, NOT_HERE, UNKNOWN_JOB, Misuse, Refused
from .hook_module import STATES
from .jobs import Job
from .nodes import OF_MOM, SET, Nodes
from .records import Log, account, conf, host, load, path, save
from .values import BUILT_IN, Resources

# Who asks: a user of a host, who may be a manager.
Asker = collections.namedtuple("Asker", "user host manager")
# How a run ends of which a host was lost: the one with its script, or another.
LOST, LOST_SISTER = -20, -14
NEW = {
    "server_state": "Active", "scheduling": "False", "default_queue": "workq", "log_events": "511", "mailer": "/usr/sbin/sendmail", "mail_from": "adm",
    "query_other_jobs": "True", "scheduler_iteration": "600", "resv_enable": "True", "node_fail_requeue": "310", "max_array_size": "10000",
    "resend_term_delay": "5", "eligible_time_enable": "False", "max_concurrent_provision": "5", "max_job_sequence_id": "9999999",
    "resources_default": {"ncpus": "1"}, "default_chunk": {"ncpus": "1"},
}


class Server:
    """The state of a server, and its loop."""

    def __init__(self):
        self.name = host()
        kept = load(path("server_priv", "stand_in.json"), {})
        self.attributes = kept.get("attributes", dict(NEW))
        self.queues = kept.get("queues", {"workq": {"queue_type": "Execution", "enabled": "True", "started": "True"}})
        self.resources = Resources(kept.get("resources", {}))
        self.hooks = kept.get("hooks", {})
        self.nodes = Nodes(kept.get("nodes", {}), self.resources)
        self.next = kept.get("next", 0)
        self.jobs = collections.OrderedDict()
        self.load_jobs()
        self.log = Log("server_logs", "Server@" + self.name)
        self.moms, self.lost = {}, {}
        self.over = False

    # What is kept.

    def load_jobs(self):
        folder = path("server_priv", "jobs")
        names = [name for name in os.listdir(folder) if name.endswith(".JB")]
        for name in sorted(names, key=lambda name: int(name.split(".")[0].split("[")[0])):
            job = Job(load(os.path.join(folder, name), None))
            self.jobs[job.id] = job
            self.nodes.take(job) if job.state in "RE" else None

    def save(self):
        kept = {"attributes": self.attributes, "queues": self.queues, "resources": self.resources.own, "hooks": self.hooks, "nodes": self.nodes.kept(), "next": self.next}
        save(path("server_priv", "stand_in.json"), kept)

    def save_job(self, job):
        save(path("server_priv", "jobs", job.id + ".JB"), job.kept)

    def forget(self, job):
        os.unlink(path("server_priv", "jobs", job.id + ".JB"))
        del self.jobs[job.id]

    def job(self, name, history=False):
        """A job by its number or its whole name.

        Raises Refused: there is none, or it is over and `history` does not ask for such.
        """
        job = self.jobs.get(name) or self.jobs.get("%s.%s" % (name, self.name))
        if job is None:
            raise Refused(UNKNOWN_JOB)
        if job.state == "F" and not history:
            raise Refused(FINISHED)
        return job

    # The loop.

    def serve(self, ready):
        self.selector = selectors.DefaultSelector()
        listener = wire.listen(wire.SERVER)
        self.selector.register(listener, selectors.EVENT_READ, None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "over", True))
        self.log("Svr", self.log.who, "Server pid = %d ready" % os.getpid(), 2)
        ready()
        while not self.over:
            for key, _ in self.selector.select(0.25):
                if key.data is None:
                    connection, _ = listener.accept()
                    self.selector.register(connection, selectors.EVENT_READ, wire.Talk(connection))
                else:
                    self.hear(key.data)
            self.due()
        self.save()
        os.unlink(wire.SERVER)
        self.log("Svr", self.log.who, "Server shutdown completed", 2)

    def close(self, talk):
        self.selector.unregister(talk.socket)
        talk.close()
        for mom, known in list(self.moms.items()):
            if known is talk:
                self.lose(mom)

    def hear(self, talk):
        lines = talk.lines()
        if lines is None:
            self.close(talk)
            return
        for words in lines:
            if "tells" in words:
                # A mom keeps her connection, and only root is one.
                getattr(self, "mom_" + words["tells"])(talk, words) if talk.uid == 0 else None
            elif not talk.send(self.answer(talk, words)):
                self.close(talk)
                return

    def answer(self, talk, words):
        """The answer to a command."""
        asker = Asker(talk.user, words["host"], talk.uid == 0)
        about = words.get("job", "")
        self.log("Req", "", "%s request received from %s@%s" % (words["op"], asker.user, asker.host), 0x100)
        try:
            for part in (requests, status, manage):
                if words["op"] in part.OPS:
                    return {"answer": part.OPS[words["op"]](self, asker, words)}
            raise Refused(NOT_HERE, words["op"])
        except Refused as why:
            self.log("Req", "req_reject", "Reject reply code=%d, from %s@%s: %s" % (why.code, asker.user, asker.host, why.text))
            return {"code": why.code, "text": why.text, "about": about}

    # Hooks.

    def known(self):
        """Type and flags of all resources."""
        known = {name: list(one) for name, one in BUILT_IN.items()}
        known.update((name, [one["type"], one["flag"]]) for name, one in self.resources.own.items())
        return known

    def facts(self, what, name):
        """What a hook is told of a vnode or a job; None where there is none."""
        if what == "job":
            job = self.jobs.get(name)
            return dict(job.attributes, id=job.id) if job else None
        node = self.nodes.all.get(name)
        if node is None:
            return None
        shown, words = self.nodes.shown(node), self.nodes.state(node).split(",")
        numbers = {"offline": "ND_OFFLINE", "down": "ND_DOWN", "job-busy": "ND_BUSY", "job-exclusive": "ND_JOB_EXCLUSIVE", "state-unknown": "ND_STATE_UNKNOWN"}
        state = sum(STATES[numbers[word]] for word in words if word in numbers)
        times = {key: int(shown[key]) for key in ("last_state_change_time", "last_used_time") if key in shown}
        return dict(shown, name=name, state=state, comment=shown.get("comment"), **times)

    def run_hooks(self, event, asker, about):
        """Has hooks answer an event. What each wants of the job comes back, and the sentence of the one that refuses; None where none does."""
        changes = []
        for name in hooks.wanted(self.hooks, event):
            files = [path("server_priv", "hooks", name + end) for end in (".PY", ".CF")]
            facts = dict(about, event=event, hook=name, requestor=asker.user, requestor_host=asker.host, local=self.name, known=self.known(), ask=self.facts, conf=conf())
            result = hooks.Run(name, self.hooks[name], files, facts, self.open_files()).wait()
            for line in result["logged"]:
                self.log("Hook", name, line, 0x400)
            changes.append(result["job"])
            if not result["accept"]:
                self.log("Hook", name, "%s request rejected by '%s'" % (event, name), 0x400)
                self.log("Hook", name, result["message"], 0x400)
                return changes, result["message"] or "request rejected by '%s'" % name
        return changes, None

    def open_files(self):
        return [key.fd for key in self.selector.get_map().values()]

    def send_hooks(self, talk):
        """A mom has all hooks with events of hers."""
        own = {name: dict(hook, config=self.config(name)) for name, hook in self.hooks.items() if hooks.is_of_moms(hook)}
        talk.send({"do": "hooks", "hooks": own, "known": self.known()})

    def config(self, name):
        try:
            with open(path("server_priv", "hooks", name + ".CF")) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def hooks_changed(self):
        self.save()
        for talk in list(self.moms.values()):
            self.send_hooks(talk)

    # Moms.

    def tell(self, mom, words):
        talk = self.moms.get(mom)
        return talk is not None and talk.send(words)

    def mom_hello(self, talk, words):
        mom = words["mom"]
        if self.moms.get(mom) not in (None, talk):
            self.close(self.moms[mom])
        self.moms[mom], talk.hello = talk, words
        self.lost.pop(mom, None)
        self.take_vnodes(mom)
        self.send_hooks(talk)
        here = {job.id: job for job in self.jobs.values() if mom in job.kept["hosts"] and job.state in "RES"}
        for name, run in words["jobs"].items():
            if name not in here or here[name].attributes["run_version"] != run:
                self.tell(mom, {"do": "discard", "job": name})
        for name, job in here.items():
            if words["jobs"].get(name) != job.attributes["run_version"] and mom not in job.kept["left"]:
                self.lose_run(job, mom)

    def take_vnodes(self, mom):
        """What a mom says of her vnodes; her own one is there when a manager has made it."""
        talk = self.moms.get(mom)
        if talk is None or not self.nodes.of_mom(mom):
            return
        self.nodes.up.add(mom)
        for name, has in talk.hello["vnodes"].items():
            node = self.nodes.all.get(name) or self.nodes.add(name, mom)
            node.kept["pcpus"] = talk.hello["pcpus"]
            for resource, text in has.items():
                node.set_resource(resource, text, OF_MOM)
        self.nodes.note_states()
        self.save()

    def lose(self, mom):
        """A mom has gone, or her host."""
        del self.moms[mom]
        self.nodes.up.discard(mom)
        self.nodes.note_states()
        self.log("Node", mom, "node down: communication closed", 2)
        self.lost[mom] = time.monotonic() + float(self.attributes["node_fail_requeue"])

    def lose_run(self, job, mom):
        """A host of a run was lost with it."""
        job.kept["ends"] = job.kept["ends"] or {"kind": "rerun", "status": LOST if mom == job.kept["hosts"][0] else LOST_SISTER}
        if job.attributes["Rerunable"] != "True":
            job.kept["ends"]["kind"] = "exit"
        for other in job.kept["hosts"]:
            if other != mom:
                self.tell(other, {"do": "discard", "job": job.id})
        job.kept["left"] = list(job.kept["hosts"])
        self.finish(job)

    def run_of(self, words):
        """The job of which a mom tells, where it is still in that run."""
        job = self.jobs.get(words["job"])
        return job if job and job.attributes.get("run_version") == words["run"] and job.state in "RES" else None

    def mom_started(self, _talk, words):
        job = self.run_of(words)
        if job and job.state == "R":
            job.attributes.update(session_id=str(words["session"]), jobdir=words["jobdir"], substate="42")
            self.save_job(job)

    def mom_used(self, _talk, words):
        job = self.run_of(words)
        if job:
            job.attributes["resources_used"] = words["used"]

    def mom_ended(self, _talk, words):
        """The script of a job has ended, or was not started."""
        job = self.run_of(words)
        if not job:
            return
        kind = words["kind"]
        if kind == "rerun" and job.attributes["Rerunable"] != "True" and job.attributes["substate"] == "42":
            kind = "exit"
        job.kept["ends"] = job.kept["ends"] or {"kind": kind, "status": words["status"]}
        job.attributes["resources_used"] = words["used"]
        job.set_state("E")
        self.save_job(job)
        for mom in job.kept["hosts"][1:]:
            self.tell(mom, {"do": "end", "job": job.id, "status": words["status"]})

    def mom_left(self, _talk, words):
        """A mom has nothing of a run any more, its hooks have ended."""
        job = self.run_of(words)
        if job:
            job.kept["left"].append(words["mom"])
            self.finish(job)

    def mom_wants(self, _talk, words):
        """A hook of a mom has a job run again, or deletes it."""
        job = self.run_of(words)
        if not job or job.state not in "RS":
            return
        rerun = words["wanted"] == "rerun" and job.attributes["Rerunable"] == "True"
        self.log("Job", job.id, "a hook of %s wants: %s" % (words["mom"], words["wanted"]))
        self.end(job, "rerun" if rerun else "exit", -18 if rerun else -19)

    def mom_vnodes(self, _talk, words):
        """A hook of a mom sets what its vnodes have. What no PBS would take ends the server, so that a test fails that has it."""
        for name, new in words["vnodes"].items():
            node = self.nodes.all.get(name)
            if node is None or node.kept["mom"] != words["mom"]:
                raise Misuse("a hook on %s sets vnode %s, which is not there or another host's" % (words["mom"], name))
            for resource, text in new["resources"].items():
                known = self.resources.get(resource)
                if known is None:
                    # As PBS does.
                    self.resources.own[resource] = {"type": new["kinds"][resource], "flag": ""}
                elif known[0] != new["kinds"][resource]:
                    raise Misuse("a hook on %s sets %s of %s as %s, which is %s" % (words["mom"], resource, name, new["kinds"][resource], known[0]))
                if text:
                    text = self.resources.value(resource, text, "resources_available")
                node.set_resource(resource, text, SET)
                self.log("Node", name, "Updated vnode %s's resource resources_available.%s=%s per mom hook request" % (name, resource, text), 0x100)
            if "state" in new:
                node.kept["offline"] = new["state"] == STATES["ND_OFFLINE"]
            if "comment" in new:
                node.kept["comment"] = new["comment"] or ""
        self.nodes.note_states()
        self.save()

    # Ends of runs.

    def end(self, job, kind, status):
        """Has moms end a run that has to end in another way than by itself."""
        job.kept["ends"] = {"kind": kind, "status": status}
        self.save_job(job)
        if not self.tell(job.kept["hosts"][0], {"do": "kill", "job": job.id, "signal": int(signal.SIGKILL)}):
            # Nobody is there to say that it is over.
            self.lose_run(job, job.kept["hosts"][0])

    def finish(self, job):
        """What becomes of a job when all hosts have left its run; one that is down has left it."""
        if any(mom not in job.kept["left"] and mom in self.moms for mom in job.kept["hosts"]):
            self.save_job(job)
            return
        ends = job.kept["ends"] or {"kind": "exit", "status": 0}
        self.nodes.give_back(job)
        self.account(job, "R" if ends["kind"] == "rerun" else "E", ends["status"])
        if ends["kind"] == "rerun":
            job.requeue(ends["status"])
            self.log("Job", job.id, "Job requeued, execution node down or run refused, Exit_status=%d" % ends["status"])
        else:
            self.over_with(job, ends["status"])
        self.save_job(job) if job.id in self.jobs else None
        self.save()

    def over_with(self, job, status):
        """A job goes into the history, or is gone where the server keeps none."""
        if status is not None:
            job.attributes["Exit_status"] = str(status)
        job.attributes["obittime"] = str(int(time.time()))
        job.set_state("F", "92" if not status else "93" if status < 256 else "91")
        self.log("Job", job.id, "Exit_status=%s" % status)
        if self.attributes.get("job_history_enable") != "True":
            self.forget(job)

    def account(self, job, kind, status=None):
        """The line of accounting about a job."""
        has = job.attributes
        words = ["user=" + job.user, "group=" + has["egroup"], "project=" + has["project"], "jobname=" + has["Job_Name"], "queue=" + has["queue"]]
        words += ["%s=%s" % (key, has[key]) for key in ("ctime", "qtime", "etime") if key in has]
        if kind != "Q":
            words += ["start=" + has["stime"], "exec_host=" + has["exec_host"], "exec_vnode=" + has["exec_vnode"]]
        words += ["Resource_List.%s=%s" % item for item in job.resources.items()]
        if status is not None:
            used = ["resources_used.%s=%s" % item for item in has.get("resources_used", {}).items()]
            words += ["session=" + has.get("session_id", "0"), "end=%d" % time.time(), "Exit_status=%d" % status] + used + ["run_count=" + has["run_count"]]
        account(kind, job.id, " ".join(words))

    def due(self):
        """What the server does when it is time."""
        for mom, when in list(self.lost.items()):
            if time.monotonic() > when:
                del self.lost[mom]
                for job in [job for job in self.jobs.values() if mom in job.kept["hosts"] and job.state in "RES"]:
                    self.lose_run(job, mom)
        for job in self.jobs.values():
            if job.state == "W" and job.number("Execution_Time") <= time.time():
                job.attributes.pop("Execution_Time")
                job.wait()
                self.save_job(job)


def main(ready):
    server = Server()
    try:
        server.serve(ready)
    except Misuse as why:
        server.log("Svr", server.log.who, "MISUSE: %s" % why, 1)
        sys.exit("pbs_server ends: %s" % why)
