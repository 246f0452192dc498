"""The way to a relay, step by step, and what it takes: a round trip, and megabytes a second."""

from __future__ import annotations

import asyncio
import statistics
import time

from fedgossip.base.errors import FedgossipError, NetworkError, PeerError
from fedgossip.net.identity import Identity
from fedgossip.net.relays.relay_client import CONNECT_SECONDS, ask_relay, open_relay
from fedgossip.net.relays.roster_file import ECHO, NO_TARGET
from fedgossip.net.relays.splice import Stream, hang_up, settled
from fedgossip.net.relays.web_stream import WebStream
from fedgossip.net.relays.web_way import ReportStep

TRIPS, TRIP_SECONDS = 9, 10.0
RATE_BYTES, RATE_SECONDS = 4 << 20, 20.0
"""Bytes to be echoed, and the time for them; a slower way is measured by those that are back."""
PIECE_BYTES = 1 << 16


async def reach(relay: str, identity: Identity, report: ReportStep) -> None:
    """Reach a relay, by TCP or the web, and measure; `report` receives each step that succeeded.

    Raises FedgossipError, whose text names the step that failed.
    """
    try:
        try:
            stream = await ask_relay(relay, identity, ECHO, NO_TARGET, CONNECT_SECONDS, report)
        except PeerError:
            await _of_a_stranger(relay, report)
            return
        try:
            await _measured(stream, report)
        finally:
            hang_up(stream[1])
    except FedgossipError:
        raise
    except (OSError, EOFError, TimeoutError) as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else "the connection broke"
        raise NetworkError(f"{relay}: {reason}", "Is `fedgossip relay` running there?") from None
    finally:
        await settled()


async def _measured(stream: Stream, report: ReportStep) -> None:
    reader, writer = stream
    trips = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        writer.write(b".")
        await asyncio.wait_for(reader.readexactly(1), TRIP_SECONDS)
        trips.append(time.perf_counter() - began)
    report("round trip", f"{statistics.median(trips) * 1e3:.1f} ms")
    began, back = time.perf_counter(), 0
    sending = asyncio.create_task(_send(stream))
    try:
        async with asyncio.timeout(RATE_SECONDS):
            while back < RATE_BYTES and (piece := await reader.read(PIECE_BYTES)):
                back += len(piece)
    except TimeoutError:
        pass
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    rate = back / (time.perf_counter() - began) / 1e6
    report("rate", f"{rate:.1f} MB/s there and back at once, of {back / 1e6:.1f} MB")


async def _send(stream: Stream) -> None:
    for _ in range(RATE_BYTES // PIECE_BYTES):
        stream[1].write(bytes(PIECE_BYTES))
        await stream[1].drain()


async def _of_a_stranger(relay: str, report: ReportStep) -> None:
    report("roster", "it serves known keys alone, and not this one (--key FILE): no rate")
    web, writer = await open_relay(relay)
    try:
        if isinstance(web, WebStream):
            began = time.perf_counter()
            web.ping()
            while not web.pongs:
                await asyncio.wait_for(web.receive(), TRIP_SECONDS)
            report("round trip", f"{(time.perf_counter() - began) * 1e3:.1f} ms, by a ping")
    finally:
        hang_up(writer)
