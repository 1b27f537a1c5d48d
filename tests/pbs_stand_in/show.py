# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attributes as PBS's commands print them: as lines and as JSON."""
import json
import re
import time

from .records import VERSION

TIMES = ("ctime", "mtime", "qtime", "etime", "stime", "obittime", "Execution_Time", "last_state_change_time", "last_used_time")
# As PBS's own commands decide which values are numbers in JSON.
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?\Z")


def flat(attributes):
    """Pairs of a name and a text, where resources have a name behind a dot."""
    for name, value in attributes.items():
        if name == "Variable_List":
            yield name, ",".join("%s=%s" % (key, text.replace("\\", "\\\\").replace(",", "\\,")) for key, text in value.items())
        elif isinstance(value, dict):
            for key, text in value.items():
                yield "%s.%s" % (name, key), text
        else:
            yield name, value


def date(text):
    return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(int(text)))


def lines(attributes, indent, are_dates, width=None):
    """`name = value` for each, folded as PBS folds it."""
    made = []
    for name, value in flat(attributes):
        if are_dates and name in TIMES and value.isdigit():
            value = date(value)
        made.append(fold("%s%s = %s" % (" " * indent, name, value.replace("\n", "\\n")), width))
    return "".join(line + "\n" for line in made)


def fold(line, width):
    """A long line goes on behind a tab."""
    if width is None or len(line) <= width:
        return line
    parts = [line[:width]]
    rest = line[width:]
    while rest:
        parts.append("\t" + rest[: width - 8])
        rest = rest[width - 8 :]
    return "\n".join(parts)


def value(text):
    return json.loads(text) if NUMBER.match(text) and len(text) < 17 else text


def plain(attributes):
    """Attributes for JSON."""
    made = {}
    for name, one in attributes.items():
        if name == "Variable_List":
            made[name] = dict(one)
        elif isinstance(one, dict):
            made[name] = {key: value(text) for key, text in one.items()}
        elif name in TIMES and not name.startswith("last_"):
            made[name] = date(one)
        else:
            made[name] = value(one)
    return made


def document(server, about, objects):
    """A whole answer in JSON; where there is nothing its key is not there."""
    whole = {"timestamp": int(time.time()), "pbs_version": VERSION, "pbs_server": server}
    if objects:
        whole[about] = objects
    return json.dumps(whole, indent="\t", separators=(",", ":\t"))
