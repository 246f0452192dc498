"""A world of members in virtual time: messages take a while, get lost, meet cut links, dead and sleeping machines."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from fedgossip.base import seeds
from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import (
    Effect,
    Event,
    Fired,
    Meet,
    NodeId,
    Part,
    PeerGone,
    PeerJoined,
    Received,
    Refused,
    Report,
    Rostered,
    Send,
    SetTimer,
    Started,
)
from fedgossip.core.messages import Entry
from fedgossip.protocols.members.failure_detector import MemberSettings
from fedgossip.protocols.members.membership import Membership
from fedgossip.protocols.members.membership_updates import Sign, Trust, admission_of
from fedgossip.protocols.members.roster import Roster
from fedgossip.topology import Mixing, build, resolve

SECOND = 1_000_000_000
ORGANISER = "organiser"


def signer(secret: str) -> Sign:
    """A signature that only the test's own `verify` believes: key and secret are one."""
    return lambda data: hashlib.sha256(secret.encode() + data).hexdigest()


def verify(key: str, data: bytes, signature: str) -> bool:
    return signature == signer(key)(data)


def founders(n: int) -> dict[NodeId, tuple[str, str, str]]:
    return {node: (f"tcp://10.0.0.{node}:1", f"key{node}", f"sign{node}") for node in range(n)}


def trust(n: int, organiser: str = ORGANISER) -> Trust:
    return Trust({node: (key, sign) for node, (_, key, sign) in founders(n).items()}, verify, organiser)


def entry_of(node: NodeId, incarnation: int, *, since: int = 0, admitted: bool = False) -> Entry:
    key, sign = f"key{node}", f"sign{node}"
    admission = signer(ORGANISER)(admission_of(node, key, sign)) if admitted else ""
    return Entry(node, incarnation, f"tcp://10.0.0.{node}:1", key, sign, since, admission=admission)


def graphs(ids: tuple[NodeId, ...]) -> Mixing:
    return build(resolve("complete" if len(ids) < 4 else "ring", len(ids)) if len(ids) > 1 else resolve("none", 1))


def membership(
    node: NodeId,
    n: int,
    *,
    life: int = 1,
    since: int = 0,
    seed: int = 0,
    settings: MemberSettings | None = None,
    make: Callable[[tuple[NodeId, ...]], Any] = graphs,
    rounds: int = 10_000,
) -> Membership:
    """The member `node` of a run that began with `n`; ids from `n` on come later, admitted by the organiser."""
    me = entry_of(node, life, since=since, admitted=node >= n)
    roster = Roster.founding(founders(n), node)
    return Membership(me, roster, trust(n), signer(me.verify), make, settings or MemberSettings(), seed, rounds)


class World:
    """Machines, and everything between them.  `asleep` machines hear and do nothing until they wake."""

    def __init__(self, machines: Mapping[NodeId, Any], seed: int = 0, *, loss: float = 0.0, latency: float = 0.01):
        self.machines = dict(machines)
        self.loss, self.latency = loss, latency
        self.rng: np.random.Generator = seeds.stream(seed, "world")
        self.now_ns = 0
        self.dead: set[NodeId] = set()
        self.asleep: set[NodeId] = set()
        self.sides: dict[NodeId, int] = {}
        self.reports: list[tuple[float, NodeId, str, Any]] = []
        self.told: list[tuple[float, NodeId, Event]] = []
        self.parted: list[tuple[float, NodeId, NodeId]] = []
        self.met: set[tuple[NodeId, NodeId]] = set()
        self.sent = 0
        self._arrivals: dict[tuple[NodeId, NodeId], float] = {}
        self._heap: list[tuple[int, int, NodeId, Event]] = []
        self._timers: dict[tuple[NodeId, Hashable], int] = {}
        self._held: dict[NodeId, list[Event]] = {}
        self._sequence = 0
        for node in machines:
            self.push(0, node, Started())

    @property
    def now(self) -> float:
        return self.now_ns / SECOND

    def push(self, after: float, node: NodeId, event: Event) -> None:
        self._sequence += 1
        at_ns = self.now_ns + int(after * SECOND)
        if isinstance(event, Fired):
            self._timers[node, event.key] = self._sequence
        heapq.heappush(self._heap, (at_ns, self._sequence, node, event))

    def start(self, node: NodeId, machine: Any) -> None:
        """A process begins, perhaps of one that died; those who know it call it again."""
        self.machines[node] = machine
        self.dead.discard(node)
        self.met = {pair for pair in self.met if pair[0] != node}
        self._timers = {key: at for key, at in self._timers.items() if key[0] != node}
        self.push(0, node, Started())

    def crash(self, node: NodeId, *, notice: bool = False) -> None:
        """`notice`: the links of the others break, as when a process dies; else silence, as when a cable is pulled."""
        self.dead.add(node)
        if notice:
            for other in self.machines:
                if (other, node) in self.met:
                    self.push(self.latency, other, PeerGone(node))

    def wake(self, node: NodeId) -> None:
        self.asleep.discard(node)
        for event in self._held.pop(node, []):
            self.push(0, node, event)

    def run(self, seconds: float) -> None:
        until = self.now_ns + int(seconds * SECOND)
        while self._heap and self._heap[0][0] <= until:
            self.now_ns, sequence, node, event = heapq.heappop(self._heap)
            if node in self.dead or node not in self.machines:
                continue
            if isinstance(event, Fired) and self._timers.get((node, event.key)) != sequence:
                continue
            if node in self.asleep:
                if not isinstance(event, Received):
                    self._held.setdefault(node, []).append(event)
                continue
            self.tell(node, event)
        self.now_ns = until

    def tell(self, node: NodeId, event: Event) -> None:
        self.before(node)
        try:
            effects = self.machines[node].handle(event, self.now_ns)
        except ProtocolError as error:  # costs that message only, as in every driver
            self.reports.append((self.now, node, "refused", str(error)))
            return
        for effect in effects:
            self.perform(node, effect)

    def perform(self, node: NodeId, effect: Effect | Event) -> None:
        match effect:
            case Send(to, message):
                self.sent += 1
                lost = self.rng.random() < self.loss
                if not lost and self.sides.get(node, 0) == self.sides.get(to, 0) and to not in self.dead:
                    at = self.now + self.latency * (1 + self.rng.random())  # links keep the order
                    self._arrivals[node, to] = at = max(at, self._arrivals.get((node, to), 0.0) + 1e-6)
                    self.push(at - self.now, to, Received(node, message))
            case SetTimer(key, after_ns):
                self.push(after_ns / SECOND, node, Fired(key))
            case Report(name, value):
                self.reports.append((self.now, node, name, value))
            case Refused(sender, reason, text):
                self.reports.append((self.now, node, "refused", {"from": sender, "reason": reason, "text": text}))
            case Meet(other):
                self.met.add((node, other))
                if (other, node) in self.met and other not in self.dead:
                    self.push(self.latency, node, PeerJoined(other))
                    self.push(self.latency, other, PeerJoined(node))
            case Part(other):
                self.parted.append((self.now, node, other))
                self.met.discard((node, other))
            case PeerJoined() | PeerGone() | Rostered():
                self.told.append((self.now, node, effect))
            case _:
                self.other(node, effect)

    def before(self, node: NodeId) -> None:
        """What happens beside."""

    def other(self, node: NodeId, effect: Effect | Event) -> None:
        """What only whole machines do."""

    # --- what is to be seen ---------------------------------------------------------------------------------------

    @property
    def living(self) -> list[NodeId]:
        return [node for node in self.machines if node not in self.dead]

    def named(self, name: str, nodes: Iterable[NodeId] | None = None) -> list[tuple[float, NodeId, Any]]:
        whose = set(self.machines) if nodes is None else set(nodes)
        return [(t, node, value) for t, node, said, value in self.reports if said == name and node in whose]
