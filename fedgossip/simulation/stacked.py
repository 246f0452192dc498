"""All peers' vectors as the rows of one array: no messages (their bytes are counted), no time, the same bits.

For researchers of topologies: a round is one call of the task, one of the algorithm, and one mixing of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, cast

import numpy as np

from fedgossip.algorithms.base import GossipAlgorithm, State, Step
from fedgossip.errors import TrainingError
from fedgossip.messages import CHECK_WORDS, Masked, Message, Model
from fedgossip.metrics import Meter, Network
from fedgossip.records import Row
from fedgossip.secure.neighbourhood import Grid
from fedgossip.task import Job, LocalTask, Update
from fedgossip.vectors import RowGroups, Vector, frozen, ordered_mix_rows
from fedgossip.wire import wire_bytes

if TYPE_CHECKING:
    from fedgossip.topology import Schedule


@dataclass
class Stack(Generic[State]):
    """Where a run stands between two rounds."""

    round: int
    state: State
    meters: list[Meter]


def first_stack(task: LocalTask, n: int, algorithm: GossipAlgorithm[State]) -> Stack[State]:
    """Return where a run begins."""
    initial = frozen(np.stack([task.initial(node) for node in range(n)]))
    return Stack(0, algorithm.start(initial), [Meter(node) for node in range(n)])


class Exchange(Protocol):
    """What becomes of all nodes' vectors in a round, and what a peer would send for it."""

    def mix(self, groups: RowGroups, vectors: Vector) -> Vector:
        """Return the mixed vectors, [n, d], frozen."""
        ...

    def message(self, round: int, schema: str, vectors: tuple[Vector, ...]) -> Message: ...


class Plain:
    """Models in clear."""

    def mix(self, groups: RowGroups, vectors: Vector) -> Vector:
        out = np.empty_like(vectors)
        ordered_mix_rows(groups, vectors, out)
        return frozen(out)

    def message(self, round: int, schema: str, vectors: tuple[Vector, ...]) -> Message:
        return Model(round, schema, vectors)


@dataclass(frozen=True)
class Private:
    """What the masks of private gossip leave of them, which is their integers."""

    grid: Grid

    def mix(self, groups: RowGroups, vectors: Vector) -> Vector:
        if (largest := self.grid.beyond(vectors)) is not None:
            text = f"a model with a weight of {largest:.6g}, beyond algorithm.bound = {self.grid.bound:g}"
            raise TrainingError(text, "Raise algorithm.bound; or lower train.lr, if the training has diverged.")
        out = np.empty_like(vectors)
        self.grid.moved_rows(groups, vectors, out)
        return frozen(out)

    def message(self, round: int, schema: str, vectors: tuple[Vector, ...]) -> Message:
        words = np.empty(vectors[0].size + CHECK_WORDS, np.uint32)
        return Masked(round, schema, (cast(Vector, words),))


PLAIN = Plain()


def run_stacked(
    task: LocalTask,
    schedule: Schedule,
    algorithm: GossipAlgorithm[State],
    rounds: int,
    record: Network,
    write: Callable[[Row], None],
    exchange: Exchange = PLAIN,
    *,
    stack: Stack[State] | None = None,
    between: Callable[[], None] = lambda: None,
) -> list[Vector]:
    """Run synchronous gossip of all nodes for `rounds`, or from `stack` on; return the final vectors, one per node.

    `between` is called between two rounds: `stack`, the record and the task's memory are all that the run is then.
    """
    n = schedule.n
    stack = stack or first_stack(task, n, algorithm)
    meters, state = stack.meters, stack.state
    for number in range(stack.round, rounds):
        between()
        mixing = schedule.mixing(number)
        model = algorithm.model(state)
        updates = task.train([Job(node, number, model[node]) for node in range(n)])
        step = _step(number, updates, model.dtype)
        state, outgoing = algorithm.trained(state, _stack([u.difference for u in updates]), step)
        seen = algorithm.seen(state, outgoing)
        groups = mixing.rows_by_degree()
        size = wire_bytes(exchange.message(number, task.schema, tuple(vectors[0] for vectors in outgoing)))
        mixed = tuple(exchange.mix(groups, vectors) for vectors in outgoing)
        state = algorithm.mixed(state, mixed)
        model = algorithm.model(state)
        for node in range(n):
            meters[node].train_ended(0, updates[node].metrics)
            meters[node].bytes_sent = size * len(mixing.targets(node))
            record.outgoing(node, number + 1, seen[node])
            for row in record.mixed(meters[node].mixed(number + 1, 0, 0, None), model[node]):
                write(row)
        stack.round, stack.state = number + 1, state
    return list(algorithm.model(state))


def _step(round: int, updates: Sequence[Update], kind: np.dtype[np.floating]) -> Step:
    """The step of all nodes at once."""
    one_by_one = [Step.of(round, update.metrics) for update in updates]
    rates, steps = (np.array([[getattr(one, name)] for one in one_by_one], kind) for name in ("rate", "steps"))
    return Step(round, rates, steps)


def _stack(differences: list[Vector | None]) -> Vector | None:
    there = [one for one in differences if one is not None]
    assert len(there) in (0, len(differences)), "a task changes every vector or none"
    return frozen(np.stack(there)) if there else None
