# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checkpoints of a job, for programs in Python 3.9 or newer.

    from gpuos import checkpoint

    with checkpoint.session() as ckpt:
        state = ckpt.load({"step": 0})
        while state["step"] < STEPS:
            train(state)
            state["step"] += 1
            if ckpt.due(state["step"]):
                ckpt.save(state)
                if ckpt.ending:
                    break

What was saved is stored while the program goes on, which may fail: the disk is full, another node is gone. The next `due`, `ask` or `save` finds that: rank 0
says so on standard error, `ckpt.lost` has it until a newer checkpoint exists, and `ask` and `save` are False.

In a job without checkpoints all of it does nothing: `load` gives the default, and none is ever due.

`Session` is for training loops, with torch.distributed where the program uses it. `Checkpoints` is the client of the protocol,
which docs/user/checkpoint-files.md explains. Nothing is imported but the standard library; torch and numpy are used if the program
has imported them.
"""

import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from ._checkpoints import CheckpointError, Checkpoints, GivenUp, Lost, Outcome, Request, Restored
from ._checkpoints import TimedOut as _TimedOut
from ._checkpoints import say as _say
from ._ranks import Broadcast as _Broadcast
from ._ranks import Distributed as _Distributed
from ._ranks import Ranks as _Ranks
from ._ranks import launched
from ._ranks import torch_distributed as _torch_distributed
from ._rng import rng_state, set_rng_state

__all__ = [
    "CheckpointError", "Checkpoints", "GivenUp", "Lost", "Outcome", "Request", "Restored", "Session",
    "launched", "rng_state", "session", "set_rng_state",
]


class Session:
    """Checkpoints in a training loop; see `session`."""

    _REASONS = ("interval", "asked", "end")

    def __init__(self, client: Checkpoints, ranks: _Ranks, look_every: int, outlive: bool = False):
        self._client, self._ranks, self._look_every = client, ranks, max(1, look_every)
        self._outlive = outlive
        self._before: Any = None
        self._active = False
        self._request: Optional[Request] = None
        # Whether the one before came to nothing, alike on all ranks.
        self._is_lost = False
        #: The checkpoint that the program goes on from, or None.
        self.restored: Optional[Restored] = None
        #: The last checkpoint that was saved, or 0.
        self.number = 0
        #: The job will be ended and its last checkpoint exists: leave the loop.
        self.ending = False

    def __enter__(self) -> "Session":
        # Where one node has no mover the others would wait for its ranks for ever.
        self._active = self._ranks.all(self._client.available)
        if self._active:
            self.restored = self._client.join()
            self._ignore_term()
        elif self._client.available:
            _say("checkpoints are not made: not all ranks have gpuos_mover on their nodes")
        return self

    def __exit__(self, *_: Any) -> None:
        self._active = False
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _ignore_term(self) -> None:
        if not self._outlive:
            return
        if threading.current_thread() is not threading.main_thread():
            raise CheckpointError("outlive=True needs the main thread: begin the session there, or ignore SIGTERM yourself")
        # None: it was set by something else than Python, and cannot be put back.
        self._before = signal.signal(signal.SIGTERM, signal.SIG_IGN) or signal.SIG_DFL

    def load(
        self,
        default: Any = None,
        read: Optional[Callable[[Path], Any]] = None,
        refuse: bool = True,
        reshape: Optional[Callable[["list[Path]"], Any]] = None,
        **options: Any,
    ) -> Any:
        """What was saved, or `default` at a first start. `read` is given the folder with this rank's files; without it, what
        `save` wrote is read: with `torch.load(..., map_location="cpu", **options)`, or as JSON.

        Where that raises an exception on any rank, the checkpoint is refused, all ranks join again, and what is read is the one before, until
        one can be loaded or none is left (CheckpointError). All ranks call it. With a `broadcast` alone ranks cannot know of each other: the
        exception is raised then, and the program goes on from the one before when it is started again. `refuse=False`: exceptions are the program's
        own, and nothing is refused. MemoryError, errors of `gpuos.memory` but SaveError, and what is no Exception always are.

        `reshape`: in a session with `any_ranks`, what another number of ranks has saved is read by it: it is given the folders of all of them, by rank, and
        reads what this rank needs."""
        read = self._reader(read, reshape, options)
        while self.restored is not None:
            if not refuse:
                return self._read(self.restored.folder, read, options)
            value, error = None, None
            try:
                value = self._read(self.restored.folder, read, options)
            except MemoryError:
                raise
            except Exception as raised:
                # What a GPU or its driver did says nothing of the checkpoint.
                if not getattr(raised, "refuses", True):
                    raise
                error = raised
            if self._ranks.all(error is None):
                return value
            self._go_back(error)
        return default

    def _reader(self, read: Any, reshape: Any, options: dict) -> Any:
        if reshape is None and self._client.any_ranks:
            raise CheckpointError("any_ranks=True needs load(reshape=FUNCTION), which reads the files of another number of ranks")

        def either(folder: Path) -> Any:
            if self.restored is not None and self.restored.shared:
                return reshape(self.restored.folders())
            return self._read(folder, read, options)

        return read if reshape is None else either

    def _go_back(self, error: Optional[Exception]) -> None:
        """Refuses what was given, and joins again."""
        number = self.restored.number if self.restored is not None else 0
        why = "another rank could not load it" if error is None else f"{type(error).__name__}: {error}"
        self._client.refuse(why)
        if error is not None and not self._ranks.agree:
            raise CheckpointError(f"checkpoint {number} cannot be loaded and is refused: start the program again") from error
        _say(f"checkpoint {number} is refused, and the one before is asked for: {why}")
        try:
            self.restored = self._client.join()
        except CheckpointError as none:
            raise none from error

    @staticmethod
    def _read(folder: Path, read: Optional[Callable[[Path], Any]], options: dict) -> Any:
        if read is not None:
            return read(folder)
        if (folder / "state.pt").exists():
            import torch  # The checkpoint was written with it.

            return torch.load(folder / "state.pt", **{"map_location": "cpu", **options})
        return json.loads((folder / "state.json").read_text(encoding="utf-8"))

    @property
    def lost(self) -> Optional[Lost]:
        """The checkpoint that this rank has saved last, if it came to nothing, as `due`, `ask` or `save` has found; None: it, or a newer one, exists, or it is
        not known yet."""
        return self._client.lost

    def ask(self) -> bool:
        """Asks for a checkpoint as soon as all ranks can, as before something risky: `due` is true at one of the next steps. What comes
        sooner than the site's least-seconds after the last waits. It is enough that one rank calls it. False: it is asked for, and the one that was saved before
        came to nothing, which `lost` has."""
        if self._active:
            self._client.ask()
        return self._client.lost is None

    def due(self, step: Optional[int] = None) -> bool:
        """Whether a checkpoint is to be saved now. All ranks call it at the same place with the same `step`: rank 0 looks and
        tells the others, at each step that `look_every` divides."""
        self._request = None
        if not self._active or (step is not None and step % self._look_every):
            return False
        request = None
        if self._client.rank == 0:
            request = self._client.wanted()
        else:
            self._client.look_back()
        # Nodes hear of it at slightly different moments, and all ranks are told alike.
        lost = len(self._REASONS) if self._client.lost is not None else 0
        mine = (0, lost)
        if request is not None:
            reason = request.reason if request.reason in self._REASONS else "asked"
            mine = (request.number, self._REASONS.index(reason) + lost)
        number, code = self._ranks.first(mine)
        reason = code % len(self._REASONS)
        self._is_lost = code >= len(self._REASONS)
        if number > 0:
            self._request = Request(number, self._REASONS[reason])
        return number > 0

    @property
    def request(self) -> Optional[Request]:
        """What `due` has found."""
        return self._request

    def agrees(self, value: bool) -> bool:
        """Whether it is true on all ranks, as far as these can know of each other."""
        return self._ranks.all(value)

    def folder(self) -> Optional[Path]:
        """The folder for this rank's files of the checkpoint that is due; None where some rank has none. For what all ranks write together, before
        `save`."""
        if self._request is None:
            raise CheckpointError("no checkpoint is due: call folder() after due() was true")
        found: Optional[Path] = None
        try:
            found = self._client.folder(self._request.number)
        except (GivenUp, _TimedOut) as error:
            _say(str(error))
        return found if self.agrees(found is not None) else None

    def save(self, state: Any = None, write: Optional[Callable[[Path], None]] = None) -> bool:
        """Saves this rank's part of the checkpoint that is due, and goes on while it is stored. `write` is given the folder for
        the files; without it `state` is written with torch.save, if the program has imported torch, else as JSON.

        False: the checkpoint was given up meanwhile, or has no folder here, which standard error says; or it is saved, and the one before came to nothing, as
        `due` has found and `lost` has: the same on all ranks. After the last one of a job it waits for the commit, sets `ending`, and is False if it
        came to nothing."""
        if self._request is None:
            raise CheckpointError("no checkpoint is due: call save() after due() was true")
        number, reason = self._request
        self._request = None
        try:
            folder = self._client.folder(number)
            try:
                self._write(folder, state, write)
            except OSError:
                # The folder goes when a checkpoint is given up, which may be said later.
                if self._client.outcome(number).state == "pending" and folder.is_dir():
                    raise
            self._client.ready(number)
        except (GivenUp, _TimedOut) as error:
            _say(str(error))
            return False
        self.number = number
        if reason == "end":
            outcome = self._client.wait(number)
            self.ending = outcome.state == "committed"
            if not self.ending:
                _say(f"checkpoint {number}: {outcome.why}")
            return self.ending
        return not self._is_lost

    @staticmethod
    def _write(folder: Path, state: Any, write: Optional[Callable[[Path], None]]) -> None:
        torch = sys.modules.get("torch")
        if write is not None:
            write(folder)
        elif torch is not None:
            torch.save(state, folder / "state.pt")
        else:
            (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")


def session(
    look_every: int = 1,
    broadcast: Optional[Callable[[Any], Any]] = None,
    group: Any = None,
    rank: Optional[int] = None,
    size: Optional[int] = None,
    outlive: bool = False,
    any_ranks: bool = False,
    all_files: bool = False,
) -> Session:
    """A session, to be used in a `with` statement, which joins and waits for the answer.

    Ranks agree by torch.distributed, once its process group is initialised (by `group`, where that is given and has rank 0), or
    by `broadcast`, which gives what rank 0 was given, as `MPI.COMM_WORLD.bcast` of mpi4py does. A program of one process needs
    neither. `look_every`: of how many steps one looks; with NCCL each look waits for the GPU, so look seldom or name a group of
    gloo. `rank`, `size`: by default those of torch.distributed, else what `launched` says. `outlive`: in a job with checkpoints
    SIGTERM does not end the program before the session does. Slurm sends it to a job that it will preempt, which has its
    GraceTime to save then; programs that are started meanwhile ignore it, too, and scancel ends them all some seconds later. `any_ranks`: the program
    can begin from what another number of ranks has saved, which `load(reshape=)` then reads; `all_files`: that reads what any number has saved."""
    torch = None if broadcast is not None else _torch_distributed()
    if torch is not None and rank is None:
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    client = Checkpoints(rank, size, any_ranks=any_ranks, all_files=all_files)
    if broadcast is not None:
        ranks: _Ranks = _Broadcast(broadcast)
    elif torch is not None:
        ranks = _Distributed(torch, group)
    elif client.size == 1 or not client.available:
        ranks = _Ranks()
    else:
        raise CheckpointError(
            f"{client.size} ranks have to agree when they save: call torch.distributed.init_process_group() before, "
            "or give session() a broadcast, as MPI.COMM_WORLD.bcast of mpi4py is"
        )
    return Session(client, ranks, look_every, outlive)
