"""The collectives by name, each with its closed forms; tests compare them with its table for 1 to 64 workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedgossip.algorithms.collectives.table import Move, Table, Way

# All-reduce on a binomial tree with root 0: 2 ceil(log2 m) steps of a whole vector each.


def tree(workers: int) -> Table:
    """Reduce to rank 0, then broadcast from it.

    In step k the odd multiples of 2^k send to the rank 2^k below; the broadcast reverses it.
    """
    found: list[list[Move]] = [[] for _ in range(workers)]
    edges = []
    distance = 1
    while distance < workers:
        edges += [(rank, rank - distance) for rank in range(distance, workers, 2 * distance)]
        distance *= 2
    for child, parent in edges:
        found[child].append(Move(Way.SEND, parent, 0, 1))
        found[parent].append(Move(Way.ADD, child, 0, 1))
    for child, parent in reversed(edges):
        found[parent].append(Move(Way.SEND, child, 0, 1))
        found[child].append(Move(Way.REPLACE, parent, 0, 1))
    return Table(1, tuple(map(tuple, found)))


# All-reduce on a ring, and all-gather: every rank sends to the next one only.
#
# Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, J. Parallel and
# Distributed Computing 69 (2009).


def ring(workers: int) -> Table:
    """Scatter-reduce, then all-gather, of m parts: 2 (m - 1) / m of a vector sent by each, in 2 (m - 1) steps.

    In step s rank r sends part r - s to rank r + 1, which adds it.  So rank r ends with the sum of part r + 1, which is
    passed round the ring in the second half.
    """
    m = workers

    def moves(rank: int) -> tuple[Move, ...]:
        found: list[Move] = []
        for way, shift in ((Way.ADD, 0), (Way.REPLACE, 1)):
            for step in range(m - 1):
                out, received = (rank + shift - step) % m, (rank + shift - step - 1) % m
                found.append(Move(Way.SEND, (rank + 1) % m, out, out + 1))
                found.append(Move(way, (rank - 1) % m, received, received + 1))
        return tuple(found)

    return Table(m, tuple(moves(rank) for rank in range(m)))


def ring_naive(workers: int) -> Table:
    """Pass the whole vector round twice, for sum and distribution: 2 (m - 1) steps of a whole vector each."""
    m = workers

    def moves(rank: int) -> tuple[Move, ...]:
        before, after = (rank - 1) % m, (rank + 1) % m
        found = [Move(Way.ADD, before, 0, 1)] if rank > 0 else []
        if rank < m - 1:
            found += [Move(Way.SEND, after, 0, 1), Move(Way.REPLACE, before, 0, 1)]
        if rank != m - 2:
            found.append(Move(Way.SEND, after, 0, 1))
        return tuple(found)

    return Table(1, tuple(moves(rank) for rank in range(m)) if m > 1 else ((),))


# All-reduce in racks: a ring within each, rings across them for the parts, and back.
#
# Source: Cho, Finkler, Serrano, Kung and Hunter, BlueConnect: decomposing all-reduce for deep learning on
# heterogeneous network hierarchy, MLSys 2019.


def rack_size(workers: int) -> int:
    """Return the number of workers in a rack: the smallest divisor of `workers` that is not below its square root."""
    return next(size for size in range(1, workers + 1) if workers % size == 0 and size * size >= workers)


def hierarchical(workers: int) -> Table:
    """Scatter-reduce within each rack of g, all-reduce of each g-th part by rings across the R racks, all-gather
    within.

    It sends the bytes of a ring in 2 (g + R - 2) steps.  2 (R - 1) of these leave the rack, with 1/g of a vector in
    all.

    Rank k is in rack k // g, so consecutive ranks share one.
    """
    g = rack_size(workers)
    racks = workers // g

    def around(ranks: Sequence[int], of: int, parts: Sequence[range], way: Way, shift: int) -> Iterator[Move]:
        """Yield half a ring's moves of ranks[of], one of these parts at a time."""
        m = len(ranks)
        for step in range(m - 1):
            out, received = parts[(of + shift - step) % m], parts[(of + shift - step - 1) % m]
            yield Move(Way.SEND, ranks[(of + 1) % m], out.start, out.stop)
            yield Move(way, ranks[(of - 1) % m], received.start, received.stop)

    def moves(rank: int) -> tuple[Move, ...]:
        rack, place = divmod(rank, g)
        within, wide = range(rack * g, rack * g + g), [range(k * racks, (k + 1) * racks) for k in range(g)]
        across, narrow = range(place, workers, g), [range(k, k + 1) for k in wide[(place + 1) % g]]
        return (
            *around(within, place, wide, Way.ADD, 0),
            *around(across, rack, narrow, Way.ADD, 0),
            *around(across, rack, narrow, Way.REPLACE, 1),
            *around(within, place, wide, Way.REPLACE, 1),
        )

    return Table(workers, tuple(moves(rank) for rank in range(workers)))


def ring_gather(workers: int) -> Table:
    """All-gather: part r belongs to rank r, and is passed round the ring; each sends m - 1 parts, in m - 1 steps."""
    m = workers

    def moves(rank: int) -> tuple[Move, ...]:
        found: list[Move] = []
        for step in range(m - 1):
            out, received = (rank - step) % m, (rank - step - 1) % m
            found.append(Move(Way.SEND, (rank + 1) % m, out, out + 1))
            found.append(Move(Way.REPLACE, (rank - 1) % m, received, received + 1))
        return tuple(found)

    return Table(m, tuple(moves(rank) for rank in range(m)))


# All-reduce by partners at distances of powers of two.
#
# p is the largest power of two not above m.  The m - p ranks above fold first: each sends its vector to the rank p
# below it, which adds it, and sends the sum back at the end.
#
# Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, Int. J. High
# Performance Computing Applications 19 (2005).


def power_below(workers: int) -> int:
    """Return the largest power of two that is at most `workers`."""
    return 1 << (workers.bit_length() - 1)


def recursive_doubling(workers: int) -> Table:
    """Exchange whole vectors with rank XOR 1, 2, 4, ...: log2 p steps."""

    def moves(rank: int, p: int) -> list[Move]:
        partners = [rank ^ (1 << k) for k in range(p.bit_length() - 1)]
        return [Move(way, partner, 0, 1) for partner in partners for way in (Way.SEND, Way.ADD)]

    return _folded(workers, 1, moves)


def halving_doubling(workers: int) -> Table:
    """Rabenseifner's: scatter-reduce by halves, all-gather by doubling; 2 (p - 1) / p of a vector in 2 log2 p steps.

    With the partner at distance p / 2, p / 4, ..., 1 a rank keeps the half that its id selects and adds the partner's
    to it; it ends with part number `rank`, and the exchanges are reversed.
    """

    def moves(rank: int, p: int) -> list[Move]:
        found: list[Move] = []
        back: list[Move] = []
        first, stop = 0, p
        distance = p // 2
        while distance:
            partner, middle = rank ^ distance, (first + stop) // 2
            keep, give = ((first, middle), (middle, stop)) if rank < partner else ((middle, stop), (first, middle))
            found += [Move(Way.SEND, partner, *give), Move(Way.ADD, partner, *keep)]
            back = [Move(Way.SEND, partner, *keep), Move(Way.REPLACE, partner, *give), *back]
            first, stop = keep
            distance //= 2
        return found + back

    return _folded(workers, power_below(workers), moves)


def _folded(workers: int, parts: int, moves: Callable[[int, int], list[Move]]) -> Table:
    p = power_below(workers)
    found = [moves(rank, p) for rank in range(p)] + [[] for _ in range(p, workers)]
    for rank in range(p, workers):
        partner = rank - p
        found[rank] = [Move(Way.SEND, partner, 0, parts), Move(Way.REPLACE, partner, 0, parts)]
        found[partner] = [Move(Way.ADD, rank, 0, parts), *found[partner], Move(Way.SEND, rank, 0, parts)]
    return Table(parts, tuple(map(tuple, found)))


# All-reduce without relays: through one rank, or between all pairs; sums without an order (`ExactSum`).  Also
# all-gather.


def star(workers: int) -> Table:
    """Reduce to rank 0, which receives from all, then broadcast from it: 2 steps, 2 (m - 1) vectors at one rank."""
    others = range(1, workers)
    hub = [Move(Way.ADD, rank, 0, 1) for rank in others] + [Move(Way.SEND, rank, 0, 1) for rank in others]
    spokes = [(Move(Way.SEND, 0, 0, 1), Move(Way.REPLACE, 0, 0, 1)) for _ in others]
    return Table(1, (tuple(hub), *spokes), exact=True)


def all_to_all(workers: int) -> Table:
    """Every rank sends its vector to every other: 1 step, m (m - 1) vectors."""

    def moves(rank: int) -> tuple[Move, ...]:
        others = [(rank + k) % workers for k in range(1, workers)]  # not all to rank 0 first
        return (*(Move(Way.SEND, to, 0, 1) for to in others), *(Move(Way.ADD, to, 0, 1) for to in sorted(others)))

    return Table(1, tuple(moves(rank) for rank in range(workers)), exact=True)


def gather_all_to_all(workers: int) -> Table:
    """All-gather: part r belongs to rank r, which sends it to all others: each sends m - 1 parts, in 1 step."""

    def moves(rank: int) -> tuple[Move, ...]:
        others = [(rank + k) % workers for k in range(1, workers)]
        sends = [Move(Way.SEND, to, rank, rank + 1) for to in others]
        return (*sends, *(Move(Way.REPLACE, of, of, of + 1) for of in sorted(others)))

    return Table(workers, tuple(moves(rank) for rank in range(workers)))


@dataclass(frozen=True)
class Collective:
    """Values of `parallel.method`.

    Closed forms of m workers: latency a in seconds, b bytes per second each way, a vector of d bytes (per rank and
    direction one message at a time).  A tree and both doublings are exact if m is a power of two; otherwise ranks that
    do not fold begin early, and a folded vector can arrive together with a partner's.  Without downlinks
    halving-doubling is exact for every m, recursive doubling takes up to a message less, a tree up to two; with them
    halving-doubling takes up to d/(2b) more, recursive doubling up to three vectors.
    """

    table: Callable[[int], Table]
    steps: Callable[[int], int]
    """Number of messages on the longest chain."""
    busiest: Callable[[int], float]
    """Number of vectors sent by the busiest rank."""
    seconds: Callable[[int, float, float, float], float]
    """(m, d, a, b) -> time of one all-reduce, without the time of adding."""
    added: Callable[[int], float]
    """m -> number of vectors added one after the other; an upper bound if the order of arrival matters."""


def _log2(m: int) -> int:
    return power_below(m).bit_length() - 1


def _folds(m: int) -> int:
    """1 if ranks fold onto partners first, 0 for a power of two."""
    return int(m != power_below(m))


def _levels(m: int) -> int:
    return math.ceil(math.log2(m)) if m > 1 else 0


def _share(m: int) -> float:
    """(p - 1) / p for the largest power of two p not above m."""
    return 1 - 1 / power_below(m)


COLLECTIVES: Mapping[str, Collective] = {
    "ring": Collective(
        ring,
        steps=lambda m: 2 * (m - 1),
        busiest=lambda m: 2 * (m - 1) / m,
        seconds=lambda m, d, a, b: 2 * (m - 1) * (a + d / (m * b)),
        added=lambda m: (m - 1) / m,
    ),
    "hierarchical": Collective(
        hierarchical,
        steps=lambda m: 2 * (rack_size(m) + m // rack_size(m) - 2),
        busiest=lambda m: 2 * (m - 1) / m,
        seconds=lambda m, d, a, b: 2 * (rack_size(m) + m // rack_size(m) - 2) * a + 2 * (m - 1) / m * d / b,
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
"""Distribution of non-additive payloads, by the collective's name: part r of a table belongs to rank r."""


# Durations over links.


@dataclass(frozen=True)
class EqualLinks:
    """The links of all participants: latency in seconds one way, bytes per second out of and into each; infinite: no
    limit.
    """

    latency: float
    up: float = math.inf
    down: float = math.inf
    summing: float = 0.0
    """Seconds to add one byte of a vector to another."""

    @property
    def rate(self) -> float:
        """Bytes per second of a single message: it is cut through, so the slower end counts once."""
        return min(self.up, self.down)

    def one(self, size: float) -> float:
        """Return the seconds of one message of `size` bytes."""
        return self.latency + size / self.rate


def all_reduce(name: str, workers: int, size: float, links: EqualLinks) -> float:
    """Return the seconds of one all-reduce, including its sums."""
    rate, collective = 1.0 if math.isinf(links.rate) else links.rate, COLLECTIVES[name]
    passes = collective.seconds(workers, 0.0 if math.isinf(links.rate) else size, links.latency, rate)
    return passes + collective.added(workers) * size * links.summing


def all_gather(name: str, workers: int, payload: float, size: float, links: EqualLinks) -> float:
    """Return the seconds of an all-gather of payloads, including the sum of the decoded vectors, `size` bytes each.

    A ring forwards them m - 1 times; in a complete exchange each is sent to all others.
    """
    sent = (workers - 1) * payload / links.rate
    waits = workers - 1 if name == "ring" else int(workers > 1)
    return waits * links.latency + sent + (workers - 1) * size * links.summing
