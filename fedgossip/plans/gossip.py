"""Gossip as a run: the graph, its weights and forecast, and the machines of its peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from fedgossip.algorithms.base import GossipAlgorithm
from fedgossip.algorithms.names import METHODS, Method, given, make, own
from fedgossip.errors import ConfigError
from fedgossip.experiment import GIVEN, GossipExperiment
from fedgossip.learning import custom
from fedgossip.machine import Checkpoint, Machine, NodeId
from fedgossip.metrics import Network
from fedgossip.plans.completeness import Lacking, of_gossip
from fedgossip.plans.credentials import Credentials, Logged, Own
from fedgossip.plans.gossip_checks import check_pair
from fedgossip.plans.gossip_words import described_topology, eigenvalues, modes, outlook_of
from fedgossip.plans.own_graphs import digest_of, is_own_graph, is_own_weights, named_schedule
from fedgossip.plans.plan import PARTIAL, Arrays, PlanDefaults, Results, RunOutlook, nanoseconds
from fedgossip.protocols import async_gossip, push_peer, sync_gossip
from fedgossip.protocols.async_gossip import AsyncGossip, AsyncSettings
from fedgossip.protocols.async_push_sum import AsyncPushSum
from fedgossip.protocols.lifecycle import AGAIN_NS, AGAIN_TIMES
from fedgossip.protocols.peer_sampling import rule_of
from fedgossip.protocols.private_gossip import PrivateGossip
from fedgossip.protocols.push_peer import PushSettings
from fedgossip.protocols.push_sum import SyncPushSum
from fedgossip.protocols.sync_gossip import SyncGossip, SyncSettings
from fedgossip.records import Row
from fedgossip.roles import Roles, peer_roles
from fedgossip.secure.neighbourhood import Grid
from fedgossip.secure.pairs import SeededPairs
from fedgossip.simulation.stacked import PLAIN, SHARES, Private, StackedExchange, first_stack, run_stacked
from fedgossip.task import LocalTask, Segment
from fedgossip.topology import (
    Forecast,
    Mixing,
    Schedule,
    Spectrum,
    Topology,
    forecast_of,
    schedule_names,
    spectrum,
    union,
)
from fedgossip.vectors import Vector

GAMMA = 0.9
"""The decay at which effective neighbours are counted in records (Vogels et al. 2022)."""


@dataclass(frozen=True)
class GossipPlan(PlanDefaults):
    """What is known before anything is trained.

    `topology` has the links of all rounds of one period (where none repeats, of the first); `spectrum` is None where
    the graph changes.
    """

    experiment: GossipExperiment
    schedule: Schedule
    topology: Topology
    spectrum: Spectrum | None
    forecast: Forecast
    segments: tuple[Segment, ...] = ()
    given: GossipAlgorithm[Any] | None = None
    """The algorithm, where it is an object and has no name."""

    @property
    def vectors(self) -> int:
        """How many vectors like the model a message carries."""
        return sum(slot.length is None for slot in self.algorithm.slots)

    @property
    def algorithm(self) -> GossipAlgorithm[Any]:
        return given(self.given).make() if self.given else algorithm_of(self.experiment, self.n)

    @property
    def pushes(self) -> bool:
        """Whether each peer gives shares of its mass away, and needs to hear of nobody that they came."""
        return self.algorithm.needs.sums == "columns"

    @property
    def mixing(self) -> Mixing:
        """Of every round, where the graph never changes; else of the first."""
        return self.schedule.mixing(0)

    @cached_property
    def roles(self) -> Roles:
        return peer_roles(self.topology.n)

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def fingerprint(self) -> Mapping[str, object]:
        content = self.experiment.to_dict()
        one = isinstance(self.schedule, Mixing)
        content["topology"]["graph"] = self.topology.digest if one else f"{self.schedule.name}/{self.n}"
        if own_parts(self.experiment):
            content["topology"]["own"] = digest_of(self.schedule)
        content["algorithm"].pop("start_timeout", None)
        return content

    @property
    def patience(self) -> tuple[float, float]:
        a = self.experiment.algorithm
        return a.start_timeout, a.deadline

    @property
    def restart_overrides(self) -> Sequence[str]:
        a = self.experiment.algorithm
        return [f"algorithm.start_timeout={min(a.start_timeout, a.deadline)}"]

    @property
    def externals(self) -> Mapping[str, object]:
        return {"schedule": self.schedule}

    def partners(self, node: NodeId) -> Sequence[NodeId]:
        return self.schedule.partners(node)

    def machine(
        self,
        node: NodeId,
        initial: Vector,
        schema: str,
        resumed: Checkpoint | None = None,
        *,
        incarnation: int = 0,
        own: Own | None = None,
    ) -> Machine:
        a = self.experiment.algorithm
        machine: SyncGossip[Any] | AsyncGossip[Any] | SyncPushSum[Any] | AsyncPushSum[Any] | PrivateGossip
        if a.private:
            machine = self._private_gossip(node, initial, schema, resumed, own)
        elif self.pushes:
            machine = self._push_sum(node, initial, schema, resumed, incarnation)
        elif a.mode == "async":
            machine = self._async_gossip(node, initial, schema, resumed, incarnation)
        else:
            machine = self._sync_gossip(node, initial, schema, resumed)
        machine.eager |= incarnation > 0  # who comes back finds the others at work, or gone
        return machine

    def _sync_gossip(self, node: NodeId, initial: Vector, schema: str, resumed: Checkpoint | None) -> SyncGossip[Any]:
        return SyncGossip(node, self.schedule, self.algorithm, initial, schema, self._sync_settings, resumed)

    def _private_gossip(
        self, node: NodeId, initial: Vector, schema: str, resumed: Checkpoint | None, own: Own | None
    ) -> PrivateGossip:
        if own is None or isinstance(own, Credentials):
            raise ConfigError(f"peer {node} is private, and has no keys for its masks", "Give its own pairs of keys.")
        grid = Grid(self.experiment.algorithm.bound)
        return PrivateGossip(node, self.schedule, initial, schema, self._sync_settings, grid, own, resumed)

    @property
    def _sync_settings(self) -> SyncSettings:
        ask_ns = min(AGAIN_NS, nanoseconds(self.experiment.algorithm.deadline) // AGAIN_TIMES)
        return SyncSettings(ask_ns=ask_ns, **self._limits, **self._deadlines)

    @property
    def _limits(self) -> dict[str, int]:
        """Of the beginning and the end, the same for every machine: see `RunLimits`."""
        deadline_ns = nanoseconds(self.experiment.algorithm.deadline)
        return {
            "rounds": self.experiment.rounds,
            "start_ns": nanoseconds(self.experiment.algorithm.start_timeout),
            "drain_ns": deadline_ns,
        }

    @property
    def _deadlines(self) -> dict[str, int]:
        """Of the rounds that peers go through together."""
        deadline_ns = nanoseconds(self.experiment.algorithm.deadline)
        least_ns = min(deadline_ns, nanoseconds(self.experiment.algorithm.least_deadline))
        return {"deadline_ns": deadline_ns, "least_deadline_ns": least_ns}

    def _async_gossip(
        self, node: NodeId, initial: Vector, schema: str, resumed: Checkpoint | None, incarnation: int
    ) -> AsyncGossip[Any]:
        e, a = self.experiment, self.experiment.algorithm
        settings = AsyncSettings(exchanges=a.exchanges, seed=e.seed, **self._limits)
        rule = rule_of(a.partner, node, e.seed, [(int(u), int(v)) for u, v in self.topology.edges])
        partners, algorithm = self.partners(node), self.algorithm
        return AsyncGossip(node, partners, rule, algorithm, initial, schema, settings, resumed, incarnation)

    def _push_sum(
        self, node: NodeId, initial: Vector, schema: str, resumed: Checkpoint | None, incarnation: int
    ) -> SyncPushSum[Any] | AsyncPushSum[Any]:
        settings = PushSettings(seed=self.experiment.seed, targets="all", **self._limits, **self._deadlines)
        kind = SyncPushSum if self.experiment.algorithm.mode == "sync" else AsyncPushSum
        return kind(node, self.schedule, self.algorithm, initial, schema, settings, resumed, incarnation)

    @property
    def masks(self) -> bool:
        return self.experiment.algorithm.private

    def simulated(self, node: NodeId, incarnation: int = 0, log: Sequence[Logged] = ()) -> Own | None:  # noqa: ARG002
        return SeededPairs(node, self.experiment.seed) if self.masks else None

    def for_restart(self) -> GossipPlan:
        """Return the plan of a peer that comes back: it waits for the others no longer than in a round."""
        a = self.experiment.algorithm
        soon = msgspec.structs.replace(a, start_timeout=min(a.start_timeout, a.deadline))
        return replace(self, experiment=msgspec.structs.replace(self.experiment, algorithm=soon))

    def resume_point(self, round: int, model: Vector) -> Checkpoint:
        """Return from where a machine goes on that has `model` after `round` rounds: what others have learned."""
        if self.pushes:
            return push_peer.resume_point(self.algorithm, round, model)
        if self.experiment.algorithm.mode == "async":
            return async_gossip.resume_point(self.algorithm, round, model)
        return sync_gossip.resume_point(self.algorithm, round, model)

    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:  # noqa: ARG002
        """An asynchronous peer that nobody stopped has done its part: its neighbours have all done theirs."""
        alone = (self.experiment.algorithm.mode == "async" or self.pushes) and not stopped
        return rounds == self.experiment.rounds or alone

    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        e = self.experiment
        if e.algorithm.mode == "async":
            raise ConfigError("the stacked engine goes by rounds: no asynchronous gossip", "Run it with --on sim.")
        algorithm = self.algorithm
        stack = first_stack(task, self.n, algorithm)

        def finish(between: Callable[[], None]) -> Results:
            exchange: StackedExchange = SHARES if self.pushes else PLAIN
            if self.masks:
                exchange = Private(Grid(e.algorithm.bound))
            run = task, self.schedule, algorithm, e.rounds, record, write, exchange
            return Results(run_stacked(*run, stack=stack, between=between))

        return stack, finish

    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        return vectors

    def verdict(self, words: Sequence[str | None]) -> str:
        if "failed" in words or not any(words):
            return "failed"
        if not {"finished", PARTIAL} & set(words):
            return "interrupted"
        return "finished" if set(words) == {"finished"} else PARTIAL

    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> Lacking:
        return of_gossip(rows, self.n, self.partners, node, directed=self.topology.directed)

    def outlook(self, task: LocalTask) -> RunOutlook:
        return outlook_of(self.schedule, self.topology, self.forecast, task, self.vectors)

    def facts(self, rows: Sequence[Row]) -> dict[str, Any]:  # noqa: ARG002
        e = self.experiment
        return {
            "graph": self.schedule.name if e.topology.graph == GIVEN else e.topology.graph,
            "algorithm": e.algorithm.name,
            "mode": e.algorithm.mode,
            "forecast": self.forecast.to_dict(),
            "topology": described_topology(self.topology, self.schedule),
            "eigenvalues": eigenvalues(self.spectrum, self.n),
            "modes": modes(self.spectrum),
        }


def gossip_plan(
    experiment: GossipExperiment, schedule: Schedule | None = None, algorithm: GossipAlgorithm[Any] | None = None
) -> GossipPlan:
    """Resolve the graph, its weights and the forecast.  Raises ConfigError, naming what of it is the user's own.

    `schedule`, `algorithm`: given in Python, where the experiment says GIVEN.
    """
    name = type(algorithm).__name__ if algorithm else experiment.algorithm.name
    method = given(algorithm) if algorithm else method_of(experiment)
    schedule = schedule or schedule_of(experiment, experiment.topology.n, method)
    needs = make(name, method, schedule.n, experiment.algorithm.options).needs
    found = spectrum(schedule) if isinstance(schedule, Mixing) else None
    try:
        check_pair(name, method, needs, schedule, found, experiment)
    except ConfigError as error:
        if not (parts := own_parts(experiment)):
            raise
        raise ConfigError(f"{' and '.join(parts)}: {error}", error.advice) from None
    forecast = forecast_of(schedule, GAMMA, found)
    return GossipPlan(experiment, schedule, union(schedule), found, forecast, given=algorithm)


def own_parts(experiment: GossipExperiment) -> list[str]:
    """The user's own functions that graph and weights name."""
    section = experiment.topology
    graph, weights = section.graph, section.weights or ""
    return [graph] * is_own_graph(graph) + [weights] * is_own_weights(weights)


def schedule_of(experiment: GossipExperiment, n: int | None, method: Method) -> Schedule:
    """The experiment's graph for `n` peers, with its weights or those that the method brings.  Raises ConfigError."""
    section, seed = experiment.topology, graph_seed(experiment)
    brought = weights_of(experiment, method)
    return named_schedule(section.graph, n, weights=section.weights, seed=seed, brought=brought)


def graph_seed(experiment: GossipExperiment) -> int:
    """The seed of what is drawn of the graph."""
    seed = experiment.topology.seed
    return experiment.seed if seed is None else seed


def weights_of(experiment: GossipExperiment, method: Method) -> str | None:
    """The weights that the method brings: push-sum weighs by the sender, where rounds bring none themselves."""
    word = experiment.topology.graph.partition(":")[0].strip().lower()
    brings = word in schedule_names() and word != "el-local"
    return None if brings else method.weights


def method_of(experiment: GossipExperiment) -> Method:
    """The method that `algorithm.name` names.  Raises ConfigError."""
    name = experiment.algorithm.name
    if name == GIVEN:
        raise ConfigError("the algorithm was given in Python", "Call fedgossip.simulate with algorithm= again.")
    return own(name, custom.function(name)) if custom.is_function(name) else METHODS[name]


def algorithm_of(experiment: GossipExperiment, n: int) -> GossipAlgorithm[Any]:
    """The algorithm, for `n` peers.  Raises ConfigError."""
    a = experiment.algorithm
    return make(a.name, method_of(experiment), n, a.options)


