"""Workers of a collective that are gone for a while: they are taken in again, and no round counts anything twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_allreduce import NAMES, any_faults, quadratic

from fedgossip import simulate
from fedgossip.base.errors import FedgossipError
from fedgossip.base.vectors import digest
from fedgossip.core.machine import Failure
from fedgossip.core.messages import GroupReport, GroupView
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.core.task import Update
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.protocols.allreduce.worker_group import GroupWaits, WorkerGroup


def back(peer: int, start: float, after: float) -> dict[str, Any]:
    return {"kind": "crash", "peers": [peer], "start": start, "after": after}


def rounds_of(run: Any, peer: int) -> list[int]:
    return [row.round for row in run.rows if isinstance(row, PeerRow) and row.peer == peer]


def named(run: Any, name: str) -> list[EventRow]:
    return [row for row in run.rows if isinstance(row, EventRow) and row.name == name]


@pytest.mark.parametrize("train", [{"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}])
@pytest.mark.parametrize("method", ["ring", "star", "tree"])
def test_a_worker_that_crashes_takes_part_again_with_the_state_of_the_others(method: str, train: Any) -> None:
    run = simulate(quadratic(4, method, rounds=40, train=train, faults=[back(2, 0.5, 1.0)]))
    assert run.summary["status"] == "finished"
    assert len({digest([vector]) for vector in run.vectors}) == 1
    theirs, others = rounds_of(run, 2), rounds_of(run, 0)
    assert others == list(range(1, 41)) and theirs[-5:] == others[-5:] and len(theirs) == len(set(theirs)) < 40
    assert [row.value for row in named(run, "workers_back") if row.peer == 0] == [[2]]


def test_a_worker_that_is_back_at_once_costs_no_round() -> None:
    run = simulate(quadratic(4, rounds=20, faults=[back(2, 0.5, 0.01)]))
    assert run.summary["status"] == "finished"
    assert all(rounds_of(run, peer) == list(range(1, 21)) for peer in range(4))


def test_half_of_the_workers_wait_for_the_others_and_go_on_when_one_is_back() -> None:
    run = simulate(quadratic(4, rounds=30, faults=[back(1, 0.5, 4.0), back(2, 0.5, 4.5)]))
    assert run.summary["status"] == "finished"
    assert all(rounds_of(run, peer)[-1] == 30 for peer in range(4))


def test_all_workers_killed_at_once_go_on_from_what_they_wrote_down() -> None:
    faults = [back(peer, 0.5, 1.0 + peer) for peer in range(4)]
    run = simulate(quadratic(4, rounds=20, faults=faults))
    assert run.summary["status"] == "finished" and run.digest == simulate(quadratic(4, rounds=20)).digest


def test_a_worker_behind_a_cut_is_taken_in_again_when_it_heals() -> None:
    cut = {"kind": "partition", "groups": [[0, 1, 2], [3]], "start": 0.3, "stop": 3.0}
    run = simulate(quadratic(4, rounds=60, faults=[cut]))
    assert run.summary["status"] == "finished" and named(run, "left_out")
    assert rounds_of(run, 0) == list(range(1, 61)) and rounds_of(run, 3)[-10:] == list(range(51, 61))
    assert len({digest([vector]) for vector in run.vectors}) == 1


def test_a_gradient_of_a_model_that_the_others_left_behind_is_not_counted() -> None:
    """Worker 3 computes for 6 s; cut off meanwhile, it has fetched a newer model before its gradient is there."""
    slow = {"training": 1.0, "classes": [{"nodes": "3", "slower": 6.0}]}
    cut = {"kind": "partition", "groups": [[0, 1, 2], [3]], "start": 1.0, "stop": 3.5}
    run = simulate(quadratic(4, rounds=12, faults=[cut], simulation=slow))
    assert run.summary["status"] == "finished" and len({digest([vector]) for vector in run.vectors}) == 1
    assert rounds_of(run, 0) == list(range(1, 13)) and 1 not in rounds_of(run, 3)


def test_one_that_never_comes_back_leaves_a_run_that_is_partial() -> None:
    cut = {"kind": "partition", "groups": [[0, 1, 2], [3]], "start": 0.3, "stop": 1e6}
    run = simulate(quadratic(4, rounds=20, faults=[cut]))
    assert run.summary["status"] == "partial" and rounds_of(run, 0)[-1] == 20


def with_returns(seed: int) -> dict[str, Any]:
    """A run with losses, cuts, and deaths of any number, most of which come back once or twice."""
    rng = np.random.default_rng((seed, 1))
    experiment = any_faults(seed)
    workers = experiment["parallel"]["workers"]
    faults = [fault for fault in experiment["faults"] if fault["kind"] != "crash"]
    for node in rng.permutation(workers)[: int(rng.integers(1, workers + 1))].tolist():
        at = float(rng.uniform(0.01, 1.5))
        for _ in range(int(rng.integers(1, 3))):
            after = float(rng.choice([0.01, 0.2, 1.0, 4.0]) * rng.uniform(0.5, 1.5))
            faults.append(back(node, at, after))
            at += after + float(rng.uniform(0.05, 1.0))
    return {**experiment, "rounds": int(rng.choice([8, 20])), "faults": faults}


def after_returns(seed: int) -> str:
    """Run it; all who came to the end have one model, and one row a round.  Returns how it ended."""
    experiment = with_returns(seed)
    try:
        run = simulate(experiment)
    except FedgossipError as error:
        assert error.exit_code in (3, 7), f"seed {seed}: {error}"
        return "failed"
    last, workers = experiment["rounds"], range(experiment["parallel"]["workers"])
    for peer in workers:
        rounds = rounds_of(run, peer)
        assert rounds == sorted(set(rounds)), f"seed {seed}: a round twice at {peer}"
    whole = [run.vectors[peer] for peer in workers if last in rounds_of(run, peer)[-1:]]
    assert whole and len({digest([vector]) for vector in whole if vector is not None}) == 1, f"seed {seed}"
    return str(run.summary["status"])


def test_whatever_is_lost_and_whoever_comes_back_all_end_in_one_model() -> None:
    ended = [after_returns(seed) for seed in range(40)]
    assert ended.count("finished") > 25 and "failed" not in ended


def test_two_views_that_were_proposed_at_once_become_one() -> None:
    """Each was adopted by some of their common members, and neither had enough to go on."""
    experiment = with_returns(1078)
    experiment["parallel"]["method"] = "recursive-doubling"  # of whatever methods there are to draw from
    run = simulate(experiment)
    assert run.summary["status"] == "finished" and len({digest([vector]) for vector in run.vectors}) == 1
    first = {row.peer: row.value["workers"] for row in reversed(named(run, "regrouped"))}  # type: ignore[index]
    assert {tuple(workers) for workers in first.values()} == {(0, 1, 2, 3, 4, 5), (1, 2, 3, 4, 5)}


@pytest.mark.parametrize(
    ("reports", "members", "out"),
    [
        ({1: "a", 2: "a", 3: "b"}, (0, 1, 2), (3,)),  # most have a
        ({1: "b", 2: "a"}, (0, 2, 3), (1,)),  # 3 has no model yet, and is behind
        ({1: "b", 2: "b", 3: "b"}, None, ()),  # this one is the odd one
        ({1: "a", 2: "b", 3: "c"}, None, ()),  # too few would be left
        ({1: "a", 2: "a", 3: "a"}, (0, 1, 2, 3), ()),
    ],
)
def test_one_false_digest_ends_no_worker_and_leaves_its_sender_out(
    reports: dict[int, str], members: tuple[int, ...] | None, out: tuple[int, ...]
) -> None:
    group = WorkerGroup(0, range(4), GroupWaits(1, 1, 10**12))
    group.at_work = True
    for node in (1, 2, 3):
        group.joined(node, 0)
    group.stop(5, "a", 0)
    for node in (1, 2, 3):
        group.take_report(node, GroupReport(0, 5, reports[node]) if node in reports else GroupReport(0, 4, "z"))
    found = group.proposal(2)
    if members is None:
        assert isinstance(found, Failure) and "after round 5 workers have different models" in found.text
    else:
        assert isinstance(found, GroupView) and (found.members, group.odd) == (members, out)


def test_one_that_is_back_in_the_last_round_is_too_late_and_told_so() -> None:
    """Worker 0 of four starts again 0.02 s before the last round begins, and is taken in after a round alone."""
    assert after_returns(111) == "partial"
    run = simulate(with_returns(111))
    (told,) = named(run, "failed")
    assert told.peer == 0 and "have done all rounds without worker 0" in str(told.value)
    assert [rounds_of(run, peer)[-1] for peer in range(4)] == [2, 8, 8, 8]


def test_workers_that_are_all_started_again_wait_for_links_that_come_one_by_one() -> None:
    second = 1_000_000_000
    group = WorkerGroup(1, (0, 1, 2), GroupWaits(5 * second, second, 300 * second))
    group.joined(2, 1)
    group.stop(3, "digest", 0)
    group.take_report(2, GroupReport(0, 3, "digest"))
    assert group.proposal(0) is None, "worker 0 may be about to come"
    group.late(6 * second)
    view = group.proposal(6 * second)
    assert isinstance(view, GroupView) and view.members == (1, 2)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_whoever_comes_back_in_two_thousand_runs() -> None:
    ended = [after_returns(seed) for seed in range(2000)]
    assert ended.count("finished") > 1200


@pytest.mark.parametrize("method", ["ring", "star"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30])
def test_a_worker_whose_gradient_explodes_goes_and_the_others_go_on(method: str, wrong: float) -> None:
    plan = compose.plan(load_experiment(quadratic(4, method, rounds=10)))
    task, _ = compose.task_of(plan.experiment, 4)
    gradients = task.gradients

    def exploding(jobs: Any) -> list[Update]:
        found = list(gradients(jobs))
        for place, job in enumerate(jobs):
            if job.node == 2 and job.round >= 3:
                found[place] = replace(found[place], difference=np.full(40, wrong, np.float32))
        return found

    task.gradients = exploding
    run = simulate_plan(plan, task=task)
    assert run.summary["status"] == "partial" and "too large to be added up" in str(named(run, "failed")[0].value)
    assert all(rounds_of(run, peer) == list(range(1, 11)) for peer in (0, 1, 3)) and rounds_of(run, 2) == [1, 2, 3]


def test_every_method_takes_workers_in_again() -> None:
    for method in NAMES:
        run = simulate(quadratic(3, method, rounds=20, faults=[back(0, 0.4, 0.3)]))
        assert run.summary["status"] == "finished" and len({digest([v]) for v in run.vectors}) == 1, method
