"""The validation set: examples that nobody trains on, to choose hyperparameters by without a look at the test set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.data.dataset import Dataset
from fedgossip.experiment import load_experiment
from fedgossip.learning import task as learning_task
from fedgossip.plans import tasks

CONTENT = {
    "rounds": 3,
    "data": {"validation": 0.25, "partition": {"kind": "dirichlet", "alpha": 0.5}},
    "train": {"device": "cpu"},
    "topology": {"graph": "ring", "n": 4},
}


def sets(*overrides: str) -> tuple[Dataset, Dataset]:
    """The examples that are learned from, and those that are measured on."""
    found = tasks.examples_of(load_experiment(CONTENT, overrides), range(4), 4)
    return found.train, found.test


def rows(data: Dataset) -> set[bytes]:
    return {row.tobytes() for row in data.x}


def test_training_validation_and_test_have_no_example_in_common() -> None:
    train, test = sets()
    same_train, validation = sets("eval.on=validation")
    whole, whole_test = sets("data.validation=0")
    assert np.array_equal(test.x, whole_test.x) and np.array_equal(train.x, same_train.x)
    assert rows(train) | rows(validation) == rows(whole)
    assert len(train) + len(validation) == len(whole) and abs(len(validation) - 0.25 * len(whole)) <= 10
    assert rows(train).isdisjoint(rows(validation)) and rows(validation).isdisjoint(rows(test))


def test_every_class_gives_its_share() -> None:
    train, validation = sets("eval.on=validation")
    counts = np.bincount(validation.y) / (np.bincount(train.y) + np.bincount(validation.y))
    assert np.abs(counts - 0.25).max() < 0.01


def test_a_run_that_measures_on_the_validation_set_never_holds_a_test_example(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Dataset] = []

    class Spy(learning_task.TorchTask):
        def __init__(self, train: Dataset, test: Dataset, *rest: Any, **keys: Any) -> None:
            held.extend([train, test])
            super().__init__(train, test, *rest, **keys)

    monkeypatch.setattr(learning_task, "TorchTask", Spy)
    run = fedgossip.simulate(CONTENT, engine="stacked", overrides=["eval.on=validation"])
    assert rows(sets()[1]).isdisjoint(rows(held[0]) | rows(held[1]))
    assert run.summary["data"]["test"] == f"for validation, 25 % of the training examples: {len(held[1])}"


def test_columns_are_standardised_by_what_is_trained_on_alone() -> None:
    for on in ("test", "validation"):
        train, other = sets("data.source=breast-cancer", f"eval.on={on}")
        assert np.abs(train.x.mean(axis=0)).max() < 1e-5 < np.abs(other.x.mean(axis=0)).max()


def test_a_run_without_it_is_the_run_that_it_was() -> None:
    content = load_experiment({"topology": {"graph": "ring", "n": 4}}).to_dict()
    assert "validation" not in content["data"] and "on" not in content["eval"]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("data.validation=0.95", "data.validation = 0.95 is out of range"),
        ("data.validation=-0.1", "data.validation = -0.1 is out of range"),
        ("data.validation=0.0001", "validation = 0.0001 of"),
        ("eval.on=train", "eval.on = 'train' is not known"),
        ("task.kind=quadratic", "learns from no data"),
    ],
)
def test_what_cannot_be_kept_apart_is_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        sets(override)
    assert told in str(refused.value) and refused.value.advice


def test_a_measurement_on_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing is kept for it"):
        load_experiment({"topology": {"graph": "ring", "n": 4}, "eval": {"on": "validation"}})
