"""Whether a codec pays beside the same collective without it, under these links, and its break-even bandwidth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedgossip.lab.compare.names import paradigm_of
from fedgossip.lab.compare.setting import Setting
from fedgossip.lab.costs.formulas import break_even

LINEAR = 1e6
"""Bytes per second for counting the bytes of a round: its time is linear in the inverse."""


@dataclass(frozen=True)
class Compression:
    """One codec.  Rounds and seconds are those to the target loss; None where it was not reached."""

    dense: str
    coded: str
    dense_seconds: float | None
    coded_seconds: float | None
    codec_seconds: float
    """Seconds of a worker's codec in all those rounds."""
    pays_below: float
    """Break-even bandwidth in bytes per second, each way; 0.0: never pays, infinite: always pays."""

    @property
    def pays(self) -> bool:
        """Return whether it reaches the target sooner under these links."""
        if self.coded_seconds is None:
            return False
        return self.dense_seconds is None or self.coded_seconds + self.codec_seconds < self.dense_seconds

    @property
    def below(self) -> str:
        """Return in words the bandwidths at which it would pay."""
        if not self.pays_below:
            return "at no bandwidth"
        return "at any bandwidth" if math.isinf(self.pays_below) else f"below {rate_said(self.pays_below)}B/s"

    @property
    def sentence(self) -> str:
        """Return the sentence for the head of a comparison."""
        verdict = "Compressing pays here" if self.pays else "Do not compress here"
        coded = f"{self.coded} {_after(self.coded_seconds)}"
        if self.coded_seconds is None:
            return f"{verdict}: {self.dense} is at the loss {_after(self.dense_seconds)}, {coded}."
        working = f"and {self.codec_seconds:.2g} s of its codec; by the cost model it pays {self.below}"
        return f"{verdict}: {self.dense} is at the loss {_after(self.dense_seconds)}, {coded} {working}."

    def told(self) -> Mapping[str, Any]:
        """Return plain data; "pays_below" is None where it pays at any bandwidth."""
        below = None if math.isinf(self.pays_below) else self.pays_below
        return {**asdict(self), "pays_below": below, "pays": self.pays, "below": self.below}


def compression_of(
    names: tuple[str, str],
    seconds: Mapping[str, float | None],
    rounds: Mapping[str, float | None],
    codec_seconds: float,
    setting: Setting,
) -> Compression:
    """Return the gain of a codec; `names`: without it, with it; `codec_seconds`: per round.

    With R rounds of B sequential bytes and c further seconds each, and codec time t, the break-even is that of
    R B - R' B' bytes saved for R' (c' + t) - R c seconds.
    """
    dense, coded = names
    ours, theirs = rounds[coded], rounds[dense]
    if ours is None:
        return Compression(dense, coded, seconds[dense], None, 0.0, 0.0)
    working = codec_seconds * ours
    if theirs is None:
        return Compression(dense, coded, None, seconds[coded], working, math.inf)
    beside, sent = round_of(dense, setting)
    own, less = round_of(coded, setting)
    below = break_even(theirs * sent - ours * less, ours * (own + codec_seconds) - theirs * beside)
    return Compression(dense, coded, seconds[dense], seconds[coded], working, below)


def round_of(name: str, setting: Setting) -> tuple[float, float]:
    """Return the seconds of a round independent of bandwidth, and its sequential bytes."""

    def seconds(rate: float) -> float:
        return paradigm_of(name).cost(replace(setting, links=replace(setting.links, up=rate, down=rate))).seconds

    beside = seconds(math.inf)
    return beside, (seconds(LINEAR) - beside) * LINEAR


def rate_said(rate: float) -> str:
    """Return bytes per second with two digits and a unit prefix."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{float(f'{rate / size:.2g}'):g} {unit}"
    return f"{rate:.2g} "


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.3g} s"
