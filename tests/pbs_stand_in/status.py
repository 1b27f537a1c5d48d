# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is asked about jobs, queues, the server and vnodes. What comes back is in PBS's names and order, and all values are texts."""
from . import jobs
from .errors import UNKNOWN_QUEUE, Refused
from .records import VERSION

WORDS = (("Transit", "T"), ("Queued", "Q"), ("Held", "H"), ("Waiting", "W"), ("Running", "RS"), ("Exiting", "E"), ("Begun", "B"))


def ordered(job):
    return {name: job.attributes[name] for name in jobs.ORDER if name in job.attributes}


def statjob(server, asker, words):
    """Attributes of jobs by their names: those that are named, or all; with `history` those that are over, too."""
    if words["jobs"]:
        found = [server.job(name, words["history"]) for name in words["jobs"]]
    else:
        found = [job for job in server.jobs.values() if words["history"] or job.state != "F"]
    return {job.id: ordered(job) for job in found}


def counts(found):
    return "".join("%s:%d " % (word, sum(job.state in letters for job in found)) for word, letters in WORDS)


def queue(server, name):
    has = server.queues[name]
    found = [job for job in server.jobs.values() if job.attributes["queue"] == name and job.state != "F"]
    shown = {"queue_type": has["queue_type"]}
    shown.update(total_jobs=str(len(found)), state_count=counts(found))
    shown.update((key, value) for key, value in has.items() if key != "queue_type")
    return shown


def statque(server, asker, words):
    for name in words["queues"]:
        if name not in server.queues:
            raise Refused(UNKNOWN_QUEUE)
    return {name: queue(server, name) for name in words["queues"] or server.queues}


def statserver(server, asker, words):
    found = [job for job in server.jobs.values() if job.state != "F"]
    shown = {"server_state": server.attributes["server_state"], "server_host": server.name, "scheduling": server.attributes["scheduling"],
             "total_jobs": str(len(found)), "state_count": counts(found)}
    shown.update((key, value) for key, value in server.attributes.items() if key not in shown)
    shown["pbs_version"] = VERSION
    return {server.name: shown}


def statvnode(server, asker, words):
    """Vnodes by name, and behind the names what is wrong with those that there are not."""
    found, unknown = {}, []
    for name in words["vnodes"] or server.nodes.all:
        if name in server.nodes.all:
            found[name] = server.nodes.shown(server.nodes.all[name])
        else:
            unknown.append(name)
    return {"vnodes": found, "unknown": unknown}


def statresource(server, asker, words):
    return {name: {key: value for key, value in one.items() if value} for name, one in server.resources.own.items()}


def fact(server, asker, words):
    """What a hook of a mom asks of a vnode or a job."""
    return server.facts(words["what"], words["name"])


OPS = {"statjob": statjob, "statque": statque, "statserver": statserver, "statvnode": statvnode, "statresource": statresource, "fact": fact}
