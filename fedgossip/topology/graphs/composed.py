"""Graphs and schedules made of others: relabelled in every round, one every so many rounds, a tree out of a graph."""

from __future__ import annotations

import math

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import IntArray, Topology
from fedgossip.topology.schedules.schedules import Cycle, Endless, Random, Schedule
from fedgossip.topology.weights.mixing import Mixing, assemble


def shuffled(mixing: Mixing, seed: int) -> Random:
    """Return the schedule that gives the nodes of `mixing` new places at random in every round.

    In expectation a round leaves (||W||_F^2 - 1)/(n - 1) of sum ||x_i - mean||^2, whatever the direction.  Raises
    ConfigError for weights with rows or columns that do not sum to one.
    """
    name = f"shuffled:{mixing.name}"
    if mixing.stochastic != "both":
        raise ConfigError(f"{name}: {mixing.rule} weights do not keep the mean", "Use metropolis weights.")
    n, graph = mixing.n, mixing.topology
    others = mixing.ids != mixing.receivers
    receivers, senders, weights = mixing.receivers[others], mixing.ids[others], mixing.values[others]
    own = mixing.values[~others]

    def draw(stream: np.random.Generator) -> Mixing:
        places = stream.permutation(n).astype(np.int64)
        round = Topology.from_edges(n, places[graph.edges], name, graph.directed)
        kept = np.empty(n)
        kept[places] = own
        return assemble(round, mixing.rule, places[receivers], places[senders], weights, kept)

    left = (float(mixing.values @ mixing.values) - 1.0) / max(1, n - 1)
    return Random(name, n, mixing.rule, seed, draw, left)


def every(name: str, count: int, seldom: Schedule, usual: Schedule) -> Schedule:
    """Return the schedule that uses `seldom` in every count-th round, the last of count, and `usual` in the others.

    Each goes on where it was: of a cycle no round is left out.  Raises ConfigError for a count below 2 and for
    schedules of unequal sizes or promises.
    """
    if count < 2:
        raise ConfigError(f"{name}: every {count} rounds", "Give at least 2, e.g. every:10:complete:ring.")
    if seldom.n != usual.n or seldom.stochastic != usual.stochastic:
        differ = f"{seldom.n} and {usual.n} nodes" if seldom.n != usual.n else "different sums of weights"
        raise ConfigError(f"{name}: {seldom.name!r} and {usual.name!r} have {differ}", "Give two that fit together.")
    for part in (seldom, usual):
        if isinstance(part, Cycle) and part.algorithm:
            raise ConfigError(f"{name}: {part.name!r} is for the algorithm of this name alone", "Take another graph.")

    def make(round: int) -> Mixing:
        before, left = divmod(round, count)
        return seldom.mixing(before) if left == count - 1 else usual.mixing(before * (count - 1) + left)

    def links(node: int) -> tuple[int, ...]:
        return tuple({*seldom.partners(node), *usual.partners(node)})

    rule = seldom.rule if seldom.rule == usual.rule else f"{seldom.rule}, {usual.rule}"
    if seldom.period and usual.period:
        blocks = math.lcm(seldom.period, usual.period // math.gcd(usual.period, count - 1))
        return Cycle(name, seldom.n, count * blocks, rule, make, stochastic=seldom.stochastic)
    return Endless(name, seldom.n, rule, make, links, seldom.stochastic)


def spanning_tree(graph: Topology) -> Topology:
    """Return a tree of shortest ways from the node with the most neighbours, along edges of `graph`.

    Raises ConfigError for a directed graph, and for one that falls apart.
    """
    name = f"spanning-tree:{graph.name}"
    if graph.directed or not graph.is_connected:
        what = "is directed" if graph.directed else "falls apart"
        raise ConfigError(f"{name}: the graph {what}", "A tree needs an undirected graph that hangs together.")
    root = int(graph.degrees().argmax())
    above: dict[int, int] = {root: root}
    ring = [root]
    while ring:
        found = {other: node for node in reversed(ring) for other in graph.neighbours(node) if other not in above}
        above.update(found)
        ring = sorted(found)
    edges: IntArray = np.array([(node, before) for node, before in above.items() if node != before], np.int64)
    return Topology.from_edges(graph.n, edges.reshape(-1, 2), name, labels=graph.labels, positions=graph.positions)
