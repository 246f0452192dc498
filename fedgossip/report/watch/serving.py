"""The page of a followed run, and the data that it requests; served on this machine alone."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from fedgossip.report.watch.local_server import HttpAnswer, LocalServer, page_of

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
    """Serves one followed run; as LocalServer."""

    def __init__(self, graph: Callable[[], Any], moment: Callable[[], Any], port: int = 0) -> None:
        page = WatchPage(graph, moment)
        super().__init__(lambda path, _: page.answer(path.removeprefix("/")), port)


def json_answer(content: Any) -> HttpAnswer:
    """Return plain data as an answer."""
    return HttpAnswer("application/json", msgspec.json.encode(content))
