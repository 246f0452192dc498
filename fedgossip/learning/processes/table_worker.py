"""A process that steps on a table in shared memory without waiting for the others.

A table of a sparse model (`linear/sparse_steps`) needs only numpy; a table of words (`linear/words`) imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy.typing as npt

from fedgossip.learning.linear.sparse_steps import SparseBatches, problem_of, step_on
from fedgossip.learning.linear.word_tables import WORDS, word_table
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

Boards = Mapping[str, SharedArrays]
Shared = Mapping[str, npt.NDArray[Any]]
Steps = Callable[[TrainOrder, Shared], Iterator[tuple[float, int]]]
"""Step on each batch of this process; yield its loss and the number of counted elements."""


class TableWorker:
    """A process that takes every P-th batch of a job, and writes only the rows of that batch."""

    def __init__(self, setup: Setup, progressed: LifeSigns, boards: Boards) -> None:
        self._signs, self._found = progressed, boards["found"]
        self._steps = _steps_on_words(setup, boards) if setup.kind == WORDS else _steps_on_features(setup)

    def answer(self, order: Message) -> Message:
        """Step, and count each written element with the same race as the write."""
        assert isinstance(order, TrainOrder)
        total, steps, written = 0.0, 0, 0
        for loss, counted in self._steps(order, self._found.views(order.found)):
            total, steps, written = total + loss, steps + 1, written + counted
            self._signs.progressed()
        return TrainReply(total / steps if steps else 0.0, 0, steps, written)


def _steps_on_features(setup: Setup) -> Steps:
    problem = problem_of(setup.source, setup.seed)
    batches = SparseBatches(problem, setup.train)

    def steps(order: TrainOrder, shared: Shared) -> Iterator[tuple[float, int]]:
        line, counter = shared[LINE], shared.get(COUNTER)
        for batch in batches.iterate(order.node, order.round, setup.rank, setup.size):
            loss = step_on(line, batch, problem.value, order.lr)
            if counter is not None:
                counter[batch.keys] += 1
            yield loss, 0 if counter is None else batch.keys.size

    return steps


def _steps_on_words(setup: Setup, boards: Boards) -> Steps:
    import torch

    from fedgossip.learning.linear.words import step_on

    sizes = word_table(setup.source)
    assert sizes is not None
    torch.set_num_threads(setup.train.threads)
    views = boards["examples"].views(setup.examples)
    words, labels = views["words"], torch.from_numpy(views["labels"].copy())

    def steps(order: TrainOrder, shared: Shared) -> Iterator[tuple[float, int]]:
        given, width = boards["given"].views(order.given), sizes.width
        rows, counter = shared[LINE].reshape(-1, width), shared.get(COUNTER)
        mine = slice(setup.rank, None, setup.size)
        for row, count in zip(given["indices"][mine], given["counts"][mine], strict=True):
            places = row[:count]
            loss, keys = step_on(rows, sizes, words[places], labels[places], order.lr)
            if counter is not None:
                counter.reshape(-1, width)[keys] += 1
            yield loss, 0 if counter is None else keys.size * width

    return steps


def member_of(setup: Message, channel: Channel, boards: Boards) -> OrderTaker:
    """Return the process that `setup` requests."""
    assert isinstance(setup, Setup)
    return TableWorker(setup, LifeSigns(channel), boards)


if __name__ == "__main__":
    serve(member_of)
