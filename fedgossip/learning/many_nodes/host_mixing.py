"""In-place mixing of rows on the CPU, with the bits of `vectors.ordered_mix`.

Some columns of all rows are scaled into a buffer that stays in the cache, and summed from there: every row is read
from memory once and written once, whatever the number of its receivers.

A sum begins with +0 here.  That is `ordered_mix`'s but where all terms are -0; a trained value is never -0, being
x + (t - x), so a term is -0 only where a negative number below 2^-148 was scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from fedgossip.base.vectors import RowGroups, one_scale_each
from fedgossip.learning.many_nodes.device_mixing import Rows

COLUMNS_OF_ALL = 1 << 18
"""Number of elements mixed at a time, 1 MiB: 1000 nodes of 9216 numbers and five terms take 5.8 us each, 6.3 with four
times as many, 7.3 with ten times as many, on a second level of 1 MiB."""

FEWEST_COLUMNS = 112
"""Minimum number of columns mixed at a time: 10 000 such nodes take 6.5 us each, 6.9 with 64, 11 with 32."""


class _Group(NamedTuple):
    """Rows with equal numbers of terms: `nodes` [g], None where they are all in their order; of each row `ids` [g, k].

    Of each term in its place `weights` [k, g, 1]; None where rows are scaled.
    """

    nodes: torch.Tensor | None
    ids: torch.Tensor
    weights: torch.Tensor | None


def room_of(n: int, columns: int) -> int:
    """Return how many numbers of n rows, of so many columns at most, are mixed at a time."""
    return n * min(columns, max(FEWEST_COLUMNS, COLUMNS_OF_ALL // n // 16 * 16))


class HostMixing:
    """The mixing of a round, in a buffer of `room_of` numbers."""

    def __init__(self, groups: RowGroups, n: int) -> None:
        scales = one_scale_each(groups, n, np.dtype(np.float32))
        self._scales = None if scales is None else torch.from_numpy(scales[:, None])
        self._groups = [_group_of(nodes, ids, weights, n, scales is None) for nodes, ids, weights in groups]

    @torch.no_grad()
    def mix(self, rows: Sequence[Rows], room: torch.Tensor) -> None:
        """Replace each row by the weighted sum of its senders' rows; a tensor contains some columns each."""
        for one in rows:
            n, columns = one.shape
            width = len(room) // n
            for start in range(0, columns, width):
                part = one[:, start : start + width]
                given = room[: part.numel()].view(part.shape)
                if self._scales is None:
                    given.copy_(part)
                else:
                    torch.mul(part, self._scales, out=given)
                for group in self._groups:
                    mixed = _summed(group, given)
                    if group.nodes is None:
                        part.copy_(mixed)
                    else:
                        part.index_copy_(0, group.nodes, mixed)


def _summed(group: _Group, given: torch.Tensor) -> torch.Tensor:
    if group.weights is None:
        return functional.embedding_bag(group.ids, given, mode="sum")  # row by row, term after term
    total: torch.Tensor | None = None
    for ids, weights in zip(group.ids.unbind(1), group.weights, strict=True):
        term = given.index_select(0, ids).mul_(weights)
        total = term if total is None else total.add_(term)
    assert total is not None, "a row has a term"
    return total


def _group_of(nodes: np.ndarray, ids: np.ndarray, weights: np.ndarray, n: int, weighed: bool) -> _Group:
    whole = np.array_equal(nodes, np.arange(n))
    factors = torch.from_numpy(np.ascontiguousarray(weights.T.astype(np.float32)[:, :, None])) if weighed else None
    return _Group(None if whole else torch.tensor(nodes), torch.from_numpy(ids.astype(np.int32)), factors)
