"""From an experiment to the parts of a run: which data a run learns from, is tested on, and says hello with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_data import write_pair

import fedgossip
from fedgossip import load_experiment
from fedgossip.errors import ConfigError
from fedgossip.running import compose


def experiment(**data: Any) -> fedgossip.Experiment:
    return load_experiment({
        "rounds": 2,
        "data": data,
        "train": {"device": "cpu", "batch_size": 2},
        "topology": {"graph": "ring", "n": 3},
    })


# --- the test set ---------------------------------------------------------------------------------------------------


def test_a_source_with_a_test_set_of_its_own_is_tested_on_it(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", 9)
    write_pair(tmp_path, "t10k", 6)
    run = fedgossip.simulate(experiment(source=f"mnist:{tmp_path}", test="own"))
    assert sum(run.summary["data"]["sizes"]) == 9
    assert run.summary["data"]["test"] == "the source's own 6"


def test_the_summary_says_which_share_was_held_out() -> None:
    assert fedgossip.simulate(experiment(test=0.25)).summary["data"]["test"] == "25 % of the examples: 450"


def test_a_source_without_a_test_set_of_its_own_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"digits brings no test set of its own") as error:
        compose.task_of(experiment(test="own"), 3)
    assert "data.test = 0.2" in error.value.advice


@pytest.mark.parametrize("test", [0, 1, -0.5, "onw"])
def test_what_is_no_test_set_is_refused(test: object) -> None:
    with pytest.raises(ConfigError, match=r"data\.test = ") as error:
        experiment(test=test)
    assert '"own"' in error.value.advice


# --- the first words ------------------------------------------------------------------------------------------------


def hello(data: dict[str, Any]) -> str:
    made = compose.plan(experiment(**data))
    task, shares = compose.task_of(made.experiment, 3)
    return compose.hello_of(made, task.schema, shares.digest).experiment


def saved(folder: Path, change: float = 0.0, label: int = 0) -> dict[str, Any]:
    folder.mkdir()
    x = np.arange(60, dtype=np.float32).reshape(30, 2)
    x[7, 1] += change
    y = np.arange(30) % 2
    y[4] = label
    np.savez(folder / "a.npz", x=x, y=y)
    return {"source": f"npz:{folder}/a.npz"}


def test_peers_with_the_same_data_in_different_places_say_the_same(tmp_path: Path) -> None:
    assert hello(saved(tmp_path / "here")) == hello(saved(tmp_path / "there"))


@pytest.mark.parametrize("other", [{"change": 0.5}, {"label": 1}])
def test_peers_whose_files_differ_refuse_each_other(tmp_path: Path, other: dict[str, Any]) -> None:
    assert hello(saved(tmp_path / "here")) != hello(saved(tmp_path / "there", **other))
