"""What a machine asks of its driver is a type: no name of a fact decides anything, and an early end is told as such."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from test_coordinator import client
from test_join import member

import fedgossip
from fedgossip.base.errors import FedgossipError, TooFewPeersError
from fedgossip.core.machine import Failure, Finish, Fired, Started
from fedgossip.core.records import EventRow

PACKAGE = Path(fedgossip.__file__).parent
ACTING = ("net", "simulation", "drivers", "protocols", "trace", "rundir")
"""Rooms of those that perform effects, or pass them on."""


def names_compared(tree: ast.AST) -> list[str]:
    """Where a report is matched by a literal, or the name of anything that may be one is compared with a text."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.MatchClass) and ast.unparse(node.cls) == "Report":
            literal = any(isinstance(one, ast.MatchValue) for one in ast.walk(node))
            found += [ast.unparse(node)] if literal else []
        if isinstance(node, ast.Compare) and any(_is_name(one) for one in (node.left, *node.comparators)):
            texts = [one for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            found += [ast.unparse(node)] if texts else []
        if isinstance(node, ast.Match) and _is_name(node.subject):
            found.append(ast.unparse(node.subject))
    return found


def _is_name(one: ast.expr) -> bool:
    told = ("report", "effect", "event", "row", "one", "told")
    return isinstance(one, ast.Attribute) and one.attr == "name" and ast.unparse(one.value) in told


@pytest.mark.parametrize("room", ACTING)
def test_nothing_that_performs_effects_reads_the_name_of_a_report(room: str) -> None:
    compared = {path.name: names_compared(ast.parse(path.read_text())) for path in (PACKAGE / room).rglob("*.py")}
    found = {name: where for name, where in compared.items() if where}
    assert set(found) <= {"summary.py"}, found  # which counts the causes of refusals in rows, for the summary


def test_the_test_would_find_one() -> None:
    matched, compared = 'match e:\n case Report("mixed", v, r): pass', 'if effect.name == "budget": pass'
    source = "\n".join((matched, compared, 'match row.name:\n case "x": pass'))
    assert len(names_compared(ast.parse(source))) == 3


def federated(*faults: dict[str, Any], **section: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "task": {"kind": "quadratic", "dim": 3, "placement": "random"},
        "coordinator": {"clients": 4, "min_clients": 4, "start_timeout": 5.0, "secure": {"on": False}, **section},
        "faults": faults,
    }


def events(rows: list[Any]) -> list[tuple[str, int]]:
    return [(row.name, row.peer) for row in rows if isinstance(row, EventRow)]


def test_a_simulated_coordinator_with_too_few_clients_fails_the_run_as_a_real_one_does() -> None:
    rows: list[Any] = []
    with pytest.raises(TooFewPeersError, match="3 clients are there, and a round needs 4: it ended before round"):
        fedgossip.simulate(federated({"kind": "crash", "peers": [2], "start": 0.01}), watch=rows.append)
    assert events(rows).index(("too_few", 4)) < events(rows).index(("failed", 4))


def test_a_simulated_client_that_comes_back_after_the_end_makes_the_run_partial_as_a_real_one_does() -> None:
    rows: list[Any] = []
    late = {"kind": "crash", "peers": [2], "start": 0.01, "after": 1000.0}
    run = fedgossip.simulate(federated(late, min_clients=3), watch=rows.append)
    assert run.summary["status"] == "partial" and events(rows)[-2:] == [("nobody_came", 2), ("failed", 2)]


def test_a_client_that_its_coordinator_left_tells_why_it_ends() -> None:
    left, never = client(), client()
    never.met = False
    ends = [machine.handle(Fired(("silent",)), 0)[-1] for machine in (never, left)]
    failures = [end.failure for end in ends if isinstance(end, Finish) and end.failure]
    assert [failure.kind for failure in failures] == ["too_few", "network"]
    assert [failure.error().exit_code for failure in failures] == [7, 3]


def test_a_member_that_another_process_replaces_ends_with_that_as_its_failure() -> None:
    one = member(0, 3)
    one.handle(Started(), 0)
    one.membership.superseded = True
    (end,) = (effect for effect in one.handle(Fired(("member", "tick")), 1) if isinstance(effect, Finish))
    assert end.failure and end.failure.kind == "peer" and "another process runs as peer 0" in end.failure.text


@pytest.mark.parametrize("kind", ["network", "peer", "budget", "too_few"])
def test_a_failure_is_the_error_of_its_kind(kind: Any) -> None:
    error = Failure(kind, "what", "advice").error()
    assert isinstance(error, FedgossipError) and (str(error), error.advice) == ("what", "advice")
    assert error.exit_code == {"network": 3, "peer": 4, "budget": 6, "too_few": 7}[kind]
