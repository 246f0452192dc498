"""What a client's messages tell beside its vectors: one fact after the other is changed, and held against the plan."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import secure_federation
from accounts import next_rate

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import Effect, Event, Send, Trained
from fedgossip.core.messages import Contribution, Leaving, MaskedInput, Refusal, Secured
from fedgossip.core.records import PeerRow
from fedgossip.data import data
from fedgossip.data.data import split
from fedgossip.experiment import load_experiment
from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy
from fedgossip.learning.task import TorchTask, TrainSettings
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.federated.privacy_budget import outlook
from fedgossip.privacy.accounting import Mechanism, epsilon
from fedgossip.privacy.forecast import PrivacyPlan, forecast, lines
from fedgossip.protocols.federated import client_round
from fedgossip.protocols.federated.client import Client
from fedgossip.protocols.federated.client_round import FACTS, PlainPart, SecurePart, integers
from fedgossip.secure.encoding import NO_NOISE

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
    *(("record", secure, 0.25, {"test_noise": 4.0}) for secure in (True, False)),
    *(("none", secure, 0.25, {"personal": "ditto"}) for secure in (True, False)),
    ("record", True, 0.25, {"personal": "ditto"}),
    ("client", True, 0.0, {"personal": "ditto"}),
]


def experiment(unit: str, secure: bool, kept: float, more: Mapping[str, Any]) -> dict[str, Any]:
    more = dict(more)
    algorithm = more.pop("algorithm", "fedavg")
    personal = {"personal": more.pop("personal")} if "personal" in more else {}
    privacy = {"unit": unit, "max_epsilon": 1e6, **more}
    clients = 40 if "adaptive" in more else 5
    return {
        "rounds": 1,
        "data": {"local_test": kept},
        "model": {"source": "softmax"},
        "train": {"local_steps": 4, "batch_size": 8, "device": "cpu"},
        "coordinator": {
            "clients": clients, "algorithm": algorithm, "secure": {"on": secure, "bound": 0.5}, "privacy": privacy,
            **personal,
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
    work: list[client_round.PreparedContribution] = []
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
    values = integers(fixed, work[0], client.part.chances(client.part.invite.round), NO_NOISE).values[fixed.length :]
    names = ["examples", fixed.tells, "count", *(name for name, _ in fixed.metrics)]
    # metrics are told times the weight: the sum gives their mean
    weight = int(values[0])
    apart = [int(value) if place < 3 else round(int(np.int32(value)) / weight, 4) for place, value in enumerate(values)]
    return dict(zip(names, apart, strict=True))


class _Part:
    """Keeps what a part is given."""

    def __init__(self, part: PlainPart | SecurePart, work: list[client_round.PreparedContribution]) -> None:
        self.part, self.work, self.over = part, work, False

    def trained(self, work: client_round.PreparedContribution) -> list[Effect]:
        self.work.append(work)
        return []


CHANGES: dict[str, dict[str, float]] = {
    "examples": {"examples": 7},
    "steps": {"steps": 2},
    "loss": {"loss": 3.25},
    "logged": {},  # of users' own loops alone: tests/cli/test_first_day.py
    "kept": {"tested": 0},
    "tests": {"score": 0.125, "read_score": 0.125},
    "gains": {"own_tested": 0.25},
    "twentieth": {"own_from_05": 0.25},
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
    plan = compose.plan(load_experiment(content))
    assert isinstance(plan, FederationPlan)
    found = set(carried(*taps.at))
    assert found == {*plan.sent_metrics.exact, *plan.sent_metrics.covered}
    if unit != "none":
        numbers = {"noise": 1.0, "clip": 1.0, "delta": 1e-5, "parameters": 650, "examples": (100,)}
        said = dict(
            lines(
                forecast(
                    PrivacyPlan(unit, 5, 1, sent_metrics=plan.sent_metrics, secure=secure, tested=kept > 0, **numbers)
                )
            )
        )
        for fact in FACTS:
            covered = fact.name in ("cut", "shorter", "tests")
            assert (fact.words in said["not hidden"].lower()) == (fact.name in found and not covered)
            assert (fact.words in said.get("also told", "").lower()) == (fact.name in found and covered)
        assert ("not told" in said) == (kept > 0 and "test_noise" not in more)


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
    assert names_of(client_round.PreparedContribution) - told == {"up", "weight", "counted", "counts"}


@pytest.mark.parametrize("noise", [{}, {"test_noise": 4.0}])
@pytest.mark.parametrize("secure", [True, False])
def test_two_crafted_models_do_not_tell_whether_a_record_is_kept_for_tests(
    taps: Taps, secure: bool, noise: dict[str, float]
) -> None:
    """One calls the record right and one wrong: where it is kept at the site, its count differs; no answer does."""
    fedgossip.simulate(experiment("record", secure, 0.25, noise))
    assert taps.at
    client, told = taps.at
    kept = told.metrics["tested"]
    assert kept > 10
    right, wrong = (answer(client, told, score=count / kept) for count in (kept - 1, kept - 2))
    assert right == wrong


def test_what_a_client_measures_is_in_its_own_rows_and_in_no_sum(taps: Taps) -> None:
    run = fedgossip.simulate(experiment("record", True, 0.25, {}))
    rows = [row for row in run.rows if isinstance(row, PeerRow)]
    assert sum(row.score is not None for row in rows if row.peer < 5) == 5
    assert all(row.score_clients is None for row in rows)


# --- a count with noise -----------------------------------------------------------------------------------------------


def test_a_count_of_right_answers_has_the_noise_that_is_accounted_for() -> None:
    """What is told less what is there is a discrete Gaussian of deviation `test_noise`: 400 rounds of one node."""
    train, test = split(data.load("digits"), 0.2, 0)
    privacy = RecordPrivacy(1.0, 1.0, test_noise=4.0)
    kept, settings = {0: np.arange(50, 90)}, TrainSettings(local_steps=1, device="cpu")
    task = TorchTask(train, test, [np.arange(50)], "softmax", settings, seed=1, rounds=4, kept=kept, privacy=privacy)
    assert task._tests
    found = [task._tests.measure(0, round, task.initial(0), {}) for round in range(400)]
    noise = np.array([40 * (one["read_score"] - one["score"]) for one in found])
    assert np.allclose(noise, np.rint(noise))
    assert abs(noise.mean()) < 4 * 4 / math.sqrt(400) and 3.4 < noise.std() < 4.6
    quiet = TorchTask(train, test, [np.arange(50)], "softmax", settings, seed=1, rounds=4, kept=kept,
                      privacy=RecordPrivacy(1.0, 1.0))  # fmt: skip
    assert quiet._tests and set(quiet._tests.measure(0, 0, quiet.initial(0), {})) == {"score", "tested"}


@pytest.mark.parametrize("secure", [True, False])
def test_counts_with_noise_come_out_of_the_same_budget(secure: bool) -> None:
    """Three of five rounds are evaluated: 2, 4 and the last."""
    content = {**experiment("record", secure, 0.25, {"test_noise": 4.0}), "rounds": 5, "eval": {"every": 2}}
    run = fedgossip.simulate(content)
    rows = [row for row in run.rows if isinstance(row, PeerRow)]
    assert [row.round for row in rows if row.score_clients is not None] == [2, 4, 5]
    promised = outlook(compose.plan(load_experiment(content)))
    fewest = min(promised.plan.examples)
    expected = epsilon([Mechanism(1.0, next_rate(8 / fewest), 4 * 5), Mechanism(4.0, 1.0, 3)], 1e-5)
    assert run.summary["epsilon"] == pytest.approx(expected) == pytest.approx(promised.epsilon)
    said = dict(lines(promised))
    alone = epsilon([Mechanism(4.0, 1.0, 3)], 1e-5)
    assert f"Noise 4 on each count of right answers; 3 of them are epsilon {alone:.3g} alone" in said["tests"]


def test_a_plan_sets_aside_what_the_counts_will_cost() -> None:
    content = experiment("record", True, 0.25, {"test_noise": 4.0, "max_epsilon": 8.0})
    found = outlook(compose.plan(load_experiment({**content, "rounds": 400, "eval": {"every": 100}})))
    assert found.rounds_within and 0 < found.rounds_within < 400
    step = Mechanism(1.0, found.plan.rate, 4)
    for rounds, fits in ((found.rounds_within, True), (found.rounds_within + 1, False)):
        spent = epsilon([Mechanism(1.0, step.rate, 4 * rounds), Mechanism(4.0, 1.0, 4)], 1e-5)
        assert (spent <= 8.0) == fits
    assert found.noise_wanted
    enough = epsilon([Mechanism(found.noise_wanted, step.rate, 1600), Mechanism(4.0, 1.0, 4)], 1e-5)
    assert enough == pytest.approx(8.0, rel=1e-2)


@pytest.mark.parametrize(
    ("unit", "kept", "noise", "words"),
    [
        ("none", 0.25, 4.0, "test_noise is of the examples"),
        ("record", 0.0, 4.0, "test_noise is of the examples"),
        ("record", 0.25, 0.1, "hides nothing"),
        ("record", 0.25, -1.0, "out of range"),
    ],
)
def test_noise_on_counts_that_cannot_be_is_refused(unit: str, kept: float, noise: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose.plan(load_experiment(experiment(unit, True, kept, {"test_noise": noise})))


def test_without_it_an_experiment_has_the_hash_that_it_had() -> None:
    plan = compose.plan(load_experiment(experiment("record", True, 0.25, {})))
    assert isinstance(plan, FederationPlan) and "test_noise" not in plan.fingerprint["coordinator"]["privacy"]  # type: ignore[index]
    noisy = compose.plan(load_experiment(experiment("record", True, 0.25, {"test_noise": 4.0})))
    assert isinstance(noisy, FederationPlan) and noisy.task_id != plan.task_id
