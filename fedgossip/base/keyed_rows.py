"""Rows of a sharded embedding table: ascending keys, and their values.

An untouched row is a function of (seed, row, column), counter-based: every participant computes the same bits.

Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014 (the mixing function).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base import seeds
from fedgossip.base.vectors import Vector, frozen

Keys = npt.NDArray[np.uint32]
"""Row numbers, strictly ascending, frozen, [k]."""

ROWS_MAX = 2**32 - 1
"""Maximum number of rows of a table: four bytes per key."""

_GOLDEN, _FIRST, _SECOND = (np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """The initial state of a matrix [rows, width]: uniform numbers of mean 0 and deviation `scale`; 0: zeros."""

    rows: int
    width: int = 1
    seed: int = 0
    scale: float = 0.0
    kind: str = "float32"

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return np.dtype(self.kind)

    def first(self, keys: Keys) -> Vector:
        """Return the initial values of these rows, [k * width]."""
        if not self.scale or not keys.size:
            return frozen(np.zeros(keys.size * self.width, self.dtype))
        places = keys.astype(np.uint64)[:, None] * np.uint64(self.width) + np.arange(self.width, dtype=np.uint64)
        drawn: Any = (places + np.uint64(1)) * _GOLDEN + np.uint64(seeds.integer(self.seed, "table"))
        drawn = (drawn ^ (drawn >> np.uint64(30))) * _FIRST
        drawn = (drawn ^ (drawn >> np.uint64(27))) * _SECOND
        drawn ^= drawn >> np.uint64(31)
        even = (drawn >> np.uint64(41)).astype(np.float64) * 2.0**-22 - 1  # 23 bits: exact in float32 too
        return frozen((even * (self.scale * 3**0.5)).reshape(-1).astype(self.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows of a table: `values` of the keys, concatenated, [k * width]."""

    keys: Keys
    values: Vector

    @property
    def matrix(self) -> npt.NDArray[np.floating]:
        """Return the values as [k, width]; [0, 1] without rows."""
        return self.values.reshape(len(self.keys), -1) if self.keys.size else self.values.reshape(0, 1)

    def only(self, kept: npt.NDArray[np.bool_]) -> Rows:
        """Return the rows selected by the mask [k]."""
        return self if kept.all() else Rows(frozen_keys(self.keys[kept]), frozen(self.matrix[kept].reshape(-1)))

    def select(self, keys: Keys) -> Rows:
        """Return the rows of `keys`, all of which must be present."""
        found = self.matrix[np.searchsorted(self.keys, keys)]
        return Rows(keys, frozen(found.reshape(-1)))


def frozen_keys(numbers: npt.NDArray[Any]) -> Keys:
    """Return ascending numbers of rows as keys."""
    keys = numbers.astype(np.uint32)
    keys.flags.writeable = False
    return keys


def no_rows(dtype: np.dtype[np.floating]) -> Rows:
    """Return the rows of an empty list of keys."""
    return Rows(frozen_keys(np.empty(0)), frozen(np.empty(0, dtype)))


def united(*lists: Keys) -> Keys:
    """Return the union of lists of keys."""
    return frozen_keys(np.unique(np.concatenate(lists)))


def digest_of(keys: Keys) -> str:
    """Return the digest of a list of keys, 16 hex digits."""
    return hashlib.sha256(np.ascontiguousarray(keys, "<u4").data).hexdigest()[:16]
