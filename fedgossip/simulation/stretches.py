"""When the stretches of a gradient are ready in virtual time, and their values.

A training of k batches is k forward and k backward passes, and a backward pass takes about twice as long as a forward
one (two products of matrices in place of one).  The gradient over all batches becomes final in the last backward pass,
from the last layers to the first: an element at place i of d after

    1 - 2 / (3 k) * i / d       of the time of the training
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.machine import Produced, Train
from fedgossip.core.task import Update

BACKWARD = 2 / 3
"""Share of a batch's training time in its backward pass."""


def share_until(start: int, length: int, batches: int) -> float:
    """Return the share of a training after which all elements of a gradient [length] from `start` on are final."""
    return 1.0 - BACKWARD / batches * start / length


def awaited_stretches(asked: Train) -> Iterator[tuple[float, Produced]]:
    """Yield for each requested stretch its time, as a share of the training, and an empty event for its values."""
    for start in asked.stretches:
        nothing: Vector = frozen(empty(0, asked.vector.dtype))
        yield share_until(start, asked.vector.size, asked.accumulate or 1), Produced(asked.job, start, nothing)


def stretch_of(update: Update, asked: Produced, stretches: Sequence[int]) -> Produced:
    """Return the stretch of a gradient that is final: up to the one before it."""
    assert update.difference is not None, "a gradient was asked for"
    place = stretches.index(asked.start)
    stop = stretches[place - 1] if place else update.difference.size
    return Produced(asked.job, asked.start, update.difference[asked.start : stop], update.examples, update.metrics)
