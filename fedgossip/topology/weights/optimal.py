"""The weights with the fastest worst case: FMMC (none negative) and FDLA (any), by a barrier method.

Minimise s over the weights w of the edges with -s I <= I - L(w) - J <= s I, L(w) = sum_e w_e (e_u - e_v)(e_u - e_v)';
FMMC: w >= 0 and no own weight negative.  With P = (sI - M)^-1, Q = (sI + M)^-1, M = I - L(w) - J and the incidence
matrix A the Hessian in w is (A'PA)^2 + (A'QA)^2 entry by entry, so that Newton's method needs no solver library.  The
answer is at most (number of barriers) / t above the least slem: t grows until that is GAP.

Sources: Xiao and Boyd, Fast linear iterations for distributed averaging, Systems & Control Letters 53 (2004); Boyd,
Diaconis and Xiao, Fastest mixing Markov chain on a graph, SIAM Review 46 (2004).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, Topology
from fedgossip.topology.spectra import eigen

GAP = 1e-9
"""Maximum excess of the weights' slem over the least one."""

MOST_NODES, MOST_EDGES = 200, 1000


@dataclass(frozen=True)
class _Problem:
    ends: FloatArray
    """A, [n, m]."""
    positive: bool


def fastest(topology: Topology, positive: bool) -> FloatArray:
    """Return weights [m] of the edges with the least slem, to GAP; `positive`: none of them, nor of the own, negative.

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


def _own(problem: _Problem, w: FloatArray) -> FloatArray:
    return np.asarray(1.0 - np.abs(problem.ends) @ w)


def _height(problem: _Problem, x: FloatArray, t: float) -> float:
    """Return the objective, t s and the barriers; infinite outside."""
    w, s = x[:-1], float(x[-1])
    if problem.positive and (w.min() <= 0 or _own(problem, w).min() <= 0):
        return math.inf
    M = _mixed(problem, w)
    total = t * s
    for side in (s * np.eye(len(M)) - M, s * np.eye(len(M)) + M):
        try:
            total -= 2.0 * float(np.log(np.diag(np.linalg.cholesky(side))).sum())
        except np.linalg.LinAlgError:
            return math.inf
    if problem.positive:
        total -= float(np.log(w).sum() + np.log(_own(problem, w)).sum())
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
        both, own = np.abs(A), _own(problem, w)
        gradient[:-1] += -1.0 / w + both.T @ (1.0 / own)
        hessian[:-1, :-1] += np.diag(1.0 / w**2) + (both.T / own**2) @ both
    return gradient, hessian


def _newton(hessian: FloatArray, gradient: FloatArray) -> FloatArray:
    """Return Newton's step, the shortest where on this graph some weights can be moved at no cost."""
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
