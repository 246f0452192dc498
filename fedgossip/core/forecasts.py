"""The forecast of a run, made before its start: forecast.json in its folder; the summary holds its hash.

The forecast consensus distance after each round is an interval between two edges; so are the scores and the loss.
`kept`: the share of measured values inside, within SLACK.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, reason
from fedgossip.core import run_format
from fedgossip.core.records import NetworkRow

SLACK = 0.05
"""Edges are of first order in the disagreement: a distance outside them by this share counts as inside."""
SCORE_SLACK = 0.02
"""Slack of scores from 0 to 1: a model off the mean misclassifies other examples than the mean does."""
WIDE = 2.5
"""Maximum ratio of the edges for a point estimate; above it the graph couples its peers too weakly."""
ROUNDING = 1e-6
"""Distances below this share of the largest are rounding."""
ROUNDS_MAX = 10_000_000

DRAWS = 8
"""Number of simulations with other draws, of a forecast by them."""
SPREADS = 5.41
"""Student's t of DRAWS - 1 degrees of freedom, two-sided 99.9 %."""

Interval = tuple[float, float]


def compute_prediction_edges(drawn: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the edges [m] between which each value of one more draw lies with 99.9 %, from `drawn` [DRAWS, m].

    mean +- SPREADS sd sqrt(1 + 1/k), for normal values.  Source: Hahn, Factors for calculating two-sided prediction
    intervals for samples from a normal distribution, Journal of the American Statistical Association 64 (1969).
    """
    middle = drawn.mean(axis=0)
    half = SPREADS * math.sqrt(1 + 1 / len(drawn)) * drawn.std(axis=0, ddof=1)
    return middle - half, middle + half


class ScoreForecast(msgspec.Struct, frozen=True):
    """Forecast scores and test loss after the evaluated `rounds`, each by (lowest, highest); [] if not forecast.

    `averaged`: a number is both edges; to first order it is the same on every graph.
    """

    rounds: list[int]
    averaged: list[float | Interval] = []
    mean_peer: list[Interval] = []
    worst_peer: list[Interval] = []
    test_loss: list[Interval] = []

    def edges(self) -> dict[str, list[Interval]]:
        """Return the edges of all that is forecast, by name."""
        averaged = [each if isinstance(each, tuple) else (each, each) for each in self.averaged]
        named = {"averaged": averaged, "mean_peer": self.mean_peer, "worst_peer": self.worst_peer}
        return {name: edges for name, edges in (named | {"test_loss": self.test_loss}).items() if edges}


COLUMNS = {"test_loss": "test_loss"} | {name: f"score_{name}" for name in ("averaged", "mean_peer", "worst_peer")}
"""Fields of a NetworkRow by their names in a ScoreForecast."""


class RunForecast(msgspec.Struct, frozen=True):
    """The forecast of one run.

    level: "probe" (three jobs per node at the first model), "shadow" (one training at the mean), "followed" (shadow,
    and the peers on the graph), "drawn" (the run with other times and faults), or "realised" (a shadow of the rounds as
    mixed). lower, upper: of the consensus distance after round 1, 2, ..., [] without one; equal if `exact`. responses:
    (round, share of a peer's distance from the mean that its update takes back). jobs: number of trainings.
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
        """Return the edges after a round; None for a round outside the forecast."""
        return (self.lower[round - 1], self.upper[round - 1]) if 1 <= round <= self.rounds else None

    @property
    def width(self) -> float:
        """Ratio of upper to lower edge: geometric mean over the rounds with a disagreement."""
        floor = ROUNDING * max(self.upper, default=0.0)
        ratios = [
            math.log(high / low) for low, high in zip(self.lower, self.upper, strict=True) if high > floor and low > 0
        ]
        return math.exp(sum(ratios) / len(ratios)) if ratios else 1.0

    @property
    def wide(self) -> bool:
        """Whether the graph couples its peers too weakly for a point estimate."""
        return self.width > WIDE

    @property
    def points(self) -> list[float] | None:
        """The geometric mean of the edges; None if the forecast is `wide`."""
        if self.wide:
            return None
        return [math.sqrt(low * high) for low, high in zip(self.lower, self.upper, strict=True)]


REFIT = 10
"""Number of rounds between two refits of a run's place between the edges."""
MARGIN, DRIFT = 0.05, 0.01
"""Margins around the observed place, as shares of the interval: fixed, and per round ahead."""


class NarrowedForecast:
    """The place of an unfinished run between the edges: an interval, narrowed with each refit.

    Place t: distance = lower^(1 - t) upper^t.  Later rounds are assumed within the range of the last REFIT rounds,
    widened a little per round.  For display only: the interval is fitted to the values that it is compared with.
    """

    def __init__(self, forecast: RunForecast) -> None:
        self.forecast = forecast
        self.fitted = 0
        """The last round of the last refit."""
        self._places: list[float] = []
        self._between: Interval | None = None

    def take(self, round: int, distance: float) -> None:
        """Add the measured distance after a round."""
        edges = self.forecast.edges(round)
        if edges is None or not 0 < edges[0] < edges[1] or distance <= 0:
            return
        self._places.append(math.log(distance / edges[0]) / math.log(edges[1] / edges[0]))
        if len(self._places) == REFIT:
            self.fitted, self._between = round, (min(self._places), max(self._places))
            self._places = []

    def edges(self, round: int) -> Interval | None:
        """Return the interval for a round after the last refit; None for other rounds, and before the first refit."""
        edges = self.forecast.edges(round)
        if edges is None or self._between is None or round <= self.fitted or not 0 < edges[0] < edges[1]:
            return None
        margin = MARGIN + DRIFT * (round - self.fitted)
        low, high = max(0.0, self._between[0] - margin), min(1.0, self._between[1] + margin)
        if low > high:  # the run is outside of the forecast
            low = high = min(max(self._between[0], 0.0), 1.0)
        return edges[0] * (edges[1] / edges[0]) ** low, edges[0] * (edges[1] / edges[0]) ** high


def inside(value: float, low: float, high: float, largest: float) -> bool:
    """Whether a distance is inside a forecast; below ROUNDING of the run's `largest`, the lower edge must be too."""
    if value <= ROUNDING * largest:
        return low * (1 - SLACK) <= ROUNDING * largest
    return low * (1 - SLACK) <= value <= high * (1 + SLACK)


def kept(forecast: RunForecast, rows: Sequence[NetworkRow]) -> float | None:
    """Return the share of the measured rounds inside the forecast; None without measured rounds."""
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
    """Return the share of evaluated rounds inside for each of COLUMNS that is forecast.

    `share`: scores from 0 to 1, within SCORE_SLACK; others, and the loss, within SLACK of the value.
    """
    if forecast.scores is None:
        return {}
    at, found = {row.round: row for row in rows}, {}
    for name, intervals in forecast.scores.edges().items():
        held = []
        for round, (low, high) in zip(forecast.scores.rounds, intervals, strict=True):
            value = getattr(at.get(round), COLUMNS[name], None)
            if value is not None:
                slack = SCORE_SLACK if share and name != "test_loss" else SLACK * abs(value)
                held.append(low - slack <= value <= high + slack)
        if held:
            found[name] = sum(held) / len(held)
    return found


def encoded(forecasts: RunForecast | Sequence[RunForecast]) -> bytes:
    """Return the content of a forecast.json; a JSON list for several forecasts."""
    return msgspec.json.format(msgspec.json.encode(forecasts), indent=1) + b"\n"


def digest_of(content: bytes) -> str:
    """Return the sha256 of a file in the format of summaries."""
    return hashlib.sha256(content).hexdigest()


def read_forecast(folder: Path, name: str = run_format.FORECAST) -> tuple[RunForecast, str] | None:
    """Return the forecast `name` of a run's folder and its sha256; None without one.  Raises ConfigError."""
    path = folder / name
    try:
        content = outside_files.read_bytes(path)
        found = from_json(msgspec.json.Decoder(RunForecast), content)
        _check(found)
    except FileNotFoundError:
        return None
    except (OSError, UnreadableError, ValueError) as error:
        raise ConfigError(f"{path}: no forecast: {reason(error)}", "Remove it, or copy the run again.") from None
    return found, digest_of(content)


def _check(found: RunForecast) -> None:
    if len(found.lower) != len(found.upper) or found.rounds > ROUNDS_MAX:
        raise ValueError(f"{len(found.lower)} lower and {len(found.upper)} upper edges")
    if not all(math.isfinite(value) and value >= 0 for value in (*found.lower, *found.upper)):
        raise ValueError("an edge that is no distance")
    if any(low > high for low, high in zip(found.lower, found.upper, strict=True)):
        raise ValueError("a lower edge above the upper")
    scores = found.scores or ScoreForecast([])
    if any(len(edges) != len(scores.rounds) for edges in scores.edges().values()):
        raise ValueError("scores of other rounds than stated")
