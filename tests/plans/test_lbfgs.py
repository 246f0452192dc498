"""L-BFGS by workers' gradients and a server that searches along a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize, root

from fedgossip import simulate
from fedgossip.algorithms.federated.base import Aggregate
from fedgossip.algorithms.federated.cocoa import CERTIFICATE
from fedgossip.algorithms.federated.lbfgs import LBFGS, TRIES, LineState
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import frozen
from fedgossip.core.records import EventRow
from fedgossip.core.task import Job, Update
from fedgossip.experiment import load_experiment
from fedgossip.learning.analytic import Quadratic
from fedgossip.learning.linear.convex import ConvexTask
from fedgossip.plans.tasks import task_of

Floats = npt.NDArray[np.float64]


def convex(rounds: int = 60, workers: int = 3, loss: str = "logistic", **train: Any) -> dict[str, Any]:
    """Shares of unlike sizes, and several batches in a pass."""
    return {
        "rounds": rounds,
        "task": {"kind": "convex", "loss": loss, "lam": 0.01},
        "data": {"source": "breast-cancer" if loss == "logistic" else "diabetes"},
        "train": {"lr": 1.0, "local_epochs": 1, "batch_size": 64, **train},
        "parallel": {"workers": workers, "method": "lbfgs"},
    }


def best(experiment: dict[str, Any]) -> Floats:
    """scipy's optimum of the mean loss over all examples of all workers.

    Its L-BFGS ends where losses no longer differ, at a gradient of 5e-9; from there its solver of equations goes on.
    """
    workers = range(experiment["parallel"]["workers"])
    task = task_of(load_experiment(experiment), len(workers))[0]
    assert isinstance(task, ConvexTask)

    def of_all(x: Floats) -> tuple[float, Floats]:
        found = task.gradients([Job(node, 0, frozen(np.array(x)), gradient=True) for node in workers])
        shares = [one.examples / sum(other.examples for other in found) for one in found]
        updates = [share * np.asarray(one.difference) for share, one in zip(shares, found, strict=True)]
        losses = [share * one.metrics["loss"] for share, one in zip(shares, found, strict=True)]
        return sum(losses), np.sum(updates, axis=0)

    settings = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 2000}
    ended = minimize(of_all, np.zeros(task.length), jac=True, method="L-BFGS-B", options=settings).x
    weights = slice(0, task.length - CERTIFICATE)
    found = root(lambda w: of_all(np.pad(w, (0, CERTIFICATE)))[1][weights], ended[weights], tol=1e-14)
    assert np.abs(found.fun).max() < 1e-13
    return np.pad(found.x, (0, CERTIFICATE))


def model_of(run: Any) -> Floats:
    return np.asarray(run.vectors[-1])


def failures(run: Any) -> list[EventRow]:
    return [row for row in run.rows if isinstance(row, EventRow) and row.name == "line_search_failed"]


@pytest.mark.parametrize("loss", ["logistic", "squares"])
def test_it_ends_at_the_optimum_of_scipy_by_one_digest_in_both_engines(loss: str) -> None:
    experiment = convex(loss=loss)
    run, arrays = simulate(experiment), simulate(experiment, engine="stacked")
    assert run.digest == arrays.digest and run.summary["status"] == "finished" and not failures(run)
    np.testing.assert_allclose(model_of(run), best(experiment), rtol=0, atol=1e-8)


def test_a_quadratic_of_one_curvature_is_solved_by_the_first_line_and_the_step_after() -> None:
    """All f_i = |x - b_i|^2 / 2: a gradient step of any length that is accepted gives the curvature, 1, exactly."""
    task = {"kind": "quadratic", "dim": 5, "placement": "random", "dtype": "float64"}
    base = {"task": task, "rounds": 5, "train": {"lr": 0.1}, "parallel": {"workers": 4, "method": "lbfgs"}}
    mean = task_of(load_experiment(base), 4)[0].b.mean(axis=0)  # type: ignore[attr-defined]
    np.testing.assert_allclose(model_of(simulate(base)), mean, atol=1e-14)


def constant(rate: float) -> Callable[[int], float]:
    return lambda _: rate


def slopes(rule: LBFGS, state: LineState, of: Any, rounds: int) -> list[LineState]:
    """The states of a rule that is given of(x) for x."""
    found = [state]
    for round in range(rounds):
        gradient = frozen(np.asarray(of(found[-1].x), np.float64))
        found.append(rule.step(found[-1], Aggregate((gradient,), 1, 1.0, round)))
    return found


def test_a_first_step_far_too_long_is_shortened_and_one_far_too_short_is_lengthened() -> None:
    scales = np.array([1.0, 10.0, 100.0])
    for rate in (1e6, 1e-9):
        rule = LBFGS(constant(rate), 200)
        states = slopes(rule, rule.start(frozen(np.ones(3))), lambda x: scales * x, 120)
        assert np.abs(states[-1].base).max() < 1e-12 and not any(state.failed for state in states)


def test_a_search_without_an_acceptable_step_is_reported_and_a_gradient_step_follows() -> None:
    """A slope that never changes on the way: the line has no end."""
    downhill = np.array([1.0, 2.0])
    rule = LBFGS(lambda _: 0.5, 1000)
    states = slopes(rule, rule.start(frozen(np.zeros(2))), lambda _: downhill, TRIES + 1)
    assert rule.failures(states[-2]) is None and rule.failures(states[-1]) == {"tries": TRIES}
    np.testing.assert_array_equal(states[-1].x, -0.5 * downhill)
    after = slopes(rule, states[-1], lambda x: x, 40)
    assert rule.failures(after[1]) is None and np.abs(after[-1].base).max() < 1e-12


def test_a_kinked_loss_reports_the_failure_in_both_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """|x|_1: the slope jumps from below to above, and no step in between is acceptable; from an even start."""

    def jumps(self: Quadratic, jobs: Any) -> Any:
        return [
            Update(
                frozen(np.where(job.vector < 1 / 3, -1.0, 1.0).astype(job.vector.dtype)), 1, {"loss": 1.0, "steps": 1}
            )
            for job in jobs
        ]

    monkeypatch.setattr(Quadratic, "gradients", jumps)
    task = {"kind": "quadratic", "dim": 2}
    base = {"task": task, "rounds": TRIES + 8, "train": {"lr": 0.1}, "parallel": {"workers": 2, "method": "lbfgs"}}
    found = [failures(simulate(base, engine=engine)) for engine in ("sim", "stacked")]
    assert [[(one.round, one.peer, one.value) for one in rows] for rows in found] == 2 * [[(20, 2, {"tries": TRIES})]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"local_steps": 1}}, "takes the gradient of all examples"),
        ({"train": {"local_epochs": 1, "momentum": 0.9}}, "the server takes the step"),
        ({"parallel": {"workers": 3, "method": "lbfgs", "codec": "top-k:0.1"}}, "parallel.codec: its step"),
        ({"parallel": {"workers": 3, "method": "lbfgs", "accumulate": 2}}, "parallel.accumulate: its step"),
        ({"parallel": {"workers": 3, "method": "lbfgs", "bucket": 9}}, "bucket with lbfgs"),
        ({"parallel": {"workers": 3, "method": "lbfgs", "backups": 1}}, "backups with lbfgs"),
        ({"task": {"kind": "quadratic", "sigma": 0.1}, "data": {}}, "slopes of noise"),
        ({"task": {"kind": "convex", "loss": "lasso"}}, "without a gradient everywhere"),
        ({"task": {"kind": "sparse"}, "data": {}}, "task.kind = 'sparse'"),
    ],
)
def test_what_gives_no_exact_gradient_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_experiment({**convex(), **changes})
