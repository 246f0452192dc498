"""A paradigm, and the setting of its predicted rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgossip.lab.costs.base import Cost, EqualLinks
from fedgossip.lab.costs.methods import WHOLE, Buckets
from fedgossip.lab.costs.times import TrainingTimes
from fedgossip.topology.schedules.schedules import Schedule


@dataclass(frozen=True)
class Setting:
    """The setting of a predicted round: `size` bytes of a model; the graph where there is one."""

    size: int
    links: EqualLinks
    times: TrainingTimes
    schedule: Schedule | None = None
    parts: tuple[float, ...] = (1.0,)
    """Share of the model on each server."""
    buckets: Buckets = WHOLE
    element: int = 4
    """Bytes of one of its elements."""

    @property
    def workers(self) -> int:
        return len(self.times.known)

    @property
    def training(self) -> float:
        return self.times.mean


@dataclass(frozen=True)
class Paradigm:
    """One way to train in parallel."""

    section: str
    """Its section of the file, which is its own kind of run."""
    sets: Mapping[str, Mapping[str, Any]]
    """Keys that it sets in sections of the file, by section."""
    cost: Callable[[Setting], Cost]
    formula: Callable[[Setting], float | None]
    """The textbook's seconds of a round beside its training; None without a closed form."""
    words: str
    """Description for the user."""
    every_step: bool = False
    """Whether a round is one batch of each worker instead of a local training."""
    extra: int = 0
    """Number of elements sent beside a model."""
    one_participant: bool = False
    """Whether the workers are processes of one participant, which has all the examples."""
    ignores: tuple[str, ...] = ()
    """Keys of its section that only others use."""
