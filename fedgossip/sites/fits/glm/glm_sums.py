"""The whole numbers that sites sum to fit a generalised linear model: only their exact sum is visible.

    first round       records, and the sum of their outcomes, which give the first point; with an offset or weights both
                      as `mean_sums`, and the sums of y^2, of x y and of x x', which count records sharing a category
    further rounds    deviance, g and A at the point computed from all earlier rounds, see `glm`
    last round        of counts, of gamma, and with other errors: Pearson's X^2 at the last point; with robust ones also
                      the sum of r^2 x x', r the residuals of g

A vector has positions for every round, so each receiver computes the next point; an incomplete round is zeros, and is
repeated.  A number x counts as the whole number nearest to x 2^104.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TrainingError, plural
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import PooledSumsTask
from fedgossip.data.columns.declarations import TableEncoding
from fedgossip.secure.encoding import ExactSums, as_vector, integers_of, words_in, words_of
from fedgossip.sites.fits.design_columns import carried_by_one, too_few
from fedgossip.sites.fits.glm.glm import (
    FAMILIES,
    ExponentialFamily,
    Newton,
    PointSums,
    Prior,
    Values,
    influences,
    mean_sums,
    moved,
    residuals,
    site_sums,
    start,
)

ROBUST, QUASI = "robust", "quasi"
"""Errors other than the family's: from the observed squared residuals, or from its variance times X^2 / free."""
SHIFT = 104
"""Number of fractional bits."""
LARGEST = 90
"""Bits of the largest number of one record."""
RECORDS = 1 << 31
"""Maximum number of records of a site."""


class PriorColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column without a coefficient: an offset, or weights."""

    name: str
    place: int
    """Index in the features of a table."""
    mean: float


class GlmDesign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The outcome and columns of the fit; the same at all sites."""

    family: str
    outcome: str
    """The label column."""
    unit: str = ""
    of: str = ""
    """The class whose probability a logistic model predicts."""
    classes: tuple[str, ...] = ()
    """Both classes of a logistic model, `of` the second."""
    encoding: TableEncoding = TableEncoding(())
    """Encoding of a table into the features that `places` indexes."""
    columns: tuple[str, ...]
    """Names of the columns, without the intercept, which precedes them."""
    places: tuple[int, ...]
    """Index of each column in the features that the sites agreed on."""
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    """Scale of each column during the fit."""
    against: tuple[str, ...] = ()
    """Reference categories."""
    constant: tuple[str, ...] = ()
    """Omitted columns: those with one value at every site."""
    agreed: str = ""
    """The hash of the agreed statistics."""
    steps: int
    errors: str | msgspec.UnsetType = msgspec.UNSET
    """ROBUST or QUASI; unset: the family's errors."""
    offset: PriorColumn | msgspec.UnsetType = msgspec.UNSET
    weights: PriorColumn | msgspec.UnsetType = msgspec.UNSET
    cluster: str | msgspec.UnsetType = msgspec.UNSET
    """The column whose values are clusters of records within a site, for robust errors; unset: each record alone."""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"no family {self.family!r}")

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    @property
    def of_family(self) -> ExponentialFamily:
        return FAMILIES[self.family]

    @property
    def prior(self) -> tuple[PriorColumn, ...]:
        """The offset and the weights, if any."""
        return tuple(one for one in (self.offset, self.weights) if one)

    @property
    def typical(self) -> tuple[float, float]:
        """Mean offset and mean weight over all sites."""
        return self.offset.mean if self.offset else 0.0, self.weights.mean if self.weights else 1.0


@dataclass(frozen=True, eq=False)
class SiteRecords:
    """x [m, p + 1], scaled, with its ones; y [m]; cluster [m], from 0, None: each record is one."""

    x: Values
    y: Values
    offset: Prior = 0.0
    weights: Prior = 1.0
    cluster: npt.NDArray[np.int64] | None = None

    def scores(self, family: ExponentialFamily, point: Values) -> Values:
        """Return the gradient of each cluster, [c, p + 1]."""
        residual, _ = residuals(family, self.x, self.y, point, self.offset, self.weights)
        return summed_by(self.x * residual[:, None], self.cluster)


def summed_by(scores: Values, cluster: npt.NDArray[np.int64] | None) -> Values:
    """Return the sums of rows [m, p] by their cluster [m], [c, p]; the rows themselves without clusters."""
    if cluster is None:
        return scores
    found = np.zeros((int(cluster.max()) + 1, scores.shape[1]))
    np.add.at(found, cluster, scores)
    return found


class LastSums(NamedTuple):
    """The sums of the last round."""

    records: int
    pearson: float
    """X^2."""
    meat: Values | None
    """With robust errors the sum over clusters of the products of their gradients, [p + 1, p + 1]."""
    clusters: int


@dataclass(frozen=True)
class GlmLayout:
    """The position of each number in a vector."""

    design: GlmDesign

    @property
    def width(self) -> int:
        return len(self.design.columns) + 1

    @cached_property
    def _upper(self) -> tuple[np.ndarray, np.ndarray]:
        return np.triu_indices(self.width)

    @property
    def rounds(self) -> int:
        return self.design.steps + 1 + self.has_last

    @property
    def has_last(self) -> bool:
        return self.design.family in ("poisson", "gamma") or bool(self.design.errors)

    @property
    def robust(self) -> bool:
        return self.design.errors == ROBUST

    @property
    def opened(self) -> tuple[str, ...]:
        """Sums over all sites that the coordinator receives, in words."""
        text = f"the deviance, {self.width} sums of columns by residuals, {len(self._upper[0])} of products of columns"
        of = f" summed by {self.design.cluster}" if self.design.cluster else ""
        squares = f", and {len(self._upper[0])} of products of columns by residuals{of}, squared" if self.robust else ""
        squares = f", the number of clusters{squares}" if self.design.cluster else squares
        names = " and ".join(one.name for one in self.design.prior)
        more = f"of its squares, {self.width} of columns by it, {len(self._upper[0])} of products of columns"
        prior = f" by {names}; that of exposures by {names}, {more}" if names else ""
        return (
            f"first the number of records, and the sum of {self.design.outcome}{prior}",
            f"then, in each of at most {self.design.steps} steps, {text}",
            *([f"at last the sum of squared residuals in units of their variance{squares}"] if self.has_last else []),
        )

    @cached_property
    def exact(self) -> ExactSums:
        real = RECORDS << LARGEST + SHIFT
        one = (1, RECORDS, real, real, *(real,) * (self.width + len(self._upper[0])))
        clusters = (RECORDS,) * bool(self.design.cluster)
        last = (1, RECORDS, *clusters, real, *(real,) * (len(self._upper[0]) * self.robust)) if self.has_last else ()
        first = 1, RECORDS, *(real,) * (self._first - 2)
        return ExactSums((*first, *one * self.design.steps, *last), layout=self.design.digest)

    @property
    def _first(self) -> int:
        return 3 + (2 + self.width + len(self._upper[0])) * bool(self.design.prior)

    @property
    def _each(self) -> int:
        return 4 + self.width + len(self._upper[0])

    def vector(self, round: int, numbers: list[int]) -> Vector:
        """Return a vector with the numbers of a round, zero elsewhere."""
        whole = [0] * len(self.exact.bounds)
        begin = self.of_round(round).start
        whole[begin : begin + len(numbers)] = numbers
        return as_vector(words_of(whole))

    def of_round(self, round: int) -> slice:
        """Return the indices of the numbers of a round."""
        if round > self.design.steps:
            return slice(self._first + self.design.steps * self._each, len(self.exact.bounds))
        return slice(self._first + (round - 1) * self._each if round else 0, self._first + round * self._each)

    @cached_property
    def counts(self) -> npt.NDArray[np.bool_]:
        """Which numbers are never negative: sites, records, deviance, the diagonal of A."""
        diagonal = self._upper[0] == self._upper[1]
        one = np.concatenate([[True, True, True, False], np.zeros(self.width, bool), diagonal])
        last = [True] * (3 + bool(self.design.cluster)) + diagonal.tolist() * self.robust if self.has_last else []
        more = [True, True, *np.zeros(self.width, bool), *diagonal] if self.design.prior else []
        first = np.array([True, True, False, *more])
        return np.concatenate([first, np.tile(one, self.design.steps), np.array(last, bool)])

    def first_point(self, pooled: Vector) -> float:
        """Return eta of the first point, of the mean only.  Raises TrainingError as `reached`."""
        words = words_in(pooled[: self.of_round(0).stop * self.exact.width])
        assert words is not None, "`reached` has looked"
        return float(self._started(integers_of(words), 0).point[0])

    def _started(self, numbers: list[int], columns: int) -> Newton:
        exposed = real_of(numbers[3]) if self.design.prior else None
        found = start(self.design.of_family, numbers[1], real_of(numbers[2]), columns, exposed)
        if self.design.family == "logistic":  # with an offset no sum gives its best fit without columns
            found.point[0] -= self.design.typical[0]
        return found

    def shared(self, pooled: Vector) -> tuple[float, Values, Values] | None:
        """Return the sums of y^2, of x y [p + 1] and of x x', for the counts of `few_share`; None without a prior."""
        words = words_in(pooled)
        if not self.design.prior or words is None:
            return None
        squares, *others = map(real_of, integers_of(words)[4 : self._first])
        products = np.zeros((self.width, self.width))
        products[self._upper] = products.T[self._upper] = others[self.width :]
        return squares, np.array(others[: self.width]), products

    def site(self, records: SiteRecords, round: int, state: Newton | None) -> Vector:
        """Return a site's sums of a round at the state's point.

        Raises ConfigError for a record too far from all others.
        """
        if round == 0:
            return self.vector(0, [1, len(records.y), *map(whole_of, self._first_sums(records))])
        if state is None:
            return self.vector(round, [])
        if round > self.design.steps:
            return self._last_sums(records, state.last)
        prior = records.offset, records.weights
        found = site_sums(self.design.of_family, records.x, records.y, state.point, *prior)
        reals = [found.deviance, found.least, *found.gradient.tolist(), *found.information[self._upper].tolist()]
        return self.vector(round, [1, found.records, *map(whole_of, reals)])

    def _first_sums(self, records: SiteRecords) -> list[float]:
        x, y = records.x, records.y
        if not self.design.prior:
            return [float(np.sum(y))]
        means = mean_sums(self.design.of_family, y, records.offset, records.weights)
        return [*means, math.fsum(y * y), *(y @ x).tolist(), *(x.T @ x)[self._upper].tolist()]

    def _last_sums(self, records: SiteRecords, point: Values) -> Vector:
        prior = records.offset, records.weights
        _, squares = residuals(self.design.of_family, records.x, records.y, point, *prior)
        scores = records.scores(self.design.of_family, point)
        meat = (scores.T @ scores)[self._upper].tolist() * self.robust
        counts = [1, len(squares), *[len(scores)] * bool(self.design.cluster)]
        return self.vector(self.design.steps + 1, [*counts, *map(whole_of, [math.fsum(squares), *meat])])

    def last(self, pooled: Vector) -> LastSums | None:
        """Return the sums of the last round; None without a complete one."""
        words = words_in(pooled)
        if not self.has_last or words is None:
            return None
        sites, records, *others = integers_of(words)[self.of_round(self.rounds - 1)]
        if not sites:
            return None
        clusters = others.pop(0) if self.design.cluster else records
        squares = others.pop(0)
        meat = np.zeros((self.width, self.width))
        if self.robust:
            meat[self._upper] = meat.T[self._upper] = [real_of(one) for one in others]
        return LastSums(records, real_of(squares), meat if self.robust else None, clusters)

    def reached(self, pooled: Vector, rounds: int) -> Newton | None:
        """Return the state after `rounds`; None if the first is incomplete.

        Raises ConfigError for an invalid vector, TrainingError if all outcomes are equal.
        """
        words = words_in(pooled)
        if words is None or words.size != self.exact.length:
            raise ConfigError(
                "the received vector holds no sums of a fit", "Were all started with the same experiment file?"
            )
        numbers = integers_of(words)
        if not numbers[1]:
            return None
        state = self._started(numbers, self.width - 1)
        for number in range(min(rounds - 1, self.design.steps)):
            sums = self._sums(numbers[self.of_round(number + 1)])
            if sums.records:
                state = moved(state, sums)
        return state

    def _sums(self, numbers: list[int]) -> PointSums:
        sites, records, *reals = numbers
        deviance, least, *others = map(real_of, reals)
        gradient, upper = np.array(others[: self.width]), np.array(others[self.width :])
        information = np.zeros((self.width, self.width))
        information[self._upper] = upper
        information.T[self._upper] = upper
        return PointSums(sites, records, deviance, least, gradient, information)


def whole_of(value: float) -> int:
    """Return a real number as a whole one of a sum.  Raises ConfigError for a number that no sum can represent."""
    shifted = float(np.ldexp(value, SHIFT))
    if not abs(shifted) < float(RECORDS << LARGEST + SHIFT):
        text = "a record so far from the mean of its column that no sum can hold it"
        raise ConfigError(text, "Declare the column's bounds in [data.columns], or correct the record.")
    return int(np.rint(shifted))


def real_of(number: int) -> float:
    """Return the real number that a whole one of a sum represents."""
    return number / (1 << SHIFT)


def known_outcomes(design: GlmDesign, y: Values) -> Values:
    """Return outcomes in the family's form.  Raises ConfigError for outcomes outside the family."""
    family = design.of_family
    if wrong := int((~family.outcomes(y)).sum()):
        text = f"column {design.outcome!r} holds {plural(wrong, 'cell')} other than {family.of}"
        raise ConfigError(text, f"A {family.title} model is of {family.of}; glm:linear is of any.")
    return y


class GlmTask(PooledSumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "Fit"

    def __init__(self, layout: GlmLayout, sites: Mapping[NodeId, SiteRecords], suppress: int = 0) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self._sites, self._suppress = layout, sites, suppress
        self._steps: tuple[Vector, int, Newton | None] | None = None
        """The last sums and their state: all local sites receive the same sums."""

    def sums(self, job: Job) -> Vector:
        """Return a site's sums of a round.  Raises TrainingError if the first round collected nothing."""
        state = self._reached(job.vector, job.round) if job.round else None
        if job.round and state is None:
            raise self.nothing_there(job.node)
        return self.layout.site(self._sites[job.node], job.round, state)

    def _reached(self, pooled: Vector, round: int) -> Newton | None:
        if self._steps is None or self._steps[0] is not pooled or self._steps[1] != round:
            self._steps = pooled, round, self.layout.reached(pooled, round)
        return self._steps[2]

    def places(self, round: int) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(self.exact.bounds), bool)
        found[self.layout.of_round(round)] = True
        return found

    def counts(self) -> npt.NDArray[np.bool_]:
        return self.layout.counts

    def uneven(self, node: NodeId, round: int, model: Vector) -> str:
        try:
            with np.errstate(all="ignore"):
                state = self._reached(model, round) if round else None
        except TrainingError:  # all outcomes are equal: reported when sums are requested
            return ""
        except np.linalg.LinAlgError:
            return "its sums lead to no point"
        if state is None:
            return ""
        if not np.isfinite(state.point).all():
            return "its sums lead to no point"
        point = state.last if round > self.layout.design.steps else state.point
        d, site = self.layout.design, self._sites[node]
        few = uneven_at(d, site, point, self.layout.first_point(model), self._suppress)
        if few or round <= d.steps or not self.layout.robust:
            return few
        squares = site.scores(d.of_family, point).T ** 2
        named = list(zip(("(intercept)", *d.columns), squares, strict=True))
        return carried_by_one(named, "clusters" if d.cluster else "records")


def uneven_at(d: GlmDesign, site: SiteRecords, point: Values, first: float, least: int) -> str:
    """Return, as `too_few`, why sums at a point would disclose few of a site's records; `first`: eta of the first
    point.
    """
    offset, weight = d.typical
    unit = float(influences(d.of_family, np.ones((1, 1)), np.array([first]), offset, weight)[0])
    weights = influences(d.of_family, site.x, point, site.offset, site.weights)
    return too_few(weights, unit, list(zip(("(intercept)", *d.columns), site.x.T, strict=True)), least)
