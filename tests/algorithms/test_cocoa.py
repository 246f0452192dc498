"""CoCoA: coordinate ascent at the clients, the certificate, when it ends a run, and what it is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets
from test_federated import Run
from test_resume import resumed, stopped

import fedgossip
from fedgossip.algorithms.federated.cocoa import CERTIFICATE, CLIENTS, EXAMPLES, gap_of
from fedgossip.algorithms.federated.names import make
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import digest
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.learning.linear.convex import LOSSES, ConvexTask
from fedgossip.plans import compose
from fedgossip.plans.tasks import task_of

ROUNDING = 1e-12


def experiment(source: str = "breast-cancer", loss: str = "logistic", clients: int = 4, **more: Any) -> dict[str, Any]:
    options, positive = more.pop("options", {}), "3" if source == "digits" else ""
    coordinator = {"clients": clients, "algorithm": "cocoa", "options": options, "secure": {"on": False}}
    task = {"kind": "convex", "loss": loss, "lam": more.pop("lam", 0.01), "positive": positive, **more.pop("task", {})}
    run = {"rounds": 60, "data": {"source": source}, "task": task, "coordinator": coordinator, "eval": {"every": 1}}
    return run | more


def convex(content: dict[str, Any]) -> ConvexTask:
    e = load_experiment(content)
    task, _ = task_of(e, content["coordinator"]["clients"])
    assert isinstance(task, ConvexTask)
    return task


def run_of(content: dict[str, Any]) -> Run:
    section = content["coordinator"]
    threshold = 1 / content["task"].get("smooth", 0.1) if content["task"]["loss"] == "lasso" else 0.0
    return Run(make("cocoa", clients=section["clients"], threshold=threshold, **section["options"]), convex(content))


def all_gaps(run: Run, rounds: int, least: float = 0.0) -> list[float]:
    """The gap of the model that each round began with, until one is at most `least`."""
    found: list[float] = []
    for _ in range(rounds):
        run.go(list(range(len(run.task._shares))))  # type: ignore[attr-defined]
        found.append(float(gap_of(run.state.x) or np.nan))
        if found[-1] <= least:
            break
    return found


def rounds_to(least: float, **how: Any) -> int:
    return len(all_gaps(run_of(experiment(**how)), 400, least)) - 1


# --- one coordinate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_a_coordinate_step_makes_the_dual_largest(name: str) -> None:
    """By trying 20 001 places of the whole interval."""
    loss, drawn = LOSSES[name], np.random.default_rng(4)
    for _ in range(40):
        y, margin, q = float(drawn.choice([-1, 1])), float(drawn.normal(0, 3)), float(drawn.exponential(2) + 1e-3)
        a = y * float(drawn.uniform(0, 1))
        tried = np.linspace(0, 1, 20_001) * y if loss.classes else np.linspace(-20, 20, 20_001)

        def dual(t: Any, y: float = y, margin: float = margin, q: float = q, a: float = a) -> Any:
            t = np.atleast_1d(t)
            return -loss.conjugate(t, np.full(t.shape, y)) - margin * (t - a) - q / 2 * (t - a) ** 2

        found = loss.ascend(a, y, margin, q)
        assert float(dual(found)[0]) >= dual(tried).max() - 1e-12


@pytest.mark.parametrize("name", LOSSES)
def test_the_conjugate_is_the_largest_of_what_defines_it(name: str) -> None:
    """loss*(-a) = max over m of -a m - loss(m)."""
    loss, margins = LOSSES[name], np.linspace(-30, 30, 60_001)
    for y, share in ((1.0, 0.3), (-1.0, 0.8)):
        a = np.array([y * share])
        tried = -a[0] * margins - loss.value(margins, np.full(margins.shape, y))
        assert float(loss.conjugate(a, np.array([y]))[0]) == pytest.approx(tried.max(), abs=1e-6)


# --- the certificate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["add", "average"])
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_the_gap_is_never_negative_and_holds_for_the_model_that_went_down(loss: str, aggregation: str) -> None:
    run = run_of(experiment(loss=loss, options={"aggregation": aggregation}))
    task: Any = run.task
    for _ in range(12):
        before = run.x[:-CERTIFICATE]
        run.go([0, 1, 2, 3])
        gap = gap_of(run.x)
        assert gap is not None and gap >= -ROUNDING
        alphas = np.zeros(len(task._y))
        for node, (a,) in run.memory.items():
            alphas[task._shares[node]] = a
        assert run.x[-2] == pytest.approx(task.objective(before), abs=ROUNDING)
    v = (alphas[:, None] * task._x).sum(axis=0) / (task.lam * len(alphas))
    np.testing.assert_allclose(run.x[:-CERTIFICATE], v, atol=1e-10)  # the model is that of the dual variables


@pytest.mark.parametrize("source", ["breast-cancer", pytest.param("digits", marks=pytest.mark.long)])
def test_a_run_ends_at_the_gap_that_was_asked_for(source: str) -> None:
    run = fedgossip.simulate(experiment(source, options={"gap": 1e-4}), engine="stacked")
    task = convex(experiment(source))
    assert run.summary["status"] == "finished" and run.summary["rounds"] < 60
    x: Any = run.vectors[-1]
    assert 0 <= x[-2] - x[-1] <= 1e-4
    assert x[-2] == pytest.approx(task.objective(x[:-CERTIFICATE]), abs=ROUNDING)  # of this model


def test_where_a_client_is_missing_nothing_is_certified_and_nothing_is_lost() -> None:
    run = run_of(experiment())
    run.go([0, 1, 3])  # counted
    assert run.x[CLIENTS] == 3
    run.go([0, 1, 3])
    assert gap_of(run.x) is not None
    run.go([0, 1, 2, 3])  # a newcomer, which is counted now
    assert run.x[CLIENTS] == 4 and run.x[EXAMPLES] == len(run.task._y) and gap_of(run.x) is None  # type: ignore[attr-defined]
    run.go([0, 2])
    assert gap_of(run.x) is None
    run.go([0, 1, 2, 3])
    assert (gap_of(run.x) or -1) >= 0
    assert all_gaps(run, 60, 1e-3)[-1] <= 1e-3


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "loss", "lam", "gap"),
    [
        ("breast-cancer", "logistic", 0.01, 1e-8),
        ("digits", "logistic", 0.01, 5e-7),
        ("diabetes", "squares", 0.1, 1e-8),
        ("breast-cancer", "hinge", 0.1, 5e-7),
    ],
)
def test_the_best_is_that_of_scikit_learn(source: str, loss: str, lam: float, gap: float) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    run = run_of(experiment(source, loss, lam=lam, options={"gap": gap}))
    task: Any = run.task
    assert all_gaps(run, 4000, gap)[-1] <= gap
    m = len(task._y)
    if loss == "logistic":
        made = linear_model.LogisticRegression(C=1 / (lam * m), fit_intercept=False, tol=1e-12, max_iter=10_000)
    elif loss == "hinge":
        svm = pytest.importorskip("sklearn.svm")
        made = svm.LinearSVC(C=1 / (lam * m), loss="hinge", fit_intercept=False, tol=1e-10, max_iter=1_000_000)
    else:
        made = linear_model.Ridge(alpha=lam * m, fit_intercept=False, tol=1e-12)
    best = np.ravel(made.fit(task._x, task._y).coef_)
    assert abs(task.objective(run.x[:-CERTIFICATE]) - task.objective(best)) < 1e-6


SPARSE: dict[str, Any] = {"source": "diabetes", "loss": "lasso", "lam": 0.1, "task": {"smooth": 0.5}}
"""Of ten columns and the intercept a few are 0."""


def test_the_lasso_is_that_of_scikit_learn_and_its_gap_holds() -> None:
    """ElasticNet has the same objective with alpha l1_ratio = lam, alpha (1 - l1_ratio) = lam smooth."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    run = run_of(experiment(**SPARSE))
    task, found = run.task, all_gaps(run, 500, 5e-7)
    assert isinstance(task, ConvexTask)
    alpha = 0.1 * 1.5
    made = linear_model.ElasticNet(alpha=alpha, l1_ratio=0.1 / alpha, fit_intercept=False, tol=1e-12, max_iter=100_000)
    best, ours = made.fit(task._x, task._y).coef_, np.asarray(run.x[:-CERTIFICATE])
    assert min(found[1:]) >= -ROUNDING and found[-1] <= 5e-7
    assert abs(task.objective(ours) - task.objective(best)) < 1e-6
    assert task.gap(ours) >= task.objective(ours) - task.objective(best) - ROUNDING
    assert ((ours == 0) == (best == 0)).all() and 2 < (ours == 0).sum() < len(ours) - 1


def test_a_lasso_has_one_digest_in_the_simulator_and_on_arrays() -> None:
    content = experiment(**SPARSE, options={"gap": 5e-2})
    runs = [fedgossip.simulate(content, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest and runs[0].summary["rounds"] < 60


# --- the same run everywhere ------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_sockets_have_the_bits_of_the_simulator_and_of_arrays() -> None:
    content = experiment(options={"gap": 2e-3, "local": 0.5})
    simulated, stacked = (fedgossip.simulate(content, engine=engine) for engine in ("sim", "stacked"))
    assert simulated.summary["rounds"] < 60 and simulated.digest == stacked.digest
    plan = compose.plan(load_experiment(content))
    vectors, _ = run_over_sockets(plan, convex(content))
    assert digest([one for one in plan.outcome(vectors) if one is not None]) == simulated.digest


def test_a_client_that_comes_back_goes_on_with_its_dual_variables() -> None:
    """Lost answers and a crash: the clients' memories and the server's sum stay of one model."""
    faults = [{"kind": "drop", "probability": 0.1}, {"kind": "crash", "peers": [2], "start": 0.3, "after": 0.2}]
    content = experiment(options={"gap": 1e-3}, faults=faults, rounds=200)
    content["coordinator"] |= {"deadline": 3.0, "least_deadline": 0.5}
    run = fedgossip.simulate(content, engine="sim")
    x, task = run.vectors[-1], convex(content)
    assert x is not None
    assert run.summary["rounds"] < 200
    assert 0 <= x[-2] - x[-1] <= 1e-3
    assert x[-2] == pytest.approx(task.objective(x[:-CERTIFICATE]), abs=1e-9)


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path, engine: str) -> None:
    what = load_experiment(experiment(options={"gap": 5e-3}))
    whole = simulate_plan(compose.plan(what), engine=engine)
    assert 5 < whole.summary["rounds"] < 60
    assert stopped(tmp_path, what, engine, 4).summary["status"] == "interrupted"
    again = resumed(tmp_path, what, engine)
    assert again.digest == whole.digest is not None and again.rows == whole.rows


# --- beside others ----------------------------------------------------------------------------------------------------


def test_adding_needs_fewer_rounds_than_averaging() -> None:
    """The more, the more clients there are (Ma et al. 2015)."""
    of = {how: rounds_to(0.05, source="digits", clients=16, options={"aggregation": how}) for how in ("add", "average")}
    assert 2 * of["add"] <= of["average"]


@pytest.mark.long
def test_adding_gains_on_averaging_as_clients_grow() -> None:
    options = [{"aggregation": how, "local": 1.0} for how in ("add", "average")]
    gains = []
    for clients in (4, 16, 64):
        added, averaged = (rounds_to(1e-2, source="digits", clients=clients, options=one) for one in options)
        gains.append(averaged / added)
    assert gains[0] > 1.5 and gains[-1] > gains[0]


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": {"lam": 0.0}}, "lam = 0"),
        ({"task": {"loss": "lasso"}}, "its labels are for classification"),
        ({"task": {"smooth": 0.2}}, "task.smooth of task.loss = 'logistic'"),
        ({"task": {"loss": "lasso", "smooth": 0.0}}, "smooth = 0"),
        ({"task": {"loss": "mse"}}, "task.loss = 'mse' is for regression"),
        ({"data": {"source": "digits"}}, "digits has 10 classes, and logistic distinguishes two"),
        ({"data": {"source": "digits"}, "task": {"positive": "12"}}, "digits has no class '12'"),
        ({"task": {"loss": "squares"}}, "its labels are for classification"),
        ({"data": {"source": "diabetes"}}, "its labels are for regression"),
        ({"model": {"source": "mlp:30-4-2"}}, r"\[model\] with task.kind = convex"),
        ({"task": {"kind": "learning", "loss": ""}}, "cocoa goes by dual variables"),
        ({"coordinator": {"options": {"aggregation": "sum"}}}, "aggregation = 'sum' is not known"),
        ({"coordinator": {"options": {"local": 0}}}, "local = 0"),
        ({"coordinator": {"options": {"gap": -1}}}, "gap = -1 is out of range"),
        ({"coordinator": {"options": {"gap": float("nan")}}}, "gap = nan"),
        ({"coordinator": {"secure": {"on": True}, "clients": 8}}, "a secure sum clips numbers to its bound"),
        ({"train": {"momentum": 0.9}}, "takes plain steps"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(change: dict[str, Any], message: str) -> None:
    content = experiment()
    for section, keys in change.items():
        content[section] = {**content.get(section, {}), **keys}
    with pytest.raises(ConfigError, match=message):
        fedgossip.simulate(content, engine="stacked")


def test_a_client_without_rows_is_named() -> None:
    content = experiment(clients=2000)
    with pytest.raises(ConfigError, match="example"):
        fedgossip.simulate(content, engine="stacked")
