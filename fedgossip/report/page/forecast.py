"""The forecast of the disagreement with its measurement: the band, and the share of rounds inside it.

The updates' spread in every round and the mixing's eigenvalues determine a band for the consensus distance.  Without a
spread there is one curve above the measurement, ‖X_t - X̄‖ <= slem^t ‖X_0 - X̄‖ (Xiao and Boyd, Systems & Control
Letters 53, 2004).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedgossip.core.forecasts import SLACK
from fedgossip.report.page.learning_curves import SCORES
from fedgossip.report.page.numbers import near_one, number, percent, plural
from fedgossip.report.page.reading import RecordedForecast, RecordedRun

if TYPE_CHECKING:
    from numpy.typing import NDArray

BOUND_SLACK = 1e-3  # float32 vectors against float64 formulas
BAND_SLACK = 0.05  # the edges of the band are expected values, around which single rounds scatter
ROUNDING = 1e-6  # a distance below this share of the first one is rounding, which no mixing shrinks further


@dataclass(frozen=True)
class Band:
    """A forecast for `rounds`: the distance is below `upper` and, if known, above `lower`."""

    rounds: NDArray[np.int64]
    lower: NDArray[np.float64] | None
    upper: NDArray[np.float64]
    foretold: bool = False
    """Whether it was made before the run, not from the spread of the run's updates."""


def band(run: RecordedRun) -> Band | None:
    """Return the forecast of the consensus distance; None if the run recorded too little for one."""
    if not run.network or not run.series("consensus_distance"):
        return None
    if (forecast := run.foretold) and forecast.rounds:
        rounds = np.arange(1, forecast.rounds + 1)
        return Band(rounds, np.array(forecast.lower), np.array(forecast.upper), foretold=True)
    if run.summary.mode != "sync":
        return None
    if not run.summary.summed or run.summary.distils:  # a peer's answer depends on earlier mixings
        return None
    if recorded := run.summary.band:
        rounds = np.arange(1, len(recorded.upper) + 1)
        return Band(rounds, np.array(recorded.lower), np.array(recorded.upper))
    spread = _spread(run)
    if _modes_known(run) and spread is not None:
        return _disagreement(run, spread)
    return _contraction(run)


def _modes_known(run: RecordedRun) -> bool:
    """Return whether the eigenvalues are known; they are not for a non-normal mixing."""
    drawn = run.summary.topology
    directed = drawn is not None and drawn.directed
    return run.summary.modes is not None if directed else run.summary.eigenvalues is not None


def inside(run: RecordedRun, forecast: Band) -> float | None:
    """Return the share of the measured rounds, without the start, with a distance inside the forecast."""
    series = run.series("consensus_distance")
    largest = max((value for _, value in series), default=0.0)
    slack = BOUND_SLACK if forecast.lower is None else BAND_SLACK
    held = []
    for row, value in series:
        if row.round <= forecast.rounds[0] or value <= ROUNDING * largest:
            continue
        at = int(np.searchsorted(forecast.rounds, row.round))
        if at >= len(forecast.rounds):
            continue
        lower = 0.0 if forecast.lower is None else float(forecast.lower[at])
        held.append(lower * (1 - slack) <= value <= float(forecast.upper[at]) * (1 + slack))
    return sum(held) / len(held) if held else None


def sentence(run: RecordedRun, forecast: Band | None) -> str:
    """Return the forecasts from the spectrum and before the run, and the measurement, in words."""
    foretold = _describe_forecast(run) if forecast is not None and forecast.foretold else ""
    return "  ".join(text for text in (_describe_promise(run, forecast), foretold) if text)


def _describe_promise(run: RecordedRun, forecast: Band | None) -> str:
    facts, measured = run.summary.forecast, run.summary.measured_contraction
    parts = []
    if run.summary.mode != "sync":
        text = (
            "These peers exchanged in pairs, or gave shares away, when it suited them.  What the graph promised is of"
            " synchronous rounds: it ranks graphs for both, but bounds only those."
        )
        pairs = run.summary.pairwise
        if pairs is None or pairs.round is None:
            return text
        alone = "Forecast of exchanges between pairs that are drawn uniformly: without training, a round of them leaves"
        return f"{text}  {alone} {near_one(pairs.round)} of the disagreement in the long run."
    if not run.summary.summed:
        left = "" if measured is None else f"  Measured: a round of it left {near_one(measured)} of the disagreement."
        return (
            "What the graph promised is of weighted sums of honest models.  These models were put together by another"
            f" rule, or some of the peers lied: what becomes of the disagreement was not forecast.{left}"
        )
    if facts.period != 1:
        parts.append(_describe_mixing(facts))
    elif facts.slem is not None and facts.mean_contraction is None:
        text = "in the long run one round of mixing leaves"
        parts.append(f"Forecast: {text} {near_one(facts.slem)} of the disagreement.")
    elif facts.slem is not None:
        typical = "" if facts.mean_contraction is None else f", {number(facts.mean_contraction)} on average"
        parts.append(
            f"Forecast: one round of mixing leaves at most {near_one(facts.slem)} of the disagreement{typical}."
        )
    if measured is not None:
        bounded = facts.slem is not None and facts.mean_contraction is not None
        verdict = _verdict(measured, facts.slem) if bounded and facts.slem is not None else ""
        parts.append(f"Measured: {near_one(measured)}{verdict}.")
    if forecast is not None and forecast.foretold:
        return " ".join(parts)
    if run.summary.forecast_file is not None and run.foretold is None:
        parts.append("The file forecast.json is not the one that this run began with: it is not drawn.")
    share = None if forecast is None else inside(run, forecast)
    if forecast is not None and share is not None:
        where = (
            "below the bound"
            if forecast.lower is None
            else f"inside the band, give or take {number(BAND_SLACK * 100)}\u202f%,"
        )
        parts.append(f"The consensus distance lies {where} in {percent(share)} of the rounds.")
    return " ".join(parts)


def _describe_mixing(facts: RecordedForecast) -> str:
    sentences = []
    if facts.mean_contraction is not None:
        sentences.append(f"one round of mixing leaves {number(facts.mean_contraction)} of a disagreement on average")
    if facts.exact_after is not None:
        sentences.append(f"{plural(facts.exact_after, 'round')} without training leave nothing of it")
    return f"Forecast: {', and '.join(sentences)}." if sentences else ""


HOW = {
    "shadow": "a training at the peers\u2019 mean",
    "followed": "a training at the peers\u2019 mean, and theirs in one round of three",
    "drawn": "simulations of the run with other times and faults",
}
"""Training done for a level of a forecast; a probe trains three jobs per peer."""


def _describe_forecast(run: RecordedRun) -> str:
    forecast, summary = run.foretold, run.summary
    assert forecast is not None
    how = HOW.get(forecast.level, "three jobs a peer")
    edges = "exactly" if forecast.exact else f"between edges {number(forecast.width)} times apart"
    wide = "; that is wide" if forecast.wide else ""
    text = f"Before the run the distance was forecast {edges}, by {how}{wide}."
    if summary.forecast_kept is not None:
        slack = f"give or take {number(BAND_SLACK * 100)}\u202f%"
        text += f" The measurement kept to it, {slack}, in {percent(summary.forecast_kept)} of the rounds."
    if run.realised and summary.forecast_realised_kept is not None:
        text += (
            " Messages or peers were lost: of the rounds as they were mixed the same gives the dotted edges, to which"
            f" it kept in {percent(summary.forecast_realised_kept)}."
        )
    return text


def describe_losses(run: RecordedRun) -> str:
    """Return how the loss kept to its forecast before the run; "" without one."""
    forecast, kept = run.foretold, run.summary.forecast_scores_kept.get("test_loss")
    if forecast is None or kept is None:
        return ""
    how, slack = HOW[forecast.level], f"give or take {number(SLACK * 100)}\u202f%"
    text = f"  The area is the forecast of the test loss before the run, by {how}"
    return f"{text}: it was kept, {slack}, in {percent(kept)} of the evaluated rounds."


def describe_scores(run: RecordedRun) -> str:
    """Return how the scores kept to their forecasts before the run; "" without one."""
    forecast, kept = run.foretold, run.summary.forecast_scores_kept
    shares = [f"{label} in {percent(kept[name])}" for name, label in SCORES.items() if name in kept]
    if forecast is None or not shares:
        return ""
    how = HOW.get(forecast.level, "three jobs a peer")
    kept_by = f"the {', the '.join(shares)} of the evaluated rounds"
    return f"  The areas are the forecasts before the run, by {how}: kept by {kept_by}."


def _verdict(measured: float, slem: float) -> str:
    return ", within the bound" if measured <= slem * (1 + BOUND_SLACK) else ", above the bound"


def _spread(run: RecordedRun) -> NDArray[np.float64] | None:
    """Return the updates' spread of rounds 1, 2, ...; an unmeasured round has the value of the round before.  None if
    all are zero.
    """
    known = {row.round: value for row, value in run.series("update_spread")}
    if not any(known.values()):
        return None
    held = known.get(0) or known[min(known)]
    values = []
    for number_of_round in range(1, run.network[-1].round + 1):
        held = known.get(number_of_round, held)
        values.append(held)
    return np.array(values, dtype=np.float64)


def _disagreement(run: RecordedRun, spread: NDArray[np.float64]) -> Band:
    """Return the band of a learning run, added to a decaying first distance."""
    from fedgossip.topology.spectra.convergence import disagreement_band

    modes = [complex(*mode) for mode in run.summary.modes or []]
    lower, upper = disagreement_band(np.array(modes or (run.summary.eigenvalues or [])[1:]), spread)
    rounds = np.arange(1, len(spread) + 1)
    first_row, first = run.series("consensus_distance")[0]
    if first_row.round == 0 and first > 0 and run.summary.forecast.slem is not None:
        decayed = first * run.summary.forecast.slem**rounds
        lower, upper = np.maximum(np.asarray(lower) - decayed, 0.0), np.asarray(upper) + decayed
    return Band(rounds, np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64))


def _contraction(run: RecordedRun) -> Band | None:
    slem = run.summary.forecast.slem
    if run.summary.forecast.mean_contraction is None:  # only columns sum to one: no single round is bounded
        return None
    start = next(((row.round, value) for row, value in run.series("consensus_distance") if value > 0), None)
    if slem is None or start is None or any(value > 0 for _, value in run.series("update_spread")):
        return None
    rounds = np.arange(start[0], run.network[-1].round + 1)
    return Band(rounds, None, start[1] * slem ** (rounds - start[0]).astype(np.float64))
