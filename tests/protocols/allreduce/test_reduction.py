"""One all-reduce at one rank: any order of arrival, any loss that is said again, the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.collectives.table import summed
from fedgossip.algorithms.federated.sums import ExactSum
from fedgossip.base.vectors import Vector, frozen
from fedgossip.protocols.allreduce.reduction import Chunk, Reduction

NAMES = sorted(COLLECTIVES)


def terms(m: int, d: int, seed: int = 0) -> list[Vector]:
    """Gradients with a one behind them."""
    rng = np.random.default_rng(seed)
    return [frozen(np.append(rng.standard_normal(d), 1).astype(np.float32)) for _ in range(m)]


def reduced(
    name: str, vectors: list[Vector], weights: list[float], bucket: int, rng: np.random.Generator
) -> tuple[list[Vector], list[int]]:
    """Deliver chunks in random order, many twice; return every rank's mean, and how many elements each sent."""
    m = len(vectors)
    table = COLLECTIVES[name].table(m)
    ranks = [Reduction(rank, table, vectors[0].size, vectors[0].dtype, bucket) for rank in range(m)]
    flying: list[tuple[int, Chunk]] = []
    sent = [0] * m

    def out(rank: int, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            sent[rank] += chunk.vector.size
            flying.append((rank, chunk))

    late = rng.permutation(m).tolist()
    while flying or late:
        if late and (not flying or rng.random() < 0.3):  # chunks come to some before they have begun
            rank = late.pop()
            out(rank, ranks[rank].begin(weights[rank], vectors[rank]))
            continue
        sender, chunk = flying.pop(int(rng.integers(len(flying))))
        at = ranks[chunk.peer]
        assert at.expects(sender, chunk.bucket, chunk.step) == (chunk.start, chunk.start + chunk.vector.size)
        if at.has(sender, chunk.bucket, chunk.step):
            continue
        if rng.random() < 0.2:
            flying.append((sender, chunk))  # comes twice
        assert at.fits(chunk.bucket, chunk.weight, chunk.vector)
        out(chunk.peer, at.take(sender, chunk.bucket, chunk.step, chunk.weight, chunk.vector.copy()))
    assert all(rank.done and not rank.awaited() for rank in ranks)
    return [rank.mean for rank in ranks], sent


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8])
def test_every_rank_ends_with_the_same_bits_of_the_weighted_mean_whatever_the_order(name: str, m: int) -> None:
    for d, bucket in ((1, 1), (7, 3), (1000, 1001), (1003, 100)):
        vectors, weights = terms(m, d), [float(k + 1) for k in range(m)]
        expected = np.average(np.array(vectors, np.float64), axis=0, weights=weights)
        seen = set()
        for seed in range(3):
            means, sent = reduced(name, vectors, weights, bucket, np.random.default_rng(seed))
            np.testing.assert_allclose(means[0], expected, rtol=2e-4, atol=2e-6)
            seen |= {mean.tobytes() for mean in means}
        assert len(seen) == 1
        table = COLLECTIVES[name].table(m)
        sizes = [min(bucket, d + 1 - start) for start in range(0, d + 1, bucket)]
        assert sent == [sum(table.sent(rank, size) for size in sizes) for rank in range(m)]


def test_methods_that_sum_exactly_end_with_the_same_bits_as_a_coordinator() -> None:
    vectors, weights = terms(5, 1003), [32.0, 32.0, 7.0, 32.0, 1.0]
    exact = ExactSum()
    for weight, vector in zip(weights, vectors, strict=True):
        exact.add(weight, vector)
    expected = exact.mean(np.dtype(np.float32)).tobytes()
    for name in ("star", "all-to-all"):
        for bucket in (1004, 77):
            means, _ = reduced(name, vectors, weights, bucket, np.random.default_rng(1))
            assert {mean.tobytes() for mean in means} == {expected}


@pytest.mark.parametrize("name", [name for name in NAMES if not COLLECTIVES[name].table(2).exact])
def test_with_one_bucket_the_sums_are_those_of_the_table(name: str) -> None:
    vectors = terms(6, 501)
    means, _ = reduced(name, vectors, [1.0] * 6, 502, np.random.default_rng(1))
    (expected, *_) = summed(COLLECTIVES[name].table(6), vectors)
    assert means[0].tobytes() == (expected / expected[-1]).tobytes()


def test_the_mean_of_one_worker_is_its_vector() -> None:
    for name in NAMES:
        (vector,) = terms(1, 99)
        (mean,), sent = reduced(name, [vector], [7.0], 10, np.random.default_rng(0))
        assert mean.tobytes() == vector.tobytes() and sent == [0]


def test_what_a_rank_does_not_expect_it_can_tell() -> None:
    ring = COLLECTIVES["ring"].table(3)
    rank = Reduction(0, ring, 9, np.dtype(np.float32), 100)
    assert rank.expects(2, 0, 0) == (6, 9) and not rank.has(2, 0, 0)
    assert rank.expects(1, 0, 0) is None, "the next one sends nothing here"
    assert rank.expects(2, 0, 4) is None and rank.expects(2, 1, 0) is None and rank.expects(2, 0, -1) is None


def test_numbers_that_cannot_be_added_do_not_fit() -> None:
    for name in ("ring", "star", "all-to-all"):
        rank = Reduction(0, COLLECTIVES[name].table(3), 9, np.dtype(np.float32), 100)
        for wrong in (np.nan, np.inf, 1e30):
            assert not rank.fits(0, 1.0, np.full(9, wrong, np.float32))
