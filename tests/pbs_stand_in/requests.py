# SPDX-License-Identifier: MIT OR Apache-2.0
"""What users and managers ask of jobs: submit, alter, hold, run, run again, signal, delete."""
import grp
import pwd
import time

from . import jobs, placing, values
from .errors import (BAD_STATE, HOOK_ERROR, MOM_REJECTS, NO_NODES, NOT_HERE, NOT_RERUNNABLE, RUNNING, UNAUTHORIZED, UNKNOWN_NODE,
                     UNKNOWN_QUEUE, Refused)
from .jobs import Job

# What a user may change of a job that runs.
OF_RUNNING = ("walltime", "cput", "min_walltime", "max_walltime")


def may(asker, job):
    """Raises Refused unless the job is the asker's, or the asker a manager."""
    if not asker.manager and asker.user != job.user:
        raise Refused(UNAUTHORIZED)


def manager(asker):
    if not asker.manager:
        raise Refused(UNAUTHORIZED)


def readable(server, pairs):
    """What a hook is told of resources that somebody asks for: as far as they are values."""
    found = {}
    for name, text in pairs:
        try:
            if text:
                server.resources.value(name, text, "")
                found[name] = text
        except Refused:
            continue
    return found


def changed(pairs, changes):
    """Resources that are asked for, with what hooks have made of them."""
    found = dict(pairs)
    for change in changes:
        found.update(change.get("Resource_List", {}))
    return list(found.items())


def queuejob(server, asker, words):
    """A new job; its name."""
    attributes, pairs = words["attributes"], [tuple(pair) for pair in words["resources"]]
    queue = words.get("queue") or server.attributes["default_queue"]
    if queue not in server.queues:
        raise Refused(UNKNOWN_QUEUE)
    about = {"job": dict(attributes, Resource_List=readable(server, pairs), queue=queue)}
    changes, refused = server.run_hooks("queuejob", asker, about)
    if refused:
        raise Refused(HOOK_ERROR, words=refused)
    kept = {name: jobs.check(name, text, False) for name, text in attributes.items() if name not in ("Variable_List", "Submit_arguments")}
    users = dict(jobs.asked(pairs, server.resources, False))
    wanted = dict(users)
    for name, text in changed([], changes):
        wanted[name] = server.resources.value(name, text, "Resource_List") if text else None
    wanted = {name: text for name, text in wanted.items() if text is not None}
    # Hooks see nothing of what is a default of the queue or of the server.
    for has in (server.queues[queue], server.attributes):
        for name, text in has.get("resources_default", {}).items():
            if name != "ncpus":
                wanted.setdefault(name, text)
    new = [name for name, text in users.items() if text is not None]
    complete, schedselect = jobs.complete(wanted, server.resources, server.attributes["default_chunk"], new)
    is_array = "array_indices_submitted" in kept
    name = "%d%s.%s" % (server.next, "[]" if is_array else "", server.name)
    now = str(int(time.time()))
    account = pwd.getpwnam(asker.user)
    full = dict(kept, Job_Owner="%s@%s" % (asker.user, asker.host), queue=queue, server=server.name, ctime=now, mtime=now, qtime=now,
                Resource_List=complete, schedselect=schedselect, Variable_List=dict(attributes["Variable_List"], PBS_O_QUEUE=queue, PBS_O_HOST=asker.host),
                euser=asker.user, egroup=grp.getgrgid(account.pw_gid).gr_name, queue_rank=str(int(time.time() * 1000000)),
                queue_type="E", Submit_arguments=attributes["Submit_arguments"], project=kept.get("project", "_pbs_project_default"),
                Submit_Host=asker.host)
    if is_array:
        full["array"] = "True"
    for key, end in (("Output_Path", "o"), ("Error_Path", "e")):
        if full[key].endswith("/%s.%s" % (full["Job_Name"], end)):
            # Where its user says nothing the number is part of the name.
            full[key] += str(server.next)
    job = Job.new(name, full, words["script"])
    job.kept["asked"] = wanted
    job.wait()
    server.next += 1
    server.jobs[name] = job
    server.save_job(job)
    server.save()
    server.account(job, "Q")
    words = (asker.user, asker.host, full["Job_Owner"], full["Job_Name"], queue)
    server.log("Job", name, "Job Queued at request of %s@%s, owner = %s, job name = %s, queue = %s" % words)
    return name


def modifyjob(server, asker, words):
    job = server.job(words["job"])
    may(asker, job)
    pairs = [tuple(pair) for pair in words["resources"]]
    about = {"job": dict(words["attributes"], id=job.id, Resource_List=readable(server, pairs)), "job_o": dict(job.attributes, id=job.id)}
    users = jobs.asked(pairs, server.resources, asker.manager)
    kept = {name: jobs.check(name, text, asker.manager) for name, text in words["attributes"].items()}
    if job.state != "Q" and job.state not in "HW":
        late = [name for name in users if name not in OF_RUNNING]
        if late:
            raise Refused(RUNNING, "Resource_List." + late[0])
    changes, refused = server.run_hooks("modifyjob", asker, about)
    if refused:
        raise Refused(HOOK_ERROR, words=refused)
    wanted = dict(job.kept["asked"])
    if "select" in users:
        wanted = {name: text for name, text in wanted.items() if "h" not in server.resources.get(name)[1]}
    wanted.update(users)
    for name, text in changed([], changes):
        wanted[name] = server.resources.value(name, text, "Resource_List") if text else None
    wanted = {name: text for name, text in wanted.items() if text is not None}
    complete, schedselect = jobs.complete(wanted, server.resources, server.attributes["default_chunk"], list(users))
    job.kept["asked"] = wanted
    job.attributes.update(kept, Resource_List=complete, schedselect=schedselect, mtime=str(int(time.time())))
    if job.state in "QHW":
        job.wait()
    server.save_job(job)


def holdjob(server, asker, words):
    job = server.job(words["job"])
    may(asker, job)
    if set(words["holds"]) & set("so") and not asker.manager:
        raise Refused(UNAUTHORIZED)
    holds = (set(job.attributes["Hold_Types"]) - set("n")) | set(words["holds"])
    job.attributes["Hold_Types"] = "".join(sorted(holds, key="uos".index))
    if job.state in "QW":
        job.wait()
    server.save_job(job)


def releasejob(server, asker, words):
    job = server.job(words["job"])
    may(asker, job)
    if set(words["holds"]) & set("so") and not asker.manager:
        raise Refused(UNAUTHORIZED)
    holds = set(job.attributes["Hold_Types"]) - set(words["holds"]) - set("n")
    job.attributes["Hold_Types"] = "".join(sorted(holds, key="uos".index)) or "n"
    if job.state == "H":
        job.wait()
    server.save_job(job)


def runjob(server, asker, words):
    """Starts a job on the vnodes that are named, or where there is room."""
    job = server.job(words["job"])
    manager(asker)
    if job.state not in "QHW":
        raise Refused(BAD_STATE)
    if "array" in job.attributes:
        raise Refused(NOT_HERE, "subjobs")
    given = words["vnodes"]
    by_scheduler = given is None
    if by_scheduler:
        try:
            given = placing.place(job, server.nodes)
        except placing.NoRoom as why:
            sentence = "Insufficient amount of resource: %s" % why if str(why) else "No available resources on nodes"
            not_running(server, job, sentence)
            raise Refused(NO_NODES, words=sentence)
    parts = values.parts(given, server.resources)
    if any(name not in server.nodes.all for name, _ in parts):
        raise Refused(UNKNOWN_NODE, words="Unknown node ")
    about = {"job": dict(job.attributes, id=job.id, exec_vnode=given)}
    # Without -H it would be pbs_sched that starts it.
    changes, refused = server.run_hooks("runjob", asker._replace(user="Scheduler") if by_scheduler else asker, about)
    if refused:
        put_off(server, job, changes)
        if by_scheduler:
            not_running(server, job, "PBS Error: " + refused)
        raise Refused(HOOK_ERROR, words=refused)
    for name, text in [item for change in changes for item in change.get("Resource_List", {}).items()]:
        # PBS lets a hook change a job only where it refuses the start.
        raise Refused(HOOK_ERROR, words="request rejected by filter hook: a hook failed to set job's Resource_List.%s = %s (not allowed)" % (name, text))
    hosts = list(dict.fromkeys(server.nodes.all[name].kept["mom"] for name, _ in parts))
    if any(mom not in server.moms for mom in hosts):
        raise Refused(MOM_REJECTS)
    start(server, job, given, parts, hosts)


def not_running(server, job, why):
    """What pbs_sched writes of a job that it cannot start."""
    job.attributes["comment"] = "Not Running: " + why
    server.save_job(job)


def put_off(server, job, changes):
    """What a hook that refuses a start says of the job."""
    for change in changes:
        for name, text in change.get("Resource_List", {}).items():
            value = server.resources.value(name, text, "Resource_List") if text else None
            for known in (job.kept["asked"], job.resources):
                known.pop(name, None) if value is None else known.update({name: value})
        if "Execution_Time" in change:
            job.attributes["Execution_Time"] = change["Execution_Time"]
    job.wait()
    server.save_job(job)


def start(server, job, given, parts, hosts):
    """Counts what a run has, and has moms start it."""
    now = time.time()
    words = []
    for name, wants in parts:
        cpus = wants.get("ncpus", "0")
        words.append("%s/%d%s" % (server.nodes.all[name].kept["mom"], len(server.nodes.taken[name]), "" if cpus == "1" else "*" + cpus))
    runs = str(job.number("run_count") + 1)
    when = time.strftime("%a %b %d at %H:%M", time.localtime(now))
    # That of the run before, as OpenPBS has it but for 22.05.11 and 23.06.06.
    job.attributes.pop("Exit_status", None)
    job.attributes.update(exec_vnode=given, exec_host="+".join(words), hashname=job.id, stime=str(int(now)), run_count=runs, run_version=str(job.number("run_version") + 1),
                          comment="Job run at %s on %s" % (when, given))
    job.attributes.pop("Execution_Time", None)
    job.kept.update(hosts=hosts, left=[], ends=None)
    job.set_state("R", "41")
    server.nodes.take(job)
    server.account(job, "S")
    server.save_job(job)
    server.save()
    server.log("Job", job.id, "Job Run at request of qrun on exec_vnode %s" % given)
    nodefile = [server.nodes.all[name].kept["mom"] for name, _ in parts]
    of_moms = {name: text for name, text in job.resources.items() if "m" in server.resources.get(name)[1]}
    told = {"id": job.id, "script": job.script, "nodefile": nodefile, "hosts": hosts, "attributes": dict(job.attributes, Resource_List=of_moms)}
    # Those with tasks only know of it before the script can start any.
    for mom in reversed(hosts):
        server.tell(mom, {"do": "run", "job": told})


def rerunjob(server, asker, words):
    job = server.job(words["job"])
    manager(asker)
    if job.state not in "RSE":
        raise Refused(BAD_STATE)
    if job.attributes["Rerunable"] != "True":
        raise Refused(NOT_RERUNNABLE)
    server.end(job, "rerun", -11)


def signaljob(server, asker, words):
    job = server.job(words["job"])
    manager(asker) if words["signal"] in ("suspend", "resume") else may(asker, job)
    suspend, resume = words["signal"] == "suspend", words["signal"] == "resume"
    if job.state != ("S" if resume else "R"):
        raise Refused(BAD_STATE)
    for mom in job.kept["hosts"]:
        server.tell(mom, {"do": "signal", "job": job.id, "signal": words["signal"]})
    if suspend:
        job.set_state("S")
        server.nodes.give_back(job)
    elif resume:
        job.set_state("R")
        server.nodes.take(job)
    server.save_job(job)


def deletejob(server, asker, words):
    """Deletes a job, or with `history` also what is kept of it; `force` waits for no mom."""
    job = server.job(words["job"], words["history"])
    may(asker, job)
    if words["force"]:
        manager(asker)
    server.log("Job", job.id, "Job to be deleted at request of %s@%s" % (asker.user, asker.host))
    if job.state == "F":
        server.forget(job)
    elif job.state in "QHW":
        server.over_with(job, 271 if "Exit_status" in job.attributes else None)
        server.save_job(job) if job.id in server.jobs else None
        server.forget(job) if words["history"] and job.id in server.jobs else None
    elif words["force"]:
        for mom in job.kept["hosts"]:
            server.tell(mom, {"do": "discard", "job": job.id})
        job.kept.update(left=list(job.kept["hosts"]), ends={"kind": "exit", "status": 271})
        server.finish(job)
    elif not job.kept["ends"] and job.state in "RS":
        if not server.tell(job.kept["hosts"][0], {"do": "kill", "job": job.id, "signal": 15}):
            raise Refused(MOM_REJECTS)


OPS = {"queuejob": queuejob, "modifyjob": modifyjob, "holdjob": holdjob, "releasejob": releasejob, "runjob": runjob, "rerunjob": rerunjob,
       "signaljob": signaljob, "deletejob": deletejob}
