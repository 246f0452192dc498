"""A leaf coordinator's links: clients below, its own coordinator above, over real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import fedgossip
from fedgossip.base.vectors import Vector, digest
from fedgossip.core.messages import Expected, Hello, Leaving
from fedgossip.core.records import Row
from fedgossip.drivers.participant import transport_of
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import signed
from fedgossip.net.host import Host
from fedgossip.net.host_ports import Ports
from fedgossip.net.hub.server import TierLinks
from fedgossip.net.identity import Identity
from fedgossip.net.transport import Arrived, LinkUp, Transport
from fedgossip.plans import compose
from fedgossip.plans.federated.credentials import real

pytestmark = pytest.mark.sockets

LOCAL = "tcp://127.0.0.1:*"


def content() -> dict[str, Any]:
    return {
        "rounds": 3,
        "task": {"kind": "quadratic", "dim": 3, "sigma": 0.1, "placement": "random"},
        "coordinator": {
            "clients": 6,
            "min_clients": 3,
            "tiers": [{"clients": 3}, {"clients": 2, "secure": False}],
        },
    }


def test_one_digest_over_sockets_with_a_leaf_between() -> None:
    plan = compose.plan(load_experiment(content()))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    identities = [Identity.new() for _ in range(plan.n)]
    links = [transport_of(plan, node, LOCAL, identities[node]) for node in range(plan.n)]
    assert [type(one).__name__ for one in links[5:]] == ["ClientLinks", "TierLinks", "TierLinks", "CoordinatorLinks"]
    listening = [links[node].address if plan.roles.listens(node) else "" for node in range(plan.n)]
    endpoints = {node: signed(identities[node], listening[node]) for node in range(plan.n)}
    hello = compose.hello_of(plan, task.schema)
    results: dict[int, Vector] = {}
    failures: list[BaseException] = []
    rows: list[Row] = []

    def be(node: int) -> None:
        try:
            expected = Expected(task.schema, task.dtype.name, task.length, plan.vectors, plan.masked(task.length))
            links[node].connect(plan.partners(node), endpoints, expected, hello)
            own = real(identities[node], endpoints)
            machine = plan.machine(node, task.initial(node), task.schema, own=own)
            ports = Ports(rows.append, _ignore, _ignore, lambda: bool(failures))
            results[node] = Host(node, machine, links[node], task, hello, ports).run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=be, args=(node,)) for node in range(plan.n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    simulated = fedgossip.simulate(content())
    assert digest(plan.outcome([results[node] for node in range(plan.n)])) == simulated.digest  # type: ignore[arg-type]


def _ignore(_round: int, _vector: Vector) -> Any:
    return None


def until(links: Sequence[Transport], wanted: int, kind: type) -> list[Any]:
    """Poll all until so many events of a kind have happened.  Fails after ten seconds."""
    found: list[Any] = []
    end = time.monotonic() + 10
    while len(found) < wanted:
        assert time.monotonic() < end, f"{len(found)} of {wanted} {kind.__name__}"
        found += [event for one in links for event in one.poll(5) if isinstance(event, kind)]
    return found


def test_messages_go_to_the_end_that_they_are_for_and_both_ends_wake_a_wait() -> None:
    plan = compose.plan(load_experiment(content()))
    identities = {node: Identity.new() for node in (0, 6, 8)}
    links = {node: transport_of(plan, node, LOCAL, identities[node]) for node in identities}
    endpoints = {node: signed(one, links[node].address if node else "") for node, one in identities.items()}
    hello, expected = Hello("s", "e", "v"), Expected("s", "float32", 3, 1, 6)
    leaf = links[6]
    assert isinstance(leaf, TierLinks)
    for node, partners in ((0, [6]), (6, [0, 8]), (8, [6])):
        links[node].connect(partners, endpoints, expected, hello)
    until([*links.values()], 4, LinkUp)
    for to in (0, 8):
        leaf.send(to, Leaving(to))
    received = until([links[0], leaf, links[8]], 2, Arrived)
    assert sorted((one.sender, one.message.round) for one in received) == [(6, 0), (6, 8)]
    for node in (0, 8):
        links[node].send(6, Leaving(node))
    received = until([links[0], leaf, links[8]], 2, Arrived)
    assert sorted((one.sender, one.message.round) for one in received) == [(0, 0), (8, 8)]
    assert sorted(leaf.partners) == [0, 8] and leaf.idle
    for one in links.values():
        one.close()
