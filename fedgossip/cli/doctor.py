"""`fedgossip doctor`: the capabilities of this machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from fedgossip.base import kernels
from fedgossip.cli.people.keys import key_option
from fedgossip.cli.run.participant import web_options
from fedgossip.cli.text import echo

FOR_DEVELOPERS = ("all", "dev", "docs")
"""Extras without additional capabilities."""


@click.command()
@click.option("--links", is_flag=True, help="Measure what encrypted links take over this machine's loopback.")
@click.option(
    "--endpoints",
    type=click.Path(path_type=Path),
    help="With --links: measure those to the machines in this file, which do the same.",
)
@key_option("With --endpoints or --reach: one's own key pair, from `fedgossip keys new`.")
@click.option(
    "--reach", metavar="URL", help="Try the way to a relay, step by step: wss://HOST/PATH, or relay://HOST:PORT."
)
@web_options
@click.option("--bind", help="With --endpoints: where to listen.  [default: this machine's address there]")
@click.option(
    "--wait",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, 86400),
    help="With --endpoints: seconds until all must be there.",
)
def doctor(links: bool, endpoints: Path | None, key: Path, reach: str | None, bind: str | None, wait: float) -> int:
    """Check this machine: its capabilities, and missing parts."""
    if reach:
        return _reach(reach, key)
    if endpoints and not links:
        raise click.UsageError("--endpoints is for --links: fedgossip doctor --links --endpoints FILE")
    if endpoints:
        return _links_between(endpoints, key, bind, wait)
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
    yield from _packages()
    yield _encryption()
    yield _device()
    yield _kernels()
    folder = os.environ.get("FEDGOSSIP_DATA")
    if not folder:
        yield True, "FEDGOSSIP_DATA is not set: digits and breast-cancer are bundled, MNIST needs it"
    else:
        yield Path(folder).is_dir(), f"FEDGOSSIP_DATA is {folder}"


def _packages() -> Iterator[tuple[bool, str]]:
    """Yield a line for each library, and for each extra that is not installed."""
    try:
        wanted = importlib.metadata.requires("fedgossip") or []
    except importlib.metadata.PackageNotFoundError:
        yield False, "fedgossip is not installed: pip install it, or its checkout with pip install --editable ."
        return
    lacking: dict[str, list[str]] = {}
    for requirement, _, marker in (one.partition(";") for one in wanted):
        name, extra = re.split(r"[^\w.-]", requirement, maxsplit=1)[0], re.search(r"extra == ['\"]([\w-]+)", marker)
        if extra and extra[1] in FOR_DEVELOPERS:
            continue
        try:
            found = importlib.metadata.version(name)
            if not extra:
                yield True, f"{name} {found}"
        except importlib.metadata.PackageNotFoundError:
            if extra:
                lacking.setdefault(extra[1], []).append(name)
            else:
                yield False, f"{name}: pip install '{requirement.strip()}'"
    for part, names in lacking.items():
        yield True, f"without the extra {part} ({', '.join(names)}): pip install 'fedgossip[{part}]' adds it"


def _links() -> None:
    """Print message times by size, and the fitted line: the [simulation] of this machine."""
    from fedgossip.cli.text import columns
    from fedgossip.lab.costs.base import fitted
    from fedgossip.net.measuring import SIZES, link_times

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


def _reach(relay: str, key: Path) -> int:
    """Print the steps of the connection to a relay, a line each."""
    import asyncio

    from fedgossip.base.errors import FedgossipError
    from fedgossip.net.endpoints import check_reachable
    from fedgossip.net.identity import Identity
    from fedgossip.net.measuring import reach
    from fedgossip.net.relays.web_way import without_tls

    check_reachable(relay, "--reach")
    identity = Identity.load(key) if key.exists() else Identity.new()
    try:
        asyncio.run(reach(relay, identity, lambda step, found: echo(f"ok      {step:<10}  {found}")))
    except FedgossipError as error:
        echo(f"failed  {error}")
        echo(f"        {error.advice}")
        return 3
    if note := without_tls(relay):
        echo(f"note    {note}")
    return 0


def _links_between(endpoints: Path, key: Path, bind: str | None, wait: float) -> int:
    """Print the times of the links to other machines; return 3 if one was not measured."""
    from fedgossip.cli.text import columns
    from fedgossip.lab.costs.base import fitted
    from fedgossip.net.endpoints import load_addresses
    from fedgossip.net.identity import Identity
    from fedgossip.net.links.mesh import Links
    from fedgossip.net.measuring import LinkSurvey
    from fedgossip.net.relays.relay_client import ways_through

    identity = Identity.load(key)
    known, node = load_addresses(endpoints, identity.public)
    own, others = known[node].address, [one.address for one in known.values()]
    rows, lines = [["to", "bytes", "there and back", "rate", "off by"]], []
    with contextlib.ExitStack() as stack:
        reached = stack.enter_context(ways_through(identity, bind or own, own, others))
        for fault in reached.faults:
            echo(f"{fault}  {fault.advice}", err=True)
        links = Links(node, reached.bind, identity)
        stack.callback(links.close, 1.0)
        links.routing.reach(reached.ways)
        echo(f"{node} at {links.address}: waiting for {len(known) - 1} others, which take turns", err=True)
        for one in LinkSurvey(node, links, known, wait).measured():
            try:
                line = fitted(one.sizes, one.seconds)
            except ValueError as error:
                rows.append([str(one.node), "-", str(error) if one.sizes else "no answer", "-", "-"])
                continue
            lines.append(line)
            most, rate = f"to {one.sizes[-1]:,}", f"{line.rate / 1e6:,.3g} MB/s"
            rows.append([str(one.node), most, f"{line.latency * 1e3:.3f} ms", rate, f"{line.residual:.0%}"])
    echo(columns(rows))
    if lines:
        latency, rate = max(one.latency for one in lines) / 2, f"{min(one.rate for one in lines):.2g}"
        echo("as the slowest of them, in an experiment file:")
        echo(f"simulation = {{ latency = {latency:.2g}, bandwidth = {rate}, downlink = {rate} }}")
    return 0 if len(lines) == len(known) - 1 else 3


def _kernels() -> tuple[bool, str]:
    """Return torch's kernels: MKL's report if it is loaded, else the mode that would be set."""
    if "torch" in sys.modules:
        from fedgossip.learning.one_model.devices import capability

        asked = {1: "as it likes", 2: "AUTO", 3: "COMPATIBLE"}.get(kernels.mkl_mode() or 0, "not known")
        text = f"kernels {kernels.mode()}: MKL {asked}, ATen {capability()}"
    else:
        wanted = [f"{name}={os.environ[name]}" for name in kernels.PORTABLE if name in os.environ]
        text = f"kernels {kernels.mode()}: {', '.join(wanted)}"
    return not kernels.late(), "; ".join([text, *kernels.remarks()])


def _encryption() -> tuple[bool, str]:
    import zmq

    from fedgossip.net.identity import Identity
    from fedgossip.net.links.mesh import Links
    from fedgossip.net.streams.sealing import suites_wanted

    if not zmq.has("curve"):
        return False, "ZeroMQ without CURVE: install a pyzmq wheel, or libzmq built with libsodium"
    links = Links(0, "tcp://127.0.0.1:*", Identity.new())
    links.close()
    suite = min(suites_wanted(), default=None)
    bulk = f"models are sealed by {suite.words}" if suite else "which seals models too (FEDGOSSIP_LINKS=curve)"
    return True, f"ZeroMQ {zmq.zmq_version()} with CURVE, {bulk}, can listen on this machine"


def _device() -> tuple[bool, str]:
    if kernels.built_for_cpu():
        return True, "trains on the CPU: this torch is built for no GPU"
    from fedgossip.learning.one_model.devices import describe, device_for

    return True, f"trains on {describe(device_for('auto'))}"
