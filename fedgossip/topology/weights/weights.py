"""Rules for the mixing weights of a graph: Metropolis-Hastings, constant, and the fastest symmetric ones.

Others converge to another mean than the plain one, or to the plain one on graphs with unequal degrees:

    sinkhorn   of a directed graph: D1 (A + I) D2 with rows and columns that sum to one, the plain mean
    inverse    1 / (1 + received models), a plain average at every node: rows sum to one, frequent senders count most
    pi         Metropolis and Hastings with a stationary distribution pi: rows sum to one, sum_i pi_i x_i is kept
    sizes      the same, pi the numbers of examples of an experiment's peers

Sources: Sinkhorn and Knopp, Concerning nonnegative matrices and doubly stochastic matrices, Pacific J. Math. 21 (1967);
Hastings, Monte Carlo sampling methods using Markov chains and their applications, Biometrika 57 (1970).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.topology.graphs.graph import FloatArray, Topology
from fedgossip.topology.spectra import eigen
from fedgossip.topology.weights.mixing_matrix import Mixing, Stochastic, assemble, from_edge_weights, turned

# The weights with the fastest worst case: FMMC (none negative) and FDLA (any), by a barrier method.
#
# Minimise s over the weights w of the edges with -s I <= I - L(w) - J <= s I, L(w) = sum_e w_e (e_u - e_v)(e_u - e_v)';
# FMMC: w >= 0 and no own weight negative.  With P = (sI - M)^-1, Q = (sI + M)^-1, M = I - L(w) - J and the incidence
# matrix A the Hessian in w is (A'PA)^2 + (A'QA)^2 entry by entry, so Newton's method needs no solver library.  The
# result exceeds the minimum slem by at most (number of barriers) / t: t grows until this is GAP.
#
# Sources: Xiao and Boyd, Fast linear iterations for distributed averaging, Systems & Control Letters 53 (2004); Boyd,
# Diaconis and Xiao, Fastest mixing Markov chain on a graph, SIAM Review 46 (2004).


GAP = 1e-9
"""Maximum excess of the weights' slem over the minimum."""

MOST_NODES, MOST_EDGES = 200, 1000


@dataclass(frozen=True)
class _Problem:
    ends: FloatArray
    """A, [n, m]."""
    positive: bool


def fastest(topology: Topology, positive: bool) -> FloatArray:
    """Return the edge weights [m] with the minimum slem, to GAP; `positive`: no edge or own weight is negative.

    Raises ConfigError for more than MOST_NODES nodes or MOST_EDGES edges.
    """
    n, m = topology.n, len(topology.edges)
    name = "fmmc" if positive else "fdla"
    if n > MOST_NODES or m > MOST_EDGES:
        text = f"{name} weights on {topology.name!r}: {n} nodes, {m} edges; at most {MOST_NODES} and {MOST_EDGES} fit"
        raise ConfigError(text, "Use best-constant, the fastest equal weights, which needs eigenvalues alone.")
    if not m:
        return np.empty(0)
    ends = np.zeros((n, m))
    ends[topology.edges[:, 0], np.arange(m)] = 1.0
    ends[topology.edges[:, 1], np.arange(m)] = -1.0
    problem = _Problem(ends, positive)
    degrees = topology.degrees()
    x = np.append(0.9 / (1.0 + np.maximum(*degrees[topology.edges.T])), 1.0)
    barriers = 2 * n + (m + n if positive else 0)
    t = 1.0
    with eigen.one_thread():
        x[-1] = 1.05 * max(0.1, float(np.abs(np.linalg.eigvalsh(_mixed(problem, x[:-1]))).max()))
        while True:
            x = _centred(problem, x, t)
            if barriers / t < GAP:
                return x[:-1]
            t *= 10.0


def _mixed(problem: _Problem, w: FloatArray) -> FloatArray:
    """Return M = I - L(w) - J."""
    n = len(problem.ends)
    return np.asarray(np.eye(n) - (problem.ends * w) @ problem.ends.T - 1.0 / n)


def _compute_own_weights(problem: _Problem, w: FloatArray) -> FloatArray:
    return np.asarray(1.0 - np.abs(problem.ends) @ w)


def _height(problem: _Problem, x: FloatArray, t: float) -> float:
    """Return the objective, t s and the barriers; infinite outside."""
    w, s = x[:-1], float(x[-1])
    if problem.positive and (w.min() <= 0 or _compute_own_weights(problem, w).min() <= 0):
        return math.inf
    M = _mixed(problem, w)
    total = t * s
    for side in (s * np.eye(len(M)) - M, s * np.eye(len(M)) + M):
        try:
            total -= 2.0 * float(np.log(np.diag(np.linalg.cholesky(side))).sum())
        except np.linalg.LinAlgError:
            return math.inf
    if problem.positive:
        total -= float(np.log(w).sum() + np.log(_compute_own_weights(problem, w)).sum())
    return total


def _slopes(problem: _Problem, x: FloatArray, t: float) -> tuple[FloatArray, FloatArray]:
    """Return the gradient [m + 1] and the Hessian of `_height`."""
    A, w, s = problem.ends, x[:-1], float(x[-1])
    M = _mixed(problem, w)
    identity = np.eye(len(M))
    P, Q = np.linalg.inv(s * identity - M), np.linalg.inv(s * identity + M)
    PA, QA = P @ A, Q @ A
    # d(sI - M)/dw_e = a_e a_e', d(sI + M)/dw_e = -a_e a_e'
    gradient = np.append(-np.einsum("ne,ne->e", A, PA) + np.einsum("ne,ne->e", A, QA), t - np.trace(P) - np.trace(Q))
    hessian = np.empty((len(x), len(x)))
    hessian[:-1, :-1] = (A.T @ PA) ** 2 + (A.T @ QA) ** 2
    hessian[-1, :-1] = hessian[:-1, -1] = np.einsum("ne,ne->e", PA, PA) - np.einsum("ne,ne->e", QA, QA)
    hessian[-1, -1] = float((P * P).sum() + (Q * Q).sum())
    if problem.positive:
        both, own = np.abs(A), _compute_own_weights(problem, w)
        gradient[:-1] += -1.0 / w + both.T @ (1.0 / own)
        hessian[:-1, :-1] += np.diag(1.0 / w**2) + (both.T / own**2) @ both
    return gradient, hessian


def _newton(hessian: FloatArray, gradient: FloatArray) -> FloatArray:
    try:
        return np.asarray(-np.linalg.solve(hessian, gradient))
    except np.linalg.LinAlgError:
        return np.asarray(-np.linalg.lstsq(hessian, gradient, rcond=None)[0])


def _centred(problem: _Problem, x: FloatArray, t: float) -> FloatArray:
    for _ in range(80):
        gradient, hessian = _slopes(problem, x, t)
        step = _newton(hessian, gradient)
        decrement = -float(gradient @ step)
        if decrement < 1e-8:
            return x
        here, size = _height(problem, x, t), 1.0
        while _height(problem, x + size * step, t) > here - 0.2 * size * decrement:
            size *= 0.5
            if size < 1e-12:  # rounding: no lower point is to be found
                return x
        x = x + size * step
    return x


def build(topology: Topology, rule: str = "metropolis") -> Mixing:
    """Return the mixing of the graph under `rule`.

    - metropolis: 1 / (1 + max(d_i, d_j)); on a directed graph only if all nodes have d senders and receivers
    - max-degree: 1 / (1 + largest degree)
    - xiao-boyd-metropolis, xiao-boyd-max-degree: without the 1, as published; may never agree on a bipartite graph
    - uniform: 1 / (1 + d), a plain average; every node must have the same degree d
    - lazy: half Metropolis, half keeping: no negative eigenvalue
    - best-constant: the one edge weight with the fastest worst case, 2 / (mu_2 + mu_n) to 36 bits, the same on unlike
      processors; the own weight may be negative
    - fmmc, fdla: the edge weights with the fastest worst case, none negative or any; to 200 nodes
    - sinkhorn: doubly stochastic on any strongly connected graph
    - inverse: 1 / (1 + senders), a plain average on any graph: rows sum to 1 and columns need not
    - pi:FILE: Metropolis weights that keep a weighted mean, one number per node in the file: rows sum to 1;
      "sizes", only in an experiment, uses its peers' numbers of examples
    - push: 1 / (1 + successors of the sender), on any graph: columns sum to 1 and rows need not (`push_weights`)

    Raises ConfigError for an unknown rule, and for a rule that the graph does not support.

    Source: Xiao and Boyd, Fast linear iterations for distributed averaging, Systems & Control Letters 53 (2004).
    """
    word, _, argument = rule.partition(":")
    if word == "pi":
        return weighted(topology, read_pi(Path(argument).expanduser()), rule)
    if rule == SIZES:
        text = "sizes, weights by numbers of examples, on a graph without an experiment"
        raise ConfigError(text, "Set topology.weights of an experiment, or topology make GRAPH --data EXPERIMENT.")
    if rule not in rule_names() or argument:
        raise ConfigError(f"unknown weight rule {rule!r}", nearest(rule, rule_names()))
    if topology.turned and (rule in _EQUAL_SHARES or (not topology.directed and rule in ("lazy", *_EQUAL_WEIGHTS))):
        return _build_turned(topology, rule)
    return _build_whole(topology, rule)


def _build_turned(topology: Topology, rule: str) -> Mixing:
    share = 1.0 / (1.0 + int(topology.degrees()[0]))
    weight = {"lazy": 0.5 * share}.get(rule, share) if rule != "best-constant" else _best_weight(topology)
    stochastic: Stochastic = "columns" if rule == "push" else "both"
    named = "uniform" if topology.directed and rule != "push" else rule
    return turned(topology, named, weight, lambda: _build_whole(topology, rule), stochastic)


_EQUAL_SHARES = ("metropolis", "uniform", "push")
_EQUAL_WEIGHTS = ("max-degree", "best-constant")


def _build_whole(topology: Topology, rule: str) -> Mixing:
    if rule in _WHOLE:
        return _WHOLE[rule](topology)
    if topology.directed:
        return _build_directed(topology, rule)
    return from_edge_weights(topology, rule, _RULES[rule](topology))


def rule_names() -> tuple[str, ...]:
    """Return the names of the rules of `build`."""
    return (*_RULES, *_WHOLE)


def push_weights(topology: Topology) -> Mixing:
    """Return the column-stochastic mixing with equal shares for receivers and self, 1 / (1 + successors of the sender).

    A node needs only its number of receivers, so this works on every directed graph.  Rows need not sum to 1: for
    push-sum, which divides by the mass.

    Source: Kempe, Dobra and Gehrke, Gossip-based computation of aggregate information, FOCS 2003.
    """
    shares = np.asarray(1.0 / (1.0 + topology.out_degrees), np.float64)
    starts, receivers = topology.outgoing
    senders = np.repeat(np.arange(topology.n, dtype=np.int64), np.diff(starts))
    return assemble(topology, "push", receivers, senders, shares[senders], shares, "columns")


def _metropolis(topology: Topology) -> FloatArray:
    degrees = topology.degrees()
    u, v = topology.edges.T
    return np.asarray(1.0 / (1.0 + np.maximum(degrees[u], degrees[v])), np.float64)


def _lazy(topology: Topology) -> FloatArray:
    return 0.5 * _metropolis(topology)


def _max_degree(topology: Topology) -> FloatArray:
    return np.full(len(topology.edges), 1.0 / (1.0 + int(topology.degrees().max())))


def _published_metropolis(topology: Topology) -> FloatArray:
    degrees = topology.degrees()
    return np.asarray(1.0 / np.maximum(*degrees[topology.edges.T]), np.float64)


def _published_max_degree(topology: Topology) -> FloatArray:
    return np.full(len(topology.edges), 1.0 / max(1, int(topology.degrees().max())))


def _uniform(topology: Topology) -> FloatArray:
    degrees = topology.degrees()
    low, high = int(degrees.min()), int(degrees.max())
    if low != high:
        raise ConfigError(
            f"uniform weights on {topology.name!r}, whose degrees go from {low} to {high}: the mean would drift",
            "Use metropolis, which weighs unequal neighbours so that the mean is kept.",
        )
    return np.full(len(topology.edges), 1.0 / (1.0 + high))


def _best_constant(topology: Topology) -> FloatArray:
    return np.full(len(topology.edges), _best_weight(topology) if len(topology.edges) else 0.0)


def _best_weight(topology: Topology) -> float:
    ends = eigen.laplacian_ends(topology)
    if not ends.resolved:
        raise ConfigError(
            f"best-constant weights on {topology.name!r}: the spectrum did not resolve in {ends.steps} steps",
            "Use metropolis, which needs no spectrum.",
        )
    return _agreed(2.0 / (ends.low + ends.high))


def _agreed(weight: float) -> float:
    """Return the weight rounded to its first AGREED_BITS bits, on which all processors agree.

    LAPACK and vectorised sines differ between processors by at most 2e-15 of the weight; one graph in 10 000 has a
    midpoint within that distance.  The rate loses about 1e-11.
    """
    mantissa, exponent = math.frexp(weight)
    return math.ldexp(round(math.ldexp(mantissa, AGREED_BITS)), exponent - AGREED_BITS)


AGREED_BITS = 36
"""Bits of a weight computed from eigenvalues."""


_RULES: dict[str, Callable[[Topology], FloatArray]] = {
    "metropolis": _metropolis,
    "max-degree": _max_degree,
    "xiao-boyd-metropolis": _published_metropolis,
    "xiao-boyd-max-degree": _published_max_degree,
    "uniform": _uniform,
    "lazy": _lazy,
    "best-constant": _best_constant,
    "fmmc": partial(fastest, positive=True),
    "fdla": partial(fastest, positive=False),
}

SIZES = "sizes"
"""The rule `pi` with the peers' numbers of examples, which only an experiment provides."""

MOST_STEPS, NEAR = 100_000, 1e-14
MAX_FILE_BYTES = 64 << 20


def sinkhorn(topology: Topology) -> Mixing:
    """Return the doubly stochastic mixing on the arcs and loops of `topology` by Sinkhorn's steps.

    Raises ConfigError if none exists: an arc on no cycle.
    """
    from scipy.sparse import coo_array

    parts = topology.components()
    senders, receivers = topology.edges.T
    if not topology.directed:
        senders, receivers = np.concatenate([senders, receivers]), np.concatenate([receivers, senders])
    across = parts[senders] != parts[receivers]
    if across.any():
        u, v = senders[across][0], receivers[across][0]
        text = (
            f"sinkhorn weights on {topology.name!r}: row {v} receives from node {u}, and no path leads back from there"
        )
        raise ConfigError(text, "Add an arc that closes the cycle, or use push weights with push-sum.")
    ids = np.arange(topology.n)
    rows, columns = np.concatenate([receivers, ids]), np.concatenate([senders, ids])
    pattern = coo_array((np.ones(rows.size), (rows, columns)), shape=(topology.n, topology.n)).tocsr()
    turned = pattern.T.tocsr()
    left, right = np.ones(topology.n), np.ones(topology.n)
    for _ in range(MOST_STEPS):
        left = 1.0 / (pattern @ right)
        columns_sum = right * (turned @ left)
        if float(np.abs(columns_sum - 1.0).max()) < NEAR * 100:
            break
        right = right / columns_sum
    else:
        advice = "Use push weights with push-sum, or a graph whose degrees differ less."
        raise ConfigError(f"sinkhorn weights on {topology.name!r}: not balanced after {MOST_STEPS} steps", advice)
    return assemble(topology, "sinkhorn", receivers, senders, left[receivers] * right[senders], left * right)


def inverse(topology: Topology) -> Mixing:
    """Return the row-stochastic mixing in which every node averages its own and all received models equally."""
    starts, senders = topology.incoming
    counts = np.diff(starts)
    receivers = np.repeat(np.arange(topology.n, dtype=np.int64), counts)
    shares = np.asarray(1.0 / (1.0 + counts), np.float64)
    return assemble(topology, "inverse", receivers, senders, shares[receivers], shares, "rows")


def weighted(topology: Topology, pi: npt.ArrayLike, rule: str = "pi") -> Mixing:
    """Return the mixing that keeps sum_i pi_i x_i: i gives j min(pi_i / (1 + d_i), pi_j / (1 + d_j)) / pi_i.

    Equal pi: Metropolis weights.  Raises ConfigError for a directed graph, another number of values than nodes, and a
    value that is not positive.
    """
    values = np.asarray(pi, np.float64)
    if topology.directed:
        raise ConfigError(f"{rule} weights on {topology.name!r}, which is directed", "Take an undirected graph.")
    if values.shape != (topology.n,):
        raise ConfigError(f"{rule}: {values.size} values for {topology.n} nodes", "Give one per node, in their order.")
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        node = int(np.argmax(bad))
        raise ConfigError(f"{rule}: node {node} has {values[node]:g}", "Give positive numbers.")
    share = values / (1.0 + topology.degrees())
    u, v = topology.edges.T
    flow = np.minimum(share[u], share[v])
    receivers, senders = np.concatenate([u, v]), np.concatenate([v, u])
    weights = np.concatenate([flow, flow]) / values[receivers]
    own = np.asarray(1.0 - np.bincount(receivers, weights, topology.n), np.float64)
    even = bool((values == values[0]).all())
    return assemble(topology, rule, receivers, senders, weights, own, "both" if even else "rows")


def read_pi(path: Path) -> FloatArray:
    """Return the numbers of a file, one per node and line.  Raises ConfigError, naming the line."""
    try:
        lines = outside_files.read_text(outside_files.resolve(path), MAX_FILE_BYTES).splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "Write weights = pi:FILE.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file", "Give one number per line.") from None
    found = []
    for number, line in enumerate(lines, 1):
        if word := line.split("#", 1)[0].strip():
            try:
                found.append(float(word))
            except ValueError:
                text = f"{path}, line {number}: {word!r} is no number"
                raise ConfigError(text, "Give one number per line.") from None
    return np.array(found)


_WHOLE: dict[str, Callable[[Topology], Mixing]] = {"push": push_weights, "sinkhorn": sinkhorn, "inverse": inverse}
"""Rules for any graph, directed or not."""


def _build_directed(topology: Topology, rule: str) -> Mixing:
    degrees = np.concatenate([topology.in_degrees, topology.out_degrees])
    if rule not in ("metropolis", "uniform") or degrees.min() != degrees.max():
        reason = "whose degrees differ" if degrees.min() != degrees.max() else "which is directed"
        raise ConfigError(
            f"{rule} weights on {topology.name!r}, {reason}: they would not keep the mean",
            "Use an undirected graph, directed-exponential with uniform weights, or push-sum.",
        )
    senders, receivers = topology.edges.T
    weights = np.full(len(senders), 1.0 / (1.0 + int(degrees[0])))
    own = np.asarray(1.0 - np.bincount(receivers, weights, topology.n), np.float64)
    return assemble(topology, "uniform", receivers, senders, weights, own)
