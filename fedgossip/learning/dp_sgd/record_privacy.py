"""Privacy of single records in training: its strength, the draw of each step, and the number of steps.  No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.learning.one_model.batches import BatchPlan, Indices
from fedgossip.learning.settings import TrainSettings
from fedgossip.secure.primitives import Entropy, keystream

CLIP_LEAST, CLIP_MOST = 1e-6, 1e6
NOISE_LEAST, NOISE_MOST = 1e-3, 256.0


@dataclass(frozen=True)
class RecordPrivacy:
    """The protection of single examples.  Raises ConfigError for numbers out of range."""

    clip: float
    """Maximum length of an example's gradient; a smaller clip needs less noise and adds more bias."""
    noise: float
    """z: the noise's deviation over the clip, 1e-3 to 256.  0 only clips, and hides nothing."""
    entropy: Entropy | None = field(default=None, repr=False)
    """os.urandom in a real run.  None: batches and noise are functions of (seed, node, round), repeatable and not
    private.
    """
    test_noise: float = 0.0
    """Deviation of the noise on the count of correct answers, which each record changes by one; 0: no count is
    reported.
    """

    def __post_init__(self) -> None:
        noisy = self.noise == 0 or NOISE_LEAST <= self.noise <= NOISE_MOST
        if not CLIP_LEAST <= self.clip <= CLIP_MOST or not noisy:
            raise ConfigError(
                f"privacy with clip {self.clip:g} and noise {self.noise:g}",
                f"The clip is {CLIP_LEAST:g} to {CLIP_MOST:g}, the noise 0 or {NOISE_LEAST:g} to {NOISE_MOST:g}.",
            )

    def entropy_of(self, seed: int, purpose: str, node: int, round: int) -> Entropy:
        if self.entropy is not None:
            return self.entropy
        return seeds.stream(seed, f"privacy {purpose}", node, round).bytes


class PoissonBatches:
    """Draws plans that include every example independently, at the rate of `private_rate`."""

    def __init__(
        self,
        shares: Sequence[Indices] | Mapping[int, Indices],
        settings: TrainSettings,
        privacy: RecordPrivacy,
        seed: int,
    ) -> None:
        self._shares, self._settings, self._privacy, self._seed = shares, settings, privacy, seed

    def plan(self, node: int, round: int, steps: int | None = None) -> BatchPlan:
        """Return the batches of `node` in `round`; a step may have no example, or all.

        Raises ConfigError if `steps` differs from the steps of a round's account.
        """
        share = self._shares[node]
        counted = private_steps(self._settings, len(share))
        if steps not in (None, counted):
            text = f"a gradient over {steps} batches, and a round's account of privacy has {counted}"
            raise ConfigError(text, "Set train.local_steps to as many.")
        dice = keystream(self._privacy.entropy_of(self._seed, "batches", node, round)(32))
        rate = private_rate(self._settings, len(share))
        drawn = []
        for _ in range(counted):
            # 64 bits each, compared with the rate: the probability's relative error is at most 2^-52
            chances = np.frombuffer(dice.update(bytes(8 * len(share))), "<u8")
            drawn.append(share if rate == 1 else share[chances < np.uint64(rate * 2.0**64)])
        counts = np.array([len(one) for one in drawn])
        indices = np.zeros((len(drawn), int(counts.max())), np.int64)
        for row, one in zip(indices, drawn, strict=True):
            row[: len(one)] = one
        return BatchPlan(indices, counts)


def private_rate(settings: TrainSettings, examples: int) -> float:
    """Return q, the probability of each of a node's examples in a step."""
    return min(1.0, settings.batch_size / examples)


def private_steps(settings: TrainSettings, examples: int) -> int:
    """Return the steps of a round: local_steps, or the number of steps of local_epochs passes over the examples."""
    if settings.local_steps is not None:
        return settings.local_steps
    assert settings.local_epochs is not None
    return settings.local_epochs * -(-examples // settings.batch_size)


def check_private(settings: TrainSettings) -> None:
    """Raise ConfigError for settings that do not support per-example gradients."""
    usual_ones = {"processes": 1, "parallel": "ddp", "precision": "float32", "compile": False, "accumulate": 1}
    for name, usual in usual_ones.items():
        if getattr(settings, name) != usual:
            raise ConfigError(
                f"{name} = {getattr(settings, name)!r} where single records are private", f"Leave {name} out."
            )
