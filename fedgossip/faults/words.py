"""The kinds of [[faults]] in an experiment file: a struct for each, and checks of what cannot be meant."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Annotated, NoReturn

import msgspec

from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId

NS = 1_000_000_000


def ns(seconds: float) -> int:
    """Return seconds as integer nanoseconds, the unit of all comparisons here."""
    return round(seconds * NS)


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Period = Annotated[float, msgspec.Meta(ge=0.001, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Peer = Annotated[int, msgspec.Meta(ge=0)]


class TimedFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The common part of every kind of fault: when it acts."""

    start: Seconds = 0.0
    """Seconds from the beginning of the run to that of the fault."""
    stop: Seconds | None = None
    """Seconds from the beginning of the run to the end of the fault; none: it lasts to the end of the run."""

    def __post_init__(self) -> None:
        numbers = (getattr(self, name) for name in self.__struct_fields__)
        if any(isinstance(one, float) and not math.isfinite(one) for one in numbers):
            raise ValueError("a number is not finite")
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"stop = {self.stop:g} is not after start = {self.start:g}")

    def on(self, now_ns: int) -> bool:
        return ns(self.start) <= now_ns and (self.stop is None or now_ns < ns(self.stop))


class OnLinks(TimedFault, frozen=True, kw_only=True):
    """A fault of the links named, both ways, and of all links of the peers named; of every link where none is named."""

    peers: tuple[Peer, ...] | None = None
    """Those whom it hits, by their ids; none: all, but where links are named."""
    links: tuple[tuple[Peer, Peer], ...] | None = None
    """Pairs of neighbours, [[0, 1], [1, 2]]: it hits what they send each other, both ways."""

    def hits(self, a: NodeId, b: NodeId) -> bool:
        if self.peers is None and self.links is None:
            return True
        return bool(self.links and ((a, b) in self.links or (b, a) in self.links)) or bool(
            self.peers and (a in self.peers or b in self.peers)
        )


class Drop(OnLinks, frozen=True, kw_only=True, tag="drop"):
    """A message is lost."""

    probability: Share = 1.0
    """The share of the messages that it hits, drawn from the seed."""


class Delay(OnLinks, frozen=True, kw_only=True, tag="delay"):
    """A message takes `seconds` longer; what is sent after it on the link waits behind it."""

    seconds: Seconds
    """Additional seconds, fixed or maximum."""
    probability: Share = 1.0
    """The share of the messages that it hits, drawn from the seed."""


class Duplicate(OnLinks, frozen=True, kw_only=True, tag="duplicate"):
    """A message arrives twice."""

    probability: Share = 1.0
    """The share of the messages that it hits, drawn from the seed."""


class Reorder(OnLinks, frozen=True, kw_only=True, tag="reorder"):
    """A message is held back for up to `seconds`; others overtake it."""

    seconds: Seconds
    """Additional seconds, fixed or maximum."""
    probability: Share = 1.0
    """The share of the messages that it hits, drawn from the seed."""


class Flap(OnLinks, frozen=True, kw_only=True, tag="flap"):
    """Links go down for the second half of every `seconds`."""

    seconds: Period
    """The period."""


class Partition(TimedFault, frozen=True, kw_only=True, tag="partition"):
    """Nothing passes between peers of different groups; peers in no group are one more group."""

    groups: tuple[tuple[Peer, ...], ...]
    """Ids of peers, [[0, 1], [2, 3]]; those that are not named form one more group."""


class OnPeers(TimedFault, frozen=True, kw_only=True):
    """A fault of the peers named; of all where none is named."""

    peers: tuple[Peer, ...] | None = None
    """Those whom it hits, by their ids; none: all, but where links are named."""


class Slow(OnPeers, frozen=True, kw_only=True, tag="slow"):
    """Training takes `factor` times as long."""

    factor: Annotated[float, msgspec.Meta(ge=1, le=1e6)]
    """Factor on the duration."""


class _Struck(OnPeers, frozen=True, kw_only=True):
    """A fault that strikes all its peers at `start`; or, with `every`, one peer each time, drawn from the seed, until
    `stop`."""

    every: Period | None = None
    """Seconds between two strikes, each of one of the peers, drawn from the seed; none: all at once, at the start.  A
    series ends after 20 strikes for each participant without a new round of any participant."""

    @property
    def back(self) -> float | None:
        """Seconds until a struck peer restarts; None: never."""
        raise NotImplementedError


class Crash(_Struck, frozen=True, kw_only=True, tag="crash"):
    """The process dies at once; it starts again from what it had written `after` seconds later, or never."""

    after: Seconds | None = None
    """Seconds until it is back; none: never."""

    @property
    def back(self) -> float | None:
        return self.after


class Sleep(_Struck, frozen=True, kw_only=True, tag="sleep"):
    """The process does nothing for `seconds`, or until `stop`; then it goes on."""

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


# --- what cannot be meant ---------------------------------------------------------------------------------------------


def check(faults: Sequence[Fault], n: int, links: Collection[tuple[NodeId, NodeId]] | None) -> None:
    for index, fault in enumerate(faults):
        where = f"faults[{index}] ({fault.__struct_config__.tag})"
        peers, pairs = getattr(fault, "peers", None), getattr(fault, "links", None)
        if peers == () or pairs == ():
            _refuse(where, "an empty list hits nobody", "Leave the key out to hit all.")
        for node in (*(peers or ()), *chain(*(pairs or ())), *chain(*getattr(fault, "groups", ()))):
            if node >= n:
                _refuse(where, f"there is no peer {node}", f"The graph has peers 0 to {n - 1}.")
        for a, b in pairs or ():
            if links is not None and (a, b) not in links and (b, a) not in links:
                _refuse(where, f"{a} and {b} are no neighbours", "Name links of the graph: fedgossip topology show.")
        if isinstance(fault, Partition):
            _check_groups(where, fault.groups, n)
    gone: set[NodeId] = set()
    for fault in faults:
        if isinstance(fault, Crash) and fault.after is None:
            gone.update(_killed(fault, n))
    if n and len(gone) == n:
        raise ConfigError("faults: every peer crashes for ever", "Let some come back: after = 2.0, or name peers.")


def _killed(fault: Crash, n: int) -> list[NodeId]:
    """Return the peers that `fault` kills for ever; one fewer where there are too few strikes for all."""
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
        _refuse(where, "these groups part nobody", "Name two groups, or one that leaves somebody out.")


def _refuse(where: str, what: str, advice: str) -> NoReturn:
    raise ConfigError(f"{where}: {what}", advice)
