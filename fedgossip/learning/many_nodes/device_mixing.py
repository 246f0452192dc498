"""Mixing of rows on a device, with the bits of `vectors.ordered_mix`, and their disagreement.

Each product is rounded, and each sum, in the order of the terms: a row is gathered, multiplied and added, by three
operations, and never by one that multiplies and adds at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedgossip.base.vectors import RowGroups, one_scale_each

GATHERED_BYTES = {"cuda": 16 << 20}
"""Bytes of rows gathered at a time: they stay in a GPU's second-level cache until they are added."""

GATHERED_ELSEWHERE = 1 << 18
"""The same on a CPU: 58 us a node of 10 000 numbers and five terms where 16 MiB take 119."""

MEASURED_NUMBERS = 1 << 22
"""Number of elements compared at a time: 32 MiB of float64."""

Rows = torch.Tensor
"""[n, P], float32."""


class _TermGroup(NamedTuple):
    """Rows with equal numbers of terms: `nodes` [g]; of each term in its place `ids` [k, g] and `weights` [k, g, 1]."""

    nodes: torch.Tensor | None
    """None where they are all nodes in their order."""
    ids: torch.Tensor
    weights: torch.Tensor


class DeviceMixing:
    """The mixing of a round, on the device.  `scales` [n, 1]: common factor of a row where all its receivers weigh it
    alike, as on regular graphs; it is then scaled once, in place, instead of once per receiver.
    """

    def __init__(self, groups: RowGroups, n: int, device: torch.device) -> None:
        self._groups = [_group_of(nodes, ids, weights, n, device) for nodes, ids, weights in groups]
        scales = one_scale_each(groups, n, np.dtype(np.float32))
        self._scales = None if scales is None else torch.from_numpy(scales[:, None]).to(device)

    def scale(self, rows: Sequence[Rows]) -> None:
        """Scale rows in place, with some columns each per tensor.  Precedes `mix`, once."""
        if self._scales is not None:
            for one in rows:
                one.mul_(self._scales)

    def mix(self, rows: Sequence[Rows], into: Sequence[Rows], most: int) -> None:
        """Write the weighted sums of the scaled rows `into` others, for at most `most` nodes at a time."""
        for source, out in zip(rows, into, strict=True):
            room = GATHERED_BYTES.get(source.device.type, GATHERED_ELSEWHERE)
            at_once = max(1, min(most, room // (4 * source.shape[1])))
            for group in self._groups:
                for start in range(0, group.ids.shape[1], at_once):
                    self._mix(group, slice(start, start + at_once), source, out)

    def _mix(self, group: _TermGroup, part: slice, source: Rows, out: Rows) -> None:
        ids = [one[part] for one in group.ids]
        total = source.index_select(0, ids[0]) if group.nodes is not None else out[part]
        if group.nodes is None:
            torch.index_select(source, 0, ids[0], out=total)
        self._weigh(total, group, 0, part)
        for slot in range(1, len(ids)):
            term = source.index_select(0, ids[slot])
            self._weigh(term, group, slot, part)
            total.add_(term)
        if group.nodes is not None:
            out.index_copy_(0, group.nodes[part], total)

    def _weigh(self, term: Rows, group: _TermGroup, slot: int, part: slice) -> None:
        if self._scales is None:
            term.mul_(group.weights[slot, part])


def _group_of(nodes: np.ndarray, ids: np.ndarray, weights: np.ndarray, n: int, device: torch.device) -> _TermGroup:
    whole = np.array_equal(nodes, np.arange(n))
    turned = np.ascontiguousarray(ids.T), np.ascontiguousarray(weights.T.astype(np.float32)[:, :, None])
    there = [torch.from_numpy(one).to(device) for one in turned]
    return _TermGroup(None if whole else torch.tensor(nodes, device=device), *there)


def squared_distance(rows: Sequence[Rows], since: Sequence[Rows] | None = None) -> torch.Tensor:
    """Return sum_i ||x_i - mean||^2 in float64, on the device; with `since` of the differences x_i - since_i.

    Each difference is rounded once to float32, as `vectors.consensus_distance` rounds it.
    """

    def apart(block: torch.Tensor) -> torch.Tensor:
        return block - block.mean(0)

    return _summed(rows, since, apart)


def squared_size(rows: Sequence[Rows]) -> torch.Tensor:
    """Return sum_i ||x_i||^2 in float64, on the device."""
    return _summed(rows, None, lambda block: block)


def _summed(
    rows: Sequence[Rows], since: Sequence[Rows] | None, of: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64, device=rows[0].device)
    for place, one in enumerate(rows):
        n, columns = one.shape
        width = max(1, MEASURED_NUMBERS // n)
        for start in range(0, columns, width):
            block = one[:, start : start + width]
            if since is not None:
                block = block - since[place][:, start : start + width]
            total += of(block.double()).square_().sum()
    return total
