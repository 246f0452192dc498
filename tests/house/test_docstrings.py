"""What a caller needs to know of the public Python interface stands where it is called: shapes, and what is raised."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import house
import pytest
import rooms

import fedgossip

HOME = Path(fedgossip.__file__).parent
ROOMS = (
    "base/vectors.py",
    "core/task.py",
    "base/limits.py",
    "algorithms/gossip",
    "topology",
    "data",
    "learning",
    "net",
    "secure",
)
TOTAL = {"spectrum"}  # raises for nothing that it can be given
FUNCTIONS = [name for name in fedgossip.__all__ if inspect.isfunction(getattr(fedgossip, name)) and name not in TOTAL]


def public() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the public functions and methods of the rooms that people program against, by where they stand."""
    for name in ROOMS:
        place = HOME / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            tree = ast.parse(path.read_text())
            classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
            for scope in (tree, *classes):
                for node in scope.body:
                    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                        yield f"{path.relative_to(HOME)}:{node.lineno} {node.name}", node


def raises(function: ast.FunctionDef) -> bool:
    """Whether the body itself raises; functions in it raise where they are called."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise) and node.exc is not None and "AssertionError" not in ast.unparse(node.exc):
            return True
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return False


def test_a_function_that_raises_says_so() -> None:
    silent = [where for where, node in public() if raises(node) and "Raise" not in (ast.get_docstring(node) or "")]
    assert silent == []


@pytest.mark.parametrize("name", sorted(set(fedgossip.__all__) - {"__version__"}))
def test_what_is_exported_says_what_it_is(name: str) -> None:
    told = inspect.getdoc(getattr(fedgossip, name)) or ""
    assert len(told) > 20
    assert name not in FUNCTIONS or "Raises" in told


@pytest.mark.parametrize("room", sorted({rooms.room(path) for path in rooms.FILES} - rooms.LAZY))
def test_docstrings_of_a_room_are_plain_english(room: str) -> None:
    """At most 6 markers of the dialect per 1 000 words; they were 14 before, and are 2 in comparable packages."""
    assert house.dialect(house.docstrings(path for path in rooms.FILES if rooms.room(path) == room)) <= 6


@pytest.mark.parametrize("page", [rooms.DESIGN.parent.parent / "README.md", *sorted(rooms.DESIGN.parent.rglob("*.md"))])
def test_a_page_is_plain_english(page: Path) -> None:
    """As above; pages had 22 markers per 1 000 words."""
    assert house.dialect(house.prose(page)) <= 6
