"""Runs machines in virtual time: a heap of (time, sequence, node, event), and training computed lazily in batches.

A Train effect is scheduled to finish at its virtual time but not computed; when the first such event comes up, every
outstanding job is computed in one call (their inputs are fixed already).  The history is the same as if each had been
computed alone, for a task's update depends on its own job only.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Sequence

from fedgossip.errors import ProtocolError
from fedgossip.machine import (
    Effect,
    Event,
    Finish,
    Fired,
    Machine,
    NodeId,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Send,
    SetTimer,
    Started,
    Train,
    Trained,
)
from fedgossip.messages import Message
from fedgossip.metrics import EventRow, Meter, Network, Row, event_row
from fedgossip.simulation.network import NS, SimulatedNetwork
from fedgossip.task import Job, LocalTask, Update
from fedgossip.vectors import Vector
from fedgossip.wire import wire_bytes


class Simulator:
    """One run.  `links[i]` are the peers that i knows; `write` takes the rows of the record as they come."""

    def __init__(
        self,
        machines: Sequence[Machine],
        links: Sequence[Sequence[NodeId]],
        task: LocalTask,
        network: SimulatedNetwork,
        record: Network,
        write: Callable[[Row], None],
    ) -> None:
        self.machines, self.links, self.task, self.network = machines, links, task, network
        self.record, self.write = record, write
        self.now_ns = 0
        self.results: dict[NodeId, Vector] = {}
        self.dead: set[NodeId] = set()
        self.counts: dict[str, int] = {}
        self._meters = [Meter(node) for node in range(len(machines))]
        self._heap: list[tuple[int, int, NodeId, Event, int]] = []  # time, order, whom, what, bytes
        self._sized: tuple[Message | None, int] = (None, 0)
        self._sequence = 0
        self._timers: dict[tuple[NodeId, Hashable], int] = {}
        self._jobs: dict[NodeId, Job] = {}
        self._updates: dict[NodeId, Update] = {}

    def run(self, limit_seconds: float = math.inf) -> dict[NodeId, Vector]:
        """Run until nothing is left to happen, or virtual time passes the limit; return each finished peer's vector."""
        for node, known in enumerate(self.links):
            self._push(0, node, Started())
            for other in known:
                self._push(0, node, PeerJoined(other))
        upcoming = sorted(((int(at * NS), node) for node, at in self.network.settings.crashes.items()), reverse=True)
        while self._heap and self._heap[0][0] <= limit_seconds * NS:
            if upcoming and self._heap[0][0] >= upcoming[-1][0]:
                self._crash(*upcoming.pop())
                continue
            self.now_ns, sequence, node, event, size = heapq.heappop(self._heap)
            if node in self.dead or (isinstance(event, Fired) and self._timers.get((node, event.key)) != sequence):
                continue
            self._meters[node].bytes_received += size
            self._tell(node, self._computed(node, event) if isinstance(event, Trained) else event)
        for row in self.record.flush():
            self.write(row)
        return self.results

    def _push(self, at_ns: int, node: NodeId, event: Event, size: int = 0) -> int:
        self._sequence += 1
        heapq.heappush(self._heap, (at_ns, self._sequence, node, event, size))
        return self._sequence

    def _tell(self, node: NodeId, event: Event) -> None:
        if isinstance(event, Trained):
            self._meters[node].train_ended(self.now_ns, event.metrics)
        try:
            effects = self.machines[node].handle(event, self.now_ns)
        except ProtocolError as error:
            self._count("refused")
            self.write(EventRow(round=-1, peer=node, name="refused", value=str(error)))
            return
        for effect in effects:
            self._perform(node, effect)

    def _perform(self, node: NodeId, effect: Effect) -> None:
        match effect:
            case Send(to, message):
                if to in self.dead:
                    return
                size = self._size(message)
                self._meters[node].bytes_sent += size
                arrival = self.network.arrival_ns(node, to, size, self.now_ns)
                if arrival is None:
                    self._count("lost")
                else:
                    self._push(arrival, to, Received(node, message), size)
            case Train(job, vector):
                self._meters[node].train_began(self.now_ns)
                self._jobs[node] = Job(node, job, vector)
                self._push(self.now_ns + self.network.training_ns(node), node, Trained(job, None))
            case SetTimer(key, after_ns):
                self._timers[node, key] = self._push(self.now_ns + after_ns, node, Fired(key))
            case Report():
                self._report(node, effect)
            case Finish(result):
                self.results[node] = result

    def _size(self, message: Message) -> int:
        """The bytes of `message`; a peer sends the same one to many neighbours, so the last is remembered."""
        if self._sized[0] is not message:
            self._sized = message, wire_bytes(message)
        return self._sized[1]

    def _computed(self, node: NodeId, asked: Trained) -> Trained:
        """Return the answer to a training that is due, computing every outstanding one with it."""
        if node not in self._updates:
            jobs = [self._jobs[one] for one in sorted(self._jobs)]
            self._jobs.clear()
            self._updates.update(zip((job.node for job in jobs), self.task.train(jobs), strict=True))
        update = self._updates.pop(node)
        return Trained(asked.job, update.difference, update.examples, update.metrics)

    def _report(self, node: NodeId, report: Report) -> None:
        if report.name == "outgoing":
            assert isinstance(report.value, tuple)
            self.record.outgoing(node, report.round + 1, report.value[0])
        elif report.name == "mixed":
            row = self._meters[node].mixed(report.round, self.now_ns, 0, None)
            for line in self.record.mixed(row, report.value):  # type: ignore[arg-type]
                self.write(line)
        elif report.name != "trained":
            self._count(report.name)
            if event := event_row(node, report):
                self.write(event)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _crash(self, at_ns: int, node: NodeId) -> None:
        self.dead.add(node)
        self._jobs.pop(node, None)
        self._count("crashed")
        self.write(EventRow(round=-1, peer=node, name="crashed"))
        for row in self.record.ended(node):
            self.write(row)
        for other in self.links[node]:
            self._push(self.network.silent_ns(node, other, at_ns), other, PeerGone(node))
