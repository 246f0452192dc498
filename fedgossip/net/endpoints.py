"""Where the peers of a run are: endpoints.toml, one [[peer]] block each with id, address and public key.

    [[peer]]
    id = 0
    address = "tcp://192.168.1.10:5700"
    key = "..."                              # the public one, 40 characters

The file is the allow-list too: a key that is not in it is never served.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedgossip.errors import ConfigError
from fedgossip.machine import NodeId
from fedgossip.net.identity import check_public

_ADDRESS = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[\w.-]+):(?P<port>\d{1,5})|ipc://.{1,100}")


class _Peer(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    address: str
    key: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    peer: list[_Peer]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a peer listens, and its public key."""

    address: str
    key: str


Endpoints = Mapping[NodeId, Endpoint]


def load(path: Path, n: int) -> dict[NodeId, Endpoint]:
    """Read the endpoints of all `n` peers.  Raises ConfigError naming the entry that is wrong or missing."""
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text()), _File).peer
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "Name the file with --endpoints.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}", "Each [[peer]] has id, address and key.") from None
    found: dict[NodeId, Endpoint] = {}
    keys: dict[str, NodeId] = {}
    for entry in entries:
        where = f"{path}: peer {entry.id}"
        if entry.id in found:
            raise ConfigError(f"{where} is there twice", "Give every peer an id of its own.")
        address = _ADDRESS.fullmatch(entry.address)
        if not address or not 0 < int(address["port"] or 1) < 65536:
            raise ConfigError(f"{where}: {entry.address!r} is no address", "Write tcp://HOST:PORT.")
        check_public(entry.key, where)
        if entry.key in keys:
            raise ConfigError(f"{where} has the key of peer {keys[entry.key]}", "Make a key on each machine.")
        keys[entry.key] = entry.id
        found[entry.id] = Endpoint(entry.address, entry.key)
    if set(found) != set(range(n)):
        missing, extra = sorted(set(range(n)) - set(found)), sorted(set(found) - set(range(n)))
        wrong = f"no entry for {missing[:5]}" if missing else f"entries for {extra[:5]}"
        raise ConfigError(
            f"{path}: the graph has peers 0 to {n - 1}, and there {'is' if missing else 'are'} {wrong}",
            "Write one [[peer]] block per node of the graph.",
        )
    return found


def block(node: NodeId, endpoint: Endpoint) -> str:
    """Return the [[peer]] block as text."""
    return f"[[peer]]\nid = {node}\naddress = '{endpoint.address}'\nkey = '{endpoint.key}'\n"


def text(endpoints: Iterable[tuple[NodeId, Endpoint]]) -> str:
    """Return a whole endpoints.toml."""
    return "\n".join(block(node, endpoint) for node, endpoint in endpoints)
