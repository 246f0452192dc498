"""The spectrum of a mixing: all eigenvalues if possible, else both ends, else None.

In this order: a closed form of the construction (`eigen`); twins, which leave a small matrix; dense solvers; short
Lanczos; factors of W - s I, whose signs prove the result; long Lanczos.  Unresolved values are marked.

Twins have equal rows of W except in their own two columns, and W_ij = W_ji.  A class of s twins has s - 1 own
eigenvectors, with eigenvalue (own weight - weight of each other).  The rest is the quotient, one row per class: two for
a star and K_ab, four for two cliques.

Source: Godsil and Royle, Algebraic Graph Theory, Springer 2001, section 9.3 (equitable partitions).

**Ends proven by signs.**  Lanczos resolves a gap g in about 3 / sqrt(g) steps, too many for long thin graphs (trees,
grids, chains of clusters); but for these W - s I has factors L D L' with few entries.  By Sylvester's law of inertia
the number of eigenvalues of W below s equals the number of negative signs in D.  Therefore

    1. inverse iteration finds a vector v orthogonal to the ones vector; its 1 - v'Wv / v'v is at least the true 1 - l_2
    2. the signs slightly below prove that only the mean's eigenvalue is closer to 1, which bounds the value on both
       sides
    3. the signs below the smallest value of Lanczos prove that no eigenvalue is lower

On a tree this is the Sturm count, O(n).  Not used for expanders: a bound computed beforehand excludes their dense
factors, and Lanczos resolves them.

Source: Parlett, The Symmetric Eigenvalue Problem, SIAM 1998, sections 3.3 and 4.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base import seeds
from fedgossip.topology.graphs.graph import FloatArray, IntArray
from fedgossip.topology.spectra import eigen
from fedgossip.topology.spectra.eigen import Ends, start
from fedgossip.topology.weights.mixing_matrix import Mixing

EXPANDS = 0.01  # minimum gap for which Lanczos is fast and factors are dense
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The spectrum of a mixing, or its ends; unresolved values are None.

    lambda2, lambda_n: second largest and smallest eigenvalue; None for a directed mixing.  eigenvalues: float64 [n],
    descending, the mean's first; of a directed mixing singular values, the eigenvalues' sizes if `normal`.  modes:
    eigenvalues of a directed normal mixing, complex128 [n - 1], without the mean's.  None for large graphs without a
    closed form.  rate: |l_2|, or None.  residual: error bound of the ends.  certified: (lower, upper), proven bounds of
    the gap.
    """

    n: int
    lambda2: float | None
    lambda_n: float | None
    slem: float | None
    spectral_gap: float | None
    algebraic_connectivity: float | None
    eigenvalues: FloatArray | None = field(repr=False)
    method: str
    residual: float
    resolved: bool
    normal: bool = True
    rate: float | None = None
    modes: npt.NDArray[np.complex128] | None = field(default=None, repr=False)
    certified: tuple[float, float] | None = None


def spectrum(mixing: Mixing) -> Spectrum:
    """Return slem, gap and, if possible, all eigenvalues of `mixing`.

    The distance to the mean shrinks at least by the gap per round: ||X_t - mean|| <= (1 - gap)^t ||X_0 - mean||.  Zero
    for a disconnected graph.  Any size with a closed form, twins or cheap factors; else dense to 3000 nodes and Lanczos
    beyond, which returns resolved=False rather than a wrong number.  If only columns or rows sum to one, slem is |l_2|,
    as rate; no eigenvalues.

    Source: Xiao and Boyd, Fast linear iterations for distributed averaging, Systems & Control Letters 53 (2004).
    """
    if mixing.n == 1:
        return Spectrum(1, None, None, 0.0, 1.0, None, np.ones(1), "closed form", 0.0, True, rate=0.0)
    if mixing.generator is not None:
        return _circulant(mixing)
    if (deficits := _compute_by_formula(mixing)) is not None:
        return _from_deficits(mixing, deficits, "closed form")
    if mixing.stochastic != "both":
        return _unbalanced(mixing)
    if mixing.n <= eigen.DENSE_LIMIT:
        return _dense(mixing) if mixing.symmetric else _dense_directed(mixing)
    return _large(mixing) if mixing.symmetric else _lanczos_directed(mixing)


# --- spectra ----------------------------------------------------------------------------------------------------


def _circulant(mixing: Mixing) -> Spectrum:
    assert mixing.generator is not None
    offsets, weights = mixing.generator
    method = "fft" if offsets.size * mixing.n > eigen.TABLE_LIMIT else "closed form"
    deficits, imaginary = eigen.circulant_deficits(mixing.n, offsets, weights)
    if not mixing.symmetric:
        sizes = np.hypot(1.0 - deficits, imaginary)
        slem = float(sizes[1:].max())
        ordered = np.concatenate([[1.0], np.sort(sizes[1:])[::-1]])
        modes = (1.0 - deficits + 1j * imaginary)[1:]
        return Spectrum(
            mixing.n, None, None, slem, 1.0 - slem, None, ordered, method, 0.0, True, rate=slem, modes=modes
        )
    return _from_deficits(mixing, deficits, method)


def _compute_by_formula(mixing: Mixing) -> FloatArray | None:
    """Return 1 - l_k [n], the mean's 0 first, if a formula of the Laplacian applies."""
    if mixing.topology.laplacian is None or mixing.stochastic != "both":
        return None
    others = mixing.values[mixing.ids != mixing.receivers]
    if others.size != 2 * mixing.topology.edge_count or float(others.max() - others.min()) > 1e-15:
        return None
    return np.asarray(float(others[0]) * mixing.topology.laplacian())


def _from_deficits(mixing: Mixing, deficits: FloatArray, method: str) -> Spectrum:
    low, high = float(deficits[1:].min()), float(deficits[1:].max())
    gap = min(low, 2.0 - high)  # from the deficits: 1 - (1 - 1e-11) would keep five digits
    ordered = np.concatenate([[1.0], np.sort(1.0 - deficits[1:])[::-1]])
    slem = max(abs(1.0 - low), abs(1.0 - high))
    connectivity = _connectivity(mixing, low)
    return Spectrum(mixing.n, 1.0 - low, 1.0 - high, slem, gap, connectivity, ordered, method, 0.0, True, rate=slem)


def _dense(mixing: Mixing) -> Spectrum:
    # W - J moves only the mean's eigenvalue, from 1 to 0: no other can be mistaken for it
    with eigen.one_thread():
        values = np.linalg.eigvalsh(mixing.matrix() - 1.0 / mixing.n)
    values = np.delete(values, np.argmin(np.abs(values)))[::-1]
    second, last = float(values[0]), float(values[-1])
    slem = max(abs(second), abs(last))
    rounding = mixing.n * _EPSILON
    gap = 1.0 - slem if 1.0 - slem > rounding else 0.0
    ordered = np.concatenate([[1.0], values])
    connectivity = _connectivity(mixing, 1.0 - second)
    return Spectrum(mixing.n, second, last, slem, gap, connectivity, ordered, "dense", rounding, True, rate=slem)


def _dense_directed(mixing: Mixing) -> Spectrum:
    W = mixing.matrix()
    with eigen.one_thread():
        sizes = np.linalg.svd(W - 1.0 / mixing.n, compute_uv=False)[:-1]
    normal = bool(np.abs(W @ W.T - W.T @ W).max() < 1e-12)
    slem = float(sizes[0])
    ordered = np.concatenate([[1.0], sizes])
    gap, rounding = max(0.0, 1.0 - slem), mixing.n * _EPSILON
    modes = _modes(W - 1.0 / mixing.n) if normal or mixing.n <= eigen.LIMIT else None
    rate = slem if normal else None if modes is None else min(slem, float(np.abs(modes).max()))
    return Spectrum(
        mixing.n, None, None, slem, gap, None, ordered, "dense", rounding, True, normal, rate, modes if normal else None
    )


def _modes(deviation: FloatArray) -> npt.NDArray[np.complex128]:
    """Return the eigenvalues of W - J except the one that J moved to 0, [n - 1]."""
    with eigen.one_thread():
        values = np.linalg.eigvals(deviation)
    return np.asarray(np.delete(values, np.argmin(np.abs(values))), np.complex128)


def _unbalanced(mixing: Mixing) -> Spectrum:
    if mixing.n > eigen.DENSE_LIMIT:
        return dataclasses.replace(_without_numbers(mixing, "dense", 0.0), normal=False)
    with eigen.one_thread():
        sizes = np.sort(np.abs(np.linalg.eigvals(mixing.matrix())))
    slem, rounding = min(1.0, float(sizes[-2])), mixing.n * _EPSILON
    gap = 1.0 - slem if 1.0 - slem > rounding else 0.0
    return Spectrum(mixing.n, None, None, slem, gap, None, None, "dense", rounding, True, normal=False, rate=slem)


def _large(mixing: Mixing) -> Spectrum:
    W = mixing.sparse()
    if (found := reduced(W, eigen.DENSE_LIMIT)) is not None:
        return _from_twins(mixing, found)
    ends = _lanczos(W, eigen.LANCZOS_SHORT)
    thin = not ends.resolved or min(1.0 - ends.high, 1.0 + ends.low) < EXPANDS
    if thin and (proven := proven_ends(W, ends.low)) is not None:
        return _from_proven(mixing, proven)
    if ends.residual >= eigen.LANCZOS_TOLERANCE:
        ends = _lanczos(W, eigen.LANCZOS_STEPS)
    if not ends.resolved:
        return _unresolved(mixing, ends)
    slem = max(abs(ends.low), abs(ends.high))
    connectivity = _connectivity(mixing, 1.0 - ends.high)
    return Spectrum(
        mixing.n, ends.high, ends.low, slem, 1.0 - slem, connectivity, None, "lanczos", ends.residual, True, rate=slem
    )


def _lanczos(W: Any, steps: int) -> eigen.Ends:
    return eigen.lanczos_ends(W.dot, W.shape[0], W.nnz, lambda low, high: min(1.0 - high, 1.0 + low), steps)


def _from_twins(mixing: Mixing, found: Reduced) -> Spectrum:
    roots = np.sqrt(found.sizes / mixing.n)
    with eigen.one_thread():
        outer = np.linalg.eigvalsh(found.quotient - np.outer(roots, roots))  # as in _dense: the mean's becomes 0
    others = np.concatenate([found.inner, np.delete(outer, np.argmin(np.abs(outer)))])
    ordered = np.concatenate([[1.0], np.sort(others)[::-1]])
    second, last = float(ordered[1]), float(ordered[-1])
    slem, rounding = max(abs(second), abs(last)), max(len(found.sizes), 10) * _EPSILON
    gap = 1.0 - slem if 1.0 - slem > rounding else 0.0
    connectivity = _connectivity(mixing, 1.0 - second)
    return Spectrum(mixing.n, second, last, slem, gap, connectivity, ordered, "twins", rounding, True, rate=slem)


def _from_proven(mixing: Mixing, proven: Proven) -> Spectrum:
    low, high = proven.ends.low, proven.ends.high
    gap = min(proven.upper, 1.0 + low)
    connectivity = _connectivity(mixing, proven.upper)
    slem, certified = max(abs(low), abs(high)), (min(proven.lower, 1.0 + low - proven.ends.residual), gap)
    return Spectrum(
        *(mixing.n, high, low, slem, gap, connectivity, None, "factors", proven.upper - proven.lower, True),
        rate=slem,
        certified=certified,
    )


def _lanczos_directed(mixing: Mixing) -> Spectrum:
    W = mixing.sparse()
    transposed = W.T.tocsr()
    ends = eigen.lanczos_ends(
        lambda x: np.asarray(transposed @ (W @ x)), mixing.n, 2 * W.nnz, lambda _, high: 1.0 - high
    )
    if not ends.resolved:
        return _unresolved(mixing, ends)
    slem = math.sqrt(max(0.0, ends.high))
    return Spectrum(mixing.n, None, None, slem, 1.0 - slem, None, None, "lanczos", ends.residual, True, normal=False)


def _unresolved(mixing: Mixing, ends: eigen.Ends) -> Spectrum:
    return _without_numbers(mixing, "lanczos", ends.residual)


def _without_numbers(mixing: Mixing, method: str, residual: float) -> Spectrum:
    nothing = dict.fromkeys(("lambda2", "lambda_n", "slem", "spectral_gap", "algebraic_connectivity", "eigenvalues"))
    return Spectrum(mixing.n, **nothing, method=method, residual=residual, resolved=False, normal=mixing.symmetric)


def _connectivity(mixing: Mixing, deficit: float) -> float | None:
    """Return mu_2: from W = I - a L if all edges have the same weight; else from the Laplacian."""
    others = mixing.values[mixing.ids != mixing.receivers] if mixing.turned is None else mixing.turned[1][1:]
    if mixing.topology.directed or not others.size:
        return 0.0 if not others.size else None
    if others.max() - others.min() < 1e-15 and others[0] > 0:
        return deficit / float(others[0])
    ends = eigen.laplacian_ends(mixing.topology)
    return ends.low if ends.resolved else None


MOST_WEIGHTS = 12  # distinct weights: each costs a pass over all nodes; with more, one pass over all edges is cheaper
NEAR = 1e-12  # rows whose sums against random vectors are this near are equal: another row's differ by 1e-9 or so


@dataclass(frozen=True)
class Reduced:
    """The eigenvalues within classes [n - classes], and the symmetric quotient with the remaining ones."""

    inner: FloatArray
    quotient: FloatArray
    sizes: IntArray


def reduced(W: Any, largest: int) -> Reduced | None:
    """Return the symmetric sparse W [n, n] without its twins; None if more than `largest` classes remain."""
    n = W.shape[0]
    labels = _classes(W)
    classes = int(labels.max()) + 1
    if classes > largest:
        return None
    sizes = np.bincount(labels, minlength=classes)
    first = np.unique(labels, return_index=True)[1]
    from scipy.sparse import csr_array

    member = csr_array((np.ones(n), (np.arange(n), labels)), shape=(n, classes))
    between = np.asarray((W[first] @ member).todense())  # weight of one node of a class to each class
    own = W.diagonal()[first]
    # within its class a node gives itself its own weight, and the rest equally to its s - 1 twins
    each = np.where(sizes > 1, (between[np.arange(classes), np.arange(classes)] - own) / np.maximum(1, sizes - 1), 0.0)
    roots = np.sqrt(sizes.astype(np.float64))
    quotient = between * (roots[:, None] / roots[None, :])
    return Reduced(np.repeat(own - each, sizes - 1), 0.5 * (quotient + quotient.T), sizes)


def _classes(W: Any) -> IntArray:
    """Return the class number of each node, int64 [n]."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n, own = W.shape[0], W.diagonal()
    probes = seeds.stream(0, "twins", n).random((n, 2))
    received = W @ probes - own[:, None] * probes
    weights = _few(W.data)
    if weights is None:
        pairs = [_joined(W, own, probes, received)]
    else:  # joined twins: u and v have the same other senders, so that a row and w times oneself are equal
        pairs = [_equal_rows(np.column_stack([received + weight * probes, own])) for weight in weights]
    pairs.append(_equal_rows(np.column_stack([received, own])))
    one, other = np.concatenate(pairs).T
    graph = csr_array((np.ones(one.size, np.int8), (one, other)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)


def _few(values: FloatArray) -> list[float] | None:
    """Return the distinct values; None for more than MOST_WEIGHTS."""
    found: list[float] = []
    while values.size:
        if len(found) == MOST_WEIGHTS:
            return None
        found.append(float(values[0]))
        values = values[np.abs(values - found[-1]) > NEAR]
    return found


def _joined(W: Any, own: FloatArray, probes: FloatArray, received: FloatArray) -> IntArray:
    """Return the pairs [k, 2] of joined twins, for any weights."""
    rows = np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
    there = (W.indices > rows) & (np.abs(own[rows] - own[W.indices]) < NEAR)
    u, v, weight = rows[there], W.indices[there], W.data[there][:, None]
    apart = (received[u] + weight * probes[u]) - (received[v] + weight * probes[v])
    alike = np.abs(apart).max(axis=1) < NEAR if len(u) else np.zeros(0, bool)
    return np.stack([u[alike], v[alike]], axis=1)


def _equal_rows(table: FloatArray) -> IntArray:
    """Return pairs [k, 2] of nodes with equal rows, in the first column's order."""
    order = np.argsort(table[:, 0], kind="stable")
    near = np.abs(np.diff(table[order], axis=0)).max(axis=1) < NEAR
    return np.stack([order[:-1][near], order[1:][near]], axis=1)


WORK_LIMIT = 2e11  # multiplications of factors in a banded order; the order in use needs far fewer
CERTIFIED = (1e-6, 1e-4, 1e-2)  # tried distances below the gap, relative to it; the first with usable factors
ROUNDING = 1e-13  # absolute: at smaller distances from the found value the signs are noise
SHIFT = 1e-8
LOWEST = (1e-6, 1e-4, 1e-2)  # tried distances below Lanczos's lowest value, until no eigenvalue is lower
PEELED = 60  # rounds of removing nodes with one neighbour, before bounding the cost


@dataclass(frozen=True)
class Proven:
    """Both ends, and proven bounds of the largest eigenvalue except the mean's: 1 - upper <= l_2 <= 1 - lower."""

    ends: Ends
    lower: float
    upper: float


def proven_ends(W: Any, lowest: float) -> Proven | None:
    """Return both ends of the symmetric doubly stochastic sparse W [n, n]; None if factors are too costly or fail.

    lowest: Lanczos' smallest value, an upper bound.
    """
    if banded_work(W) > WORK_LIMIT:
        return None
    deficit = _deficit(W)
    found = _nearest_to_zero(deficit)
    if found is None or found < 1e-14:
        return None
    lower = next((low for low in _lower_ones(found) if below(deficit, low) == 1), None)
    if lower is None:
        return None
    for margin in LOWEST:
        # the largest eigenvalue of I - W should be 1 - lowest: all n must be below it
        if below(deficit, 1.0 - lowest + margin) == W.shape[0]:
            return Proven(Ends(lowest, 1.0 - found, max(margin, found - lower), 0, True), lower, found)
    return None


def _lower_ones(found: float) -> list[float]:
    return [found - margin * found for margin in CERTIFIED if margin * found > ROUNDING]


def below(matrix: Any, shift: float) -> int | None:
    """Return the number of eigenvalues of a sparse symmetric matrix below `shift`; None if factors failed."""
    factors = _factors(matrix, shift)
    return None if factors is None else int((factors.U.diagonal() < 0).sum())


def banded_work(W: Any) -> float:
    """Return an upper bound of the multiplications to factor W in a banded order, after removing leaves."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    core = _without_leaves(W)
    if core.shape[0] < 2:
        return float(len(W.data))
    order = reverse_cuthill_mckee(core, symmetric_mode=True)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows = np.repeat(np.arange(core.shape[0]), np.diff(core.indptr))
    first = np.full(core.shape[0], len(order), np.int64)
    np.minimum.at(first, place[rows], place[core.indices])
    widths = np.maximum(0, np.arange(core.shape[0]) - first)
    return float(np.sum(widths.astype(np.float64) ** 2)) + len(W.data)


def _without_leaves(W: Any) -> Any:
    for _ in range(PEELED):
        degrees = np.diff(W.indptr) - (W.diagonal() != 0)
        kept = np.flatnonzero(degrees > 1)
        if kept.size == W.shape[0]:
            break
        W = W[kept][:, kept].tocsr()
        if not kept.size:
            break
    return W


def _deficit(W: Any) -> Any:
    """Return I - W with the diagonal as the sum of the other weights, not 1 - w_ii: nothing cancels."""
    from scipy.sparse import dia_array

    others = W - dia_array((W.diagonal()[None], [0]), shape=W.shape)
    given = np.asarray(others.sum(axis=1), np.float64)
    return (dia_array((given[None], [0]), shape=W.shape) - others).tocsc()


def _factors(matrix: Any, shift: float) -> Any:
    """Return LU of matrix - shift I with diagonal pivots; None if inaccurate."""
    from scipy.sparse import dia_array
    from scipy.sparse.linalg import splu

    n = matrix.shape[0]
    shifted = (matrix - dia_array((np.full((1, n), shift), [0]), shape=matrix.shape)).tocsc()
    try:
        factors = splu(shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    except (RuntimeError, MemoryError):  # an exact zero on the diagonal
        return None
    asked = start(n)
    left = shifted @ factors.solve(asked) - asked
    accurate = float(np.abs(left).max()) < 1e-6 * float(np.abs(asked).max())
    return factors if accurate and bool((factors.perm_r == factors.perm_c).all()) else None


def _nearest_to_zero(deficit: Any) -> float | None:
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n = deficit.shape[0]
    factors = _factors(deficit, -SHIFT)
    if factors is None:
        return None

    def inverse(x: FloatArray) -> FloatArray:
        solved = factors.solve(x - x.mean())
        return np.asarray(solved - solved.mean())

    try:
        operator = LinearOperator((n, n), matvec=inverse, dtype=np.float64)
        _, vectors = eigsh(operator, k=1, which="LA", v0=start(n), tol=1e-10, maxiter=50)
    except ArpackNoConvergence:
        return None
    vector = vectors[:, 0] - vectors[:, 0].mean()
    return float(vector @ (deficit @ vector)) / float(vector @ vector)
