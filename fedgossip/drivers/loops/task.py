"""A user's loops as a task: a training is answered when the loop has called `step()` often enough.

    order      the loop's own weights y,  the machine's vector v,  the loop's weights at its start b
    answer     update = y - b;  the machine adds it to v: `expected`, bit for bit
    next       the machine's new vector w:  w = expected: nothing was mixed in, the loop's weights stay as they are;
               else a waiting loop takes w, and one that has trained on adds w - expected

So a loop without exchanges keeps its bits: v + (y - b) may be rounded otherwise than y.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedgossip.base.errors import ConfigError, FedgossipError, TrainingError
from fedgossip.base.vectors import Vector, add, subtract
from fedgossip.core.machine import NodeId
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.task import Job, Segment, Update
from fedgossip.drivers.loops.handoff import (
    Dismissed,
    Learned,
    Measure,
    Measured,
    Meeting,
    Over,
    Raised,
    Released,
    TrainFrom,
)


class LoopTask:
    """The loops of this process; `first[i]` are the initial weights of loop i.  A LocalTask.

    `meetings[i]` takes the orders to loop i.  `like`: properties that the models of others must share with these.
    """

    def __init__(
        self,
        meetings: Mapping[NodeId, Meeting],
        first: Mapping[NodeId, Vector],
        segments: Sequence[Segment],
        schema: str,
        like: Likeness,
    ) -> None:
        self.meetings, self.first = meetings, dict(first)
        self.segments, self.schema, self._like = tuple(segments), schema, like
        one = next(iter(first.values()))
        self.length, self.dtype = one.size, one.dtype
        self._expected: dict[NodeId, Vector] = dict(first)

    def initial(self, node: NodeId) -> Vector:
        """The weights that the loop of `node` begins with; a coordinator begins with those of its first client."""
        return self.first.get(node) if node in self.first else self.first[min(self.first)]  # type: ignore[return-value]

    def likeness(self) -> Likeness:
        return self._like

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._train(job) for job in jobs]

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Measure in the first present loop: all measure alike, on whatever examples they choose."""
        return [self._measured(vector) for vector in vectors]

    def dismiss(self) -> None:
        for meeting in self.meetings.values():
            meeting.dismiss()

    def released(self, node: NodeId, vector: Vector | None) -> Released:
        """Return the final order to the loop of `node`, whose machine has finished with `vector`."""
        return Released(vector, None if vector is None else self._change(node, vector))

    def _change(self, node: NodeId, vector: Vector) -> Vector | None:
        expected = self._expected.get(node)
        if expected is None:
            return vector
        return None if _same_bits(expected, vector) else subtract(vector, expected)

    def begins_anew(self, node: NodeId) -> None:
        """Note that the loop of `node` has lost its state."""
        self._expected.pop(node, None)

    def _train(self, job: Job) -> Update:
        change = self._change(job.node, job.vector)
        match self.meetings[job.node].ask(TrainFrom(job.round, job.vector, change, job.terms)):
            case Learned() as learned:
                return self._update(job, learned)
            case Raised(error):
                raise _training_error(error, job.node, job.round)
            case _:  # it has ended, or its answer was cancelled
                return Update(None, 0, over=True)

    def _update(self, job: Job, learned: Learned) -> Update:
        changed = not _same_bits(learned.held, learned.began)
        difference = subtract(learned.held, learned.began) if changed else None
        self._expected[job.node] = add(job.vector, difference) if difference is not None else job.vector
        return Update(difference, learned.examples, learned.metrics, learned.logged)

    def _measured(self, vector: Vector) -> Mapping[str, float]:
        for node in sorted(self.meetings):
            match self.meetings[node].ask(Measure(vector)):
                case Measured(metrics):
                    return metrics
                case Raised(error):
                    raise _training_error(error, node, None)
                case Dismissed() | Over() | Learned():
                    continue
        return {}


def _same_bits(one: Vector, other: Vector) -> bool:
    return one is other or np.array_equal(one.view(np.uint8), other.view(np.uint8))


def _training_error(error: BaseException, node: NodeId, round: int | None) -> FedgossipError:
    """Return the error for a loop that raised: its own error propagates in the loop itself."""
    where = f"node {node}" + ("" if round is None else f", round {round}")
    if isinstance(error, FedgossipError):
        return error
    failure = TrainingError(f"{where}: the loop raised {type(error).__name__}: {error}", "The fault is in the script.")
    failure.__cause__ = error
    return failure


class DescribedTask:
    """A loop's model as described by another process: it can be averaged and saved here, but not trained.

    `measure` requests the metrics of a vector from a process that can measure.  A LocalTask.
    """

    def __init__(self, first: Vector, segments: Sequence[Segment], schema: str, like: Likeness) -> None:
        self._first, self.segments, self.schema, self._like = first, tuple(segments), schema, like
        self.length, self.dtype = first.size, first.dtype

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return self._first

    def likeness(self) -> Likeness:
        return self._like

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:  # noqa: ARG002
        raise ConfigError("a loop's model is trained by its loop alone", "Start it: fedgossip launch ... train.py")

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{} for _ in vectors]


def without_first(like: Likeness) -> Likeness:
    """Return the properties that clients of a coordinator must share: it sends them the first model."""
    return replace(like, probe=())
