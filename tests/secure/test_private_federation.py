"""Privacy budgets in federated runs: what is spent, what is refused, what is not told; nothing is forgotten."""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import secure_federation
from accounts import next_rate
from secure_federation import Followed, experiment, follow
from test_coordinator_commands import CLIENTS, Site
from test_secure_rounds import client_of, invited

import fedgossip
from fedgossip.audit.entries import entries
from fedgossip.base.errors import ConfigError, ResumeError
from fedgossip.cli import cli
from fedgossip.core.machine import Effect, Event, Log, Machine, Received, Send
from fedgossip.core.messages import Refusal
from fedgossip.core.records import PeerRow
from fedgossip.drivers.resume import resume
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.federated.privacy_budget import outlook
from fedgossip.privacy.accounting import Mechanism, epsilon
from fedgossip.secure import client
from fedgossip.secure.fixed_point import Quantised


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    secure_federation.quick(monkeypatch)


def learning(unit: str, rounds: int = 4, **privacy: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "train": {"lr": 0.1, "local_steps": 3, "batch_size": 16, "device": "cpu"},
        "coordinator": {"clients": 5, "privacy": {"unit": unit, **privacy}},
    }


def hiding(rounds: int = 4, clients: int = 5, **privacy: Any) -> dict[str, Any]:
    return experiment(clients, rounds, privacy={"unit": "client", "clip": 1.0, "noise": 2.0, **privacy})


# --- single records ---------------------------------------------------------------------------------------------------


def test_the_epsilon_of_a_run_is_that_of_its_smallest_site() -> None:
    run = fedgossip.simulate(learning("record", max_epsilon=50.0))
    fewest = min(run.summary["data"]["sizes"])
    expected = epsilon([Mechanism(1.0, next_rate(16 / fewest), 3 * 4)], 1e-5)
    assert run.summary["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert run.summary["status"] == "finished"
    spent = [row.epsilon for row in run.rows if isinstance(row, PeerRow) and row.peer == 0]
    assert spent == sorted(spent) and len(spent) == 4, "every client's rows say what it has spent"  # type: ignore[type-var]


def test_no_loss_is_told_where_examples_are_hidden() -> None:
    for secure in (True, False):
        content = learning("record", max_epsilon=50.0)
        content["coordinator"]["secure"] = {"on": secure}
        run = fedgossip.simulate(content)
        assert all(row.loss is None for row in run.rows if isinstance(row, PeerRow))


def test_a_run_ends_before_anybodys_budget_is_crossed() -> None:
    run = fedgossip.simulate(learning("record", rounds=50, max_epsilon=3.0))
    assert run.summary["status"] == "exhausted" and run.summary["epsilon"] <= 3.0
    assert 1 < run.summary["rounds"] < 50 and run.digest, "the model so far is the result"
    assert run.summary["privacy"]["unit"] == "record"


@pytest.mark.parametrize("rounds", [50, "one more than fits"])
def test_a_run_that_its_budget_ends_tells_what_its_model_is_worth(rounds: int | str) -> None:
    """Not what was measured last, before anything was learned; also where it is the last round that is refused."""
    ended = fedgossip.simulate(learning("record", rounds=50, max_epsilon=3.0))
    fits = ended.summary["rounds"] - ended.summary["rounds_abandoned"]
    if rounds != 50:
        ended = fedgossip.simulate(learning("record", rounds=fits + 1, max_epsilon=3.0))
        assert ended.summary["status"] == "exhausted" and ended.summary["rounds_abandoned"] == 1
    whole = fedgossip.simulate(learning("record", rounds=fits, max_epsilon=3.0))
    assert whole.summary["status"] == "finished" and ended.digest == whole.digest
    scores = [
        {**one.summary["score"], "round": None} for one in (ended, whole)
    ]  # measured after another number of rounds
    assert scores[0] == scores[1]
    assert ended.summary["test_loss"] == whole.summary["test_loss"]


def test_the_noise_that_a_plan_recommends_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(
        'rounds = 10\ntrain.device = "cpu"\n'
        'coordinator = { clients = 5, privacy = { unit = "client", max_epsilon = 1.0 } }\n'
    )
    assert cli(["privacy", "plan", "e.toml"], standalone_mode=False) == 6
    (noise,) = re.findall(r"With noise ([0-9.]+) all\s+fit", capsys.readouterr().out)
    assert cli(["privacy", "plan", "e.toml", "--set", f"coordinator.privacy.noise={noise}"], standalone_mode=False) == 0
    capsys.readouterr()
    cli(["run", "e.toml", "--dry-run"], standalone_mode=False)
    assert "fit into epsilon 1: there the run ends" in capsys.readouterr().out


def test_a_site_plans_with_its_own_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(
        'rounds = 2\ntrain.device = "cpu"\n'
        '[data]\nsource = "csv:site-{peer}.csv?label=y"\ntest = "csv:test.csv?label=y"\npartition = { kind = "own" }\n'
        '[coordinator]\nclients = 4\nprivacy = { unit = "record", max_epsilon = 100.0 }\n'
    )
    for name, rows in (("site-2.csv", 300), ("test.csv", 20)):
        Path(name).write_text("a,b,y\n" + "".join(f"{k % 7},{k % 5},{k % 2}\n" for k in range(rows)))
    assert cli(["privacy", "plan", "e.toml", "--id", "2", "--json"], standalone_mode=False) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["plan"]["examples"] == [300] * 4
    assert told["epsilon"] == pytest.approx(epsilon([Mechanism(1.0, next_rate(16 / 300), 2 * 5)], 1e-5))
    with pytest.raises(ConfigError, match="there is no client 4"):
        cli(["privacy", "plan", "e.toml", "--id", "4"], standalone_mode=False)
    with pytest.raises(ConfigError, match=re.escape("site-0.csv")):
        cli(["privacy", "plan", "e.toml"], standalone_mode=False)


def test_a_run_that_its_budget_ended_does_not_go_on(tmp_path: Path) -> None:
    fedgossip.simulate(learning("record", rounds=50, max_epsilon=1.5), out=tmp_path / "run")
    with pytest.raises(ResumeError, match="privacy budget has ended") as error:
        resume(tmp_path / "run")
    assert "a new run" in error.value.advice


def test_the_command_ends_with_6(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(
        'rounds = 50\ntrain = { local_steps = 3, device = "cpu" }\n'
        'coordinator = { clients = 3, privacy = { unit = "record", max_epsilon = 2.0 } }\n'
    )
    assert cli(["run", "e.toml", "--no-report"], standalone_mode=False) == 6
    assert "privacy budget ended it" in " ".join(capsys.readouterr().out.split())
    assert cli(["privacy", "plan", "e.toml"], standalone_mode=False) == 6
    told = capsys.readouterr().out
    assert "fit into epsilon 2: there the run ends" in told and "verdict" in told
    assert cli(["privacy", "plan", "e.toml", "--set", "rounds=1"], standalone_mode=False) == 0


# --- whole clients ----------------------------------------------------------------------------------------------------


def masked_inputs(run: dict[str, Any]) -> list[np.ndarray]:
    """The integers that clients put into sums, noise and all."""
    found: list[np.ndarray] = []
    mask = client.Shared.mask

    def watched(self: client.Shared, delivery: bytes, integers: Quantised) -> client.VectorMasked:
        found.append(integers.values.view(np.int32).astype(np.int64))
        return mask(self, delivery, integers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.Shared, "mask", watched)
        fedgossip.simulate(run)
    return found


def test_every_client_adds_its_share_of_the_noise_inside_the_sum() -> None:
    """Of variance (z S)^2 / h each, h = 5 survivors counted on; updates are far shorter than the noise here."""
    content = {**hiding(rounds=1), "task": {"kind": "quadratic", "dim": 4000, "eta": 1e-9}}
    plan = compose.plan(load_experiment(content))
    assert isinstance(plan, FederationPlan)
    fixed = plan.numbers.fixed_point(4000, "")
    assert plan.numbers.rule
    sigma = plan.numbers.rule.compute_noise(fixed).sigma
    assert sigma == pytest.approx(2.0 * (fixed.limit + math.sqrt(4000)) / math.sqrt(plan.least))
    inputs = [values[:4000] for values in masked_inputs(content)]
    assert len(inputs) == 5
    for values in inputs:
        assert np.std(values) == pytest.approx(sigma, rel=0.05)
    assert abs(np.corrcoef(inputs[0], inputs[1])[0, 1]) < 0.06, "each its own"


def test_nothing_beside_the_update_is_told_where_clients_are_hidden() -> None:
    for values in masked_inputs(hiding(rounds=1)):
        weight, clipped, count = values[3:]
        assert (clipped, count, len(values)) == (0, 1, 6), "neither a loss, nor steps, nor who was cut"
        assert weight == compose.plan(load_experiment(hiding())).numbers.fixed_point(3, "").limit  # type: ignore[union-attr]


def test_the_coordinator_and_every_client_count_rounds(quick: None) -> None:
    run = follow(hiding(max_epsilon=1e3))
    expected = [epsilon([Mechanism(2.0, 1.0, rounds)], 1e-5) for rounds in range(1, 5)]
    for node in (5, 0, 3):
        told = [row.epsilon for row in run.rows if isinstance(row, PeerRow) and row.peer == node]
        assert told == pytest.approx(expected)


def test_the_coordinator_opens_no_round_that_would_cross_the_limit(quick: None) -> None:
    limit = epsilon([Mechanism(2.0, 1.0, 2)], 1e-5) + 0.01
    run = follow(hiding(max_epsilon=limit))
    assert len(run.sums) == 2 and [value["text"][:8] for value in run.reports("budget")] == ["the next"]
    assert sorted(run.results) == list(range(6)), "all are sent home"


@pytest.mark.parametrize(
    ("other", "who"),
    [({"noise": 1.0}, "less noise"), ({"clip": 2.0}, "a longer clip"), ({"unit": "none"}, "no noise")],
)
def test_a_client_takes_no_part_where_there_is_other_noise_than_it_insists_on(other: dict[str, Any], who: str) -> None:
    plan, theirs = (compose.plan(load_experiment(content)) for content in (hiding(), hiding(**other)))
    assert isinstance(plan, FederationPlan) and isinstance(theirs, FederationPlan)
    effects = client_of(plan).handle(Received(plan.coordinator, invited(theirs)), 0)
    (refusal,) = (e.message for e in effects if isinstance(e, Send))
    assert isinstance(refusal, Refusal) and refusal.reason == "POLICY", who


# --- a clip that follows the updates ----------------------------------------------------------------------------------


def following(**privacy: Any) -> dict[str, Any]:
    """Forty clients, whose updates are about 0.3 long; a budget without end."""
    hide = {"noise": 0.1, "max_epsilon": 1e9, "adaptive": True, **privacy}
    return hiding(rounds=12, clients=40, **hide)


def clips(run: Followed) -> list[float]:
    return [facts["clip"] for facts in run.reports("aggregated") if facts["clients"]]


@pytest.mark.parametrize("first", [10.0, 0.01])
def test_a_clip_that_follows_the_updates_nears_their_median_from_both_sides(quick: None, first: float) -> None:
    """By exp(0.2 / 2) a round: at first all updates are shorter, or all longer."""
    found = clips(follow({**following(clip=first), "rounds": 5}))
    assert found[0] == first
    step = math.exp(-0.1 if first > 1 else 0.1)
    assert found[1:4] == pytest.approx([first * step, first * step**2, first * step**3], rel=0.02)


def test_the_clip_is_remembered_over_a_crash(quick: None) -> None:
    crash = {"kind": "crash", "peers": [40], "start": 0.4, "after": 0.3}
    found = clips(follow(following(clip=10.0), [crash]))
    assert all(later < earlier for earlier, later in pairwise(found)), "it resumes"


@pytest.mark.long
def test_a_clip_that_follows_costs_no_more_than_one_that_does_not(quick: None) -> None:
    """z of both sums together is z: the updates take a little more noise for that."""
    run = follow(following(clip=1.0))
    told = [row.epsilon for row in run.rows if isinstance(row, PeerRow) and row.peer == 40]
    assert told[-1] == pytest.approx(epsilon([Mechanism(0.1, 1.0, 12)], 1e-5))
    rule, fixed = run.plan.numbers.rule, run.plan.numbers.fixed_point(3, "")
    assert rule and rule.multiplier == pytest.approx((0.1**-2 - (2 * rule.bits) ** -2) ** -0.5)
    assert rule.multiplier > 0.1 and rule.compute_noise(fixed).bit_sigma > 0


def test_too_few_clients_for_such_a_clip_is_said() -> None:
    with pytest.raises(ConfigError, match="follows the updates"):
        compose.plan(load_experiment(hiding(adaptive=True)))


# --- nothing is forgotten ---------------------------------------------------------------------------------------------


class Watched:
    """Stands round a machine and keeps what it logs of its budget, with the life that it is in."""

    def __init__(self, machine: Machine, node: int, spent: list[tuple[int, int]]) -> None:
        self.machine, self.node, self.spent = machine, node, spent

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        effects = self.machine.handle(event, now_ns)
        self.spent += [(self.node, int(e.facts["round"])) for e in effects if isinstance(e, Log) and e.kind == "spent"]
        return effects


@pytest.mark.parametrize("who", [5, 2], ids=["the coordinator", "a client"])
def test_what_was_spent_before_a_crash_stays_spent(quick: None, who: int) -> None:
    spent: list[tuple[int, int]] = []
    crash = {"kind": "crash", "peers": [who], "start": 0.15, "after": 0.3}
    run: Followed = follow(
        hiding(rounds=8, max_epsilon=1e3), [crash], wrap=lambda node, machine: Watched(machine, node, spent)
    )
    paid = [round for node, round in spent if node == who]
    last = [row.epsilon for row in run.rows if isinstance(row, PeerRow) and row.peer == who][-1]
    assert last == pytest.approx(epsilon([Mechanism(2.0, 1.0, len(paid))], 1e-5)), "every line counts, in every life"
    assert len(paid) >= len([row for row in run.rows if isinstance(row, PeerRow) and row.peer == who])


@pytest.mark.sockets
def test_a_coordinator_killed_for_real_forgets_no_budget(tmp_path: Any) -> None:
    """The budget is for four rounds of five: killed in the third, it has paid for it, and may open one more."""
    limit = epsilon([Mechanism(2.0, 1.0, 4)], 1e-5) + 0.01
    privacy = f', privacy = {{ unit = "client", noise = 2.0, max_epsilon = {limit} }}'
    site = Site.made(tmp_path, more=privacy)
    try:
        clients = [site.client(node) for node in range(CLIENTS)]
        dying = str(Path(__file__).parents[1] / "dying.py")
        assert site.ended(site.coordinator(program=(dying, "masked", "2"))) == -signal.SIGKILL
        again = site.coordinator(resume=True)
        assert site.ended(again) == 6, site.said(CLIENTS)
        assert "at most" in site.said(CLIENTS) and "is allowed" in site.said(CLIENTS)
        for client_process in clients:
            site.ended(client_process)
        log = entries(tmp_path / f"out{CLIENTS}" / "audit.jsonl")
        assert [entry.facts["round"] for entry in log if entry.kind == "spent"] == [0, 1, 2, 3]
    finally:
        site.stop()


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (experiment(privacy={"unit": "record"}), "this task has none"),
        (experiment(privacy={"unit": "client"}, secure={"on": False}), "which is off"),
        (experiment(privacy={"unit": "client"}, algorithm="fednova"), "fednova"),
        (experiment(privacy={"unit": "client"}, algorithm="fedbuff"), "fedbuff cannot hide clients"),
        (experiment(privacy={"unit": "client"}, algorithm="median", secure={"on": False}), "median cannot hide"),
        (experiment(privacy={"unit": "record", "adaptive": True}), "adaptive = true moves the clip of clients"),
        (experiment(secure={"neighbours": 3}), "neighbours = 3"),
        (experiment(privacy={"unit": "household"}), "'household' is not known"),
        (experiment(privacy={"unit": "client", "noise": 0.0}), "noise = 0.0"),
    ],
)
def test_what_cannot_be_hidden_is_said_before_anything_runs(content: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose.plan(load_experiment(content))


def test_a_plan_without_a_budget_says_so() -> None:
    with pytest.raises(ConfigError, match="without a privacy budget"):
        outlook(compose.plan(load_experiment(experiment())))
