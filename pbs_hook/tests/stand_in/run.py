# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a hook on the events of standard input, which a line of `%%` ends each; what came of each is printed the same way.

    run.py HOOK PATIENCE RESOURCE...    the hook waits so many seconds for the command; the resources are those that this PBS was told of
"""
import io
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pbs

pbs._KNOWN.update(sys.argv[3:])
_kill = os.kill
# Sessions of an event are no processes of this machine.
os.kill = lambda pid, signal: pbs.killed.append(pid) if pid in pbs.sessions() else _kill(pid, signal)
with open(sys.argv[1]) as file:
    before, line, after = file.read().partition("\nPATIENCE = 3\n")
if not line:
    sys.exit("the hook has no line PATIENCE = 3")
code = compile("%s\nPATIENCE = %s\n%s" % (before, sys.argv[2], after), sys.argv[1], "exec")
for event in sys.stdin.read().split("%%\n")[:-1]:
    pbs.load(event)
    notes, sys.stderr = sys.stderr, io.StringIO()
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit:
        pass
    finally:
        notes, sys.stderr = sys.stderr.getvalue(), notes
    # What a program that is launched has on its standard error first.
    for line in notes.splitlines():
        sys.stdout.write("note=%s\n" % line)
    for line in pbs.logged:
        sys.stdout.write("log=%s\n" % line)
    sys.stdout.write(pbs.outcome() + "%%\n")
    sys.stdout.flush()
