"""The coordinator's part in a fit of proportional hazards: what the sums of a round make of the state.

    counts  ->  risk  ->  moments  ->  risk  -> ...  ->  last  ->  over
                  ^          |  other sites than before, so the point is asked about again
                  +----------+

The state is what goes down to the sites: it has the point and the hazards, and no S1.  A round that does not come
together changes nothing and is asked again.  Where the sites of a round are not those of the one before, the fit goes
on with those that are there.
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
from fedgossip.sites.fits.cox.cox import RiskSums, Whole
from fedgossip.sites.fits.cox.cox_sums import TOLD, CoxLayout, Numbers, SiteHazards
from fedgossip.sites.fits.glm.glm import Newton, PointSums, Values, halved, is_worse, moved
from fedgossip.sites.fits.survival.survival_times import TimeCounts, ends_of_risk_sets

COUNTS, RISK, MOMENTS, LAST, OVER = range(5)
NEAR = 1e-4
"""Of a step: so far may a point lie from where a site itself finds it.  Directions whose eigenvalue is below SINGULAR
times the diagonal's have a ridge, so two machines' eigenvalues, to 2e-16, move a step by 2e-16 / 1e-11 at most."""
CLOSE = 1e-20
"""Newton's g' A^-1 g at which no further step is taken: an estimate then moves by 1e-10 of its error."""
AGAIN = 10
"""Rounds that may not come together, beside those that are needed."""


def rounds_of(layout: CoxLayout) -> int:
    return 2 + 2 * layout.design.steps + AGAIN


@cache
def _shapes(layout: CoxLayout) -> Mapping[str, tuple[int, ...]]:
    p, s, k = layout.width, layout.strata, layout.told
    single = (
        "stage", "told", "unused", "smallest", "sites", "fewest", "records", "steps", "left", "deviance", "null",
        "null_records", "points", "asked_records", "asked_sites", "asked_deviance", "likelihood", "pairs", "right",
    )  # fmt: skip
    return {
        **dict.fromkeys(single, ()),
        "ends": (k,),
        **dict.fromkeys(("point", "best", "gradient", "silent", "asked_shift", "asked_gradient"), (p,)),
        **dict.fromkeys(("information", "asked_between"), (p, p)),
        **dict.fromkeys(("at_risk", "events", "hazard"), (s, k)),
        "spared": (s, k) if layout.tied else (0,),
    }


def length_of(layout: CoxLayout) -> int:
    """Return the elements of what goes down."""
    return sum(math.prod(shape) for shape in _shapes(layout).values())


class FittedHazards:
    """The state in a vector, and what becomes of it; `x` is a copy that it may change."""

    def __init__(self, layout: CoxLayout, x: Vector) -> None:
        """Raises ConfigError for a vector that holds none."""
        if x.shape != (length_of(layout),) or x.dtype != np.float64:
            raise ConfigError("what came holds no fit", "Were all started with the same experiment file?")
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
        """The places in the grid at which told times stand."""
        return self["ends"][: self.number("told")].astype(np.int64)

    @property
    def hazard(self) -> Values:
        """At each told time, [s, k]."""
        return self["hazard"][:, : self.number("told")]

    @property
    def spared(self) -> Values | None:
        """What of that those are spared whose event is then, [s, k]; None where ties are Breslow's."""
        return self["spared"][:, : self.number("told")] if self.layout.tied else None

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
        """Take the sums of a round over so many sites."""
        told = len(self.ends)
        match self.stage:
            case 0:
                self._tell(self.layout.counts(numbers), sites)
            case 1:
                self._take_risk(self.layout.risk(numbers, told), sites)
            case 2:
                self._take_moments(*self.layout.moments(numbers))
            case 3:
                self._take_last(*self.layout.last(numbers, told), sites)

    def _tell(self, counts: Sequence[TimeCounts], sites: int) -> None:
        """Choose the told times; without any the fit is over."""
        self._set(sites=sites, fewest=sites)
        events = sum(int(one.events.sum()) for one in counts)
        least = max(self.layout.design.least, -(-events // TOLD))
        ends = ends_of_risk_sets(counts, least, apart=self.layout.tied)
        if not ends:
            self._set(stage=OVER)
            return
        self["ends"][: len(ends)] = ends
        self._set(told=len(ends), stage=RISK, unused=sum(int(one.events[ends[-1] + 1 :].sum()) for one in counts))
        for stratum, one in enumerate(counts):
            gone = np.cumsum(one.events + one.censored)[ends]
            happened = np.diff(np.cumsum(one.events)[ends], prepend=0)
            risk = one.records - np.concatenate([[0], gone[:-1]])
            self["at_risk"][stratum, : len(ends)] = risk
            self["events"][stratum, : len(ends)] = happened
        self._set(smallest=self._least_between())

    def _least_between(self) -> int:
        """Return the fewest records by which two sums that are opened differ, or that one has.

        With Efron's ties events are told apart from all that are at risk, and so are those who leave without one.
        """
        told, found = len(self.ends), []
        for risk, events in zip(self["at_risk"][:, :told], self["events"][:, :told], strict=True):
            opened, happened = risk[events > 0], events[events > 0]
            apart = [*(opened[:-1] - opened[1:]), *opened[-1:]]
            if self.layout.tied:
                apart = [*happened, *(one for one in apart - happened if one)]
            found += apart
        return int(min(found))

    def _take_risk(self, sums: RiskSums, sites: int) -> None:
        """Take the sums at the point: the hazards follow, or a shorter step."""
        if not sums.records or not self._known(sums):
            return
        self._set(points=self["points"] + 1, fewest=min(self.number("fewest"), sites))
        point, ridge, newton = self["point"], self.layout.design.ridge, self.newton
        deviance = -2 * sums.log_likelihood + ridge * float(point @ point)
        if is_worse(newton, sums.records, deviance):
            self._go_to(halved(newton))
            self._set(stage=RISK if self.number("steps") < self.layout.design.steps else OVER)
            return
        told = len(self.ends)
        self["hazard"][:, :told] = sums.hazard
        if self.layout.tied:
            self["spared"][:, :told] = sums.spared
        self._set(
            stage=MOMENTS, asked_records=sums.records, asked_sites=sites, asked_deviance=deviance,
            asked_shift=sums.shift, asked_gradient=sums.gradient - ridge * point, asked_between=sums.between,
        )  # fmt: skip

    def _known(self, sums: RiskSums) -> bool:
        return bool((sums.s0[sums.events > 0] > 0).all())

    def _take_moments(self, records: int, shift: Values, moments: Values) -> None:
        """Take a step, where these are the sites that have told the sums at the point."""
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

    # --- what may follow ------------------------------------------------------------------------------------------

    def broken(self, after: FittedHazards, clients: int) -> str:
        """Return why a state does not follow from this one by sums over so many `clients` (0: any number).

        "" where it may.  Sums that were told to the coordinator alone are taken as the state has them.
        """
        free: tuple[str, ...]
        match self.stage:
            case 0:
                free = "stage", "told", "unused", "smallest", "sites", "fewest", "ends", "at_risk", "events"
                fits = after.stage in (RISK, OVER) and self._alike(after, free)
            case 1:
                told = (
                    "asked_records",
                    "asked_sites",
                    "asked_deviance",
                    "asked_shift",
                    "asked_gradient",
                    "asked_between",
                )
                seen = "stage", "points", "fewest"
                fits = after.stage == MOMENTS and self._alike(after, (*seen, *told, "hazard", "spared"))
                if fits and clients and after.number("asked_sites") != clients:
                    return f"sums of {after.number('asked_sites')} sites, where {clients} were signed"
                fits = fits or (after.stage in (RISK, OVER) and self._halved()._alike(after, seen))
            case 2:
                fits = (after.stage == RISK and self._alike(after, ("stage",))) or self._stepped_to(after)
            case 3:
                free = "stage", "hazard", "events", "likelihood", "pairs", "right", "fewest"
                fits = after.stage in (RISK, OVER) and self._alike(after, free)
            case _:
                fits = False
        return "" if fits else "the point is not that of the step, or what was fixed before is not what it was"

    def _alike(self, after: FittedHazards, free: Sequence[str]) -> bool:
        return all(np.array_equal(self[name], after[name]) for name in self._views if name not in free)

    def _halved(self) -> FittedHazards:
        found = FittedHazards(self.layout, self.x)
        found._go_to(halved(self.newton))
        return found

    def _stepped_to(self, after: FittedHazards) -> bool:
        """Whether the point of `after` is that of the step by its own sums of products."""
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

    def _take_last(self, sums: RiskSums, pairs: int, right: float, sites: int) -> None:
        if sums.records != self.number("records"):
            self._set(stage=RISK)
            return
        told = len(self.ends)
        self["hazard"][:, :told] = sums.hazard
        self["events"][:, :told] = sums.events
        self._set(likelihood=sums.log_likelihood, pairs=pairs, right=right, stage=OVER)
        self._set(fewest=min(self.number("fewest"), sites))


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
    """Return the state after a round whose sums over `sites` are these.  Raises ConfigError for no sums."""
    fitted = FittedHazards(layout, x)
    fitted.take(layout.integers(sums), sites)
    return frozen(fitted.x)


def initial(layout: CoxLayout) -> Vector:
    return frozen(np.zeros(length_of(layout)))


def told_by(site: SiteHazards, x: Vector) -> Vector:
    """Return a site's sums that the state asks for; zeros when it is over."""
    fitted = FittedHazards(site.layout, x)
    ends, point = fitted.ends, np.array(fitted["point"])
    match fitted.stage:
        case 0:
            numbers = site.counts()
        case 1:
            numbers = site.risk(ends, point)
        case 2:
            numbers = site.moments(ends, point, fitted.hazard, fitted.spared)
        case 3:
            numbers = site.last(ends, point)
        case _:
            numbers = []
    return site.layout.vector(numbers)


def fitted_alone(layout: CoxLayout, site: SiteHazards) -> Vector:
    """Return the state that one table alone ends with: that of several sites is the same, to the bit, but `sites`."""
    x = initial(layout)
    for _ in range(rounds_of(layout)):
        x = stepped(layout, x, told_by(site, x), 1)
    return x
