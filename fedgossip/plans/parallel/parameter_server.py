"""An experiment with parallel.method = "parameter-server" as a run: workers, and servers of the model's shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.descent.rows import RowDescent
from fedgossip.algorithms.hash_ring import Placement, Shard, placed
from fedgossip.base.errors import ConfigError
from fedgossip.base.keyed_rows import KeyedTable, Rows
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Checkpoint, Machine, NodeId
from fedgossip.core.metrics import Network
from fedgossip.core.records import Row
from fedgossip.core.roles import Role, Roles
from fedgossip.core.task import Job, LocalTask, Segment
from fedgossip.experiment.parallel_sections import ASYNC
from fedgossip.plans.parallel.coding import codec_of, gradient_sender
from fedgossip.plans.parallel.row_tables import all_touched, check_table, filters_of, named_table, outlook_of_rows
from fedgossip.plans.parallel.shared_steps import SharedSteps
from fedgossip.plans.plan import Arrays, JoiningTerms, Results, RunOutlook, Seat, nanoseconds
from fedgossip.protocols.servers.coded_parts import CodedParts
from fedgossip.protocols.servers.model_parts import ModelParts, WholeParts
from fedgossip.protocols.servers.row_parts import RowParts
from fedgossip.protocols.servers.server import ParameterServer, ServerSettings
from fedgossip.protocols.servers.server_manager import ManagerSettings, ServerManager
from fedgossip.protocols.servers.server_worker import PushPullWorker, WorkerSettings
from fedgossip.protocols.servers.shard_clocks import ShardClocks, StepPerClock, StepPerPush
from fedgossip.protocols.servers.shard_coding import CodedPushes, ShardCoding
from fedgossip.simulation.collective import as_it_is, first_collective, run_collective
from fedgossip.simulation.served import served_by


@dataclass(frozen=True)
class ServerPlan(SharedSteps):
    """A run of workers and servers, before training.

    `given_table`: the model, where it is a table and no experiment names it.
    """

    given_table: KeyedTable | None = None

    @cached_property
    def roles(self) -> Roles:
        workers, servers = self.experiment.parallel.workers, self.experiment.parallel.server.servers
        roles = [Role("worker", 0, workers), Role("server", workers, servers, learns=False, counted=False)]
        if self.experiment.parallel.server.replication > 1:
            roles.append(Role("manager", workers + servers, learns=False, counted=False))
        return Roles(tuple(roles))

    @property
    def manager(self) -> NodeId | None:
        """Id of the manager, which assigns shards to servers, where shards have copies."""
        return self.n - 1 if self.experiment.parallel.server.replication > 1 else None

    @property
    def table(self) -> KeyedTable | None:
        """The table that the model is; None for a vector."""
        return self.given_table or named_table(self.experiment)

    def with_table(self, table: KeyedTable | None) -> Self:
        check_table(self.experiment, table)
        return self if table is None else replace(self, given_table=table)

    @property
    def one_model(self) -> bool:
        return self.staleness == 0

    @property
    def servers(self) -> range:
        """The ids of the servers."""
        return range(self.learners, self.learners + self.experiment.parallel.server.servers)

    @property
    def staleness(self) -> int | None:
        """Clocks between the fastest worker and the slowest; None: any number."""
        given = self.experiment.parallel.server.staleness
        return None if given == ASYNC else int(given)

    @property
    def externals(self) -> Mapping[str, object]:
        return {"rate": self.rate, "shard": self.shard}

    def partners(self, node: NodeId) -> Sequence[NodeId]:
        if self.manager is None:
            return self.servers if node < self.learners else range(self.learners)
        if node < self.learners:
            return range(self.learners, self.n)
        return [other for other in range(self.n) if other != node]

    def placement_of(self, length: int) -> Placement:
        """Return the placement of elements, or of a table's rows, on servers.  Raises ConfigError for fewer than
        servers."""
        s = self.experiment.parallel.server
        length = self.table.rows if self.table else length
        if s.servers > length:
            text = f"{s.servers} servers for a model of {length} elements"
            raise ConfigError(text, f"Set parallel.server.servers to {length} at most.")
        whole = self.segments if s.placement == "tensors" else ()
        return placed(length, self.servers, s.virtual_nodes, s.replication, whole)

    def seated(self, seat: Seat) -> Machine:
        e, p, placement = self.experiment, self.experiment.parallel, self.placement_of(seat.initial.size)
        deadline, start = nanoseconds(p.deadline), nanoseconds(p.start_timeout)
        begun, coding = (seat.initial, seat.schema), self.coding(placement, seat.initial.dtype)
        if seat.node < self.learners:
            worker = WorkerSettings(e.rounds, p.accumulate, deadline, start)
            parts = self._parts(seat, placement, coding)
            return PushPullWorker(
                seat.node, self.servers, self.manager, placement, parts, seat.schema, worker, seat.resumed, coding
            )
        least = min(deadline, nanoseconds(p.least_deadline))
        everybody, life = (range(self.learners), self.servers), (seat.resumed, seat.incarnation)
        if seat.node == self.manager:
            manager = ManagerSettings(e.rounds, least, deadline, start)
            return ServerManager(seat.node, *everybody, placement, seat.initial, manager, *life)
        limits = ServerSettings(e.rounds, self.staleness, deadline, least, start), self.rate
        width = self.table.width if self.table else None
        return ParameterServer(
            seat.node, *everybody, self.manager, placement, self.shard, *begun, *limits, *life, width, coding
        )

    def coding(self, placement: Placement, kind: np.dtype[np.floating]) -> ShardCoding | None:
        """Return the encoding of pushes and pulls; None: uncoded."""
        e, pull = self.experiment, self.experiment.parallel.server.pull_codec
        if not (e.parallel.codec or pull):
            return None
        whole = e.parallel.server.placement == "tensors"
        tensors = tuple(_segments_in(one, self.segments) for one in placement.shards) if whole else ()
        pulling = make_codec(pull) if pull else None
        return ShardCoding(placement, kind, e.seed, e.rounds, codec_of(e), pulling, tensors)

    def _pushes(self, node: NodeId, coding: ShardCoding | None) -> CodedPushes | None:
        """Return the encoding of a worker's gradients; None: uncoded."""
        if coding is None or coding.pushing is None:
            return None
        return CodedPushes(node, gradient_sender(self.experiment, coding.pushing), coding)

    def _parts(self, seat: Seat, placement: Placement, coding: ShardCoding | None) -> ModelParts:
        """Return a worker's initial or restored parts of the model."""
        e, model = self.experiment, seat.resumed.vectors["x"] if seat.resumed else seat.initial
        if self.table is None:
            whole = WholeParts(placement, seat.schema, model)
            if (pushes := self._pushes(seat.node, coding)) is None:
                return whole
            if seat.resumed:
                pushes.resume(seat.resumed.vectors)
            return CodedParts(whole, pushes)
        about = e.rounds, e.eval.every, e.parallel.accumulate, filters_of(e)
        return RowParts(seat.node, e.seed, placement, self.table, seat.schema, model, *about)

    def shard(self, shard: Shard, initial: Vector) -> ShardClocks:
        """A shard before the first push."""
        workers, bound = range(self.learners), self.staleness
        descent: Any
        x: Vector | None
        if self.table is None:
            descent, x = self.descent_of(_segments_in(shard, self.segments)), shard.taken_from(initial)
        else:
            descent, x = RowDescent(self.descent_of(()), self.table), None
        if bound == 0:
            return StepPerClock(descent, x, workers, self.experiment.rounds)
        return StepPerPush(descent, x, workers, self.experiment.rounds, bound, self.experiment.parallel.server.damp)

    def touched_rows(self, kept: Mapping[NodeId, Checkpoint]) -> tuple[KeyedTable, Rows] | None:
        if self.table is None:
            return None
        shards, nothing = self.placement_of(self.table.rows).shards, frozen(np.empty(0, self.table.dtype))
        lives = [(kept[node], {one.number: self.shard(one, nothing) for one in shards})
                 for node in self.servers if node in kept]  # fmt: skip
        return self.table, all_touched(lives, self.table)

    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:
        return rounds == self.experiment.rounds if node < self.learners else not stopped

    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        if self.staleness != 0:
            text = "pushes that are applied as they come follow time, and stacked arrays have none"
            raise ConfigError(text, "Run it with --on sim, or set parallel.server.staleness = 0.")
        if self.table is not None:
            text = "a table's rows go by what batches need, and stacked arrays hold whole models"
            raise ConfigError(text, "Run it with --on sim.")
        descent, p = self.descent_of(self.segments), self.experiment.parallel
        stack = first_collective(task, self.learners, descent, self.n - self.learners)
        placement = self.placement_of(task.length)
        coding = self.coding(placement, task.dtype)
        stack.coded += [one for node in range(self.learners) if (one := self._pushes(node, coding))]

        def finish(between: Callable[[], None]) -> Results:
            mean_of, seen = served_by(placement, coding), coding.decode_model if coding else as_it_is
            asked = partial(Job, gradient=True, accumulate=p.accumulate)
            run = task, mean_of, descent, self.experiment.rounds, self.rate, asked, record, write
            models = run_collective(*run, stack, between=between, seen=seen)
            return Results([*models, *(task.initial(node) for node in range(self.learners, self.n))])

        return stack, finish

    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        return [vectors[node] for node in self.roles.counted]

    def outlook(self, task: LocalTask) -> RunOutlook:
        if self.table is not None:
            shares = self.placement_of(self.table.rows).shares(self.servers)
            return outlook_of_rows(self.experiment, self.table, task, shares)
        s, workers = self.experiment.parallel.server, self.learners
        placement = self.placement_of(task.length)
        shares = [share * task.dtype.itemsize for share in placement.shares(self.servers)]
        mode = {0: "one step per clock", None: "a step per push"}.get(self.staleness, f"{self.staleness} clocks apart")
        copies = f", {s.replication} copies of each" if s.replication > 1 else ""
        up, down = self._each_way(placement, task.dtype)
        sent = [workers * one + (s.replication - 1) * share for one, share in zip(down, shares, strict=True)]
        received = "as many" if sum(down) == up else f"{sum(down):,}"
        lines = [
            f"{workers} workers, {s.servers} servers with {', '.join(f'{share:,}' for share in shares)} bytes{copies}:"
            f" {mode}",
            f"{up:,} bytes sent and {received} received by each worker a round,"
            f" {max(sent):,} sent by the busiest server",
        ]
        facts: dict[str, Any] = {"method": self.name, "workers": workers, "servers": s.servers, "shares": shares}
        facts["payload"] = [*[up] * workers, *sent]
        return RunOutlook(workers * up + sum(sent), facts, lines)

    def _each_way(self, placement: Placement, kind: np.dtype[np.floating]) -> tuple[int, list[int]]:
        """Return the bytes that a worker pushes in a round, and those that each server gives it back."""
        coding = self.coding(placement, kind)
        up, down = 0, dict.fromkeys(self.servers, 0)
        for one in placement.shards:
            whole, number = one.length * kind.itemsize, one.number
            up += coding.push_size(number, self.experiment.rounds) if coding and coding.pushing else whole
            down[one.preference[0]] += coding.pull_size(number) if coding and coding.pulling else whole
        return up, list(down.values())

    def terms(self, parameters: int, itemsize: int) -> JoiningTerms:
        sent = f"this worker's gradients, a part to each server: {parameters * itemsize:,} bytes a round; no data"
        return JoiningTerms(
            f"{self.name}, {self.roles.wording}, one model", sent, "as it is: servers see each gradient"
        )


def _segments_in(shard: Shard, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the tensors that a shard has whole, by their place in it."""
    found: list[Segment] = []
    before = 0
    for start, stop in shard.ranges:
        inside = [one for one in segments if start <= one.start and one.stop <= stop]
        found += [Segment(one.name, before + one.start - start, one.shape, one.kind) for one in inside]
        before += stop - start
    return tuple(found)
