"""Malicious peers of an experiment: roles, attacks, and checks before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedgossip.algorithms.gossip.base import Needs, Slot
from fedgossip.algorithms.robust.attacks import Attack
from fedgossip.algorithms.robust.combine import Clipped, Combination
from fedgossip.base.errors import ConfigError
from fedgossip.core.roles import Role, Roles
from fedgossip.experiment import Experiment, GossipExperiment
from fedgossip.plans.own_parts import attack_named
from fedgossip.topology import Mixing, Schedule

_ROLE = {False: "peer", True: "attacker"}

LOOKED_AT = 4
"""Rounds of a schedule that never repeats."""


def attackers_of(experiment: GossipExperiment) -> frozenset[int]:
    """Return the ids of the malicious peers."""
    return frozenset(experiment.adversary.peers)


def attack_in(experiment: GossipExperiment) -> Attack:
    """Return the attack.  Raises ConfigError for an unknown attack or option."""
    return attack_named(experiment.adversary.attack, experiment.adversary.options)


def roles_with(attackers: frozenset[int], n: int) -> Roles:
    """Return the roles of `n` peers, malicious ones as roles of their own, with uncounted rounds."""
    starts = [node for node in range(n) if not node or (node in attackers) != (node - 1 in attackers)]
    ends = [*starts[1:], n]
    return Roles(
        tuple(
            Role(_ROLE[first in attackers], first, end - first, counted=first not in attackers, number=first)
            for first, end in zip(starts, ends, strict=True)
        )
    )


def check_real(experiment: Experiment) -> None:
    """Raise ConfigError for attackers that need more information than messages give a peer."""
    lying = isinstance(experiment, GossipExperiment) and experiment.adversary.peers
    if lying and experiment.adversary.knowledge == "all":  # type: ignore[attr-defined]
        text = "adversary.knowledge = 'all': a real attacker knows what its neighbours tell it"
        raise ConfigError(text, "Run it with --on stacked, or leave it out.")


def check_adversary(
    name: str, needs: Needs, slots: Sequence[Slot], rule: Combination, schedule: Schedule, e: GossipExperiment
) -> None:
    """Raise ConfigError for attackers with unknown ids, unsupported in this run, or beyond any rule's tolerance."""
    attackers, a = attackers_of(e), e.algorithm
    if not attackers:
        return
    attack_in(e)
    if strange := sorted(one for one in attackers if not 0 <= one < schedule.n):
        text = f"adversary.peers: there is no peer {strange[0]}"
        raise ConfigError(text, f"The graph has peers 0 to {schedule.n - 1}.")
    if len(attackers) > schedule.n - 2:
        raise ConfigError(f"adversary.peers: {len(attackers)} of {schedule.n} peers lie", "Leave two honest ones.")
    if a.private:
        text = "[adversary] beside algorithm.private: nobody sees a single model there, and so no lie"
        raise ConfigError(text, "Leave one of the two out.")
    if a.mode != "sync" or needs.linear or needs.sums == "columns" or len(slots) > 1:
        text = f"[adversary]: attackers lie about the models of a round, and {name} in {a.mode} mode sends other things"
        raise ConfigError(text, 'Take algorithm.name = "dsgd" with mode = "sync".')
    if e.adversary.attack == "label-flip" and not e.learns:
        raise ConfigError(f"label-flip: {e.task.kind} has no labels", 'Take task.kind = "learning", or another attack.')
    if rule.linear or isinstance(rule, Clipped):  # the one tolerates no attacker, the other bounds each of them
        return
    for round in range(min(schedule.period or LOOKED_AT, e.rounds)):
        _check_outnumbered(schedule.mixing(round), attackers, a.combine)


def _check_outnumbered(mixing: Mixing, attackers: frozenset[int], combine: str) -> None:
    for node in range(mixing.n):
        row: Mapping[int, float] = mixing.row(node)
        lying = len(row.keys() & attackers)
        if node not in attackers and 2 * lying >= len(row):
            text = f"adversary.peers: {lying} of the {len(row)} models that node {node} puts together are lies, and"
            advice = 'Take fewer attackers, a denser graph, or algorithm.combine = "clipped".'
            raise ConfigError(f"{text} {combine} holds against fewer than half", advice)
