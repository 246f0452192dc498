"""The clients that can be invited to a round: one cohort in each engine, and tables that are refused in a line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from resuming import from_the_middle

from fedgossip import simulate
from fedgossip.base.errors import ConfigError
from fedgossip.core.records import PeerRow
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose

CLIENTS, ROUNDS = 12, 8


def by_parity(client: int, round: int) -> bool:
    return client % 2 == round % 2


def words(client: int, _round: int) -> object:
    return "yes" if client else True


def few(available: str, **section: Any) -> dict[str, Any]:
    about = {"clients": CLIENTS, "cohort": 5, "available": available, "min_clients": 1, "secure": {"on": False}}
    return {"rounds": ROUNDS, "task": {"kind": "quadratic", "dim": 5}, "coordinator": {**about, **section}}


def trace(folder: Path, *rows: str) -> str:
    """Return the value of the key for a table of these rows."""
    path = folder / "trace.csv"
    path.write_text("\n".join(["client,start,end", *rows]) + "\n")
    return f"trace:{path}"


def cohorts(run: Any) -> dict[int, set[int]]:
    """Return who trained in each round."""
    found: dict[int, set[int]] = {}
    for row in run.rows:
        if isinstance(row, PeerRow) and row.peer < CLIENTS and row.round:
            found.setdefault(row.round - 1, set()).add(row.peer)
    return found


def test_a_trace_with_gaps_admits_its_clients_in_every_engine(tmp_path: Path) -> None:
    """Rows of a client that touch, in any order, with times of 10 to a round; nobody is there in rounds 3 and 4."""
    rows = [f"{one},50,1000" for one in range(6, CLIENTS)]
    rows += [f"{one},{start},{start + 15}" for start in (15, 0) for one in range(6)]
    asked = few(f"{trace(tmp_path, *rows)}?round=10")
    simulated, stacked = simulate(asked), simulate(asked, engine="stacked")
    assert simulated.digest == stacked.digest is not None
    early, late = set(range(6)), set(range(6, CLIENTS))
    assert cohorts(simulated) == cohorts(stacked)
    assert all(who <= (early if round < 3 else late) for round, who in cohorts(simulated).items())
    assert [*cohorts(simulated)] == [0, 1, 2, 5, 6, 7]
    assert simulated.summary["events"]["abandoned"] == 2


@pytest.mark.parametrize("more", [{}, {"sampling": "poisson"}, {"secure": {}, "min_clients": 3}])
@pytest.mark.parametrize("available", ["day:0.5?rounds=4", "test_available:by_parity"])
def test_arrays_and_the_simulator_invite_the_same_clients(available: str, more: dict[str, Any]) -> None:
    simulated, stacked = (simulate(few(available, **more), engine=engine) for engine in ("sim", "stacked"))
    assert cohorts(simulated) == cohorts(stacked) != {}
    if "secure" not in more:
        assert simulated.digest == stacked.digest
    if "parity" in available:
        assert all({one % 2 for one in who} == {round % 2} for round, who in cohorts(simulated).items())


def test_a_secure_sum_keeps_the_size_of_its_cohorts(tmp_path: Path) -> None:
    """Four clients are there in odd rounds: a sum over four of five would differ by one from one over five."""
    rows = [f"{one},{round},{round + 1}" for round in range(ROUNDS) for one in range(5 - round % 2)]
    for engine in ("sim", "stacked"):
        run = simulate(few(trace(tmp_path, *rows), secure={}, min_clients=3), engine=engine)
        assert cohorts(run) == {round: set(range(5)) for round in range(0, ROUNDS, 2)}


def test_a_client_is_there_for_its_share_of_every_day() -> None:
    plan = compose.plan(load_experiment(few("day:0.25?rounds=8")))
    sampling: Any = plan.sampling  # type: ignore[attr-defined]
    there = [[sampling.available(one, round) for round in range(32)] for one in range(CLIENTS)]
    assert all(sum(one) == 8 and one[:8] == one[8:16] for one in there)
    assert all(sum(before != after for before, after in pairwise(one[:8] + one[:1])) == 2 for one in there)
    assert len({tuple(one) for one in there}) > 3, "days begin at different rounds"


def test_losses_choose_among_the_available_clients() -> None:
    run = simulate(few("test_available:by_parity", sampling="power-of-choice"))
    assert all({one % 2 for one in who} == {round % 2} for round, who in cohorts(run).items())


@pytest.mark.parametrize("available", ["day:0.5?rounds=4", "test_available:by_parity"])
def test_a_stopped_run_goes_on_with_the_same_clients(available: str, tmp_path: Path) -> None:
    whole, on = from_the_middle(compose.plan(load_experiment(few(available))), tmp_path)
    assert on.summary["status"] == "finished" and on.digest == whole.digest


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["0,0,10", "1,0,10", "0,5,12"], "line 4: client 0 is available already by line 2"),
        (["0,10,10"], "line 2: the end 10 is not after the start 10"),
        (["12,0,10"], "line 2: there is no client 12"),
        (["1.5,0,10"], "no client 1.5"),
        (["0,nan,10"], "is no client,start,end"),
        (["0,0"], "is no client,start,end"),
        (["", ""], "no rows"),
        ([f"{one},36000,72000" for one in range(9)], r"at most 0 clients .* of the 8 rounds"),
    ],
)
def test_a_trace_that_cannot_be_meant_is_refused_in_a_line(rows: list[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        assert compose.plan(load_experiment(few(trace(tmp_path, *rows)))).sampling  # type: ignore[attr-defined]


def test_another_unit_in_the_first_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hours.csv").write_text("client,start [h],end [h]\n0,1,2\n")
    with pytest.raises(ConfigError, match=r"the columns 'client,start \[h\],end \[h\]'"):
        simulate(few(f"trace:{tmp_path / 'hours.csv'}"))


@pytest.mark.parametrize(
    ("available", "more", "why"),
    [
        ("day:2", {}, "no share of a day"),
        ("day:0.5?rounds=0", {}, "rounds = '0'"),
        ("day:0.5?round=3", {}, "no option 'round'"),
        ("dya:0.5", {}, "is not known"),
        ("trace:absent.csv", {}, "No such file"),
        ("test_available:words", {}, "returned 'yes' for client 1 and round 0"),
        ("day:0.5", {"algorithm": "fedbuff", "cohort": None}, "fedbuff invites at any time"),
        ("day:0.5", {"tiers": [{"clients": 4}, {"clients": 3}], "secure": {}, "cohort": None}, "invite all clients"),
        ("day:0.5", {"secure": {}, "privacy": {"unit": "client"}}, "a budget counts on cohorts"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(available: str, more: dict[str, Any], why: str) -> None:
    content = few(available, **more)
    content["coordinator"] = {key: value for key, value in content["coordinator"].items() if value is not None}
    with pytest.raises(ConfigError, match=why):
        assert compose.plan(load_experiment(content)).sampling  # type: ignore[attr-defined]
