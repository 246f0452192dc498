"""The forecast of losses by simulations with other draws: what a run learns whose rounds wait for nobody.

python tests/lab/test_loss_forecast.py [FOLDER [SEED]]    54 runs, each with its forecast written and hashed before it
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pytest
import scipy.stats
from commands import in_process
from forecast_cases import DIGITS, GOSSIP, LOSSES, SETTINGS, SPEEDS, all_cases

import fedgossip
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.core.forecasts import DRAWS, SPREADS, ScoreForecast, compute_prediction_edges, read_forecast
from fedgossip.report.page.forecast import describe_scores
from fedgossip.report.page.numbers import percent
from fedgossip.report.page.reading import read_run

EVERY = {"eval": {"every": 1}}


def forecast_then_run(case: dict[str, Any], folder: Path) -> tuple[str, list[bool]]:
    """Run with a forecast before; return its hash, and whether the loss of each round is between the edges."""
    run = fedgossip.simulate(case | EVERY, forecast="drawn", out=folder)
    found = read_forecast(folder)
    assert found is not None and found[0].scores is not None
    forecast, mark = found
    assert run.summary["forecast_file"]["sha256"] == mark
    loss = {row.round: row.test_loss for row in run.network()}
    assert forecast.scores.rounds == [round for round in loss if round]
    edges = zip(forecast.scores.rounds, forecast.scores.test_loss, strict=True)
    return mark, [low <= loss[round] <= high for round, (low, high) in edges]


@pytest.mark.parametrize("setting", ["gossip", "buffer", "stale servers"])
def test_the_loss_of_a_run_is_between_the_edges_of_its_forecast_which_changes_no_bit_of_it(
    setting: str, tmp_path: Path
) -> None:
    case = SETTINGS[setting] | {"simulation": SPEEDS["spread"], "faults": LOSSES["two in a hundred"]}
    if setting == "gossip":  # a task with memory
        case |= {"train": case["train"] | {"momentum": 0.9}}
    _, held = forecast_then_run(case, tmp_path / "run")
    assert all(held)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["digest"] == fedgossip.simulate(case | EVERY).summary["digest"]
    assert summary["forecast_scores_kept"]["test_loss"] == 1.0


def test_without_draws_the_edges_are_the_run() -> None:
    case = SETTINGS["deadline"] | EVERY
    (forecast,) = fedgossip.forecast_run(case)
    loss = [row.test_loss for row in fedgossip.simulate(case).network() if row.round]
    assert forecast.level == "drawn" and forecast.scores is not None and not forecast.rounds
    assert np.ptp(np.column_stack([forecast.scores.test_loss, loss]), axis=1) == pytest.approx(0, abs=1e-12)


def test_one_more_draw_is_between_the_edges_of_eight_with_its_probability() -> None:
    assert scipy.stats.t.ppf(0.9995, DRAWS - 1) == pytest.approx(SPREADS, abs=5e-3)
    drawn = np.random.default_rng(0).standard_normal((DRAWS + 1, 400_000))
    low, high = compute_prediction_edges(drawn[:DRAWS])
    outside = np.sum((drawn[DRAWS] < low) | (drawn[DRAWS] > high))
    assert abs(outside - 400) < 5 * 400**0.5


def test_asynchronous_peers_have_edges_of_their_distance_and_scores() -> None:
    case = SETTINGS["gossip"] | {"simulation": SPEEDS["spread"], "forecast": {"rounds": 5}} | EVERY
    (forecast,) = fedgossip.forecast_run(case, graphs=["complete"])
    assert (forecast.level, forecast.graph, forecast.rounds) == ("drawn", "complete", 5)
    assert forecast.scores is not None
    assert list(forecast.scores.edges()) == ["averaged", "mean_peer", "worst_peer", "test_loss"]
    assert 0.9 * DRAWS * 6 * 12 < forecast.jobs <= DRAWS * 6 * 12  # a slow peer may end before its last round


def test_no_edge_of_an_accuracy_is_outside_its_range() -> None:
    """Eight draws of the worst of eight peers spread so far that mean less half width is below 0."""
    spread = {"topology": {"graph": "ring", "n": 8}, "algorithm": {"mode": "async"}, "rounds": 8, "eval": {"every": 4}}
    data = {"partition": {"kind": "dirichlet", "alpha": 0.5}}
    shown = {"data": data, "train": {"device": "cpu"}, "simulation": {"training_jitter": 0.5}}
    (forecast,) = fedgossip.forecast_run(spread | shown)
    assert forecast.scores is not None
    edges = [edge for name in ("averaged", "mean_peer", "worst_peer") for edge in getattr(forecast.scores, name)]
    assert edges and all(0.0 <= low <= high <= 1.0 for low, high in edges)
    assert min(low for low, _ in forecast.scores.worst_peer) == 0.0


def test_a_forecast_of_an_earlier_release_has_one_number_for_both_edges() -> None:
    old = ScoreForecast([1, 2], [0.5, 0.6], [(0.4, 0.5)] * 2, [(0.3, 0.4)] * 2)
    assert old.edges()["averaged"] == [(0.5, 0.5), (0.6, 0.6)] and "test_loss" not in old.edges()


def test_a_loop_of_ones_own_is_not_run_ahead() -> None:
    case = DIGITS | GOSSIP | {"rounds": 3, "task": {"kind": "loop"}, "data": {}, "train": {}}
    with pytest.raises(ConfigError, match="loop of your own"):
        fedgossip.forecast_run(case, "drawn")


def test_training_that_diverges_in_a_simulation_is_reported() -> None:
    case = SETTINGS["gossip"] | {"model": {"source": "mlp:64-32-10"}}
    case |= {"train": {"lr": 1e30, "local_steps": 3, "device": "cpu"}}
    with pytest.raises(TrainingError, match="the loss cross-entropy is nan"):
        fedgossip.forecast_run(case)


def test_the_commands_forecast_the_loss_and_the_page_draws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "e.toml"
    file.write_text(
        'rounds = 6\ndata = { source = "digits" }\ntrain = { local_steps = 1, device = "cpu" }\neval = { every = 2 }\n'
        'coordinator = { clients = 4, algorithm = "fedbuff", goal = 2, secure = { on = false } }\n'
        'simulation = { training_jitter = 0.5 }\nforecast = { level = "drawn" }\n'
    )
    shown = in_process(["forecast", str(file)], tmp_path, monkeypatch, capsys)
    assert shown.code == 0 and "loss" in shown.out.splitlines()[0] and "8 simulations" in shown.out
    ran = in_process(["run", str(file), "--out", "run"], tmp_path, monkeypatch, capsys)
    assert "loss kept in 100 % of the evaluated rounds; drawn before the run" in ran.out
    assert "forecast of the test loss before the run" in (tmp_path / "run" / "report.html").read_text()


def test_the_page_says_of_which_scores_the_areas_are_forecasts(tmp_path: Path, unrendered: None) -> None:
    case = SETTINGS["gossip"] | {"simulation": SPEEDS["spread"], "rounds": 4} | EVERY
    fedgossip.simulate(case, forecast="drawn", out=tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())["forecast_scores_kept"]
    said = describe_scores(read_run(tmp_path / "run"))
    names = ("averaged model", "mean peer", "worst peer")
    shares = (f"the {name} in {percent(share)}" for name, share in zip(names, kept.values(), strict=False))
    assert "The areas are the forecasts before the run, by simulations" in said and ", ".join(shares) in said
    fedgossip.simulate(case, out=tmp_path / "alone")
    assert describe_scores(read_run(tmp_path / "alone")) == ""


def inside(folder: Path, seed: int = 3) -> int:
    """Print each of the 54 runs with the hash of its forecast; return the number inside in all rounds."""
    whole = 0
    for number, (name, case) in enumerate(all_cases(), 1):
        mark, held = forecast_then_run(case | {"seed": seed}, folder / f"{number:02}")
        print(f"{mark[:16]}  {sum(held):2} of {len(held):2} rounds  {name}", flush=True)
        whole += all(held)
    print(f"inside {whole} / {number}", flush=True)
    return whole


@pytest.mark.long
def test_fifty_of_fifty_four_runs_have_the_loss_of_their_forecast(tmp_path: Path) -> None:
    assert inside(tmp_path) >= 50


if __name__ == "__main__":
    inside(Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()), *map(int, sys.argv[2:]))
