"""Eigenvalues of the Laplacians of graphs that have a formula, ascending.

Where all edges weigh the same, W = I - a L, and the spectrum of a mixing of a million nodes costs a sum.  Written as
squares of sines, so that nothing cancels near 0: a gap of 1e-11 has all its digits.

Source: Mohar, The Laplacian spectrum of graphs, in Graph Theory, Combinatorics, and Applications 2 (1991); the lattices
are Cartesian products: their eigenvalues are all sums of one of each factor.
"""

from __future__ import annotations

import numpy as np

from fedgossip.topology.graphs.graph import FloatArray


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
    """Return 2 j, as often as there are ids with j ones."""
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
