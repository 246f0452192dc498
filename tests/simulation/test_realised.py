"""What a forecast would have said, had it been known what the network would lose: a second curve beside the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgossip
from fedgossip.core.forecasts import RunForecast, kept, read_forecast
from fedgossip.core.run_format import REALISED
from fedgossip.drivers.local import run_local
from fedgossip.runs.run_directory import Run

DROPS = {"kind": "drop", "probability": 0.1}
DEATH = {"kind": "crash", "peers": [3], "start": 1.0}


def quadratic(graph: str, fault: dict[str, Any], algorithm: str = "dsgd", **more: Any) -> dict[str, Any]:
    return {
        "rounds": 40,
        "topology": {"graph": graph, "n": 12},
        "algorithm": {"name": algorithm, "deadline": 2.0, "least_deadline": 0.5},
        "task": {"kind": "quadratic", "dtype": "float64", "eta": 0.1, "placement": "random"},
        "faults": [fault],
        "forecast": {"level": "probe", **more},
    }


def realised(folder: Path) -> RunForecast:
    found = read_forecast(folder, REALISED)
    assert found is not None
    return found[0]


def distances(run: Run) -> np.ndarray:
    """By round; not a number where a peer was too far behind."""
    return np.array([row.consensus_distance for row in run.network() if row.round], dtype=float)


@pytest.mark.parametrize(
    ("graph", "fault", "algorithm"),
    [
        ("ring", DROPS, "dsgd"),
        ("torus:3x4", DROPS, "gradient-tracking"),
        ("base:1", DROPS, "qg-dsgdm"),
        ("el-oracle:3", DROPS, "dsgd"),
        ("ring", DEATH, "dsgd"),
        ("directed-exponential", DROPS, "dsgd"),
    ],
)
def test_what_was_lost_and_made_up_for_explains_the_run_to_the_last_digit(
    tmp_path: Path, graph: str, fault: dict[str, Any], algorithm: str
) -> None:
    """Of a quadratic, as an undisturbed forecast is its run: models missed, held, made up for, a peer dead."""
    run = fedgossip.simulate(quadratic(graph, fault, algorithm), out=tmp_path / "run", report=True)
    assert run.summary["events"].get("missed")
    assert run.summary["forecast_kept"] < 0.9
    assert run.summary["forecast_realised_kept"] == 1.0
    found, measured = realised(tmp_path / "run"), distances(run)
    assert np.isfinite(measured).sum() > 20
    assert np.nanmax(np.abs(np.array(found.upper) - measured)) < 1e-12 * np.nanmax(measured)
    assert "of the rounds as they were mixed" in (tmp_path / "run" / "report.html").read_text()


def test_an_undisturbed_run_has_no_second_curve(tmp_path: Path) -> None:
    run = fedgossip.simulate(quadratic("ring", DROPS | {"probability": 0.0}), out=tmp_path / "run")
    assert (run.summary["forecast_kept"], "forecast_realised_kept" in run.summary) == (1.0, False)
    assert not (tmp_path / "run" / REALISED).exists()


def test_the_second_curve_can_be_left_out(tmp_path: Path) -> None:
    run = fedgossip.simulate(quadratic("ring", DROPS, realised=False), out=tmp_path / "run")
    assert "forecast_realised_kept" not in run.summary


def learned() -> dict[str, Any]:
    return {
        "rounds": 60,
        "topology": {"graph": "torus:4x4", "n": 16},
        "algorithm": {"deadline": 2.0, "least_deadline": 0.5},
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3}},
        "model": {"source": "mlp:64-32-10"},
        "train": {"lr": 0.1, "batch_size": 16, "local_steps": 5, "device": "cpu"},
        "eval": {"every": 20},
        "faults": [{"kind": "drop", "probability": 0.3}],
        "forecast": {"level": "shadow"},
    }


@pytest.mark.long
def test_a_learning_run_that_loses_a_third_of_its_messages_is_explained(tmp_path: Path) -> None:
    """Of the rounds whose distance is known the forecast kept none, that of the rounds as they were mixed 87 %."""
    run = fedgossip.simulate(learned(), out=tmp_path / "run")
    assert run.summary["forecast_kept"] < 0.2
    assert run.summary["forecast_realised_kept"] > 0.8
    assert kept(realised(tmp_path / "run"), run.network()) == run.summary["forecast_realised_kept"]


@pytest.mark.long
@pytest.mark.sockets
def test_a_run_of_processes_is_explained_too(tmp_path: Path) -> None:
    experiment = quadratic("ring", DROPS | {"probability": 0.2}) | {"rounds": 15}
    experiment["topology"]["n"] = 4
    run = run_local(experiment, tmp_path / "run", report=False)
    measured = distances(run)
    assert run.summary["forecast_realised_kept"] == 1.0
    assert np.nanmax(np.abs(np.array(realised(tmp_path / "run").upper) - measured)) < 1e-12 * np.nanmax(measured)
