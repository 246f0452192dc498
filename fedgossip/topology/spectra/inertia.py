"""Ends of the spectra of large sparse mixings, proven by the signs of factors.

Lanczos sees a gap g in about 3 / sqrt(g) steps, so long thin graphs (trees, grids, chains of clusters) are out of its
reach; they are also those whose W - s I has factors L D L' with few entries.  By Sylvester's law of inertia as many
eigenvalues of W lie below s as D has negative signs.  So

    1. inverse iteration finds a vector v orthogonal to the ones vector; its 1 - v'Wv / v'v is at least the true 1 - l_2
    2. the signs at a little less prove that only the mean's eigenvalue is nearer to 1: the value is proven between
    3. the signs below the smallest value of Lanczos prove that nothing is lower

On a tree the factors have no more entries than the tree: this is the Sturm count, O(n).  Never for expanders, which
have dense factors: their cost is bounded beforehand, and Lanczos is what resolves them.

Source: Parlett, The Symmetric Eigenvalue Problem, SIAM 1998, sections 3.3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.topology.graphs.graph import FloatArray
from fedgossip.topology.spectra.eigen import Ends, start

WORK_LIMIT = 2e11  # multiplications of factors in a banded order, which the order that is used stays far below
CERTIFIED = (1e-6, 1e-4, 1e-2)  # how far below a proven gap may lie, as a share of it; the first whose factors hold
ROUNDING = 1e-13  # absolute: nearer to what was found the signs are noise
SHIFT = 1e-8
LOWEST = (1e-6, 1e-4, 1e-2)  # how far below Lanczos's lowest value the signs are asked, until nothing is lower
PEELED = 60  # rounds in which nodes with one neighbour are taken off before the cost is bounded


@dataclass(frozen=True)
class Proven:
    """Both ends, and between what the largest eigenvalue but the mean's lies: 1 - upper <= l_2 <= 1 - lower."""

    ends: Ends
    lower: float
    upper: float


def proven_ends(W: Any, lowest: float) -> Proven | None:
    """Return both ends of the symmetric doubly stochastic W [n, n], sparse; None where factors are too dear or fail.

    lowest: the smallest value that Lanczos saw, which is at least the smallest eigenvalue.
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
        # 1 - W has its largest eigenvalue at 1 - lowest: none above, and all n are below
        if below(deficit, 1.0 - lowest + margin) == W.shape[0]:
            return Proven(Ends(lowest, 1.0 - found, max(margin, found - lower), 0, True), lower, found)
    return None


def _lower_ones(found: float) -> list[float]:
    return [found - margin * found for margin in CERTIFIED if margin * found > ROUNDING]


def below(matrix: Any, shift: float) -> int | None:
    """Return how many eigenvalues of a sparse symmetric matrix are less than `shift`; None where factors failed."""
    factors = _factors(matrix, shift)
    return None if factors is None else int((factors.U.diagonal() < 0).sum())


def banded_work(W: Any) -> float:
    """Return the multiplications that factors of W cost at most in a banded order, leaves taken off before."""
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
    """Return I - W with the diagonal as the sum of the others' weights, not as 1 - w_ii: nothing cancels."""
    from scipy.sparse import dia_array

    others = W - dia_array((W.diagonal()[None], [0]), shape=W.shape)
    given = np.asarray(others.sum(axis=1), np.float64)
    return (dia_array((given[None], [0]), shape=W.shape) - others).tocsc()


def _factors(matrix: Any, shift: float) -> Any:
    """Return LU of matrix - shift I with pivots on the diagonal alone; None where that was not accurate."""
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
    """Return v'(I - W)v / v'v of the smallest mode but the mean's, by inverse iteration."""
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
