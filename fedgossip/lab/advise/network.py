"""The network of an advice: links, and the time of a training step on each machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgossip.base import outside_files, seeds
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.lab.costs.base import EqualLinks, Times

PRESETS: Mapping[str, EqualLinks] = {
    "cluster": EqualLinks(50e-6, 12.5e9, 12.5e9),
    "lan": EqualLinks(1e-3, 1.25e9, 1.25e9),
    "wan": EqualLinks(30e-3, 12.5e6, 12.5e6),
}
"""100 Gb/s and 50 us; 10 Gb/s and 1 ms; 100 Mb/s and 30 ms."""

FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class AdvisedLinks:
    """Equal links; or measured links of pairs: a method is as fast as the slowest that it uses."""

    usual: EqualLinks
    pairs: Mapping[tuple[int, int], EqualLinks] = field(default_factory=dict)

    def over(self, pairs: Iterable[tuple[int, int]]) -> EqualLinks:
        """Return the links of a method that uses these pairs."""
        used = [self.pairs.get((u, v)) or self.pairs.get((v, u)) or self.usual for u, v in pairs] if self.pairs else []
        if not used:
            return self.usual
        slow = min(one.rate for one in used)
        return EqualLinks(max(one.latency for one in used), slow, slow)


def links_of(text: str, n: int) -> AdvisedLinks:
    """Return the links that a text names: a preset, "SECONDS,BYTES_PER_SECOND", or a CSV file from,to,latency,rate.

    Raises ConfigError.
    """
    if text in PRESETS:
        return AdvisedLinks(PRESETS[text])
    if text.endswith(".csv"):
        return _from_file(Path(text), n)
    try:
        latency, rate = (float(part) for part in text.split(","))
    except ValueError:
        advice = f"{nearest(text, PRESETS)}  Or 0.03,12.5e6: seconds one way, bytes per second; or a .csv file."
        raise ConfigError(f"links {text!r} cannot be read", advice) from None
    return AdvisedLinks(_checked(latency, rate, f"links {text!r}"))


def _checked(latency: float, rate: float, where: str) -> EqualLinks:
    if not (0 <= latency < math.inf and 0 < rate < math.inf):
        raise ConfigError(f"{where}: {latency:g} s and {rate:g} bytes per second", "Give 0 or more, and more than 0.")
    return EqualLinks(latency, rate, rate)


def _from_file(path: Path, n: int) -> AdvisedLinks:
    try:
        outside_files.check_file(outside_files.named(path), FILE_BYTES)
    except OSError as error:
        what = (error.strerror or "cannot be read").lower()
        raise ConfigError(f"{path}: {what}", "See docs/together/advise.md.") from None
    table = CsvColumns(path)
    names = "from", "to", "latency", "rate"
    advice = "The first line is from,to,latency,rate: ids, seconds one way, bytes per second."
    if missing := [name for name in names if name not in table.header]:
        raise ConfigError(f"{path}: no column {missing[0]!r}", advice)
    columns = [table.numbers(table.header.index(name), advice).tolist() for name in names]
    found: dict[tuple[int, int], EqualLinks] = {}
    for row, (u, v, latency, rate) in enumerate(zip(*columns, strict=True)):
        where = f"{path}, {table.where(row)}"
        if not (0 <= u < n and 0 <= v < n and u != v and u == int(u) and v == int(v)):
            text = f"{where}: a link of {u:g} and {v:g}, and peers are 0 to {n - 1}"
            raise ConfigError(text, "Ids are whole numbers, and begin at 0.")
        found[int(u), int(v)] = _checked(latency, rate, where)
    if not found:
        raise ConfigError(f"{path}: no links", "Give a line for each pair of peers.")
    rate = min(one.rate for one in found.values())
    return AdvisedLinks(EqualLinks(max(one.latency for one in found.values()), rate, rate), found)


@dataclass(frozen=True)
class StepTimes:
    """The time of a step: mean `seconds`; constant, exponential, or with one slower machine per round."""

    seconds: float
    exponential: bool = False
    slower: float = 1.0
    """Slowdown of one machine, another one in each round."""

    @property
    def constant(self) -> bool:
        """Return whether no peer ever waits for a slower one."""
        return not self.exponential and self.slower == 1.0

    def drawn(self, rounds: int, n: int) -> Times:
        """Return times, [rounds, n]."""
        stream = seeds.stream(0, "steps", n)
        if self.exponential:
            return stream.exponential(self.seconds, (rounds, n))
        times: Times = np.full((rounds, n), self.seconds)
        times[np.arange(rounds), stream.integers(0, n, rounds)] *= self.slower
        return times

    def longest(self, n: int) -> float:
        """Return the expected maximum of n times: the wait of a barrier."""
        if self.exponential:
            return self.seconds * math.fsum(1 / k for k in range(1, n + 1))
        return self.seconds * self.slower


def times_of(text: str) -> StepTimes:
    """Return the times that a text names: "0.05", "exp:0.05", or "straggler:10:0.05".  Raises ConfigError."""
    word, _, rest = text.rpartition(":")
    try:
        seconds = float(rest)
        kind, _, factor = word.partition(":")
        slower = float(factor) if kind == "straggler" else 1.0
        if 0 <= seconds < math.inf and 1 <= slower < math.inf and kind in ("", "exp", "straggler"):
            return StepTimes(seconds, kind == "exp", slower)
    except ValueError:
        pass
    advice = "Write 0.05 (seconds of a step), exp:0.05 (exponential), or straggler:10:0.05 (one in each round)."
    raise ConfigError(f"compute {text!r} cannot be read", advice)
