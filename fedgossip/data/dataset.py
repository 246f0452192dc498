"""Examples with labels, checked on construction: the result of every data source."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId
from fedgossip.data.columns.declarations import TableEncoding
from fedgossip.data.objectives import CLASSIFICATION, LANGUAGE, MULTI_LABEL, REGRESSION, Objective
from fedgossip.data.ragged import Ragged, parts_of, picked

Indices = npt.NDArray[np.int64]

OF_COLUMNS = (REGRESSION, MULTI_LABEL)
"""Kinds of task with columns of numbers as labels."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples x with labels y; checked on construction.

    x: float32 [m, features] or [m, 1, height, width]; text: int64 [m, context], lines Ragged.  y: int64 [m], 0 <= y <
    classes; text: as x, the following characters; regression: float32 [m, k]; multi-label: float32 [m, k], 0 or 1.
    classes: number of classes; 0 if labels are columns.  groups: int64 [m] or None, each example's natural client;
    `group_names[group]` its name.  own_test: index of the first example of the source's test set, the rest.  columns,
    class_names, label_names: if the source has names.  scale: "standard" until `split` standardises x and numeric
    labels, float64 until then.  kind: of the task, as in `objectives`; empty: language with a vocabulary, else
    classification.  mean, deviation: of standardised columns, in an example's order; x * deviation + mean is the
    original.  encoding: of a table's columns to `columns`, unless all are numbers.  label_mean, label_deviation: of
    standardised label columns.  notes: remarks on the reading, a line each.

    Raises ConfigError if lengths differ, a value is not finite or a label is out of range.
    """

    name: str
    x: Any  # Any: code that uses Rows as an array has checked the kind of task, or works with both
    y: Any
    classes: int
    groups: Indices | None = None
    group_names: tuple[str, ...] = ()
    vocabulary: str | None = field(default=None, repr=False)
    own_test: int | None = None
    scale: str = "none"
    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    kind: str = ""
    label_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = field(default=(), repr=False)
    deviation: tuple[float, ...] = field(default=(), repr=False)
    encoding: TableEncoding | None = field(default=None, repr=False)
    label_mean: tuple[float, ...] = ()
    label_deviation: tuple[float, ...] = ()
    notes: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        m = len(self.x)
        if m == 0:
            raise ConfigError(f"{self.name}: no examples", "A dataset has at least one row.")
        if len(self.y) != m:
            raise ConfigError(f"{self.name}: x has {m} examples and y {len(self.y)}", "Every example has one label.")
        if self.groups is not None and len(self.groups) != m:
            raise ConfigError(
                f"{self.name}: {m} examples and {len(self.groups)} group ids", "Every example has one group."
            )
        if np.issubdtype(self.x.dtype, np.floating) and not np.isfinite(self.x.sum(dtype=np.float64)):
            row = int(np.argwhere(~np.isfinite(self.x))[0][0])
            raise ConfigError(f"{self.name}: x[{row}] is not finite", "Fill or leave out missing values first.")
        if not self.kind:
            object.__setattr__(self, "kind", CLASSIFICATION if self.vocabulary is None else LANGUAGE)
        if self.kind in OF_COLUMNS:
            self._check_columns()
            return
        labels = self.y.values if isinstance(self.y, Ragged) else self.y
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.classes:
            raise ConfigError(
                f"{self.name}: labels from {low} to {high} and {self.classes} classes",
                "Labels are whole numbers, 0 <= y < classes.",
            )

    def _check_columns(self) -> None:
        if self.y.ndim != 2 or self.y.shape[1] < 1 or self.y.dtype.kind != "f":
            advice = "Label columns are numbers: y is float32 [m, k]."
            raise ConfigError(f"{self.name}: y is {self.y.shape} of {self.y.dtype}, for {self.kind}", advice)
        if not np.isfinite(self.y.sum(dtype=np.float64)):
            row = int(np.argwhere(~np.isfinite(self.y))[0][0])
            raise ConfigError(f"{self.name}: y[{row}] is not finite", "Fill or leave out missing labels first.")
        if self.kind == MULTI_LABEL and (odd := self.y[(self.y != 0) & (self.y != 1)]).size:
            advice = "A label column of a multi-label task holds 0 or 1."
            raise ConfigError(f"{self.name}: a label is {float(odd[0]):g}, for multi-label", advice)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one example."""
        return tuple(self.x.shape[1:])

    @property
    def labels(self) -> Indices:
        """int64 [m], one class per example, for partitions and splits.

        y itself; of text the last character (of a line the one before its end); of numbers the tenth of the first
        column; of several labels the first true one, or their number.
        """
        if self.kind == REGRESSION:
            return _tenths(self.y[:, 0])
        if self.kind == MULTI_LABEL:
            held = self.y > 0
            return np.asarray(np.where(held.any(axis=1), held.argmax(axis=1), held.shape[1]), np.int64)
        if isinstance(self.x, Ragged):
            return self.x.last
        whole: Indices = self.y if self.y.ndim == 1 else self.y[:, -1]
        return whole

    @property
    def outputs(self) -> int:
        """Number of model outputs for an example, or for a character."""
        return int(self.y.shape[1]) if self.kind in OF_COLUMNS else self.classes

    def in_units(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return outputs or labels [m, k] of a regression as float64 in their original units."""
        plain = values.astype(np.float64)
        return plain * np.array(self.label_deviation) + np.array(self.label_mean) if self.label_deviation else plain

    def digest(self) -> str:
        """Return a hash of the examples, equal for equal files; features by crc32, which detects a different file, not
        a forger.
        """
        facts: tuple[object, ...] = (
            self.x.shape, self.x.dtype.str, self.classes, self.scale, self.columns, self.class_names
        )  # fmt: skip
        facts += (self.kind, self.label_names) if self.kind in OF_COLUMNS else ()
        total = hashlib.sha256(repr(facts).encode())
        for part in parts_of(self.y, "y").values():
            total.update(np.ascontiguousarray(part).data)
        for part in parts_of(self.x, "x").values():
            total.update(zlib.crc32(np.ascontiguousarray(part).data).to_bytes(4, "little"))
        return total.hexdigest()

    def subset(self, indices: Indices) -> Dataset:
        """Return the examples at `indices`, in that order."""
        groups = None if self.groups is None else self.groups[indices]
        return replace(self, x=picked(self.x, indices), y=picked(self.y, indices), groups=groups, own_test=None)


def from_arrays(
    name: str,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
    kind: str = CLASSIFICATION,
) -> Dataset:
    """Return a dataset of arrays; groups may be words.

    x is [m, ...]; y whole numbers [m] from 0; of a regression numbers [m] or [m, k], multi-label 0 and 1 [m, k].
    Raises ConfigError for unequal lengths and invalid values.
    """
    if kind in OF_COLUMNS:
        return _make_columns(name, x, y, groups, kind)
    try:
        values = np.ascontiguousarray(x, np.float32)
        labels = np.asarray(y)
        with np.errstate(invalid="ignore"):  # a label that is not a number is refused below, in words
            whole = labels.astype(np.int64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: not arrays of numbers: {error}", "x holds numbers, y whole numbers.") from error
    if labels.ndim == 1 and labels.dtype.kind == "f" and np.isfinite(labels).all():
        check_classes(name, labels)
    if labels.ndim != 1 or values.ndim < 2 or not np.array_equal(whole, labels):
        raise ConfigError(
            f"{name}: x is {values.shape} and y {labels.shape} of {labels.dtype}",
            "x is [m, features] or [m, 1, height, width], y [m] whole numbers.",
        )
    check_classes(name, labels)
    ids, names = (None, ()) if groups is None else group_ids(np.asarray(groups))
    return Dataset(name, values, whole, max(2, int(whole.max(initial=0)) + 1), ids, names)


def _make_columns(name: str, x: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None, kind: str) -> Dataset:
    try:
        values, labels = np.ascontiguousarray(x, np.float32), np.asarray(y, np.float32)
    except (TypeError, ValueError) as error:
        advice = f"x and, of {kind}, y hold numbers."
        raise ConfigError(f"{name}: not arrays of numbers: {error}", advice) from error
    if labels.ndim not in (1, 2) or values.ndim < 2:
        advice = "x is [m, features] or [m, 1, height, width], y [m] or [m, k] numbers."
        raise ConfigError(f"{name}: x is {values.shape} and y {labels.shape}", advice)
    columns = np.ascontiguousarray(labels.reshape(len(labels), -1))
    ids, names = (None, ()) if groups is None else group_ids(np.asarray(groups))
    return Dataset(name, values, columns, 0, ids, names, kind=kind)


def _tenths(numbers: npt.NDArray[Any]) -> Indices:
    ordered = np.sort(numbers)
    edges = [ordered[len(ordered) * tenth // 10] for tenth in range(1, 10)]
    return np.asarray(np.searchsorted(np.array(edges), numbers, side="right"), np.int64)


CLASSES_SURE = 20
"""Maximum number of distinct numbers for which labels are always classes."""
EXAMPLES_A_CLASS = 5
"""Whole numbers with fewer examples per value than this, on average, are no classes."""


def check_classes(where: str, labels: npt.NDArray[Any]) -> None:
    """Raise ConfigError if labels are continuous numbers instead of classes."""
    different = np.unique(labels)
    few = len(different) * EXAMPLES_A_CLASS > len(labels)
    if len(different) > CLASSES_SURE and (few or not np.array_equal(different, np.round(different))):
        raise ConfigError(
            f"{where}: the labels are {len(different)} different numbers in {len(labels)} examples: that is regression",
            'Set task.kind = "regression", or make classes of the numbers (low, middle, high).',
        )


def check_kind(objective: Objective, train: Dataset, test: Dataset) -> None:
    """Raise ConfigError if the labels do not match the kind of task."""
    for data in (train, test):
        if data.kind != objective.kind:
            advice = f'Set task.kind = "{data.kind}", or take other labels.'
            text = f"{data.name}: its labels are for {data.kind}, and the task is {objective.kind}"
            raise ConfigError(text, advice)


def check_shares(shares: Mapping[NodeId, Indices], examples: int) -> None:
    """Raise ConfigError for a node without examples, or with indices outside the set."""
    if all(len(share) for share in shares.values()) and shares:
        places = np.concatenate(list(shares.values()))  # at once: a call for each of a million takes twelve seconds
        if places.min() >= 0 and places.max() < examples:
            return
    for node, share in shares.items():
        if len(share) == 0:
            raise ConfigError(f"node {node} has no training example", "Use fewer peers or another partition.")
        if int(np.min(share)) < 0 or int(np.max(share)) >= examples:
            raise ConfigError(
                f"node {node}: example {int(np.max(share))} of {examples}", "Were the shares drawn from another set?"
            )


def group_ids(names: npt.NDArray[Any]) -> tuple[Indices, tuple[str, ...]]:
    """Return (id per example, name per id), names sorted."""
    found, ids = np.unique(names, return_inverse=True)
    return ids.astype(np.int64).reshape(-1), tuple(map(str, found))


def parse_whole(source: str, name: str, text: str, least: int) -> int:
    """Return the option `name` as a whole number >= least.  Raises ConfigError for another text."""
    value = float(text) if text.replace(".", "", 1).isdigit() else math.nan
    if not value.is_integer() or value < least:
        raise ConfigError(f"{source}: {name} = {text!r}", f"{name} is a whole number, at least {least}.")
    return int(value)
