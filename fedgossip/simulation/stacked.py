"""All peers' vectors as the rows of one array: no messages (their bytes are counted), no time, the same bits.

For researchers of topologies: a round is one call of the task, one of the algorithm, and one mixing of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import numpy as np

from fedgossip.algorithms.base import GossipAlgorithm, State
from fedgossip.messages import Model
from fedgossip.metrics import Meter, Network, Row
from fedgossip.task import Job, LocalTask
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


def run_stacked(
    task: LocalTask,
    schedule: Schedule,
    algorithm: GossipAlgorithm[State],
    rounds: int,
    record: Network,
    write: Callable[[Row], None],
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
        outgoing = algorithm.outgoing(state, _stack([u.difference for u in updates]))
        groups = mixing.rows_by_degree()
        size = wire_bytes(Model(number, task.schema, tuple(vectors[0] for vectors in outgoing)))
        mixed = tuple(_mix(groups, vectors) for vectors in outgoing)
        state = algorithm.incoming(state, mixed)
        model = algorithm.model(state)
        for node in range(n):
            meters[node].train_ended(0, updates[node].metrics)
            meters[node].bytes_sent = size * len(mixing.targets(node))
            record.outgoing(node, number + 1, outgoing[0][node])
            for row in record.mixed(meters[node].mixed(number + 1, 0, 0, None), model[node]):
                write(row)
        stack.round, stack.state = number + 1, state
    return list(algorithm.model(state))


def _stack(differences: list[Vector | None]) -> Vector | None:
    there = [one for one in differences if one is not None]
    assert len(there) in (0, len(differences)), "a task changes every vector or none"
    return frozen(np.stack(there)) if there else None


def _mix(groups: RowGroups, vectors: Vector) -> Vector:
    out = np.empty_like(vectors)
    ordered_mix_rows(groups, vectors, out)
    return frozen(out)
