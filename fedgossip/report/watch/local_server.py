"""Serves pages on this machine only: answers to GET.

It listens on 127.0.0.1 and answers only its own user and root (by Linux's table of connections; elsewhere all users). A
page of another origin cannot read it: hosts are checked, and no answer allows other origins.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import msgspec

from fedgossip.base.errors import NetworkError
from fedgossip.base.guarded_threads import guarded_thread

HOST = "127.0.0.1"
CONNECTIONS = 32
"""Maximum number of connections; beyond it the oldest without a request is closed, or the new one refused."""
REQUEST_SECONDS = 10.0
"""Maximum seconds for a complete request to arrive, and for its answer to be received."""
ROOM_SECONDS = 1.0
"""Maximum seconds to wait for the slot of a closed connection."""
WORDS_MAX = 256
"""Maximum number of arguments after the "?" of a request."""

OF_DATA = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The content security policy of answers other than pages."""
STYLE, SCRIPT = "/*STYLE*/", "/*SCRIPT*/"
"""Markers of their places in a page."""

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Tables of this machine's connections, with their users."""

Query = dict[str, list[str]]


def users_of(near: tuple[str, int], far: tuple[str, int]) -> set[int]:
    """Return the users of a connection's end at `near`, an IPv4 address and a port; empty if no table lists it."""
    here, there = (
        f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}" for host, port in (near, far)
    )
    found = set()
    for table in TABLES:
        with contextlib.suppress(OSError):
            for words in map(str.split, table.read_text().splitlines()[1:]):
                if words[1].endswith(here) and words[2].endswith(there):  # of IPv6, an address of IPv4 is its end
                    found.add(int(words[7]))
    return found


@dataclass(frozen=True)
class HttpAnswer:
    """An answer: its media type, its bytes, and the browser's permissions for it."""

    kind: str
    content: bytes
    policy: str = OF_DATA


def page_of(page: str, scripts: Sequence[str], styles: Sequence[str]) -> HttpAnswer:
    """Return a page that runs only its own script and sends requests only to this server.

    The files "package:name" replace the marks STYLE and SCRIPT.
    """
    style, script = ("".join(_text(name) for name in names) for names in (styles, scripts))
    text = _text(page).replace(STYLE, style).replace(SCRIPT, script)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rest = OF_DATA.removeprefix("default-src 'none'; ")
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; connect-src 'self'; "
        f"img-src data:; {rest}"
    )
    return HttpAnswer("text/html; charset=utf-8", text.encode(), policy)


def _text(name: str) -> str:
    package, _, file = name.partition(":")
    return files(package).joinpath(file).read_text("utf-8")


class LocalServer:
    """Answers with `found(path, query)`, None for unknown paths, in threads; a context manager; port 0: a free one.

    Raises NetworkError for an unavailable port.
    """

    def __init__(self, found: Callable[[str, Query], HttpAnswer | None], port: int = 0) -> None:
        self.found = found
        try:
            self._server = _Server((HOST, port), _handler(self))
        except OSError as error:
            raise NetworkError(f"port {port}: {error.strerror}", "Take another with --port, or none.") from None
        self.port: int = self._server.server_address[1]
        self.url = f"http://{HOST}:{self.port}/"
        self.hosts = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        self._has_users = hasattr(os, "getuid") and bool(users_of((HOST, self.port), ("0.0.0.0", 0)))
        self._thread = guarded_thread(self._server.serve_forever, "page", 0.1)

    def is_own(self, near: tuple[str, int]) -> bool:
        """Return whether a connection belongs to this process's user, or root; true if this machine does not
        report it.
        """
        users = users_of(near, (HOST, self.port)) if self._has_users else {0}
        return bool(users) and users <= {0, os.getuid()}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self._unsaid: dict[socket.socket, None] = {}
        """Connections without a request so far, the oldest first."""
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not (self._room.acquire(blocking=False) or self._make_room()):
            return self.shutdown_request(request)
        self._unsaid[request] = None
        return super().process_request(request, client_address)

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for its request."""
        oldest = next(iter([*self._unsaid]), None)
        if oldest is None:
            return False
        self.release(oldest)
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
        return self._room.acquire(timeout=ROOM_SECONDS)

    def release(self, request: socket.socket) -> None:
        self._unsaid.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.release(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a browser may close a connection in the middle of an answer."""


class _Request(io.RawIOBase):
    """The request of a connection, complete within REQUEST_SECONDS: a limit per byte would admit endless requests."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._until = connection, time.monotonic() + REQUEST_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("a request that does not end")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


def _handler(server: LocalServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version, sys_version = "fedgossip", ""

        def setup(self) -> None:
            super().setup()
            self.rfile = io.BufferedReader(_Request(self.connection))

        def do_GET(self) -> None:  # other methods are missing: 501
            self.server.release(self.connection)  # type: ignore[attr-defined]
            self.connection.settimeout(REQUEST_SECONDS)  # for a complete answer
            if not server.is_own(self.client_address[:2]):
                return self._refuse(403, "this address answers its own user only")
            if self.headers.get("Host", "").lower() not in server.hosts:
                return self._refuse(403, "this address answers to its own name only")
            path, _, words = self.path.partition("?")
            try:
                query = parse_qs(words, max_num_fields=WORDS_MAX)
            except ValueError:
                return self._refuse(400, "too many words after the question mark")
            answer = server.found(path, query)
            return self._refuse(404, "there is no such page") if answer is None else self._answer(200, answer)

        def _refuse(self, code: int, why: str) -> None:
            self._answer(code, HttpAnswer("text/plain; charset=utf-8", f"{why}\n".encode()))

        def _answer(self, code: int, answer: HttpAnswer) -> None:
            self.send_response(code)
            for name, value in (
                ("Content-Type", answer.kind),
                ("Content-Length", str(len(answer.content))),
                ("Content-Security-Policy", answer.policy),
                ("Cross-Origin-Resource-Policy", "same-origin"),
                ("X-Content-Type-Options", "nosniff"),
                ("Referrer-Policy", "no-referrer"),
                ("Cache-Control", "no-store"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *args: object) -> None:
            """Do nothing: single requests are of no interest."""

    return Handler


PAGE = "fedgossip.report.watch:watch.html"
SCRIPTS = ("fedgossip.report.page:figure.js", "fedgossip.report.watch:watch.js", "fedgossip.report.watch:federated.js")
STYLES = ("fedgossip.report.page:style.css", "fedgossip.report.watch:watch.css")


class WatchPage:
    """The page, and `graph()` and `moment()` as its data."""

    def __init__(self, graph: Callable[[], Any], moment: Callable[[], Any]) -> None:
        page, token = page_of(PAGE, SCRIPTS, STYLES), secrets.token_hex(8)  # lets a page detect another watcher
        self._answers = {
            "": lambda: page,
            "graph.json": lambda: json_answer({"watch": token, **graph()}),
            "state.json": lambda: json_answer({"watch": token, **moment()}),
        }

    def answer(self, name: str) -> HttpAnswer | None:
        """Return the answer for this name: the page itself for ""."""
        answer = self._answers.get(name)
        return answer() if answer else None


class Site(LocalServer):
    """Serves one followed run; see LocalServer."""

    def __init__(self, graph: Callable[[], Any], moment: Callable[[], Any], port: int = 0) -> None:
        page = WatchPage(graph, moment)
        super().__init__(lambda path, _: page.answer(path.removeprefix("/")), port)


def json_answer(content: Any) -> HttpAnswer:
    """Return plain data as an answer."""
    return HttpAnswer("application/json", msgspec.json.encode(content))
