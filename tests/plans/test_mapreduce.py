"""Workers and a server that takes the step: the bits of an exact all-reduce, from the machines of a federated run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from resuming import from_the_middle
from test_allreduce import learning, quadratic

from fedgossip import simulate
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import digest
from fedgossip.core.records import PeerRow
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose


def mapreduce(experiment: dict[str, Any], **more: Any) -> dict[str, Any]:
    parallel = {name: value for name, value in experiment["parallel"].items() if name != "bucket"}
    return {**experiment, "parallel": {**parallel, "method": "mapreduce", **more}}


def model_of(run: Any) -> str:
    return digest([run.vectors[-1]])


ADAM = {"optimizer": "adam", "momentum": 0.0, "lr": 0.01}


@pytest.mark.parametrize("train", [{}, ADAM])
@pytest.mark.parametrize("made", [learning, quadratic])
def test_mapreduce_has_the_bits_of_star_and_of_all_to_all_in_every_engine(made: Any, train: dict[str, Any]) -> None:
    exact = made(3, "star", train=train), made(3, "all-to-all", train=train), mapreduce(made(3, "star", train=train))
    ends = {model_of(simulate(experiment, engine=engine)) for experiment in exact for engine in ("sim", "stacked")}
    assert len(ends) == 1


def test_batches_that_are_accumulated_count_their_examples() -> None:
    parallel = {"accumulate": 3}
    star = simulate(learning(3, "star", parallel=parallel))
    assert model_of(simulate(mapreduce(learning(3, "star", parallel=parallel)))) == model_of(star)


@pytest.mark.sockets
@pytest.mark.long
def test_processes_of_all_three_exact_methods_have_one_model(tmp_path: Path) -> None:
    experiments = quadratic(3, "star", 6), quadratic(3, "all-to-all", 6), mapreduce(quadratic(3, "star", 6))
    ends = set()
    for place, experiment in enumerate(experiments):
        plan = compose.plan(load_experiment(experiment))
        run = run_local_plan(plan, tmp_path / f"run{place}", report=False)
        assert run.summary["status"] == "finished"
        ends |= {model_of(run), model_of(simulate_plan(plan))}
    assert len(ends) == 1


def test_the_server_sends_a_model_and_hears_a_gradient_of_each_worker_a_round() -> None:
    run = simulate(mapreduce(quadratic(4, rounds=5)))
    size = 40 * run.vectors[-1].dtype.itemsize
    rows = [row for row in run.rows if isinstance(row, PeerRow) and row.peer == 4 and row.round]
    assert [(row.payload_sent, row.payload_received) for row in rows] == [(4 * size, 4 * size)] * 5
    assert run.summary["roles"][1]["name"] == "server" and run.summary["status"] == "finished"


def test_lost_late_and_doubled_messages_change_no_bit() -> None:
    faults = [{"kind": "duplicate", "probability": 0.3}, {"kind": "delay", "seconds": 0.05, "probability": 0.3}]
    quiet = simulate(mapreduce(quadratic(4)))
    assert model_of(simulate(mapreduce(quadratic(4, faults=faults)))) == model_of(quiet)


def test_the_slowest_workers_are_not_waited_for_where_there_are_backups() -> None:
    slow = {"simulation": {"classes": [{"nodes": "3", "slower": 50.0}]}}
    with_all, without = (
        simulate(mapreduce(quadratic(4, rounds=10, **slow), backups=backups)).summary["seconds"] for backups in (0, 1)
    )
    assert without * 4 < with_all


def test_a_worker_that_dies_is_gone_without_and_takes_part_again_when_it_is_back() -> None:
    faults = [{"kind": "crash", "peers": [1], "start": 0.5, "after": 0.6}]
    run = simulate(mapreduce(quadratic(4, rounds=40, faults=faults)))
    clients = [row.clients for row in run.rows if isinstance(row, PeerRow) and row.peer == 4 and row.round]
    assert run.summary["status"] == "finished" and set(clients) == {3, 4} and clients[-1] == 4


@pytest.mark.parametrize("train", [{}, ADAM])
def test_a_server_that_is_killed_and_started_again_changes_no_bit(train: dict[str, Any]) -> None:
    faults = [{"kind": "crash", "peers": [3], "start": 0.5, "after": 0.6}]
    quiet, disturbed = (
        simulate(mapreduce(quadratic(3, train=train, rounds=20, faults=given))) for given in ([], faults)
    )
    assert model_of(disturbed) == model_of(quiet)


def test_a_stopped_simulation_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, again = from_the_middle(compose.plan(load_experiment(mapreduce(quadratic(3)))), tmp_path)
    assert model_of(again) == model_of(whole)


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        ({"workers": 4, "method": "mapreduce", "bucket": 1000}, "bucket with mapreduce"),
        ({"workers": 4, "backups": 1}, "backups with ring"),
        ({"workers": 2, "method": "mapreduce", "backups": 2}, "no worker is waited for"),
    ],
)
def test_keys_of_the_other_kind_are_refused_by_name(parallel: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_experiment({"parallel": parallel})
