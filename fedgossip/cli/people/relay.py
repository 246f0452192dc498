"""`fedgossip relay`: connect peers that cannot accept connections."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.text import echo

if TYPE_CHECKING:
    from fedgossip.net.relays.relay import Door, Relay

USUAL = "0.0.0.0:7777"

REPORT_SECONDS = 60.0
"""Seconds between two lines of counts, if they changed."""


@click.command()
@click.option(
    "--listen",
    "doors",
    multiple=True,
    metavar="ADDRESS",
    help="HOST:PORT; wss://HOST:PORT with --cert; ws://HOST:PORT behind a server that ends TLS.  May be given several "
    f"times.  [default: {USUAL}]",
)
@click.option("--cert", type=click.Path(path_type=Path), help="For wss://: the certificate, with its chain, in PEM.")
@click.option("--key", type=click.Path(path_type=Path), help="For wss://: the key of the certificate, in PEM.")
@click.option(
    "--allow",
    type=click.Path(path_type=Path),
    help="Permitted users: an endpoints.toml, a roster of keys, a host's folder.  Read again when it changes.",
)
@click.option("--connections", type=click.IntRange(2, 65536), default=512, show_default=True, help="At a time.")
@click.option(
    "--rate",
    type=click.FloatRange(0.001, 1e6),
    default=50.0,
    show_default=True,
    metavar="MB",
    help="Megabytes a second, of all together.",
)
@click.option(
    "--idle",
    type=click.FloatRange(1),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time without a byte after which two are parted.",
)
def relay(
    doors: tuple[str, ...],
    cert: Path | None,
    key: Path | None,
    allow: Path | None,
    connections: int,
    rate: float,
    idle: float,
) -> int:
    """Run a relay on a machine that every peer can reach, until Ctrl-C.

    Peers behind NAT keep a connection to it and are connected through it.  The relay can read the ends and sizes of
    connections, and ciphertext.
    """
    from fedgossip.net.relays.relay import Door, Limits, Relay, tls_of
    from fedgossip.net.relays.roster_file import Roll

    opened = [Door.parse(door, "--listen") for door in doors or (USUAL,)]
    tls = tls_of([door.scheme for door in opened], cert, key)
    roll = Roll(allow) if allow else None
    if roll is None:
        echo("Any caller may use this relay, within its limits; --allow FILE names the permitted ones.", err=True)
    server = Relay(Limits(connections, rate=1e6 * rate, idle_seconds=idle), roll.allowed if roll else lambda: None)
    asyncio.run(_run(server, opened, tls))
    return 0


async def _run(server: Relay, doors: Sequence[Door], tls: ssl.SSLContext | None) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, ended.set)
    for door in doors:
        echo(f"relay at {await server.listen(door, tls)}")
    before = ""
    while not ended.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_SECONDS):
                await ended.wait()
        text = ", ".join(f"{count} {name}" for name, count in sorted(server.counts.items()))
        if text and text != before:
            echo(f"{server.listening} can be called; so far {text}", err=True)
        before = text
    await server.close()
