#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compares both sides of run.sh: a table by class, then what passes on one side alone, with the last line of its last error; with --again, the names of
these tests as side.sh takes them. Arguments: folder of the sides, list of classes and files. Exit code 1 where a test passes on stock alone."""
import collections
import json
import os
import sys

COLUMNS = ["tests", "pass on both", "fail on both", "skipped", "stock alone", "gpuos alone", "ran on one side", "hook gone at end"]


def results(path):
    """All runs of each test."""
    found = collections.defaultdict(list)
    with open(path) as file:
        for line in map(json.loads, file):
            found[line["file"], line["suite"], line["test"]].append(line)
    return found


def verdict(runs):
    """Of several runs the more frequent outcome; a tie is a failure."""
    outcomes = collections.Counter(run["outcome"] for run in runs)
    return "skip" if outcomes["skip"] else "pass" if outcomes["pass"] > outcomes["fail"] else "fail"


def main(out, listed, again=False):
    with open(listed) as file:
        lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
    classes = {os.path.basename(path)[:-3]: (name, path) for name, path in lines}
    sides = [results("%s/%s/results.jsonl" % (out, side)) for side in ("stock", "gpuos")]
    table, apart = collections.defaultdict(collections.Counter), []
    for key in sorted(set(sides[0]) | set(sides[1])):
        said = [verdict(side[key]) if key in side else None for side in sides]
        if None in said:
            column = "ran on one side"
        elif "skip" in said:
            column = "skipped"
        elif said[0] == said[1]:
            column = said[0] + " on both"
        else:
            column = "stock alone" if said[0] == "pass" else "gpuos alone"
            apart.append(key)
        gone = any(run.get("hook_at_end") is False for run in sides[1].get(key, ()))
        for row in (classes[key[0]][0], "all"):
            table[row].update(["tests", column] + ["hook gone at end"] * gone)
    if again:
        for file, suite, test in apart:
            print("%s:%s" % (classes[file][1], suite if test == "setUpClass" else suite + "." + test))
        return 0
    print("| class | " + " | ".join(COLUMNS) + " |\n|" + " --- |" * (len(COLUMNS) + 1))
    for name in sorted(table, key=lambda name: (name == "all", name)):
        print("| %s | %s |" % (name, " | ".join(str(table[name][column]) for column in COLUMNS)))
    for key in apart:
        print("\n%s:%s.%s" % key)
        for name, side in zip(("stock", "gpuos"), sides):
            errors = [run["error"].strip().split("\n")[-1] for run in side[key] if run.get("error")] or [""]
            print("  %s: passed %d of %d  %s" % (name, sum(run["outcome"] == "pass" for run in side[key]), len(side[key]), errors[-1][:300]))
    return 1 if table["all"]["stock alone"] else 0


sys.exit(main(*[word for word in sys.argv[1:] if word != "--again"], again="--again" in sys.argv))
