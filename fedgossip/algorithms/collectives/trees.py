"""All-reduce on a binomial tree with root 0: 2 ceil(log2 m) steps of a whole vector each."""

from __future__ import annotations

from fedgossip.algorithms.collectives.table import Move, Table, Way


def tree(workers: int) -> Table:
    """Reduce to rank 0, then broadcast from it.

    In step k of the reduction the ranks that are odd multiples of 2^k send to the rank 2^k below them, and have no
    more to do; the broadcast takes the same edges the other way, in the opposite order.
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
