"""The sums of an imputation, and then of one kind of fit to each of its K tables, all K in every round.

The kind of fit has its own layout and task, on its part of the vector, with records whose empty cells are drawn: they
stay at the site.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import PooledSumsTask
from fedgossip.secure.encoding import WIDE, ExactSums, as_vector, integers_of, words_in, words_of
from fedgossip.sites.fits.families.family import NUMBERS
from fedgossip.sites.fits.glm.glm import Values
from fedgossip.sites.fits.imputation.chained_equations import ImputationLayout, Models, SiteCells, SiteTables


class FitLayout(Protocol):
    """The layout of a kind of fit."""

    @property
    def design(self) -> Any: ...
    @property
    def exact(self) -> ExactSums: ...
    @property
    def opened(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class ImputedDesign:
    """What all participants must share; the columns are in the design of the fit."""

    digest: str


@dataclass(frozen=True)
class ImputedLayout:
    """The imputation's numbers, then those of the fit of each table.  Raises ConfigError for too many."""

    imputation: ImputationLayout
    fit: FitLayout
    fit_rounds: int

    def __post_init__(self) -> None:
        assert self.fit.exact.ring_bits == WIDE, "the imputation's numbers have as many bits"
        if (size := len(self.exact.bounds)) > NUMBERS:
            text = f"{size:,} numbers in the sums of {self.sets} tables; there are at most {NUMBERS:,}"
            raise ConfigError(text, "Draw fewer tables, data.missing, or leave columns out, drop=A,B.")

    @property
    def sets(self) -> int:
        return self.imputation.design.sets

    @cached_property
    def design(self) -> ImputedDesign:
        both = f"{self.imputation.design.digest}/{self.fit.design.digest}"
        return ImputedDesign(hashlib.sha256(both.encode()).hexdigest())

    @property
    def rounds(self) -> int:
        return self.imputation.rounds + self.fit_rounds

    @property
    def opened(self) -> tuple[str, ...]:
        each = f"then, for each of {self.sets} tables with drawn cells"
        return (*self.imputation.opened, *(f"{each}, {one}" for one in self.fit.opened))

    @cached_property
    def exact(self) -> ExactSums:
        bounds = (*self.imputation.bounds, *self.fit.exact.bounds * self.sets)
        return ExactSums(bounds, layout=self.design.digest)

    def of_table(self, table: int) -> slice:
        """Return the numbers of a table's fit."""
        first, each = len(self.imputation.bounds), len(self.fit.exact.bounds)
        return slice(first + table * each, first + (table + 1) * each)

    def fits(self, vector: Vector) -> Sequence[Vector]:
        """Return the vector of each table's fit, [K]."""
        width = self.exact.width
        parts = (self.of_table(table) for table in range(self.sets))
        return [vector[part.start * width : part.stop * width] for part in parts]

    def numbers(self, vector: Vector, round: int) -> list[int]:
        """Return the numbers of a round of the imputation.  Raises ConfigError for an invalid vector."""
        part, width = self.imputation.of_round(round), self.exact.width
        words = words_in(vector[part.start * width : part.stop * width])
        if words is None or vector.size != self.exact.length:
            raise ConfigError(
                "the received vector holds no sums of a fit", "Were all started with the same experiment file?"
            )
        return integers_of(words)

    def check(self, vector: Vector) -> bool:
        """Return whether the imputation is complete.

        Raises ConfigError if its sums would disclose records, TrainingError for a model without an end.
        """
        first = self.numbers(vector, 0)
        if not first[0]:
            return False
        if why := self.imputation.disclosed(first):
            text = f"{why}: sums over the records with it would disclose the others"
            raise ConfigError(text, 'Leave a column out, drop=COLUMN, or set data.missing = "mean".')
        models = Models(self.imputation)
        for round in range(1, self.imputation.rounds):
            models.take(self.numbers(vector, round))
        return not models.undrawn


@dataclass(frozen=True, eq=False)
class ImputedRecords:
    """One site's records for the fit, whose empty cells do not count, and its cells for the imputation."""

    records: Any
    cells: SiteCells


@dataclass
class _Imputing:
    """The models of the rounds before the end of `seen`, and the tables of the local sites."""

    seen: Vector
    models: Models
    tables: Mapping[NodeId, SiteTables]
    fits: Sequence[PooledSumsTask] = ()
    parts: tuple[Vector, Sequence[Vector]] = field(default_factory=lambda: (np.empty(0), ()))


class ImputedTask(PooledSumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "Fit"

    def __init__(
        self,
        layout: ImputedLayout,
        sites: Mapping[NodeId, ImputedRecords],
        completed: Callable[[Any, Values], Any],
        task: Callable[[Mapping[NodeId, Any]], PooledSumsTask],
    ) -> None:
        """`completed`: (records, features [m, all]) -> the records of a table; `task`: of a table's fit."""
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self._sites, self._completed, self._task = layout, sites, completed, task
        self._empty = task({})
        self._imputing = self._begun(self.initial(0))

    def _begun(self, vector: Vector) -> _Imputing:
        tables = {node: SiteTables(self.layout.imputation, one.cells) for node, one in self._sites.items()}
        return _Imputing(vector, Models(self.layout.imputation), tables)

    def _until(self, vector: Vector, round: int) -> _Imputing:
        """Return the models and tables before a round, by the sums in `vector`."""
        imputation, width = self.layout.imputation, self.exact.width
        last = min(round, imputation.rounds)
        found = self._imputing
        same = imputation.of_round(found.models.round - 1).stop * width
        if found.models.round > last or not np.array_equal(found.seen[:same], vector[:same]):
            found = self._imputing = self._begun(vector)
        found.seen = vector
        while found.models.round < last:
            found.models.take(self.layout.numbers(vector, found.models.round))
        for table in found.tables.values():
            table.follow(found.models.drawn)
        return found

    def _fits(self, vector: Vector) -> tuple[Sequence[PooledSumsTask], Sequence[Vector]]:
        """Return the task and the vector of each table's fit."""
        found = self._until(vector, self.layout.imputation.rounds)
        if not found.fits:
            found.fits = [
                self._task({
                    node: self._completed(self._sites[node].records, tables.features(k))
                    for node, tables in found.tables.items()
                })
                for k in range(self.layout.sets)
            ]  # fmt: skip
        if found.parts[0] is not vector:
            found.parts = vector, self.layout.fits(vector)
        return found.fits, found.parts[1]

    def sums(self, job: Job) -> Vector:
        """Return a site's sums of a round.  Raises TrainingError if an earlier round collected nothing."""
        imputation = self.layout.imputation
        if job.round and not self.layout.numbers(job.vector, 0)[0]:
            raise self.nothing_there(job.node)
        if job.round >= imputation.rounds:
            tasks, vectors = self._fits(job.vector)
            own = Job(job.node, job.round - imputation.rounds, job.vector)
            parts = [task.sums(Job(own.node, own.round, vector)) for task, vector in zip(tasks, vectors, strict=True)]
            return frozen(np.concatenate([np.zeros(len(imputation.bounds) * self.exact.width), *parts]))
        found = self._until(job.vector, max(job.round, 1))
        table, whole = found.tables[job.node], [0] * len(self.exact.bounds)
        whole[imputation.of_round(job.round)] = (
            table.numbers(imputation.by_round[job.round - 1], found.models.newtons)
            if job.round
            else table.first_numbers()
        )
        return as_vector(words_of(whole))

    def places(self, round: int) -> npt.NDArray[np.bool_]:
        imputation = self.layout.imputation
        found = np.zeros(len(self.exact.bounds), bool)
        if round < imputation.rounds:
            found[imputation.of_round(round)] = True
        else:
            one = self._empty.places(round - imputation.rounds)
            found[len(imputation.bounds) :] = np.tile(one, self.layout.sets)
        return found

    def counts(self) -> npt.NDArray[np.bool_]:
        return np.concatenate([self.layout.imputation.counts, np.tile(self._empty.counts(), self.layout.sets)])

    def uneven(self, node: NodeId, round: int, model: Vector) -> str:
        imputation = self.layout.imputation
        first = self.layout.numbers(model, 0)
        if not round or not first[0]:
            return ""
        if why := imputation.disclosed(first):
            return why
        try:
            if round < imputation.rounds:
                with np.errstate(all="ignore"):
                    found = self._until(model, round)
                    return found.tables[node].uneven(imputation.by_round[round - 1], found.models.newtons)
            found = self._until(model, imputation.rounds)
            if name := found.models.undrawn:
                assert found.models.lost is not None, "a column without a draw has lost a round"
                with np.errstate(all="ignore"):
                    why = found.tables[node].uneven(*found.models.lost)
                return why or f"no sums of column {name!r} are complete"
            tasks, vectors = self._fits(model)
        except np.linalg.LinAlgError:
            return "its sums lead to no point"
        except TrainingError as error:  # a model without an end, by false sums too
            return str(error)
        reasons = (
            task.uneven(node, round - imputation.rounds, vector) for task, vector in zip(tasks, vectors, strict=True)
        )
        return next(filter(None, reasons), "")
