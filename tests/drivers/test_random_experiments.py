"""Whatever valid experiment is made at random: one digest on both engines and over a stop, bytes that add up, no fault
of ours; and a dry run says yes exactly where the run begins."""

from __future__ import annotations

import itertools
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from random_experiments import Content, experiment
from test_resumed_machines import copied_in_the_middle

from fedgossip import Run, run_local, simulate
from fedgossip.base.errors import ConfigError, FedgossipError
from fedgossip.cli.run.run import show_plan
from fedgossip.core.records import NetworkRow, PeerRow
from fedgossip.core.run_format import CHECKPOINT
from fedgossip.drivers import simulate as driver
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose

BATCH, LONG = 10, 5_000
RESUMED = 4
"""Of so many experiments one is stopped, too."""
OF_TIME = "seconds", "seconds_training", "seconds_waiting", "seconds_mixing", "seconds_communicating"


def attempt(do: Any) -> Any:
    """Return what comes of it, or the refusal; what is no FedgossipError is a fault of ours and passes through."""
    try:
        return do()
    except FedgossipError as error:
        assert "\n" not in str(error) and error.advice, error
        return error


def begins(came: object) -> bool:
    return not isinstance(came, ConfigError)


def told(run: Run) -> dict[tuple[int, int], Any]:
    """What each peer's rounds came to."""
    return {(row.round, row.peer): (repr(row.loss), repr(row.score)) for row in run.rows if isinstance(row, PeerRow)}


def check_bytes(run: Run) -> None:
    sent = sum(row.bytes_sent for row in run.rows if isinstance(row, PeerRow))
    last = [row for row in run.rows if isinstance(row, NetworkRow)][-1]
    assert run.summary["bytes_sent"] == sent
    if run.summary["status"] == "finished" and last.round == run.summary["rounds"]:
        assert last.bytes_sent == sent


def resumed(content: Content, engine: str, folder: Path) -> tuple[Run, Run] | None:
    """Return the whole run, and the same from an image of its middle; None where a run of this kind has none."""
    plan = compose.plan(load_experiment(content))
    if not plan.pausable:
        return None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(driver, "Pauses", copied_in_the_middle(folder / "left", 0))
        whole = simulate_plan(plan, engine=engine, out=folder / "run")
    if not (folder / "left" / CHECKPOINT).exists():  # it was over before
        return None
    plan = compose.plan(load_experiment(content))
    return whole, simulate_plan(plan, engine=engine, out=folder / "left", resume=True)


def check(seed: int, folder: Path) -> str:
    content = experiment(seed)
    plan = attempt(lambda: compose.plan(load_experiment(content)))
    dry = plan if isinstance(plan, FedgossipError) else attempt(lambda: show_plan(plan, as_json=True))
    sim = attempt(lambda: simulate(content))
    stacked = attempt(lambda: simulate(content, engine="stacked", out=folder / "out"))
    assert begins(dry) == begins(sim), (dry, sim)
    assert begins(stacked) or "stacked" in str(stacked) or str(stacked) == str(sim), (stacked, sim)
    assert begins(stacked) == (folder / "out").exists()
    for run in (sim, stacked):
        if isinstance(run, Run):
            check_bytes(run)
    if isinstance(sim, Run) and isinstance(stacked, Run):
        assert sim.digest == stacked.digest
        assert told(sim) == told(stacked)
    if isinstance(sim, Run) and seed % RESUMED == 0 and (both := resumed(content, "sim", folder / "sim")):
        assert both[0].digest == both[1].digest == sim.digest
        assert both[0].rows == both[1].rows or math.isnan(both[0].summary["test_loss"] or 0)
        assert both[0].summary["events"] == both[1].summary["events"]
    return "refused" if not begins(sim) else "simulated" if not isinstance(stacked, Run) else "both"


def checked(seeds: range, folder: Path) -> Counter[str]:
    came: Counter[str] = Counter()
    for seed in seeds:
        try:
            came[check(seed, folder / str(seed))] += 1
        except Exception as error:
            error.add_note(f"seed {seed}: {msgspec.json.encode(experiment(seed)).decode()}")
            raise
        shutil.rmtree(folder / str(seed), ignore_errors=True)
    return came


@pytest.mark.usefixtures("capsys")
@pytest.mark.parametrize("batch", range(20))
def test_a_random_experiment_is_one_run_on_all_engines_or_refused_by_all(batch: int, tmp_path: Path) -> None:
    came = checked(range(batch * BATCH, (batch + 1) * BATCH), tmp_path)
    assert came["both"] >= 1  # else the generator makes nothing that says anything


FOUND = 519, 627, 3031, 54356
"""Seeds that failed: "cta" of private gossip; fragments of one element; a trimmed mean of too small a cohort; an image
of payloads gathered by fewer workers than the run has."""


@pytest.mark.usefixtures("capsys")
@pytest.mark.parametrize("seed", FOUND)
def test_what_failed_once_does_not_again(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("capsys")
@pytest.mark.parametrize("batch", range(50))
def test_many_random_experiments(batch: int, tmp_path: Path) -> None:
    size = LONG // 50
    assert checked(range(batch * size, (batch + 1) * size), tmp_path)["both"] >= size // 5


def as_processes(seed: int) -> Run | None:
    """Return the simulation of a seed that has its bits whatever the time does, with 4 participants at most."""
    content = experiment(seed)
    timed = {"faults", "simulation"} & content.keys()
    timed |= {"over_selection", "sampling"} & content.get("coordinator", {}).keys()
    timed |= {"mode"} & content.get("algorithm", {}).keys()
    steps = content.get("parallel", {}).get("server", {}).get("staleness")
    if timed or steps or content.get("coordinator", {}).get("algorithm") == "fedbuff":
        return None
    plan = attempt(lambda: compose.plan(load_experiment(content)))
    if isinstance(plan, FedgossipError) or plan.n > 4:
        return None
    run = attempt(lambda: simulate(content))
    return run if isinstance(run, Run) else None


@pytest.mark.sockets
@pytest.mark.parametrize("place", [0, *(pytest.param(k, marks=pytest.mark.long) for k in range(1, 30))])
def test_a_random_experiment_has_one_digest_as_processes(place: int, tmp_path: Path) -> None:
    of = ((seed, run) for seed in itertools.count() if (run := as_processes(seed)))
    seed, run = next(itertools.islice(of, place, None))
    assert run_local(experiment(seed), tmp_path / "run").digest == run.digest, experiment(seed)
