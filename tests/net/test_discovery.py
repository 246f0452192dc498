"""What is announced on a network, with the real zeroconf over loopback; and announcements by anybody."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import in_process, wait_until
from test_invites import PROPOSAL, House

from fedgossip.drivers import invite_joining
from fedgossip.net.identity import Identity
from fedgossip.net.invites import discovery
from fedgossip.net.invites.discovery import Announcer, Search
from fedgossip.net.invites.invite_client import InviteClient
from fedgossip.net.invites.invite_server import InviteServer

HERE = ("127.0.0.1",)


@pytest.fixture
def multicast() -> None:
    pytest.importorskip("zeroconf")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(HERE[0]))
            probe.sendto(b"", ("224.0.0.251", 9))
        except OSError as error:
            pytest.skip(f"loopback carries no multicast here: {error}")


@pytest.mark.sockets
def test_an_organiser_is_found_by_its_key_and_by_anybody_who_asks(multicast: None) -> None:
    ours, other = Identity.new(), Identity.new()
    with ExitStack() as stack:
        for identity, name in ((ours, "lan"), (other, "other\x1b[2J")):
            stack.enter_context(closing(Announcer(name, identity.public, 5699, HERE, HERE)))
        everything = stack.enter_context(closing(Search(interfaces=HERE)))
        one = stack.enter_context(closing(Search(ours.public, HERE)))
        wait_until(lambda: len(everything.list_found()) >= 2 and one.list_found(), 30, "both are found")
        assert [found.key for found in one.list_found()] == [ours.public]
        assert one.addresses() == ["tcp://127.0.0.1:5699"]
        assert {found.name for found in everything.list_found()} >= {"lan", "other [2J"}


@pytest.mark.sockets
def test_an_invite_whose_address_has_changed_is_tried_at_what_is_announced_under_its_key(
    multicast: None, tmp_path: Path
) -> None:
    house = House(tmp_path, expires=2**32 - 1)
    with ExitStack() as stack:
        way = stack.enter_context(closing(InviteServer("tcp://127.0.0.1:*", house.admission)))
        way.serve_beside()
        key, port = house.hosted.organiser.public, int(way.address.rpartition(":")[2])
        stack.enter_context(closing(Announcer("lan", key, port, HERE, HERE)))
        search = stack.enter_context(closing(Search(key, HERE)))
        gone = house.hosted.invitation(("tcp://127.0.0.1:1",))
        asking = stack.enter_context(closing(InviteClient(gone, Identity.new(), more=search.addresses)))
        assert invite_joining.proposal(asking, 30) == PROPOSAL and asking.reached == f"tcp://127.0.0.1:{port}"


KEY = Identity.new().public.encode()


@pytest.mark.parametrize(
    ("properties", "hosts", "port"),
    [({}, HERE, 1), ({b"key": b"x"}, HERE, 1), ({b"key": b"\xff" * 40}, HERE, 1), ({b"key": KEY}, (), 1),
     ({b"key": KEY}, ("no host",), 1), ({b"key": KEY}, HERE, 0),
     ({b"key": KEY}, ("0.0.0.0", "fe80::1", "224.0.0.1"), 1),
     ({b"\xff": KEY}, HERE, 1), ({b"key": None}, HERE, 1)],
)  # fmt: skip
def test_an_announcement_that_names_no_key_or_no_address_is_none(
    properties: dict[bytes, bytes], hosts: tuple[str, ...], port: int
) -> None:
    said = SimpleNamespace(properties=properties, parsed_addresses=lambda: list(hosts), port=port)
    assert discovery._read(said) is None and discovery._read(None) is None


def test_many_announcements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Search):
        def __init__(self) -> None:
            import threading

            self._key, self._found, self._lock = "", {}, threading.Lock()

    said = SimpleNamespace(properties={b"key": KEY}, parsed_addresses=lambda: list(HERE), port=1)
    search = Silent()
    for number in range(1000):
        search.add_service(SimpleNamespace(get_service_info=lambda *_, **__: said), "", str(number))  # type: ignore[arg-type]
    assert len(search.list_found()) == discovery.FOUND_MAX


@pytest.mark.sockets
def test_join_without_an_invite_lists_what_is_announced_or_says_that_nothing_is(
    multicast: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Search
    monkeypatch.setattr(discovery, "Search", lambda: real(interfaces=HERE))
    identity = Identity.new()
    with closing(Announcer("hospital run", identity.public, 5699, HERE, HERE)):
        said = in_process(["join"], tmp_path, monkeypatch, capsys)
    assert said.code == 0 and "hospital run" in said.out and identity.public in said.out
    monkeypatch.setattr(discovery, "Search", lambda: SimpleNamespace(list_found=list, close=time.time))
    said = in_process(["join"], tmp_path, monkeypatch, capsys)
    assert said.code == 3 and "no run is announced" in said.errors[0]


def test_without_the_package_an_invite_still_works_and_a_listing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "zeroconf", None)
    said = in_process(["join"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "zeroconf" in said.errors[0] and "fedgossip[lan]" in said.err
    assert not discovery.is_installed()
