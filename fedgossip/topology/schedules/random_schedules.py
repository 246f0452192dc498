"""Schedules of random matchings: each round drawn independently, Epidemic Learning, and MATCHA.

**MATCHA**: splits a graph's edges into matchings and activates each with its own probability, within a budget.

    1. colour the edges so that no two at one node share a colour: at most degree + 1 matchings; or take those of the
       graph's file
    2. probabilities p with sum p <= budget * matchings that maximise l_2(sum_j p_j L_j): critical links occur often
    3. alpha that minimises ||E[W'W] - J||, W = I - alpha sum_j b_j L_j, b_j independent with E b_j = p_j

The budget is a share of the matchings, as in the paper, not of the links.  Step 2 is concave, solved by a barrier
method to within GAP.

Sources: Wang, Sahu, Yang, Joshi and Kar, MATCHA: speeding up decentralized SGD via matching decomposition sampling,
2019; Misra and Gries, A constructive proof of Vizing's theorem, Information Processing Letters 41 (1992).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs import families
from fedgossip.topology.graphs.graph import FloatArray, IntArray, Topology
from fedgossip.topology.schedules.schedules import Random
from fedgossip.topology.spectra import eigen
from fedgossip.topology.weights.mixing_matrix import Mixing, assemble, from_edge_weights
from fedgossip.topology.weights.weights import build, push_weights


def random_matching(n: int, seed: int) -> Random:
    """Return the schedule of uniformly random averaging pairs; with an odd n one node pauses.

    E sum ||x_i - mean||^2 falls to 1/2 (1 - 1/(n - 1)) for even n, 1/2 for odd.  Raises ConfigError for n < 2.
    """
    if n < 2:
        raise ConfigError(f"random-matching of {n} nodes", "Give at least 2 nodes.")

    def draw(stream: np.random.Generator) -> Mixing:
        pairs = stream.permutation(n)[: n - n % 2].reshape(-1, 2)
        return build(Topology.from_edges(n, pairs, "random-matching"))

    left = 0.5 if n % 2 else 0.5 * (1.0 - 1.0 / (n - 1))
    return Random("random-matching", n, "metropolis", seed, draw, left)


def epidemic_oracle(n: int, s: int, seed: int) -> Random:
    """Return Epidemic Learning with an oracle: a new random s-regular graph per round, weights 1/(s + 1).

    A fixed s-regular circulant with permuted nodes.  A round leaves (1/(s+1)) (1 - s/(n-1)) of sum ||x_i - mean||^2 in
    expectation, as any draw of s-regular graphs: (||W||_F^2 - 1)/(n - 1), with ||W||_F^2 = n/(s + 1).

    Raises ConfigError for an odd n * s, and an s outside 1..n - 1.

    Source: de Vos et al., Epidemic learning: boosting decentralized learning with randomized communication, NeurIPS
    2023.
    """
    name = _pushed("el-oracle", n, s)
    if n * s % 2:
        raise ConfigError(
            f"{name} of {n} nodes: {n} times {s} is odd, so not all can have {s} neighbours",
            f"Use el-oracle:{s + 1 if s + 1 < n else s - 1}, an even number of nodes, or el-local:{s}.",
        )
    steps = [*range(1, s // 2 + 1), *([n // 2] if s % 2 else [])]
    fixed = families.circulant(n, tuple(steps)).edges

    def draw(stream: np.random.Generator) -> Mixing:
        return build(Topology.from_edges(n, stream.permutation(n)[fixed], name))

    return Random(name, n, "metropolis", seed, draw, (1.0 / (s + 1)) * (1.0 - s / (n - 1)))


def epidemic_local(n: int, s: int, seed: int) -> Random:
    """Return Epidemic Learning without an oracle: each node sends to s random others and averages the received models.

    Rows sum to one and columns do not: the mean is kept in expectation only.  About the old mean, (1/s)(1 - (1 -
    s/(n-1))^n) - 1/(n-1) of sum ||x_i - mean||^2 remains in expectation.

    Raises ConfigError for an s outside 1..n - 1.  Source: de Vos et al., NeurIPS 2023.
    """
    name = _pushed("el-local", n, s)

    def draw(stream: np.random.Generator) -> Mixing:
        topology = Topology.from_edges(n, _random_targets(stream, n, s), name, directed=True)
        starts, senders = topology.incoming
        counts = np.diff(starts)
        receivers = np.repeat(np.arange(n, dtype=np.int64), counts)
        shares = np.asarray(1.0 / (1.0 + counts), np.float64)
        return assemble(topology, "uniform", receivers, senders, shares[receivers], shares, "rows")

    left = (1.0 / s) * (1.0 - (1.0 - s / (n - 1)) ** n) - 1.0 / (n - 1)
    return Random(name, n, "uniform", seed, draw, left, "rows")


def epidemic_push(n: int, s: int, seed: int) -> Random:
    """Return the graphs of `epidemic_local` with weights for push-sum: 1/(s + 1) of a node's mass to each of s others.

    Raises ConfigError for an s outside 1..n - 1.

    Source: Kempe, Dobra and Gehrke, Gossip-based computation of aggregate information, FOCS 2003.
    """
    name = _pushed("el-local", n, s)

    def draw(stream: np.random.Generator) -> Mixing:
        return push_weights(Topology.from_edges(n, _random_targets(stream, n, s), name, directed=True))

    return Random(name, n, "push", seed, draw, None, "columns")


def _random_targets(stream: np.random.Generator, n: int, s: int) -> IntArray:
    """Return arcs [n s, 2]: every node to s others at random (Floyd's sampling)."""
    chosen = np.empty((n, s), np.int64)
    for place in range(s):
        last = n - 1 - s + place
        picks = stream.integers(0, last + 1, n)
        taken = (chosen[:, :place] == picks[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, last, picks)
    ids = np.repeat(np.arange(n, dtype=np.int64), s)
    others = chosen.ravel()
    return np.stack([ids, others + (others >= ids)], axis=1)  # indices of the others, skipping the node itself


def _pushed(word: str, n: int, s: int) -> str:
    if not 1 <= s < n:
        most = f"at most {n - 1}" if n > 1 else "and more than one node"
        raise ConfigError(f"{word}:{s} of {n} nodes", f"Give at least 1 other to send to, {most}, e.g. {word}:1.")
    return f"{word}:{s}"


LARGEST = 400  # nodes; beyond it the dense products of step 2 take minutes
GAP = 1e-7  # how far from the best l_2 the probabilities may be, as a share of it


def matcha(graph: Topology, budget: float, seed: int) -> Random:
    """Return the schedule of randomly activated matchings of `graph`; `budget` in (0, 1]: the activated share.

    Raises ConfigError for another budget, a directed graph, and above LARGEST nodes.
    """
    name = f"matcha:{budget:g}:{graph.name}"
    if not 0 < budget <= 1:
        raise ConfigError(f"{name}: a budget of {budget:g}", "Give a share above 0 and at most 1.")
    if graph.directed or graph.n > LARGEST:
        what = "is directed" if graph.directed else f"has {graph.n} nodes; at most {LARGEST} fit"
        raise ConfigError(f"{name}: the graph {what}", "Take a smaller undirected graph, such as regular:4.")
    matchings = decomposed(graph) if graph.matchings is None else graph.matchings
    laplacians = [laplacian(graph.n, matching) for matching in matchings]
    chances = activation(laplacians, budget)
    step, _ = best_step(laplacians, chances)

    def draw(stream: np.random.Generator) -> Mixing:
        taken = stream.random(len(matchings)) < chances
        edges = [matching for matching, here in zip(matchings, taken, strict=True) if here]
        round = Topology.from_edges(graph.n, np.concatenate([np.empty((0, 2), np.int64), *edges]), name)
        return from_edge_weights(round, "matcha", np.full(len(round.edges), step))

    mean = sum(p * L for p, L in zip(chances, laplacians, strict=True))
    kept = np.eye(graph.n) - step * np.asarray(mean)

    def moment(M: FloatArray) -> FloatArray:
        found = kept @ M @ kept
        for p, L in zip(chances, laplacians, strict=True):
            found = found + step**2 * p * (1 - p) * (L @ M @ L)
        return np.asarray(found)

    return Random(name, graph.n, "matcha", seed, draw, None, moment=moment)


def laplacian(n: int, edges: IntArray) -> FloatArray:
    """Return the dense Laplacian [n, n] of edges [m, 2]."""
    found = np.zeros((n, n))
    u, v = edges.T
    found[u, v] = found[v, u] = -1.0
    np.fill_diagonal(found, -found.sum(axis=1))
    return found


# --- matchings --------------------------------------------------------------------------------------------------


def decomposed(graph: Topology) -> list[IntArray]:
    """Return the edges in matchings [m_j, 2], largest first; at most the largest degree + 1 matchings."""
    colours = _Colouring(graph)
    for u, v in graph.edges.tolist():
        colours.add(u, v)
    named = {c: [edge for edge, colour in colours.of.items() if colour == c] for c in set(colours.of.values())}
    ordered = sorted((sorted(edges) for edges in named.values()), key=lambda edges: (-len(edges), edges))
    return [np.array(edges, np.int64) for edges in ordered]


class _Colouring:
    """Misra and Gries: an edge gets a colour free at both ends, after rotating a fan and inverting a path of two
    colours.
    """

    def __init__(self, graph: Topology) -> None:
        self.of: dict[tuple[int, int], int] = {}
        self._at: list[dict[int, int]] = [{} for _ in range(graph.n)]  # node -> colour -> other end
        self._colours = int(graph.degrees().max(initial=0)) + 1

    def add(self, u: int, v: int) -> None:
        fan = self._fan(u, v)
        c, d = self._free(u), self._free(fan[-1])
        self._turn_path(u, c, d)
        end = next(k for k, node in enumerate(fan) if d not in self._at[node] and self._is_fan(u, fan[: k + 1]))
        for before, node in itertools.pairwise(fan[: end + 1]):
            colour = self._colour(u, node)
            self._clear(u, node)
            self._set(u, before, colour)
        self._set(u, fan[end], d)

    def _fan(self, u: int, v: int) -> list[int]:
        """Return a maximal fan: the edge to each next node has a colour free at the previous one."""
        fan = [v]
        while True:
            others = (n for c, n in sorted(self._at[u].items()) if n not in fan and c not in self._at[fan[-1]])
            following = next(others, None)
            if following is None:
                return fan
            fan.append(following)

    def _is_fan(self, u: int, nodes: Sequence[int]) -> bool:
        return all(self._colour(u, node) not in self._at[before] for before, node in itertools.pairwise(nodes))

    def _turn_path(self, u: int, c: int, d: int) -> None:
        """Exchange c and d on their path from u, so that d is free at u."""
        path, node, colour = [], u, d
        while colour in self._at[node]:
            other = self._at[node][colour]
            path.append((node, other, colour))
            node, colour = other, c if colour == d else d
        for one, other, _ in path:
            self._clear(one, other)
        for one, other, old in path:
            self._set(one, other, c if old == d else d)

    def _free(self, node: int) -> int:
        return next(c for c in range(self._colours) if c not in self._at[node])

    def _colour(self, u: int, v: int) -> int:
        return self.of[min(u, v), max(u, v)]

    def _set(self, u: int, v: int, colour: int) -> None:
        self.of[min(u, v), max(u, v)] = colour
        self._at[u][colour], self._at[v][colour] = v, u

    def _clear(self, u: int, v: int) -> None:
        colour = self.of.pop((min(u, v), max(u, v)))
        del self._at[u][colour], self._at[v][colour]


# --- probabilities and step -------------------------------------------------------------------------------------


def activation(laplacians: Sequence[FloatArray], budget: float) -> FloatArray:
    """Return p [matchings] in [0, 1], sum p <= budget * matchings, with the largest l_2(sum_j p_j L_j).

    Maximises s t + logdet(sum_j p_j L_j - s (I - J) + J) + sum log p + sum log(1 - p) + log(rest of the budget) for
    growing t by Newton's method, to within (number of barriers) / t.
    """
    count, n = len(laplacians), len(laplacians[0])
    if budget == 1.0:
        return np.ones(count)
    J = np.full((n, n), 1.0 / n)
    stack = np.array([*laplacians, -(np.eye(n) - J)])  # the directions of (p, s)
    x = np.concatenate([np.full(count, 0.5 * budget), [0.0]])
    x[-1] = 0.5 * float(np.linalg.eigvalsh(np.tensordot(x[:-1], stack[:-1], 1) + 2 * J)[0])
    total = budget * count
    barriers = n + 2 * count + 1
    t = 1.0
    with eigen.one_thread():
        while True:
            x = _centred(x, t, stack, J, total)
            if barriers / t < GAP * max(1e-9, float(x[-1])):
                return np.asarray(np.clip(x[:-1], 0.0, 1.0))
            t *= 8.0


def _centred(x: FloatArray, t: float, stack: FloatArray, J: FloatArray, total: float) -> FloatArray:
    def height(x: FloatArray) -> float:
        p, rest = x[:-1], total - x[:-1].sum()
        if p.min() <= 0 or p.max() >= 1 or rest <= 0:
            return -math.inf
        sign, logdet = np.linalg.slogdet(np.tensordot(x, stack, 1) + J)
        inside = sign > 0 and np.linalg.eigvalsh(np.tensordot(x, stack, 1) + J)[0] > 0
        return (
            float(t * x[-1] + logdet + np.log(p).sum() + np.log1p(-p).sum() + math.log(rest)) if inside else -math.inf
        )

    for _ in range(60):
        p, rest = x[:-1], total - x[:-1].sum()
        inverse = np.linalg.inv(np.tensordot(x, stack, 1) + J)
        moved = np.einsum("ij,kjl->kil", inverse, stack)
        gradient = np.einsum("kii->k", moved)
        gradient[:-1] += 1 / p - 1 / (1 - p) - 1 / rest
        gradient[-1] += t
        curved = np.einsum("kij,lji->kl", moved, moved)
        curved[:-1, :-1] += np.diag(1 / p**2 + 1 / (1 - p) ** 2) + 1 / rest**2
        step = np.linalg.solve(curved, gradient)
        decrement = float(gradient @ step)
        if decrement < 1e-9:
            break
        here, size = height(x), 1.0
        while height(x + size * step) < here + 0.2 * size * decrement and size > 1e-10:
            size *= 0.5
        x = x + size * step
    return x


def best_step(laplacians: Sequence[FloatArray], chances: FloatArray) -> tuple[float, float]:
    """Return (alpha, ||E[W'W] - J||) for the best alpha, by minimising a convex function.

    E[W'W] = I - 2 alpha L + alpha^2 (L^2 + 2 sum_j p_j (1 - p_j) L_j), L = sum_j p_j L_j, for L_j^2 = 2 L_j.
    """
    from scipy.optimize import minimize_scalar

    n = len(laplacians[0])
    mean = np.asarray(sum(p * L for p, L in zip(chances, laplacians, strict=True)))
    square = mean @ mean + 2 * np.asarray(sum(p * (1 - p) * L for p, L in zip(chances, laplacians, strict=True)))
    centred = np.eye(n) - 1.0 / n

    def compute_remaining(alpha: float) -> float:
        return float(np.linalg.eigvalsh(centred - 2 * alpha * mean + alpha**2 * square)[-1])

    with eigen.one_thread():
        most = 4.0 / max(1e-12, float(np.linalg.eigvalsh(mean)[-1]))
        found = minimize_scalar(compute_remaining, bounds=(0.0, most), method="bounded", options={"xatol": 1e-10})
    return float(found.x), float(found.fun)
