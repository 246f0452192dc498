"""Discrete Gaussian noise: the distribution it says, to the last bit, and what a sum of it promises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from secure_kit import entropy_of, numbers

from fedgossip.errors import ConfigError
from fedgossip.secure import noise
from fedgossip.secure.noise import client_sigma, discrete_gaussian, rounded_norm, sum_gap
from fedgossip.secure.primitives import keystream
from fedgossip.secure.ring import centred, words


def pmf(sigma: float, reach: int) -> np.ndarray[Any, Any]:
    """P(y) of -reach .. reach, by the definition; what is left out is below 1e-15 for reach of 9 sigma."""
    y = np.arange(-reach, reach + 1)
    weights = np.exp(-(y**2) / (2 * sigma**2))
    return weights / weights.sum()


def improbable(counts: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """How improbable counts so far from the expected are, by chi-square; cells with few are put together."""
    order = np.argsort(-expected)
    counts, expected = counts[order], expected[order]
    many = int((expected >= 10).sum())
    counts = np.append(counts[:many], counts[many:].sum())
    expected = np.append(expected[:many], expected[many:].sum())
    kept = expected > 0
    statistic = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    return float(chi2.sf(statistic, int(kept.sum()) - 1))


@pytest.mark.parametrize("sigma", [0.5, 0.75, 1.0, 1.9, 5.0, 40.0])
def test_small_noise_has_the_probabilities_of_the_definition(sigma: float) -> None:
    drawn = discrete_gaussian(sigma, 300_000, entropy_of("chi", sigma))
    reach = math.ceil(9 * sigma)
    assert np.abs(drawn).max() <= reach
    counts = np.bincount(drawn + reach, minlength=2 * reach + 1)
    assert improbable(counts, 300_000 * pmf(sigma, reach)) > 1e-4


@pytest.mark.parametrize("sigma", [1000.5, 2.0**20, 2.0**24, 2.0**28])
def test_large_noise_has_the_moments_and_tails_of_a_gaussian(sigma: float) -> None:
    n = 400_000
    y = discrete_gaussian(sigma, n, entropy_of("moments", sigma)) / sigma
    assert abs(y.mean()) < 5 / math.sqrt(n)
    assert abs((y**2).mean() - 1) < 5 * math.sqrt(2 / n)
    assert abs((y**4).mean() - 3) < 5 * math.sqrt(96 / n)
    for distance in (1.0, 2.0, 3.0, 4.0):
        beyond = math.erfc(distance / math.sqrt(2))
        assert abs((np.abs(y) > distance).mean() - beyond) < 5 * math.sqrt(beyond / n)


@pytest.mark.parametrize("sigma", [2.0**20, 2.0**28])
def test_the_last_bits_of_large_noise_are_uniform(sigma: float) -> None:
    """Noise made by rounding floats has last bits that tell of its size (Mironov, CCS 2012)."""
    drawn = discrete_gaussian(sigma, 160_000, entropy_of("bits", sigma))
    far = drawn[np.abs(drawn) > sigma]
    for some in (drawn, far):
        assert improbable(np.bincount(some & 15, minlength=16), np.full(16, len(some) / 16)) > 1e-4


def test_the_same_entropy_gives_the_same_noise_and_other_entropy_other_noise() -> None:
    first, again, other = (discrete_gaussian(1e5, 50_000, entropy_of("name", name)) for name in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert abs(np.corrcoef(first, other)[0, 1]) < 5 / math.sqrt(50_000)
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 5 / math.sqrt(50_000)


def test_any_size_can_be_drawn() -> None:
    for size in (0, 1, 5, noise.TRIES + 1):
        drawn = discrete_gaussian(3.0, size, entropy_of("size", size))
        assert drawn.shape == (size,) and drawn.dtype == np.int64


def test_noise_outside_of_what_is_exact_is_refused() -> None:
    for sigma in (0.49, 2.0**28 * 1.01, math.inf, math.nan, -1.0):
        with pytest.raises(ConfigError, match="the sampler draws"):
            discrete_gaussian(sigma, 10, entropy_of("refused"))


# --- what float64 does not settle -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.5, 2.0, 1e6, 2.0**28])
def test_decimal_arithmetic_settles_what_float64_would_have_said(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same 63 bits, all of them taken as not enough."""
    t = math.floor(sigma) + 1
    quick = noise._laplace(t, 300, keystream(bytes(32)))
    quick_accepted = noise._accepted(quick, sigma, keystream(b"1" * 32))
    monkeypatch.setattr(noise, "SURE", 1 << 63)
    slow = noise._laplace(t, 300, keystream(bytes(32)))
    assert np.array_equal(quick, slow) and np.array_equal(np.signbit(quick), np.signbit(slow))
    assert np.array_equal(quick_accepted, noise._accepted(slow, sigma, keystream(b"1" * 32)))


def test_noise_settled_by_decimal_arithmetic_alone_has_the_probabilities_of_the_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noise, "SURE", 1 << 63)
    drawn = discrete_gaussian(1.0, 800, entropy_of("all slow"))
    assert improbable(np.bincount(drawn + 9, minlength=19), 800 * pmf(1.0, 9)) > 1e-4


def test_a_prefix_decides_as_far_as_it_reaches() -> None:
    """-log U is 1 where U is 1 / e, and above 63 log 2 = 43.7 where 63 bits of it are zero."""
    prefix = int(math.exp(-1) * 2.0**63)  # float64: right to 2^10
    floors = [noise._floor_of(prefix + away, 1, keystream(bytes(32))) for away in (-4096, 4096)]
    assert floors == [1, 0]
    assert noise._floor_of(0, 1, keystream(bytes(32))) >= 43


# --- noise in a sum ---------------------------------------------------------------------------------------------------


def test_shares_of_noise_add_up_to_the_noise_that_is_accounted() -> None:
    each = client_sigma(noise=2.0, norm=1000.0, honest=16)
    assert each == 2000.0 / 4
    total = sum(discrete_gaussian(each, 100_000, entropy_of("share", k)) for k in range(16))
    assert np.asarray(total).var() == pytest.approx(2000.0**2, rel=5 * math.sqrt(2 / 100_000))
    in_the_ring = sum((words(discrete_gaussian(each, 100, entropy_of("ring", k))) for k in range(3)), np.uint32(0))
    plain = sum(discrete_gaussian(each, 100, entropy_of("ring", k)) for k in range(3))
    assert np.array_equal(centred(np.asarray(in_the_ring)), plain)


def test_noise_that_is_too_small_or_too_large_for_the_units_is_refused() -> None:
    for wrong in ((1.0, 2.0, 1), (1.0, 2.0**29, 1), (0.0, 10.0, 1), (1.0, 0.0, 1), (1.0, 10.0, 0), (math.nan, 10.0, 1)):
        with pytest.raises(ConfigError):
            client_sigma(*wrong)


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0])
def test_a_sum_of_discrete_gaussians_is_as_near_to_one_as_the_bound_says(sigma: float) -> None:
    """Kairouz, Liu and Steinke, ICML 2021, theorem 1; the bound grows with the clients and falls with sigma."""
    reach = 12
    total = one = pmf(sigma, reach)
    for clients in (2, 3):
        total = np.convolve(total, one)
        middle = slice(len(total) // 2 - 4, len(total) // 2 + 5)  # further out the cut of `pmf` shows
        exact = pmf(sigma * math.sqrt(clients), clients * reach)
        assert np.abs(np.log(total[middle] / exact[middle])).max() <= sum_gap(sigma, clients)
    assert sum_gap(3.0, 1000) * 1e9 < 1e-27


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_the_divergence_of_shifted_noise_is_the_gaussians_at_whole_orders_and_no_more_at_others(sigma: float) -> None:
    """alpha mu^2 / (2 sigma^2): what lets discrete noise be accounted as Gaussian noise (Canonne et al., 2020)."""
    y = np.arange(-400, 401)
    log_q = -(y**2) / (2 * sigma**2)
    normal = np.log(np.exp(log_q).sum())
    for order in (1.5, 2.0, 2.7, 3.0, 8.0):
        for shift in (1, 3):
            log_p = -((y - shift) ** 2) / (2 * sigma**2)
            terms = order * log_p + (1 - order) * log_q - normal
            peak = terms.max()
            divergence = (peak + np.log(np.exp(terms - peak).sum())) / (order - 1)
            gaussian = order * shift**2 / (2 * sigma**2)
            assert divergence <= gaussian * (1 + 1e-12)
            if order == int(order):
                assert divergence == pytest.approx(gaussian, rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 24), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_no_encoded_update_is_longer_than_the_norm_that_is_accounted(bits: int, length: int, seed: int) -> None:
    fixed = numbers(length, clip_l2=2.0, clip_inf=1.5, q_bits=bits)
    update = (np.random.default_rng(seed).standard_normal(length) * 3).astype(np.float32)
    encoded = centred(fixed.encode(update, 100, {}, entropy_of("norm", seed)).values[:length])
    assert np.linalg.norm(encoded) <= rounded_norm(fixed.clip_l2 * fixed.limit / fixed.clip_inf, length) * (1 + 1e-6)
