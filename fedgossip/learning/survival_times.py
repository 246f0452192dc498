"""Times until an event, on a grid that all sites have agreed on, and what of it may be told.

A record counts at the first time of the grid that is not before its own; at one time events come before censorings, and
whoever is there after the last time is censored behind it.  Told are fewer times: neighbours are put together

    events        until each group has none or `least` of them
    censorings    until there are `least`, in each group by itself; fewer than those at the end count behind the last

so no count below `least` can be found in what is told, and every figure is that of all records in one place whose times
are rounded up so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from fedgossip.errors import ConfigError
from fedgossip.learning.agreed import AgreedColumn

TIMES = 400
"""Maximum number of times of a grid."""
OPTIONS = ("every", "until", "times")

Counts = npt.NDArray[np.int64]


def grid_of(source: str, agreed: AgreedColumn) -> tuple[float, ...]:
    """Return the times that "MODEL?every=30&until=720" or "MODEL?times=30,90,365" names, ascending.

    Without either the edges above 0 of the histogram that the sites have agreed on.  Raises ConfigError for times that
    are none.
    """
    name, _, query = source.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    usual = f'Write "{name}?every=30&until=720", or "{name}?times=30,90,365".'
    if unknown := [key for key in options if key not in OPTIONS]:
        raise ConfigError(f"model.source = {source!r}: unknown option {unknown[0]!r}", usual)
    if not options:
        found = [edge for edge in agreed.edges if edge > 0]
    elif "times" in options and len(options) == 1:
        found = [_number(source, one, usual) for one in options["times"].split(",")]
    elif set(options) == {"every", "until"}:
        every, until = (_number(source, options[key], usual) for key in ("every", "until"))
        if not 0 < every <= until:
            raise ConfigError(f"model.source = {source!r}: every {every:g} until {until:g}", usual)
        if until / every > TIMES:
            raise ConfigError(f"model.source = {source!r}: more than {TIMES} times", "Take a larger every.")
        found = [every * (k + 1) for k in range(round(np.ceil(until / every - 1e-9)))]
    else:
        raise ConfigError(f"model.source = {source!r}: times, or every and until", usual)
    if len(found) > TIMES or not found:
        raise ConfigError(f"model.source = {source!r}: {len(found)} times; there are 1 to {TIMES}", usual)
    if found[0] < 0 or any(after <= before for before, after in pairwise(found)):
        raise ConfigError(f"model.source = {source!r}: times go up, from 0", usual)
    return tuple(found)


def _number(source: str, text: str, advice: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise ConfigError(f"model.source = {source!r}: {text!r} is no time", advice)
    return value


def checked_times(
    grid: Sequence[float], times: npt.NDArray[np.float64], events: npt.NDArray[np.float64], names: Sequence[str]
) -> None:
    """Raise ConfigError for times [m] below 0 or all behind the grid, and for events [m] that are not 0 or 1."""
    time, event = names
    if (times < 0).any():
        text = f"column {time!r} holds times below 0, in {int((times < 0).sum())} records"
        raise ConfigError(text, "A time is counted from when a record begins; correct it, or leave the row out.")
    if not np.isin(events, (0, 1)).all():
        text = f"column {event!r} holds something else than 0 and 1"
        raise ConfigError(text, "1: the event was seen at that time; 0: it was not seen until then.")
    if (times > grid[-1]).all():
        text = f"column {time!r}: all times are behind the last of the grid, {grid[-1]:g}"
        raise ConfigError(text, "Are they in the same unit at all sites?  Else take later times in model.source.")


def places_of(grid: Sequence[float], times: npt.NDArray[np.float64]) -> Counts:
    """Return the place in the grid of each time, [m]; len(grid) behind it."""
    return np.searchsorted(np.asarray(grid), times, side="left")


@dataclass(frozen=True, eq=False)
class TimeCounts:
    """Of a group of records: how many, and how many events and censorings at each time of a grid, [k]."""

    records: int
    events: Counts
    censored: Counts

    def __sub__(self, other: TimeCounts) -> TimeCounts:
        return TimeCounts(self.records - other.records, self.events - other.events, self.censored - other.censored)

    def __add__(self, other: TimeCounts) -> TimeCounts:
        return TimeCounts(self.records + other.records, self.events + other.events, self.censored + other.censored)


@dataclass(frozen=True, eq=False)
class ToldCounts:
    """Of a group, at the told times [e]: how many are at risk, and how many have the event."""

    records: int
    risk: Counts
    events: Counts


def enough(count: int, least: int) -> bool:
    return count == 0 or count >= least


def told_ends(groups: Sequence[TimeCounts], least: int) -> list[int]:
    """Return the places in the grid at which told times stand: the events since the one before belong to it.

    [] where there are fewer than `least` events in some group that has any.
    """
    ends: list[int] = []
    counts: list[list[int]] = []
    run = [0] * len(groups)
    for place in range(len(groups[0].events)):
        run = [one + int(group.events[place]) for one, group in zip(run, groups, strict=True)]
        if any(run) and all(enough(one, least) for one in run):
            ends, counts, run = [*ends, place], [*counts, run], [0] * len(groups)
    if any(run):  # what is left goes to the times before, until it is enough
        ends.append(max(place for group in groups for place in np.flatnonzero(group.events).tolist()))
        counts.append(run)
        while len(ends) > 1 and not all(enough(one, least) for one in counts[-1]):
            ends.pop(-2)
            last = counts.pop()
            counts[-1] = [a + b for a, b in zip(counts[-1], last, strict=True)]
        if not all(enough(one, least) for one in counts[-1]):
            return []
    while ends and not all(_left(group, ends, least) for group in groups):
        ends.pop()  # or how few are there in the end would be told
    return ends


def ends_of_ties(groups: Sequence[TimeCounts], least: int) -> list[int]:
    """Return the places of told times at which events are told apart from all that are at risk.

    Between two of them each group has no censorings or `least`, for these are what else the two differ by.
    """
    apart = [*groups, *(TimeCounts(one.records, one.censored, one.events) for one in groups)]
    found, ends = list[int](), told_ends(apart, least)
    for begin, end in zip([-1, *ends[:-1]], ends, strict=True):
        if any(group.events[begin + 1 : end + 1].any() for group in groups):
            found.append(end)
    return found


def _left(group: TimeCounts, ends: Sequence[int], least: int) -> bool:
    told = told_counts(group, ends, least)
    return enough(int(told.risk[-1] - told.events[-1]), least)


def censored_ends(group: TimeCounts, least: int) -> Counts:
    """Return at which place of the grid a censoring at each place counts, [k]; the length of the grid: behind it."""
    length = len(group.censored)
    found, begin, run = np.full(length, length), 0, 0
    for place, count in enumerate(group.censored.tolist()):
        run += count
        if run >= least:
            found[begin : place + 1] = place
            begin, run = place + 1, 0
    return found


def told_counts(group: TimeCounts, ends: Sequence[int], least: int) -> ToldCounts:
    """Return the counts of a group at the told times."""
    places = np.asarray(ends)
    cumulated = np.cumsum(group.events)[places]
    events = np.diff(cumulated, prepend=0)
    moved = censored_ends(group, least)
    gone = np.array([int(group.censored[moved < place].sum()) for place in places], np.int64)
    return ToldCounts(group.records, group.records - (cumulated - events) - gone, events)


def told_groups(
    groups: Mapping[str, TimeCounts], everybody: TimeCounts, never: set[str], least: int
) -> tuple[dict[str, TimeCounts], TimeCounts | None]:
    """Return the groups that may be told, and all other records together, None where there are none.

    Groups that are `never` told are at too few sites; where the others would tell of a single one, or of few, the
    smallest of them is left out too.
    """
    there = {name: one for name, one in groups.items() if one.records}
    told = {
        name: one
        for name, one in there.items()
        if name not in never and one.records >= least and enough(int(one.events.sum()), least)
    }
    while told:
        rest = everybody
        for one in told.values():
            rest = rest - one
        if not rest.records:
            return told, None
        if len(there) - len(told) > 1 and rest.records >= least and enough(int(rest.events.sum()), least):
            return told, rest
        told.pop(min(told, key=lambda name: told[name].records))
    return {}, everybody
