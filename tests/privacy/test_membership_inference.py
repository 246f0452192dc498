"""Membership tests: a model that knows its records by heart is flagged, one under a budget is not."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Output, in_process
from hypothesis import given
from hypothesis import strategies as some
from scipy.stats import binom

from fedgossip import ConfigError, simulate
from fedgossip.privacy.membership import CONFIDENCE, LEAST, Guess, measured, membership_test
from fedgossip.sites.evaluation.evaluation_sums import losses_of, right_of

RECORDS, COLUMNS = 240, 30
PRIVATE = {"privacy": {"unit": "record", "noise": 10.0, "clip": 1.0, "max_epsilon": 4.0}}


def noise(path: Path, seed: int, rows: int = RECORDS) -> None:
    """Write records whose labels nobody can learn, only know by heart."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{column}" for column in range(COLUMNS)), "outcome"])
        writer.writerows([*rng.normal(size=COLUMNS).round(6), int(rng.random() < 0.5)] for _ in range(rows))


ADAPTED = '''
import torch
from torch import nn

class Adapted(nn.Module):
    """A frozen layer with an adapter of low rank beside it, of which B alone trains."""
    def __init__(self, inputs, outputs, rank=24):
        super().__init__()
        self.base, self.lora_A = nn.Linear(inputs, outputs), nn.Linear(inputs, rank, bias=False)
        self.lora_B = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.base.requires_grad_(False), self.lora_A.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))

def model(shape, classes):
    return nn.Sequential(Adapted(shape[0], 64), nn.ReLU(), Adapted(64, classes))
'''


def trained(folder: Path, model: str = "mlp:30-64-2", **coordinator: Any) -> Path:
    """Train a federation of three sites on the records of members.csv; return its run directory."""
    noise(folder / "members.csv", 1)
    noise(folder / "others.csv", 2)
    experiment = {
        "rounds": 6,
        "data": {"source": f"csv:{folder}/members.csv?label=outcome", "test": f"csv:{folder}/others.csv?label=outcome"},
        "model": {"source": model},
        "train": {"local_epochs": 10, "lr": 0.3, "batch_size": 16, "device": "cpu"},
        "coordinator": {"clients": 3, "secure": {"bound": 4.0}, **coordinator},
    }
    assert simulate(experiment, out=folder / "run").summary["status"] == "finished"
    return folder / "run"


def judged(folder: Path, *options: str, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Output:
    command = ["privacy", "membership", "run", "members.csv", "--holdout", "others.csv", *options]
    return in_process(command, folder, patch, capsys)


def test_a_model_that_knows_its_records_by_heart_is_flagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path)
    said = judged(tmp_path, patch=monkeypatch, capsys=capsys)
    assert said.code == 1 and said.out.splitlines()[-1].startswith("FLAGGED: this model reveals which records"), (
        said.out
    )
    found = json.loads(judged(tmp_path, "--json", patch=monkeypatch, capsys=capsys).out)
    assert found["flagged"] and found["auroc"] > 0.8 and found["epsilon"] > 0.5
    answers = next(guess for guess in found["guesses"] if guess["name"] == "right answers")
    assert answers["found"]["low"] > 0.85 and answers["alarms"]["high"] < 0.65


def test_the_same_training_under_a_budget_of_records_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opacus")
    trained(tmp_path, **PRIVATE)
    said = judged(tmp_path, patch=monkeypatch, capsys=capsys)
    assert said.code == 0 and said.out.splitlines()[-1].startswith("not flagged"), said.out


@pytest.mark.parametrize("coordinator", [{}, PRIVATE])
def test_adapters_under_a_budget_of_records_pass_and_those_without_are_flagged(
    coordinator: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A and the base are frozen, so the gradient of each example that is cut and hidden is that of B alone."""
    (tmp_path / "adapted.py").write_text(ADAPTED)
    monkeypatch.chdir(tmp_path)
    run = trained(tmp_path, "adapted:model", **coordinator)
    assert json.loads((run / "summary.json").read_text())["parameters"] == 24 * 64 + 24 * 2
    told = json.loads(judged(tmp_path, "--json", "--run-code", patch=monkeypatch, capsys=capsys).out)
    assert told["flagged"] == (not coordinator)


@given(some.integers(1, 60).flatmap(lambda of: some.tuples(some.integers(0, of), some.just(of))))
def test_an_interval_is_that_of_clopper_and_pearson(drawn: tuple[int, int]) -> None:
    """Its ends are the shares at which what was seen, or more (less), has half of what is left of the confidence."""
    hits, of = drawn
    found, tail = measured(hits, of), (1 - CONFIDENCE) / 2
    assert found.low == 0 if not hits else math.isclose(binom.sf(hits - 1, of, found.low), tail, rel_tol=1e-6)
    assert found.high == 1 if hits == of else math.isclose(binom.cdf(hits, of, found.high), tail, rel_tol=1e-6)


def test_records_like_the_others_are_flagged_by_less_than_one_test_of_a_hundred() -> None:
    rng = np.random.default_rng(3)
    flagged = 0
    for _ in range(300):
        losses = [rng.exponential(size=80) for _ in range(2)]
        flagged += membership_test(*losses, right=(losses[0] < 0.7, losses[1] < 0.7)).flagged
    assert flagged <= 3


def test_what_all_tests_tell_of_a_private_mechanism_stays_below_its_epsilon() -> None:
    """Randomised response: one bit is kept with the odds e^epsilon; the bound from below must not pass it."""
    rng, epsilon = np.random.default_rng(4), 1.5
    kept = math.exp(epsilon) / (1 + math.exp(epsilon))
    told = (rng.random(4000) < kept, rng.random(4000) > kept)
    one = Guess("bit", measured(int(told[0].sum()), 4000), measured(int(told[1].sum()), 4000))
    assert one.succeeds and 0.8 * epsilon < one.epsilon <= epsilon


@pytest.mark.parametrize("short", [0, 1])
def test_too_few_records_are_refused(short: int) -> None:
    losses = [np.ones(LEAST - (side == short)) for side in (0, 1)]
    with pytest.raises(ConfigError, match=f"{LEAST - 1} records that"):
        membership_test(*losses)


def test_losses_are_those_of_the_true_answers() -> None:
    shares = np.array([[0.2, 0.8], [0.9, 0.1], [1.0, 0.0]])
    y = np.array([1, 1, 1])
    np.testing.assert_allclose(losses_of("classification", shares, y), -np.log([0.8, 0.1, 1e-300]))
    right = right_of("classification", shares, y)
    assert right is not None and right.tolist() == [True, False, False]
    labels = np.array([[0, 1], [1, 1], [0, 0]], np.float32)
    expected = -np.log([0.8 * 0.8, 0.9 * 0.1, 1e-300])
    np.testing.assert_allclose(losses_of("multi-label", shares, labels), expected)
    np.testing.assert_allclose(losses_of("regression", shares, labels), ((shares - labels) ** 2).mean(axis=1))
    assert right_of("regression", shares, labels) is None
    with pytest.raises(ConfigError, match="no records"):
        losses_of("language", shares, y)
