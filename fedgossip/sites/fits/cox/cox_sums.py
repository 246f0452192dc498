"""The whole numbers that sites sum to fit proportional hazards: only their exact sum is visible.

    counts     records of each stratum; events and censorings at each time of the agreed grid, which determine the
               reported times; if all columns are categories, the same for each combination of categories; with delayed
               entry also the entries before each time, with competing events these
    risk       at a point, at each reported time: d, S0 and S1; of the reported events eta and u            see `cox`
    moments    with the resulting hazards: u again, and M
    last       at the last point: d and S0; numbers of comparable pairs of records at one site, of concordant ones, and
               over records the sums of products of both: the error of their quotient

With Efron's ties E0 and E1 accompany them.  With competing events a record that had one at reported time j stays at
risk at each later time k, with the weight G[k] / G[j]: G is the survival of censoring before each reported time
(`cox_steps`), by Kaplan and Meier.  Sites receive the state (`cox_steps`): stage, point, and hazards.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.data.columns.declarations import TableEncoding
from fedgossip.secure.encoding import ExactSums, as_vector, integers_of, words_in, words_of
from fedgossip.sites.fits.cox.cox import RiskSums, Whole, concordance, exact_totals, hazards_of, linear_predictor, real
from fedgossip.sites.fits.glm.glm import Values
from fedgossip.sites.fits.glm.glm_sums import PriorColumn, summed_by
from fedgossip.sites.fits.survival.survival_sums import counted
from fedgossip.sites.fits.survival.survival_times import Counts, TimeCounts

BRESLOW, EFRON = "breslow", "efron"
ROBUST = "robust"
LAST_FIRST = 7
"""Numbers of the last sum before those of each reported time."""
REPORTED_TIMES = 100
"""Maximum number of reported times."""
LARGEST = 1 << 180
"""Maximum magnitude of a site's number."""

Numbers = Sequence[int]


class CoxDesign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The outcome and columns of the fit; the same at all sites."""

    time: str
    event: str
    unit: str = ""
    """Unit of the times."""
    grid: tuple[float, ...]
    least: int
    """Minimum number of events at a reported time, per stratum with any event then."""
    ties: str = BRESLOW
    """Treatment of tied events: BRESLOW or EFRON."""
    ridge: float = 0.0
    """Weight of b'b, of scaled columns, in -2 log L."""
    strata_column: str = ""
    strata: tuple[str, ...] = ("",)
    """Names of the strata, each with its own hazard; "" alone: one stratum."""
    encoding: TableEncoding = TableEncoding(())
    """Encoding of a table into the features that `places` indexes."""
    columns: tuple[str, ...]
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
    codes: tuple[tuple[int, ...], ...] | msgspec.UnsetType = msgspec.UNSET
    """Columns of each source column, if all columns are categories: the categories without the reference."""
    errors: str | msgspec.UnsetType = msgspec.UNSET
    """ROBUST; unset: the model's errors."""
    cluster: str | msgspec.UnsetType = msgspec.UNSET
    """The column whose values are clusters of records within a site, for robust errors; unset: each record alone."""
    entry: PriorColumn | msgspec.UnsetType = msgspec.UNSET
    """The column with the time of a record's entry, after which it is at risk; unset: all are from the start."""
    coarse: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether all columns have few values, and one of them more than two: exact results would determine how many
    records have which, so a fit has two digits of its errors.
    """
    competing: float | msgspec.UnsetType = msgspec.UNSET
    """The code of a competing event: the hazard is then that of Fine and Gray's subdistribution."""
    suppress: int | msgspec.UnsetType = msgspec.UNSET
    """With `codes`: the smallest number of records of a combination that leave between two reported times."""

    @property
    def title(self) -> str:
        """Its hazards and outcome, in words."""
        unit = f" [{self.unit}]" if self.unit else ""
        until = f"{self.time}{unit} until {self.event} = 1"
        if self.competing is msgspec.UNSET:
            return f"proportional hazards, {until}"
        return f"proportional subdistribution hazards (Fine and Gray), {until}, {self.competing:g} competing"

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"cox" + msgspec.json.encode(self)).hexdigest()


@dataclass(frozen=True, eq=False)
class TimedRecords:
    """m records: scaled columns [p][m], times [m], their grid indices [m], events [m], indices of strata [m]; times of
    entry [m], and the grid index of the first later time [m]; None: all records are there from the start.
    """

    columns: Sequence[Values]
    times: Values
    places: Counts
    events: npt.NDArray[np.bool_]
    strata: Whole
    entries: Values | None = None
    entered: Counts | None = None
    cluster: Counts | None = None
    """Cluster of each record, [m], from 0; None: each record is one."""
    competing: npt.NDArray[np.bool_] | None = None
    """Which records have a competing event, [m]."""


@dataclass(frozen=True)
class CoxLayout:
    """The position of each number in a sum."""

    design: CoxDesign

    @property
    def width(self) -> int:
        return len(self.design.columns)

    @property
    def strata(self) -> int:
        return len(self.design.strata)

    @property
    def tied(self) -> bool:
        """Whether sums over the events of a time accompany those over all at risk."""
        return self.design.ties == EFRON

    @property
    def robust(self) -> bool:
        """Whether sites receive the means of records at risk at the end, for the squares of each record's gradient."""
        return self.design.errors == ROBUST

    @property
    def late(self) -> bool:
        """Whether records enter after the start."""
        return bool(self.design.entry)

    @property
    def competes(self) -> bool:
        """Whether records with a competing event stay at risk, by the survival of censoring, which sites receive."""
        return self.design.competing is not msgspec.UNSET

    @property
    def reported_times(self) -> int:
        """Maximum number of reported times."""
        return min(REPORTED_TIMES, len(self.design.grid))

    @cached_property
    def upper(self) -> tuple[Whole, Whole]:
        return np.triu_indices(self.width)

    @cached_property
    def combinations(self) -> int:
        """Number of combinations of categories; 0 with a column of numbers."""
        return math.prod(len(one) + 1 for one in self.design.codes) if self.design.codes else 0

    @property
    def opened(self) -> tuple[str, ...]:
        """Sums over all sites that the coordinator receives, in words."""
        d, of = self.design, f" of each of {self.strata} strata" if self.design.strata_column else ""
        of_codes = f", and of each of {self.combinations} combinations of categories" if d.codes else ""
        text = (
            f"at each of at most {self.reported_times} reported times{of}, {self.width + 1} sums over all at risk then"
        )
        text += " and as many over those with their event then" if self.tied else ""
        robust = (
            f"for robust errors {self.width} sums at each reported time{of} over all at risk, which sites see too, and "
        )
        of_each = f"gradients summed by {d.cluster}, and their number" if d.cluster else "the records' gradients"
        robust += f"{len(self.upper[0])} of products of {of_each}"
        return (
            f"first the number of records{of}{of_codes}, and at {len(d.grid)} times of {d.time} those of events and "
            + (f"censorings, and of entries by {d.entry.name}" if d.entry else "censorings")
            + (f", and of {d.event} = {d.competing:g}" if self.competes else ""),
            f"then, in each of at most {d.steps} steps, {text}; {len(self.upper[0])} of products of columns over all",
            "last pairs of records at one site, those in the predicted order, and squares of each record's number",
            *([robust] if self.robust else []),
        )

    @cached_property
    def numbers(self) -> int:
        """Number of elements of the longest sum."""
        kinds = 2 + self.late + self.competes
        counts = self.strata * (1 + self.combinations) * (1 + kinds * len(self.design.grid))
        more = 1 + self.width if self.tied else 0
        risk = 2 + self.width + self.strata * self.reported_times * (2 + self.width + more)
        moments = 1 + self.width + len(self.upper[0])
        last = (3 if self.tied else 2) + self.width * self.robust
        return max(counts, risk, moments, LAST_FIRST + last * self.strata * self.reported_times)

    @cached_property
    def exact(self) -> ExactSums:
        return ExactSums((LARGEST,) * self.numbers, layout=self.design.digest)

    def vector(self, numbers: Numbers) -> Vector:
        """Return a vector of the numbers, padded with zeros."""
        return as_vector(words_of([*numbers, *(0,) * (self.numbers - len(numbers))]))

    def integers(self, vector: Vector) -> list[int]:
        """Return the numbers of a sum.  Raises ConfigError for a vector without such numbers."""
        words = words_in(vector)
        if words is None or words.size != self.exact.length:
            raise ConfigError(
                "the received vector holds no sums of hazards", "Were all started with the same experiment file?"
            )
        return integers_of(words)

    # --- contents of sums ------------------------------------------------------------------------------------------

    def counts(self, numbers: Numbers) -> Sequence[TimeCounts]:
        """Return the numbers of records, events and censorings of each stratum, then of its combinations."""
        times, kinds = len(self.design.grid), 2 + self.late + self.competes
        found = []
        for group in range(self.strata * (1 + self.combinations)):
            records, *others = numbers[group * (1 + kinds * times) :][: 1 + kinds * times]
            events, censored, *more = np.array(others, np.int64).reshape(kinds, times)
            entered = more.pop(0) if self.late else None
            found.append(TimeCounts(records, events, censored, entered, *more))
        return found

    def risk(self, numbers: Numbers, published: int) -> RiskSums:
        records, eta, *others = numbers
        shift, others = others[: self.width], others[self.width :]
        cells = self.strata * published
        count = 2 + self.width + (1 + self.width if self.tied else 0)
        parts = [np.array(others[k * cells : (k + 1) * cells], object) for k in range(count)]
        events, *reals = (part.reshape(self.strata, published) for part in parts)
        s0, *s1 = (_reals(one) for one in reals[: 1 + self.width])
        found = RiskSums(records, real(eta), _reals(shift), events.astype(np.int64), s0, np.stack(s1, axis=-1))
        if not self.tied:
            return found
        e0, *e1 = (_reals(one) for one in reals[1 + self.width :])
        return replace(found, e0=e0, e1=np.stack(e1, axis=-1))

    def moments(self, numbers: Numbers) -> tuple[int, Values, Values]:
        """Return the records, u [p] and M [p, p]."""
        whole = self._symmetric(numbers[1 + self.width : 1 + self.width + len(self.upper[0])])
        return numbers[0], _reals(numbers[1 : 1 + self.width]), whole

    def _symmetric(self, numbers: Numbers) -> Values:
        whole = np.zeros((self.width, self.width))
        whole[self.upper] = whole.T[self.upper] = _reals(numbers)
        return whole

    def last(self, numbers: Numbers, published: int) -> tuple[RiskSums, tuple[float, ...]]:
        """Return the sums at the last point, S1 only for robust errors; comparable and concordant pairs, and
        `concordance`'s sums over records.
        """
        records, eta, pairs, right, *squares = numbers[:LAST_FIRST]
        cells, numbers = self.strata * published, numbers[LAST_FIRST:]
        shape, width = (self.strata, published), self.width
        count = 2 + self.tied + width * self.robust
        events, *reals = (np.array(numbers[k * cells : (k + 1) * cells], object).reshape(shape) for k in range(count))
        s0, *others = map(_reals, reals)
        s1 = np.stack(others, axis=-1) if self.robust else np.zeros((*shape, width))
        e0 = others if self.tied else []
        found = RiskSums(records, real(eta), np.zeros(width), events.astype(np.int64), s0, s1, *e0)
        return found, (pairs, right / 2, *squares)

    def squares(self, numbers: Numbers) -> tuple[int, int, Values]:
        """Return the records, their clusters, and the sum of U U' over these, [p, p]."""
        return numbers[0], numbers[1], self._symmetric(numbers[2 : 2 + len(self.upper[0])])


def _reals(numbers: npt.ArrayLike) -> Values:
    whole = np.asarray(numbers, object)
    return np.array([real(one) for one in whole.ravel().tolist()], np.float64).reshape(whole.shape)


class SiteHazards:
    """One site's numbers of each stage."""

    def __init__(self, layout: CoxLayout, records: TimedRecords) -> None:
        self.layout, self.records = layout, records

    def counts(self) -> Numbers:
        r, found = self.records, list[int]()
        strata = [r.strata == stratum for stratum in range(self.layout.strata)]
        codes, many = self._combinations(), self.layout.combinations
        for rows in (*strata, *(rows & (codes == one) for rows in strata for one in range(many))):
            entered = None if r.entered is None else r.entered[rows]
            one = counted(len(self.layout.design.grid), r.places[rows], r.events[rows], entered)
            found += [one.records, *one.events.tolist(), *one.censored.tolist()]
            found += [] if one.entered is None else one.entered.tolist()
            if r.competing is not None:
                inside = r.competing[rows] & (r.places[rows] < len(one.events))
                found += np.bincount(r.places[rows][inside], minlength=len(one.events)).tolist()
        return found

    def _combinations(self) -> Whole:
        """Return each record's combination of categories, [m]; a number with two values counts as categories."""
        found = np.zeros(len(self.records.times), np.int64)
        for one in self.layout.design.codes or ():
            found *= len(one) + 1
            for number, column in enumerate(one, 1):
                found += number * (self.records.columns[column] > 0)
        return found

    def risk(self, ends: Whole, point: Values, had: npt.NDArray[np.bool_], uncensored: Values | None = None) -> Numbers:
        """Return the numbers of the reported times that end at these grid indices, at a point [p].

        `had`: which strata have events at which time, [s, k].  Others are 0: the difference of two such neighbours
        would disclose the few records that leave without an event between them.  `uncensored`: G at each time, [k].
        """
        published, index, eta, w = self._at(ends, point)
        r, cells = self.records, self._cells(index, len(ends))
        parts = [self._events(cells, published, len(ends))]
        weighted = [w, *(w * column for column in r.columns)]
        parts += [self._at_risk(one, cells, ends, had, uncensored) for one in weighted]
        parts += [self._of_events(one, cells, published, len(ends)) for one in weighted] if self.layout.tied else []
        return [
            len(r.times),
            *self._total(eta[published]),
            *self._shift(published),
            *(one for part in parts for one in part),
        ]

    def moments(
        self,
        ends: Whole,
        point: Values,
        hazard: Values,
        spared: Values | None = None,
        uncensored: Values | None = None,
    ) -> Numbers:
        """`hazard`: at each reported time, [s, k]; `spared`: its reduction for records with their event then."""
        published, index, _, w = self._at(ends, point)
        before = np.concatenate([np.zeros((len(hazard), 1)), np.cumsum(hazard, axis=1)], axis=1)
        share = before[self.records.strata, np.minimum(index + 1, len(ends))]
        share = share - before[self.records.strata, self._entered(ends)]
        if spared is not None:
            share[published] -= spared[self.records.strata[published], index[published]]
        share += self._after(hazard[0], index, uncensored)
        weight = w * share
        columns = self.records.columns
        found = [self._total(weight * columns[a] * columns[b])[0] for a, b in zip(*self.layout.upper, strict=True)]
        return [len(self.records.times), *self._shift(published), *found]

    def last(self, ends: Whole, point: Values, had: npt.NDArray[np.bool_], uncensored: Values | None = None) -> Numbers:
        published, index, eta, w = self._at(ends, point)
        r, cells = self.records, self._cells(index, len(ends))
        pairs, right, squares = 0, 0, [0, 0, 0]
        times = r.times if r.competing is None else np.where(r.competing, np.inf, r.times)  # Wolbers et al.
        for stratum in range(self.layout.strata):
            rows = r.strata == stratum
            entries = None if r.entries is None else r.entries[rows]
            more, of_them, own = concordance(times[rows], r.events[rows], eta[rows], entries)
            pairs, right, squares = pairs + more, right + of_them, [a + b for a, b in zip(squares, own, strict=True)]
        parts = [self._events(cells, published, len(ends)), self._at_risk(w, cells, ends, had, uncensored)]
        parts += [self._of_events(w, cells, published, len(ends))] if self.layout.tied else []
        parts += (
            [self._at_risk(w * one, cells, ends, had, uncensored) for one in r.columns] if self.layout.robust else []
        )
        found = [len(r.times), *self._total(eta[published]), pairs, right, *squares]
        return [*found, *(one for part in parts for one in part)]

    def squares(
        self, ends: Whole, point: Values, hazard: Values, means: Values, uncensored: Values | None = None
    ) -> Numbers:
        u = self.scores(ends, point, hazard, means, uncensored)
        products = (self._total(u[:, a] * u[:, b])[0] for a, b in zip(*self.layout.upper, strict=True))
        return [len(self.records.times), len(u), *products]

    def scores(
        self, ends: Whole, point: Values, hazard: Values, means: Values, uncensored: Values | None = None
    ) -> Values:
        """Return the gradient of each record, or cluster, [m, p], by the hazard [s, k] and the mean of records at risk
        [s, k, p].
        """
        published, index, _, w = self._at(ends, point)
        r, zero = self.records, np.zeros((len(hazard), 1, means.shape[-1]))
        both = (hazard[..., None] + 0 * means, hazard[..., None] * means)
        until, moved = (
            whole[r.strata, np.minimum(index + 1, len(ends))] - whole[r.strata, self._entered(ends)]
            for whole in (np.concatenate([zero, np.cumsum(one, axis=1)], axis=1) for one in both)
        )
        until, moved = (
            share + np.stack([self._after(of, index, uncensored) for of in one[0].T], axis=-1)
            for share, one in zip((until, moved), both, strict=True)
        )
        x, seen = np.stack(r.columns, axis=-1), means[r.strata, np.minimum(index, len(ends) - 1)]
        found = np.where(published[:, None], x - seen, 0.0) - w[:, None] * (x * until - moved)
        return summed_by(np.asarray(found), r.cluster)

    def _after(self, hazard: Values, index: Whole, uncensored: Values | None) -> Values:
        """Return the sum of `hazard` [k] over the times after each record's competing event, by weight, [m]; else 0."""
        r = self.records
        if uncensored is None or r.competing is None:
            return np.zeros(len(r.times))
        left = np.concatenate([np.cumsum((uncensored * hazard)[::-1])[::-1], [0.0]])
        stays, at = r.competing & (index < len(hazard)), np.minimum(index, len(hazard) - 1)
        return np.where(stays, left[at + 1] / uncensored[at], 0.0)

    def _at(self, ends: Whole, point: Values) -> tuple[npt.NDArray[np.bool_], Whole, Values, Values]:
        """Return which events are reported, each record's reported time, eta and its hazard, [m] each."""
        index = np.searchsorted(ends, self.records.places, side="left")
        eta = linear_predictor(self.records.columns, point)
        return self.records.events & (index < len(ends)), index, eta, hazards_of(eta)

    def _entered(self, ends: Whole) -> Whole:
        """Return the first reported time at which each record is at risk, if it is then still there, [m]."""
        entered = self.records.entered
        return np.zeros(len(self.records.times), np.int64) if entered is None else np.searchsorted(ends, entered)

    def _cells(self, index: Whole, published: int) -> Whole:
        """Return each record's cell by stratum and reported time; the last cell is after the last time."""
        return np.asarray(self.records.strata * (published + 1) + index)

    def _events(self, cells: Whole, published: npt.NDArray[np.bool_], times: int) -> Numbers:
        found = np.bincount(cells[published], minlength=self.layout.strata * (times + 1))
        return found.reshape(-1, times + 1)[:, :-1].ravel().tolist()

    def _of_events(self, values: Values, cells: Whole, published: npt.NDArray[np.bool_], times: int) -> Numbers:
        totals = exact_totals(values[published], cells[published], self.layout.strata * (times + 1))
        return [one for begin in range(0, len(totals), times + 1) for one in totals[begin : begin + times]]

    def _at_risk(
        self, values: Values, cells: Whole, ends: Whole, had: npt.NDArray[np.bool_], uncensored: Values | None
    ) -> Numbers:
        """Return the sums over the records at risk at each time that `had` events: per stratum, of those who entered
        before it and leave at it or later; with weights, of those with a competing event before it.
        """
        times = len(ends)
        leave, enter = (
            exact_totals(values, of, self.layout.strata * (times + 1))
            for of in (cells, self._cells(self._entered(ends), times))
        )
        found = []
        for begin, events in zip(range(0, len(leave), times + 1), had.tolist(), strict=True):
            each = 0
            for place, there in enumerate(events, begin):
                each += enter[place]
                found.append(each if there else 0)
                each -= leave[place]
        if uncensored is None or self.records.competing is None:
            return found
        stays = self.records.competing & (cells < times)  # of one stratum: a cell is a time
        begun, own = cells[stays], values[stays]
        for time in np.flatnonzero(had[0]).tolist():
            before = begun < time
            found[time] += self._total(own[before] * (uncensored[time] / uncensored[begun[before]]))[0]
        return found

    def _shift(self, published: npt.NDArray[np.bool_]) -> Numbers:
        return [self._total(column[published])[0] for column in self.records.columns]

    def _total(self, values: Values) -> list[int]:
        return exact_totals(values, np.zeros(len(values), np.int64), 1)
