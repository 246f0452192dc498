"""How the learning rate goes over the rounds: "constant", "cosine", "step:30,0.1", each after "warmup:5," if need be.

    warm-up   round r of W   the share (r + 1) / W of the rate, so that the last of them has all of it
    cosine    to 0 at the last round, from the end of the warm-up on
    step      times a factor every so many rounds, counted from the first one

Large batches begin with small steps: Goyal, Dollar, Girshick, Noordhuis, Wesolowski, Kyrola, Tulloch, Jia and He,
Accurate, large minibatch SGD, arXiv:1706.02677 (2017), section 2.2, where the warm-up begins at the rate of a small
batch; here it begins at one part of W, whatever the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedgossip.base.errors import ConfigError, nearest

SHAPES = ("constant", "cosine", "step")
WARMUP = "warmup"
WRITTEN = "Write constant, cosine or step:ROUNDS,FACTOR, for instance step:30,0.1; warmup:ROUNDS, may stand before it."


@dataclass(frozen=True)
class RateSchedule:
    """A schedule as it is written.  `warmup`: rounds; `every` and `factor`: of "step"."""

    shape: str = "constant"
    warmup: int = 0
    every: int = 1
    factor: float = 1.0

    def rate(self, peak: float, round: int, rounds: int) -> float:
        """Return the rate of `round` (from 0) of `rounds`, of which `peak` is the highest."""
        if round < self.warmup:
            return peak * (round + 1) / self.warmup
        if self.shape == "constant":
            return peak
        if self.shape == "cosine":
            done, all_of_them = min(round, rounds) - self.warmup, max(1, rounds - self.warmup)
            return peak * 0.5 * (1 + math.cos(math.pi * done / all_of_them))
        return float(peak * self.factor ** (round // self.every))


def schedule_of(text: str) -> RateSchedule:
    """Return the schedule that a text says.  Raises ConfigError for another text."""
    first, _, after = text.partition(",")
    kind, colon, count = first.partition(":")
    if kind != WARMUP:
        return _shape_of(text, text, 0)
    if not (colon and count.isdecimal() and 1 <= int(count) < 2**31):
        raise ConfigError(f"schedule = {text!r}", f"A warm-up has a number of rounds: {WARMUP}:5.  {WRITTEN}")
    return _shape_of(text, after or "constant", int(count))


def _shape_of(text: str, shape: str, warmup: int) -> RateSchedule:
    kind, _, rest = shape.partition(":")
    if kind not in SHAPES:
        raise ConfigError(f"unknown schedule {kind!r}", nearest(kind, (*SHAPES, WARMUP)))
    if kind != "step" and not rest:
        return RateSchedule(kind, warmup)
    try:
        every, factor = rest.split(",")
        if kind == "step" and int(every) >= 1 and 0 < float(factor) < math.inf:
            return RateSchedule(kind, warmup, int(every), float(factor))
    except ValueError:
        pass
    raise ConfigError(f"schedule = {text!r}", WRITTEN)
