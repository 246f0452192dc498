"""The table of `words` as a whole vector: every participant has all of it, and steps on the rows that a batch needs.

task       a LocalTask of every kind of run but parameter servers, whose workers hold no table
step       of one batch: rows[keys] <- rows[keys] - rate * gradient; keys are its words and the rows of the linear layer
processes  1: the steps are made here; P, parallel = "hogwild": by `processes/words_worker`, on one line of shared
memory
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.keyed_rows import frozen_keys
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, Update
from fedgossip.data.dataset import Indices
from fedgossip.learning.linear.sparse_steps import HogwildSteps, TableSteps, check_steps, without_terms
from fedgossip.learning.linear.word_tables import WORDS
from fedgossip.learning.linear.words import WordsTask, step_on
from fedgossip.learning.processes.ipc import Setup
from fedgossip.learning.processes.lost_updates import Race
from fedgossip.learning.processes.processes import SILENT_SECONDS
from fedgossip.learning.settings import HOGWILD, TrainSettings

PROGRAM = "fedgossip.learning.processes.words_worker"


class WordSteps:
    """A GradientTask.  Raises ConfigError for settings other than plain steps, and for a table too large to store."""

    dtype = np.dtype(np.float32)

    def __init__(self, words: WordsTask, settings: TrainSettings, rounds: int) -> None:
        self.words, self.settings, self._rounds = words, settings, rounds
        self.sizes, rows = words.sizes, words.table.rows
        self.length = rows * self.sizes.width
        check_steps(self.length, settings, f"model.source = {self.source}")
        self.schema = hashlib.sha256(f"words/whole/{self.sizes}".encode()).hexdigest()[:16]
        self._initial = words.table.first(frozen_keys(np.arange(rows)))
        self._watched = words.watched
        self.steps: TableSteps = self._race() if settings.parallel == HOGWILD else self._alone

    @property
    def source(self) -> str:
        return f"{WORDS}:{self.sizes.words}-{self.sizes.width}-{self.sizes.classes}"

    def _race(self) -> HogwildSteps:
        words = self.words
        setup = Setup(
            rank=0, size=self.settings.processes, device="cpu", store="", source=self.source, base=None,
            seed=0, classes=self.sizes.classes, kind=WORDS, loss="cross-entropy", metrics=(), label_scale=((), ()),
            vocabulary=None, settings=asdict(self.settings), examples=[], silence=SILENT_SECONDS,
        )  # fmt: skip
        examples = {"words": words.words, "labels": words.labels.numpy()}
        return HogwildSteps(setup, examples, PROGRAM, self.length, self._given)

    def _given(self, job: Job) -> Mapping[str, npt.NDArray[Any]]:
        plan = self.words.batches.plan(job.node, job.round)
        return {"indices": plan.indices, "counts": plan.counts}

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return self._initial

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._trained(job) for job in jobs]

    def _trained(self, job: Job) -> Update:
        without_terms(job)
        rate = self.settings.rate(job.round, self._rounds)
        after, race = self.steps(job, rate)
        if not math.isfinite(race.loss) or not np.isfinite(after).all():
            raise TrainingError(f"node {job.node}, round {job.round}: the loss is {race.loss}", "Lower train.lr.")
        steps = len(self.words.batches.plan(job.node, job.round).counts)
        metrics = {"loss": race.loss, "steps": steps, "rate": rate}
        return Update(frozen(after - job.vector), self.words.held(job.node), metrics, logged=race.logged)

    def _places(self, job: Job) -> Iterator[Indices]:
        plan = self.words.batches.plan(job.node, job.round, job.accumulate if job.gradient else None)
        yield from (row[:count] for row, count in zip(plan.indices, plan.counts, strict=True))

    def _alone(self, job: Job, rate: float) -> tuple[npt.NDArray[np.float32], Race]:
        line = job.vector.copy()
        rows, words, labels = line.reshape(-1, self.sizes.width), self.words.words, self.words.labels
        losses = [step_on(rows, self.sizes, words[places], labels[places], rate)[0] for places in self._places(job)]
        return line, Race(fmean(losses), {})

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._gradient(job) for job in jobs]

    def _gradient(self, job: Job) -> Update:
        if self.settings.parallel == HOGWILD:
            advice = "Use a method whose participants train: gossip, [coordinator], parallel.outer."
            raise ConfigError(f'parallel = "{HOGWILD}": its processes take steps, and a gradient takes none', advice)
        places = np.concatenate(list(self._places(job)))
        whole = np.zeros((self.words.table.rows, self.sizes.width), np.float32)
        loss, gradient, keys = self.words.slope(job.vector.reshape(-1, self.sizes.width), places)
        whole[keys] = gradient
        if not math.isfinite(loss):
            raise TrainingError(f"node {job.node}, round {job.round}: the loss is {loss}", "Lower train.lr.")
        metrics = {"loss": loss, "steps": 1, "rows": float(len(places))}
        return Update(frozen(whole.reshape(-1)), self.words.held(job.node), metrics)

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return {"loss", "accuracy"} on the test set, of whole vectors."""
        rows = [vector.reshape(-1, self.sizes.width)[self._watched].reshape(-1) for vector in vectors]
        return self.words.evaluate([frozen(one) for one in rows])
