"""The state of a parameter server: settings, shards and waiting workers, with queries on it.

`server` handles the events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from fedgossip.algorithms.hash_ring import Placement
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Checkpoint, Effect, Failure, Finish, LocalWork, NodeId, Report, Send
from fedgossip.core.messages import ServerReady
from fedgossip.protocols.allreduce.chunk_links import ChunkLink
from fedgossip.protocols.gossip.deadlines import Deadline
from fedgossip.protocols.servers.key_lists import KeyLists
from fedgossip.protocols.servers.push_intake import PushIntake
from fedgossip.protocols.servers.shard_clocks import ShardClocks
from fedgossip.protocols.servers.shard_coding import ShardCoding
from fedgossip.protocols.servers.shard_records import saved_shards
from fedgossip.protocols.servers.tenure_shards import MakeShard, TenureShards
from fedgossip.protocols.servers.waiting_pulls import WaitingPulls

# The workers that a server waits for: present ones, except those that are silent while others wait.
#
# A worker is silent when it has made no progress, a push begun or a reply taken, for the longest deadline; without a
# link, for its own deadline, which follows the time of its gradients: one that is ten times slower is waited for ten
# times longer.  The others then go on without it, and it takes part again when it pushes or pulls.


class Attendance:
    """Invariant: `absent` and `left` are disjoint, and none of them is waited for.  Times in nanoseconds."""

    def __init__(self, workers: Sequence[NodeId], longest_ns: int, least_ns: int, start_ns: int) -> None:
        self.workers, self.start_ns, self.longest_ns = tuple(workers), start_ns, longest_ns
        self.linked: set[NodeId] = set()
        self.left: set[NodeId] = set()
        self.absent: set[NodeId] = set()
        self._heard_ns: dict[NodeId, int] = {}
        self._paces = {worker: Deadline(longest_ns, min(least_ns, longest_ns)) for worker in workers}

    @property
    def present(self) -> list[NodeId]:
        """The workers that are waited for, ascending."""
        return [worker for worker in self.workers if worker not in self.absent and worker not in self.left]

    @property
    def over(self) -> bool:
        """Whether no worker needs the server any more: a silent linked one does until another has left."""
        lost = self.absent if self.left else self.absent - self.linked
        return all(worker in self.left or worker in lost for worker in self.workers)

    def note_progress(self, worker: NodeId, now_ns: int) -> bool:
        """Record progress of a worker; return whether the others had gone on without it."""
        self._heard_ns[worker] = now_ns
        back = worker in self.absent
        self.absent.discard(worker)
        return back

    def pushed(self, worker: NodeId, now_ns: int) -> None:
        """Record the first piece of a gradient: it took the time since the worker's last message."""
        if worker in self._heard_ns:
            self._paces[worker].record(now_ns - self._heard_ns[worker])

    def leave(self, worker: NodeId) -> None:
        """Record a worker's goodbye."""
        self.absent.discard(worker)
        self.left.add(worker)

    def due_ns(self, worker: NodeId) -> int:
        """Return the time at which a worker without a message counts as silent."""
        if worker not in self._heard_ns:
            return self.start_ns
        patience = self.longest_ns if worker in self.linked else self._paces[worker].now_ns()
        return self._heard_ns[worker] + patience

    def lose_silent(self, of: Collection[NodeId], now_ns: int) -> list[NodeId]:
        """Mark the silent ones of these workers as absent; return them."""
        silent = [worker for worker in self.present if worker in of and self.due_ns(worker) <= now_ns]
        self.absent.update(silent)
        return silent


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of a run.  Times in nanoseconds."""

    rounds: int
    staleness: int | None = 0
    """Maximum number of clocks between a push and the model it was computed from; None: no bound."""
    deadline_ns: int = 30_000_000_000
    least_deadline_ns: int = 5_000_000_000
    start_ns: int = 300_000_000_000
    again_ns: int = 1_000_000_000
    """Minimum wait before an unacknowledged message is sent again."""


class ServedShards:
    """One server of `workers`; see `server.ParameterServer`."""

    def __init__(
        self,
        node: NodeId,
        workers: Sequence[NodeId],
        servers: Sequence[NodeId],
        manager: NodeId | None,
        placement: Placement,
        make: MakeShard,
        initial: Vector,
        schema: str,
        settings: ServerSettings,
        rate: Callable[[int], float],
        resumed: Checkpoint | None = None,
        life: int = 0,
        width: int | None = None,
        coding: ShardCoding | None = None,
    ) -> None:
        self.summed = 0  # elements
        self.node, self.manager, self.placement, self.width = node, manager, placement, width
        self.initial, self.settings, self.rate = initial, settings, rate
        self.phase, self.told = "new", resumed.round if resumed else 0
        self.first_life = life == 0
        limits = settings.deadline_ns, min(settings.least_deadline_ns, settings.deadline_ns)
        self.workers = Attendance(workers, *limits, settings.start_ns)
        copied = manager is not None
        others = [server for server in servers if copied and server != node]
        partners = [*workers, *others]
        self.links = {other: ChunkLink(other, settings.deadline_ns) for other in partners}
        self.lives: dict[NodeId, int] = dict.fromkeys(self.links, 0)
        self.lists = KeyLists(node, placement, schema)
        bounds = settings.rounds, settings.staleness
        self.intake = PushIntake(node, placement, self.lists, initial.dtype, schema, *bounds, coding)
        self.tenure = TenureShards(
            node, servers, placement, make, initial, schema, self.links, resumed, waits=copied and life > 0
        )
        self.pulls = WaitingPulls(schema, coding)
        self._changed = False  # since the last checkpoint
        self._waits = False  # whether the timer for silent workers is set
        self._met, self._sign_ns = False, 0  # whether a worker was ever here; time of the last message

    @property
    def shards(self) -> dict[int, ShardClocks]:
        """The shards that this server owns now."""
        return self.tenure.shards

    @property
    def epoch(self) -> int:
        return self.tenure.epoch

    @property
    def model(self) -> Vector:
        """The initial model [d] with this server's shards in their present state; without the rows of a table."""
        if self.width is not None:
            return self.initial
        whole = np.array(self.initial)
        for number, clocks in self.shards.items():
            self.placement.shards[number].put_into(whole, cast(Vector, clocks.x))
        return frozen(whole)

    @property
    def version(self) -> int:
        """Number of clocks with all pushes in all shards."""
        present = self.workers.present
        return min((one.version(present) for one in self.shards.values()), default=self.told)

    @property
    def _servers(self) -> list[NodeId]:
        return [other for other in self.links if other not in self.workers.workers]

    @property
    def _durable(self) -> bool:
        """Whether replies need the disk: no other server has a copy, or clocks have one step for all."""
        return self.manager is None or self.settings.staleness == 0

    def _shard(self, sender: NodeId, number: int) -> ShardClocks:
        if number not in self.shards:
            text = f"server {self.node}: worker {sender} names shard {number}, which this server does not own"
            raise ProtocolError(text, "Have all the same experiment file?", peer=sender)
        return self.shards[number]

    def _noticed(self, node: NodeId, now_ns: int) -> None:
        if node in self.workers.workers:
            self._met, self._sign_ns = True, now_ns

    def _note_progress(self, worker: NodeId, now_ns: int) -> None:
        if self.workers.note_progress(worker, now_ns):
            self.pulls.late.update((number, worker) for number in self.shards)

    def _forget(self, worker: NodeId) -> None:
        """Drop everything in transfer to and from a worker."""
        self.links[worker].drop()
        self.intake.forget(worker)
        self.lists.forget(worker)
        self.pulls.forget(worker)

    def _waited(self) -> list[NodeId]:
        """Return the workers that others wait for, or that may be gone."""
        waiting = self.pulls.held.items()
        idle = {place[1] for place, one in waiting if self.shards[place[0]].clocks[place[1]] >= one.pull.clock}
        busy = [worker for worker in self.workers.present if worker not in idle]
        if waiting or self.workers.left:
            return busy
        return [worker for worker in busy if worker not in self.workers.linked or not self.links[worker].idle]

    def _report_clocks(self) -> list[Effect]:
        """Report the clocks for which all present workers have received all shards, or copies are complete."""
        there = [(number, worker) for number in self.shards for worker in self.workers.present]
        given = self.pulls.given(there) if self.shards else self.tenure.copied(self.workers.present)
        if given <= self.told or not all(self.links[worker].idle for _, worker in there):
            return []
        self.told = given
        return [LocalWork(given)]

    def _ready(self) -> list[Effect]:
        """Report that all copies are here; the manager sends its tenure again until it receives this."""
        lacking = self.tenure.copies.lacking
        return [] if lacking or self.manager is None else [Send(self.manager, ServerReady(self.epoch))]

    def _end_if_over(self) -> list[Effect]:
        return self._finish() if self.workers.over else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        self.phase = "finished"
        told: list[Effect] = [LocalWork(self.version)] if self.version > self.told else []
        if self.settings.staleness != 0:
            told.append(Report("read_lag", self.intake.seen, self.version))
        if self.width is not None and self.tenure.everything:  # no other server has its rows
            told.append(saved_shards(self.version, self.tenure.everything, self.epoch, durable=True))
        return [*told, Finish(self.model, failure)]

    def _lost(self, number: int) -> list[Effect]:
        return self._finish(self.tenure.failure(number, self.told))
