"""Datasets: examples with labels and, where nature gives one, the client that each example belongs to.

load("digits")                                   8x8 digits that come with scikit-learn
load("breast-cancer")                            569 patients, 30 measurements, standardised by `split`
load("mnist")  load("fashion-mnist")             IDX files in the folder that FEDGOSSIP_DATA names
load("mnist:PATH")                               IDX files in PATH
load("csv:PATH?label=COLUMN&group=COLUMN")       a table of numbers; drop=A,B leaves columns out; scale=standard
load("npz:PATH")                                 arrays x, y and, if there, groups
load("text:PATH?context=32&min_chars=1000")      plays: every speaker is a client
load("module:function")                          yours: gives a Dataset, (x, y) or (x, y, groups)
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from fedgossip.errors import ConfigError, nearest
from fedgossip.learning import custom
from fedgossip.seeds import stream

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples x with labels y; checked on construction.

    x: float32 [m, features] or [m, 1, height, width]; text: int64 [m, context].
    y: int64 [m], 0 <= y < classes; text: int64 [m, context], the characters that follow those of x one by one.
    groups: int64 [m] or None, the natural client of each example; `group_names[group]` says who that is.
    own_test: where the source brings a test set of its own, its first example (the rest of the set is test).
    columns, class_names: what the features and the classes are called, where the source says so.
    scale: "standard" where `split` has yet to standardise the columns; x is float64 until then.

    Raises ConfigError where lengths differ, a value is not finite or a label is out of range.
    """

    name: str
    x: npt.NDArray[Any]
    y: Indices
    classes: int
    groups: Indices | None = None
    group_names: tuple[str, ...] = ()
    vocabulary: str | None = field(default=None, repr=False)
    own_test: int | None = None
    scale: str = "none"
    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

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
        low, high = int(self.y.min()), int(self.y.max())
        if low < 0 or high >= self.classes:
            raise ConfigError(
                f"{self.name}: labels from {low} to {high} and {self.classes} classes",
                "Labels are whole numbers, 0 <= y < classes.",
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.x.shape[1:])

    @property
    def labels(self) -> Indices:
        """int64 [m], one class per example: y itself, for text the last character."""
        return self.y if self.y.ndim == 1 else self.y[:, -1]

    def digest(self) -> str:
        """Return a hash of the examples: two peers that agree on it read the same files.

        The features enter by crc32, seven times as quick as sha256: the fault to find is another file, not a forger.
        """
        facts = (self.x.shape, self.x.dtype.str, self.classes, self.scale, self.columns, self.class_names)
        total = hashlib.sha256(repr(facts).encode())
        total.update(np.ascontiguousarray(self.y).data)
        total.update(zlib.crc32(np.ascontiguousarray(self.x).data).to_bytes(4, "little"))
        return total.hexdigest()

    def subset(self, indices: Indices) -> Dataset:
        """Return the examples at `indices`, in that order."""
        groups = None if self.groups is None else self.groups[indices]
        return replace(self, x=self.x[indices], y=self.y[indices], groups=groups, own_test=None)


# --- splitting --------------------------------------------------------------------------------------------------


OWN = "own"


def split(dataset: Dataset, test: float | str, seed: int) -> tuple[Dataset, Dataset]:
    """Return (train, test) datasets, ready to learn from; see `split_indices` and `scaled`."""
    train, held_out = split_indices(dataset, test, seed)
    return scaled(dataset.subset(train), dataset.subset(held_out))


def scaled(train: Dataset, test: Dataset) -> tuple[Dataset, Dataset]:
    """Return both as they are or, where `train.scale` is standard, with columns of mean 0 and deviation 1 in `train`.

    The test set takes no part in the statistics: a model is judged on examples that nothing was fitted to.
    """
    if train.scale == "none":
        return train, test
    x = train.x.astype(np.float64)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    deviation[deviation == 0] = 1

    def standard(part: Dataset) -> Dataset:
        return replace(part, x=((part.x - mean) / deviation).astype(np.float32), scale="none")

    return standard(train), standard(test)


def split_indices(dataset: Dataset, test: float | str, seed: int) -> tuple[Indices, Indices]:
    """Return ascending (train, test) indices; `test` is a share of the examples, 0 < test < 1.

    Stratified: every class gives its share, rounded, chosen by `seed`; a class with one example stays in train.
    Text gives the end of every speaker's words, so that no test window overlaps a training one.
    "own" takes the test set that the source brings (MNIST's t10k files beside its train files).
    Raises ConfigError where a side would be empty, and for "own" where the source brings none.
    """
    if test == OWN:
        return _own_split(dataset)
    if isinstance(test, str) or not 0 < test < 1:
        raise ConfigError(f"test = {test}; expected 0 < test < 1", "0.2 keeps a fifth of the examples for the test.")
    if dataset.vocabulary is not None and dataset.groups is not None:
        held_out = _ranks(dataset.groups, np.arange(len(dataset))[::-1], test)
    else:
        order = stream(seed, "split").permutation(len(dataset))
        held_out = _ranks(dataset.labels, order, test)
    if held_out.all() or not held_out.any():
        raise ConfigError(
            f"{dataset.name}: test = {test} of {len(dataset)} examples leaves one side empty",
            "Choose a share that gives the train and the test set an example each.",
        )
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _own_split(dataset: Dataset) -> tuple[Indices, Indices]:
    if dataset.own_test is None:
        raise ConfigError(f"{dataset.name} brings no test set of its own", "Hold out a share: data.test = 0.2.")
    return np.arange(dataset.own_test), np.arange(dataset.own_test, len(dataset))


def _ranks(keys: Indices, order: Indices, share: float) -> npt.NDArray[np.bool_]:
    """Return a mask of the first round(share * size) examples of every key, in the order given."""
    by_key = order[np.argsort(keys[order], kind="stable")]
    _, starts, counts = np.unique(keys[by_key], return_index=True, return_counts=True)
    rank = np.arange(len(keys)) - np.repeat(starts, counts)
    wanted = np.minimum(np.round(counts * share), counts - 1)
    mask = np.zeros(len(keys), np.bool_)
    mask[by_key] = rank < np.repeat(wanted, counts)
    return mask


# --- loading ----------------------------------------------------------------------------------------------------

KINDS = ("digits", "breast-cancer", "mnist", "fashion-mnist", "csv", "npz", "text")


def load(
    source: str,
    *,
    base: Path | None = None,
    seed: int = 0,  # noqa: ARG001
    like: Dataset | None = None,
) -> Dataset:
    """Return the dataset that `source` names (the forms are at the top of this file).

    Relative paths are taken from `base`, the folder of the experiment file (default: the working directory).
    `seed` is for sources that draw; the built-in ones do not.  With `like` the classes are those of that set, by name
    where they have names, and the features have to be.  Raises ConfigError where the source cannot be read,
    naming the file, what was expected and what was found.
    """
    if like is None:
        return _load(source, base, ())
    return _alike(source, _load(source, base, like.class_names), like)


def _alike(source: str, found: Dataset, like: Dataset) -> Dataset:
    for what, has, expected in (
        ("columns", found.columns, like.columns),
        ("examples of shape", found.shape, like.shape),
        ("characters", found.vocabulary, like.vocabulary),
        ("scale", found.scale, like.scale),
    ):
        if has != expected:
            advice = "Training and test sets, of all peers, have the same features in the same order."
            raise ConfigError(f"{source}: {what} {has}; {like.name} has {expected}", advice)
    return replace(found, classes=like.classes)


def _load(source: str, base: Path | None, class_names: tuple[str, ...]) -> Dataset:
    kind, colon, rest = source.partition(":")
    if kind not in KINDS:
        if custom.is_function(source):
            return _from_user(source, custom.call(source, base))
        raise ConfigError(f"unknown data source {source!r}", nearest(kind, [*KINDS, "module:function"]))
    path, _, query = rest.partition("?")
    options = _options(source, query, _OPTIONS.get(kind, ()))
    if kind in ("csv", "npz", "text") and not path:
        raise ConfigError(f"{source!r} names no file", f"Write {kind}:PATH.")
    if kind in ("digits", "breast-cancer") and colon:
        raise ConfigError(f"{source!r}: {kind} takes nothing after its name", f"Write {kind}.")
    return _read(kind, (base or Path.cwd()) / Path(path).expanduser() if path else None, options, class_names)


_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "csv": ("label", "group", "drop", "scale"),
    "text": ("context", "min_chars"),
}


def _read(kind: str, path: Path | None, options: Mapping[str, str], class_names: tuple[str, ...]) -> Dataset:
    from fedgossip.learning import bundled, idx, tables, text  # they import Dataset from here

    match kind:
        case "digits":
            return bundled.digits()
        case "breast-cancer":
            return bundled.breast_cancer()
        case "csv":
            return tables.read_csv(_there(path), options, class_names)
        case "npz":
            return tables.read_npz(_there(path))
        case "text":
            return text.read(_there(path), options)
        case _:
            return idx.read(kind, path)


def _there(path: Path | None) -> Path:
    if path is None or not path.is_file():
        raise ConfigError(f"there is no file {path}", "A relative path starts at the folder of the experiment file.")
    return path


def _options(source: str, query: str, known: tuple[str, ...]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in known:
            advice = nearest(name, known) if known else "This source takes no options."
            raise ConfigError(f"{source!r}: unknown option {name!r}", advice)
    return options


def _from_user(source: str, given: object) -> Dataset:
    if isinstance(given, Dataset):
        return given
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise ConfigError(
            f"{source} gave a {type(given).__name__}", "It returns a Dataset, (x, y) or (x, y, groups) of arrays."
        )
    return from_arrays(source, *given)


def from_arrays(name: str, x: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Dataset:
    """Return a dataset of arrays; groups may be words, y is whole numbers from 0."""
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


CLASSES_SURE = 20
"""Up to so many different numbers as labels are classes, whatever they are."""
EXAMPLES_A_CLASS = 5
"""Whole numbers of which each is the label of fewer examples than this, on average, are no classes."""


def check_classes(where: str, labels: npt.NDArray[Any]) -> None:
    """Raise ConfigError where labels are numbers to be predicted, and no classes."""
    different = np.unique(labels)
    few = len(different) * EXAMPLES_A_CLASS > len(labels)
    if len(different) > CLASSES_SURE and (few or not np.array_equal(different, np.round(different))):
        raise ConfigError(
            f"{where}: the labels are {len(different)} different numbers in {len(labels)} examples: that is regression",
            "There is classification only: make classes of the numbers (low, middle, high), or take another label.",
        )


def group_ids(names: npt.NDArray[Any]) -> tuple[Indices, tuple[str, ...]]:
    """Return (id per example, name per id), names sorted."""
    found, ids = np.unique(names, return_inverse=True)
    return ids.astype(np.int64).reshape(-1), tuple(map(str, found))


def whole(source: str, name: str, text: str, least: int) -> int:
    """Return the option `name` as a whole number >= least."""
    value = float(text) if text.replace(".", "", 1).isdigit() else math.nan
    if not value.is_integer() or value < least:
        raise ConfigError(f"{source}: {name} = {text!r}", f"{name} is a whole number, at least {least}.")
    return int(value)
