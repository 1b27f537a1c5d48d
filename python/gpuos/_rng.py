# SPDX-License-Identifier: MIT OR Apache-2.0
"""Random numbers of a program, for `gpuos.checkpoint` alone, which gives these functions on."""

import random
import sys
from collections.abc import Mapping
from typing import Any


def rng_state() -> dict:
    """The state of the random numbers of Python, and of numpy, torch and its GPUs where the program has imported them, to be
    part of what is saved. Without torch it can be JSON."""
    state: dict = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), *rest]
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Sets what `rng_state` gave. What the program has not imported is left out."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in state:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), *rest))
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])
