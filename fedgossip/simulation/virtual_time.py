"""Virtual time: the events of each instant, in the order of their scheduling, and their delivery to machines.

A fault script acts on peers and links between events, before those of the same time.  Messages on the way to a peer
that has died are lost, also for its successor.  Events of a sleeping peer wait, in order, until it wakes; so do those
of a peer that is adding up received vectors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import ClassVar

from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import AddingMachine, Effect, Event, Machine, NodeId, PeerJoined, Started
from fedgossip.core.metrics import Network
from fedgossip.core.records import EventRow, Row
from fedgossip.faults import FaultScript, Happening
from fedgossip.simulation.connections import SimulatedLinks
from fedgossip.simulation.event_queue import NO_COST, OF_PEERS, AddedUp, Begin, Coming, Cost, Instants, Lives, Queued
from fedgossip.simulation.network import NS, SimulatedNetwork

Table = Mapping[type[object], Callable[..., None]]
"""The method for each type of event or effect."""


class VirtualTime(ABC):
    """The machines of a run, their queued events, and which machines can receive them."""

    _taken: ClassVar[Table]
    """The method for each type of event."""

    def __init__(
        self,
        machines: Sequence[Machine],
        links: Sequence[Sequence[NodeId]],
        network: SimulatedNetwork,
        record: Network,
        write: Callable[[Row], None],
        script: FaultScript,
        starts: Mapping[NodeId, float],
    ) -> None:
        self.machines, self.network = list(machines), network
        self.record, self.write, self.script = record, write, script
        self.starts = dict(starts)
        self.connections = SimulatedLinks(links)
        self.now_ns = 0
        self.results: dict[NodeId, Vector] = {}
        self.counts: dict[str, int] = {}
        self.dead: set[NodeId] = set(self.starts)
        """The peers that are absent: not yet, not now, or never again there."""
        self.lives = [0] * len(machines)
        self._instants = Instants()
        self._asleep: dict[NodeId, int] = {}  # since when
        self._held: dict[NodeId, list[tuple[int, Coming, Cost, Lives]]] = {}
        self._adding: dict[NodeId, int] = {}  # until when
        self._counts_sums = network.settings.summing > 0
        self._happened = 0  # number of applied faults of the script

    @abstractmethod
    def _perform_all(self, node: NodeId, effects: Sequence[Effect]) -> None:
        """Perform a machine's effects."""

    @abstractmethod
    def _apply_fault(self, happening: Happening) -> None:
        """Apply a fault of the script."""

    @abstractmethod
    def _change_peer(self, node: NodeId, event: Coming, lives: Lives) -> None:
        """Start, restart or wake a peer."""

    def run(self, limit_seconds: float = math.inf, between: Callable[[], None] = lambda: None) -> dict[NodeId, Vector]:
        """Run until no event is left, or virtual time passes the limit; return each finished peer's vector.

        `between` is called between two instants: the attributes of this object and of the record, and the task's
        memory, are then the whole state.  A simulator with that state restored goes on from there.
        """
        if not self._instants.number:
            self._start()
        happenings = islice(self.script.happenings(), self._happened, None)
        upcoming = next(happenings, None)
        times, limit_ns = self._instants.times, limit_seconds * NS
        while times and times[0] <= limit_ns:
            if self.record.over:
                break
            between()
            if upcoming is not None and times[0] >= upcoming.at_ns:
                self.now_ns = upcoming.at_ns
                self._happened += 1
                self._apply_fault(upcoming)
                upcoming = next(happenings, None)
                continue
            self.now_ns = times[0]
            self._deliver(self._instants.pop())
        if (ended := self.record.ended_with) is not None:
            self.results = dict(ended)  # without the later changes of some of them
        for row in self.record.flush():
            self.write(row)
        return self.results

    def _start(self) -> None:
        for node, known in enumerate(self.connections.known):
            if node in self.starts:
                self._push(int(self.starts[node] * NS), node, Begin())
                self.connections.forget(node)
                continue
            self._push(0, node, Started())
            for other in known:
                if other in self.starts:
                    self.connections.give_up((node, other))
                else:
                    self._push(0, node, PeerJoined(other))

    # --- events ---------------------------------------------------------------------------------------------------

    def _push(self, at_ns: int, node: NodeId, event: Coming) -> int:
        return self._instants.add(at_ns, node, event, NO_COST, (0, self.lives[node]))

    def _deliver(self, coming: Sequence[Queued]) -> None:
        """Deliver the events of this instant to the peers."""
        taken = self._taken
        for queued in coming:
            sequence, node, event, cost, lives = queued
            if type(event) in OF_PEERS:
                self._change_peer(node, event, lives)
            elif lives[1] != self.lives[node] or node in self.dead:
                continue  # messages for the dead peer are not for its successor
            elif self._adding and self._adding.get(node, 0) > self.now_ns:
                # keeps its number: the first message is delivered first
                self._instants.insert(self._adding[node], queued)
            elif node in self._asleep:
                self._held[node].append((sequence, event, cost, lives))
            else:
                taken[type(event)](self, node, event, sequence, cost, lives)

    def _handle(self, node: NodeId, event: Event) -> None:
        before = self._summed(node) if self._counts_sums else 0
        try:
            effects = self.machines[node].handle(event, self.now_ns)
        except ProtocolError as error:
            self._note("refused", node, str(error))
            return
        takes = self.network.summing_ns(self._summed(node) - before) if self._counts_sums else 0
        if not takes:
            if effects:
                self._perform_all(node, effects)
            return
        self._adding[node] = until = self.now_ns + takes
        self._instants.insert(until, (-1, node, AddedUp(effects), NO_COST, (0, self.lives[node])))

    def _summed(self, node: NodeId) -> int:
        """How many elements it has added so far."""
        machine = self.machines[node]
        return machine.summed if isinstance(machine, AddingMachine) else 0

    # --- records of it --------------------------------------------------------------------------------------------

    def _note(self, name: str, peer: NodeId, value: object = None, round: int = -1) -> None:
        self._count(name)
        self.write(EventRow(round=round, peer=peer, name=name, value=value))

    def _count(self, name: str, times: int = 1) -> None:
        if times:
            self.counts[name] = self.counts.get(name, 0) + times
