"""A clip that follows the updates: the norm below which a chosen share of the updates lies.

    each client    clips its update to C, and reports whether it was shorter:  b = 1 or 0, less one half
    the sum        of updates with noise z_delta C, of bits with noise sigma_b
    next clip      C <- C exp(-rate (b - quantile))        b = one half + the mean of the noisy bits

Both sums together cost what one Gaussian of noise multiplier z costs: z^-2 = z_delta^-2 + (2 sigma_b)^-2, for a bit
less one half moves its sum by at most one half.  A first clip that is ten times off is forgotten in 23 rounds, for the
median at the usual rate, without a search that would itself spend privacy.  The clip is made of noisy sums alone: it
may be published.

Source: Andrew, Thakkar, McMahan and Ramaswamy, Differentially private learning with adaptive clipping, NeurIPS 2021,
algorithm 1 and theorem 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedgossip.base.errors import ConfigError

CLIENTS_PER_SIGMA = 20
"""Divisor of the number of clients of a round that gives the paper's sigma_b."""

LEAST, MOST = 1e-12, 1e12
"""Minimum and maximum of a clip: noise alone may push it anywhere."""


@dataclass(frozen=True)
class Clip:
    """The clip of a round and how it moves.  Raises ConfigError for numbers out of range."""

    clip: float
    """C, above 0: the first one is a guess, 0.1 in the paper."""
    quantile: float = 0.5
    """The share of updates that should be shorter; 0.5 cuts half of them, more of them biases less and is noisier."""
    rate: float = 0.2
    """A round moves the clip by a factor of exp(rate) at most, noise aside."""

    def __post_init__(self) -> None:
        if not LEAST <= self.clip <= MOST or not 0 <= self.quantile <= 1 or not 0 < self.rate < math.inf:
            raise ConfigError(
                f"a clip of {self.clip:g} for the quantile {self.quantile:g} at rate {self.rate:g}",
                "The clip and its rate are above 0, the quantile is 0 to 1.",
            )

    def after(self, shorter: float) -> Clip:
        """Return the next round's clip, where so large a share of the updates was shorter; see `share_shorter`."""
        factor = math.exp(min(max(-self.rate * (shorter - self.quantile), -50.0), 50.0))
        return replace(self, clip=min(max(self.clip * factor, LEAST), MOST))


def bit(norm: float, clip: float) -> float:
    """Return what a client adds to the sum of bits: 0.5 where its update is not longer than the clip, else -0.5."""
    return 0.5 if norm <= clip else -0.5


def share_shorter(noisy_bits: float, clients: int) -> float:
    """Return the share of updates that were shorter, by the noisy sum of the bits; noise may take it out of 0 to 1."""
    return 0.5 + noisy_bits / clients


def bits_noise(clients: int) -> float:
    """Return the paper's sigma_b for so many clients a round."""
    return clients / CLIENTS_PER_SIGMA


def split(noise: float, bits_noise: float) -> float:
    """Return z_delta, the noise multiplier of the updates, that with noise `bits_noise` on the bits costs as `noise`.

    z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2).  Raises ConfigError where the bits alone cost more than that.
    """
    if not 0 < noise < 2 * bits_noise:
        raise ConfigError(
            f"noise {bits_noise:g} on the bits of a clip that follows the updates, with {noise:g} in all",
            f"It is above half of it, {noise / 2:g}: take more clients a round, less noise in all, or a fixed clip.",
        )
    return 1 / math.sqrt(noise**-2 - (2 * bits_noise) ** -2)
