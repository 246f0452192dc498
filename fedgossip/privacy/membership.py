"""Membership tests: can a holder of a model distinguish its training records from similar ones?

A test guesses that a record is a training record if the model does well on it.  If the guess finds a significantly
larger share of n training records than of m others, the model leaks.  No shadow models.

    right answers     guess by whether the answer is right: the gap between training records and others
    mean loss         the loss is below the mean loss of training records
    1 % false alarms  the loss is so low that at most 1 % of others are below it

Sources: Yeom et al., Privacy risk in machine learning: analyzing the connection to overfitting, CSF 2018 (the first
two).  Carlini et al., Membership inference attacks from first principles, S&P 2022 (the third: detections at a low
false-alarm rate).  Clopper and Pearson, Biometrika 26 (1934): exact intervals of a share.

A threshold is chosen on half of the records and evaluated on the other.  A test without a detection proves nothing: a
privacy budget bounds all attacks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import USUAL, stream

Losses = npt.NDArray[np.float64]
Right = npt.NDArray[np.bool_]

LEAST = 20
"""Minimum number of records on each side: with fewer an interval is uninformative."""
CONFIDENCE = 0.99
"""Confidence of each interval."""
FALSE_ALARMS = 0.01
"""Maximum share of others that the third test may guess as training records."""


@dataclass(frozen=True)
class MeasuredShare:
    """`hits` of `of`, and the confidence interval of the true share."""

    hits: int
    of: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.hits / self.of


def measured(hits: int, of: int) -> MeasuredShare:
    """Return the share with its exact interval, by Clopper and Pearson, at level CONFIDENCE."""
    from scipy.special import betaincinv

    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(hits, of - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, of - hits, 1 - tail)) if hits < of else 1.0
    return MeasuredShare(hits, of, low, high)


@dataclass(frozen=True)
class Guess:
    """One way to guess, and its rates."""

    name: str
    found: MeasuredShare
    """True positives: training records guessed as such."""
    alarms: MeasuredShare
    """False positives: other records guessed as training records."""

    @property
    def succeeds(self) -> bool:
        """Whether it certainly finds a larger share of the training records than of the others."""
        return self.found.low > self.alarms.high

    @property
    def epsilon(self) -> float:
        """Return the minimum epsilon, at delta 0, of the training; 0 for an uninformative guess.

        Its confidence is that of both intervals together.
        """
        if not self.succeeds:
            return 0.0
        missed = (1 - self.alarms.high) / max(1 - self.found.low, 1e-300)
        return math.log(max(self.found.low / max(self.alarms.high, 1e-300), missed))


@dataclass(frozen=True)
class MembershipTest:
    """The results of the tests of a model."""

    trained: int
    """Number of its training records."""
    others: int
    trained_loss: float
    other_loss: float
    auroc: float
    """The chance that a training record has a lower loss than another record: 0.5: indistinguishable."""
    guesses: tuple[Guess, ...]

    @property
    def flagged(self) -> bool:
        return any(guess.succeeds for guess in self.guesses)

    @property
    def epsilon(self) -> float:
        return max(guess.epsilon for guess in self.guesses)


def membership_test(
    trained: Losses, others: Losses, right: tuple[Right, Right] | None = None, seed: int = USUAL
) -> MembershipTest:
    """Return the tests of a model with these losses on its training records, and on similar other records.

    `right`: whether its answers are right, or None.  `seed` divides the halves.  Raises ConfigError for fewer than
    LEAST records on a side.
    """
    for count, what in ((len(trained), "that the model was trained on"), (len(others), "that it was not trained on")):
        if count < LEAST:
            advice = f"At least {LEAST} of each; fewer allow no conclusion."
            raise ConfigError(f"{count} records {what}", advice)
    guesses = [_guess_by_answers(*right)] if right is not None else []
    halves = [_halves(losses, seed, side) for side, losses in enumerate((trained, others))]
    (known, judged), (known_others, judged_others) = halves
    for name, threshold in (
        ("mean loss", float(known.mean())),
        ("1 % false alarms", _find_threshold(known_others, FALSE_ALARMS)),
    ):
        shares = (measured(int((side < threshold).sum()), len(side)) for side in (judged, judged_others))
        guesses.append(Guess(name, *shares))
    area = _area(trained, others)
    return MembershipTest(len(trained), len(others), float(trained.mean()), float(others.mean()), area, tuple(guesses))


def _guess_by_answers(trained: Right, others: Right) -> Guess:
    return Guess("right answers", *(measured(int(side.sum()), len(side)) for side in (trained, others)))


def _halves(losses: Losses, seed: int, side: int) -> tuple[Losses, Losses]:
    order = stream(seed, "membership test", side).permutation(len(losses))
    return losses[order[: len(order) // 2]], losses[order[len(order) // 2 :]]


def _find_threshold(others: Losses, share: float) -> float:
    """Return the threshold with at most this share of losses below it."""
    return float(np.sort(others)[math.floor(share * len(others))])


def _area(trained: Losses, others: Losses) -> float:
    """Return the share of pairs whose training record has the lower loss; equal losses count half."""
    ordered = np.sort(others)
    above = len(others) - np.searchsorted(ordered, trained, side="right")
    equal = np.searchsorted(ordered, trained, side="right") - np.searchsorted(ordered, trained, side="left")
    return float((above + equal / 2).sum() / (len(trained) * len(others)))
