# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stands between the hook and the daemons of a mom's host, and writes down what each said to the other.

    talks.py FILE SOCKET...    each SOCKET, which has a daemon, is renamed to SOCKET.own, and this program listens in its place

A line of FILE is JSON: the input file of the event by whose hook the daemon was told (PBS names it on the command line of the hook's pbs_python),
the daemon, what it was told and what it said.
"""
import json
import os
import socket
import struct
import sys
import threading

LOCK = threading.Lock()
# Longer than the hook waits for anything.
PATIENCE = 70


def event_of(stream):
    """The input file of the hook that is at the other end; empty where it has ended already."""
    pid = struct.unpack("3i", stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    return os.path.basename(words[words.index("-i") + 1]) if "-i" in words else ""


def pump(source, to, kept):
    """Hands on what one says, until it says no more."""
    try:
        for part in iter(lambda: source.recv(1 << 16), b""):
            kept.append(part)
            to.sendall(part)
    except OSError:
        pass
    try:
        to.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def talk(stream, event, path, out):
    """One talk."""
    daemon = socket.socket(socket.AF_UNIX)
    daemon.connect(path + ".own")
    for one in (stream, daemon):
        one.settimeout(PATIENCE)
    told, said = [], []
    asks = threading.Thread(target=pump, args=(stream, daemon, told), daemon=True)
    asks.start()
    pump(daemon, stream, said)
    asks.join(1)
    for one in (stream, daemon):
        one.close()
    texts = [b"".join(parts).decode("utf-8", "replace") for parts in (told, said)]
    line = json.dumps({"event": event, "daemon": os.path.basename(path).split(".")[0], "told": texts[0], "said": texts[1]})
    with LOCK:
        out.write(line + "\n")
        out.flush()


def listen(path, out):
    """All talks on one socket."""
    os.rename(path, path + ".own")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(64)
    while True:
        stream = listener.accept()[0]
        # Right away: who only tells something is soon gone.
        event = event_of(stream)
        threading.Thread(target=talk, args=(stream, event, path, out), daemon=True).start()


def main():
    """One thread for each socket."""
    with open(sys.argv[1], "a") as out:
        threads = [threading.Thread(target=listen, args=(path, out)) for path in sys.argv[2:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


main()
