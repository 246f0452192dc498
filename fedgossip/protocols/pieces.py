"""Vectors of a shard on their way: cut into pieces, and put together again as these come, in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedgossip.messages import PIECE_BYTES
from fedgossip.vectors import Vector, empty, frozen


def piece_length(kind: np.dtype[np.floating]) -> int:
    """Elements of every piece but the last."""
    return PIECE_BYTES // kind.itemsize


def pieces(vector: Vector) -> Iterator[tuple[int, Vector]]:
    """Yield (start, elements) of a frozen vector [n]; views of it, which never change."""
    most = piece_length(vector.dtype)
    for start in range(0, vector.size, most):
        yield start, vector[start : start + most]


class Assembly:
    """A vector [length] as its pieces come.  Invariant: `_missing` are the starts of those that have not come."""

    def __init__(self, length: int, kind: np.dtype[np.floating]) -> None:
        self.length, self.kind = length, kind
        self._missing: set[int] = set(range(0, length, piece_length(kind)))
        self._vector: Vector | None = None

    def expects(self, start: int, vectors: Sequence[Vector]) -> bool:
        """Whether the vectors of a message are a piece of this one."""
        most = piece_length(self.kind)
        shapes = [(vector.dtype, vector.shape) for vector in vectors]
        fits = shapes == [(self.kind, (min(most, self.length - start),))]
        return start % most == 0 and 0 <= start < self.length and fits

    def has(self, start: int) -> bool:
        """Whether an expected piece has come before."""
        return start not in self._missing

    def take(self, start: int, vector: Vector) -> None:
        """Take a piece that is expected and new; one that is the whole is not copied."""
        self._missing.remove(start)
        if vector.size == self.length:
            self._vector = vector
            return
        if self._vector is None:
            self._vector = empty(self.length, self.kind)
        self._vector[start : start + vector.size] = vector

    @property
    def whole(self) -> Vector | None:
        """The vector, frozen, where nothing is missing."""
        return frozen(self._vector) if self._vector is not None and not self._missing else None
