"""Rows of different lengths, concatenated in one array: storage of lines of text, padded one batch at a time.

    values    h e l l o \\n t o \\n a l a s \\n        offsets   0 6 9 14
    buckets   4 8                                    rows 0 and 2 are of bucket 8, row 1 of bucket 4

A batch of one bucket's rows is as wide as the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError

Places = npt.NDArray[np.int64]

IGNORED = -100
"""Padding of labels: torch's cross entropy ignores these positions, and nothing counts them."""

LONGEST_BUCKET = 1 << 16
"""Maximum number of values of a row."""

MOST_BUCKETS = 64

USUAL_BUCKETS = (16, 32, 64, 128)
"""Default buckets of lines."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Whole numbers in m rows: row k is values[offsets[k] : offsets[k + 1]], at least one number.

    values: int32 [total].  offsets: int64 [m + 1].  buckets: ascending widths, none exceeded.  padding: the number
    after a row's end.  As an array it is int64 [m, last bucket]; `padded` is narrower.
    """

    values: npt.NDArray[np.int32]
    offsets: Places
    buckets: tuple[int, ...]
    padding: int

    def __post_init__(self) -> None:
        check_buckets(self.buckets)
        lengths = np.diff(self.offsets)
        if len(self.offsets) == 0 or self.offsets[0] != 0 or self.offsets[-1] != len(self.values):
            raise ConfigError("the offsets of rows do not divide their values", "They begin with 0 and end with all.")
        if len(lengths) and not 1 <= lengths.min() <= lengths.max() <= self.buckets[-1]:
            text = f"rows of {lengths.min()} to {lengths.max()} numbers, and the last bucket holds {self.buckets[-1]}"
            raise ConfigError(text, "Cut longer rows, and leave out empty ones.")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.buckets[-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int64)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.offsets.nbytes

    @property
    def lengths(self) -> Places:
        """int64 [m]."""
        return np.diff(self.offsets)

    @property
    def last(self) -> Places:
        """The last number of each row, int64 [m]."""
        return self.values[self.offsets[1:] - 1].astype(np.int64)

    @property
    def bucket(self) -> Places:
        """The index of each row's bucket, int64 [m]."""
        return np.searchsorted(np.array(self.buckets), self.lengths).astype(np.int64)

    def padding_share(self) -> float:
        """Return the share of padding in all positions, with every row once in a batch of its bucket."""
        places = int(np.array(self.buckets)[self.bucket].sum())
        return 1 - len(self.values) / places if places else 0.0

    def padded(self, rows: Places) -> npt.NDArray[np.int64]:
        """Return rows [k, w]; w is the bucket of the longest of them."""
        begin, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        longest = int(lengths.max(initial=1))
        return self._filled(begin, lengths, self.buckets[int(np.searchsorted(np.array(self.buckets), longest))])

    def __getitem__(self, rows: slice | Places) -> npt.NDArray[np.int64]:
        """Return rows [k, last bucket], like the equivalent padded array."""
        places = np.arange(len(self))[rows]
        return self._filled(self.offsets[places], self.offsets[places + 1] - self.offsets[places], self.buckets[-1])

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[:].astype(dtype or np.int64, copy=False)

    def _filled(self, begin: Places, lengths: Places, width: int) -> npt.NDArray[np.int64]:
        found = np.full((len(begin), width), self.padding, np.int64)
        found[np.arange(width) < lengths[:, None]] = self.values[_spans(begin, lengths)]
        return found

    def take(self, rows: Places) -> Ragged:
        """Return these rows, in that order."""
        begin, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        return replace(self, values=self.values[_spans(begin, lengths)], offsets=_offsets(lengths))

    def parts(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Return its content as arrays, for `from_parts`."""
        about = np.array([self.padding, *self.buckets], np.int64)
        return {name: self.values, f"{name}.offsets": self.offsets, f"{name}.about": about}


Rows = npt.NDArray[Any] | Ragged
"""Rows of examples, or of data per example: of one shape, or of different lengths."""


def from_rows(rows: Sequence[Sequence[int] | npt.NDArray[Any]], buckets: Sequence[int], padding: int) -> Ragged:
    """Return rows of numbers.  Raises ConfigError as `Ragged` does."""
    lengths = np.array([len(row) for row in rows], np.int64)
    values = np.concatenate([np.asarray(row, np.int32) for row in rows]) if len(rows) else np.empty(0, np.int32)
    return Ragged(values, _offsets(lengths), tuple(buckets), padding)


def from_parts(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> Rows:
    """Return the rows of this name from the arrays of `Ragged.parts`, or the plain array."""
    if f"{name}.offsets" not in arrays:
        return arrays[name]
    padding, *buckets = arrays[f"{name}.about"].tolist()
    return Ragged(arrays[name], arrays[f"{name}.offsets"], tuple(buckets), padding)


def parts_of(rows: Rows, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `from_parts` reads."""
    return rows.parts(name) if isinstance(rows, Ragged) else {name: rows}


def picked(rows: Rows, places: Places) -> Rows:
    """Return the rows at these places, in the same form."""
    return rows.take(places) if isinstance(rows, Ragged) else rows[places]


def batch(rows: Rows, places: Places) -> npt.NDArray[Any]:
    """Return the rows at these places as one array of minimal width."""
    return rows.padded(places) if isinstance(rows, Ragged) else rows[places]


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, all in the form of the first."""
    arrays = [part for part in parts if not isinstance(part, Ragged)]
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if not ragged:
        return np.concatenate(arrays)
    lengths = np.concatenate([part.lengths for part in ragged])
    return replace(ragged[0], values=np.concatenate([part.values for part in ragged]), offsets=_offsets(lengths))


def chunks(rows: Rows, size: int) -> Iterator[Places]:
    """Yield all indices, at most `size` at a time: in order, or one bucket after another, with fewer of wide ones."""
    if not isinstance(rows, Ragged):
        yield from np.array_split(np.arange(len(rows)), -(-len(rows) // size))
        return
    for place, width in enumerate(rows.buckets):
        found = np.flatnonzero(rows.bucket == place)
        if len(found):
            most = max(1, min(size, size * USUAL_BUCKETS[-1] // width))
            yield from np.array_split(found, -(-len(found) // most))


def check_buckets(buckets: Sequence[int]) -> None:
    """Raise ConfigError for no widths, too many, and a wrong order."""
    if not 1 <= len(buckets) <= MOST_BUCKETS:
        raise ConfigError(f"buckets are {len(buckets)}", f"Give 1 to {MOST_BUCKETS}: [16, 32, 64, 128].")
    if any(first >= second for first, second in pairwise(buckets)):
        raise ConfigError(f"buckets = {list(buckets)} do not ascend", f"Write {sorted(set(buckets))}.")
    if buckets[0] < 1 or buckets[-1] > LONGEST_BUCKET:
        text = f"buckets = {list(buckets)}: from {buckets[0]} to {buckets[-1]}"
        raise ConfigError(text, f"A bucket holds 1 to {LONGEST_BUCKET} characters.")


def _offsets(lengths: Places) -> Places:
    found: Places = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return found


def _spans(begin: Places, lengths: Places) -> Places:
    """Return the places of each span, one span after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    found: Places = np.arange(total) + np.repeat(begin - (ends - lengths), lengths)
    return found
