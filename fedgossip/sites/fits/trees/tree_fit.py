"""trees-fit.json, of boosted trees that sites have grown together: how they fit, and which columns told most."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from fedgossip.learning.models.trees import TreesDesign, rounded
from fedgossip.sites.fits.trees.tree_sums import GrowingTrees

FIT_OF_TREES = "trees-fit.json"
FORMAT = 1


class ColumnGain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one column was worth."""

    name: str
    gain: float
    """Sum of the gains of its splits, in whole multiples of `suppress`."""
    share: float
    """Of the gains of all."""
    splits: int


class TreesFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file."""

    format: int = FORMAT
    design: TreesDesign
    sites: int
    """In the last sums."""
    fewest: int
    """Sites of any of the sums."""
    least: int
    """Sites that a sum has at least."""
    records: int
    trees: int
    """Grown, of each output."""
    whole: bool
    """Whether that is all that was asked for, or all that gained anything."""
    leaves: int
    losses: tuple[float, ...]
    """Mean loss of a record before each tree, rounded to what `suppress` records can change it by."""
    gains: tuple[ColumnGain, ...]
    """Columns by their gain, the largest first."""
    opened: int
    """Sums over one bin of one node that were opened."""
    small: int
    """Those of them over fewer records than data.suppress."""


def trees_fit(growing: GrowingTrees, least: int) -> TreesFit | None:
    """Return what has been grown; None where the first round has not come together."""
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
