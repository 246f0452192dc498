"""Logistic regression on examples with a few of very many features, as in clicks and words; numpy alone.

    features   known by rank, rank k about as often as 1 / k; an example has so many of them, each with 1 / sqrt(many)
    labels     1 with probability sigmoid(w* . x), where a quarter of w* are not 0
    model      a table [features, 1]; it begins at 0, and a batch needs the rows of its own features

A worker processes its examples in order, a batch after the other, and again: the rows of a batch are the same in every
pass, which the key-cache filter relies on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.keyed_rows import KeyedTable, Keys, frozen_keys
from fedgossip.base.seeds import integer, stream
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, Update

TESTED = 256
"""Number of test examples of the run."""
SPREAD = 2_654_435_761
"""A prime: rank times it, modulo the features, distributes common ones over all servers."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseExamples:
    """Compressed rows: example e has columns[starts[e] : starts[e + 1]], ascending, all with the same value."""

    starts: npt.NDArray[np.int64]
    columns: Keys
    labels: npt.NDArray[np.float64]

    def of(self, first: int, stop: int) -> SparseExamples:
        """Return some of the examples, views."""
        begin, end = self.starts[first], self.starts[stop]
        return SparseExamples(self.starts[first : stop + 1] - begin, self.columns[begin:end], self.labels[first:stop])

    @property
    def owners(self) -> npt.NDArray[np.int64]:
        """The example of each column entry."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.starts))


class SparseLogistic:
    """A RowTask.  The watched rows are those of the test examples."""

    dtype = np.dtype(np.float32)

    def __init__(self, n: int, features: int, examples: int, nonzeros: int, batch_size: int, seed: int = 0) -> None:
        if nonzeros > features:
            text = f"{nonzeros} features of {features} in an example"
            raise ConfigError(text, "Raise task.dim, or lower task.nonzeros.")
        if batch_size > examples:
            raise ConfigError(f"batches of {batch_size} of {examples} examples", "Lower train.batch_size.")
        self.n, self.examples, self.nonzeros, self.batch_size, self.seed = n, examples, nonzeros, batch_size, seed
        self.table = KeyedTable(features, seed=seed)
        self.value = 1 / math.sqrt(nonzeros)
        self._truth = KeyedTable(features, seed=integer(seed, "truth"), scale=4.0, kind="float64")
        self._held: dict[NodeId, SparseExamples] = {}
        self._test = self._drawn("sparse-test", 0, TESTED)
        self.watched = frozen_keys(np.unique(self._test.columns))
        self.length = self.watched.size
        about = f"sparse-logistic/{features}/{nonzeros}/{seed}"
        self.schema = hashlib.sha256(about.encode()).hexdigest()[:16]

    def _drawn(self, purpose: str, node: NodeId, count: int) -> SparseExamples:
        """Draw examples: exact arithmetic alone, so that all processors draw the same."""
        drawn, features = stream(self.seed, purpose, node), self.table.rows
        octaves = drawn.integers(0, features.bit_length(), (count, self.nonzeros))
        ranks = np.floor(np.ldexp(1 + drawn.random((count, self.nonzeros)), octaves)).astype(np.int64) - 1
        columns = np.sort((ranks % features) * SPREAD % features, axis=1)
        kept = np.ones(columns.shape, bool)
        kept[:, 1:] = columns[:, 1:] != columns[:, :-1]
        starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
        found = frozen_keys(columns[kept])
        truth = self._truth.first(found)
        truth = np.where(np.abs(truth) > 3 * math.sqrt(3), truth, 0.0)
        margins = np.add.reduceat(truth, starts[:-1]) * self.value
        return SparseExamples(starts, found, (drawn.random(count) < _sigmoid(margins)).astype(np.float64))

    def held(self, node: NodeId) -> SparseExamples:
        """Return the examples of a node, drawn on the first request."""
        if node not in self._held:
            self._held[node] = self._drawn("sparse-examples", node, self.examples)
        return self._held[node]

    def _batch(self, node: NodeId, round: int, batches: int) -> list[SparseExamples]:
        """Return the batches of a job; a pass ends with the last whole one."""
        whole, size = self.examples // self.batch_size, self.batch_size
        places = [(round * batches + turn) % whole for turn in range(batches)]
        return [self.held(node).of(place * size, (place + 1) * size) for place in places]

    def keys(self, node: NodeId, round: int, batches: int) -> Keys:
        columns = [one.columns for one in self._batch(node, round, batches)]
        return frozen_keys(np.unique(np.concatenate(columns)))

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return self.table.first(self.watched)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return self.gradients(jobs)

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._gradient(job) for job in jobs]

    def _gradient(self, job: Job) -> Update:
        assert job.keys is not None, "a table's gradient is of rows"
        batches = job.accumulate or 1
        total, losses = np.zeros(job.keys.size), []
        for batch in self._batch(job.node, job.round, batches):
            at = np.searchsorted(job.keys, batch.columns)
            margins = self._margins(batch, job.vector[at])
            chances = np.array([chance(margin) for margin in margins.tolist()])
            losses.append(mean_loss(margins, batch.labels))
            away = (chances - batch.labels)[batch.owners] * (self.value / (self.batch_size * batches))
            total += np.bincount(at, weights=away, minlength=job.keys.size)
        loss = sum(losses) / batches
        if not math.isfinite(loss):
            raise TrainingError(f"node {job.node}, round {job.round}: the loss is {loss}", "Lower train.lr.")
        metrics = {"loss": loss, "steps": 1, "rows": float(self.batch_size * batches)}
        return Update(frozen(total.astype(self.dtype)), self.examples, metrics)

    def _margins(self, examples: SparseExamples, weights: Vector) -> npt.NDArray[np.float64]:
        """Return w . x of each example; each has a feature at least."""
        return np.add.reduceat(weights.astype(np.float64), examples.starts[:-1]) * self.value

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return {"loss", "accuracy"} on the test examples, of watched rows [length] each."""
        at, labels, found = np.searchsorted(self.watched, self._test.columns), self._test.labels, []
        for vector in vectors:
            margins = self._margins(self._test, vector[at])
            right = float(np.mean((margins > 0) == (labels > 0)))
            found.append({"loss": mean_loss(margins, labels), "accuracy": right})
        return found


def chance(margin: float) -> float:
    """Return the sigmoid by the C library, one by one: numpy's own vectors round otherwise on other processors."""
    return 1 / (1 + math.exp(-margin)) if margin > -700 else 0.0


def _sigmoid(margins: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.array([chance(margin) for margin in margins.tolist()])


def mean_loss(margins: npt.NDArray[np.float64], labels: npt.NDArray[np.float64]) -> float:
    """Return the mean of log(1 + exp(-m)) where the label is 1, log(1 + exp(m)) where it is 0."""
    signed = np.where(labels > 0, -margins, margins).tolist()
    return math.fsum(max(one, 0.0) + math.log1p(math.exp(-abs(one))) for one in signed) / len(signed)
