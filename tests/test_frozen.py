"""A change of the house moves no bit: digests, bytes and distances of every method in every driver, as frozen."""

from __future__ import annotations

from typing import Any

import frozen
import pytest
from over_sockets import run_over_sockets

from fedgossip import load_experiment
from fedgossip.plans import compose
from fedgossip.vectors import digest

KEPT = frozen.kept()


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
    """Of a federated run on stacked arrays the coordinator alone has rows, whose bytes are those of its models."""
    simulated, stacked = KEPT[f"{name} | sim"], KEPT[f"{name} | stacked"]
    assert simulated["digest"] == stacked["digest"]
    found = differences(simulated, stacked)
    if "coordinator" in frozen.ROUNDS[name]:
        found = [one for one in found if one.startswith("round")]
    assert found == []


@pytest.mark.parametrize(
    "name", ["dsgd", "push-sum", "window-doubling", "gradient-tracking", "private", "fedavg", "scaffold"]
)
def test_bits_over_sockets_are_as_frozen(name: str) -> None:
    plan = compose.plan(load_experiment(frozen.ROUNDS[name]))
    task, shares = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan.with_shares(shares), task)
    assert digest([v for v in plan.outcome(vectors) if v is not None]) == KEPT[f"{name} | sim"]["digest"]


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The records in which two runs differ."""
    found = [
        f"all {part}: {one[part]} and {other[part]}" for part in ("bytes_sent", "rounds") if one[part] != other[part]
    ]
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
