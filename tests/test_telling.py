"""What a client's messages tell beside its vectors: one fact after the other is changed, and held against the plan."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import secure_federation

import fedgossip
from fedgossip.experiment import load
from fedgossip.machine import Effect, Event, Send, Trained
from fedgossip.messages import Contribution, Leaving, MaskedInput, Refusal, Secured
from fedgossip.privacy.forecast import Plan, forecast
from fedgossip.privacy.wording import lines
from fedgossip.protocols import parts
from fedgossip.protocols.client import Client
from fedgossip.protocols.parts import PlainPart, SecurePart, integers
from fedgossip.protocols.telling import FACTS
from fedgossip.records import PeerRow
from fedgossip.running import compose
from fedgossip.running.federation import FederationPlan
from fedgossip.secure.hiding import NO_NOISE

KEPT = [0.0, 0.25]
RUNS = [
    *(("none", secure, kept, {}) for secure in (True, False) for kept in KEPT),
    *(("record", secure, kept, {}) for secure in (True, False) for kept in KEPT),
    ("client", True, 0.0, {}),
    ("client", True, 0.0, {"adaptive": True, "noise": 0.1}),
    ("record", True, 0.25, {"algorithm": "fedsgd"}),
    ("none", True, 0.25, {"algorithm": "scaffold"}),
    ("record", False, 0.25, {"algorithm": "median"}),
    ("record", False, 0.25, {"algorithm": "fedbuff"}),
]


def experiment(unit: str, secure: bool, kept: float, more: Mapping[str, Any]) -> dict[str, Any]:
    more = dict(more)
    algorithm = more.pop("algorithm", "fedavg")
    privacy = {"unit": unit, "max_epsilon": 1e6, **more}
    clients = 40 if "adaptive" in more else 5
    return {
        "rounds": 1,
        "data": {"local_test": kept},
        "model": {"source": "softmax"},
        "train": {"local_steps": 4, "batch_size": 8, "device": "cpu"},
        "coordinator": {
            "clients": clients, "algorithm": algorithm, "secure": {"on": secure, "bound": 0.5}, "privacy": privacy
        },
    }  # fmt: skip


class Taps:
    """What clients were told of their training in a simulated run, and what left them."""

    def __init__(self) -> None:
        self.messages: list[object] = []
        self.at: tuple[Client, Trained] | None = None
        """Client 0 as it was when it was told."""

    def handle(self, client: Client, event: Event, now_ns: int) -> Sequence[Effect]:
        if isinstance(event, Trained) and client.node == 0 and self.at is None:
            kept = copy.copy(client)
            kept.part = copy.copy(client.part)
            self.at = kept, event
        effects = _handle(client, event, now_ns)
        self.messages += [effect.message for effect in effects if isinstance(effect, Send)]
        return effects


_handle = Client.handle


@pytest.fixture
def taps(monkeypatch: pytest.MonkeyPatch) -> Taps:
    secure_federation.quick(monkeypatch)
    found = Taps()

    def tapped(client: Client, event: Event, now_ns: int) -> Sequence[Effect]:
        return found.handle(client, event, now_ns)

    monkeypatch.setattr(Client, "handle", tapped)
    return found


def answer(client: Client, told: Trained, **other: float) -> dict[str, object]:
    """What the client puts into its answer, by its fields or coordinates, where its training had said otherwise."""
    probe = copy.copy(client)
    assert isinstance(probe.part, PlainPart | SecurePart)
    work: list[parts.Trained] = []
    probe.part = _Part(probe.part, work)  # type: ignore[assignment]
    examples = int(other.pop("examples", told.examples))
    scale = other.pop("scale", 1.0)
    assert told.update is not None
    probe._trained(np.float32(scale) * told.update, examples, {**told.metrics, **other})
    if isinstance(client.part, PlainPart):
        plain = PlainPart(0, client.part.invite)
        plain.trained(work[0])
        assert plain.answer
        fields = {field.name: getattr(plain.answer, field.name) for field in dataclasses.fields(Contribution)}
        return {name: value for name, value in fields.items() if name != "vectors"}
    assert isinstance(client.part, SecurePart)
    fixed = client.part.party.policy.fixed
    values = integers(fixed, work[0], client.part.chances, NO_NOISE).values[fixed.length :]
    names = ["examples", fixed.tells, "count", *(name for name, _ in fixed.metrics)]
    # metrics are told times the weight: the sum gives their mean
    weight = int(values[0])
    apart = [int(value) if place < 3 else round(int(np.int32(value)) / weight, 4) for place, value in enumerate(values)]
    return dict(zip(names, apart, strict=True))


class _Part:
    """Keeps what a part is given."""

    def __init__(self, part: PlainPart | SecurePart, work: list[parts.Trained]) -> None:
        self.part, self.work, self.over = part, work, False

    def trained(self, work: parts.Trained) -> list[Effect]:
        self.work.append(work)
        return []


CHANGES: dict[str, dict[str, float]] = {
    "examples": {"examples": 7},
    "steps": {"steps": 2},
    "loss": {"loss": 3.25},
    "tests": {"accuracy": 0.125, "tested": 11},
    "cut": {"scale": 1e6},
    "shorter": {"scale": 1e6},
}


def carried(client: Client, told: Trained) -> Iterator[str]:
    """The facts that change what leaves the client, its vectors aside; those of the clip by the coordinate's name."""
    before = answer(client, told)
    for fact in FACTS:
        changed = {name for name, value in answer(client, told, **CHANGES[fact.name]).items() if value != before[name]}
        if changed & set(fact.fields):
            yield fact.name
        assert changed <= {field for one in FACTS for field in one.fields}, "a field that no fact of the plan names"


@pytest.mark.parametrize(("unit", "secure", "kept", "more"), RUNS)
def test_the_plan_names_every_fact_that_messages_carry_and_no_other(
    taps: Taps, unit: str, secure: bool, kept: float, more: dict[str, Any]
) -> None:
    content = experiment(unit, secure, kept, more)
    fedgossip.simulate(content)
    assert taps.at
    plan = compose.plan(load(content))
    assert isinstance(plan, FederationPlan)
    found = set(carried(*taps.at))
    assert found == {*plan.telling.exact, *plan.telling.covered}
    if unit != "none":
        numbers = {"noise": 1.0, "clip": 1.0, "delta": 1e-5, "parameters": 650, "examples": (100,)}
        said = dict(lines(forecast(Plan(unit, 5, 1, telling=plan.telling, secure=secure, tested=kept > 0, **numbers))))
        for fact in FACTS:
            covered = fact.name in ("cut", "shorter")
            assert (fact.words in said["not hidden"].lower()) == (fact.name in found and not covered)
            assert (fact.words in said.get("also told", "").lower()) == (fact.name in found and covered)
        assert ("not told" in said) == (kept > 0)


@pytest.mark.parametrize(("unit", "secure", "kept", "more"), RUNS)
def test_a_client_sends_messages_of_no_other_kind(
    taps: Taps, unit: str, secure: bool, kept: float, more: dict[str, Any]
) -> None:
    """Frames of a secure sum hold keys, shares of keys and signatures; a goodbye, the round."""
    fedgossip.simulate(experiment(unit, secure, kept, more))
    kinds = {type(message) for message in taps.messages}
    assert kinds <= ({Secured, MaskedInput} if secure else {Contribution}) | {Leaving}


def names_of(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_every_field_of_an_answer_is_a_fact_or_names_the_round() -> None:
    """A new field of a message has to be put under one of these, and so into the plan."""
    told = {field for fact in FACTS for field in fact.fields}
    assert names_of(Contribution) - told == {"round", "schema", "vectors"}
    frame = {"session", "stage", "frame"}
    assert names_of(Refusal) == {"round", "session", "reason"}
    assert names_of(Secured) == frame and names_of(MaskedInput) == {*frame, "schema", "vectors"}
    assert names_of(parts.Trained) - told == {"up", "weight"}


@pytest.mark.parametrize("secure", [True, False])
def test_two_crafted_models_do_not_tell_whether_a_record_is_kept_for_tests(taps: Taps, secure: bool) -> None:
    """One calls the record right and one wrong: where it is kept at the site, its count differs; no answer does."""
    fedgossip.simulate(experiment("record", secure, 0.25, {}))
    assert taps.at
    client, told = taps.at
    kept = told.metrics["tested"]
    assert kept > 10
    right, wrong = (answer(client, told, accuracy=count / kept) for count in (kept - 1, kept - 2))
    assert right == wrong


def test_what_a_client_measures_is_in_its_own_rows_and_in_no_sum(taps: Taps) -> None:
    run = fedgossip.simulate(experiment("record", True, 0.25, {}))
    rows = [row for row in run.rows if isinstance(row, PeerRow)]
    assert sum(row.accuracy is not None for row in rows if row.peer < 5) == 5
    assert all(row.accuracy_clients is None for row in rows)
