"""The problem of `sparse_logistic` as a whole vector: every participant has the table, and steps on the rows it needs.

task       a LocalTask of every kind of run but parameter servers, whose workers hold no table
step       of one batch: w[keys] <- w[keys] - rate * gradient, keys the rows that the batch has: no other is touched
processes  1: the steps are made here; P, parallel = "hogwild": by `processes/sparse_worker`, on one line of shared
memory
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
from fedgossip.base.keyed_rows import Keys, frozen_keys
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, Update
from fedgossip.data.objectives import SPARSE
from fedgossip.learning.linear.sparse_logistic import SparseExamples, SparseLogistic, chance, mean_loss
from fedgossip.learning.processes.ipc import COUNTER, LINE, Setup, TrainOrder, TrainReply
from fedgossip.learning.processes.lost_updates import Race, race_of
from fedgossip.learning.processes.processes import SILENT_SECONDS, StandingGroup
from fedgossip.learning.settings import HOGWILD, TrainSettings

WHOLE_MAX = 20_000_000
"""Maximum number of elements of a table that each participant stores whole: 80 MB."""

PROGRAM = "fedgossip.learning.processes.sparse_worker"


@dataclass(frozen=True, eq=False)
class RowBatch:
    """A batch by its rows: `keys` of the table, `at` the place of each column entry among them."""

    keys: Keys
    at: npt.NDArray[np.intp]
    examples: SparseExamples


class SparseBatches:
    """The batches of nodes, computed on the first request, and kept: each repeats in every pass."""

    def __init__(self, problem: SparseLogistic, settings: TrainSettings) -> None:
        self.problem, self._made = problem, dict[tuple[NodeId, int], RowBatch]()
        self.whole = problem.examples // problem.batch_size
        passes = max(1, round((settings.local_epochs or 1) * self.whole))
        self.steps = settings.local_steps or passes

    def of(self, node: NodeId, round: int, rank: int = 0, size: int = 1) -> Iterator[RowBatch]:
        """Yield the batches of a job in order; for one of `size` processes every size-th, from `rank` on."""
        for turn in range(rank, self.steps, size):
            yield self.at(node, (round * self.steps + turn) % self.whole)

    def at(self, node: NodeId, place: int) -> RowBatch:
        """Return the batch at a place of the node's examples."""
        if (node, place) not in self._made:
            wide = self.problem.batch_size
            examples = self.problem.held(node).of(place * wide, (place + 1) * wide)
            keys, at = np.unique(examples.columns, return_inverse=True)
            self._made[node, place] = RowBatch(frozen_keys(keys), at, examples)
        return self._made[node, place]


def step_on(line: npt.NDArray[np.float32], batch: RowBatch, value: float, rate: float) -> float:
    """Step on the batch's rows of the line, in place, and return its loss before; all features have this value."""
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
    """Takes the steps of a job on the given vector; returns the vector after them."""

    def __call__(self, job: Job, rate: float) -> tuple[npt.NDArray[np.float32], Race]: ...


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
        return HogwildSteps(setup, {}, PROGRAM, self.length)

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return frozen(np.zeros(self.length, self.dtype))

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._trained(job) for job in jobs]

    def _trained(self, job: Job) -> Update:
        without_terms(job)
        rate = self.settings.rate(job.round, self._rounds)
        after, race = self.steps(job, rate)
        if not math.isfinite(race.loss) or not np.isfinite(after).all():
            raise TrainingError(f"node {job.node}, round {job.round}: the loss is {race.loss}", "Lower train.lr.")
        metrics = {"loss": race.loss, "steps": self.batches.steps, "rate": rate}
        return Update(frozen(after - job.vector), self.problem.examples, metrics, logged=race.logged)

    def _alone(self, job: Job, rate: float) -> tuple[npt.NDArray[np.float32], Race]:
        line, value = job.vector.copy(), self.problem.value
        return line, Race(fmean(step_on(line, one, value, rate) for one in self.batches.of(job.node, job.round)), {})

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._gradient(job) for job in jobs]

    def _gradient(self, job: Job) -> Update:
        if self.settings.parallel == HOGWILD:
            advice = "Use a method whose participants train: gossip, [coordinator], parallel.outer."
            raise ConfigError(f'parallel = "{HOGWILD}": its processes take steps, and a gradient takes none', advice)
        batches, total, losses = job.accumulate or 1, np.zeros(self.length), []
        for turn in range(batches):
            batch = self.batches.at(job.node, (job.round * batches + turn) % self.batches.whole)
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
        program: str,
        length: int,
        given: Callable[[Job], Mapping[str, npt.NDArray[Any]]] = lambda _: {},
    ) -> None:
        """`program` is each of the processes; `given`: arrays that they need of a job, beside the line [length]."""
        self.standing, self._given = StandingGroup(setup, examples, program), given
        self._shapes: dict[str, tuple[str, tuple[int, ...]]] = {LINE: ("float32", (length,))}
        if setup.train.count_lost:
            self._shapes[COUNTER] = ("int32", (length,))

    def __call__(self, job: Job, rate: float) -> tuple[npt.NDArray[np.float32], Race]:
        """Write the vector into shared memory, let all processes step on it, and return the result."""
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
        text = "a pull or a correction of every element at each step, of a table of which a step touches a few rows"
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
    """Raise ConfigError for a table too large to store whole, and for steps on more than the rows of a batch."""
    if numbers > WHOLE_MAX:
        text = f"{what}: every participant would hold the whole table, {numbers} numbers, and {WHOLE_MAX} are the most"
        raise ConfigError(text, 'Lower it, or set parallel.method = "parameter-server", whose workers hold none.')
    if not settings.plain or settings.accumulate > 1:
        advice = "Leave train.optimizer, momentum, weight_decay, clip_norm and accumulate out."
        raise ConfigError(f"{what} takes plain steps of a batch each", advice)
    if settings.processes > 1 and settings.parallel != HOGWILD:
        text = f"train.processes = {settings.processes} of {what} with parallel = {settings.parallel!r}"
        raise ConfigError(text, f'Set train.parallel = "{HOGWILD}".')
