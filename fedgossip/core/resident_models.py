"""Interface of models of all simulated nodes that stay on the training device between rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedgossip.base.vectors import RowGroups, Vector, Vectors, consensus_distance
from fedgossip.core.task import LocalTask

ROUNDINGS = 32
"""Smallest measured disagreement, in roundings of the vectors' size; see `Network.measured_contraction`."""


class Disagreement(NamedTuple):
    """Disagreement of the models in a round, as `vectors.consensus_distance`."""

    after: float
    """After mixing."""
    before: float | None = None
    """After training, before mixing; None, as below, where unknown."""
    spread: float | None = None
    """Disagreement of the training updates."""
    floor: float = 0.0
    """Distances below it are rounding alone: ROUNDINGS of the root mean square of the norms before mixing."""


def disagreement(before: Vectors | None, outgoing: Vectors | None, after: Vectors) -> Disagreement:
    """Return the disagreement of a round from vectors of the same peers; None: unknown."""
    distance = consensus_distance(after)
    if outgoing is None:
        return Disagreement(distance)
    spread = None if before is None else consensus_distance(outgoing, before)
    floor = ROUNDINGS * float(np.finfo(outgoing[0].dtype).eps) * _size(outgoing)
    return Disagreement(distance, consensus_distance(outgoing), spread, floor)


def _size(vectors: Vectors) -> float:
    """Return the root mean square of the vectors' norms."""
    if isinstance(vectors, np.ndarray):  # [n, d]
        return math.sqrt(float(np.einsum("ij,ij->i", vectors, vectors).sum(dtype=np.float64)) / len(vectors))
    return math.sqrt(sum(float(np.vdot(vector, vector)) for vector in vectors) / len(vectors))


class ResidentModels(Protocol):
    """All nodes' models on the device.  Only a watched round reads back from it."""

    @property
    def untold(self) -> int:
        """Maximum number of rounds between two calls of `losses`."""
        ...

    def load(self, models: Vector) -> None:
        """Begin from models [n, d]."""
        ...

    def advance(self, round: int, phase: int | None, groups: RowGroups, *, watched: bool) -> Disagreement | None:
        """Train all nodes in `round`, mix their models by `groups`; return their disagreement where `watched`.

        `phase`: rounds of the same phase have the same groups; None: a graph used once.  Raises TrainingError where the
        device fails, or has too little memory for one node at a time.
        """
        ...

    def losses(self) -> Sequence[npt.NDArray[np.float64]]:
        """Return the losses [n] of every round since the last call.

        They end at the first incomplete or non-finite round: the next call raises TrainingError, as `train` does.
        """
        ...

    def models(self) -> Vector:
        """Return the current models [n, d], frozen, in host memory."""
        ...


@runtime_checkable
class ResidentTask(LocalTask, Protocol):
    """A task that can keep its nodes' models on its device."""

    def resident_models(self, n: int, note: Callable[[str, str], None]) -> ResidentModels | None:
        """Return the models of nodes 0 to n - 1; None where they do not stay there, or do not fit.

        `note` is called with an event's name and a text, now or in a later round, where the task falls back.
        """
        ...
