"""What a peer learns, as the machines' drivers see it: a source of first vectors, updates and evaluations.

`fedgossip.learning` implements this with torch and, for problems with a known answer, with numpy alone; anything
else with these methods serves as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedgossip.likeness import Likeness
from fedgossip.machine import NodeId, Terms
from fedgossip.vectors import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Train `node` in `round` from `vector`.  (node, round) names the random stream, so no job depends on another.

    `terms`, `tested`: of a federated client; see `machine.Train`.
    """

    node: NodeId
    round: int
    vector: Vector
    terms: Terms | None = None
    tested: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """`difference` is trained minus given, [d], or None where nothing changed; `metrics` holds "loss", but where
    training is private: then no loss is known."""

    difference: Vector | None
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class LocalTask(Protocol):
    """One task object serves every peer of a process: one in a real peer, thousands in the simulator."""

    @property
    def length(self) -> int:
        """d, the number of elements of a vector."""
        ...

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """float32, or float64 for numerical experiments."""
        ...

    @property
    def schema(self) -> str:
        """Hash of the layout (names, shapes, type): equal schemas mean that averaging makes sense."""
        ...

    def initial(self, node: NodeId) -> Vector:
        """The frozen vector [d] that `node` starts from."""
        ...

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """One update per job, in order; never changes `job.vector`.

        The bits of an update depend on its job alone, never on which jobs share the call: the simulator trains
        many peers in one call, a real peer trains one, and their digests must be equal.
        Raises TrainingError, naming the node, where the loss or the update is not finite.
        """
        ...

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Metrics on the common test set, one mapping per vector: "loss" and, where it has a meaning, "accuracy"."""
        ...


def model_likeness(task: LocalTask) -> Likeness:
    """Return what others' tasks must have in common with this one; nothing for a task that does not say.

    One says it by a method `likeness`.
    """
    said = getattr(task, "likeness", None)
    found: Likeness = said() if said else Likeness()
    return found
