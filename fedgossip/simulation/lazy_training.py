"""Training in virtual time: jobs are computed when the first result is due, and gradients are ready stretch by stretch.

A training of k batches is k forward and k backward passes, and a backward pass takes about twice as long as a forward
one (two products of matrices in place of one).  The gradient over all batches becomes final in the last backward pass,
from the last layers to the first: an element at place i of d after

    1 - 2 / (3 k) * i / d       of the time of the training
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.machine import NodeId, Produced, Train
from fedgossip.core.task import Job, LocalTask, Update, perform_jobs

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


class LazyTraining:
    """The jobs of peers, and the results computed and not yet delivered."""

    def __init__(self) -> None:
        self._jobs: dict[NodeId, Job] = {}
        self._updates: dict[NodeId, Update] = {}
        self._stretches: dict[NodeId, tuple[int, ...]] = {}  # of the jobs in _updates

    def submit(self, job: Job) -> None:
        """Take a node's job."""
        self._jobs[job.node] = job

    def forget(self, node: NodeId) -> None:
        """Drop the jobs of a node that has died."""
        self._jobs.pop(node, None)
        self._updates.pop(node, None)

    def update(self, task: LocalTask, node: NodeId) -> Update:
        """Return the result of a node's job, once; compute every outstanding one with it."""
        self._compute(task, node)
        return self._updates.pop(node)

    def stretch(self, task: LocalTask, node: NodeId, asked: Produced) -> Produced | None:
        """Return a stretch of a node's gradient; None once its training is complete."""
        self._compute(task, node)
        update = self._updates[node]
        return None if update.over else stretch_of(update, asked, self._stretches[node])

    def _compute(self, task: LocalTask, node: NodeId) -> None:
        if node in self._updates:
            return
        jobs = [self._jobs[one] for one in sorted(self._jobs)]
        self._jobs.clear()
        self._stretches.update((job.node, job.stretches) for job in jobs if job.stretches)
        self._updates.update(zip((job.node for job in jobs), perform_jobs(task, jobs), strict=True))
