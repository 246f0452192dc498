"""The spectrum of a mixing: its eigenvalues where they can be had, else both ends, else no number.

In this order: a closed form that the construction carries (circulants, `laplacians`); indistinguishable nodes
(`twins`), which leave a small matrix; dense solvers; Lanczos, short; factors of W - s I, whose signs prove the result
(`inertia`); Lanczos, long.  Unresolved values are reported as such, not guessed.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.topology.graphs.graph import FloatArray
from fedgossip.topology.spectra import eigen, inertia, products, twins
from fedgossip.topology.weights.mixing import Mixing

EXPANDS = 0.01  # a gap from which on Lanczos is quick and factors are dense
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The spectrum of a mixing, or its ends; None for what was not resolved.

    lambda2, lambda_n: second largest and smallest eigenvalue; None for a directed mixing, whose eigenvalues are
    complex.  eigenvalues: float64 [n], descending, the first belongs to the mean; of a directed mixing the singular
    values, which are the sizes of the eigenvalues where `normal`.  modes: the eigenvalues of a directed normal mixing,
    complex128 [n - 1], the mean's left out.  None for large graphs without a closed form.
    rate: |l_2|; None for directed graphs where it is not slem and too large to find.
    residual: a bound on the error of the ends.  certified: (lower, upper), between which the gap is proven to lie.
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
    """Return slem, gap and, where they can be had, all eigenvalues of `mixing`.

    The distance to the mean shrinks at least by the gap per round: ||X_t - mean|| <= (1 - gap)^t ||X_0 - mean||. Zero
    for a disconnected graph.  Of any size where there is a closed form, or where twins or cheap factors help; else
    dense to 3000 nodes and Lanczos beyond, which returns "unresolved" (resolved=False, numbers None) rather than a
    wrong number.  Where only columns or only rows sum to one (push-sum), slem is |l_2|, as rate; no eigenvalues.

    Source: Xiao and Boyd, Fast linear iterations for distributed averaging, Systems & Control Letters 53 (2004).
    """
    if mixing.n == 1:
        return Spectrum(1, None, None, 0.0, 1.0, None, np.ones(1), "closed form", 0.0, True, rate=0.0)
    if mixing.generator is not None:
        return _circulant(mixing)
    if (deficits := _by_formula(mixing)) is not None:
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


def _by_formula(mixing: Mixing) -> FloatArray | None:
    """Return 1 - l_k [n], the mean's 0 first, where a formula of the Laplacian gives it."""
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
    # W - J moves the mean's eigenvalue from 1 to 0 and touches nothing else: the others cannot be mistaken for it
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
    modes = _modes(W - 1.0 / mixing.n) if normal or mixing.n <= products.LIMIT else None
    rate = slem if normal else None if modes is None else min(slem, float(np.abs(modes).max()))
    return Spectrum(
        mixing.n, None, None, slem, gap, None, ordered, "dense", rounding, True, normal, rate, modes if normal else None
    )


def _modes(deviation: FloatArray) -> npt.NDArray[np.complex128]:
    """Return the eigenvalues of W - J but the one that J moved to 0, [n - 1]."""
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
    if (found := twins.reduced(W, eigen.DENSE_LIMIT)) is not None:
        return _from_twins(mixing, found)
    ends = _lanczos(W, eigen.LANCZOS_SHORT)
    thin = not ends.resolved or min(1.0 - ends.high, 1.0 + ends.low) < EXPANDS
    if thin and (proven := inertia.proven_ends(W, ends.low)) is not None:
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


def _from_twins(mixing: Mixing, found: twins.Reduced) -> Spectrum:
    roots = np.sqrt(found.sizes / mixing.n)
    with eigen.one_thread():
        outer = np.linalg.eigvalsh(found.quotient - np.outer(roots, roots))  # as in _dense: the mean's goes to 0
    others = np.concatenate([found.inner, np.delete(outer, np.argmin(np.abs(outer)))])
    ordered = np.concatenate([[1.0], np.sort(others)[::-1]])
    second, last = float(ordered[1]), float(ordered[-1])
    slem, rounding = max(abs(second), abs(last)), max(len(found.sizes), 10) * _EPSILON
    gap = 1.0 - slem if 1.0 - slem > rounding else 0.0
    connectivity = _connectivity(mixing, 1.0 - second)
    return Spectrum(mixing.n, second, last, slem, gap, connectivity, ordered, "twins", rounding, True, rate=slem)


def _from_proven(mixing: Mixing, proven: inertia.Proven) -> Spectrum:
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
    """Return mu_2: off W's own deficit where all edges weigh the same, W = I - a L; else from the Laplacian."""
    others = mixing.values[mixing.ids != mixing.receivers] if mixing.turned is None else mixing.turned[1][1:]
    if mixing.topology.directed or not others.size:
        return 0.0 if not others.size else None
    if others.max() - others.min() < 1e-15 and others[0] > 0:
        return deficit / float(others[0])
    ends = eigen.laplacian_ends(mixing.topology)
    return ends.low if ends.resolved else None
