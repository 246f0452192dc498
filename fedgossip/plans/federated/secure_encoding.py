"""Encoding of a secure sum, by the experiment: bounds, bits, facts sent with the update, noise, and a clip that follows
the updates.

The clip follows the norm below which a chosen share of the updates lies:

    each client    clips its update to C, and reports whether it was shorter:  b = 1 or 0, less one half
    the sum        of updates with noise z_delta C, of bits with noise sigma_b
    next clip      C <- C exp(-rate (b - quantile))        b = one half + the mean of the noisy bits

Both sums cost one Gaussian of noise multiplier z: z^-2 = z_delta^-2 + (2 sigma_b)^-2, as a bit less one half changes
its sum by at most one half.  A clip wrong by a factor of ten recovers in 23 rounds (median, usual rate).  It depends
only on noisy sums, so it may be published.

Source: Andrew, Thakkar, McMahan and Ramaswamy, Differentially private learning with adaptive clipping, NeurIPS 2021,
algorithm 1 and theorem 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedgossip.algorithms.codecs.base import LinearCodec
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.federated.base import ClientRule, effective_steps
from fedgossip.base.errors import ConfigError
from fedgossip.base.scores import ACCURACY, Score
from fedgossip.core.machine import NodeId
from fedgossip.core.roles import Roles
from fedgossip.experiment import CoordinatorSection, SecureSection
from fedgossip.experiment.run_sections import WEIGHT_MAX
from fedgossip.learning.settings import TrainSettings
from fedgossip.protocols.federated.client_round import SentMetrics
from fedgossip.secure.encoding import ExactSums, NoiseRule, RingEncoding, client_sigma, rounded_norm
from fedgossip.secure.fixed_point import CLIPPED, NOTHING, RING_BITS, SHORTER, FixedPoint

NOISY_MOST = 8.0
"""Maximum absolute value of a share with noise on it."""

BITS, BITS_MANY, MANY = 24, 20, 100
"""Bits per element: for up to MANY clients, and for more."""

CLIP_ROOM = 64
"""Maximum growth of a following clip, as a multiple of its first value."""

ROOM = 1 << (RING_BITS - 1)
"""Strict upper bound of every number of a sum."""


def weight_max_for(section: SecureSection, largest: int) -> int:
    """Return the section's maximum; otherwise one for a client with `largest` examples, if the bits allow it."""
    if section.weight_max is not None:
        return section.weight_max
    fits = 2 ** ((section.bits or BITS_MANY) - 1) - 1
    steps = (first * 10**power for power in range(4, 10) for first in (1, 2, 5))
    wanted = next((step for step in steps if step >= largest), WEIGHT_MAX)
    return wanted if wanted <= fits else WEIGHT_MAX


def check_weights(most: int, examples: Mapping[NodeId, int], roles: Roles) -> None:
    """Raise ConfigError if a participant in this process has more examples than a secure sum can hold."""
    held = max(examples.values(), default=0)
    if 1 < most < held:
        node = next(node for node, count in examples.items() if count == held)
        text = f"{roles.label(node)} has {held:,} examples, and coordinator.secure.weight_max = {most:,}"
        usual = 10 ** math.ceil(math.log10(held))
        raise ConfigError(text, f"All set the same value, the weight of the largest: weight_max = {usual}.")


@dataclass(frozen=True)
class Numbers:
    """The encoding of one run; a sum has `invited` clients and needs `least` of them."""

    section: CoordinatorSection
    train: TrainSettings
    clients: ClientRule
    invited: int
    least: int
    vectors: int
    """Number of vectors that a client sends, concatenated."""
    by_examples: bool
    """Whether a client's weight is its number of examples; otherwise all weights are equal."""
    weight_max: int
    """Maximum number of examples of a client."""
    sent_metrics: SentMetrics
    """Metrics that clients report with the update."""
    score: Score = ACCURACY
    """Score that clients measure, if any."""
    statistics: int = 0
    """Number of elements at the end of a model that are running statistics."""
    exact: ExactSums | None = None
    """Encoding of statistics, in runs without a model."""

    @property
    def hidden(self) -> bool:
        """Whether noise in the sum protects each client."""
        return self.section.privacy.unit == "client"

    def fixed_point(self, length: int, layout: str) -> RingEncoding:
        """Return the encoding of contributions for a model of `length` elements."""
        if self.exact is not None:
            return self.exact
        s, parameters = self.section.secure, length - self.statistics
        elements, kept = length * self.vectors, parameters  # the statistics are behind the parameters of the first
        if self.section.codec:  # the elements that are sent, which follow from the round
            kept = self._codec.elements(parameters)
            elements, layout = kept + self.statistics, f"{layout} {self.section.codec}"
        p = self.section.privacy
        bound = p.clip * (CLIP_ROOM if p.adaptive else 1) if self.hidden else s.bound
        return FixedPoint(
            length=elements,
            clip_l2=p.clip if self.hidden else bound * math.sqrt(elements - self.statistics),
            clip_inf=bound,
            weight_max=self.weight_max if self.by_examples else 1,
            q_bits=s.bits or self._bits(elements),
            metrics=self._metrics,
            layout=layout,
            statistics=(kept, kept + self.statistics) if self.statistics else (0, 0),
            tells=self._describe_clip,
        )

    @property
    def _codec(self) -> LinearCodec:
        codec = make_codec(self.section.codec)
        assert isinstance(codec, LinearCodec), "checked when the plan was made"
        return codec

    @property
    def _metrics(self) -> tuple[tuple[str, float], ...]:
        s, t = self.section.secure, self.train
        most = t.local_steps or math.ceil(self.weight_max / t.examples_per_step) * (t.local_epochs or 1)
        share = NOISY_MOST if "tests" in self.sent_metrics.covered else 1.0
        score = share if self.score.share else s.score_max
        bounds = {
            "steps": effective_steps(self.clients, most),
            "loss": s.score_max,
            "logged": 1.0,
            "measured": score,
            "tested": 1.0,
        }
        bounds |= dict.fromkeys(self.sent_metrics.counts, 1.0)
        return tuple((name, bounds[name]) for name in self.sent_metrics.fields if name in bounds)

    @property
    def _describe_clip(self) -> str:
        fields = self.sent_metrics.fields
        return next((name for name in (CLIPPED, SHORTER) if name in fields), NOTHING)

    def _bits(self, elements: int) -> int:
        usual = BITS if self.invited <= MANY else BITS_MANY
        fits = (b for b in range(usual, 2, -1) if self.reach(elements, (1 << (b - 1)) - 1) < ROOM)
        return next(fits, usual)

    def reach(self, elements: int, limit: int) -> float:
        """Return the maximum of a number of a sum, with its noise, if no element exceeds `limit`."""
        rule = self.rule
        sigma = client_sigma(rule.multiplier, rounded_norm(float(limit), elements), rule.honest) if rule else 0.0
        return self.invited * limit + 8 * sigma * math.sqrt(self.invited)

    @property
    def rule(self) -> NoiseRule | None:
        """Noise in the sums; None without noise."""
        p = self.section.privacy
        if not self.hidden:
            return None
        if not p.adaptive:
            return NoiseRule(p.noise, self.least)
        bits = bits_noise(self.least)
        return NoiseRule(split(p.noise, bits), self.least, bits)

    def clipping(self, clip: float | None = None) -> FollowingClip | None:
        """Return the following clip of a run, or of one resumed with `clip`; None if the clip is fixed."""
        p = self.section.privacy
        return FollowingClip(Clip(clip or p.clip)) if self.hidden and p.adaptive else None


CLIENTS_PER_SIGMA = 20
"""Number of clients per unit of the paper's sigma_b."""

LEAST, MOST = 1e-12, 1e12
"""Minimum and maximum of a clip, which noise alone may move without bound."""


@dataclass(frozen=True)
class Clip:
    """The clip of a round and its rule of change.  Raises ConfigError for numbers out of range."""

    clip: float
    """C, above 0; the first value is a guess, 0.1 in the paper."""
    quantile: float = 0.5
    """Target share of shorter updates; 0.5 clips half of them; a larger share biases less and needs more noise."""
    rate: float = 0.2
    """A round changes the clip by a factor of at most exp(rate), noise aside."""

    def __post_init__(self) -> None:
        if not LEAST <= self.clip <= MOST or not 0 <= self.quantile <= 1 or not 0 < self.rate < math.inf:
            raise ConfigError(
                f"a clip of {self.clip:g} for the quantile {self.quantile:g} at rate {self.rate:g}",
                "The clip and its rate are above 0, the quantile is 0 to 1.",
            )

    def adapt(self, shorter: float) -> Clip:
        """Return the next round's clip, given the share of shorter updates; see `share_shorter`."""
        factor = math.exp(min(max(-self.rate * (shorter - self.quantile), -50.0), 50.0))
        return replace(self, clip=min(max(self.clip * factor, LEAST), MOST))


def bit(norm: float, clip: float) -> float:
    """Return a client's term in the sum of bits: 0.5 if its update is not longer than the clip, otherwise -0.5."""
    return 0.5 if norm <= clip else -0.5


def share_shorter(noisy_bits: float, clients: int) -> float:
    """Return the share of shorter updates, by the noisy sum of the bits; noise may move it outside 0 to 1."""
    return 0.5 + noisy_bits / clients


def bits_noise(clients: int) -> float:
    """Return the paper's sigma_b for `clients` per round."""
    return clients / CLIENTS_PER_SIGMA


def split(noise: float, bits_noise: float) -> float:
    """Return the updates' noise multiplier z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2), with `bits_noise` on the bits, at
    the cost of `noise`.

    Raises ConfigError if the bits alone cost more.
    """
    if not 0 < noise < 2 * bits_noise:
        raise ConfigError(
            f"noise {bits_noise:g} on the bits of a clip that follows the updates, with {noise:g} in all",
            f"It is above half of it, {noise / 2:g}: take more clients a round, less noise in all, or a fixed clip.",
        )
    return 1 / math.sqrt(noise**-2 - (2 * bits_noise) ** -2)


@dataclass(frozen=True)
class FollowingClip:
    """A clip that follows the median norm of the updates, in the form used by the rounds."""

    state: Clip

    @property
    def clip(self) -> float:
        return self.state.clip

    def adapt(self, shorter: float, clients: int) -> FollowingClip:
        return FollowingClip(self.state.adapt(share_shorter(shorter, clients)))
