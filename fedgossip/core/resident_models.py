"""Models of all simulated nodes that stay where they are trained from round to round: what a run asks of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedgossip.base.vectors import RowGroups, Vector, Vectors, consensus_distance
from fedgossip.core.task import LocalTask

ROUNDINGS = 32
"""Disagreement is measured down to so many roundings of the vectors' size; see `Network.measured_contraction`."""


class Disagreement(NamedTuple):
    """How far apart models were in a round: `vectors.consensus_distance` of what they were."""

    after: float
    """When they had been mixed."""
    before: float | None = None
    """When they had been trained; None, as below, where that is not known."""
    spread: float | None = None
    """Of what training changed."""
    floor: float = 0.0
    """Below it there are roundings alone: ROUNDINGS of the root mean square of the norms before mixing."""


def disagreement(before: Vectors | None, outgoing: Vectors | None, after: Vectors) -> Disagreement:
    """Return the disagreement of a round from vectors of the same peers each; None: one is not known."""
    distance = consensus_distance(after)
    if outgoing is None:
        return Disagreement(distance)
    spread = None if before is None else consensus_distance(outgoing, before)
    floor = ROUNDINGS * float(np.finfo(outgoing[0].dtype).eps) * _size(outgoing)
    return Disagreement(distance, consensus_distance(outgoing), spread, floor)


def _size(vectors: Vectors) -> float:
    """The root mean square of the vectors' norms."""
    if isinstance(vectors, np.ndarray):  # [n, d]
        return math.sqrt(float(np.einsum("ij,ij->i", vectors, vectors).sum(dtype=np.float64)) / len(vectors))
    return math.sqrt(sum(float(np.vdot(vector, vector)) for vector in vectors) / len(vectors))


class ResidentModels(Protocol):
    """All nodes' models on the device.  A round reads nothing of it back, but where it is watched."""

    @property
    def untold(self) -> int:
        """Rounds whose losses may wait until they are asked for."""
        ...

    def load(self, models: Vector) -> None:
        """Begin from models [n, d]."""
        ...

    def advance(self, round: int, phase: int | None, groups: RowGroups, *, watched: bool) -> Disagreement | None:
        """Train all nodes in `round`, mix their models by `groups`; return how far apart they were, where `watched`.

        `phase`: rounds of the same phase have the same groups; None: of a graph that comes once.
        Raises TrainingError where the device fails, or has too little memory for one node at a time.
        """
        ...

    def losses(self) -> Sequence[npt.NDArray[np.float64]]:
        """Return the losses [n] of every round since the last call.

        The first that is not whole and finite ends them: the call after it raises TrainingError, as `train` does.
        """
        ...

    def models(self) -> Vector:
        """Return the models [n, d] as they are now, frozen, in host memory."""
        ...


@runtime_checkable
class ResidentTask(LocalTask, Protocol):
    """A task whose nodes' models may stay on its device."""

    def resident_models(self, n: int, note: Callable[[str, str], None]) -> ResidentModels | None:
        """Return the models of nodes 0 to n - 1; None where they do not stay there, or do not fit.

        `note` is told an event's name and a text, now or in a later round, where it goes on otherwise than meant.
        """
        ...
