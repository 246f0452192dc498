"""Two sums in one number: the number of records at a place, and their sum of h, where both fit.

A number of 64 bits contains the records above `bits` bits of h.  h of a record is between 0 and a quarter, so at most
2^28 in units of 2^-30; no site has `most` records or more, so no sum of h reaches the bits of the records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.learning.models.trees import SHIFT

Whole = npt.NDArray[np.int64]

H_BITS = SHIFT - 2
"""Bits of the largest h of a record, p (1 - p) = 1/4."""
ROOM = 62
"""Bits of a sum below its sign bit, with one spare."""


@dataclass(frozen=True)
class PackedCounts:
    """The bit layout of the numbers of one design."""

    bits: int
    most: int
    """Exclusive bound of the records of a site."""

    @property
    def bound(self) -> int:
        """Maximum number of a site."""
        return (self.most << self.bits) - 1

    def together(self, records: Whole, h: Whole) -> Whole:
        return (records << self.bits) + h

    def apart(self, numbers: Whole) -> tuple[Whole, Whole]:
        """Return the records and the h of packed sums."""
        return numbers >> self.bits, numbers & ((1 << self.bits) - 1)


def packed_counts(records: int, sites: int) -> PackedCounts | None:
    """Return the layout for `sites` with so many records together; None where both do not fit."""
    own, all_sites = records.bit_length(), (sites - 1).bit_length()
    bits = H_BITS + own + all_sites
    return PackedCounts(bits, 1 << own) if sites and bits + own + all_sites <= ROOM else None
