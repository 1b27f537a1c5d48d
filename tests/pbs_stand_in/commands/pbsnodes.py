# SPDX-License-Identifier: MIT OR Apache-2.0
"""pbsnodes: vnodes, in full or in short (-S), as lines or as JSON; -o and -r take them out of service and back, -C says something of them."""
import sys

from .. import show
from ..errors import Refused
from ..records import conf
from ..wire import ask
from . import common


def main():
    opts, names = common.options("pbsnodes", "aSsvlorH:C:F:DjL")
    chosen = dict(opts)
    status = 0
    try:
        if "-o" in chosen or "-r" in chosen or "-C" in chosen:
            sys.exit(change(chosen, names))
        answer = ask("statvnode", vnodes=[] if "-a" in chosen else names)
    except Refused as why:
        sys.exit(common.say("pbsnodes", why))
    for name in answer["unknown"]:
        sys.stderr.write("Node: %s,  Error: Unknown node \n" % name)
        status = 1
    found = answer["vnodes"]
    if chosen.get("-F") == "json":
        if found:
            print(show.document(conf().get("PBS_SERVER"), "nodes", {name: plain(one) for name, one in found.items()}))
    elif "-S" in chosen or "-s" in chosen:
        for name, one in found.items():
            has = one["resources_available"]
            print("%-15s %-15s %7s %7s %s" % (name, one["state"], has.get("ncpus", "0"), has.get("ngpus", "0"), one.get("comment", "--")))
    else:
        for name, one in found.items():
            print(name)
            print(show.lines(one, 5, True))
    sys.exit(status)


def plain(attributes):
    """A vnode for JSON: jobs are a list, each once, and what is not assigned is not there."""
    made = show.plain(attributes)
    if "jobs" in attributes:
        made["jobs"] = list(dict.fromkeys(word.strip().split("/")[0] for word in attributes["jobs"].split(",")))
    made["resources_assigned"] = {name: value for name, value in made["resources_assigned"].items() if value not in (0, "0kb")}
    return made


def change(chosen, names):
    status = 0
    for name in names:
        try:
            if "-o" in chosen or "-r" in chosen:
                ask("manage", kind="node", do="set", name=name, key="state", sign="=", value="offline" if "-o" in chosen else "free")
            if "-C" in chosen:
                ask("manage", kind="node", do="set", name=name, key="comment", sign="=", value=chosen["-C"])
        except Refused as why:
            sys.stderr.write("Node: %s,  Error: %s\n" % (name, why.text))
            status = 1
    return status
