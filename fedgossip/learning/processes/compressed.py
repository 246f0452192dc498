"""Compressed gradients among processes with the whole model each: the hooks of torch's DDP.

    powersgd:RANK   each gradient is a matrix M; P = M Q and Q = M' P are added up in place of it, RANK (rows + columns)
                    numbers each step; the error is added to the next step's gradient
    bf16            two bytes a number in place of four, over NCCL

A matrix for which this would save less than half is sent uncompressed, and so are biases.  A job begins without an
error and with a Q of its own name, so it ends with the same bits whatever these processes did before; its first two
steps are not compressed, as torch requires.

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
"""Number of a job's first steps without compression: torch rebuilds its buckets after the first, and requires two."""

LEAST_SAVING = 2.0
"""A matrix is compressed where that divides its numbers by more than this."""


def compress(module: DistributedDataParallel, settings: TrainSettings, seed: int) -> Callable[[tuple[int, int]], None]:
    """Install compression of the processes' gradients; return the function to call at a job's start (node, round)."""
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
