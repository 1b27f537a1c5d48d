# SPDX-License-Identifier: MIT OR Apache-2.0
"""torch.distributed.checkpoint (DCP) through the checkpoints of a job: a program goes on with another number of ranks.

    from gpuos import dcp

    with dcp.session(look_every=10) as ckpt:
        state = {"model": model.state_dict(), "step": torch.tensor(0)}
        dcp.load(ckpt, state)                        # False: there is no checkpoint
        while int(state["step"]) < STEPS:
            ...
            if ckpt.due(step):
                dcp.save(ckpt, state)
                if ckpt.ending:
                    break

Each rank writes its files into its own folder, rank 0 the metadata, and DCP reads what it needs from those of all ranks, however many these are:
gpuos has them on each node. It needs a torch whose DCP can be imported; torch.distributed has to be initialised before. With more than
one rank these have to share a process group, by which DCP and the session agree.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuos import checkpoint
from gpuos.checkpoint import CheckpointError, Session

__all__ = ["load", "save", "session", "view"]


def _dcp() -> Any:
    try:
        import torch.distributed.checkpoint as dcp

        return dcp
    except ImportError as error:
        raise CheckpointError(
            f"torch.distributed.checkpoint cannot be imported ({error}): it comes with torch 2; with an older one use gpuos.checkpoint, "
            "and session(any_ranks=True) if the program can put files of another number of ranks together itself"
        ) from error


def session(**options: Any) -> Session:
    """A session as that of gpuos.checkpoint, in which each rank can read the files of all that have saved."""
    _dcp()
    return checkpoint.session(all_files=True, **options)


def save(ckpt: Session, state: dict, **options: Any) -> bool:
    """Saves the checkpoint that is due. All ranks call it. `options` go to DCP, as `planner` and `process_group`. False: it was given up."""
    dcp = _dcp()
    folder = ckpt.folder()
    if folder is None:
        # Those that have one write nothing into it, and the checkpoint comes to nothing. DCP would wait for the others.
        return False
    write = getattr(dcp, "save", None) or dcp.save_state_dict
    return ckpt.save(write=lambda own: write(state, storage_writer=dcp.FileSystemWriter(str(own)), **options))


def load(ckpt: Session, state: dict, **options: Any) -> bool:
    """Reads what was saved into `state`, in place, as DCP does. All ranks call it. False: there is no checkpoint, and `state` is as it was. One that
    cannot be read is refused, and the one before is read."""
    dcp = _dcp()
    read = getattr(dcp, "load", None) or dcp.load_state_dict

    def all_of(folders: "list[Path]") -> bool:
        with view(folders) as seen:
            read(state, storage_reader=dcp.FileSystemReader(str(seen)), **options)
        return True

    return bool(ckpt.load(False, read=lambda folder: all_of([folder]), reshape=all_of))


@contextmanager
def view(folders: "list[Path]") -> Iterator[Path]:
    """One folder in which the files of all these are seen, as DCP expects them; nothing is copied."""
    with tempfile.TemporaryDirectory(prefix="gpuos-dcp-") as seen:
        for folder in folders:
            for file in sorted(folder.iterdir()):
                link = Path(seen) / file.name
                if link.is_symlink():
                    raise CheckpointError(f"{file} is in the folders of two ranks: they were not saved by DCP")
                link.symlink_to(file)
        yield Path(seen)
