"""A task whose participants have personal models: it wraps the training task with a personal method."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.scores import ACCURACY, Score
from fedgossip.base.vectors import Vector
from fedgossip.core.gains import ALONE, PERSONAL, SHARED, OwnScores, counted
from fedgossip.core.machine import NodeId, Report
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.task import (
    Job,
    LocalTask,
    ReportingTask,
    Segment,
    Update,
    WholeModel,
    export_whole_model,
    give_memory,
    memory_of,
    model_likeness,
    segments_of,
)
from fedgossip.learning.personal.base import OWN, MemoryExchange, OwnModels, PersonalMethod
from fedgossip.learning.settings import TrainSettings

KEPT, MEMORY = "kept:", "memory:"
"""Prefixes of a node's state: its personal arrays, and the wrapped task's state of its other models."""


@runtime_checkable
class TestingTask(LocalTask, Protocol):
    """A task that tests vectors on a node's held-out examples."""

    def test_own(self, node: NodeId, round: int, vector: Vector) -> Mapping[str, float]:
        """Return {"score", "tested"} of a vector, and the number of held-out examples of the node; {} without any."""


class PersonalTask:
    """A StatefulTask that trains by `task` and by `method`; exchanged vectors have the method's layout.

    A tested job measures the predicting model on the node's held-out examples before training.  `compared`: the
    interval in rounds for logging its score with those of the shared model and of one trained alone on the same batches
    (`core.gains`); 0: never.
    """

    def __init__(
        self,
        task: LocalTask,
        method: PersonalMethod,
        settings: TrainSettings,
        *,
        rounds: int,
        seed: int,
        score: Score = ACCURACY,
        compared: int = 0,
    ) -> None:
        self._task, self._method = task, method
        self._score = score
        self._compared = compared if isinstance(task, TestingTask) else 0
        segments = segments_of(task)
        self.segments: tuple[Segment, ...] = method.select_sent(segments)
        self._models = OwnModels(task, settings, rounds, seed, segments)
        self.length, self.dtype = self.segments[-1].stop, task.dtype
        names = " ".join(f"{one.name}{list(one.shape)}" for one in self.segments)
        same = self.segments == segments
        self.schema = task.schema if same else hashlib.sha256(f"{task.schema} {names}".encode()).hexdigest()[:16]
        self._states: dict[NodeId, dict[str, npt.NDArray[Any]]] = {}  # when the last job was done
        self._initial = None if method.whole else method.first(self._models, task.initial(0))

    def initial(self, node: NodeId) -> Vector:
        return self._task.initial(node) if self._initial is None else self._initial

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """See `LocalTask`; states change when all jobs are complete, so a failed call can be repeated."""
        nodes = {job.node for job in jobs}
        before = {node: self.state(node) for node in nodes}
        try:
            updates = self._trained(jobs)
        except BaseException:
            for node, state in before.items():
                self.load_state(node, state)
            raise
        for node in nodes:
            self._states[node] = self._gathered(node)
        return updates

    def _trained(self, jobs: Sequence[Job]) -> list[Update]:
        found: dict[int, Update] = {}
        for wave in _waves(jobs):
            asked = [jobs[place] for place in wave]
            tests, scores = self._tested(asked)
            updates = self._method.train(self._models, [replace(job, tested=False) for job in asked])
            if self._compared:
                self._train_alone(asked)
            for place, update, tested, logged in zip(wave, updates, tests, scores, strict=True):
                found[place] = replace(update, metrics={**update.metrics, **tested}, logged={**update.logged, **logged})
        return [found[place] for place in range(len(jobs))]

    def _tested(self, jobs: Sequence[Job]) -> tuple[list[Mapping[str, float]], list[Mapping[str, float]]]:
        number, rounds = jobs[0].round + 1, self._models.rounds
        due = self._compared > 0 and (number % self._compared == 0 or number == rounds)
        if not isinstance(self._task, TestingTask) or not (due or any(job.tested for job in jobs)):
            return [{}] * len(jobs), [{}] * len(jobs)
        tests: list[Mapping[str, float]] = []
        scores: list[Mapping[str, float]] = []
        for job, answer in zip(jobs, self._method.answers(self._models, jobs), strict=True):
            tested = self._measured(job, answer, OWN)
            found = {PERSONAL: tested.get("score")}
            if due and tested:
                shared = self._method.shared(self._models, job.vector)
                found[SHARED] = self._measured(job, shared[0]).get("score") if self._method.whole else None
                found[ALONE] = self._measured(job, self._models.alone(job.node), ALONE).get("score")
            logged = {name: score for name, score in found.items() if due and score is not None}
            own = OwnScores(number, logged[PERSONAL], logged.get(SHARED), logged.get(ALONE)) if logged else None
            tests.append({**tested, **(counted(own, self._score) if own else {})} if job.tested else {})
            scores.append(logged)
        return tests, scores

    def _measured(self, job: Job, vector: Vector, memory: str = "") -> Mapping[str, float]:
        """Return the test of a vector [d] at a job's node."""
        assert isinstance(self._task, TestingTask)
        with MemoryExchange(self._models, [job.node], memory) if memory else nullcontext():
            return self._task.test_own(job.node, job.round, vector)

    def _train_alone(self, jobs: Sequence[Job]) -> None:
        starts = [self._models.alone(job.node) for job in jobs]
        for job, (model, _) in zip(jobs, self._models.pulled(jobs, starts, 0.0, ALONE), strict=True):
            self._models.keep(job.node, **{ALONE: model})

    def personal_model(self, node: NodeId, vector: Vector) -> Vector:
        """Return the model [d] of the wrapped task with which a node predicts, given a received vector."""
        return self._method.answers(self._models, [Job(node, max(0, self._models.rounds - 1), vector)])[0]

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return metrics of the shared model on the common test set; of several clusters those with the least loss."""
        parts = [self._method.shared(self._models, vector) for vector in vectors]
        found = iter(self._task.evaluate([one for part in parts for one in part]))
        measured = [[next(found) for _ in part] for part in parts]
        return [min(part, key=lambda one: one["loss"]) for part in measured]

    def state(self, node: NodeId) -> Mapping[str, npt.NDArray[Any]]:
        """Return the wrapped task's state of `node`, its personal arrays, and the optimiser state of their training.

        It is the state after the last complete job.
        """
        return self._states.get(node, {})

    def _gathered(self, node: NodeId) -> dict[str, npt.NDArray[Any]]:
        found = dict(memory_of(self._task, node))
        found |= {f"{KEPT}{name}": array for name, array in self._models.get(node).items()}
        for (whose, memory), arrays in self._models.memories.items():
            if whose == node:
                found |= {f"{MEMORY}{memory}:{name}": array for name, array in arrays.items()}
        return found

    def load_state(self, node: NodeId, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a state from `state`.  Raises ConfigError if it belongs to another model or method."""
        kept = {name.removeprefix(KEPT): array for name, array in state.items() if name.startswith(KEPT)}
        d = self._task.initial(node).size
        if OWN in kept and kept[OWN].shape != (d,):
            text = f"node {node}: the personal model has {kept[OWN].size} elements; expected {d}"
            raise ConfigError(text, "Was the state written with another model?")
        memories: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for name, array in state.items():
            if name.startswith(MEMORY):
                memory, _, of = name.removeprefix(MEMORY).partition(":")
                memories.setdefault(memory, {})[of] = array
        rest = {name: array for name, array in state.items() if not name.startswith((KEPT, MEMORY))}
        give_memory(self._task, node, rest)
        self._models.forget(node)
        self._models.keep(node, **{name: np.array(array) for name, array in kept.items()})
        self._models.memories |= {(node, memory): arrays for memory, arrays in memories.items()}
        self._states[node] = self._gathered(node)

    def likeness(self) -> Likeness:
        """See `ComparableTask`."""
        return model_likeness(self._task)

    def whole_model(self, vector: Vector, node: NodeId | None = None) -> WholeModel:
        """Return the model with which `node` predicts; without a node the shared one, of several clusters the first."""
        shared = self._method.shared(self._models, vector)[0]
        return export_whole_model(self._task, shared if node is None else self.personal_model(node, vector), node)

    def report_to(self, write: Callable[[Report], None]) -> None:
        """See `ReportingTask`."""
        if isinstance(self._task, ReportingTask):
            self._task.report_to(write)


def _waves(jobs: Sequence[Job]) -> list[list[int]]:
    """Return the indices of the jobs in groups of equal rounds, no node twice in one."""
    waves: list[list[int]] = []
    for place, job in enumerate(jobs):
        last = waves[-1] if waves else []
        fits = last and jobs[last[0]].round == job.round and all(jobs[one].node != job.node for one in last)
        last.append(place) if fits else waves.append([place])
    return waves
