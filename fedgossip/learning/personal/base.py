"""Interface of a personal method, and the models that participants keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, add, linear
from fedgossip.core.gains import ALONE
from fedgossip.core.machine import NodeId, Terms
from fedgossip.core.task import GradientTask, Job, LocalTask, Segment, Update, give_memory, memory_of
from fedgossip.learning.settings import TrainSettings

Kept = Mapping[str, npt.NDArray[Any]]

OWN = "own"
"""The personal model, by name, and the optimiser's memory of its training."""


@dataclass
class OwnModels:
    """What each participant keeps, models [d], and their training by the wrapped `task`.

    The task holds one memory of a node, the shared model's; that of another model is exchanged for it in training.
    """

    task: LocalTask
    settings: TrainSettings
    rounds: int
    seed: int
    segments: tuple[Segment, ...]
    """The tensors of the task's vectors."""
    kept: dict[NodeId, dict[str, npt.NDArray[Any]]] = field(default_factory=dict)
    """The arrays of each node by name; replaced, and never changed in place."""
    memories: dict[tuple[NodeId, str], Kept] = field(default_factory=dict)
    """The task's memory of each node's other models."""

    def forget(self, node: NodeId) -> None:
        """Return a node to where it was before its first job."""
        self.kept.pop(node, None)
        for one in [one for one in self.memories if one[0] == node]:
            del self.memories[one]

    def of(self, node: NodeId) -> Kept:
        """Return the arrays that a node keeps."""
        return self.kept.get(node, {})

    def keep(self, node: NodeId, **arrays: npt.NDArray[Any]) -> None:
        """Replace arrays of a node."""
        for array in arrays.values():
            array.flags.writeable = False
        self.kept[node] = {**self.of(node), **arrays}

    def model(self, job: Job, name: str = OWN) -> Vector:
        """Return a node's own model [d]; before its first training the received one."""
        return self.of(job.node).get(name, job.vector)

    def alone(self, node: NodeId) -> Vector:
        """Return the model [d] that a node trains without any exchange."""
        return self.of(node).get(ALONE, self.task.initial(node))

    def train(self, jobs: Sequence[Job], memory: str = "") -> Sequence[Update]:
        """Return the updates of the wrapped task, with that memory of each node; "": that of the shared model."""
        if not memory:
            return self.task.train(jobs)
        with MemoryExchange(self, [job.node for job in jobs], memory):
            return self.task.train(jobs)

    def pulled(
        self, jobs: Sequence[Job], starts: Sequence[Vector], pull: float, memory: str = OWN
    ) -> list[tuple[Vector, Update]]:
        """Return the models [d] trained from `starts`, with pull / 2 ||v - w||^2 to each job's vector w added to the
        loss, and their updates.

        A job's terms pull to its start, so the distance to w is a correction: pull (v - start) + pull (start - w).
        With a pull the optimiser's memory begins anew.
        """
        asked = []
        for job, start in zip(jobs, starts, strict=True):
            terms = Terms(pull, linear((pull, start), (-pull, job.vector))) if pull else None
            asked.append(Job(job.node, job.round, start, terms))
        updates = self.train(asked, memory)
        moved = zip(starts, updates, strict=True)
        return [(start if one.difference is None else add(start, one.difference), one) for start, one in moved]

    def gradients(self, nodes: Sequence[NodeId], step: int, vectors: Sequence[Vector]) -> Sequence[Update]:
        """Return the gradient of each node at its vector [d] on batch `step` of its line of batches."""
        assert isinstance(self.task, GradientTask), "check was not called"
        asked = zip(nodes, vectors, strict=True)
        return self.task.gradients([Job(node, step, vector, gradient=True, accumulate=1) for node, vector in asked])

    def losses(self, jobs: Sequence[Job], vectors: Sequence[Vector]) -> list[float]:
        """Return the mean loss of each vector [d] on the batches of its job's round."""
        assert isinstance(self.task, GradientTask), "check was not called"
        asked = [Job(job.node, job.round, vector, gradient=True) for job, vector in zip(jobs, vectors, strict=True)]
        return [update.metrics["loss"] for update in self.task.gradients(asked)]

    def rate(self, round: int) -> float:
        """Return the learning rate of a round."""
        return self.settings.rate(round, self.rounds)

    @property
    def steps(self) -> int:
        """Local steps of a round."""
        assert self.settings.local_steps is not None, "check was not called"
        return self.settings.local_steps


class MemoryExchange:
    """Exchanges the task's memory of some nodes for that of another of their models.  A context manager."""

    def __init__(self, models: OwnModels, nodes: Sequence[NodeId], memory: str) -> None:
        self._models, self._nodes, self._memory = models, list(dict.fromkeys(nodes)), memory

    def __enter__(self) -> None:
        task, memories = self._models.task, self._models.memories
        self._shared = {node: memory_of(task, node) for node in self._nodes}
        for node in self._nodes:
            give_memory(task, node, memories.get((node, self._memory), {}))

    def __exit__(self, *_: object) -> None:
        task = self._models.task
        for node in self._nodes:
            self._models.memories[node, self._memory] = memory_of(task, node)
            give_memory(task, node, self._shared[node])


class PersonalMethod(Protocol):
    """What is trained with what, what is sent (perhaps of another length than the model's `d`), and which model
    answers.

    No two jobs of a call are of one node.
    """

    @property
    def follows(self) -> bool:
        """Whether the shared model is trained as it would be alone, so that any algorithm can exchange it."""

    @property
    def private(self) -> bool:
        """Whether all that is sent follows from trainings of the task, which hide single examples if they are to."""

    @property
    def whole(self) -> bool:
        """Whether what is sent is one whole model, which a participant could answer with."""

    @property
    def stepped(self) -> bool:
        """Whether it takes each step of plain SGD itself, on gradients of the task."""

    def sent(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Return the tensors of a sent vector, from those of the model."""

    def first(self, models: OwnModels, x: Vector) -> Vector:
        """Return the first vector that is sent, from the first model [d]."""

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        """Train the own models and what is sent; return the updates of the latter, in order."""

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        """Return the model [d] with which each job's node answers, given a received vector."""

    def shared(self, models: OwnModels, vector: Vector) -> list[Vector]:
        """Return the models [d] in a sent vector: one, or those of several clusters."""


@dataclass(frozen=True)
class OfWholeModels:
    """The common part of methods that send one whole model."""

    follows = False
    private = True
    whole = True
    stepped = False

    def sent(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        return tuple(segments)

    def first(self, models: OwnModels, x: Vector) -> Vector:  # noqa: ARG002
        return x

    def shared(self, models: OwnModels, vector: Vector) -> list[Vector]:  # noqa: ARG002
        return [vector]


def check_steps(method: PersonalMethod, name: str, settings: TrainSettings) -> None:
    """Raise ConfigError for settings of local steps that a method with steps of its own does not take."""
    if not method.stepped:
        return
    if not settings.plain:
        advice = "Leave train.optimizer, momentum, weight_decay and clip_norm out."
        raise ConfigError(f"personal = {name!r} takes plain steps of SGD itself", advice)
    if settings.local_steps is None:
        text = f"personal = {name!r} takes single steps, and train.local_epochs counts passes"
        raise ConfigError(text, "Set train.local_steps.")
