"""A change of the house moves no bit: digests, bytes and distances of every method in every driver, as frozen."""

from __future__ import annotations

from typing import Any

import frozen
import msgspec
import pytest
from over_sockets import run_over_sockets

import fedgossip
from fedgossip import load_experiment
from fedgossip.base.vectors import digest
from fedgossip.core.records import PeerRow
from fedgossip.plans import compose

KEPT = frozen.kept()
PARTS = ("bytes_sent", "payload_sent", "rounds")


def test_every_method_and_no_other_is_frozen() -> None:
    assert KEPT.keys() == frozen.cases().keys()


@pytest.mark.parametrize("name", sorted(frozen.cases()))
def test_a_run_is_as_frozen(name: str) -> None:
    found, kept = frozen.frozen(*frozen.cases()[name]), KEPT[name]
    assert found["digest"] == kept["digest"]
    assert found["status"] == kept["status"]
    assert differences(found, kept) == []


@pytest.mark.parametrize("name", sorted(frozen.ROUNDS))
def test_simulator_and_stacked_arrays_agree_in_bits_and_in_records(name: str) -> None:
    """But for the bytes of a secure sum: of its keys, shares and signatures stacked arrays make none."""
    simulated, stacked = KEPT[f"{name} | sim"], KEPT[f"{name} | stacked"]
    assert simulated["digest"] == stacked["digest"]
    found = differences(simulated, stacked)
    if name.startswith("secure"):
        found = [one for one in found if not one.startswith("all bytes_sent")]
    assert found == []


@pytest.mark.parametrize("name", frozen.STATISTICS)
def test_they_agree_with_running_statistics_too(name: str) -> None:
    of = [KEPT[f"statistics, {name} | {engine}"]["digest"] for engine in ("sim", "stacked")]
    assert of[0] == of[1]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "krum", "cohorts of five", "poisson", "secure fedavg"])
def test_every_row_of_a_federated_run_is_that_of_the_simulator_but_for_times(name: str) -> None:
    simulated, stacked = (told(frozen.ROUNDS[name], engine) for engine in ("sim", "stacked"))
    if name.startswith("secure"):
        simulated, stacked = ([without_bytes(row) for row in rows] for rows in (simulated, stacked))
    assert stacked == simulated


def test_clients_that_test_tell_the_same_on_stacked_arrays() -> None:
    coordinator = {"clients": 4, "secure": {"on": False}}
    learning = {"rounds": 2, "data": {"source": "breast-cancer", "local_test": 0.3}, "train": {"device": "cpu"}}
    experiment = {**learning, "eval": {"every": 1}, "coordinator": coordinator}
    simulated = told(experiment, "sim")
    assert told(experiment, "stacked") == simulated
    assert all(row["score"] is not None for row in simulated if row["peer"] < 4)


def told(experiment: dict[str, Any], engine: str) -> list[dict[str, Any]]:
    """The rows of all participants, by round and id, without what a clock says."""
    rows = [row for row in fedgossip.simulate(experiment, engine=engine).rows if isinstance(row, PeerRow)]
    found = [msgspec.structs.asdict(row) for row in sorted(rows, key=lambda row: (row.round, row.peer))]
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in found]


def without_bytes(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith("bytes")}


@pytest.mark.sockets
@pytest.mark.parametrize(
    "name",
    [
        *("dsgd", "push-sum", "window-doubling", "gradient-tracking", "private"),
        *("fedavg", "scaffold", "parameter-server", "fedavg by top-k"),
        *("parameter-server by signs and int8", "mapreduce by dgc", "lbfgs"),
        *("dsgd cta", "d2", "extra", "dsgdm", "qg-dsgdm", "decentlam", "two-tap"),
        *("dsgdm nesterov", "slowmo", "diloco", "ring outer by top-k", "ring outer delayed", "push-diging"),
        "push-sum mixed momentum",
    ],
)
def test_bits_over_sockets_are_as_frozen(name: str) -> None:
    plan = compose.plan(load_experiment(frozen.ROUNDS[name]))
    task, shares = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan.with_shares(shares), task)
    assert digest([v for v in plan.outcome(vectors) if v is not None]) == KEPT[f"{name} | sim"]["digest"]


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The records in which two runs differ."""
    found = [f"all {part}: {one[part]} and {other[part]}" for part in PARTS if one[part] != other[part]]
    ours, theirs = ({row[0]: row[1:] for row in run["network"]} for run in (one, other))
    if ours.keys() != theirs.keys():
        found.append(f"rounds {sorted(ours)} and {sorted(theirs)}")
    for round in sorted(ours.keys() & theirs.keys()):
        pairs = zip(frozen.DISTANCES, ours[round], theirs[round], strict=True)
        found += [f"round {round}: {name} {a} and {b}" for name, a, b in pairs if not near(a, b)]
    return found


def near(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or abs(one - other) <= 1e-12 + 1e-9 * abs(other)
