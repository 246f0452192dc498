"""`host` and `join` through a folder: an invite without an address, admission by sealed files, and the run by steps."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Output, typed
from safetensors.numpy import load_file

from fedgossip.base.errors import PeerError
from fedgossip.base.vectors import digest
from fedgossip.base.version import __version__
from fedgossip.core.messages import Beginning, Enrol, Gathering, InviteProof, Proposal
from fedgossip.drivers import invite_joining
from fedgossip.drivers.simulate import simulate
from fedgossip.net.endpoints import read_block, signed
from fedgossip.net.identity import Identity, raw
from fedgossip.net.invites.invitation import Invitation, new_secret
from fedgossip.net.invites.invite_admission import Guest, InviteAdmission, Party, Seats
from fedgossip.net.invites.invite_folder import AwaitedError, FolderClient, InviteFolder
from fedgossip.net.invites.invite_server import WRONG_MAX

EXPERIMENT = """
rounds = 2
task = { kind = "quadratic", dim = 3, sigma = 0.1, placement = "random" }
"""
RING = '[topology]\nn = 4\ngraph = "ring"\n'
TIERS = "[coordinator]\nclients = 6\nmin_clients = 3\ntiers = [{ clients = 3 }, { clients = 2, secure = false }]\n"
CLIENTS = "[coordinator]\nclients = 3\nmin_clients = 3\n"


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk's syncs take longer than all else; what they are for is tested with the kills."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Visits:
    """Machines that are at the folder one after the other: a stick that is carried from one to the next."""

    def __init__(self, place: Path, sections: str, guests: Sequence[str]) -> None:
        self.place, self.guests, self.stick = place, guests, place / "Jürgen's stick"
        self.stick.mkdir()
        for who in ("host", *guests):
            (place / who).mkdir()
        (place / "host" / "pilot.toml").write_text(EXPERIMENT + sections)
        self.invite = ""
        self.places: dict[str, tuple[str, ...]] = {}

    def typed(self, who: str, *words: str) -> Output:
        return typed([*words, "--links", f"folder:{self.stick}", "--once"], self.place / who)

    def host(self) -> Output:
        said = self.typed("host", "host", "pilot.toml")
        self.invite = said.out.split()[-1] if said.out else self.invite
        return said

    def join(self, who: str, *more: str) -> Output:
        return self.typed(who, "join", self.invite, *self.places.get(who, ()), *(more or ("--yes",)))

    def run_of(self, who: str) -> Path | None:
        return next(self.place.joinpath(who).glob("hosting/*/run" if who == "host" else "joined/*/run"), None)

    def visit(self, who: str) -> Output:
        """Do what a person does with the stick: the same command again, and `fedgossip step` once the run goes on."""
        if (run := self.run_of(who)) is not None:
            return typed(["step", os.fspath(run.relative_to(self.place / who))], self.place / who)
        return self.host() if who == "host" else self.join(who)

    def to_the_end(self) -> None:
        everybody = ("host", *self.guests)
        for _ in range(30):
            said = {who: self.visit(who) for who in everybody}
            assert not any(one.code for one in said.values()), {w: one.err for w, one in said.items() if one.code}
            if all("The run is over" in one.err for one in said.values()):
                return
        raise AssertionError({who: one.err for who, one in said.items()})

    def vector(self, who: str) -> object:
        run = self.run_of(who)
        assert run is not None
        return load_file(run / "vector.safetensors")["vector"]


def test_three_clients_join_a_secure_sum_through_a_stick(tmp_path: Path) -> None:
    visits = Visits(tmp_path, CLIENTS, "abc")
    said = visits.host()
    assert said.code == 0 and "Waiting for 3 more of 4" in said.err and "type the same command again" in said.err
    visits.to_the_end()
    assert digest([visits.vector("host")]) == simulate(tmp_path / "host" / "pilot.toml").digest  # type: ignore[list-item]
    texts = [path.name for path in visits.stick.rglob("*.fgm") if "invite-" in os.fspath(path)]
    assert texts == []  # a request goes when its guest has the reply, and the reply after it


def test_four_peers_of_a_ring_join_through_a_stick(tmp_path: Path) -> None:
    visits = Visits(tmp_path, RING, "abc")
    visits.host()
    visits.to_the_end()
    vectors: dict[int, object] = {}
    for who in ("host", *"abc"):
        found = read_block(visits.run_of(who) / "endpoint.toml")  # type: ignore[operator]
        assert found
        vectors[found[0]] = visits.vector(who)
    ended = digest([vectors[node] for node in range(4)])  # type: ignore[misc]
    assert ended == simulate(tmp_path / "host" / "pilot.toml").digest


def test_step_every_of_an_invited_run_goes_on_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visits = Visits(tmp_path, '[topology]\nn = 2\ngraph = "path"\n', "a")
    for who in ("host", "a", "host", "a", "host", "a"):
        assert visits.visit(who).code == 0
    run = visits.run_of("a")
    assert run is not None
    monkeypatch.setattr("fedgossip.cli.run.peer.time.sleep", lambda _: visits.visit("host"))
    said = typed(["step", str(run), "--every", "10m"], tmp_path / "a")
    assert said.code == 0 and "after 2 rounds" in said.err
    visits.to_the_end()
    found = digest([visits.vector(who) for who in ("host", "a")])  # type: ignore[misc]
    assert found == simulate(tmp_path / "host" / "pilot.toml").digest


@pytest.mark.long
def test_leaves_and_their_clients_join_through_a_stick(tmp_path: Path) -> None:
    visits = Visits(tmp_path, TIERS, ["leaf6", "leaf7", *(f"client{node}" for node in range(6))])
    visits.places = {who: ("--coordinator", who[4:]) for who in ("leaf6", "leaf7")}
    visits.places |= {f"client{node}": ("--under", str(6 + node // 3)) for node in range(6)}
    visits.host()
    for _ in range(2):
        said = {who: visits.join(who) for who in visits.guests}
        assert {one.code for one in said.values()} == {0}
        visits.host()
    line = "Its clients join with the same invite: fedgossip join - --links folder:DIR --under 6"
    assert line in said["leaf6"].err and said["leaf6"].out == ""
    visits.to_the_end()
    assert digest([visits.vector("host")]) == simulate(tmp_path / "host" / "pilot.toml").digest  # type: ignore[list-item]


def test_nothing_is_begun_before_the_consent_which_names_the_folder(tmp_path: Path) -> None:
    visits = Visits(tmp_path, CLIENTS, "abc")
    visits.host()
    assert "waiting for the organiser" in visits.join("a", "--policy", "own.toml").err
    visits.host()
    said = visits.join("a", "--policy", "own.toml")
    assert said.code == 2 and "--yes" in said.err
    assert "sums alone" in said.err and f"sealed files in {visits.stick}" in said.err
    assert not [*tmp_path.glob("a/joined/*/experiment.toml")]
    assert "Waiting for 3 more of 4" in visits.host().err


def test_an_invite_and_its_carrier_are_one(tmp_path: Path) -> None:
    visits = Visits(tmp_path, CLIENTS, "a")
    visits.host()
    said = typed(["join", visits.invite, "--yes"], tmp_path / "a")
    assert said.code == 2 and 'to a shared folder, "Jürgen\'s stick"' in said.err and "--links folder:DIR" in said.err
    said = visits.join("a", "--yes", "--port", "5700")
    assert said.code == 2 and "--address and --port are of sockets" in said.err
    said = visits.typed("host", "host", "pilot.toml", "--relay", "example.org:7777")
    assert said.code == 2 and "--links is a folder" in said.err
    shutil.rmtree(visits.stick)
    said = visits.join("a")
    assert said.code == 2 and "no such folder" in said.err


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("task.kind = 'loop'\ntopology = { graph = 'ring', n = 3 }", "loop"),
        ("parallel.workers = 3", "a run of [parallel] does not go over a folder"),
    ],
)
def test_runs_that_need_sockets_are_refused_before_an_invite(tmp_path: Path, more: str, error: str) -> None:
    visits = Visits(tmp_path, RING, "a")
    (tmp_path / "host" / "pilot.toml").write_text(f"rounds = 2\n{more}\n")
    said = visits.host()
    assert said.code == 2 and said.out == "" and error in said.err


# --- admission alone --------------------------------------------------------------------------------------------------

TEST = bytes(range(256)) * 400
"""A common test set of four pieces."""


class Desk:
    """An organiser's end, and guests with or without its secret."""

    def __init__(self, place: Path, poll_seconds: float = 0.0) -> None:
        self.place, self.root, self.poll_seconds = place, place / "shared", poll_seconds
        self.root.mkdir()
        self.organiser, own = Identity.new(), Identity.new()
        seats = Seats(2, fixed=True, called=False, folder=True)
        self.party = Party(new_secret(), int(time.time()) + 3600, seats)
        proposal = Proposal("rounds = 3\n", "", "", 5, "float32", "t.csv", len(TEST), "")
        host = Guest(own.public, own.verify, "", signed(own, "").signature)
        self.way = InviteAdmission(self.organiser, host, self.party, proposal, lambda _: None, TEST)
        self.host = InviteFolder(self.root, self.way, poll_seconds)
        self.invitation = Invitation(("folder:x",), self.organiser.public, self.party.secret, self.party.expires)

    def guest(self, name: str, invitation: Invitation | None = None) -> FolderClient:
        path = self.place / f"{name}.key"
        if not path.exists():
            Identity.new().save(path)
        about = invitation or self.invitation, Identity.load(path), self.root, self.place / f"{name}-replies"
        return FolderClient(*about, self.poll_seconds, 60.0)

    def files(self, pattern: str = "*/*/*/*.fgm") -> list[Path]:
        return sorted(self.root.glob(pattern))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def enrol(guest: FolderClient) -> Enrol:
    return Enrol(guest.who, __version__, "", signed(guest.identity, "").signature)


def asked(desk: Desk, guest: FolderClient, question: InviteProof | Enrol) -> object:
    """Ask at one visit, and read the reply at the next."""
    with pytest.raises(AwaitedError):
        guest.ask(question)
    desk.host.look()
    return guest.ask(question)


def test_the_pieces_of_a_test_set_take_one_round_trip_and_leave_nothing(desk: Desk) -> None:
    guest = desk.guest("a")
    proposal = asked(desk, guest, InviteProof(guest.who, __version__))
    assert isinstance(proposal, Proposal)
    with pytest.raises(AwaitedError):
        invite_joining.test_set(guest, proposal)
    assert len(desk.files("*/*/from-000001*/*.fgm")) == 4
    desk.host.look()
    assert invite_joining.test_set(guest, proposal) == TEST
    desk.host.look()
    assert desk.files() == []
    assert invite_joining.test_set(desk.guest("a"), proposal) == TEST  # in a later life, from its own disk


def test_a_request_to_take_part_is_answered_anew_when_the_run_begins(desk: Desk) -> None:
    guest = desk.guest("a")
    assert isinstance(asked(desk, guest, enrol(guest)), Gathering)
    desk.host = InviteFolder(desk.root, desk.way, 0.0)  # the next visit of the host
    desk.way.begin(time.time())
    desk.host.look()
    found = desk.guest("a").ask(enrol(guest))
    assert isinstance(found, Beginning)
    assert invite_joining.checked(found, guest.identity, desk.party.seats) is found


def test_strangers_are_refused_and_a_guest_is_let_in_beside_them(desk: Desk) -> None:
    for number in range(3):
        stranger = desk.guest(f"stranger{number}", replace(desk.invitation, secret=desk.party.secret))
        stranger.invitation = replace(desk.invitation, secret=new_secret())
        with pytest.raises(PeerError, match="does not know this invite"):
            asked(desk, stranger, InviteProof(stranger.who, __version__))
    (desk.root / desk.files()[0].relative_to(desk.root).parts[0] / "guest-nobody").mkdir()
    guest = desk.guest("a")
    assert isinstance(asked(desk, guest, enrol(guest)), Gathering)


def test_no_reply_is_written_through_a_link_out_of_the_folder(desk: Desk, tmp_path: Path) -> None:
    guest = desk.guest("a")
    with pytest.raises(AwaitedError):
        guest.ask(enrol(guest))
    (tmp_path / "mine").mkdir()
    desk.files()[0].parent.with_name("from-000000-to-000001").symlink_to(tmp_path / "mine")
    desk.host.look()
    assert desk.host.fault and not list((tmp_path / "mine").iterdir())


def test_a_key_that_asks_wrongly_gets_no_more_answers(desk: Desk) -> None:
    stranger = desk.guest("b")
    stranger.invitation = replace(desk.invitation, secret=new_secret())
    for _ in range(WRONG_MAX):
        with pytest.raises(PeerError, match="does not know this invite"):
            asked(desk, stranger, InviteProof(stranger.who, __version__))
    with pytest.raises(AwaitedError):
        asked(desk, stranger, InviteProof(stranger.who, __version__))


def test_a_refusal_does_not_stand_when_its_cause_is_gone(desk: Desk) -> None:
    """The same request is made under another number after it was refused."""
    first, second = desk.guest("a"), desk.guest("b")
    asked(desk, first, enrol(first))
    with pytest.raises(PeerError, match="used up"):
        asked(desk, second, enrol(second))
    shutil.rmtree(next(desk.root.glob(f"*/guest-{raw(first.identity.public).hex()}")))
    desk.way.party = replace(desk.way.party, guests={})
    assert isinstance(asked(desk, second, enrol(second)), Gathering)


def test_a_reply_that_was_changed_or_is_of_another_organiser_is_not_taken(desk: Desk, tmp_path: Path) -> None:
    guest = desk.guest("a")
    with pytest.raises(AwaitedError):
        guest.ask(InviteProof(guest.who, __version__))
    desk.host.look()
    (reply,) = desk.files("*/*/from-000000*/*.fgm")
    good = reply.read_bytes()
    reply.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(AwaitedError, match="not as participant 0 sealed it"):
        guest.ask(InviteProof(guest.who, __version__))
    (tmp_path / "forger").mkdir()
    forger = Desk(tmp_path / "forger")
    forger.way.party = forger.party = desk.party  # one that has the invite, and another key than the organiser's
    forger.host = InviteFolder(desk.root, forger.way, 0.0)
    reply.unlink()
    forger.host.look()
    with pytest.raises(AwaitedError):
        guest.ask(InviteProof(guest.who, __version__))
    reply.write_bytes(good)
    assert isinstance(guest.ask(InviteProof(guest.who, __version__)), Proposal)


def test_a_folder_that_cannot_be_written_is_reported_and_tried_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = desk.guest("a")
    with pytest.raises(AwaitedError):
        guest.ask(enrol(guest))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedgossip.net.pair_folder.PairWriter.put", full)
        desk.host.look()
        assert "No space left on device; it is tried again" in desk.host.fault
    desk.host.look()
    assert desk.host.fault == "" and isinstance(guest.ask(enrol(guest)), Gathering)


def test_a_host_and_a_guest_that_stay_need_no_second_command(tmp_path: Path) -> None:
    desk = Desk(tmp_path, poll_seconds=0.05)
    guest = desk.guest("a")
    found: list[Beginning] = []

    def take_part() -> None:
        invite_joining.proposal(guest)
        found.append(invite_joining.enrolled(guest, desk.party.seats, "", lambda _: None, lambda _: time.sleep(0.05)))

    beside = threading.Thread(target=take_part)
    beside.start()
    while not desk.way.is_ready(time.time()):
        desk.host.serve(1.0)
    desk.way.begin(time.time())
    desk.host.serve_beside()
    beside.join(30)
    desk.host.close()
    assert [one.node for one in found] == [1]
