"""The process of one participant on a node: that which `run --on local` starts, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fedgossip.base import kernels
from fedgossip.base.errors import ConfigError
from fedgossip.base.imports import PYTHON
from fedgossip.net.relays.addresses import LOOPBACK, address_of_interface, address_towards, own_addresses


def start_participant(
    spec: Mapping[str, Any], here: str, path: Sequence[str], *, cpus: int, portable: bool
) -> subprocess.Popen[bytes]:
    """Start a participant; it says goodbye on SIGTERM, and when this process exits."""
    threads = {f"{library}_NUM_THREADS": str(cpus) for library in ("OMP", "OPENBLAS", "MKL")}
    words = [*PYTHON, "-m", "fedgossip.drivers.fork_server", msgspec.json.encode(spec).decode()]
    environment = {**kernels.environment(portable=portable), **threads, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd=here, env=environment)


def own_host(own: str, hosts: Sequence[str], interface: str = "") -> str:
    """Return the address of this node for those on `hosts`: that of the interface with the route to the first of them.
    Raises ConfigError for an interface that does not exist.
    """
    if interface:
        found = address_of_interface(interface)
        if found is None:
            raise ConfigError(f"{own}: no network interface {interface} with an address", "Name another: --interface.")
        return found
    others = [host for host in hosts if host != own]
    if not others:
        return LOOPBACK
    towards = address_towards(f"tcp://{others[0]}:1", 1) or own_addresses(1)[0]
    return towards.removeprefix("tcp://").rpartition(":")[0]
