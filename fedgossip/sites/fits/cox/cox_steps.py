"""The coordinator's part in a fit of proportional hazards: the sums of a round advance the state.

    counts  ->  risk  ->  moments  ->  risk  -> ...  ->  last  ->  [squares]  ->  over
                  ^          |  sums over other records than before, so the point is requested again
                  +----------+

Sites receive a state with the point and the hazards, and only before the squares of robust errors also S1 / S0.  An
incomplete round is requested again.  In a fit all sums are over the same sites; the plan requires it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.federated.base import Aggregate, Vectors
from fedgossip.algorithms.federated.fedavg import ServerModel
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import SumsTask
from fedgossip.secure.session_history import AskedBefore
from fedgossip.sites.fits.cox.cox import RiskSums, Whole, linear_predictor
from fedgossip.sites.fits.cox.cox_sums import REPORTED_TIMES, CoxLayout, Numbers, SiteHazards, TimedRecords
from fedgossip.sites.fits.design_columns import carried_by_one, too_few
from fedgossip.sites.fits.glm.glm import Newton, PointSums, Values, halved, is_worse, moved
from fedgossip.sites.fits.survival.survival_times import TimeCounts, ends_of_risk_sets

COUNTS, RISK, MOMENTS, LAST, OVER, SQUARES = range(6)
PAIRS = "pairs", "right", "pairs_pairs", "pairs_right", "right_right"
"""Numbers of the concordance; products as of `concordance`, of twice the right ones."""
NEAR = 1e-4
"""Tolerance, relative to a step, between a point and a site's own result: two machines differ by at most 2e-16 / 1e-11
(directions below SINGULAR get a ridge).
"""
CLOSE = 1e-20
"""Newton's g' A^-1 g below which the fit ends: an estimate then moves by 1e-10 of its error."""
LEVEL = 1e-3
"""Largest gradient, in units of the root of its variance, at which robust errors are computed."""
AGAIN = 10
"""Maximum number of incomplete rounds, in addition to the needed ones."""


def rounds_of(layout: CoxLayout) -> int:
    return 2 + layout.robust + 2 * layout.design.steps + AGAIN


def _shapes(layout: CoxLayout) -> Mapping[str, tuple[int, ...]]:
    sizes = layout.width, layout.strata, layout.reported_times
    return _shapes_of(*sizes, tied=layout.tied, robust=layout.robust, late=layout.late, competes=layout.competes)


@cache  # of numbers: a design with declared columns has no hash
def _shapes_of(
    p: int, s: int, k: int, *, tied: bool, robust: bool, late: bool, competes: bool
) -> Mapping[str, tuple[int, ...]]:
    single = (
        "stage", "told", "unused", "smallest", "sites", "fewest", "records", "steps", "left", "deviance", "null",
        "null_records", "points", "asked_records", "asked_sites", "asked_deviance", "likelihood", *PAIRS,
    )  # fmt: skip
    return {
        **dict.fromkeys(single, ()),
        "ends": (k,),
        **dict.fromkeys(("point", "best", "gradient", "silent", "asked_shift", "asked_gradient"), (p,)),
        **dict.fromkeys(("information", "asked_between"), (p, p)),
        **dict.fromkeys(("at_risk", "events", "hazard"), (s, k)),
        "entered": (s, k) if late else (0,),
        "uncensored": (k,) if competes else (0,),
        "spared": (s, k) if tied else (0,),
        **dict.fromkeys(("timed_shift", "timed_gradient"), (p,) if tied else (0,)),
        "means": (s, k, p) if robust else (0,),
        "squares": (p, p) if robust else (0,),
        "clusters": () if robust else (0,),
    }


def length_of(layout: CoxLayout) -> int:
    """Return the number of elements of the state."""
    return sum(math.prod(shape) for shape in _shapes(layout).values())


class FittedHazards:
    """The state in a vector, and its transitions; it may change `x`, which is a copy."""

    def __init__(self, layout: CoxLayout, x: Vector) -> None:
        """Raises ConfigError for a vector that is no state."""
        if x.shape != (length_of(layout),) or x.dtype != np.float64:
            raise ConfigError("the received state holds no fit", "Were all started with the same experiment file?")
        self.layout, self.x = layout, np.array(x)
        self._views, begin = dict[str, npt.NDArray[np.floating]](), 0
        for name, shape in _shapes(layout).items():
            size = math.prod(shape)
            self._views[name] = self.x[begin : begin + size].reshape(shape)
            begin += size

    def __getitem__(self, name: str) -> Values:
        return self._views[name]  # type: ignore[return-value]

    def number(self, name: str) -> int:
        return int(self._views[name])

    def _set(self, **values: npt.ArrayLike) -> None:
        for name, value in values.items():
            self._views[name][...] = value

    @property
    def stage(self) -> int:
        return self.number("stage")

    @property
    def ends(self) -> Whole:
        """Indices of the reported times in the grid."""
        return self["ends"][: self.number("told")].astype(np.int64)

    @property
    def hazard(self) -> Values:
        """Hazard at each reported time, [s, k]."""
        return self["hazard"][:, : self.number("told")]

    @property
    def spared(self) -> Values | None:
        """Efron's reduction of the hazard for records with their event at that time, [s, k]; None with
        Breslow's ties.
        """
        return self["spared"][:, : self.number("told")] if self.layout.tied else None

    @property
    def uncensored(self) -> Values | None:
        """The survival of censoring before each reported time, [k], of all records; None without competing events."""
        return self["uncensored"][: self.number("told")] if self.layout.competes else None

    @property
    def time_weights(self) -> Values:
        """1 - S before each reported time, [k], S the survival of all records by Kaplan and Meier."""
        risk, events = (self[name][:, : self.number("told")].sum(axis=0) for name in ("at_risk", "events"))
        return 1 - np.cumprod(np.concatenate([[1.0], 1 - events[:-1] / risk[:-1]]))

    @property
    def newton(self) -> Newton:
        point, best = np.array(self["point"]), np.array(self["best"])
        if not self.number("records"):
            return Newton(point, best)
        sums = PointSums(
            self.number("sites"), self.number("records"), float(self["deviance"]), 0.0, np.array(self["gradient"]),
            np.array(self["information"]),
        )  # fmt: skip
        silent = tuple(np.flatnonzero(self["silent"]).tolist())
        return Newton(point, best, sums, float(self["left"]), self.number("steps"), sums, silent)

    # --- the step -------------------------------------------------------------------------------------------------

    def take(self, numbers: Numbers, sites: int) -> None:
        """Apply the sums of a round over `sites`."""
        published = len(self.ends)
        match self.stage:
            case 0:
                self._choose_times(self.layout.counts(numbers), sites)
            case 1:
                self._take_risk(self.layout.risk(numbers, published), sites)
            case 2:
                self._take_moments(*self.layout.moments(numbers))
            case 3:
                self._take_last(*self.layout.last(numbers, published), sites)
            case 5:
                self._take_squares(*self.layout.squares(numbers))

    def _choose_times(self, counts: Sequence[TimeCounts], sites: int) -> None:
        """Choose the reported times; without any the fit is over."""
        self._set(sites=sites, fewest=sites)
        strata, combined = counts[: self.layout.strata], counts[self.layout.strata :]
        events = sum(int(one.events.sum()) for one in strata)
        least = max(self.layout.design.least, -(-events // REPORTED_TIMES))
        fewest = self.layout.design.suppress or 1
        ends = ends_of_risk_sets(strata, least, apart=self.layout.tied, inside=combined, fewest=fewest)
        if not ends:
            self._set(stage=OVER)
            return
        self["ends"][: len(ends)] = ends
        self._set(told=len(ends), stage=RISK, unused=sum(int(one.events[ends[-1] + 1 :].sum()) for one in strata))
        for stratum, one in enumerate(strata):
            gone, there = np.cumsum(one.events + one.censored)[ends], one.there[1:][ends]
            happened = np.diff(np.cumsum(one.events)[ends], prepend=0)
            risk = there - np.concatenate([[0], gone[:-1]])
            if self.layout.late:
                self["entered"][stratum, : len(ends)] = np.diff(there, prepend=0)
            self["at_risk"][stratum, : len(ends)] = risk
            self["events"][stratum, : len(ends)] = happened
        if self.layout.competes:
            self["uncensored"][: len(ends)] = _uncensored(strata[0], ends)
        self._set(smallest=self._least_between())

    def _least_between(self) -> int:
        """Return the fewest events of a reported time: exact differences of two sums would count the records without an
        event.
        """
        published = len(self.ends)
        risk, events = (self[name][:, :published] for name in ("at_risk", "events"))
        found = events[events > 0]
        if self.layout.tied:  # so that none, or `least`, leave without an event between two times
            entered = self["entered"][:, 1:published] if self.layout.late else np.zeros((len(risk), published - 1))
            gone = risk[:, :-1] - risk[:, 1:] - events[:, :-1] + entered
            found = np.concatenate([found, gone[gone > 0], entered[entered > 0]])
        return int(found.min())

    def _take_risk(self, sums: RiskSums, sites: int) -> None:
        """Apply the sums at the point: the hazards follow, or a shorter step."""
        if not sums.records or not self._known(sums):
            return
        self._set(points=self["points"] + 1, fewest=min(self.number("fewest"), sites))
        point, ridge, newton = self["point"], self.layout.design.ridge, self.newton
        deviance = -2 * sums.log_likelihood + ridge * float(point @ point)
        if is_worse(newton, sums.records, deviance):
            self._go_to(halved(newton))
            self._set(stage=RISK if self.number("steps") < self.layout.design.steps else OVER)
            return
        published = len(self.ends)
        self["hazard"][:, :published] = sums.hazard
        if self.layout.tied:
            self["spared"][:, :published] = sums.spared
            self._take_timed(sums)
        self._set(
            stage=MOMENTS, asked_records=sums.records, asked_sites=sites, asked_deviance=deviance,
            asked_shift=sums.shift, asked_gradient=sums.gradient - ridge * point, asked_between=sums.between,
        )  # fmt: skip

    def _take_timed(self, sums: RiskSums) -> None:
        """Apply the gradient by time: the sums over events at the first point, 0, are those of the columns."""
        weights = self.time_weights
        if sums.e1 is not None and not self.number("null_records"):
            self._set(timed_shift=np.einsum("k,skp->p", weights, sums.e1))
        self._set(timed_gradient=self["timed_shift"] - sums.timed_means(weights))

    def _known(self, sums: RiskSums) -> bool:
        return bool((sums.s0[sums.events > 0] > 0).all())

    def _take_moments(self, records: int, shift: Values, moments: Values) -> None:
        """Take a step, if the sites are those of the sums at the point."""
        if records != self.number("asked_records") or not np.array_equal(shift, self["asked_shift"]):
            self._set(stage=RISK)
            return
        information = moments - self["asked_between"] + self.layout.design.ridge * np.eye(self.layout.width)
        sums = PointSums(
            self.number("asked_sites"), records, float(self["asked_deviance"]), 0.0, np.array(self["asked_gradient"]),
            information,
        )  # fmt: skip
        if not self.number("null_records"):
            self._set(null=sums.deviance, null_records=records)
        newton = moved(self.newton, sums)
        self._go_to(newton)
        self._set(
            sites=sums.sites, records=records, deviance=sums.deviance, gradient=sums.gradient, information=information
        )
        if newton.left <= CLOSE:
            self._set(stage=LAST)
        elif newton.steps >= self.layout.design.steps:
            self._set(stage=LAST if newton.converged else OVER)
        else:
            self._set(stage=RISK)

    # --- permitted states -----------------------------------------------------------------------------------------

    def broken(self, after: FittedHazards) -> str:
        """Return why a state cannot follow from this one; "" if it can.  Sums sent to no site are not checked."""
        free: tuple[str, ...]
        match self.stage:
            case 0:
                of_times = "ends", "at_risk", "events", "entered", "uncensored"
                free = "stage", "told", "unused", "smallest", "sites", "fewest", *of_times
                fits = after.stage in (RISK, OVER) and self._alike(after, free) and after.is_survival()
            case 1:
                published = (
                    "asked_records",
                    "asked_sites",
                    "asked_deviance",
                    "asked_shift",
                    "asked_gradient",
                    "asked_between",
                    "timed_shift",
                    "timed_gradient",
                )
                seen = "stage", "points", "fewest"
                fits = after.stage == MOMENTS and self._alike(after, (*seen, *published, "hazard", "spared"))
                fits = fits or (after.stage in (RISK, OVER) and self._halved()._alike(after, seen))
            case 2:
                fits = (after.stage == RISK and self._alike(after, ("stage",))) or self._stepped_to(after)
            case 3:
                free = "stage", "hazard", "events", "likelihood", *PAIRS, "fewest", "means", "points"
                ends = (RISK, SQUARES if self.layout.robust else OVER)
                fits = after.stage in ends and self._alike(after, free) and after.is_level()
            case 5:
                fits = after.stage in (RISK, OVER) and self._alike(after, ("stage", "squares", "clusters"))
            case _:
                fits = False
        return "" if fits else "the point is not that of the step, or fixed values have changed"

    def is_survival(self) -> bool:
        """Whether the survival of censoring, if there is one, begins with 1 and never grows: no weight is above 1."""
        of = self.uncensored
        return of is None or not len(of) or bool(of[0] == 1 and of[-1] > 0 and (np.diff(of) <= 0).all())

    def is_level(self) -> bool:
        """Whether the means of records at risk, if present, are those of a point without gradient."""
        if self.stage != SQUARES:
            return True
        told = len(self.ends)
        shift = np.einsum("sk,skp->p", self["events"][:, :told], self["means"][:, :told])
        shift += self.layout.design.ridge * self["point"]
        return bool((np.abs(shift - self["asked_shift"]) <= LEVEL * np.sqrt(np.diag(self["information"]))).all())

    def _alike(self, after: FittedHazards, free: Sequence[str]) -> bool:
        return all(np.array_equal(self[name], after[name]) for name in self._views if name not in free)

    def _halved(self) -> FittedHazards:
        found = FittedHazards(self.layout, self.x)
        found._go_to(halved(self.newton))
        return found

    def _stepped_to(self, after: FittedHazards) -> bool:
        found = FittedHazards(self.layout, self.x)
        sums = PointSums(
            self.number("asked_sites"), self.number("asked_records"), float(self["asked_deviance"]), 0.0,
            np.array(self["asked_gradient"]), np.array(after["information"]),
        )  # fmt: skip
        try:
            with np.errstate(all="ignore"):
                newton = moved(self.newton, sums)
        except np.linalg.LinAlgError:
            return False
        found._go_to(newton)
        found._set(sites=sums.sites, records=sums.records, deviance=sums.deviance, gradient=sums.gradient)
        free = "stage", "point", "left", "steps", "silent", "information", "null", "null_records"
        near = np.abs(newton.point - after["point"]) <= NEAR * np.abs(newton.point - newton.best).max(initial=0.0)
        return after.stage in (RISK, LAST, OVER) and found._alike(after, free) and bool(near.all())

    def _go_to(self, newton: Newton) -> None:
        silent = np.zeros(self.layout.width)
        silent[list(newton.silent)] = 1
        left = min(newton.left, 1e300)
        self._set(point=newton.point, best=newton.best, left=left, steps=newton.steps, silent=silent)

    def _take_last(self, sums: RiskSums, pairs: Sequence[float], sites: int) -> None:
        if sums.records != self.number("records"):
            self._set(stage=RISK)
            return
        published = len(self.ends)
        self["hazard"][:, :published] = sums.hazard
        self["events"][:, :published] = sums.events
        self._set(likelihood=sums.log_likelihood, stage=OVER, **dict(zip(PAIRS, pairs, strict=True)))
        self._set(fewest=min(self.number("fewest"), sites))
        if self.layout.robust:
            there = sums.events > 0
            self["means"][:, :published][there] = sums.s1[there] / sums.s0[there][:, None]
            self._set(stage=SQUARES, points=self["points"] + 1)

    def _take_squares(self, records: int, clusters: int, squares: Values) -> None:
        if records != self.number("records"):
            self._set(stage=RISK)
            return
        self._set(squares=squares, clusters=clusters, stage=OVER)


def _uncensored(counts: TimeCounts, ends: Sequence[int]) -> Values:
    """Return the survival of censoring before each reported time, by Kaplan and Meier, [k]: events precede censorings,
    times are rounded up to the reported ones.

    Source: Fine and Gray, A proportional hazards model for the subdistribution of a competing risk, JASA 94 (1999).
    """
    assert counts.competing is not None, "the layout has competing events"
    gone = np.cumsum(counts.events + counts.censored)[list(ends)]
    censored = np.diff(np.cumsum(counts.censored - counts.competing)[list(ends)], prepend=0)
    left = counts.records - gone  # after each time
    share = np.divide(left, left + censored, out=np.ones(len(left)), where=censored > 0)
    return np.concatenate([[1.0], np.cumprod(share[:-1])])


@dataclass(frozen=True)
class CoxServer:
    """The coordinator's step: sums of a round become the next state."""

    layout: CoxLayout

    def start(self, x: Vector) -> ServerModel:
        return ServerModel(x)

    def broadcast(self, state: ServerModel) -> Vectors:
        return (state.x,)

    def step(self, state: ServerModel, aggregate: Aggregate) -> ServerModel:
        return replace(state, x=stepped(self.layout, state.x, aggregate.vectors[0], aggregate.clients))

    def over(self, x: Vector) -> bool:
        return FittedHazards(self.layout, x).stage == OVER


def stepped(layout: CoxLayout, x: Vector, sums: Vector, sites: int) -> Vector:
    """Return the state after a round with these sums over `sites`.  Raises ConfigError for no sums."""
    fitted = FittedHazards(layout, x)
    fitted.take(layout.integers(sums), sites)
    return frozen(fitted.x)


def initial(layout: CoxLayout) -> Vector:
    return frozen(np.zeros(length_of(layout)))


def requested_sums(site: SiteHazards, x: Vector) -> Vector:
    """Return a site's sums that the state requests; zeros when it is over."""
    fitted = FittedHazards(site.layout, x)
    ends, point = fitted.ends, np.array(fitted["point"])
    had, kept = fitted["events"][:, : len(ends)] > 0, fitted.uncensored
    match fitted.stage:
        case 0:
            numbers = site.counts()
        case 1:
            numbers = site.risk(ends, point, had, kept)
        case 2:
            numbers = site.moments(ends, point, fitted.hazard, fitted.spared, kept)
        case 3:
            numbers = site.last(ends, point, had, kept)
        case 5:
            numbers = site.squares(ends, point, fitted.hazard, fitted["means"][:, : len(ends)], kept)
        case _:
            numbers = []
    return site.layout.vector(numbers)


def fitted_alone(layout: CoxLayout, site: SiteHazards) -> Vector:
    """Return the final state of a fit of one table: that of several sites is equal to the bit, except `sites`."""
    x = initial(layout)
    for _ in range(rounds_of(layout)):
        x = stepped(layout, x, requested_sums(site, x), 1)
    return x


class CoxTask(SumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "Fit"

    def __init__(self, layout: CoxLayout, sites: Mapping[NodeId, TimedRecords], suppress: int = 0) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self.length, self._suppress = layout, length_of(layout), suppress
        self._last: tuple[Vector, FittedHazards] | None = None
        self._sites = {node: SiteHazards(layout, one) for node, one in sites.items()}

    def _state(self, x: Vector) -> FittedHazards:
        if self._last is None or self._last[0] is not x:
            self._last = x, FittedHazards(self.layout, x)
        return self._last[1]

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return initial(self.layout)

    def sums(self, job: Job) -> Vector:
        return requested_sums(self._sites[job.node], job.vector)

    def broken(self, model: Vector, before: AskedBefore) -> str:
        after = self._state(model)
        miscounted = before.miscounted(after.number("asked_sites")) if after.stage == MOMENTS else ""
        return miscounted or FittedHazards(self.layout, before.model).broken(after)

    def below_own(self, node: NodeId, model: Vector, before: AskedBefore) -> str:  # noqa: ARG002
        after = self._state(model)
        if after.stage == MOMENTS and after.number("asked_records") < len(self._sites[node].records.times):
            return "there are fewer records at all sites than at this one"
        return ""

    def uneven(self, node: NodeId, round: int, model: Vector) -> str:  # noqa: ARG002
        state, records = self._state(model), self._sites[node].records
        named = list(zip(self.layout.design.columns, records.columns, strict=True))
        if state.stage == SQUARES:
            means = state["means"][:, : len(state.ends)]
            about = state.ends, np.array(state["point"]), state.hazard, means, state.uncensored
            u = self._sites[node].scores(*about)
            squares = [(name, one * one) for (name, _), one in zip(named, u.T, strict=True)]
            return carried_by_one(squares, "records" if records.cluster is None else "clusters")
        if state.stage not in (RISK, LAST):  # the moments are at the point of the risk before them
            return ""
        weights = np.exp(linear_predictor(records.columns, np.array(state["point"])))
        return too_few(weights, 1.0, named, self._suppress)
