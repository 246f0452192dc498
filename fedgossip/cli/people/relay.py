"""`fedgossip relay`: connect peers that cannot accept connections."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.text import echo

if TYPE_CHECKING:
    from fedgossip.net.relays.relay import Relay

SAY_SECONDS = 60.0
"""Seconds between two lines of counts, if they changed."""


@click.command()
@click.option("--listen", default="0.0.0.0:7777", show_default=True, metavar="HOST:PORT", help="Where to listen.")
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
def relay(listen: str, allow: Path | None, connections: int, rate: float, idle: float) -> int:
    """Run a relay on a machine that every peer can reach, until Ctrl-C.

    Peers behind NAT keep a connection to it and are connected through it; it sees the ends and sizes of calls, and
    ciphertext.
    """
    from fedgossip.base.errors import ConfigError, NetworkError
    from fedgossip.net.relays.relay import Limits, Relay
    from fedgossip.net.relays.roster_file import Roll

    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen {listen}: no address", "Write HOST:PORT, such as 0.0.0.0:7777.")
    roll = Roll(allow) if allow else None
    if roll is None:
        echo("Any caller may use this relay, within its limits; --allow FILE names the permitted ones.", err=True)
    server = Relay(Limits(connections, rate=1e6 * rate, idle_seconds=idle), roll.allowed if roll else lambda: None)
    try:
        asyncio.run(_run(server, host.strip("[]"), int(port)))
    except OSError as error:
        advice = "Stop what listens there, or choose another port."
        raise NetworkError(f"cannot listen on {listen}: {(error.strerror or str(error)).lower()}", advice) from None
    return 0


async def _run(server: Relay, host: str, port: int) -> None:
    """Serve until a signal; print the counts now and then."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, ended.set)
    echo(f"relay at {host}:{await server.start(host, port)}")
    before = ""
    while not ended.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), SAY_SECONDS)
        said = ", ".join(f"{count} {name}" for name, count in sorted(server.counts.items()))
        if said and said != before:
            echo(f"{server.listening} can be called; so far {said}", err=True)
        before = said
    await server.close()
