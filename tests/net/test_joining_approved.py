"""A site that joins by an invite takes part in the plan that its key has approved, and in no other."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Output, free_ports, typed
from test_host_join import People
from test_invited_runs import federated
from test_plan_approvals import DAY_NS, EXPERIMENT, Desk, counted, plan_of

from fedgossip.audit.entries import entries
from fedgossip.base.errors import ConfigError, PeerError
from fedgossip.cli.sites.approval import approved
from fedgossip.core.messages import Gathering
from fedgossip.core.run_format import APPROVAL
from fedgossip.drivers import invite_joining, proposals
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.net.endpoints import load_blocks
from fedgossip.net.identity import Identity
from fedgossip.net.invites.invitation import written
from fedgossip.net.invites.invite_server import InviteServer
from fedgossip.plans import compose
from fedgossip.plans.approvals.approvals import JOINING, ApprovalRequest, HowLong, read_signed, request_to_join, site_of
from fedgossip.plans.approvals.plan_statement import statement_of

pytestmark = pytest.mark.sockets


class Organiser:
    """The server of an invite to a run of a coordinator; `here` is who has asked for a place and was given one."""

    def __init__(self, folder: Path, text: str = EXPERIMENT) -> None:
        folder.mkdir()
        (folder / "pilot.toml").write_text(text)
        whole = proposals.shared(load_experiment(folder / "pilot.toml"), "", 3)
        plan = compose.plan(whole.experiment)
        proposal = proposals.proposal_of(whole, compose.task_of(plan.experiment, plan.learners, [])[0])
        (port,) = free_ports(1)
        later = int(time.time()) + 3600
        hosted = invite_joining.hosted(
            folder / "hosting", "pilot", "", invite_joining.seats_of(plan), later, (port, port)
        )
        self._admission = invite_joining.invite_admission(hosted, "tcp://127.0.0.1:1", proposal, whole.test)
        self.server = InviteServer(f"tcp://127.0.0.1:{port}", self._admission)
        self.server.serve_beside()
        self.invite = written(hosted.invitation([f"tcp://127.0.0.1:{port}"]))

    @property
    def here(self) -> list[int]:
        return list(self._admission.party.guests)


class Asked(PeerError):
    """A place was asked for, and given."""


class Site:
    """A folder with a key, in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        Identity.new().save(folder / "peer.key")

    def join(self, invite: str, *words: str) -> Output:
        return typed(["join", invite, "--yes", "--key", "peer.key", *words], self.folder)

    def advised(self, said: Output, invite: str) -> Output:
        """Type what the advice of a refusal says; the plan is named by the hash that `plan show` ends with."""
        show, approve = re.findall(r"fedgossip (plan \w+ .*?);", said.err.splitlines()[-1])
        shown = typed(shlex.split(show), self.folder)
        assert shown.code == 0, shown.err
        named = shown.out.split()[-1][:8]
        return typed([*shlex.split(approve.replace("INVITE", invite)), "--plan", named, "--by", "a board"], self.folder)

    @property
    def refusals(self) -> int:
        return [one.kind for one in entries(self.folder / "peer.key.approvals")].count("refused")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """End a join where its place was given: the others never come."""

    def told(_: object, known: Gathering) -> None:
        raise Asked(f"client {known.node} waits", peer=known.node)

    monkeypatch.setattr("fedgossip.cli.people.join.WaitingLines.__call__", told)


def organised(stack: list[Organiser], folder: Path, text: str = EXPERIMENT) -> Organiser:
    stack.append(Organiser(folder, text))
    return stack[-1]


@pytest.fixture
def organisers() -> Iterator[list[Organiser]]:
    made: list[Organiser] = []
    yield made
    for one in made:
        one.server.close()


@pytest.mark.usefixtures("asked")
def test_a_site_that_asks_for_an_approval_joins_the_plan_that_it_has_signed_and_no_other(
    tmp_path: Path, organisers: list[Organiser]
) -> None:
    """What to type is in the refusal, which comes before a place is asked for; from then on its key is held to it."""
    first, site = organised(organisers, tmp_path / "first"), Site(tmp_path / "site")
    refused = site.join(first.invite, "--approval-days", "90")
    assert refused.code == 2 and "was never approved with peer.key" in refused.errors[0], refused.err
    assert not first.here and not [*site.folder.glob("joined/*/run")]
    assert site.join(first.invite).code == 2 and not first.here, "once it has asked it asks always"
    approved = site.advised(refused, first.invite)
    assert approved.code == 0 and "for 4 rounds" in approved.out, approved.err
    let_in = site.join(first.invite)
    assert "client 0 waits" in let_in.err and "approved on" in let_in.err and first.here == [0], let_in.err
    listed = typed(["plan", "approved"], site.folder)
    assert "by invite" in listed.out and "0 of 4" in listed.out, "rounds are counted when the run begins"

    other = organised(organisers, tmp_path / "other", EXPERIMENT.replace("0.1,", "0.2,"))
    changed = site.join(other.invite)
    assert changed.code == 2 and "differs in experiment.task.sigma" in changed.errors[0] and not other.here
    stranger = organised(organisers, tmp_path / "stranger")
    unknown = site.join(stranger.invite)
    assert unknown.code == 2 and "with other keys of the organiser" in unknown.errors[0] and not stranger.here
    assert typed(["plan", "revoke", "--plan", approved.out.split()[2][:8]], site.folder).code == 0
    assert "was revoked" in site.join(first.invite).errors[0]
    assert site.refusals == 5


GOSSIP = """
rounds = 4
task = { kind = "quadratic", dim = 3, sigma = 0.1, placement = "random" }
topology = { graph = "ring", n = 3 }
"""


WORKERS = """
rounds = 4
task = { kind = "quadratic", dim = 3, sigma = 0.1, placement = "random" }
parallel = { method = "ring", workers = 3 }
"""


@pytest.mark.usefixtures("asked")
def test_a_peer_that_asks_for_an_approval_joins_the_graph_that_it_has_signed_and_no_other(
    tmp_path: Path, organisers: list[Organiser]
) -> None:
    """As a client does; what it reads says that neighbours see its model."""
    first, site = organised(organisers, tmp_path / "first", GOSSIP), Site(tmp_path / "site")
    refused = site.join(first.invite, "--approval-days", "90")
    assert refused.code == 2 and "was never approved with peer.key" in refused.errors[0] and not first.here, refused
    (file,) = site.folder.glob("joined/*/experiment.toml")
    words = typed(["plan", "show", str(file)], site.folder).out
    assert "without a coordinator (ring" in words and "neighbours" in words and "they see your model" in words.lower()
    assert site.advised(refused, first.invite).code == 0
    let_in = site.join(first.invite)
    assert "1 waits" in let_in.err and "approved on" in let_in.err and first.here == [1], let_in.err
    for name, text, key in (
        ("step", GOSSIP.replace("0.1,", "0.2,"), "experiment.task.sigma"),
        ("graph", GOSSIP.replace('"ring"', '"path"'), "experiment.topology.graph"),
        ("led", EXPERIMENT, "experiment.algorithm"),
    ):
        other = organised(organisers, tmp_path / name, text)
        changed = site.join(other.invite)
        assert changed.code == 2 and key in changed.errors[0] and not other.here, changed
    workers = organised(organisers, tmp_path / "workers", WORKERS)
    none = site.join(workers.invite)
    assert none.code == 2 and "workers that share every step" in none.errors[0] and not workers.here
    words = ["plan", "approve", str(file), "--id", "0", "--endpoints", "endpoints.toml", "--key", "peer.key"]
    alone = typed(words, site.folder)
    assert alone.code == 2 and "approved by an invite" in alone.errors[0]


@pytest.mark.usefixtures("asked")
def test_a_site_that_asks_for_nothing_joins_as_before(tmp_path: Path, organisers: list[Organiser]) -> None:
    one, site = organised(organisers, tmp_path / "one"), Site(tmp_path / "site")
    assert "client 0 waits" in site.join(one.invite).err and one.here == [0]
    assert not (site.folder / "peer.key.approvals").exists()


def test_a_policy_asks_for_an_approval_to_join(tmp_path: Path, organisers: list[Organiser]) -> None:
    desk, one = Desk(tmp_path), organised(organisers, tmp_path / "one")
    words = ["--endpoints", "endpoints.toml", "--approval-days", "90"]
    assert desk.typed("privacy", "policy", "pilot.toml", *words).code == 0
    said = desk.typed("join", one.invite, "--yes", "--key", "peer.key", "--policy", "policy.toml")
    assert said.code == 2 and "was never approved" in said.errors[0] and not one.here


def test_what_is_revoked_while_the_others_are_awaited_does_not_begin(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.clock.ns = time.time_ns()
    request = to_join(desk)
    made = desk.approvals().approve(request, days=30, rounds=4)
    gate = approved(lambda: request, desk.key, None, None)
    assert gate
    desk.approvals().revoke(made, "the board met")
    with pytest.raises(ConfigError, match="the board met"):
        gate.keep(desk.folder)
    with pytest.raises(ConfigError, match="the board met"):
        gate.open()
    assert not (desk.folder / APPROVAL).exists() and not desk.approvals().used(made)


def test_an_approval_is_for_participants_or_for_an_invite(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for words in ([], ["--id", "0"], ["--id", "0", "--endpoints", "endpoints.toml", "--invite", "fg1-x"]):
        said = desk.typed("plan", "approve", "pilot.toml", *words)
        assert said.code == 2 and "no participants" in said.errors[0] and len(said.err.splitlines()) == 2
    assert desk.typed("plan", "approve", "pilot.toml", "--invite", "fg1-x").code == 2


# --- what the approval is of ------------------------------------------------------------------------------------------

ORGANISER, OTHER = Identity.new().public, Identity.new().public


def to_join(desk: Desk) -> ApprovalRequest:
    return request_to_join(desk.request().statement, plan_of(desk.folder / "pilot.toml").experiment, ORGANISER)


def test_an_approval_to_join_is_of_one_organiser_for_a_time_and_rounds(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    request = to_join(desk)
    made = desk.approvals().approve(request, days=30, rounds=8)
    assert desk.approvals().check(request) == made and made.participant == JOINING
    assert "with other keys of the organiser" in desk.refuses(replace(request, coordinator=OTHER))
    assert "as another participant or to join" in desk.refuses(desk.request()), "it is none for client 0"
    desk.clock.ns += 29 * DAY_NS
    assert desk.approvals().check(request) == made
    assert "ended on" in desk.refuses(request, limits=HowLong(days=20))
    for run in ("one", "two"):
        (desk.folder / run).mkdir()
        counted(desk, made, request, run)
    assert "is for 8 rounds, of which 8 are used" in desk.refuses(request)
    desk.clock.ns += 2 * DAY_NS
    assert "ended on" in desk.refuses(request)


def test_the_log_of_approvals_to_join_is_said_to_be_of_a_client_by_invite(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    approvals = desk.approvals()
    approvals.approve(to_join(desk), days=30, rounds=8)
    said = typed(["audit", "verify", str(approvals.path)], tmp_path)
    assert said.code == 0 and "log of a client by invite: sound" in said.out and "client -1" not in said.out


def test_an_approval_of_participants_is_none_to_join(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.approvals().approve(desk.request(), days=30, rounds=4)
    assert "as another participant or to join" in desk.refuses(to_join(desk))


OF_THE_MACHINE = (
    "simulation",
    "faults",
    "coordinator.start_timeout",
    "coordinator.return_timeout",
    "coordinator.silence",
)
"""What each site may have otherwise: what a simulation makes up, and how long it waits."""


def test_a_proposal_of_which_any_byte_is_another_is_refused_or_the_same_run(tmp_path: Path) -> None:
    """A flipped byte makes it unreadable, or another plan; or it is of a key that no plan has."""
    desk = Desk(tmp_path)
    whole = proposals.shared(load_experiment(desk.folder / "pilot.toml"), "", 3)
    proposal = proposals.proposal_of(whole, compose.task_of(whole.experiment, 3, [])[0])

    def joined(text: str) -> tuple[Experiment, ApprovalRequest]:
        plan = compose.plan(proposals.experiment_of(replace(proposal, experiment=text), desk.folder))
        statement = statement_of(plan, compose.task_of(plan.experiment, plan.learners, [])[0])
        return plan.experiment, request_to_join(statement, plan.experiment, ORGANISER)

    text, approvals = proposal.experiment, desk.approvals()
    experiment, request = joined(text)
    approvals.approve(request, days=30, rounds=4)
    refused = 0
    for place in range(0, len(text), 3):
        try:
            other, asked = joined(text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :])
        except (ConfigError, ValueError):
            continue
        if asked == request:
            before, now = flat(experiment.to_dict()), flat(other.to_dict())
            assert all(key.startswith(OF_THE_MACHINE) for key in before if before[key] != now[key]), place
            continue
        refused += 1
        with pytest.raises(ConfigError, match="was never approved"):
            approvals.covering(asked)
    assert refused > 10


def flat(content: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Values by dotted names."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


# --- a whole run ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_run_whose_clients_joined_carries_their_approvals(tmp_path: Path) -> None:
    people = People(tmp_path, 240.0)
    federated(people)
    own = ["--data", "csv:mine.csv?label=y"]
    try:
        invite = people.host("--peers", "3")
        people.join("b", invite, *own, "--approval-days", "90")
        assert people.ended("b") == 2 and "was never approved" in people.said("b")
        (place,) = people.home("b").glob("joined/*")
        file, key = str(place / "experiment.toml"), str(place / "peer.key")
        plan = typed(["plan", "show", file], people.home("b")).out.split()[-1]
        words = ["plan", "approve", file, "--invite", invite, "--key", key, "--plan", plan[:8], "--by", "a board"]
        assert typed(words, people.home("b")).code == 0
        for who in "bcd":
            people.join(who, invite, *own, *(["--approval-days", "90"] if who == "b" else []))
        assert [people.ended(who) for who in ("host", *"bcd")] == [0] * 4, people.said("b") + people.said("host")
    finally:
        people.stop()
    (signed,) = read_signed(people.run_of("b") / APPROVAL)
    keys = {node: one.verify for node, one in load_blocks(place / "endpoints.toml").items()}
    assert signed.plan == plan and site_of(signed, keys) in range(3)
    assert "approval_days = 90" in (place / "policy.toml").read_text()
    assert "2 of 2" in typed(["plan", "approved", "--key", key], people.home("b")).out
