"""Logistic regression on examples with few nonzero among very many features, as in clicks and words; only numpy.

    features   known by rank, rank k about as often as 1 / k; an example has a fixed number, each with 1 / sqrt(number)
    labels     1 with probability sigmoid(w* . x), with a quarter of w* nonzero
    model      a table [features, 1], initially 0, at servers (`SparseLogistic`) or as a whole vector per participant
    step       w[keys] <- w[keys] - rate * gradient, keys the rows of the batch
    processes  1: steps here; P, parallel = "hogwild": `processes/table_worker`, on one line of shared memory

A worker processes its examples in order, pass after pass with the same batches, which the key-cache filter relies on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.keyed_rows import KeyedTable, Keys, frozen_keys
from fedgossip.base.seeds import integer, stream
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, Update
from fedgossip.data.objectives import SPARSE
from fedgossip.learning.processes.ipc import COUNTER, LINE, Race, Setup, TrainOrder, TrainReply, race_of
from fedgossip.learning.processes.processes import SILENT_SECONDS, StandingGroup
from fedgossip.learning.settings import HOGWILD, TrainSettings

WHOLE_MAX = 20_000_000
"""Maximum number of elements of a table that each participant stores whole: 80 MB."""

PROGRAM = "fedgossip.learning.processes.table_worker"
"""The program of each process that steps on the shared table."""

TESTED = 256
"""Number of test examples of the run."""
SPREAD = 2_654_435_761
"""A prime: rank times it, modulo the features, distributes common features over all servers."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseExamples:
    """Compressed rows: example e has columns[starts[e] : starts[e + 1]], ascending, all with the same value."""

    starts: npt.NDArray[np.int64]
    columns: Keys
    labels: npt.NDArray[np.float64]

    def select(self, first: int, stop: int) -> SparseExamples:
        """Return some of the examples, as views."""
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
        self._test = self._draw("sparse-test", 0, TESTED)
        self.watched = frozen_keys(np.unique(self._test.columns))
        self.length = self.watched.size
        about = f"sparse-logistic/{features}/{nonzeros}/{seed}"
        self.schema = hashlib.sha256(about.encode()).hexdigest()[:16]

    def _draw(self, purpose: str, node: NodeId, count: int) -> SparseExamples:
        """Draw examples by exact arithmetic: identical on all processors."""
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

    def get_examples(self, node: NodeId) -> SparseExamples:
        """Return the examples of a node, drawn on the first request."""
        if node not in self._held:
            self._held[node] = self._draw("sparse-examples", node, self.examples)
        return self._held[node]

    def _batch(self, node: NodeId, round: int, batches: int) -> list[SparseExamples]:
        """Return the batches of a job; a pass ends with its last whole batch."""
        whole, size = self.examples // self.batch_size, self.batch_size
        places = [(round * batches + turn) % whole for turn in range(batches)]
        return [self.get_examples(node).select(place * size, (place + 1) * size) for place in places]

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
    """Return the sigmoid by the C library, one by one: numpy's vector code rounds differently on other processors."""
    return 1 / (1 + math.exp(-margin)) if margin > -700 else 0.0


def _sigmoid(margins: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.array([chance(margin) for margin in margins.tolist()])


def mean_loss(margins: npt.NDArray[np.float64], labels: npt.NDArray[np.float64]) -> float:
    """Return the mean of log(1 + exp(-m)) for label 1, log(1 + exp(m)) for label 0."""
    signed = np.where(labels > 0, -margins, margins).tolist()
    return math.fsum(max(one, 0.0) + math.log1p(math.exp(-abs(one))) for one in signed) / len(signed)


@dataclass(frozen=True, eq=False)
class RowBatch:
    """A batch by its rows: `keys` of the table, `at` the index in `keys` of each column entry."""

    keys: Keys
    at: npt.NDArray[np.intp]
    examples: SparseExamples


class SparseBatches:
    """The batches of nodes, computed on the first request and cached: each repeats in every pass."""

    def __init__(self, problem: SparseLogistic, settings: TrainSettings) -> None:
        self.problem, self._made = problem, dict[tuple[NodeId, int], RowBatch]()
        self.whole = problem.examples // problem.batch_size
        passes = max(1, round((settings.local_epochs or 1) * self.whole))
        self.steps = settings.local_steps or passes

    def iterate(self, node: NodeId, round: int, rank: int = 0, size: int = 1) -> Iterator[RowBatch]:
        """Yield the batches of a job in order; for one of `size` processes every size-th, starting at `rank`."""
        for turn in range(rank, self.steps, size):
            yield self.get(node, (round * self.steps + turn) % self.whole)

    def get(self, node: NodeId, place: int) -> RowBatch:
        """Return the batch at a position in the node's examples."""
        if (node, place) not in self._made:
            wide = self.problem.batch_size
            examples = self.problem.get_examples(node).select(place * wide, (place + 1) * wide)
            keys, at = np.unique(examples.columns, return_inverse=True)
            self._made[node, place] = RowBatch(frozen_keys(keys), at, examples)
        return self._made[node, place]


def step_on(line: npt.NDArray[np.float32], batch: RowBatch, value: float, rate: float) -> float:
    """Step on the batch's rows of the line, in place, and return the loss before the step; all features have this
    value.
    """
    loss, gradient = slope(line[batch.keys], batch, value)
    line[batch.keys] -= (rate * gradient).astype(np.float32)
    return loss


def slope(weights: Vector, batch: RowBatch, value: float) -> tuple[float, npt.NDArray[np.float64]]:
    """Return (mean loss, gradient [keys]) of a batch at the weights of its rows."""
    examples = batch.examples
    margins = np.add.reduceat(weights[batch.at].astype(np.float64), examples.starts[:-1]) * value
    chances = np.array([chance(margin) for margin in margins.tolist()])
    away = (chances - examples.labels)[examples.owners] * (value / len(examples.labels))
    gradient: npt.NDArray[Any] = np.bincount(batch.at, weights=away, minlength=batch.keys.size)
    return mean_loss(margins, examples.labels), gradient


class TableSteps(Protocol):
    """Takes the steps of a job on the given vector; returns the resulting vector."""

    def __call__(self, job: Job, rate: float) -> tuple[npt.NDArray[np.float32], Race]: ...


def stepped_table(job: Job, rate: float, steps: TableSteps, count: int, examples: int) -> Update:
    """Return the update of a job by `count` steps on the whole table.  Raises TrainingError for a loss that is not
    finite.
    """
    without_terms(job)
    after, race = steps(job, rate)
    if not math.isfinite(race.loss) or not np.isfinite(after).all():
        raise TrainingError(f"node {job.node}, round {job.round}: the loss is {race.loss}", "Lower train.lr.")
    metrics = {"loss": race.loss, "steps": count, "rate": rate}
    return Update(frozen(after - job.vector), examples, metrics, logged=race.logged)


class SparseSteps:
    """A GradientTask.  Raises ConfigError for settings other than plain steps, and for a table too large to store."""

    dtype = np.dtype(np.float32)

    def __init__(self, problem: SparseLogistic, settings: TrainSettings, rounds: int) -> None:
        self.problem, self.settings, self._rounds = problem, settings, rounds
        self.length = problem.table.rows
        check_steps(self.length, settings, f"task.kind = {SPARSE}")
        self.batches = SparseBatches(problem, settings)
        about = f"{SPARSE}/whole/{problem.schema}"
        self.schema = hashlib.sha256(about.encode()).hexdigest()[:16]
        several = settings.parallel == HOGWILD
        self.steps: TableSteps = self._race() if several else self._alone

    def _race(self) -> HogwildSteps:
        problem, settings = self.problem, self.settings
        setup = Setup(
            rank=0, size=settings.processes, device="cpu", store="", source=source_of(problem), base=None,
            seed=problem.seed, classes=2, kind=SPARSE, loss="logistic", metrics=(), label_scale=((), ()),
            vocabulary=None, settings=asdict(settings), examples=[], silence=SILENT_SECONDS,
        )  # fmt: skip
        return HogwildSteps(setup, {}, self.length)

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return frozen(np.zeros(self.length, self.dtype))

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._trained(job) for job in jobs]

    def _trained(self, job: Job) -> Update:
        rate = self.settings.rate(job.round, self._rounds)
        return stepped_table(job, rate, self.steps, self.batches.steps, self.problem.examples)

    def _alone(self, job: Job, rate: float) -> tuple[npt.NDArray[np.float32], Race]:
        line, value = job.vector.copy(), self.problem.value
        return line, Race(
            fmean(step_on(line, one, value, rate) for one in self.batches.iterate(job.node, job.round)), {}
        )

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._gradient(job) for job in jobs]

    def _gradient(self, job: Job) -> Update:
        if self.settings.parallel == HOGWILD:
            advice = "Use a method whose participants train: gossip, [coordinator], parallel.outer."
            raise ConfigError(f'parallel = "{HOGWILD}": its processes take steps, and a gradient takes none', advice)
        batches, total, losses = job.accumulate or 1, np.zeros(self.length), []
        for turn in range(batches):
            batch = self.batches.get(job.node, (job.round * batches + turn) % self.batches.whole)
            loss, gradient = slope(job.vector[batch.keys], batch, self.problem.value)
            total[batch.keys] += gradient / batches
            losses.append(loss)
        if not math.isfinite(loss := fmean(losses)):
            raise TrainingError(f"node {job.node}, round {job.round}: the loss is {loss}", "Lower train.lr.")
        metrics = {"loss": loss, "steps": 1, "rows": float(self.problem.batch_size * batches)}
        return Update(frozen(total.astype(self.dtype)), self.problem.examples, metrics)

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return {"loss", "accuracy"} on the test examples, of whole vectors."""
        return self.problem.evaluate([vector[self.problem.watched] for vector in vectors])


class HogwildSteps:
    """Processes that step on one line of shared memory without waiting; see `processes/hogwild`."""

    def __init__(
        self,
        setup: Setup,
        examples: Mapping[str, npt.NDArray[Any]],
        length: int,
        given: Callable[[Job], Mapping[str, npt.NDArray[Any]]] = lambda _: {},
    ) -> None:
        """`given`: returns arrays that the processes need for a job, in addition to the line [length]."""
        self.standing, self._given = StandingGroup(setup, examples, PROGRAM), given
        self._shapes: dict[str, tuple[str, tuple[int, ...]]] = {LINE: ("float32", (length,))}
        if setup.train.count_lost:
            self._shapes[COUNTER] = ("int32", (length,))

    def __call__(self, job: Job, rate: float) -> tuple[npt.NDArray[np.float32], Race]:
        """Write the vector to shared memory, let all processes step on it, and return the result."""
        with self.standing.working() as group:
            found = group.found.room(self._shapes)
            views: Mapping[str, npt.NDArray[Any]] = group.found.views(found)
            views[LINE][:] = job.vector
            if COUNTER in views:
                views[COUNTER][:] = 0
            answers = group.ask(
                TrainOrder(job.node, job.round, rate, None, 1, group.given.lay(self._given(job)), found)
            )
            race = race_of([one for one in answers if isinstance(one, TrainReply)], views)
            return views[LINE].copy(), race


def without_terms(job: Job) -> None:
    """Raise ConfigError for terms that affect every element."""
    if job.terms is not None and job.terms.active:
        text = "a term for every element at each step, with a table of which a step uses a few rows"
        raise ConfigError(text, "Take fedavg, or another algorithm without such terms.")


def source_of(problem: SparseLogistic) -> str:
    """Return the source text of the problem: "sparse-logistic:N-ROWS-EXAMPLES-NONZEROS-BATCH"."""
    sizes = problem.n, problem.table.rows, problem.examples, problem.nonzeros, problem.batch_size
    return f"{SPARSE}:{'-'.join(map(str, sizes))}"


def problem_of(source: str, seed: int) -> SparseLogistic:
    """Return the problem of a source text."""
    n, rows, examples, nonzeros, batch = (int(word) for word in source.partition(":")[2].split("-"))
    return SparseLogistic(n, rows, examples, nonzeros, batch, seed=seed)


def check_steps(numbers: int, settings: TrainSettings, what: str) -> None:
    """Raise ConfigError for a table too large to store whole, and for steps that affect more than the rows
    of a batch.
    """
    if numbers > WHOLE_MAX:
        text = f"{what}: every participant would hold the whole table, {numbers} numbers, and {WHOLE_MAX} are the most"
        raise ConfigError(text, 'Lower it, or set parallel.method = "parameter-server", whose workers hold none.')
    if not settings.plain or settings.accumulate > 1:
        advice = "Leave train.optimizer, momentum, weight_decay, clip_norm and accumulate out."
        raise ConfigError(f"{what} takes plain steps of a batch each", advice)
    if settings.processes > 1 and settings.parallel != HOGWILD:
        text = f"train.processes = {settings.processes} of {what} with parallel = {settings.parallel!r}"
        raise ConfigError(text, f'Set train.parallel = "{HOGWILD}".')
