# SPDX-License-Identifier: MIT OR Apache-2.0
"""qsub: a job of a script, of a command behind `--`, or of standard input, with options of the command line over those of the script."""
import getopt
import os
import pwd
import re
import shlex
import sys
import time

from ..errors import Refused
from ..wire import ask
from . import common

LETTERS = "a:A:c:C:e:fhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:Xz"
# Options that are an attribute's value as it is.
PLAIN = {"A": "Account_Name", "j": "Join_Path", "k": "Keep_Files", "m": "Mail_Points", "M": "Mail_Users", "N": "Job_Name", "p": "Priority",
         "P": "project", "S": "Shell_Path_List", "u": "User_List", "c": "Checkpoint", "J": "array_indices_submitted"}
LONGEST_NAME = 236
USAGE = "usage: qsub [-a date_time] [-A account_string] [-c interval] ... [script | -- command [arg1 ...]]\n       qsub --version\n"


def main():
    given, command = split()
    opts, words = common_options(given)
    script, name = read(words, command)
    of_script = directives(script) if command is None else []
    chosen = dict(of_script)
    chosen.update(opts)
    pairs = [pair for letter, text in of_script + opts if letter == "l" for pair in common.resources(text)]
    try:
        print(ask("queuejob", attributes=attributes(chosen, name, opts), resources=list(dict(pairs).items()), queue=chosen.get("q", "").split("@")[0], script=script))
    except Refused as why:
        sys.exit(common.say("qsub", why))


def split():
    """Options, and the command behind `--`."""
    given = sys.argv[1:]
    if "--" in given:
        at = given.index("--")
        return given[:at], given[at + 1 :]
    return given, None


def common_options(given):
    if given == ["--version"]:
        common.options("qsub", LETTERS)
    try:
        opts, words = getopt.getopt(given, LETTERS)
    except getopt.GetoptError as why:
        sys.stderr.write("qsub: %s\n%s" % (why, USAGE))
        sys.exit(2)
    return [(flag[1:], text) for flag, text in opts], words


def read(words, command):
    """The script and the name of its job."""
    if command is not None:
        return "#!/bin/sh\nexec %s\n" % " ".join(shlex.quote(word) for word in command), "STDIN" if not command else os.path.basename(command[0])
    if not words or words[0] == "-":
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape"), "STDIN"
    try:
        with open(words[0], errors="surrogateescape") as file:
            return file.read(), os.path.basename(words[0])
    except OSError:
        sys.stderr.write("qsub: script file:: No such file or directory\n")
        sys.exit(1)


def directives(script):
    """Options in lines `#PBS` in front of the script's first command."""
    found = []
    for line in script.split("\n"):
        if not line.strip() or line.startswith(":"):
            continue
        if not line.startswith("#"):
            break
        if line.startswith("#PBS "):
            # A text behind a NUL is none of a C program's.
            words = line[5:].split("\0")[0]
            try:
                found += getopt.getopt(shlex.split(words, comments=True), LETTERS)[0]
            except (ValueError, getopt.GetoptError) as why:
                sys.stderr.write("qsub: directive error: %s\nqsub: %s\n" % (words, why))
                sys.exit(2)
    return [(flag[1:], text) for flag, text in found]


def attributes(chosen, name, opts):
    """What the options say of the job, and what every job has."""
    host = os.uname().nodename
    work = os.getcwd()
    made = {"Job_Name": name[:LONGEST_NAME], "Checkpoint": "u", "Hold_Types": "n", "Join_Path": "n", "Keep_Files": "n", "Mail_Points": "a", "Priority": "0", "Rerunable": "True"}
    made.update((PLAIN[letter], text) for letter, text in chosen.items() if letter in PLAIN)
    check_name(made["Job_Name"])
    if "h" in chosen:
        made["Hold_Types"] = "u"
    if "r" in chosen:
        made["Rerunable"] = "True" if chosen["r"] == "y" else "False"
    if "a" in chosen:
        made["Execution_Time"] = str(moment(chosen["a"]))
    for word in [word for letter, text in opts if letter == "W" for word in text.split(",")]:
        key, _, value = word.partition("=")
        made[key] = value
    for letter, key, end in (("o", "Output_Path", "o"), ("e", "Error_Path", "e")):
        path = chosen.get(letter) or "%s/%s.%s" % (work, made["Job_Name"], end)
        made[key] = path if ":" in path.split("/")[0] else "%s:%s" % (host, os.path.join(work, path))
    made["Variable_List"] = variables(chosen, work)
    made["Submit_arguments"] = " ".join(sys.argv[1:])
    return made


def check_name(name):
    if len(name) > LONGEST_NAME:
        sys.stderr.write("qsub: Job name is too long \n")
        sys.exit(2)
    if not name or any(letter.isspace() for letter in name) or not (name[0].isalnum() or ord(name[0]) < 32 or name[0] in "_-+."):
        sys.stderr.write("qsub: illegal -N value\n" + USAGE)
        sys.exit(2)


def moment(text):
    """[[[[CC]YY]MM]DD]hhmm[.SS], as seconds since 1970; the next such time."""
    digits, _, second = text.partition(".")
    now = time.localtime()
    whole = time.strftime("%Y%m%d%H%M", now)[: 12 - len(digits)] + digits
    try:
        when = time.mktime(time.strptime(whole + (second or "00"), "%Y%m%d%H%M%S"))
    except ValueError:
        sys.stderr.write("qsub: illegal -a value\n" + USAGE)
        sys.exit(2)
    return int(when if len(digits) > 4 or when > time.time() else when + 86400)


def variables(chosen, work):
    """Variables of the job: those that PBS adds, and those that its user wants."""
    made = {}
    for name in ("HOME", "LANG", "LOGNAME", "PATH", "MAIL", "SHELL", "TZ"):
        if name in os.environ:
            made["PBS_O_" + name] = os.environ[name]
    made.setdefault("PBS_O_HOME", pwd.getpwuid(os.getuid()).pw_dir)
    made.update(PBS_O_WORKDIR=work, PBS_O_SYSTEM="Linux")
    if "V" in chosen:
        made.update((name, text) for name, text in os.environ.items() if name not in made)
    for word in cut(chosen.get("v", "")):
        name, is_one, text = word.partition("=")
        if is_one:
            made[name] = text
        elif name in os.environ:
            made[name] = os.environ[name]
    return made


def cut(text):
    """Words between commas, but for those with a backslash."""
    return [re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL) for word in re.findall(r"(?:\\.|[^,\\])+", text, re.DOTALL)]
