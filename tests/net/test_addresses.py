"""Where a machine says that it can be called, and when it says something else."""

from __future__ import annotations

import socket

import pytest

from fedgossip.base.errors import ConfigError, NetworkError
from fedgossip.net.endpoints import ADDRESS_LETTERS, address_at, check_address, check_reachable
from fedgossip.net.relays import addresses
from fedgossip.net.relays.addresses import Whereabouts, find_own_addresses, hold_port, port_of

pytestmark = pytest.mark.sockets

WIFI, CABLE, OTHER = "tcp://10.0.0.5:1", "tcp://192.168.7.5:1", "tcp://172.17.0.1:1"


def networks(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    monkeypatch.setattr(addresses, "find_own_addresses", lambda _port: list(found))


def test_the_address_stays_as_long_as_its_network_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    networks(monkeypatch, WIFI, CABLE)
    here = Whereabouts(1, ["relay://relay.example.org:7777"])
    assert here.text == here() == f"{WIFI},{CABLE},relay://relay.example.org:7777"
    networks(monkeypatch, OTHER, WIFI)  # another interface has come, ours is there
    assert here() == f"{WIFI},{CABLE},relay://relay.example.org:7777"
    networks(monkeypatch, "tcp://127.0.0.1:1")  # asleep: nobody is told of that
    assert here() == ""
    networks(monkeypatch, OTHER)
    assert here() == f"{OTHER},relay://relay.example.org:7777"


def test_what_people_name_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    networks(monkeypatch, WIFI)
    here = Whereabouts(1, given=[CABLE])
    networks(monkeypatch, OTHER)
    assert here.text == here() == CABLE


def test_all_that_is_said_fits_into_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    networks(monkeypatch, *(f"tcp://192.168.100.{k}:65535" for k in range(100, 120)))
    text = Whereabouts(1, ["relay://relay.example.org:7777"]).text
    assert len(text) <= ADDRESS_LETTERS and text.count("tcp://") >= 2 and text.endswith(":7777")
    check_reachable(text, "here")


@pytest.mark.parametrize("text", ["", ",", "tcp://a:1,", "tcp://a:1,b", "udp://a:1", "relay://a:0", "tcp://a:1" * 30])
def test_what_is_no_row_of_addresses_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        check_address(text, "here")


def test_a_port_that_is_held_is_nobody_elses_but_zeromq_may_listen_there() -> None:
    import zmq

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    with hold_port(0, exactly=False) as held:
        with hold_port(port_of(held), exactly=False) as second:
            assert port_of(second) != port_of(held)
        router.bind(f"tcp://*:{port_of(held)}")
        with pytest.raises(NetworkError, match="port"):
            hold_port(port_of(held), exactly=True)
    router.close(0)
    context.term()


def test_a_machine_in_no_network_can_call_itself() -> None:
    hosts = [one.partition("://")[2].partition(":")[0] for one in find_own_addresses(5) if "[" not in one]
    assert hosts and all(map(socket.inet_aton, hosts))


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.5", "tcp://10.0.0.5:5700"),
        ("host.example.org", "tcp://host.example.org:5700"),
        ("2001:db8::5", "tcp://[2001:db8::5]:5700"),
        ("[2001:db8::5]", "tcp://[2001:db8::5]:5700"),
    ],
)
def test_a_host_may_be_a_name_or_of_either_version_of_the_protocol(host: str, address: str) -> None:
    assert address_at(host, 5700) == address
