"""Real data over real processes: twelve peers with uneven shares learn what one machine with all the data learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgossip import load_experiment, run_local
from fedgossip.plans import compose

pytestmark = pytest.mark.sockets


def test_twelve_processes_learn_mnist_as_well_as_one_machine_with_all_data(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one point of centralised training on the same samples and steps (12 x 16 examples, 500 steps)."""
    monkeypatch.setenv("FEDGOSSIP_DATA", str(real_data))
    experiment = {
        "rounds": 100,
        "data": {"source": "mnist", "partition": {"kind": "dirichlet", "alpha": 0.3, "min_size": 10}},
        "model": {"source": "mlp:784-64-10"},
        "train": {"lr": 0.2, "batch_size": 16, "local_steps": 5, "device": "cpu"},
        "topology": {"graph": "exponential", "n": 12},
        "eval": {"every": 50},
    }
    plan = compose.plan(load_experiment(experiment))
    run = run_local(experiment, tmp_path / "run", report=False)
    assert run.summary["status"] == "finished"
    averaged = run.accuracy["averaged"]
    assert averaged is not None and averaged > 0.9
    assert averaged > compose.centralised(plan.experiment, plan.learners)["accuracy"] - 0.01
