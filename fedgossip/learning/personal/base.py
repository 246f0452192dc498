"""Interface of a personal method, and the participants' stored models."""

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
"""Name of the personal model, and of the optimiser state of its training."""


@dataclass
class OwnModels:
    """The arrays stored by each participant, models [d], and their training by the wrapped `task`.

    The task holds one optimiser state per node, the shared model's; training another model swaps it.
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
    """The task's state of each node's other models."""

    def forget(self, node: NodeId) -> None:
        """Reset a node to its state before its first job."""
        self.kept.pop(node, None)
        for one in [one for one in self.memories if one[0] == node]:
            del self.memories[one]

    def get(self, node: NodeId) -> Kept:
        """Return the stored arrays of a node."""
        return self.kept.get(node, {})

    def keep(self, node: NodeId, **arrays: npt.NDArray[Any]) -> None:
        """Replace arrays of a node."""
        for array in arrays.values():
            array.flags.writeable = False
        self.kept[node] = {**self.get(node), **arrays}

    def model(self, job: Job, name: str = OWN) -> Vector:
        """Return a node's personal model [d]; before its first training the received one."""
        return self.get(job.node).get(name, job.vector)

    def alone(self, node: NodeId) -> Vector:
        """Return the model [d] that a node trains without any exchange."""
        return self.get(node).get(ALONE, self.task.initial(node))

    def train(self, jobs: Sequence[Job], memory: str = "") -> Sequence[Update]:
        """Return the updates of the wrapped task, with this optimiser state of each node; "": the shared model's."""
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
        With a pull the optimiser state is reset.
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
        """Number of local steps per round."""
        assert self.settings.local_steps is not None, "check was not called"
        return self.settings.local_steps


class MemoryExchange:
    """Swaps the task's state of some nodes for the state of another of their models.  A context manager."""

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
    """Defines how models are trained, the sent vector (its length may differ from the model's `d`), and the predicting
    model.

    A call has at most one job per node.
    """

    @property
    def follows(self) -> bool:
        """Whether the shared model is trained as without the method, so any algorithm can exchange it."""

    @property
    def private(self) -> bool:
        """Whether everything sent results from trainings by the task, which can hide single examples."""

    @property
    def whole(self) -> bool:
        """Whether the sent vector is one whole model that can predict."""

    @property
    def stepped(self) -> bool:
        """Whether the method takes each step of plain SGD itself, on gradients of the task."""

    @property
    def kept(self) -> int:
        """Minimum number of models [d] that a trained participant stores."""

    def select_sent(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Return the tensors of a sent vector, from those of the model."""

    def first(self, models: OwnModels, x: Vector) -> Vector:
        """Return the first sent vector, from the first model [d]."""

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        """Train the personal models and the sent vector; return the updates of the latter, in order."""

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        """Return the model [d] with which each job's node predicts, given a received vector."""

    def shared(self, models: OwnModels, vector: Vector) -> list[Vector]:
        """Return the models [d] in a sent vector: one, or those of several clusters."""


@dataclass(frozen=True)
class OfWholeModels:
    """The common part of methods that send one whole model."""

    follows = False
    private = True
    whole = True
    stepped = False
    kept = 1

    def select_sent(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        return tuple(segments)

    def first(self, models: OwnModels, x: Vector) -> Vector:  # noqa: ARG002
        return x

    def shared(self, models: OwnModels, vector: Vector) -> list[Vector]:  # noqa: ARG002
        return [vector]


def check_steps(method: PersonalMethod, name: str, settings: TrainSettings) -> None:
    """Raise ConfigError for local-step settings that a method with its own steps does not support."""
    if not method.stepped:
        return
    if not settings.plain:
        advice = "Leave train.optimizer, momentum, weight_decay and clip_norm out."
        raise ConfigError(f"personal = {name!r} takes plain steps of SGD itself", advice)
    if settings.local_steps is None:
        text = f"personal = {name!r} takes single steps, and train.local_epochs counts passes"
        raise ConfigError(text, "Set train.local_steps.")
