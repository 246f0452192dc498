"""Proxies between a participant and a relay by the web: of CONNECT, of SOCKS, one that opens TLS; certificates."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import inspect
import ipaddress
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedgossip.net.relays.splice import wait_within
from fedgossip.net.relays.web_stream import to_tls

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Authority:
    """One that signs certificates; `path` is its own, in PEM."""

    def __init__(self, folder: Path, name: str = "Hospital authority") -> None:
        self.folder, self.name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / f"{name}.pem"
        signs = [name in ("key_cert_sign", "crl_sign") for name in inspect.signature(x509.KeyUsage).parameters]
        made = self._certificate(self.name, self._key, 365, x509.BasicConstraints(True, None), x509.KeyUsage(*signs))
        self.path.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        begins = now - datetime.timedelta(days=30)
        ends = now + datetime.timedelta(days=days)
        number = x509.random_serial_number()
        made = x509.CertificateBuilder(self.name, subject, key.public_key(), number, begins, ends)
        keys = (  # Python 3.13 checks that both are there
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
        )
        for one in (*extensions, *keys):
            made = made.add_extension(one, critical=isinstance(one, x509.BasicConstraints))
        return made.sign(self._key, hashes.SHA256())

    def certificate(self, name: str, days: int = 30) -> tuple[Path, Path]:
        """A certificate of a host, and its key; of negative days it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            names: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            names = x509.DNSName(name)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._certificate(subject, key, days, x509.SubjectAlternativeName([names]))
        certificate, secret = self.folder / f"{name}{days}.pem", self.folder / f"{name}{days}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, secret

    def server(self, name: str, days: int = 30) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self.certificate(name, days))
        return context


@dataclass
class Web:
    """A proxy in a thread of its own.  `answer`: what it says to CONNECT instead of putting through."""

    user: str = ""
    password: str = ""
    answer: bytes = b""
    opens: Authority | None = None
    """Whose certificates it shows, where it opens TLS; what passes it in the clear is in `seen`."""
    trusts: Path | None = None
    holds: bool = False
    """Whether it keeps what comes back after the upgrade."""
    idle: float = 3600.0
    """Seconds without a byte in one direction after which it cuts."""
    socks: bool = False
    port: int = 0
    seen: bytearray = field(default_factory=bytearray)
    asked: list[str] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        login = f"{self.user}:{self.password}@" if self.user else ""
        return f"{'socks5' if self.socks else 'http'}://{login}127.0.0.1:{self.port}"

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self._listen())

    def stop(self) -> None:
        """Vanish: every connection breaks."""
        if self._loop is not None and self._thread is not None:
            self._do(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._called, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(3):
            await asyncio.sleep(0)

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        ends = [writer]
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            target = await (self._by_socks if self.socks else self._by_connect)(reader, writer)
            if target:
                await self._put_through((reader, writer), *target, ends)
        for one in reversed(ends):
            one.transport.abort()
        self._tasks.discard(task)

    async def _by_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        answer = self.answer
        if self.opens:
            writer.transport.pause_reading()  # what comes next is of TLS
        if self.user and f"Proxy-Authorization: Basic {login}" not in head:
            answer = b"HTTP/1.1 407 Login\r\nProxy-Authenticate: Basic realm=x\r\n\r\n"
        writer.write(answer or b"HTTP/1.1 200 Connection established\r\n\r\n")
        await writer.drain()
        host, _, port = head.split()[1].rpartition(":")
        return None if answer else (host, int(port))

    async def _by_socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
        _, count = await reader.readexactly(2)
        ways = await reader.readexactly(count)
        writer.write(bytes([5, 2 if self.user else 0]) if not self.user or 2 in ways else b"\x05\xff")
        if self.user:
            (size,) = (await reader.readexactly(2))[1:]
            user = await reader.readexactly(size)
            password = await reader.readexactly((await reader.readexactly(1))[0])
            right = (user.decode(), password.decode()) == (self.user, self.password)
            writer.write(b"\x01\x00" if right else b"\x01\x01")
            if not right:
                await writer.drain()
                return None
        await reader.readexactly(4)
        host = await reader.readexactly((await reader.readexactly(1))[0])
        port = int.from_bytes(await reader.readexactly(2), "big")
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        self.asked.append(f"{host.decode()}:{port}")
        return host.decode(), port

    async def _put_through(self, caller: Ends, host: str, port: int, ends: list[asyncio.StreamWriter]) -> None:
        there = await asyncio.open_connection(host, port)
        ends.append(there[1])
        if self.opens:
            ours = ssl.create_default_context(cafile=str(self.trusts))
            there = await to_tls(there, ours, 5.0, host=host)
            ends.append(there[1])
            caller = await to_tls(caller, self.opens.server(host), 5.0, host=None)
            ends.append(caller[1])
        ways = [asyncio.create_task(self._pass_on(caller, there)), asyncio.create_task(self._pass_on(there, caller))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(self, source: Ends, target: Ends) -> None:
        while piece := await wait_within(source[0].read(1 << 16), self.idle):
            self.seen += piece
            if self.holds and piece.startswith(b"HTTP/1.1 101"):
                head, _, _ = piece.partition(b"\r\n\r\n")
                target[1].write(head + b"\r\n\r\n")
                await asyncio.sleep(3600)
            target[1].write(piece)
            await target[1].drain()


@contextmanager
def proxy_running(**settings: Any) -> Iterator[Web]:
    proxy = Web(**settings)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
