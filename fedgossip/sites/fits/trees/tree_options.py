"""Options of boosted trees: trees:TREESxDEPTH?learning_rate=0.1&max_bins=32."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.learning.models.trees import MOST_BINS

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
    """Least sum of h on each side of a split."""
    min_records: int = 0
    """Least number of records on each side of a split; 0: the larger of 10 and data.suppress."""
    max_bins: int = 32
    """Bins of a column."""
    bin_records: int = 0
    """Least number of a node's records for each of a column's bins: smaller nodes report neighbouring bins as one."""


def tree_options(source: str) -> TreeOptions:
    """Return the options in `source`.  Raises ConfigError for an unknown one, and for one outside its limits."""
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
    return TreeOptions(**named)  # type: ignore[arg-type]
