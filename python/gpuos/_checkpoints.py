# SPDX-License-Identifier: MIT OR Apache-2.0
"""The client of the protocol behind checkpoints, for `gpuos.checkpoint` alone, which gives its names on. docs/user/checkpoint-files.md has the protocol."""

import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Optional

from ._ranks import launched
from ._ranks import number as _number

_VARIABLE = "GPUOS_CHECKPOINT_DIR"
# For a folder that another rank has seen first: nodes get a request at slightly different moments.
_FOLDER_LIMIT = 60.0
_TOLD_EVERY = 60.0


class CheckpointError(Exception):
    """Something about a checkpoint cannot be done; the text says what to do next."""


class GivenUp(CheckpointError):
    """This checkpoint has ended already: its files are not wanted any more. The program goes on."""


class TimedOut(CheckpointError, TimeoutError):
    """What was waited for did not come within the limit."""


class Request(NamedTuple):
    """A checkpoint that is wanted: its number, and why (`interval`, `asked`, `end`)."""

    number: int
    reason: str


class Restored(NamedTuple):
    """The checkpoint that the program goes on from, and the folder with this rank's files, a copy that it may change. `ranks`: how many ranks have
    made it. `shared`, which only happens with `any_ranks` or `all_files`: the folder has one for each of them, which `folders` names, for all
    ranks to read and none to write."""

    number: int
    folder: Path
    ranks: int = 0
    shared: bool = False

    def folders(self) -> "list[Path]":
        """The folder of each rank that has made it."""
        return [self.folder / f"rank-{rank}-of-{self.ranks}" for rank in range(self.ranks)]


class Outcome(NamedTuple):
    """What has become of a checkpoint: `pending`, `committed` or `failed`, and why it failed."""

    state: str
    why: str = ""


class Lost(NamedTuple):
    """A checkpoint that was saved and came to nothing: its number, and why."""

    number: int
    why: str


def _line(path: Path) -> Optional[str]:
    """The first line of a file, if it is there."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline(4096).rstrip("\n")
    except FileNotFoundError:
        return None


def _words(line: Optional[str]) -> tuple[str, str]:
    """The first word of a line, and the rest."""
    word, _, rest = (line or "").partition(" ")
    return word, rest


def say(text: str) -> None:
    """A line for the user, on standard error."""
    print(f"gpuos: {text}", file=sys.stderr, flush=True)


class Checkpoints:
    """The client of the protocol, for one rank of the program."""

    def __init__(
        self,
        rank: Optional[int] = None,
        size: Optional[int] = None,
        folder: Optional[os.PathLike] = None,
        any_ranks: bool = False,
        all_files: bool = False,
    ):
        """For rank `rank` of `size`, by default what `launched` says; the folder is that of the environment. `any_ranks`: the program can begin from
        a checkpoint of any number of ranks, which all of them have to say. `all_files`: the same, and each needs the files of all of them also where the
        number is the same."""
        if rank is None or size is None:
            rank, size = launched()
        if not 0 <= rank < size <= 65535:
            raise CheckpointError(f"rank {rank} of {size} cannot be: ranks count from 0, and there are at most 65535")
        folder = folder or os.environ.get(_VARIABLE)
        self.rank, self.size, self.any_ranks, self.all_files = rank, size, any_ranks or all_files, all_files
        self._folder = Path(folder) if folder else None
        self._joined: Optional[Path] = None
        self._held: Optional[BinaryIO] = None
        self._told = False
        # The join by which it was given a checkpoint.
        self._given: Optional[int] = None
        # The newest checkpoint for which nothing is left to do here.
        self._done = 0
        # The last one that was saved, while it is not known what became of it.
        self._open: Optional[int] = None
        self._from: Optional[int] = None
        #: The checkpoint that this rank has saved last, if it came to nothing, as `look_back` has found; else None.
        self.lost: Optional[Lost] = None

    @property
    def available(self) -> bool:
        """Whether the job makes checkpoints at all."""
        return self._folder is not None

    def _root(self) -> Path:
        if self._folder is None:
            raise CheckpointError(f"this job makes no checkpoints: {_VARIABLE} is not set (sbatch --gpuos-checkpoint=10m)")
        return self._folder

    def join(self, limit: Optional[float] = None) -> Optional[Restored]:
        """Joins and waits until all ranks have, at most `limit` seconds; by default as long as it takes, with a line on
        standard error every 60 s. None: there is no checkpoint, begin from the start. CheckpointError: there are some and they
        cannot be loaded as things are, or the time is over (then it is a TimeoutError too)."""
        if self._folder is None:
            return None
        self._joined = self._given = None
        nonce = self._announce()
        path = self._folder / f"start.{self.rank}.{nonce}"
        line = self._wait(lambda: _line(path), f"gpuos_mover's answer to rank {self.rank} of {self.size}", limit)
        word, rest = _words(line)
        if word == "failed":
            raise CheckpointError(rest)
        checkpoint, _, of = rest.partition(" of ")
        number, ranks = _number(checkpoint), _number(of)
        if word not in ("new", "restore") or (word == "restore") == (number is None) or bool(of) == (ranks is None):
            raise CheckpointError(f"{path} says {line!r}, which this version of gpuos does not know")
        self._joined = self._folder / f"ranks/{self.rank}.{self.size}.{nonce}"
        self._given = None if number is None else nonce
        self._open, self._from, self.lost = None, number, None
        if number is None:
            return None
        if self.rank == 0:
            say(f"the program goes on from checkpoint {number}")
        if ranks is None:
            return Restored(number, self._folder / f"restore.{self.rank}.{nonce}", self.size)
        return Restored(number, self._folder / f"restored.{number}", ranks, True)

    def refuse(self, why: str = "") -> None:
        """What `join` has given cannot be loaded; `why` is a line for the user. It is passed over from now on, in later runs of the job, too. The
        program joins again and is given the one before. If one rank cannot load it, all ranks refuse it and join again."""
        if self._given is None:
            raise CheckpointError("there is nothing to refuse: the program was given no checkpoint, or has refused it; join again")
        name = f"refused.{self.rank}.{self._given}"
        ranks = self._root() / "ranks"
        unfinished = ranks / f".{name}"
        unfinished.write_text((why.splitlines() or [""])[0] + "\n", encoding="utf-8", errors="replace")
        unfinished.rename(ranks / name)
        self._joined = self._given = None

    def _announce(self) -> int:
        ranks = self._root() / "ranks"
        nonce = time.time_ns()
        while True:
            path = ranks / f"{self.rank}.{self.size}.{nonce}"
            try:
                if self.any_ranks:
                    # Before the join: what is said of it then is not missed.
                    says = "all" if self.all_files else "any"
                    os.close(os.open(ranks / f"{says}.{self.rank}.{nonce}", os.O_WRONLY | os.O_CREAT, 0o600))
                held = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)
                break
            except FileExistsError:
                nonce += 1
            except OSError as error:
                raise CheckpointError(
                    f"cannot join in {path}: {error.strerror}; in a container, bind ${_VARIABLE} into it at the same path, writable"
                ) from error
        # As long as it is locked gpuos_mover knows that the process runs. Where files cannot be locked it says nothing of a lock.
        self._held = held
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.write(b"locked\n")
        except OSError:
            pass
        # Earlier starts of this rank: a script that starts programs in a loop would leave one file of each.
        for older in ranks.glob(f"{self.rank}.*"):
            before = _number(older.name.rpartition(".")[2])
            if before is not None and before < nonce:
                older.unlink(missing_ok=True)
        return nonce

    def ask(self) -> None:
        """Asks for a checkpoint as soon as all ranks can: `wanted` shows it then, as every other. What comes sooner than the site's
        least-seconds after the last that the program has asked for waits. One rank asks. Nothing is done in a job without checkpoints. `lost` says
        then what became of the one before."""
        if self._joined is None:
            return
        self.look_back()
        path = self._root() / f"ranks/ask.{self.rank}"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError as error:
            raise CheckpointError(f"cannot ask for a checkpoint by {path}: {error.strerror}") from error

    def look_back(self) -> None:
        """Looks what became of the checkpoint that was saved last, as `wanted`, `ask` and `ready` do, and sets `lost`. Of one that came to nothing rank 0
        says so, once, on standard error."""
        if self._open is None:
            return
        try:
            outcome = self.outcome(self._open)
            if outcome.state == "pending":
                return
            newest = _number(_line(self._root() / "commit"))
        except OSError:
            return
        number, self._open, self.lost = self._open, None, None
        if outcome.state == "committed":
            return
        self.lost = Lost(number, outcome.why)
        newest = max((known for known in (newest, self._from) if known is not None), default=None)
        begins = "its start" if newest is None else f"checkpoint {newest}"
        if self.rank == 0:
            say(
                f"checkpoint {number} was saved and came to nothing: {outcome.why}; the program goes on, and it would begin again from {begins}"
            )

    def wanted(self) -> Optional[Request]:
        """The checkpoint that is wanted now and that this rank has not saved yet. One look for a file that mostly is not
        there. Of several ranks one looks and tells the others, so that all save the same state. None is wanted of a process in
        whose place another one has joined, which standard error says: both would write into one folder."""
        if self._joined is None:
            return None
        self.look_back()
        try:
            word, reason = _words(_line(self._root() / "request"))
        except OSError:
            return None
        number = _number(word)
        if number is None or number <= self._done:
            return None
        if self._replaced():
            if not self._told:
                say(f"{self._replacement()}, so no checkpoint is made here")
            self._told = True
            return None
        return Request(number, reason)

    def _replaced(self) -> bool:
        """A later start of a rank removes the file by which it has joined."""
        if self._joined is None:
            return False
        try:
            self._joined.stat()
        except FileNotFoundError:
            return True
        except OSError:
            pass
        return False

    def _replacement(self) -> str:
        return (
            f"another process of this job has joined as rank {self.rank} of {self.size} after this one: "
            "a job makes checkpoints of one program at a time"
        )

    def folder(self, number: int, limit: float = _FOLDER_LIMIT) -> Path:
        """The folder for this rank's files of a checkpoint; waits `limit` seconds at most where another rank has seen the request
        first. GivenUp: the checkpoint has ended, and the program goes on. TimeoutError: the same, and this checkpoint is not
        wanted of this rank again, as each look would wait as long."""
        path = self._root() / f"{number}/files/rank-{self.rank}-of-{self.size}"
        if self._replaced():
            raise self._over(number, Outcome("failed", self._replacement()))

        def look() -> Optional[Path]:
            if path.is_dir():
                return path
            outcome = self.outcome(number)
            if outcome.state != "pending":
                raise self._over(number, outcome)
            return None

        try:
            return self._wait(look, f"the folder for checkpoint {number} of rank {self.rank} of {self.size}", limit)
        except TimedOut:
            self._done = max(self._done, number)
            raise

    def ready(self, number: int) -> None:
        """This rank's files are complete, and it leaves them alone from now on. GivenUp: the checkpoint has ended."""
        if self._replaced():
            raise self._over(number, Outcome("failed", self._replacement()))
        try:
            os.close(os.open(self._root() / f"{number}/ready.{self.rank}", os.O_WRONLY | os.O_CREAT, 0o600))
        except FileNotFoundError:
            raise self._over(number, self.outcome(number)) from None
        self._done = max(self._done, number)
        self.look_back()
        self._open = number

    def outcome(self, number: int) -> Outcome:
        """What has become of a checkpoint."""
        if self._folder is None:
            return Outcome("failed", "this job makes no checkpoints")
        # Before the others: a newer one is asked for when they say what became of this one, if it was ever asked for on this node.
        asked = _number(_words(_line(self._folder / "request"))[0])
        # In this order. If a newer one has failed, this one has ended before, and `commit` has it if it came to be.
        word, why = _words(_line(self._folder / "failed"))
        failed = _number(word)
        if failed == number:
            return Outcome("failed", why)
        newest = _number(_line(self._folder / "commit"))
        if newest is not None and newest >= number:
            return Outcome("committed")
        if failed is not None and failed > number:
            return Outcome("failed", f"it came to nothing, as checkpoint {failed} after it")
        if asked is not None and asked > number:
            return Outcome("failed", f"it came to nothing, as checkpoint {asked} is asked for")
        return Outcome("pending")

    def wait(self, number: int, limit: Optional[float] = None) -> Outcome:
        """Waits until a checkpoint has ended, at most `limit` seconds; then it is `pending`. Needed only for the last one."""

        def look() -> Optional[Outcome]:
            outcome = self.outcome(number)
            return None if outcome.state == "pending" else outcome

        try:
            outcome = self._wait(look, f"the end of checkpoint {number}", limit)
        except TimedOut:
            return Outcome("pending")
        if self._open == number:
            # The caller is told.
            self._open = None
            self.lost = Lost(number, outcome.why) if outcome.state == "failed" else None
        return outcome

    def _over(self, number: int, outcome: Outcome) -> GivenUp:
        self._done = max(self._done, number)
        why = outcome.why or ("a newer one exists" if outcome.state == "committed" else "its folder is gone")
        return GivenUp(f"checkpoint {number} is not wanted any more: {why}")

    def _wait(self, look: Callable[[], Any], what: str, limit: Optional[float]) -> Any:
        begun, told, pause = time.monotonic(), _TOLD_EVERY, 0.005
        while True:
            found = look()
            if found is not None:
                return found
            if not self._root().is_dir():
                raise CheckpointError(f"{self._folder} is gone, while the program waited for {what}")
            waited = time.monotonic() - begun
            if limit is not None and waited >= limit:
                raise TimedOut(f"{what} did not come within {limit:g} s: `gpuos ckpt show` on the node tells how far gpuos_mover is")
            if waited >= told:
                told = waited + _TOLD_EVERY
                say(f"still waiting for {what}, for {waited:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
