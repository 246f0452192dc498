"""Boosted trees, grown only from sums: histograms of gradients over bins of columns, summed over all records.

    a tree       g = dloss/dF,  h = d2loss/dF2  at F, the margins so far
    a level      of each open node, column and bin: sums of 1, g, h
    a split      the bin of the largest gain  1/2 [ GL^2/(HL + l2) + GR^2/(HR + l2) - G^2/(H + l2) ]
    a leaf       F <- F - learning_rate G / (H + l2), rounded to the largest change by `suppress` records

g and h are whole multiples of 2^-30, so sums over sites, and the trees, equal those over all records to the bit.  Empty
cells have a separate bin, which a split sends to the side with the larger gain.  Several classes: one tree per class in
each round.

Source: Chen and Guestrin, XGBoost, KDD 2016, sections 2.1, 2.2 and 3.4.  Only numpy.

trees.json: `column` < `below` leads to `yes`, else to `no`, an empty cell to `missing`; both sides of the comparison
are (x - mean) / deviation in float32.  The `value` of the leaves, added to `base`, is the margin: log odds of the
second class, one number per class, or the outcome in deviations from its mean.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

SHIFT = 30
"""Fractional bits of a gradient."""
UNIT = float(1 << SHIFT)

LOGISTIC, SOFTMAX, SQUARES = "logistic", "softmax", "squares"


class TreesDesign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The outcome, columns and settings of the trees; the same at all sites."""

    loss: str
    """logistic (two classes), softmax (more), squares (a number)."""
    outcome: str
    """The label column."""
    classes: tuple[str, ...] = ()
    trees: int
    depth: int
    learning_rate: float
    l2: float
    min_child_weight: float
    """Minimum sum of h on each side of a split."""
    min_records: int
    """Minimum number of records on each side of a split."""
    bin_records: int = 0
    """Minimum number of a node's records per bin of a column; a column has at least two bins."""
    columns: tuple[str, ...]
    places: tuple[int, ...]
    """Index of each column in the features that the sites agreed on."""
    cuts: tuple[tuple[float, ...], ...]
    """Cut points of each column, in its unit, ascending: a bin is between two of them."""
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    """Divisor of each column, in float32, applied before comparing."""
    missing: bool = False
    """Whether a cell may be empty."""
    constant: tuple[str, ...] = ()
    """Omitted columns: those with one value at every site."""
    records: int
    """Number of records of the sites when they agreed on the columns."""
    sites: int = 0
    """Maximum number of sites in a sum; 0: unknown, and records and h are never packed into one number."""
    suppress: int
    """Sums over fewer records are counted as small; published numbers are rounded to the effect of this number of
    records.
    """
    agreed: str = ""
    """The hash of the agreed statistics."""
    forest_columns: int | msgspec.UnsetType = msgspec.UNSET
    """Of a random forest: the number of columns that each tree may split by; unset: boosted trees."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def splits_by(self, tree: int, output: int) -> npt.NDArray[np.bool_]:
        """Return the columns that a tree may split by, [columns]: of a forest a draw from the design."""
        found = np.ones(len(self.columns), bool)
        if self.forest_columns:
            draw = stream(int(self.digest[:15], 16), "columns of a tree", tree, output)
            found[draw.permutation(len(found))[self.forest_columns :]] = False
        return found

    @property
    def outputs(self) -> int:
        """Return the number of trees per round, one for each output."""
        return len(self.classes) if self.loss == SOFTMAX else 1


def scaled_cuts(cuts: Sequence[float], mean: float, deviation: float) -> npt.NDArray[np.float32]:
    """Return cuts on the scale of scaled cells, with the same rounding."""
    return ((np.array(cuts, np.float64) - mean) / deviation).astype(np.float32)


@dataclass(frozen=True)
class TreeBins:
    """The bins of all columns, concatenated."""

    design: TreesDesign

    @cached_property
    def sizes(self) -> Whole:
        """Number of bins of each column, including the last one for empty cells."""
        return np.array([len(cuts) + 1 + self.design.missing for cuts in self.design.cuts], np.int64)

    @cached_property
    def starts(self) -> Whole:
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    @property
    def count(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def column(self) -> Whole:
        """The column of each bin."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def place(self) -> Whole:
        """Index of each bin within its column."""
        return np.arange(self.count) - self.starts[self.column]

    def reporting_bins(self, records: int) -> Whole:
        """Return for each bin the bin that reports it at a node with `records` records: the last of a merged group,
        after which a split is possible.
        """
        found = self.place
        if not self.design.bin_records:
            return found
        values = (self.sizes - self.design.missing)[self.column]
        together = -(-values // max(2, records // self.design.bin_records))
        last = np.minimum((found // together + 1) * together, values) - 1
        return np.where(found < values, last, found)

    @cached_property
    def splits(self) -> npt.NDArray[np.bool_]:
        """Whether a bin is followed by another of its column, so that a split after it is possible."""
        last = 1 + self.design.missing
        there = np.ones(self.count, bool)
        for size, start in zip(self.sizes.tolist(), self.starts.tolist(), strict=True):
            there[start + size - last : start + size] = False
        return there

    def find_bins(self, x: npt.NDArray[np.float32]) -> Whole:
        """Return the bin of each cell within its column, [m, columns]; x [m, features], scaled."""
        d = self.design
        found = np.empty((len(x), len(d.columns)), np.int64)
        for k, (place, cuts) in enumerate(zip(d.places, d.cuts, strict=True)):
            cells = x[:, place]
            edges = scaled_cuts(cuts, d.mean[k], d.deviation[k])
            found[:, k] = np.searchsorted(edges, cells, side="right")
            found[np.isnan(cells), k] = self.sizes[k] - 1
        return found


# --- one tree ---------------------------------------------------------------------------------------------------------

UNUSED, OPEN, LEAF, SPLIT = 0, 1, 2, 3
_BINS, _CODES = 256, 1 << 20
MOST_BINS, MOST_COLUMNS = 256, 1000


@dataclass(frozen=True, eq=False)
class TreeNodes:
    """The nodes of one tree, in order of creation, two for each split.

    `info`: kind and records; `value`: of a leaf, or an open node as one, or a split's gain.
    """

    info: Whole
    value: Floats

    @property
    def code(self) -> Whole:
        return self.info % _CODES

    @property
    def records(self) -> Whole:
        return self.info // _CODES

    @property
    def is_split(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.code >= SPLIT)

    @property
    def open(self) -> Whole:
        return np.flatnonzero(self.code == OPEN)

    @property
    def size(self) -> int:
        return int(np.count_nonzero(self.info))

    @property
    def column(self) -> Whole:
        return np.maximum(self.code - SPLIT, 0) // (2 * _BINS)

    @property
    def bin(self) -> Whole:
        """The last bin of the left side."""
        return np.maximum(self.code - SPLIT, 0) // 2 % _BINS

    @property
    def missing_left(self) -> npt.NDArray[np.bool_]:
        return np.asarray(np.maximum(self.code - SPLIT, 0) % 2 == 1)

    @property
    def left(self) -> Whole:
        """The left child of each split; the right one follows it."""
        return 2 * np.cumsum(self.is_split) - 1

    def reached(self, bins: Whole, sizes: Whole, depth: int, *, missing: bool) -> Whole:
        """Return the node of each record, [m]; bins [m, columns]."""
        split, left, column, last, default = self.is_split, self.left, self.column, self.bin, self.missing_left
        rows, at = np.arange(len(bins)), np.zeros(len(bins), np.int64)
        for _ in range(depth):
            cell = bins[rows, column[at]]
            goes_left = cell <= last[at]
            if missing:
                goes_left = np.where(cell == sizes[column[at]] - 1, default[at], goes_left)
            at = np.where(split[at], left[at] + ~goes_left, at)
        return at


def info_of(code: int, records: int) -> int:
    return records * _CODES + code


def split_code(column: int, bin: int, *, missing_left: bool) -> int:
    return SPLIT + (column * _BINS + bin) * 2 + missing_left


# --- a level ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundSplit:
    """The best split of a node; sums (records, g, h) of both sides."""

    column: int
    bin: int
    missing_left: bool
    gain: float
    left: Whole
    right: Whole


def leaf_value(design: TreesDesign, sums: Whole) -> float:
    """Return the value that a leaf adds to the margin of its records.

    Rounded to a power of two so that `suppress` records move it by at most one step (g is at most 1).  Otherwise the
    leaves of nearby cuts would differ by the few records between them.
    """
    _, g, h = (float(one) for one in sums)
    least = h / UNIT + design.l2
    if not least > 0:
        return 0.0
    return rounded(-design.learning_rate * (g / UNIT) / least, design.learning_rate * design.suppress / least)


def rounded(value: float, least: float) -> float:
    """Return the nearest multiple of the smallest power of two above `least`."""
    step = math.ldexp(1.0, math.frexp(least)[1])
    return round(value / step) * step


def best_split(
    bins: TreeBins, sums: Whole, reporting: Whole, by: npt.NDArray[np.bool_] | None = None
) -> FoundSplit | None:
    """Return the split with the largest gain, from sums [bins, 3] over a node's records, or None; `reporting` [bins]:
    `TreeBins.reporting_bins`; `by` [columns]: the permitted ones, None: all.
    """
    d = bins.design
    total = sums[: int(bins.sizes[0])].sum(axis=0)
    running = np.cumsum(sums, axis=0)
    before = (running - sums)[bins.starts]
    left = running - before[bins.column]
    empty = sums[bins.starts + bins.sizes - 1][bins.column] if d.missing else None
    sides = [left] if empty is None else [left, left + empty]
    gains = np.stack([_gains(d, side, total - side) for side in sides])
    gains[:, ~bins.splits | (reporting != bins.place)] = 0.0
    if by is not None:
        gains[:, ~by[bins.column]] = 0.0
    best = int(np.argmax(gains))
    way, at = divmod(best, bins.count)
    if not gains[way, at] > 0:
        return None
    column, side = int(bins.column[at]), sides[way][at]
    return FoundSplit(column, at - int(bins.starts[column]), bool(way), float(gains[way, at]), side, total - side)


def _gains(d: TreesDesign, left: Whole, right: Whole) -> Floats:
    """Return the gain of each split; 0 if a side is too small."""
    fits = np.minimum(left[:, 0], right[:, 0]) >= d.min_records
    fits &= np.minimum(left[:, 2], right[:, 2]) >= max(1.0, d.min_child_weight * UNIT)
    whole = (left[0] + right[0])[None]
    gain = 0.5 * (_score(d, left) + _score(d, right) - _score(d, whole))
    return np.where(fits, gain, 0.0)


def _score(d: TreesDesign, sums: Whole) -> Floats:
    g, h = sums[:, 1] / UNIT, sums[:, 2] / UNIT
    return np.asarray(g * g / np.maximum(h + d.l2, 1 / UNIT))


# --- losses -----------------------------------------------------------------------------------------------------------


def base_margins(design: TreesDesign, records: int, totals: Sequence[float]) -> Floats:
    """Return the margins before the first tree, [outputs]: log odds of the shares, or the mean; from sums over records.

    The mean is in quarters of a deviation, 0 unless sites are missing: a finer one would undo the rounding of the
    agreed statistics.
    """
    if design.loss == SQUARES:
        return np.array([round(4 * totals[0] / records) / 4])
    shares = np.maximum(totals, 0.5) / records  # a class without records: far down, not at minus infinity
    return np.log(shares[1:] / shares[0]) if design.loss == LOGISTIC else np.log(shares)


def gradients(design: TreesDesign, margins: Floats, y: Floats) -> tuple[Whole, Whole, Floats]:
    """Return g and h, [m, outputs], in units of 2^-30, and the loss, [m]; y [m] numbers, or class indices."""
    if design.loss == SQUARES:
        off = margins[:, 0] - y
        return round_to_whole(off[:, None]), np.full((len(y), 1), 1 << SHIFT, np.int64), off * off / 2
    if design.loss == LOGISTIC:
        eta = margins[:, 0]
        share = (1 / (1 + np.exp(-np.clip(eta, -700, 700))))[:, None]
        loss = np.logaddexp(0, eta) - y * eta
        return round_to_whole(share - y[:, None]), round_to_whole(share * (1 - share)), loss
    shifted = margins - margins.max(axis=1, keepdims=True)
    parts = np.exp(shifted)
    whole = parts.sum(axis=1, keepdims=True)
    share, is_it = parts / whole, np.arange(design.outputs) == y[:, None]
    loss = np.log(whole[:, 0]) - shifted[is_it]
    return round_to_whole(share - is_it), round_to_whole(share * (1 - share)), loss


def round_to_whole(values: Floats, shift: int = SHIFT) -> Whole:
    return np.rint(np.ldexp(values, shift)).astype(np.int64)


FORMAT = 1
YES, NO = "yes", "no"


class TreeNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A split, or a leaf if it has a value."""

    records: int | None = None
    """Records of all sites in this node; only in files of the previous release, because differences disclosed few
    records.
    """
    value: float | None = None
    column: str = ""
    below: float | None = None
    """Cut point in the column's unit."""
    missing: str = ""
    """yes or no, if cells may be empty."""
    gain: float | None = None
    """Only in files of the previous release, as `records`."""
    yes: TreeNode | None = None
    no: TreeNode | None = None


class BoostedTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    of: str = ""
    """The class of its margin, if there are more than two classes."""
    root: TreeNode


class TreesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of trees.json."""

    format: int = FORMAT
    loss: str
    outcome: str
    classes: tuple[str, ...]
    base: tuple[float, ...]
    """Margins before the first tree."""
    columns: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    trees: tuple[BoostedTree, ...]


def encoded_trees(file: TreesFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(file), indent=1)


def decoded_trees(text: bytes, where: str) -> TreesFile:
    """Return the trees of a text.  Raises ConfigError for a text without trees, or trees with missing nodes."""
    advice = "Copy the folder again."
    try:
        file = from_json(msgspec.json.Decoder(TreesFile), text)
    except UnreadableError as error:
        raise ConfigError(f"{where}: cannot be read: {error}", advice) from None
    if file.format != FORMAT:
        advice = "Use the release of fedgossip that wrote it."
        raise ConfigError(f"{where}: format {file.format}; this release knows {FORMAT}", advice)
    outputs = len(file.base)
    if not outputs or len(file.trees) % outputs or {len(file.columns)} != {len(file.mean), len(file.deviation)}:
        raise ConfigError(f"{where}: parts that do not fit each other", advice)
    if not all(_sound(tree.root, frozenset(file.columns)) for tree in file.trees):
        raise ConfigError(f"{where}: a node that is neither a split nor a leaf", advice)
    return file


def _sound(node: TreeNode, columns: frozenset[str]) -> bool:
    if node.value is not None:
        return node.yes is None and node.no is None
    if node.yes is None or node.no is None or node.below is None or node.column not in columns:
        return False
    return _sound(node.yes, columns) and _sound(node.no, columns)


class TreeMargins:
    """Computes the margins of scaled examples by the trees."""

    def __init__(self, file: TreesFile, features: Sequence[str]) -> None:
        """`features`: names of an example's numbers.  Raises ConfigError for a missing column."""
        known = {name: place for place, name in enumerate(features)}
        if lacking := [name for name in file.columns if name not in known]:
            text = f"trees of a column {lacking[0]!r} that the model does not have"
            raise ConfigError(text, "Copy the folder again.")
        self.file = file
        self._column = {name: k for k, name in enumerate(file.columns)}
        self._place = {name: known[name] for name in file.columns}

    def __call__(self, x: npt.NDArray[np.float32]) -> Floats:
        """Return margins [m, outputs] of examples [m, features]."""
        outputs = len(self.file.base)
        found = np.tile(np.array(self.file.base), (len(x), 1))
        for number, tree in enumerate(self.file.trees):
            self._add(tree.root, x, np.arange(len(x)), found[:, number % outputs])
        return found

    def _add(self, node: TreeNode, x: npt.NDArray[np.float32], rows: npt.NDArray[Any], to: Floats) -> None:
        if not len(rows):
            return
        if node.value is not None:
            to[rows] += node.value
            return
        assert node.yes and node.no and node.below is not None, "checked when it was read"
        column = self._column[node.column]
        (edge,) = scaled_cuts([node.below], self.file.mean[column], self.file.deviation[column])
        cells = x[rows, self._place[node.column]]
        goes = np.where(np.isnan(cells), node.missing == YES, cells < edge)
        self._add(node.yes, x, rows[goes], to)
        self._add(node.no, x, rows[~goes], to)
