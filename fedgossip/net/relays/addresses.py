"""The callable addresses of this machine on its networks.  Nothing is sent."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Sequence

from fedgossip.base.errors import NetworkError
from fedgossip.net.endpoints import ADDRESS_LETTERS, TCP, find_own_address

_ADDRESS_OF = 0x8915  # linux/sockios.h: SIOCGIFADDR
LOOPBACK = "127.0.0.1"


def find_own_addresses(port: int) -> list[str]:
    """Return the addresses of this machine, first the one on the route to the outside; only the loopback without a
    network.
    """
    first = find_own_address(port)
    found = [first] if first else []
    found += [f"{TCP}{host}:{port}" for host in _list_interfaces()]
    return list(dict.fromkeys(found)) or [f"{TCP}{LOOPBACK}:{port}"]


def address_towards(address: str, port: int) -> str | None:
    """Return the address of this machine on the route to another one, tcp://HOST:PORT; None without a route."""
    host, _, number = address.partition("://")[2].rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(number), type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, _, _, where in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(where)
            ours = probe.getsockname()[0].partition("%")[0]
            return f"{TCP}[{ours}]:{port}" if ":" in ours else f"{TCP}{ours}:{port}"
    return None


class Whereabouts:
    """The reachable addresses of this machine at `port`, as one text: its own, then the relays that serve it.

    `towards`: an address; the local one on the route to it is listed first.  `given`: addresses given by people, used
    unchanged.  A call returns the same text as long as the first address exists, and "" without a network.
    """

    def __init__(self, port: int, relays: Sequence[str] = (), towards: str = "", given: Sequence[str] = ()) -> None:
        self._port, self._relays, self._towards, self._given = port, relays, _numbered(towards), given
        self._first, self.text = "", ""
        self.text = self()

    def __call__(self) -> str:
        found = list(self._given) or find_own_addresses(self._port)
        if self._first in found:
            return self.text
        if self._first and not self._given and found == [f"{TCP}{LOOPBACK}:{self._port}"]:
            return ""
        first = address_towards(self._towards, self._port) if self._towards and not self._given else None
        ordered = list(dict.fromkeys([*([first] if first else []), *found]))
        room = ADDRESS_LETTERS - sum(len(relay) + 1 for relay in self._relays)
        while len(",".join(ordered)) > room and len(ordered) > 1:
            ordered.pop()
        self._first, self.text = ordered[0], ",".join([*ordered, *self._relays])
        return self.text


def _numbered(address: str) -> str:
    """Return the address with its host as a number."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    try:
        number = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0][4][0]
    except (OSError, ValueError):
        return ""
    return f"{scheme}://[{number}]:{port}" if ":" in str(number) else f"{scheme}://{number}:{port}"


def hold_port(wanted: int, *, exactly: bool) -> socket.socket:
    """Reserve `wanted`, or any free port if permitted.  Raises NetworkError.

    The returned socket holds it; ZeroMQ's socket may still listen there, as both set SO_REUSEADDR.
    """
    for port in (wanted, 0):  # 0: any free port
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if exactly:  # connections of an earlier process may linger there
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("", port))
        except OSError as error:
            holder.close()
            if exactly:
                advice = "Stop the program that listens there, or choose another port."
                raise NetworkError(f"port {port}: {(error.strerror or 'cannot be had').lower()}", advice) from None
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder
    raise NetworkError("this machine has no free port", "Stop the programs that listen on them.")


def port_of(holder: socket.socket) -> int:
    """Return the number of a reserved port."""
    return int(holder.getsockname()[1])


def address_of_interface(name: str) -> str | None:
    """Return the IPv4 address of a network interface; None if the interface or its address is missing or not
    reported.
    """
    try:
        import fcntl
    except ImportError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, contextlib.suppress(OSError):
        reply = fcntl.ioctl(any_socket.fileno(), _ADDRESS_OF, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(reply[20:24])
    return None


def _list_interfaces() -> list[str]:
    """Return the IPv4 address of every network interface but the loopback, if known."""
    found = [address_of_interface(name) for _, name in socket.if_nameindex()]
    return [host for host in found if host and not ipaddress.ip_address(host).is_loopback]
