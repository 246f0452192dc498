"""Several processes that train one model, by DDP or FSDP's `fully_shard`: collective actions ordered by rank 0."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import distributed, nn

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Terms
from fedgossip.learning.own_loop.parameters import Exchanged
from fedgossip.learning.own_loop.terms import GradientTerms

WORDS = 6
"""Length of a message: an order and five numbers."""


class RankOrder(enum.IntEnum):
    """The orders of rank 0 to the others."""

    GO = 0
    READ = 1
    WRITE = 2
    ADD = 3
    PROJECT = 4
    TERMS = 5
    MEASURE = 6


def in_ranks() -> bool:
    """Whether several processes train one model here."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def is_first() -> bool:
    """Whether this is rank 0."""
    return distributed.get_rank() == 0


def check_supported(model: nn.Module) -> None:
    """Raise ConfigError for a model in parts that cannot be read as a whole."""
    for part in model.modules():
        if type(part).__name__ == "FullyShardedDataParallel":
            advice = "Use torch.distributed.fsdp.fully_shard (FSDP2), or DistributedDataParallel."
            raise ConfigError("join: FullyShardedDataParallel hides the shapes of its parameters", advice)


class RankLink:
    """The messages of rank 0 to the others: numbers, and vectors of [length]."""

    def __init__(self, length: int, dtype: np.dtype[Any]) -> None:
        on_gpu = "nccl" in distributed.get_backend() and "gloo" not in distributed.get_backend()
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self._empty = np.empty(length, dtype)
        self.size = distributed.get_world_size()

    def tell(self, order: RankOrder, *numbers: int) -> None:
        words = [int(order), *numbers] + [0] * (WORDS - 1 - len(numbers))
        distributed.broadcast(torch.tensor(words, dtype=torch.int64, device=self._device), 0)

    def told(self) -> tuple[RankOrder, list[int]]:
        words = torch.empty(WORDS, dtype=torch.int64, device=self._device)
        distributed.broadcast(words, 0)
        order, *numbers = words.tolist()
        return RankOrder(order), numbers

    def give(self, vector: Vector) -> None:
        distributed.broadcast(torch.from_numpy(vector.copy()).to(self._device), 0)

    def given(self) -> Vector:
        values = torch.from_numpy(self._empty.copy()).to(self._device)
        distributed.broadcast(values, 0)
        return frozen(values.cpu().numpy())


def obey(order: RankOrder, numbers: Sequence[int], link: RankLink, exchanged: Exchanged, terms: GradientTerms) -> None:
    """Repeat, at another rank, rank 0's actions except measuring."""
    match order:
        case RankOrder.READ:
            exchanged.read()
        case RankOrder.WRITE:
            exchanged.write(link.given())
        case RankOrder.ADD:
            exchanged.add(link.given())
        case RankOrder.PROJECT:
            exchanged.frozen_projections()
        case RankOrder.TERMS:
            given = link.given()
            pull = float(np.int64(numbers[0]).view(np.float64))
            momentum = float(np.int64(numbers[2]).view(np.float64))
            counted = None if math.isnan(momentum) else momentum
            terms.use(Terms(pull, link.given() if numbers[1] else None, counted), given)


class RankedExchange(Exchanged):
    """The exchange of rank 0: all ranks repeat its reads and writes."""

    def __init__(self, module: nn.Module, only: Sequence[str] = (), buffers: str = "average") -> None:
        super().__init__(module, only, buffers)
        self.link = RankLink(self.layout.length, self.layout.dtype)

    def read(self) -> Vector:
        self.link.tell(RankOrder.READ)
        return super().read()

    def write(self, vector: Vector) -> None:
        self.link.tell(RankOrder.WRITE)
        self.link.give(vector)
        super().write(vector)

    def add(self, difference: Vector) -> None:
        self.link.tell(RankOrder.ADD)
        self.link.give(difference)
        super().add(difference)

    def frozen_projections(self) -> tuple[float, ...]:
        self.link.tell(RankOrder.PROJECT)
        return super().frozen_projections()


class RankedTerms(GradientTerms):
    """The terms of rank 0, which all ranks use."""

    def __init__(self, exchanged: RankedExchange, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__(exchanged, optimizers)
        self._link, self._used = exchanged.link, False

    def use(self, terms: Terms | None, given: Vector) -> None:
        before, self._used = self._used, terms is not None and (terms.active or bool(terms.momentum))
        if not (before or self._used):
            return
        correction = terms.correction if terms else None
        pull = np.float64(terms.pull if terms else 0.0).view(np.int64)
        counted = np.float64(math.nan if terms is None or terms.momentum is None else terms.momentum).view(np.int64)
        self._link.tell(RankOrder.TERMS, int(pull), int(correction is not None), int(counted))
        self._link.give(given)
        if correction is not None:
            self._link.give(correction)
        super().use(terms, given)
