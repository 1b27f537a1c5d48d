"""The mover's side of the protocol, for one node, played step by step or by a thread."""

import os
import shutil
import tempfile
import threading
import time
from pathlib import Path


class Mover:
    """A job that has made no checkpoint; a context manager that removes it."""

    def __init__(self):
        self.base = Path(tempfile.mkdtemp())
        self.path = self.base / "job"
        (self.path / "ranks").mkdir(parents=True)
        self.committed = None
        self.older = []
        self.refused = {}
        self.last = 0
        self.ranks = {}
        self.answered = set()

    def __enter__(self):
        self._before = os.environ.get("GPUOS_CHECKPOINT_DIR")
        os.environ["GPUOS_CHECKPOINT_DIR"] = str(self.path)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        os.environ.pop("GPUOS_CHECKPOINT_DIR")
        if self._before is not None:
            os.environ["GPUOS_CHECKPOINT_DIR"] = self._before
        shutil.rmtree(self.base)

    def _run(self):
        while not self._stop.wait(0.002):
            names = [name for name in os.listdir(self.path / "ranks") if name not in self.answered and name[0] != "."]
            self._refuse([name for name in names if name.startswith("refused.")])
            names = [name for name in names if not name.startswith(("refused.", "ask.", "any.", "all."))]
            parts = [tuple(map(int, name.split("."))) for name in names]
            if parts and len(parts) == parts[0][1]:
                self.ranks = {rank: size for rank, size, _ in parts}
                for name, (rank, _, nonce) in zip(names, parts):
                    self._answer(rank, nonce)
                    self.answered.add(name)

    def _refuse(self, names):
        for name in names:
            _, rank, nonce = name.split(".")
            given = (self.path / f"start.{rank}.{nonce}").read_text().split()
            self.refused[name] = (self.path / "ranks" / name).read_text().rstrip("\n")
            self.answered.add(name)
            if given == ["restore", str(self.committed)]:
                self.committed = self.older.pop() if self.older else 0

    def _answer(self, rank, nonce):
        line = "new" if self.committed is None else "failed no checkpoint can be restored"
        if self.committed:
            line = f"restore {self.committed}"
            shutil.copytree(self.base / f"kept/{self.committed}/{rank}", self.path / f"restore.{rank}.{nonce}")
        self.write(f"start.{rank}.{nonce}", line)

    def write(self, name, line):
        """All files of the mover appear whole."""
        (self.path / ".new").write_text(line + "\n")
        os.rename(self.path / ".new", self.path / name)

    def ask(self, reason):
        """Asks for a checkpoint and gives its number."""
        self.last += 1
        for rank, size in self.ranks.items():
            (self.path / f"{self.last}/files/rank-{rank}-of-{size}").mkdir(parents=True)
        self.write("request", f"{self.last} {reason}")
        return self.last

    def commit(self):
        """Keeps what all ranks have saved, once they are ready."""
        folder = self.path / str(self.last)
        until(lambda: all((folder / f"ready.{rank}").exists() for rank in self.ranks))
        for rank, size in self.ranks.items():
            shutil.copytree(folder / f"files/rank-{rank}-of-{size}", self.base / f"kept/{self.last}/{rank}")
        shutil.rmtree(folder)
        self.write("commit", str(self.last))
        os.remove(self.path / "request")
        self.older += [self.committed] if self.committed else []
        self.committed = self.last

    def fail(self, why):
        """Gives up the one that is being made."""
        shutil.rmtree(self.path / str(self.last))
        self.write("failed", f"{self.last} {why}")
        os.remove(self.path / "request")


def until(met):
    """Waits for a condition; only a test that fails waits for long."""
    end = time.monotonic() + 120
    while not met():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
