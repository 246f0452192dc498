"""FedMD and FedDF: participants with different architectures exchange predictions on common examples, not models.

    z      the sent vector: the mean of all predictions, [examples x classes], the teacher
    fedmd  f_i <- trained towards z on the common examples by mean |f_i(x) - z(x)|  (digest);
           f_i <- trained on the participant's examples (revisit);  sends f_i(x)
    feddf  f_i <- trained towards z by KL(softmax(z) || softmax(f_i));  predicts with this model;
           f_i <- trained on the participant's examples;  sends f_i(x)

FedMD: Li and Wang, Heterogenous federated learning via model distillation, 2019, algorithm 1, without training on
labels of the common examples.  FedDF: Lin, Kong, Stich and Jaggi, Ensemble distillation for robust model fusion in
federated learning, NeurIPS 2020, algorithm 3, distilled by each client.  A peer's teacher is its neighbours' mean.

Predictions are divided by `bound` and clipped to -1..1: a participant moves no element of a mean over n by more than 2
/ n.  The first vector is zero and trains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Protocol, runtime_checkable

import numpy as np

from fedgossip.base.limits import ABOVE_0, Within
from fedgossip.base.vectors import Vector, add, frozen, subtract
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, LocalTask, Segment, Update
from fedgossip.learning.personal.base import OWN, OwnModels


@runtime_checkable
class DistillingTask(LocalTask, Protocol):
    """A task of vectors of predictions [examples * classes], whose nodes train models of different lengths."""

    def answers(self, node: NodeId, model: Vector) -> Vector:
        """Return the logits of the node's model for the common examples."""

    def distil(self, node: NodeId, rounds: Sequence[int], model: Vector, logits: Vector) -> Vector:
        """Return the node's model trained towards logits, one distillation for each of `rounds`, with that round's
        batches.
        """

    @property
    def student(self) -> Vector:
        """The first weights of the student, the model that measures a teacher."""


STUDENT: NodeId = -1
"""The node of the student, a model distilled only from a teacher, to measure and save it."""


@dataclass(frozen=True)
class FedDF:
    """Sends its predictions on common examples; predicts with its model distilled from the mean of all."""

    epochs: Annotated[int, Within(1, 1000)] = 5
    """Number of passes over the common examples in each distillation."""
    batch: Annotated[int, Within(1, 1_000_000)] = 64
    """Examples per step of a distillation."""
    rate: Annotated[float, Within(ABOVE_0)] = 0.002
    """Learning rate of Adam in a distillation."""
    temperature: Annotated[float, Within(ABOVE_0)] = 1.0
    """Temperature of both softmax functions; a higher one weighs unlikely classes more."""
    bound: Annotated[float, Within(ABOVE_0, 1e6)] = 32.0
    """Maximum logit; larger ones are clipped."""
    student: Annotated[int, Within(1, 1000)] = 10
    """Number of distillations of the student, which measures a teacher."""

    follows = False
    private = True
    whole = False
    stepped = False
    kept = 0  # in vectors of logits, which are exchanged

    @property
    def loss(self) -> str:
        """The loss towards the teacher's logits, of `one_model.losses`."""
        return f"soft-targets?temperature={self.temperature!r}"

    def select_sent(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        return tuple(segments)

    def first(self, models: OwnModels, x: Vector) -> Vector:  # noqa: ARG002
        return frozen(np.zeros(models.task.length, models.task.dtype))

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        task = _distilling(models)
        starts = [self._distilled(models, job) for job in jobs]
        updates = []
        asked = [replace(job, vector=start) for job, start in zip(jobs, starts, strict=True)]
        for job, start, update in zip(jobs, starts, models.train(asked), strict=True):
            own = start if update.difference is None else add(start, update.difference)
            models.keep(job.node, own=own)
            sent = np.clip(task.answers(job.node, own) / np.float32(self.bound), -1, 1)
            updates.append(replace(update, difference=subtract(frozen(sent), job.vector)))
        return updates

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        return [self._distilled(models, job) for job in jobs]

    def shared(self, models: OwnModels, vector: Vector) -> list[Vector]:
        """Return a student, distilled only and not trained on any examples."""
        task = _distilling(models)
        if not vector.any():
            return [task.student]
        return [task.distil(STUDENT, range(self.student), task.student, self._teacher(vector))]

    def _distilled(self, models: OwnModels, job: Job) -> Vector:
        own = models.get(job.node).get(OWN)
        own = models.task.initial(job.node) if own is None else own
        if not job.vector.any():
            return own
        return _distilling(models).distil(job.node, [job.round], own, self._teacher(job.vector))

    def _teacher(self, vector: Vector) -> Vector:
        return frozen(np.clip(vector, -1, 1) * np.float32(self.bound))


@dataclass(frozen=True)
class FedMD(FedDF):
    """Sends its predictions on common examples; predicts with its model after training on its own examples."""

    @property
    def loss(self) -> str:
        return "mae"

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        return [models.get(job.node).get(OWN, models.task.initial(job.node)) for job in jobs]


def _distilling(models: OwnModels) -> DistillingTask:
    assert isinstance(models.task, DistillingTask), "made for other methods"
    return models.task
