"""trees-fit.json, of boosted trees that sites have grown together: how they fit, and which columns told most."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from fedgossip.learning.tree_sums import GrowingTrees
from fedgossip.learning.trees import TreesDesign

FIT_OF_TREES = "trees-fit.json"
FORMAT = 1


class ColumnGain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one column was worth."""

    name: str
    gain: float
    """Sum of the gains of its splits."""
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
    """Mean loss of a record before each tree."""
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
    total = sum(gains.values())
    named = sorted(d.columns, key=lambda name: -gains[name])
    opened, small = growing.opened
    return TreesFit(
        design=d,
        sites=growing.sites,
        fewest=growing.least,
        least=least,
        records=growing.records,
        trees=growing.done,
        whole=growing.over,
        leaves=leaves,
        losses=tuple((growing.losses[: growing.done] / growing.records).tolist()),
        gains=tuple(
            ColumnGain(name=name, gain=gains[name], share=gains[name] / total, splits=splits[name])
            for name in named
            if splits[name]
        ),
        opened=opened,
        small=small,
    )
