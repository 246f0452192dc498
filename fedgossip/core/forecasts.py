"""What was forecast of a run before it began: forecast.json in its folder, whose hash is in the summary.

The consensus distance lies between two edges after each round, and the scores between two values where they are
evaluated.  `kept` is the share of what was measured that lies inside, give or take SLACK.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError
from fedgossip.core.records import NetworkRow

FORECAST = "forecast.json"
REALISED = "forecast-realised.json"
"""The same, computed after the run of the rounds as they were mixed."""
SLACK = 0.05
"""The edges are of first order in the disagreement: so much beyond them still counts as inside."""
SCORE_SLACK = 0.02
"""So much of a score that is a share; a model that is not the mean's has other examples wrong."""
WIDE = 2.5
"""Where the edges are further apart than by this factor, the graph ties its peers weakly: no point is given."""
ROUNDING = 1e-6
"""A distance below this share of the largest is rounding."""
ROUNDS_MAX = 10_000_000

Interval = tuple[float, float]


class ScoreForecast(msgspec.Struct, frozen=True):
    """Scores after the `rounds` that are evaluated; (lowest, highest) for the mean and the worst peer.

    `averaged`: of the averaged model, which to first order is the same on every graph.
    """

    rounds: list[int]
    averaged: list[float]
    mean_peer: list[Interval]
    worst_peer: list[Interval]


class RunForecast(msgspec.Struct, frozen=True):
    """The forecast of one run.

    level: "probe" (three jobs a node at the first model), "shadow" (a training at the mean), "followed" (that, and the
    peers followed to where the graph takes them), or "realised" (a shadow of the rounds as they were mixed).  lower,
    upper: of the consensus distance after round 1, 2, ...; equal where `exact`.  responses: (round, share by which an
    update answers to being away from the mean).  jobs: trainings that the forecast took.
    """

    level: str
    graph: str
    algorithm: str
    n: int
    lower: list[float]
    upper: list[float]
    exact: bool = False
    responses: list[tuple[int, float]] = []
    jobs: int = 0
    scores: ScoreForecast | None = None

    @property
    def rounds(self) -> int:
        return len(self.upper)

    def edges(self, round: int) -> Interval | None:
        """The edges after a round; None for one that it says nothing of."""
        return (self.lower[round - 1], self.upper[round - 1]) if 1 <= round <= self.rounds else None

    @property
    def width(self) -> float:
        """Upper by lower edge, the geometric mean over the rounds in which there is a disagreement."""
        floor = ROUNDING * max(self.upper, default=0.0)
        ratios = [
            math.log(high / low) for low, high in zip(self.lower, self.upper, strict=True) if high > floor and low > 0
        ]
        return math.exp(sum(ratios) / len(ratios)) if ratios else 1.0

    @property
    def wide(self) -> bool:
        """Whether the graph ties its peers so weakly that no point estimate is worth giving."""
        return self.width > WIDE

    @property
    def points(self) -> list[float] | None:
        """The geometric mean of the edges; None where they are too wide apart."""
        if self.wide:
            return None
        return [math.sqrt(low * high) for low, high in zip(self.lower, self.upper, strict=True)]


REFIT = 10
"""Rounds after which it is asked again where between the edges a run goes."""
MARGIN, DRIFT = 0.05, 0.01
"""So much of the way from edge to edge is left on both sides of where it went, and so much more each round ahead."""


class NarrowedForecast:
    """Where between the edges a run goes that is under way: an interval inside them, narrower with each refit.

    Its place after a round is t in distance = lower^(1 - t) upper^t.  For the rounds that come it is taken to stay
    where it was in the last REFIT rounds, from the least to the largest, a little more with each round ahead.  This is
    of a run that is watched, and never the forecast of record: it is made of what it is held against.
    """

    def __init__(self, forecast: RunForecast) -> None:
        self.forecast = forecast
        self.fitted = 0
        """The last round that it was fitted to."""
        self._places: list[float] = []
        self._between: Interval | None = None

    def take(self, round: int, distance: float) -> None:
        """Take the distance that was measured after a round."""
        edges = self.forecast.edges(round)
        if edges is None or not 0 < edges[0] < edges[1] or distance <= 0:
            return
        self._places.append(math.log(distance / edges[0]) / math.log(edges[1] / edges[0]))
        if len(self._places) == REFIT:
            self.fitted, self._between = round, (min(self._places), max(self._places))
            self._places = []

    def edges(self, round: int) -> Interval | None:
        """Return the interval for a round after the last refit; None for others, and before the first."""
        edges = self.forecast.edges(round)
        if edges is None or self._between is None or round <= self.fitted or not 0 < edges[0] < edges[1]:
            return None
        margin = MARGIN + DRIFT * (round - self.fitted)
        low, high = max(0.0, self._between[0] - margin), min(1.0, self._between[1] + margin)
        if low > high:  # the run is outside of the forecast
            low = high = min(max(self._between[0], 0.0), 1.0)
        return edges[0] * (edges[1] / edges[0]) ** low, edges[0] * (edges[1] / edges[0]) ** high


def inside(value: float, low: float, high: float, largest: float) -> bool:
    """Whether a distance keeps to a forecast, in a run whose largest is `largest`; rounding keeps to rounding."""
    if value <= ROUNDING * largest:
        return low * (1 - SLACK) <= ROUNDING * largest
    return low * (1 - SLACK) <= value <= high * (1 + SLACK)


def kept(forecast: RunForecast, rows: Sequence[NetworkRow]) -> float | None:
    """Return the share of the rounds with a measured distance that keep to the forecast; None where there is none."""
    measured = [row for row in rows if row.consensus_distance is not None and 1 <= row.round <= forecast.rounds]
    known = [*(row.consensus_distance for row in measured), *(row.consensus_before for row in measured)]
    largest = max((value for value in known if value is not None), default=0.0)
    held = [
        inside(row.consensus_distance, forecast.lower[row.round - 1], forecast.upper[row.round - 1], largest)
        for row in measured
        if row.consensus_distance is not None
    ]
    return sum(held) / len(held) if held else None


def scores_kept(forecast: RunForecast, rows: Sequence[NetworkRow], *, share: bool) -> dict[str, float]:
    """Return for "averaged", "mean_peer" and "worst_peer" the share of evaluated rounds inside; {} without scores.

    `share`: the score lies between 0 and 1, and so much as SCORE_SLACK beyond counts as inside; of others SLACK of it.
    """
    if forecast.scores is None:
        return {}
    at, told = {row.round: row for row in rows}, forecast.scores
    columns = {
        "averaged": [(value, value) for value in told.averaged],
        "mean_peer": told.mean_peer,
        "worst_peer": told.worst_peer,
    }
    found = {}
    for name, intervals in columns.items():
        held = []
        for round, (low, high) in zip(told.rounds, intervals, strict=True):
            value = getattr(at.get(round), f"score_{name}", None)
            if value is not None:
                slack = SCORE_SLACK if share else SLACK * abs(value)
                held.append(low - slack <= value <= high + slack)
        if held:
            found[name] = sum(held) / len(held)
    return found


def encoded(forecasts: RunForecast | Sequence[RunForecast]) -> bytes:
    """Return the text of a forecast.json; of a list where there are several."""
    return msgspec.json.format(msgspec.json.encode(forecasts), indent=1) + b"\n"


def digest_of(content: bytes) -> str:
    """Return the sha256 of a file, as summaries have it."""
    return hashlib.sha256(content).hexdigest()


def read_forecast(folder: Path, name: str = FORECAST) -> tuple[RunForecast, str] | None:
    """Return the forecast in a run's folder, or what `name` is, and its sha256; None where there is none.

    Raises ConfigError, naming the file, for one that is none.
    """
    path = folder / name
    try:
        content = outside_files.read_bytes(path)
        found = from_json(msgspec.json.Decoder(RunForecast), content)
        _check(found)
    except FileNotFoundError:
        return None
    except (OSError, UnreadableError, ValueError) as error:
        raise ConfigError(f"{path}: no forecast: {error}", "Remove it, or copy the run again.") from None
    return found, digest_of(content)


def _check(found: RunForecast) -> None:
    """Raise ValueError for edges or scores that do not belong together."""
    if len(found.lower) != len(found.upper) or found.rounds > ROUNDS_MAX:
        raise ValueError(f"{len(found.lower)} lower and {len(found.upper)} upper edges")
    if not all(math.isfinite(value) and value >= 0 for value in (*found.lower, *found.upper)):
        raise ValueError("an edge that is no distance")
    if any(low > high for low, high in zip(found.lower, found.upper, strict=True)):
        raise ValueError("a lower edge above the upper")
    if (scores := found.scores) is not None:
        lengths = {len(scores.rounds), len(scores.averaged), len(scores.mean_peer), len(scores.worst_peer)}
        if len(lengths) > 1:
            raise ValueError("scores of other rounds than they say")
