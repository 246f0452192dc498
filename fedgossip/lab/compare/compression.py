"""Whether a codec pays beside the same collective without it, under these links, and below which bandwidth it would."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedgossip.lab.compare.names import paradigm_of
from fedgossip.lab.compare.setting import Setting
from fedgossip.lab.costs.formulas import break_even

LINEAR = 1e6
"""Bytes per second at which the bytes of a round are counted: its time is linear in the inverse."""


@dataclass(frozen=True)
class Compression:
    """One codec.  Rounds and seconds are those to the target loss; None where it was not reached."""

    dense: str
    coded: str
    dense_seconds: float | None
    coded_seconds: float | None
    codec_seconds: float
    """Of the codec of a worker, in all those rounds."""
    pays_below: float
    """Bytes per second, each way; 0.0: nowhere, infinite: everywhere."""

    @property
    def pays(self) -> bool:
        """Whether it is sooner at the target here."""
        if self.coded_seconds is None:
            return False
        return self.dense_seconds is None or self.coded_seconds + self.codec_seconds < self.dense_seconds

    @property
    def below(self) -> str:
        """Where it would pay, in words."""
        if not self.pays_below:
            return "at no bandwidth"
        return "at any bandwidth" if math.isinf(self.pays_below) else f"below {rate_said(self.pays_below)}B/s"

    @property
    def sentence(self) -> str:
        """For the head of a comparison."""
        verdict = "Compressing pays here" if self.pays else "Do not compress here"
        coded = f"{self.coded} {_after(self.coded_seconds)}"
        if self.coded_seconds is None:
            return f"{verdict}: {self.dense} is at the loss {_after(self.dense_seconds)}, {coded}."
        working = f"and {self.codec_seconds:.2g} s of its codec; by the cost model it pays {self.below}"
        return f"{verdict}: {self.dense} is at the loss {_after(self.dense_seconds)}, {coded} {working}."

    def told(self) -> Mapping[str, Any]:
        """As plain data; "pays_below" is None where it pays at any bandwidth."""
        below = None if math.isinf(self.pays_below) else self.pays_below
        return {**asdict(self), "pays_below": below, "pays": self.pays, "below": self.below}


def compression_of(
    names: tuple[str, str],
    seconds: Mapping[str, float | None],
    rounds: Mapping[str, float | None],
    codec_seconds: float,
    setting: Setting,
) -> Compression:
    """Return what a codec brings; `names`: without it, with it; `codec_seconds`: of a round.

    With R rounds of B bytes one after the other and c seconds beside them, each, and t of the codec, the break-even is
    that of R B - R' B' bytes saved for R' (c' + t) - R c seconds.
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
    """Return the seconds of a round that no bandwidth changes, and the bytes that it waits for, one after the other."""

    def seconds(rate: float) -> float:
        return paradigm_of(name).cost(replace(setting, links=replace(setting.links, up=rate, down=rate))).seconds

    beside = seconds(math.inf)
    return beside, (seconds(LINEAR) - beside) * LINEAR


def rate_said(rate: float) -> str:
    """Return bytes per second in two digits and a unit's prefix."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{float(f'{rate / size:.2g}'):g} {unit}"
    return f"{rate:.2g} "


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.3g} s"
