"""The collectives by name, each with its closed forms, which tests hold against its table for 1 to 64 workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedgossip.algorithms.collectives.direct import all_to_all, gather_all_to_all, star
from fedgossip.algorithms.collectives.doubling import halving_doubling, power_below, recursive_doubling
from fedgossip.algorithms.collectives.rings import ring, ring_gather, ring_naive
from fedgossip.algorithms.collectives.table import Table
from fedgossip.algorithms.collectives.trees import tree


@dataclass(frozen=True)
class Collective:
    """Values of `parallel.method`.

    Closed forms of m workers with equal links: latency a in seconds, b bytes per second each way, a vector of d bytes
    (of every rank and direction one message at a time, both directions at once).  For a tree, and the two by doubling,
    they are exact where m is a power of two.  SettlingRun ranks that do not fold begin early: the chain is shorter, and
    the time is off by one message of a whole vector at most.
    """

    table: Callable[[int], Table]
    steps: Callable[[int], int]
    """Messages on the longest chain."""
    busiest: Callable[[int], float]
    """Vectors that the rank sends that sends most."""
    seconds: Callable[[int, float, float, float], float]
    """(m, d, a, b) -> time of one all-reduce, without the time of adding."""
    added: Callable[[int], float]
    """m -> vectors added one after the other.  The middle of a star adds all but the last while others arrive, where
    adding is quicker than the link; among all, at most: it depends on the order of arrival."""


def _log2(m: int) -> int:
    return power_below(m).bit_length() - 1


def _folds(m: int) -> int:
    """1 where ranks fold onto partners first, 0 for a power of two."""
    return int(m != power_below(m))


def _levels(m: int) -> int:
    return math.ceil(math.log2(m)) if m > 1 else 0


def _share(m: int) -> float:
    """(p - 1) / p for the largest power of two p that is not above m."""
    return 1 - 1 / power_below(m)


COLLECTIVES: Mapping[str, Collective] = {
    "ring": Collective(
        ring,
        steps=lambda m: 2 * (m - 1),
        busiest=lambda m: 2 * (m - 1) / m,
        seconds=lambda m, d, a, b: 2 * (m - 1) * (a + d / (m * b)),
        added=lambda m: (m - 1) / m,
    ),
    "ring-naive": Collective(
        ring_naive,
        steps=lambda m: 2 * (m - 1),
        busiest=lambda m: min(m - 1, 2),
        seconds=lambda m, d, a, b: 2 * (m - 1) * (a + d / b),
        added=lambda m: m - 1,
    ),
    "halving-doubling": Collective(
        halving_doubling,
        steps=lambda m: 2 * _log2(m) + 2 * _folds(m),
        busiest=lambda m: 2 * _share(m) + _folds(m),
        seconds=lambda m, d, a, b: 2 * _log2(m) * a + 2 * _share(m) * d / b + 2 * _folds(m) * (a + d / b),
        added=lambda m: _share(m) + _folds(m),
    ),
    "recursive-doubling": Collective(
        recursive_doubling,
        steps=lambda m: _log2(m) + 2 * _folds(m),
        busiest=lambda m: _log2(m) + _folds(m),
        seconds=lambda m, d, a, b: (_log2(m) + 2 * _folds(m)) * (a + d / b),
        added=lambda m: _log2(m) + _folds(m),
    ),
    "tree": Collective(
        tree,
        steps=lambda m: 2 * _levels(m),
        busiest=_levels,
        seconds=lambda m, d, a, b: 2 * _levels(m) * (a + d / b),
        added=_levels,
    ),
    "star": Collective(
        star,
        steps=lambda m: 2 * (m > 1),
        busiest=lambda m: m - 1,
        seconds=lambda m, d, a, b: 2 * (a + (m - 1) * d / b) * (m > 1),
        added=lambda m: int(m > 1),
    ),
    "all-to-all": Collective(
        all_to_all,
        steps=lambda m: int(m > 1),
        busiest=lambda m: m - 1,
        seconds=lambda m, d, a, b: (a + (m - 1) * d / b) * (m > 1),
        added=lambda m: m - 1,
    ),
}

GATHERS: Mapping[str, Callable[[int], Table]] = {"ring": ring_gather, "all-to-all": gather_all_to_all}
"""How non-additive payloads of a codec are distributed to all, by the collective's name: part r of a table is rank
r's."""
