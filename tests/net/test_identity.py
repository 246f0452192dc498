"""One digest: the reference twin in plain lines, the simulator under any schedule, stacked arrays, ZeroMQ over TCP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.base.vectors import Vector, digest
from fedgossip.core.task import Job
from fedgossip.plans import compose


def learning(graph: str, n: int | None, **more: Any) -> dict[str, Any]:
    return {
        "seed": 3,
        "rounds": 8,
        "data": {"partition": {"kind": "dirichlet", "alpha": 0.5, "min_size": 10}},
        "model": {"source": "mlp:64-32-10"},
        "train": {"momentum": 0.9, "local_steps": 3, "device": "cpu"},
        "topology": {"graph": graph, "n": n} if n else {"graph": graph},
        "algorithm": {"deadline": 1e5},
        **more,
    }


def twin(experiment: dict[str, Any]) -> str:
    """Synchronous gossip as one would write it down: float32, ascending ids, a product and a sum per term."""
    plan = compose.plan(load_experiment(experiment))
    task, _ = compose.task_of(plan.experiment, plan.n)
    x: list[Vector] = [task.initial(node) for node in range(plan.n)]
    for number in range(plan.experiment.rounds):
        half = []
        for node in range(plan.n):
            (update,) = task.train([Job(node, number, x[node])])
            half.append(x[node] if update.difference is None else x[node] + update.difference)
        for node in range(plan.n):
            terms = [half[j] * half[j].dtype.type(w) for j, w in sorted(plan.mixing.row(node).items())]
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            x[node] = total
    return digest(x)


GRAPHS = [("star", 12), ("regular:3", 12), pytest.param("barbell:5,2", None, marks=pytest.mark.long)]


@pytest.mark.sockets
@pytest.mark.parametrize(("graph", "n"), GRAPHS)
def test_one_digest_everywhere(graph: str, n: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = learning(graph, n)
    expected = twin(experiment)
    assert simulate(experiment, engine="stacked").digest == expected
    for schedule in range(20):
        wild = {"jitter": 0.3, "training_jitter": 2.0, "speed_spread": 1.0, "latency": 0.01 * schedule}
        assert simulate({**experiment, "simulation": wild}).digest == expected
    plan = compose.plan(load_experiment(experiment))
    for links in ("sealed", "curve"):
        monkeypatch.setenv("FEDGOSSIP_LINKS", links)
        task, _ = compose.task_of(plan.experiment, plan.n)
        vectors, _ = run_over_sockets(plan, task)
        assert digest(vectors) == expected


@pytest.mark.parametrize("model", ["softmax", "cnn:small", "cnn:small-bn"])
def test_one_digest_for_every_kind_of_model(model: str) -> None:
    experiment = learning("ring", 4, model={"source": model}, rounds=3)
    expected = twin(experiment)
    assert simulate(experiment).digest == expected
    assert simulate(experiment, engine="stacked").digest == expected


def test_one_digest_on_a_directed_graph() -> None:
    experiment = learning("directed-exponential", 16, rounds=20)
    expected = twin(experiment)
    assert simulate(experiment, engine="stacked").digest == expected
    uneven = {"simulation": {"training_jitter": 2.0, "speed_spread": 0.5, "jitter": 0.3}}
    for wild in ({}, uneven, {"faults": [{"kind": "slow", "peers": [3], "factor": 10.0}]}):
        assert simulate({**experiment, **wild}).digest == expected


@pytest.mark.sockets
@pytest.mark.parametrize(
    "graph", ["one-peer-exponential", "one-peer-hypercube", "random-matching", "el-oracle:3", "el-local:2", "base:2"]
)
def test_one_digest_where_the_graph_changes_by_the_round(graph: str) -> None:
    experiment = learning(graph, 8, rounds=12)
    expected = simulate(experiment, engine="stacked").digest
    for wild in ({}, {"training_jitter": 2.0, "speed_spread": 0.5, "jitter": 0.3}):
        assert simulate({**experiment, "simulation": wild}).digest == expected
    plan = compose.plan(load_experiment(experiment))
    task, _ = compose.task_of(plan.experiment, plan.n)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(vectors) == expected


def test_window_doubling_ends_with_one_digest_and_with_the_exact_mean() -> None:
    experiment = {
        "rounds": 4,
        "task": {"kind": "averaging", "dim": 3, "dtype": "float64"},
        "topology": {"graph": "window-doubling", "n": 13},
        "algorithm": {"name": "window-doubling"},
    }
    stacked = simulate(experiment, engine="stacked")
    assert stacked.digest == simulate(experiment).digest
    assert stacked.summary["consensus_distance"] < 1e-14


def test_another_seed_gives_another_digest() -> None:
    assert simulate(learning("ring", 4)).digest != simulate(learning("ring", 4), seed=4).digest


# --- the exact oracle: quadratics, adapt then combine -----------------------------------------------------------------


def stationary_error(b: np.ndarray[Any, Any], eta: float) -> float:
    """(1/n) sum_{k>=2} (eta l_k / (1 - (1 - eta) l_k))^2 B_k^2 for the ring with Metropolis weights, B = DFT of b.

    From the linear recursion x <- W (x - eta (x - b)) (adapt, then combine), mode by mode.
    """
    n = len(b)
    eigenvalues = 1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(n) / n)
    power = np.abs(np.fft.fft(b)) ** 2 / n
    gain = (eta * eigenvalues / (1 - (1 - eta) * eigenvalues)) ** 2
    return float((gain * power)[1:].sum() / n)


PLACEMENTS: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "smooth": lambda i: np.sqrt(2) * np.cos(2 * np.pi * i / 16),
    "alternating": lambda i: (-1.0) ** i,
}


@pytest.mark.parametrize(("placement", "printed"), [("smooth", 0.42462948), ("alternating", 0.00065746)])
def test_the_formula_gives_the_printed_values(placement: str, printed: float) -> None:
    assert stationary_error(PLACEMENTS[placement](np.arange(16)), 0.1) == pytest.approx(printed, abs=5e-9)


def test_combine_then_adapt_would_be_seen() -> None:
    """The other order, x <- W x - eta (x - b), has gain eta / (1 - l_k + eta) per mode: a regression test for ours."""
    b = PLACEMENTS["alternating"](np.arange(16))
    eigenvalues = 1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(16) / 16)
    power = np.abs(np.fft.fft(b)) ** 2 / 16
    other = float((((0.1 / (1.1 - eigenvalues)) ** 2) * power)[1:].sum() / 16)
    run = simulate(
        {
            "rounds": 250,
            "task": {"kind": "quadratic", "placement": "alternating", "dtype": "float64"},
            "topology": {"graph": "ring", "n": 16},
        }
    )
    ours = run.summary["consensus_distance"] ** 2
    assert ours == pytest.approx(stationary_error(b, 0.1), rel=1e-8)
    assert other > 5 * ours


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("placement", "dtype", "tolerance"),
    [
        pytest.param("smooth", "float32", 1e-4, marks=pytest.mark.long),
        ("alternating", "float64", 1e-8),
        pytest.param("smooth", "float64", 1e-8, marks=pytest.mark.long),
        pytest.param("alternating", "float32", 1e-4, marks=pytest.mark.long),
    ],
)
def test_the_stationary_disagreement_over_real_sockets_is_the_formulas(
    placement: str, dtype: str, tolerance: float
) -> None:
    """One graph, one gap, one total heterogeneity: 646 times apart by placement alone, through the real sockets."""
    experiment = {
        "rounds": 150,
        "task": {"kind": "quadratic", "placement": placement, "dtype": dtype, "eta": 0.1},
        "topology": {"graph": "ring", "n": 16},
    }
    plan = compose.plan(load_experiment(experiment))
    task, _ = compose.task_of(plan.experiment, plan.n)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(vectors) == simulate(experiment).digest
    ended = np.stack(vectors).astype(np.float64)
    error = float(((ended - ended.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert error == pytest.approx(stationary_error(PLACEMENTS[placement](np.arange(16)), 0.1), rel=tolerance)
