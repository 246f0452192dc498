"""Vectors of a shard in transfer: cut into pieces, and assembled from them in any order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.keyed_rows import Keys, Rows, frozen_keys
from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.messages import PIECE_BYTES


def piece_length(kind: np.dtype[Any]) -> int:
    """Return the number of elements of every piece but the last."""
    return PIECE_BYTES // kind.itemsize


def pieces(vector: Vector) -> Iterator[tuple[int, Vector]]:
    """Yield (start, elements) of a frozen vector [n]; views of it, which never change."""
    most = piece_length(vector.dtype)
    for start in range(0, vector.size, most):
        yield start, vector[start : start + most]


KeyedPlace = tuple[int, int, int, int]
"""(rows in all, first row of the piece, its number of rows, elements)."""


def rows_in_piece(width: int, kind: np.dtype[np.floating]) -> int:
    """Return the number of rows of every piece but the last, of `width` elements and a key each."""
    return max(1, PIECE_BYTES // (4 + width * kind.itemsize))


def keyed_pieces(rows: Rows) -> Iterator[tuple[KeyedPlace, tuple[Keys, Vector]]]:
    """Yield (place, (keys, elements)) of some rows, at least one; views of them, which never change."""
    matrix = rows.matrix
    most = rows_in_piece(matrix.shape[1], rows.values.dtype)
    for start in range(0, len(rows.keys), most):
        keys, values = rows.keys[start : start + most], matrix[start : start + most].reshape(-1)
        yield (len(rows.keys), start, keys.size, values.size), (keys, frozen(values))


class Assembly:
    """A vector [length] in arrival.  Invariant: `_missing` are the starts of the missing pieces."""

    def __init__(self, length: int, kind: np.dtype[Any]) -> None:
        self.length, self.kind = length, kind
        self._missing: set[int] = set(range(0, length, piece_length(kind)))
        self._vector: Vector | None = None

    def expects(self, start: int, vectors: Sequence[Vector]) -> bool:
        """Return whether the vectors of a message are a piece of this one."""
        most = piece_length(self.kind)
        fits = _shapes(vectors) == [(self.kind, (min(most, self.length - start),))]
        return start % most == 0 and 0 <= start < self.length and fits

    def has(self, start: int) -> bool:
        """Return whether an expected piece was taken before."""
        return start not in self._missing

    def take(self, start: int, vectors: Sequence[Vector]) -> None:
        """Take a piece that is expected and new; a single piece is not copied."""
        (vector,) = vectors
        self._missing.remove(start)
        if vector.size == self.length:
            self._vector = vector
            return
        if self._vector is None:
            self._vector = empty(self.length, self.kind)
        self._vector[start : start + vector.size] = vector

    def give_back(self, start: int) -> None:
        """Undo the last `take`, of an invalid piece."""
        self._missing.add(start)
        if len(self._missing) == -(-self.length // piece_length(self.kind)):
            self._vector = None

    @property
    def whole(self) -> Vector | None:
        """The vector, frozen, where nothing is missing; else None."""
        return frozen(self._vector) if self._vector is not None and not self._missing else None


class RowAssembly:
    """Rows [of, width] with their keys in arrival.  Invariant: the received keys ascend from row to row.

    Memory is used for received pieces alone, whatever the announced number `of` is.
    """

    def __init__(self, of: int, width: int, kind: np.dtype[np.floating]) -> None:
        self.of, self.width, self.kind = of, width, kind
        self._most = rows_in_piece(width, kind)
        self._pieces: dict[int, tuple[Keys, Vector]] = {}
        self._here = 0

    def expects(self, start: int, vectors: Sequence[npt.NDArray[Any]]) -> bool:
        """Return whether the vectors of a message are a piece of this one, with keys in order with the others."""
        rows = min(self._most, self.of - start)
        shapes = [(np.dtype(np.uint32), (rows,)), (self.kind, (rows * self.width,))]
        if start % self._most or not 0 <= start < self.of or _shapes(vectors) != shapes:
            return False
        keys, before, after = vectors[0], self._pieces.get(start - self._most), self._pieces.get(start + self._most)
        follows = (before is None or before[0][-1] < keys[0]) and (after is None or keys[-1] < after[0][0])
        return follows and bool((keys[1:] > keys[:-1]).all())

    def has(self, start: int) -> bool:
        """Return whether an expected piece was taken before."""
        return start in self._pieces

    def take(self, start: int, vectors: Sequence[npt.NDArray[Any]]) -> None:
        """Take a piece that is expected and new."""
        self._pieces[start] = vectors[0], vectors[1]
        self._here += vectors[0].size

    @property
    def whole(self) -> Rows | None:
        """The rows, where nothing is missing; else None."""
        if self._here < self.of:
            return None
        parts = [self._pieces[start] for start in sorted(self._pieces)]
        keys = np.concatenate([keys for keys, _ in parts])
        return Rows(frozen_keys(keys), frozen(np.concatenate([values for _, values in parts])))


def _shapes(vectors: Sequence[npt.NDArray[Any]]) -> list[Any]:
    return [(vector.dtype, vector.shape) for vector in vectors]
