# SPDX-License-Identifier: MIT OR Apache-2.0
"""Submits short jobs of all kinds to a private PBS, changes, holds, suspends and deletes some, so that its hooks have something to be told.

    jobs.py COUNT SEED COUNTER    on the host of pbs_server, as root; COUNTER is a script that keeps checkpoints

About one a second: PBS names what it keeps of an event of the server by the second.
"""
import random
import subprocess
import sys
import time

PERIOD = 1.06
USERS = ("user1", "user2")
# Values of each option, of which one is taken; some are refused.
VALUES = {
    "gpuos_mig": ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "{0}G", "1g.10gb:{1}", "2g.20gb:{1}", '"3g.40gb,1g.10gb:{1}"'],
    "gpuos_share": ['"timeslice,mem={0}00M"', '"timeslice:{1},mem={0}1M"', '"timeslice,mem={0}G"', "timeslice", "mps:{0}%"],
    "gpuos_mem": ["{0}G", "2{1}G", '"1{0}G,policy=lru"', '"{0}000M,policy=lru"'],
    "gpuos_power": ["{0}%", "{0}0%", "{0}{1}W", "{1}{0}W", "5{0}W"],
    "gpuos_clocks": ["1{0}", "9{0}", "3{0}-1{0}5", "12{0}-15{0}"],
    "gpuos_mps": ["on", "{0}%"],
    "gpuos_checkpoint": ["auto", "{0}m", "{0}m", "{1}h", "{0}", "{0}m,l2=partner"],
    "gpuos_placement": ["default", "best-fit", "frag", "first-fit", "pack", "spread", '"affinity:user{1}"', '"anti-affinity:{0}.head"'],
    "gpuos_topology": ["node", "nvlink", "leaf", "any", "node:required", "nvlink:required", "leaf:required"],
}
# What goes with whole GPUs, beside the option for which a job is.
WHOLE = ["gpuos_power", "gpuos_clocks", "gpuos_mps", "gpuos_checkpoint", "gpuos_placement", "gpuos_topology", "gpuos_mem"]


def value(chance, name):
    """A value of an option, now and then with a letter too few."""
    text = chance.choice(VALUES[name]).format(chance.randint(5, 78), chance.randint(1, 4))
    return "%s=%s" % (name, text[:-1] if chance.random() < 0.04 else text)


def job(chance):
    """What is asked of qsub, and what qalter changes of it."""
    name = chance.choice(list(VALUES))
    chunks, gpus = chance.choice([1, 1, 1, 2, 2, 3]), chance.choice([1, 1, 2, 3])
    chunk = ":ncpus=%d" % chance.randint(1, 3) + chance.choice(["", ":mem=%dmb" % chance.randint(50, 400)])
    apart = name in ("gpuos_mig", "gpuos_share")
    if not apart:
        chunk += ":ngpus=%d" % gpus
    if name == "gpuos_share":
        chunks = 1
    if name in ("gpuos_share", "gpuos_mem") and ":mem=" not in chunk:
        chunk += ":mem=100mb"
    asked = ["select=%d%s" % (chunks, chunk), value(chance, name)]
    if chance.random() < 0.3:
        other = chance.choice(["gpuos_checkpoint"] if apart else [one for one in WHOLE if one != name])
        asked.append(value(chance, other))
    if chance.random() < 0.3:
        asked.append("walltime=0:%d:%02d" % (chance.randint(4, 40), chance.randint(0, 59)))
    if chunks > 1 and not apart and chance.random() < 0.4:
        asked.append("place=scatter")
    change = chance.choice(
        [
            value(chance, name),
            value(chance, name),
            name + "=off",
            value(chance, chance.choice(WHOLE)),
            value(chance, "gpuos_checkpoint"),
            "walltime=0:%d:%02d" % (chance.randint(4, 40), chance.randint(0, 59)),
            "select=%d:ncpus=%d:mem=%dmb%s" % (chunks, chance.randint(1, 3), chance.randint(50, 400), "" if apart else ":ngpus=%d" % gpus),
        ]
    )
    return asked, [change]


def ran(words, user=None):
    """What a command printed; what it says of a refusal is no matter here."""
    if user:
        words = ["runuser", "-u", user, "--", "env", "-i", "PATH=/opt/pbs/bin:/usr/bin:/bin", "HOME=/tmp", "PBS_CONF_FILE=/etc/pbs.conf"] + words
    # A qdel of a job of which its mom knows nothing may wait for ever.
    words = ["timeout", "10"] + words
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, cwd="/tmp")
    return done.stdout.strip()


def with_resources(asked):
    """Options of qsub and qalter."""
    return [word for one in asked for word in ("-l", one)]


def main():
    """One second after the other."""
    count, chance, counter = int(sys.argv[1]), random.Random(int(sys.argv[2])), sys.argv[3]
    waiting, running, began = [], [], time.time()
    for turn in range(count):
        time.sleep(max(0, began + turn * PERIOD - time.time()))
        asked, change = job(chance)
        user = USERS[chance.randrange(2)]
        program = ["/bin/sleep", str(chance.randint(2, 7))]
        if "place=scatter" in asked:
            # A task on each host.
            program = ["/opt/pbs/bin/pbsdsh"] + program
        if chance.random() < 0.05:
            program = ["/bin/sh", counter]
        options = ["-h", "-j", "oe", "-o", "/dev/null", "-N", "k%d" % turn] + with_resources(asked)
        name = ran(["qsub"] + options + ["--"] + program, user)
        # The job of a moment ago is changed, and goes on.
        for before, owner, new in waiting:
            ran(["qalter"] + with_resources(new) + [before], owner)
            ran(["qrls", before], owner)
            running.append((before, owner))
        waiting = [(name, user, change)] if name else []
        if len(running) > 6:
            before, owner = running.pop(0)
            what = chance.randrange(40)
            if what < 3:
                ran(["qdel", before], owner)
            elif what == 3:
                ran(["qdel", "-W", "force", before])
            elif what < 6:
                ran(["qrerun", before])
            elif what < 10:
                ran(["qhold", before], owner)
                running.append((before, owner))
            elif what < 13:
                ran(["qsig", "-s", "suspend", before])
            elif what < 16:
                ran(["qsig", "-s", "resume", before])
            elif what < 20:
                ran(["qrls", before], owner)
    for before, owner, _ in waiting:
        ran(["qrls", before], owner)


main()
