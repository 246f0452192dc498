"""Base-(k+1) graphs: rounds of at most k links per node with the exact mean as their product, for every number of
nodes.

    hyper-hypercube   write n = n_1 n_2 ... with factors of at most b = k + 1; in step l the nodes that are equal in all
                      mixed-radix digits but the l-th average among themselves
    simple base       write n = a_1 b^p_1 + a_2 b^p_2 + ... and cut the nodes into V_1, V_2, ... of these sizes
                      1. every V_l finds its own mean by its hyper-hypercube, M = p_1 + [a_1 > 1] steps
                      2. step s: every node of each later V_l links to one fresh node in each of the a_s blocks of V_s;
                         the nodes of V_s that are left average among themselves, b at a time
                      3. from step M + l + 1 on every block of V_l finds its mean by its hyper-hypercube (blocks of one
                         node: all of V_l)
                      A V_l that is done with its hyper-hypercube begins it again, so that no node idles.
    base              n = p q, p the part whose prime factors are at most b: the simple base graph in p blocks of q
                      nodes, then the hyper-hypercube across the blocks; or the simple one of all, if that is shorter

After 2. the mean over each block of V_l is the mean over all nodes, so that 3. ends with it everywhere.  The steps do
not commute: all peers have to be in the same one.

Source: Takezawa, Sato, Bao, Niwa and Yamada, Beyond exponential graph: communication-efficient topologies for
decentralized learning via finite-time convergence, NeurIPS 2023.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np

from fedgossip.topology.graphs.graph import FloatArray, IntArray

Step = tuple[IntArray, FloatArray]
"""(edges [m, 2], weights [m]) of one round; what an edge leaves of one, a node keeps."""


def base(n: int, k: int) -> list[Step]:
    """Return the rounds of the Base-(k+1) graph on the nodes 0..n-1; k >= 1, n >= 2."""
    nodes = np.arange(n, dtype=np.int64)[None]
    simple = _simple(nodes, k + 1)
    p, q = _smooth_part(n, k + 1)
    if p == 1 or q == 1:
        return simple
    blocks = nodes.reshape(p, q)
    crossed = [*_simple(blocks, k + 1), *_hyper_hypercube(blocks.T, k + 1)]
    return min(crossed, simple, key=len)


def simple_base(n: int, k: int) -> list[Step]:
    """Return the rounds of the Simple Base-(k+1) graph on the nodes 0..n-1; k >= 1, n >= 2."""
    return _simple(np.arange(n, dtype=np.int64)[None], k + 1)


def _simple(nodes: IntArray, b: int) -> list[Step]:
    """Return the simple base graph of every row of `nodes` [sets, size], side by side."""
    sets, size = nodes.shape
    if fewest_factors(size, b) is not None:
        return _hyper_hypercube(nodes, b)
    digits = _digits(size, b)
    first, highest = digits[0]
    own = highest + (first > 1)
    steps: list[list[Step]] = [[] for _ in range(own + 1 + highest)]
    start = 0
    for place, (count, power) in enumerate(digits):
        stop = start + count * b**power
        part, later = nodes[:, start:stop], nodes[:, _last_first(digits[place + 1 :], b, stop)]
        blocks = part.reshape(sets, count, -1)
        _repeat(steps[:own], _hyper_hypercube(part, b))
        if later.size:
            share = (stop - start) / (size - start)
            steps[own + place] += [_exchange(blocks, later, share / count), _those_left(blocks, later.shape[1], b)]
        done = own + place + (1 if later.size else 0)
        _repeat(steps[done:], _hyper_hypercube(part if power == 0 else blocks.reshape(sets * count, -1), b))
        start = stop
    return [_joined(parts) for parts in steps]


def _last_first(digits: list[tuple[int, int]], b: int, start: int) -> IntArray:
    """Return the positions of V_1, V_2, ..., given by their digits, from `start` on: the last V first."""
    sizes = np.array([0, *(count * b**power for count, power in digits)])
    starts = start + np.cumsum(sizes)
    ranges = [np.arange(first, after) for first, after in itertools.pairwise(starts)]
    return np.concatenate([*ranges[::-1], np.empty(0, np.int64)])


def _exchange(blocks: IntArray, later: IntArray, weight: float) -> Step:
    """Link the nodes `later` [sets, m] to the last m nodes of every block of `blocks` [sets, count, size]."""
    there = blocks[:, :, ::-1][:, :, : later.shape[1]]
    here = np.broadcast_to(later[:, None], there.shape)
    edges = np.stack([here.ravel(), there.ravel()], axis=1)
    return edges, np.full(len(edges), weight)


def _those_left(blocks: IntArray, taken: int, b: int) -> Step:
    """Link all but the last `taken` nodes of every block, b at a time across the blocks of a set."""
    left = blocks[:, :, : blocks.shape[2] - taken].reshape(len(blocks), -1)
    return _joined([_cliques(left[:, at : at + b]) for at in range(0, left.shape[1], b)])


def _cliques(nodes: IntArray) -> Step:
    """Let every row of `nodes` [cliques, size] average among itself."""
    one, other = np.triu_indices(nodes.shape[1], 1)
    edges = np.stack([nodes[:, one].ravel(), nodes[:, other].ravel()], axis=1)
    return edges, np.full(len(edges), 1.0 / max(1, nodes.shape[1]))


def _hyper_hypercube(nodes: IntArray, b: int) -> list[Step]:
    """Return the hyper-hypercube of every row of `nodes` [sets, size]; size has no prime factor above b."""
    sets, size = nodes.shape
    factors = fewest_factors(size, b)
    assert factors is not None, f"{size} has a prime factor above {b}"
    grid = nodes.reshape(sets, *factors)
    steps = []
    for axis in range(len(factors), 0, -1):  # neighbours in the list first, smallest factor first, as published
        factor = factors[axis - 1]
        steps.append(_cliques(np.moveaxis(grid, axis, -1).reshape(-1, factor)))
    return steps


@lru_cache(maxsize=4096)
def fewest_factors(size: int, largest: int) -> tuple[int, ...] | None:
    """Return the shortest list of factors of `size`, each at most `largest`; None where a prime factor is larger."""
    if size == 1:
        return ()
    best = None
    for factor in range(min(size, largest), 1, -1):
        rest = fewest_factors(size // factor, largest) if size % factor == 0 else None
        if rest is not None and (best is None or len(rest) + 1 < len(best)):
            best = (factor, *rest)
    return best


def _smooth_part(n: int, b: int) -> tuple[int, int]:
    """Return (p, q), n = p q, where all prime factors of p are at most b and all of q above."""
    q = n
    for factor in range(2, min(b, n) + 1):
        while q % factor == 0:
            q //= factor
    return n // q, q


def _digits(size: int, b: int) -> list[tuple[int, int]]:
    """Return (digit, power) of `size` in base b, highest power first, zeros left out."""
    digits = []
    power = 0
    while size:
        size, digit = divmod(size, b)
        if digit:
            digits.append((digit, power))
        power += 1
    return digits[::-1]


def _repeat(steps: list[list[Step]], cycle: list[Step]) -> None:
    """Add the steps of `cycle` to `steps`, again and again; none where it has none."""
    for step, more in zip(steps, itertools.cycle(cycle), strict=False):
        step.append(more)


def _joined(parts: list[Step]) -> Step:
    edges = [np.empty((0, 2), np.int64), *(edges for edges, _ in parts)]
    return np.concatenate(edges), np.concatenate([np.empty(0), *(weights for _, weights in parts)])
