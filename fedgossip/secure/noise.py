"""Noise of integers: the discrete Gaussian, P(y) proportional to exp(-y^2 / (2 sigma^2)) for whole y, drawn exactly.

    until accepted:   Y  =  +-floor(t E)           E exponential of mean 1, t = floor(sigma) + 1; no second zero
                      accepted with probability exp(-(|Y| - sigma^2 / t)^2 / (2 sigma^2))

Source: Canonne, Kamath and Steinke, The discrete Gaussian for differential privacy, NeurIPS 2020: algorithm 3, and what
algorithms 2 and 1 draw inside it.  Where we differ: a discrete Laplace is floor(t E) with a sign, and "with probability
exp(-x)" is "another E is above x", so that numpy draws both, thousands at a time; the distribution is the same.

Exact: E is -log U of a U whose first 63 bits are drawn, and float64 knows it to SLACK.  A decision that lies within
SLACK of its boundary, or whose U begins with 17 zeros, is taken again by decimal arithmetic, with as many more bits of
U as it needs.  So no float bends the distribution, neither in the middle nor in the tails; what is assumed is that
AES-CTR gives random bits.  The time that it takes depends on the noise that is drawn, not on what the noise hides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import CipherContext

from fedgossip.errors import ConfigError
from fedgossip.secure.primitives import Entropy, keystream

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SMALLEST, LARGEST = 0.5, 2.0**28
"""Of sigma.  What is drawn is above 8 sigma once in 10^15 times, and at most about 50 sigma."""

PREFIX_BITS = 63
"""Of a U that are drawn first; the bit beside them is a sign."""

SURE = 1 << 46
"""Of a prefix: a U that begins with 17 zeros or more is not known well enough by its prefix."""

SLACK = 2.0**-44
"""Of -log U: the prefixes above leave 2^-46 open, and float64 is off by a few times 2^-50."""

TRIES = 16_384  # at a time: all arrays of a turn stay in the second-level cache
ACCEPTED = 0.74  # of the tries; 0.76 for large sigma, e^-1/2 sqrt(pi / 2)
MORE_BITS = 64

_ZEROS = bytes(8 * TRIES)
_SECOND_ZERO = np.float64(-0.0).view(np.int64)


def discrete_gaussian(sigma: float, size: int, entropy: Entropy) -> Integers:
    """Return `size` independent integers of parameter `sigma`, SMALLEST to LARGEST, int64 [size].

    Their variance is sigma^2, less where sigma is below 1: 0.86 of it at 0.5.  Takes 32 bytes of entropy; the same
    bytes give the same integers.  Raises ConfigError for another sigma.
    """
    if not SMALLEST <= sigma <= LARGEST:
        raise ConfigError(
            f"noise of {sigma:g} units; the sampler draws {SMALLEST:g} to {LARGEST:g}",
            "Fewer bits make the units of a sum larger, more bits make them smaller.",
        )
    dice = keystream(entropy(32))
    found, have = np.empty(size, np.int64), 0
    while have < size:
        tries = min(TRIES, math.ceil((size - have) / ACCEPTED) + 8)
        drawn = _accepted(_laplace(math.floor(sigma) + 1, tries, dice), sigma, dice)[: size - have]
        found[have : have + len(drawn)] = drawn
        have += len(drawn)
    return found


def _laplace(t: int, tries: int, dice: CipherContext) -> Floats:
    """Return discrete Laplace variables of scale t, whole numbers; those that are -0.0 are to be left out."""
    bits = _draw(tries, dice)
    prefixes = _prefixes(bits)
    scaled = _exponential(prefixes)
    scaled *= t
    near = np.abs(scaled - np.rint(scaled)) < t * SLACK
    whole = np.floor(scaled, out=scaled)
    for place in _unsure(prefixes, near):
        whole[place] = _floor_of(int(prefixes[place]), t, dice)
    return np.copysign(whole, (bits << np.uint64(63)).view(np.float64), out=whole)


def _accepted(candidates: Floats, sigma: float, dice: CipherContext) -> Floats:
    """Return those of the discrete Laplace variables that are discrete Gaussians."""
    prefixes = _prefixes(_draw(len(candidates), dice))
    exponent = np.abs(candidates)
    exponent -= sigma * sigma / (math.floor(sigma) + 1)
    exponent *= exponent
    exponent *= 0.5 / (sigma * sigma)
    margin = np.subtract(_exponential(prefixes), exponent, out=exponent)
    accepted = margin > 0
    for place in _unsure(prefixes, np.abs(margin) < SLACK):
        accepted[place] = _above(int(prefixes[place]), _exponent(abs(int(candidates[place])), sigma), dice)
    accepted &= candidates.view(np.int64) != _SECOND_ZERO
    return np.compress(accepted, candidates)


def _draw(count: int, dice: CipherContext) -> npt.NDArray[np.uint64]:
    return np.frombuffer(dice.update(_ZEROS[: 8 * count]), "<u8")


def _prefixes(bits: npt.NDArray[np.uint64]) -> Integers:
    return (bits >> np.uint64(1)).view(np.int64)  # signed: float64 is made of them in a quarter of the time


def _exponential(prefixes: Integers) -> Floats:
    """Return -log of numbers in (0, 1) that begin with these bits."""
    u = prefixes.astype(np.float64)
    u += 0.5
    u *= 2.0**-PREFIX_BITS
    np.log(u, out=u)
    return np.negative(u, out=u)


def _unsure(prefixes: Integers, near: npt.NDArray[np.bool_]) -> list[int]:
    near |= prefixes < SURE
    places: list[int] = near.nonzero()[0].tolist()
    return places


# --- what float64 does not settle -------------------------------------------------------------------------------------


def _exponent(magnitude: int, sigma: float) -> Fraction:
    """Return (|Y| - sigma^2 / t)^2 / (2 sigma^2), exactly."""
    square = Fraction(sigma) ** 2
    return (magnitude - square / (math.floor(sigma) + 1)) ** 2 / (2 * square)


def _floor_of(prefix: int, t: int, dice: CipherContext) -> int:
    """Return floor(-t log U) of a U that begins with this prefix."""
    return _settled(prefix, dice, lambda e: int((t * e).to_integral_value(ROUND_FLOOR)))


def _above(prefix: int, x: Fraction, dice: CipherContext) -> bool:
    """Return whether -log U is above x, of a U that begins with this prefix."""
    return bool(_settled(prefix, dice, lambda e: int(e * x.denominator > x.numerator)))


def _settled(prefix: int, dice: CipherContext, decide: Callable[[Decimal], int]) -> int:
    """Return what `decide`, which only rises, says of -log U, as soon as both ends of what U can be say the same."""
    bits = PREFIX_BITS
    while True:
        prefix = prefix << MORE_BITS | int.from_bytes(dice.update(bytes(MORE_BITS // 8)), "little")
        bits += MORE_BITS
        with localcontext(prec=bits // 2):  # digits, of which the bits need a third
            error = Decimal(10) ** -(bits // 3)
            least = -(Decimal(prefix + 1) / 2**bits).ln() - error
            most = -(Decimal(prefix or 1) / 2**bits).ln() + error
            if prefix and decide(least) == decide(most):
                return decide(least)


# --- noise in a sum ---------------------------------------------------------------------------------------------------


def rounded_norm(norm: float, length: int) -> float:
    """Return the largest L2 norm that a vector of `norm` has after each of its elements was rounded up or down.

    Source: Kairouz, Liu and Steinke, ICML 2021, theorem 1 with beta = 0, where no rounding is drawn again.
    """
    return norm + math.sqrt(length)


def client_sigma(noise: float, norm: float, honest: int) -> float:
    """Return each client's sigma for a sum that `honest` clients make private with noise multiplier `noise`.

    `norm` is the sensitivity in the ring's units: the largest L2 norm of what one client adds, after rounding, see
    `rounded_norm`.  Each of them adds discrete Gaussians of variance (noise norm)^2 / honest; fewer than `honest`
    survivors must end the round, and what more of them add is not accounted.  Clients that collude with who sees the
    sum take their noise off it: they are not among the honest.

    The account is that of one Gaussian of noise multiplier `noise`.  It is exact for one discrete Gaussian at whole
    orders (Canonne et al., NeurIPS 2020, proposition 5), and for a sum of them to `sum_gap`, which is far below any
    rounding at the sigmas that fit here.  Raises ConfigError below 3, where it might not be.
    """
    if not noise > 0 or not norm > 0 or honest < 1:
        raise ConfigError(f"noise {noise:g} on a norm of {norm:g} from {honest} clients", "All three are above zero.")
    sigma = noise * norm / math.sqrt(honest)
    if not 3 <= sigma <= LARGEST:
        raise ConfigError(
            f"each client would add noise of {sigma:g} units of the sum; 3 to {LARGEST:g} are right",
            "More bits make the units smaller, fewer make them larger.",
        )
    return sigma


def sum_gap(sigma: float, clients: int) -> float:
    """Return tau: how far log P of the sum of `clients` discrete Gaussians is from that of one, per coordinate.

        tau = 10 sum_{k=1}^{clients-1} exp(-2 pi^2 sigma^2 k / (k + 1))

    Of d coordinates the Renyi divergence of a round is, at every order, at most tau d above that of one discrete
    Gaussian with the variance of the sum.  sigma = 3, 1000 clients, d = 10^9: 10^-28.

    Source: Kairouz, Liu and Steinke, The distributed discrete Gaussian mechanism for federated learning with secure
    aggregation, ICML 2021, theorem 1 and proposition 14.
    """
    return 10 * math.fsum(math.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)) for k in range(1, clients))
