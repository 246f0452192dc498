"""A trained model that is a table: the rows that were touched, and all others as functions of the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.keyed_rows import KeyedTable, Rows, frozen_keys


@dataclass(frozen=True)
class TrainedTable:
    """`table` gives the untouched rows; `touched` are the others."""

    table: KeyedTable
    touched: Rows

    def rows(self, keys: npt.ArrayLike) -> npt.NDArray[np.floating]:
        """Return the rows of these numbers, in their order, [k, width].  Raises ConfigError for one that is none."""
        wanted = np.asarray(keys).reshape(-1)
        if wanted.size and not (np.issubdtype(wanted.dtype, np.integer) and wanted.min() >= 0):
            raise ConfigError(f"rows {wanted[:3]} of a table", "Rows are whole numbers from 0 on.")
        if wanted.size and wanted.max() >= self.table.rows:
            text = f"row {wanted.max()} of a table of {self.table.rows}"
            raise ConfigError(text, f"The last is {self.table.rows - 1}.")
        there, place = np.unique(wanted, return_inverse=True)
        found = np.array(self.table.first(frozen_keys(there))).reshape(-1, self.table.width)
        at = np.searchsorted(self.touched.keys, there)
        known = np.minimum(at, max(len(self.touched.keys) - 1, 0))
        here = self.touched.keys[known] == there if self.touched.keys.size else np.zeros(there.size, bool)
        found[here] = self.touched.matrix[known[here]]
        return found[place.reshape(-1)]

    @property
    def matrix(self) -> npt.NDArray[np.floating]:
        """The touched rows [k, width]."""
        return np.ascontiguousarray(self.touched.values).reshape(-1, self.table.width)
