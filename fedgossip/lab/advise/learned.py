"""Rounds to a score, forecast from data and model instead of noisy quadratics.

One shadow run per algorithm gives the rounds to a score for all graphs: of the mean peer, and of the mean model (for an
all-reduce or a server).  One run of isolated peers gives training alone and one merge at the end.  Resolution:
`eval.every`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgossip.algorithms.gossip.names import METHODS
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.scores import HIGHER, Score
from fedgossip.core.forecasts import RunForecast
from fedgossip.drivers.forecasting import forecast_run, gossiping, plans_of
from fedgossip.drivers.simulate import simulate
from fedgossip.lab.advise.candidates import AdviceAsked, AdvisedWay, ways
from fedgossip.plans import compose
from fedgossip.plans.gossip.gossip import GossipPlan


@dataclass(frozen=True)
class LearnedTask:
    """An experiment with a target score.  `size`: bytes of its model."""

    path: Path
    plan: GossipPlan
    score: Score
    target: float
    size: float

    def reached(self, rounds: Sequence[int], values: Sequence[float]) -> float:
        """Return the first round with the score; inf without one."""
        there = (round for round, value in zip(rounds, values, strict=True) if self._is_good(value))
        return float(next(there, math.inf))

    def _is_good(self, value: float) -> bool:
        return value >= self.target if self.score.better == HIGHER else value <= self.target


def learned_task(path: Path, target: str) -> LearnedTask:
    """Return the task of an experiment of synchronous gossip.  `target`: "accuracy:0.9".  Raises ConfigError."""
    plan = gossiping(*plans_of(path))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    if not plan.experiment.learns:
        raise ConfigError(f"{path}: nothing is learned there", "Name an experiment with [data] and [model].")
    score = plan.experiment.score
    name, _, number = target.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if name != score.name or not math.isfinite(value):
        advice = f"Write --target {score.name}:0.9 (or another number): what {path.name} is judged by."
        raise ConfigError(f"target {target!r} is no score of that experiment", advice)
    return LearnedTask(path, plan, score, value, float(task.length * task.dtype.itemsize))


def learned_ways(
    asked: AdviceAsked, task: LearnedTask, graphs: Sequence[str], algorithms: Sequence[str]
) -> list[AdvisedWay]:
    """Return all methods, the fastest first, with the rounds of this task.  Raises ConfigError."""
    found: list[AdvisedWay] = []
    for algorithm in algorithms:
        each = replace(asked, size=task.size * _vectors(task, algorithm))
        usual = [way for way in ways(each, graphs) if way.kind == "gossip"]
        forecast = _forecasts(task, algorithm, [way.name for way in usual])
        found += [_advise_graph(task, algorithm, way, forecast[way.name]) for way in usual if way.name in forecast]
    if not found:
        raise ConfigError("no algorithm goes with any of these graphs", "Name others by --graphs, --algorithms.")
    averaged = _averaged(task, _forecasts(task, "dsgd", ["complete"])["complete"])
    alone, merged = _train_apart(task)
    for way in ways(replace(asked, size=task.size), ()):
        found.append(_with_rounds(way, {"alone": alone, "once": merged}.get(way.kind, averaged)))
    return sorted(found, key=lambda way: way.seconds)


def _vectors(task: LearnedTask, algorithm: str) -> int:
    if algorithm not in METHODS:
        raise ConfigError(f"no algorithm is called {algorithm!r}", nearest(algorithm, METHODS))
    return gossiping(*plans_of(task.path, overrides=_overrides(algorithm))).vectors


def _overrides(algorithm: str) -> list[str]:
    return [f"algorithm.name={algorithm}", "algorithm.options={}"]


def _forecasts(task: LearnedTask, algorithm: str, graphs: Sequence[str]) -> Mapping[str, RunForecast]:
    possible = []
    for graph in graphs:
        try:
            gossiping(*plans_of(task.path, [graph], _overrides(algorithm)))
        except ConfigError:
            continue
        possible.append(graph)
    forecast = forecast_run(task.path, "shadow", graphs=possible, overrides=_overrides(algorithm)) if possible else []
    return dict(zip(possible, forecast, strict=True))


def _advise_graph(task: LearnedTask, algorithm: str, way: AdvisedWay, forecast: RunForecast) -> AdvisedWay:
    assert forecast.scores is not None, "the model is evaluated"
    middle = [float(np.mean(edges)) for edges in forecast.scores.mean_peer]
    wide = ", wide" if forecast.wide else ""
    return replace(
        _with_rounds(way, task.reached(forecast.scores.rounds, middle)), name=f"{way.name}, {algorithm}{wide}"
    )


def _averaged(task: LearnedTask, forecast: RunForecast) -> float:
    assert forecast.scores is not None, "the model is evaluated"
    return task.reached(forecast.scores.rounds, [low for low, _ in forecast.scores.edges()["averaged"]])


def _train_apart(task: LearnedTask) -> tuple[float, float]:
    e = task.plan.experiment
    nobody = {"graph": "none", "n": task.plan.n, "allow_disconnected": True}
    content = {**e.to_dict(), "topology": nobody, "algorithm": {}, "forecast": {"level": "none"}}
    rows = simulate(content, engine="stacked").network()
    tested = [row for row in rows if row.score_mean_peer is not None and row.score_averaged is not None]
    rounds = [row.round for row in tested]
    means = [[getattr(row, f"score_{name}") for row in tested] for name in ("mean_peer", "averaged")]
    return task.reached(rounds, means[0]), task.reached(rounds, means[1])


def _with_rounds(way: AdvisedWay, rounds: float) -> AdvisedWay:
    each = 0.0 if way.kind == "once" or not math.isfinite(way.rounds) else way.payload / max(way.rounds, 1e-9)
    once = way.seconds - way.rounds * way.round_seconds if way.kind == "once" else 0.0
    if not math.isfinite(rounds):
        return replace(way, rounds=math.inf, seconds=math.inf, payload=math.inf if each else way.payload)
    payload = way.payload if way.kind == "once" else rounds * each
    return replace(way, rounds=rounds, seconds=rounds * way.round_seconds + once, payload=payload)
