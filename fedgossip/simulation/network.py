"""The virtual network of a simulation: links and devices, the queue of its events, and training in virtual time.

A message of s bytes from i to j leaves through i's uplink and arrives through j's downlink, one message at a time each,
both at once (full duplex):

    start = the first time from now on when the uplink of i has sent all earlier messages
    head  = the first time from start + latency on when the downlink of j is free for s / down[j]
    arrival = max(start + s / up[i] + latency, head + s / down[j])

Between two racks it also passes their two links, and arrives when it has passed all; no link waits for another.

So m messages to one server arrive after latency + m s / down; without a downlink at once.

A link cut by the script, or with a sleeping end, is reported after the detection time; until then messages wait, as in
TCP, and are lost if the link is given up.

Training is computed when the first result is due.  k batches are k forward and k backward passes, which take twice as
long.  The gradient becomes final in the last one, from the last layers on: element i of d after

    1 - 2 / (3 k) * i / d       of the time of the training
"""

from __future__ import annotations

import heapq
import sys
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedgossip.base import seeds
from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.machine import Effect, Event, NodeId, Produced, Received, Train
from fedgossip.core.task import Job, LocalTask, Update, perform_jobs

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """The links and devices of some nodes with other settings than the rest; None: as the rest."""

    nodes: frozenset[NodeId]
    bandwidth: float | None = None
    downlink: float | None = None
    latency: float | None = None
    slower: float = 1.0
    """Factor on the duration of a training round."""


@dataclass(frozen=True, slots=True)
class Racks:
    """Nodes with consecutive ids share a rack; messages between two racks pass the links of both."""

    size: int
    bandwidth: float | None = None
    """Bytes per second of a rack's link, each way; None: no limit."""
    latency: float | None = None
    """Seconds one way between nodes of two racks; None: the same as within one."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The network and its devices: times in seconds, rates in bytes per second."""

    latency: float = 0.005
    """Seconds one way, on every link; between nodes of two classes the longer latency."""
    jitter: float = 0.0
    """Maximum additional seconds of a message, uniform; messages of one link never overtake each other."""
    bandwidth: float | None = None
    """Bytes per second that a peer can send, over all its links; None: no limit."""
    downlink: float | None = None
    """Bytes per second that a peer can receive, over all its links; None: no limit."""
    detection: float = 1.0
    """Seconds of silence before a link is given up; messages delayed by a shorter cut arrive late."""
    training: float = 0.05
    """Seconds of one training round on a peer of speed 1."""
    per_example: float | None = None
    """Seconds per example on a peer of speed 1, in place of `training`."""
    summing: float = 0.0
    """Seconds to add one element of a vector to another."""
    speed_spread: float = 0.0
    """Peers' speeds are exp(N(0, spread^2)), drawn once; 0: all equal."""
    training_jitter: float = 0.0
    """Each training takes a factor in [1, 1 + this] longer, uniformly distributed."""
    classes: Sequence[DeviceClass] = ()
    """Classes of nodes; a node belongs to the first class that lists it."""
    racks: Racks | None = None
    """Racks of the nodes; None: all nodes share one switch."""


class Passage(NamedTuple):
    """The transmission of one message."""

    begins_ns: int
    """Start of sending: all earlier messages of the sender have left."""
    sent_ns: int
    """Departure of its last byte."""
    arrival_ns: int


@dataclass(frozen=True, slots=True)
class _Device:
    bandwidth: float | None
    downlink: float | None
    latency: float
    slower: float


class SimulatedNetwork:
    """Draws from one random stream per peer and purpose, in the order of that peer's actions."""

    def __init__(self, settings: NetworkSettings, n: int, seed: int) -> None:
        self.settings = settings
        spread = settings.speed_spread
        drawn = bool(spread or settings.training_jitter)
        self._links = [seeds.stream(seed, "network", node) for node in range(n)] if settings.jitter else []
        self._draws = [seeds.stream(seed, "device", node) for node in range(n)] if drawn else []
        self._speed = [float(rng.lognormal(0.0, spread)) for rng in self._draws] if spread else [1.0] * n
        usual = _device(settings, -1)
        named = frozenset[NodeId]().union(*(one.nodes for one in settings.classes))
        self._devices = [_device(settings, node) if node in named else usual for node in range(n)]
        self._up = [device.bandwidth for device in self._devices]
        self._down = [device.downlink for device in self._devices]
        self._latency_ns = [int(device.latency * NS) for device in self._devices]
        self._uplink_free = [0] * n
        self._receiving: list[list[tuple[int, int]]] = [[] for _ in range(3 * n if settings.racks else n)]
        """The busy times (from, until) of each downlink, ascending, without past ones.

        Downlinks of nodes come first, then links out of racks, then links into racks.
        """
        self._last_arrival: dict[tuple[NodeId, NodeId], int] = {}

    def latency_ns(self, sender: NodeId, to: NodeId) -> int:
        """Return the minimum time from one node to the other."""
        racks = self.settings.racks
        if racks and racks.latency is not None and sender // racks.size != to // racks.size:
            return int(racks.latency * NS)
        return max(self._latency_ns[sender], self._latency_ns[to])

    def passage(self, sender: NodeId, to: NodeId, size: int, now_ns: int, delay_ns: int = 0) -> Passage:
        """Return the transmission times of `size` bytes sent now, with `delay_ns` in addition to the link's time."""
        return Passage(*self.times(sender, to, size, now_ns, delay_ns))

    def times(self, sender: NodeId, to: NodeId, size: int, now_ns: int, delay_ns: int) -> tuple[int, int, int]:
        """Return the times of `passage` alone."""
        up, down, racks = self._up[sender], self._down[to], self.settings.racks
        crosses = racks is not None and sender // racks.size != to // racks.size
        if jitter := self.settings.jitter:
            latency = max(self._devices[sender].latency, self._devices[to].latency)
            latency = racks.latency if crosses and racks and racks.latency is not None else latency
            delay = int((latency + jitter * self._links[sender].random()) * NS) + delay_ns
        elif crosses:
            delay = self.latency_ns(sender, to) + delay_ns
        else:
            latency_ns, other_ns = self._latency_ns[sender], self._latency_ns[to]
            delay = (latency_ns if latency_ns > other_ns else other_ns) + delay_ns
        start = end = now_ns
        if up:
            start = max(now_ns, self._uplink_free[sender])
            self._uplink_free[sender] = end = start + int(size / up * NS)
        arrival = end + delay
        if crosses and racks and racks.bandwidth:  # out of the one rack, and into the other
            n, takes = len(self._up), int(size / racks.bandwidth * NS)
            out = self._received_ns(n + sender // racks.size, start, takes, now_ns) + delay
            arrival = max(arrival, out, self._received_ns(2 * n + to // racks.size, start + delay, takes, now_ns))
        if down:
            arrival = max(arrival, self._received_ns(to, start + delay, int(size / down * NS), now_ns))
        link = sender, to
        last = self._last_arrival.get(link, -1)
        # a link keeps the order of its messages, as a connection does, also with jitter
        if arrival <= last:
            arrival = last + 1
        self._last_arrival[link] = arrival
        return start, end, arrival

    def _received_ns(self, to: NodeId, head_ns: int, takes_ns: int, now_ns: int) -> int:
        """Reserve the downlink of `to` from `head_ns`; return the arrival."""
        busy = self._receiving[to] = [one for one in self._receiving[to] if one[1] > now_ns]
        place = 0
        # any transfer fits before the last, infinite span, so the loop ends with a break
        for place, (begins, ends) in enumerate((*busy, (sys.maxsize, sys.maxsize))):  # noqa: B007
            if head_ns + takes_ns <= begins:
                break
            head_ns = max(head_ns, ends)
        busy.insert(place, (head_ns, head_ns + takes_ns))
        return head_ns + takes_ns

    def silent_ns(self, sender: NodeId, to: NodeId, now_ns: int) -> int:
        """Return when `to` can detect the end of `sender`: one latency later, after all messages in transit to it."""
        return max(now_ns + self.latency_ns(sender, to), self._last_arrival.get((sender, to), -1) + 1)

    def training_ns(self, node: NodeId, examples: int = 1) -> int:
        """Return the duration of this training round of `examples` examples on `node`."""
        seconds, jitter = self.compute_training_seconds(node, examples), self.settings.training_jitter
        return int((seconds * (1.0 + jitter * self._draws[node].random()) if jitter else seconds) * NS)

    def compute_training_seconds(self, node: NodeId, examples: int = 1) -> float:
        """Return the seconds of a training without its jitter."""
        each = self.settings.per_example
        factor = self._devices[node].slower / self._speed[node]
        return (self.settings.training if each is None else each * examples) * factor

    def summing_ns(self, elements: int) -> int:
        """Return the duration of a node's sum of that number of elements."""
        return int(self.settings.summing * elements * NS)


def _device(settings: NetworkSettings, node: NodeId) -> _Device:
    own = next((one for one in settings.classes if node in one.nodes), DeviceClass(frozenset()))
    return _Device(
        settings.bandwidth if own.bandwidth is None else own.bandwidth,
        settings.downlink if own.downlink is None else own.downlink,
        settings.latency if own.latency is None else own.latency,
        own.slower,
    )


# Events in virtual time, grouped by instant: in a simulation many events share an instant.
#
# A heap stores each instant once, a list stores its events.  So an event is not compared with those of other times,
# even if many timers wait.


class Instants:
    """Times in nanoseconds, and the events at each, by ascending number."""

    def __init__(self) -> None:
        self.times: list[int] = []  # a heap
        self.number = 0
        """Number of added events, and number of the last one."""
        self._there: dict[int, list[Queued]] = {}

    def add(self, at_ns: int, node: NodeId, event: QueuedEvent, cost: Cost, lives: Lives) -> int:
        """Add an event under the next number; return the number."""
        self.number = number = self.number + 1
        there = self._there.get(at_ns)
        if there is None:
            self._there[at_ns] = [(number, node, event, cost, lives)]
            heapq.heappush(self.times, at_ns)
        else:
            there.append((number, node, event, cost, lives))
        return number

    def insert(self, at_ns: int, queued: Queued) -> None:
        """Add an event that already has a number."""
        there = self._there.get(at_ns)
        if there is None:
            self._there[at_ns] = [queued]
            heapq.heappush(self.times, at_ns)
        else:
            insort(there, queued, key=_place)

    def pop(self) -> list[Queued]:
        """Return the events of the first instant and remove it; a later addition creates it again."""
        return self._there.pop(heapq.heappop(self.times))


def _place(queued: Queued) -> tuple[int, NodeId]:
    """Order within an instant: by number; AddedUp (-1) by node."""
    return queued[0], queued[1]


@dataclass(frozen=True, slots=True)
class Begin:
    """A new peer starts."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A dead peer restarts."""


@dataclass(frozen=True, slots=True)
class Wake:
    """A sleeping peer wakes."""


@dataclass(frozen=True, slots=True)
class AddedUp:
    """A peer has finished its sum of received vectors, and performs these effects."""

    effects: Sequence[Effect]


Link = tuple[NodeId, NodeId]
"""One direction of a link, or one end: (the sender or the notified peer, the other)."""


@dataclass(frozen=True, slots=True)
class Look:
    """A link may have changed: the machine is notified of its link to `other`."""

    other: NodeId


class SimulatedLinks:
    """All links.  `links[i]` are the known peers of i; each end has its own view."""

    def __init__(self, links: Sequence[Sequence[NodeId]]) -> None:
        self.known: list[list[NodeId]] = [list(one) for one in links]
        self.down: set[Link] = set()
        """Ends without a notice of their link, or with a notice of its loss: messages sent from them are lost."""
        self.lives: dict[Link, int] = {}
        """The incarnation of the other end in the last notice of an end; 0 without a link."""
        self.cuts: dict[Link, int] = {}
        """The start time of each present cut; without a cut, messages pass."""
        self._waiting: dict[Link, list[tuple[Received, tuple[int, int]]]] = {}  # messages with their costs

    def __iter__(self) -> Iterator[Link]:
        return ((node, other) for node, others in enumerate(self.known) for other in others)

    def add(self, node: NodeId, other: NodeId) -> bool:
        """Add `other` to the known peers of `node`; return whether it is new."""
        if other in self.known[node]:
            return False
        self.known[node].append(other)
        self.down.add((node, other))
        return True

    def cut(self, link: Link, now_ns: int) -> None:
        self.cuts.setdefault(link, now_ns)

    def heal(self, link: Link) -> list[tuple[Received, tuple[int, int]]]:
        """Remove a cut; return the waiting messages in order, each with its cost."""
        self.cuts.pop(link, None)
        return self._waiting.pop(link, [])

    def wait(self, link: Link, message: Received, cost: tuple[int, int]) -> None:
        self._waiting.setdefault(link, []).append((message, cost))

    def give_up(self, link: Link) -> int:
        """Mark the link as down for its first end; return the number of waiting messages, now lost."""
        self.down.add(link)
        return len(self._waiting.pop(link, ()))

    def open(self, link: Link, life: int) -> None:
        """Mark the link as up for its first end."""
        self.down.discard(link)
        self.lives[link] = life

    def forget(self, node: NodeId) -> None:
        """Replace `node` by a new process without links; messages that wait for the old one are dropped."""
        for other in self.known[node]:
            self.give_up((node, other))
            self.lives.pop((node, other), None)


QueuedEvent = Event | Look | Begin | Restart | Wake | AddedUp
OF_PEERS = frozenset({Begin, Restart, Wake})
"""Entries that no machine receives."""

Cost = tuple[int, int]
"""The bytes of a message, and of the vectors in it."""
NO_COST: Cost = 0, 0

Lives = tuple[int, int]
"""The incarnation of the sender, and that of the receiver in the sender's view."""

Queued = tuple[int, NodeId, QueuedEvent, Cost, Lives]
"""(order, receiver, event, cost, incarnations of sender and receiver)."""

BACKWARD = 2 / 3
"""Share of a batch's training time in its backward pass."""


def share_until(start: int, length: int, batches: int) -> float:
    """Return the share of a training after which all elements of a gradient [length] from `start` on are final."""
    return 1.0 - BACKWARD / batches * start / length


def awaited_stretches(asked: Train) -> Iterator[tuple[float, Produced]]:
    """Yield for each requested stretch its time, as a share of the training, and an empty event for its values."""
    for start in asked.stretches:
        nothing: Vector = frozen(empty(0, asked.vector.dtype))
        yield share_until(start, asked.vector.size, asked.accumulate or 1), Produced(asked.job, start, nothing)


def stretch_of(update: Update, asked: Produced, stretches: Sequence[int]) -> Produced:
    """Return the final stretch of a gradient: up to the start of the previous one."""
    assert update.difference is not None, "a gradient was asked for"
    place = stretches.index(asked.start)
    stop = stretches[place - 1] if place else update.difference.size
    return Produced(asked.job, asked.start, update.difference[asked.start : stop], update.examples, update.metrics)


class LazyTraining:
    """The jobs of peers, and computed results not delivered so far."""

    def __init__(self) -> None:
        self._jobs: dict[NodeId, Job] = {}
        self._updates: dict[NodeId, Update] = {}
        self._stretches: dict[NodeId, tuple[int, ...]] = {}  # of the jobs in _updates

    def submit(self, job: Job) -> None:
        """Add a node's job."""
        self._jobs[job.node] = job

    def forget(self, node: NodeId) -> None:
        """Drop the jobs of a dead node."""
        self._jobs.pop(node, None)
        self._updates.pop(node, None)

    def update(self, task: LocalTask, node: NodeId) -> Update:
        """Return the result of a node's job, once; compute all outstanding jobs together with it."""
        self._compute(task, node)
        return self._updates.pop(node)

    def stretch(self, task: LocalTask, node: NodeId, asked: Produced) -> Produced | None:
        """Return a stretch of a node's gradient; None once its training is complete."""
        self._compute(task, node)
        update = self._updates[node]
        return None if update.over else stretch_of(update, asked, self._stretches[node])

    def _compute(self, task: LocalTask, node: NodeId) -> None:
        if node in self._updates:
            return
        jobs = [self._jobs[one] for one in sorted(self._jobs)]
        self._jobs.clear()
        self._stretches.update((job.node, job.stretches) for job in jobs if job.stretches)
        self._updates.update(zip((job.node for job in jobs), perform_jobs(task, jobs), strict=True))


class Vacant:
    """The seat of a client without an invitation: it has no machine and does nothing."""

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:  # noqa: ARG002
        return []


VACANT = Vacant()
"""With vacant seats, a million clients with fifty invited per round cost fifty machines per round."""
