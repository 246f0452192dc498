"""One of the processes that step on a table of words in shared memory without waiting for each other; see `engine`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedgossip.learning.linear.word_tables import word_table
from fedgossip.learning.linear.words import step_on
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


class WordsWorker:
    """A process that takes every P-th batch of a job, and writes the rows of that batch alone."""

    def __init__(self, setup: Setup, progressed: LifeSigns, boards: Mapping[str, SharedArrays]) -> None:
        sizes = word_table(setup.source)
        assert sizes is not None
        torch.set_num_threads(setup.train.threads)
        self._rank, self._size, self._signs = setup.rank, setup.size, progressed
        self._boards, self._sizes = boards, sizes
        views = boards["examples"].views(setup.examples)
        self._words, self._labels = views["words"], torch.from_numpy(views["labels"].copy())

    def answer(self, order: Message) -> Message:
        """Step, and count each written element with the same race as the write."""
        assert isinstance(order, TrainOrder)
        shared, width = self._boards["found"].views(order.found), self._sizes.width
        given = self._boards["given"].views(order.given)
        rows, counter = shared[LINE].reshape(-1, width), shared.get(COUNTER)
        loss, steps, written = 0.0, 0, 0
        mine = slice(self._rank, None, self._size)
        for row, count in zip(given["indices"][mine], given["counts"][mine], strict=True):
            places = row[:count]
            found, keys = step_on(rows, self._sizes, self._words[places], self._labels[places], order.lr)
            loss, steps = loss + found, steps + 1
            if counter is not None:
                counter.reshape(-1, width)[keys] += 1
                written += keys.size * width
            self._signs.progressed()
        return TrainReply(loss / steps if steps else 0.0, 0, steps, written)


def member_of(setup: Message, channel: Channel, boards: Mapping[str, SharedArrays]) -> OrderTaker:
    """Return the process that `setup` asks for."""
    assert isinstance(setup, Setup)
    return WordsWorker(setup, LifeSigns(channel), boards)


if __name__ == "__main__":
    serve(member_of)
