"""Partitions: every example belongs to one peer, and every peer has at least one; and local data, a separate file per
peer.

    partition("dirichlet", labels, 16, seed=1, alpha=0.1)  ->  16 ascending, disjoint index arrays

Local data are named by `{peer}`, or a function:

    data.source = "csv:site-{peer}.csv?label=kind"        peer 3 reads only site-3.csv
    data.partition = { kind = "own" }
    data.test = "csv:common.csv?label=kind"               a file that all peers have

    data.source = "population:client"                     def client(number): return x, y: peer 3's are client(3)

The common test set defines columns and classes, for peers that never see each other's records.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, FedgossipError, nearest
from fedgossip.base.seeds import stream
from fedgossip.core.machine import NodeId
from fedgossip.data import custom
from fedgossip.data.data import load, make_twice
from fedgossip.data.dataset import Dataset
from fedgossip.data.ragged import joined

Indices = npt.NDArray[np.int64]

MAX_DRAWS = 1000  # of a Dirichlet partition, until every peer has min_size examples


def partition(
    kind: str, labels: npt.ArrayLike, n: int, *, seed: int, groups: npt.ArrayLike | None = None, **params: Any
) -> list[Indices]:
    """Return n ascending, disjoint index arrays that together hold every example.

    labels: int [m] (of int [m, context], text, the last column).  groups: int [m], only for "natural".

        kind           params (default)              each peer has
        iid                                          a random nth of the examples
        dirichlet      alpha, min_size (10)          of every class a share drawn from Dir(alpha): small alpha, unlike
        peers
        shard          shards_per_peer (2)           that many slices of the examples sorted by label
        pathological   classes_per_peer (2)          exactly that many classes
        similar        share (0.1)                   that share of random examples, and a slice of the others, by label
        size-skewed    exponent (1.0) or sigma       random examples; sizes follow rank^-exponent or exp(sigma * normal)
        natural                                      whole groups: speakers, hospitals, devices

    Raises ConfigError for an unknown kind or parameter, and if a peer would have no example.
    """
    if kind not in KINDS:
        raise ConfigError(f"unknown partition {kind!r}", nearest(kind, KINDS))
    split, known = KINDS[kind]
    for name in params:
        if name not in known:
            near = nearest(name, known)
            what = near if near.startswith("Did") else f"It takes {' and '.join(known) or 'none'}."
            advice = f"{what}  --set 'data.partition={{kind=\"{kind}\"}}' replaces all of the file's."
            raise ConfigError(f"partition {kind!r}: unknown parameter {name!r}", advice)
    classes = np.asarray(labels)
    classes = classes if classes.ndim == 1 else classes[:, -1]
    if not 1 <= n <= len(classes):
        raise ConfigError(
            f"partition {kind!r}: {len(classes)} examples for {n} peers; an empty partition is useless",
            "Use at least one peer, and at most one per example.",
        )
    if kind == "natural":
        params["groups"] = groups
    shares = [
        np.sort(share).astype(np.int64, copy=False)
        for share in split(classes, n, stream(seed, "partition", n), **params)
    ]
    for peer, share in enumerate(shares):
        if len(share) == 0:
            raise ConfigError(f"partition {kind!r}: peer {peer} has no example, an empty partition", "Use fewer peers.")
    return shares


def iid(labels: Indices, n: int, random: np.random.Generator) -> list[Indices]:
    return np.array_split(random.permutation(len(labels)), n)


def dirichlet(
    labels: Indices, n: int, random: np.random.Generator, *, alpha: float = 0.0, min_size: int = 10
) -> list[Indices]:
    """Return shares that divide every class by a separate draw of Dir(alpha, ..., alpha) over the peers.

    Drawn at most MAX_DRAWS times, until every peer has min_size examples.  Raises ConfigError.  Source: Yurochkin et
    al., Bayesian nonparametric federated learning, ICML 2019; Li et al., NIID-Bench, ICDE 2022.
    """
    alpha = _positive("dirichlet", "alpha", alpha, "Give alpha: 0.1 is very unlike, 100 nearly iid.")
    _count("dirichlet", "min_size", min_size, 0)
    counts = np.unique(labels, return_counts=True)[1]
    for _ in range(MAX_DRAWS):
        shares = random.dirichlet(np.full(n, alpha), size=len(counts))
        ends = np.round(np.cumsum(shares, axis=1) * counts[:, None]).astype(np.int64)
        ends[:, -1] = counts
        sizes = np.diff(ends, axis=1, prepend=0)
        if sizes.sum(axis=0).min() >= max(1, min_size):
            return _deal(labels, n, sizes, random)
    raise ConfigError(
        f"partition 'dirichlet': {MAX_DRAWS} draws with alpha = {alpha:g} left one of {n} peers with fewer than "
        f"{min_size} of {len(labels)} examples",
        "Use a larger alpha, a smaller min_size or fewer peers.",
    )


def shard(labels: Indices, n: int, random: np.random.Generator, *, shards_per_peer: int = 2) -> list[Indices]:
    """Return shares of `shards_per_peer` slices each.  Raises ConfigError if a share would be empty.

    Source: McMahan et al., AISTATS 2017, section 3.
    """
    _count("shard", "shards_per_peer", shards_per_peer, 1)
    total = n * shards_per_peer
    if total > len(labels):
        raise ConfigError(
            f"partition 'shard': {total} shards of {len(labels)} examples; some peer gets an empty partition",
            "Use fewer shards_per_peer or fewer peers.",
        )
    shuffled = random.permutation(len(labels))
    slices = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], total)
    dealt = random.permutation(total).reshape(n, shards_per_peer)
    return [np.concatenate([slices[s] for s in mine]) for mine in dealt]


def similar(labels: Indices, n: int, random: np.random.Generator, *, share: float = 0.1) -> list[Indices]:
    """Return shares with a part `share` of random examples, and the rest one slice of the others, sorted by label.

    Raises ConfigError for another share.  Source: Karimireddy et al., SCAFFOLD, ICML 2020, section 7.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ConfigError(f"partition 'similar': share = {share!r}", "Give a share from 0, sorted, to 1, all random.")
    order = random.permutation(len(labels))
    cut = round(share * len(labels))
    spread, rest = order[:cut], order[cut:]
    rest = rest[np.argsort(labels[rest], kind="stable")]
    ends = np.arange(n + 1) * len(rest) // n  # unlike sizes of the one are made up for by the other
    whole = np.arange(n + 1) * len(labels) // n - ends
    return [np.concatenate([spread[whole[i] : whole[i + 1]], rest[ends[i] : ends[i + 1]]]) for i in range(n)]


def pathological(labels: Indices, n: int, random: np.random.Generator, *, classes_per_peer: int = 2) -> list[Indices]:
    """Return shares of exactly `classes_per_peer` classes; the peers of a class share it evenly.

    Raises ConfigError if the classes are too few, or too many.
    """
    counts = np.unique(labels, return_counts=True)[1]
    _count("pathological", "classes_per_peer", classes_per_peer, 1)
    if classes_per_peer > len(counts):
        raise ConfigError(
            f"partition 'pathological': {classes_per_peer} classes per peer, but the labels have {len(counts)}",
            f"Use classes_per_peer = {len(counts)} at most.",
        )
    if n * classes_per_peer < len(counts):
        raise ConfigError(
            f"partition 'pathological': {n} peers with {classes_per_peer} classes each cannot hold {len(counts)}",
            f"Use classes_per_peer = {-(-len(counts) // n)} or more peers.",
        )
    slots = np.arange(n * classes_per_peer).reshape(n, classes_per_peer) % len(counts)
    held = np.zeros((len(counts), n), np.bool_)
    held[random.permutation(len(counts))[slots], random.permutation(n)[:, None]] = True
    holders = held.sum(axis=1)
    if (holders > counts).any():
        bad = int(np.argmax(holders > counts))
        raise ConfigError(
            f"partition 'pathological': class {np.unique(labels)[bad]} has {counts[bad]} examples for {holders[bad]} "
            "peers; one of them gets none",
            "Use fewer peers or fewer classes_per_peer.",
        )
    ends = np.cumsum(held, axis=1) * counts[:, None] // holders[:, None]
    return _deal(labels, n, np.diff(ends, axis=1, prepend=0), random)


def size_skewed(
    labels: Indices,
    n: int,
    random: np.random.Generator,
    *,
    exponent: float | None = None,
    sigma: float | None = None,
) -> list[Indices]:
    """Return random shares of very different sizes, at least one example each.

    Raises ConfigError if both `exponent` and `sigma` are given.
    """
    if exponent is not None and sigma is not None:
        raise ConfigError("partition 'size-skewed': exponent and sigma are both given", "Give one of them.")
    if sigma is not None:
        weights = np.exp(_positive("size-skewed", "sigma", sigma, "1 is skewed, 2 very.") * random.standard_normal(n))
    else:
        power = 1.0 if exponent is None else exponent
        weights = np.arange(1, n + 1) ** -_positive("size-skewed", "exponent", power, "1 is Zipf's law.")
        weights = random.permutation(weights)
    ends = np.round(np.cumsum(weights) / weights.sum() * (len(labels) - n)).astype(np.int64) + np.arange(1, n + 1)
    return np.split(random.permutation(len(labels)), ends[:-1])


def natural(
    labels: Indices,
    n: int,
    random: np.random.Generator,  # noqa: ARG001
    *,
    groups: npt.ArrayLike | None = None,
) -> list[Indices]:
    """Return shares of whole groups, balanced: the largest remaining group goes to the smallest peer.

    Raises ConfigError for data without groups, and for fewer groups than peers.
    """
    if groups is None:
        raise ConfigError(
            "partition 'natural': the data have no groups", "Use text, a csv with group=COLUMN or an npz with groups."
        )
    ids = np.asarray(groups)
    if len(ids) != len(labels):
        raise ConfigError(f"partition 'natural': {len(ids)} groups for {len(labels)} labels", "One group per example.")
    _, member, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    if n > len(sizes):
        raise ConfigError(
            f"partition 'natural': {n} peers but {len(sizes)} groups; some peer gets an empty partition",
            f"Use at most {len(sizes)} peers.",
        )
    owner = np.empty(len(sizes), np.int64)
    peers = [(0, peer) for peer in range(n)]
    for group in np.argsort(-sizes, kind="stable"):
        load, peer = heapq.heappop(peers)
        owner[group] = peer
        heapq.heappush(peers, (load + int(sizes[group]), peer))
    return _group_by_owner(owner[member.reshape(-1)], np.arange(len(labels)), n)


Kind = Callable[..., list[Indices]]

KINDS: Mapping[str, tuple[Kind, tuple[str, ...]]] = {
    "iid": (iid, ()),
    "dirichlet": (dirichlet, ("alpha", "min_size")),
    "shard": (shard, ("shards_per_peer",)),
    "pathological": (pathological, ("classes_per_peer",)),
    "similar": (similar, ("share",)),
    "size-skewed": (size_skewed, ("exponent", "sigma")),
    "natural": (natural, ()),
}


def _deal(labels: Indices, n: int, sizes: Indices, random: np.random.Generator) -> list[Indices]:
    """Return shares with sizes[c, i] random examples of class c at peer i (rows: classes, ascending)."""
    shuffled = random.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return _group_by_owner(np.repeat(np.tile(np.arange(n), len(sizes)), sizes.reshape(-1)), by_class, n)


def _group_by_owner(owner: Indices, examples: Indices, n: int) -> list[Indices]:
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=n))
    return np.split(examples[order], ends[:-1])


def _positive(kind: str, name: str, value: object, advice: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ConfigError(f"partition {kind!r}: {name} = {value!r}; expected a number above 0", advice)
    return float(value)


def _count(kind: str, name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"partition {kind!r}: {name} = {value!r}; expected a whole number, at least {least}",
            "Write it without a point.",
        )


def count_held_out(owned: int, share: float) -> int:
    """Return the number of a node's examples that `hold_out` holds out for tests."""
    return max(0, min(owned - 1, max(1, round(share * owned))))


def hold_out(
    shares: Mapping[NodeId, Indices], share: float, seed: int
) -> tuple[dict[NodeId, Indices], dict[NodeId, Indices]]:
    """Return (to train on, to test on) of each node: a drawn `share`, at least one; a single example is for
    training.
    """
    train, test = {}, {}
    for node, owned in shares.items():
        order = stream(seed, "local test", node).permutation(owned)
        count = count_held_out(len(owned), share)
        test[node], train[node] = np.sort(order[:count]), np.sort(order[count:])
    return train, test


PLACE = "{peer}"

DrawExamples = Callable[[Sequence[int]], tuple[Dataset, Mapping[int, Indices]]]
"""Creates the examples of the given peers, and the indices of each one's."""


def load_own(
    source: str, test: Dataset, peers: Sequence[int], *, base: Path | None = None
) -> tuple[Dataset, dict[int, Indices]]:
    """Return the examples of `peers`, one after another, and each one's indices; for no peers the test set, without
    shares.

    Scaled as the test set: `data.scaled_by_test`.  Raises ConfigError for a missing file, and other columns or labels
    than `test`.
    """
    standard = test.scale != "none"
    if custom.is_function(source):
        parts = [_load_peer(source, test, peer, base, standard=standard) for peer in peers]
    else:
        parts = [load(source.replace(PLACE, str(peer)), base=base, like=test, standard=standard) for peer in peers]
    return together(source, test, peers, parts)


def check_drawn(source: str, test: Dataset, peer: int) -> None:
    """Raise ConfigError if a second call of the function returns other examples, and as `load_own` does."""
    make_twice(f"client {peer}: {source}", lambda: _load_peer(source, test, peer, None, standard=test.scale != "none"))


def _load_peer(source: str, test: Dataset, peer: int, base: Path | None, *, standard: bool) -> Dataset:
    try:
        return load(source, base=base, like=test, standard=standard, client=peer)
    except FedgossipError as error:
        raise type(error)(f"client {peer}: {error}", error.advice) from error


def together(
    source: str, test: Dataset, peers: Sequence[int], parts: Sequence[Dataset]
) -> tuple[Dataset, dict[int, Indices]]:
    """Return the examples of peers as one set, and the indices of each peer's; for none the test set,
    without shares.
    """
    if not parts:
        return test, {}
    ends = np.cumsum([len(part) for part in parts])
    shares = {
        peer: np.arange(end - len(part), end) for peer, part, end in zip(peers, parts, ends.tolist(), strict=True)
    }
    x, y = joined([part.x for part in parts]), joined([part.y for part in parts])
    notes = tuple(note for part in parts for note in part.notes)
    return replace(parts[0], name=source, x=x, y=y, groups=None, group_names=(), own_test=None, notes=notes), shares
