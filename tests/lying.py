"""A coordinator that lies, and honest clients, moved by hand: what it can work out from the sums that it gets.

python tests/lying.py       the table of docs/privacy/attacks.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Fired,
    Log,
    NodeId,
    PeerJoined,
    Received,
    Send,
    Started,
    Train,
    Trained,
)
from fedgossip.core.messages import Invite, Message, Refusal
from fedgossip.core.task import Job
from fedgossip.experiment import load_experiment
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.plans.federated.credentials import Logged
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.protocols.federated import secure_round
from fedgossip.protocols.federated.client import Client
from fedgossip.protocols.federated.coordinator import Coordinator
from fedgossip.runs.audit_recorder import Recorder
from fedgossip.secure.fixed_point import Words, centred
from fedgossip.secure.server import Summed

Twist = Callable[[Message], Message]


def learning(clients: int = 8, rounds: int = 20, **train: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "model": {"source": "mlp:64-16-10"},
        "train": {"lr": 0.1, "device": "cpu", **(train or {"local_epochs": 1})},
        "coordinator": {"clients": clients},
    }


@dataclass
class Hall:
    """Honest clients of one experiment; each `session` is one that a coordinator leads with whatever it likes."""

    content: dict[str, Any]
    clients: dict[NodeId, Client] = field(default_factory=dict)
    logs: dict[NodeId, list[tuple[str, Any]]] = field(default_factory=dict)
    kept: dict[NodeId, Checkpoint] = field(default_factory=dict)
    updates: dict[tuple[NodeId, int], Vector] = field(default_factory=dict)
    """(client, round): what it trained last there."""
    refused: list[tuple[NodeId, str]] = field(default_factory=list)
    """(client, reason): of a refusal, or of a message that is none."""
    folder: Path | None = None
    """Where the clients' logs are written, if not in memory alone."""
    recorders: dict[NodeId, Recorder] = field(default_factory=dict)
    identities: dict[NodeId, Identity] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan = compose.plan(load_experiment(self.content))
        assert isinstance(plan, FederationPlan)
        self.task, shares = compose.task_of(plan.experiment, plan.learners)
        self.plan = plan.with_shares(shares)
        self.initial = self.task.initial(0)
        for node in range(plan.learners):
            self.start(node)

    def start(self, node: NodeId, life: int = 0) -> None:
        """Begin a life of a client, from what the one before has put down; that one is not told."""
        log: Sequence[Logged] = self.logs.get(node, ())
        if self.folder:
            if node in self.recorders:
                self.recorders[node].__exit__(KeyboardInterrupt, None, None)
            (self.folder / str(node)).mkdir(exist_ok=True)
            whose = self.identities.setdefault(node, Identity.new())
            self.recorders[node] = Recorder(self.folder / str(node), node, "client", whose, "run", synced=True)
            log = self.recorders[node].past
        own = self.plan.simulated(node, life, log)
        saved = self.kept.get(node)
        machine = self.plan.machine(node, self.initial, self.task.schema, saved, incarnation=life, own=own)
        assert isinstance(machine, Client)
        self.clients[node] = machine
        machine.handle(Started(), 0)

    def session(
        self,
        life: int,
        round: int = 0,
        away: Collection[NodeId] = (),
        model: Vector | None = None,
        twist: Twist = lambda message: message,
        until: str = "",
    ) -> Words | None:
        """Lead the session of `round` in a coordinator's `life`, without those who are `away`; return its sum.

        `twist` changes what is sent to clients; it ends with the phase `until`, where that is given.
        """
        plan, me = self.plan, self.plan.coordinator
        start = self.initial if model is None else model
        own = plan.simulated(me, life)
        machine: Any = plan.machine(me, start, self.task.schema, incarnation=life, own=own)
        assert isinstance(machine, Coordinator)
        machine.interrupted, machine.round = False, round
        machine.settings = replace(machine.settings, rounds=10**9)
        told = _Delivered(self, machine, set(range(plan.learners)) - set(away), twist, until)
        with pytest.MonkeyPatch.context() as patch:
            summed = secure_round.SecureRound._summed

            def watched(self: secure_round.SecureRound, found: Summed) -> list[Effect]:
                told.sum = found.total.copy()
                return summed(self, found)

            patch.setattr(secure_round.SecureRound, "_summed", watched)
            told.lead(life)
        return told.sum

    def closeness(self, one: Words, other: Words, victim: NodeId, round: int) -> float:
        """The cosine between the difference of two sums and the victim's update."""
        length = self.initial.size
        apart = centred(one - other)[:length].astype(np.float64)
        update = self.updates[victim, round].astype(np.float64)
        return float(apart @ update / (np.linalg.norm(apart) * np.linalg.norm(update)))


class _Delivered:
    """One session on its way."""

    def __init__(self, hall: Hall, machine: Any, here: set[NodeId], twist: Twist, until: str) -> None:
        self.hall, self.machine, self.here, self.twist, self.until = hall, machine, here, twist, until
        self.me, self.round = hall.plan.coordinator, machine.round
        self.sum: Words | None = None
        self.queue: deque[tuple[NodeId, Event]] = deque()

    @property
    def over(self) -> bool:
        m = self.machine
        return m.round != self.round or m.exchange is None or (self.until != "" and m.exchange.phase == self.until)

    def lead(self, life: int) -> None:
        self.tell(self.me, Started())
        for node in sorted(self.here):
            self.tell(node, PeerJoined(self.me, life))
            self.tell(self.me, PeerJoined(node))
        if self.machine.exchange is None:
            self.tell(self.me, Fired(("gather", self.round)))
        while self.queue or not self.over:
            if self.queue:
                self.tell(*self.queue.popleft())
            else:
                self.tell(self.me, Fired(("phase", self.round, self.machine.exchange.phase)))

    def tell(self, node: NodeId, event: Event) -> None:
        machine = self.machine if node == self.me else self.hall.clients[node]
        if node == self.me and self.over and self.machine.phase == "inviting":
            return  # it has what it wants
        try:
            effects = machine.handle(event, 0)
        except ProtocolError as error:
            assert node != self.me, "clients are honest"
            self.hall.refused.append((node, str(error)))
            return
        for effect in effects:
            self.perform(node, effect)

    def perform(self, node: NodeId, effect: Effect) -> None:
        hall = self.hall
        match effect:
            case Send(to, message) if node == self.me:
                later = isinstance(message, Invite) and message.round != self.round
                if to in self.here and not later:
                    self.queue.append((to, Received(self.me, self.twist(message))))
            case Send(_, message):
                if isinstance(message, Refusal):
                    hall.refused.append((node, message.reason))
                self.queue.append((self.me, Received(node, message)))
            case Train(job, vector, terms):
                (done,) = hall.task.train([Job(node, job, vector, terms)])
                assert done.difference is not None
                hall.updates[node, job] = done.difference
                self.queue.append((node, Trained(job, done.difference, done.examples, done.metrics)))
            case Log(kind, facts) if node != self.me:
                if hall.folder:
                    hall.recorders[node].log(effect)
                hall.logs.setdefault(node, []).append((kind, facts))
            case Checkpoint() if node != self.me:
                hall.kept[node] = effect
            case _:
                pass


def nudged(vector: Vector, by: float) -> Vector:
    """Another model, as good as the same."""
    return frozen(vector + vector.dtype.type(by))


TRAININGS: dict[str, dict[str, Any]] = {
    "full batches, five steps": {"batch_size": 180, "local_steps": 5},
    "full batches, one pass": {"batch_size": 180, "local_epochs": 1},
    "batches of 32, five passes": {"batch_size": 32, "local_epochs": 5},
    "batches of 32, one pass": {"batch_size": 32, "local_epochs": 1},
    "batches of 8, one pass": {"batch_size": 8, "local_epochs": 1},
    "batches of 32, five steps": {"batch_size": 32, "local_steps": 5},
    "batches of 32, one step": {"batch_size": 32, "local_steps": 1},
}


def from_round_to_round(train: dict[str, Any], victim: NodeId = 3) -> float:
    """The cosine that two rounds from one model give, the victim away in the second."""
    hall = Hall(learning(**train))
    one, other = hall.session(life=0, round=0), hall.session(life=0, round=1, away=[victim])
    assert one is not None and other is not None
    return hall.closeness(one, other, victim, 0)


if __name__ == "__main__":
    for name, train in TRAININGS.items():
        print(f"| {name} | {from_round_to_round(train):.2f} |")
