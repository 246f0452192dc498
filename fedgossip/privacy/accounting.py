"""The account of a sequence of noisy releases: epsilon for a delta, from the sum of their Renyi divergences.

A release is the Poisson-subsampled Gaussian: each unit (an example, or a client) takes part with probability `rate`; it
adds a vector of norm at most 1; noise of deviation `noise` is added.  Neighbours differ in one unit's presence.  Rate 1
is the Gaussian mechanism.  Divergences are summed at each order; the smallest epsilon of all orders is reported.
`secure.noise`'s discrete Gaussian has the same account: equal divergences at whole orders, and sums within these
floats' error.

Sources: Abadi et al., CCS 2016; Mironov, Renyi differential privacy, CSF 2017; Mironov, Talwar and Zhang, Renyi
differential privacy of the sampled Gaussian mechanism, 2019 (the divergences, computed by opacus); Balle et al.,
Hypothesis testing interpretations and Renyi differential privacy, AISTATS 2020, theorem 21 (the conversion); Gopi, Lee
and Wutschitz, Numerical composition of differential privacy, NeurIPS 2021 (`tight`); Balle and Wang, Improving the
Gaussian mechanism for differential privacy, ICML 2018, theorem 8 (`tight` without sampling).

Verdicts on an epsilon have the words of NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees,
2025: a guarantee, stronger or weaker, for a unit of privacy; limits: the tiers of Ponomareva et al., How to DP-fy ML,
JAIR 77 (2023), section 5.2.1.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, missing, needed

Floats = npt.NDArray[np.float64]

ORDERS: Floats = np.array(
    [1.01, 1.02, 1.05, *(1 + tenths / 10 for tenths in range(1, 100)), *range(11, 64), 128, 256, 512, 1024], np.float64
)
"""Orders of the divergences: those of opacus, and more near 1 for large epsilons and above 63 for small ones."""

TIGHT_LIMIT = 30.0
"""Maximum epsilon that `tight` computes: larger ones would take long and promise nothing."""

TIGHT_ERROR = 1e-6
"""Error of `tight` in closed form."""

NOISE_LEAST, NOISE_MOST = 0.05, 1e6
"""Minimum and maximum noise that `noise_for` returns; less noise is ineffective."""

RATIO = 1e-3
"""Relative error of `noise_for`."""

TINY = 1e-12
"""Maximum epsilon that counts as 0."""

WHAT = "differential privacy"
"""The feature that needs the extra."""

STEPS_MOST = 10**12


@dataclass(frozen=True)
class Mechanism:
    """`steps` equal releases.  Raises ConfigError for numbers outside their ranges."""

    noise: float
    """z: the noise's standard deviation divided by the maximum norm of one unit's contribution; 0 hides nothing."""
    rate: float = 1.0
    """q: above 0, at most 1; below 1 only if the drawn units are secret to all adversaries."""
    steps: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf or not 0 < self.rate <= 1 or not 0 <= self.steps <= STEPS_MOST:
            raise ConfigError(
                f"noise {self.noise:g} at rate {self.rate:g}, {self.steps} times",
                f"Noise is 0 or more, a rate above 0 and at most 1, steps are 0 to {STEPS_MOST:.0e}.",
            )


def round_rate(rate: float) -> float:
    """Return the accounted rate of a site's steps, not below the drawn one: the next of 1, 7/8, 6/8, 5/8, 1/2, 7/16 and
    so on.

    An account is published, and an exact rate would disclose the number of records; this discloses it within a fifth.
    Divergences grow with the rate, so the epsilon is valid.
    """
    share, power = math.frexp(rate)
    return math.ldexp(math.ceil(8 * share) / 8, power)


def round_steps(steps: int) -> int:
    """Return the accounted steps if they depend on a site's number of records: 1 to 8, 10, 12, 14, 16, 20...

    Omitted steps release nothing, so the epsilon is valid.
    """
    return int(round_rate(float(steps)))


_NOTHING: Floats = np.zeros(len(ORDERS))


@dataclass(frozen=True, eq=False)
class RenyiAccount:
    """The releases so far, as Renyi divergences at ORDERS; empty at first."""

    divergences: Floats = field(default_factory=lambda: _NOTHING, repr=False)

    def plus(self, mechanism: Mechanism) -> RenyiAccount:
        """Return the account with this release added; it takes microseconds for a (noise, rate) seen before."""
        if not mechanism.steps:
            return self
        return RenyiAccount(self.divergences + mechanism.steps * _divergences(mechanism.noise, mechanism.rate))

    def epsilon(self, delta: float) -> float:
        """Return the valid epsilon for `delta`; 0 before any release, inf without noise."""
        if not self.divergences.any():
            return 0.0
        return max(0.0, float((self.divergences + _conversion(delta)).min()))


def account_of(mechanisms: Iterable[Mechanism]) -> RenyiAccount:
    account = RenyiAccount()
    for mechanism in mechanisms:
        account = account.plus(mechanism)
    return account


def epsilon(mechanisms: Iterable[Mechanism], delta: float) -> float:
    """Return the epsilon of all these releases together: an upper bound, up to a fifth above the smallest valid one."""
    return account_of(mechanisms).epsilon(delta)


def tight(mechanisms: Iterable[Mechanism], delta: float) -> float | None:
    """Return an epsilon at most 0.01 above the smallest valid one, for orientation.

    At rate 1 it is the smallest itself, to 1e-6, in closed form; else PRV's.  None if PRV fails, or if `epsilon` is
    above TIGHT_LIMIT.  Budgets use `epsilon`: PRV takes seconds, and its proof relies on floating-point sums.
    """
    wanted = [one for one in mechanisms if one.steps]
    bound = epsilon(wanted, delta)
    if bound == 0 or bound > TIGHT_LIMIT:
        return 0.0 if bound == 0 else None
    if all(one.rate == 1 for one in wanted):
        return _least(math.sqrt(sum(one.steps / one.noise**2 for one in wanted)), delta, bound)
    accountant = _prv().PRVAccountant()
    accountant.history = [(one.noise, one.rate, one.steps) for one in wanted]
    error = min(0.01, max(0.001, bound / 100))
    # Warnings of log 0 at rate 1, and of too few orders: neither affects the result.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = float(accountant.get_epsilon(delta, eps_error=error))
        except (RuntimeError, ValueError):
            return None
    return found if 0 <= found < math.inf else None


def _least(distance: float, delta: float, bound: float) -> float:
    """Return the smallest epsilon, at most `bound`, of Gaussians without sampling, rounded up by 1e-6.

    Together they equal one of noise 1 / `distance`; delta at eps is Phi(distance / 2 - eps / distance) - exp(eps)
    Phi(-distance / 2 - eps / distance).
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    def over(eps: float) -> float:
        with_it, without = (log_ndtr(side * distance / 2 - eps / distance) for side in (1, -1))
        return float(np.exp(with_it) - np.exp(eps + without)) - delta

    return 0.0 if over(0.0) <= 0 else float(brentq(over, 0.0, bound, xtol=TIGHT_ERROR / 2)) + TIGHT_ERROR / 2


def noise_for(
    wanted: float, delta: float, *, rate: float = 1.0, steps: int = 1, before: RenyiAccount | None = None
) -> float:
    """Return the minimum noise, to a thousandth, for epsilon `wanted` of `steps` releases and those `before`.

    Raises ConfigError outside NOISE_LEAST to NOISE_MOST.
    """
    from scipy.optimize import brentq

    spent = before or RenyiAccount()

    def over(log_noise: float) -> float:
        found = spent.plus(Mechanism(math.exp(log_noise), rate, steps)).epsilon(delta)
        return math.log(max(found, TINY) / wanted)

    most, least = math.log(NOISE_MOST), math.log(NOISE_LEAST)
    if not TINY < wanted < math.inf:
        raise ConfigError(f"epsilon {wanted:g} cannot be had", "It is above 0 and finite.")
    low = high = 0.0
    while over(high) > 0 and high < most:
        low, high = high, high + 1
    while over(low) <= 0 and low > least:
        low, high = low - 1, low
    if over(high) > 0 or over(low) <= 0:
        raise ConfigError(
            f"epsilon {wanted:g} at delta {delta:g} takes noise out of {NOISE_LEAST:g} to {NOISE_MOST:g}",
            "Take another epsilon or delta, or other steps.",
        )
    noise = math.exp(brentq(over, low, high, xtol=RATIO / 4))
    while over(math.log(noise)) > 0:  # the root is known to a quarter of that, on either side
        noise *= 1 + RATIO / 4
    return noise


def steps_within(
    wanted: float, delta: float, *, noise: float, rate: float = 1.0, before: RenyiAccount | None = None
) -> int:
    """Return the number of releases that fit into epsilon `wanted` after those `before`; at most STEPS_MOST."""
    spent = (before or RenyiAccount()).divergences
    each = _divergences(noise, rate)
    room = wanted - _conversion(delta) - spent
    with np.errstate(divide="ignore", invalid="ignore"):
        fits = np.where(room < 0, 0.0, np.where(each > 0, room / each, np.inf))
    return min(STEPS_MOST, int(min(float(fits.max()), STEPS_MOST) * (1 + 1e-12)))


@lru_cache(maxsize=1024)
def _divergences(noise: float, rate: float) -> Floats:
    """Return the Renyi divergence of one release at each of ORDERS, in 30 ms.

    With rate 1 it is a / (2 z^2) at order a (Mironov 2017, proposition 7), without opacus.
    """
    if noise == 0:
        return np.full(len(ORDERS), np.inf)
    if rate == 1:
        return ORDERS / (2 * noise**2)
    computed = _renyi().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=ORDERS.tolist())
    found = np.asarray(computed, np.float64)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=64)
def _conversion(delta: float) -> Floats:
    """Return the term that converts the divergence of each order to an epsilon."""
    if not 0 < delta < 1:
        raise ConfigError(f"delta = {delta:g}", "Delta is above 0 and below 1; one over ten times the units is usual.")
    below = ORDERS - 1
    return np.asarray(np.log(below / ORDERS) - (math.log(delta) + np.log(ORDERS)) / below)


def _renyi() -> Any:
    """Return only opacus' module of Renyi divergences: the rest needs torch and seconds.  Raises ConfigError."""
    place = _accountants() / "analysis" / "rdp.py"
    return _module_at(place) if place.is_file() else _opacus().analysis.rdp  # of another release


class _History:
    """The part of opacus' base class of accountants that they use: the releases so far."""

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []


@cache
def _prv() -> Any:
    """Return opacus' accountant PRV with `_History` as its base class: its package loads torch.  Raises ConfigError."""
    place = _accountants()
    if not all((place / name).is_file() for name in ("prv.py", "rdp.py", "accountant.py", "analysis/rdp.py")):
        return _opacus()  # of another release
    package, base = ModuleType("alone_accountants"), ModuleType("alone_accountants.accountant")
    package.__path__ = [str(place)]
    base.IAccountant = _History  # type: ignore[attr-defined]
    sys.modules |= {one.__name__: one for one in (package, base)}
    return import_module("alone_accountants.prv")


def _accountants() -> Path:
    """Return the folder of opacus' accountants.  Raises ConfigError."""
    opacus = find_spec("opacus")
    if opacus is None or opacus.origin is None:
        raise missing("opacus", "privacy", WHAT)
    return Path(opacus.origin).parent / "accountants"


@cache
def _module_at(place: Path) -> Any:
    spec = spec_from_file_location(f"alone_{place.stem}", place)
    assert spec and spec.loader, "its name ends with .py"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _opacus() -> Any:
    needed("opacus.accountants.analysis.rdp", "privacy", WHAT)
    return needed("opacus.accountants", "privacy", WHAT)


STRONG, REASONABLE = 1.0, 10.0
"""Maximum epsilon of each verdict; above the last, odds change by a factor above 20 000."""


def guarantee(epsilon: float) -> str:
    """Return the verdict on a guarantee with this epsilon, in two to five words."""
    if epsilon <= STRONG:
        return "a strong guarantee"
    return "a reasonable guarantee" if epsilon <= REASONABLE else "a weak guarantee, or none"


def meaning(epsilon: float, unit: str) -> str:
    """Return the verdict and its meaning for one `unit`, in a sentence."""
    verdict = guarantee(epsilon)
    return f"{verdict.capitalize()}: the odds that one {unit} was there change by up to {_exp_times(epsilon)}."


def _exp_times(epsilon: float) -> str:
    if epsilon > math.log(1e6):
        return "more than a million times"
    ratio = math.exp(epsilon)
    return f"{ratio:.3g} times" if ratio < 1000 else f"{ratio:,.0f} times"
