# SPDX-License-Identifier: MIT OR Apache-2.0
"""How the ranks of a program agree, for `gpuos.checkpoint` alone."""

import sys
from collections.abc import Callable
from typing import Any


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
