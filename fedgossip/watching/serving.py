"""The page of a followed run, on this machine alone: a few answers to GET, and nothing else.

It listens on 127.0.0.1, which other users of this machine can reach too, and no other machine.  A page of somewhere
else that a browser shows cannot read it: a name that was pointed at 127.0.0.1 is not among the hosts that are answered,
and no answer allows other origins.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from types import TracebackType
from typing import Any

import msgspec

from fedgossip.errors import NetworkError

HOST = "127.0.0.1"
CONNECTIONS = 32
"""Answered at once; more are turned away."""
REQUEST_SECONDS = 10.0
"""For a request to arrive."""

Answers = dict[str, Callable[[], tuple[str, bytes]]]
"""path -> what gives the type and the content of its answer."""


class Site:
    """Serves the page, `graph()` and `moment()` in threads of its own; a context manager.

    port: 0 takes a free one.  Raises NetworkError for one that cannot be had.
    """

    def __init__(self, graph: Callable[[], Any], moment: Callable[[], Any], port: int = 0) -> None:
        page, self._policy = _page()
        self._token = secrets.token_hex(8)  # tells a page that it is another watcher's
        self._graph = graph
        self._moment = moment
        self.answers: Answers = {
            "/": lambda: ("text/html; charset=utf-8", page),
            "/graph.json": lambda: _json(self._graph(), self._token),
            "/state.json": lambda: _json(self._moment(), self._token),
        }
        try:
            self._server = _Server((HOST, port), _handler(self))
        except OSError as error:
            raise NetworkError(f"port {port}: {error.strerror}", "Take another with --port, or none.") from None
        self.port: int = self._server.server_address[1]
        self.url = f"http://{HOST}:{self.port}/"
        self.hosts = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        self.policy = self._policy
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    def __enter__(self) -> Site:
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
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes in the middle of an answer is no event."""


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version, sys_version = "fedgossip", ""

        def do_GET(self) -> None:  # other methods are not there: 501
            answer = site.answers.get(self.path.partition("?")[0])
            if self.headers.get("Host", "").lower() not in site.hosts:
                self._refuse(403, "this address answers to its own name only")
            elif answer is None:
                self._refuse(404, "there is no such page")
            else:
                self._answer(200, *answer())

        def _refuse(self, code: int, why: str) -> None:
            self._answer(code, "text/plain; charset=utf-8", f"{why}\n".encode())

        def _answer(self, code: int, kind: str, content: bytes) -> None:
            self.send_response(code)
            for name, value in (
                ("Content-Type", kind),
                ("Content-Length", str(len(content))),
                ("Content-Security-Policy", site.policy),
                ("Cross-Origin-Resource-Policy", "same-origin"),
                ("X-Content-Type-Options", "nosniff"),
                ("Referrer-Policy", "no-referrer"),
                ("Cache-Control", "no-store"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what is asked for is always the same."""

    return Handler


def _json(content: dict[str, Any], token: str) -> tuple[str, bytes]:
    return "application/json", msgspec.json.encode({"watch": token, **content})


def _page() -> tuple[bytes, str]:
    """Return the page and its policy: it loads nothing, runs its own script, and asks this server alone."""
    ours, report = files(__package__), files("fedgossip.report")
    script = "".join(ours.joinpath(name).read_text("utf-8") for name in ("watch.js", "federated.js"))
    style = report.joinpath("style.css").read_text("utf-8") + ours.joinpath("watch.css").read_text("utf-8")
    page = ours.joinpath("watch.html").read_text("utf-8").replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode(), policy
