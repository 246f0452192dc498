"""What runs is what was signed: `fedgossip plan`, and the client that refuses anything else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import Output, typed
from test_agreed_statistics import breast_cancer

import fedgossip
from fedgossip.audit.entries import AuditError, entries
from fedgossip.audit.verify import verify_log
from fedgossip.base.errors import ConfigError
from fedgossip.core.run_format import APPROVAL, PLAN
from fedgossip.experiment import load_experiment
from fedgossip.experiment.sections import StudySection
from fedgossip.net.endpoints import block, signed
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.plans.approvals import plan_statement
from fedgossip.plans.approvals.approvals import Approval, ApprovalRequest, HowLong, read_signed, request_of
from fedgossip.plans.approvals.plan_statement import PlanStatement, statement_of
from fedgossip.plans.approvals.site_approvals import SiteApprovals
from fedgossip.plans.federated.federation import FederationPlan

DAY_NS = 86_400 * 10**9
EXPERIMENT = """
name = "pilot"
rounds = 4
task = { kind = "quadratic", dim = 3, sigma = 0.1, placement = "random" }
coordinator = { clients = 3, deadline = 20.0 }
"""


def plan_of(path: Path, *overrides: str) -> FederationPlan:
    made = compose.plan(load_experiment(path, overrides))
    assert isinstance(made, FederationPlan)
    return made


def stated(path: Path, *overrides: str) -> PlanStatement:
    plan = plan_of(path, *overrides)
    return statement_of(plan, compose.task_of(plan.experiment, plan.learners, [])[0])


class Clock:
    """Nanoseconds since 1970, as a test sets them."""

    def __init__(self) -> None:
        self.ns = 1_790_000_000 * 10**9

    def __call__(self) -> int:
        return self.ns


class Desk:
    """Site 0 of three, with its key, and everybody's entries."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, Clock()
        (folder / "pilot.toml").write_text(EXPERIMENT)
        self.identities = [Identity.new() for _ in range(4)]
        self.endpoints = {
            node: signed(one, "tcp://127.0.0.1:5700" if node == 3 else "") for node, one in enumerate(self.identities)
        }
        text = "\n".join(block(node, one) for node, one in self.endpoints.items())
        (folder / "endpoints.toml").write_text(text)
        self.key = folder / "peer.key"
        self.identities[0].save(self.key)

    def approvals(self) -> SiteApprovals:
        return SiteApprovals(self.key, Identity.load(self.key), self.clock)

    def request(self, *overrides: str) -> ApprovalRequest:
        plan = plan_of(self.folder / "pilot.toml", *overrides)
        return request_of(plan, stated(self.folder / "pilot.toml", *overrides), 0, self.endpoints)

    def refuses(self, request: ApprovalRequest, *, limits: HowLong | None = None) -> str:
        """Return why; the refusal is in the log."""
        with pytest.raises(ConfigError) as error:
            self.approvals().check(request, limits or HowLong())
        assert error.value.advice and "\n" not in str(error.value)
        assert self.approvals().refusals()[-1][1] == str(error.value)
        return str(error.value)

    def typed(self, *words: str) -> Output:
        return typed(words, self.folder)


def counted(desk: Desk, approval: Approval, request: ApprovalRequest, run: str) -> None:
    """A run in a folder of this name, from which something is about to leave."""
    approvals = desk.approvals()
    approvals.count(approval, request, approvals.keep(approval, desk.folder / run))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_the_same_at_all_sites_whatever_their_machines(tmp_path: Path) -> None:
    (tmp_path / "pilot.toml").write_text(EXPERIMENT)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "renamed.toml").write_text(EXPERIMENT.replace("20.0", "20") + "# a remark\n")
    here = stated(tmp_path / "pilot.toml", "train.device=cpu", "simulation.latency=1.0", "coordinator.silence=9.0")
    assert here.hash == stated(tmp_path / "other" / "renamed.toml").hash
    assert here.hash != stated(tmp_path / "pilot.toml", "seed=2").hash


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.long)])
def test_no_byte_of_a_plan_can_be_changed(tmp_path: Path, stride: int) -> None:
    (tmp_path / "pilot.toml").write_text(EXPERIMENT)
    written = stated(tmp_path / "pilot.toml")
    plan_statement.write(tmp_path / PLAN, written)
    content = (tmp_path / PLAN).read_bytes()
    assert plan_statement.read(tmp_path / PLAN) == written
    for place, byte in list(enumerate(content))[::stride]:
        (tmp_path / PLAN).write_bytes(content[:place] + bytes([byte ^ 1]) + content[place + 1 :])
        try:
            assert plan_statement.read(tmp_path / PLAN).hash != written.hash, place
        except ConfigError as error:
            assert str(tmp_path / PLAN) in str(error)


def _flips(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Each leaf of plain data, with another value of its type."""
    if isinstance(value, dict) and value:
        return [one for key, inner in value.items() for one in _flips(inner, (*path, key))]
    match value:
        case bool():
            other: Any = not value
        case int() | float():
            other = value + 1
        case str():
            other = value + "x"
        case None:
            other = {"columns": [], "labels": [], "sites": 1, "records": 1}
        case _:
            other = [*value, "x"] if isinstance(value, list | tuple) else {"x": "x"}
    return [(path, other)]


def test_a_plan_of_which_any_field_is_another_is_refused(desk: Desk) -> None:
    desk.approvals().approve(desk.request(), days=30, rounds=1000)
    request = desk.request()
    approvals = desk.approvals()
    assert approvals.check(request).plan == request.statement.hash
    plain = msgspec.to_builtins(request.statement)
    fields = _flips(plain)
    assert len(fields) > 50 and {path[0] for path, _ in fields} == set(PlanStatement.__struct_fields__)
    for path, other in fields:
        changed = json.loads(json.dumps(plain))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = other
        statement = msgspec.convert(changed, PlanStatement)
        with pytest.raises(ConfigError, match="was never approved"):
            approvals.covering(replace(request, statement=statement), HowLong(), "")


def test_every_byte_of_an_experiment_file_is_the_same_run_or_refused(desk: Desk) -> None:
    """A flipped byte makes the file unreadable, or another plan, or it is a blank, a name of the file's own, a wait."""
    path, approvals = desk.folder / "pilot.toml", desk.approvals()
    approvals.approve(desk.request(), days=30, rounds=4)
    approved, was = desk.request().statement, load_experiment(path).to_dict()
    same = 0
    for place, letter in enumerate(EXPERIMENT):
        path.write_text(EXPERIMENT[:place] + chr(ord(letter) ^ 1) + EXPERIMENT[place + 1 :])
        try:
            now = stated(path)
        except (ConfigError, ValueError):
            continue
        if now.hash == approved.hash:
            assert load_experiment(path).to_dict() == was, place
            same += 1
    assert same < 20


def test_one_changed_byte_of_common_files_and_of_own_code_is_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breast_cancer(tmp_path, 1)
    monkeypatch.chdir(tmp_path)
    assert typed(["data", "agree", "federated.toml"], tmp_path).code == 0
    (tmp_path / "mymodel.py").write_text(
        "import torch\n\ndef net(shape, classes):\n    return torch.nn.Linear(30, 2)\n"
    )
    overrides = ["model.source=mymodel:net", "train.device=cpu"]
    plan = plan_of(tmp_path / "federated.toml", *overrides)
    task, _ = compose.task_of(plan.experiment, plan.learners, [])
    before = statement_of(plan, task)
    assert set(before.files) == {"test.csv"} and set(before.code) == {"mymodel"}
    assert before.table and len(before.table.columns) == 30
    for name in ("test.csv", "mymodel.py"):
        content = (tmp_path / name).read_bytes()
        for place in range(0, len(content), max(1, len(content) // 40)):
            (tmp_path / name).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            try:
                assert statement_of(plan, task).hash != before.hash, (name, place)
            except ConfigError:  # a cell that is no number: no plan at all
                assert name == "test.csv"
        (tmp_path / name).write_bytes(content)
    assert statement_of(plan, task).hash == before.hash


# --- approvals --------------------------------------------------------------------------------------------------------


def test_no_byte_of_the_approvals_can_be_changed(desk: Desk) -> None:
    desk.approvals().approve(desk.request(), days=30, rounds=4, by="a board")
    path, request = desk.approvals().path, desk.request()
    content = path.read_bytes()
    for place, byte in enumerate(content):
        path.write_bytes(content[:place] + bytes([byte ^ 1]) + content[place + 1 :])
        with pytest.raises(ConfigError):
            desk.approvals().check(request)
    path.write_bytes(content)
    assert desk.approvals().check(request).by == "a board"
    assert verify_log(path, bytes.fromhex(desk.identities[0].verify)).sound


def test_an_approval_ends_with_its_day_its_rounds_and_what_the_policy_says(desk: Desk) -> None:
    made, request = desk.approvals().approve(desk.request(), days=30, rounds=8), desk.request()
    desk.clock.ns += 29 * DAY_NS
    assert desk.approvals().check(request) == made
    assert "ended on" in desk.refuses(request, limits=HowLong(days=20))
    for run in ("one", "two"):
        (desk.folder / run).mkdir()
        counted(desk, desk.approvals().check(request), request, run)
    assert "is for 8 rounds, of which 8 are used; this run has 4" in desk.refuses(request)
    assert "is for 4 rounds" in desk.refuses(request, limits=HowLong(rounds=4))
    run = (desk.folder / "two" / "approval.run").read_text()
    assert desk.approvals().check(request, HowLong(), run) == made, "a run that goes on is counted already"
    counted(desk, made, request, "two")
    assert desk.approvals().used(made) == 8
    desk.clock.ns += 2 * DAY_NS
    assert "ended on" in desk.refuses(request)
    desk.clock.ns -= 20 * DAY_NS
    assert "ended on" in desk.refuses(request), "a clock that is set back prolongs nothing"


def test_an_approval_is_of_these_participants_and_versions(desk: Desk) -> None:
    desk.approvals().approve(desk.request(), days=30, rounds=4)
    request = desk.request()
    assert "was never approved" in desk.refuses(replace(request, participant=1))
    assert "other keys of the coordinator" in desk.refuses(replace(request, coordinator="0" * 64))
    assert "other keys of the participants" in desk.refuses(replace(request, roster="0" * 64))
    newer = replace(request, versions={**request.versions, "torch": "99.0"})
    assert "was approved with torch" in desk.refuses(newer)
    without = {name: one for name, one in request.versions.items() if name != "numpy"}
    assert "and this is numpy none" in desk.refuses(replace(request, versions=without))
    old = msgspec.structs.replace(request.statement, version="0.0.9")
    assert "differs in version" in desk.refuses(replace(request, statement=old))


def test_what_was_revoked_is_refused_until_it_is_approved_again(desk: Desk) -> None:
    made = desk.approvals().approve(desk.request(), days=30, rounds=4)
    desk.approvals().revoke(made, "a site has left")
    assert "was revoked on 2026-09-21: a site has left" in desk.refuses(desk.request())
    assert desk.approvals().last() is None
    again = desk.approvals().approve(desk.request(), days=30, rounds=4)
    assert desk.approvals().check(desk.request()) == again


def test_the_approvals_of_another_key_are_refused(desk: Desk) -> None:
    desk.approvals().approve(desk.request(), days=30, rounds=4)
    desk.key.unlink()
    desk.identities[1].save(desk.key)
    with pytest.raises(ConfigError, match="which is not that of") as error:
        desk.approvals()
    assert "--key" in error.value.advice


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.long)])
def test_anybody_can_check_the_approval_in_the_folder_of_a_run(desk: Desk, stride: int) -> None:
    made = desk.approvals().approve(desk.request(), days=30, rounds=4)
    desk.approvals().keep(made, desk.folder)
    assert read_signed(desk.folder / APPROVAL) == [made]
    content = (desk.folder / APPROVAL).read_bytes()
    for place, byte in list(enumerate(content[:-1]))[::stride]:
        (desk.folder / APPROVAL).write_bytes(content[:place] + bytes([byte ^ 1]) + content[place + 1 :])
        with pytest.raises(AuditError):
            read_signed(desk.folder / APPROVAL)


# --- the commands -----------------------------------------------------------------------------------------------------

NAMED = ["--endpoints", "endpoints.toml", "--id", "0"]


def test_a_site_reads_compares_approves_and_revokes(desk: Desk) -> None:
    shown = desk.typed("plan", "show", "pilot.toml", "--out", PLAN)
    statement = plan_statement.read(desk.folder / PLAN)
    assert shown.code == 0 and shown.out.splitlines()[-1] == f"hash {statement.hash}"
    none = desk.typed("plan", "diff", "pilot.toml")
    assert none.code == 2 and "has approved no plan that stands" in none.err
    assert desk.typed("plan", "approve", "pilot.toml", *NAMED).code == 2, "nobody said which"
    other = desk.typed("plan", "approve", "pilot.toml", *NAMED, "--plan", "0" * 8)
    assert other.code == 2 and f"this is {statement.hash[:16]}" in other.err
    done = desk.typed("plan", "approve", "pilot.toml", *NAMED, "--plan", statement.hash[:8], "--by", "A. Board")
    assert done.code == 0 and f"plan {statement.hash}, for 4 rounds" in done.out
    assert desk.typed("plan", "diff", "pilot.toml").code == 0
    differs = desk.typed("plan", "diff", "pilot.toml", "--set", "coordinator.secure.on=false")
    assert differs.code == 1 and "coordinator.secure.on: approved True; now False" in differs.out
    assert "the coordinator sees every client's update" in differs.out
    listed = desk.typed("plan", "approved")
    assert statement.hash[:16] in listed.out and "A. Board" in listed.out and "0 of 4" in listed.out
    assert desk.typed("plan", "revoke", "--plan", statement.hash[:8], "--why", "no").code == 0
    assert "revoked on" in desk.typed("plan", "approved").out
    twice = desk.typed("plan", "revoke", "--plan", statement.hash[:8])
    assert twice.code == 2 and "was revoked" in twice.err
    wrong = desk.typed("plan", "approve", "pilot.toml", *NAMED[:3], "1", "--plan", statement.hash[:8])
    assert wrong.code == 2 and "is not the key that" in wrong.err


def test_a_plan_is_compared_by_telephone(desk: Desk) -> None:
    """Forty digits: whoever writes both plans has to try 2^66 for two that read out alike."""
    desk.typed("plan", "show", "pilot.toml", "--out", "plan.json")
    digits = desk.typed("plan", "hash", "pilot.toml").out.strip()
    assert digits.replace(" ", "") == str(int(stated(desk.folder / "pilot.toml").hash, 16))[-40:]
    assert [len(one) for one in digits.split(" ")] == [5] * 8
    assert desk.typed("plan", "hash", "plan.json").out.strip() == digits
    assert f"by telephone   {digits}" in desk.typed("plan", "show", "pilot.toml").out
    same = desk.typed("plan", "hash", "pilot.toml", "--against", digits.replace(" ", ""))
    assert same.code == 0 and same.err == "The same plan.\n"
    misheard = f"{digits[:6]}{(int(digits[6]) + 1) % 10}{digits[7:]}"
    other = desk.typed("plan", "hash", "pilot.toml", "--against", misheard)
    assert other.code == 1 and "ANOTHER PLAN: group 2 differs." in other.err
    assert desk.typed("plan", "hash", "pilot.toml", "--set", "seed=2", "--against", digits).code == 1
    for wrong in (digits[:-1], "", "abcde " * 8):
        said = desk.typed("plan", "hash", "plan.json", "--against", wrong)
        assert said.code == (2 if wrong else 0) and len(said.errors) == bool(wrong)
    assert "has its keys" in desk.typed("plan", "hash", "plan.json", "--set", "seed=2").err


STUDY = """
[study]
sites = ["North", "South & Sons", "West"]
purpose = "To learn who needs a call"
legal_basis = "Consent"
retention = "Ten years, at North"
contact = "Dr. Weber"
"""


def test_every_key_of_the_study_has_its_words_in_a_shown_plan() -> None:
    """Its keys are of the plan and its hash: nobody signs one that was not shown."""
    assert tuple(plan_statement.STUDY) == StudySection.__struct_fields__


def test_a_plan_shows_what_people_agreed_on_beside_the_run(desk: Desk) -> None:
    """A file without it has the plan that it had; one letter of it is another plan."""
    path = desk.folder / "pilot.toml"
    before = stated(path)
    path.write_text(EXPERIMENT + "[study]\npurpose = ''\nsites = []\n")
    assert stated(path) == before and "study" not in before.experiment
    path.write_text(EXPERIMENT + STUDY)
    shown = " ".join(desk.typed("plan", "show", "pilot.toml").out.split())
    for words in (
        "sites North; South & Sons; West",
        "purpose To learn",
        "legal basis Consent",
        "kept Ten years",
        "contact Dr.",
    ):
        assert words in shown
    assert stated(path).hash not in (before.hash, stated(path, "study.contact=Dr. Webes").hash)
    sent = replace_text(stated(path), "study.purpose", "To \x1b[2Jlearn\nbudget  none")
    (purpose,) = (text for what, text in plan_statement.lines(sent) if what == "purpose")
    assert purpose == "To [2Jlearn budget none"


def replace_text(statement: PlanStatement, key: str, text: str) -> PlanStatement:
    section, name = key.split(".")
    return msgspec.structs.replace(
        statement, experiment={**statement.experiment, section: {**statement.experiment[section], name: text}}
    )


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("purpose = 'a\tb'", "cannot be shown as it is"),
        ("purpose = ' a'", "cannot be shown as it is"),
        (f"contact = '{'x' * 501}'", "cannot be shown as it is"),
        ("sites = ['a', 'b']", "has 2 names, and coordinator.clients = 3"),
        ("sites = ['a', 'b', 'a']", "has a name twice"),
        ("sites = ['a', 'b', '']", "cannot be shown as it is"),
        ("sites = 'abc'", "expected `array`"),
        ("purposes = 'a'", "unknown key 'study.purposes'"),
    ],
)
def test_a_study_that_cannot_be_shown_is_refused_in_one_line(desk: Desk, key: str, told: str) -> None:
    (desk.folder / "pilot.toml").write_text(f"{EXPERIMENT}[study]\n{key}\n")
    said = desk.typed("plan", "show", "pilot.toml")
    assert said.code == 2 and told in said.err and len(said.errors) == 1


def test_a_client_takes_part_in_approved_plans_alone(desk: Desk) -> None:
    """It ends before it calls anybody."""
    assert desk.typed("privacy", "policy", "pilot.toml", "--endpoints", "endpoints.toml").code == 0
    hash = stated(desk.folder / "pilot.toml").hash
    words = ["client", "pilot.toml", *NAMED]
    assert desk.typed("plan", "approve", "pilot.toml", *NAMED, "--plan", hash, "--rounds", "3").code == 0
    few = desk.typed(*words, "--out", "out")
    assert few.code == 2 and "is for 3 rounds, of which 0 are used" in few.err and not (desk.folder / "out").exists()
    off = desk.typed(*words, "--set", "rounds=3")
    assert off.code == 2 and "policy.toml allows another run" in off.err, "the policy is asked first"
    (desk.folder / "policy.toml").unlink()
    assert desk.typed("privacy", "policy", "pilot.toml", "--endpoints", "endpoints.toml", "--set", "seed=7").code == 0
    other = desk.typed(*words, "--set", "seed=7")
    assert other.code == 2 and "was never approved" in other.err and "differs in experiment.seed" in other.err
    assert [one.kind for one in entries(desk.folder / "peer.key.approvals")].count("refused") == 2


def test_a_policy_can_demand_an_approval(desk: Desk) -> None:
    words = ["pilot.toml", "--endpoints", "endpoints.toml"]
    assert desk.typed("privacy", "policy", *words, "--approval-days", "90", "--approval-rounds", "4").code == 0
    ended = desk.typed("client", *words, "--id", "0")
    assert ended.code == 2 and "was never approved" in ended.err


def test_the_folder_of_a_run_holds_its_plan(tmp_path: Path) -> None:
    (tmp_path / "pilot.toml").write_text(EXPERIMENT)
    fedgossip.simulate(tmp_path / "pilot.toml", out=tmp_path / "run")
    assert plan_statement.read(tmp_path / "run" / PLAN) == stated(tmp_path / "pilot.toml")
