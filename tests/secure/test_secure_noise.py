"""Discrete Gaussian noise: the distribution it says, to the last bit, and what a sum of it promises."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from secure_kit import entropy_of, numbers

from fedgossip.base.errors import ConfigError
from fedgossip.secure import noise
from fedgossip.secure.encoding import client_sigma, rounded_norm, sum_gap
from fedgossip.secure.fixed_point import centred, words
from fedgossip.secure.noise import discrete_gaussian
from fedgossip.secure.primitives import keystream


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
    for size in (0, 1, 5, noise.BLOCK + 1):
        drawn = discrete_gaussian(3.0, size, entropy_of("size", size))
        assert drawn.shape == (size,) and drawn.dtype == np.int64


@pytest.mark.parametrize("sigma", [0.5, 8.0, 2.0**20, 2.0**28])
def test_noise_that_fills_an_array_of_floats_is_the_noise_that_is_drawn(sigma: float) -> None:
    drawn = discrete_gaussian(sigma, 3 * noise.BLOCK + 5, entropy_of("filled", sigma))
    for dtype in (np.float64, np.float32)[: 1 + (sigma <= noise.SINGLE_MOST)]:
        floats = np.full(len(drawn), np.nan, dtype)
        assert not noise.DiscreteGaussian(sigma, entropy_of("filled", sigma)).fill(floats)
        assert np.array_equal(floats, drawn)


def test_numbers_that_an_array_of_float32_cannot_hold_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sigma, size = 2.0**20, 200_000
    monkeypatch.setattr(noise, "TURN", 70_000)
    monkeypatch.setattr(noise, "EXACT_SINGLES", round(4.05 * sigma))  # as if it had fewer bits
    floats, drawn = np.empty(size, np.float32), discrete_gaussian(sigma, size, entropy_of("far"))
    far = noise.DiscreteGaussian(sigma, entropy_of("far")).fill(floats)
    (beyond,) = (np.abs(drawn) > noise.EXACT_SINGLES).nonzero()
    assert max(far) > 2 * noise.TURN and far == {place: int(drawn[place]) for place in beyond.tolist()}


def test_draws_go_on_from_where_they_were() -> None:
    stream = noise.DiscreteGaussian(3.0, entropy_of("stream"))
    first, second = np.empty(1000, np.int64), np.empty(1000, np.int64)
    stream.fill(first)
    stream.fill(second)
    assert np.array_equal(first, discrete_gaussian(3.0, 1000, entropy_of("stream")))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(1000)


def test_numbers_are_drawn_until_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more heights are above the bell than there are spare numbers, some begin again a second time."""
    monkeypatch.setattr(noise.math, "isqrt", lambda _: -2)
    drawn = discrete_gaussian(40.0, 300_000, entropy_of("short"))
    reach = math.ceil(9 * 40.0)
    counts = np.bincount(drawn + reach, minlength=2 * reach + 1)
    assert improbable(counts, 300_000 * pmf(40.0, reach)) > 1e-4


def test_noise_outside_of_what_is_exact_is_refused() -> None:
    for sigma in (0.49, 2.0**28 * 1.01, math.inf, math.nan, -1.0):
        with pytest.raises(ConfigError, match="the sampler draws"):
            discrete_gaussian(sigma, 10, entropy_of("refused"))


# --- the table --------------------------------------------------------------------------------------------------------

TABLES = [0.5, 0.77, 1.0, 3.0, 40.0, 1000.5, 2.0**20, 2.0**28]


def f(y: int, sigma: float) -> Decimal:
    """exp(-y^2 / (2 sigma^2)), to 60 digits."""
    with localcontext(prec=60):
        return (-Decimal(y * y) / (2 * Decimal(sigma) ** 2)).exp()


@pytest.mark.parametrize("sigma", TABLES)
def test_cells_cover_all_that_is_below_the_bell_once_and_the_certain_ones_nothing_else(sigma: float) -> None:
    """So that the chance of y is proportional to f(y): what `draw` of the docstring needs, strip by strip."""
    cells = noise.cells_of(sigma)
    body = cells.below + int((cells.side == 0).sum() - np.isinf(cells.row).sum())
    assert len(cells.starts) == 1 << noise.CELL_BITS == cells.below + len(cells.row)
    strips, counts = np.unique(cells.starts[:body], return_counts=True)
    certain = dict(zip(*np.unique(cells.starts[: cells.below], return_counts=True), strict=True))
    assert strips[-1] + cells.width == cells.tail_start == -strips[0] and set(np.diff(strips)) <= {cells.width}
    for start, count in list(zip(strips.tolist(), counts.tolist(), strict=True))[:: max(1, len(strips) // 60)]:
        ends = sorted((abs(start), abs(start + cells.width - 1)))
        assert count >= cells.rows * f(ends[0], sigma) and certain.get(start, 0) <= cells.rows * f(ends[1], sigma)
        others = cells.row[: body - cells.below][cells.starts[cells.below : body] == start]
        assert others.tolist() == list(range(certain.get(start, 0), count))


@pytest.mark.parametrize("sigma", TABLES)
def test_strips_of_the_tails_lie_above_the_bell_without_end(sigma: float) -> None:
    cells = noise.cells_of(sigma)
    finer = 2 * cells.tail_width // cells.width  # half of the draws meet the first strip, wider than a cell
    for side in (1, -1):
        rows = cells.row[cells.side == side]
        assert rows.tolist() == list(range(len(rows))) and len(rows) >= cells.rows * finer * f(cells.tail_start, sigma)
    # f falls to less than half of it over a strip, and faster further out
    assert 2 * f(cells.tail_start + cells.tail_width, sigma) <= f(cells.tail_start, sigma)


@pytest.mark.parametrize("sigma", [1.0, 3.0, 1000.5])
def test_a_tail_has_the_probabilities_of_the_definition(sigma: float) -> None:
    cells, tries = noise.cells_of(sigma), 40_000
    (tails,) = cells.side.nonzero()
    values = np.zeros(tries, np.int64)
    missed = cells._missed(np.resize(tails, tries), values, keystream(bytes(32)))
    drawn = values[~missed]
    assert (np.where(drawn < 0, -drawn, drawn) >= cells.tail_start).all()
    right = drawn[drawn > 0]
    last = cells.tail_start + math.ceil(2 * sigma)
    y = np.arange(cells.tail_start, last)
    expected = np.exp(-(y**2) / (2 * sigma**2))
    counts = np.bincount(np.minimum(right, last - 1) - cells.tail_start, minlength=len(y))
    assert len(right) > 2000 and improbable(counts, len(right) * expected / expected.sum()) > 1e-4
    # the left one begins at the next integer, as the cells end at -tail_start
    share = 1 - float(f(cells.tail_start, sigma)) / float(sum(f(int(one), sigma) for one in y))
    assert abs(len(drawn) - len(right) * (1 + share)) < 5 * math.sqrt(len(right) * share * (1 + share))


def test_the_same_bytes_give_the_same_integers_on_every_machine() -> None:
    """Known answers: whoever changes them changes the noise of every run with a seed."""
    known = {
        0.5: "afc7f46f1271fbb5",
        1000.5: "43959fd9fa7b14c1",
        1048576.0: "ab2de5feaca7070c",
        268435456.0: "4174371d5c7ddd22",
    }
    for sigma, name in known.items():
        drawn = discrete_gaussian(sigma, 50_000, bytes)
        assert hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest()[:16] == name, sigma


# --- what float64 does not settle -------------------------------------------------------------------------------------


def across(sigma: float, count: int) -> tuple[noise.Cells, Any, Any]:
    """Cells that are not all below the bell, tails too, and integers of them."""
    cells = noise.cells_of(sigma)
    chosen = np.resize(np.flatnonzero(np.isfinite(cells.row))[::-1], count)
    inside = np.random.default_rng(0).integers(0, cells.width, count)
    return cells, chosen, cells.starts[cells.below + chosen].astype(np.int64) + inside


@pytest.mark.parametrize("sigma", [0.5, 2.0, 1e6, 2.0**28])
def test_decimal_arithmetic_settles_what_float64_would_have_said(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same 63 bits, all of them taken as not enough."""
    cells, chosen, values = across(sigma, 300)
    slow_values = values.copy()
    quick = cells._missed(chosen, values, keystream(bytes(32)))
    monkeypatch.setattr(noise, "SLACK", math.inf)
    slow = cells._missed(chosen, slow_values, keystream(bytes(32)))
    assert np.array_equal(quick, slow) and np.array_equal(values, slow_values)
    assert 30 < quick.sum() < 270


@pytest.mark.parametrize("sigma", [0.5, 3.0, 1e6])
def test_decimal_arithmetic_counts_the_rows_that_float64_would_have_counted(
    sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = np.unique(np.linspace(-4 * sigma, 4 * sigma, 40).astype(np.int64))
    quick = noise.rows_below(200, y, sigma)
    monkeypatch.setattr(noise, "SLACK", math.inf)
    assert np.array_equal(quick, noise.rows_below(200, y, sigma))


def test_decisions_by_decimal_arithmetic_alone_have_the_probabilities_of_the_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a cell is one integer wide, its top one is hit as often as the bell reaches into it."""
    cells, chosen, values = across(3.0, 2000)
    kept = cells.side[chosen] == 0
    chosen, values = chosen[kept], values[kept]
    monkeypatch.setattr(noise, "SLACK", math.inf)
    missed = cells._missed(chosen, values, keystream(bytes(32)))
    assert cells.width == 1
    reach = [float(cells.rows * f(int(y), 3.0)) % 1 for y in values]
    expected, spread = sum(reach), math.sqrt(sum(one * (1 - one) for one in reach))
    assert abs((~missed).sum() - expected) < 4 * spread


def test_a_height_of_which_too_few_bits_are_known_is_settled_by_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """In row 0 alone: above it the row is known, and with it the logarithm."""
    cells, chosen, values = across(3.0, 300)
    asked = []
    monkeypatch.setattr(noise, "SURE", 1 << 60)
    monkeypatch.setattr(noise, "_is_below", lambda height, *_: asked.append(height) or True)
    cells._missed(chosen, values, keystream(bytes(32)))
    low = int((cells.row[chosen] == 0).sum())
    assert 0 < len(asked) < low and all(height < 1 << 60 for height in asked)


def test_a_height_is_settled_as_far_as_its_bits_reach() -> None:
    """By 63 bits where they differ from those of the bell, else by as many more as it takes: evenly."""
    rows, x = 1 << 20, Fraction(1)
    with localcontext(prec=60):
        top = rows * Decimal(-1).exp() * 2**noise.PREFIX_BITS
    dice = keystream(bytes(32))
    assert noise._is_below(int(top) - 1, rows, x, dice) and not noise._is_below(int(top) + 1, rows, x, dice)
    share = float(top % 1)
    found = sum(noise._is_below(int(top), rows, x, dice) for _ in range(400))
    assert abs(found - 400 * share) < 4 * math.sqrt(400 * share * (1 - share))


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
