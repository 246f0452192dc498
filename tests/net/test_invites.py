"""An invite: its text, whom it lets in, and what somebody without one, or with a bad one, can do."""

from __future__ import annotations

import contextlib
import importlib
import io
import socket
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import tomli_w
import zmq
from commands import in_process, wait_until
from frame_fuzz import Scribe
from fuzz_words import Words
from hypothesis import given
from hypothesis import strategies as st
from test_net_security import Caller

from fedgossip.base.errors import ConfigError, NetworkError, NotWrittenError, PeerError, TooFewPeersError
from fedgossip.base.version import __version__
from fedgossip.cli.people.host import wait_for_members
from fedgossip.core.messages import Beginning, Enrol, Gathering, Invited, InviteProof, Proposal, TurnedAway
from fedgossip.core.wire import frames
from fedgossip.drivers import invite_joining, proposals
from fedgossip.experiment import load_experiment
from fedgossip.net import endpoints
from fedgossip.net.endpoints import signed
from fedgossip.net.identity import Identity, verify
from fedgossip.net.invites import invite_server
from fedgossip.net.invites.invitation import Invitation, new_secret, read, written
from fedgossip.net.invites.invite_admission import HOLD_SECONDS, Guest, InviteAdmission, Party, Seats
from fedgossip.net.invites.invite_client import InviteClient, refusal_error
from fedgossip.net.invites.invite_server import InviteServer
from fedgossip.net.sockets import GUESTS
from fedgossip.plans import compose
from fedgossip.protocols.members.membership_updates import admission_of
from fedgossip.secure.session import RosterMember

PROPOSAL = Proposal("rounds = 3\n", "", "", 5, "float32")
NOW, LATER = 1_000.0, 10_000
ADDRESS = "tcp://10.0.0.9:5700"
KEY = Identity.new().public

# --- the text ---------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,40}", fullmatch=True)
HOSTS = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(lambda a: f"[{a}]"), NAMES)
SCHEMES = st.sampled_from(["tcp", "relay"])
PLACES = st.builds(lambda scheme, host, port: f"{scheme}://{host}:{port}", SCHEMES, HOSTS, st.integers(1, 65535))
INVITATIONS = st.builds(
    Invitation,
    st.lists(PLACES | st.just("folder:Jürgen's disk"), max_size=3, unique=True).map(tuple),
    st.just(KEY),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**32 - 1),
)
SAMPLE = written(Invitation(("tcp://192.168.1.10:5699",), KEY, bytes(range(16)), 1_800_000_000))


@given(INVITATIONS)
def test_an_invite_says_what_was_written(invitation: Invitation) -> None:
    assert read(written(invitation)) == invitation


@given(st.integers(0, len(SAMPLE)), st.sampled_from(["\n", " ", "-", "\r\n  "]))
def test_an_invite_that_a_mail_program_has_broken_is_the_same(place: int, mark: str) -> None:
    assert read(f"{SAMPLE[:place]}{mark}{SAMPLE[place:]}".upper()) == read(SAMPLE)


def test_an_invite_that_is_cut_off_anywhere_is_called_that() -> None:
    for length in range(5, len(SAMPLE) - 1):
        with pytest.raises(ConfigError, match="cut off") as refused:
            read(SAMPLE[:length])
        assert refused.value.advice


def test_an_invite_with_one_other_letter_is_refused() -> None:
    for place in range(4, len(SAMPLE) - 1):  # the last letter has bits that mean nothing
        other = "0" if SAMPLE[place] != "0" else "1"
        with pytest.raises(ConfigError, match=r"wrong letter|cut off"):
            read(SAMPLE[:place] + other + SAMPLE[place + 1 :])


@pytest.mark.parametrize(
    ("text", "words"),
    [("fg2-" + SAMPLE[4:], "another release"), ("hello", "no invite"), ("", "no invite"), ("fg1-", "cut off"),
     ("fg1-u", "no invite has"), (SAMPLE + SAMPLE[4:], "one too many")],
)  # fmt: skip
def test_what_is_no_invite_of_this_release_is_said_to_be_none(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        read(text)
    assert refused.value.advice


@given(st.text(max_size=300).map(lambda text: "fg1-" + text))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read(text)


# --- who is let in ----------------------------------------------------------------------------------------------------


SEATS = Seats(3)


def enrolling(who: Invited, identity: Identity, address: str = ADDRESS) -> Enrol:
    return Enrol(who, __version__, address, signed(identity, address).signature)


class House:
    """An organiser with a door, on disk in `folder`."""

    def __init__(self, folder: Path, seats: Seats = SEATS, expires: int = LATER) -> None:
        self.hosted = invite_joining.hosted(folder, "lan", "what", seats, expires, (1, 2))
        self.admission = invite_joining.invite_admission(self.hosted, "tcp://10.0.0.1:5700", PROPOSAL, b"x" * 40_000)

    @property
    def invitation(self) -> Invitation:
        return self.hosted.invitation(("tcp://10.0.0.1:5699",))

    def who(self, identity: Identity, invitation: Invitation | None = None) -> Invited:
        invitation = invitation or self.invitation
        return Invited(invitation.mark, identity.verify, invitation.proof(identity.public, identity.verify))

    def knock(self, identity: Identity, now: float = NOW) -> object:
        return self.admission.answer(identity.public, InviteProof(self.who(identity), __version__), now)

    def enrol(self, identity: Identity, now: float = NOW, address: str = ADDRESS) -> object:
        said = enrolling(self.who(identity), identity, address)
        return self.admission.answer(identity.public, said, now)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_an_invite_lets_in_as_many_as_it_was_made_for_each_once(house: House) -> None:
    first, second, third = (Identity.new() for _ in range(3))
    assert house.knock(first) == PROPOSAL
    assert house.enrol(first) == Gathering(1, (0, 1), 3, int(LATER - NOW))
    assert house.enrol(second) == Gathering(2, (0, 1, 2), 3, int(LATER - NOW))
    assert house.enrol(third) == house.knock(third) == TurnedAway("used")
    assert house.enrol(first) == Gathering(1, (0, 1, 2), 3, int(LATER - NOW))  # its own place, again


def test_to_ask_what_would_be_run_uses_nothing_up(house: House) -> None:
    assert [house.knock(Identity.new()) for _ in range(5)] == [PROPOSAL] * 5


def test_a_proof_is_of_use_to_the_keys_in_it_alone(house: House) -> None:
    """Who has seen the proof of another, by whatever way, gets nothing for it."""
    honest, thief = Identity.new(), Identity.new()
    stolen = house.who(honest)
    for who in (stolen, replace(stolen, verify=thief.verify)):
        assert house.admission.answer(thief.public, enrolling(who, thief), NOW) == TurnedAway("unknown")
    bent = enrolling(replace(stolen, verify=thief.verify), thief)
    assert house.admission.answer(honest.public, bent, NOW) == TurnedAway("unknown")


def test_a_proof_is_to_one_organiser_alone(house: House) -> None:
    """An organiser that was given a proof cannot use the invite of another with the same secret."""
    identity = Identity.new()
    elsewhere = replace(house.invitation, key=Identity.new().public)
    said = enrolling(house.who(identity, elsewhere), identity)
    assert house.admission.answer(identity.public, said, NOW) == TurnedAway("unknown")


@given(st.binary(min_size=16, max_size=16))
def test_another_secret_is_nothing(tmp_path_factory: pytest.TempPathFactory, secret: bytes) -> None:
    house, identity = House(tmp_path_factory.mktemp("house")), Identity.new()
    guessed = replace(house.invitation, secret=secret)
    who = house.who(identity, guessed)
    for said in (who, replace(who, mark=house.invitation.mark)):  # the name of the invite alone is not enough
        assert house.admission.answer(identity.public, InviteProof(said, __version__), NOW) == TurnedAway("unknown")


def test_an_invite_ends_with_its_time_and_with_its_run(house: House, tmp_path: Path) -> None:
    early, late = Identity.new(), Identity.new()
    house.enrol(early)
    assert house.enrol(late, LATER) == TurnedAway("expired")
    assert isinstance(house.enrol(early, LATER), Gathering)  # who was let in before may come back
    house.admission.end()
    assert house.enrol(early) == house.knock(late) == TurnedAway("ended")
    next_one = House(tmp_path)
    assert next_one.hosted.folder.name == "lan-2"
    said = InviteProof(house.who(early), __version__)
    assert next_one.admission.answer(early.public, said, NOW) == TurnedAway("ended")


def test_another_release_is_named(house: House) -> None:
    identity = Identity.new()
    answer = house.admission.answer(identity.public, InviteProof(house.who(identity), "0.0.0"), NOW)
    assert answer == TurnedAway("version", __version__)
    assert house.admission.answer(identity.public, None, NOW) == TurnedAway("unreadable", __version__)


@pytest.mark.parametrize("address", ["", "tcp://0.0.0.0:5700", "tcp://*:5700", "http://x", "ipc:///tmp/x\n"])
def test_nobody_is_let_in_whom_the_others_cannot_call(house: House, address: str) -> None:
    assert house.enrol(Identity.new(), address=address) == TurnedAway("address", address)
    assert not house.admission.party.guests


def test_nobody_is_let_in_who_would_be_forgotten(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise NotWrittenError(path, OSError(28, "No space left on device"))

    monkeypatch.setattr(invite_joining, "write_whole", full)
    with pytest.raises(NotWrittenError):
        house.enrol(Identity.new())
    assert not house.admission.party.guests


def test_the_organisers_restart_forgets_nobody(house: House, tmp_path: Path) -> None:
    first, second = Identity.new(), Identity.new()
    house.enrol(first)
    again = House(tmp_path)
    assert again.invitation == house.invitation
    assert again.enrol(second) == Gathering(2, (0, 2), 3, int(LATER - NOW))
    assert again.enrol(first) == Gathering(1, (0, 1, 2), 3, int(LATER - NOW))
    again.admission.begin(NOW)
    assert isinstance(House(tmp_path).enrol(second), Beginning)


def test_a_folder_whose_run_has_not_ended_is_no_other_runs(house: House, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="another experiment"):
        invite_joining.hosted(tmp_path, "lan", "something else", SEATS, LATER, (1, 2))


def test_it_begins_with_those_that_are_here_and_later_ones_join(house: House) -> None:
    early, late = Identity.new(), Identity.new()
    house.enrol(early)
    assert not house.admission.is_ready(NOW) and house.admission.is_ready(LATER) is False  # it was heard long ago
    house.enrol(early, LATER)
    assert house.admission.is_ready(LATER) and house.admission.begin(LATER) == (0, 1)
    house.admission.party = replace(house.admission.party, expires=2 * LATER)
    told = house.enrol(late, LATER + 1)
    assert isinstance(told, Beginning) and [(one.node, one.since) for one in told.members] == [(0, 0), (1, 0), (2, -1)]
    assert invite_joining.checked(told, late, SEATS) is told


def test_a_place_that_its_holder_has_left_goes_to_the_next_one_until_the_run_begins(house: House) -> None:
    """A machine that joined by mistake, or was lost, keeps nobody out; one that asks now and then loses nothing."""
    gone, here, late = (Identity.new() for _ in range(3))
    house.enrol(gone)
    house.enrol(here)
    before, after = NOW + HOLD_SECONDS - 1, NOW + HOLD_SECONDS
    assert house.enrol(here, before) == Gathering(2, (0, 2), 3, int(LATER - before))
    assert house.enrol(late, before) == house.knock(late, before) == TurnedAway("used")
    assert house.knock(late, after) == PROPOSAL
    assert house.enrol(late, after) == Gathering(1, (0, 1, 2), 3, int(LATER - after))
    assert house.enrol(gone, after) == TurnedAway("used")
    house.admission.begin(after)
    assert house.enrol(gone, 2 * after) == TurnedAway("used")
    assert isinstance(house.enrol(late, 2 * after), Beginning)


def test_after_the_organisers_restart_every_place_is_held_anew(house: House, tmp_path: Path) -> None:
    first, second, third = (Identity.new() for _ in range(3))
    house.enrol(first)
    house.enrol(second)
    again, late = House(tmp_path), NOW + 2 * HOLD_SECONDS
    assert again.knock(third, late) == TurnedAway("used")
    assert isinstance(again.enrol(first, late + 1), Gathering)


def test_nobody_is_let_in_twice_with_one_signing_key(house: House) -> None:
    """A roster that has a key twice is none: it would end the run of all the others."""
    first, second = Identity.new(), Identity.new()
    house.enrol(first)
    for signer in (first, house.hosted.peer):
        proof = house.invitation.proof(second.public, signer.verify)
        entry = RosterMember(bytes.fromhex(signer.verify), second.public, ADDRESS)
        who, own = Invited(house.invitation.mark, signer.verify, proof), signer.sign(entry.content())
        answer = house.admission.answer(second.public, Enrol(who, __version__, ADDRESS, own), NOW)
        assert answer == TurnedAway("twin") and len(house.admission.party.guests) == 1
    assert isinstance(house.enrol(first), Gathering)


def _as_written(house: House, identity: Identity, verify: str, address: str, signer: Identity) -> object:
    """The answer to one that writes its key of signatures and its address as it likes, signed all the same."""
    who = Invited(house.invitation.mark, verify, house.invitation.proof(identity.public, verify))
    entry = RosterMember(bytes.fromhex(verify), identity.public, address)
    return house.admission.answer(identity.public, Enrol(who, __version__, address, signer.sign(entry.content())), NOW)


def test_a_key_of_signatures_has_one_form_so_nobody_is_let_in_twice_by_writing_it_anew(house: House) -> None:
    """Written in capitals it compared as another one, and ended the run of all (attack e5)."""
    first, second = Identity.new(), Identity.new()
    house.enrol(first)
    verify = first.verify.upper()
    assert _as_written(house, second, verify, ADDRESS, first) == TurnedAway("key", verify)
    assert len(house.admission.party.guests) == 1
    told = house.admission.unfit[second.public]
    assert first.verify.upper() in told and "key of signatures" in told


@pytest.mark.parametrize(
    "address", ["ipc://x\x01y", "ipc:///tmp/x", "ipc://x' #'", "tcp://a:1\n[[peer]]", "inproc://x"]
)
def test_nobody_is_let_in_who_cannot_be_called_over_a_network(house: House, address: str) -> None:
    """The host says who sent what, and goes on with the others."""
    odd, honest = Identity.new(), Identity.new()
    assert _as_written(house, odd, odd.verify, address, odd) == TurnedAway("address", address)
    assert house.admission.unfit == {odd.public: f"it cannot be reached at its address: it sent {address!r}"}
    assert isinstance(house.enrol(honest), Gathering)


@given(st.text(max_size=100), st.text(max_size=100))
def test_what_is_written_into_a_list_of_members_is_read_as_it_was(address: str, word: str) -> None:
    """Blocks are written by a library: no quote, backslash or control letter ends a text before its end."""
    block = endpoints.block(7, endpoints.Endpoint(address, "k", signature=word))
    (peer,) = tomllib.loads(block)["peer"]
    wanted = {"id": 7, "key": "k"} | {k: v for k, v in (("address", address), ("signature", word)) if v}
    assert peer == wanted


def test_nobody_is_let_in_who_has_not_signed_where_it_is(house: House) -> None:
    identity = Identity.new()
    right = enrolling(house.who(identity), identity)
    for wrong in (
        replace(right, signature=""),
        replace(right, signature="ab" * 64),
        replace(right, address="tcp://a:1"),
    ):
        assert house.admission.answer(identity.public, wrong, NOW) == TurnedAway("signature")
    assert not house.admission.party.guests


FIXED = Seats(3, own=2, fixed=True, called=False)


def test_a_run_of_fixed_participants_begins_with_all_of_them_or_not_at_all(tmp_path: Path) -> None:
    house = House(tmp_path, FIXED)
    clients = [Identity.new(), Identity.new()]
    assert house.enrol(clients[0], address="") == Gathering(0, (2, 0), 3, int(LATER - NOW))
    house.enrol(clients[0], LATER, address="")
    assert not house.admission.is_ready(LATER)
    again = House(tmp_path, FIXED)
    assert again.admission.party.seats == FIXED  # on disk
    for one in clients:
        house.enrol(one, address="")
    assert house.admission.is_ready(NOW) and house.admission.begin(NOW) == (0, 1, 2)
    told = house.enrol(clients[1], address="")
    assert isinstance(told, Beginning) and [one.since for one in told.members] == [0, 0, 0]
    assert invite_joining.checked(told, clients[1], FIXED) is told
    first, own, coordinator = told.members
    for members in ((own, coordinator), (replace(first, since=-1), own, coordinator)):
        with pytest.raises(PeerError):
            invite_joining.checked(replace(told, members=members), clients[1], FIXED)


def test_a_host_that_waited_in_vain_says_how_many_were_here(tmp_path: Path) -> None:
    expired = int(time.time()) - 1
    house = House(tmp_path, FIXED, expires=expired)
    plan = compose.plan(load_experiment({"task": {"kind": "averaging"}, "coordinator": {"clients": 3}}))
    for wanted in (
        "no participant joined",
        "2 of 3 were here when the invite expired, and this run begins with all of them",
    ):
        with pytest.raises(TooFewPeersError, match=wanted) as refused:
            wait_for_members(cast(InviteServer, None), house.admission, plan)
        assert "--expires" in refused.value.advice
        house.enrol(Identity.new(), expired - 1, address="")


def test_the_organiser_signs_whom_it_lets_in_and_others_believe_nothing_else(house: House) -> None:
    me, other = Identity.new(), Identity.new()
    house.enrol(me)
    house.enrol(other)
    house.admission.begin(NOW)
    told = house.enrol(me)
    assert isinstance(told, Beginning)
    for one in told.members:
        assert verify(house.hosted.organiser.verify, admission_of(one.node, one.key, one.verify), one.admission)
    first, mine, third = told.members
    forged = [
        (first, mine, replace(third, key=Identity.new().public)),
        (first, mine, replace(third, admission=mine.admission)),
        (first, mine, replace(third, address="ipc")),
        (first, mine, third, third),
        (first, mine, replace(third, key=mine.key)),
        (first, replace(mine, key=other.public), third),
        (mine, third),
        (first, third),
        (first, mine, replace(third, address="tcp://10.6.6.6:1")),
        (first, mine, replace(third, signature=mine.signature)),
    ]
    for members in forged:
        with pytest.raises(PeerError):
            invite_joining.checked(replace(told, members=members), me, SEATS)
    with pytest.raises(PeerError):
        invite_joining.checked(replace(told, organiser=me.verify), me, SEATS)


def test_a_beginning_that_cannot_be_written_is_told_to_nobody(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """With whom it begins is on disk before anybody hears it, so that an organiser's next life says the same."""
    guest = Identity.new()
    house.enrol(guest)

    def full(path: Path, content: bytes) -> None:
        raise NotWrittenError(path, OSError(28, "No space left on device"))

    with monkeypatch.context() as broken, pytest.raises(NotWrittenError):
        broken.setattr(invite_joining, "write_whole", full)
        house.admission.begin(NOW)
    assert isinstance(house.enrol(guest), Gathering)
    house.admission.begin(NOW)
    first, again = house.enrol(guest), House(house.hosted.folder.parent).enrol(guest)
    assert isinstance(first, Beginning) and first == again  # signed anew, and the same to the last byte


def test_secrets_are_the_owners_alone_to_read(house: House) -> None:
    for path in house.hosted.folder.parent.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_neither_the_proof_nor_what_is_printed_tells_the_secret(house: House) -> None:
    identity, secret = Identity.new(), house.invitation.secret
    ((_, body),) = frames(InviteProof(house.who(identity), __version__), 1, ())
    assert secret not in bytes(body) and secret.hex() not in repr((house.invitation, house.admission.party))


# --- over sockets -----------------------------------------------------------------------------------------------------


@pytest.fixture
def door(tmp_path: Path) -> Iterator[tuple[InviteServer, House]]:
    house = House(tmp_path, expires=2**32 - 1)
    way = InviteServer("tcp://127.0.0.1:*", house.admission)
    way.serve_beside()
    with closing(way):
        yield way, house


def knocking(
    way: InviteServer, house: House, *, key: str = "", secret: bytes = b"", others: tuple[str, ...] = ()
) -> InviteClient:
    invitation = replace(house.invitation, addresses=(*others, way.address))
    invitation = replace(invitation, key=key or invitation.key, secret=secret or invitation.secret)
    return InviteClient(invitation, Identity.new())


@pytest.mark.sockets
def test_who_is_invited_reads_fetches_and_enrols(door: tuple[InviteServer, House]) -> None:
    way, house = door
    way.admission._test = bytes(range(256)) * 300
    with closing(knocking(way, house, others=("tcp://127.0.0.1:1",))) as asking:
        proposed = invite_joining.proposal(asking)
        assert proposed == PROPOSAL and asking.reached == way.address
        whole = replace(proposed, test="test.csv", test_bytes=256 * 300)
        assert invite_joining.test_set(asking, whole) == bytes(range(256)) * 300
        assert isinstance(asking.ask(enrolling(asking.who, asking.identity)), Gathering)


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("secret", "ended", "words"),
    [(new_secret(), False, "does not know"), (b"", True, "has ended")],
    ids=["unknown", "ended"],  # a secret in a test's name would be another one in each of several workers
)
def test_who_is_turned_away_hears_why(door: tuple[InviteServer, House], secret: bytes, ended: bool, words: str) -> None:
    way, house = door
    if ended:
        house.admission.end()
    with closing(knocking(way, house, secret=secret)) as asking, pytest.raises(PeerError, match=words) as refused:
        invite_joining.proposal(asking)
    assert refused.value.advice


@pytest.mark.parametrize("reason", ["used", "expired", "version", "unreadable", "address", "disk", "\x1b[2J" * 90])
def test_every_refusal_is_a_line_and_an_advice(reason: str) -> None:
    error = refusal_error(TurnedAway(reason, "\x1b[31m" * 20))
    assert error.advice and str(error).isprintable() and len(str(error)) < 200


@pytest.mark.sockets
def test_another_key_at_the_address_hears_not_a_word(door: tuple[InviteServer, House]) -> None:
    """Whoever answers at the invite's address with another key learns neither the proof nor that we have one."""
    way, house = door
    nobody = pytest.raises(NetworkError, match="no holder of this invite")
    with closing(knocking(way, house, key=Identity.new().public)) as asking, nobody:
        asking.ask(InviteProof(asking.who, __version__), 2.5)
    assert way.answered == 0 and not way._askers


@pytest.mark.sockets
def test_one_that_guesses_is_not_answered_any_more(door: tuple[InviteServer, House]) -> None:
    way, house = door
    with closing(knocking(way, house, secret=new_secret())) as asking:
        refused = 0
        with pytest.raises(NetworkError):
            for _ in range(invite_server.WRONG_MAX + 1):  # a slow answer is asked for again, and counts twice
                with contextlib.suppress(PeerError):
                    invite_joining.proposal(asking, 3.0)
                refused += 1
        assert 1 <= refused <= invite_server.WRONG_MAX
    with closing(knocking(way, house)) as honest:
        assert invite_joining.proposal(honest) == PROPOSAL


@pytest.mark.sockets
def test_guesses_with_a_fresh_key_each_are_as_few_as_new_callers(door: tuple[InviteServer, House]) -> None:
    """Eight guesses are counted by key; a key costs nothing, but no more than so many new callers are heard."""
    way, house = door
    with contextlib.ExitStack() as stack:
        for _ in range(2 * GUESTS):
            guess = stack.enter_context(closing(knocking(way, house, secret=new_secret())))
            with contextlib.suppress(NetworkError, PeerError):
                guess.ask(InviteProof(guess.who, __version__), 0.15)
        assert len(way._askers) <= GUESTS and way.refused > 0
    assert not house.admission.party.guests


@pytest.mark.sockets
def test_those_who_call_and_say_nothing_keep_nobody_waiting(door: tuple[InviteServer, House]) -> None:
    way, house = door
    where = "127.0.0.1", int(way.address.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        for said in (b"", b"\xff", b"GET / HTTP/1.1\r\n", b"\xff\0\0\0\0\0\0\0\0\x7f\3") * 8:
            stack.enter_context(silent := socket.create_connection(where, 10))
            silent.sendall(said)
        honest = stack.enter_context(closing(knocking(way, house)))
        assert invite_joining.proposal(honest, 5.0) == PROPOSAL


@pytest.mark.sockets
def test_a_flood_of_strangers_keeps_nobody_out_who_has_a_place(door: tuple[InviteServer, House]) -> None:
    way, house = door
    identity = Identity.new()
    invitation = replace(house.invitation, addresses=(way.address,))
    with closing(InviteClient(invitation, identity)) as early:
        assert isinstance(early.ask(enrolling(early.who, identity)), Gathering)
    with contextlib.ExitStack() as stack:
        for _ in range(GUESTS + 4):
            stranger = Caller(way.address, house.hosted.organiser.public, Identity.new())
            stack.callback(stranger.close)
        wait_until(lambda: len(way._allow._let_in) >= GUESTS, 20, "the room for strangers is full")
        with closing(InviteClient(invitation, identity)) as again:  # another process, after a crash
            assert isinstance(again.ask(enrolling(again.who, identity), 5.0), Gathering)


@pytest.mark.sockets
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_said_at_the_door_the_next_one_is_heard(door: tuple[InviteServer, House], seed: int) -> None:
    """Bent frames of every message there is, by one whose key nobody knows, and by one with an invite."""
    way, house = door
    identity, draw = Identity.new(), np.random.default_rng(seed)
    words = Words(draw, (0, 1, 2), 8, "float32", "layout")
    words.heard += [InviteProof(house.who(identity), __version__), enrolling(house.who(identity), identity)]
    scribe = Scribe(words)
    caller = Caller(way.address, house.hosted.organiser.public, identity)
    try:
        for _ in range(150):
            for mark, body in scribe.bent():
                with_retry = threading.Event()
                try:
                    caller.send(mark, body[: draw.integers(1, 4000)])
                except zmq.Again:
                    with_retry.wait(0.005)
        wait_until(lambda: way.answered + way.refused > 0, 20, "the door has heard it")
    finally:
        caller.close()
    with closing(knocking(way, house)) as honest:
        assert invite_joining.proposal(honest) == PROPOSAL
    assert set(house.admission.party.guests) <= {1, 2}


def test_a_lying_organiser_cannot_make_us_write_where_it_wants(tmp_path: Path) -> None:
    def proposed(text: str, **more: object) -> Proposal:
        return replace(PROPOSAL, experiment=text, **more)  # type: ignore[arg-type]

    own = '[data]\nsource = "own:{{peer}}"\npartition = {{ kind = "own" }}\ntest = "{}"\n'
    csv = f'[topology]\ngraph = "ring"\nn = 3\n{own}'
    secret = tmp_path / "secret.csv"
    secret.write_text("a,y\n1,2\n")
    bad = [
        proposed('[topology]\ngraph = "/etc/hosts"\n'),
        proposed('[topology]\ngraph = "../graph.toml"\n', graph="0 1\n"),
        proposed(f'[topology]\ngraph = "ring"\nn = 3\n[data]\nsource = "csv:{secret}?label=y"\n'),
        proposed(f'[topology]\ngraph = "ring"\nn = 3\n[data]\nsource = "mnist:{tmp_path}"\n'),
        proposed(csv.format(f"csv:{secret}?label=y")),
        proposed(csv.format("csv:../x.csv?label=y"), test="../x.csv"),
        proposed(csv.format("csv:x.csv?label=y"), test="/tmp/x.csv"),
        proposed("topology = 3\n"),
        proposed("[[["),
        proposed('[topology]\ngraph = "ring"\nn = 3\n[train]\nnonsense = 1\n'),
    ]
    for one in bad:
        with pytest.raises(ConfigError) as refused:
            proposals.keep_graph(one, tmp_path / "in")
            proposals.experiment_of(one, tmp_path / "in")
        assert refused.value.exit_code == 2


HARM = ("os:system", "shutil:rmtree", "csv:reader", "subprocess:call", "fedgossip.cli:main")
PLACES_OF_CODE = ("model.source", "data.source", "topology.graph", "topology.weights", "algorithm.name", "task.loss",
                  "data.test")  # fmt: skip


@pytest.mark.parametrize("place", PLACES_OF_CODE)
@pytest.mark.parametrize("harm", HARM)
def test_a_lying_organiser_cannot_make_us_import_or_call_what_is_installed_here(
    place: str, harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before a person has said yes nor after: only code that lies in this folder, and is the organiser's."""

    asked, real = [], importlib.import_module

    def imported(name: str, package: str | None = None) -> object:
        asked.append(name)
        return real(name, package)

    monkeypatch.chdir(tmp_path)
    section, _, key = place.partition(".")
    content: dict[str, dict[str, object]] = {"topology": {"graph": "ring", "n": 3}}
    content.setdefault(section, {})[key] = harm
    one = replace(PROPOSAL, experiment=tomli_w.dumps(content))
    monkeypatch.setattr(importlib, "import_module", imported)
    with pytest.raises(ConfigError):
        proposals.check_code(one, proposals.experiment_of(one, tmp_path))
    assert harm.partition(":")[0] not in asked


def test_the_same_words_twice_do_not_hide_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a test set "csv:reader" is a file, as a loss it is a function."""
    monkeypatch.chdir(tmp_path)
    text = '[topology]\ngraph = "ring"\nn = 3\n[data]\nsource = "own:{peer}"\npartition = { kind = "own" }\n'
    text += 'test = "csv:reader"\n[task]\nloss = "csv:reader"\n'
    one = replace(PROPOSAL, experiment=text, test="reader")
    with pytest.raises(ConfigError, match=r"csv\.py"):
        proposals.check_code(one, proposals.experiment_of(one, tmp_path))


def test_what_is_built_in_is_no_code_of_anybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for model in ("cnn:small", "mlp:64-32-10", "softmax"):
        text = f'[topology]\ngraph = "regular:2"\nn = 4\n[model]\nsource = "{model}"\n'
        one = replace(PROPOSAL, experiment=text)
        assert proposals.check_code(one, proposals.experiment_of(one, tmp_path)) == []


def test_an_organiser_is_a_party_of_two_at_least(tmp_path: Path) -> None:
    for seats in (1, 129):
        with pytest.raises(ConfigError):
            invite_joining.hosted(tmp_path, "lan", "what", Seats(seats), LATER, (1, 2))
    assert Party(new_secret(), LATER, Seats(2)).node_of("nobody") is None
    party = Party(new_secret(), LATER, Seats(2))
    alone = InviteAdmission(Identity.new(), Guest("k", "v", "a"), party, PROPOSAL, lambda _: None)
    assert alone.list_present(0) == (0,)


@pytest.mark.sockets
@pytest.mark.parametrize("answer", ["n\n", "\n", ""], ids=["no", "nothing", "end of file"])
def test_whoever_does_not_say_yes_is_not_enrolled(
    door: tuple[InviteServer, House], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    way, house = door
    text = 'rounds = 3\n[topology]\ngraph = "ring"\nn = 3\n[task]\nkind = "averaging"\ndim = 5\n'
    way.admission.proposal = replace(PROPOSAL, experiment=text)
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", terminal)
    (tmp_path / "b").mkdir()
    invite = written(replace(house.invitation, addresses=(way.address,)))
    said = in_process(["join", invite], tmp_path / "b", monkeypatch, capsys)
    assert said.code == 130 and "Take part?" in said.err and "Rounds" in said.err
    assert not house.admission.party.guests and not [*(tmp_path / "b").glob("joined/*/run")]
