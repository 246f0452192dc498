"""Gradients among processes that hold the whole model each, compressed on the way: the hooks of torch's DDP.

    powersgd:RANK   each gradient is a matrix M; P = M Q and Q = M' P are added up in place of it, RANK (rows + columns)
                    numbers each step; what that leaves out is added to the next step's gradient
    bf16            two bytes a number in place of four, over NCCL

A matrix of which this would save less than half goes as it is, and so do biases.  A job begins with nothing left out
and with a Q of its own name, so it ends with the same bits whatever these processes did before; its first two steps are
not compressed, as torch asks for.

Source: Vogels et al., PowerSGD: practical low-rank gradient compression for distributed optimization, NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from fedgossip.base import seeds
from fedgossip.learning.settings import BF16, TrainSettings, rank_of

WHOLE_STEPS = 2
"""Steps of a job whose gradients are not compressed: torch lays its buckets anew after the first, and asks for two."""

LEAST_SAVING = 2.0
"""A matrix is compressed where that divides its numbers by more than this."""


def compress(module: DistributedDataParallel, settings: TrainSettings, seed: int) -> Callable[[tuple[int, int]], None]:
    """Let the processes' gradients be compressed; return what is to be called when a job (node, round) begins."""
    if settings.compression == BF16:
        module.register_comm_hook(distributed.group.WORLD, default_hooks.bf16_compress_hook)
    if (rank := rank_of(settings.compression)) is None:
        return lambda _: None
    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=WHOLE_STEPS,
        min_compression_rate=LEAST_SAVING,
    )
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def begin(job: tuple[int, int]) -> None:
        for memory in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            memory.clear()
        state.rng = np.random.RandomState(seeds.integer(seed, "compression", *job) % (1 << 32))
        state.iter = 0

    return begin
