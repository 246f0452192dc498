"""The forecast of times: what a run with its trainings takes, and what renewals give by hand.

python tests/lab/test_time_forecast.py [FOLDER]    54 forecasts, each written and hashed before its run is measured
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
import pytest
from commands import in_process
from forecast_cases import DIGITS, GOSSIP, LOSSES, SETTINGS, SPEEDS, all_cases
from random_experiments import experiment

import fedgossip
from fedgossip.base.errors import ConfigError, FedgossipError
from fedgossip.core.records import EventRow, NetworkRow
from fedgossip.experiment import load_experiment
from fedgossip.lab.costs.times import TimeForecast, forecast_times
from fedgossip.plans.compose import plan as resolve


def measured(case: dict[str, Any]) -> tuple[list[float], dict[str, int]]:
    events: dict[str, int] = {}
    run = fedgossip.simulate(case)
    for row in run.rows:
        if isinstance(row, EventRow):
            events[row.name] = events.get(row.name, 0) + 1
    return [row.seconds for row in run.rows if isinstance(row, NetworkRow) and row.round], events


@pytest.mark.parametrize("setting", ["gossip", "buffer", "deadline", "stale servers"])
def test_the_times_of_a_run_are_those_that_its_forecast_has(setting: str) -> None:
    case = SETTINGS[setting] | {"simulation": SPEEDS["a slow one"], "faults": LOSSES["late"]}
    (forecast,) = forecast_times(case, draws=2)
    seconds, events = measured(case)
    assert forecast.seconds == seconds
    assert forecast.events == events
    assert all(low <= at <= high for low, at, high in zip(forecast.lower, seconds, forecast.upper, strict=True))
    assert abs(forecast.training + forecast.communicating + forecast.waiting - 1) < 1e-9


def test_steps_of_a_buffer_are_renewals_of_its_clients() -> None:
    training = [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    classes = [{"nodes": "2-3", "slower": 2.0}, {"nodes": "4-5", "slower": 4.0}]
    case = SETTINGS["buffer"] | {"simulation": {"training": 1.0, "latency": 1e-6, "classes": classes}}
    (forecast,) = forecast_times(case, draws=2)
    arrivals = sorted(took * job for took in training for job in range(1, 41))
    assert forecast.seconds == pytest.approx([arrivals[2 * step + 1] for step in range(20)], abs=1e-3)
    assert forecast.lower == pytest.approx(forecast.upper)  # nothing is drawn
    assert forecast.least_rounds == 3 and forecast.most_rounds in (11, 12)  # arrivals at one time in either order
    assert sum(forecast.staleness.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (DIGITS | GOSSIP | {"rounds": 3, "stop": {"patience": 2}}, "stop.patience"),
        (DIGITS | GOSSIP | {"rounds": 3, "task": {"kind": "loop"}, "data": {}, "train": {}}, "loop of your own"),
        (SETTINGS["deadline"] | {"coordinator": {
            "clients": 6, "cohort": 2, "sampling": "oort", "secure": {"on": False}}}, "oort"),
    ],
)  # fmt: skip
def test_times_that_depend_on_the_training_are_refused(case: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        forecast_times(case)


def test_the_command_says_who_waits_and_what_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "e.toml"
    file.write_text(
        'rounds = 30\ndata = { source = "digits" }\ntrain = { local_steps = 1, device = "cpu" }\n'
        'coordinator = { clients = 6, algorithm = "fedbuff", goal = 1, at_once = 6, most_stale = 3, '
        "secure = { on = false } }\n"
        'simulation = { training = 1.0, classes = [{ nodes = "0", slower = 4.0 }] }\n'
    )
    shown = in_process(["forecast", str(file), "--level", "times"], tmp_path, monkeypatch, capsys)
    assert shown.code == 0 and "fedbuff" in shown.out
    assert " stale" in shown.out.splitlines()[-1]


def test_trainings_take_the_time_of_each_ones_examples_and_seeds_without_a_valid_graph_are_left_out() -> None:
    uneven = {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.2}}
    case = DIGITS | {"rounds": 3, "data": uneven, "train": {"local_epochs": 1, "batch_size": 32, "device": "cpu"}}
    case |= {"coordinator": {"clients": 4, "secure": {"on": False}}, "simulation": {"per_example": 0.01}}
    assert forecast_times(case, draws=2)[0].seconds == measured(case)[0]
    drawn = {"graph": "small-world:2,0.3", "n": 5, "weights": "uniform"}  # of equal degrees with few seeds alone
    case = {"rounds": 2, "seed": valid_seed(drawn), "topology": drawn, "task": {"kind": "averaging", "dim": 2}}
    (forecast,) = forecast_times(case, draws=2)
    assert forecast.seconds == measured(case)[0] and forecast.seeds[2] - forecast.seeds[0] > 2


def valid_seed(topology: dict[str, Any]) -> int:
    """Return the first seed that has a valid graph, of which one of the next two has none."""

    def valid(seed: int) -> bool:
        try:
            resolve(load_experiment({"rounds": 2, "seed": seed, "topology": topology, "task": {"kind": "averaging"}}))
        except ConfigError:
            return False
        return True

    return next(seed for seed in range(200) if valid(seed) and not (valid(seed + 1) and valid(seed + 2)))


@pytest.mark.long
@pytest.mark.sockets
def test_random_experiments_take_the_seconds_of_their_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2] / "examples")
    monkeypatch.syspath_prepend(".")
    equal = 0
    for seed in range(1, 500):
        case = experiment(seed)
        try:
            seconds, _ = measured(case)
            (forecast,) = forecast_times(case, draws=2)
        except FedgossipError:
            continue
        assert forecast.seconds == [seconds[round - 1] for round in forecast.rounds], seed
        equal += 1
    assert equal > 100


def forecast_then_run(case: dict[str, Any], file: Path) -> tuple[str, list[bool]]:
    """Write and hash the forecast, then measure a run with other draws.

    Return the hash, and whether each round ended between the edges.
    """
    file.write_bytes(msgspec.json.encode(forecast_times(case)[0]))
    mark = hashlib.sha256(file.read_bytes()).hexdigest()
    at = dict(enumerate(measured(case | {"seed": 1003})[0], 1))
    forecast = msgspec.json.decode(file.read_bytes(), type=TimeForecast)
    edges = zip(forecast.rounds, forecast.lower, forecast.upper, strict=True)
    return mark, [low <= at[round] <= high for round, low, high in edges]


def inside(folder: Path) -> int:
    """Print each of the 54 forecasts with its hash; return the number of runs that stayed inside in all rounds."""
    whole = 0
    for number, (name, case) in enumerate(all_cases(), 1):
        mark, held = forecast_then_run(case, folder / f"{number:02}.json")
        print(f"{mark[:16]}  {sum(held):2} of {len(held):2} rounds  {name}", flush=True)
        whole += all(held)
    print(f"inside {whole} / {number}", flush=True)
    return whole


@pytest.mark.long
def test_fifty_of_fifty_four_runs_with_other_draws_stay_between_the_edges(tmp_path: Path) -> None:
    assert inside(tmp_path) >= 50


if __name__ == "__main__":
    inside(Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()))
