# SPDX-License-Identifier: MIT OR Apache-2.0
"""The vnodes that `qrun` without -H gives a job: the first that have room, chunk by chunk.

This is no scheduler. Nobody starts a job unasked, no job waits for another one, and no test may hold anything against the choice that is made here.
"""
import re

from . import values
from .records import path

LINE = re.compile(r'^\s*resources:\s*"(.*)"', re.MULTILINE)


def looked_at():
    """The resources that pbs_sched would look at, by its configuration; a chunk may have others."""
    with open(path("sched_priv", "sched_config")) as file:
        return {name.strip() for line in LINE.findall(file.read()) for name in line.split(",")}


class NoRoom(Exception):
    """No vnodes have room; the text is the resource of which there is too little, as far as it is one."""


def place(job, nodes):
    """An exec_vnode.

    Raises NoRoom.
    """
    found = [wants for count, wants in values.chunks(job.attributes["schedselect"], nodes.resources) for _ in range(min(count, 4096))]
    words = job.resources.get("place", "free").split(":")
    group = next((word.split("=", 1)[1] for word in words if word.startswith("group=")), None)
    lacking = []
    for domain in domains(nodes, group):
        parts = within(found, domain, words, nodes, lacking)
        if parts:
            return "+".join("(%s)" % ":".join([name] + taken) for name, taken in parts)
    raise NoRoom(max(lacking, key=lacking.count) if lacking else "")


def domains(nodes, group):
    """Vnodes that a job may have together."""
    free = [node for node in nodes.all.values() if nodes.state(node) == "free"]
    if group is None:
        return [free]
    names = sorted({node.value(group) for node in free if node.value(group)})
    return [[node for node in free if node.value(group) == name] for name in names]


def within(found, domain, words, nodes, lacking):
    """A vnode for each chunk, with the words of what is taken of it; None where there is no room."""
    if "pack" in words:
        hosts = sorted({node.value("host") for node in domain})
        each = (fill(found, [node for node in domain if node.value("host") == host], words, nodes, lacking) for host in hosts)
        return next((parts for parts in each if parts), None)
    return fill(found, domain, words, nodes, lacking)


def fill(found, domain, words, nodes, lacking):
    used, parts, hosts, known = {}, [], set(), looked_at()
    for wants in found:
        for node in domain:
            host = node.value("host")
            if ("scatter" in words and host in hosts) or ("vscatter" in words and node.name in used):
                continue
            if any(word.startswith("excl") for word in words) and nodes.taken[node.name]:
                continue
            lacks = lacks_of(node, wants, used.get(node.name, {}), nodes, known)
            if not lacks:
                break
            lacking.append(lacks)
        else:
            return None
        hosts.add(host)
        mine = used.setdefault(node.name, {})
        counted = [name for name in wants if nodes.resources.counts(name)]
        for name in counted:
            mine[name] = mine.get(name, 0) + values.amount(nodes.resources.get(name)[0], wants[name])
        parts.append((node.name, ["%s=%s" % (name, wants[name]) for name in counted]))
    return parts


def lacks_of(node, wants, used, nodes, known):
    """A resource of which a vnode has less than a chunk wants, beside what other chunks of the job take there; empty: it has room."""
    for name, text in wants.items():
        kind, has = nodes.resources.get(name)[0], node.value(name)
        if name not in known:
            continue
        if nodes.resources.counts(name):
            if nodes.left(node.name, name) - used.get(name, 0) < values.amount(kind, text):
                return name
        elif kind in ("long", "size", "float"):
            if has is None or values.amount(kind, has) < values.amount(kind, text):
                return name
        elif has is None or text not in (has.split(",") if kind == "string_array" else [has]):
            return name
    return ""
