"""trees-fit.json: loss and column gains of jointly grown trees; and options,
trees:TREESxDEPTH?learning_rate=0.1&max_bins=32.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import SumsTask
from fedgossip.learning.models.trees import MOST_BINS, TreesDesign, rounded
from fedgossip.secure.session_history import AskedBefore
from fedgossip.sites.fits.tree_sums import GrowingTrees, SiteMargins, SiteTable, TreesLayout

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
    """Whether growth is complete: all requested trees, or all trees with any gain."""
    leaves: int
    losses: tuple[float, ...]
    """Mean loss of a record before each tree, rounded to the possible change by `suppress` records."""
    gains: tuple[ColumnGain, ...]
    """Columns by their gain, the largest first."""
    opened: int
    """Number of disclosed sums over one bin of one node."""
    small: int
    """Number of these sums over fewer records than data.suppress."""

    def __post_init__(self) -> None:
        if not self.losses:
            raise ValueError("trees without a loss")


def trees_fit(growing: GrowingTrees, least: int) -> TreesFit | None:
    """Return the result of the growth; None if the first round is incomplete."""
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
    published = {name: float(round(gain / least_gain) * least_gain) for name, gain in gains.items()}
    total = sum(published.values())
    named = sorted(d.columns, key=lambda name: -published.get(name, 0.0))
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
            ColumnGain(name=name, gain=published[name], share=published[name] / max(total, 1), splits=splits[name])
            for name in named
            if splits[name]
        ),
        opened=opened,
        small=small,
    )


class TreesTask(SumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "Fit"

    def __init__(self, layout: TreesLayout, sites: Mapping[NodeId, SiteTable]) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self.length = layout, layout.length
        self._sites = {node: SiteMargins(layout, table) for node, table in sites.items()}

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return frozen(np.zeros(self.length))

    def sums(self, job: Job) -> Vector:
        return self._sites[job.node].numbers(job.vector)

    def broken(self, model: Vector, before: AskedBefore) -> str:
        growing, after = GrowingTrees(self.layout, before.model), GrowingTrees(self.layout, model)
        return before.miscounted(after.sites) or growing.broken(after)

    def below_own(self, node: NodeId, model: Vector, before: AskedBefore) -> str:  # noqa: ARG002
        return self._sites[node].find_excess(GrowingTrees(self.layout, model))


TREES = "trees"
_SIZE = re.compile(r"(\d{1,6})x(\d{1,3})")
_LIMITS = {
    "trees": (1, 2000),
    "depth": (1, 10),
    "learning_rate": (1e-6, 1.0),
    "l2": (0.0, 1e6),
    "min_child_weight": (0.0, 1e9),
    "min_records": (1, 1 << 30),
    "max_bins": (2, MOST_BINS - 1),
    "bin_records": (0, 1 << 30),
    "forest_columns": (0, 1 << 16),
}


@dataclass(frozen=True)
class TreeOptions:
    """The options in model.source, with defaults."""

    trees: int
    depth: int
    learning_rate: float = 0.1
    l2: float = 1.0
    """Added to the sum of h of a leaf: it keeps small leaves near zero."""
    min_child_weight: float = 1.0
    """Minimum sum of h on each side of a split."""
    min_records: int = 0
    """Minimum number of records on each side of a split; 0: the larger of 10 and data.suppress."""
    max_bins: int = 32
    """Maximum number of bins of a column."""
    bin_records: int = 0
    """Minimum number of a node's records for each of a column's bins: smaller nodes report neighbouring bins as one."""
    forest_columns: int = 0
    """Number of columns that each tree of a random forest may split by; 0: boosted trees."""


def tree_options(source: str) -> TreeOptions:
    """Return the options in `source`.  Raises ConfigError for an unknown option, and for one outside its limits."""
    size, _, query = source.partition(":")[2].partition("?")
    found = _SIZE.fullmatch(size)
    if found is None:
        text = f"model.source = {source!r}: how many trees, and how deep?"
        raise ConfigError(text, 'Write "trees:100x6": a hundred trees of depth 6.')
    named: dict[str, int | float] = {"trees": int(found[1]), "depth": int(found[2])}
    kinds = {one.name: one.type for one in dataclasses.fields(TreeOptions)}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in kinds or name in named:
            options = [one for one in kinds if one not in named]
            raise ConfigError(f"model.source = {source!r}: option {name!r} is not known", nearest(name, options))
        try:
            named[name] = int(value) if kinds[name] == "int" else float(value)
        except ValueError:
            a = "a whole number" if kinds[name] == "int" else "a number"
            text = f"model.source = {source!r}: {name}={value} is not {a}"
            raise ConfigError(text, f"Write {name}={getattr(TreeOptions, name)}.") from None
    for name, given in named.items():
        low, high = _LIMITS[name]
        if not low <= given <= high:
            raise ConfigError(f"model.source = {source!r}: {name} = {given:g}", f"It is between {low:g} and {high:g}.")
    if named.get("forest_columns") and "learning_rate" in named:
        text = f"model.source = {source!r}: learning_rate of a forest, which is the mean of its trees"
        raise ConfigError(text, "Leave one of both out.")
    return TreeOptions(**named)  # type: ignore[arg-type]
