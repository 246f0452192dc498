"""The counts that sites sum to estimate survival: only their exact sum is visible.

first round     number of sites and of records; number of sites of each group
second round    events and censorings at each time of the agreed grid: of all, and of each group at enough sites
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.column_sums import RECORDS, SITES
from fedgossip.data.agreed.sums_task import PooledSumsTask, find_places
from fedgossip.secure.encoding import ExactSums, as_vector, integers_of, words_in, words_of
from fedgossip.sites.fits.survival.survival_times import Counts, TimeCounts

ALL = ""
"""Name of all records in place of a group's name."""

Name = tuple[str, ...]
Numbers = Mapping[Name, int]


class CurveDesign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The times, event and groups of the count; the same at all sites."""

    time: str
    event: str
    unit: str = ""
    """Unit of the times."""
    grid: tuple[float, ...]
    group_column: str = ""
    groups: tuple[str, ...] = ()
    agreed: str = ""
    """The hash of the agreed statistics."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"kaplan-meier" + msgspec.json.encode(self)).hexdigest()


@dataclass(frozen=True, eq=False)
class SiteTimes:
    """One site's records: their grid indices [m], presence of the event [m], and the indices of their groups."""

    places: Counts
    events: npt.NDArray[np.bool_]
    groups: Counts | None = None


def counted(length: int, places: Counts, events: npt.NDArray[np.bool_], entries: Counts | None = None) -> TimeCounts:
    """Return the counts of records at their indices, and at those of their entries, in a grid of `length` times; later
    indices are not counted.
    """
    inside = places < length
    had, left = (np.bincount(places[inside & one], minlength=length) for one in (events, ~events))
    entered = None if entries is None else np.bincount(entries[entries < length], minlength=length)
    return TimeCounts(len(places), had, left, entered)


@dataclass(frozen=True)
class CurveLayout:
    """The position of each number in a vector."""

    design: CurveDesign

    @cached_property
    def bounds(self) -> Mapping[Name, int]:
        d = self.design
        found: dict[Name, int] = {("sites",): 1}
        for group in d.groups:
            found["at", group] = 1
        for group in (ALL, *d.groups):
            found["of", group] = RECORDS
            found |= {(what, group, str(k)): RECORDS for what in ("events", "censored") for k in range(len(d.grid))}
        return found

    @property
    def opened(self) -> tuple[str, ...]:
        """Sums over all sites that the coordinator receives, in words."""
        d = self.design
        groups = f" and each of {len(d.groups)} groups that {SITES} sites have" if d.groups else ""
        first = (f"first at how many sites each of {len(d.groups)} groups is",) if d.groups else ()
        times = f"{len(d.grid)} times of {d.time}"
        return (*first, f"the number of records, and at {times} those of events and censorings, of all{groups}")

    @property
    def exact(self) -> ExactSums:
        return ExactSums(tuple(self.bounds.values()), layout=self.design.digest)

    def first(self, site: SiteTimes) -> Vector:
        there = set() if site.groups is None else set(site.groups.tolist())
        found: dict[Name, int] = {("sites",): 1}
        for place, group in enumerate(self.design.groups):
            found["at", group] = int(place in there)
        return self._vector(found)

    def second(self, site: SiteTimes, pooled: Numbers) -> Vector:
        """Return a site's counts, of all and of the groups at SITES sites or more."""
        found: dict[Name, int] = {}
        for place, group in enumerate((ALL, *self.design.groups)):
            if group == ALL:
                rows = np.ones(len(site.places), bool)
            elif site.groups is None or pooled["at", group] < SITES:
                continue
            else:
                rows = site.groups == place - 1
            counts = counted(len(self.design.grid), site.places[rows], site.events[rows])
            found["of", group] = counts.records
            for what, values in (("events", counts.events), ("censored", counts.censored)):
                found |= {(what, group, str(k)): count for k, count in enumerate(values.tolist())}
        return self._vector(found)

    def _vector(self, numbers: Numbers) -> Vector:
        return as_vector(words_of([numbers.get(name, 0) for name in self.bounds]))

    def numbers(self, vector: Vector) -> Numbers:
        """Return the numbers of a vector by their names.  Raises ConfigError for an invalid vector."""
        words = words_in(vector)
        if words is None or words.size != self.exact.length:
            raise ConfigError(
                "the received vector holds no counts of times", "Were all started with the same experiment file?"
            )
        return dict(zip(self.bounds, integers_of(words), strict=True))

    def counts(self, numbers: Numbers, group: str = ALL) -> TimeCounts:
        """Return the counts of a group in the sums."""
        both = (
            np.array([numbers[what, group, str(k)] for k in range(len(self.design.grid))], np.int64)
            for what in ("events", "censored")
        )
        return TimeCounts(numbers["of", group], *both)


ROUNDS = 2


class SurvivalTask(PooledSumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "Fit"

    def __init__(self, layout: CurveLayout, sites: Mapping[NodeId, SiteTimes]) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self._sites = layout, sites

    def sums(self, job: Job) -> Vector:
        """Return a site's numbers of a round.  Raises as `SumsTask` after an incomplete first round."""
        site = self._sites[job.node]
        if job.round == 0:
            return self.layout.first(site)
        pooled = self.layout.numbers(job.vector)
        if not pooled["sites",]:
            raise self.nothing_there(job.node)
        return self.layout.second(site, pooled)

    def places(self, round: int) -> npt.NDArray[np.bool_]:
        return find_places(self.layout.bounds, lambda name: (name[0] in ("sites", "at")) == (round == 0))

    def counts(self) -> npt.NDArray[np.bool_]:
        return np.ones(len(self.layout.bounds), bool)
