"""An experiment with parallel.method = "parameter-server" as a run: workers, and servers of the model's shards.

The model may be a table; this file has the checks and costs of tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self, cast

import numpy as np

from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.descent.row_filters import FILTERS, KEY_CACHE, Memory, Pushing, RowFilter, make_filter
from fedgossip.algorithms.descent.rows import RowDescent, RowTable
from fedgossip.algorithms.hash_ring import Placement, Shard, placed
from fedgossip.base.errors import ConfigError, TrainingError, nearest
from fedgossip.base.keyed_rows import KeyedTable, Rows, frozen_keys, no_rows
from fedgossip.base.limits import CalledWith
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Checkpoint, Machine, NodeId
from fedgossip.core.metrics import Network
from fedgossip.core.records import Row
from fedgossip.core.roles import Role, Roles
from fedgossip.core.task import Job, LocalTask, RowTask, Segment
from fedgossip.data.custom import call_part, function, is_function
from fedgossip.data.objectives import SPARSE
from fedgossip.experiment import ParallelExperiment
from fedgossip.experiment.run_sections import ASYNC, SERVED
from fedgossip.learning.linear.word_tables import word_table
from fedgossip.plans.parallel.shared_steps import SharedSteps, codec_of, gradient_sender
from fedgossip.plans.plan import Arrays, JoiningTerms, Results, RunOutlook, Seat, nanoseconds
from fedgossip.protocols.servers.model_parts import CodedParts, CodedPushes, ModelParts, ShardCoding, WholeParts
from fedgossip.protocols.servers.row_parts import RowParts
from fedgossip.protocols.servers.server import ParameterServer, ServerSettings
from fedgossip.protocols.servers.server_manager import ManagerSettings, ServerManager
from fedgossip.protocols.servers.server_worker import PushPullWorker, WorkerSettings
from fedgossip.protocols.servers.shard_clocks import ShardClocks, StepPerClock, StepPerPush, restore
from fedgossip.simulation.collective import as_it_is, first_collective, run_collective, served_by


@dataclass(frozen=True)
class ServerPlan(SharedSteps):
    """A run of workers and servers, before training.

    `given_table`: a table model that no experiment names.
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
        """Id of the manager, which assigns shards to servers; None if shards have no copies."""
        return self.n - 1 if self.experiment.parallel.server.replication > 1 else None

    @property
    def table(self) -> KeyedTable | None:
        """The model's table; None for a vector."""
        return self.given_table or build_table(self.experiment)

    def with_table(self, table: KeyedTable | None) -> Self:
        check_table(self.experiment, table)
        return self if table is None else replace(self, given_table=table)

    @property
    def one_model(self) -> bool:
        return self.staleness == 0

    @property
    def servers(self) -> range:
        """Ids of the servers."""
        return range(self.learners, self.learners + self.experiment.parallel.server.servers)

    @property
    def staleness(self) -> int | None:
        """Maximum number of clocks between the fastest worker and the slowest; None: no limit."""
        given = self.experiment.parallel.server.staleness
        return None if given == ASYNC else int(given)

    @property
    def externals(self) -> Mapping[str, object]:
        return {"rate": self.push_rate, "shard": self.shard}

    @property
    def clocks(self) -> int:
        """Number of pushes of a worker."""
        return self.experiment.rounds // self.experiment.parallel.server.n_push

    def push_rate(self, clock: int) -> float:
        """Return the step size of a push."""
        return self.rate(clock * self.experiment.parallel.server.n_push)

    def partners(self, node: NodeId) -> Sequence[NodeId]:
        if self.manager is None:
            return self.servers if node < self.learners else range(self.learners)
        if node < self.learners:
            return range(self.learners, self.n)
        return [other for other in range(self.n) if other != node]

    def placement_of(self, length: int) -> Placement:
        """Return the placement of elements, or of a table's rows, on servers.  Raises ConfigError if there are fewer
        than servers.
        """
        s = self.experiment.parallel.server
        length = self.table.rows if self.table else length
        if s.servers > length:
            text = f"{s.servers} servers for a model of {length} elements"
            raise ConfigError(text, f"Set parallel.server.servers to {length} at most.")
        whole = self.segments if s.placement == "tensors" else ()
        return placed(length, self.servers, s.virtual_nodes, s.replication, whole)

    def seated(self, seat: Seat) -> Machine:
        p, placement = self.experiment.parallel, self.placement_of(seat.initial.size)
        deadline, start = nanoseconds(p.deadline), nanoseconds(p.start_timeout)
        begun, coding = (seat.initial, seat.schema), self.coding(placement, seat.initial.dtype)
        if seat.node < self.learners:
            between = p.server.n_fetch, p.server.n_push
            worker = WorkerSettings(self.clocks, p.accumulate, *between, deadline, start)
            about = self._parts(seat, placement, coding), seat.schema, worker, seat.resumed, coding, self.push_rate
            return PushPullWorker(seat.node, self.servers, self.manager, placement, *about)
        least = min(deadline, nanoseconds(p.least_deadline))
        everybody, life = (range(self.learners), self.servers), (seat.resumed, seat.incarnation)
        if seat.node == self.manager:
            manager = ManagerSettings(self.clocks, least, deadline, start, durable=self.staleness == 0)
            return ServerManager(seat.node, *everybody, placement, seat.initial, manager, *life)
        limits = ServerSettings(self.clocks, self.staleness, deadline, least, start), self.push_rate
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
        """Return a shard before the first push."""
        workers, bound = range(self.learners), self.staleness
        descent: Any
        x: Vector | None
        if self.table is None:
            descent, x = self.descent_of(_segments_in(shard, self.segments)), shard.taken_from(initial)
        else:
            descent, x = RowDescent(self.descent_of(()), self.table), None
        if bound == 0:
            return StepPerClock(descent, x, workers, self.clocks)
        return StepPerPush(descent, x, workers, self.clocks, bound, self.experiment.parallel.server.damp)

    def touched_rows(self, kept: Mapping[NodeId, Checkpoint]) -> tuple[KeyedTable, Rows] | None:
        if self.table is None:
            return None
        shards, nothing = self.placement_of(self.table.rows).shards, frozen(np.empty(0, self.table.dtype))
        lives = [(kept[node], {one.number: self.shard(one, nothing) for one in shards})
                 for node in self.servers if node in kept]  # fmt: skip
        return self.table, all_touched(lives, self.table)

    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:
        return rounds == self.experiment.rounds if node < self.learners else not stopped

    def check_arrays(self, task: LocalTask) -> None:  # noqa: ARG002
        if self.staleness != 0:
            text = "pushes are applied in the order of arrival, and stacked arrays have no time"
            raise ConfigError(text, "Run it with --on sim, or set parallel.server.staleness = 0.")
        if self.table is not None:
            text = "a table's rows go by what batches need, and stacked arrays hold whole models"
            raise ConfigError(text, "Run it with --on sim.")

    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
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
    found: list[Segment] = []
    before = 0
    for start, stop in shard.ranges:
        inside = [one for one in segments if start <= one.start and one.stop <= stop]
        found += [Segment(one.name, before + one.start - start, one.shape, one.kind) for one in inside]
        before += stop - start
    return tuple(found)


FILTER = CalledWith(("pushing", "memory"), "Write def filter(pushing, memory): return pushing.gradient, memory")
"""Signature of a user's own filter, see `algorithms.descent.row_filters`."""


def check_table(experiment: ParallelExperiment, table: KeyedTable | None) -> None:
    """Raise ConfigError for settings that a table, or a vector, does not support."""
    s, step = experiment.parallel.server, experiment.parallel.descent or experiment.train.optimizer
    if table is None:
        if s.filters:
            text = f"parallel.server.filters = {s.filters}, and the model is no table"
            raise ConfigError(text, "Filters choose rows; leave them out, or see docs/together/parallel.md for tables.")
        return
    if s.placement != "ranges" or step in ("lars", "lamb"):
        what = f"parallel.server.placement = {s.placement!r}" if s.placement != "ranges" else step
        raise ConfigError(f"{what} of a table, which has no whole tensors", "Leave it out.")
    if codec := experiment.parallel.codec or s.pull_codec:
        text = f"codec {codec!r} of a table, whose rows go one by one"
        raise ConfigError(text, "Leave it out: parallel.server.filters choose what of a table is worth sending.")
    filters_of(experiment)


def filters_of(experiment: ParallelExperiment) -> Mapping[str, RowFilter | None]:
    """Return the filters by their texts; None for the key-cache, which filters no rows.  Raises ConfigError."""
    l1, texts = experiment.parallel.l1, experiment.parallel.server.filters
    if len(set(texts)) < len(texts):
        raise ConfigError(f"parallel.server.filters = {texts}", "Name each once.")
    return {text: None if text == KEY_CACHE else make_filter(text, l1, load_filter) for text in texts}


def build_table(experiment: ParallelExperiment) -> KeyedTable | None:
    """Return the table of an experiment's own task; None for a vector.  Raises ConfigError."""
    if experiment.task.kind == SPARSE:
        return KeyedTable(experiment.task.dim, seed=experiment.seed)
    sizes = word_table(experiment.model.source) if experiment.learns else None
    return sizes.table(experiment.seed) if sizes else None


def load_filter(text: str) -> RowFilter:
    """Return the user's own filter of "module:function".  Raises ConfigError."""
    if not is_function(text):
        raise ConfigError(f"filter {text!r} is not known", nearest(text, FILTERS))
    return OwnFilter(text)


@dataclass(frozen=True)
class OwnFilter:
    """A user's own filter, imported when called; its result is checked."""

    text: str

    def __post_init__(self) -> None:
        function(self.text, None, FILTER)

    def __call__(self, pushing: Pushing, memory: Memory) -> tuple[Rows, Memory]:
        found = call_part(self.text, function(self.text), pushing, memory)
        rows = found[0] if isinstance(found, tuple) and len(found) == 2 else None
        if not isinstance(rows, Rows) or rows.values.size != rows.keys.size * pushing.gradient.matrix.shape[1]:
            text = f"{self.text} gives {type(found).__name__} of which no rows can be made"
            raise TrainingError(text, "A filter returns (Rows, memory); see fedgossip.algorithms.descent.row_filters.")
        return rows, found[1]


def outlook_of_rows(
    experiment: ParallelExperiment, table: KeyedTable, task: LocalTask, shares: Sequence[int]
) -> RunOutlook:
    """Return the forecast from the first batches of all workers, without filters and measured rows."""
    assert isinstance(task, RowTask), "a plan with a table has its task"
    accumulate, workers = experiment.parallel.accumulate, experiment.parallel.workers
    counts = [task.keys(node, 0, accumulate).size for node in range(workers)]
    row = table.width * table.dtype.itemsize
    dense, replication = table.rows * row, experiment.parallel.server.replication
    copies = f"; {replication} copies of each" if replication > 1 else ""
    lines = [
        f"{workers} workers, {len(shares)} servers with {', '.join(f'{share:,}' for share in shares)} rows of {row}"
        f" bytes, made when they are touched{copies}",
        f"{max(counts):,} rows of {table.rows:,} in a worker's first batch: {max(counts) * row:,} bytes each way,"
        f" and 4 bytes a key; a dense model would be {dense:,}",
    ]
    facts: dict[str, Any] = {"method": SERVED, "workers": workers, "servers": len(shares), "rows": counts}
    return RunOutlook(sum(2 * count * row + 4 * count for count in counts), facts, lines)


def all_touched(lives: Sequence[tuple[Checkpoint, dict[int, ShardClocks]]], table: KeyedTable) -> Rows:
    """Return all touched rows from the servers' checkpoints (the most advanced copy of each shard), each checkpoint
    with fresh shards to restore.

    Raises ValueError, KeyError.
    """
    newest: dict[int, tuple[tuple[int, int, int], RowTable]] = {}
    for kept, shards in lives:
        missing = restore(shards, kept)
        for number, clocks in shards.items():
            age = clocks.closed, clocks.steps, int(kept.facts["epoch"])  # type: ignore[call-overload]
            if number not in missing and (number not in newest or age > newest[number][0]):
                newest[number] = age, cast(RowTable, clocks.state)
    parts = [Rows(one.keys, one.touched()) for _, one in newest.values() if one.keys.size]
    if not parts:
        return no_rows(table.dtype)
    keys, matrix = np.concatenate([one.keys for one in parts]), np.concatenate([one.matrix for one in parts])
    order = np.argsort(keys)
    return Rows(frozen_keys(keys[order]), frozen(matrix[order].reshape(-1)))
