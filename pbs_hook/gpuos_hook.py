# SPDX-License-Identifier: MIT OR Apache-2.0
"""The hook of gpuos for PBS: hands an event on as JSON, and does what the answer says. Decisions are not made here.

Events of the server are answered by the command `gpuos pbs-hook`, which cannot end pbs_server and is itself ended when it takes too
long. Events of a mom are answered by libgpuos_pbs_hook.so, in the pbs_python that runs this file for that event alone. Where one of
the two is missing or wrong, jobs that say nothing to gpuos go on as they would without it, and others are told so.

For every Python that PBS may be built with: syntax and library of 3.6. `gpuos pbs install` puts it in.
"""
import ctypes
import json
import os
import re
import subprocess
import time

import pbs

SCHEMA = "gpuos.pbs/1"
# Of include/gpuos_pbs.h.
VERSION = 1
# Seconds for the command; the hook's alarm is more than twice as long.
PATIENCE = 3
# What vnodes of one domain of a level have in common.
DOMAINS = {"node": "host", "nvlink": "gpuos_nvlink", "leaf": "gpuos_leaf"}
# What is asked of a vnode whose job is launched, and of one whose mom starts.
OF_GPUS = ("gpuos_uuid", "gpuos_nvlink")
OF_HOST = ("ncpus", "mem")
# Resources whose values PBS has types for.
TYPED = {"select": "select", "place": "place", "mem": "size"}
# Names of vnodes in exec_vnode.
VNODES = re.compile(r"[(+]\s*([^:()+\s]+)")


class Missing(Exception):
    """There is no answer; the text says why, and what to do."""


def text(value):
    """What PBS holds, as JSON can hold it."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


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
    return {"planner": known.get("planner") is True, "largest": known.get("largest", {})}


def by_command(known, event):
    """The answer of `gpuos pbs-hook`, which gets the event on its standard input."""
    command = str(known.get("command", ""))
    try:
        done = subprocess.run(
            [command, "pbs-hook"],
            input=event,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        )
    except subprocess.TimeoutExpired:
        raise Missing("%s took longer than %d s" % (command, PATIENCE))
    except (OSError, ValueError) as why:
        raise Missing("%s cannot be run (%s); install gpuos on the host of pbs_server" % (command, why))
    if done.returncode != 0:
        raise Missing("%s pbs-hook ended with %d; hook and command are of different releases" % (command, done.returncode))
    return done.stdout


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


def ask(way, known, event):
    """The answer as a table."""
    event["schema"] = SCHEMA
    said = way(known, json.dumps(event).encode("ascii"))
    try:
        answer = json.loads(said.decode("utf-8"))
        if answer["schema"] != SCHEMA:
            raise ValueError("another form")
        verdict = answer["verdict"]
        edits = answer["edits"]
    except (ValueError, KeyError, TypeError) as why:
        raise Missing("the answer cannot be read (%s); hook, command and library have to be of one release" % why)
    if verdict not in ("accept", "reject"):
        raise Missing(str(answer.get("message", verdict)))
    return verdict == "reject", str(answer.get("message", "")), edits


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


def apply(event, edits):
    """Does what the answer says."""
    for edit in edits:
        what, value = edit["set"], edit["value"]
        if what == "resource":
            event.job.Resource_List[edit["name"]] = typed(edit["name"], value)
        elif what == "start-after":
            event.job.Execution_Time = value
        elif what == "env":
            event.env[edit["name"]] = value
        elif what == "vnode":
            vnode_of(event, edit["vnode"]).resources_available[edit["name"]] = typed(edit["name"], value)
        elif what == "sharing":
            vnode_of(event, edit["vnode"]).sharing = getattr(pbs, "ND_" + value.upper())
        else:
            raise Missing("the answer wants '%s' set; hook, command and library have to be of one release" % what)


def submitted(event):
    """A job that is submitted or changed."""
    job = resources(event.job.Resource_List)
    changed = event.type == pbs.MODIFYJOB
    old = resources(event.job_o.Resource_List) if changed else {}
    about = {"event": "modifyjob" if changed else "queuejob", "job": {"resources": job}, "old": {"resources": old}}
    return says_something(job) or says_something(old), by_command, lambda known: dict(about, **site(known))


def started(event):
    """A job that is about to be started."""
    job = resources(event.job.Resource_List)
    given = text(event.job.exec_vnode or "")
    # Only a level that is required stops a start; for no other are thousands of vnodes looked at.
    wish = " ".join(value.lower() for name, value in job.items() if name.lower() == "gpuos_topology")
    asked = [DOMAINS[level] for level in DOMAINS if level in wish] if "required" in wish else []

    def about(known):
        server = pbs.server()
        vnodes = {}
        for name in set(VNODES.findall(given)) if asked else ():
            vnodes[name] = resources(server.vnode(name).resources_available, asked)
        what = {"id": text(event.job.id or ""), "resources": job, "exec_vnode": given}
        return dict(site(known), event="runjob", now=int(time.time()), job=what, vnodes=vnodes)

    return says_something(job), by_command, about


def own_vnodes(event, names):
    """The vnodes that a mom tells its hook of."""
    listed = event.vnode_list
    return {text(name): resources(listed[name].resources_available, names) for name in listed.keys()}


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
            gpus = [{"nvlink": gpu.get("nvlink", "")} for gpu in host.get("gpus", [])]
            found[name] = {"leaf": host.get("leaf", ""), "gpus": gpus}
    return found


def launched(event):
    """A program of a job that is about to be started."""
    job = resources(event.job.Resource_List)
    given = text(event.job.exec_vnode or "")

    def about(known):
        host = text(pbs.get_local_nodename())
        others = {short(name) for name in VNODES.findall(given)}
        told = {"event": "execjob_launch", "host": host, "job": {"resources": job, "exec_vnode": given}}
        return dict(told, vnodes=own_vnodes(event, OF_GPUS), hosts=hosts(known, host, others))

    return says_something(job), by_library, about


def mom_started(event):
    """A mom that starts, or reads its configuration again."""
    host = text(pbs.get_local_nodename())

    def about(known):
        return {"event": "exechost_startup", "host": host, "vnodes": own_vnodes(event, OF_HOST), "hosts": hosts(known, host)}

    # There is nobody to be told but the log.
    return False, by_library, about


def main():
    """Answers one event."""
    event = pbs.event()
    kinds = {
        pbs.QUEUEJOB: submitted,
        pbs.MODIFYJOB: submitted,
        pbs.RUNJOB: started,
        pbs.EXECJOB_LAUNCH: launched,
        pbs.EXECHOST_STARTUP: mom_started,
    }
    if event.type not in kinds:
        event.accept()
    asks = False
    try:
        asks, way, about = kinds[event.type](event)
        if way is by_command and not asks:
            event.accept()
        known = config()
        refused, message, edits = ask(way, known, about(known))
        try:
            apply(event, edits)
        except Exception as why:
            if not refused:
                raise
            # The event is refused all the same.
            pbs.logmsg(pbs.LOG_WARNING, "gpuos cannot change this job: %s" % why)
    except Exception as why:
        sentence = "gpuos cannot decide about this: %s" % why
        if not asks:
            pbs.logmsg(pbs.LOG_WARNING, sentence)
            event.accept()
        event.reject(sentence)
    if refused and asks:
        event.reject(message)
    if refused:
        pbs.logmsg(pbs.LOG_WARNING, message)
    event.accept()


main()
