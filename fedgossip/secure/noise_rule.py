"""The noise of a sum as clients agree on it: a rule that each insists on, and what it comes to in a session."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import msgspec

from fedgossip.secure.encoding import Encoding
from fedgossip.secure.fixed_point import BIT
from fedgossip.secure.noise import client_sigma, rounded_norm


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Distributed differential privacy: what each client adds, so that `honest` survivors hide each of them."""

    sigma: float = 0.0
    """Standard deviation of a client's discrete Gaussian, in the ring's units; 0: none."""
    honest: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    """Survivors whose noise is counted on: with fewer nothing is summed."""
    bit_sigma: float = 0.0
    """The same on the coordinate that says whether an update was shorter than the clip."""

    @property
    def on(self) -> bool:
        return self.sigma > 0


NO_NOISE = Noise()


@dataclass(frozen=True)
class NoiseRule:
    """How much noise a sum takes, whatever the clip: what a client insists on.  Raises ConfigError.

    `multiplier` is z of the updates, `bits` the deviation of the noise in the sum of bits that say whose update was
    shorter than the clip; 0 where none are told.  `honest` survivors are counted on.
    """

    multiplier: float
    honest: int
    bits: float = 0.0

    def at(self, fixed: Encoding) -> Noise:
        """Return what each client adds to a sum of these numbers."""
        norm = rounded_norm(fixed.clip_l2 * fixed.limit / fixed.clip_inf, fixed.length)
        bit_sigma = self.bits * BIT / math.sqrt(self.honest)
        return Noise(client_sigma(self.multiplier, norm, self.honest), self.honest, bit_sigma)
