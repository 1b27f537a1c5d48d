# SPDX-License-Identifier: MIT OR Apache-2.0
"""qmgr: one line behind -c, or lines of standard input."""
import re
import sys

from .. import show
from ..errors import Refused
from ..records import conf
from ..wire import ask
from . import common

KINDS = ("server", "queue", "node", "resource", "hook", "sched")
LINE = re.compile(r"\s*(create|delete|set|unset|list|print|import|export)\s+(\w+)\s*(.*)\Z", re.DOTALL)
ASSIGN = re.compile(r"([\w.]+)\s*(\+=|-=|=)\s*(.*)\Z", re.DOTALL)
HOOKS_LINE = re.compile(r"(\S+)\s+(application/x-\w+)\s+default(?:\s+(\S+))?\s*\Z")
# A list in a value goes on in the next line behind so many letters.
WIDE = 68


class Wrong(Exception):
    """A line that qmgr does not know; the text and the status."""


def main():
    opts, words = common.options("qmgr", "c:eazn")
    commands = [text for flag, text in opts if flag == "-c"]
    status = 0
    for line in commands or sys.stdin.read().splitlines():
        if line.strip() and not line.startswith("#"):
            status = run(line) or status
    sys.exit(status)


def run(line):
    known = LINE.match(line)
    if not known:
        sys.stderr.write("qmgr: Illegal operation: %s\nTry 'help' if you are having trouble.\n" % line.split()[0])
        return 1
    do, kind, rest = known.groups()
    kind = next((one for one in KINDS if one == kind or kind == one[0]), None)
    if kind is None:
        sys.stderr.write("qmgr: Illegal object type: %s.\n" % line.split()[1])
        return 2
    name = ""
    try:
        if do in ("import", "export"):
            return files(do, rest)
        if do in ("list", "print"):
            return listed(kind, rest)
        if kind == "server":
            change(do, kind, "", rest)
        else:
            name, _, rest = rest.strip().partition(" ")
            for one in name.split(","):
                change(do, kind, one, rest)
        return 0
    except Wrong as why:
        sys.stderr.write("qmgr: Syntax error\n%s\n" % why)
        return 4
    except Refused as why:
        return refused(why, name)


def refused(why, name):
    if why.code == 111:
        return common.say("qmgr", why)
    sys.stderr.write("qmgr obj=%s svr=default: %s\n" % (name, why.text))
    of_hook = why.code == 15136
    sys.stderr.write("qmgr: hook error returned from server\n" if of_hook else "qmgr: Error (%d) returned from server\n" % why.code)
    return why.code % 256


def change(do, kind, name, rest):
    """create, delete, set and unset."""
    rest = rest.strip()
    words = dict(kind=kind, do=do, name=name)
    if do == "create":
        words.update(value=re.sub(r"\s*=\s*", "=", rest))
    elif do == "set":
        known = ASSIGN.match(rest)
        if not known:
            raise Wrong(rest)
        key, sign, value = known.groups()
        value = value.strip()
        if value[:1] in "'\"" and value[-1:] == value[:1] and len(value) > 1:
            value = value[1:-1]
        words.update(key=key, sign=sign, value=value)
    elif do == "unset":
        words.update(key=rest)
    ask("manage", **words)


def files(do, rest):
    known = HOOKS_LINE.match(rest.strip())
    if not known:
        raise Wrong(rest)
    name, kind, file = known.groups()
    if do == "import":
        try:
            with open(file or "") as opened:
                text = opened.read()
        except OSError as why:
            sys.stderr.write("%s - %s\n" % (file, why.strerror))
            return 1
        ask("import", name=name, type=kind, text=text)
        return 0
    try:
        sys.stdout.write(ask("export", name=name, type=kind))
    except Refused as why:
        if why.code == 15007:
            return not_yours()
        raise
    return 0


def not_yours():
    import os
    import pwd

    user = pwd.getpwuid(os.getuid()).pw_name
    sys.stderr.write("%s@%s is unauthorized to access hooks data from server %s\n" % (user, os.uname().nodename, conf().get("PBS_SERVER")))
    return 1


def listed(kind, rest):
    """Objects of a kind with their attributes, one object or one attribute where these are named."""
    words = rest.split()
    name = words.pop(0) if words and kind != "server" and not words[0].startswith("@") else ""
    keys = [word for word in words if not word.startswith("@")]
    if kind == "hook":
        try:
            found = ask("stathook", name=name)
        except Refused as why:
            if why.code == 15007:
                not_yours()
                return 0
            return refused(why, name) and 1
    elif kind == "server":
        found = ask("statserver")
    elif kind == "queue":
        if not name and "@" not in rest:
            print("No Active Queues, nothing done.")
            return 0
        try:
            found = ask("statque", queues=[name] if name else [])
        except Refused as why:
            refused(why, name)
            return 1
    elif kind == "node":
        if not name and "@" not in rest:
            print("No Active Nodes, nothing done.")
            return 0
        answer = ask("statvnode", vnodes=[name] if name else [])
        if answer["unknown"]:
            return refused(Refused((15062, "Unknown node ")), name)
        found = answer["vnodes"]
    elif kind == "resource":
        found = ask("statresource")
        if name and name not in found:
            return refused(Refused((15035, "Unknown resource")), name)
        found = {one: has for one, has in found.items() if name in ("", one)}
        print("#\n# Create resources and set their properties.\n#" if not name and found else "", end="\n" if found else "")
    else:
        found = {"default": {"sched_host": conf().get("PBS_SERVER"), "scheduling": "False"}}
    for one, has in found.items():
        print("%s %s" % (kind.capitalize(), one))
        for key, text in show.flat(has):
            if not keys or key in keys:
                print("    %s = %s" % (key, folded(text)))
        print()
    return 0


def folded(text):
    """A long list goes on behind a tab, one word in each line."""
    if len(text) < WIDE or "," not in text:
        return text
    words = text.split(",")
    first = words.pop(0)
    while words and len(first) + len(words[0]) < WIDE:
        first += "," + words.pop(0)
    return ",\n\t".join([first] + words)
