# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where PBS keeps its files, and the lines of its logs and of its accounting."""
import json
import os
import time

HOME = "/var/spool/pbs"
CONF = "/etc/pbs.conf"
VERSION = "23.06.06"


def path(*parts):
    """A file of PBS_HOME of this host."""
    return os.path.join(HOME, *parts)


def conf():
    """The keys of pbs.conf."""
    with open(CONF) as file:
        pairs = [line.strip().split("=", 1) for line in file if "=" in line]
    return dict(pairs)


def host():
    """The name of this host."""
    return os.uname().nodename.split(".")[0]


def write(name, text, mode=0o600):
    """Replaces a file in one step; a killed daemon leaves the old or the new one."""
    new = name + ".new"
    with open(new, "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    os.replace(new, name)


def save(name, value):
    """Replaces a file of JSON."""
    write(name, json.dumps(value))


def load(name, otherwise):
    """What a file of JSON has; `otherwise` where there is none."""
    try:
        with open(name) as file:
            return json.load(file)
    except FileNotFoundError:
        return otherwise


class Log:
    """The log of a daemon, a file a day; with parts of seconds where pbs.conf wants them."""

    def __init__(self, folder, who):
        self.folder, self.who = path(folder), who
        self.fine = conf().get("PBS_LOG_HIGHRES_TIMESTAMP") == "1"

    def __call__(self, kind, name, text, mask=0x80, who=None):
        now = time.time()
        local = time.localtime(now)
        stamp = time.strftime("%m/%d/%Y %H:%M:%S", local) + (".%06d" % (now % 1 * 1000000) if self.fine else "")
        line = "%s;%04x;%s;%s;%s;%s\n" % (stamp, mask, who or self.who, kind, name, text.replace("\n", " "))
        with open(os.path.join(self.folder, time.strftime("%Y%m%d", local)), "a") as file:
            file.write(line)


def account(kind, job, words):
    """Adds a line to the accounting."""
    now = time.localtime()
    name = path("server_priv", "accounting", time.strftime("%Y%m%d", now))
    with open(name, "a") as file:
        file.write("%s;%s;%s;%s\n" % (time.strftime("%m/%d/%Y %H:%M:%S", now), kind, job, words))
