"""Training of a table of embeddings and the linear layer after it, on the rows that a batch needs; see `word_tables`.

The small model of a batch consists of these rows, with its words renumbered: torch never sees the table.

    task       a LocalTask for every kind of run but parameter servers, each participant with the whole table
    step       rows[keys] <- rows[keys] - rate * gradient; keys: the batch's words and the rows of the linear layer
    processes  1: steps here; P, parallel = "hogwild": `processes/table_worker`, on one line of shared memory
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
import torch
from torch.nn import functional

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.keyed_rows import Keys, frozen_keys, united
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, Update
from fedgossip.data.dataset import Dataset, Indices
from fedgossip.learning.linear.sparse_steps import HogwildSteps, TableSteps, check_steps, stepped_table
from fedgossip.learning.linear.word_tables import WORDS, WordTable
from fedgossip.learning.one_model.batches import Batches
from fedgossip.learning.processes.ipc import Race, Setup
from fedgossip.learning.processes.processes import SILENT_SECONDS
from fedgossip.learning.settings import HOGWILD, TrainSettings


class WordsTask:
    """A RowTask.  x: words of each example [m, k], numbered from 0; the watched rows are those of the test set."""

    dtype = np.dtype(np.float32)

    def __init__(
        self,
        train: Dataset,
        test: Dataset,
        shares: Mapping[NodeId, Indices],
        sizes: WordTable,
        settings: TrainSettings,
        seed: int,
    ) -> None:
        self.sizes, self.table = sizes, sizes.table(seed)
        self.words, self.labels = _words_of(train, sizes), torch.as_tensor(train.y, dtype=torch.int64)
        self._test_words, self._test_labels = _words_of(test, sizes), torch.as_tensor(test.y, dtype=torch.int64)
        self._shares = shares
        self.batches = Batches(shares, settings, seed, settings.examples_per_step)
        self.watched = united(frozen_keys(np.unique(self._test_words)), sizes.head)
        self.length = self.watched.size * sizes.width
        about = f"words/{sizes}/{hashlib.sha256(self.watched.tobytes()).hexdigest()}"
        self.schema = hashlib.sha256(about.encode()).hexdigest()[:16]
        torch.set_num_threads(settings.threads)

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return self.table.first(self.watched)

    def keys(self, node: NodeId, round: int, batches: int) -> Keys:
        return keys_of(self.sizes, self.words[self._places(node, round, batches)])

    def _places(self, node: NodeId, round: int, batches: int) -> Indices:
        return self.batches.plan(node, round, batches).indices.reshape(-1)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return self.gradients(jobs)

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._gradient(job) for job in jobs]

    def _gradient(self, job: Job) -> Update:
        assert job.keys is not None, "a table's gradient is of rows"
        places = self._places(job.node, job.round, job.accumulate or 1)
        labels = self.labels[torch.as_tensor(places)]
        value, gradient = slope_of(self.sizes, job.vector, job.keys, self.words[places], labels)
        if not math.isfinite(value):
            raise TrainingError(f"node {job.node}, round {job.round}: the loss is {value}", "Lower train.lr.")
        metrics = {"loss": value, "steps": 1, "rows": float(len(places))}
        return Update(frozen(gradient), self.count_examples(job.node), metrics)

    def count_examples(self, node: NodeId) -> int:
        """Return the number of a node's examples."""
        return len(self._shares[node])

    def slope(self, rows: Vector, places: Indices) -> tuple[float, npt.NDArray[np.float32], Keys]:
        """Return the mean loss over examples at a whole table [rows, width], its gradient [k, width], and its rows."""
        words, labels = self.words[places], self.labels[torch.as_tensor(places)]
        keys = keys_of(self.sizes, words)
        loss, gradient = slope_of(self.sizes, rows[keys].reshape(-1), keys, words, labels)
        return loss, gradient.reshape(-1, self.sizes.width), keys

    @torch.no_grad()
    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return {"loss", "accuracy"} on the test set, for watched rows of each model."""
        found = []
        for vector in vectors:
            outputs = outputs_of(self.sizes, torch.tensor(vector), self.watched, self._test_words)
            loss = float(functional.cross_entropy(outputs, self._test_labels))
            right = float((outputs.argmax(dim=1) == self._test_labels).double().mean())
            found.append({"loss": loss, "accuracy": right})
        return found


def keys_of(sizes: WordTable, words: npt.NDArray[np.int64]) -> Keys:
    """Return the rows that a batch of bags of words needs: the words' and the linear layer's."""
    return united(frozen_keys(np.unique(words)), sizes.head)


def outputs_of(sizes: WordTable, rows: torch.Tensor, keys: Keys, words: npt.NDArray[np.int64]) -> torch.Tensor:
    """Return the outputs [m, classes] of bags of words, with all their rows in `rows`."""
    matrix, first = rows.reshape(-1, sizes.width), len(keys) - sizes.head.size
    at = torch.as_tensor(np.searchsorted(keys, words))
    bags = matrix[:first][at].mean(dim=1)
    weights, biases = matrix[first : first + sizes.classes], matrix[first + sizes.classes :]
    return functional.linear(bags, weights, biases.reshape(-1)[: sizes.classes])


def slope_of(
    sizes: WordTable, vector: Vector, keys: Keys, words: npt.NDArray[np.int64], labels: torch.Tensor
) -> tuple[float, npt.NDArray[np.float32]]:
    """Return the mean loss of a batch at the rows of these keys, [k x width], and its gradient there."""
    rows = torch.tensor(vector).requires_grad_()
    loss = functional.cross_entropy(outputs_of(sizes, rows, keys, words), labels)
    (gradient,) = torch.autograd.grad(loss, [rows])
    return float(loss.detach()), gradient.numpy()


def step_on(
    rows: npt.NDArray[np.float32], sizes: WordTable, words: npt.NDArray[np.int64], labels: torch.Tensor, rate: float
) -> tuple[float, Keys]:
    """Step on a batch's rows of a whole table [rows, width], in place; return the loss before the step, and the rows'
    keys.
    """
    keys = keys_of(sizes, words)
    loss, gradient = slope_of(sizes, rows[keys].reshape(-1), keys, words, labels)
    rows[keys] -= np.float32(rate) * gradient.reshape(-1, sizes.width)
    return loss, keys


def _words_of(data: Dataset, sizes: WordTable) -> npt.NDArray[np.int64]:
    """Return the words of each example, [m, k].  Raises ConfigError for features that are not word numbers."""
    if data.vocabulary is not None:
        text = f"{data.name}: its examples are text, and words:{sizes.words}-... takes rows of numbers"
        raise ConfigError(text, "Take chars:64 or gpt:2-64-4, models of characters.")
    words = data.x.reshape(len(data.x), -1)
    whole: npt.NDArray[np.int64] = words.astype(np.int64)
    if (whole != words).any() or whole.min() < 0 or whole.max() >= sizes.words:
        text = f"{data.name}: features from {words.min():g} to {words.max():g} as words"
        raise ConfigError(text, f"words:{sizes.words}-... takes whole numbers from 0 to {sizes.words - 1}.")
    if data.classes > sizes.classes:
        text = f"{data.name}: {data.classes} classes, and the model has {sizes.classes}"
        raise ConfigError(text, f"Write words:{sizes.words}-{sizes.width}-{data.classes}.")
    return whole


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
        return HogwildSteps(setup, examples, self.length, self._plan_arrays)

    def _plan_arrays(self, job: Job) -> Mapping[str, npt.NDArray[Any]]:
        plan = self.words.batches.plan(job.node, job.round)
        return {"indices": plan.indices, "counts": plan.counts}

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return self._initial

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._trained(job) for job in jobs]

    def _trained(self, job: Job) -> Update:
        rate = self.settings.rate(job.round, self._rounds)
        steps = len(self.words.batches.plan(job.node, job.round).counts)
        return stepped_table(job, rate, self.steps, steps, self.words.count_examples(job.node))

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
        return Update(frozen(whole.reshape(-1)), self.words.count_examples(job.node), metrics)

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return {"loss", "accuracy"} on the test set, of whole vectors."""
        rows = [vector.reshape(-1, self.sizes.width)[self._watched].reshape(-1) for vector in vectors]
        return self.words.evaluate([frozen(one) for one in rows])
