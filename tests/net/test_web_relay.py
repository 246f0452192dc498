"""A relay by the web: a call passes through WebSockets and proxies as by TCP, and each fault has its line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from commands import in_process, wait_until
from relays import Running, relay_running, run_relay
from test_relay import EXPECTED, HELLO, Pair
from web_proxies import Authority, proxy_running

from fedgossip.base.errors import ConfigError, FedgossipError, NetworkError
from fedgossip.net.endpoints import Endpoint, check_address
from fedgossip.net.identity import Identity, raw
from fedgossip.net.invites.invitation import Invitation, read, written
from fedgossip.net.links.mesh import Links
from fedgossip.net.relays import relay_client, web_stream, web_way
from fedgossip.net.relays.relay import Door, Limits
from fedgossip.net.relays.relay_client import ask_relay
from fedgossip.net.relays.roster_file import ANSWER, CALL, ECHO, ECHO_BYTES, LISTEN, NO_TARGET, TOKEN_BYTES
from fedgossip.net.relays.splice import Stream, StreamSink, hang_up, settled, spliced, wait_within
from fedgossip.net.relays.web_stream import MESSAGE_BYTES, WebStream
from fedgossip.net.relays.web_way import open_web
from fedgossip.net.transport import Rejected, Routed

pytestmark = pytest.mark.sockets
SECONDS = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def secure(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A relay at wss://, whose authority this machine trusts; and no proxy."""
    free_of_proxies(monkeypatch)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with relay_running(scheme="wss", tls=authority.server("127.0.0.1")) as running:
        yield running


def free_of_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.delenv(web_way.PROXY, raising=False)
    monkeypatch.delenv(web_way.AUTHORITIES, raising=False)


def by_web(url: str) -> WebStream:
    """Reach the greeting of a relay, or raise what a participant would be told."""

    async def reach() -> WebStream:
        stream = await open_web(url)
        stream.transport.abort()
        return stream

    found: WebStream = done(reach())
    return found


def done(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of some work, when the connections that it leaves have ended."""

    async def whole() -> Any:
        try:
            return await work
        finally:
            while opened:
                hang_up(opened.pop()[1])
            await settled()

    return asyncio.run(whole())


opened: list[Stream] = []


async def asked(relay: str, identity: Identity, want: bytes, target: bytes) -> Stream:
    opened.append(await ask_relay(relay, identity, want, target, SECONDS))
    return opened[-1]


async def call(relay: str) -> tuple[Stream, Stream]:
    """A call that is put through, at both ends."""
    callee = Identity.new()
    ear = await asked(relay, callee, LISTEN, NO_TARGET)
    assert await ear[0].readexactly(1) == b"."
    calling = asyncio.create_task(asked(relay, Identity.new(), CALL, raw(callee.public)))
    token = (await ear[0].readexactly(1 + TOKEN_BYTES))[1:]
    answer = await asked(relay, callee, ANSWER, token)
    return await calling, answer


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["direct", "CONNECT", "SOCKS5"])
def test_bytes_pass_in_order_in_messages_that_proxies_take(
    way: str, secure: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 MB written at once, read in odd pieces; and back."""
    sizes: list[int] = []
    real = web_stream.ClientProtocol.send_binary

    def sent(self: web_stream.ClientProtocol, data: bytes, fin: bool = True) -> None:
        sizes.append(len(data))
        real(self, data, fin)

    monkeypatch.setattr(web_stream.ClientProtocol, "send_binary", sent)
    whole = os.urandom(5_000_000)

    async def there_and_back() -> None:
        one, other = await call(secure.address)
        for (_, writer), (reader, _) in ((one, other), (other, one)):
            writing = asyncio.create_task(_write(writer, whole))
            found = bytearray()
            while len(found) < len(whole):
                found += await reader.read(70_001)
            await writing
            assert found == whole

    with ExitStack() as stack:
        if way != "direct":
            proxy = stack.enter_context(proxy_running(user="ann", password="o:p@x/", socks=way == "SOCKS5"))
            login = "ann:o%3Ap%40x%2F"
            scheme = "socks5h" if way == "SOCKS5" else "http"
            monkeypatch.setenv("ALL_PROXY", f"{scheme}://{login}@127.0.0.1:{proxy.port}")
        done(there_and_back())
        if way != "direct":
            assert len(proxy.asked) == 3 and f"127.0.0.1:{secure.port}" in proxy.asked[0]
    assert max(sizes) == MESSAGE_BYTES


async def _write(writer: StreamSink, whole: bytes) -> None:
    writer.write(whole)
    await writer.drain()


def test_a_reader_that_stops_stops_its_sender() -> None:
    """As by TCP: what is not read waits at the sender, but for the buffers of sockets and the relay."""

    async def fill(relay: str) -> int:
        one, _ = await call(relay)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 200_000_000:
                one[1].write(bytes(1 << 20))
                sent += 1 << 20
                await wait_within(one[1].drain(), 1.0)
        return sent

    with relay_running(Limits(rate=1e9), scheme="ws") as running:
        assert done(fill(running.address)) < 40_000_000


def test_a_silent_stream_is_pinged_and_its_end_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_stream, "PING_SECONDS", 0.05)

    async def wait(relay: str) -> None:
        one, other = await call(relay)
        reading = asyncio.create_task(one[0].read(1))
        await asyncio.sleep(0.4)
        assert isinstance(one[0], WebStream) and one[0].pongs >= 3
        monkeypatch.setattr(web_stream, "PING_SECONDS", 10 * SECONDS)
        await asyncio.sleep(0.2)  # the last ping: one that crosses the end would break the pipe
        other[1].transport.abort()
        assert await wait_within(reading, SECONDS) == b""
        with pytest.raises(OSError):
            await one[1].drain()

    with relay_running(scheme="ws") as running:
        done(wait(running.address))


@pytest.mark.parametrize(("ping", "there"), [(0.1, True), (25.0, False)], ids=["pinged", "silent"])
def test_a_proxy_that_cuts_what_is_silent_cuts_nothing_that_is_pinged(
    ping: float, there: bool, secure: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of 25 seconds is below the 60 of nginx and of most proxies."""
    assert web_stream.PING_SECONDS == 25.0
    monkeypatch.setattr(web_stream, "PING_SECONDS", ping)

    async def last(relay: str) -> bool:
        one, _ = await call(relay)
        with contextlib.suppress(TimeoutError):
            return bool(await wait_within(one[0].read(1), 1.5))
        return True

    with proxy_running(idle=0.6) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        assert done(last(secure.address)) is there


def test_an_echo_is_bounded_and_for_those_that_may_use_the_relay() -> None:
    async def echoed(relay: str) -> int:
        reader, writer = await asked(relay, Identity.new(), ECHO, NO_TARGET)
        sending, found = asyncio.create_task(_write(writer, bytes(ECHO_BYTES + 5))), 0
        while piece := await reader.read(1 << 16):
            found += len(piece)
        await asyncio.gather(sending, return_exceptions=True)
        return found

    with relay_running(Limits(rate=1e9), scheme="ws") as running:
        assert done(echoed(running.address)) == ECHO_BYTES


# --- strangers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "answered"),
    [(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 426"), (b"\x16\x03\x01" + bytes(200), b""),
     (b"GET /" + b"a" * 20_000, b""), (b"", b"")],
    ids=["browser", "TLS", "endless", "silent"],
)  # fmt: skip
def test_who_asks_for_no_websocket_is_answered_and_parted(
    said: bytes, answered: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgossip.net.relays.relay.REQUEST_SECONDS", 0.3)
    with relay_running(scheme="ws") as running:
        with socket.create_connection(("127.0.0.1", running.port), 5) as one:
            one.sendall(said)
            found = b""
            with contextlib.suppress(ConnectionError):
                while more := one.recv(4096):
                    found += more
            assert found.startswith(answered)
        wait_until(lambda: running.relay._connections == 0, SECONDS, "nobody is there any more")
        assert by_web(running.address)


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PING = b"\x89\xfd" + bytes(4 + 125)


def test_who_sends_pings_and_reads_no_pong_is_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ping is answered, so what is not read would wait in the relay's memory, without an end in a call."""
    monkeypatch.setattr("fedgossip.net.relays.relay.REQUEST_SECONDS", 60.0)
    sent = 0
    with relay_running(scheme="ws") as running:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(SECONDS)
            one.connect(("127.0.0.1", running.port))
            one.sendall(UPGRADE)
            with contextlib.suppress(ConnectionError):
                while sent < 64 << 20:
                    one.sendall(PING * 1000)
                    sent += 1000 * len(PING)
        wait_until(lambda: running.relay._connections == 0, SECONDS, "it is hung up on")
        assert sent < 32 << 20 and by_web(running.address)


def test_a_caller_that_writes_much_at_once_and_reads_is_served() -> None:
    """What it wrote itself waits for the network; only unread pongs count as a fault of the other end."""

    async def both() -> int:
        caller, callee = await call(running.address)
        size, found = 8 * web_stream.UNREAD_BYTES_MAX, 0
        caller[1].write(bytes(size))  # without a drain: all of it waits at the caller
        callee[1].write(b"." * (1 << 16))
        while found < 1 << 16:
            found += len(await caller[0].read(1 << 16))
        got = 0
        while got < size:
            got += len(await callee[0].read(1 << 16))
        return got

    with relay_running(Limits(rate=1e9), scheme="ws") as running:
        assert done(both()) == 8 * web_stream.UNREAD_BYTES_MAX


def test_a_cancellation_that_arrives_with_the_result_ends_the_task() -> None:
    """Otherwise the closing of a relay waits for a connection that reads on."""

    async def last() -> bool:
        result: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(wait_within(result, SECONDS))
        await asyncio.sleep(0)
        result.set_result(b".")
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(last())


class Slow:
    """Both halves of a stream, and its transport: what is written waits until the connection is closed."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces, self.waiting, self.sent = list(pieces), b"", b""
        self.closed = asyncio.Event()
        self.transport = self

    async def read(self, size: int) -> bytes:
        if self.pieces:
            return self.pieces.pop(0)
        await self.closed.wait()
        return b""

    def write(self, data: bytes) -> None:
        self.waiting += data

    async def drain(self) -> None: ...

    def close(self) -> None:
        self.sent += self.waiting
        self.abort()

    def abort(self) -> None:
        self.waiting = b""
        self.closed.set()

    async def wait_closed(self) -> None:
        await self.closed.wait()


def test_what_an_end_sent_before_it_closed_is_passed_on() -> None:
    async def passed() -> bytes:
        one, other = Slow(b"first", b"last", b""), Slow()
        await spliced((one, one), (other, other), SECONDS)  # type: ignore[arg-type]
        return other.sent

    assert asyncio.run(passed()) == b"firstlast"


def test_a_relay_that_asks_whether_one_is_alive_and_reads_nothing_is_called_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Deaf:
        written = 0

        async def readexactly(self, size: int) -> bytes:
            if self.written > 100:
                raise EOFError
            return b"."

        def write(self, data: bytes) -> None:
            self.written += len(data)

        async def drain(self) -> None:
            await asyncio.sleep(SECONDS)

        transport = property(lambda self: self)

        def abort(self) -> None: ...

    monkeypatch.setattr(relay_client, "SILENCE_SECONDS", 0.1)
    deaf = Deaf()
    with contextlib.closing(relay_client.RelayClient(Identity.new())) as client, pytest.raises(TimeoutError):
        asyncio.run(client._answer_calls("ws://x", (deaf, deaf), 1))  # type: ignore[arg-type]


def test_strangers_in_a_handshake_of_tls_are_counted(secure: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgossip.net.relays.relay.STRANGERS_MAX", 3)
    monkeypatch.setattr("fedgossip.net.relays.relay.REQUEST_SECONDS", 2.0)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", secure.port), 5)) for _ in range(5)]
        wait_until(lambda: secure.relay.counts["full"] == 2, SECONDS, "two too many")
        wait_until(lambda: secure.relay._strangers == 0, SECONDS, "they are hung up on")
        assert len(silent) == 5 and by_web(secure.address)


# --- each fault has its line and its advice ---------------------------------------------------------------------------

REFUSED = b"HTTP/1.1 403 Forbidden\r\n\r\n"
HUGE = b"X: " + bytes(70_000) + b"\r\n\r\n"
NTLM = b"HTTP/1.1 407 No\r\nProxy-Authenticate: NTLM\r\nproxy-authenticate: Negotiate\r\n\r\n"


@pytest.mark.parametrize(
    ("settings", "url", "line", "advice"),
    [({"answer": REFUSED}, "{url}", "refuses CONNECT to 127.0.0.1:{relay}: 403 Forbidden", "allows CONNECT"),
     ({"user": "ann", "password": "right"}, "http://ann:wrong@127.0.0.1:{port}", "does not accept this user", "HTTPS_"),
     ({"user": "ann", "password": "right"}, "http://127.0.0.1:{port}", "wants a user and a password", "HTTPS_PROXY"),
     ({"answer": b"HTTP/1.0 502 Bad Gateway\r\n\r\n"}, "{url}", "does not reach 127.0.0.1:{relay}: 502", "relay run"),
     ({"answer": b"HTTP/1.1 200 OK\r\n" + HUGE}, "{url}", "does not answer CONNECT in a header of at most 64", "port"),
     ({"answer": b"HTTP/1.1 200"}, "{url}", "does not answer CONNECT and hangs up", "port"),
     ({"answer": NTLM}, "{url}", "wants NTLM or Negotiate", "cntlm"),
     ({"answer": b"SSH-2.0-x\r\n\r\n"}, "{url}", "answers no HTTP", "SOCKS"),
     ({"socks": True, "user": "ann", "password": "right"}, "socks5://ann:wrong@127.0.0.1:{port}", "not accept", "ALL_"),
     ({"socks": True}, "http://127.0.0.1:{port}", "does not answer CONNECT", "port"),
     ({}, "socks5://127.0.0.1:{port}", "does not answer in SOCKS5", "port"),
     ({}, "http://127.0.0.1:1", "cannot be connected to: connection refused", "does it run"),
     ({}, "http://nowhere.invalid:3128", "the name nowhere.invalid is not known", "Correct"),
     ({}, "ftp://127.0.0.1:{port}", "HTTPS_PROXY is no URL of a proxy", "http://HOST:PORT")],
    ids=["refused", "password", "no password", "bad gateway", "huge", "cut", "NTLM", "SSH", "SOCKS login", "SOCKS",
         "HTTP", "closed", "name", "ftp"],
)  # fmt: skip
def test_a_proxy_that_does_not_put_through_is_a_line_and_an_advice(
    settings: dict[str, object], url: str, line: str, advice: str, secure: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_way, "STEP_SECONDS", 1.0)
    with proxy_running(**settings) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", url.format(url=proxy.url, port=proxy.port))
        with pytest.raises(FedgossipError, match=line.format(relay=secure.port)) as refused:
            by_web(secure.address)
    assert advice in refused.value.advice
    said = f"{refused.value} {refused.value.advice} {refused.value!r}"
    assert "wrong" not in said and "right" not in said.replace("right host", "").replace("address right", "")
    assert secure.relay.counts == {}  # nothing went around the proxy


@pytest.mark.parametrize(
    ("name", "days", "trusted", "line", "advice"),
    [("127.0.0.1", -1, True, "the certificate has expired", "renews"),
     ("other.example", 30, True, "the certificate is of another (name|address)", "the name in its certificate"),
     ("127.0.0.1", 30, False, "is of an authority that this machine does not know", "--ca")],
    ids=["expired", "another name", "unknown authority"],
)  # fmt: skip
def test_a_certificate_that_is_not_the_relays_is_a_line_and_an_advice(
    name: str, days: int, trusted: bool, line: str, advice: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_of_proxies(monkeypatch)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if trusted:
        monkeypatch.setenv(web_way.AUTHORITIES, str(authority.path))
    with relay_running(scheme="wss", tls=authority.server(name, days)) as running:
        with pytest.raises(NetworkError, match=line) as refused:
            by_web(running.address)
        assert advice in refused.value.advice and running.relay.counts["listened"] == 0


def test_a_network_that_opens_tls_is_seen_and_taken_where_its_authority_is_named(
    secure: Running, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Authority(tmp_path, "Campus filter")
    with proxy_running(opens=network, trusts=authority.path) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(NetworkError, match="authority that this machine does not know"):
            by_web(secure.address)
        monkeypatch.setenv(web_way.AUTHORITIES, str(network.path))
        found: dict[str, str] = {}

        async def reach() -> None:
            (await open_web(secure.address, found.__setitem__)).transport.abort()

        done(reach())
    assert list(found) == ["proxy", "name", "CONNECT", "TLS", "upgrade"]
    assert "Campus filter" in found["TLS"] and "sees ciphertext of ours" in found["TLS"]


def test_a_proxy_that_buffers_is_a_line(
    secure: Running, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_client, "CONNECT_SECONDS", 0.5)
    network = Authority(tmp_path, "Buffering filter")
    monkeypatch.setenv(web_way.AUTHORITIES, str(network.path))
    with proxy_running(opens=network, trusts=authority.path, holds=True) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(NetworkError, match="a proxy holds it back") as refused:
            done(asked(secure.address, Identity.new(), LISTEN, NO_TARGET))
    assert "buffer" in refused.value.advice


@pytest.mark.parametrize(
    ("answer", "line", "advice"),
    [(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "the server answers 404 Not Found", "path right"),
     (b"HTTP/1.1 403 Forbidden\r\n\r\n", "answers 403 Forbidden", "ask its administrator"),
     (b"HTTP/1.1 302 Found\r\nLocation: http://login\r\n\r\n<html>", "answers 302 Found", "want a login"),
     (b"HTTP/1.1 407 Login\r\n\r\n", "answers 407 Login", "HTTPS_PROXY"),
     (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "answers 502 Bad Gateway", "is `fedgossip relay` running"),
     (b"HTTP/1.0 400 Bad Request\r\n\r\n", "answers 400 Bad Request in HTTP/1.0", "proxy_http_version 1.1"),
     (b"HTTP/1.0 101 Switching Protocols\r\n\r\n", "answers 101 Switching Protocols in HTTP/1.0", "Upgrade"),
     (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "and no such upgrade: missing Connection header", "Upgrade"),
     (b"HTTP/1.1 200 OK\r\n" + HUGE, "a header of at most 64 KiB", "right host"),
     (b"HTTP/1.1 200 OK\r\nX: held back", "does not answer the upgrade to a WebSocket in", "right host"),
     (b"220 mail\r\n\r\n", "the server answers no HTTP", "path right"), (b"", "and hangs up", "right host")],
    ids=["path", "forbidden", "portal", "login", "no relay", "HTTP 1.0", "upgrade by 1.0", "no upgrade", "huge",
         "trickle", "mail", "nothing"],
)  # fmt: skip
def test_a_server_that_is_no_relay_is_a_line(
    answer: bytes, line: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_of_proxies(monkeypatch)
    monkeypatch.setattr(web_way, "STEP_SECONDS", 0.5)

    def serve(server: socket.socket) -> None:
        one, _ = server.accept()
        with one, contextlib.suppress(OSError):
            one.recv(4096)
            one.sendall(answer)
            if answer.endswith(b"held back"):
                one.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with pytest.raises(NetworkError, match=line) as refused:
            by_web(f"ws://127.0.0.1:{server.getsockname()[1]}/path")
        thread.join()
    assert advice in refused.value.advice


# --- which proxy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "secure", "found"),
    [({}, True, None), ({"HTTPS_PROXY": "http://p:1"}, True, "http://p:1"), ({"HTTPS_PROXY": "p:1"}, False, None),
     ({"HTTP_PROXY": "p:2"}, False, "http://p:2"), ({"ALL_PROXY": "socks5h://p"}, True, "socks5://p:1080"),
     ({"HTTPS_PROXY": "http://a:b@p:1", "ALL_PROXY": "socks5://q"}, True, "http://p:1"),
     ({"HTTPS_PROXY": "p:1", "NO_PROXY": ".example.org"}, True, None),
     ({"HTTPS_PROXY": "p:1", "NO_PROXY": "*"}, True, None), ({"HTTPS_PROXY": "p:1", "NO_PROXY": "10.0.0.0/8"}, True, "http://p:1"),
     ({"HTTPS_PROXY": "p:1", web_way.PROXY: "none"}, True, None),
     ({"HTTPS_PROXY": "p:1", "NO_PROXY": "*", web_way.PROXY: "http://q:2"}, True, "http://q:2")],
)  # fmt: skip
def test_the_environment_names_the_proxy(
    environment: dict[str, str], secure: bool, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_of_proxies(monkeypatch)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    proxy = web_way.proxy_for(secure, "relay.example.org:443")
    assert (str(proxy) if proxy else None) == found and "b" not in repr(proxy).split("port")[-1]


def test_a_network_of_addresses_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    free_of_proxies(monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", "p:1")
    monkeypatch.setenv("NO_PROXY", "localhost, 10.0.0.0/8")
    assert web_way.proxy_for(True, "10.1.2.3:443") is None and web_way.proxy_for(True, "11.1.2.3:443")


def test_a_password_has_no_place_on_a_command_line_and_is_read_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free_of_proxies(monkeypatch)
    said = in_process(["join", "--proxy", "http://ann:sesame@p:1"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "password" in said.errors[0] and "sesame" not in "".join(said.errors)
    (tmp_path / "proxy.txt").write_text("http://ann:sesame@p:1\n")
    monkeypatch.setenv(web_way.PROXY, "none")  # as it was is put back at the end
    web_way.choose(str(tmp_path / "proxy.txt"), None)
    proxy = web_way.proxy_for(True, "relay.example.org:443")
    assert proxy and proxy.password == "sesame" and "sesame" not in f"{proxy} {proxy!r}"
    for wrong in ("nowhere.txt", "gopher://p:1"):
        with pytest.raises(ConfigError, match="URL"):
            web_way.choose(wrong, None)
    with pytest.raises(ConfigError, match="no file of certificates"):
        web_way.choose(None, str(tmp_path / "proxy.txt"))


# --- addresses and doors ----------------------------------------------------------------------------------------------


def test_the_address_of_a_relay_by_the_web_stands_in_an_invite() -> None:
    urls = ("wss://relay.example.org/fed/gossip", "ws://[2001:db8::1]:8080")
    direct = tuple(f"tcp://machine-{n}.{'long' * 9}.example.org:5700" for n in range(6))
    invitation = Invitation((direct[0], *urls), Identity.new().public, bytes(16), 1_900_000_000)
    assert read(written(invitation)) == invitation
    crowded = Invitation((*direct, *urls), invitation.key, bytes(16), 1_900_000_000)
    assert read(written(crowded)).addresses[-2:] == urls  # relays reach from everywhere: others are left out


@pytest.mark.parametrize(
    "address", ["wss://", "wss://a b", "wss://x:0", "wss://x:70000", "ws://x/ y", "wss://ann:sesame@x", "http://x"]
)
def test_what_is_no_address_of_a_relay_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_address(address, "--relay")
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "error"),
    [(["--listen", "wss://0.0.0.0:0"], "needs a certificate"), (["--listen", "http://0.0.0.0:80"], "no address"),
     (["--listen", "wss://127.0.0.1:0", "--cert", "none.pem"], "cannot be used: no such file")],
)  # fmt: skip
def test_a_door_that_cannot_be_opened_is_a_line(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["relay", *words], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and error in "".join(said.errors)


def test_doors_are_read_as_they_are_written() -> None:
    for text in ("0.0.0.0:7777", "wss://[::]:443", "ws://127.0.0.1:8080"):
        assert str(Door.parse(text, "--listen")) == text


# --- links ------------------------------------------------------------------------------------------------------------


def test_models_go_through_the_web_and_a_proxy_that_opens_tls_sees_no_float_of_them(
    secure: Running, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Authority(tmp_path, "Campus filter")
    monkeypatch.setenv(web_way.AUTHORITIES, str(network.path))
    with proxy_running(opens=network, trusts=authority.path) as proxy, ExitStack() as stack:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        pair = Pair(secure, stack)
        pair.connect()
        pair.until(lambda: pair.up(0) and pair.up(1), "both links are up")
        pair.say(value=1.2345678)
        pair.until(lambda: pair.models(1), "the model is there")
        (vector,) = pair.models(1)[0].vectors
        assert [event for event in pair.events[0] if isinstance(event, Routed)] == [Routed(1, secure.address)]
        proxy.stop()
        before = pair.up(0)
        again = stack.enter_context(proxy_running(opens=network, trusts=authority.path, port=proxy.port))
        pair.until(lambda: pair.up(0) > before, "the link is up again")
    assert len(proxy.seen) > vector.nbytes and b"Upgrade: websocket" in proxy.seen and again.asked
    assert bytes(vector[:2].tobytes()) not in bytes(proxy.seen) and b"layout" not in bytes(proxy.seen)


def test_a_relay_by_tcp_goes_before_one_by_the_web_and_this_one_is_taken_where_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedgossip.net.relays.reachability.RELAY_SECONDS", 1.0)
    free_of_proxies(monkeypatch)
    with relay_running(scheme="ws") as web, ExitStack() as stack:
        tcp = run_relay()
        stack.callback(tcp.stop)
        pair = Pair(web, stack)
        pair.agents[1].listen(tcp.address, int(pair.links[1].address.rpartition(":")[2]))
        wait_until(lambda: pair.agents[1].listens_at(tcp.address), SECONDS, "1 can be called by TCP too")
        both = f"tcp://127.0.0.1:1,{web.address},{tcp.address}"
        pair.endpoints[1] = Endpoint(both, pair.endpoints[1].key)
        pair.connect()
        pair.until(lambda: pair.up(0) and Routed(1, tcp.address) in pair.events[0], "by TCP")
        assert Routed(1, web.address) not in pair.events[0]
        before = pair.up(0)
        tcp.stop()
        pair.until(lambda: Routed(1, web.address) in pair.events[0] and pair.up(0) > before, "by the web")


def test_a_relay_that_is_away_is_called_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a link knocks: 40 calls in a second are few connections."""
    free_of_proxies(monkeypatch)
    called = []
    real = relay_client.open_web

    async def counted(url: str, said: web_way.ReportStep = web_way.silent) -> WebStream:
        called.append(time.monotonic())
        return await real(url, said)

    monkeypatch.setattr(relay_client, "open_web", counted)
    identity, other = Identity.new(), Identity.new()
    agent = relay_client.RelayClient(identity)
    with contextlib.closing(agent):
        host, port = agent.way("ws://127.0.0.1:1", other.public).removeprefix("tcp://").split(":")
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            with socket.create_connection((host, int(port)), 5) as one:
                one.sendall(b"\xff\0\0\0")
            time.sleep(0.025)
        assert 1 <= len(called) <= 10 and "cannot be connected to" in str(agent.faults["ws://127.0.0.1:1"])


def test_entries_that_name_relays_say_where_to_listen_and_why_nobody_is_reached(
    secure: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, relay = Identity.new(), secure.address
    with relay_client.ways_through(one, "tcp://*:5700", "tcp://a:5700", ["tcp://b:5700", ""]) as plain:
        assert plain == relay_client.RelayAccess("tcp://*:5700")
    for bind, own, listens in (
        (relay, relay, r"tcp://127\.0\.0\.1:\d+"),
        ("tcp://*:*", relay, r"tcp://\*:\d+"),
        (f"tcp://127.0.0.1:1,{relay}", f"tcp://127.0.0.1:1,{relay}", r"tcp://127\.0\.0\.1:1"),
    ):
        with relay_client.ways_through(one, bind, own, [""]) as reached:
            assert re.fullmatch(listens, reached.bind) and not reached.faults and secure.relay.listening
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    with relay_client.ways_through(one, relay, relay, [""]) as away:
        (fault,) = away.faults
        assert relay in str(fault) and "127.0.0.1:1" in str(fault) and fault.advice


def test_who_calls_somebody_that_is_not_at_the_relay_learns_that_and_not_of_wrong_keys(secure: Running) -> None:
    one, other = Identity.new(), Identity.new()
    with ExitStack() as stack:
        links = stack.enter_context(contextlib.closing(Links(0, "tcp://127.0.0.1:*", one)))
        endpoints = {0: Endpoint(links.address, one.public), 1: Endpoint(secure.address, other.public)}
        addresses = [secure.address]
        links.routing.reach(stack.enter_context(relay_client.ways_through(one, "", "", addresses)).ways)
        links.connect((1,), endpoints, EXPECTED, HELLO)
        found: list[Rejected] = []

        def refused() -> bool:
            found.extend(event for event in links.poll(5) if isinstance(event, Rejected))
            return bool(found)

        wait_until(refused, SECONDS, "the call is refused")
        assert found[0].reason == "relay" and "no participant with that key is connected" in found[0].text


def test_certificates_are_checked_by_default() -> None:
    context = web_way._context()
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert context.verify_flags == ssl.create_default_context().verify_flags


def test_a_named_authority_needs_no_extension_that_new_versions_of_python_ask_for(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(web_way.AUTHORITIES, str(authority.path))
    context = web_way._context()
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
