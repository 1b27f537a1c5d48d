# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes recorded events of what a real PBS kept for the hook with debug=true: inputs, what the server told, and outcomes.

    record.py [MOST] FOLDER[=BESIDE]... > events

Of each type MOST are kept, of all options alike: repeats go first, then those that are alike in what was asked and what came of it.
Each FOLDER is hooks/tmp of pbs_server or of a pbs_mom. BESIDE is an accounting file of the server, which has the vnodes of starts, or for a mom what
`record/talks.py` wrote.

Of each event only what the hook reads is kept, with names of users and machines as they were in the private PBS. An event is its input, a line
`%`, its outcome as the stand-in writes it, and a line `%%`. To be run by whoever has a PBS; tests read what it wrote.
"""
import itertools
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_in"))
import pbs

KEPT = re.compile(
    r"pbs\.event\(\)\.(type|requestor|env|(job|resv)(_o)?\.(Resource_List\[|exec_vnode$|id$)|vnode_list\[.*\]\.resources_available\[(ncpus|mem|ngpus|gpuos_\w+)\])"
    r"|pbs\.get_local_nodename\(\)$|pbs\.server\(\)\.vnode\(.*\)\.resources_(available|assigned)\[(host|ngpus|gpuos_\w+)\]"
    r"|pbs\.event\(\)\.job(_list\[.*\])?\.(exec_vnode|euser|egroup|session_id|run_version|run_count|substate)$|pbs\.event\(\)\.job\.Exit_status$"
    r"|pbs\.event\(\)\.job_list\[.*\]\.Resource_List\[(walltime|gpuos_\w+)\]|pbs\.event\(\)\.job(_list\[.*\])?\.resources_used\[walltime\]"
)
# What the hook asks pbs_server for in the event of a mom.
ASKED = re.compile(r"pbs\.server\(\)\.(vnode\(.*\)\.(state|comment|resources_available\[(ngpus|gpuos_\w+)\])|job\(.*\)\.(Exit_status|Rerunable|Hold_Types))$")
_JOB_TIME = "pbs.event().job.Execution_Time"
# How a start that is put off says for how long.
AGAIN = re.compile(r"tried again in (\d+) (min|s)")
OPTIONS = ["gpuos_share", "gpuos_mig", "gpuos_mem", "gpuos_checkpoint", "gpuos_mps", "gpuos_power", "gpuos_placement", "gpuos_clocks", "gpuos_topology"]
COOKIE = re.compile(r"PBS_JOBCOOKIE=\w+")
STARTED = re.compile(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;S;(?P<job>[^;]+);.* start=(?P<time>\d+) .*exec_vnode=(?P<vnodes>\S+)")
NEW = re.compile(r"pbs\.event\(\)\.(accept|reject|reject_msg|(job|resv)\.(Resource_List\[(place|select|gpuos_\w+)\]|Execution_Time|_rerun)|vnode_list\[.*|job_list\[.*\]\._(rerun|delete))$")


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
    name = {"runjob": "job", "modifyjob": "job_o", "modifyresv": "resv_o"}.get(kind, "job_told")
    return [(re.sub(r"^pbs\.server\(\)\.(job|resv)\([^)]*\)", "pbs.event()." + name, key), value) for key, value in pairs]


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
    # A new vnode is known by what it has. PBS writes of each job of a mom that nothing becomes of it.
    new = [pair for pair in new if not pair[0].endswith("].name") and (".job_list[" not in pair[0] or pair[1] == "True")]
    head = [pair for name in ("accept", "reject", "reject_msg") for pair in new if pair[0] == "pbs.event()." + name]
    rest = sorted(pair for pair in new if pair not in head)
    old, now = environment(given), environment(made)
    variables = [("pbs.event().env[%s]" % name, now[name]) for name in sorted(now) if old.get(name) != now[name]]
    return ["%s=%s" % pair for pair in head + rest + variables]


def beside(path):
    """Talks by the event for which they were, and starts as time, job and vnodes."""
    talks, starts = {}, []
    if path:
        with open(path, errors="replace") as file:
            lines = file.read().splitlines()
        starts = [match.groups() for match in map(STARTED.match, lines) if match]
        for talk in (json.loads(line) for line in lines if line.startswith("{")):
            talks.setdefault(talk["event"], []).append(talk)
    return talks, [(int(time), job, vnodes) for job, time, vnodes in starts]


def spoken(talks):
    """What daemons said, each with how many lines it was told, and what they were told but for the greeting; as lines of an input and of an outcome."""
    said, told = [], []
    for talk in sorted(talks, key=lambda talk: talk["daemon"] != "gpuosd"):
        lines = talk["told"].splitlines()
        said.append("said=" + json.dumps([talk["daemon"], len(lines)] + talk["said"].splitlines()))
        told.append("told=" + json.dumps([talk["daemon"]] + lines[1:]))
    return said, told


def job_of(pairs):
    """The job that the server told of."""
    told_of = (re.match(r"pbs\.server\(\)\.job\((.*?)\)\.", key) for key, _ in pairs)
    return next((match.group(1) for match in told_of if match), "")


def started_on(starts, job, stem):
    """The vnodes on which a job was started right after an event; of a start that was refused, those of the one before, or else none."""
    asked = int(stem.rsplit("_", 1)[1])
    own = [(time - asked, vnodes) for time, of, vnodes in starts if of == job and time - asked <= 2]
    return next((vnodes for _, vnodes in sorted(own, reverse=True)), "")


def on_which(starts, told_of, stem):
    """Job and vnodes of a start. PBS keeps neither, but names the vnodes that the hook asked for."""
    named = (re.match(r"pbs\.server\(\)\.vnode\((.*?)\)\.", key) for key, _ in told_of)
    vnodes = "+".join("(%s:ngpus=1)" % name for name in sorted({match.group(1) for match in named if match}))
    job = job_of(told_of)
    vnodes = started_on(starts, job, stem) or vnodes
    lines = ["pbs.event().job.id=" + job] if starts else []
    return lines + (["pbs.event().job.exec_vnode=" + vnodes] if vnodes else [])


def alike(event):
    """What is the same of events that differ in numbers and names alone; their type and the option that they are for come first."""
    given, _, made = event.partition("\n%\n")
    option = next((name for name in OPTIONS if "[%s]=" % name in given), "")
    lines = re.findall(r"Resource_List\[(gpuos_\w+)\]|(substate=\d+|Hold_Types=\w+|Exit_status=-?\d+)", given)
    made = re.sub(r"\d+|[\w-]{12,}", "", re.sub(r"(?m)^told=.*", "told", made))
    return re.search(r"event\(\)\.type=(\w+)", given).group(1), option, frozenset(lines), made


def in_turns(groups):
    """One of each, then the second of each, and so on."""
    return [one for turn in itertools.zip_longest(*groups) for one in turn if one is not None]


def chosen(events, most):
    """So many of each type: in turns of each option, and of it in turns of those that are alike; repeats last."""
    first, kinds = {}, {}
    for place, event in enumerate(events):
        first.setdefault(event, place)
    for place, event in sorted(enumerate(events), key=lambda one: first[one[1]] != one[0]):
        kind, option, *rest = alike(event)
        kinds.setdefault(kind, {}).setdefault(option, {}).setdefault(tuple(rest), []).append(place)
    kept = [in_turns(in_turns(groups.values()) for groups in options.values())[:most] for options in kinds.values()]
    return [events[place] for place in sorted(itertools.chain(*kept))]


def main():
    """The events of the folders that are to be kept."""
    words = sys.argv[1:]
    most = int(words.pop(0)) if words[0].isdigit() else None
    events = list(recorded(words))
    sys.stdout.write("".join(chosen(events, most) if most else events))


def recorded(folders):
    """All events of the folders."""
    for folder, _, file in (argument.partition("=") for argument in folders):
        talks, starts = beside(file)
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".in"):
                continue
            stem = os.path.join(folder, name[: -len(".in")])
            given = read(stem + ".in")
            kind = dict(given).get("pbs.event().type", "")
            if kind == "periodic":
                # The server's own, of which the hook knows nothing.
                continue
            given += told(read(stem + ".data"), kind)
            kept = ["%s=%s" % pair for pair in given if KEPT.match(pair[0]) or ASKED.match(pair[0])]
            if kind == "runjob":
                kept += on_which(starts, read(stem + ".data"), stem)
            made = made_by(stem, kind)
            if not any(key == "pbs.event().accept" for key, _ in made):
                continue
            said, heard = spoken(talks.get(name, []))
            if kind == "exechost_periodic" and not said:
                # Nobody stood between hook and daemons.
                continue
            # When a job is put off, the moment from which its time counts.
            new = dict(made)
            again = AGAIN.search(new.get("pbs.event().reject_msg", ""))
            if _JOB_TIME in new and again:
                kept.append("now=%d" % (int(new[_JOB_TIME]) - int(again.group(1)) * (60 if again.group(2) == "min" else 1)))
            text = "\n".join(kept + said) + "\n%\n" + "\n".join(outcome(given, made) + heard) + "\n%%\n"
            yield COOKIE.sub("PBS_JOBCOOKIE=0", text)


main()
