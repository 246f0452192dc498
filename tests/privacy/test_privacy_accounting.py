"""The account: reference epsilons, composition, and that it errs on the safe side only."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.analysis.rdp import compute_rdp
from scipy.optimize import brentq
from scipy.stats import norm

from fedgossip.base.errors import ConfigError
from fedgossip.privacy import accounting
from fedgossip.privacy.accounting import Mechanism, RenyiAccount, epsilon, noise_for, steps_within, tight

REFERENCES = [
    # noise, rate, steps, delta; by dp-accounting's Renyi account, and by its account of privacy loss distributions
    (1.1, 250 / 60000, 3600, 1e-5, 1.2655, 1.1185),
    (1.3, 250 / 60000, 3600, 1e-5, 0.9422, 0.8530),
    (1.0, 0.1, 100, 1e-3, 5.6551, 4.7844),
    (2.0, 0.1, 200, 1e-4, 3.1967, 2.8662),
    (4.0, 1.0, 50, 1e-2, 5.8547, 5.0455),
    (1.0, 1.0, 1, 1e-5, 4.7285, 4.3772),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta", "renyi", "least"), REFERENCES)
def test_epsilons_are_those_of_another_library(noise, rate, steps, delta, renyi, least):
    found = epsilon([Mechanism(noise, rate, steps)], delta)
    assert found == pytest.approx(renyi, rel=0.005)
    assert found >= least
    assert least - 5e-5 <= tight([Mechanism(noise, rate, steps)], delta) <= least + 0.011  # it has four decimals


def gaussian_epsilon(noise: float, delta: float) -> float:
    """The least epsilon of one Gaussian: Balle and Wang, ICML 2018, theorem 8."""

    def excess(eps: float) -> float:
        first, second = norm.logcdf(0.5 / noise - eps * noise), norm.logcdf(-0.5 / noise - eps * noise)
        return math.exp(first) - math.exp(eps + second) - delta

    return float(brentq(excess, 0, 1000))


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0, 40.0])
def test_a_gaussian_costs_at_least_what_theory_says_and_not_much_more(noise):
    least = gaussian_epsilon(noise, 1e-6)
    found = epsilon([Mechanism(noise)], 1e-6)
    assert least <= found <= 1.3 * least
    assert least <= tight([Mechanism(noise)], 1e-6) <= least + 2e-6 or found > accounting.TIGHT_LIMIT


def test_many_gaussians_are_one_with_their_noise_put_together():
    """Noise z_1, ..., z_k on the same: a Gaussian of noise (sum z_i^-2)^(-1/2)."""
    parts = [Mechanism(2.0, 1.0, 3), Mechanism(5.0, 1.0, 10), Mechanism(1.0)]
    together = Mechanism((3 / 4 + 10 / 25 + 1) ** -0.5)
    assert epsilon(parts, 1e-5) == pytest.approx(epsilon([together], 1e-5), rel=1e-12)
    least = gaussian_epsilon(together.noise, 1e-5)
    assert least <= tight(parts, 1e-5) <= least + 2e-6


def test_different_releases_add_up_as_opacus_adds_them_up():
    parts = [Mechanism(1.1, 0.01, 500), Mechanism(0.9, 0.02, 70), Mechanism(3.0, 1.0, 2)]
    theirs = RDPAccountant()
    theirs.history = [(one.noise, one.rate, one.steps) for one in parts]
    best = theirs.get_epsilon(1e-5)
    assert epsilon(parts, 1e-5) == pytest.approx(best, rel=1e-9)
    assert epsilon(reversed(parts), 1e-5) == pytest.approx(best, rel=1e-9)
    assert tight(parts, 1e-5) < best


@settings(max_examples=25, deadline=None)
@given(
    noise=st.sampled_from([0.7, 1.0, 2.5]),
    rate=st.sampled_from([0.003, 0.1, 1.0]),
    steps=st.integers(1, 2000),
    delta=st.floats(1e-9, 1e-2),
)
def test_more_steps_more_draws_less_noise_and_less_delta_cost_more(noise, rate, steps, delta):
    here = epsilon([Mechanism(noise, rate, steps)], delta)
    assert here >= 0
    assert epsilon([Mechanism(noise, rate, steps + 1)], delta) >= here
    assert epsilon([Mechanism(noise, 1.0, steps)], delta) >= here
    assert epsilon([Mechanism(0.7, rate, steps)], delta) >= here
    assert epsilon([Mechanism(noise, rate, steps)], delta / 2) >= here


@pytest.mark.parametrize(("rate", "steps", "wanted"), [(1.0, 1, 1.0), (1.0, 50, 3.0), (0.01, 2000, 0.5)])
def test_the_noise_for_an_epsilon_has_it_and_a_little_less_has_not(rate, steps, wanted):
    noise = noise_for(wanted, 1e-5, rate=rate, steps=steps)
    assert epsilon([Mechanism(noise, rate, steps)], 1e-5) <= wanted
    assert epsilon([Mechanism(noise * 0.998, rate, steps)], 1e-5) > wanted


@pytest.mark.parametrize(("noise", "rate", "wanted"), [(4.0, 1.0, 3.0), (1.1, 0.01, 2.0), (1.0, 0.1, 0.01)])
def test_as_many_steps_fit_as_the_account_allows(noise, rate, wanted):
    fit = steps_within(wanted, 1e-5, noise=noise, rate=rate)
    assert fit == 0 or epsilon([Mechanism(noise, rate, fit)], 1e-5) <= wanted * (1 + 1e-9)
    assert epsilon([Mechanism(noise, rate, fit + 1)], 1e-5) > wanted
    half = RenyiAccount().plus(Mechanism(noise, rate, fit // 2))
    assert steps_within(wanted, 1e-5, noise=noise, rate=rate, before=half) == fit - fit // 2


def test_nothing_released_costs_nothing_and_no_noise_hides_nothing():
    assert epsilon([], 1e-5) == 0.0 == tight([], 1e-5)
    assert epsilon([Mechanism(1.0, 0.1, 0)], 1e-5) == 0.0
    assert epsilon([Mechanism(0.0), Mechanism(5.0)], 1e-5) == math.inf
    assert tight([Mechanism(0.0)], 1e-5) is None
    assert steps_within(5.0, 1e-5, noise=0.0) == 0


def test_a_thousand_equal_rounds_compute_their_divergences_once():
    accounting._divergences.cache_clear()
    account = RenyiAccount()
    for _ in range(1000):
        account = account.plus(Mechanism(1.234, 0.01, 5))
    assert accounting._divergences.cache_info().misses == 1
    assert account.epsilon(1e-5) == pytest.approx(epsilon([Mechanism(1.234, 0.01, 5000)], 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Mechanism(-1.0),
        lambda: Mechanism(math.nan),
        lambda: Mechanism(1.0, 0.0),
        lambda: Mechanism(1.0, 1.1),
        lambda: Mechanism(1.0, 0.5, -1),
        lambda: epsilon([Mechanism(1.0)], 0.0),
        lambda: epsilon([Mechanism(1.0)], 1.0),
        lambda: noise_for(0.0, 1e-5),
        lambda: noise_for(1e-9, 1e-300, steps=10**9),
    ],
)
def test_numbers_that_are_none_are_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()


def test_divergences_are_those_of_an_integral():
    """Mironov, Talwar and Zhang, 2019: log E ((1 - q) + q exp((2x - 1) / 2z^2))^alpha / (alpha - 1), x of N(0, z^2)."""
    noise, rate = 0.9, 0.05
    x = np.linspace(-40, 60, 100_001)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * noise**2))
    density = -(x**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    found = accounting._divergences(noise, rate)
    for place, order in enumerate(accounting.ORDERS):
        if order <= 32 and place % 3 == 0:
            terms = density + order * log_ratio
            peak = terms.max()
            exact = (peak + math.log(np.exp(terms - peak).sum() * (x[1] - x[0]))) / (order - 1)
            assert found[place] == pytest.approx(exact, rel=1e-6)


def test_without_opacus_the_advice_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(ConfigError, match="opacus") as error:
        epsilon([Mechanism(1.5791, 0.317)], 1e-5)
    assert error.value.advice == "pip install 'fedgossip[privacy]'"


@pytest.mark.parametrize("noise", [0.3, 1.1, 4.0, 77.0])
def test_with_all_clients_in_the_closed_form_is_opacus_s_own(noise):
    theirs = compute_rdp(q=1.0, noise_multiplier=noise, steps=1, orders=accounting.ORDERS.tolist())
    assert np.array_equal(RenyiAccount().plus(Mechanism(noise)).divergences, theirs)


@pytest.mark.sockets
def test_with_all_clients_in_an_account_is_kept_without_opacus():
    code = "import sys; from fedgossip.privacy.accounting import *; one = [Mechanism(1.0)]"
    code += "; print(epsilon(one, 1e-5), tight(one, 1e-5), {'opacus', 'torch', 'scipy.stats'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    one = [Mechanism(1.0)]
    assert found.stdout.split() == [str(epsilon(one, 1e-5)), str(tight(one, 1e-5)), "set()"]


@pytest.mark.sockets
def test_the_tighter_account_of_samples_is_opacus_s_own_without_its_package():
    parts = [Mechanism(1.2, 0.05, 200), Mechanism(4.0, 1.0, 10)]
    code = "import sys; from fedgossip.privacy.accounting import *"
    code += f"; print(tight({parts}, 1e-5), {{'opacus', 'torch'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    theirs = PRVAccountant()
    theirs.history = [(one.noise, one.rate, one.steps) for one in parts]
    error = min(0.01, max(0.001, epsilon(parts, 1e-5) / 100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found.stdout.split() == [str(float(theirs.get_epsilon(1e-5, eps_error=error))), "set()"]


@pytest.mark.sockets
def test_the_room_is_entered_without_torch_and_opacus():
    rooms = "from fedgossip.privacy import accounting, budget, forecast"
    code = f"import sys; {rooms}; print('torch' in sys.modules, 'opacus' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
