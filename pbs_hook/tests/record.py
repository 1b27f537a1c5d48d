# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes recorded events of what a real PBS kept for the hook with debug=true: inputs, what the server told, and outcomes.

    record.py FOLDER... > events        each FOLDER is hooks/tmp of pbs_server or of a pbs_mom

Of each event only what the hook reads is kept, with names of users and machines as they were in the private PBS. An event is its input, a line
`%`, its outcome as the stand-in writes it, and a line `%%`. To be run by whoever has a PBS; tests read what it wrote.
"""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_in"))
import pbs

KEPT = re.compile(
    r"pbs\.event\(\)\.(type|env|job(_o)?\.(Resource_List\[|exec_vnode$|id$)|vnode_list\[.*\]\.resources_available\[(ncpus|mem|gpuos_\w+)\])"
    r"|pbs\.get_local_nodename\(\)$|pbs\.server\(\)\.vnode\(.*\)\.resources_available\[(host|gpuos_nvlink|gpuos_leaf)\]"
    r"|pbs\.event\(\)\.job(_list\[.*\])?\.(exec_vnode|euser|session_id|run_version|substate)$|pbs\.event\(\)\.job\.Exit_status$"
)
# What the hook asks pbs_server for in the event of a mom.
ASKED = re.compile(r"pbs\.server\(\)\.(vnode\(.*\)\.(state|comment)|job\(.*\)\.(Exit_status|Rerunable))$")
OF_VNODE = re.compile(r"pbs\.(server\(\)\.vnode\(|event\(\)\.vnode_list\[)\"?[^\[\"]*?(\[(?P<gpu>\d+)\])?\"?[\])]\.comment$")
_JOB_TIME = "pbs.event().job.Execution_Time"
MINUTES = (1, 2, 4, 8, 16, 32, 60)
NEW = re.compile(r"pbs\.event\(\)\.(accept|reject|reject_msg|job\.(Resource_List\[(place|select|gpuos_\w+)\]|Execution_Time)|vnode_list\[.*|job_list\[.*\]\._(rerun|delete))$")


def read(path):
    """Keys and values of a file of PBS's; a value may go on over lines."""
    pairs = []
    if os.path.exists(path):
        with open(path, errors="replace") as file:
            for line in file.read().splitlines():
                key, equals, value = line.partition("=")
                if equals and key.startswith("pbs."):
                    pairs.append((key, value))
                elif pairs:
                    pairs[-1] = (pairs[-1][0], pairs[-1][1] + "\\n" + line)
    return pairs


def told(pairs, kind):
    """What the server told of the job, under the name by which the hook has it."""
    if kind == "exechost_periodic":
        return [pair for pair in pairs if ASKED.match(pair[0])]
    name = {"runjob": "job", "modifyjob": "job_o"}.get(kind, "job_told")
    return [(re.sub(r"^pbs\.server\(\)\.job\([^)]*\)", "pbs.event()." + name, key), value) for key, value in pairs]


def made_by(stem, kind):
    """The outcome. The server names files by the second, so that one second's later event may have taken the name: what was not written right after
    the input is another event's."""
    if kind.startswith("exec"):
        return read(stem + ".out")
    head, stamp = stem.rsplit("_", 1)
    asked = os.stat(stem + ".in").st_mtime
    for later in range(2):
        path = "%s_%d.out" % (head, int(stamp) + later)
        if os.path.exists(path) and 0 <= os.stat(path).st_mtime - asked < 0.05:
            return read(path)
    return []


def environment(pairs):
    """The variables of a launch."""
    texts = [value.strip('"') for key, value in pairs if key == "pbs.event().env"]
    return pbs._cut(texts[-1]) if texts else {}


def outcome(given, made):
    """What is new in an outcome, as the stand-in says it."""
    before = dict(given)
    new = [(key, value) for key, value in made if NEW.match(key) and (before.get(key) != value or key.startswith("pbs.event().vnode"))]
    # PBS writes of each job of a mom that nothing becomes of it.
    new = [pair for pair in new if ".job_list[" not in pair[0] or pair[1] == "True"]
    head = [pair for name in ("accept", "reject", "reject_msg") for pair in new if pair[0] == "pbs.event()." + name]
    rest = sorted(pair for pair in new if pair not in head)
    old, now = environment(given), environment(made)
    variables = [("pbs.event().env[%s]" % name, now[name]) for name in sorted(now) if old.get(name) != now[name]]
    return ["%s=%s" % pair for pair in head + rest + variables]


def orders(given, made):
    """What gpuosd must have said, by what came of it: it is not in PBS's files."""
    comments = {}
    for key, value in given + made:
        match = OF_VNODE.match(key)
        if match:
            comments[match.group("gpu")] = value
    out = sorted(int(gpu) for gpu, text in comments.items() if gpu and text.startswith("gpuos: GPU "))
    said = {"out": out, "look": any(".vnode(" in key for key, _ in given), "host": "online"}
    said["host"] = next(({"offline": "gpuos: " + text[len("gpuos: host: "):]} for text in comments.values() if text.startswith("gpuos: host: ")), "online")
    for name, key in (("rerun", "._rerun"), ("end", "._delete")):
        said[name] = {of.split('"')[1]: 0 for of, value in made if of.endswith(key) and value == "True"}
    return json.dumps(said, sort_keys=True)


def main():
    """All events of the folders."""
    for folder in sys.argv[1:]:
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".in"):
                continue
            stem = os.path.join(folder, name[: -len(".in")])
            given = read(stem + ".in")
            kind = dict(given).get("pbs.event().type", "")
            given += told(read(stem + ".data"), kind)
            kept = ["%s=%s" % pair for pair in given if KEPT.match(pair[0]) or ASKED.match(pair[0])]
            # PBS keeps no exec_vnode of a start, but names the vnodes that the hook asked for.
            vnodes = sorted({match.group(1) for match in map(re.compile(r"pbs\.server\(\)\.vnode\((.*?)\)\.").match, dict(given)) if match})
            if kind == "runjob" and vnodes:
                kept.append("pbs.event().job.exec_vnode=" + "+".join("(%s:ngpus=1)" % name for name in vnodes))
            made = made_by(stem, kind)
            if not any(key == "pbs.event().accept" for key, _ in made):
                continue
            if kind == "exechost_periodic":
                kept.append("orders=" + orders(given, made))
            # When a job is put off, the moment from which its minutes count.
            new = dict(made)
            if _JOB_TIME in new:
                tries = int(new["pbs.event().job.Resource_List[gpuos_vetoes]"])
                kept.append("now=%d" % (int(new[_JOB_TIME]) - 60 * MINUTES[min(tries, len(MINUTES)) - 1]))
            sys.stdout.write("\n".join(kept) + "\n%\n" + "\n".join(outcome(given, made)) + "\n%%\n")


main()
