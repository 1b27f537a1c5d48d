# SPDX-License-Identifier: MIT OR Apache-2.0
"""The part of gpuosd for programs: gives them leases, and has them park and come back. The lines are those of crates/gpuos_memory/src/protocol.rs."""

import socket
import threading
import time


class Lent:
    """A program that something was lent to. A thread reads what it says."""

    def __init__(self, peer):
        self.peer, self.said, self.over, self.news = peer, [], False, threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for line in self.peer.makefile("r"):
                with self.news:
                    self.said.append(line.split())
                    self.news.notify_all()
        except OSError:
            pass
        with self.news:
            self.over = True
            self.news.notify_all()

    def say(self, line):
        self.peer.sendall(line.encode() + b"\n")

    def listen(self, *wanted, limit=60):
        """The next line that begins with one of these words, in words; lines before it are forgotten."""
        end = time.monotonic() + limit
        with self.news:
            while True:
                while self.said:
                    words = self.said.pop(0)
                    if words and words[0] in wanted:
                        return words
                if self.over:
                    raise EOFError("the program has ended")
                if not self.news.wait(end - time.monotonic()) and time.monotonic() > end:
                    raise TimeoutError(f"the program does not say {' or '.join(wanted)} within {limit} s")

    def park(self, limit_ms=60000):
        """Has it leave the GPU: seconds by this clock, and the bytes that it says went and stayed."""
        begun = time.perf_counter()
        self.say(f"park {limit_ms}")
        told = self.listen("parked", "pinned")
        if told[0] == "pinned":
            raise RuntimeError("the program says that none of it can be moved")
        return time.perf_counter() - begun, int(told[2]), int(told[3])

    def turn(self):
        """Has it come back: seconds, and bytes."""
        begun = time.perf_counter()
        self.say("turn")
        told = self.listen("back")
        return time.perf_counter() - begun, int(told[2])


class Broker:
    """Listens at a path for programs."""

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.listener.settimeout(60)

    def lend(self, hbm, host, refuge, wait=False):
        """Takes the next program in and lends it so many bytes: of the GPU, of the host, and of the host to park in (0: it takes no turns)."""
        peer, _ = self.listener.accept()
        lent = Lent(peer)
        lent.listen("hello")
        gpu = lent.listen("ask")[1]
        lent.say(f"lease {gpu} {hbm} {host} {refuge} {'wait' if wait else 'turn'}")
        return lent
