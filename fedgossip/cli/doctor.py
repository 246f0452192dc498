"""`fedgossip doctor`: what this machine can do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import click

from fedgossip import kernels
from fedgossip.cli.text import echo

NEEDED = ("torch", "numpy", "scipy", "networkx", "pyzmq", "msgspec", "scikit-learn", "safetensors", "matplotlib")


@click.command()
@click.option("--links", is_flag=True, help="Measure what encrypted links take over this machine's loopback.")
def doctor(links: bool) -> int:
    """Say what this machine can do, and what is missing."""
    if links:
        _links()
        return 0
    fine = True
    for good, text in _findings():
        echo(f"{'ok     ' if good else 'missing'}  {text}")
        fine = fine and good
    return 0 if fine else 2


def _findings() -> Iterator[tuple[bool, str]]:
    yield True, f"Python {platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores"
    yield True, f"processor {kernels.processor()}"
    for name in NEEDED:
        try:
            yield True, f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield False, f"{name}: install it with pip install {name}"
    yield _encryption()
    yield _device()
    yield _kernels()
    folder = os.environ.get("FEDGOSSIP_DATA")
    if not folder:
        yield True, "FEDGOSSIP_DATA is not set: digits and breast-cancer are bundled, MNIST needs it"
    else:
        yield Path(folder).is_dir(), f"FEDGOSSIP_DATA is {folder}"


def _links() -> None:
    """Print what messages of several sizes took, and the line through them: what [simulation] would be like here."""
    from fedgossip.cli.text import columns
    from fedgossip.costs.fitted import fitted
    from fedgossip.net.link_times import SIZES, link_times

    times = link_times()
    line = fitted(SIZES, times)
    rows = [["bytes", "there and answered", "fitted"]]
    for size, seconds in zip(SIZES, times, strict=True):
        rows.append([f"{size:,}", f"{seconds * 1e3:.3f} ms", f"{line.seconds(size) * 1e3:.3f} ms"])
    echo(columns(rows))
    echo(f"encrypted, over loopback: {line.latency * 1e3:.3f} ms there and back, {line.rate / 1e6:,.0f} MB/s")
    echo(f"a time is off that line by up to {line.residual:.0%}; in an experiment file:")
    rate = f"{line.rate:.2g}"
    echo(f"simulation = {{ latency = {line.latency / 2:.2g}, bandwidth = {rate}, downlink = {rate} }}")


def _kernels() -> tuple[bool, str]:
    """Return what holds for torch, once it is loaded: MKL's own word goes before the environment's."""
    from fedgossip.learning.portable import capability

    asked = {1: "as it likes", 2: "AUTO", 3: "COMPATIBLE"}.get(kernels.mkl_mode() or 0, "not known")
    said = f"kernels {kernels.mode()}: MKL {asked}, ATen {capability()}"
    return not kernels.late(), "; ".join([said, *kernels.remarks()])


def _encryption() -> tuple[bool, str]:
    import zmq

    from fedgossip.net.identity import Identity
    from fedgossip.net.mesh import Links

    if not zmq.has("curve"):
        return False, "ZeroMQ without CURVE: install a pyzmq wheel, or libzmq built with libsodium"
    links = Links(0, "tcp://127.0.0.1:*", Identity.new())
    links.close()
    return True, f"ZeroMQ {zmq.zmq_version()} with CURVE, can listen on this machine"


def _device() -> tuple[bool, str]:
    from fedgossip.learning.devices import describe, device_for

    return True, f"trains on {describe(device_for('auto'))}"
