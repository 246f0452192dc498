"""One of the processes that step on a table in shared memory without waiting for each other: numpy alone, no torch."""

from __future__ import annotations

from collections.abc import Mapping

from fedgossip.learning.linear.sparse_steps import SparseBatches, problem_of, step_on
from fedgossip.learning.processes.ipc import (
    COUNTER,
    LINE,
    Channel,
    Message,
    Setup,
    SharedArrays,
    TrainOrder,
    TrainReply,
)
from fedgossip.learning.processes.processes import LifeSigns, OrderTaker, serve


class SparseWorker:
    """A process that takes every P-th batch of a job, and writes the rows of that batch alone."""

    def __init__(self, setup: Setup, progressed: LifeSigns, boards: Mapping[str, SharedArrays]) -> None:
        self._rank, self._size, self._signs, self._found = setup.rank, setup.size, progressed, boards["found"]
        self._problem = problem_of(setup.source, setup.seed)
        self._batches = SparseBatches(self._problem, setup.train)

    def answer(self, order: Message) -> Message:
        """Step, and count each written row with the same race as the write."""
        assert isinstance(order, TrainOrder)
        shared = self._found.views(order.found)
        line, counter, value = shared[LINE], shared.get(COUNTER), self._problem.value
        loss, steps, written = 0.0, 0, 0
        for batch in self._batches.of(order.node, order.round, self._rank, self._size):
            loss += step_on(line, batch, value, order.lr)
            steps += 1
            if counter is not None:
                counter[batch.keys] += 1
                written += batch.keys.size
            self._signs.progressed()
        return TrainReply(loss / steps if steps else 0.0, 0, steps, written)


def member_of(setup: Message, channel: Channel, boards: Mapping[str, SharedArrays]) -> OrderTaker:
    """Return the process that `setup` asks for."""
    assert isinstance(setup, Setup)
    return SparseWorker(setup, LifeSigns(channel), boards)


if __name__ == "__main__":
    serve(member_of)
