"""Who plays with whom in the cases of `machine_fuzz`: a small run of every kind of machine, and who may spoil it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import secure_federation
import test_join
from fuzz_words import MESSAGES
from members import ORGANISER, signer

from fedgossip.algorithms.federated.sums import MeanOf
from fedgossip.core.machine import Machine, NodeId
from fedgossip.core.messages import ConfirmDead, Entry, Join, MembershipUpdate, Suspicion
from fedgossip.core.task import LocalTask
from fedgossip.experiment import load_experiment
from fedgossip.learning.analytic import Averaging
from fedgossip.plans import compose
from fedgossip.plans.federated.credentials import Credentials
from fedgossip.plans.federated.privacy_budget import purse_of
from fedgossip.protocols.federated import secure_round
from fedgossip.protocols.members.membership_updates import admission_of, signed
from fedgossip.secure import client, frames
from fedgossip.secure.server import Summed

NOBODY = -1
"""What drivers call a guest."""

STRANGER = 77
"""An id that nobody has."""


@dataclass
class Watch:
    """What was seen of a federation's sums, of any machine's words independently."""

    inputs: dict[tuple[NodeId, int], np.ndarray[Any, Any]] = field(default_factory=dict)
    """(client, session): what it masked."""
    sums: list[tuple[int, tuple[int, ...], np.ndarray[Any, Any]]] = field(default_factory=list)
    added: list[tuple[MeanOf, NodeId]] = field(default_factory=list)


@dataclass
class Cast:
    """One run before it begins.  `partners[i]` are the links of i; `linked`: they are up from the start.

    `signed` and `sealed` sign, as a node, what carries a signature, or a frame of a secure sum.  `late`: who starts
    later, when, and through whom.  `budget`: how many trainings a client's budget pays for.
    """

    machines: dict[NodeId, Machine]
    partners: Mapping[NodeId, Sequence[NodeId]]
    task: LocalTask
    seconds: float = 200_000.0
    rounds: int = 0
    linked: bool = True
    signed: Callable[[Any, Any, str], Any] = lambda value, _draw, _who: value
    sealed: Callable[[NodeId], Callable[[frames.Frame], bytes] | None] = lambda _node: None
    late: Mapping[NodeId, tuple[float, NodeId]] = field(default_factory=dict)
    coordinator: NodeId | None = None
    budget: int | None = None
    near: float = 0.0
    """How far results may be from those of an undisturbed run, though the adversary has no place in it."""
    old: tuple[type, ...] = ()
    """Messages that an adversary does not have from another run: lives of this one are later ones."""
    watch: Watch = field(default_factory=Watch)


@dataclass(frozen=True)
class Sender:
    """A kind of adversary: the node whose place it has, if any, and by which name it speaks.

    `lets`: what drivers let through from it.  `spares`: whom it says nothing to.
    """

    place: NodeId | None
    name: NodeId
    lets: Callable[[Any], bool] = lambda _message: True
    spares: tuple[NodeId, ...] = ()
    kinds: tuple[type, ...] = MESSAGES
    """What it says of its own accord."""


@dataclass(frozen=True)
class Scene:
    make: Callable[[], Cast]
    senders: Mapping[str, Sender]
    around: Callable[[Cast], AbstractContextManager[None]] = lambda _cast: nullcontext()


OUTSIDE = {"stranger": Sender(None, STRANGER), "guest": Sender(None, NOBODY)}

# --- gossip -----------------------------------------------------------------------------------------------------------


def gossip(graph: str, n: int, **algorithm: Any) -> Cast:
    section = {"deadline": 3.0, "least_deadline": 0.2, "start_timeout": 5.0, **algorithm}
    task = {"kind": "quadratic", "dim": 3, "sigma": 0.1, "placement": "random"}
    topology = {"graph": graph, "n": n}
    plan = compose.plan(load_experiment({"rounds": 6, "task": task, "topology": topology, "algorithm": section}))
    learned, _ = compose.task_of(plan.experiment, plan.n)
    machines = {
        node: plan.machine(node, learned.initial(node), learned.schema, own=plan.simulated(node)) for node in range(n)
    }
    partners = {node: plan.partners(node) for node in range(n)}
    return Cast(machines, partners, learned, rounds=6)


def workers(method: str, n: int, codec: str = "", **server: Any) -> Cast:
    task = {"kind": "quadratic", "dim": 3, "sigma": 0.1, "placement": "random"}
    section = {"method": method, "workers": n, "deadline": 3.0, "least_deadline": 0.2, "start_timeout": 5.0}
    section |= {"server": server} if server else {}
    section |= {"codec": codec} if codec else {}
    plan = compose.plan(load_experiment({"rounds": 6, "task": task, "train": {"lr": 0.1}, "parallel": section}))
    learned, _ = compose.task_of(plan.experiment, plan.learners)
    machines = {node: plan.machine(node, learned.initial(node), learned.schema) for node in range(plan.n)}
    return Cast(machines, {node: plan.partners(node) for node in range(plan.n)}, learned, rounds=6)


# --- members ----------------------------------------------------------------------------------------------------------


def resigned(value: Any, draw: np.random.Generator, who: str) -> Any:
    """News under a signature that the world of tests believes: the member's own, the guest's, or of ones let in."""
    node = {"member": 3, "guest": STRANGER}.get(who, 5 + int(draw.integers(12)))
    if isinstance(value, Join):
        return dataclasses.replace(value, entry=resigned(value.entry, draw, who))
    if isinstance(value, Entry):
        key, verify = f"key{node}", f"sign{node}"
        admission = signer(ORGANISER)(admission_of(node, key, verify)) if who == "organiser" else value.admission
        since = min(value.since, 40) if who == "organiser" else value.since
        value = dataclasses.replace(value, node=node, key=key, verify=verify, admission=admission, since=since)
        return signed(value, signer(verify))
    if isinstance(value, Suspicion | ConfirmDead):
        by = STRANGER if who == "guest" else 3
        return signed(dataclasses.replace(value, by=by), signer(f"sign{by}"))
    return value


def own_join(message: Any) -> bool:
    """Whether hosts let this through from a guest: it asks to join, with the key of its link."""
    return isinstance(message, Join) and message.entry.key == f"key{STRANGER}"


def members() -> Cast:
    rounds = 40
    machines: dict[NodeId, Machine] = {node: test_join.member(node, 4, rounds) for node in range(4)}
    machines[4] = test_join.member(4, 4, rounds, join=True, life=77)
    partners = {node: [other for other in range(5) if other != node] for node in range(5)}
    task = Averaging(5, 3, dtype="float64")
    return Cast(
        machines,
        partners,
        task,
        400.0,
        rounds,
        False,
        resigned,
        late={4: (1.0, 1)},
        near=1e-3,
        old=(MembershipUpdate, Join),
    )


# --- federations ------------------------------------------------------------------------------------------------------


def federation(budget: float | None = None, **section: Any) -> Cast:
    content = secure_federation.experiment(5, 4, silence=30.0, **section)
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    n = plan.n
    own = {node: plan.simulated(node) for node in range(n)}
    machines = {
        node: plan.machine(node, task.initial(min(node, n - 2)), task.schema, own=own[node]) for node in range(n)
    }
    cast = Cast(machines, {node: plan.partners(node) for node in range(n)}, task, rounds=4, coordinator=n - 1)

    def sealed(node: NodeId) -> Callable[[frames.Frame], bytes] | None:
        credentials = own.get(node)
        if not isinstance(credentials, Credentials):
            return None
        by = frames.COORDINATOR if node == n - 1 else node
        return lambda message: frames.pack(message, by, credentials.sign)

    cast.sealed = sealed
    if budget is not None:
        privacy = load_experiment(
            secure_federation.experiment(privacy={"unit": "client", "max_epsilon": budget})
        ).coordinator
        assert privacy is not None
        cast.budget = 0
        purse = purse_of(privacy.privacy, 1.0, 1, ())
        try:
            while cast.budget < 100:
                purse.pay(cast.budget)
                cast.budget += 1
        except Exception:
            pass
        for node in range(n - 1):
            machine: Any = machines[node]
            machine.purse = purse_of(privacy.privacy, 1.0, 1, ())
    return cast


@contextmanager
def watched(cast: Cast) -> Iterator[None]:
    """Keep what every client masks, every sum, and everything that is added in the clear; cheap signatures."""
    watch = cast.watch
    mask, summed, add = client.Shared.mask, secure_round.SecureRound._summed, MeanOf.add

    def watched_mask(self: client.Shared, delivery: bytes, integers: Any) -> Any:
        step = mask(self, delivery, integers)
        place = self._session.me, self._session.descriptor.round
        assert place not in watch.inputs, f"client {place[0]} has masked twice in session {place[1]}"
        watch.inputs[place] = integers.values.copy()
        return step

    def watched_sum(self: secure_round.SecureRound, found: Summed) -> Any:
        watch.sums.append((self.session, found.survivors, found.total.copy()))
        return summed(self, found)

    def watched_add(self: MeanOf, node: NodeId, *rest: Any) -> None:
        add(self, node, *rest)
        watch.added.append((self, node))  # what it refuses is not added

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.Shared, "mask", watched_mask)
        patch.setattr(secure_round.SecureRound, "_summed", watched_sum)
        patch.setattr(MeanOf, "add", watched_add)
        yield


PEERS = {**OUTSIDE, "neighbour": Sender(0, 0)}
CLIENTS = {**OUTSIDE, "client": Sender(0, 0)}
COORDINATORS = {
    "stranger": Sender(None, STRANGER),
    "client": Sender(None, 1, spares=(5,)),
    "coordinator": Sender(5, 5),
}
MEMBERS = {
    "stranger": Sender(None, STRANGER, lambda message: not isinstance(message, Join)),
    "guest": Sender(None, NOBODY, own_join, kinds=(Join,)),
    "member": Sender(3, 3),
    "organiser": Sender(3, 3),
}

PLAIN = {"secure": {"on": False}}
HIDDEN = {"privacy": {"unit": "client", "clip": 1.0, "noise": 2.0, "max_epsilon": 3.0}}

SCENES = {
    "sync_gossip": Scene(lambda: gossip("ring", 4), PEERS),
    "sync_gossip_complete": Scene(lambda: gossip("complete", 4), PEERS),
    "window_doubling": Scene(lambda: gossip("window-doubling", 5, name="window-doubling"), PEERS),
    "gradient_tracking": Scene(lambda: gossip("ring", 4, name="gradient-tracking"), PEERS),
    "choco": Scene(lambda: gossip("ring", 4, name="choco", options={"codec": "top-k:0.5"}), PEERS),
    "fragment_gossip": Scene(lambda: gossip("ring", 4, name="diloco", options={"fragments": 2}), PEERS),
    "relay_gossip": Scene(lambda: gossip("path", 4, name="relaysgd"), PEERS),
    "async_gossip": Scene(lambda: gossip("ring", 4, mode="async"), PEERS),
    "push_sum": Scene(lambda: gossip("directed-exponential", 4, name="push-sum"), PEERS),
    "async_push_sum": Scene(lambda: gossip("directed-exponential", 4, name="push-sum", mode="async"), PEERS),
    "private_gossip": Scene(lambda: gossip("complete", 5, private=True), PEERS),
    "allreduce": Scene(lambda: workers("ring", 4), OUTSIDE),
    "allreduce_coded": Scene(lambda: workers("ring", 4, codec="top-k:0.5"), OUTSIDE),
    "allreduce_star": Scene(lambda: workers("star", 3), OUTSIDE),
    "servers": Scene(lambda: workers("parameter-server", 3, servers=2), OUTSIDE),
    "servers_stale": Scene(lambda: workers("parameter-server", 3, servers=2, staleness=1, damp=True), OUTSIDE),
    "servers_copied": Scene(lambda: workers("parameter-server", 2, servers=3, replication=2), OUTSIDE),
    "servers_coded": Scene(lambda: workers("parameter-server", 3, "sign", servers=2, pull_codec="bf16"), OUTSIDE),
    "member": Scene(members, MEMBERS),
    "coordinator": Scene(lambda: federation(**PLAIN), CLIENTS, watched),
    "coordinator_secure": Scene(federation, CLIENTS, watched),
    "coordinator_buffered": Scene(lambda: federation(algorithm="fedbuff", **PLAIN), CLIENTS, watched),
    "coordinator_budget": Scene(lambda: federation(**HIDDEN), CLIENTS, watched),
    "coordinator_coded": Scene(lambda: federation(codec="top-k:0.5", **PLAIN), CLIENTS, watched),
    "client": Scene(lambda: federation(**PLAIN), COORDINATORS, watched),
    "client_secure": Scene(federation, COORDINATORS, watched),
    "client_budget": Scene(lambda: federation(budget=2.0, **PLAIN), COORDINATORS, watched),
}
