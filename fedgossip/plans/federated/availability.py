"""Clients that can be invited to a round, as a function of its number.

    day:SHARE?rounds=N       each client for SHARE of every N rounds, from a random start
    trace:FILE.csv?round=T   a table of client, start and end, with T units of the table per round
    module:function          of (client, round)

Every sampling rule draws from those clients, in all drivers.  A secure sum keeps its cohort size: a round with fewer
available clients is abandoned.

Source of traces: Lai, Dai, Singapuram, Liu, Zhu, Madhyastha and Chowdhury, FedScale, ICML 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.sampling import Draw, ReportedLoss, Sampling, SamplingByLosses
from fedgossip.base import outside_files
from fedgossip.base.cells import number_in
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.seeds import stream
from fedgossip.core.machine import NodeId
from fedgossip.data.custom import call_part, function, is_function

KEY = "coordinator.available"
COLUMNS = ["client", "start", "end"]
TRIED = 3
"""Number of clients and of rounds on which a function is tested before a run."""

Available = Callable[[NodeId, int], bool]
"""Whether a client can be invited to a round."""


@dataclass(frozen=True)
class Attending(Set[NodeId]):
    """Those clients of `here` that are available in a round; availability is evaluated on access."""

    here: Collection[NodeId]
    available: Available
    round: int

    def __contains__(self, node: object) -> bool:
        return node in self.here and self.available(node, self.round)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[NodeId]:
        return (node for node in self.here if self.available(node, self.round))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class AvailableSampling:
    """Draws of `rule` from the available clients; empty if fewer than `whole` of all clients can be invited (0: no
    minimum).
    """

    rule: Sampling
    available: Available
    clients: Sequence[NodeId]
    whole: int

    def draw(self, round: int, here: Collection[NodeId]) -> Draw:
        if self.whole and len(self._draw_attending(round, self.clients).invited) < self.whole:
            return Draw((), 0)
        return self._draw_attending(round, here)

    def _draw_attending(self, round: int, here: Collection[NodeId]) -> Draw:
        return self.rule.draw(round, self.attending(round, here))

    def attending(self, round: int, here: Collection[NodeId]) -> Attending:
        return Attending(here if isinstance(here, Set | range) else frozenset(here), self.available, round)


@dataclass(frozen=True)
class AvailableByLosses(AvailableSampling):
    """The same for a rule that uses reported losses."""

    rule: SamplingByLosses

    def choose(self, round: int, here: Collection[NodeId], seen: Mapping[NodeId, ReportedLoss]) -> Draw:
        return self.rule.choose(round, self.attending(round, here), seen)


def available_sampling(
    text: str, rule: Sampling, seed: int, clients: int, rounds: int, whole: int, least: int
) -> Sampling:
    """Return the rule that draws from the clients of coordinator.available, `text`.

    Raises ConfigError for an unusable value, table or function, and if no round has `least` clients.
    """
    kind, _, rest = text.partition(":")
    place, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if kind == "day":
        share, day = _day(text, place, options)
        places = stream(seed, "available").integers(day, size=clients)
        available: Available = _Day(places, share, day)
    elif kind == "trace":
        unit = _option(text, options, "round", 1.0)
        available = _read_trace(Path(place), clients, unit)
        most = available.most(rounds)
        if most < least:
            what = f"{KEY} = {text!r}: at most {most} clients are available in any of the {rounds:,} rounds"
            advice = f"A round needs {least}.  Is it another time unit?  round=T: T units of the table are a round."
            raise ConfigError(what, advice)
    elif is_function(text):
        available = _load_own(text, clients)
    else:
        forms = '"day:0.4?rounds=24", "trace:FILE.csv?round=T", or "module:function" of (client, round).'
        raise ConfigError(f"{KEY} = {text!r} is not known", f"Write {forms}")
    kind_of = AvailableByLosses if isinstance(rule, SamplingByLosses) else AvailableSampling
    return kind_of(rule, available, range(clients), whole)  # type: ignore[arg-type]


def _option(text: str, options: Mapping[str, str], name: str, usual: float) -> float:
    if others := [key for key in options if key != name]:
        raise ConfigError(f"{KEY} = {text!r}: no option {others[0]!r}", f"The option is {name}.")
    value = number_in(options[name]) if name in options else usual
    if value is None or not 0 < value < math.inf:
        raise ConfigError(f"{KEY} = {text!r}: {name} = {options[name]!r}", "Give a number above 0.")
    return value


# --- by day and night -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Day:
    places: npt.NDArray[np.int64]
    share: float
    rounds: int

    def __call__(self, node: NodeId, round: int) -> bool:
        return (round + int(self.places[node])) % self.rounds < self.share * self.rounds


def _day(text: str, share: str, options: Mapping[str, str]) -> tuple[float, int]:
    rounds = _option(text, options, "rounds", 24)
    found = number_in(share)
    if found is None or not 0 < found <= 1 or rounds != int(rounds):
        raise ConfigError(
            f"{KEY} = {text!r} is no share of a day", 'Write "day:0.4?rounds=24": 0.4 of every 24 rounds.'
        )
    return found, int(rounds)


# --- by a trace -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Trace:
    """Times of the clients' presence: of client i the entries between `first[i]` and `first[i + 1]`, ascending."""

    first: npt.NDArray[np.int64]
    starts: npt.NDArray[np.float64]
    ends: npt.NDArray[np.float64]
    unit: float

    def __call__(self, node: NodeId, round: int) -> bool:
        begin, end = self.first[node], self.first[node + 1]
        at = round * self.unit
        place = int(begin + np.searchsorted(self.starts[begin:end], at, side="right")) - 1
        return bool(place >= begin and at < self.ends[place])

    def most(self, rounds: int) -> int:
        """Return the largest number of clients present in one of the rounds."""
        begun, ended = np.sort(self.starts), np.sort(self.ends)
        most = 0
        for some in range(0, rounds, 100_000):
            at = np.arange(some, min(rounds, some + 100_000)) * self.unit
            there = np.searchsorted(begun, at, side="right") - np.searchsorted(ended, at, side="right")
            most = max(most, int(there.max()))
        return most


def _read_trace(path: Path, clients: int, unit: float) -> _Trace:
    rows, header = list[tuple[float, float, float]](), ""
    try:
        for number, line in enumerate(outside_files.lines_of(outside_files.resolve(path)), 1):
            cells = [cell.strip() for cell in line.decode("utf-8-sig", "replace").strip().split(",")]
            if not header:
                header = ",".join(cells)
                if cells != COLUMNS:
                    advice = "The first line is: client,start,end.  How many units of them a round takes: round=T."
                    raise ConfigError(f"{path}: the columns {header[:80]!r}", advice)
            elif any(cells):
                rows.append(_row(path, number, cells, clients))
            else:
                rows.append((-1, 0, 0))  # so that line numbers stay correct
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", f"{KEY} names a table with the columns client,start,end."
        ) from None
    table = np.array(rows, float).reshape(-1, 3)
    order = np.lexsort((table[:, 1], table[:, 0]))
    order = order[table[order, 0] >= 0]
    if not len(order):
        raise ConfigError(f"{path}: no rows", "Give client,start,end for each time in which a client is available.")
    node, start, end = table[order].T
    over = np.flatnonzero((node[1:] == node[:-1]) & (start[1:] < end[:-1]))
    if len(over):
        one, other = sorted(int(order[over[0] + k]) + 2 for k in (0, 1))
        _refuse(
            path, other, f"client {int(node[over[0]])} is available already by line {one}", "Join rows that overlap."
        )
    first = np.searchsorted(node, np.arange(clients + 1))
    return _Trace(first, np.ascontiguousarray(start), np.ascontiguousarray(end), unit)


def _row(path: Path, number: int, cells: list[str], clients: int) -> tuple[float, float, float]:
    numbers = [number_in(cell) for cell in cells]
    if len(cells) != len(COLUMNS) or None in numbers:
        _refuse(path, number, f"{','.join(cells)[:60]!r} is no client,start,end", "Give three numbers.")
    node, start, end = (float(one or 0.0) for one in numbers)
    if not 0 <= node < clients or node != int(node):
        _refuse(path, number, f"there is no client {cells[0]}", f"They are 0 to {clients - 1}.")
    if not -math.inf < start < end < math.inf:
        _refuse(path, number, f"the end {cells[2]} is not after the start {cells[1]}", "Give start before end.")
    return node, start, end


def _refuse(path: Path, number: int, what: str, advice: str) -> NoReturn:
    raise ConfigError(f"{path}, line {number}: {what}", advice)


# --- by the user's own function ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Own:
    text: str
    wanted: Callable[..., object]

    def __call__(self, node: NodeId, round: int) -> bool:
        found = call_part(self.text, self.wanted, node, round)
        if not isinstance(found, bool | np.bool_):
            what = f"{self.text} returned {found!r}"[:200] + f" for client {node} and round {round}"
            raise TrainingError(what, "Return True where the client can be invited, else False.")
        return bool(found)


def _load_own(text: str, clients: int) -> Available:
    available = _Own(text, function(text))
    tried = [(node, round) for node in range(min(TRIED, clients)) for round in range(TRIED)]
    try:
        found = [[available(*one) for one in tried] for _ in range(2)]
    except TrainingError as error:
        raise ConfigError(f"{KEY}: {error}", error.advice) from error
    if found[0] != found[1]:
        what = f"{KEY} = {text!r} gave two results for the same arguments"
        raise ConfigError(what, "Let it depend on the client and the round alone.")
    return available
