# SPDX-License-Identifier: MIT OR Apache-2.0
"""The hook of gpuos for PBS: hands an event on as JSON, and does what the answer says. Decisions are not made here.

Events of the server are answered by the command `gpuos pbs-hook`, which cannot end pbs_server and is itself ended when it takes too
long. Events of a mom are answered by libgpuos_pbs_hook.so, in the pbs_python that runs this file for that event alone. Where one of
the two is missing or wrong, jobs that say nothing to gpuos go on as they would without it, and others are told so.

For every Python that PBS may be built with: syntax and library of 3.6. `gpuos pbs install` puts it in.
"""
import collections
import ctypes
import grp
import json
import os
import pwd
import re
import signal
import sys
import time

import pbs

SCHEMA = "gpuos.pbs/1"
# Of include/gpuos_pbs.h.
VERSION = 1
# Seconds for all that an event waits for, from its start: half the hook's alarm. And for the command, which is asked once.
WITHIN = 60
PATIENCE = 3
# So long from its start a job's first program tries to be kept to its GPUs, where it has to be, and how the sentence begins that it was not.
CONFINED_WITHIN = 20
UNCONFINED = "gpuos cannot keep this program"
# What vnodes of one domain of a level have in common.
DOMAINS = {"node": "host", "nvlink": "gpuos_nvlink", "leaf": "gpuos_leaf"}
# What pbs_server is asked of a vnode.
OF_VNODES = ("ngpus", "gpuos_ngpus", "gpuos_host", "gpuos_linked", "gpuos_mig_compute", "gpuos_mig_memory", "gpuos_mig_fits", "gpuos_share_parts", "gpuos_share_fits")
# Resources whose values PBS has types for.
TYPED = {"select": "select", "place": "place", "mem": "size"}
# Events of reservations, their names, and where a changed one is as it was. Not every PBS has the second.
RESERVATIONS = {pbs.RESVSUB: ("resvsub", None)}
if hasattr(pbs, "MODIFYRESV"):
    RESERVATIONS[pbs.MODIFYRESV] = ("modifyresv", "resv_o")
# So much is read of what pbs_cgroups notes for a job.
MOST_NOTED = 1 << 14
# So often pbs_server is asked in one event of a mom.
TURNS = 2
# Where gpuosd and gpuos_mover listen on the host of a mom, unless the configuration says otherwise.
GPUOSD = "/run/gpuos/gpuosd.sock"
MOVER = "/run/gpuos/gpuos_mover.sock"
# What daemons there are told of a job that runs.
OF_JOBS = ("gpuos_topology", "gpuos_mig", "gpuos_share", "gpuos_mem", "gpuos_checkpoint", "gpuos_hosts", "walltime")
# What programs load that have memory of a GPU in turns, or beyond it, unless the configuration says otherwise.
PRELOAD = "/usr/lib/gpuos/libgpuos_preload.so.0"
# Substates of a job: suspended, by qsig, pbs_sched or an owner's keyboard alike (a mom sets the first), and one that mom deletes, which may take minutes.
SUSPENDED, DELETED = (43, 45), 153
# `Exit_status` of a run of which pbs_server lost a host, the first or another. So many seconds after a host came back no such job is started on it.
LOST, SETTLES = (-20, -14), 10
# How pbs_sched is named where it starts a job.
SCHEDULER = "Scheduler"
# Where exec_vnode has GPUs.
GPUS = re.compile(r"(ngpus|gpuos_mig_memory|gpuos_share_parts)=0*[1-9]")
# Names of vnodes in exec_vnode, and what a start has of one.
VNODES = re.compile(r"[(+]\s*([^:()+\s]+)")
GIVEN = re.compile(r"[(+]\s*([^:()+\s]+)[^()+]*:ngpus=([0-9]+)")


# What is to be done about an event; `must`: a refusal holds for jobs too that say nothing to gpuos.
Answer = collections.namedtuple("Answer", "refused message edits must")


class Missing(Exception):
    """There is no answer; the text says why, and what to do."""


def text(value):
    """What PBS holds, as JSON can hold it."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def log(level, message):
    """Says something in the log of PBS. That of 23.06.06 with Python 3.10 has none for hooks, and the event goes on."""
    try:
        pbs.logmsg(level, message)
    except Exception:
        return


def resources(held, names=None):
    """Resources that are set, as texts."""
    found = {}
    if held is None:
        return found
    # PBS fills some of these lists when a value is read, and names none before.
    held["select"]
    for name in held.keys() if names is None else names:
        try:
            value = held[name]
        except Exception:
            # A resource that this PBS was not told of.
            continue
        if value is not None:
            found[text(name)] = text(value)
    return found


def says_something(job):
    """Whether a job's resources name gpuos."""
    # Moms are told less of a job, but always its place.
    texts = [value for name, value in job.items() if name.lower() in ("select", "place")]
    return any("gpuos_" in word.lower() for word in list(job) + texts)


def config():
    """What `gpuos pbs install` wrote: where command and library are, and what GPUs hosts have."""
    # Not every PBS sets the former in the server.
    name = pbs.hook_config_filename or os.environ.get("PBS_HOOK_CONFIG_FILE")
    if not name:
        raise Missing("the hook has no configuration; run gpuos pbs install again")
    try:
        with open(str(name)) as file:
            known = json.load(file)
    except (OSError, ValueError) as why:
        raise Missing("the hook's configuration cannot be read (%s); run gpuos pbs install again" % why)
    if not isinstance(known, dict):
        raise Missing("the hook's configuration is no table; run gpuos pbs install again")
    return known


def site(known):
    """What decisions in the server go by."""
    told = {name: known.get(name) is True for name in ("planner", "checkpoints", "several_sets")}
    return dict(told, shares=known.get("shares"), memory=known.get("memory"), largest=known.get("largest", {}), boards=known.get("boards", {}))


def by_command(known, event):
    """The answer of `gpuos pbs-hook`, which gets the event on its standard input."""
    import subprocess  # Moms run no command, and a pbs_python of theirs starts by milliseconds sooner.

    command = str(known.get("command", ""))
    both, env = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE), {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    try:
        run = subprocess.Popen([command, "pbs-hook"], stderr=subprocess.DEVNULL, cwd="/", env=env, start_new_session=True, **both)
    except (OSError, ValueError) as why:
        raise Missing("%s cannot be run (%s); install gpuos on the host of pbs_server" % (command, why))
    try:
        said = run.communicate(event, timeout=PATIENCE)[0]
    except BaseException as why:
        # With all that it has started. Nobody waits for its end: what hangs in the kernel has none.
        os.killpg(run.pid, signal.SIGKILL)
        if isinstance(why, subprocess.TimeoutExpired):
            raise Missing("%s took longer than %d s" % (command, PATIENCE))
        raise
    if run.returncode != 0:
        raise Missing("%s pbs-hook ended with %d; hook and command are of different releases" % (command, run.returncode))
    return said


def by_library(known, event):
    """The answer of libgpuos_pbs_hook.so."""
    name = str(known.get("library", ""))
    try:
        library = ctypes.CDLL(name)
        version, answer, free = library.gpuos_pbs_version, library.gpuos_pbs_event, library.gpuos_pbs_free
    except (OSError, AttributeError, ValueError) as why:
        raise Missing("%s cannot be loaded (%s); install gpuos on this host" % (name, why))
    version.argtypes, version.restype = [], ctypes.c_uint32
    if version() != VERSION:
        raise Missing("%s has version %d of its interface, and the hook knows %d; install one release" % (name, version(), VERSION))
    answer.argtypes, answer.restype = [ctypes.c_char_p], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p], None
    said = answer(event)
    if not said:
        raise Missing("%s had no memory for an answer" % name)
    try:
        return ctypes.string_at(said)
    finally:
        free(said)


def ask(way, known, event, until):
    """The answer, of a library that waits for nobody beyond that time of the clock."""
    event.update(schema=SCHEMA, within_ms=max(0, int(1000 * (until - time.monotonic()))))
    said = way(known, json.dumps(event).encode("ascii"))
    try:
        answer = json.loads(said.decode("utf-8"))
        if answer["schema"] != SCHEMA:
            raise ValueError("another form")
        verdict = answer["verdict"]
        edits = answer["edits"]
    except (ValueError, KeyError, TypeError) as why:
        raise Missing("the answer cannot be read (%s); hook, command and library have to be of one release" % why)
    # Of a library of others it may be anything; PBS has one line for it.
    message = "".join(letter if letter.isprintable() else " " for letter in str(answer.get("message") or ""))
    if verdict not in ("accept", "reject"):
        raise Missing(message or "the answer says %r; hook, command and library have to be of one release" % (verdict,))
    if verdict == "accept" and message:
        log(pbs.LOG_DEBUG, message)
    for note in answer.get("notes", ()):
        # Of a program that is launched this is the standard error that it begins with.
        sys.stderr.write("gpuos: %s\n" % note)
    wanted = answer.get("ask")
    turn = event.get("turn", 0)
    if wanted and turn < TURNS:
        # The same event comes with what pbs_server says.
        return ask(way, known, dict(event, turn=turn + 1, server=of_server(wanted, event.get("server", {}))), until)
    return Answer(verdict == "reject", message, edits, answer.get("must") is True)


def of_server(wanted, before):
    """What pbs_server says of vnodes and jobs of this host, with what it said before; what it does not say is left out."""
    server = pbs.server()
    vnodes, jobs = dict(before.get("vnodes", {})), dict(before.get("jobs", {}))
    # It does not answer while it is started anew.
    wanted = wanted if server is not None else {"vnodes": [], "jobs": []}
    for name in wanted["vnodes"]:
        vnode = server.vnode(str(name))
        if vnode is not None and vnode.state is not None:
            vnodes[name] = {"offline": bool(int(vnode.state) & pbs.ND_OFFLINE), "comment": text(vnode.comment or "")}
            vnodes[name]["resources"] = resources(vnode.resources_available, OF_VNODES)
    for name in wanted["jobs"]:
        job = server.job(str(name))
        if job is not None:
            # Jobs run again unless their users say otherwise, and `n` is no hold.
            rerun, holds = text(job.Rerunable).lower() not in ("0", "false"), text(getattr(job, "Hold_Types", None) or "n")
            jobs[name] = {"exit": number(job.Exit_status), "rerun": rerun, "held": holds != "n"}
    return {"vnodes": vnodes, "jobs": jobs}


def typed(name, value):
    """A value in PBS's type for it."""
    kind = TYPED.get(name)
    return value if kind is None else getattr(pbs, kind)(value)


def vnode_of(event, name):
    """A vnode of the mom, which is new where there was none."""
    vnodes = event.vnode_list
    if name not in vnodes:
        vnodes[name] = pbs.vnode(name)
    return vnodes[name]


def end_session(pid, uid):
    """Ends the first process of a session, if it is one, and this user's: by now the number may be another's."""
    try:
        # Its name there can be any bytes.
        with open("/proc/%d/status" % pid, "rb") as status:
            real = [int(line.split()[1]) for line in status if line.startswith(b"Uid:")]
        if real == [uid] and os.getsid(pid) == pid:
            os.kill(pid, signal.SIGKILL)
    except OSError:
        # It has ended.
        return


def set_state(event, edit):
    """A vnode of the mom that goes offline, or comes online."""
    vnode, offline = vnode_of(event, edit["vnode"]), edit["set"] == "offline"
    vnode.state, vnode.comment = pbs.ND_OFFLINE if offline else pbs.ND_FREE, edit["value"] if offline else None


def of_event(event):
    """The job or the reservation that an event is about."""
    return event.resv if event.type in RESERVATIONS else event.job


# What an answer can want.
EDITS = {
    "resource": lambda event, edit: of_event(event).Resource_List.__setitem__(edit["name"], typed(edit["name"], edit["value"])),
    "start-after": lambda event, edit: setattr(event.job, "Execution_Time", edit["value"]),
    "env": lambda event, edit: event.env.__setitem__(edit["name"], edit["value"]),
    "vnode": lambda event, edit: vnode_of(event, edit["vnode"]).resources_available.__setitem__(edit["name"], typed(edit["name"], edit["value"])),
    "offline": set_state,
    "online": set_state,
    "comment": lambda event, edit: setattr(vnode_of(event, edit["vnode"]), "comment", edit["value"] or None),
    "requeue": lambda event, edit: event.job.rerun(),
    "rerun": lambda event, edit: event.job_list[edit["value"]].rerun(),
    "delete": lambda event, edit: event.job_list[edit["value"]].delete(),
    "kill": lambda event, edit: end_session(edit["value"], edit["uid"]),
}


def apply(event, edits):
    """Does what the answer says, or nothing where it says what is not known here."""
    for edit in edits:
        if edit["set"] not in EDITS:
            raise Missing("the answer wants %r set; hook, command and library have to be of one release" % (edit["set"],))
    for edit in edits:
        EDITS[edit["set"]](event, edit)


def submitted(event):
    """A job or a reservation that is submitted or changed."""
    job = resources(of_event(event).Resource_List)
    name, before = {pbs.QUEUEJOB: ("queuejob", None), pbs.MODIFYJOB: ("modifyjob", "job_o")}.get(event.type) or RESERVATIONS[event.type]
    old = resources(getattr(event, before).Resource_List) if before else {}
    about = {"event": name, "job": {"resources": job}, "old": {"resources": old}}
    asks = says_something(job) or says_something(old)
    return asks, by_command if asks else None, lambda known: dict(about, **site(known))


def untimely(job, given, asks):
    """Why a start has to wait: a host has come back on which the job was lost. Mom drops what she has of it, by its name and when the hook of its end has
    ended, and a run that has come meanwhile would be in R for ever."""
    if number(job.Exit_status) not in LOST:
        return ""
    server, now, own = pbs.server(), int(time.time()), text(job.id or "")
    # Where pbs_sched is off it is an operator who starts a job, and of one without GPUs he knows better.
    if not asks and not GPUS.search(given) and text(server.scheduling).lower() in ("0", "false"):
        return ""
    for name in sorted(set(VNODES.findall(given))):
        # The state of a host's own vnode changes with no job that has a part of it, and where a job has ended its time of use has changed with it.
        host = server.vnode(name.split("[")[0]) or server.vnode(name)
        since, used = (number(getattr(host, "last_%s_time" % what, None)) or 0 for what in ("state_change", "used"))
        if since + SETTLES > now and since > used:
            # Else it would wait for pbs_sched to look of itself. An array would be over without its subjob.
            if "[" not in own:
                job.Execution_Time = since + SETTLES
            return "the host of vnode %s may have come back just now, with the run of this job that was lost; the start is tried again" % name
    return ""


def short_of(known, event, given):
    """Vnodes of which a start has more GPUs than are left, where others than pbs_sched start jobs, too: pbs_server itself counts nothing then. What is to be
    done about it the command says."""
    is_counted = known.get("planner") is not True and text(event.requestor) == SCHEDULER
    # What a reservation has of a vnode is assigned to it, and its jobs have of that.
    if is_counted or getattr(event.job, "reserve_ID", None):
        return {}
    server, wanted, found = pbs.server(), collections.Counter(), {}
    for name, gpus in GIVEN.findall(given):
        wanted[name] += int(gpus)
    for name, gpus in wanted.items():
        vnode = server.vnode(name)
        counts = [number(resources(getattr(vnode, "resources_" + which), ("ngpus",)).get("ngpus")) for which in ("available", "assigned")]
        # None there, or those of another vnode.
        if counts[0] is None:
            continue
        available, assigned = max(0, counts[0]), max(0, counts[1] or 0)
        if gpus <= available - assigned:
            assigned = max(assigned, had_by_jobs(server, vnode, name))
        if gpus > available - assigned:
            found[name] = {"available": available, "assigned": assigned}
    return found


def had_by_jobs(server, vnode, name):
    """GPUs of a vnode that its jobs have: what `qrun` starts is assigned only once its mom has taken it (complete_running), and is on the vnode before."""
    names = {one.split("/")[0].strip() for one in text(getattr(vnode, "jobs", None) or "").split(",")} - {""}
    # What a suspended one has is given to others.
    jobs = [job for job in map(server.job, names) if job is not None and number(getattr(job, "substate", None)) not in SUSPENDED]
    given = [part for job in jobs for part in GIVEN.findall(text(job.exec_vnode or ""))]
    return sum(int(gpus) for where, gpus in given if where == name)


def started(event):
    """A job that is about to be started."""
    job = resources(event.job.Resource_List)
    given = text(event.job.exec_vnode or "")
    asks, counts = says_something(job), "ngpus=" in given
    why = untimely(event.job, given, asks)
    if why:
        event.reject(why)
    # Only a level that is required stops a start; for no other are thousands of vnodes looked at.
    wish = " ".join(value.lower() for name, value in job.items() if name.lower() == "gpuos_topology")
    asked = [DOMAINS[level] for level in DOMAINS if level in wish] if "required" in wish else []

    def about(known):
        server = pbs.server()
        vnodes = {}
        for name in set(VNODES.findall(given)) if asked else ():
            vnodes[name] = resources(server.vnode(name).resources_available, asked)
        # How its last run ended, and how many there were.
        ended, runs = number(event.job.Exit_status), number(event.job.run_count) or 0
        what = {"id": text(event.job.id or ""), "resources": job, "exec_vnode": given, "exit": ended, "run": runs}
        left = short_of(known, event, given) if counts else {}
        return None if not asks and not left else dict(site(known), event="runjob", now=int(time.time()), job=what, vnodes=vnodes, left=left)

    return asks, by_command if asks or counts else None, about


def own_vnodes(event, own):
    """The vnodes of this host among those that a mom tells its hook of: where a program is launched these are the job's, of all hosts."""
    found = {}
    for name in event.vnode_list.keys():
        host = resources(event.vnode_list[name].resources_available, ("host",)).get("host", text(name))
        if short(host) == short(own):
            found[text(name)] = {}
    return found


def short(name):
    """The name of a host, or of the host of a vnode, up to its first dot."""
    return re.split(r"[.\[]", name.lower())[0]


def hosts(known, own, others=()):
    """What the administrator says of the mom's own host, and of others where their GPUs are, not which."""
    found = {}
    for name, host in known.get("hosts", {}).items():
        if short(name) == short(own):
            found[name] = host
        elif short(name) in others:
            found[name] = {"leaf": host.get("leaf", ""), "gpus": [{"nvlink": gpu.get("nvlink", "")} for gpu in host.get("gpus", [])]}
    return found


def number(value):
    """A number of PBS's, which may be a text; None where there is none."""
    try:
        return int(str(value))
    except ValueError:
        return None


def known_as(find, name, field):
    """What this host knows of a user or a group by a name; None where it does not know it."""
    try:
        return getattr(find(name), field)
    except (KeyError, ValueError):
        return None


def held(job):
    """Whose a job of a mom is, and which run of it."""
    user, group = text(job.euser or ""), text(getattr(job, "egroup", None) or "")
    uid, gid = known_as(pwd.getpwnam, user, "pw_uid"), known_as(grp.getgrnam, group, "gr_gid")
    if gid is None:
        # PBS may have no name of a group here.
        gid = known_as(pwd.getpwnam, user, "pw_gid")
    # Not every PBS has both.
    runs = [number(getattr(job, name, None)) for name in ("run_version", "run_count")]
    run = next((run for run in runs if run and run > 0), 0)
    suspended = number(getattr(job, "substate", None)) in SUSPENDED
    return {"user": user, "uid": uid, "gid": gid, "run": run, "ends_in": left(job), "suspended": suspended}


def seconds(duration):
    """A duration of PBS's in seconds, however it is written; None where there is none."""
    parts = [number(part) for part in str(duration).split(":")]
    if duration is None or None in parts or len(parts) > 3:
        return None
    return sum(part * 60**place for place, part in enumerate(reversed(parts)))


def left(job):
    """How many seconds a job has before its limit, by the time that mom counts; None where it has none, or mom does not say."""
    limit = seconds(resources(job.Resource_List, ("walltime",)).get("walltime"))
    try:
        used = seconds(text(job.resources_used["walltime"]))
    except Exception:
        # Not yet, or not in this event.
        used = None
    return None if limit is None or used is None else max(0, limit - used)


def daemons(known):
    """Where daemons of this host are told something, as far as the site has them."""
    mover = {"mover": known.get("mover", MOVER)} if known.get("checkpoints") is True else {}
    return dict(mover, gpuosd=known.get("gpuosd", GPUOSD))


def strict(known, event):
    """Whether this is a program of a host with GPUs that has to be kept to its job's, by the word of the site."""
    launch = event.type == pbs.EXECJOB_LAUNCH and known.get("confine") == "require"
    return launch and bool(hosts(known, text(pbs.get_local_nodename()))) and not advised(known)


def advised(known):
    """Whether another one gives GPUs to jobs on this host, such as pbs_cgroups, and gpuos only advises."""
    return any(host.get("advise") is True for host in hosts(known, text(pbs.get_local_nodename())).values())


def noted(name):
    """The GPUs that pbs_cgroups has noted for a job of this host, in a file of its own; empty where it has none."""
    conf = getattr(pbs, "pbs_conf", {})
    home = str(conf.get("PBS_MOM_HOME") or conf.get("PBS_HOME") or "")
    # A name that could be that of another file is none of a job.
    if not home or not re.match(r"[0-9]+(\[[0-9]*\])?(\.[A-Za-z0-9._-]+)?\Z", name):
        return ""
    try:
        with open(os.path.join(home, "aux", name + ".env")) as file:
            lines = file.read(MOST_NOTED).splitlines()
    except (OSError, ValueError):
        return ""
    return next((line.split("=", 1)[1] for line in lines if line.startswith("CUDA_VISIBLE_DEVICES=")), "")


def parent():
    """The process that becomes the program: this one is its child. Its number, and when it was started, which no other has; None where that is not to be
    told."""
    pid = os.getppid()
    try:
        # Its name there, in brackets, can be any bytes.
        with open("/proc/%d/stat" % pid, "rb") as stat:
            started = int(stat.read().rsplit(b")", 1)[1].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    return {"pid": pid, "started": started} if os.getppid() == pid else None


def loads(known, event):
    """The library that programs with memory in turns load, where this host has it, and what the program that is launched loads already."""
    library = str(known.get("preload") or PRELOAD)
    try:
        loaded = text(event.env["LD_PRELOAD"] or "")
    except Exception:
        # It loads nothing.
        loaded = ""
    return {"preload": library if os.path.isfile(library) else "", "loaded": loaded}


def launched(event):
    """A program of a job that is about to be started."""
    job = resources(event.job.Resource_List)
    given = text(event.job.exec_vnode or "")

    def about(known):
        host = text(pbs.get_local_nodename())
        others = {short(name) for name in VNODES.findall(given)}
        about_job = {"id": text(event.job.id or ""), "resources": job, "exec_vnode": given}
        told = dict(daemons(known), event="execjob_launch", host=host, job=dict(held(event.job), **about_job), first=not is_later(event))
        if any(name.lower() in ("gpuos_share", "gpuos_mem") for name in job):
            told.update(loads(known, event))
        if known.get("confine", "off") != "off":
            told.update(confine=known["confine"], parent=parent())
        return dict(told, vnodes=own_vnodes(event, host), hosts=hosts(known, host, others))

    return says_something(job), by_library, about


def ended(event):
    """A run of a job that has left this host. Mom keeps the job meanwhile, and pbs_server what it had."""
    job, given = event.job, text(event.job.exec_vnode or "")
    if not says_something(resources(job.Resource_List)) and not GPUS.search(given):
        return False, None, None

    def about(known):
        host, of_job = text(pbs.get_local_nodename()), {"resources": resources(job.Resource_List, OF_JOBS)}
        of_job.update(held(job), id=text(job.id or ""), exec_vnode=given, exit=number(job.Exit_status))
        return dict(daemons(known), event="execjob_end", host=host, job=of_job, hosts=hosts(known, host), vnodes=own_vnodes(event, host))

    return False, by_library, about


def mom_goes_on(event):
    """A mom that tells what it has, every few seconds."""
    host = text(pbs.get_local_nodename())

    def about(known):
        jobs, advises = {}, advised(known)
        for name in event.job_list.keys():
            job = event.job_list[name]
            if number(getattr(job, "substate", None)) == DELETED:
                continue
            given = text(job.exec_vnode or "")
            of_job = resources(job.Resource_List, OF_JOBS)
            jobs[text(name)] = dict(held(job), exec_vnode=given, session=max(0, number(job.session_id) or 0), resources=of_job)
            if advises:
                jobs[text(name)]["visible"] = noted(text(name))
        told = dict(daemons(known), event="exechost_periodic", host=host, jobs=jobs)
        return dict(told, vnodes=own_vnodes(event, host), hosts=hosts(known, host))

    return False, by_library, about


def is_alone(known, event):
    """Whether a mom that only tells something has nobody to tell: gpuos has no GPUs on its host or there is no gpuosd, and no gpuos_mover."""
    if event.type not in (pbs.EXECHOST_PERIODIC, pbs.EXECJOB_END):
        return False
    sockets = daemons(known)
    if "mover" in sockets and os.path.exists(str(sockets["mover"]) + ".root"):
        return False
    there = os.path.exists(str(sockets["gpuosd"]) + ".root")
    return not there or not hosts(known, text(pbs.get_local_nodename()))


def is_first(event):
    """Whether a program is the first of its job, whose session is the job's: nobody but the job waits for it then, and else mom itself."""
    session = number(getattr(event.job, "session_id", None))
    try:
        return bool(session) and os.getsid(os.getppid()) == session
    except OSError:
        return False


def is_later(event):
    """Whether a program is surely another one than the first of its job; where mom does not say it may be the first."""
    return bool(number(getattr(event.job, "session_id", None))) and not is_first(event)


def is_elsewhere(event):
    """Whether the script of a job runs on another host: nothing of the job can be queued again from here."""
    first = VNODES.findall(text(event.job.exec_vnode or ""))[:1]
    return any(name not in event.vnode_list and short(name) != short(text(pbs.get_local_nodename())) for name in first)


def refuse(event, sentence):
    """Refuses an event; a job whose first program is not started is tried again."""
    if event.type == pbs.EXECJOB_LAUNCH and not is_later(event) and not is_elsewhere(event):
        try:
            # Else PBS deletes it.
            event.job.rerun()
        except Exception as why:
            log(pbs.LOG_WARNING, "gpuos cannot have this job run again: %s" % why)
    event.reject(sentence)


def main():
    """Answers one event."""
    event, began = pbs.event(), time.monotonic()
    kinds = dict.fromkeys(RESERVATIONS, submitted)
    kinds.update({
        pbs.QUEUEJOB: submitted,
        pbs.MODIFYJOB: submitted,
        pbs.RUNJOB: started,
        pbs.EXECJOB_LAUNCH: launched,
        pbs.EXECJOB_END: ended,
        pbs.EXECHOST_PERIODIC: mom_goes_on,
    })
    if event.type not in kinds:
        event.accept()
    asks = must = False
    try:
        asks, way, about = kinds[event.type](event)
        if way is None:
            event.accept()
        known = config()
        must = strict(known, event)
        # Where gpuos only advises it refuses no program.
        asks = asks and not (event.type == pbs.EXECJOB_LAUNCH and advised(known))
        if is_alone(known, event):
            event.accept()
        told = about(known)
        if told is None:
            event.accept()
        # Without an answer a start that would have GPUs of others waits.
        must = must or bool(told.get("left"))
        answer = ask(way, known, told, began + WITHIN)
        tries = must and is_first(event)
        while tries and answer.refused and answer.message.startswith(UNCONFINED) and time.monotonic() < began + CONFINED_WITHIN:
            # gpuosd may be on its way, and PBS holds a job whose start is refused again and again.
            time.sleep(1)
            answer = ask(way, known, about(known), began + WITHIN)
        must = must or answer.must
        try:
            apply(event, answer.edits)
        except Exception as why:
            if not answer.refused:
                raise
            # The event is refused all the same.
            log(pbs.LOG_WARNING, "gpuos cannot change this job: %s" % why)
    except Exception as why:
        sentence = "gpuos cannot decide about this: %s" % why
        if not asks and not must:
            log(pbs.LOG_WARNING, sentence)
            event.accept()
        refuse(event, sentence)
    if answer.refused and (asks or must):
        refuse(event, answer.message)
    if answer.refused:
        log(pbs.LOG_WARNING, answer.message)
    event.accept()


main()
