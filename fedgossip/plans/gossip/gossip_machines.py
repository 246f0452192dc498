"""The machines of gossip: one table by content and mode, with resume points and the messages on stacked arrays.

A method of `algorithms/gossip/names` declares its modes; its algorithm declares which sums of its weights must be one
(`Needs.sums`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgossip.algorithms.gossip.base import GossipAlgorithm
from fedgossip.algorithms.gossip.choco import Choco
from fedgossip.algorithms.gossip.dsgd import DSGD, CombineThenAdapt
from fedgossip.algorithms.gossip.fragments import FragmentedDiLoCo
from fedgossip.algorithms.gossip.relaysgd import RelaySGD
from fedgossip.algorithms.gossip.running_statistics import combined_apart
from fedgossip.algorithms.robust.robust_mixing import Combination
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint
from fedgossip.experiment import AlgorithmSection, GossipExperiment
from fedgossip.plans.federated.credentials import Credentials
from fedgossip.plans.gossip.gossip_checks import attack_in, attackers_of
from fedgossip.plans.own_parts import combination_named
from fedgossip.plans.plan import Seat, nanoseconds
from fedgossip.protocols.gossip import async_gossip, sync_gossip
from fedgossip.protocols.gossip.async_gossip import AsyncGossip, AsyncSettings
from fedgossip.protocols.gossip.awaited_round import SyncSettings
from fedgossip.protocols.gossip.lifecycle import AGAIN_NS, AGAIN_TIMES
from fedgossip.protocols.gossip.pairing import rule_of
from fedgossip.protocols.gossip.relay_gossip import RelayGossip
from fedgossip.protocols.gossip.replicas import ReplicaGossip
from fedgossip.protocols.gossip.sync_gossip import FragmentGossip, SyncGossip
from fedgossip.protocols.private_gossip import PrivateGossip
from fedgossip.protocols.push_sum import push_peer
from fedgossip.protocols.push_sum.push_peer import PushSettings
from fedgossip.protocols.push_sum.push_sum import AsyncPushSum, SyncPushSum
from fedgossip.secure.pairs import Grid
from fedgossip.simulation.stacked import (
    PLAIN,
    SHARES,
    ChangeExchange,
    FragmentExchange,
    Private,
    RelayExchange,
    RuledExchange,
    StackedAttackers,
    StackedExchange,
)
from fedgossip.topology import Schedule, Topology

ByRounds = SyncGossip[Any] | ReplicaGossip | FragmentGossip | RelayGossip | SyncPushSum[Any] | PrivateGossip
GossipPeer = ByRounds | AsyncGossip[Any] | AsyncPushSum[Any]
Algorithm = GossipAlgorithm[Any]


@dataclass(frozen=True)
class GossipRun:
    """Settings common to all peers of a run.  `topology`: the links of all rounds."""

    experiment: GossipExperiment
    schedule: Schedule
    topology: Topology
    algorithm: Algorithm
    parameters: int
    """Elements of a model that are parameters, not running statistics."""


@dataclass(frozen=True)
class GossipMode:
    """The mode of exchange of peers."""

    make: Callable[[GossipRun, Seat], GossipPeer]
    resume_point: Callable[[Algorithm, int, Vector], Checkpoint]
    """Returns the checkpoint of a machine that resumes with another peer's model after a number of rounds."""
    stacked: Callable[[GossipExperiment, Algorithm], StackedExchange] | None
    """Messages of rounds on stacked arrays; None without such rounds."""
    in_step: bool
    """Whether all peers do the same number of rounds; otherwise a peer is complete when all its neighbours are."""


def _sync(run: GossipRun, seat: Seat) -> SyncGossip[Any]:
    what = run.schedule, run.algorithm, seat.initial, seat.schema
    rule = combined_apart(rule_of_models(run.experiment), run.parameters, seat.initial.size)
    return SyncGossip(seat.node, *what, _sync_settings(run.experiment), seat.resumed, rule)


def _changes(run: GossipRun, seat: Seat) -> ReplicaGossip:
    assert isinstance(run.algorithm, Choco)
    fresh = seat.resumed is None and not seat.incarnation
    return ReplicaGossip(_sync(run, seat), run.algorithm, seat.initial, seat.schema, fresh=fresh)


def _fragments(run: GossipRun, seat: Seat) -> FragmentGossip:
    assert isinstance(run.algorithm, FragmentedDiLoCo)
    return FragmentGossip(_sync(run, seat), run.algorithm, seat.initial, seat.schema)


def _sums_without_one(run: GossipRun, seat: Seat) -> RelayGossip:
    assert isinstance(run.algorithm, RelaySGD)
    what = run.schedule, run.algorithm, seat.initial, seat.schema
    return RelayGossip(seat.node, *what, _sync_settings(run.experiment), seat.resumed)


def rule_of_models(experiment: GossipExperiment) -> Combination:
    """Return the combination rule of a round's models.  Raises ConfigError for unknown options of the rule."""
    return combination_named(experiment.algorithm.combine, experiment.algorithm.combine_options)


def _private(run: GossipRun, seat: Seat) -> PrivateGossip:
    if seat.own is None or isinstance(seat.own, Credentials):
        text = f"peer {seat.node} is private, and has no keys for its masks"
        raise ConfigError(text, "Give its own pairs of keys.")
    what = run.schedule, seat.initial, seat.schema, _sync_settings(run.experiment)
    assert isinstance(run.algorithm, DSGD | CombineThenAdapt)
    return PrivateGossip(seat.node, *what, Grid(run.experiment.algorithm.bound), seat.own, seat.resumed, run.algorithm)


def _sync_settings(experiment: GossipExperiment) -> SyncSettings:
    ask_ns = min(AGAIN_NS, nanoseconds(experiment.algorithm.deadline) // AGAIN_TIMES)
    return SyncSettings(ask_ns=ask_ns, **_limits(experiment), **_deadlines(experiment))


def _limits(experiment: GossipExperiment) -> dict[str, int]:
    """Return the limits of start and end, the same for every machine: see `RunLimits`."""
    a = experiment.algorithm
    start_ns, drain_ns = nanoseconds(a.start_timeout), nanoseconds(a.deadline)
    return {"rounds": experiment.rounds, "start_ns": start_ns, "drain_ns": drain_ns}


def _deadlines(experiment: GossipExperiment) -> dict[str, int]:
    deadline_ns = nanoseconds(experiment.algorithm.deadline)
    least_ns = min(deadline_ns, nanoseconds(experiment.algorithm.least_deadline))
    return {"deadline_ns": deadline_ns, "least_deadline_ns": least_ns}


def _async(run: GossipRun, seat: Seat) -> AsyncGossip[Any]:
    e, a = run.experiment, run.experiment.algorithm
    settings = AsyncSettings(exchanges=a.exchanges, seed=e.seed, **_limits(e))
    rule = rule_of(a.partner, seat.node, e.seed, [(int(u), int(v)) for u, v in run.topology.edges])
    near = run.schedule.partners(seat.node)
    begun = seat.initial, seat.schema, settings, seat.resumed, seat.incarnation
    return AsyncGossip(seat.node, near, rule, run.algorithm, *begun, run.parameters)


def _sync_push(run: GossipRun, seat: Seat) -> SyncPushSum[Any]:
    begun = seat.initial, seat.schema, _push_settings(run.experiment), seat.resumed, seat.incarnation
    return SyncPushSum(seat.node, run.schedule, run.algorithm, *begun)


def _async_push(run: GossipRun, seat: Seat) -> AsyncPushSum[Any]:
    begun = seat.initial, seat.schema, _push_settings(run.experiment), seat.resumed, seat.incarnation
    return AsyncPushSum(seat.node, run.schedule, run.algorithm, *begun)


def _push_settings(experiment: GossipExperiment) -> PushSettings:
    limits = _limits(experiment)
    return PushSettings(seed=experiment.seed, targets="all", **limits, **_deadlines(experiment))


def stacked_attackers(experiment: GossipExperiment, parameters: int, length: int) -> StackedAttackers | None:
    """Return the malicious peers on stacked arrays; None if all are honest."""
    peers, known = attackers_of(experiment), experiment.adversary.knowledge == "all"
    rule = combined_apart(rule_of_models(experiment), parameters, length)
    made = attack_in(experiment), rule, experiment.seed, known
    return StackedAttackers(peers, *made) if peers else None


def _models(experiment: GossipExperiment, _: Algorithm) -> StackedExchange:
    rule = rule_of_models(experiment)
    return PLAIN if rule.linear else RuledExchange(rule)


def _stack_changes(_: GossipExperiment, algorithm: Algorithm) -> StackedExchange:
    assert isinstance(algorithm, Choco)
    return ChangeExchange(algorithm.codec)


def _stack_fragments(_: GossipExperiment, algorithm: Algorithm) -> StackedExchange:
    assert isinstance(algorithm, FragmentedDiLoCo)
    return FragmentExchange(algorithm)


def _stack_relays(_: GossipExperiment, algorithm: Algorithm) -> StackedExchange:
    assert isinstance(algorithm, RelaySGD)
    return RelayExchange(algorithm)


MODELS, CHANGES, FRAGMENTS, RELAYS, SHARES_OF_MASS, SUMS = (
    "models",
    "changes",
    "fragments",
    "relays",
    "shares",
    "sums",
)
"""Content of messages: models; coded changes; a fragment per round; relayed sums; shares of mass; or masked sums."""

MODES: Mapping[tuple[str, str], GossipMode] = {
    (MODELS, "sync"): GossipMode(_sync, sync_gossip.resume_point, _models, in_step=True),
    (CHANGES, "sync"): GossipMode(_changes, sync_gossip.resume_point, _stack_changes, in_step=True),
    (FRAGMENTS, "sync"): GossipMode(_fragments, sync_gossip.resume_point, _stack_fragments, in_step=True),
    (RELAYS, "sync"): GossipMode(_sums_without_one, sync_gossip.resume_point, _stack_relays, in_step=True),
    (MODELS, "async"): GossipMode(_async, async_gossip.resume_point, None, in_step=False),
    (SHARES_OF_MASS, "sync"): GossipMode(_sync_push, push_peer.resume_point, lambda *_: SHARES, in_step=False),
    (SHARES_OF_MASS, "async"): GossipMode(_async_push, push_peer.resume_point, None, in_step=False),
    (SUMS, "sync"): GossipMode(
        _private, sync_gossip.resume_point, lambda e, _: Private(Grid(e.algorithm.bound)), in_step=True
    ),
}
"""Modes by content of messages and `algorithm.mode`."""


def message_content(algorithm: Algorithm, *, private: bool) -> str:
    """Return the content of an algorithm's messages: shares if only the columns of its weights sum to one."""
    if private:
        return SUMS
    if isinstance(algorithm, Choco):
        return CHANGES
    if isinstance(algorithm, FragmentedDiLoCo):
        return FRAGMENTS
    if isinstance(algorithm, RelaySGD):
        return RELAYS
    return SHARES_OF_MASS if algorithm.needs.sums == "columns" else MODELS


def separate_statistics(exchange: StackedExchange, parameters: int, length: int) -> StackedExchange:
    """Return the exchange of rounds on stacked arrays for models [length] with `parameters` parameters; the rest are
    running statistics.
    """
    if not isinstance(exchange, RuledExchange):
        return exchange
    return RuledExchange(combined_apart(exchange.rule, parameters, length))


def mode_of(section: AlgorithmSection, algorithm: Algorithm) -> GossipMode:
    """Return the mode of exchange of a checked run's peers."""
    return MODES[message_content(algorithm, private=section.private), section.mode]
