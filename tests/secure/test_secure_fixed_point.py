"""Numbers in the ring: clipped, weighted, rounded without bias, never wrapped around; what cannot be is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_kit import entropy_of, numbers

from fedgossip.base.errors import ConfigError
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.fixed_point import BLOCK, FixedPoint, centred, words
from fedgossip.secure.noise import discrete_gaussian


def vector(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def reason(call: Any) -> Reason:
    with pytest.raises(RoundAbandoned) as caught:
        call()
    return caught.value.reason


def summed(fixed: FixedPoint, updates: Any, samples: list[int], metrics: Any = None) -> Any:
    metrics = metrics or [{}] * len(samples)
    total = np.zeros(fixed.words, np.uint32)
    for place, (update, count, found) in enumerate(zip(updates, samples, metrics, strict=True)):
        total += fixed.encode(update, count, found, entropy_of("sum", place)).values
    return fixed.decode(total, len(samples))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_the_mean_is_that_of_the_updates_to_rounding(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fixed = numbers(30, clip_l2=100.0)
    updates = rng.uniform(-1, 1, (n, 30)).astype(np.float32)
    samples = [int(s) for s in rng.integers(1, 101, n)]
    found = summed(fixed, updates, samples)
    expected = np.average(updates.astype(np.float64), axis=0, weights=samples)
    # each client's element is less than one unit off and its weight half a unit; the mean is at most C
    bound = 1.5 * n * fixed.clip_inf / fixed.limit / (sum(samples) / 100) + 1e-6
    assert np.abs(found.mean - expected).max() <= bound
    assert found.samples == pytest.approx(sum(samples), abs=n * 100 / fixed.limit)
    assert (found.clients, found.clipped) == (n, 0)


def test_rounding_at_random_keeps_the_mean() -> None:
    """100 000 times the number 1/4 of a unit: the mean of the rounded is within six standard deviations."""
    fixed = numbers(100_000, clip_l2=1e6, q_bits=8)
    quarter = np.full(100_000, 0.25 / fixed.limit, np.float32)
    rounded = centred(fixed.encode(quarter, 100, {}, entropy_of("dice")).values[:100_000])
    assert set(rounded.tolist()) == {0, 1}
    assert abs(rounded.mean() - 0.25) < 6 * (0.25 * 0.75 / 100_000) ** 0.5


def test_an_update_is_clipped_to_both_bounds_and_says_so() -> None:
    fixed = numbers(2, clip_l2=5.0, clip_inf=3.5)
    found = summed(fixed, [vector(3, 4), vector(30, 40)], [100, 100])  # 30, 40 -> 3, 4 -> 3, 3.5
    assert found.mean == pytest.approx([3.0, 3.5], abs=1e-4)
    assert found.clipped == 2
    assert summed(fixed, [vector(3, 3)], [100]).clipped == 0


@pytest.mark.parametrize("largest", [1e30, 3e38])
def test_huge_numbers_are_clipped_not_wrapped(largest: float) -> None:
    found = summed(numbers(3), [vector(largest, -largest, 0)], [100])
    assert found.mean == pytest.approx([1, -1, 0], abs=1e-5)


def test_float64_whose_squares_overflow_is_clipped_too() -> None:
    found = summed(numbers(2, clip_l2=1.0), [np.array([1e300, 0.0])], [100])
    assert found.mean == pytest.approx([1, 0], abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([2, 8, 20, 24, 31]), st.sampled_from([-1.0, 1.0]), st.integers(1, 100))
def test_no_coordinate_exceeds_the_limit_even_at_the_bound(bits: int, sign: float, samples: int) -> None:
    fixed = numbers(64, clip_l2=1e9, q_bits=bits)
    values = centred(fixed.encode(np.full(64, sign, np.float32), samples, {}, entropy_of(bits, samples)).values)
    assert np.abs(values).max() <= fixed.limit


def test_metrics_and_counts_ride_in_the_same_vector() -> None:
    fixed = numbers(1, metrics=(("loss", 10.0), ("accuracy", 1.0)))
    metrics = [{"loss": 2.0, "accuracy": 0.5}, {"loss": 4.0, "accuracy": 1.0}]
    found = summed(fixed, [vector(0), vector(0)], [25, 75], metrics)
    assert found.metrics == pytest.approx({"loss": 3.5, "accuracy": 0.875}, abs=1e-4)
    assert fixed.words == 1 + 3 + 2


def test_a_metric_beyond_its_bound_counts_as_the_bound() -> None:
    found = summed(numbers(1, metrics=(("loss", 10.0),)), [vector(0)], [100], [{"loss": 1e9}])
    assert found.metrics["loss"] == pytest.approx(10.0)


def test_blocks_do_not_show() -> None:
    fixed = numbers(BLOCK + 5, clip_l2=1e9)
    update = np.linspace(-1, 1, BLOCK + 5, dtype=np.float32)
    assert summed(fixed, [update], [100]).mean == pytest.approx(update, abs=1e-4)


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3])
def test_what_is_not_finite_is_refused(bad: float, place: int) -> None:
    update = np.zeros(4, np.float32)
    update[place] = bad
    assert reason(lambda: numbers().encode(update, 1, {}, entropy_of())) is Reason.OVERFLOW
    fixed = numbers(metrics=(("loss", 1.0),))
    assert reason(lambda: fixed.encode(np.zeros(4), 1, {"loss": bad}, entropy_of())) is Reason.OVERFLOW


@pytest.mark.parametrize("update", [np.zeros(3), np.zeros(5), np.zeros((4, 1)), np.zeros(4, np.int32), np.zeros(0)])
def test_another_length_or_type_is_refused(update: Any) -> None:
    assert reason(lambda: numbers().encode(update, 1, {}, entropy_of())) is Reason.SCHEMA


@pytest.mark.parametrize("samples", [0, -1, 101, 2**63, 1.0, float("nan"), True, "1"])
def test_weights_that_overflow_or_are_none_are_refused(samples: Any) -> None:
    assert reason(lambda: numbers().encode(np.zeros(4), samples, {}, entropy_of())) is Reason.OVERFLOW


@pytest.mark.parametrize("metrics", [{}, {"loss": 1.0, "more": 1.0}, {"other": 1.0}])
def test_other_metrics_than_declared_are_refused(metrics: dict[str, float]) -> None:
    fixed = numbers(metrics=(("loss", 1.0),))
    assert reason(lambda: fixed.encode(np.zeros(4), 1, metrics, entropy_of())) is Reason.SCHEMA


@pytest.mark.parametrize(("bits", "most"), [(24, 256), (20, 4096), (31, 2)])
def test_a_sum_that_could_wrap_is_refused_before_the_session(bits: int, most: int) -> None:
    fixed = numbers(q_bits=bits)
    fixed.check_sum(most)
    assert most * fixed.limit < 2**31
    assert reason(lambda: fixed.check_sum(most + 1)) is Reason.OVERFLOW
    assert reason(lambda: fixed.check_sum(most, sigma=2.0**31)) is Reason.OVERFLOW


def test_24_bits_are_right_for_100_clients_and_20_for_1000_with_room_for_noise() -> None:
    numbers(q_bits=24).check_sum(100, sigma=1e8)
    numbers(q_bits=20).check_sum(1000, sigma=1e8)


def test_the_sum_at_the_bound_does_not_wrap() -> None:
    fixed, n = numbers(8, clip_l2=1e9, q_bits=24), 100
    found = summed(fixed, [np.ones(8, np.float32)] * n, [100] * n)
    assert found.mean == pytest.approx(np.ones(8), abs=1e-6)


def test_a_sum_of_other_clients_or_another_length_is_noticed() -> None:
    fixed = numbers()
    total = fixed.encode(np.zeros(4), 5, {}, entropy_of()).values
    assert reason(lambda: fixed.decode(total, 2)) is Reason.OVERFLOW
    assert reason(lambda: fixed.decode(total[:-1].copy(), 1)) is Reason.SCHEMA
    garbage = np.random.default_rng(0).integers(0, 2**32, fixed.words, np.uint32)
    assert reason(lambda: fixed.decode(garbage, 1)) is Reason.OVERFLOW


# --- clients that do not keep to the bounds ---------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.sampled_from([0.3, 2.0, 1e3]), st.booleans(), st.integers(0, 2**32 - 1))
def test_no_sum_of_honest_clients_is_beyond_the_bounds(n: int, clip_l2: float, weighted: bool, seed: int) -> None:
    """At the bounds themselves: all elements there, or all length in one; every weight, every metric; with noise."""
    rng = np.random.default_rng(seed)
    fixed = numbers(40, clip_l2=clip_l2, weight_max=100 if weighted else 1, metrics=(("loss", 4.0),))
    sigma = float(rng.choice([0.0, 3.0, 50.0]))
    total = np.zeros(fixed.words, np.uint32)
    sign = rng.choice([-1.0, 1.0], 40)
    for place in range(n):
        update = sign * 1e9 if seed % 2 else np.eye(40)[0] * 1e9
        samples = int(rng.integers(1, fixed.weight_max + 1))
        total += fixed.encode(update, samples, {"loss": -9.0}, entropy_of(seed, place)).values
        if sigma:
            total[:40] += words(discrete_gaussian(sigma, 40, entropy_of("noise", seed, place)))
    assert fixed.decode(total, n, sigma).clients == n


@settings(max_examples=200, deadline=None)
@given(st.integers(3, 9), st.integers(0, 40), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_client_that_lies_moves_the_mean_within_the_bounds_or_there_is_none(
    n: int, at: int, by: int, seed: int
) -> None:
    """Whatever words one client puts in: the mean that enters the model could be one of honest clients."""
    fixed = numbers(40, clip_l2=2.0, metrics=(("loss", 4.0),))
    total = np.zeros(fixed.words, np.uint32)
    for place in range(n - 1):
        total += fixed.encode(np.full(40, 0.01), 50, {"loss": 1.0}, entropy_of(seed, place)).values
    lie = np.random.default_rng(seed).integers(-(2**20), 2**20, fixed.words).astype(np.int64).astype(np.uint32)
    lie[42] = 1  # the count
    lie[at] = by
    total += lie
    try:
        found = fixed.decode(total, n)
    except RoundAbandoned as abandoned:
        assert abandoned.reason in (Reason.BOUND, Reason.OVERFLOW)
        return
    weight = found.samples / fixed.weight_max
    unit = fixed.clip_inf / fixed.limit / weight
    assert np.abs(found.mean).max() <= fixed.clip_inf + 1.5 * n * unit + 1e-6
    assert np.linalg.norm(found.mean) <= fixed.clip_l2 * (1 + 0.5 * n * unit) + n * math.sqrt(40) * unit + 1e-6
    assert abs(found.metrics["loss"]) <= 4.0 and 0 <= found.clipped <= n


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 2**30), (1, 2**32 - 2**30), (40, 1), (40, 2**27), (41, 77), (43, 2**28)],
    ids=["an element", "the other way", "no weight", "too much weight", "cut", "a metric"],
)
def test_what_is_beyond_the_bounds_is_refused_by_name(place: int, value: int) -> None:
    fixed = numbers(40, metrics=(("loss", 4.0),))
    total = np.zeros(fixed.words, np.uint32)
    for client in range(3):
        total += fixed.encode(np.zeros(40), 50, {"loss": 1.0}, entropy_of(client)).values
    total[place] = value
    assert reason(lambda: fixed.decode(total, 3)) is Reason.BOUND


@pytest.mark.parametrize(
    "changes",
    [
        {"clip_l2": 0.0}, {"clip_inf": float("nan")}, {"clip_l2": float("inf")}, {"weight_max": 0}, {"q_bits": 1},
        {"q_bits": 32}, {"length": 0}, {"metrics": (("a", 1.0), ("a", 2.0))}, {"metrics": (("a", -1.0),)},
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused_when_they_are_written(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        numbers(**changes)


def test_the_schema_tells_every_layout_apart() -> None:
    layouts = [
        numbers(),
        numbers(5),
        numbers(metrics=(("a", 1.0),)),
        numbers(metrics=(("a", 2.0),)),
        numbers(layout="x"),
    ]
    assert len({fixed.schema for fixed in layouts}) == len(layouts)
