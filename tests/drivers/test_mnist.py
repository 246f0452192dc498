"""Real data over real processes: eight peers with uneven shares learn what one machine with all the data learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgossip import load_experiment, run_local
from fedgossip.plans import compose

pytestmark = pytest.mark.sockets


def test_eight_processes_learn_mnist_as_well_as_one_machine_with_all_data(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one point of centralised training on the same samples and steps (8 x 16 examples, 480 steps)."""
    monkeypatch.setenv("FEDGOSSIP_DATA", str(real_data))
    experiment = {
        "rounds": 40,
        "data": {"source": "mnist", "partition": {"kind": "dirichlet", "alpha": 0.3, "min_size": 10}},
        "model": {"source": "mlp:784-32-10"},
        "train": {"lr": 0.2, "batch_size": 16, "local_steps": 12, "device": "cpu"},
        "topology": {"graph": "exponential", "n": 8},
        "eval": {"every": 20},
    }
    plan = compose.plan(load_experiment(experiment))
    run = run_local(experiment, tmp_path / "run", report=False)
    assert run.summary["status"] == "finished"
    averaged = run.accuracy["averaged"]
    assert averaged is not None and averaged > 0.9
    assert averaged > compose.centralised(plan.experiment, plan.learners)["accuracy"] - 0.01
