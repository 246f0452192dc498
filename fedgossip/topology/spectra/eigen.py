"""Eigenvalues of graphs and mixings, by formula or numerically; and products of mixings.

A value that did not converge is returned as unresolved: unconverged Lanczos overstates the gap of a ring of 10^4 nodes
70 times.

**By formula**: eigenvalues of Laplacians, ascending.  If all edges have the same weight, W = I - a L.  Computed as
squares of sines, so that nothing cancels near 0: a gap of 1e-11 has all its digits.

Source: Mohar, The Laplacian spectrum of graphs, in Graph Theory, Combinatorics, and Applications 2 (1991); lattices are
Cartesian products: their eigenvalues are all sums of one eigenvalue per factor.

**By products**: the remaining disagreement after rounds of mixing.  With P_t = W_t ... W_2 W_1 and J = 11'/n, per unit
of disagreement before the first round,

    worst(t)   = ||P_t - J||_2                    the largest remaining share of any disagreement
    typical(t) = ||P_t - J||_F / sqrt(n - 1)      the root mean square over all directions

If only columns sum to one (push-sum) Z_t = diag(P_t 1)^-1 P_t, of the estimates x / w, replaces P_t; if only rows do,
(I - J) P_t replaces P_t - J.

Eigenvalues give this for normal mixings; for others only the long-run rate: the de Bruijn graph of 16 nodes has only
the eigenvalues 1 and 0, and takes 4 rounds.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgossip.base import seeds
from fedgossip.topology.graphs.graph import FloatArray, IntArray, Topology
from fedgossip.topology.weights.mixing_matrix import Mixing

DENSE_LIMIT = 3000  # nodes; a dense symmetric solve of this size takes a few seconds
TABLE_LIMIT = 400_000_000  # offsets x nodes; beyond it the FFT, which is less precise near the value 1
LANCZOS_WORK = 1_500_000_000  # multiplications in all, a few seconds
LANCZOS_STEPS = 20_000
LANCZOS_SHORT = 300  # steps that resolve every expander; an unresolved graph may suit factors
LANCZOS_TOLERANCE = 1e-9

Apply = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Ends:
    """The lowest and highest eigenvalue orthogonal to the ones vector.

    residual: a bound on the error of either.
    """

    low: float
    high: float
    residual: float
    steps: int
    resolved: bool


# --- circulant --------------------------------------------------------------------------------------------------


def one_thread() -> contextlib.AbstractContextManager[object]:
    """Keep LAPACK to one thread: on a busy machine its spinning threads make 0.2 s of n = 1000 into 7 s."""
    from threadpoolctl import threadpool_limits

    limits: contextlib.AbstractContextManager[object] = threadpool_limits(1)
    return limits


def circulant_deficits(n: int, offsets: IntArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (1 - Re l_k, Im l_k) for k = 0..n-1, where l_k = 1 - sum_o w_o + sum_o w_o exp(2 pi i o k / n).

    As sums of 2 w sin^2(pi o k / n): a gap of 1e-11 has all its digits.  `offsets` int64 [k] in 0..n-1, `weights` [k];
    returns two float64 [n].
    """
    if offsets.size * n > TABLE_LIMIT:
        return _deficits_by_fft(n, offsets, weights)
    ids = np.arange(n // 2 + 1, dtype=np.int64)  # the others are the conjugates of these
    folded = np.arange(n, dtype=np.int64)
    folded = np.minimum(folded, n - folded)  # sin(pi - x) computed near pi would lose the digits of x
    squares = 2 * np.sin(np.pi * folded / n) ** 2
    sines = np.sin(2 * np.pi * folded / n)
    sines[n // 2 + 1 :] *= -1.0
    sines[2 * folded == n] = 0.0
    real, imaginary = np.zeros(ids.size), np.zeros(ids.size)
    for offset, weight in zip(offsets.tolist(), weights.tolist(), strict=True):
        if offset:
            turns = (ids * offset) % n
            real += weight * squares[turns]
            imaginary += weight * sines[turns]
    mirrored = (n - 1) // 2
    return (
        np.concatenate([real, real[1 : mirrored + 1][::-1]]),
        np.concatenate([imaginary, -imaginary[1 : mirrored + 1][::-1]]),
    )


def _deficits_by_fft(n: int, offsets: IntArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    generator = np.zeros(n)
    generator[offsets] = weights
    values = np.fft.fft(generator)
    return generator.sum() - values.real, -values.imag


# --- Lanczos ----------------------------------------------------------------------------------------------------


def lanczos_ends(
    apply: Apply, n: int, work: int, reach: Callable[[float, float], float], most: int = LANCZOS_STEPS
) -> Ends:
    """Return both ends of the symmetric operator `apply`, without the ones vector.

    work: multiplications per step; with `most` it bounds the number of steps.  reach(low, high): the relative gap g of
    the ends; unresolved if sqrt(g) steps <= 3, or the error bound exceeds 1 % of g.
    """
    limit = int(min(most, max(60, LANCZOS_WORK // (work + 5 * n)), n - 1))
    vector = start(n)
    previous, beta = np.zeros(n), 0.0
    alphas: list[float] = []
    betas: list[float] = []
    check = 20
    for step in range(1, limit + 1):
        image = apply(vector)
        image -= np.multiply(previous, beta, out=previous)
        alpha = _dot(vector, image)
        image -= np.multiply(vector, alpha, out=previous)
        image -= image.mean()
        beta = math.sqrt(_dot(image, image))
        alphas.append(alpha)
        betas.append(beta)
        done = beta < 1e-13 or step == limit
        if step >= check or done:
            ends = _ritz_ends(np.array(alphas), np.array(betas), reach)
            if done or ends.residual < LANCZOS_TOLERANCE:
                return ends
            check = step + max(10, step // 8)
        image /= beta
        previous, vector = vector, image
    raise AssertionError("the last step returns")


def _dot(left: FloatArray, right: FloatArray) -> float:
    # not left @ right: BLAS starts threads for this length, which costs more than the sum on busy cores
    return float(np.einsum("i,i->", left, right))


def start(n: int) -> FloatArray:
    """Return a reproducible random vector [n] of length 1, orthogonal to the ones vector."""
    vector = seeds.stream(0, "lanczos", n).standard_normal(n)
    vector -= vector.mean()
    return np.asarray(vector / np.linalg.norm(vector))


def _ritz_ends(alphas: FloatArray, betas: FloatArray, reach: Callable[[float, float], float]) -> Ends:
    steps = len(alphas)
    low, low_error = _ritz(alphas, betas, 0)
    high, high_error = _ritz(alphas, betas, steps - 1)
    error, gap = max(low_error, high_error), reach(low, high)
    closed = float(betas[-1]) < 1e-13  # the Krylov space is exhausted: the ends are exact
    resolved = closed or (gap > 0 and gap**0.5 * steps > 3 and error <= 0.01 * gap)
    return Ends(low, high, error, steps, resolved)


def _ritz(alphas: FloatArray, betas: FloatArray, index: int) -> tuple[float, float]:
    """Return the Ritz value of one end and its error bound, min(r, r^2 / distance to the next)."""
    from scipy.linalg import eigh_tridiagonal

    steps = len(alphas)
    if steps == 1:
        return float(alphas[0]), float(betas[0])
    span = (0, 1) if index == 0 else (steps - 2, steps - 1)
    values, vectors = eigh_tridiagonal(alphas, betas[:-1], select="i", select_range=span)
    own = 0 if index == 0 else 1
    residual = abs(float(betas[-1] * vectors[-1, own]))
    apart = float(values[1] - values[0])
    return float(values[own]), min(residual, residual**2 / apart) if apart > 0 else residual


def quadrature(
    apply: Apply, traces: FloatArray, function: Callable[[FloatArray], FloatArray], steps: int, seed: int = 0
) -> tuple[float, float]:
    """Return an estimate of trace f(W) on the complement of the ones vector and half its 95 % interval.

    Stochastic Lanczos quadrature with random signs, reproducible.  `apply` takes [n] or [n, probes].  `traces` [3]: of
    W^0, W, W^2, exact; only f's part beyond a parabola is estimated.

    Source: Ubaru, Chen and Saad, Fast estimation of tr(f(A)), SIAM J. Matrix Anal. Appl. 38 (2017).
    """
    from scipy.linalg import eigh_tridiagonal

    n = round(traces[0]) + 1
    probes = int(np.clip(2_000_000 // n, 4, 32))
    vectors = seeds.stream(seed, "trace", n).choice([-1.0, 1.0], (n, probes))
    vectors -= vectors.mean(axis=0)
    lengths = np.linalg.norm(vectors, axis=0)
    vectors /= lengths
    previous, beta = np.zeros_like(vectors), np.zeros(probes)
    alphas, betas = np.zeros((steps, probes)), np.zeros((steps, probes))
    for step in range(steps):
        images = apply(vectors) - beta * previous
        alphas[step] = np.einsum("ij,ij->j", vectors, images)
        images -= alphas[step] * vectors
        images -= images.mean(axis=0)
        beta = betas[step] = np.sqrt(np.einsum("ij,ij->j", images, images))
        previous, vectors = vectors, images / np.maximum(beta, 1e-300)
    pairs = [eigh_tridiagonal(alphas[:, probe], betas[:-1, probe]) for probe in range(probes)]
    values, shares = np.array([value for value, _ in pairs]), np.array([ritz[0] ** 2 for _, ritz in pairs])
    parabola = np.polyfit(values.ravel(), function(values.ravel()), 2, w=np.sqrt(shares.ravel()))
    rest = lengths**2 * np.einsum("ij,ij->i", shares, function(values) - np.polyval(parabola, values))
    return float(np.dot(parabola[::-1], traces)) + float(rest.mean()), interval(rest)


def interval(estimates: FloatArray) -> float:
    """Return half the width of the 95 % interval of the mean of independent estimates, by Student's t."""
    from scipy.special import stdtrit

    count = estimates.size
    return float(stdtrit(count - 1, 0.975)) * float(estimates.std(ddof=1)) / float(np.sqrt(count))


# --- the Laplacian ----------------------------------------------------------------------------------------------


def laplacian_values(topology: Topology) -> FloatArray:
    """Return all eigenvalues of an undirected graph's Laplacian, ascending [n], densely without a formula."""
    if topology.laplacian is not None:
        return topology.laplacian()
    with one_thread():
        return np.asarray(np.linalg.eigvalsh(_dense_laplacian(topology)), np.float64)


def laplacian_ends(topology: Topology) -> Ends:
    """Return mu_2 (the algebraic connectivity) and mu_n of an undirected graph's Laplacian; n >= 2."""
    if topology.circulant is not None:
        one_way = np.array(topology.circulant, np.int64)
        offsets = np.unique(np.concatenate([one_way, -one_way]) % topology.n)
        values = circulant_deficits(topology.n, offsets, np.ones(offsets.size))[0][1:]
        return Ends(float(values.min()), float(values.max()), 0.0, 0, True)
    if topology.laplacian is not None:
        values = topology.laplacian()
        return Ends(float(values[1]), float(values[-1]), 0.0, 0, True)
    if topology.n <= DENSE_LIMIT:
        with one_thread():
            dense = np.linalg.eigvalsh(_dense_laplacian(topology))
        rounding = float(topology.n * np.finfo(float).eps * max(1.0, dense[-1]))
        return Ends(max(0.0, float(dense[1])), float(dense[-1]), rounding, 0, True)
    degrees, adjacency = topology.degrees(), topology.adjacency

    def apply(x: FloatArray) -> FloatArray:
        return np.asarray(degrees * x - adjacency @ x)

    return lanczos_ends(apply, topology.n, 2 * len(topology.edges), lambda low, high: low / high if high > 0 else 0.0)


def _dense_laplacian(topology: Topology) -> FloatArray:
    matrix = np.diag(topology.degrees().astype(np.float64))
    u, v = topology.edges.T
    matrix[u, v] = matrix[v, u] = -1.0
    return matrix


def path(n: int) -> FloatArray:
    """Return 4 sin^2(pi k / 2n), k = 0..n-1."""
    return np.asarray(4.0 * np.sin(np.pi * np.arange(n) / (2 * n)) ** 2)


def ring(n: int) -> FloatArray:
    """Return 4 sin^2(pi k / n), k = 0..n-1; a ring of 2 is one edge."""
    return path(2) if n == 2 else np.sort(4.0 * np.sin(np.pi * np.arange(n) / n) ** 2)


def star(n: int) -> FloatArray:
    """Return 0, 1 (n - 2 times) and n."""
    return np.asarray([0.0, *np.ones(n - 2), float(n)])


def hypercube(dimensions: int) -> FloatArray:
    """Return 2 j for j = 0..dimensions, each as often as ids have j ones."""
    found = np.zeros(1)
    for _ in range(dimensions):
        found = np.concatenate([found, found + 2.0])
    return np.sort(found)


def torus(rows: int, columns: int) -> FloatArray:
    """Return the sums of the eigenvalues of two rings."""
    return _sums(ring(rows), ring(columns))


def grid(rows: int, columns: int) -> FloatArray:
    """Return the sums of the eigenvalues of two paths."""
    return _sums(path(rows), path(columns))


def _sums(one: FloatArray, other: FloatArray) -> FloatArray:
    return np.sort(np.add.outer(one, other).ravel())


LIMIT = 300  # nodes; beyond it products, which are dense, and their norms cost too much
STEPS = 32  # rounds that are tried one by one; beyond them powers are found by doubling
MOST_DOUBLINGS = 40
EXACT = 1e-12  # a product this near to J is J,
DROP = 1e-6  # and the previous round's was still this far from J: else it has only shrunk

Share = Callable[[int], float]
"""t -> remaining share after t rounds, t >= 1."""


@dataclass(frozen=True)
class Reached:
    """Number of rounds until a share remains: in the worst direction, and typically; None for never."""

    worst: int | None
    typical: int | None


def worst(product: FloatArray, stochastic: str) -> float:
    """Return the remaining share in the worst direction after a product [n, n] of mixings, all `stochastic`."""
    rest = _subtract_limit(product, stochastic)
    return math.sqrt(max(0.0, float(np.linalg.eigvalsh(rest @ rest.T)[-1])))


def typical(product: FloatArray, stochastic: str) -> float:
    """Return the typical remaining share."""
    return float(np.linalg.norm(_subtract_limit(product, stochastic))) / math.sqrt(max(1, len(product) - 1))


def _subtract_limit(product: FloatArray, stochastic: str) -> FloatArray:
    if stochastic == "columns":
        product = product / product.sum(axis=1, keepdims=True)
    return product - (product.mean(axis=0) if stochastic == "rows" else 1.0 / len(product))


class Powers:
    """The powers of one mixing of at most LIMIT nodes."""

    def __init__(self, mixing: Mixing) -> None:
        self._stochastic = mixing.stochastic
        self._squares = [mixing.matrix()]  # W, W^2, W^4, ...

    def reached(self, factor: float) -> Reached:
        """Return the rounds until `factor` remains.  Beyond STEPS rounds shares are assumed to fall monotonically."""
        with one_thread():
            return Reached(self._first(worst, factor), self._first(typical, factor))

    def _first(self, share_of: Callable[[FloatArray, str], float], factor: float) -> int | None:
        if share_of(self._begin[-1], self._stochastic) <= factor:
            return next(t for t, power in enumerate(self._begin, 1) if share_of(power, self._stochastic) <= factor)
        bit, before = 0, math.inf
        while (share := share_of(self._square(bit), self._stochastic)) > factor:
            if share > (1 - 1e-9) * before or bit == MOST_DOUBLINGS:
                return None
            bit, before = bit + 1, share if bit else math.inf
        product, rounds = np.eye(len(self._squares[0])), 0
        for lower in range(bit, -1, -1):
            further = self._square(lower) @ product
            if share_of(further, self._stochastic) > factor:
                product, rounds = further, rounds + (1 << lower)
        return rounds + 1

    @cached_property
    def _begin(self) -> list[FloatArray]:
        return list(itertools.accumulate(itertools.repeat(self._squares[0], STEPS), np.matmul))

    def _square(self, bit: int) -> FloatArray:
        while bit >= len(self._squares):
            self._squares.append(self._squares[-1] @ self._squares[-1])
        return self._squares[bit]

    @cached_property
    def exact_after(self) -> int | None:
        """Number of rounds to the exact mean at all nodes; None for never, or for more than 64."""
        n = len(self._squares[0])
        x = np.random.Generator(np.random.PCG64(0)).standard_normal((n, 2))
        held, weight = x, np.ones((n, 1))
        before = math.inf
        for round in range(1, min(n, 64) + 1):
            held, weight = self._squares[0] @ held, self._squares[0] @ weight
            mean = held.mean(axis=0) if self._stochastic == "rows" else x.mean(axis=0)
            away = float(np.abs(held / weight - mean).max())
            if away < EXACT < DROP < before:
                return round
            before = away
        return None


def first(share: Share, factor: float) -> int | None:
    """Return the first t with share(t) <= factor, for a decreasing share; None for more than 2^40 rounds."""
    high = 1
    while share(high) > factor:
        high *= 2
        if high > 1 << MOST_DOUBLINGS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if share(middle) <= factor else (middle, high)
    return high


def typical_of(sizes: FloatArray) -> Share:
    """Return the typical remaining share of a normal mixing, from its |eigenvalues| [n - 1], without the mean's."""
    return lambda rounds: math.sqrt(float(np.mean(sizes ** (2 * rounds)))) if sizes.size else 0.0
