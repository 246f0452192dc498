"""The plan of a gossip run: graph, weights, forecast, machines.

A restarted peer without a checkpoint first fetches a neighbour's model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import msgspec

from fedgossip.algorithms.gossip.base import GossipAlgorithm
from fedgossip.algorithms.gossip.choco import Choco
from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.algorithms.gossip.fragments import FragmentedDiLoCo
from fedgossip.algorithms.gossip.names import METHODS, GraphFacts, Method, given, make, own
from fedgossip.algorithms.gossip.running_statistics import with_statistics
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Machine, NodeId
from fedgossip.core.metrics import Network
from fedgossip.core.records import MISSED, SKIPPED, SKIPPED_MIX, EventRow, NetworkRow, PeerRow, Row
from fedgossip.core.roles import Roles
from fedgossip.core.run_summary import MethodFacts
from fedgossip.core.task import LocalTask, Segment, statistics_in
from fedgossip.data import custom
from fedgossip.experiment import GIVEN, GossipExperiment
from fedgossip.experiment.run_sections import ALGORITHM_CODE, CODEC_CODE
from fedgossip.plans import least_memory
from fedgossip.plans.completeness import Lacking, find_missing_exchanges, with_exchanges
from fedgossip.plans.federated.credentials import Logged, Own
from fedgossip.plans.gossip.gossip_checks import (
    attack_in,
    attackers_of,
    check_adversary,
    check_fragments,
    check_pair,
    check_real,
    roles_with,
)
from fedgossip.plans.gossip.gossip_machines import (
    GossipMode,
    GossipRun,
    mode_of,
    rule_of_models,
    separate_statistics,
    stacked_attackers,
)
from fedgossip.plans.gossip.gossip_words import (
    band_of,
    described_topology,
    eigenvalues,
    links_of,
    modes,
    outlook_of,
    outlook_of_changes,
    outlook_of_fragments,
    pairwise_facts,
    relayed_outlook,
    terms_of,
)
from fedgossip.plans.gossip.own_graphs import build_schedule, digest_of, is_own_graph, is_own_weights
from fedgossip.plans.own_parts import check_algorithm, codec_named
from fedgossip.plans.plan import PARTIAL, Arrays, JoiningTerms, Plan, Results, RunOutlook, Seat
from fedgossip.plans.statistics_checks import check_gossip_statistics
from fedgossip.plans.tasks import check_personal_peers, example_counts
from fedgossip.protocols.gossip.attacker import Attacker
from fedgossip.protocols.state_transfer import Recovering
from fedgossip.secure.pairs import SeededPairs
from fedgossip.simulation.resident_rounds import run_arrays
from fedgossip.simulation.stacked import first_stack
from fedgossip.topology import (
    Forecast,
    Mixing,
    Schedule,
    Spectrum,
    Topology,
    for_rounds,
    forecast_of,
    resolve,
    rule_names,
    schedule_names,
    spectrum,
    union,
    weighted_names,
)
from fedgossip.topology.graphs.names import graph_word
from fedgossip.topology.spectra.convergence import PairwiseRates, pairwise_rates
from fedgossip.topology.weights.weights import SIZES, weighted

UNANSWERED = "unanswered"
"""Event of an offer of asynchronous gossip without an answer in time."""
NOT_IN_STEP = frozenset({MISSED, SKIPPED, SKIPPED_MIX, UNANSWERED})
"""Events of exchanges that did not take place in their round, or not in time."""
GAMMA = 0.9
"""Decay for the number of effective neighbours in records (Vogels et al. 2022)."""


@dataclass(frozen=True)
class GossipPlan(Plan):
    """A gossip run before training.

    `topology`: the links of one period, or of the first round; `spectrum`: None for a changing graph.
    """

    experiment: GossipExperiment
    schedule: Schedule
    topology: Topology
    spectrum: Spectrum | None
    forecast: Forecast
    segments: tuple[Segment, ...] = ()
    given: GossipAlgorithm[Any] | None = None
    """The algorithm, if given as an object without a name."""

    @property
    def vectors(self) -> int:
        """Number of model-sized vectors per message."""
        return sum(slot.length is None for slot in self.algorithm.slots)

    @property
    def algorithm(self) -> GossipAlgorithm[Any]:
        return (
            given(self.given).make()
            if self.given
            else algorithm_of(self.experiment, graph_facts(self.n, self.spectrum))
        )

    @property
    def how(self) -> GossipMode:
        """Mode of exchange."""
        return mode_of(self.experiment.algorithm, self.algorithm)

    @property
    def mixing(self) -> Mixing:
        """Mixing of every round for a fixed graph, otherwise of the first round."""
        return self.schedule.mixing(0)

    @cached_property
    def roles(self) -> Roles:
        return roles_with(attackers_of(self.experiment), self.topology.n)

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def fingerprint(self) -> Mapping[str, object]:
        content = self.experiment.to_dict()
        one = isinstance(self.schedule, Mixing)
        content["topology"]["graph"] = self.topology.digest if one else f"{self.schedule.name}/{self.n}"
        weights = self.experiment.topology.weights or (self.schedule.rule if one else "metropolis")
        if list_own_parts(self.experiment) or weights not in rule_names():  # of a file: identified by its numbers only
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

    def seated(self, seat: Seat) -> Machine:
        length = seat.initial.size
        run = GossipRun(
            self.experiment, self.schedule, self.topology, self._build_algorithm(length), self._parameters(length)
        )
        machine = self.how.make(run, seat)
        machine.eager |= seat.incarnation > 0  # the other peers are in the run already, or have left
        e, attackers = self.experiment, attackers_of(self.experiment)
        if seat.node not in attackers:
            return machine
        check_real(e)
        return Attacker(seat.node, machine, attack_in(e), attackers, self.schedule, e.seed)

    @property
    def masks(self) -> bool:
        return self.experiment.algorithm.private

    def simulated(self, node: NodeId, incarnation: int = 0, log: Sequence[Logged] = ()) -> Own | None:  # noqa: ARG002
        return SeededPairs(node, self.experiment.seed) if self.masks else None

    def shorten_start(self) -> GossipPlan:
        """Return the plan of a restarted peer: its start waits no longer than a round does."""
        a = self.experiment.algorithm
        soon = msgspec.structs.replace(a, start_timeout=min(a.start_timeout, a.deadline))
        return replace(self, experiment=msgspec.structs.replace(self.experiment, algorithm=soon))

    def resume_point(self, round: int, model: Vector) -> Checkpoint:
        """Return the checkpoint of a machine that resumes with another peer's `model` after `round` rounds."""
        return self.how.resume_point(self._build_algorithm(model.size), round, model)

    def _parameters(self, length: int) -> int:
        return length - statistics_in(self.segments)

    def _build_algorithm(self, length: int) -> GossipAlgorithm[Any]:
        asynchronous = self.experiment.algorithm.mode == "async"
        return with_statistics(self.algorithm, self._parameters(length), length, asynchronous=asynchronous)

    def check_statistics(self, tensor: str) -> None:
        check_gossip_statistics(self.experiment, self.algorithm, self.schedule, tensor)

    def check_length(self, length: int, segments: Sequence[Segment]) -> None:  # noqa: ARG002
        if length < self.algorithm.needs.elements:
            text = f"{self.name}: fragments = {self.algorithm.needs.elements} of a model of {length:,} elements"
            raise ConfigError(text, "Take fewer, at most one for each element.")

    @property
    def pausable(self) -> bool:
        return not self.experiment.loops

    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:  # noqa: ARG002
        """Return whether a peer completed its part; without synchronous rounds, whether it was not stopped.

        A user's own loop is complete at its end.
        """
        alone = self.experiment.loops or not self.how.in_step
        return rounds == self.experiment.rounds or (alone and not stopped)

    def least_memory(self, engine: str, size: int) -> int:
        return least_memory.of_peers(self.n, self.experiment, engine, size)

    def check_arrays(self, task: LocalTask) -> None:
        if self.how.stacked is None:
            raise ConfigError("the stacked engine goes by rounds: no asynchronous gossip", "Run it with --on sim.")
        if isinstance(self.algorithm, FragmentedDiLoCo):
            self.algorithm.fragments(task.length)  # refuses a model with too few rows

    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        e, length = self.experiment, task.length
        assert self.how.stacked is not None
        # with no late messages, plain gossip of whole models also averages the statistics
        algorithm = self.algorithm if isinstance(self.algorithm, DSGD) else self._build_algorithm(length)
        about = self._parameters(length), length
        exchange = separate_statistics(self.how.stacked(e, self.algorithm), *about)
        stack = first_stack(task, self.n, algorithm)

        def finish(between: Callable[[], None]) -> Results:
            run = task, self.schedule, algorithm, e.rounds, record, write, exchange
            return Results(run_arrays(*run, stack=stack, between=between, attackers=stacked_attackers(e, *about)))

        return stack, finish

    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        return [vectors[node] for node in self.roles.counted]

    def verdict(self, words: Sequence[str | None]) -> str:
        if "failed" in words or not any(words):
            return "failed"
        if not {"finished", PARTIAL} & set(words):
            return "interrupted"
        return "finished" if set(words) == {"finished"} else PARTIAL

    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> Lacking:
        found = find_missing_exchanges(rows, self.n, self.partners, node, directed=self.topology.directed)
        if not any(isinstance(row, EventRow) and row.name in NOT_IN_STEP for row in rows):
            return found  # the usual case, for a long run with many rows
        return with_exchanges(found, rows, self.exchanges, self.roles, node)

    def exchanges(self, row: Row) -> tuple[int, int]:
        if isinstance(row, NetworkRow):
            return 0, 0
        if self.experiment.algorithm.mode != "sync":  # the offers that a peer makes in a round
            made = self.experiment.algorithm.exchanges if isinstance(row, PeerRow) and row.round else 0
            return int(isinstance(row, EventRow) and row.name == UNANSWERED), made
        if isinstance(row, PeerRow):
            return 0, self._sources(row.peer, row.round - 1)
        if row.name == SKIPPED and isinstance(row.value, int):
            out = range(max(0, row.round - row.value), min(row.round, self.experiment.rounds))
            wanted = sum(self._sources(row.peer, round) for round in out)
            return wanted, wanted
        if row.name == SKIPPED_MIX:  # no peer's model of the sum counts
            wanted = self._sources(row.peer, row.round)
            return wanted, wanted
        if row.name != MISSED or not isinstance(row.value, list):
            return 0, 0
        return len(row.value), self._sources(row.peer, row.round)

    def _sources(self, node: NodeId, round: int) -> int:
        return self.schedule.mixing(round).sources(node) if round >= 0 else 0

    @cached_property
    def pairwise(self) -> PairwiseRates | None:
        """Rates of uniformly drawn pairwise exchanges; None in other modes."""
        a = self.experiment.algorithm
        pairs = a.mode == "async" and a.partner == "uniform" and self.algorithm.needs.sums != "columns"
        return pairwise_rates(self.topology) if pairs and not self.topology.directed else None

    def outlook(self, task: LocalTask) -> RunOutlook:
        pairs = (self.pairwise, self.experiment.algorithm.exchanges) if self.pairwise else None
        outlook_ = outlook_of(self.schedule, self.topology, self.forecast, task, self.vectors, pairs)
        algorithm = self.algorithm
        if isinstance(algorithm, Choco):
            return outlook_of_changes(outlook_, algorithm, task, self.forecast.messages * self.n)
        if isinstance(algorithm, FragmentedDiLoCo):
            return outlook_of_fragments(outlook_, algorithm, task, self.forecast.messages * self.n)
        return relayed_outlook(outlook_, self.topology) if algorithm.needs.weighs_alike else outlook_

    def terms(self, parameters: int, itemsize: int) -> JoiningTerms:
        return terms_of(self.experiment, self.name, self.n, parameters * itemsize * self.vectors)

    @property
    def _mixes_models(self) -> bool:
        """Whether a round mixes models by the graph's weights, so that its spectrum applies."""
        return not (self.algorithm.needs.weighs_alike or isinstance(self.algorithm, Choco | FragmentedDiLoCo))

    def facts(self, rows: Sequence[Row]) -> MethodFacts:
        e = self.experiment
        described = self.spectrum is not None and self.spectrum.normal
        a = e.algorithm
        plain = (a.name, a.mode, a.combine) == ("dsgd", "sync", "linear") and not a.options
        return {
            "graph": self.schedule.name if e.topology.graph == GIVEN else graph_word(e.topology.graph),
            "algorithm": e.algorithm.name,
            "mode": e.algorithm.mode,
            "forecast": self.forecast.to_dict(),
            "topology": described_topology(self.topology, self.schedule),
            "eigenvalues": eigenvalues(self.spectrum, self.n),
            "modes": modes(self.spectrum),
            "links": links_of(self.forecast, self.topology),
            "band": band_of(self.schedule, rows) if plain and not described else None,
            "summed": a.combine == "linear" and not e.adversary.peers and self._mixes_models,
            **({"pairwise": pairwise_facts(self.pairwise, a.exchanges)} if self.pairwise else {}),
        }


def gossip_plan(
    experiment: GossipExperiment, schedule: Schedule | None = None, algorithm: GossipAlgorithm[Any] | None = None
) -> GossipPlan:
    """Resolve the graph, its weights and the forecast.  Raises ConfigError, naming the user's own functions.

    `schedule`, `algorithm`: Python objects for the GIVEN entries of the experiment.
    """
    name = type(algorithm).__name__ if algorithm else experiment.algorithm.name
    method = given(algorithm) if algorithm else method_of(experiment)
    schedule = schedule or schedule_of(experiment, experiment.topology.n, method)
    found = spectrum(schedule) if isinstance(schedule, Mixing) else None
    made = make(name, method, graph_facts(schedule.n, found), options_of(experiment))
    needs = made.needs
    try:
        check_pair(name, method, needs, schedule, found, experiment)
        check_personal_peers(experiment)
        check_fragments(made, experiment.rounds)
        check_adversary(name, needs, made.slots, rule_of_models(experiment), schedule, experiment)
    except ConfigError as error:
        if not (parts := list_own_parts(experiment)):
            raise
        raise ConfigError(f"{' and '.join(parts)}: {error}", error.advice) from None
    if experiment.algorithm.mode == "sync":  # without rounds a peer's exchanges are random, until the others end
        schedule = for_rounds(schedule, experiment.rounds)
    forecast = forecast_of(schedule, GAMMA, found)
    return GossipPlan(experiment, schedule, union(schedule), found, forecast, given=algorithm)


def list_own_parts(experiment: GossipExperiment) -> list[str]:
    """Return the user's own functions named as graph and weights."""
    section = experiment.topology
    graph, weights = section.graph, section.weights or ""
    return [graph] * is_own_graph(graph) + [weights] * is_own_weights(weights)


def schedule_of(experiment: GossipExperiment, n: int | None, method: Method) -> Schedule:
    """Return the experiment's graph for `n` peers, with its weights or the method's.  Raises ConfigError."""
    section, seed = experiment.topology, graph_seed(experiment)
    brought = weights_of(experiment, method)
    apart = section.allow_disconnected
    if section.weights == SIZES:
        graph = resolve(section.graph, n, seed=seed, allow_disconnected=apart)
        return weighted(graph, example_counts(experiment, graph.n), SIZES)
    return build_schedule(
        section.graph, n, weights=section.weights, seed=seed, brought=brought, allow_disconnected=apart
    )


def graph_seed(experiment: GossipExperiment) -> int:
    """Return the seed of a random graph."""
    seed = experiment.topology.seed
    return experiment.seed if seed is None else seed


def weights_of(experiment: GossipExperiment, method: Method) -> str | None:
    """Return the weights that the method requires: push-sum weights by the sender, unless rounds define their own."""
    word = experiment.topology.graph.partition(":")[0].strip().lower()
    brings = word in (*schedule_names(), *weighted_names()) and word != "el-local"
    return None if brings else method.weights


def method_of(experiment: GossipExperiment) -> Method:
    """Return the method of `algorithm.name`.  Raises ConfigError."""
    name = experiment.algorithm.name
    if name == GIVEN:
        raise ConfigError("the algorithm was given in Python", "Call fedgossip.simulate with algorithm= again.")
    return own(name, custom.function(name)) if ALGORITHM_CODE.find_name(name) else METHODS[name]


def graph_facts(n: int, found: Spectrum | None) -> GraphFacts:
    """Return the graph facts for an algorithm from this spectrum; None: a changing graph.

    Rounded to six digits, so that they are equal on all machines.
    """
    if found is None:
        return GraphFacts(n)
    gap = None if found.spectral_gap is None else float(f"{found.spectral_gap:.6g}")
    most = (2.0 if found.lambda_n is None else 1 - found.lambda_n) if n > 1 else 0.0  # eigenvalues of I - W: 2 at most
    return GraphFacts(n, gap, round(most, 6))


def algorithm_of(experiment: GossipExperiment, context: GraphFacts) -> GossipAlgorithm[Any]:
    """Return the algorithm of a run.  Raises ConfigError."""
    name = experiment.algorithm.name
    made = partial(make, name, method_of(experiment), context, options_of(experiment))
    if ALGORITHM_CODE.find_name(name):
        check_algorithm(name, made)
    return made()


def options_of(experiment: GossipExperiment) -> dict[str, Any]:
    """Return the algorithm's options, with the user's own codec made if they name one.  Raises ConfigError."""
    options = dict(experiment.algorithm.options)
    if experiment.algorithm.name in METHODS and CODEC_CODE.find_name(options.get("codec", "")):
        options["codec"] = codec_named(options["codec"], "algorithm.options.codec")
    return options


def recovers(plan: Plan) -> bool:
    """Return whether peers can resume with a neighbour's model.

    Clients, private peers and peers with window doubling cannot; they restart with the first model.
    """
    return isinstance(plan, GossipPlan) and not plan.masks and not plan.algorithm.needs.constant_members


def peer_of(
    plan: Plan, node: NodeId, initial: Vector, schema: str, resumed: Checkpoint | None = None, *, incarnation: int = 0
) -> Machine:
    """Make the machine of one peer for its life `incarnation`, from the records of the previous one."""
    gossip = plan.machine(node, initial, schema, resumed, incarnation=incarnation)
    if not recovers(plan):
        return gossip
    assert isinstance(plan, GossipPlan)
    soon = plan.shorten_start()

    def make(checkpoint: Checkpoint) -> Machine:
        return soon.machine(node, initial, schema, checkpoint, incarnation=max(1, incarnation))

    e = plan.experiment
    patience_ns = int(soon.experiment.algorithm.start_timeout * 1e9)
    lost = incarnation > 0 and resumed is None
    neighbours = plan.partners(node)
    return Recovering(gossip, make, plan.resume_point, initial, schema, e.rounds, neighbours, patience_ns, lost=lost)
