"""The whole numbers that sites sum to grow boosted trees: only their exact sum is visible.

    first round       records per class, or the sum of the outcomes, which give the first margins
    further rounds    of each open node of the trees in growth, and of each bin of each column: records, g, h;
                      records and h in one number if both fit

Sites receive the ensemble with its open nodes and return the sums there.  The coordinator's step is a function of both,
so all participants compute the same trees; an incomplete round is repeated.  The trees of a random forest all have the
gradients of the first margins, and each its own draw of columns (Ho, IEEE PAMI 20, 1998): no records are drawn, since
the sums of two trees would differ by those of few.

If both fit, 64 bits hold the records above `bits` bits of h: h is at most 2^28 in units of 2^-30, and no site has
`most` records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.federated.base import Aggregate, Vectors
from fedgossip.algorithms.federated.fedavg import ServerModel
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.learning.models.trees import (
    LEAF,
    NO,
    OPEN,
    SHIFT,
    SPLIT,
    SQUARES,
    UNIT,
    YES,
    BoostedTree,
    Floats,
    TreeBins,
    TreeNode,
    TreeNodes,
    TreesDesign,
    TreesFile,
    base_margins,
    best_split,
    gradients,
    info_of,
    leaf_value,
    round_to_whole,
    split_code,
)
from fedgossip.secure.encoding import ExactSums, as_vector, long_numbers, long_words, words_in

BITS = 64
RECORDS = 1 << 22
"""Maximum number of records of a site."""
LARGEST = 1 << 52
"""Maximum magnitude of a site's number: float64 represents every whole number up to here."""
LOSS_SHIFT = 20
"""Number of fractional bits of a site's loss."""
SLOTS = 1024
"""Maximum number of open nodes in one sum."""

_HEADER = 8
_BEGUN, _DONE, _SITES, _RECORDS, _CELLS, _SMALL, _ENDED, _LEAST = range(_HEADER)

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
    """Return the layout for `sites` with `records` in total; None if both do not fit."""
    own, all_sites = records.bit_length(), (sites - 1).bit_length()
    bits = H_BITS + own + all_sites
    return PackedCounts(bits, 1 << own) if sites and bits + own + all_sites <= ROOM else None


@dataclass(frozen=True, eq=False)
class SiteTable:
    """A site's records: the bin of each cell [m, columns], outcomes y [m] in the form of `gradients`."""

    bins: Whole
    y: Floats


@dataclass(frozen=True)
class TreesLayout:
    """The position of each number in a vector."""

    design: TreesDesign

    @cached_property
    def bins(self) -> TreeBins:
        return TreeBins(self.design)

    @cached_property
    def packed(self) -> PackedCounts | None:
        """The layout of records and h in one number; None if they are separate."""
        return None if self.design.loss == SQUARES else packed_counts(self.design.records, self.design.sites)

    @property
    def channels(self) -> int:
        """Numbers per bin: records, g, and h if it is neither a count nor packed with the records."""
        return 2 if self.design.loss == SQUARES or self.packed else 3

    @cached_property
    def slots(self) -> int:
        """Maximum number of open nodes in a level: each has enough records for two."""
        d = self.design
        each = max(1, min(1 << (d.depth - 1), d.records // (2 * d.min_records)))
        return min(SLOTS, d.outputs * each)

    @cached_property
    def nodes(self) -> int:
        """Maximum number of nodes of a tree."""
        d = self.design
        return min((2 << d.depth) - 1, 2 * max(1, d.records // d.min_records) - 1)

    @property
    def classes(self) -> int:
        return max(1, len(self.design.classes))

    @cached_property
    def numbers(self) -> int:
        """Numbers of one sum: the loss, the records, and a histogram of each slot; the first sum needs fewer."""
        return max(2 + self.slots * self.bins.count * self.channels, 1 + self.classes)

    @property
    def opened(self) -> tuple[str, ...]:
        """Sums over all sites that the coordinator receives, in words."""
        d = self.design
        first = f"the sum of {d.outcome}" if d.loss == SQUARES else f"those of each class of {d.outcome}"
        level = f"{self.bins.count} bins of {len(d.columns)} columns in each of at most {self.slots} nodes"
        least = f"of {d.bin_records} records of the node or more on average, but for two" if d.bin_records else ""
        few = least or f"of which many will have 1 to {d.suppress - 1} records: bin_records=20 puts them together"
        return (
            f"first the number of records, and {first}",
            f"then, in each of at most {d.trees * d.depth} levels, the loss, and the records and gradients of {level}",
            f"no node of fewer than {2 * d.min_records} records is asked about; bins {few}",
        )

    @cached_property
    def exact(self) -> ExactSums:
        bounds = [LARGEST] * self.numbers
        if self.packed:
            places = len(range(2, self.numbers, self.channels))
            bounds[2 :: self.channels] = [max(LARGEST, self.packed.bound)] * places
        return ExactSums(tuple(bounds), BITS, self.design.digest)

    @property
    def length(self) -> int:
        """Number of elements of the ensemble's vector."""
        d = self.design
        return _HEADER + d.outputs + d.trees + 2 * d.trees * d.outputs * self.nodes

    @property
    def rounds(self) -> int:
        """Maximum number of rounds: the first, one for each level, and some spare for incomplete ones."""
        levels = self.design.trees * self.design.depth
        return 1 + levels + 10 + levels // 10

    def initial(self) -> Vector:
        return frozen(np.zeros(self.length))

    def vector(self, numbers: Whole) -> Vector:
        """Return a vector of the numbers, padded with zeros."""
        whole = np.zeros(self.numbers, np.int64)
        whole[: numbers.size] = numbers.reshape(-1)
        return as_vector(long_words(whole))


class GrowingTrees:
    """The ensemble in a vector, and its transitions; it may change `x`, which is a copy."""

    def __init__(self, layout: TreesLayout, x: Vector) -> None:
        """Raises ConfigError for a vector that is no ensemble."""
        if x.shape != (layout.length,) or x.dtype != np.float64:
            raise ConfigError("the received state holds no trees", "Were all started with the same experiment file?")
        d = layout.design
        self.layout, self.x = layout, np.array(x)
        self.base = self.x[_HEADER : _HEADER + d.outputs]
        self.losses = self.x[_HEADER + d.outputs : _HEADER + d.outputs + d.trees]
        nodes = self.x[_HEADER + d.outputs + d.trees :]
        self._info, self._value = nodes.reshape(2, d.trees, d.outputs, layout.nodes)

    @property
    def begun(self) -> bool:
        return bool(self.x[_BEGUN])

    @property
    def done(self) -> int:
        """Number of finished trees of each output."""
        return int(self.x[_DONE])

    @property
    def over(self) -> bool:
        return self.done >= self.layout.design.trees or bool(self.x[_ENDED])

    @property
    def sites(self) -> int:
        """Number of sites in the last sums."""
        return int(self.x[_SITES])

    @property
    def least(self) -> int:
        """Number of sites in the smallest sum."""
        return int(self.x[_LEAST])

    @property
    def records(self) -> int:
        return int(self.x[_RECORDS])

    @property
    def opened(self) -> tuple[int, int]:
        """Numbers of disclosed sums over one bin of one node, and of those over fewer than `suppress` records."""
        return int(self.x[_CELLS]), int(self.x[_SMALL])

    def tree(self, number: int, output: int) -> TreeNodes:
        return TreeNodes(self._info[number, output].astype(np.int64), self._value[number, output])

    def whole_trees(self, count: int) -> Floats:
        """Return all data that determine the margins by the first trees, as one array."""
        return np.concatenate([self.base, self._info[:count].reshape(-1), self._value[:count].reshape(-1)])

    def open_nodes(self) -> list[tuple[int, int]]:
        """(output, node) of each slot of the next sum."""
        if self.over or not self.begun:
            return []
        outputs = range(self.layout.design.outputs)
        return [(k, node) for k in outputs for node in self.tree(self.done, k).open.tolist()]

    # --- the step -------------------------------------------------------------------------------------------------

    def begin(self, sums: Whole, sites: int) -> None:
        """Apply the sums of the first round: the margins of no tree, and a root of each output."""
        d = self.layout.design
        records, *totals = sums[: 1 + self.layout.classes].tolist()
        if records < 1:
            return
        self.base[:] = base_margins(d, records, [totals[0] / UNIT] if d.loss == SQUARES else totals)
        self.x[_BEGUN], self.x[_SITES], self.x[_LEAST], self.x[_RECORDS] = 1, sites, sites, records
        self._plant()

    def _plant(self) -> None:
        self._info[self.done, :, 0] = info_of(OPEN, self.records)

    def grow(self, sums: Whole, sites: int) -> None:
        """Apply the sums of a level: each open node becomes a split or a leaf."""
        layout = self.layout
        asked = self.open_nodes()
        loss, records = sums[:2].tolist()
        if records < 1:
            return
        self.x[_SITES], self.x[_LEAST], self.x[_RECORDS] = sites, min(self.x[_LEAST], sites), records
        self.losses[self.done] = loss / (1 << LOSS_SHIFT)
        part = sums[2 : 2 + len(asked) * layout.bins.count * layout.channels]
        table = part.reshape(len(asked), layout.bins.count, layout.channels)
        if layout.packed:
            records_of, h = layout.packed.apart(table[:, :, 0])
            table = np.stack([records_of, table[:, :, 1], h], axis=2)
        elif layout.channels == 2:
            table = np.concatenate([table, table[:, :, :1] << 30], axis=2)
        self._count(asked, table[:, :, 0])
        below = self._depth(*asked[0]) + 1
        for (output, node), cells in zip(asked, table, strict=True):
            self._decide(output, node, cells, below)
        self._close_what_has_no_room()
        if not self.open_nodes():
            whole = [self.tree(self.done, k) for k in range(layout.design.outputs)]
            grown = any(one.is_split.any() and one.value[: one.size][~one.is_split[: one.size]].any() for one in whole)
            self.x[_DONE] += 1
            self.x[_ENDED] = not grown and not layout.design.forest_columns  # another tree has other columns
            if not self.over:
                self._plant()

    def _count(self, asked: Sequence[tuple[int, int]], records: Whole) -> None:
        bins, whole = self.layout.bins, [int(self.tree(self.done, output).records[node]) for output, node in asked]
        self.x[_CELLS] += sum(int((bins.reporting_bins(one) == bins.place).sum()) for one in whole)
        self.x[_SMALL] += int(((records > 0) & (records < self.layout.design.suppress)).sum())

    def _decide(self, output: int, node: int, cells: Whole, below: int) -> None:
        """`below`: splits above the children of this level's nodes."""
        d, bins = self.layout.design, self.layout.bins
        info, value = self._info[self.done, output], self._value[self.done, output]
        tree = self.tree(self.done, output)
        whole = cells[: int(bins.sizes[0])].sum(axis=0)
        reporting = bins.reporting_bins(int(tree.records[node]))
        by = d.splits_by(self.done, output)
        split = best_split(bins, cells, reporting, by) if tree.size + 2 <= self.layout.nodes else None
        info[node], value[node] = info_of(LEAF, int(whole[0])), leaf_value(d, whole)
        if split is None:
            return
        code = split_code(split.column, split.bin, missing_left=split.missing_left)
        info[node], value[node] = info_of(code, int(whole[0])), split.gain
        first = tree.size
        for child, sums in ((first, split.left), (first + 1, split.right)):
            stays = below < d.depth and sums[0] >= 2 * d.min_records
            info[child] = info_of(OPEN if stays else LEAF, int(sums[0]))
            value[child] = leaf_value(d, sums)

    def _depth(self, output: int, node: int) -> int:
        left, depth = self.tree(self.done, output).left, 0
        split = np.flatnonzero(self.tree(self.done, output).is_split)
        while node:
            node = int(split[np.searchsorted(left[split], node, side="right") - 1])
            depth += 1
        return depth

    # --- permitted states -----------------------------------------------------------------------------------------

    def broken(self, after: GrowingTrees) -> str:
        """Return why an ensemble cannot follow from this one by the sums of one level; "" if it can.

        Everything else stays, except open nodes, which turn into leaves, or splits with `min_records` on each side.
        """
        if self.over:
            return "the trees were whole"
        found, done = GrowingTrees(self.layout, self.x), self.done
        found.x[:_HEADER] = after.x[:_HEADER]
        if not self.begun:
            found.base[:] = after.base
            if after.begun and after.done == 0:
                found._plant()
            return "" if np.array_equal(found.x, after.x) else "more than the first margins is there"
        found.x[_BEGUN], found.x[_LEAST] = 1, min(self.x[_LEAST], after.x[_SITES])
        found.losses[done] = after.losses[done]
        if after.done not in (done, done + 1) or after.records != self.records:
            return "other trees, or records, than there were"
        for output in range(self.layout.design.outputs):
            if why := self._broken_tree(after, output):
                return why
            found._info[done, output], found._value[done, output] = (
                after._info[done, output],
                after._value[done, output],
            )
        if after.done > done:
            if any(after.tree(done, output).open.size for output in range(self.layout.design.outputs)):
                return "a tree with open nodes is called whole"
            if not after.over:
                found._plant()
        return "" if np.array_equal(found.x, after.x) else "earlier nodes have changed"

    def _broken_tree(self, after: GrowingTrees, output: int) -> str:
        d, before, now = self.layout.design, self.tree(self.done, output), after.tree(self.done, output)
        old, new = before.size, now.size
        fixed = np.flatnonzero(before.code[:old] != OPEN)
        kept = np.array_equal(before.info[fixed], now.info[fixed]) and np.array_equal(
            before.value[fixed], now.value[fixed]
        )
        if not kept or not np.array_equal(before.records[:old], now.records[:old]):
            return "earlier nodes have changed"
        splits = np.flatnonzero(now.is_split)
        if new != 1 + 2 * splits.size or (now.code[:old] == OPEN).any() or (now.code[old:new] >= SPLIT).any():
            return "nodes that no split has made, or that were not asked about"
        sides = np.stack([now.records[now.left[splits]], now.records[now.left[splits] + 1]])
        if (sides.sum(axis=0) != now.records[splits]).any() or (sides.size and sides.min() < d.min_records):
            return f"a split whose sides do not have its records, {d.min_records} each"
        if (now.records[now.open] < 2 * d.min_records).any():
            return f"an open node of fewer than {2 * d.min_records} records"
        if (now.column[splits] >= len(d.columns)).any():
            return "a split by an unknown column"
        if not d.splits_by(self.done, output)[now.column[splits]].all():
            return "a split by a column that was not drawn for its tree"
        return ""

    def _close_what_has_no_room(self) -> None:
        """Turn open nodes beyond a sum's slots into leaves."""
        for output, node in self.open_nodes()[self.layout.slots :]:
            records = int(self.tree(self.done, output).records[node])
            self._info[self.done, output, node] = info_of(LEAF, records)


@dataclass(frozen=True)
class TreesServer:
    """The coordinator's step: sums of a level become the splits of its nodes."""

    layout: TreesLayout

    def start(self, x: Vector) -> ServerModel:
        return ServerModel(x)

    def broadcast(self, state: ServerModel) -> Vectors:
        return (state.x,)

    def step(self, state: ServerModel, aggregate: Aggregate) -> ServerModel:
        return ServerModel(stepped(self.layout, state.x, aggregate.vectors[0], aggregate.clients))

    def over(self, x: Vector) -> bool:
        return GrowingTrees(self.layout, x).over


def stepped(layout: TreesLayout, x: Vector, sums: Vector, sites: int) -> Vector:
    """Return the ensemble after a round with these sums over `sites`.  Raises ConfigError for invalid sums."""
    growing = GrowingTrees(layout, x)
    words = words_in(sums)
    if words is None or words.size != layout.exact.length:
        raise ConfigError(
            "the received vector holds no sums of trees", "Were all started with the same experiment file?"
        )
    take = growing.grow if growing.begun else growing.begin
    take(long_numbers(words), sites)
    return frozen(growing.x)


# --- a site -----------------------------------------------------------------------------------------------------------


class SiteMargins:
    """One site's records, and their margins by the finished trees, as far as requested."""

    def __init__(self, layout: TreesLayout, table: SiteTable) -> None:
        """Raises ConfigError for more records than a sum can represent."""
        if len(table.y) > RECORDS:
            raise ConfigError(f"{len(table.y)} records; a site has at most {RECORDS}", "Take a part of them.")
        if layout.packed and len(table.y) >= layout.packed.most:
            text = f"{len(table.y)} records; all sites together had {layout.design.records} when they agreed"
            raise ConfigError(text, "Agree again: fedgossip data agree EXPERIMENT.")
        self.layout, self.table = layout, table
        self._trees, self._margins = 0, np.zeros((len(table.y), layout.design.outputs))
        self._known: Floats = np.empty(0)

    def numbers(self, x: Vector) -> Vector:
        """Return the sums that `x` requests.  Raises ConfigError for labels out of range."""
        growing = GrowingTrees(self.layout, x)
        return self.layout.vector(self._level(growing) if growing.begun else self._first())

    def find_excess(self, growing: GrowingTrees) -> str:
        """Return in words an open node with more of this site's records than of all sites; "" without one."""
        if growing.over or not growing.begun:
            return ""
        for output in range(self.layout.design.outputs):
            tree = growing.tree(growing.done, output)
            mine = np.bincount(self._at(tree), minlength=self.layout.nodes)
            if (mine[tree.open] > tree.records[tree.open]).any():
                return "a node has fewer records at all sites than at this one"
        return ""

    def _first(self) -> Whole:
        d, y = self.layout.design, self.table.y
        if d.loss == SQUARES:
            return np.array([len(y), _total(round_to_whole(y))], np.int64)
        return np.array([len(y), *np.bincount(y.astype(np.int64), minlength=len(d.classes))], np.int64)

    def margins(self, growing: GrowingTrees) -> Floats:
        """Return F of each record by the finished trees, [m, outputs]."""
        if not np.array_equal(growing.whole_trees(self._trees), self._known):
            self._trees, self._margins = 0, np.tile(growing.base, (len(self.table.y), 1))
        for number in range(self._trees, growing.done):
            for output in range(self.layout.design.outputs):
                tree = growing.tree(number, output)
                self._margins[:, output] += tree.value[self._at(tree)]
        self._trees, self._known = growing.done, growing.whole_trees(growing.done)
        return self._margins

    def _at(self, tree: TreeNodes) -> Whole:
        d = self.layout.design
        return tree.reached(self.table.bins, self.layout.bins.sizes, d.depth, missing=d.missing)

    def _level(self, growing: GrowingTrees) -> Whole:
        layout = self.layout
        asked = growing.open_nodes()[: layout.slots]
        g, h, loss = gradients(layout.design, self.margins(growing), self.table.y)
        if layout.design.forest_columns:
            g, h, _ = gradients(layout.design, np.tile(growing.base, (len(self.table.y), 1)), self.table.y)
        head = np.array([_total(round_to_whole(loss, LOSS_SHIFT)), len(self.table.y)], np.int64)
        parts = [head]
        for output in range(layout.design.outputs):
            nodes = [node for k, node in asked if k == output]
            if nodes:
                tree = growing.tree(growing.done, output)
                reporting = np.stack([layout.bins.reporting_bins(int(tree.records[node])) for node in nodes])
                at = self._at(tree)
                parts.append(self._histogram(nodes, reporting, at, g[:, output], h[:, output]).reshape(-1))
        return np.concatenate(parts)

    def _histogram(self, nodes: Sequence[int], reporting: Whole, at: Whole, g: Whole, h: Whole) -> Whole:
        """Return the sums of 1, g and h over the records of each node, [nodes, bins, channels]; `reporting` [nodes,
        bins].
        """
        bins, packed = self.layout.bins, self.layout.packed
        slot_of = np.full(self.layout.nodes, -1, np.int64)
        slot_of[nodes] = np.arange(len(nodes))
        slots = slot_of[at]
        there = np.flatnonzero(slots >= 0)
        kinds = 2 if self.layout.design.loss == SQUARES else 3
        slots, weights = slots[there], [None, g[there].astype(np.float64), h[there].astype(np.float64)][:kinds]
        _total(g)
        found = np.zeros((len(nodes), bins.count, kinds), np.int64)
        for column, (start, size) in enumerate(zip(bins.starts.tolist(), bins.sizes.tolist(), strict=True)):
            places = slots * size + reporting[slots, start + self.table.bins[there, column]]
            for channel, weight in enumerate(weights):
                counted = np.bincount(places, weight, minlength=len(nodes) * size)
                found[:, start : start + size, channel] = counted.reshape(len(nodes), size)
        if packed:
            return np.stack([packed.together(found[:, :, 0], found[:, :, 2]), found[:, :, 1]], axis=2)
        return found


def _total(values: Whole) -> int:
    """Return the exact sum of whole numbers.  Raises ConfigError for inexact partial sums."""
    if not np.abs(values.astype(np.float64)).sum() <= LARGEST:
        text = "labels so far from the mean of all that no sum can hold them"
        raise ConfigError(text, "Declare the label's bounds in [data.columns], or correct the record.")
    return int(values.sum())


def grown_alone(layout: TreesLayout, table: SiteTable) -> Vector:
    """Return the ensemble of one table: several sites grow the same trees, to the bit."""
    x, site, server = layout.initial(), SiteMargins(layout, table), TreesServer(layout)
    while not server.over(x):
        x = stepped(layout, x, site.numbers(x), 1)
    return x


def trees_file(growing: GrowingTrees) -> TreesFile:
    """Return the grown trees as a file."""
    d = growing.layout.design
    named = [(number, k) for number in range(growing.done) for k in range(d.outputs)]
    return TreesFile(
        loss=d.loss,
        outcome=d.outcome,
        classes=d.classes,
        base=tuple(growing.base.tolist()),
        columns=d.columns,
        mean=d.mean,
        deviation=d.deviation,
        trees=tuple(
            BoostedTree(of=d.classes[k] if d.outputs > 1 else "", root=_node(d, growing.tree(number, k), 0))
            for number, k in named
        ),
    )


def _node(d: TreesDesign, tree: TreeNodes, at: int) -> TreeNode:
    if not tree.is_split[at]:
        return TreeNode(value=float(tree.value[at]))
    column, left = int(tree.column[at]), int(tree.left[at])
    return TreeNode(
        column=d.columns[column],
        below=d.cuts[column][int(tree.bin[at])],
        missing=(YES if tree.missing_left[at] else NO) if d.missing else "",
        yes=_node(d, tree, left),
        no=_node(d, tree, left + 1),
    )
