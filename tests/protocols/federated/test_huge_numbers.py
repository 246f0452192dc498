"""Numbers that are finite and far too large: who sends them is refused, and the others go on without."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from secure_federation import quick
from test_coordinator import COORDINATOR, SCHEMA, client, inviting, reports, vector
from test_secure_rounds import client_of, invited, plan_of

from fedgossip import simulate
from fedgossip.algorithms.federated.base import Aggregate, Federated
from fedgossip.algorithms.federated.names import make
from fedgossip.base.errors import FedgossipError, ProtocolError, TrainingError
from fedgossip.base.vectors import Vector, frozen, summable
from fedgossip.core.machine import Effect, Event, Machine, PeerJoined, Received, Report, Send, Started
from fedgossip.core.messages import Carrier, Contribution, Final, Invite, Masked, Secured
from fedgossip.core.records import EventRow, Row
from fedgossip.experiment import load_experiment
from fedgossip.learning.analytic import Averaging
from fedgossip.plans import compose
from fedgossip.plans.compose import faults_of, network_settings
from fedgossip.plans.plan import record_of
from fedgossip.protocols.federated.aggregation_round import LOSS_MOST
from fedgossip.protocols.federated.buffered import Buffered, BufferedSettings
from fedgossip.secure.aborts import Stage
from fedgossip.secure.pairs import LIMIT, Grid
from fedgossip.simulation.network import SimulatedNetwork
from fedgossip.simulation.simulator import Simulator

HUGE = 3e38
"""Finite in float32, and no sum of two of them is."""


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_can_be_summed_has_a_finite_square(kind: Any) -> None:
    most = np.sqrt(np.finfo(kind).max)
    above = np.nextafter(most, kind(np.inf), dtype=kind)
    for value, fits in [(0, True), (most, True), (-most, True), (above, False), (-above, False), (np.nan, False)]:
        spoiled = np.zeros(70_000, kind)
        spoiled[-1] = value
        assert summable(frozen(spoiled)) is fits
    assert not summable(frozen(np.array([np.inf], kind))) and summable(frozen(np.zeros(0, kind)))
    assert summable(frozen(np.full(70_000, most, kind)))  # the sum of whose squares is not finite


def test_what_was_found_of_a_vector_says_nothing_of_one_that_takes_its_place() -> None:
    for _ in range(100):
        good = frozen(np.zeros(8, np.float32))
        assert summable(good) and summable(good)
        del good
        assert not summable(frozen(np.full(8, np.nan, np.float32)))  # mostly at the same address
    mine = np.zeros(8, np.float32)
    assert summable(mine)
    mine[0] = np.inf
    assert not summable(mine)


# --- a coordinator ----------------------------------------------------------------------------------------------------


def told(round: int, loss: float | None = 0.5, accuracy: float = 0.0, tested: int = 0) -> Contribution:
    return Contribution(round, SCHEMA, (vector(1, 1),), 10, 1, loss, accuracy, tested)


WILD = [told(0, 1.7e308), told(0, -1.7e308), told(0, 2 * LOSS_MOST), told(0, 0.5, 1.5, 3), told(0, 0.5, -1e300, 3)]


@pytest.mark.parametrize("wild", WILD)
def test_a_wild_loss_or_accuracy_is_refused_and_the_round_goes_on(wild: Contribution) -> None:
    c = inviting(3)
    with pytest.raises(ProtocolError) as caught:
        c.handle(Received(0, wild), 0)
    assert caught.value.peer == 0
    c.handle(Received(1, told(0)), 0)
    c.handle(Received(2, told(0)), 0)
    facts = reports(c.handle(Received(0, told(0)), 0))["aggregated"]
    assert facts["clients"] == 3 and facts["loss"] == 0.5


@pytest.mark.parametrize("wild", WILD)
def test_the_same_of_a_coordinator_that_buffers(wild: Contribution) -> None:
    settings = BufferedSettings(3, goal=2, at_once=2)
    b = Buffered(COORDINATOR, (0, 1), make("fedavg", clients=2), vector(0, 0), SCHEMA, settings)
    b.handle(Started(), 0)
    for node in (0, 1):
        b.handle(PeerJoined(node), 0)
    with pytest.raises(ProtocolError):
        b.handle(Received(0, wild), 0)
    b.handle(Received(0, told(0)), 0)
    assert reports(b.handle(Received(1, told(0)), 0))["aggregated"]["loss"] == 0.5


@dataclass(frozen=True)
class Where:
    x: Vector


class Explosive:
    """A server whose step is not finite where the mean is above one."""

    def start(self, x: Vector) -> Where:
        return Where(x)

    def broadcast(self, state: Where) -> tuple[Vector, ...]:
        return (state.x,)

    def step(self, state: Where, aggregate: Aggregate) -> Where:
        return Where(frozen(state.x + aggregate.vectors[0] * np.float32(HUGE)))


def exploding(federated: Federated[Any]) -> Federated[Any]:
    return replace(federated, server=Explosive())


def test_a_step_that_is_not_finite_changes_no_model() -> None:
    c = inviting(2)
    c.federated, c.state = exploding(c.federated), Where(vector(0, 0))
    c.handle(Received(0, Contribution(0, SCHEMA, (vector(9, 9),), 1, 1, 0.0)), 0)
    effects = c.handle(Received(1, Contribution(0, SCHEMA, (vector(9, 9),), 1, 1, 0.0)), 0)
    assert reports(effects)["abandoned"]["reason"] == "NOT_FINITE"
    assert c.model.tolist() == [0, 0] and c.round == 1 and c.exchange, "and the next round is open"


def test_nor_that_of_a_coordinator_that_buffers() -> None:
    settings = BufferedSettings(3, goal=2, at_once=2)
    b = Buffered(COORDINATOR, (0, 1), exploding(make("fedavg", clients=2)), vector(0, 0), SCHEMA, settings)
    b.handle(Started(), 0)
    for node in (0, 1):
        b.handle(PeerJoined(node), 0)
    b.handle(Received(0, Contribution(0, SCHEMA, (vector(9, 9),), 1, 1, 0.0)), 0)
    effects = b.handle(Received(1, Contribution(0, SCHEMA, (vector(9, 9),), 1, 1, 0.0)), 0)
    assert reports(effects)["abandoned"]["reason"] == "NOT_FINITE"
    assert b.model.tolist() == [0, 0] and b.round == 1


# --- a client ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [Invite(1, SCHEMA, (vector(HUGE, 0),)), Final(1, SCHEMA, (vector(-HUGE, 0),))])
def test_a_client_refuses_a_model_that_is_too_large(message: Any) -> None:
    c = client()
    with pytest.raises(ProtocolError, match="too large"):
        c.handle(Received(COORDINATOR, message), 0)
    assert c.phase == "waiting" and c.asked is None


@pytest.mark.parametrize("frame", [b"none", b"\x00" * 200])
def test_an_invitation_that_is_none_leaves_a_client_that_hears_what_comes(frame: bytes) -> None:
    """It ended with KeyError at the next frame of the session that it was never in."""
    plan = plan_of()
    machine = client_of(plan)
    honest = invited(plan)
    for message in (replace(honest, frame=frame), Secured(0, Stage.SHARES, b"frame"), Secured(0, Stage.RESULT, b"")):
        with contextlib.suppress(ProtocolError):
            effects = machine.handle(Received(plan.coordinator, message), 0)
            assert [e.name for e in effects if isinstance(e, Report)] == ["late"]
    assert machine.asked is None and machine.part is None
    effects = machine.handle(Received(plan.coordinator, honest), 0)
    assert machine.phase == "training" and any(isinstance(e, Send) for e in effects)


# --- gossip -----------------------------------------------------------------------------------------------------------


class Huge:
    """A peer whose messages carry huge numbers in the place of its models."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        return [self._spoiled(effect) for effect in self.machine.handle(event, now_ns)]

    def _spoiled(self, effect: Effect) -> Effect:
        if not isinstance(effect, Send) or not isinstance(effect.message, Carrier):
            return effect
        message: Any = effect.message
        if isinstance(message, Masked):
            words = message.vectors[0].copy()
            words[: words.size // 2] += np.uint32(1 << 30)  # the masks stay on it, and the words that say so
            return Send(effect.to, replace(message, vectors=(frozen(words),)))
        spoiled = tuple(frozen(np.full_like(vector, HUGE)) for vector in message.vectors)
        return Send(effect.to, replace(message, vectors=spoiled))


def gossip(**algorithm: Any) -> dict[str, Any]:
    return {
        "rounds": 6,
        "task": {"kind": "quadratic", "dim": 8, "placement": "random"},
        "topology": {"graph": "regular:4", "n": 8},
        "algorithm": {"deadline": 1.0, "least_deadline": 1.0, **algorithm},
    }


KINDS = {
    "synchronous": {},
    "asynchronous": {"mode": "async"},
    "push-sum": {"name": "push-sum"},
    "gradient tracking": {"name": "gradient-tracking"},
    "mixed momentum": {"name": "dsgdm"},
    "quasi-global momentum": {"name": "qg-dsgdm"},
    "push-diging": {"name": "push-diging"},
    "slow momentum": {"name": "slowmo", "options": {"base": "decentlam", "every": 2}},
    "asynchronous push-sum": {"name": "push-sum", "mode": "async"},
    "private": {"private": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_whose_models_are_huge_ends_nobody(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    plan: Any = compose.plan(load_experiment(gossip(**KINDS[kind])))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    rows: list[Row] = []
    machines = [plan.machine(k, task.initial(k), task.schema, own=plan.simulated(k)) for k in range(plan.n)]
    machines[3] = Huge(machines[3])
    links = [plan.partners(node) for node in range(plan.n)]
    network = SimulatedNetwork(network_settings(plan.experiment, plan.n), plan.n, plan.experiment.seed)
    record = record_of(plan, task.evaluate, watch_all=False)
    simulator = Simulator(machines, links, task, network, record, rows.append, script=faults_of(plan))
    results = simulator.run(10_000.0)
    honest = [results[node] for node in range(plan.n) if node != 3]
    assert all(np.abs(model).max() < 1e3 for model in honest)
    said = {row.name for row in rows if isinstance(row, EventRow)}
    assert said & {"refused", "skipped_mix"}, "and it is said"


@pytest.mark.parametrize(("words", "possible"), [(LIMIT, True), (LIMIT + 3, True), (LIMIT + 4, False)])
def test_a_sum_that_models_within_the_bound_cannot_make_is_told_apart(words: int, possible: bool) -> None:
    for sign in (1, -1):
        come = np.array([0, sign * words, 5], np.int64).astype(np.uint32)
        assert Grid(8.0).possible(come, 3) is possible


CODED = "bf16", "fp16", "int8:16", "top-k:0.5", "random-k:0.5", "qsgd:4", "terngrad", "sign"
FOUR = {"graph": "complete", "n": 4}
PATHS: dict[str, dict[str, Any]] = {
    "gossip": {"topology": FOUR},
    "push-sum": {"topology": FOUR, "algorithm": {"name": "push-sum"}},
    "gradient tracking": {"topology": FOUR, "algorithm": {"name": "gradient-tracking"}},
    "changes": {"topology": FOUR, "algorithm": {"name": "choco", "options": {"codec": "top-k:0.5"}}},
    "private": {"topology": FOUR, "algorithm": {"private": True}},
    "sums": {"coordinator": {"clients": 4, "secure": {"on": False}}},
    "secure sums": {"coordinator": {"clients": 4}},
    **{name: {"coordinator": {"clients": 4, "secure": {"on": False}, "codec": name}} for name in CODED},
}


class Alike(Averaging):
    """All models are the same, and huge but for their first element: so is their mean."""

    def __init__(self, scale: float) -> None:
        super().__init__(5, 5)
        self.held = np.full(5, scale, np.float32)
        self.held[0] = 1.0

    def initial(self, node: int) -> Any:
        return frozen(self.held)


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.parametrize("scale", [1e30, 3e38])
@pytest.mark.parametrize("path", PATHS)
def test_huge_weights_are_averaged_right_or_refused(path: str, scale: float, engine: str) -> None:
    task = Alike(scale)
    try:
        run = simulate({"rounds": 3, "task": {"kind": "averaging", "dim": 5}, **PATHS[path]}, task=task, engine=engine)
    except FedgossipError as error:
        assert error.exit_code
        return
    assert all(np.allclose(vector, task.held, rtol=1e-6) for vector in run.vectors if vector is not None)
    assert run.summary["status"] == "finished" or run.summary["lacking"]


DIVERGING: dict[str, dict[str, Any]] = {
    "gossip": {"topology": {"graph": "ring", "n": 4}},
    "push-sum": {"topology": {"graph": "ring", "n": 4}, "algorithm": {"name": "push-sum"}},
    "ring": {"parallel": {"workers": 4, "method": "ring"}},
    "star": {"parallel": {"workers": 4, "method": "mapreduce"}},
    "servers": {"parallel": {"workers": 4, "method": "parameter-server"}},
}


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.parametrize("path", DIVERGING)
def test_a_run_whose_training_diverged_is_not_finished_on_arrays_where_it_is_not_with_machines(
    path: str, engine: str
) -> None:
    """Weights that a neighbour refuses: the machines go on without them, or end; arrays end."""
    content = {"rounds": 4, "data": {"source": "digits"}, "model": {"source": "softmax"}, **DIVERGING[path]}
    try:
        run = simulate({**content, "train": {"lr": 1e25, "device": "cpu"}}, engine=engine)
    except TrainingError as error:
        assert "is not finite, or too large to be" in str(error) and "train.lr" in str(error.advice)
        return
    assert run.summary["lacking"] or path == "servers"
    if path == "servers":  # each gradient is within the bound
        assert run.digest == simulate({**content, "train": {"lr": 1e25, "device": "cpu"}}, engine="sim").digest
