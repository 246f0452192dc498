"""trees.json: boosted trees in readable form, as used by `fedgossip predict`.

A record begins at the root.  `column` < `below` is `yes`, else `no`; an empty cell goes where `missing` points.
Numbers of columns are compared after (x - mean) / deviation in float32, of both sides.  `value` of the leaves of all
trees, added to `base`, is the margin: log odds of the second class, one number for each class, or the outcome in
deviations from its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError
from fedgossip.learning.models.trees import Floats, scaled_cuts

FORMAT = 1
YES, NO = "yes", "no"


class TreeNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A split, or a leaf where it has a value."""

    records: int | None = None
    """Number of records of all sites in this node: only in files of the release before.  Two nodes that end at
    nearby cuts disclosed the few records between them by their difference."""
    value: float | None = None
    column: str = ""
    below: float | None = None
    """In the column's unit."""
    missing: str = ""
    """yes or no, where cells may hold nothing."""
    gain: float | None = None
    """In files of the release before alone, as `records`."""
    yes: TreeNode | None = None
    no: TreeNode | None = None


class BoostedTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    of: str = ""
    """The class of its margin, where there are more than two."""
    root: TreeNode


class TreesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file."""

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
    """Return the trees of a text.  Raises ConfigError for one that holds none, or trees that lead nowhere."""
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
