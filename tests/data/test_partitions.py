"""Partitions are disjoint, cover everything, and leave nobody with nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream
from fedgossip.data.partitions import partition


def labels_of(m: int, classes: int, seed: int = 0) -> np.ndarray:
    """Every class at least once."""
    return stream(seed, "labels").permutation(np.arange(m) % classes)


def check(shares: list[np.ndarray], m: int, n: int) -> None:
    assert len(shares) == n
    assert all(len(share) and np.all(np.diff(share) > 0) for share in shares)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(m))


KINDS = st.sampled_from(
    [
        ("iid", {}),
        ("dirichlet", {"alpha": 10.0, "min_size": 1}),
        ("shard", {"shards_per_peer": 2}),
        ("shard", {"shards_per_peer": 3}),
        ("size-skewed", {}),
        ("size-skewed", {"sigma": 1.5}),
        ("size-skewed", {"exponent": 2.0}),
        ("natural", {}),
    ]
)


@settings(max_examples=150, deadline=None)
@given(kind=KINDS, m=st.integers(60, 300), n=st.integers(1, 12), classes=st.integers(2, 7), seed=st.integers(0, 99))
def test_every_example_belongs_to_exactly_one_peer(kind, m, n, classes, seed):
    name, params = kind
    groups = np.arange(m) % 13 if name == "natural" else None
    shares = partition(name, labels_of(m, classes, seed), n, seed=seed, groups=groups, **params)
    check(shares, m, n)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), classes=st.integers(2, 8), n=st.integers(1, 12), seed=st.integers(0, 99))
def test_a_pathological_peer_has_exactly_its_number_of_classes(data, classes, n, seed):
    k = data.draw(st.integers(-(-classes // n), classes))
    labels = labels_of(classes * 20, classes, seed)
    shares = partition("pathological", labels, n, seed=seed, classes_per_peer=k)
    check(shares, len(labels), n)
    assert all(len(np.unique(labels[share])) == k for share in shares)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_of_similar_peers_a_share_is_random_and_the_rest_one_slice_by_label(share):
    labels = np.repeat(np.arange(10), 50)
    shares = partition("similar", labels, 10, seed=3, share=share)
    assert sorted(np.concatenate(shares)) == list(range(500)) and {len(one) for one in shares} == {50}
    most = np.mean([np.bincount(labels[one]).max() / 50 for one in shares])
    assert most == 1 if share == 0 else 0.75 < most < 0.99 if share == 0.1 else most < 0.35


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shard", "pathological", "similar", "size-skewed"])
def test_a_partition_is_a_function_of_its_seed(kind):
    labels = labels_of(400, 5)
    params = {"alpha": 0.5} if kind == "dirichlet" else {}
    one, again, other = (partition(kind, labels, 8, seed=seed, **params) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_small_alpha_makes_peers_unlike():
    labels = labels_of(4000, 10)

    def largest_class(alpha: float) -> float:
        shares = partition("dirichlet", labels, 10, seed=0, alpha=alpha, min_size=5)
        return float(np.mean([np.bincount(labels[s], minlength=10).max() / len(s) for s in shares]))

    assert largest_class(0.1) > 0.4
    assert largest_class(1000.0) < 0.15


def test_a_dirichlet_share_has_the_mean_of_its_distribution():
    """E[share of a peer] = 1 / n for every class: over many draws, within five standard errors."""
    labels = labels_of(1000, 2)
    sizes = [[len(s) for s in partition("dirichlet", labels, 4, seed=k, alpha=1.0, min_size=1)] for k in range(200)]
    assert np.allclose(np.mean(sizes, axis=0), 250, atol=5 * np.std(sizes) / np.sqrt(200))


def test_two_shards_hold_few_classes():
    labels = labels_of(1000, 10)
    shares = partition("shard", labels, 10, seed=0)
    assert all(len(np.unique(labels[share])) <= 4 for share in shares)


def test_sizes_of_zipf_follow_the_ranks():
    sizes = sorted(map(len, partition("size-skewed", np.zeros(10_000, int), 4, seed=0)), reverse=True)
    expected = 10_000 / (1 + 1 / 2 + 1 / 3 + 1 / 4) / np.arange(1, 5)
    assert np.allclose(sizes, expected, atol=5)


def test_groups_stay_whole_and_loads_even():
    groups = np.repeat(np.arange(6), [50, 40, 30, 20, 10, 10])
    shares = partition("natural", np.zeros(160, int), 2, seed=0, groups=groups)
    check(shares, 160, 2)
    assert [len(share) for share in shares] == [80, 80]
    owners = [set(groups[share]) for share in shares]
    assert not owners[0] & owners[1]


def test_text_labels_are_the_last_character():
    windows = np.stack([np.zeros(40, int), np.arange(40) % 2], axis=1)
    shares = partition("pathological", windows, 4, seed=0, classes_per_peer=1)
    assert all(len(np.unique(windows[share, 1])) == 1 for share in shares)


@pytest.mark.parametrize(
    ("kind", "n", "params", "message", "advice"),
    [
        ("dirichle", 4, {}, "unknown partition", "dirichlet"),
        ("dirichlet", 4, {"alfa": 0.1}, "unknown parameter 'alfa'", "alpha"),
        ("dirichlet", 4, {}, "alpha", "Give alpha"),
        ("dirichlet", 20, {"alpha": 0.01, "min_size": 9}, "fewer than 9 of 200", "larger alpha, a smaller min_size"),
        ("iid", 201, {}, "an empty partition", "at most one per example"),
        ("iid", 0, {}, "0 peers", "at least one"),
        ("shard", 150, {}, "an empty partition", "fewer"),
        ("shard", 5, {"shards_per_peer": 0}, "shards_per_peer", "whole|point"),
        ("pathological", 4, {"classes_per_peer": 6}, "6 classes per peer", "classes_per_peer = 5"),
        ("pathological", 2, {"classes_per_peer": 1}, "cannot hold 5", "classes_per_peer = 3"),
        ("pathological", 150, {"classes_per_peer": 5}, "one of them gets none", "fewer peers"),
        ("size-skewed", 4, {"sigma": 1.0, "exponent": 1.0}, "both given", "one of them"),
        ("natural", 4, {}, "no groups", "group="),
        ("iid", 4, {"alpha": 1}, "unknown parameter", "none"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_a_remedy(kind, n, params, message, advice):
    with pytest.raises(ConfigError, match=message) as error:
        partition(kind, labels_of(200, 5), n, seed=0, **params)
    assert any(word in error.value.advice for word in advice.split("|"))


def test_more_peers_than_groups_are_refused():
    with pytest.raises(ConfigError, match="4 peers but 3 groups") as error:
        partition("natural", np.zeros(9, int), 4, seed=0, groups=np.arange(9) % 3)
    assert "at most 3" in error.value.advice
