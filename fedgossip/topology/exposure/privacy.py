"""On which graphs a neighbour's model can be hidden in a sum: what private gossip asks of a schedule."""

from __future__ import annotations

from fedgossip.base.errors import ConfigError
from fedgossip.topology.schedules.schedules import Schedule
from fedgossip.topology.weights.mixing import Mixing

NEIGHBOURS_MIN = 3
"""A sum of two reveals each term to the other sender, if it colludes with the receiver; a sum of one reveals it to the
receiver."""

ROUNDS_LOOKED_AT = 64
"""Of a schedule that never repeats; in every later round the peers see for themselves."""


def check_private(schedule: Schedule, rounds: int) -> None:
    """Raise ConfigError for a schedule whose rounds cannot all be summed in secret, naming the first that cannot."""
    for round in range(schedule.period or min(rounds, ROUNDS_LOOKED_AT)):
        mixing = schedule.mixing(round)
        where = f"{schedule.name!r}" if schedule.period == 1 else f"{schedule.name!r}, round {round}"
        if mixing.topology.directed:
            text = f"private gossip needs edges that go both ways, and {where} is directed"
            raise ConfigError(text, "Use an undirected graph, such as regular:4.")
        _check_neighbours(mixing, where)
        _check_weights(mixing, where)


def _check_neighbours(mixing: Mixing, where: str) -> None:
    few = [node for node in range(mixing.n) if _summed(mixing, node) < NEIGHBOURS_MIN]
    if few:
        shown = ", ".join(map(mixing.topology.label, few[:5])) + (", ..." if len(few) > 5 else "")
        who = f"node {shown} has {_summed(mixing, few[0])}" if len(few) == 1 else f"nodes {shown} have fewer"
        advice = f"Use a graph in which everybody has {NEIGHBOURS_MIN} neighbours, such as regular:4."
        raise ConfigError(
            f"private gossip hides a model among {NEIGHBOURS_MIN} neighbours or more, and in {where} {who}", advice
        )


def _summed(mixing: Mixing, node: int) -> int:
    """Number of others' models in the sum at `node`."""
    return sum(other != node and weight > 0 for other, weight in mixing.row(node).items())


def _check_weights(mixing: Mixing, where: str) -> None:
    rows = [mixing.row(node) for node in range(mixing.n)]
    for node, row in enumerate(rows):
        if any(rows[other].get(node) != weight for other, weight in row.items()):
            text = f"private gossip needs weights that are the same both ways, and those of node {node} in {where}"
            raise ConfigError(f"{text} are not", "Use metropolis weights.")
        if row[node] < -1e-12:
            text = f"private gossip sums weights of at most one, and in {where} node {node} weighs itself {row[node]:g}"
            raise ConfigError(text, "Use metropolis weights.")
