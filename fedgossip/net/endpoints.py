"""The addresses of a run's peers: endpoints.toml has a [[peer]] block for each, with id, address and public key.

    [[peer]]
    id = 0
    address = "tcp://192.168.1.10:5700"
    key = "..."                              # the public one, 40 characters

The file is the allow-list: other keys are never served.  A coordinator's client has no address.

In runs with joins and leaves, each block has `verify`, the signing key.  A line `organiser` gives the key that signs
the `admission` of later members and the [[revoked]] blocks, each of which removes a member.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import tomllib
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
import tomli_w

from fedgossip.base import outside_files
from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Revocation
from fedgossip.net.identity import Identity, check_public, verify
from fedgossip.secure.session import ParticipantRoster, RosterMember

ADDRESS_LETTERS = 128
"""Maximum length of a peer's address text, limited by the size of its entry."""

TCP, RELAY = "tcp://", "relay://"
"""Prefixes of an address that is called directly, and of a relay's address."""
WEB = ("wss://", "ws://")
"""Prefixes of the address of a relay reached by the web."""

_HEX_KEY = re.compile(r"[0-9a-f]{64}")
_HOST = r"(?:\[[0-9a-fA-F:.]+\]|[\w.-]+)"
_ADDRESS = re.compile(
    rf"(?:tcp|relay)://(?P<host>{_HOST}):(?P<port>\d{{1,5}})|ipc://[^\x00-\x1f\x7f]{{1,100}}"
    rf"|wss?://(?P<web_host>{_HOST})(?::(?P<web_port>\d{{1,5}}))?(?:/[\w./~%-]*)?",
    re.ASCII,
)


class _PeerEntry(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    key: str
    address: str = ""
    verify: str = ""
    admission: str = ""
    signature: str = ""


class _Revoked(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[int, msgspec.Meta(ge=0)]
    key: str
    verify: str
    signature: str


class _KeyFile(msgspec.Struct):
    peer: list[_PeerEntry] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    peer: list[_PeerEntry] = []
    organiser: str = ""
    revoked: list[_Revoked] = []


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A peer's address ("" if it does not listen), and its public keys of links and of signatures."""

    address: str
    key: str
    verify: str = ""
    admission: str = ""
    """Organiser's signature, for a member other than a founder."""
    signature: str = ""
    """The peer's own signature of its identity and address; rosters of clients and coordinator consist of these."""


Endpoints = Mapping[NodeId, Endpoint]


@dataclass(frozen=True, slots=True)
class Members:
    """The peers that may take part: those of the file, and those that the organiser admits ("": none)."""

    endpoints: Mapping[NodeId, Endpoint]
    organiser: str = ""
    path: Path | None = None
    """The file; people may add the organiser's revocations during the run."""

    @property
    def founders(self) -> dict[NodeId, Endpoint]:
        """The peers at the start of the run."""
        return {node: endpoint for node, endpoint in self.endpoints.items() if not endpoint.admission}


def is_signing_key(text: str) -> bool:
    """Return whether a text is a signing key in its normal form: 64 hex digits in lower case."""
    return _HEX_KEY.fullmatch(text) is not None


def load_members(path: Path, node: NodeId) -> Members:
    """Read the endpoints of a run with joins and leaves, for `node`.  Raises ConfigError."""
    found, organiser = load_blocks(path), _file(path).organiser
    if organiser and not is_signing_key(organiser):
        raise ConfigError(f"{path}: organiser is no public key", "Put the output of `fedgossip keys organiser` there.")
    if node not in found:
        advice = "Put your own [[peer]] block there too: `fedgossip keys admit` prints it."
        raise ConfigError(f"{path}: there is no entry for peer {node}", advice)
    _check_listeners(path, found, lambda _: True)
    return Members(found, organiser, path)


def public_keys(path: Path) -> list[str]:
    """Return the keys of all members in the file except revoked ones.  Raises ConfigError."""
    gone = {one.key for one in load_revoked(path)}
    return [one.key for one in _read(path).values() if one.key not in gone]


def load_revoked(path: Path) -> tuple[Revocation, ...]:
    """Read the revocations of the organiser.  Raises ConfigError."""
    return tuple(Revocation(one.id, one.key, one.verify, one.signature) for one in _file(path).revoked)


def _name_command(node: NodeId, endpoint: Endpoint) -> str:
    where = f"--address {endpoint.address}" if endpoint.address else "--client"
    return f"fedgossip keys show --id {node} {where}"


def load_blocks(path: Path) -> dict[NodeId, Endpoint]:
    """Read blocks that must have a signing key.  Raises ConfigError."""
    found = _read(path)
    for node, endpoint in found.items():
        if not is_signing_key(endpoint.verify):
            advice = f"Put what `{_name_command(node, endpoint)}` prints on its machine there: members sign."
            raise ConfigError(f"{path}: peer {node} has no key of signatures (verify)", advice)
    return found


def load_endpoints(path: Path, n: int, listens: Callable[[NodeId], bool] = lambda _: True) -> dict[NodeId, Endpoint]:
    """Read the endpoints of all `n` peers; peers that do not listen need no address.

    Raises ConfigError naming the wrong or missing entry.
    """
    if _file(path).revoked:
        raise ConfigError(f"{path}: [[revoked]] is for runs with members that join and leave", "Take the block out.")
    found = _read(path)
    if set(found) != set(range(n)):
        missing, extra = sorted(set(range(n)) - set(found)), sorted(set(found) - set(range(n)))
        wrong = f"no entry for {missing[:5]}" if missing else f"entries for {extra[:5]}"
        raise ConfigError(
            f"{path}: the run has participants 0 to {n - 1}, and there {'is' if missing else 'are'} {wrong}",
            "Write one [[peer]] block for each of them.",
        )
    _check_listeners(path, found, listens)
    return found


def load_addresses(path: Path, public: str) -> tuple[dict[NodeId, Endpoint], NodeId]:
    """Return the endpoints of all listening peers, and the id of the one with this public key.  Raises ConfigError."""
    found = {node: endpoint for node, endpoint in _read(path).items() if endpoint.address}
    own = [node for node, endpoint in found.items() if endpoint.key == public]
    if len(own) != 1 or len(found) < 2:
        what = "has your key in no block with an address" if not own else "names no other peer with an address"
        raise ConfigError(f"{path} {what}", "Put the [[peer]] blocks of all there; name your key pair with --key.")
    return found, own[0]


def _check_listeners(path: Path, found: Endpoints, listens: Callable[[NodeId], bool]) -> None:
    for node, endpoint in found.items():
        if listens(node) and not endpoint.address:
            advice = "Only clients of a coordinator need none: write address = 'tcp://HOST:PORT'."
            raise ConfigError(f"{path}: {node} has no address, and is called by others", advice)


def _file(path: Path) -> _File:
    try:
        return msgspec.convert(from_toml(outside_files.read_text(outside_files.resolve(path))), _File)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "Name the file with --endpoints.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}", "Each [[peer]] has id, address and key.") from None


def _read(path: Path) -> dict[NodeId, Endpoint]:
    found: dict[NodeId, Endpoint] = {}
    keys: dict[str, NodeId] = {}
    for entry in _file(path).peer:
        where = f"{path}: peer {entry.id}"
        if entry.id in found:
            raise ConfigError(f"{where} is there twice", "Give every peer an id of its own.")
        if entry.address:
            check_address(entry.address, where)
        check_public(entry.key, where)
        if entry.key in keys:
            raise ConfigError(f"{where} has the key of peer {keys[entry.key]}", "Make a key on each machine.")
        if entry.verify and not is_signing_key(entry.verify):
            text = f"{where}: verify = {entry.verify[:80]!r} is no key of signatures"
            raise ConfigError(text, "It is 64 hex digits in lower case, as `fedgossip keys show` prints it.")
        if entry.verify and entry.verify in keys:
            raise ConfigError(f"{where} signs with the key of peer {keys[entry.verify]}", "Make a key on each machine.")
        keys |= dict.fromkeys(filter(None, (entry.key, entry.verify)), entry.id)
        found[entry.id] = Endpoint(entry.address, entry.key, entry.verify, entry.admission, entry.signature)
    return found


def is_web(address: str) -> bool:
    """Return whether an address is that of a relay reached by the web."""
    return address.startswith(WEB)


def is_relay(address: str) -> bool:
    """Return whether an address is that of a relay, by TCP or the web."""
    return address.startswith((RELAY, *WEB))


def addresses_of(text: str) -> list[str]:
    """Return the addresses of a peer with several ones, which are separated by commas, the likeliest first."""
    return text.split(",")


def check_address(address: str, where: str) -> None:
    """Raise ConfigError, naming `where`, for an address that cannot be called."""
    found = [_ADDRESS.fullmatch(one) for one in addresses_of(address)]
    if "@" in address and address.startswith(WEB):  # the part before it is not shown
        advice = "The address of a relay needs none; those of a proxy belong into HTTPS_PROXY, or a file: --proxy FILE."
        raise ConfigError(f"{where}: an address with a user or a password", advice)
    ports = [int(one["port"] or one["web_port"] or 1) for one in found if one]
    hosts = [one["host"] or one["web_host"] or "" for one in found if one]
    right = len(ports) == len(found) and all(0 < port < 65536 for port in ports) and all(map(is_host, hosts))
    if len(address) > ADDRESS_LETTERS or not right:
        advice = (
            "Write tcp://HOST:PORT, or several with commas between them; relay://HOST:PORT or wss://HOST for a relay."
        )
        raise ConfigError(f"{where}: {address!r} is no address", advice)


def is_host(host: str) -> bool:
    """Return whether `host` can be called: a name that ends in a number must be an IPv4 address, which 1.2.3.4.5 is
    not.
    """
    if "." not in host or not host.rpartition(".")[2].isdecimal():
        return True
    with contextlib.suppress(ValueError):
        ipaddress.IPv4Address(host)
        return True
    return False


def check_reachable(address: str, where: str) -> None:
    """Raise ConfigError for an address that other machines cannot call: outside a network, or of all interfaces."""
    check_address(address, where)
    for one in addresses_of(address):
        if not (one.startswith(TCP) or is_relay(one)):
            raise ConfigError(f"{where}: {one!r} is no address of a network", "Write tcp://HOST:PORT.")
        host = urllib.parse.urlsplit(one).hostname
        if host in ("0.0.0.0", "::", "0"):  # the refused value
            advice = "Write the address at which the others reach this machine; --bind sets the address to listen at."
            raise ConfigError(f"{where}: {one!r} is every address of this machine, not one to call", advice)


def address_at(host: str, port: int, where: str = "--address") -> str:
    """Return the address of a host, a name or an address of IPv4 or IPv6, at a port.  Raises ConfigError."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if re.search(r"^[^:]*:[0-9]+$|\]:[0-9]+$", bare):
        raise ConfigError(f"{where}: {host!r} has a port", "Give the host alone; --port names the port of the run.")
    check_reachable(found := _tcp(bare, port), where)
    return found


def _tcp(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def find_own_address(port: int) -> str | None:
    """Return the address of this machine on its route to the outside; None without one.  Nothing is sent."""
    for family, outside in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # reserved for examples
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 9))
            host = probe.getsockname()[0]
            return _tcp(host, port)
    return None


def read_block(path: Path) -> tuple[NodeId, Endpoint] | None:
    """Return the block that `keys new` wrote into the key file at `path`; None without a complete block."""
    try:
        (peer,) = msgspec.convert(from_toml(outside_files.read_text(outside_files.resolve(path))), _KeyFile).peer
    except (OSError, ValueError, msgspec.ValidationError):
        return None
    return peer.id, Endpoint(peer.address, peer.key, peer.verify, peer.admission, peer.signature)


def block(node: NodeId, endpoint: Endpoint) -> str:
    """Return the [[peer]] block as text."""
    about = {name: getattr(endpoint, name) for name in ("address", "key", "verify", "admission", "signature")}
    return "[[peer]]\n" + tomli_w.dumps({"id": node, **{name: value for name, value in about.items() if value}})


def revoked_block(revocation: Revocation) -> str:
    """Return the [[revoked]] block as text."""
    about = {name: getattr(revocation, name) for name in ("key", "verify", "signature")}
    return "[[revoked]]\n" + tomli_w.dumps({"id": revocation.node, **about})


def organiser_line(key: str) -> str:
    """Return the line above all blocks with the organiser's signing key."""
    return tomli_w.dumps({"organiser": key})


def text(endpoints: Iterable[tuple[NodeId, Endpoint]]) -> str:
    """Return a whole endpoints.toml."""
    return "\n".join(block(node, endpoint) for node, endpoint in endpoints)


# --- the roster -------------------------------------------------------------------------------------------------------


def signed(identity: Identity, address: str) -> Endpoint:
    """Return the entry of `identity` at `address`, with its own signature."""
    member = _member(Endpoint(address, identity.public, identity.verify)).signed(identity.sign_bytes)
    return Endpoint(address, identity.public, identity.verify, signature=member.signature.hex())


def is_signed(endpoint: Endpoint) -> bool:
    """Return whether an entry is signed by its own key."""
    try:
        content = _member(endpoint).content()
    except ValueError:  # not a key, or not a signature
        return False
    return verify(endpoint.verify, content, endpoint.signature)


def roster_of(endpoints: Endpoints) -> ParticipantRoster:
    """Return the roster of all entries, by id.  Raises ConfigError for an entry without its own signature."""
    return _roster(tuple(sorted(endpoints.items())))


@lru_cache(maxsize=2)  # a gateway has a thousand clients with the same endpoints: their signatures are checked once
def _roster(endpoints: tuple[tuple[NodeId, Endpoint], ...]) -> ParticipantRoster:
    members = []
    for node, endpoint in endpoints:
        if not is_signed(endpoint):
            advice = f"Put what `{_name_command(node, endpoint)}` prints on its machine there, unchanged."
            raise ConfigError(f"endpoints: the entry of {node} is not signed by itself", advice)
        members.append(_member(endpoint))
    return ParticipantRoster(tuple(members))


def _member(endpoint: Endpoint) -> RosterMember:
    return RosterMember(
        bytes.fromhex(endpoint.verify), endpoint.key, endpoint.address, signature=bytes.fromhex(endpoint.signature)
    )
