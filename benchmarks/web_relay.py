"""Bytes through a relay by the web, by TCP, and through a plain WebSocket echo of the same bytes, in turns.

One way through a relay and an echo there and back are two hops each, between processes of one machine, inside TLS but
for TCP.  Printed: MB/s of each, CPU time of the relay or the echo for it (which other load disturbs less), the web's
share of the bare echo, and the round trip of a byte through the relay.

    python benchmarks/web_relay.py [--megabytes 25] [--turns 5]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import socket
import ssl
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from fedgossip.base.errors import PeerError
from fedgossip.net.identity import Identity, raw
from fedgossip.net.relays.relay import Limits, Relay
from fedgossip.net.relays.relay_client import ask_relay
from fedgossip.net.relays.roster_file import ANSWER, CALL, LISTEN, NO_TARGET, TOKEN_BYTES

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from commands import free_ports, wait_until
from web_proxies import Authority

PIECE, SECONDS = 1 << 16, 30.0


def relaying(tcp: int, web: int, certificate: str, key: str) -> None:
    async def run() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        relay = Relay(Limits(rate=1e12))
        await relay.start("127.0.0.1", tcp)
        await relay.start_web("127.0.0.1", web, context)
        await asyncio.Event().wait()

    asyncio.run(run())


def echoing(port: int, certificate: str, key: str) -> None:
    async def echo(one: ServerConnection) -> None:
        async for message in one:
            await one.send(message)

    async def run() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        async with serve(echo, "127.0.0.1", port, ssl=context, compression=None):
            await asyncio.Event().wait()

    asyncio.run(run())


def answering(relay: str, identity: Identity, size: int, turns: int) -> None:
    """Answer one call: send a byte back for each, then one for each `size` bytes."""

    async def run() -> None:
        ear = await ask_relay(relay, identity, LISTEN, NO_TARGET, SECONDS)
        while await ear[0].readexactly(1) != b"C":
            pass
        reader, writer = await ask_relay(relay, identity, ANSWER, await ear[0].readexactly(TOKEN_BYTES), SECONDS)
        for each in [1] * 50 + [size] * turns:
            wanted = each
            while wanted:
                wanted -= len(await reader.read(min(wanted, PIECE)))
            writer.write(b".")
        await asyncio.sleep(1.0)

    asyncio.run(run())


async def through(relay: str, identity: Identity, size: int, turns: int) -> tuple[float, list[float]]:
    """Return the median round trip of a byte, and the seconds of each turn."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            reader, writer = await ask_relay(relay, Identity.new(), CALL, raw(identity.public), SECONDS)
            break
        except PeerError:  # the one that answers is not there yet
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
    block, found = bytes(PIECE), []
    for each in [1] * 50 + [size] * turns:
        began, wanted = time.perf_counter(), each
        while wanted:
            writer.write(block[: min(wanted, PIECE)])
            wanted -= min(wanted, PIECE)
            await writer.drain()
        await reader.readexactly(1)
        found.append(time.perf_counter() - began)
    return statistics.median(found[:50]), found[50:]


async def echoed(url: str, size: int, turns: int) -> list[float]:
    found = []
    async with connect(url, compression=None, proxy=None) as one:
        for _ in range(turns):
            began = time.perf_counter()
            sending = asyncio.create_task(_send(one, size))
            back = 0
            while back < size:
                back += len(await one.recv())
            await sending
            found.append(time.perf_counter() - began)
    return found


async def _send(one: object, size: int) -> None:
    for _ in range(size // PIECE):
        await one.send(bytes(PIECE))  # type: ignore[attr-defined]


def answers_at(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def used(server: multiprocessing.process.BaseProcess) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--megabytes", type=int, default=25)
    words.add_argument("--turns", type=int, default=5)
    asked = words.parse_args()
    size, rates, trips = asked.megabytes * 1_000_000 // PIECE * PIECE, {}, {}
    os.environ.update(FEDGOSSIP_PROXY="none")
    with TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        os.environ["SSL_CERT_FILE"] = str(authority.path)
        files = list(map(str, authority.certificate("127.0.0.1")))
        tcp, web, bare = free_ports(3)
        ways = {"TCP": f"relay://127.0.0.1:{tcp}", "web": f"wss://127.0.0.1:{web}"}
        start = multiprocessing.get_context("spawn").Process
        servers = [start(target=relaying, args=(tcp, web, *files)), start(target=echoing, args=(bare, *files))]
        for one in servers:
            one.start()
        wait_until(lambda: all(map(answers_at, (tcp, web, bare))), SECONDS, "the servers listen")
        taken: dict[str, list[float]] = {name: [] for name in (*ways, "bare echo")}
        spent: dict[str, list[float]] = {name: [] for name in taken}
        for _ in range(asked.turns):
            for name, relay in ways.items():
                identity, began = Identity.new(), used(servers[0])
                other = start(target=answering, args=(relay, identity, size, 1))
                other.start()
                trips[name], found = asyncio.run(through(relay, identity, size, 1))
                taken[name] += found
                other.join()
                spent[name].append(used(servers[0]) - began)
            began = used(servers[1])
            taken["bare echo"] += asyncio.run(echoed(f"wss://127.0.0.1:{bare}", size, 1))
            spent["bare echo"].append(used(servers[1]) - began)
        for one in servers:
            one.terminate()
            one.join()
    for name, seconds in taken.items():
        rates[name] = size / statistics.median(seconds) / 1e6
        trip = f", {trips[name] * 1e3:.2f} ms there and back" if name in trips else ""
        print(
            f"{name:10} {rates[name]:7.1f} MB/s, {statistics.median(spent[name]) * 1e3:.0f} CPU ms of the server{trip}"
        )
    print(f"web / bare echo: {rates['web'] / rates['bare echo']:.2f}")


if __name__ == "__main__":
    main()
