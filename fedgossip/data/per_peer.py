"""Local data: every peer reads a file of its own, which `{peer}` in the source names.

    data.source = "csv:site-{peer}.csv?label=kind"        peer 3 reads site-3.csv, and no other peer's file
    data.partition = { kind = "own" }
    data.test = "csv:common.csv?label=kind"               a file that all peers have

    data.source = "population:client"                     def client(number): return x, y: peer 3's are client(3)

The common test set defines columns and classes, for peers that never see each other's records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgossip.base.errors import FedgossipError
from fedgossip.data import custom
from fedgossip.data.data import load
from fedgossip.data.dataset import Dataset, Indices
from fedgossip.data.ragged import joined

PLACE = "{peer}"

DrawExamples = Callable[[Sequence[int]], tuple[Dataset, Mapping[int, Indices]]]
"""Makes the examples of the named peers, and the places of each one's."""


def load_own(
    source: str, test: Dataset, peers: Sequence[int], *, base: Path | None = None
) -> tuple[Dataset, dict[int, Indices]]:
    """Return the examples of `peers`, one peer's after another's, and the places of each peer's.

    For no peers the test set itself, without shares: an evaluator needs no more.  Where the test set is to be scaled
    they are, too: see `data.scaled_by_test`.  Raises ConfigError where a file of `peers` is missing, or has other
    columns or labels than `test`.
    """
    standard = test.scale != "none"
    if custom.is_function(source):
        parts = [_drawn(source, test, peer, base, standard=standard) for peer in peers]
    else:
        parts = [load(source.replace(PLACE, str(peer)), base=base, like=test, standard=standard) for peer in peers]
    return together(source, test, peers, parts)


def _drawn(source: str, test: Dataset, peer: int, base: Path | None, *, standard: bool) -> Dataset:
    """Return what the function gives for `peer`; every error names the peer."""
    try:
        return load(source, base=base, like=test, standard=standard, client=peer)
    except FedgossipError as error:
        raise type(error)(f"client {peer}: {error}", error.advice) from error


def together(
    source: str, test: Dataset, peers: Sequence[int], parts: Sequence[Dataset]
) -> tuple[Dataset, dict[int, Indices]]:
    """Return the examples of peers as one set, and the places of each peer's; for none the test set, without shares."""
    if not parts:
        return test, {}
    ends = np.cumsum([len(part) for part in parts])
    shares = {
        peer: np.arange(end - len(part), end) for peer, part, end in zip(peers, parts, ends.tolist(), strict=True)
    }
    x, y = joined([part.x for part in parts]), joined([part.y for part in parts])
    notes = tuple(note for part in parts for note in part.notes)
    return replace(parts[0], name=source, x=x, y=y, groups=None, group_names=(), own_test=None, notes=notes), shares
