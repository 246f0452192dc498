"""Announcements of organisers, with their keys, on this network by DNS service discovery (zeroconf).

An announcement is not authenticated: it gives an address for a key, and only the key makes the connection succeed.
Needs zeroconf (extra `lan`).
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zmq.utils import z85

from fedgossip.base.errors import ConfigError, NetworkError, needed
from fedgossip.base.untrusted_text import line
from fedgossip.net.endpoints import TCP
from fedgossip.net.identity import check_public

if TYPE_CHECKING:
    from zeroconf import Zeroconf

SERVICE = "_fedgossip._tcp.local."

FOUND_MAX = 64
"""Maximum number of stored announcements, as any machine on the network may send them."""
ASK_MS = 2_000
"""Maximum wait for the details of an announcement, in milliseconds."""
NAME_LETTERS = 60

Interfaces = Sequence[str]
"""Local addresses of the networks to search; empty: all networks."""


@dataclass(frozen=True)
class Announcement:
    """An organiser: the name of its run, its public key, and its address."""

    name: str
    key: str
    addresses: tuple[str, ...]


def is_installed() -> bool:
    """Return whether this machine can announce and search."""
    try:
        import zeroconf  # noqa: F401
    except ImportError:
        return False
    return True


def _zeroconf(interfaces: Interfaces) -> Zeroconf:
    zeroconf: Any = needed("zeroconf", "lan", "looking for runs on this network", "an invite works without it.")
    try:
        found: Zeroconf = zeroconf.Zeroconf(interfaces=list(interfaces) or zeroconf.InterfaceChoice.All)
    except OSError as error:
        text = f"this network cannot be searched for announcements: {error.strerror or error}"
        raise NetworkError(text, "Ask for the invite; it has the address.") from None
    return found


class Announcer:
    """Announces one organiser, until `close`."""

    def __init__(self, name: str, key: str, port: int, hosts: Sequence[str], interfaces: Interfaces = ()) -> None:
        """`hosts`: numeric addresses at which it is called.  Raises ConfigError, NetworkError."""
        self._zeroconf = _zeroconf(interfaces)
        from zeroconf import ServiceInfo

        mark = z85.decode(key).hex()[:16]
        self._info = ServiceInfo(
            SERVICE,
            f"fedgossip-{mark}.{SERVICE}",
            port=port,
            parsed_addresses=list(hosts),
            properties={"key": key, "name": line(name, NAME_LETTERS)},
            server=f"fedgossip-{mark}.local.",
        )
        self._zeroconf.register_service(self._info, allow_name_change=True)

    def close(self) -> None:
        """Withdraw the announcement."""
        self._zeroconf.unregister_service(self._info)
        self._zeroconf.close()


class Search:
    """Listens for announcements, of one key or of all, until `close`."""

    def __init__(self, key: str = "", interfaces: Interfaces = ()) -> None:
        """Raises ConfigError, NetworkError."""
        self._key = key
        self._found: dict[str, Announcement] = {}
        self._lock = threading.Lock()
        self._zeroconf = _zeroconf(interfaces)
        from zeroconf import ServiceBrowser

        self._browser = ServiceBrowser(self._zeroconf, SERVICE, listener=self)  # type: ignore[arg-type]

    def list_found(self) -> list[Announcement]:
        """Return the announcements so far."""
        with self._lock:
            return list(self._found.values())

    def addresses(self) -> list[str]:
        """Return all addresses so far."""
        return [address for one in self.list_found() for address in one.addresses]

    def close(self) -> None:
        self._browser.cancel()
        self._zeroconf.close()

    # --- called by zeroconf's thread ------------------------------------------------------------------------------

    def add_service(self, zeroconf: Zeroconf, kind: str, name: str) -> None:
        info = zeroconf.get_service_info(kind, name, timeout=ASK_MS)
        one = _read(info)
        if one is None or (self._key and one.key != self._key):
            return
        with self._lock:
            if len(self._found) < FOUND_MAX:
                self._found[name] = one

    def update_service(self, zeroconf: Zeroconf, kind: str, name: str) -> None:
        self.add_service(zeroconf, kind, name)

    def remove_service(self, _zeroconf: Zeroconf, _kind: str, name: str) -> None:
        with self._lock:
            self._found.pop(name, None)


def _read(info: Any) -> Announcement | None:
    """Return an announcement from untrusted text, or None."""
    try:
        properties = {key.decode(): value.decode() for key, value in info.properties.items() if value}
        key = check_public(properties["key"], "an announcement")
        hosts = [ipaddress.ip_address(host.partition("%")[0]) for host in info.parsed_addresses()]
    except (AttributeError, KeyError, ValueError, UnicodeDecodeError, ConfigError):
        return None
    usable = [host for host in hosts if not host.is_link_local and not host.is_unspecified and not host.is_multicast]
    addresses = [f"{TCP}[{host}]:{info.port}" if host.version == 6 else f"{TCP}{host}:{info.port}" for host in usable]
    if not addresses or not info.port:
        return None
    return Announcement(line(properties.get("name", ""), NAME_LETTERS), key, tuple(addresses[:8]))
