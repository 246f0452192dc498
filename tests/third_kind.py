"""A third kind of run, of the tests alone: [shards], several servers with workers of their own, and one that looks on.

Its plan is all that it needs, beside one line in the table of kinds, which importing this module adds: the processes
of a real run are told to import it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from fedgossip.algorithms.federated.names import make
from fedgossip.algorithms.sampling import Uniform
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Effect, Event, Finish, Machine, NodeId, Started
from fedgossip.core.metrics import Network
from fedgossip.core.records import Row
from fedgossip.core.roles import CLIENT, SERVER, Role, Roles
from fedgossip.core.task import LocalTask, Segment
from fedgossip.experiment import Experiment
from fedgossip.experiment.reading import RUN_KINDS, RunKind
from fedgossip.plans.completeness import Lacking
from fedgossip.plans.plan import PARTIAL, Arrays, Plan, RunOutlook, Seat, nanoseconds
from fedgossip.protocols.federated.client import Client, ClientSettings
from fedgossip.protocols.federated.coordinator import Coordinator, CoordinatorSettings


class ShardsSection(msgspec.Struct, forbid_unknown_fields=True):
    """[shards]"""

    workers: int
    servers: int = 2
    deadline: float = 30.0


class ShardsExperiment(Experiment, forbid_unknown_fields=True, kw_only=True):
    kind: ClassVar[str] = "shards"
    shards: ShardsSection


def check(experiment: ShardsExperiment, where: str) -> None:
    s = experiment.shards
    if s.servers > s.workers:
        raise ConfigError(f"{where}: {s.servers} servers for {s.workers} workers", "Give each server a worker.")


@dataclass
class Onlooker:
    """Takes no part, and is there."""

    vector: Vector

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        return [Finish(self.vector)] if isinstance(event, Started) else []


@dataclass(frozen=True)
class ShardsPlan(Plan):
    experiment: ShardsExperiment
    segments: tuple[Segment, ...] = ()

    @property
    def roles(self) -> Roles:
        s = self.experiment.shards
        return Roles(
            (
                Role("worker", 0, s.workers, counted=False, transport=CLIENT),
                Role("server", s.workers, s.servers, learns=False, transport=SERVER),
                Role("onlooker", s.workers + s.servers, learns=False, counted=False),
            )
        )

    @property
    def name(self) -> str:
        return "shards"

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return self.experiment.to_dict()

    @property
    def patience(self) -> tuple[float, float]:
        return 60.0, self.experiment.shards.deadline

    def partners(self, node: NodeId) -> Sequence[NodeId]:
        s, what = self.experiment.shards, self.roles.get_role(node).name
        if what == "worker":
            return (s.workers + node % s.servers,)
        return tuple(range(node - s.workers, s.workers, s.servers)) if what == "server" else ()

    def seated(self, seat: Seat) -> Machine:
        e, near, federated = self.experiment, tuple(self.partners(seat.node)), make("fedavg", clients=self.learners)
        begun = seat.initial, seat.schema
        if not near:
            return Onlooker(seat.initial)
        if self.roles.get_role(seat.node).learns:
            settings = ClientSettings(e.rounds, nanoseconds(60))
            return Client(seat.node, near[0], federated.clients, *begun, settings, seat.resumed)
        wait = nanoseconds(e.shards.deadline)
        terms = CoordinatorSettings(
            rounds=e.rounds, min_clients=1, deadline_ns=wait, least_deadline_ns=wait, start_ns=wait, return_ns=wait
        )
        who = Uniform(e.seed, near, len(near))
        return Coordinator(seat.node, near, federated, who, *begun, terms, seat.resumed)

    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:
        return rounds == self.experiment.rounds if node in self.roles.counted else not stopped

    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        raise ConfigError("shards have no stacked run", "Run it with --on sim.")

    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        return [vectors[node] for node in self.roles.counted]

    def verdict(self, words: Sequence[str | None]) -> str:
        return "finished" if all(word == "finished" for word in words) else PARTIAL

    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> Lacking:
        return Lacking()

    def outlook(self, task: LocalTask) -> RunOutlook:
        return RunOutlook(2 * self.learners * task.length * task.dtype.itemsize, {}, [self.roles.wording])

    def facts(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {"algorithm": "fedavg in shards", "mode": "shards"}


RUN_KINDS.setdefault(
    "shards",
    RunKind(
        ShardsExperiment,
        f"{__name__}:ShardsPlan",
        "workers = 4",
        "workers of several servers",
        "shards.workers",
        check,
    ),
)
