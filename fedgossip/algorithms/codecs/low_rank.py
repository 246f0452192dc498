"""Gradients of low rank: two factors of each matrix are sent and summed (PowerSGD).

    P = mean M_i Q          first all-reduce; M_i: a worker's gradient plus its error memory
    P <- P, orthonormal     the same at every worker
    Q = mean M_i' P         second all-reduce
    mean M is P Q'; the next round begins with this Q, orthonormal ("warm start")

Source: Vogels, Karimireddy and Jaggi, PowerSGD, NeurIPS 2019.  Tensors of one dimension are sent whole, and so is a
matrix if its factors are not smaller.  A tensor of more dimensions is a matrix of its first by all others.  Equal
results on all workers require a fixed order of sums: no BLAS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.codecs.base import VectorLayout
from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen

LOW_RANK = "powersgd"
RANK_MAX = 64


def low_rank_of(name: str) -> int | None:
    """Return the rank in "powersgd:RANK"; None for another name.  Raises ConfigError for a missing or invalid rank."""
    kind, _, given = name.partition(":")
    if kind != LOW_RANK:
        return None
    if not (given.isascii() and given.isdigit() and 1 <= int(given) <= RANK_MAX):
        text = f"{name}: {LOW_RANK} takes the rank of what is sent of each matrix, from 1 to {RANK_MAX}"
        raise ConfigError(text, f'Write "{LOW_RANK}:2".')
    return int(given)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Positions of a tensor in the gradient, and of its factors in the first and the second message."""

    place: slice
    rows: int
    columns: int
    first: slice
    second: slice


@dataclass(frozen=True)
class LowRank:
    """The low-rank encoding of vectors of a layout."""

    rank: int
    layout: VectorLayout
    seed: int

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """The tensors that are sent as factors."""
        found, first, second = list[Matrix](), 0, 0
        for one in self.layout.segments:
            size, rows = one.stop - one.start, int(one.shape[0]) if one.shape else 1
            columns = size // max(1, rows)
            if len(one.shape) > 1 and self.rank * (rows + columns) < size:
                left, right = self.rank * rows, self.rank * columns
                places = slice(first, first + left), slice(second, second + right)
                found.append(Matrix(slice(one.start, one.stop), rows, columns, *places))
                first, second = first + left, second + right
        return tuple(found)

    @cached_property
    def whole(self) -> npt.NDArray[np.bool_]:
        """Mask of the uncoded elements, [d]."""
        mask = np.ones(self.layout.length, np.bool_)
        for one in self.matrices:
            mask[one.place] = False
        return mask

    @cached_property
    def left_length(self) -> int:
        """Number of elements of all P."""
        return self.rank * sum(one.rows for one in self.matrices)

    @cached_property
    def first_length(self) -> int:
        """Number of elements of the first sum: all P, and the uncoded ones."""
        return self.left_length + int(self.whole.sum())

    @cached_property
    def second_length(self) -> int:
        """Number of elements of the second sum: all Q."""
        return self.rank * sum(one.columns for one in self.matrices)

    def start(self) -> Vector:
        """Return the initial Q, [second_length]; the same at all workers."""
        drawn = seeds.stream(self.seed, "low rank").standard_normal(self.second_length)
        return self.upright(drawn.astype(self.layout.dtype))

    def first(self, vector: Vector, right: Vector) -> Vector:
        """Return a worker's term of the first sum, [first_length], from its vector [d] and the last Q."""
        out = np.empty(self.first_length, self.layout.dtype)
        for one in self.matrices:
            matrix, factor = vector[one.place].reshape(one.rows, one.columns), self._factor(right[one.second])
            out[one.first].reshape(self.rank, one.rows)[:] = [(matrix * column).sum(axis=1) for column in factor]
        out[self.left_length :] = vector[self.whole]
        return frozen(out)

    def left(self, first: Vector) -> Vector:
        """Return all P from the first sum, orthonormal, [left_length]."""
        parts = [_orthonormal(self._factor(first[one.first])).reshape(-1) for one in self.matrices]
        return frozen(np.concatenate(parts))

    def second(self, vector: Vector, left: Vector) -> Vector:
        """Return a worker's term of the second sum, [second_length]."""
        out = np.empty(self.second_length, self.layout.dtype)
        for one in self.matrices:
            matrix, factor = vector[one.place].reshape(one.rows, one.columns), self._factor(left[one.first])
            out[one.second].reshape(self.rank, one.columns)[:] = [
                (matrix * column[:, None]).sum(axis=0) for column in factor
            ]
        return frozen(out)

    def restored(self, left: Vector, whole: Vector, second: Vector) -> Vector:
        """Return the vector [d] from all P and Q and the uncoded elements; frozen."""
        out = np.empty(self.layout.length, self.layout.dtype)
        out[self.whole] = whole
        for one in self.matrices:
            total = np.zeros((one.rows, one.columns), self.layout.dtype)
            for p, q in zip(self._factor(left[one.first]), self._factor(second[one.second]), strict=True):
                total += np.multiply.outer(p, q)
            out[one.place] = total.reshape(-1)
        return frozen(out)

    def upright(self, second: Vector) -> Vector:
        """Return all Q with orthonormal columns: only their span matters."""
        parts = [_orthonormal(self._factor(second[one.second])).reshape(-1) for one in self.matrices]
        return frozen(np.concatenate(parts))

    def _factor(self, part: Vector) -> Vector:
        return part.reshape(self.rank, -1)


def _orthonormal(columns: Vector) -> Vector:
    """Return vectors [rank, n] made orthonormal by modified Gram-Schmidt; a zero vector stays 0."""
    out = columns.copy()
    for k in range(len(out)):
        length = np.sqrt(_dot(out[k], out[k]))
        if length > 0:
            out[k] /= length
        for later in range(k + 1, len(out)):
            out[later] -= out[k] * _dot(out[k], out[later])
    return out


def _dot(one: Vector, other: Vector) -> np.floating:
    """Return the inner product in the elements' order: the same bits on every processor."""
    product: Vector = np.multiply(one, other, dtype=np.float64)
    found: np.floating = one.dtype.type(np.add.accumulate(product)[-1])
    return found
