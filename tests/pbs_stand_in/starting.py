# SPDX-License-Identifier: MIT OR Apache-2.0
"""The process that becomes a program of a job: it has the program's session, asks the hooks, and becomes it as its user."""
import json
import os
import pwd
import re
import signal

from . import hooks
from .records import host, path

# PBS puts them between variables.
CUT = re.compile(r"((?:\\.|[^,\\])+)", re.DOTALL)


def variables(held, number, is_first):
    """What a program of a job finds in its environment, before hooks."""
    has, user = held.attributes, pwd.getpwnam(held.attributes["euser"])
    made = {}
    with open(path("pbs_environment")) as file:
        made.update(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
    made.update(has["Variable_List"])
    made.update(HOME=user.pw_dir, PBS_JOBNAME=has["Job_Name"], PBS_JOBID=held.id, PBS_QUEUE=has["queue"], PBS_JOBCOOKIE="0" * 32,
                PBS_NODENUM=str(held.hosts.index(host())), PBS_TASKNUM="%08d" % number if number > 1 else "1", PBS_MOMPORT="15003", OMP_NUM_THREADS="1", NCPUS="1",
                PBS_NODEFILE=path("aux", held.id), TMPDIR="/var/tmp/pbs." + held.id, PBS_JOBDIR=user.pw_dir, PBS_ENVIRONMENT="PBS_BATCH", ENVIRONMENT="BATCH")
    if is_first:
        made.update(LOGNAME=user.pw_name, USER=user.pw_name, SHELL=user.pw_shell)
    return made


def joined(env):
    """Variables as PBS hands them to a hook: what would cut a value is marked."""
    return {name: re.sub(r"([\\,])", r"\\\1", text) for name, text in env.items()}


def cut(text):
    """Variables out of the one text in which a hook has left them."""
    pairs = (part.split("=", 1) for part in CUT.findall(text) if "=" in part)
    return {name: re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL) for name, value in pairs}


def become(held, program, streams, mom, report, number):
    """Never returns. `program`: file and words; `streams`: three files; `report`: where it says that a hook refuses."""
    try:
        for fd in mom.open_files():
            os.close(fd)
        signal.set_wakeup_fd(-1)
        for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(one, signal.SIG_DFL)
        os.setsid()
        is_first = held.session is None and held.is_first_host
        env = variables(held, number, is_first)
        session = os.getpid() if is_first else held.session
        refused, env = asked(held, env, program, streams[2], mom, session)
        if refused is not None:
            os.write(report, json.dumps(refused).encode())
            os._exit(1)
        user = pwd.getpwnam(held.attributes["euser"])
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        os.chdir(user.pw_dir if os.path.isdir(user.pw_dir) else "/")
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.execvpe(program[0], program[1], env)
    except Exception as why:
        os.write(report, json.dumps({"message": "cannot start: %r" % why, "rerun": False}).encode())
    finally:
        os._exit(254)


def asked(held, env, program, errors, mom, session):
    """What hooks say of a program: a refusal or None, and its variables."""
    for name in hooks.wanted(mom.hooks, "execjob_launch"):
        facts = mom.about(name, "execjob_launch")
        job = dict(held.facts(), substate="42" if held.session else "41")
        if session:
            job["session_id"] = str(session)
        facts.update(job=job, vnodes=held.vnodes(mom), env=joined(env), argv=program[1], progname=program[0])
        result = hooks.Run(name, mom.hooks[name], mom.files(name), facts, (), errors).wait()
        for line in result["logged"]:
            mom.log("Hook", name, line, 0x400, "pbs_python")
        if not result["accept"]:
            mom.log("Hook", name, "execjob_launch request rejected by '%s'" % name, 0x400)
            mom.log("Hook", name, result["message"], 0x400)
            return {"message": result["message"], "rerun": result["job"].get("wanted") == "rerun"}, env
        env = cut(result["env"])
    return None, env
