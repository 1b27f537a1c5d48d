# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which rank of a program this is, and how its ranks agree, for `gpuos.checkpoint` alone."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Optional

# Slurm's numbers of steps from here on are the batch script, the interactive shell and the like.
_SPECIAL_STEP = 0xFFFFFFF0


class Ranks:
    """How ranks agree. Alone, nothing is to do."""

    # Whether `all` knows of all ranks.
    agree = True

    def first(self, value: tuple[int, ...]) -> tuple[int, ...]:
        """The value of rank 0."""
        return value

    def all(self, value: bool) -> bool:
        """Whether it is true on all ranks, as far as that can be known."""
        return value


class Broadcast(Ranks):
    agree = False

    def __init__(self, broadcast: Callable[[Any], Any]):
        self._broadcast = broadcast

    def first(self, value: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._broadcast(value))


class Distributed(Ranks):
    """torch.distributed. NCCL takes tensors of the current GPU alone."""

    def __init__(self, torch: Any, group: Any):
        self._torch, self._group = torch, group
        on_gpu = str(torch.distributed.get_backend(group)) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def _tensor(self, value: tuple[int, ...]) -> Any:
        return self._torch.tensor(list(value), dtype=self._torch.int64, device=self._device)

    def first(self, value: tuple[int, ...]) -> tuple[int, ...]:
        tensor = self._tensor(value)
        self._torch.distributed.broadcast(tensor, src=0, group=self._group)
        return tuple(tensor.tolist())

    def all(self, value: bool) -> bool:
        tensor = self._tensor((int(value),))
        distributed = self._torch.distributed
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MIN, group=self._group)
        return bool(tensor.tolist()[0])


def torch_distributed() -> Any:
    """torch, if the program has imported it and started its process group."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    return torch if distributed is not None and distributed.is_available() and distributed.is_initialized() else None


def number(text: Optional[str]) -> Optional[int]:
    """A decimal number without sign and leading zeros."""
    plain = text is not None and text.isascii() and text.isdigit() and len(text) <= 19
    return int(text) if plain and (text == "0" or text[0] != "0") else None


def launched(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank and number of ranks, as the launcher has set them: torchrun, Open MPI, PMI, `RANK` and `WORLD_SIZE`, or Slurm for
    the tasks of a step; the first that has both. (0, 1) where there is none, as in a batch script."""
    torch = ("RANK", "WORLD_SIZE")
    # torchrun first when it has started this process: srun may have started torchrun, and its variables are inherited.
    pairs = [torch] if "TORCHELASTIC_RUN_ID" in environ else []
    pairs += [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), torch]
    step = number(environ.get("SLURM_STEP_ID"))
    if step is not None and step < _SPECIAL_STEP:
        pairs.append(("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
    for names in pairs:
        rank, size = (number(environ.get(name)) for name in names)
        if rank is not None and size is not None:
            return rank, size
    return 0, 1
