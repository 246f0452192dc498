"""The agreed noise of a sum: a rule that each client requires, and its values in a session."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import msgspec

from fedgossip.base.errors import ConfigError
from fedgossip.secure.encoding import RingEncoding
from fedgossip.secure.fixed_point import BIT
from fedgossip.secure.noise import LARGEST


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Distributed differential privacy: the noise of each client, so that `honest` survivors hide each of them."""

    sigma: float = 0.0
    """Standard deviation of a client's discrete Gaussian, in the ring's units; 0: none."""
    honest: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    """Minimum number of survivors that add noise: with fewer nothing is summed."""
    bit_sigma: float = 0.0
    """The same on the coordinate for updates shorter than the clip."""

    @property
    def on(self) -> bool:
        return self.sigma > 0


NO_NOISE = Noise()


@dataclass(frozen=True)
class NoiseRule:
    """The noise of a sum at any clip, required by each client.  Raises ConfigError.

    `multiplier` is z of the updates, `bits` the deviation of the noise in the sum of the bits for updates shorter than
    the clip; 0 without such bits.  `honest` survivors are assumed.
    """

    multiplier: float
    honest: int
    bits: float = 0.0

    def at(self, fixed: RingEncoding) -> Noise:
        """Return the noise that each client adds to a sum of these numbers."""
        norm = rounded_norm(fixed.clip_l2 * fixed.limit / fixed.clip_inf, fixed.length)
        bit_sigma = self.bits * BIT / math.sqrt(self.honest)
        return Noise(client_sigma(self.multiplier, norm, self.honest), self.honest, bit_sigma)


# --- noise in a sum ---------------------------------------------------------------------------------------------------


def rounded_norm(norm: float, length: int) -> float:
    """Return the largest L2 norm that a vector of `norm` has after each of its elements was rounded up or down.

    Source: Kairouz, Liu and Steinke, ICML 2021, theorem 1 with beta = 0, where no rounding is drawn again.
    """
    return norm + math.sqrt(length)


def client_sigma(noise: float, norm: float, honest: int) -> float:
    """Return each client's sigma for a sum that `honest` clients make private with noise multiplier `noise`.

    `norm` is the sensitivity in the ring's units: the largest L2 norm of one client's contribution, after rounding, see
    `rounded_norm`.  Each of them adds discrete Gaussians of variance (noise norm)^2 / honest; fewer than `honest`
    survivors must end the round, and noise of more of them is not accounted.  Clients that collude with an observer of
    the sum remove their noise: they are not among the honest.

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
    """Return tau: the distance of log P of the sum of `clients` discrete Gaussians to that of one, per coordinate.

        tau = 10 sum_{k=1}^{clients-1} exp(-2 pi^2 sigma^2 k / (k + 1))

    For d coordinates the Renyi divergence of a round is, at every order, at most tau d above that of one discrete
    Gaussian with the variance of the sum.  sigma = 3, 1000 clients, d = 10^9: 10^-28.

    Source: Kairouz, Liu and Steinke, The distributed discrete Gaussian mechanism for federated learning with secure
    aggregation, ICML 2021, theorem 1 and proposition 14.
    """
    return 10 * math.fsum(math.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)) for k in range(1, clients))
