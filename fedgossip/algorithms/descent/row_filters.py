"""Filters for a gradient's rows, applied in sequence at the pushing worker.

    threshold:T     a row is sent if |g| of an element is at least T / sqrt(clock + 1); other rows wait, and are
                    added to that row's next gradient
    random-skip:P   a row is omitted with probability P, from the seed, and the others are scaled by 1 / (1 - P)
    kkt[:T]         a row of zeros with no gradient above T (the L1 of the run) is omitted: the
                    conditions of Karush, Kuhn and Tucker hold there already
    module:function called with (Pushing, memory of its last call or None), returns (Rows, memory)

`key-cache` shortens the encoding of the rows' keys, and changes no row.

Source: Li, Andersen, Park, Smola, Ahmed, Josifovski, Long, Shekita and Su, Scaling distributed machine learning with
the parameter server, OSDI 2014, sections 3.4 and 5.1; significant updates, under a threshold that falls as 1 / sqrt(t):
Hsieh, Harlap, Vijaykumar, Konomis, Ganger, Gibbons and Mutlu, Gaia, NSDI 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.keyed_rows import Rows, frozen_keys, no_rows
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import NodeId

KEY_CACHE = "key-cache"
FILTERS = (KEY_CACHE, "threshold", "random-skip", "kkt")


@dataclass(frozen=True, slots=True, eq=False)
class Pushing:
    """Input of a filter: the gradient of some rows, those rows as pulled, and their origin."""

    gradient: Rows
    rows: Rows
    clock: int
    node: NodeId
    seed: int


Memory = Rows | object
"""Waiting rows, for a built-in filter; for a user's filter any object that it returned."""
RowFilter = Callable[[Pushing, Memory], tuple[Rows, Memory]]
"""(pushed gradient, memory of the last call; None at first) -> (a subset of its rows, by ascending key; memory)."""


def make_filter(text: str, l1: float, own: Callable[[str], RowFilter]) -> RowFilter:
    """Return the filter of a text of FILTERS, or of "module:function", found by `own`.  Raises ConfigError."""
    name, colon, value = text.partition(":")
    if name == "threshold":
        return Threshold(_number(text, value, 0.0, float("inf")))
    if name == "random-skip":
        return RandomSkip(_number(text, value, 0.0, 1.0))
    if name == "kkt":
        return Kkt(_number(text, value, 0.0, float("inf")) if colon else l1)
    if colon and name not in FILTERS:
        return own(text)
    raise ConfigError(f"filter {text!r} is not known", nearest(name, FILTERS))


def _number(text: str, value: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not low <= number < high:
        name = text.partition(":")[0]
        raise ConfigError(f"filter {text!r} has no number", f"Write {name}:NUMBER, at least {low:g}, below {high:g}.")
    return number


def _largest(rows: Rows) -> np.ndarray:
    return np.abs(rows.matrix).max(axis=1, initial=0.0)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Threshold:
    """Significantly modified rows are sent; small changes accumulate until they are significant."""

    least: float

    def __call__(self, pushing: Pushing, memory: Memory) -> tuple[Rows, Memory]:
        gradient = pushing.gradient
        waiting = memory if isinstance(memory, Rows) else no_rows(gradient.values.dtype)
        ours = np.isin(waiting.keys, gradient.keys, assume_unique=True)
        total = _add_rows(gradient, waiting.only(ours))
        goes = _largest(total) >= self.least / np.sqrt(pushing.clock + 1)
        return total.only(goes), _both(waiting.only(~ours), total.only(~goes))


def _add_rows(rows: Rows, some: Rows) -> Rows:
    total = np.array(rows.matrix)
    total[np.searchsorted(rows.keys, some.keys)] += some.matrix
    return Rows(rows.keys, frozen(total.reshape(-1)))


def _both(one: Rows, other: Rows) -> Rows:
    if not one.keys.size or not other.keys.size:
        return one if one.keys.size else other
    order = np.argsort(np.concatenate([one.keys, other.keys]))
    keys, values = np.concatenate([one.keys, other.keys])[order], np.concatenate([one.matrix, other.matrix])[order]
    return Rows(frozen_keys(keys), frozen(values.reshape(-1)))


@dataclass(frozen=True)
class RandomSkip:
    """Omits random rows, and scales the others so that their mean is the gradient."""

    probability: float

    def __call__(self, pushing: Pushing, memory: Memory) -> tuple[Rows, Memory]:
        drawn = seeds.stream(pushing.seed, "random-skip", pushing.node, pushing.clock)
        rows = pushing.gradient.only(drawn.random(pushing.gradient.keys.size) >= self.probability)
        factor = rows.values.dtype.type(1 / (1 - self.probability))
        return Rows(rows.keys, frozen(rows.values * factor)), memory


@dataclass(frozen=True)
class Kkt:
    """Omits rows that L1 holds at 0."""

    most: float

    def __call__(self, pushing: Pushing, memory: Memory) -> tuple[Rows, Memory]:
        gradient = pushing.gradient
        at = np.searchsorted(pushing.rows.keys, gradient.keys)
        known = np.minimum(at, max(pushing.rows.keys.size - 1, 0))
        here = pushing.rows.keys[known] == gradient.keys if pushing.rows.keys.size else np.zeros(at.shape, bool)
        zero = ~pushing.rows.matrix[known].any(axis=1) if pushing.rows.keys.size else np.zeros(at.shape, bool)
        return gradient.only(~(here & zero & (_largest(gradient) <= self.most))), memory


def applied(filters: Sequence[RowFilter], memories: list[Memory], pushing: Pushing) -> tuple[Rows, list[int]]:
    """Return the remaining rows after all filters, and the number of rows that each removed; memories are replaced."""
    rows, kept_back = pushing.gradient, []
    for place, one in enumerate(filters):
        before = rows.keys.size
        at = Pushing(rows, pushing.rows, pushing.clock, pushing.node, pushing.seed)
        rows, memories[place] = one(at, memories[place])
        kept_back.append(before - rows.keys.size)
    return rows, kept_back
