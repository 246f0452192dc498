"""trees-fit.json: loss and column gains of boosted trees that sites grew together."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from fedgossip.learning.models.trees import TreesDesign, rounded
from fedgossip.sites.fits.trees.tree_sums import GrowingTrees

FORMAT = 1


class ColumnGain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Gain of one column."""

    name: str
    gain: float
    """Sum of the gains of its splits, in whole multiples of `suppress`."""
    share: float
    """Share of the total gain."""
    splits: int


class TreesFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of trees-fit.json."""

    format: int = FORMAT
    design: TreesDesign
    sites: int
    """Number of sites in the last sums."""
    fewest: int
    """Number of sites in the smallest sum."""
    least: int
    """Minimum number of sites in a sum."""
    records: int
    trees: int
    """Number of trees of each output."""
    whole: bool
    """Whether growth is complete: all requested trees, or all that had any gain."""
    leaves: int
    losses: tuple[float, ...]
    """Mean loss of a record before each tree, rounded to the possible change by `suppress` records."""
    gains: tuple[ColumnGain, ...]
    """Columns by their gain, the largest first."""
    opened: int
    """Number of disclosed sums over one bin of one node."""
    small: int
    """Number of them over fewer records than data.suppress."""


def trees_fit(growing: GrowingTrees, least: int) -> TreesFit | None:
    """Return the result of the growth; None where the first round is incomplete."""
    d = growing.layout.design
    if not growing.begun:
        return None
    gains, splits, leaves = defaultdict[str, float](float), defaultdict[str, int](int), 0
    for number in range(growing.done):
        for output in range(d.outputs):
            tree = growing.tree(number, output)
            there = tree.is_split
            leaves += tree.size - int(there.sum())
            for column, gain in zip(tree.column[there].tolist(), tree.value[there].tolist(), strict=True):
                gains[d.columns[column]] += gain
                splits[d.columns[column]] += 1
    least_gain = max(1, d.suppress)
    told = {name: float(round(gain / least_gain) * least_gain) for name, gain in gains.items()}
    total = sum(told.values())
    named = sorted(d.columns, key=lambda name: -told.get(name, 0.0))
    opened, small = growing.opened
    trees = growing.done
    return TreesFit(
        design=d,
        sites=growing.sites,
        fewest=growing.least,
        least=least,
        records=growing.records,
        trees=trees,
        whole=growing.over,
        leaves=leaves,
        losses=tuple(rounded(one / growing.records, d.suppress / growing.records) for one in growing.losses[:trees]),
        gains=tuple(
            ColumnGain(name=name, gain=told[name], share=told[name] / max(total, 1), splits=splits[name])
            for name in named
            if splits[name]
        ),
        opened=opened,
        small=small,
    )
