"""The forecast of a run before it begins, and of the same run on other graphs: from an experiment to `RunForecast`s."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedgossip.base.errors import ConfigError, TrainingError, nearest
from fedgossip.core.forecasts import RunForecast, ScoreForecast
from fedgossip.core.records import NetworkRow, Row
from fedgossip.core.task import LocalTask
from fedgossip.drivers.drawn_runs import forecast_by_draws
from fedgossip.experiment import GIVEN, Experiment, load_experiment
from fedgossip.experiment.run_sections import (
    FORECAST_AUTO,
    FORECAST_DRAWN,
    FORECAST_FOLLOWED,
    FORECAST_LEVELS,
    FORECAST_NONE,
)
from fedgossip.plans import compose
from fedgossip.plans.compose import DataShares
from fedgossip.plans.gossip.gossip import GossipPlan
from fedgossip.runs.run_directory import Foretold
from fedgossip.simulation.probe import expected_distances, probe
from fedgossip.simulation.realised import GossipCourse, is_linear, realised_rounds
from fedgossip.simulation.shadow import KEPT, Shadow, Shadowed, run_shadow
from fedgossip.simulation.stacked import PLAIN
from fedgossip.topology.graphs.names import graph_word

AUTO_LIMIT, AUTO_ELEMENTS = 256, 1 << 22  # peers, and numbers in all their vectors together
AUTO_ROUNDS, AUTO_SUMS = 2_000, 1 << 28  # a forecast computes all rounds before the first: a second at most
REALISED_LIMIT = 512
"""Maximum number of peers for building the effective weights: dense, one matrix per round."""
USUAL_LEVEL = "shadow"
"""Default level of a requested forecast."""

Progressed = Callable[[int], None]


def forecast_run(
    experiment: Experiment | Mapping[str, Any] | Path | str,
    level: str | None = None,
    *,
    graphs: Sequence[str] = (),
    overrides: Sequence[str] = (),
    seed: int | None = None,
    memory_gb: float | None = None,
    watch: Progressed = lambda _: None,
) -> list[RunForecast]:
    """Return the expected course of a run before it begins, on its own graph or on each of `graphs`.

    `level`: "probe" (three jobs a node, then arithmetic), "shadow" (all rounds of one training at the mean) or
    "followed" (that, and a third of a training per graph), of synchronous gossip; "drawn" (simulations with other draws
    of times and faults), of any run; None: the level in [forecast], otherwise "shadow" or "drawn".  `memory_gb`: None:
    the value in [forecast].  `watch` is called after each shadow round, or simulation.

    Raises ConfigError if no forecast exists: another level of a run that is not synchronous gossip, or of an algorithm
    that is not linear; a user's own loop, an unknown graph, models beyond `memory_gb`.
    """
    plans = plans_of(experiment, graphs, overrides, seed)
    level = choose_level(plans, level)
    task, shares = compose.task_of(plans[0].experiment, plans[0].learners)
    return forecasts_of(plans, task, shares, level, memory_gb=memory_gb, watch=watch)


def plans_of(
    experiment: Experiment | Mapping[str, Any] | Path | str,
    graphs: Sequence[str] = (),
    overrides: Sequence[str] = (),
    seed: int | None = None,
) -> list[compose.Plan]:
    """Return an experiment's plan, or one for each of `graphs`.  Raises ConfigError."""
    if isinstance(experiment, Experiment):
        experiment = experiment.to_dict()
    first = compose.plan(load_experiment(experiment, overrides, seed=seed))
    if not graphs:
        return [first]
    named = [*overrides, f"topology.n={gossiping(first, rounds=False).learners}"]
    each = [[*named, f'topology.graph="{graph}"'] for graph in graphs]
    return [compose.plan(load_experiment(experiment, one, seed=seed)) for one in each]


def forecast_of(
    plan: compose.Plan, task: LocalTask, shares: DataShares, level: str | None, stopped: Path | None
) -> Foretold | None:
    """Return the forecast of a new run, or of a run `stopped` in a folder; None without a forecast.

    `level`: one of `forecast_run`, "none", or "auto": a probe for problems with a known solution.  [forecast] overrides
    auto; None uses only [forecast].  Raises ConfigError as `forecast_run`.
    """
    if stopped is not None:
        return _with_realised(Foretold.read(stopped), plan, task)
    level = _level_of(plan, task, level)
    if level is None:
        return None
    (found,) = forecasts_of([plan], task, shares, level)
    return _with_realised(Foretold.from_forecast(found), plan, task)


def check_forecast(plan: compose.Plan, task: LocalTask) -> None:
    """Raise ConfigError if [forecast] requests a forecast that the run does not support."""
    if level := _level_of(plan, task, None):
        _check_loops(plan) if level == FORECAST_DRAWN else _check_courses([gossiping(plan)], task, level, None)


def _level_of(plan: compose.Plan, task: LocalTask, level: str | None) -> str | None:
    named = plan.experiment.forecast.level
    if level in (None, FORECAST_AUTO):
        level = named if named != FORECAST_AUTO else level
    if level in (None, FORECAST_NONE) or (level == FORECAST_AUTO and not _has_an_answer(plan, task)):
        return None
    return "probe" if level == FORECAST_AUTO else level


def _with_realised(foretold: Foretold | None, plan: compose.Plan, task: LocalTask) -> Foretold | None:
    if foretold is None or not isinstance(plan, GossipPlan) or not plan.experiment.forecast.realised:
        return foretold
    if foretold.forecast.level == FORECAST_DRAWN:  # with its losses
        return foretold
    measures = plan.how.stacked is not None and plan.how.in_step and not plan.experiment.algorithm.private
    measures = measures and not plan.algorithm.needs.weighs_alike
    return replace(foretold, again=partial(realised_forecast, plan, task)) if measures else foretold


def realised_forecast(plan: GossipPlan, task: LocalTask, rows: Sequence[Row]) -> RunForecast | None:
    """Return the shadow's forecast for the mixing that took place; None if it equals the plan, or is unknown."""
    rounds = realised_rounds(plan.schedule, rows)
    last = min(foreseen(plan), max((row.round for row in rows if isinstance(row, NetworkRow)), default=0))
    if rounds is None or not last or plan.n > REALISED_LIMIT:
        return None
    shadow = Shadow(task, [replace(_course(plan), schedule=rounds)], last, plan.experiment.score, own_mean=True)
    try:
        run_shadow(shadow, last)
    except TrainingError:
        return None
    (found,) = shadow.found
    return _build_forecast("realised", plan, *_edges(shadow, found), exact=shadow.exact, jobs=shadow.jobs)


def _edges(shadow: Shadow, found: Shadowed) -> tuple[Sequence[float], Sequence[float]]:
    if shadow.exact:
        return found.pulled, found.pulled
    return found.highest, found.lowest


def choose_level(plans: Sequence[compose.Plan], level: str | None) -> str:
    """Return the level of a requested forecast.  Raises ConfigError for one that the plans do not have."""
    plan = plans[0]
    in_step = isinstance(plan, GossipPlan) and plan.how.stacked is not None
    usual = USUAL_LEVEL if in_step else FORECAST_DRAWN
    named = plan.experiment.forecast.level
    level = level or (named if named in FORECAST_LEVELS else usual)
    if level not in FORECAST_LEVELS:
        raise ConfigError(f"there is no forecast of level {level!r}", nearest(level, FORECAST_LEVELS))
    for one in plans:
        _check_loops(one) if level == FORECAST_DRAWN else gossiping(one)
    return level


def foreseen(plan: compose.Plan) -> int:
    """Return the number of forecast rounds."""
    asked, rounds = plan.experiment.forecast.rounds, plan.experiment.rounds
    return min(asked, rounds) if asked else rounds


def _has_an_answer(plan: compose.Plan, task: LocalTask) -> bool:
    if not isinstance(plan, GossipPlan) or plan.how.stacked is None:
        return False
    elements, rounds = plan.n * task.length, foreseen(plan)
    small = plan.n <= AUTO_LIMIT and elements <= AUTO_ELEMENTS
    short = rounds <= AUTO_ROUNDS and elements * rounds <= AUTO_SUMS
    whole = not (plan.experiment.learns or plan.experiment.loops or plan.experiment.faults)
    whole = whole and not plan.algorithm.needs.weighs_alike
    return small and short and whole and is_linear(_course(plan))


def gossiping(plan: compose.Plan, *, rounds: bool = True) -> GossipPlan:
    """Return the plan if it is gossip, or has `rounds` that can be forecast.  Raises ConfigError for any other."""
    if not isinstance(plan, GossipPlan):
        text = f"a run of {plan.roles.wording} has no disagreement between peers to forecast"
        raise ConfigError(text, "Take --level drawn, of its loss, or --level times, of its seconds.")
    if not rounds:
        return plan
    if plan.how.stacked is None:
        advice = 'Take --level drawn, by simulations of the run, or forecast algorithm.mode = "sync".'
        raise ConfigError("asynchronous gossip has no rounds: this forecast of it is not known", advice)
    _check_loops(plan)
    if (rule := plan.experiment.algorithm.combine) != "linear":
        advice = "Forecast the same run without it, to know what the rule changes."
        raise ConfigError(f"algorithm.combine = {rule!r} is no weighted sum: its forecast is not known", advice)
    return plan


def _check_loops(plan: compose.Plan) -> None:
    if plan.experiment.loops:
        advice = 'Forecast the same model and data with task.kind = "learning".'
        raise ConfigError("a training loop of your own cannot be asked ahead: its forecast is not known", advice)


def forecasts_of(
    plans: Sequence[compose.Plan],
    task: LocalTask,
    shares: DataShares,
    level: str,
    *,
    memory_gb: float | None = None,
    watch: Progressed = lambda _: None,
) -> list[RunForecast]:
    """Return a forecast for each plan of one experiment on several graphs; the task's memory is restored.

    Raises ConfigError as `forecast_run`, TrainingError if training diverges.
    """
    if level == FORECAST_DRAWN:
        for plan in plans:
            _check_loops(plan)
        return [forecast_by_draws(plan, task, shares, name_graph(plan), foreseen(plan), watch) for plan in plans]
    peers = [gossiping(plan) for plan in plans]
    courses = _check_courses(peers, task, level, memory_gb)
    if level == "probe":
        return _probed(peers, courses, task)
    return _shadowed(peers, courses, task, level, watch)


def _check_courses(
    plans: Sequence[GossipPlan], task: LocalTask, level: str, memory_gb: float | None
) -> list[GossipCourse]:
    """Return the course of each plan.  Raises ConfigError for one beyond this level."""
    courses = [_course(plan) for plan in plans]
    for course in courses:
        if not is_linear(course):
            name = plans[0].experiment.algorithm.name
            advice = "It is not linear: no forecast is possible."
            raise ConfigError(f"the forecast of {name} is not known: it is not linear", advice)
    if level == "probe":
        if plans[0].algorithm.needs.weighs_alike:
            name = plans[0].experiment.algorithm.name
            text = f"the mean of {name} averages late models: a probe does not follow it"
            raise ConfigError(text, "Take --level shadow.")
    else:
        _check_memory(plans, task, memory_gb or plans[0].experiment.forecast.memory, level)
    return courses


def _course(plan: GossipPlan) -> GossipCourse:
    e = plan.experiment
    assert plan.how.stacked is not None
    private = e.algorithm.private  # the same models, to the masks' grid
    exchange = PLAIN if private else plan.how.stacked(e, plan.algorithm)
    return GossipCourse(plan.schedule.name, plan.schedule, plan.algorithm, exchange)


def _check_memory(plans: Sequence[GossipPlan], task: LocalTask, memory_gb: float, level: str) -> None:
    plan = plans[0]
    arrays = 2 * (1 + len(plan.algorithm.slots))
    if level == FORECAST_FOLLOWED:
        arrays += arrays + 6 * KEPT  # as many recursions again, and the measurements: of three vectors each
    each = arrays * plan.n * task.length * task.dtype.itemsize
    if len(plans) * each <= memory_gb * 1e9:
        return
    fits, whole = int(memory_gb * 1e9 // each), len(plans) * each / 1e9
    graphs = "1 graph" if len(plans) == 1 else f"{len(plans)} graphs"
    text = f"a shadow run of {graphs}, {plan.n} peers and {task.length:,} parameters holds {whole:.3g} GB"
    how = f"{fits} of them fit: name so many with --graphs" if fits else "Not one fits: take --level probe"
    raise ConfigError(f"{text}, more than {memory_gb:g}", f"{how}, or allow more with --memory {1.1 * whole:.2g}.")


def _probed(plans: Sequence[GossipPlan], courses: Sequence[GossipCourse], task: LocalTask) -> list[RunForecast]:
    found = probe(task, plans[0].n)
    made = []
    for plan, course in zip(plans, courses, strict=True):
        pulled = expected_distances(found, course, foreseen(plan), found.response.share)
        same = found.response.isotropic
        free = pulled if same else expected_distances(found, course, foreseen(plan), 0.0)
        responses = [(0, found.response.share)]
        made.append(
            _build_forecast("probe", plan, free, pulled, exact=found.exact, responses=responses, jobs=found.jobs)
        )
    return made


def _shadowed(
    plans: Sequence[GossipPlan], courses: Sequence[GossipCourse], task: LocalTask, level: str, watch: Progressed
) -> list[RunForecast]:
    made: dict[int, RunForecast] = {}
    shared = [place for place, plan in enumerate(plans) if not _moves_the_mean(plan)]
    alone = [place for place, plan in enumerate(plans) if _moves_the_mean(plan)]
    for places in [*([shared] if shared else []), *([place] for place in alone)]:
        e, own = plans[places[0]].experiment, places[0] in alone
        rounds = foreseen(plans[places[0]])
        those, follow = [courses[place] for place in places], level == FORECAST_FOLLOWED
        shadow = Shadow(task, those, rounds, e.score, own_mean=own, follow=follow)
        run_shadow(shadow, rounds, {*range(0, rounds, e.eval.every), rounds}, watch)
        responses = [(response.round, response.share) for response in shadow.responses]
        for place, found in zip(places, shadow.found, strict=True):
            how: dict[str, Any] = {"exact": shadow.exact, "responses": responses, "jobs": shadow.jobs}
            level = FORECAST_FOLLOWED if found.followed else "shadow"
            made[place] = _build_forecast(level, plans[place], *_edges(shadow, found), scores=_scores(found), **how)
    return [made[place] for place in range(len(plans))]


def _moves_the_mean(plan: GossipPlan) -> bool:
    """Return whether the mean drifts: row-stochastic weights, mixed sums, or late models."""
    needs = plan.algorithm.needs
    return plan.schedule.stochastic == "rows" or needs.own_graph or needs.weighs_alike


def _scores(found: Shadowed) -> ScoreForecast | None:
    if not found.evaluated:
        return None
    return ScoreForecast(found.evaluated, [*found.averaged], found.mean_peer, found.worst_peer)


def _build_forecast(
    level: str, plan: GossipPlan, free: Sequence[float], pulled: Sequence[float], **more: Any
) -> RunForecast:
    lower, upper = np.minimum(free, pulled).tolist(), np.maximum(free, pulled).tolist()
    return RunForecast(level, name_graph(plan), plan.experiment.algorithm.name, plan.n, lower, upper, **more)


def name_graph(plan: compose.Plan) -> str:
    """Return the name of a plan's graph in its author's spelling; of another run its name."""
    if not isinstance(plan, GossipPlan):
        return plan.name
    written = plan.experiment.topology.graph
    return plan.schedule.name if written == GIVEN else graph_word(written)
