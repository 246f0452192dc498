"""A coordinator that lies in a fit: honest sites of one kind of fit, asked by hand for whatever it likes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fit_sites import ALIKE, IMPUTED, SITES
from lying import Hall

from fedgossip.algorithms.federated.base import Aggregate
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.data.objectives import EVALUATION
from fedgossip.experiment import FederatedExperiment, load_experiment
from fedgossip.secure.encoding import as_vector, integers_of, words_in, words_of
from fedgossip.secure.fixed_point import Words
from fedgossip.sites.evaluation.evaluation_sums import ROUNDS, EvaluationLayout, EvaluationTask, SiteAnswers
from fedgossip.sites.fits.cox.cox_steps import MOMENTS, RISK, FittedHazards
from fedgossip.sites.fits.cox.cox_sums import CoxLayout
from fedgossip.sites.fits.glm.glm_sums import GlmLayout
from fedgossip.sites.fits.imputation.imputed_sums import ImputedLayout
from fedgossip.sites.fits.tree_sums import GrowingTrees, TreesLayout
from fedgossip.sites.plans.fits import planned_fit
from fedgossip.sites.plans.statistics import statistics_plan, statistics_task
from fedgossip.sites.plans.sums import asking, plan_of_sums

KINDS = ("glm", "cox", "kaplan-meier", "trees", "firth", IMPUTED, *ALIKE)
JUDGED = ("agree", "evaluate", "evaluate with noise")
"""Other sums over sites: of statistics, and of a model's answers."""
Made = tuple[Any, Any, Any]


def made(folder: Path, kind: str) -> Made:
    """Return the plan of a kind of sums with the task of all its sites; in `folder`, where their files are."""
    if kind in JUDGED:
        experiment = load_experiment(folder / "glm.toml")
        assert isinstance(experiment, FederatedExperiment)
        if kind == "agree":
            agreeing, schema = statistics_plan(experiment)
            plan, statistics, refused = statistics_task(agreeing, schema, range(SITES))
            assert not refused
            return plan, statistics.layout, statistics
        layout = EvaluationLayout(
            model="", kind="classification", classes=("no", "yes"), noise=0.0 if kind == "evaluate" else 2.0,
            group_column="arm", groups=("new", "old"),
        )  # fmt: skip
        rounds = 1 if layout.noise else ROUNDS
        judging = EvaluationTask(layout, {node: _answers(node) for node in range(SITES)}, 5)
        plan, judging, _ = asking(plan_of_sums(experiment, EVALUATION, rounds, layout.exact), judging, {})
        return plan, layout, judging
    experiment = load_experiment(folder / f"{kind}.toml")
    fit = planned_fit(experiment)
    plan, task, refused = fit.of_sites(range(SITES))
    assert not refused
    return plan, fit.layout, task


def _answers(node: NodeId) -> SiteAnswers:
    """Answers of a model to the 40 records of a site; a group of them is at two sites alone."""
    rng = np.random.default_rng(node)
    said, groups = rng.uniform(0.01, 0.99, 40), np.zeros(40, np.int64)
    groups[:10] = node < 2
    return SiteAnswers(np.column_stack([1 - said, said]), (rng.random(40) < said).astype(np.int64), groups)


@dataclass
class FitHall(Hall):
    """Honest sites of one run of sums; `x` is what an honest coordinator would send next, in `round`."""

    made: Made = field(kw_only=True)
    got: list[tuple[frozenset[NodeId], Vector]] = field(default_factory=list)
    """Of each sum: the sites that it is of, and what they were asked."""
    lives: int = 0
    last: Vector | None = None
    """What was next before `x`."""

    def __post_init__(self) -> None:
        self.plan, self.layout, self.task = self.made
        self.task._replied.clear()
        self.initial = self.x = self.task.initial(0)
        self.round = 0
        for node in range(SITES):
            self.start(node)

    def asks(self, model: Vector, away: Collection[NodeId] = ()) -> Words | None:
        """Return the sum that those who are not away make when they are asked for it, in the next round."""
        if self.round >= self.plan.experiment.rounds:
            return None
        try:
            found = self.session(life=0, round=self.round, away=away, model=model)
        except TrainingError as error:  # a site has ended, for the first sums are not there
            self.refused.append((-1, str(error)))
            found = None
        self.round += 1
        if found is not None:
            self.got.append((frozenset(range(SITES)) - {*away}, model))
        return found

    def follows(self) -> bool:
        """Lead an honest round; return whether it came together."""
        found = self.asks(self.x)
        if found is not None:
            sums = as_vector(np.asarray(found)[: self.task.exact.length])
            server, state = self.plan.federated.server, self.plan.federated.server.start(self.x)
            self.last, self.x = self.x, server.step(state, Aggregate((sums,), SITES, 1.0, self.round)).x
        return found is not None

    def restarted(self, *, forgotten: bool = False) -> None:
        """Begin another life of every site, from its log and checkpoint; or from its log alone, as in a new folder."""
        self.lives += 1
        if forgotten:
            self.kept.clear()
        for node in range(SITES):
            self.start(node, life=self.lives)

    @property
    def differ(self) -> bool:
        """Whether two of the sums are of different sites."""
        return len({sites for sites, _ in self.got}) > 1


# --- what it asks for -------------------------------------------------------------------------------------------------


def far_out(hall: FitHall, random: np.random.Generator) -> Vector:
    """Return what goes down when the last sums are said to be such that the next point is far out along one column."""
    if isinstance(hall.layout, GlmLayout):
        numbers = integers_of(words_in(hall.x))  # type: ignore[arg-type]
        width, last = hall.layout.width, max(1, hall.round - 1)
        begin = hall.layout.of_round(last).start
        column = int(random.integers(1, width))
        numbers[begin + 4 + column] += int(random.choice([-1, 1])) * (int(random.integers(2000, 20000)) << 104)
        return as_vector(words_of(numbers))
    if isinstance(hall.layout, ImputedLayout) and hall.round > 1:
        numbers = integers_of(words_in(hall.x))  # type: ignore[arg-type]
        of_last = hall.layout.imputation.of_round(hall.round - 1)
        numbers[int(random.integers(of_last.start + 2, of_last.stop))] += int(random.integers(2000, 20000)) << 104
        return as_vector(words_of(numbers))
    if isinstance(hall.layout, CoxLayout):
        state = FittedHazards(hall.layout, hall.x)
        if state.stage == RISK and state.number("records"):
            state["point"][int(random.integers(hall.layout.width))] = float(random.choice([-30.0, 30.0]))
        else:
            state["hazard"][...] = 1e6
            state._set(stage=MOMENTS if state.stage == RISK else RISK, point=5.0)
        return frozen(state.x)
    return rewritten(hall, random)


def rewritten(hall: FitHall, random: np.random.Generator) -> Vector:
    """Return what is next, with one number of what was fixed before changed."""
    found, before = np.array(hall.x), hall.initial if hall.last is None else hall.last
    fixed = (found == before) & (found != 0)
    if isinstance(hall.layout, TreesLayout):
        growing = GrowingTrees(hall.layout, hall.x)
        fixed[: growing.x.size - growing._info.size - growing._value.size] = False  # what is counted, and the loss
    there = np.flatnonzero(fixed)
    if not there.size:
        return anything(hall, random)
    found[int(random.choice(there))] += 1
    return frozen(found)


def anything(hall: FitHall, random: np.random.Generator) -> Vector:
    return frozen(np.floor(random.uniform(0, 2, hall.x.size) ** random.integers(1, 40)))


Move = Callable[[FitHall, np.random.Generator], Words | None]


def withholding(hall: FitHall, random: np.random.Generator) -> Words | None:
    """The point that is next, without some."""
    return hall.asks(hall.x, random.choice(SITES, int(random.integers(1, 3)), replace=False).tolist())


def again_without_some(hall: FitHall, random: np.random.Generator) -> Words | None:
    """A point that was asked about before."""
    model = hall.got[int(random.integers(len(hall.got)))][1]
    return hall.asks(model, random.choice(SITES, int(random.integers(1, 3)), replace=False).tolist())


def after_a_restart(hall: FitHall, random: np.random.Generator) -> Words | None:
    hall.restarted(forgotten=bool(random.integers(2)))
    return again_without_some(hall, random)


def at_a_point_of_its_own(hall: FitHall, random: np.random.Generator) -> Words | None:
    return hall.asks(far_out(hall, random))


def with_another_past(hall: FitHall, random: np.random.Generator) -> Words | None:
    return hall.asks(rewritten(hall, random))


def with_noise(hall: FitHall, random: np.random.Generator) -> Words | None:
    return hall.asks(anything(hall, random))


MOVES: tuple[Move, ...] = (
    withholding, again_without_some, after_a_restart, at_a_point_of_its_own, with_another_past, with_noise,
)  # fmt: skip


def attacked(made: Made, seed: int) -> tuple[FitHall, list[str]]:
    """Return the sites of one fit, some honest rounds of it attacked, and the attacks that have brought a sum."""
    random, hall, brought = np.random.default_rng(seed), FitHall({}, made=made), []
    rounds = hall.plan.experiment.rounds
    for _ in range(int(random.integers(1, max(2, min(4, rounds))))):
        assert hall.follows(), hall.refused
    for _ in range(2):
        move = MOVES[int(random.integers(len(MOVES)))]
        if move(hall, random) is not None:
            brought.append(move.__name__)
    return hall, brought
