"""The order of summation is part of the result, and warm memory is nobody else's."""

from __future__ import annotations

import hashlib
import sys
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.algorithms.gossip.base import Step
from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.algorithms.gossip.gradient_tracking import GradientTracking
from fedgossip.base import vectors
from fedgossip.base.vectors import (
    Vector,
    add,
    consensus_distance,
    digest,
    empty,
    frozen,
    linear,
    linear_of,
    mean,
    ordered_mix,
    ordered_mix_rows,
    subtract,
)

POOLED = vectors._POOLED_BYTES // 4
"""float32 elements of the smallest block that is kept warm."""

kinds = st.sampled_from([np.float32, np.float64])


def drawn(seed: int, shape: tuple[int, ...], kind: Any) -> Any:
    """Numbers of very different sizes: sums in another order have other bits."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 7, shape)).astype(kind)


def two_roundings(weights: list[float], terms: list[Vector]) -> list[bytes]:
    """The plain loop over single numbers: product, rounded; sum, rounded."""
    kind = terms[0].dtype.type
    sums = []
    for column in range(terms[0].size):
        total = kind(weights[0]) * terms[0][column]
        for weight, term in zip(weights[1:], terms[1:], strict=True):
            total = total + kind(weight) * term[column]
        sums.append(total.tobytes())
    return sums


# --- ordered_mix ----------------------------------------------------------------------------------------------------

weight_lists = st.lists(st.floats(-2, 2), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(weight_lists, st.integers(1, 300), kinds, st.integers(0, 2**32), st.integers(1, 70))
def test_ordered_mix_is_the_plain_loop_bit_for_bit(
    weights: list[float], length: int, kind: Any, seed: int, block: int
) -> None:
    terms = list(drawn(seed, (len(weights), length), kind))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "BLOCK", block)
        mixed = ordered_mix(list(zip(weights, terms, strict=True)))
    assert [x.tobytes() for x in mixed] == two_roundings(weights, terms)


@pytest.mark.parametrize("length", [vectors.BLOCK - 1, vectors.BLOCK, vectors.BLOCK + 1, 3 * vectors.BLOCK + 5])
def test_blocks_do_not_show(length: int) -> None:
    a, b, c = drawn(length, (3, length), np.float32)
    third = np.float32(1 / 3)
    assert np.array_equal(ordered_mix([(1 / 3, a), (1 / 3, b), (1 / 3, c)]), (a * third + b * third) + c * third)


@settings(max_examples=60, deadline=None)
@given(weight_lists, st.integers(1, 90), st.integers(0, 2**32), st.integers(1, 40), st.data())
def test_a_term_given_up_to_the_sum_does_not_change_it(
    weights: list[float], length: int, seed: int, block: int, data: st.DataObject
) -> None:
    terms = list(drawn(seed, (len(weights), length), np.float32))
    expected = two_roundings(weights, terms)
    into = terms[data.draw(st.integers(0, len(terms) - 1))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "BLOCK", block)
        mixed = ordered_mix(list(zip(weights, terms, strict=True)), into)
    assert mixed is into and [x.tobytes() for x in mixed] == expected


def test_only_the_term_given_up_is_written_to() -> None:
    terms = [frozen(v) for v in drawn(1, (3, 50), np.float32)]
    before = [v.copy() for v in terms]
    mixed = ordered_mix([(0.5, v) for v in terms])
    assert all(np.array_equal(a, b) for a, b in zip(terms, before, strict=True))
    assert not any(np.shares_memory(mixed, v) for v in terms)


def test_the_order_of_terms_shows_in_the_bits() -> None:
    a, b, c = drawn(7, (3, 1000), np.float32)
    forward, backward = (ordered_mix([(1 / 3, v) for v in order]) for order in ((a, b, c), (c, b, a)))
    assert np.allclose(forward, backward, rtol=1e-3) and not np.array_equal(forward, backward)


def test_a_mix_is_frozen() -> None:
    with pytest.raises(ValueError, match="read-only"):
        ordered_mix([(1.0, np.ones(3, np.float32))])[0] = 2.0


def test_mixing_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to mix"):
        ordered_mix([])


# --- ordered_mix_rows -----------------------------------------------------------------------------------------------


def irregular(rng: np.random.Generator, n: int) -> list[dict[int, float]]:
    """One row of weights per node, ids ascending, its own among them, of any number of neighbours."""
    rows = []
    for node in range(n):
        others = set(rng.choice(n, rng.integers(0, n), replace=False).tolist()) | {node}
        rows.append({j: float(rng.uniform(-1, 1)) for j in sorted(others)})
    return rows


def grouped(rows: list[dict[int, float]]) -> vectors.RowGroups:
    groups = []
    for size in sorted({len(row) for row in rows}):
        nodes = [i for i, row in enumerate(rows) if len(row) == size]
        ids = np.array([list(rows[i]) for i in nodes], np.int64)
        groups.append((np.array(nodes, np.int64), ids, np.array([list(rows[i].values()) for i in nodes], np.float64)))
    return groups


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.sampled_from([1, 7, 64, 65, 200]), kinds, st.integers(0, 2**32))
def test_all_rows_at_once_are_each_row_alone_bit_for_bit(n: int, d: int, kind: Any, seed: int) -> None:
    rows = irregular(np.random.default_rng(seed), n)
    stacked, out = drawn(seed, (n, d), kind), np.full((n, d), np.nan, kind)
    ordered_mix_rows(grouped(rows), stacked, out)
    for node, row in enumerate(rows):
        assert out[node].tobytes() == ordered_mix([(w, stacked[j]) for j, w in row.items()]).tobytes()


def test_blocks_of_columns_do_not_show() -> None:
    n, d = 1500, 400  # two blocks and a part of one
    rng = np.random.default_rng(0)
    rows = [dict.fromkeys(sorted({(i - 1) % n, i, (i + 1) % n}), 1 / 3) for i in range(n)]
    stacked, out = rng.standard_normal((n, d)).astype(np.float32), np.empty((n, d), np.float32)
    ordered_mix_rows(grouped(rows), stacked, out)
    for node in (0, 1, 700, n - 1):
        assert np.array_equal(out[node], ordered_mix([(w, stacked[j]) for j, w in rows[node].items()]))


# --- warm memory ----------------------------------------------------------------------------------------------------


def where(vector: Vector) -> int:
    return vector.__array_interface__["data"][0]  # type: ignore[no-any-return]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_pool", vectors._Pool(vectors._count_of_a_free_block()))


@pytest.mark.usefixtures("pool")
def test_memory_that_nobody_refers_to_is_handed_out_again() -> None:
    first = empty(POOLED, np.float32)
    at = where(first)
    del first
    assert where(empty(POOLED, np.float32)) == at


KEEPERS = {
    "the vector": lambda v: v,
    "a slice": lambda v: v[5:6],
    "a view of another type": lambda v: v.view(np.uint8),
    "a memoryview": lambda v: v.view(np.uint8).data,
    "a slice of a memoryview": lambda v: v.view(np.uint8).data[7:9],
    "a reshaped view": lambda v: v.reshape(2, -1),
    "a frozen vector": frozen,
    "a tuple": lambda v: (v, 1),
}


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_memory_that_somebody_refers_to_is_not_handed_out(keep: Any) -> None:
    first = empty(POOLED, np.float32)
    at, kept = where(first), keep(first)
    del first
    others = [empty(POOLED, np.float32) for _ in range(2 * vectors._POOLED_BLOCKS)]
    assert at not in {where(v) for v in others}
    del kept, others


def test_the_count_of_a_free_block_is_measured() -> None:
    assert vectors._count_of_a_free_block() is not None  # the pool is at work on this interpreter


@pytest.mark.parametrize(
    "blind",
    [
        lambda blocks: iter([3] * len(blocks)),  # views are not seen at all
        lambda blocks: (2 * count for count in vectors._references(blocks)),  # a view is two more
    ],
)
def test_counts_that_do_not_tell_a_view_are_not_relied_on(blind: Any) -> None:
    assert vectors._count_of_a_free_block(blind) is None


def test_an_interpreter_that_counts_otherwise_has_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.implementation, "name", "pypy")
    assert vectors._count_of_a_free_block() is None


def test_without_counts_memory_is_fresh_and_never_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_pool", vectors._Pool(None))
    first = empty(POOLED, np.float32)
    assert not np.shares_memory(first, empty(POOLED, np.float32))
    assert not vectors._pool._blocks


@pytest.mark.usefixtures("pool")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.sampled_from([POOLED, POOLED + 1])), max_size=60))
def test_vectors_in_use_never_overlap(steps: list[tuple[bool, int, int]]) -> None:
    held: list[Vector] = []
    for take, which, length in steps:
        if take or not held:
            held.append(empty(length, np.float32))
        else:
            del held[which % len(held)]
        spans = sorted((where(v), where(v) + v.nbytes) for v in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.usefixtures("pool")
def test_threads_are_never_handed_the_same_memory() -> None:
    clashes: list[int] = []

    def work(mark: int) -> None:
        for _ in range(200):
            mine = empty(POOLED, np.float32)
            mine[::4096] = mark
            if not (mine[::4096] == mark).all():
                clashes.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []


@pytest.mark.usefixtures("pool")
def test_the_pool_keeps_a_bounded_number_of_blocks() -> None:
    held = [empty(POOLED, np.float32) for _ in range(40)]
    assert sum(map(len, vectors._pool._blocks.values())) <= vectors._POOLED_BLOCKS
    del held


@pytest.mark.usefixtures("pool")
def test_vectors_of_several_sizes_take_turns_without_losing_their_memory() -> None:
    """A whole gradient and its chunks: what one of them asks for does not drop the blocks of the other."""
    at = {length: where(empty(length, np.float32)) for length in (POOLED, 4 * POOLED)}
    assert all(where(empty(length, np.float32)) == place for _ in range(3) for length, place in at.items())


@pytest.mark.usefixtures("pool")
def test_blocks_of_a_size_no_longer_asked_for_are_let_go() -> None:
    del_me = [empty(POOLED, np.float32) for _ in range(4)]
    del del_me
    others = [empty(more * POOLED, np.float32) for more in range(2, 2 + vectors._POOLED_SIZES)]
    assert set(vectors._pool._blocks) == {other.nbytes for other in others}


# --- small ones -----------------------------------------------------------------------------------------------------


def test_a_digest_is_the_sha256_of_the_little_endian_bytes_in_order() -> None:
    a, b = np.arange(5, dtype=np.float32), np.arange(3, dtype=np.float32)
    expected = hashlib.sha256(a.astype("<f4").tobytes() + b.astype("<f4").tobytes()).hexdigest()
    assert digest([a, b]) == digest([a.astype(">f4"), b]) == expected


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 50), st.integers(0, 2**32))
def test_consensus_distance_is_its_formula(n: int, d: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((n, d))
    expected = np.sqrt(((x - x.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert consensus_distance(x) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_mean_of_float32_is_rounded_once() -> None:
    x = drawn(3, (101, 30), np.float32)
    assert np.array_equal(mean(list(x)), x.astype(np.float64).sum(axis=0).__truediv__(101).astype(np.float32))


def test_a_difference_is_new_and_frozen() -> None:
    left, right = np.array([3.0, 5.0]), np.array([1.0, 1.5])
    out = vectors.subtract(left, right)
    assert out.tolist() == [2.0, 3.5] and not out.flags.writeable and left.tolist() == [3.0, 5.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, vectors.BLOCK - 1, vectors.BLOCK, 2 * vectors.BLOCK])
def test_one_element_that_is_not_finite_is_seen_wherever_it_is(bad: float, place: int) -> None:
    x = np.zeros(2 * vectors.BLOCK + 1, np.float32)
    assert vectors.all_finite(x)
    x[place] = bad
    assert not vectors.all_finite(x)


# --- sums of products -------------------------------------------------------------------------------------------------

factors = st.one_of(st.sampled_from([1, -1, 1.0, 0.5, 1 / 3, -0.1]), st.floats(-4, 4))


@given(st.lists(factors, min_size=1, max_size=5), st.sampled_from([np.float32, np.float64]), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_linear_rounds_each_product_and_then_each_sum_in_order(several: list[float], kind: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    terms = [(factor, draw.standard_normal((3, 7)).astype(kind)) for factor in several]
    expected = terms[0][1] * kind(terms[0][0])
    for factor, vector in terms[1:]:
        expected = expected + vector * kind(factor)
    found = linear(*terms)
    assert found.tobytes() == expected.tobytes()
    assert not found.flags.writeable


def test_a_factor_for_each_row_is_that_factor_of_each_vector() -> None:
    draw = np.random.default_rng(1)
    x, u = draw.standard_normal((2, 4, 9)).astype(np.float32)
    rates = np.array([[1.0], [0.3], [-1.0], [2.5]])
    together = linear((1, x), (rates, u))
    for row in range(4):
        assert together[row].tobytes() == linear((1, x[row]), (float(rates[row, 0]), u[row])).tobytes()


def test_a_sum_of_nothing_and_of_what_is_no_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to add up"):
        linear()
    with pytest.raises(TypeError, match="a list is no vector"):
        linear((1, [1.0]))


def test_add_and_subtract_keep_the_sign_of_zero() -> None:
    zero = np.array([0.0, -0.0], np.float32)
    assert add(zero, zero).tobytes() == (zero + zero).tobytes()
    assert subtract(zero, zero[::-1].copy()).tobytes() == (zero - zero[::-1]).tobytes()


@linear_of.register
def _linear_of_torch(first: torch.Tensor, terms: Any) -> torch.Tensor:
    total = first * float(first.new_tensor(terms[0][0]))
    for factor, tensor in terms[1:]:
        total = total + tensor * float(first.new_tensor(factor))  # not alpha=: that rounds once
    return total


@pytest.mark.parametrize("algorithm", [DSGD(), GradientTracking()])
def test_an_algorithm_takes_tensors_by_the_same_source_and_with_the_same_bits(algorithm: Any) -> None:
    draw = np.random.default_rng(2)
    x, *updates = draw.standard_normal((6, 5, 8)).astype(np.float32)
    W = torch.from_numpy(np.full((5, 5), 0.2, np.float32))
    rows, tensors = algorithm.start(frozen(x)), algorithm.start(torch.from_numpy(x.copy()))
    for round, update in enumerate(updates):
        rows, out = algorithm.trained(rows, update, Step(round))
        tensors, sent = algorithm.trained(tensors, torch.from_numpy(update), Step(round))
        mixed = tuple(W @ one for one in sent)
        rows = algorithm.mixed(rows, tuple(one.numpy() for one in mixed))
        tensors = algorithm.mixed(tensors, mixed)
        assert all(a.tobytes() == b.numpy().tobytes() for a, b in zip(out, sent, strict=True))
    assert isinstance(algorithm.model(tensors), torch.Tensor)
    assert algorithm.model(rows).tobytes() == algorithm.model(tensors).numpy().tobytes()


@pytest.mark.parametrize(("n", "d"), [(3, 5), (7, 40_000), (600, 700)])
def test_disagreement_is_that_of_the_definition_in_any_form_of_the_vectors(n: int, d: int) -> None:
    random = np.random.default_rng(n)
    x, y = (random.standard_normal((n, d), np.float32) + 10 for _ in range(2))
    for these, since in ((x, None), (x, y)):
        away = (these if since is None else these - since).astype(np.float64)
        expected = np.sqrt(((away - away.mean(axis=0)) ** 2).sum() / n)
        assert consensus_distance(these, since) == pytest.approx(expected, rel=1e-12)
        apart = [list(one) if one is not None else None for one in (these, since)]
        assert consensus_distance(*apart) == pytest.approx(expected, rel=1e-12)
