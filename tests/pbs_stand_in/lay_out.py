#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lays the stand-in out as an installed PBS: `lay_out.py PREFIX`. What is there and as it should be stays, so several may do so at once."""
import os
import subprocess
import sys

# That of the system can be run by all users; another one may lie in somebody's home.
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
OF_JOBS = "qdel qalter qhold qrls qrun qrerun qsig qselect qterm pbs_rstat pbs_rsub".split()
DAEMONS = "pbs_server pbs_sched pbs_comm pbs_mom pbs_iff".split()
# Program, and the function that it is.
PROGRAMS = {"bin/" + name: "commands.of_jobs:" + name for name in OF_JOBS}
PROGRAMS.update({"bin/" + name: "commands.%s:main" % name for name in ("qsub", "qstat", "qmgr", "pbsnodes", "pbsdsh")})
PROGRAMS.update({"sbin/" + name: "daemons:" + name for name in DAEMONS})
PROGRAMS.update({"libexec/pbs_habitat": "daemons:habitat", "bin/pbs_python": "daemons:pbs_python"})
# Isolated: nothing of a user's environment or folder is loaded into a daemon of root's. No byte code is written where users' programs run.
TEXT = """#!%s -IB
import sys
sys.path.insert(0, %r)
from pbs_stand_in.%s import %s as main
main()
"""
# What tests know a PBS without a scheduler by.
MARK = "etc/pbs_stand_in"


def put(name, text, mode):
    """Replaces a file in one step, where it is another one."""
    os.makedirs(os.path.dirname(name), exist_ok=True)
    try:
        with open(name) as file:
            if file.read() == text and os.stat(name).st_mode & 0o7777 == mode:
                return
    except FileNotFoundError:
        pass
    new = "%s.%d" % (name, os.getpid())
    with open(new, "w") as file:
        file.write(text)
    os.chmod(new, mode)
    os.replace(new, name)


def main():
    prefix, own = os.path.abspath(sys.argv[1]), os.path.dirname(os.path.abspath(__file__))
    library = os.path.join(prefix, "lib")
    for folder, _, files in os.walk(own):
        for file in files:
            if file.endswith(".py"):
                name = os.path.join(folder, file)
                with open(name) as opened:
                    put(os.path.join(library, "pbs_stand_in", os.path.relpath(name, own)), opened.read(), 0o644)
    for name, where in PROGRAMS.items():
        module, function = where.split(":")
        # An installation has it setuid; the kernel takes no notice of that in a script.
        put(os.path.join(prefix, name), TEXT % (PYTHON, library, module, function), 0o4755 if name.endswith("pbs_iff") else 0o755)
    subprocess.run([PYTHON, "-m", "compileall", "-q", library], check=True)
    put(os.path.join(prefix, MARK), "This PBS has no scheduler.\n", 0o644)


main()
