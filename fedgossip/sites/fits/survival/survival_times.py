"""Times until an event on an agreed grid, and the subset of them that may be reported.

A record counts at the first grid time not before its own; events precede censorings, and later records are censored
after the grid.  Neighbouring reported times are merged

    events        until each group has none or `least` of them
    censorings    until there are `least`, in each group separately, all of which leave in the middle of their times

so the report discloses no count below `least`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, plural
from fedgossip.data.agreed.agreed_table import AgreedColumn

TIMES = 400
"""Maximum number of times of a grid."""
OPTIONS = ("every", "until", "times")

Counts = npt.NDArray[np.int64]


def grid_of(source: str, agreed: AgreedColumn) -> tuple[float, ...]:
    """Return the times of "MODEL?every=30&until=720" or "MODEL?times=30,90,365", ascending; by default the agreed
    histogram's edges above 0.

    Raises ConfigError for invalid times.
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
    grid: Sequence[float],
    times: npt.NDArray[np.float64],
    events: npt.NDArray[np.float64],
    names: Sequence[str],
    competing: float | None = None,
) -> None:
    """Raise ConfigError for times [m] below 0 or all after the grid, and for events [m] other than 0, 1 or the
    competing one.
    """
    time, event = names
    if (times < 0).any():
        text = f"column {time!r} holds times below 0, in {plural(int((times < 0).sum()), 'record')}"
        raise ConfigError(text, "A time is counted from when a record begins; correct it, or leave the row out.")
    if not np.isin(events, (0, 1) if competing is None else (0, 1, competing)).all():
        known = "0 and 1" if competing is None else f"0, 1 and {competing:g}"
        text = f"column {event!r} holds something else than {known}"
        raise ConfigError(text, "1: the event was seen at that time; 0: it was not seen until then.")
    if (times > grid[-1]).all():
        text = f"column {time!r}: all times are after the last of the grid, {grid[-1]:g}"
        raise ConfigError(text, "Are they in the same unit at all sites?  Else take later times in model.source.")


def places_of(grid: Sequence[float], times: npt.NDArray[np.float64]) -> Counts:
    """Return the grid index of each time, [m]; len(grid) for later times."""
    return np.searchsorted(np.asarray(grid), times, side="left")


@dataclass(frozen=True, eq=False)
class TimeCounts:
    """Numbers of records, and of events and censorings at each time of a grid, [k], of a group.

    `entered`: how many enter before each time and not before the one before, [k]; None: all are there from the start.
    `competing`: how many of the censored have a competing event, [k].
    """

    records: int
    events: Counts
    censored: Counts
    entered: Counts | None = None
    competing: Counts | None = None

    @property
    def there(self) -> Counts:
        """How many have entered before each time, [k + 1]; behind them none."""
        entered = [self.records, *(0 for _ in self.events[1:])] if self.entered is None else self.entered
        return np.concatenate([[0], np.cumsum(entered)])

    def __sub__(self, other: TimeCounts) -> TimeCounts:
        return TimeCounts(self.records - other.records, self.events - other.events, self.censored - other.censored)

    def __add__(self, other: TimeCounts) -> TimeCounts:
        return TimeCounts(self.records + other.records, self.events + other.events, self.censored + other.censored)


@dataclass(frozen=True, eq=False)
class ReportedCounts:
    """Numbers at risk and of events of a group, at the reported times [e]."""

    records: int
    risk: Counts
    events: Counts
    fewest: Counts
    """Minimum number of records at risk at some event of a reported time: the estimate is between those of `fewest` and
    `most`.
    """
    most: Counts


def enough(count: int, least: int) -> bool:
    return count == 0 or count >= least


def choose_report_times(groups: Sequence[TimeCounts], least: int) -> list[int]:
    """Return the grid indices of the reported times, each covering the events since the last; [] if a group has fewer
    than `least`.
    """
    ends: list[int] = []
    counts: list[list[int]] = []
    run = [0] * len(groups)
    for place in range(len(groups[0].events)):
        run = [one + int(group.events[place]) for one, group in zip(run, groups, strict=True)]
        if any(run) and all(enough(one, least) for one in run):
            ends, counts, run = [*ends, place], [*counts, run], [0] * len(groups)
    if any(run):  # merge the rest into earlier times, until it is enough
        ends.append(max(place for group in groups for place in np.flatnonzero(group.events).tolist()))
        counts.append(run)
        while len(ends) > 1 and not all(enough(one, least) for one in counts[-1]):
            ends.pop(-2)
            last = counts.pop()
            counts[-1] = [a + b for a, b in zip(counts[-1], last, strict=True)]
        if not all(enough(one, least) for one in counts[-1]):
            return []
    while ends and not all(_left(group, ends, least) for group in groups):
        ends.pop()  # else a small number of records left at the end would be disclosed
    return ends


def ends_of_risk_sets(
    groups: Sequence[TimeCounts], least: int, *, apart: bool, inside: Sequence[TimeCounts] = (), fewest: int = 1
) -> list[int]:
    """Return the indices of reported times for sums over all at risk: every event belongs to one of them.

    Each has, in each group, no events or `least`; with `apart` (separate sums over events) also no censorings or
    `least`, and no entries since the time before or `least`.  The rest is merged into the last.  Each group `inside`
    these, which sums distinguish, has no events or `fewest`, and equally for censorings and entries.  Late events are
    omitted if too few records without an event remain.  Those not at risk at the first time, or never, are none or
    `least`, since sums over all records are known.  [] if a group has fewer than `least`, or `fewest`.
    """
    events = [np.concatenate([[0], np.cumsum(one.events)]) for one in (*groups, *inside)]
    gone = [np.concatenate([[0], np.cumsum(one.censored)]) for one in (*groups, *inside)]
    there = [one.there for one in (*groups, *inside)]
    rules = [(one, least, apart) for one in groups] + [(one, fewest, True) for one in inside]

    def is_reported(begin: int, end: int, *, last: bool = False) -> bool:
        """Whether the indices from `begin` to before `end` can be one reported time."""
        for (one, many, separate), had, left, came in zip(rules, events, gone, there, strict=True):
            if not enough(int(had[end] - had[begin]), many):
                return False
            late = one.records - int(came[end])
            others = one.records - int(had[end]) - int(left[begin]) - late if last else int(left[end] - left[begin])
            if (separate or last) and not enough(others, many):
                return False
            if (separate or last or not begin) and not enough(late, many):
                return False
            if separate and begin and not enough(int(came[end] - came[begin]), many):
                return False
            if last and not enough(one.records - int(had[end]), many):  # all without an event: by the totals
                return False
        left_out = sum(int(had[-1] - had[end]) for had in events[: len(groups)]) if last else 0
        return enough(left_out, least) and any(had[end] > had[begin] for had in events)

    final = max((int(place) for one in groups for place in np.flatnonzero(one.events)), default=-1) + 1
    for end in range(final, 0, -1):  # few records without an event: omit late events
        if not any(one.events[end - 1] for one in groups):
            continue
        cuts = [0]
        for place in range(1, end):
            if is_reported(cuts[-1], place):
                cuts.append(place)
        while len(cuts) > 1 and not is_reported(cuts[-1], end, last=True):
            cuts.pop()
        if is_reported(cuts[-1], end, last=True):
            return [place - 1 for place in (*cuts[1:], end)]
    return []


def reported_risk(
    risk: Sequence[int], events: Sequence[int], least: int, entered: Sequence[int] | None = None
) -> list[int]:
    """Return the numbers at risk to report at the times of `ends_of_risk_sets`.

    A record that leaves without an event counts until `least` have left; so does the last such run if fewer remain.  Of
    the records `entered` before each time but the first, `least` count from the time at which the first of them does.
    """
    if entered is not None:
        came = np.cumsum([0, *entered[1:]])
        ends = [0]
        for place in range(1, len(risk)):
            ends += [place] if came[place] - came[ends[-1]] >= least else []
        ends[-1] = len(risk) - 1
        early = came[np.array(ends)[np.searchsorted(ends, range(len(risk)))]]
        without = reported_risk((np.array(risk) - came + came[-1]).tolist(), events, least)
        return [int(one) for one in np.array(without) - came[-1] + early]
    found, waiting, run, begin = [risk[0]], 0, 0, 0
    for place in range(1, len(risk)):
        waiting += risk[place - 1] - events[place - 1] - risk[place]
        if waiting >= least:
            run, begin, waiting = waiting, place, 0
        found.append(risk[place] + waiting)
    if not enough(found[-1] - events[-1], least):
        found[begin:] = [one + run for one in found[begin:]]
    return found


def _left(group: TimeCounts, ends: Sequence[int], least: int) -> bool:
    published = report_counts(group, ends, least)
    return enough(int(published.risk[-1] - published.events[-1]), least)


@dataclass(frozen=True)
class CensoredRun:
    """A run of `count` censorings at the indices from `begin` to before `end`, reported as exits at `place`."""

    begin: int
    end: int
    place: int
    count: int


def censored_runs(group: TimeCounts, least: int) -> list[CensoredRun]:
    """Return all records without an event until the end of the grid, by exit time, in runs of at least `least`.

    A smaller rest joins the previous run; [] if all are fewer, which then never leave.  A run leaves at its median
    index; one with a record present after the last event stays for it.
    """
    behind = group.records - int(group.events.sum()) - int(group.censored.sum())
    censored = [*group.censored.tolist(), behind]
    cuts, begin, run = list[tuple[int, int]](), 0, 0
    for place, count in enumerate(censored):
        run += count
        if run >= least:
            cuts, begin, run = [*cuts, (begin, place + 1)], place + 1, 0
    if run and cuts:
        cuts[-1] = cuts[-1][0], max(place for place, count in enumerate(censored) if count) + 1
    last, found = max((int(place) for place in np.flatnonzero(group.events)), default=-1), list[CensoredRun]()
    for begin, end in cuts:
        inside = np.cumsum(censored[begin:end])
        middle = begin + int(np.searchsorted(inside, (int(inside[-1]) + 1) // 2))
        found.append(CensoredRun(begin, end, middle if end <= last else max(middle, last), int(inside[-1])))
    return found


def report_counts(group: TimeCounts, ends: Sequence[int], least: int) -> ReportedCounts:
    """Return the counts of a group at the reported times."""
    places = np.asarray(ends)
    cumulated = np.cumsum(group.events)[places]
    events = np.diff(cumulated, prepend=0)
    before = group.records - (cumulated - events)
    runs, begins = censored_runs(group, least), [0, *(place + 1 for place in ends[:-1])]
    gone = [sum(one.count for one in runs if one.place < place) for place in ends]
    surely = [sum(one.count for one in runs if one.end <= begin) for begin in begins]
    few = 0 if runs else least - 1  # fewer than `least` are in no run: they may leave at any time
    perhaps = [sum(one.count for one in runs if one.begin < end) + few for end in ends]
    return ReportedCounts(
        group.records, before - np.array(gone), events, np.maximum(before - perhaps, 0), before - np.array(surely)
    )


def choose_groups(
    groups: Mapping[str, TimeCounts], everybody: TimeCounts, never: set[str], least: int
) -> tuple[dict[str, TimeCounts], TimeCounts | None]:
    """Return the groups that may be reported, and all other records together, None without others.

    Groups in `never` are at too few sites; the smallest reported group is withheld too if the rest would disclose one
    group, or few records.
    """
    there = {name: one for name, one in groups.items() if one.records}
    published = {
        name: one
        for name, one in there.items()
        if name not in never and one.records >= least and enough(int(one.events.sum()), least)
    }
    while published:
        rest = everybody
        for one in published.values():
            rest = rest - one
        if not rest.records:
            return published, None
        if len(there) - len(published) > 1 and rest.records >= least and enough(int(rest.events.sum()), least):
            return published, rest
        published.pop(min(published, key=lambda name: published[name].records))
    return {}, everybody
