"""Descents on the rows of a table: a step changes the rows of its gradient, and their optimiser state.

Momentum and adam's moments date from the row's last gradient ("lazy"); adam's t counts the table's steps.  Any
elementwise descent can be used.

    invariant   a table never changes: a step makes another one that shares all untouched rows
    memory      touched rows, in blocks by first touch, and 8 bytes of index for each
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.descent.base import Descent
from fedgossip.algorithms.federated.sums import ExactSum
from fedgossip.algorithms.gossip.base import restored, saved
from fedgossip.base.keyed_rows import KeyedTable, Keys, Rows, united
from fedgossip.base.vectors import Vector, empty, frozen

BLOCK_ELEMENTS = 2048
"""Number of elements of a block, or of a row if larger: a step copies the blocks that it touches."""

Places = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """The touched rows of a table: the model's ("x"), and the descent's arrays for them by name."""

    table: KeyedTable
    keys: Keys
    places: Places
    """The position of each key."""
    blocks: Mapping[str, tuple[Vector, ...]]
    numbers: Mapping[str, int | float | str]
    """Scalars of the descent's state."""

    @property
    def x(self) -> RowTable:
        """Values read by workers: for a table the requested rows."""
        return self

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return self.table.dtype

    @property
    def touched_bytes(self) -> int:
        """Bytes of the touched rows of the model."""
        return len(self.keys) * self.table.width * self.dtype.itemsize

    @property
    def held_bytes(self) -> int:
        """Bytes of all arrays: index, blocks, and the descent's state."""
        blocks = sum(block.nbytes for held in self.blocks.values() for block in held)
        return self.keys.nbytes + self.places.nbytes + blocks

    @property
    def _per_block(self) -> int:
        return max(1, BLOCK_ELEMENTS // self.table.width)

    def rows(self, keys: Keys) -> Vector:
        """Return rows of the model [k * width]; untouched rows are computed, not stored."""
        there, places = self._find(keys)
        return self._fill_known("x", self.table.first(keys), there, places)

    def _find(self, keys: Keys) -> tuple[npt.NDArray[np.bool_], Places]:
        """Return which of the keys are stored, [k], and their positions."""
        at = np.minimum(np.searchsorted(self.keys, keys), max(len(self.keys) - 1, 0))
        there = self.keys[at] == keys if self.keys.size else np.zeros(len(keys), bool)
        return there, self.places[at[there]] if self.keys.size else np.empty(0, np.uint32)

    def _fill_known(self, name: str, fresh: Vector, there: npt.NDArray[np.bool_], places: Places) -> Vector:
        """Return rows: stored values where `there`, `fresh` ones elsewhere."""
        out = empty(fresh.size, fresh.dtype)
        out[...] = fresh
        out.reshape(-1, self.table.width)[there] = self._lying(name, places)
        return frozen(out)

    def touched(self, name: str = "x") -> Vector:
        """Return the rows of all stored keys, of the model or of a descent's array, [k * width]."""
        return frozen(self._lying(name, self.places).reshape(-1))

    def _lying(self, name: str, places: Places) -> npt.NDArray[np.floating]:
        width = self.table.width
        known = np.empty((len(places), width), self.dtype)
        for block, of, rows in self._split_by_block(places):
            known[of] = self.blocks[name][block].reshape(-1, width)[rows]
        return known

    def _split_by_block(self, places: Places) -> Iterator[tuple[int, Places, Places]]:
        if not len(places):
            return
        order = np.argsort(places, kind="stable")
        blocks = places[order] // self._per_block
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        for of in np.split(order, cuts):
            block = int(places[of[0]]) // self._per_block
            yield block, of, places[of] - np.uint32(block * self._per_block)

    def with_rows(self, keys: Keys, arrays: Mapping[str, Vector], numbers: Mapping[str, Any]) -> RowTable:
        """Return the table with these rows added or replaced."""
        there, places = self._find(keys)
        count, new = len(self.keys), keys[~there]
        wheres = np.empty(len(keys), np.uint32)
        wheres[there], wheres[~there] = places, np.arange(count, count + len(new))
        at = np.searchsorted(self.keys, new)
        blocks = {name: self._written(self.blocks[name], wheres, array) for name, array in arrays.items()}
        return RowTable(
            self.table, np.insert(self.keys, at, new), np.insert(self.places, at, wheres[~there]), blocks, numbers
        )

    def _written(self, blocks: tuple[Vector, ...], places: Places, array: Vector) -> tuple[Vector, ...]:
        width = self.table.width
        held, matrix = list(blocks), array.reshape(-1, width)
        for block, of, rows in self._split_by_block(places):
            while block >= len(held):
                held.append(np.zeros(self._per_block * width, array.dtype))
            copied = np.array(held[block])
            copied.reshape(-1, width)[rows] = matrix[of]
            held[block] = frozen(copied)
        return tuple(held)

    def older(self, count: int, blocks: Mapping[str, tuple[Vector, ...]]) -> RowTable:
        """Return this table at the time when `count` rows were touched, with the blocks of that time."""
        kept = self.places < count
        return replace(self, keys=self.keys[kept], places=self.places[kept], blocks=blocks)


class RowDescent:
    """A descent on a table.  `descent` is elementwise."""

    elementwise = True

    def __init__(self, descent: Descent[Any], table: KeyedTable) -> None:
        assert descent.elementwise, "one that goes by whole tensors has none in a row"
        self.descent, self.table = descent, table

    def start(self, x: object = None) -> RowTable:  # noqa: ARG002
        """Return the table without touched rows."""
        arrays, numbers = saved(self.descent.start(frozen(np.zeros(0, self.table.dtype))))
        nothing = np.empty(0, np.uint32)
        return RowTable(self.table, nothing, nothing, dict.fromkeys(arrays, ()), numbers)

    def step(self, table: RowTable, gradient: Rows, rate: float) -> RowTable:
        """Return the table after a step along the gradient of some rows."""
        keys = gradient.keys
        if not keys.size:
            return table
        fresh = self.descent.start(self.table.first(keys))
        there, places = table._find(keys)
        held = {name: table._fill_known(name, array, there, places) for name, array in saved(fresh)[0].items()}
        after = self.descent.step(restored(fresh, held, table.numbers), gradient.values, rate)
        return table.with_rows(keys, *saved(after))


class RowSum:
    """sum_k weight_k * rows_k, with zeros for missing rows; the same bits in any order."""

    def __init__(self) -> None:
        self._terms: list[tuple[float, Rows]] = []

    def add(self, weight: float, rows: Rows) -> None:
        self._terms.append((weight, rows))

    def mean(self, dtype: np.dtype[np.floating]) -> Rows | None:
        """Return the weighted mean of all rows present in any term; None without rows."""
        keys = united(*(rows.keys for _, rows in self._terms))
        if not keys.size:
            return None
        width = max(rows.matrix.shape[1] for _, rows in self._terms if rows.keys.size)
        total = ExactSum()
        for weight, rows in self._terms:
            whole = np.zeros((keys.size, width), dtype)
            whole[np.searchsorted(keys, rows.keys)] = rows.matrix
            total.add(weight, whole.reshape(-1))
        return Rows(keys, total.mean(dtype))
