"""Process-wide state: random states, torch's threads, a model's mode; saved and restored."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgossip.base import kernels, seeds


@dataclass(frozen=True, eq=False)
class GlobalState:
    """The random states of Python, numpy and torch, and torch's threads and default type."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...]
    threads: int
    dtype: torch.dtype

    @classmethod
    def now(cls) -> GlobalState:
        """Return this process's state."""
        cuda = tuple(torch.cuda.get_rng_state_all()) if _gpus() else ()
        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        numpy = np.random.get_state()  # noqa: NPY002 the user's code may use it
        return cls(random.getstate(), numpy, torch.get_rng_state(), cuda, threads, dtype)

    @classmethod
    def make_initial(cls, seed: int, node: int) -> GlobalState:
        """Return the initial state of a new process; random states, including torch's, from the seed and the node."""
        python = random.Random(seeds.integer(seed, "python", node)).getstate()
        numpy = np.random.RandomState(seeds.integer(seed, "numpy", node) % 2**32).get_state()
        own = seeds.integer(seed, "torch", node)
        cpu = torch.Generator().manual_seed(own).get_state()
        cuda = tuple(torch.Generator("cuda").manual_seed(own).get_state() for _ in range(_gpus()))
        return cls(python, numpy, cpu, cuda, kernels.threads_of_loops(), torch.float32)

    def put(self) -> None:
        """Apply this state to the process."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        if torch.get_default_dtype() != self.dtype:
            torch.set_default_dtype(self.dtype)


def _gpus() -> int:
    """Number of GPUs that this process uses: only devices initialised by torch have random states."""
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.device_count() if used else 0


@contextlib.contextmanager
def isolate(module: nn.Module) -> Iterator[None]:
    """Restore random states and the modes of all parts of `module` at the end of the context."""
    before, modes = GlobalState.now(), [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        before.put()
        for part, mode in modes:
            part.training = mode
