"""The vectors of other nodes that a curious node can compute from all messages that it receives in some rounds.

A curious node follows the protocol, knows the graph and the weights, and stores everything.  Its observations are
linear in its unknowns.  Two exchanges, each in two situations:

    clear   plain gossip: in round t a node observes the vectors y_j(t) of its neighbours, and its own
    sums    private gossip: a node observes its own vector, and sum_j w_j y_j(t) over its neighbours

    averaging   no training: y(t + 1) = W_t y(t).  The unknowns are the first vectors y_v(0), one per node
    training    one mixing per local update: y(t + 1) = W_t y(t) + u(t + 1).  Every update is another unknown, and
                therefore every y_v(t): one round's observations contain no information about another round.  A model is
                exposed as it leaves local training; if all nodes start from one model, so is the first update

Node v is exposed to colluding nodes if its unit vector lies in the span of their rows.  Two tests:

    exact     modulo a prime, with the weights as fractions: exposure by numbers without rounding.  Wrong only if the
              prime divides a determinant, with a probability of about 2^-31 each
    float32   every observed number has an error of 2^-24 of the spread of the first vectors: v is exposed if the best
              linear estimate leaves at most 1 % of the spread.  Averaging erases old differences, so long runs expose
              much in theory that float32 numbers no longer contain

`training` is the best case of a learning run; if updates are small, the counts of `averaging` apply.

`check_private` raises for schedules whose weighted sums cannot hide a neighbour's model, as private gossip requires.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, IntArray
from fedgossip.topology.schedules.schedules import Schedule
from fedgossip.topology.spectra.eigen import one_thread
from fedgossip.topology.weights.mixing_matrix import Mixing

PRIME = (1 << 31) - 1

ROUNDING = 2.0**-24
"""Half the distance between float32 numbers near 1."""

SOLVED = 0.01
"""Maximum unknown share of a vector's spread for the vector to count as exposed."""

SETS_MAX = 1000
"""Maximum number of sets of colluding nodes to test; above it, only sets of neighbours are tested."""

NODES_MAX, ROUNDS_MAX = 128, 100

Exchange = Literal["clear", "sums"]
Situation = Literal["averaging", "training"]
Set = tuple[int, ...]
Kind = TypeVar("Kind", np.int64, np.float64)
Victims = Mapping[int, int]
"""Exposed node -> number of rounds until its exposure."""


@dataclass(frozen=True)
class Exposure:
    """Exposed nodes by set of observers, in one exchange and situation; sets without exposed nodes are included."""

    exchange: Exchange
    situation: Situation
    exact: Mapping[Set, Victims]
    float32: Mapping[Set, Victims]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data; sets as texts, "0+3"."""
        return {
            "exchange": self.exchange,
            "situation": self.situation,
            "exact": _plain(self.exact),
            "float32": _plain(self.float32),
        }


def worst(count: Mapping[Set, Victims]) -> tuple[Set, Victims]:
    """Return the set of observers with the most exposed nodes, the earliest if several, and these nodes."""
    return max(count.items(), key=lambda one: (len(one[1]), -max(one[1].values(), default=0)))


def _plain(count: Mapping[Set, Victims]) -> dict[str, dict[str, int]]:
    return {"+".join(map(str, curious)): {str(v): r for v, r in found.items()} for curious, found in count.items()}


@dataclass(frozen=True)
class Audit:
    """Result of an audit.  `sets`: number of tested sets of `colluding` nodes; also whether these are all sets."""

    n: int
    rounds: int
    colluding: int
    sets: int
    all_sets: bool
    exposures: tuple[Exposure, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        facts = {name: getattr(self, name) for name in ("n", "rounds", "colluding", "sets", "all_sets")}
        return {**facts, "exposures": [exposure.to_dict() for exposure in self.exposures]}

    def find(self, exchange: Exchange, situation: Situation) -> Exposure:
        """Return the exposure in one exchange (clear or sums) and situation (averaging or training)."""
        return next(e for e in self.exposures if (e.exchange, e.situation) == (exchange, situation))


def audit(schedule: Schedule, rounds: int, colluding: int = 1) -> Audit:
    """Return the nodes exposed to each set of `colluding` nodes within `rounds`.

    Takes a second for 64 nodes of 4 neighbours, 20 rounds, one curious node.  Raises ConfigError above 128 nodes or 100
    rounds, and if no node can be exposed.
    """
    n = schedule.n
    if n > NODES_MAX or not 1 <= rounds <= ROUNDS_MAX or not 1 <= colluding < n:
        raise ConfigError(
            f"an audit of {colluding} curious among {n} nodes in {rounds} rounds",
            f"Up to {NODES_MAX} nodes, 1 to {ROUNDS_MAX} rounds, and at least one node that is not curious.",
        )
    mixings = [schedule.mixing(round) for round in range(rounds)]
    sets = list(_sets(mixings, n, colluding))
    with one_thread():
        exposures = [_averaging(exchange, mixings, sets) for exchange in _EXCHANGES]
        exposures += [_training(exchange, mixings, sets) for exchange in _EXCHANGES]
    return Audit(n, rounds, colluding, len(sets), len(sets) == comb(n, colluding), tuple(exposures))


_EXCHANGES: tuple[Exchange, ...] = ("clear", "sums")


def _sets(mixings: Sequence[Mixing], n: int, colluding: int) -> Iterator[Set]:
    """Return all sets, or sets of a node and its first neighbours, sampled if too many."""
    if comb(n, colluding) <= SETS_MAX:
        yield from combinations(range(n), colluding)
        return
    near = {chosen for node in range(n) for chosen in combinations(mixings[0].row(node), colluding)}
    found = sorted(near)
    if len(found) > SETS_MAX:
        places = seeds.stream(0, "audit").choice(len(found), SETS_MAX, replace=False)
        found = [found[place] for place in sorted(places.tolist())]
    yield from found


# --- observations -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Round(Generic[Kind]):
    """The observations of one round, as rows over the unknowns."""

    near: Sequence[tuple[int, ...]]
    """Each node and its neighbours."""
    vectors: npt.NDArray[Kind]
    """[n, n]: a node's vector."""
    sums: npt.NDArray[Kind]
    """[n, n]: the weighted sum of its neighbours' vectors."""

    def observe(self, exchange: Exchange, curious: Set) -> npt.NDArray[Kind]:
        """Return the rows that a set of nodes observes."""
        if exchange == "clear":
            return self.vectors[sorted({other for node in curious for other in self.near[node]})]
        return np.concatenate([self.vectors[list(curious)], self.sums[list(curious)]])


def _list_rounds(
    mixings: Sequence[Mixing],
    matrix: Callable[[Mixing], npt.NDArray[Kind]],
    product: Callable[[npt.NDArray[Kind], npt.NDArray[Kind]], npt.NDArray[Kind]],
) -> list[_Round[Kind]]:
    found: list[_Round[Kind]] = []
    power: npt.NDArray[Kind] | None = None
    for mixing in mixings:
        W = matrix(mixing)
        power = np.eye(mixing.n, dtype=W.dtype.type) if power is None else power
        near = [tuple(mixing.row(node)) for node in range(mixing.n)]
        found.append(_Round(near, power, product(W * (1 - np.eye(mixing.n, dtype=W.dtype.type)), power)))
        power = product(W, power)
    return found


def _averaging(exchange: Exchange, mixings: Sequence[Mixing], sets: Sequence[Set]) -> Exposure:
    in_field = _list_rounds(mixings, _reduce_to_field, _product)
    in_floats = _list_rounds(mixings, Mixing.matrix, np.matmul)
    exact = {curious: _exposed(in_field, exchange, curious) for curious in sets}
    float32 = {curious: _exposed_in_floats(in_floats, exchange, curious) for curious in sets}
    return Exposure(exchange, "averaging", exact, float32)


def _training(exchange: Exchange, mixings: Sequence[Mixing], sets: Sequence[Set]) -> Exposure:
    """Return the exposure round by round: each round's vectors are separate unknowns."""
    exact: dict[Set, dict[int, int]] = {curious: {} for curious in sets}
    float32: dict[Set, dict[int, int]] = {curious: {} for curious in sets}
    before: set[int] = set()
    for round, mixing in enumerate(mixings):
        if id(mixing) in before:
            continue
        before.add(id(mixing))
        in_field = _list_rounds([mixing], _reduce_to_field, _product)
        in_floats = _list_rounds([mixing], Mixing.matrix, np.matmul)
        for curious in sets:
            for victim in _exposed(in_field, exchange, curious):
                exact[curious].setdefault(victim, round + 1)
            for victim in _exposed_in_floats(in_floats, exchange, curious):
                float32[curious].setdefault(victim, round + 1)
    return Exposure(exchange, "training", exact, float32)


# --- exact: over a prime field ----------------------------------------------------------------------------------


def _reduce_to_field(mixing: Mixing) -> IntArray:
    """Return W modulo the prime: a weight as its fraction with a denominator up to 10^6, else its binary value."""
    found = np.zeros((mixing.n, mixing.n), np.int64)
    known: dict[float, int] = {}
    for node in range(mixing.n):
        row = mixing.row(node)
        for other, weight in row.items():
            if weight not in known:
                simple = Fraction(weight).limit_denominator(10**6)
                fraction = simple if abs(float(simple) - weight) <= 1e-15 else Fraction(weight)
                known[weight] = fraction.numerator * pow(fraction.denominator, -1, PRIME) % PRIME
            found[node, other] = known[weight]
        # the remainder to one, which the sum of rounded weights may miss
        found[node, node] = (1 - int(found[node].sum() - found[node, node])) % PRIME
    return found


def _product(left: IntArray, right: IntArray) -> IntArray:
    """Return left @ right modulo the prime, in halves of 16 bits that fit in 64."""
    high, low = left >> 16, left & 0xFFFF
    return ((high @ right % PRIME << 16) + low @ right) % PRIME


class _Span:
    """Rows modulo the prime in reduced echelon form: a unit vector lies in their span only if it equals one of them."""

    def __init__(self, n: int) -> None:
        self.rows = np.zeros((0, n), np.int64)
        self.pivots: list[int] = []

    def add(self, row: IntArray) -> None:
        if self.pivots:
            row = (row - _product(row[None, self.pivots], self.rows)[0]) % PRIME
        (places,) = np.nonzero(row)
        if not len(places):
            return
        pivot = int(places[0])
        row = row * pow(int(row[pivot]), -1, PRIME) % PRIME
        self.rows = (self.rows - self.rows[:, pivot, None] * row) % PRIME
        self.rows = np.concatenate([self.rows, row[None]])
        self.pivots.append(pivot)

    def units(self) -> list[int]:
        """Return the positions with unit vectors in the span."""
        alone = (self.rows != 0).sum(axis=1) == 1
        return [pivot for pivot, unit in zip(self.pivots, alone.tolist(), strict=True) if unit]


def _exposed(rounds: Sequence[_Round[np.int64]], exchange: Exchange, curious: Set) -> dict[int, int]:
    """Return the nodes exposed to a set of observers, and the number of rounds until then."""
    n = len(rounds[0].near)
    span, found = _Span(n), dict[int, int]()
    for number, round in enumerate(rounds, 1):
        for row in round.observe(exchange, curious):
            span.add(row)
        for victim in span.units():
            if victim not in curious:
                found.setdefault(victim, number)
        if len(found) + len(curious) == n:
            break
    return found


# --- float32: rounding errors ----------------------------------------------------------------------------------


def _exposed_in_floats(rounds: Sequence[_Round[np.float64]], exchange: Exchange, curious: Set) -> dict[int, int]:
    """As `_exposed`, for the best linear estimate from rounded numbers.

    Stores the first r rounds as their triangular factor and finds the round by bisection.
    """
    n = len(rounds[0].near)
    factors: list[FloatArray] = [np.zeros((0, n))]
    solved: dict[int, set[int]] = {}

    def solve(number: int) -> set[int]:
        while len(factors) <= number:
            seen = rounds[len(factors) - 1].observe(exchange, curious)
            factors.append(np.asarray(np.linalg.qr(np.concatenate([factors[-1], seen]), mode="r")))
        if number not in solved:
            solved[number] = set(np.flatnonzero(_measure_unknown(factors[number]) <= SOLVED).tolist()) - set(curious)
        return solved[number]

    last = min(4, len(rounds))
    while last < len(rounds) and len(solve(last)) + len(curious) < n:
        last = min(2 * last, len(rounds))
    numbers = range(1, last + 1)
    return {v: numbers[bisect_left(numbers, True, key=lambda number: v in solve(number))] for v in sorted(solve(last))}


def _measure_unknown(rows: FloatArray) -> FloatArray:
    """Return [n], the share of the variance of each node's first vector that these rows leave unknown.

    y(0) ~ N(0, 1), noise ROUNDING: a singular direction with value s leaves e^2 / (s^2 + e^2).
    """
    _, singular, directions = np.linalg.svd(rows, full_matrices=False)
    known = singular**2 / (singular**2 + ROUNDING**2)
    return np.asarray(np.sqrt(np.maximum(1.0 - known @ directions**2, 0.0)))


NEIGHBOURS_MIN = 3
"""Minimum number of neighbours in a sum.  A sum of two reveals each term to the other sender in collusion with the
receiver; a sum of one reveals it to the receiver.
"""

ROUNDS_LOOKED_AT = 64
"""Number of checked rounds of a schedule without a period; the peers check later rounds as they run."""


def check_private(schedule: Schedule, rounds: int) -> None:
    """Raise ConfigError, naming the first unsuitable round, unless all rounds can be summed in secret."""
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
        advice = f"Use a graph in which every node has {NEIGHBOURS_MIN} neighbours, such as regular:4."
        raise ConfigError(
            f"private gossip hides a model among {NEIGHBOURS_MIN} neighbours or more, and in {where} {who}", advice
        )


def _summed(mixing: Mixing, node: int) -> int:
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
