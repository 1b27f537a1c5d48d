# SPDX-License-Identifier: MIT OR Apache-2.0
"""Resources with their types and flags, and the values that PBS takes for them."""
import re

from .errors import BAD_VALUE, NO_ATTRIBUTE, TWICE_IN_CHUNK, UNKNOWN_RESOURCE, Refused

TYPES = ("long", "float", "size", "boolean", "string", "string_array", "duration")
FLAGS = set("hnfqirm")
# Those of every PBS, by type and flags: `h` can be in a chunk, `n` is counted on vnodes, `m` goes to moms, `r` is not a user's to set.
BUILT_IN = {
    "ncpus": ("long", "hnm"), "mem": ("size", "hnm"), "vmem": ("size", "hnm"), "naccelerators": ("long", "hn"),
    "accelerator_memory": ("size", "hn"), "hbmem": ("size", "hn"), "arch": ("string", "h"), "host": ("string", "h"),
    "vnode": ("string", "h"), "aoe": ("string", "h"), "eoe": ("string", "h"), "mpiprocs": ("long", "h"), "ompthreads": ("long", "h"),
    "walltime": ("duration", "m"), "cput": ("duration", "m"), "pcput": ("duration", "m"), "pmem": ("size", "m"), "pvmem": ("size", "m"),
    "file": ("size", "m"), "nice": ("long", "m"), "software": ("string", ""), "min_walltime": ("duration", ""),
    "max_walltime": ("duration", ""), "soft_walltime": ("duration", "r"), "nodect": ("long", "r"), "select": ("select", ""), "place": ("place", "m"),
}
# A vnode shows what is assigned of these from the beginning.
ALWAYS_ASSIGNED = ("accelerator_memory", "hbmem", "mem", "naccelerators", "ncpus", "vmem")
SIZE = re.compile(r"(\d+)([kmgtp]?)([bw]?)\Z", re.IGNORECASE)
UNITS = " kmgtp"
LEVEL_OF_PLACE = ("free", "pack", "scatter", "vscatter")
SHARING_OF_PLACE = ("excl", "exclhost", "shared")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")
PART = re.compile(r"\(([^()]*)\)")


class Resources:
    """The definitions that a server has."""

    def __init__(self, own=None):
        self.own = own if own is not None else {}

    def get(self, name):
        """Type and flags of a resource; None of one that is not known."""
        known = self.own.get(name)
        return (known["type"], known["flag"]) if known else BUILT_IN.get(name)

    def counts(self, name):
        """Whether vnodes have a count of it, of which jobs take some."""
        known = self.get(name)
        return bool(known) and "n" in known[1]

    def value(self, name, text, where):
        """A value as PBS keeps it.

        Raises Refused: the resource is not known, or the value is not of its type.
        """
        known = self.get(name)
        if known is None:
            raise Refused(UNKNOWN_RESOURCE, "%s.%s" % (where, name))
        try:
            return FORMS[known[0]](text)
        except ValueError:
            raise Refused(BAD_VALUE, "%s.%s" % (where, name))


def long(text):
    """A whole number; one that is too large for PBS is its largest."""
    if not re.match(r"[+-]?\d+\Z", text):
        raise ValueError(text)
    return str(max(-(2**63), min(2**63 - 1, int(text))))


def size(text):
    if not SIZE.match(text):
        raise ValueError(text)
    return text.lower() if text[-1:].isalpha() else text + "b"


def bytes_of(text):
    """A size in bytes."""
    number, unit, word = SIZE.match(text).groups()
    return int(number) * 1024 ** UNITS.index(unit.lower() or " ") * (8 if word.lower() == "w" else 1)


def kib(count):
    """A size as vnodes show it."""
    return "%dkb" % -(-count // 1024)


def seconds(text):
    """A duration in seconds."""
    parts = text.split(":")
    if len(parts) > 3 or not all(re.match(r"\d+(\.\d+)?\Z", part) for part in parts):
        raise ValueError(text)
    return int(sum(float(part) * 60**place for place, part in enumerate(reversed(parts))))


def duration(text):
    total = seconds(text)
    return "%02d:%02d:%02d" % (total // 3600, total // 60 % 60, total % 60)


def boolean(text):
    if text.lower() in ("true", "t", "1", "y"):
        return "True"
    if text.lower() in ("false", "f", "0", "n"):
        return "False"
    raise ValueError(text)


def string(text):
    """Any text, lines and escapes too: what is wrong in it hooks have to see."""
    if not text:
        raise ValueError(text)
    return text


def place(text):
    """An arrangement, how the vnodes are shared, and what they have in common: each once, at least one of them."""
    seen = []
    for word in text.split(":"):
        kind = "level" if word in LEVEL_OF_PLACE else "sharing" if word in SHARING_OF_PLACE else "group"
        if kind == "group" and not re.match(r"group=[A-Za-z][\w-]*\Z", word) or kind in seen:
            raise ValueError(text)
        seen.append(kind)
    return text


def select(text):
    if not text:
        raise ValueError(text)
    return text


def floating(text):
    return str(float(text))


FORMS = dict(long=long, float=floating, size=size, boolean=boolean, string=string, string_array=string, duration=duration, select=select, place=place)


def split(text, letter):
    """Cuts a text at a letter that is in no quotes."""
    parts, quote = [""], ""
    for one in text:
        if quote == one:
            quote = ""
        elif not quote and one in "\"'":
            quote = one
        elif not quote and one == letter:
            parts.append("")
            continue
        parts[-1] += one
    if quote:
        raise Refused(BAD_VALUE, "Resource_List.select")
    return parts


def chunks(text, resources):
    """The chunks of a select: how often, and a dictionary of what each has.

    Raises Refused as PBS does.
    """
    found = []
    for part in split(text, "+"):
        words = split(part, ":")
        count = 1
        if re.match(r"\d+\Z", words[0]):
            count = int(words.pop(0))
            if count == 0:
                raise Refused(BAD_VALUE)
        wants = {}
        for word in words:
            name, is_one, value = word.partition("=")
            if not is_one or not NAME.match(name):
                raise Refused(BAD_VALUE, "Resource_List.select")
            known = resources.get(name)
            if known is None:
                raise Refused(UNKNOWN_RESOURCE, words="Unknown resource: %s" % name)
            if name in wants:
                raise Refused(TWICE_IN_CHUNK, name)
            if "h" not in known[1]:
                raise Refused(NO_ATTRIBUTE, words="Resource is not allowed in a select specification: %s" % name)
            unquoted = value[1:-1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else value
            wants[name] = resources.value(name, unquoted, "select")
            if known[0] == "long" and wants[name].startswith("-"):
                raise Refused(BAD_VALUE, "select.%s" % name)
        found.append((count, wants))
    return found


def written(found):
    """Chunks as schedselect has them."""
    return "+".join(":".join(["%d" % count] + ["%s=%s" % item for item in wants.items()]) for count, wants in found)


def totals(found, resources):
    """What all chunks have together, of what is counted, and how many chunks there are."""
    sums = {}
    for count, wants in found:
        for name, value in wants.items():
            if not resources.counts(name):
                continue
            if resources.get(name)[0] != "size":
                sums[name] = str(min(2**63 - 1, int(sums.get(name, "0")) + count * int(value)))
                continue
            unit = min([SIZE.match(one).group(2) or " " for one in (value, sums.get(name, value))], key=UNITS.index)
            total = bytes_of(sums.get(name, "0b")) + count * bytes_of(value)
            sums[name] = "%d%sb" % (total // 1024 ** UNITS.index(unit), unit.strip())
    return dict(sums, nodect=str(sum(count for count, _ in found)))


def parts(exec_vnode, resources):
    """Vnodes of an exec_vnode with what is taken of each, in order: pairs, one for each vnode of each chunk.

    Raises Refused where it is not such a text. PBS itself takes more.
    """
    if not re.match(r"\([^()]+\)(\+\([^()]+\))*\Z", exec_vnode):
        raise Refused(BAD_VALUE, exec_vnode)
    found = []
    for chunk in PART.findall(exec_vnode):
        for word in chunk.split("+"):
            vnode, *wants = word.split(":")
            pairs = [want.partition("=")[::2] for want in wants]
            found.append((vnode, {name: resources.value(name, value, "exec_vnode") for name, value in pairs}))
    return found


def amount(kind, text):
    """A value as a number, for counting."""
    if kind == "size":
        return bytes_of(text)
    return float(text) if kind == "float" else int(text)


def shown(kind, count):
    """A number as vnodes show it."""
    return kib(count) if kind == "size" else str(count)
