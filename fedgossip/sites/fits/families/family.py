"""A family of statistics by named sums: the protocol, the position of each number, the task of a site, and the file.

    round r     arrays by `SumsFamily.numbers`, in their order, after the numbers of sites and of records

A vector has positions for every round; incomplete ones are zeros.  A number x counts as the whole number nearest to x
2^104.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.agreed_table import AgreedTable, read_clusters, read_for_fit
from fedgossip.data.agreed.sums_task import PooledSumsTask
from fedgossip.data.columns.declarations import TableEncoding
from fedgossip.data.table_files import TableFile
from fedgossip.secure.encoding import ExactSums, as_vector, integers_of, words_in, words_of
from fedgossip.sites.fits.design_columns import check_counted, check_outcome, design_columns
from fedgossip.sites.fits.glm.glm import Values, scaled
from fedgossip.sites.fits.glm.glm_sums import LARGEST, RECORDS, SHIFT, real_of, whole_of

FORMAT = 1
NUMBERS = 1 << 17
"""Maximum number of whole numbers in a vector: 8 MiB."""


FEW = "rounded: fewer than {} records share two categories, or one and an outcome, and exact errors would count them"


class SumBlock(NamedTuple):
    """An array of numbers of a round: its size, and whether they are counts, or reals that are never negative."""

    size: int
    counts: bool = False
    positive: bool = False


Numbers = Mapping[str, npt.ArrayLike]
"""A site's numbers of a round, by the names of its blocks."""


class FamilyDesign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Columns and options of a statistic; the same at all sites."""

    family: str
    options: Mapping[str, str] = {}
    """The options in model.source, in alphabetical order."""
    outcome: str = ""
    """The label column, or the column that groups records."""
    classes: tuple[str, ...] = ()
    """Categories of the outcome."""
    encoding: TableEncoding = TableEncoding(())
    columns: tuple[str, ...] = ()
    """Names of the columns, without an intercept."""
    places: tuple[int, ...] = ()
    """Index of each column in the features that the sites agreed on."""
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    """Scale of each column during the computation."""
    against: tuple[str, ...] = ()
    """Reference categories."""
    constant: tuple[str, ...] = ()
    """Omitted columns."""
    suppress: int = 1
    agreed: str = ""
    """The hash of the agreed statistics."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"family" + msgspec.json.encode(self)).hexdigest()


Cell = str | float | int | None


class ResultTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a result; None for undetermined or undisclosed values."""

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    forest: tuple[str, str, str, float] | None = None
    """Columns of estimate, lower and upper bound, for a forest plot, and the value without effect."""
    curve: tuple[str, str] | None = None
    """Columns of the two axes, for a curve."""
    boxes: tuple[str, str, str, str, str] | None = None
    """Columns of five ascending quantiles, for a box plot of the rows: the whiskers, the quartiles, the median."""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.head) for row in self.rows):
            raise ValueError(f"{self.name}: a row of another length than the head")
        if unknown := {*(self.forest or ())[:-1], *(self.curve or ()), *(self.boxes or ())} - set(self.head):
            raise ValueError(f"{self.name}: columns {', '.join(sorted(unknown))} are drawn, and there are none")


class FamilyFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="tables"):
    """The contents of tables.json."""

    format: int = FORMAT
    design: FamilyDesign
    sites: int
    least: int
    """Minimum number of sites in a sum."""
    records: int
    title: str
    tables: tuple[ResultTable, ...]
    remarks: tuple[str, ...] = ()
    problem: str = ""
    """Why the result is unfinished; "" for a finished one."""

    def column(self, table: int, name: str) -> list[Cell]:
        place = self.tables[table].head.index(name)
        return [row[place] for row in self.tables[table].rows]


class FamilyResult(NamedTuple):
    """A family's result from its sums."""

    title: str
    tables: Sequence[ResultTable]
    remarks: Sequence[str] = ()
    problem: str = ""


class FamilyModel(NamedTuple):
    """A model that predicts: the rows of a linear layer, [outputs, p + 1], of scaled columns after their ones."""

    source: str
    """The source of the layer's model: a softmax, one number, or one rate."""
    rows: Values


class SumsFamily(Protocol):
    """One statistic."""

    @property
    def name(self) -> str:
        """First word of model.source."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of task with suitable labels."""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of options in model.source."""

    def design(self, options: Mapping[str, str], agreed: AgreedTable) -> FamilyDesign:
        """Return the columns and options.  Raises ConfigError for invalid options, and for columns that sums would
        disclose.
        """

    def numbers(self, d: FamilyDesign) -> Sequence[Mapping[str, SumBlock]]:
        """Return the numbers of each round."""

    def opened(self, d: FamilyDesign) -> tuple[str, ...]:
        """Return the sums over all sites that the coordinator receives, in words."""

    def read(self, d: FamilyDesign, agreed: AgreedTable, file: TableFile) -> Any:
        """Return a site's records.  Raises ConfigError for an unsuitable file, and for too few records."""

    def records(self, site: Any) -> int:
        """Return the number of records."""

    def sums(self, d: FamilyDesign, site: Any, round: int, pooled: Sequence[PooledRound]) -> Numbers:
        """Return a site's numbers of a round, by the sums of all earlier rounds, some of which may be empty."""

    def uneven(self, d: FamilyDesign, site: Any, round: int, pooled: Sequence[PooledRound]) -> str:
        """Return the sums of a round dominated by too few of a site's records, in words; "" without any."""

    def result(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyResult | None:
        """Return the tables of the sums; None after too few complete rounds."""

    @property
    def predicts(self) -> bool:
        """Whether its result predicts records: whether it is a `PredictingFamily`."""


class PredictingFamily(SumsFamily, Protocol):
    """A statistic whose result is a model of records."""

    def model(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyModel | None:
        """Return the predicting model; None if the result is unfinished."""


@dataclass(frozen=True, eq=False)
class PooledRound:
    """Sums of a round over all sites; empty for an incomplete one."""

    sites: int
    records: int
    of: Mapping[str, npt.NDArray[Any]]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.of[name]


@dataclass(frozen=True)
class FamilyLayout:
    """The position of each number in a vector.  Raises ConfigError for too many numbers."""

    design: FamilyDesign
    family: SumsFamily

    @cached_property
    def blocks(self) -> Sequence[Mapping[str, SumBlock]]:
        head = {"sites": SumBlock(1, counts=True), "records": SumBlock(1, counts=True)}
        found = [head | dict(round) for round in self.family.numbers(self.design)]
        if (size := sum(block.size for one in found for block in one.values())) > NUMBERS:
            text = f"{size:,} numbers in the sums; there are at most {NUMBERS:,}"
            raise ConfigError(text, "Leave columns out, drop=A,B, or agree on fewer categories.")
        return found

    @property
    def rounds(self) -> int:
        return len(self.blocks)

    @property
    def opened(self) -> tuple[str, ...]:
        return self.family.opened(self.design)

    @cached_property
    def exact(self) -> ExactSums:
        bounds = list[int]()
        for one in self.blocks:
            for name, block in one.items():
                most = 1 if name == "sites" else RECORDS if block.counts else RECORDS << LARGEST + SHIFT
                bounds += [most] * block.size
        return ExactSums(tuple(bounds), layout=self.design.digest)

    def of_round(self, round: int) -> slice:
        """Return the indices of the numbers of a round."""
        sizes = [sum(block.size for block in one.values()) for one in self.blocks]
        return slice(sum(sizes[:round]), sum(sizes[: round + 1]))

    @cached_property
    def counts(self) -> npt.NDArray[np.bool_]:
        """Which numbers are never negative."""
        blocks = [block for one in self.blocks for block in one.values()]
        return np.repeat([one.counts or one.positive for one in blocks], [one.size for one in blocks])

    def vector(self, round: int, records: int, numbers: Numbers) -> Vector:
        """Return a vector with a site's numbers in a round, else zero.  Raises ConfigError for an extreme record."""
        whole, at = [0] * len(self.exact.bounds), self.of_round(round).start
        given = {"sites": [1], "records": [records], **numbers}
        for name, block in self.blocks[round].items():
            values = np.asarray(given[name]).ravel()
            assert len(values) == block.size, f"{name}: {len(values)} of {block.size}"
            whole[at : at + block.size] = [int(one) if block.counts else whole_of(float(one)) for one in values]
            at += block.size
        return as_vector(words_of(whole))

    def pooled(self, vector: Vector) -> Sequence[PooledRound]:
        """Return the sums of each round.  Raises ConfigError for an invalid vector."""
        words = words_in(vector)
        if words is None or words.size != self.exact.length:
            raise ConfigError(
                "the received vector holds no sums of a fit", "Were all started with the same experiment file?"
            )
        numbers, at, found = integers_of(words), 0, list[PooledRound]()
        for one in self.blocks:
            of = dict[str, npt.NDArray[Any]]()
            for name, block in one.items():
                here = numbers[at : at + block.size]
                of[name] = np.array(here, np.int64) if block.counts else np.array([real_of(value) for value in here])
                at += block.size
            found.append(PooledRound(int(of["sites"][0]), int(of["records"][0]), of))
        return found


class FamilyTask(PooledSumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "Fit"

    def __init__(self, layout: FamilyLayout, sites: Mapping[NodeId, Any], suppress: int) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self._sites, self._suppress = layout, sites, suppress
        self._last: tuple[Vector, Sequence[PooledRound]] | None = None

    def _pooled(self, vector: Vector) -> Sequence[PooledRound]:
        if self._last is None or self._last[0] is not vector:
            self._last = vector, self.layout.pooled(vector)
        return self._last[1]

    def sums(self, job: Job) -> Vector:
        """Return a site's sums of a round.  Raises TrainingError if the first round collected nothing."""
        pooled = self._pooled(job.vector)[: job.round]
        if job.round and not pooled[0].sites:
            raise self.nothing_there(job.node)
        site, family = self._sites[job.node], self.layout.family
        numbers = family.sums(self.layout.design, site, job.round, pooled)
        return self.layout.vector(job.round, family.records(site), numbers)

    def places(self, round: int) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(self.exact.bounds), bool)
        found[self.layout.of_round(round)] = True
        return found

    def counts(self) -> npt.NDArray[np.bool_]:
        return self.layout.counts

    def uneven(self, node: NodeId, round: int, model: Vector) -> str:
        pooled = self._pooled(model)[:round]
        if round and not pooled[0].sites:
            return ""
        try:
            with np.errstate(all="ignore"):
                return self.layout.family.uneven(self.layout.design, self._sites[node], round, pooled)
        except np.linalg.LinAlgError:
            return "its sums lead to no point"


def fit_of(layout: FamilyLayout, agreed: AgreedTable, vector: Vector, least: int) -> FamilyFit | None:
    """Return the result of the sums; None after too few complete rounds."""
    pooled = layout.pooled(vector)
    last = next((one for one in reversed(pooled) if one.sites), None)
    found = None if last is None or last.sites < least else layout.family.result(layout.design, pooled, agreed)
    if found is None or last is None:
        return None
    return FamilyFit(
        design=layout.design, sites=last.sites, least=least, records=last.records, title=found.title,
        tables=tuple(found.tables), remarks=tuple(found.remarks), problem=found.problem,
    )  # fmt: skip


def regression_design(family: str, options: Mapping[str, str], agreed: AgreedTable) -> FamilyDesign:
    """Return the design of a regression on all agreed columns.

    Raises ConfigError as `design_columns`, and for disclosing classes or events.
    """
    labels = agreed.schema.labels
    check_outcome(agreed)
    check_counted(agreed, labels)
    c = design_columns(agreed, family)
    return FamilyDesign(
        family=family, options=options, outcome=",".join(one.name for one in labels), classes=labels[0].categories,
        encoding=agreed.encoding, columns=c.names, places=c.places, mean=c.mean, deviation=c.deviation,
        against=c.against, constant=c.constant, suppress=agreed.suppress, agreed=agreed.digest,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class SiteSample:
    """One site's records: x [m, p + 1] scaled, with its ones; y [m, labels]: numbers, or the index of the class;
    cluster [m], from 0, None: each record is one.
    """

    x: Values
    y: Values
    cluster: npt.NDArray[np.int64] | None = None


def read_sample(d: FamilyDesign, agreed: AgreedTable, file: TableFile, kind: str) -> SiteSample:
    """Return a site's records for `regression_design`.  Raises ConfigError as `read_for_fit`."""
    found = read_for_fit(file, agreed, kind)
    cluster = read_clusters(file, agreed, d.options["cluster"]) if "cluster" in d.options else None
    return SiteSample(scaled(d, found.x), np.asarray(found.y, np.float64).reshape(len(found), -1), cluster)


def upper(width: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the indices of the upper triangle of a symmetric matrix, in the order of sending."""
    rows, columns = np.triu_indices(width)
    return rows, columns


def symmetric(numbers: Values, width: int) -> Values:
    """Return the symmetric matrix [width, width] with this upper triangle."""
    found = np.zeros((width, width))
    found[upper(width)] = numbers
    found.T[upper(width)] = numbers
    return found


def option_number(where: str, name: str, text: str, low: float, high: float) -> float:
    """Return the number of an option of model.source.  Raises ConfigError for a number outside `low` to `high`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ConfigError(f"{where}{name}={text}", f"It is a number from {low:g} to {high:g}.")
    return value
