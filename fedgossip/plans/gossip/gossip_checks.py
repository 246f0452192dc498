"""Checks of a gossip run: its algorithm against its graph, by each field of `Needs`; and its malicious peers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedgossip.algorithms.gossip.base import GossipAlgorithm, Needs, Slot
from fedgossip.algorithms.gossip.fragments import FragmentedDiLoCo
from fedgossip.algorithms.gossip.names import Method
from fedgossip.algorithms.robust.attacks import Attack
from fedgossip.algorithms.robust.robust_mixing import Clipped, Combination, TrimmedMean
from fedgossip.base.errors import ConfigError
from fedgossip.core.roles import Role, Roles
from fedgossip.experiment import Experiment, GossipExperiment
from fedgossip.faults.script import Crash, Drop, Flap, Partition, Sleep
from fedgossip.plans.own_parts import attack_named, combination_named
from fedgossip.topology import Cycle, Mixing, Schedule, Spectrum, Topology
from fedgossip.topology.exposure import check_private

LOOKED_AT = 4
"""Rounds checked of a schedule that never repeats."""

ROUNDING = 1e-9
"""Tolerance for a computed eigenvalue."""

LOSSES = (Crash, Drop, Flap, Partition, Sleep)
"""Faults with which a round can mix without a peer."""

UNPORTABLE = frozenset({"fdla", "fmmc", "leja", "matcha"})
"""Weights from eigenvalues or by Newton's method; their last bits depend on the processor."""


def check_pair(
    name: str, method: Method, needs: Needs, schedule: Schedule, found: Spectrum | None, experiment: GossipExperiment
) -> None:
    """Raise ConfigError if the algorithm, the graph and the rest of the experiment are incompatible."""
    mode = experiment.algorithm.mode
    if mode not in method.modes:
        raise ConfigError(f"{name} has no {mode} mode", f'Set algorithm.mode = "{method.modes[0]}".')
    if mode == "async" and needs.sums == "rows":
        _check_async(schedule)
    _check_sums(name, needs, schedule)
    _check_made_for(name, needs, schedule)
    _check_graph(name, needs, schedule, found)
    if needs.weighs_alike and (weights := experiment.topology.weights):
        text = f"{name} counts all models alike, and topology.weights = {weights!r} differs"
        raise ConfigError(text, "Leave topology.weights out.")
    if experiment.train.portable:
        _check_portable(schedule)
    if needs.plain_sgd and experiment.learns and not experiment.train.plain:
        advice = "Leave train.optimizer, momentum, weight_decay and clip_norm out."
        raise ConfigError(f"{name} needs plain SGD: its steps are the learning rate times a gradient", advice)
    lossy = [fault for fault in experiment.faults if isinstance(fault, LOSSES)]
    if needs.lossless and lossy:
        text = f"{name} needs every message of every round, and [[faults]] has a {type(lossy[0]).__name__.lower()}"
        raise ConfigError(text, "Leave it out, or take dsgd, which compensates losses.")
    if experiment.algorithm.private:
        _check_private(experiment, method, schedule)
    check_combine(name, needs, schedule, experiment)


def _check_portable(schedule: Schedule) -> None:
    named = UNPORTABLE.intersection(re.findall(r"[\w-]+", f"{schedule.name} {getattr(schedule, 'rule', '')}"))
    if named:
        text = f"train.portable: weights of {min(named)} end in other bits on another kind of processor"
        raise ConfigError(text, 'Take topology.weights = "metropolis" or "best-constant", or leave train.portable out.')


def check_fragments(algorithm: GossipAlgorithm[Any], rounds: int) -> None:
    """Raise ConfigError if some fragments would never be sent."""
    if isinstance(algorithm, FragmentedDiLoCo) and algorithm.count > rounds:
        text = f"diloco: fragments = {algorithm.count} in {rounds} rounds: some would never go out"
        raise ConfigError(text, "Take fewer fragments, or more rounds of fewer train.local_steps.")


def check_members(name: str, needs: Needs) -> None:
    """Raise ConfigError for an algorithm that needs a fixed graph, in a run with changing membership."""
    counted = [("constant_members", "counts its peers"), ("constant", "needs one graph for the whole run")]
    counted += [("tree", "needs a tree"), ("lambda_n", "needs weights of a known spectrum")]
    for field, why in counted:
        if getattr(needs, field) not in (False, None):
            advice = 'Leave --members and --join out, or set algorithm.name = "dsgd" with another graph.'
            raise ConfigError(f"{name} {why}: no peer can join or leave", advice)


def check_combine(name: str, needs: Needs, schedule: Schedule, experiment: GossipExperiment) -> None:
    """Raise ConfigError for a rule of `algorithm.combine` that the algorithm, the mode or the graph does not
    support.
    """
    a = experiment.algorithm
    rule = combination_named(a.combine, a.combine_options)
    if rule.linear:
        return
    what = f"algorithm.combine = {a.combine!r}"
    if a.private:
        text = f"{what} looks at single models, and algorithm.private lets peers learn sums alone"
        raise ConfigError(text, "Leave one of the two out.")
    if a.mode != "sync":
        raise ConfigError(
            f"{what} puts the models of a round together, and {a.mode} mode has none", 'Set mode = "sync".'
        )
    if needs.linear or needs.sums == "columns":
        advice = f'Take algorithm.name = "dsgd", or leave combine out: {name} needs the weighted sum.'
        raise ConfigError(f"{what}: what {name} sends has no meaning but in a sum", advice)
    for round in range(min(schedule.period or LOOKED_AT, experiment.rounds)):
        _check_neighbourhoods(what, rule, schedule.mixing(round))


def _check_neighbourhoods(what: str, rule: Combination, mixing: Mixing) -> None:
    f = rule.tolerates
    least = 2 * f if isinstance(rule, TrimmedMean) else f + 1
    for node in range(mixing.n) if f else ():
        if (others := len(mixing.row(node)) - 1) < least:
            text = f"{what} with f = {f}: node {node} has {others} neighbours, and needs {least}"
            raise ConfigError(text, "Lower f, or take a denser graph.")


def _check_sums(name: str, needs: Needs, schedule: Schedule) -> None:
    lacking = {"rows": ("columns",), "columns": ("rows",), "both": ("rows", "columns")}[needs.sums]
    if schedule.stochastic not in lacking:
        return
    sums = "columns" if schedule.stochastic == "rows" else "rows"
    advice = 'Take other weights, or algorithm.name = "push-sum".' if sums == "rows" else "Take other weights."
    raise ConfigError(f"{name} on {schedule.name!r}: the {sums} of its weights do not sum to one", advice)


def _check_made_for(name: str, needs: Needs, schedule: Schedule) -> None:
    made_for = schedule.algorithm if isinstance(schedule, Cycle) else None
    if (made_for or name) != name:
        advice = f'Set algorithm.name = "{made_for}".'
        raise ConfigError(f"the rounds of {schedule.name!r} are those of {made_for}, not of {name}", advice)
    if needs.own_graph and made_for != name:
        raise ConfigError(f"{name} has its own graph, not {schedule.name!r}", f'Set topology.graph = "{name}".')


def _check_graph(name: str, needs: Needs, schedule: Schedule, found: Spectrum | None) -> None:
    if (needs.constant or needs.tree or needs.lambda_n is not None) and not isinstance(schedule, Mixing):
        text = f"{name} needs one graph for the whole run, and {schedule.name!r} changes by the round"
        raise ConfigError(text, "Take one graph, such as ring or regular:4.")
    if needs.tree and isinstance(schedule, Mixing):
        _check_tree(name, schedule.topology)
    if needs.symmetric or needs.lambda_n is not None:
        for round in range(schedule.period or LOOKED_AT):
            if not schedule.mixing(round).symmetric:
                where = f"{schedule.name!r}" if schedule.period == 1 else f"{schedule.name!r}, round {round}"
                text = f"{name} needs weights that are the same both ways, and those of {where} are not"
                raise ConfigError(text, 'Take an undirected graph with topology.weights = "metropolis".')
    if needs.lambda_n is not None:
        least = found.lambda_n if found else None
        if least is None or least <= needs.lambda_n + ROUNDING:
            sentence = "is not known" if least is None else f"is {least:.6g}"
            text = f"{name} needs weights whose smallest eigenvalue is above {needs.lambda_n:.6g}, and that of"
            raise ConfigError(f"{text} {schedule.name!r} {sentence}", 'Set topology.weights = "lazy".')


def _check_tree(name: str, topology: Topology) -> None:
    if topology.directed or len(topology.edges) != topology.n - 1 or not topology.is_connected:
        loop = "" if topology.directed else _loop(topology)
        text = f"{name} needs a tree, and {topology.name!r} {f'has the cycle {loop}' if loop else 'is none'}"
        raise ConfigError(text, "Take star, path, tree or, out of a graph, spanning-tree:GRAPH.")


def _loop(topology: Topology) -> str:
    """Return a cycle in words, "0 - 1 - 2 - 0"; "" without one."""
    before: dict[int, int] = {}
    for start in range(topology.n):
        if start in before:
            continue
        before[start], waiting = start, [start]
        while waiting:
            node = waiting.pop()
            for other in topology.neighbours(node):
                if other not in before:
                    before[other] = node
                    waiting.append(other)
                elif before[node] != other:
                    return _round_trip(before, node, other)
    return ""


def _round_trip(before: dict[int, int], node: int, other: int) -> str:
    ways: list[list[int]] = []
    for end in (node, other):
        way = [end]
        while before[way[-1]] != way[-1]:
            way.append(before[way[-1]])
        ways.append(way)
    first, second = ways
    while len(first) > 1 and len(second) > 1 and first[-2:] == second[-2:]:  # the common part up to the fork
        first, second = first[:-1], second[:-1]
    found: Sequence[int] = [*first, *second[-2::-1], node]
    return " - ".join(map(str, found))


def _check_private(experiment: GossipExperiment, method: Method, schedule: Schedule) -> None:
    a = experiment.algorithm
    if a.mode != "sync" or not method.private:
        advice = 'Set algorithm.name = "dsgd" and algorithm.mode = "sync".'
        raise ConfigError(f"private gossip sums the models of one round, not so {a.name} in {a.mode} mode", advice)
    check_private(schedule, experiment.rounds)


def _check_async(schedule: Schedule) -> None:
    if not isinstance(schedule, Mixing):
        advice = "Name one graph; whom a peer meets when is drawn anyway: algorithm.partner."
        raise ConfigError(f"asynchronous gossip has no rounds in which {schedule.name!r} could change", advice)
    if schedule.topology.directed:
        advice = 'Use an undirected graph, or algorithm.name = "push-sum".'
        raise ConfigError(f"asynchronous gossip exchanges both ways, and {schedule.name!r} is directed", advice)


_ROLE = {False: "peer", True: "attacker"}


def attackers_of(experiment: GossipExperiment) -> frozenset[int]:
    """Return the ids of the malicious peers."""
    return frozenset(experiment.adversary.peers)


def attack_in(experiment: GossipExperiment) -> Attack:
    """Return the attack.  Raises ConfigError for an unknown attack or option."""
    return attack_named(experiment.adversary.attack, experiment.adversary.options)


def roles_with(attackers: frozenset[int], n: int) -> Roles:
    """Return the roles of `n` peers; malicious peers have a separate role, with uncounted rounds."""
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
        text = "adversary.knowledge = 'all': a real attacker knows only the messages of its neighbours"
        raise ConfigError(text, "Run it with --on stacked, or leave it out.")


def check_adversary(
    name: str, needs: Needs, slots: Sequence[Slot], rule: Combination, schedule: Schedule, e: GossipExperiment
) -> None:
    """Raise ConfigError for attackers with unknown ids, unsupported in this run, or too many for any rule."""
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
        text = "[adversary] with algorithm.private: no peer sees a single model there, so no attack can be shown"
        raise ConfigError(text, "Leave one of the two out.")
    if a.mode != "sync" or needs.linear or needs.sums == "columns" or len(slots) > 1:
        text = f"[adversary]: attackers lie about the models of a round, and {name} in {a.mode} mode sends other things"
        raise ConfigError(text, 'Take algorithm.name = "dsgd" with mode = "sync".')
    if e.adversary.attack == "label-flip" and not e.learns:
        raise ConfigError(f"label-flip: {e.task.kind} has no labels", 'Take task.kind = "learning", or another attack.')
    if rule.linear or isinstance(rule, Clipped):  # linear tolerates no attacker; clipped bounds each of them
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
