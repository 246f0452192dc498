"""The forecast of a private run: its numbers are formulas, its words say what they mean; and the clip that moves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from accounts import next_rate
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_kit import entropy_of

from fedgossip.base.errors import ConfigError
from fedgossip.plans.federated.secure_encoding import Clip, bit, bits_noise, share_shorter, split
from fedgossip.privacy.accounting import Mechanism, epsilon, guarantee, meaning, noise_for, tight
from fedgossip.privacy.forecast import PrivacyForecast, PrivacyPlan, forecast, lines, verdict
from fedgossip.protocols.federated.client_round import SentMetrics
from fedgossip.secure.encoding import client_sigma
from fedgossip.secure.noise import discrete_gaussian

SILOS = PrivacyPlan("client", clients=10, rounds=20, noise=8.0, clip=1.0, delta=1e-5, parameters=650)
RECORDS = PrivacyPlan(
    "record", clients=10, rounds=20, noise=1.1, clip=0.5, delta=1e-5, parameters=650, batch_size=32, local_steps=10,
    examples=(2000, 1000, 4000), sent_metrics=SentMetrics(("examples", "steps"), ("cut",)),
)  # fmt: skip


def text(found: PrivacyForecast) -> str:
    return "\n".join(f"{name}: {words}" for name, words in lines(found))


# --- epsilon ----------------------------------------------------------------------------------------------------------


def test_a_client_in_every_round_has_the_epsilon_of_all_rounds():
    found = forecast(SILOS)
    assert found.epsilon == epsilon([Mechanism(8.0, 1.0, 20)], 1e-5)
    assert found.tight == tight([Mechanism(8.0, 1.0, 20)], 1e-5)
    assert found.tight < found.epsilon


def test_drawing_a_cohort_does_not_hide_from_who_knows_the_cohort():
    """No amplification: the coordinator drew it.  Only that a client is in fewer rounds counts, and not by chance."""
    few = forecast(replace(SILOS, clients=1000, cohort=10, rounds=20))
    assert few.plan.rate == 1.0
    assert few.epsilon == forecast(SILOS).epsilon
    assert few.usual == epsilon([Mechanism(8.0, 1.0, 1)], 1e-5)


def test_the_site_with_the_fewest_examples_decides():
    found = forecast(RECORDS)
    assert found.plan.rate == next_rate(32 / 1000)
    assert found.epsilon == epsilon([Mechanism(1.1, next_rate(32 / 1000), 200)], 1e-5)
    assert forecast(replace(RECORDS, examples=(16, 5000))).plan.rate == 1.0


def test_rounds_fit_as_the_budget_allows():
    found = forecast(replace(RECORDS, max_epsilon=1.5))
    assert 0 < found.rounds_within < 20
    assert epsilon([Mechanism(1.1, next_rate(0.032), 10 * found.rounds_within)], 1e-5) <= 1.5
    assert epsilon([Mechanism(1.1, next_rate(0.032), 10 * (found.rounds_within + 1))], 1e-5) > 1.5
    assert not found.fits
    assert epsilon([Mechanism(found.noise_wanted, next_rate(0.032), 200)], 1e-5) == pytest.approx(1.5, rel=1e-2)
    assert f"Only {found.rounds_within} of 20 fit" in text(found)
    assert forecast(replace(RECORDS, max_epsilon=50.0)).fits
    assert "no max_epsilon" in text(forecast(RECORDS))


# --- noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cohort", "honest"), [(10, 10), (10, 6)])
def test_the_noise_of_whole_clients_is_as_long_as_noise_that_is_drawn(cohort, honest):
    plan = replace(SILOS, clients=20, cohort=cohort, honest=honest, parameters=4000)
    unit = 1000.0  # of the ring, per clip
    each = client_sigma(plan.noise, unit * plan.clip, honest)
    total = sum(discrete_gaussian(each, 4000, entropy_of("forecast", k)) for k in range(cohort))
    length = float(np.linalg.norm(np.asarray(total))) / unit / cohort
    found = forecast(plan)
    assert length == pytest.approx(found.noise_length, rel=0.06)  # five deviations of a length of 4000 Gaussians
    assert found.update_length == plan.clip
    if honest == cohort:
        assert found.ratio == pytest.approx(8.0 * math.sqrt(4000) / 10)


def test_the_noise_of_records_shrinks_with_batches_steps_and_sites():
    """z sqrt(d) / (B sqrt(K n)) times the longest update."""
    assert forecast(RECORDS).ratio == pytest.approx(1.1 * math.sqrt(650) / (32 * math.sqrt(10 * 10)))
    weighted = forecast(replace(RECORDS, weighting="examples"))
    counts = np.array(RECORDS.examples)
    assert weighted.ratio / forecast(RECORDS).ratio == pytest.approx(math.sqrt((counts**2).mean()) / counts.mean())


def test_the_verdict_says_how_many_times_and_what_comes_of_it():
    ratio = forecast(SILOS).ratio
    for wanted, words in ((0.5, "nearly as well"), (3.0, "more slowly"), (7.0, "learn little"), (14.0, "not learn")):
        found = forecast(replace(SILOS, noise=SILOS.noise * wanted / ratio))
        assert f"the noise is {wanted:g} times the largest update" in verdict(found)
        assert words in verdict(found)


def test_noise_on_records_is_judged_more_strictly():
    """A batch's gradients partly cancel: at the same share of the largest update there is less to see."""
    ratio = forecast(RECORDS).ratio
    for wanted, words in ((0.25, "nearly as well"), (1.0, "more slowly"), (2.0, "learn little"), (4.0, "not learn")):
        assert words in verdict(forecast(replace(RECORDS, noise=RECORDS.noise * wanted / ratio)))


def test_what_would_help_helps():
    found = forecast(replace(SILOS, clients=100, noise=20.0))
    assert found.ratio > 5
    help = [words for name, words in lines(found) if name == "would help"]
    assert any(words.startswith('unit = "record"') for words in help)
    more = next(int(w.split("about ")[1].split()[0].replace(",", "")) for w in help if w.startswith("More clients"))
    assert "nearly as well" in verdict(forecast(replace(SILOS, clients=more, noise=20.0)))
    records = forecast(replace(RECORDS, noise=20.0))
    for start, change in (
        ("More clients", "clients"),
        ("Larger batches", "batch_size"),
        ("Fewer parameters", "parameters"),
    ):
        words = next(words for name, words in lines(records) if words.startswith(start))
        enough = int(words.split("about ")[1].split()[0].replace(",", "").rstrip("."))
        helped = replace(RECORDS, noise=20.0, examples=(10**6,), **{change: enough})
        assert forecast(helped).ratio == pytest.approx(0.3, rel=0.1)
    fewer = next(words for words in help if words.startswith("Fewer rounds"))
    rounds, noise = int(fewer.split()[2]), float(fewer.split("noise ")[1].split()[0])
    assert epsilon([Mechanism(noise, 1.0, rounds)], 1e-5) == pytest.approx(found.epsilon, rel=0.02)


def test_a_handful_of_silos_is_told_what_hiding_whole_clients_takes():
    """Epsilon 3 with at most 30 silos takes a noise of about 8 and more."""
    wanted = noise_for(3.0, 1e-5, steps=20)
    assert wanted == pytest.approx(8.0, rel=0.2)
    found = text(forecast(replace(SILOS, clients=30)))
    assert f"noise of {wanted:.3g} in 20 rounds" in found
    assert 'unit = "record" is the right one' in found
    assert "is the right one" not in text(forecast(replace(SILOS, clients=31)))
    assert "is the right one" not in text(forecast(RECORDS))


# --- words ------------------------------------------------------------------------------------------------------------


def test_every_forecast_says_who_is_hidden_and_from_whom():
    for plan, unit, adversary in (
        (SILOS, "Each client", "The coordinator, which knows who takes part; and whoever gets the model"),
        (replace(SILOS, honest=7), "Each client", "together with up to 3 of the 10 clients"),
        (replace(SILOS, honest=3, leaf=5), "Each client", "together with up to 2 of the 5 clients below a leaf"),
        (RECORDS, "Each example", "The coordinator, the other clients, and whoever gets the model"),
    ):
        found = dict(lines(forecast(plan)))
        assert found["hidden"].startswith(unit)
        assert adversary in found["from"]
        assert "Who took part" in found["not hidden"]
    assert "the number of examples" in dict(lines(forecast(RECORDS)))["not hidden"]


def test_an_epsilon_that_promises_nothing_is_called_so():
    assert "A weak guarantee, or none" in text(forecast(replace(SILOS, noise=0.5)))
    assert "odds" in text(forecast(SILOS))


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (0.0, "a strong guarantee"), (1.0, "a strong guarantee"), (1.001, "a reasonable guarantee"),
        (10.0, "a reasonable guarantee"), (10.001, "a weak guarantee, or none"),
        (math.inf, "a weak guarantee, or none"),
    ],
)  # fmt: skip
def test_an_epsilon_has_one_verdict(epsilon: float, words: str):
    """The tiers of Ponomareva et al., How to DP-fy ML, 2023: strong to 1, reasonable to 10, then weak to none."""
    assert guarantee(epsilon) == words
    assert meaning(epsilon, "record").lower().startswith(f"{words}: the odds that one record was there")
    if epsilon < 5:
        assert f"{math.exp(epsilon):.3g} times" in meaning(epsilon, "record")


def test_a_delta_that_allows_to_give_one_away_is_named():
    assert "in clear" in dict(lines(forecast(replace(RECORDS, delta=1e-2))))["delta"]
    assert "in clear" not in dict(lines(forecast(RECORDS)))["delta"]


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "person"},
        {"clients": 0},
        {"cohort": 11},
        {"honest": 11},
        {"rounds": 0},
        {"parameters": 0},
        {"noise": 0.0},
        {"clip": 0.0},
        {"delta": 0.0},
        {"weighting": "examples"},
        {"weighting": "size"},
        {"unit": "record"},
        {"unit": "record", "examples": (5, 0)},
    ],
)
def test_plans_that_do_not_fit_together_are_refused(change):
    with pytest.raises(ConfigError):
        replace(SILOS, **change)


# --- the clip that follows the updates --------------------------------------------------------------------------------


def test_the_noise_is_split_as_in_the_paper():
    """Andrew et al., NeurIPS 2021, theorem 1: z^-2 = z_delta^-2 + (2 sigma_b)^-2."""
    assert split(1.0, 5.0) == pytest.approx(1 / math.sqrt(1 - 1 / 100))
    for noise, bits in ((0.5, 1.0), (3.0, 2.0)):
        assert split(noise, bits) ** -2 + (2 * bits) ** -2 == pytest.approx(noise**-2)
    both = [Mechanism(split(3.0, 2.0)), Mechanism(2 * 2.0)]  # a bit of +-1/2 moves the sum by 1/2
    assert epsilon(both, 1e-5) == pytest.approx(epsilon([Mechanism(3.0)], 1e-5))
    assert bits_noise(100) == 5.0


@pytest.mark.parametrize(("noise", "bits"), [(1.0, 0.5), (1.0, 0.1), (0.0, 1.0), (math.nan, 1.0)])
def test_bits_that_cost_more_than_everything_are_refused(noise, bits):
    with pytest.raises(ConfigError):
        split(noise, bits)


@settings(max_examples=20, deadline=None)
@given(st.floats(-3, 3), st.floats(0.1, 0.9), st.integers(0, 1000))
def test_the_clip_finds_the_quantile_of_the_norms_from_any_guess(power, quantile, seed):
    rng = np.random.default_rng(seed)
    clip = Clip(10.0**power, quantile)
    for _ in range(500):
        shorter = int((rng.lognormal(0.0, 0.5, 200) <= clip.clip).sum())
        bits = shorter * bit(0.0, clip.clip) + (200 - shorter) * bit(math.inf, clip.clip)
        clip = clip.adapt(share_shorter(bits + rng.normal(0.0, bits_noise(200)), 200))
    assert (rng.lognormal(0.0, 0.5, 20_000) <= clip.clip).mean() == pytest.approx(quantile, abs=0.08)


def test_a_round_moves_the_clip_by_a_bounded_factor_and_noise_never_out_of_range():
    assert Clip(2.0).adapt(0.5).clip == 2.0
    assert Clip(2.0).adapt(0.0).clip == pytest.approx(2.0 * math.exp(0.1))
    assert Clip(2.0).adapt(1.0).clip == pytest.approx(2.0 * math.exp(-0.1))
    assert 0 < Clip(2.0).adapt(1e9).clip < 2.0 < Clip(2.0).adapt(-1e9).clip < math.inf


@pytest.mark.parametrize("wrong", [(0.0,), (math.inf,), (1.0, 1.5), (1.0, 0.5, 0.0)])
def test_a_clip_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError):
        Clip(*wrong)
