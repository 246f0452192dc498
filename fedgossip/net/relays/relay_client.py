"""A peer's side of a relay: a thread that receives and answers calls, and makes calls.

A caller connects to a port of its own machine, and the called peer accepts from its own; bytes are passed on in
between. A sealed stream is a separate call, distinguished by its first bytes: its port is PORT_ABOVE the links'.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zmq.utils import z85

from fedgossip.base.errors import FedgossipError, NetworkError, PeerError
from fedgossip.net.endpoints import RELAY, TCP, addresses_of, is_relay, is_web
from fedgossip.net.identity import Identity
from fedgossip.net.relays.addresses import LOOPBACK, hold_port, port_of
from fedgossip.net.relays.reachability import DIRECT, Ways
from fedgossip.net.relays.roster_file import (
    ALIVE,
    ANSWER,
    CALL,
    CALLED,
    GREETING_BYTES,
    LISTEN,
    NO_TARGET,
    TOKEN_BYTES,
    YES,
    request,
)
from fedgossip.net.relays.splice import LoopThread, Stream, hang_up, patient, spliced, wait_within
from fedgossip.net.relays.web_way import ReportStep, open_web, silent
from fedgossip.net.streams.stream_port import HAIL, PORT_ABOVE

CONNECT_SECONDS = 5.0
"""Maximum seconds for a connection to a relay, and for its answer."""
PUT_THROUGH_SECONDS = 15.0
"""Maximum seconds for the called peer to answer."""
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 0.5, 15.0
"""Delay before an unreachable relay is called again, in seconds, doubled each time up to the maximum."""
USUAL_PORT = 5700
"""Port of a participant reached only by relays; sealed streams try PORT_ABOVE it first, below 65536."""
LISTEN_SECONDS = 6.0
"""Maximum seconds for a relay to accept a listener, before it is reported."""
IDLE_SECONDS = 3600.0
SILENCE_SECONDS = 45.0
"""Seconds of silence before a relay is called again."""
CALLS_MAX = 128
"""Maximum number of simultaneous calls, in and out; streams may use half of them, as links work without streams."""


class RelayClient:
    """The client of one key pair, with a thread until `close`; all methods may be called from any thread.

    `inside`: other addresses at which this process calls a relay.
    """

    def __init__(self, identity: Identity, inside: Mapping[str, str] | None = None) -> None:
        self.identity, self._inside = identity, dict(inside or {})
        self._ways: dict[tuple[str, str], str] = {}
        self._servers: list[asyncio.Server] = []
        self._calls = 0
        self._listening: set[str] = set()
        self._pause: dict[str, float] = {}  # by unreachable relay: the last pause, and its end
        self._due: dict[str, float] = {}
        self.faults: dict[str, FedgossipError] = {}
        """Reasons why relays cannot be reached now."""
        self._refused: dict[tuple[str, str], FedgossipError] = {}
        self._thread = LoopThread("relay")

    def listen(self, relay: str, port: int) -> None:
        """Keep a connection to this relay; pass its calls to a local port, those of streams to the port above."""
        self._wait(self._begin(self._listen(relay, port)))

    def listens_at(self, relay: str) -> bool:
        """Return whether the client is registered at the relay now."""
        return relay in self._listening

    def unreached(self, relays: Iterable[str]) -> list[FedgossipError]:
        """Return why this machine cannot be called through these relays, after at most LISTEN_SECONDS; they are called
        again meanwhile.
        """
        until, found, waiting = time.monotonic() + LISTEN_SECONDS, list[FedgossipError](), set(relays)
        while waiting and time.monotonic() < until:
            for one in list(waiting):
                if fault := self.faults.get(one):
                    found.append(NetworkError(f"{one} is not reached: {fault}", fault.advice))
                if fault or self.listens_at(one):
                    waiting.discard(one)
            time.sleep(0.05)
        return found + [NetworkError(f"{one} has not answered", "It is called again.") for one in waiting]

    def way(self, relay: str, key: str) -> str:
        """Return a local address at which the holder of `key` is reached through a relay."""
        if (relay, key) not in self._ways:
            self._ways[relay, key] = self._wait(self._open(relay, key))
        return self._ways[relay, key]

    def ways(self, whereabouts: Callable[[], str] | None = None) -> Ways:
        """Return the routes through relays of a participant with the addresses `whereabouts`."""
        return Ways(self.way, whereabouts, self.fault)

    def fault(self, relay: str, key: str) -> FedgossipError | None:
        """Return why the holder of `key` is not reached through a relay now."""
        return self.faults.get(relay) or self._refused.get((relay, key))

    def close(self) -> None:
        """Close all connections."""
        if not self._thread.closed:
            for server in self._servers:
                self._thread.loop.call_soon_threadsafe(server.close)
            self._thread.close()

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._thread.wait(work, CONNECT_SECONDS)

    async def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._thread.loop.create_task(work)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _listen(self, relay: str, port: int) -> None:
        pause = AGAIN_SECONDS
        while True:
            try:
                stream = await self._request(relay, LISTEN, NO_TARGET, CONNECT_SECONDS)
                pause = AGAIN_SECONDS
                self._listening.add(relay)
                await self._answer_calls(relay, stream, port)
            except (OSError, EOFError, TimeoutError, FedgossipError):
                pass
            finally:
                self._listening.discard(relay)
            if relay not in self._due:  # it refuses, or disconnected
                await asyncio.sleep(jittered(pause))
                pause = min(AGAIN_SECONDS_MAX, 2 * pause)

    async def _answer_calls(self, relay: str, stream: Stream, port: int) -> None:
        reader, writer = stream
        try:
            while True:
                sign = await wait_within(reader.readexactly(1), SILENCE_SECONDS)
                if sign == ALIVE:
                    writer.write(ALIVE)
                    await wait_within(writer.drain(), SILENCE_SECONDS)  # of a relay that reads nothing
                elif sign == CALLED:
                    token = await wait_within(reader.readexactly(TOKEN_BYTES), CONNECT_SECONDS)
                    await self._begin(self._answer(relay, token, port))
                else:
                    raise PeerError("the server is no relay of fedgossip")
        finally:
            hang_up(writer)

    async def _answer(self, relay: str, token: bytes, port: int) -> None:
        if self._calls >= CALLS_MAX:
            return
        self._calls += 1
        try:
            there = await self._request(relay, ANSWER, token, CONNECT_SECONDS)
            try:
                first = await self._first(there)
                here = await asyncio.open_connection("127.0.0.1", port + PORT_ABOVE if first == HAIL else port)
            except BaseException:
                hang_up(there[1])
                raise
            here[1].write(first)
            await spliced(there, here, IDLE_SECONDS)
        finally:
            self._calls -= 1

    async def _first(self, caller: Stream) -> bytes:
        """Return a call's first bytes (ZeroMQ sends its identity first).

        Raises PeerError for a stream if only links have room.
        """
        first = await wait_within(caller[0].readexactly(len(HAIL)), CONNECT_SECONDS)
        if first == HAIL and self._calls > CALLS_MAX // 2:
            raise PeerError("too many calls through relays for separate streams")
        return first

    async def _open(self, relay: str, key: str) -> str:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                if self._calls < CALLS_MAX:
                    await self._call(relay, key, (reader, writer))
            except (OSError, EOFError, TimeoutError, FedgossipError, asyncio.CancelledError):
                pass
            finally:
                hang_up(writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return f"{TCP}127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _call(self, relay: str, key: str, here: Stream) -> None:
        self._calls += 1
        try:
            first = await self._first(here)
            try:
                there = await self._request(relay, CALL, z85.decode(key), PUT_THROUGH_SECONDS)
            except PeerError:
                text = f"the relay at {relay} does not connect the call: no participant with that key is connected"
                advice = "Has the other one begun?  A relay with --allow needs the keys of both."
                self._refused[relay, key] = NetworkError(text, advice)
                raise
            self._refused.pop((relay, key), None)
            there[1].write(first)
            await spliced(here, there, IDLE_SECONDS)
        finally:
            self._calls -= 1

    async def _request(self, relay: str, want: bytes, target: bytes, seconds: float) -> Stream:
        """Return an accepted connection to a relay; while it is unreachable each call waits.

        Raises OSError, EOFError, TimeoutError, FedgossipError.
        """
        if relay in self._due:
            await asyncio.sleep(min(self._due[relay] - self._thread.loop.time(), CONNECT_SECONDS))
            if (
                self._due.get(relay, 0.0) > self._thread.loop.time()
            ):  # another call found it unreachable meanwhile, or is trying it
                raise TimeoutError
            self._due[relay] = self._thread.loop.time() + CONNECT_SECONDS
        try:
            stream = await ask_relay(self._inside.get(relay, relay), self.identity, want, target, seconds)
        except (OSError, EOFError, TimeoutError, FedgossipError) as error:
            if isinstance(error, PeerError):  # it answers
                self._reached(relay)
            else:
                self._failed(relay, error)
            raise
        self._reached(relay)
        return stream

    def _reached(self, relay: str) -> None:
        self._pause.pop(relay, None)
        self._due.pop(relay, None)
        self.faults.pop(relay, None)

    def _failed(self, relay: str, error: Exception) -> None:
        pause = min(AGAIN_SECONDS_MAX, 2 * self._pause.get(relay, AGAIN_SECONDS / 2))
        self._pause[relay] = pause
        self._due[relay] = self._thread.loop.time() + jittered(pause)
        if isinstance(error, FedgossipError):
            self.faults[relay] = error


@dataclass(frozen=True)
class RelayAccess:
    """Address at which a participant listens, its routes to others, and why it cannot be called through relays."""

    bind: str
    ways: Ways = DIRECT
    faults: Sequence[FedgossipError] = ()


@contextlib.contextmanager
def ways_through(identity: Identity, bind: str, own: str, others: Iterable[str]) -> Iterator[RelayAccess]:
    """Yield the access of a participant if entries name relays; without a relay nothing is opened.

    `bind`: the address to listen at, or its own addresses; `own`, `others`: addresses in the entries.  With only relays
    as addresses it listens on the loopback, at a port that no entry names.
    """
    relays = [one for one in addresses_of(own) if is_relay(one)]
    if not relays and not any(is_relay(one) for text in others for one in addresses_of(text)):
        yield RelayAccess(bind)
        return
    direct = next((one for one in addresses_of(bind) if one and not is_relay(one)), "")
    with contextlib.ExitStack() as stack:
        if relays and (not direct or direct.endswith(":*")):
            port = port_of(stack.enter_context(hold_port(USUAL_PORT, exactly=False)))
            direct = f"{(direct or f'{TCP}{LOOPBACK}:*')[:-1]}{port}"
        agent = stack.enter_context(contextlib.closing(RelayClient(identity)))
        for relay in relays:
            agent.listen(relay, int(direct.rpartition(":")[2]))
        yield RelayAccess(direct, agent.ways(), agent.unreached(relays))


async def ask_relay(
    relay: str, identity: Identity, want: bytes, target: bytes, seconds: float, report: ReportStep = silent
) -> Stream:
    """Return a relay's connection that has accepted a request; `report` receives each step.

    Raises OSError, EOFError, TimeoutError, NetworkError, and PeerError for a refusal.
    """
    reader, writer = await open_relay(relay, report)
    try:
        patient(writer)
        try:
            greeted = await wait_within(reader.readexactly(GREETING_BYTES), CONNECT_SECONDS)
        except (TimeoutError, EOFError) as error:
            if not is_web(relay):
                raise
            raise _silent_web(relay, error) from None
        report("greeting", "a relay of fedgossip")
        writer.write(request(identity, greeted, want, target))
        if await wait_within(reader.readexactly(1), seconds) != YES:
            raise PeerError(f"the relay at {relay} refuses", "Is this peer in the roster that it was given?")
    except BaseException:
        hang_up(writer)
        raise
    return reader, writer


async def open_relay(relay: str, report: ReportStep = silent) -> Stream:
    """Return a connection to a relay before its greeting.  Raises OSError, TimeoutError, NetworkError."""
    if is_web(relay):
        web = await open_web(relay, report)
        return web, web
    host, _, port = relay.removeprefix(RELAY).rpartition(":")
    stream = await wait_within(asyncio.open_connection(host.strip("[]"), int(port)), CONNECT_SECONDS)
    report("TCP", f"to {host}:{port}")
    return stream


def _silent_web(relay: str, error: Exception) -> NetworkError:
    if isinstance(error, TimeoutError):
        text = (
            f"{relay}: the upgrade succeeds, and nothing arrives in {CONNECT_SECONDS:g} seconds: a proxy holds it back"
        )
        return NetworkError(
            text, "It must pass WebSockets on unbuffered (nginx: proxy_buffering off), or leave this host out."
        )
    return NetworkError(
        f"{relay}: the upgrade succeeds, and the connection ends", "Is `fedgossip relay` running there?"
    )


def jittered(seconds: float) -> float:
    """Return between half of a pause and all of it, so that peers of a lost relay do not return at the same moment."""
    return seconds * (0.5 + secrets.randbelow(1 << 16) / (1 << 17))
