"""Run a plan over real TCP sockets with CURVE, every host a thread of this process: quick, and the same code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Machine, NodeId
from fedgossip.core.messages import Expected, Hello
from fedgossip.core.records import Row
from fedgossip.core.task import LocalTask
from fedgossip.net.endpoints import Endpoints, signed
from fedgossip.net.host import Host
from fedgossip.net.host_ports import Ports
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.plans.federated.credentials import Own, real
from fedgossip.plans.gossip.gossip import GossipPlan
from fedgossip.runs.mask_ledger import agreed_pairs, run_hash

Wrap = Callable[[int, Machine], Machine]
Besides = Callable[[Sequence[Identity], Endpoints], None]
"""What else goes on while a run does, with the keys and addresses of its participants."""


def run_over_sockets(
    plan: Plan,
    task: LocalTask,
    wrap: Wrap = lambda _node, machine: machine,
    besides: Besides = lambda _identities, _endpoints: None,
    *,
    hub: bool = False,
) -> tuple[list[Vector], list[Row]]:
    """Return every peer's final vector, ascending, and all rows that the hosts wrote.

    `wrap` may put something round a machine; `hub`: clients call their coordinator, as they do between processes.
    """
    identities = [Identity.new() for _ in range(plan.n)]

    def links_of(node: NodeId) -> Any:
        if not hub:
            return Links(node, "tcp://127.0.0.1:*", identities[node])
        if node == plan.roles.leader:
            return CoordinatorLinks(node, "tcp://127.0.0.1:*", identities[node])
        return ClientLinks(node, identities[node])

    links = [links_of(node) for node in range(plan.n)]
    addresses = [getattr(one, "address", "tcp://127.0.0.1:1") for one in links]  # clients are not called
    endpoints = {node: signed(identities[node], addresses[node]) for node in range(plan.n)}
    hello = compose.hello_of(plan, task.schema)
    results: dict[int, Vector] = {}
    failures: list[BaseException] = []
    rows: list[Row] = []

    def be(node: int) -> None:
        try:
            expected = Expected(task.schema, task.dtype.name, task.length, plan.vectors, plan.masked(task.length))
            links[node].connect(plan.partners(node), endpoints, expected, replace(hello, process=node + 1))
            own = _own(plan, node, identities[node], endpoints, hello)
            machine = wrap(node, plan.machine(node, task.initial(node), task.schema, own=own))
            ports = Ports(rows.append, _ignore, _ignore, lambda: bool(failures))
            results[node] = Host(node, machine, links[node], task, hello, ports).run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=be, args=(node,)) for node in range(plan.n)]
    for thread in threads:
        thread.start()
    besides(identities, endpoints)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [results[node] for node in range(plan.n)], rows


def _own(plan: Plan, node: int, identity: Identity, endpoints: Endpoints, hello: Hello) -> Own | None:
    """Real keys: of the links for private gossip, of the roster for secure sums."""
    if not plan.masks:
        return None
    if isinstance(plan, GossipPlan):
        return agreed_pairs(node, identity, endpoints, run_hash(hello, endpoints))
    return real(identity, endpoints)


def _ignore(_round: int, _vector: Vector) -> Any:
    return None
