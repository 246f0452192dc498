"""The activities of every participant over time, and the messages between them: the first part of a run, as a picture.

The simulator feeds a `TimelineLog`; its `Timeline` is stored and drawn.  Bars follow the record (`core/meter`):
computing, else away, else sending or receiving, else waiting; a round's bars sum to its row.  For real processes
`build_timeline` makes bars from rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, reason
from fedgossip.core.machine import NodeId
from fedgossip.core.records import PeerRow, Row
from fedgossip.core.run_format import TIMELINE

ITEMS_OF_RUN = 1500
"""Maximum number of trainings, messages and rounds stored with a run: 80 kB."""
ITEMS = 40_000
"""Maximum number of them in a picture."""
PARTICIPANTS = 64
"""Maximum number of participants of a stored or drawn timeline: more lanes cannot be read."""

Activity = Literal["computing", "sending", "receiving", "both", "waiting", "away", "communicating", "mixing"]
"""both: sending and receiving at once; communicating: either, if the record does not separate them."""
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)


class Bar(NamedTuple):
    """A stretch of one participant's time, in nanoseconds."""

    node: NodeId
    what: Activity
    began: int
    ended: int


class Passed(NamedTuple):
    """A message with vectors, in nanoseconds.  `arrived`: -1 if it was lost; `sent`: departure of its last byte."""

    sender: NodeId
    to: NodeId
    began: int
    sent: int
    arrived: int
    payload: int


class RoundEnd(NamedTuple):
    node: NodeId
    round: int
    at: int


class FaultMark(NamedTuple):
    """A fault of a participant: crashed, restarted, asleep, awake."""

    node: NodeId
    what: str
    at: int


class Timeline(msgspec.Struct, frozen=True):
    """Bars without overlap per participant, up to `until`; messages; ends of rounds; marks."""

    participants: int
    counted: list[NodeId]
    """Participants whose rounds are those of the run."""
    until: int
    bars: list[Bar]
    messages: list[Passed] = []
    rounds: list[RoundEnd] = []
    marks: list[FaultMark] = []

    def find_end(self, rounds: int) -> int | None:
        """Return the end of that number of rounds, as `end_of`; None if the timeline ends before."""
        meanings = {mark.node: mark.what for mark in self.marks}  # the last of each
        dead = {node for node, what in meanings.items() if what == "crashed"}
        return end_of(rounds, self.rounds, [node for node in self.counted if node not in dead])

    @property
    def whole_rounds(self) -> int:
        """Number of complete rounds within it."""
        most = max((one.round for one in self.rounds), default=0)
        return next((round for round in range(most, 0, -1) if self.find_end(round) is not None), 0)

    def first(self, rounds: int) -> Timeline:
        """Return the part up to the end of that number of rounds, or all of a shorter timeline."""
        until = self.find_end(rounds)
        if until is None:
            return self
        return Timeline(
            self.participants,
            self.counted,
            until,
            [bar._replace(ended=min(bar.ended, until)) for bar in self.bars if bar.began < until],
            [one for one in self.messages if one.began < until],
            [one for one in self.rounds if one.at <= until],
            [one for one in self.marks if one.at <= until],
        )

    def seconds(self, node: NodeId, since: int, until: int) -> dict[Activity, float]:
        """Return the seconds of each activity of a participant between two times in nanoseconds."""
        found = dict.fromkeys(ACTIVITIES, 0.0)
        for bar in self.bars:
            if bar.node == node and bar.began < until and bar.ended > since:
                found[bar.what] += (min(bar.ended, until) - max(bar.began, since)) / 1e9
        return found


def end_of(rounds: int, ends: Sequence[RoundEnd], living: Collection[NodeId]) -> int | None:
    """Return the time at which all living participants had ended that number of rounds, or most of them one more: a
    slow participant does not stretch the picture.  None: it has not ended.
    """
    of: dict[int, dict[NodeId, int]] = {rounds: {}, rounds + 1: {}}
    for one in ends:
        if one.round in of and one.node in living:
            of[one.round].setdefault(one.node, one.at)
    further = sorted(of[rounds + 1].values())
    most = len(living) // 2
    found = [max(of[rounds].values())] if living and len(of[rounds]) == len(living) else []
    found += [further[most]] if len(further) > most else []
    return min(found, default=None)


class TimelineLog:
    """Records the simulator's activity up to `most` items, or `rounds` rounds; then it is `closed` (from the start if
    there are more than PARTICIPANTS).
    """

    def __init__(
        self, participants: int, counted: Collection[NodeId], most: int = ITEMS_OF_RUN, rounds: int | None = None
    ) -> None:
        self.participants, self.most, self.rounds = participants, most, rounds
        self.counted = [] if participants > PARTICIPANTS else list(counted)
        self.closed = participants > PARTICIPANTS or most == 0
        if self.closed:
            participants = 0
        self._until = 0
        self._began: dict[NodeId, int] = {}
        self._absent: dict[NodeId, int] = {}
        self._trained: list[list[tuple[int, int]]] = [[] for _ in range(participants)]
        self._away: list[list[tuple[int, int]]] = [[] for _ in range(participants)]
        self._out: list[list[tuple[int, int]]] = [[] for _ in range(participants)]
        self._in: list[list[tuple[int, int]]] = [[] for _ in range(participants)]
        self._messages: list[Passed] = []
        self._rounds: list[RoundEnd] = []
        self._marks: list[FaultMark] = []
        self._items = 0

    @property
    def enough(self) -> bool:
        """Whether the log already covers a picture of `rounds` rounds."""
        return self.closed and self.rounds is not None

    def _count(self, now: int) -> None:
        self._until = now
        self._items += 1
        if self._items >= self.most:
            self.closed = True

    def train_began(self, node: NodeId, now: int) -> None:
        if not self.closed:
            self._began[node] = now

    def train_ended(self, node: NodeId, now: int) -> None:
        if not self.closed and (began := self._began.pop(node, None)) is not None:
            self._trained[node].append((began, now))
            self._count(now)

    def passes(
        self, now: int, link: tuple[NodeId, NodeId], leaves: tuple[int, int], arrivals: Sequence[int], payload: int
    ) -> None:
        """Record a message that waits for the uplink from now on, leaves between two times, and arrives or is lost."""
        (sender, to), (began, sent) = link, leaves
        self._out[sender].append((now, sent))
        self._in[to] += [(began, arrived) for arrived in arrivals]
        self._messages.append(Passed(sender, to, began, sent, min(arrivals, default=-1), payload))
        self._count(now)

    def round_ended(self, node: NodeId, round: int, now: int) -> None:
        if self.closed:
            return
        self._rounds.append(RoundEnd(node, round, now))
        self._count(now)
        if self.rounds is not None and round in (self.rounds, self.rounds + 1):
            living = [one for one in self.counted if one not in self._absent]
            self.closed = self.closed or end_of(self.rounds, self._rounds, living) is not None

    def befell(self, node: NodeId, what: str, now: int) -> None:
        """Record a mark.  A crashed participant is away until it restarts, and its training is lost."""
        if self.closed:
            return
        if what == "crashed":
            self.train_ended(node, now)
            self._absent[node] = now
        elif what == "restarted" and (gone := self._absent.pop(node, None)) is not None:
            self._away[node].append((gone, now))
        self._marks.append(FaultMark(node, what, now))

    def timeline(self) -> Timeline:
        """Return the recorded part, up to the last item."""
        bars = []
        for node in range(self.participants if self._items else 0):
            open_training = [(self._began[node], self._until)] if node in self._began else []
            gone = [(self._absent[node], self._until)] if node in self._absent else []
            kinds = [self._trained[node] + open_training, self._away[node] + gone, self._out[node], self._in[node]]
            bars += _bars(node, kinds, self._until)
        # A message sent at the instant at which the log is full has no bar.
        messages = [one for one in self._messages if one.began < self._until]
        return Timeline(
            self.participants, self.counted, self._until, bars, messages, list(self._rounds), list(self._marks)
        )


def _bars(node: NodeId, kinds: Sequence[Sequence[tuple[int, int]]], until: int) -> list[Bar]:
    changes = [(at, kind, step) for kind, spans in enumerate(kinds) for span in spans
               for at, step in ((span[0], 1), (span[1], -1)) if span[1] > span[0]]  # fmt: skip
    active, bars, since = [0] * len(kinds), list[Bar](), 0

    def close(at: int) -> None:
        trains, away, sends, receives = (bool(number) for number in active)
        what: Activity = (
            "computing" if trains else "away" if away else "both" if sends and receives
            else "sending" if sends else "receiving" if receives else "waiting"
        )  # fmt: skip
        if at <= since:
            return
        if bars and bars[-1].what == what:
            bars[-1] = bars[-1]._replace(ended=at)
        else:
            bars.append(Bar(node, what, since, at))

    for at, kind, step in sorted(changes):
        close(min(at, until))
        since = max(since, min(at, until))
        active[kind] += step
    close(until)
    return bars


def build_timeline(rows: Iterable[Row], participants: int, counted: Collection[NodeId]) -> Timeline:
    """Return a record's bars: a round's seconds of each kind, one after the other, without messages.

    Raises ConfigError for rows without times, or too many participants.
    """
    if participants > PARTICIPANTS:
        raise too_many(participants)
    order: tuple[tuple[Activity, str], ...] = (
        ("computing", "seconds_training"), ("communicating", "seconds_communicating"),
        ("waiting", "seconds_waiting"), ("mixing", "seconds_mixing"),
    )  # fmt: skip
    bars, ends = list[Bar](), list[RoundEnd]()
    for row in rows:
        if not isinstance(row, PeerRow) or not 0 <= row.peer < participants or row.round < 1:
            continue
        parts = [(what, int(getattr(row, name) * 1e9)) for what, name in order]
        at = int(row.seconds * 1e9) - sum(length for _, length in parts)
        for what, length in parts:
            if length > 0:
                bars.append(Bar(row.peer, what, at, at + length))
            at += length
        ends.append(RoundEnd(row.peer, row.round, at))
        if len(bars) >= ITEMS:
            break
    if not bars:
        raise ConfigError("the run recorded no times: on stacked arrays nothing takes any", SIMULATE)
    since = min(bar.began for bar in bars)
    moved = [bar._replace(began=bar.began - since, ended=bar.ended - since) for bar in bars]
    ended = [one._replace(at=one.at - since) for one in ends]
    return Timeline(participants, list(counted), max(one.at for one in ended), moved, rounds=ended)


SIMULATE = "Simulate it: fedgossip timeline RUN/experiment.toml, or fedgossip run RUN/experiment.toml --on sim."


def too_many(participants: int) -> ConfigError:
    advice = f"Give at most {PARTICIPANTS}, for example --n 8."
    return ConfigError(f"a timeline of {participants} participants cannot be read", advice)


def read_timeline(folder: Path) -> Timeline | None:
    """Return the timeline stored with a run, None without one.  Raises ConfigError for a damaged file."""
    place = folder / TIMELINE
    try:
        found = from_json(msgspec.json.Decoder(Timeline), outside_files.read_bytes(place))
    except FileNotFoundError:
        return None
    except (OSError, UnreadableError) as error:
        raise ConfigError(
            f"{place}: cannot be read ({reason(error)})", "Remove it: the record then gives the bars."
        ) from None
    ids = range(found.participants)
    nodes = [one.node for of in (found.bars, found.rounds, found.marks) for one in of]
    nodes += found.counted
    nodes += [node for one in found.messages for node in (one.sender, one.to)]
    items = len(nodes)
    if not 0 < found.participants <= PARTICIPANTS or items > 2 * ITEMS or any(node not in ids for node in nodes):
        raise ConfigError(f"{place}: no timeline that a run writes", "Check the origin of the folder.")
    return found


COLOURS = {"computing": "thread_state_running", "waiting": "grey", "away": "terrible"}
"""Names of colours in the viewer."""


def chrome_trace(timelines: Iterable[tuple[str, Timeline, Sequence[str]]]) -> bytes:
    """Return (title, timeline, names of its participants) as JSON in Chrome's trace event format: Perfetto opens it.

    A process per timeline, a thread per participant, a flow per message; microseconds.  Source: Duca and Sinclair,
    Trace Event Format (2016).
    """
    events: list[dict[str, object]] = []
    flows = 0
    for place, (title, timeline, names) in enumerate(timelines):
        events.append({"ph": "M", "name": "process_name", "pid": place, "tid": 0, "args": {"name": title}})
        for node, name in enumerate(names):
            events.append({"ph": "M", "name": "thread_name", "pid": place, "tid": node, "args": {"name": name}})
        for bar in timeline.bars:
            colour = {"cname": COLOURS[bar.what]} if bar.what in COLOURS else {}
            took = {"ts": bar.began / 1e3, "dur": (bar.ended - bar.began) / 1e3}
            events.append({"ph": "X", "name": bar.what, "pid": place, "tid": bar.node, **took, **colour})
        for one in timeline.messages:
            if not 0 <= one.arrived <= timeline.until:  # a flow that ends beyond all slices is not drawn
                continue
            flow = {"name": "message", "cat": "message", "id": flows, "pid": place}
            args = {"args": {"bytes": one.payload}}
            events.append({"ph": "s", **flow, "tid": one.sender, "ts": one.began / 1e3, **args})
            events.append({"ph": "f", "bp": "e", **flow, "tid": one.to, "ts": one.arrived / 1e3, **args})
            flows += 1
        for mark in timeline.marks:
            where = {"pid": place, "tid": mark.node, "ts": mark.at / 1e3}
            events.append({"ph": "i", "s": "t", "name": mark.what, **where})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()
