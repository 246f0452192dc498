"""The faults of a run: their kinds in an experiment file, and the script that drivers query.

Each entry of [[faults]] is a struct by kind; contradictory entries are refused.  The script answers the drivers'
questions as a function of the faults and the seed.  A series of strikes ends when the run makes no progress between
them; otherwise neither would end.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Annotated, NoReturn

import msgspec

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of a message: it and later messages on the link take `delay_ns` longer.

    One copy arrives for each of `held_ns`, and only this copy is held back for that time; an empty tuple: it is lost.
    """

    delay_ns: int = 0
    held_ns: tuple[int, ...] = (0,)
    fells: Crash | None = None
    """The crash of its sender behind it."""

    @property
    def lost(self) -> bool:
        return not self.held_ns


UNHARMED, LOST = Fate(), Fate(held_ns=())

NS = 1_000_000_000


def ns(seconds: float) -> int:
    """Return seconds as integer nanoseconds, the unit of all comparisons here."""
    return round(seconds * NS)


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Period = Annotated[float, msgspec.Meta(ge=0.001, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Peer = Annotated[int, msgspec.Meta(ge=0)]


class TimedFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The common part of every kind of fault: the time when it acts."""

    start: Seconds = 0.0
    """Seconds from the beginning of the run to the start of the fault."""
    stop: Seconds | None = None
    """Seconds from the beginning of the run to the end of the fault; none: until the end of the run."""

    def __post_init__(self) -> None:
        numbers = (getattr(self, name) for name in self.__struct_fields__)
        if any(isinstance(one, float) and not math.isfinite(one) for one in numbers):
            raise ValueError("a number is not finite")
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"stop = {self.stop:g} is not after start = {self.start:g}")

    def on(self, now_ns: int) -> bool:
        return ns(self.start) <= now_ns and (self.stop is None or now_ns < ns(self.stop))


class OnLinks(TimedFault, frozen=True, kw_only=True):
    """A fault of the given links, both ways, and of all links of the given peers; of every link if neither is given."""

    peers: tuple[Peer, ...] | None = None
    """Ids of the affected peers; none: all, unless links are given."""
    links: tuple[tuple[Peer, Peer], ...] | None = None
    """Pairs of neighbours, [[0, 1], [1, 2]]: messages between them are affected, both ways."""

    def hits(self, a: NodeId, b: NodeId) -> bool:
        if self.peers is None and self.links is None:
            return True
        return bool(self.links and ((a, b) in self.links or (b, a) in self.links)) or bool(
            self.peers and (a in self.peers or b in self.peers)
        )


class OnMessages(OnLinks, frozen=True, kw_only=True):
    """A fault of the messages on links, of a share of them or of single ones."""

    messages: tuple[tuple[Peer, Peer, Peer], ...] | None = None
    """Single messages, in place of peers and links: [[0, 1, 5]] is message 5 from peer 0 to peer 1, counted from 0 in
    the simulation, or since the start of the sender's process.
    """
    probability: Share = 1.0
    """Share of the affected messages, drawn from the seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.messages is not None and (self.peers is not None or self.links is not None):
            raise ValueError("give `messages`, or `peers` and `links`")

    def affects(self, sender: NodeId, to: NodeId, number: int) -> bool:
        """Return whether a message on an affected link is one of those named."""
        return self.messages is None or (sender, to, number) in self.messages


class Drop(OnMessages, frozen=True, kw_only=True, tag="drop"):
    """A message is lost."""


class Delay(OnMessages, frozen=True, kw_only=True, tag="delay"):
    """A message takes `seconds` longer; later messages on the link wait behind it."""

    seconds: Seconds
    """Additional seconds, fixed or maximum."""


class Duplicate(OnMessages, frozen=True, kw_only=True, tag="duplicate"):
    """A message arrives twice, the second time `seconds` later."""

    seconds: Seconds | None = None
    """Seconds until the second copy; none: both arrive together."""


class Reorder(OnMessages, frozen=True, kw_only=True, tag="reorder"):
    """A message is held back for up to `seconds`; others overtake it."""

    seconds: Seconds
    """Additional seconds, fixed or maximum."""


class Flap(OnLinks, frozen=True, kw_only=True, tag="flap"):
    """Links are down for the second half of every `seconds`."""

    seconds: Period
    """Length of the period, in seconds."""


class Partition(TimedFault, frozen=True, kw_only=True, tag="partition"):
    """No message passes between peers of different groups; peers in no group form one more group."""

    groups: tuple[tuple[Peer, ...], ...]
    """Ids of peers, [[0, 1], [2, 3]]; the remaining peers form one more group."""


class OnPeers(TimedFault, frozen=True, kw_only=True):
    """A fault of the given peers; of all if none are given."""

    peers: tuple[Peer, ...] | None = None
    """Ids of the affected peers; none: all, unless links are given."""


class Slow(OnPeers, frozen=True, kw_only=True, tag="slow"):
    """Training takes `factor` times as long."""

    factor: Annotated[float, msgspec.Meta(ge=1, le=1e6)]
    """Factor on the duration of training."""


class _Struck(OnPeers, frozen=True, kw_only=True):
    """A fault that strikes all its peers at `start`; or, with `every`, a random one at a time, until `stop`."""

    every: Period | None = None
    """Seconds between two strikes, each of one peer drawn from the seed; none: all peers at once, at the start.  A
    series ends after 20 strikes per participant without a new round of any participant.
    """

    @property
    def back(self) -> float | None:
        """Seconds until a struck peer restarts; None: never."""
        raise NotImplementedError


class Crash(_Struck, frozen=True, kw_only=True, tag="crash"):
    """The process dies at once; after `after` seconds it restarts from its checkpoint, or never."""

    after: Seconds | None = None
    """Seconds until the process restarts; none: never."""
    messages: tuple[tuple[Peer, Peer, Peer], ...] | None = None
    """In place of a time, and only simulated: [[0, 1, 5]] is a crash of peer 0 within a step, behind message 5 from it
    to peer 1 and the others that it sends with it, before what it then writes to disk.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.messages is not None and (self.peers is not None or self.every is not None):
            raise ValueError("give `messages`, or `peers` and `every`")

    @property
    def back(self) -> float | None:
        return self.after


class Sleep(_Struck, frozen=True, kw_only=True, tag="sleep"):
    """The process is suspended for `seconds`, or until `stop`; then it continues."""

    seconds: Seconds | None = None
    """Duration of the sleep; none: until `stop`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seconds is None and (self.stop is None or self.every is not None):
            raise ValueError("give `seconds`, how long it sleeps")

    @property
    def back(self) -> float:
        return self.seconds if self.seconds is not None else (self.stop or 0.0) - self.start


Fault = Drop | Delay | Duplicate | Reorder | Flap | Partition | Slow | Crash | Sleep
KINDS: dict[str, type[TimedFault]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (Drop, Delay, Duplicate, Reorder, Flap, Partition, Slow, Crash, Sleep)
}


# --- contradictory entries --------------------------------------------------------------------------------------------


def pairs_of(fault: Fault) -> list[tuple[NodeId, NodeId]]:
    """Return the links that a fault names, by themselves or by their messages."""
    messages = getattr(fault, "messages", None) or ()
    return [*(getattr(fault, "links", None) or ()), *((sender, to) for sender, to, _ in messages)]


def check(faults: Sequence[Fault], n: int, links: Collection[tuple[NodeId, NodeId]] | None) -> None:
    for index, fault in enumerate(faults):
        where = f"faults[{index}] ({fault.__struct_config__.tag})"
        peers, pairs = getattr(fault, "peers", None), pairs_of(fault)
        if () in (peers, getattr(fault, "links", None), getattr(fault, "messages", None)):
            _refuse(where, "an empty list strikes no peer", "Leave the key out to hit all.")
        for node in (*(peers or ()), *chain(*pairs), *chain(*getattr(fault, "groups", ()))):
            if node >= n:
                _refuse(where, f"there is no peer {node}", f"The graph has peers 0 to {n - 1}.")
        for a, b in pairs:
            if links is not None and (a, b) not in links and (b, a) not in links:
                _refuse(where, f"{a} and {b} are no neighbours", "Name links of the graph: fedgossip topology show.")
        if isinstance(fault, Partition):
            _check_groups(where, fault.groups, n)
    gone: set[NodeId] = set()
    for fault in faults:
        if isinstance(fault, Crash) and fault.after is None:
            gone.update(_killed(fault, n))
    if n and len(gone) == n:
        raise ConfigError("faults: every peer crashes for ever", "Let some return: after = 2.0, or name peers.")


def _killed(fault: Crash, n: int) -> list[NodeId]:
    """Return the peers that `fault` kills permanently; with few strikes some survive."""
    if fault.messages is not None:
        return sorted({sender for sender, _, _ in fault.messages})
    peers = list(range(n)) if fault.peers is None else sorted(set(fault.peers))
    if fault.every is None or fault.stop is None:
        return peers
    return peers[: math.ceil((fault.stop - fault.start) / fault.every)]


def _check_groups(where: str, groups: Sequence[Sequence[NodeId]], n: int) -> None:
    grouped = [node for group in groups for node in group]
    if len(set(grouped)) < len(grouped):
        twice = next(node for node in grouped if grouped.count(node) > 1)
        _refuse(where, f"peer {twice} is in two groups, or twice in one", "Name each peer once.")
    if not all(groups) or len(groups) + (len(grouped) < n) < 2:
        _refuse(where, "these groups separate no peers", "Name two groups, or one that leaves somebody out.")


def _refuse(where: str, what: str, advice: str) -> NoReturn:
    raise ConfigError(f"{where}: {what}", advice)


@dataclass(frozen=True, slots=True)
class Strike:
    """A crash or a suspension of `node` at `at_ns`; the node is back at `back_ns`, or never if None."""

    at_ns: int
    kind: str
    """crash | sleep"""
    node: NodeId
    back_ns: int | None
    of_series: bool = False
    """Whether it belongs to a series, which ends when the run makes no progress (`progress`)."""
    endless: bool = False
    """Whether that series has no `stop`, and ends with the run."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The start or the end of a fault other than a strike: `name` is the reported event of `peer`."""

    at_ns: int
    name: str
    """partition | healed | link_down | link_up | slow"""
    peer: NodeId
    value: object


Happening = Strike | Turn


class FaultScript:
    """The faults of one run of `n` peers.  `links`: the pairs that exchange messages; None: unknown.

    Raises ConfigError with the contradictory entry.
    """

    def __init__(
        self, faults: Sequence[Fault], n: int, seed: int, links: Collection[tuple[NodeId, NodeId]] | None = None
    ) -> None:
        self.faults, self.n, self.seed = tuple(faults), n, seed
        check(self.faults, n, links)
        self._named = list(enumerate(self.faults))
        self._slowing = [fault for fault in self.faults if isinstance(fault, Slow)]
        self._felling = [fault for fault in self.faults if isinstance(fault, Crash) and _is_within_a_step(fault)]
        self._of_link: dict[tuple[NodeId, NodeId], list[tuple[int, Fault]]] = {}

    def __bool__(self) -> bool:
        return bool(self.faults)

    @property
    def touches_messages(self) -> bool:
        """Whether the script acts on links, so that drivers must call `fate` or `cut`."""
        return any(isinstance(fault, OnLinks | Partition) or _is_within_a_step(fault) for fault in self.faults)

    @property
    def restarts(self) -> bool:
        """Whether dead peers restart."""
        return any(isinstance(fault, Crash) and fault.after is not None for fault in self.faults)

    def fate(self, sender: NodeId, to: NodeId, number: int, now_ns: int) -> Fate:
        """Return the fate of message `number` from `sender` to `to`, apart from cuts."""
        delay, held, copies = 0, 0, [0]
        fells = next((one for one in self._felling if (sender, to, number) in (one.messages or ())), None)
        for index, fault in self._on(sender, to):
            if not isinstance(fault, OnMessages) or not fault.on(now_ns) or not fault.affects(sender, to, number):
                continue
            if fault.probability < 1 and self._drawn(index, sender, to, number, 0) >= fault.probability:
                continue
            match fault:
                case Drop():
                    return Fate(held_ns=(), fells=fells) if fells else LOST
                case Delay(seconds=seconds):
                    delay += ns(seconds)
                case Reorder(seconds=seconds):
                    held += ns(seconds * self._drawn(index, sender, to, number, 1))
                case Duplicate(seconds=seconds):
                    copies.append(ns(seconds or 0.0))
        harmed = delay or held or len(copies) > 1 or fells
        return Fate(delay, tuple(held + later for later in copies), fells) if harmed else UNHARMED

    def cut(self, a: NodeId, b: NodeId, now_ns: int) -> bool:
        """Return whether a partition or a flap separates `a` and `b`."""
        return any(
            (isinstance(fault, Partition) and fault.on(now_ns))
            or (isinstance(fault, Flap) and fault.on(now_ns) and _down(fault, now_ns))
            for _, fault in self._on(a, b)
        )

    def factor(self, node: NodeId, now_ns: int) -> float:
        """Return the factor on the duration of a training that `node` begins now."""
        if not self._slowing:
            return 1.0
        slowing = (fault for fault in self._slowing if fault.peers is None or node in fault.peers)
        return math.prod(fault.factor for fault in slowing if fault.on(now_ns))

    def happenings(self) -> Iterator[Happening]:
        """Yield the faults of peers and links, in order of time; the series may be endless."""
        each = [self._happenings(index, fault) for index, fault in self._named]
        return heapq.merge(*each, key=lambda one: one.at_ns)

    def schedule(self, until: float) -> list[Happening]:
        """Return the faults of the first `until` seconds."""
        found = []
        for one in self.happenings():
            if one.at_ns > ns(until):
                break
            found.append(one)
        return found

    # --- one fault ------------------------------------------------------------------------------------------------

    def _on(self, a: NodeId, b: NodeId) -> list[tuple[int, Fault]]:
        if (a, b) not in self._of_link:
            self._of_link[a, b] = [(index, fault) for index, fault in self._named if _hits(fault, a, b)]
        return self._of_link[a, b]

    def _drawn(self, index: int, sender: NodeId, to: NodeId, number: int, what: int) -> float:
        return seeds.integer(self.seed, "faults", index, sender, to, number, what) / 2**63

    def _happenings(self, index: int, fault: Fault) -> Iterator[Happening]:
        begin, end = ns(fault.start), None if fault.stop is None else ns(fault.stop)
        match fault:
            case Partition(groups=groups):
                value = [list(group) for group in groups]
                yield Turn(begin, "partition", groups[0][0], value)
                if end is not None:
                    yield Turn(end, "healed", groups[0][0], value)
            case Flap():
                yield from _flapping(fault)
            case Slow(factor=factor):
                for node in self._peers(fault):
                    yield Turn(begin, "slow", node, factor)
            case Crash() | Sleep() if not _is_within_a_step(fault):
                yield from self._strikes(index, fault)

    def _strikes(self, index: int, fault: Crash | Sleep) -> Iterator[Strike]:
        kind, peers = str(type(fault).__struct_config__.tag), self._peers(fault)
        begin, lasting = ns(fault.start), None if fault.back is None else ns(fault.back)
        if fault.every is None:
            for node in peers:
                yield Strike(begin, kind, node, None if lasting is None else begin + lasting)
            return
        away: dict[NodeId, float] = {}  # the end of the partition of each group
        last: NodeId | None = None
        for number in count():
            at = begin + number * ns(fault.every)
            if fault.stop is not None and at >= ns(fault.stop):
                return
            here = [node for node in peers if away.get(node, -1) < at]
            here = [node for node in here if node != last] or here
            if here:
                last = here[seeds.integer(self.seed, "strikes", index, number) % len(here)]
                away[last] = math.inf if lasting is None else at + lasting
                yield Strike(at, kind, last, None if lasting is None else at + lasting, True, fault.stop is None)
            elif lasting is None:
                return

    def _peers(self, fault: OnPeers) -> list[NodeId]:
        return list(range(self.n)) if fault.peers is None else sorted(set(fault.peers))


def _is_within_a_step(fault: Fault) -> bool:
    return isinstance(fault, Crash) and fault.messages is not None


def _hits(fault: Fault, a: NodeId, b: NodeId) -> bool:
    match fault:
        case Partition(groups=groups):
            return _group(groups, a) != _group(groups, b)
        case OnMessages(messages=messages) if messages is not None:
            return (a, b) in pairs_of(fault)
        case OnLinks():
            return fault.hits(a, b)
        case _:
            return False


def _group(groups: Sequence[Sequence[NodeId]], node: NodeId) -> int:
    return next((number for number, group in enumerate(groups) if node in group), len(groups))


def _down(fault: Flap, now_ns: int) -> bool:
    period = ns(fault.seconds)
    return (now_ns - ns(fault.start)) % period >= period - period // 2


def _flapping(fault: Flap) -> Iterator[Turn]:
    period, begin = ns(fault.seconds), ns(fault.start)
    peer = min([*(fault.peers or ()), *chain(*(fault.links or ()))], default=0)
    value = {"links": [list(link) for link in fault.links or ()], "peers": list(fault.peers or ())}
    for number in count():
        down, up = begin + (number + 1) * period - period // 2, begin + (number + 1) * period
        if fault.stop is not None and down >= ns(fault.stop):
            return
        yield Turn(down, "link_down", peer, value)
        yield Turn(up if fault.stop is None else min(up, ns(fault.stop)), "link_up", peer, value)


NOTHING = FaultScript((), 0, 0)
"""No faults."""

MOST_IN_VAIN = 20
"""Maximum number of strikes of series per participant while no participant completes a new round."""


class RunProgress:
    """The newest round of each of `n` participants, and the strikes of series since the last new round.

    A round repeated from an older checkpoint is not new.  An ended series stays ended.
    """

    def __init__(self, n: int) -> None:
        self._reached = [0] * n
        self._in_vain = 0

    @property
    def over(self) -> bool:
        """Whether all series have ended."""
        return self._in_vain >= MOST_IN_VAIN * len(self._reached)

    def round_of(self, node: NodeId) -> int:
        """Return the newest round of a participant, 0 before the first."""
        return self._reached[node]

    def reached(self, node: NodeId, round: int) -> None:
        if round > self._reached[node]:
            self._reached[node] = round
            self._in_vain = self._in_vain if self.over else 0

    def struck(self) -> bool:
        """Count a strike of a series; return whether it was the last."""
        self._in_vain += 1
        return self.over
