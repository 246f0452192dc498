"""Tiers by invite: a leaf coordinator takes the place that it names, and passes its clients' requests on."""

from __future__ import annotations

import contextlib
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import free_ports, wait_until
from safetensors.numpy import load_file
from test_host_join import People

import fedgossip
from fedgossip.base.errors import ConfigError, NetworkError, PeerError
from fedgossip.base.vectors import digest
from fedgossip.base.version import __version__
from fedgossip.cli.people.join import OwnMachine
from fedgossip.core.messages import Beginning, Enrol, Gathering, InviteProof, Proposal, TurnedAway
from fedgossip.drivers import invite_joining
from fedgossip.experiment import checked
from fedgossip.net.endpoints import signed
from fedgossip.net.identity import Identity
from fedgossip.net.invites.invitation import Invitation, new_secret
from fedgossip.net.invites.invite_admission import Guest, InviteAdmission, Party
from fedgossip.net.invites.invite_client import InviteClient, who_asks
from fedgossip.net.invites.invite_server import InvitePort, InviteServer
from fedgossip.plans import compose

pytestmark = pytest.mark.sockets

TIERS = """
rounds = 3
[task]
kind = "quadratic"
dim = 3
[coordinator]
clients = 6
min_clients = 3
tiers = [{ clients = 3 }, { clients = 2, secure = false }]
"""
CONTENT = tomllib.loads(TIERS)
LEAVES = 6, 7
LATER = int(time.time()) + 3600


class Root:
    """The organiser of a run with two leaf coordinators of three clients each."""

    def __init__(self) -> None:
        self.seats = invite_joining.seats_of(compose.plan(checked(CONTENT, "test")))
        self.organiser, own = Identity.new(), Identity.new()
        address = "tcp://10.0.0.1:5700"
        host = Guest(own.public, own.verify, address, signed(own, address).signature)
        proposal = Proposal("rounds = 3\n", "", "", 5, "float32")
        self.party = Party(new_secret(), LATER, self.seats)
        self.way = InviteAdmission(self.organiser, host, self.party, proposal, lambda _: None)

    def invitation(self, *addresses: str) -> Invitation:
        return Invitation(addresses, self.organiser.public, self.party.secret, LATER)

    def answer(self, lead: int = 0, under: int = 0, address: str = "", identity: Identity | None = None) -> object:
        guest = identity or Identity.new()
        who = who_asks(self.invitation(), guest)
        question = Enrol(who, __version__, address, signed(guest, address).signature, lead, under)
        return self.way.answer(guest.public, question, 10.0)


def node_of(answer: object) -> int:
    assert isinstance(answer, Gathering), answer
    return answer.node


def test_each_takes_the_place_that_it_names() -> None:
    root = Root()
    assert node_of(root.answer(under=7)) == 3
    assert node_of(root.answer(lead=7, address="tcp://10.0.0.7:5700")) == 7
    assert [node_of(root.answer(under=6)) for _ in range(3)] == [0, 1, 2]
    assert root.answer(under=6) == TurnedAway("place")
    assert root.answer(lead=7, address="tcp://10.0.0.8:5700") == TurnedAway("place")
    assert node_of(root.answer(under=7)) == 4


@pytest.mark.parametrize(("lead", "under"), [(0, 0), (6, 7), (8, 0), (3, 0), (0, 8), (0, 2), (99, 0)])
def test_a_place_that_is_none_is_refused(lead: int, under: int) -> None:
    assert Root().answer(lead, under, "tcp://10.0.0.7:5700") == TurnedAway("place")


def test_a_leaf_needs_an_address_and_a_client_none() -> None:
    root, guest = Root(), Identity.new()
    assert root.answer(lead=6) == TurnedAway("address", "")
    assert node_of(root.answer(under=6, identity=guest)) == 0
    assert node_of(root.answer(under=6, identity=guest)) == 0
    assert root.answer(under=7, identity=guest) == TurnedAway("place")  # it has another one


def test_a_client_reaches_the_root_through_its_leaf_and_a_root_that_gives_another_place_is_refused() -> None:
    root = Root()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.closing(InviteServer("tcp://127.0.0.1:*", root.way)))
        (port,) = free_ports(1)
        passing = stack.enter_context(contextlib.closing(InvitePort(port, lambda: server.address)))
        with pytest.raises(NetworkError, match=f"port {port} cannot be listened at"):
            InvitePort(port, lambda: server.address)
        guest = Identity.new()
        client = InviteClient(root.invitation(f"tcp://127.0.0.1:{passing.port}"), guest)
        stack.callback(client.close)
        server.serve_beside()
        assert isinstance(client.ask(InviteProof(client.who, __version__)), Proposal)
        answer = client.ask(Enrol(client.who, __version__, "", signed(guest, "").signature, 0, 7))
        assert node_of(answer) == 3


def test_a_place_in_the_beginning_that_was_not_named_is_refused() -> None:
    root, guest = Root(), Identity.new()

    class Asked:
        identity, invitation, reached = guest, root.invitation(), ""
        who = who_asks(root.invitation(), guest)

        def ask(self, _question: object, _seconds: float = 0.0) -> Beginning:
            return Beginning(4, root.organiser.verify, ())

        def ask_all(self, _questions: object) -> Iterator[Beginning]:
            raise AssertionError

    with pytest.raises(PeerError, match="gives us place 4"):
        invite_joining.enrolled(Asked(), root.seats, "", lambda _: None, lambda _: None, under=6)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_leaves_that_join_and_their_clients_end_with_the_digest_of_the_simulator(tmp_path: Path) -> None:
    people = People(tmp_path, 200.0)
    try:
        (people.home("host") / "experiment.toml").write_text(TIERS)
        invite = people.host()
        ports = iter(free_ports(2))
        for leaf in LEAVES:
            words = ["--coordinator", str(leaf), "--address", "127.0.0.1", "--invite-port", str(next(ports))]
            people.join(f"leaf{leaf}", invite, *words)
        for leaf in LEAVES:
            said = lambda leaf=leaf: people.said(f"leaf{leaf}", "out")  # noqa: E731
            wait_until(lambda: said().endswith("\n"), 60, people.said(f"leaf{leaf}"))  # noqa: B023
            command = said().split()
            assert command[:2] == ["fedgossip", "join"] and command[3:] == ["--under", str(leaf)]
            for number in range(3):
                people.join(f"client{leaf}{number}", command[2], *command[3:])
        ended = {who: people.ended(who) for who in people.running}
        assert set(ended.values()) == {0}, {who: people.said(who)[-800:] for who in ended}
        (vector,) = load_file(people.run_of("host") / "vector.safetensors").values()
        assert digest([vector]) == fedgossip.simulate(people.home("host") / "experiment.toml").digest
    finally:
        people.stop()


def own(lead: int = 0, under: int = 0, data: str = "") -> OwnMachine:
    return OwnMachine(data, "", None, None, Path(), None, None, None, lead, under)


def test_the_place_is_checked_before_anything_is_asked_for() -> None:
    tiers, flat = (checked({**CONTENT, "coordinator": one}, "test") for one in (CONTENT["coordinator"], {"clients": 6}))
    own(lead=6).check_place(tiers)
    own(under=6).check_place(tiers)
    own().check_place(flat)
    for wrong, experiment, text in (
        (own(), tiers, "the order of arrival"),
        (own(6, 7), tiers, "Name your place"),
        (own(under=6), flat, "are of runs with tiers"),
        (own(lead=6, data="csv:x.csv?label=y"), tiers, "trains nothing"),
    ):
        with pytest.raises(ConfigError) as refused:
            wrong.check_place(experiment)
        assert text in f"{refused.value} {refused.value.advice}"
