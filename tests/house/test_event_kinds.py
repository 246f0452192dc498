"""The vocabulary of events: it holds what is told, all of it and nothing else, and no second table does."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Formatter

import pytest
from rooms import FILES

from fedgossip.cli.run.progress import event_text
from fedgossip.core.records import EventRow, event_kinds, kind_of


def sources(may_matter: Callable[[str], object]) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the files of the package whose text may matter, parsed; most do not, and parsing all takes seconds."""
    for path in FILES:
        if may_matter(text := path.read_text()):
            yield path, ast.parse(text)


SAYERS = {"Report": 0, "_report": 0, "note": 0, "_note": 0, "_give_up": 0, "Turn": 1, "EventRow": 2}
"""What is called to tell an event, and which argument is its name."""

COUNTING = ("host", "simulator")
"""Drivers, which count some things that are no rows."""


def names_told() -> set[str]:
    """Every name of an event that stands in the source, also by way of a variable."""
    found: set[str] = set()
    calls = re.compile(rf"\b({'|'.join(SAYERS)})\(|\b_count\(|\.counts\[")
    for path, tree in sources(calls.search):
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                found |= set(_names_in(function))
                found |= set(_names_counted(function)) if path.stem in COUNTING else set()
    return {name for name in found if name.isidentifier()}


def _names_in(function: ast.FunctionDef) -> Iterator[str]:
    nodes = list(ast.walk(function))
    given = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given[node.targets[0].id] = node.value
    for call in nodes:
        name = _name_argument(call) if isinstance(call, ast.Call) else None
        if name is not None:
            name = given.get(name.id, name) if isinstance(name, ast.Name) else name
            yield from _texts([name.body, name.orelse] if isinstance(name, ast.IfExp) else [name])


def _name_argument(call: ast.Call) -> ast.expr | None:
    called = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if called not in SAYERS or not call.args:
        return None
    place = SAYERS[called] - isinstance(call.args[0], ast.Starred)  # a round and a peer in one
    return call.args[place] if len(call.args) > place else None


def _names_counted(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._count":
            yield from _texts(node.args[:1])
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "self.counts":
            yield from _texts([node.slice])


def _texts(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_the_vocabulary_is_what_is_told_and_nothing_else() -> None:
    told = names_told() - {"name"}
    assert {"taken_back", "deserted", "partition", "trace_full", "hung", "crashed", "suspected", "rows_lost"} <= told
    assert event_kinds().keys() == told


@pytest.mark.parametrize("name", event_kinds())
def test_every_event_has_a_meaning_what_to_do_about_it_and_words(name: str) -> None:
    kind = kind_of(name)
    assert kind.meaning.endswith(".") and kind.advice.endswith((".", "?")) and kind.meaning != kind.advice
    assert max(len(kind.meaning), len(kind.advice)) < 130, "a sentence of a line"
    assert kind.words or kind.facts
    for template in (kind.words, kind.led):
        assert {field for _, field, _, _ in Formatter().parse(template) if field} <= {"value"}


def test_the_gravest_come_first_and_the_quiet_last() -> None:
    order = [kind.severity for kind in event_kinds().values()]
    assert order == sorted(order, key=("grave", "noted", "quiet").index)


def test_an_event_of_another_version_is_told_by_its_name() -> None:
    assert "tickled" not in event_kinds() and not kind_of("tickled").quiet
    assert event_text(EventRow(3, 1, "was_tickled", {"by": 2})) == "was tickled: by 2"


def test_no_second_table_of_events_stands_anywhere() -> None:
    """A list or mapping of names of events and nothing else is one; the board of the demo has states of its own."""
    found = {}
    for path, tree in sources(lambda text: len(event_kinds().keys() & set(re.findall(r'"(\w+)"', text))) > 3):
        for node in ast.walk(tree):
            parts = [key for key in node.keys if key] if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            names = _texts(parts)
            if len(names) > 3 and event_kinds().keys() >= set(names):
                found[path.name] = names
    assert found.keys() == {"demo.py"}, found
