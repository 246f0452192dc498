"""Participants with different architectures, which train separate models and predict on common examples."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector, add, frozen
from fedgossip.core.machine import NodeId, Report
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.task import Job, Update, WholeModel
from fedgossip.data.dataset import Dataset, Indices
from fedgossip.data.objectives import REGRESSION, Objective
from fedgossip.learning.models import models
from fedgossip.learning.personal.logits import STUDENT, FedDF
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.learning.untrained import layout_of_answers

ROWS = 512
"""Number of examples processed at a time."""


class UnlikeTasks:
    """A DistillingTask: node i trains the model sources[i mod k], and vectors are predictions [examples * classes].

    `made`: returns a source's TorchTask.  `common`: examples for all predictions, labels unread.  `student`: the source
    of the model that measures a teacher and is saved.  Distillations begin without optimiser state.
    """

    def __init__(
        self,
        made: Callable[[str], TorchTask],
        sources: Sequence[str],
        student: str,
        common: Dataset,
        test: Dataset,
        settings: TrainSettings,
        method: FedDF,
        *,
        seed: int,
        rounds: int,
    ) -> None:
        self.layout = layout_of_answers(common, test)
        self.length, self.dtype, self.schema = self.layout.length, self.layout.dtype, self.layout.schema
        self.segments = self.layout.segments
        self._sources, self._student = sources, student
        every = dict.fromkeys([*sources, student])
        self._tasks = {source: made(source) for source in every}
        self._teacher = replace(common, y=np.zeros((len(common), test.classes), np.float32), **AS_NUMBERS)
        objective = Objective(REGRESSION, method.loss, ("loss",))
        how: Any = {"seed": seed, "rounds": rounds, "objective": objective, "draw": self._draw}
        machine = {name: getattr(settings, name) for name in ("device", "threads", "precision", "portable")}
        passes: Any = {"batch_size": method.batch, "local_epochs": method.epochs, **machine}
        settings = TrainSettings(optimizer="adam", lr=method.rate, **passes)
        self._pupils = {
            source: TorchTask(self._teacher, self._teacher, {STUDENT: self._rows}, source, settings, **how)
            for source in every
        }
        made_of = common.shape, test.classes, seed
        self._modules = {source: models.build(source, *made_of).eval() for source in every}
        self._lock = threading.Lock()  # a host evaluates during training in another thread

    @property
    def _rows(self) -> Indices:
        return np.arange(len(self._teacher))

    def _draw(self, nodes: Sequence[NodeId]) -> tuple[Dataset, Mapping[NodeId, Indices]]:
        return self._teacher, dict.fromkeys(nodes, self._rows)

    def _source(self, node: NodeId) -> str:
        return self._student if node == STUDENT else self._sources[node % len(self._sources)]

    def _task(self, node: NodeId) -> TorchTask:
        return self._tasks[self._source(node)]

    @property
    def student(self) -> Vector:
        return self.initial(STUDENT)

    @property
    def model_bytes(self) -> Mapping[str, int]:
        """Bytes of each model, by its source."""
        return {source: self._tasks[source].length * 4 for source in dict.fromkeys(self._sources)}

    @torch.no_grad()
    def answers(self, node: NodeId, model: Vector) -> Vector:
        """See `DistillingTask`.  Raises TrainingError if a prediction is not finite."""
        source = self._source(node)
        with self._lock:
            module = self._modules[source]
            self._tasks[source].layout.write(module, model)
            whole = torch.from_numpy(self._teacher.x.copy())
            parts = whole.tensor_split(-(-len(whole) // ROWS))
            logits = torch.cat([module(part).float() for part in parts]).numpy().reshape(-1)
        if np.isnan(logits).any():
            raise TrainingError(f"node {node}: a logit for the common examples is not a number", "Use a smaller lr.")
        return frozen(logits)

    def distil(self, node: NodeId, rounds: Sequence[int], model: Vector, logits: Vector) -> Vector:
        """See `DistillingTask`.  Raises TrainingError if it diverges."""
        pupil = self._pupils[self._source(node)]
        with self._lock:
            self._teacher = replace(self._teacher, y=logits.reshape(self._teacher.y.shape))
            try:
                for round in rounds:
                    (update,) = pupil.train([Job(node, round, model)])
                    model = model if update.difference is None else add(model, update.difference)
            finally:
                pupil.load_state(node, {})
        return model

    # --- a task of the models, each node with its own -------------------------------------------------------------

    def initial(self, node: NodeId) -> Vector:
        return self._task(node).initial(node)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """See `LocalTask`: each job with a model of its node."""
        found: dict[int, Update] = {}
        for source, task in self._tasks.items():
            places = [place for place, job in enumerate(jobs) if self._source(job.node) == source]
            if places:
                found.update(zip(places, task.train([jobs[place] for place in places]), strict=True))
        return [found[place] for place in range(len(jobs))]

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return metrics of models with the student's architecture."""
        return self._tasks[self._student].evaluate(vectors)

    def test_own(self, node: NodeId, round: int, vector: Vector) -> Mapping[str, float]:
        """See `TestingTask`."""
        return self._task(node).test_own(node, round, vector)

    def state(self, node: NodeId) -> Mapping[str, npt.NDArray[Any]]:
        return self._task(node).state(node)

    def load_state(self, node: NodeId, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self._task(node).load_state(node, state)

    def likeness(self) -> Likeness:
        """See `ComparableTask`; of the student."""
        return self._tasks[self._student].likeness()

    def whole_model(self, vector: Vector, node: NodeId | None = None) -> WholeModel:
        """See `UsableTask`; without a node the student."""
        return self._task(STUDENT if node is None else node).whole_model(vector, node)

    def report_to(self, write: Callable[[Report], None]) -> None:
        """See `ReportingTask`."""
        for task in self._tasks.values():
            task.report_to(write)


AS_NUMBERS: Mapping[str, Any] = {"kind": REGRESSION, "classes": 0, "class_names": (), "groups": None, "own_test": None}
"""Replaced fields of classified examples whose labels become logits."""
