"""Every algorithm on every schedule is a linear recursion: 200 rounds of the engine against z <- A_t z + B_t b.

A round's matrices are got from the algorithm object, by running it on unit vectors of all that its state holds, and of
the targets.  What a state holds beside that (the weights of push-sum, the phase of a window)
does not depend on the models, and is followed apart.  f_i = 1/2 |x - b_i|^2, so u = eta (b - model).
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.algorithms.gossip.base import Step
from fedgossip.algorithms.gossip.names import METHODS
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import digest, frozen
from fedgossip.plans import compose
from fedgossip.plans.gossip.gossip import GossipPlan

N, ETA, ROUNDS = 8, 0.02, 200

KINDS: dict[str, dict[str, Any]] = {
    # choco: by a codec, not linear; relaysgd: on a tree, in test_relaysgd
    **{name: {"name": name} for name in METHODS if name not in ("choco", "relaysgd")},
    "dsgd cta": {"name": "dsgd", "options": {"order": "cta"}},
    "dsgdm nesterov": {"name": "dsgdm", "options": {"nesterov": True}},
    "two-tap": {"name": "two-tap", "options": {"om": 1.2}},
    "slowmo": {"name": "slowmo", "options": {"base": "gradient-tracking", "every": 7, "alpha": 0.9, "beta": 0.5}},
    "slowmo nesterov": {"name": "slowmo", "options": {"base": "dsgdm", "every": 5, "beta": 0.4, "nesterov": True}},
    "diloco": {"name": "diloco", "options": {"lr": 0.5, "beta": 0.5}},
    "push-sum momentum": {"name": "push-sum", "options": {"momentum": "mixed"}},
}

SCHEDULES: dict[str, dict[str, Any]] = {
    "ring": {"graph": "ring"},
    "lazy ring": {"graph": "ring", "weights": "lazy"},
    "star": {"graph": "star"},
    "lazy path": {"graph": "path", "weights": "lazy"},
    "complete": {"graph": "complete"},
    "directed-exponential": {"graph": "directed-exponential"},
    "one-peer-exponential": {"graph": "one-peer-exponential"},
    "base:2": {"graph": "base:2"},
    "random-matching": {"graph": "random-matching"},
    "el-oracle:3": {"graph": "el-oracle:3"},
    "el-local:2": {"graph": "el-local:2"},
    "window-doubling": {"graph": "window-doubling"},
}

ONLY = {
    "d2": ("lazy ring", "star", "lazy path", "complete"),  # the lazy ones, and two without negative eigenvalues
    **dict.fromkeys(("two-tap", "extra"), ("ring", "lazy ring", "star", "lazy path", "complete")),
    "window-doubling": ("window-doubling",),
}
"""The schedules of algorithms that take few."""

NOT = {
    "gradient-tracking": ("el-local:2",),  # it keeps rows alone
    "slowmo": ("el-local:2",),
    "decentlam": ("directed-exponential", "one-peer-exponential", "el-local:2"),
}
"""Those that another algorithm refuses, beside window-doubling."""


def takes(kind: str, schedule: str) -> bool:
    return schedule in ONLY.get(kind, set(SCHEDULES) - {"window-doubling", *NOT.get(kind, ())})


def experiment(kind: str, schedule: str, rounds: int = ROUNDS, **more: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "task": {"kind": "quadratic", "placement": "random", "dtype": "float64", "eta": ETA},
        "topology": {"n": N, **SCHEDULES[schedule]},
        "algorithm": {**KINDS[kind], "deadline": 1e5},
        "eval": {"every": rounds},
        **more,
    }


@cache
def plan_of(kind: str, schedule: str) -> GossipPlan | None:
    try:
        plan = compose.plan(load_experiment(experiment(kind, schedule)))
    except ConfigError:
        return None
    assert isinstance(plan, GossipPlan)
    return plan


PAIRS = [(kind, schedule) for kind in KINDS for schedule in SCHEDULES if takes(kind, schedule)]

Place = tuple[str, ...]
"""Where in a state an array is: names of fields."""


def linear_places(state: Any, above: Place = ()) -> list[Place]:
    """The arrays of a state that depend on the models, and that there are now."""
    found: list[Place] = []
    for field in fields(state):
        value, place = getattr(state, field.name), (*above, field.name)
        if is_dataclass(value):
            found += linear_places(value, place)
        elif isinstance(value, np.ndarray) and field.name not in ("weight", "rate"):
            found.append(place)
    return found


def at(state: Any, place: Place) -> Any:
    for name in place:
        state = getattr(state, name)
    return state


def put(state: Any, place: Place, value: Any) -> Any:
    name, *rest = place
    return replace(state, **{name: put(getattr(state, name), tuple(rest), value) if rest else value})


class Recursion:
    """z, by place in the state, through the rounds of a plan."""

    def __init__(self, plan: GossipPlan) -> None:
        self.plan, self.algorithm = plan, plan.algorithm
        task, _ = compose.task_of(plan.experiment, N)
        self.b = task.b  # type: ignore[attr-defined]
        self.like = self.algorithm.start(frozen(np.zeros((N, 1))))
        self.z = {place: np.zeros(N) for place in linear_places(self.like)}

    def after(self, state: Any, b: np.ndarray, number: int) -> Any:
        W = self.plan.schedule.mixing(number).matrix()
        update = frozen(ETA * (b - self.algorithm.model(state)))
        begun, sent = self.algorithm.trained(state, update, Step(number, ETA, 1.0))
        return self.algorithm.mixed(begun, tuple(frozen(W @ one) for one in sent))

    def step(self, number: int) -> None:
        width = N * len(self.z)
        units = np.eye(width, width + N).reshape(len(self.z), N, width + N)
        state = self.like
        for place, unit in zip(self.z, units, strict=True):
            state = put(state, place, frozen(unit.copy()))
        self.like = self.after(state, np.eye(N, width + N, width), number)
        z = np.concatenate([*self.z.values(), self.b[:, 0]])
        self.z = {place: at(self.like, place) @ z for place in linear_places(self.like)}

    def model(self) -> np.ndarray:
        state = self.like
        for place, z in self.z.items():
            state = put(state, place, frozen(z[:, None].copy()))
        return np.asarray(self.algorithm.model(state))


def recursion(kind: str, schedule: str, rounds: int = ROUNDS) -> np.ndarray:
    plan = plan_of(kind, schedule)
    assert plan
    twin = Recursion(plan)
    for number in range(rounds):
        twin.step(number)
    return twin.model()


def test_every_method_takes_the_schedules_that_it_should() -> None:
    assert [(kind, schedule) for kind in KINDS for schedule in SCHEDULES if plan_of(kind, schedule)] == PAIRS


FIRST = [next(pair for pair in PAIRS if pair[0] == kind) for kind in KINDS]
FEW, SEVERAL = 30, ("one-peer-exponential", "random-matching", "directed-exponential", "el-local:2")
"""Rounds of the short form, on graphs that change or are directed."""


@pytest.mark.parametrize(
    ("kind", "schedule", "rounds"),
    [
        *((*pair, ROUNDS) for pair in FIRST),
        *((*pair, FEW) for pair in PAIRS if pair[1] in SEVERAL and pair not in FIRST),
        *(pytest.param(*pair, ROUNDS, marks=pytest.mark.long) for pair in PAIRS if pair not in FIRST),
    ],
)
def test_two_hundred_rounds_on_arrays_are_those_of_the_recursion(kind: str, schedule: str, rounds: int) -> None:
    run = simulate(experiment(kind, schedule, rounds), engine="stacked")
    expected = recursion(kind, schedule, rounds)
    largest = np.abs(expected).max()
    assert np.abs(np.stack(run.vectors) - expected).max() < 1e-10 * max(1.0, largest)
    assert largest > 1e-3, "and something was learned"


REST = [pytest.param(*pair, marks=pytest.mark.long) for pair in PAIRS if pair not in FIRST]
UNEVEN = {"simulation": {"training_jitter": 2.0, "speed_spread": 0.5, "jitter": 0.3}}


@pytest.mark.parametrize(("kind", "schedule"), [*FIRST, *REST])
def test_the_simulator_has_the_bits_of_the_arrays(kind: str, schedule: str) -> None:
    rounds = 40 if (kind, schedule) in FIRST else ROUNDS
    arrays = simulate(experiment(kind, schedule, rounds), engine="stacked").digest
    assert simulate(experiment(kind, schedule, rounds, **UNEVEN)).digest == arrays


SHORT = ["push-diging"]  # frozen digests hold the others in the short form


@pytest.mark.sockets
@pytest.mark.parametrize("kind", [*SHORT, *(pytest.param(k, marks=pytest.mark.long) for k in KINDS if k not in SHORT)])
def test_sockets_have_the_bits_of_the_arrays(kind: str) -> None:
    _, schedule = FIRST[list(KINDS).index(kind)]
    content = experiment(kind, schedule, 40)
    plan = compose.plan(load_experiment(content))
    vectors, _ = run_over_sockets(plan, compose.task_of(plan.experiment, N)[0])
    assert digest(vectors) == simulate(content, engine="stacked").digest
    assert np.abs(np.stack(vectors) - recursion(kind, schedule, 40)).max() < 1e-10
