"""Machines with addresses of their own: network namespaces round a switch, whose cables can be cut.

A namespace sees its own end of its cable alone.  `cut` sets the switch's end of it down, `silence` the switch itself:
then nobody is told, and what is sent is lost, as when a router in between dies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SWITCH = "br0"


class Machines:
    """`addresses`: the IPv4 addresses of each machine, by its name; all are of one network of 256."""

    def __init__(self, addresses: Mapping[str, Sequence[str]]) -> None:
        self.addresses = addresses
        self._mark = f"fg{os.getpid()}"  # other tests may have their own at the same time
        self._switch = f"{self._mark}-switch"

    def name(self, machine: str) -> str:
        return f"{self._mark}-{machine}"

    def make(self) -> None:
        """Make namespaces and cables.  Raises CalledProcessError; `remove` then removes what there is."""
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", SWITCH, "type", "bridge")
        ip("-n", self._switch, "link", "set", SWITCH, "up")
        for machine, addresses in self.addresses.items():
            name = self.name(machine)
            ip("netns", "add", name)
            ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", machine, "netns", self._switch)
            ip("-n", self._switch, "link", "set", machine, "master", SWITCH, "up")
            for address in addresses:
                ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def remove(self) -> None:
        for name in (self._switch, *map(self.name, self.addresses)):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def cut(self, machine: str) -> None:
        """Unplug a machine's cable: it sees that."""
        ip("-n", self._switch, "link", "set", machine, "down")

    def mend(self, machine: str) -> None:
        ip("-n", self._switch, "link", "set", machine, "up")

    def silence(self) -> None:
        """Nothing passes the switch any more, and nobody is told."""
        ip("-n", self._switch, "link", "set", SWITCH, "down")

    def speak(self) -> None:
        ip("-n", self._switch, "link", "set", SWITCH, "up")

    def start(self, machine: str, arguments: Sequence[str], cwd: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start `fedgossip ARGUMENTS` on a machine; what it prints goes to `log`."""
        return self.spawn(machine, [sys.executable, "-m", "fedgossip", *arguments], cwd, log)

    def spawn(self, machine: str, command: Sequence[str], cwd: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start any command on a machine; what it prints goes to `log`."""
        inside = ["ip", "netns", "exec", self.name(machine), *command]
        with log.open("ab") as said:  # `ip` replaces itself by the command: the process is ours to signal
            return subprocess.Popen(inside, cwd=cwd, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def ask(self, machine: str, command: Sequence[str]) -> str:
        """Run a command on a machine to its end; return all that it prints, errors too."""
        inside = ["ip", "netns", "exec", self.name(machine), *command]
        done = subprocess.run(inside, check=False, capture_output=True, text=True)
        return done.stdout + done.stderr


@contextmanager
def machines(addresses: Mapping[str, Sequence[str]]) -> Iterator[Machines]:
    """Make machines, and remove them at the end; skips the test where that cannot be done."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and `ip` to make network namespaces")
    made = Machines(addresses)
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        made.remove()


def ip(*words: str) -> None:
    run("ip", *words)


def run(*words: str) -> None:
    """Run a command of root's.  Raises CalledProcessError, with what it said, where it fails."""
    subprocess.run(words, check=True, capture_output=True)
