"""Machines far apart: network namespaces round a switch that holds back every packet.

    namespace --eth0, a TUN device that tc shapes (tbf)--> Switch: reads, waits, writes --> eth0 of another namespace

What a machine sends leaves at the rate of its link and arrives `seconds` later, as with netem, which not every kernel
has.  The switch is a thread of this process.  Its ends of the devices stay here when they are moved into namespaces,
and devices and namespaces are gone when it ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import CalledProcessError

import pytest
from namespaces import Machines, ip, run

TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
PACKET_BYTES = 1500
BURST_BYTES = 16_000  # what tbf lets pass at once; a few packets, more than one of its timer's ticks needs
QUEUE_BYTES = 4_000_000  # what waits for a link before packets are lost
DESTINATION = slice(16, 20)  # in an IPv4 header, RFC 791
TURN = 64
"""Packets that are read from one machine before the others have their turn."""


class Switch(threading.Thread):
    """Takes packets from each device in `ends` and gives them, `seconds` later, to the one whose address they bear.

    `carried`: bytes of IP packets that each has sent, by its address.
    """

    def __init__(self, ends: Mapping[str, int], seconds: float) -> None:
        super().__init__(daemon=True)
        self.ends = {socket.inet_aton(address): end for address, end in ends.items()}
        self.seconds = seconds
        self.carried = dict.fromkeys(ends, 0)
        self._names = {end: address for address, end in ends.items()}
        self._under_way: deque[tuple[float, bytes]] = deque()  # all wait equally long: the first in is the first out
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            wait = self._under_way[0][0] - time.monotonic() if self._under_way else 0.1
            there, _, _ = select.select(list(self._names), [], [], max(0.0, min(wait, 0.1)))
            for end in there:
                self._take(end)
            self._give()

    def _take(self, end: int) -> None:
        for _ in range(TURN):
            try:
                packet = os.read(end, PACKET_BYTES)
            except BlockingIOError:
                return
            self.carried[self._names[end]] += len(packet)
            self._under_way.append((time.monotonic() + self.seconds, packet))
            self._give()

    def _give(self) -> None:
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            _, packet = self._under_way.popleft()
            end = self.ends.get(packet[DESTINATION])  # what is of no machine, as IPv6's greetings, is dropped
            if end is not None and packet[0] >> 4 == 4:
                try:
                    os.write(end, packet)
                except (BlockingIOError, OSError):  # lost, as on a link; TCP sends it again
                    continue

    def stop(self) -> None:
        self._over.set()
        self.join()
        for end in self.ends.values():
            os.close(end)


class FarMachines(Machines):
    """Machines with one address each, whose links carry `mbit` Mbit/s and take `seconds` one way."""

    def __init__(self, addresses: Mapping[str, Sequence[str]], mbit: float, seconds: float) -> None:
        super().__init__(addresses)
        self.mbit, self.seconds = mbit, seconds
        self.switch: Switch | None = None

    def make(self) -> None:
        """Make namespaces, devices, and the switch.  Raises CalledProcessError, OSError; then call `remove`."""
        ends = {}
        for number, (machine, (address,)) in enumerate(self.addresses.items()):
            name, device = self.name(machine), f"fg{os.getpid()}t{number}"
            ip("netns", "add", name)
            ends[address] = _tun(device)
            ip("link", "set", device, "netns", name, "name", "eth0", "mtu", str(PACKET_BYTES))
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
            shape = ["tbf", "rate", f"{self.mbit}mbit", "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES)]
            run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *shape)
        self.switch = Switch(ends, self.seconds)
        self.switch.start()

    def remove(self) -> None:
        if self.switch:
            self.switch.stop()
        super().remove()


def _tun(device: str) -> int:
    """Return our end of a new device that carries IP packets; it is there as long as that is open."""
    end = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
    return end


def lacking() -> str:
    """Return why no such machines can be made here; "" where they can."""
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)}, of iproute2"
    return "" if TUN.exists() else f"needs {TUN}"


@contextmanager
def far_machines(addresses: Mapping[str, Sequence[str]], mbit: float, seconds: float) -> Iterator[FarMachines]:
    """Make machines far apart, and remove them at the end; skips the test where that cannot be done."""
    if why := lacking():
        pytest.skip(why)
    made = FarMachines(addresses, mbit, seconds)
    try:
        made.make()
    except (CalledProcessError, OSError) as error:
        made.remove()
        said = error.stderr.decode().strip() if isinstance(error, CalledProcessError) else str(error)
        pytest.skip(f"links cannot be shaped here: {said}")
    try:
        yield made
    finally:
        made.remove()
