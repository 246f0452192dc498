"""Secure sums in rounds: machines, drivers, drop-outs in every phase, coordinators that die in every phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import secure_federation
import secure_kit
from over_sockets import run_over_sockets
from secure_federation import Followed, experiment, follow

import fedgossip
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.machine import Effect, Event, Log, Machine, PeerJoined, Received, Report, Send, Started, Trained
from fedgossip.core.messages import Contribution, Invite, MaskedInput, Refusal, Secured
from fedgossip.core.records import EventRow
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.federated.credentials import DrawnMembers
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.protocols.federated import client_round
from fedgossip.protocols.federated.client import Client
from fedgossip.protocols.federated.client_round import past_of
from fedgossip.protocols.federated.coordinator import Coordinator
from fedgossip.secure import session as sessions
from fedgossip.secure.aborts import RoundAbandoned, Stage
from fedgossip.secure.primitives import Sign, signer
from fedgossip.secure.session import ids_in, ranges, session_of

PHASES = [stage.name.lower() for stage in Stage if stage is not Stage.RESULT]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    secure_federation.quick(monkeypatch)


# --- the same model ---------------------------------------------------------------------------------------------------


def learning(**coordinator: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "model": {"source": "mlp:64-16-10"},
        "train": {"lr": 0.1, "local_epochs": 1, "device": "cpu"},
        "coordinator": {"clients": 5, **coordinator},
    }


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd", "fedprox", "scaffold", "fednova", "fedavgm", "fedadam"])
def test_one_digest_in_the_simulator_and_on_stacked_arrays(algorithm: str) -> None:
    runs = [fedgossip.simulate(learning(algorithm=algorithm), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest is not None


@pytest.mark.sockets
def test_one_digest_over_real_sockets() -> None:
    content = learning()
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan, task)
    simulated = fedgossip.simulate(content)
    assert digest(plan.outcome(vectors)) == simulated.digest  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fednova"])
def test_a_secure_run_is_the_plain_one_to_rounding(algorithm: str) -> None:
    """One quantum of a client is bound / (limit * its weight's share of W); it is off by less, and so is their mean."""
    secure, plain = (
        fedgossip.simulate(learning(algorithm=algorithm, secure={"on": on}), engine="stacked", overrides=["rounds=1"])
        for on in (True, False)
    )
    plan = compose.plan(load_experiment(learning(algorithm=algorithm)))
    assert isinstance(plan, FederationPlan)
    fixed = plan.numbers.fixed_point(1, "")
    weight = min(secure.summary["data"]["sizes"]) / fixed.weight_max if fixed.weight_max > 1 else 1.0
    quantum = fixed.clip_inf / (fixed.limit * weight)
    steps = 20 if algorithm == "fednova" else 1  # the mean is taken of updates per step
    off = np.abs(np.subtract(secure.vectors[-1], plain.vectors[-1])).max()  # type: ignore[arg-type]
    assert 0 < off < 2 * steps * quantum


def test_a_secure_sum_carries_the_effective_steps_of_clients_with_momentum() -> None:
    """Clients of unlike sizes, passes over their data with momentum: the secure run is the plain one to rounding."""
    content = learning(algorithm="fednova", options={"momentum": 0.6})
    content |= {"rounds": 1, "data": {"partition": {"kind": "size-skewed"}}}
    content["train"]["momentum"] = 0.6
    runs = []
    for on in (True, False):
        content["coordinator"]["secure"] = {"on": on}
        runs.append(fedgossip.simulate(content, engine="stacked"))
    secure, plain = (np.asarray(run.vectors[-1], np.float64) for run in runs)  # type: ignore[index]
    start = compose.task_of(load_experiment(content), 5)[0].initial(0)
    assert len(set(runs[0].summary["data"]["sizes"])) > 1
    assert np.abs(secure - plain).max() < 2e-3 * np.linalg.norm(plain - start)


def test_what_is_cut_to_the_bound_is_counted() -> None:
    run = follow(experiment(secure={"bound": 1e-3}))
    assert all(facts["clipped"] == 5 for facts in run.reports("aggregated"))


# --- who drops --------------------------------------------------------------------------------------------------------


class Silent:
    """A client that says and hears nothing any more once it should send its answer of `phase` in `round`."""

    def __init__(self, machine: Machine, phase: int, round: int) -> None:
        self.machine, self.phase, self.round, self.gone = machine, phase, round, False

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        if self.gone:
            return []
        effects = self.machine.handle(event, now_ns)
        for effect in effects:
            message = effect.message if isinstance(effect, Send) else None
            if isinstance(message, Secured | MaskedInput) and message.session >= self.round:
                self.gone |= message.stage >= self.phase
        return [] if self.gone else effects


def silent(phase: int, round: int, who: Sequence[int]) -> Followed:
    def wrap(node: int, machine: Machine) -> Machine:
        return Silent(machine, phase, round) if node in who else machine

    return follow(experiment(clients=7, rounds=3), wrap=wrap)


@pytest.mark.parametrize("round", [0, 1])
@pytest.mark.parametrize("phase", range(5))
def test_clients_may_drop_in_any_phase(quick: None, phase: int, round: int) -> None:
    """Of 7 clients 5 must answer to the end; two fall silent.  In round 1 the keys have come with round 0."""
    run = silent(phase, round, [1, 4])
    assert [right for _, _, right in run.sums] == [True] * 3
    for session, survivors, _ in run.sums:
        summed = session < round or (session == round and phase > Stage.MASKED)
        assert set(survivors) == set(range(7)) - (set() if summed else {1, 4})
    assert run.rounds() == [1, 2, 3]


def test_when_too_many_drop_the_round_is_abandoned_and_changes_nothing(quick: None) -> None:
    run = silent(Stage.MASKED, 1, [0, 1, 2])
    assert [session for session, *_ in run.sums] == [0]
    abandoned = run.reports("abandoned")
    assert [a["reason"] for a in abandoned] == ["TOO_FEW"] * len(abandoned) and abandoned
    models = [report.value for node, report in run.told if node == 7 and report.name == "round_done"]
    assert np.array_equal(models[0], models[-1])  # type: ignore[arg-type]


# --- a coordinator that dies ------------------------------------------------------------------------------------------


def killed_in(phase: str, round: int, **task: Any) -> Followed:
    """The coordinator crashes as soon as it is in `phase` of `round`, and is back a second later."""
    content = experiment(clients=5, rounds=4)
    content["task"] |= task
    dry = follow(content)
    moments = _moments(content)
    assert dry.rounds() == [1, 2, 3, 4]
    at = moments[round, phase]
    return follow(content, [{"kind": "crash", "peers": [5], "start": at, "after": 1.0}])


def _moments(content: dict[str, Any], faults: Sequence[Any] = ()) -> dict[tuple[int, str], float]:
    """When each phase of each round began, in virtual seconds, and a little later."""
    found: dict[tuple[int, str], float] = {}

    class Timed:
        def __init__(self, machine: Any) -> None:
            self.machine = machine

        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            effects: Sequence[Effect] = self.machine.handle(event, now_ns)
            exchange = self.machine.exchange
            if exchange:
                found.setdefault((exchange.round, exchange.phase), (now_ns + 1000) / 1e9)
            return effects

    follow(content, faults, wrap=lambda node, machine: Timed(machine) if isinstance(machine, Coordinator) else machine)
    return found


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "keys"])
def test_a_coordinator_that_dies_in_any_phase_loses_no_round_and_repeats_no_session(quick: None, phase: str) -> None:
    run = killed_in(phase, 1)
    assert run.rounds() == [1, 2, 3, 4]
    (given_up,) = run.reports("abandoned")
    assert given_up["reason"] == "INTERRUPTED"
    assert run.sessions == [session_of(0, 0), session_of(0, 1), session_of(1, 2), session_of(1, 3)]
    assert [session for session, *_ in run.sums] == [session_of(0, 0), session_of(1, 2), session_of(1, 3)]
    assert all(right for *_, right in run.sums)
    assert sorted(run.results) == list(range(6)), "clients reconnect by themselves, and end"


@pytest.mark.parametrize("phase", ["masked", "consist", "unmask"])
def test_a_lost_round_of_full_batches_is_made_up_for_by_the_next(quick: None, phase: str) -> None:
    """Without noise a round from the same model has the same updates: the run is three rounds that nothing stopped."""
    run = killed_in(phase, 1, sigma=0.0)
    assert [session for session, *_ in run.sums] == [session_of(0, 0), session_of(1, 2), session_of(1, 3)]
    assert all(right for *_, right in run.sums)
    whole = experiment(clients=5, rounds=3)
    whole["task"] |= {"sigma": 0.0}
    apart = np.subtract(run.results[5], follow(whole).results[5])  # type: ignore[arg-type]
    assert np.abs(apart).max() < 2 * 10_000 / 2**23, "of a client with one of 10 000 samples: rounded by the round"


def test_the_cohort_of_a_stopped_round_is_drawn_again(quick: None) -> None:
    """Other cohorts would hold clients that consented, with the same update, to the first sum alone: each would refuse,
    and the rest would consent to a third one.  The coordinator dies twice, each time behind the clients' consents.
    """
    content = experiment(clients=9, rounds=6, cohort=4)
    content["task"] |= {"sigma": 0.0}
    struck: list[Any] = []
    for round in (1, 2):
        at = _moments(content, struck)[round, "unmask"]
        struck.append({"kind": "crash", "peers": [9], "start": at, "after": 1.0})
    run = follow(content, struck)
    assert [a["reason"] for a in run.reports("abandoned")] == ["INTERRUPTED"] * 2
    assert [session for session, *_ in run.sums] == [0, session_of(2, 3), session_of(2, 4), session_of(2, 5)]
    assert len({tuple(survivors) for _, survivors, _ in run.sums}) > 1, "cohorts are drawn"


def test_rounds_of_full_batches_that_too_few_answer_do_not_end_the_run(quick: None) -> None:
    """Three of seven leave out the answer of round 1; they are there again in the next, and nobody had consented."""

    class Once:
        def __init__(self, machine: Machine) -> None:
            self.machine = machine

        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            said = [(e, e.message if isinstance(e, Send) else None) for e in self.machine.handle(event, now_ns)]
            return [e for e, message in said if not (isinstance(message, MaskedInput) and message.session == 1)]

    content = experiment(clients=7, rounds=4)
    content["task"] |= {"sigma": 0.0}
    run = follow(content, wrap=lambda v, machine: Once(machine) if v < 3 else machine)
    assert [session for session, *_ in run.sums] == [0, 2, 3]


def test_one_that_dies_in_the_first_phase_goes_on_too(quick: None) -> None:
    run = killed_in("keys", 0)
    assert run.rounds() == [1, 2, 3, 4] and run.sessions[0] == 0 and run.sessions[1] == session_of(1, 1)


def test_a_client_that_was_killed_comes_back_with_fresh_keys(quick: None) -> None:
    crash = {"kind": "crash", "peers": [2], "start": 0.15, "after": 0.05}
    run = follow(experiment(clients=5, rounds=6), [crash])
    assert run.rounds() == list(range(1, 7)) and all(right for *_, right in run.sums)
    assert 2 in run.sums[-1][1], "it is in the later sums again"
    assert any(2 not in survivors for _, survivors, _ in run.sums), "the session that it forgot goes on without it"


# --- faults by seed ---------------------------------------------------------------------------------------------------

BLOCK, BLOCKS, LONG_BLOCKS = 25, 2, 80


def check(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        found, _ = secure_federation.verdict(seed)
        assert not found, f"{found}\n\n    python tests/secure_federation.py {seed}\n"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_whatever_happens_a_sum_is_that_of_its_survivors_or_there_is_none(quick: None, block: int) -> None:
    check(block)


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS, LONG_BLOCKS))
def test_two_thousand_seeds(quick: None, block: int) -> None:
    check(block)


# --- what is refused --------------------------------------------------------------------------------------------------


def plan_of(**coordinator: Any) -> FederationPlan:
    plan = compose.plan(load_experiment(experiment(**coordinator)))
    assert isinstance(plan, FederationPlan)
    return plan


def client_of(plan: FederationPlan, node: int = 0) -> Client:
    machine = plan.machine(node, frozen(np.zeros(3, np.float32)), "s", own=plan.simulated(node))
    assert isinstance(machine, Client)
    machine.handle(Started(), 0)
    machine.handle(PeerJoined(plan.coordinator), 0)
    return machine


def invited(plan: FederationPlan) -> Invite:
    """The invitation that an honest coordinator of this plan sends to client 0."""
    own = plan.simulated(plan.coordinator)
    machine = plan.machine(plan.coordinator, frozen(np.zeros(3, np.float32)), "s", own=own)
    machine.handle(Started(), 0)
    for node in range(plan.learners):
        effects = machine.handle(PeerJoined(node), 0)
    (invite,) = (e.message for e in effects if isinstance(e, Send) and e.to == 0 and isinstance(e.message, Invite))
    return invite


def test_a_client_with_a_secure_sum_answers_nothing_in_the_clear() -> None:
    plan = plan_of()
    asked = Invite(0, "s", (frozen(np.zeros(3, np.float32)),))
    with pytest.raises(ProtocolError, match="in the clear"):
        client_of(plan).handle(Received(plan.coordinator, asked), 0)


def test_a_coordinator_with_a_secure_sum_takes_nothing_in_the_clear() -> None:
    plan = plan_of()
    own = plan.simulated(plan.coordinator)
    machine = plan.machine(plan.coordinator, frozen(np.zeros(3, np.float32)), "s", own=own)
    machine.handle(Started(), 0)
    for node in range(5):
        machine.handle(PeerJoined(node), 0)
    with pytest.raises(ProtocolError, match="in the clear"):
        machine.handle(Received(0, Contribution(0, "s", (frozen(np.zeros(3, np.float32)),), 1, 1, 0.0)), 0)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"secure": {"bound": 2.0}}, "POLICY"),
        ({"secure": {"bits": 16}}, "POLICY"),
        ({"min_clients": 4}, "POLICY"),  # another experiment, so another task
    ],
)
def test_a_client_refuses_a_session_of_other_terms_and_says_why(other: dict[str, Any], reason: str) -> None:
    """Both ends have the same keys; only the coordinator has changed its terms."""
    plan = plan_of()
    machine = client_of(plan)
    effects = machine.handle(Received(plan.coordinator, invited(plan_of(**other))), 0)
    (refusal,) = (e.message for e in effects if isinstance(e, Send))
    assert isinstance(refusal, Refusal) and refusal.reason == reason
    (report,) = (e for e in effects if isinstance(e, Report))
    assert report.name == "abandoned_here" and report.value["reason"] == reason  # type: ignore[index]
    assert [e.kind for e in effects if isinstance(e, Log)] == ["refused"]
    assert machine.phase == "waiting", "nothing is trained for it"


def test_a_model_that_is_not_the_one_of_the_session_is_refused() -> None:
    plan = plan_of()
    honest = invited(plan)
    other = Invite(0, "s", (frozen(np.ones(3, np.float32)),), -1, honest.session, honest.frame)
    effects = client_of(plan).handle(Received(plan.coordinator, other), 0)
    assert [e.message.reason for e in effects if isinstance(e, Send)] == ["MODEL_HASH"]  # type: ignore[union-attr]


def test_a_refusal_costs_the_coordinator_that_client_alone(quick: None) -> None:
    class Stubborn:
        def __init__(self, machine: Any) -> None:
            self.machine = machine

        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            if isinstance(event, Received) and isinstance(event.message, Invite):
                invite = event.message
                return [Send(5, Refusal(invite.round, invite.session, "POLICY"))]
            return list(self.machine.handle(event, now_ns))

    run = follow(experiment(), wrap=lambda node, machine: Stubborn(machine) if node == 3 else machine)
    assert [survivors for _, survivors, _ in run.sums] == [(0, 1, 2, 4)] * 4
    assert all(report == {"peer": 3, "reason": "POLICY"} for report in run.reports("abstained"))


@pytest.mark.parametrize("stage", [Stage.MASKED, Stage.CONSIST, Stage.UNMASK, Stage.RESULT])
def test_a_bad_frame_that_came_too_early_undoes_nothing_of_the_one_before_it(quick: None, stage: Stage) -> None:
    """It is taken up when its turn has come, right after a good one, whose answer must leave all the same."""

    class Hasty:
        def __init__(self, machine: Machine) -> None:
            self.machine = machine

        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            effects = [*self.machine.handle(event, now_ns)]
            if isinstance(event, Received) and isinstance(event.message, Invite):
                bad = Secured(event.message.session, stage, event.message.frame)
                effects += self.machine.handle(Received(event.sender, bad), now_ns)
            return effects

    run = follow(experiment(), wrap=lambda node, machine: Hasty(machine) if node == 3 else machine)
    assert [survivors for _, survivors, right in run.sums if right] == [tuple(range(5))] * 4
    assert run.simulator and run.simulator.counts["refused"] == 4


def test_a_masked_input_of_no_vector_or_several_is_refused_and_the_true_one_counts(quick: None) -> None:
    class Clumsy:
        def __init__(self, machine: Machine) -> None:
            self.machine = machine

        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            said: list[Effect] = []
            for effect in self.machine.handle(event, now_ns):
                if isinstance(effect, Send) and isinstance(effect.message, MaskedInput):
                    message = effect.message
                    for vectors in ((), message.vectors * 2, (message.vectors[0].view(np.float32),)):
                        said.append(Send(effect.to, replace(message, vectors=vectors)))
                said.append(effect)
            return said

    run = follow(experiment(), wrap=lambda node, machine: Clumsy(machine) if node == 3 else machine)
    assert [survivors for _, survivors, right in run.sums if right] == [tuple(range(5))] * 4
    assert run.simulator and run.simulator.counts["refused"] == 4 * 3


def test_a_nan_ends_in_a_typed_refusal_and_in_no_log(quick: None) -> None:
    logged: list[Log] = []

    class Diverged:
        def __init__(self, machine: Any) -> None:
            self.machine = machine

        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            if isinstance(event, Trained):
                update = frozen(np.array([1.0, math.nan, 0.0], np.float32))
                event = Trained(event.job, update, event.examples, event.metrics)
            effects: Sequence[Effect] = self.machine.handle(event, now_ns)
            logged.extend(effect for effect in effects if isinstance(effect, Log))
            return effects

    run = follow(experiment(rounds=2), wrap=lambda node, machine: Diverged(machine) if node == 3 else machine)
    assert [survivors for _, survivors, _ in run.sums] == [(0, 1, 2, 4)] * 2
    assert run.reports("abstained") == [{"peer": 3, "reason": "OVERFLOW"}] * 2
    assert [line.facts["reason"] for line in logged if line.kind == "refused"] == ["OVERFLOW"] * 2
    assert "nan" not in repr(logged)


@pytest.mark.parametrize(
    ("place", "value", "reason"), [(0, 2**30, "BOUND"), (3, 2**31, "BOUND"), (5, 2, "OVERFLOW")],
    ids=["an element", "the weight", "a count of two"],
)  # fmt: skip
def test_a_client_that_lies_beyond_the_bounds_costs_the_round_and_not_the_model(
    quick: None, monkeypatch: pytest.MonkeyPatch, place: int, value: int, reason: str
) -> None:
    lying: list[int] = []

    class Lies:
        def __init__(self, machine: Any) -> None:
            self.machine = machine

        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            lying.append(3)
            try:
                return list(self.machine.handle(event, now_ns))
            finally:
                lying.pop()

    honest = client_round.integers

    def integers(*given: Any) -> Any:
        found = honest(*given)
        if lying:
            found.values[place] = value
        return found

    monkeypatch.setattr(client_round, "integers", integers)
    run = follow(experiment(rounds=3), wrap=lambda node, machine: Lies(machine) if node == 3 else machine)
    assert [report["reason"] for report in run.reports("abandoned")] == [reason] * 3
    models = [report.value for node, report in run.told if node == 5 and report.name == "round_done"]
    initial = compose.task_of(run.plan.experiment, 5)[0].initial(0)
    assert all(np.array_equal(model, initial) for model in models)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"algorithm": "median"}, "needs to see each contribution"),
        ({"algorithm": "krum"}, "needs to see each contribution"),
        ({"algorithm": "fedbuff"}, "no cohort"),
        ({"sampling": "poisson"}, "keep their size"),
        ({"clients": 2, "min_clients": 2}, "at least 3"),
        ({"secure": {"threshold": 2}}, "threshold = 2 of 5"),
        ({"secure": {"bits": 31}}, "bits = 31"),
        ({"min_clients": 6}, "min_clients = 6"),
        ({"cohort": 9}, "cohort = 9 of 5"),
        ({"algorithm": "fedsdg"}, "'fedsdg' is not known"),
        ({"options": {"mu": 1}}, "no option 'mu'"),
    ],
)
def test_what_cannot_be_a_secure_run_is_said_before_it_begins(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose.plan(load_experiment(experiment(**section)))


# --- what a client remembers ------------------------------------------------------------------------------------------


def test_a_log_tells_a_next_life_its_last_session_and_what_had_no_result() -> None:
    log = [
        ("joined", {"session": 4, "cohort": "0-2,5"}),
        ("masked", {"session": 4, "input": "aa" * 16}),
        ("result", {"session": 4}),
        ("joined", {"session": 7, "cohort": "0,2-4"}),
        ("masked", {"session": 7, "input": "bb" * 16}),
        ("consent", {"session": 7, "survivors": 3, "of": "0,2-3"}),
    ]
    past = past_of(log)
    assert (past.session, past.round, past.unfinished) == (7, 7, {7: b"\xbb" * 16})
    past.agree(7, "0,2-3")
    with pytest.raises(RoundAbandoned, match="clients 0,2-3"):
        past.agree(7, "0,2-4")


def test_a_log_of_the_release_before_tells_no_survivors_so_that_its_input_is_not_masked_again() -> None:
    log = [
        ("joined", {"session": 7, "cohort": "0,2-4"}),
        ("masked", {"session": 7, "input": "bb" * 16}),
        ("consent", {"session": 7, "survivors": 3}),
    ]
    descriptor = secure_kit.Room(6).proposal(8)
    past_of(log[:2]).mask(descriptor, b"\xbb" * 16)
    with pytest.raises(RoundAbandoned, match="earlier release"):
        past_of(log).mask(descriptor, b"\xbb" * 16)


@pytest.mark.parametrize("ids", [[], [3], [0, 1, 2], [0, 2, 3, 9], list(range(1000))])
def test_ids_survive_as_text(ids: list[int]) -> None:
    assert ids_in(ranges(ids)) == ids


@pytest.mark.parametrize("node", [0, 5])
def test_a_machine_without_keys_is_refused(node: int) -> None:
    """Nobody falls back to keys that everybody knows: a replay, say, or a driver that forgot to give them."""
    with pytest.raises(ConfigError, match="has no keys"):
        plan_of().machine(node, frozen(np.zeros(3, np.float32)), "s")


# --- whole experiments ------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "rounds": 4,
    "task": {"kind": "quadratic", "dim": 3, "sigma": 0.1, "placement": "random"},
    "coordinator": {"clients": 6, "deadline": 2.0, "least_deadline": 0.5},
}


def test_updates_that_are_cut_to_the_bound_are_told() -> None:
    narrow = {**SMALL, "coordinator": {**SMALL["coordinator"], "secure": {"bound": 1e-3}}}
    told = [row for row in fedgossip.simulate(narrow).rows if isinstance(row, EventRow) and row.name == "cut"]
    assert [row.value for row in told] == [{"cut": 6, "of": 6}] * 4
    assert "cut" not in fedgossip.simulate(SMALL).summary["events"]


def test_clients_that_are_struck_again_and_again_do_not_keep_a_run_from_ending() -> None:
    """Who starts again after the coordinator has finished calls until it gives up: not struck again, or never.

    It was not told the end, so the run is partial, as one of processes is.
    """
    struck = [{"kind": "crash", "peers": [0], "every": 2.0, "after": 1.0, "start": 0.2}]
    run = fedgossip.simulate({**SMALL, "faults": struck})
    assert run.summary["status"] == "partial" and run.summary["events"]["crashed"] > 0


def test_a_simulated_population_costs_the_keys_of_its_cohorts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a million clients would take a minute before the first round, their signatures three."""
    drawn: list[bytes] = []

    def counting(seed: bytes) -> tuple[bytes, Sign]:
        drawn.append(seed)
        return signer(seed)

    monkeypatch.setattr("fedgossip.plans.federated.credentials.signer", counting)
    monkeypatch.setattr(sessions, "verify", lambda *_: pytest.fail("a simulated roster holds no signature"))
    members = DrawnMembers(7, 10**6)
    roster = members.roster()
    assert len(roster.members) == 10**6 and not drawn
    assert roster.identity(734_221) == members.keys(734_221)[0] and len(drawn) == 1
    part = roster.first(10**6 - 1)
    assert part.identity(734_221) == roster.identity(734_221) and len(drawn) == 1
    assert len({roster.hash, part.hash, DrawnMembers(8, 10**6).roster().hash}) == 3
