"""What is drawn of the house from its imports and its docstrings: the picture and the table of rooms in docs/design.md,
and docs/map.md, a line for each module.

    python tests/rooms.py --write        write them again

An arrow leads from a room to one that it imports.  An arrow is left out where others lead there too.
tests/house/test_floors.py says what a room may import at all.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import networkx as nx

PACKAGE = Path(__file__).parents[1] / "fedgossip"
FILES = sorted(PACKAGE.rglob("*.py"))
LAZY = {"__init__", "__main__"}  # the package's face: names that are loaded when used

DESIGN = PACKAGE.parent / "docs" / "design.md"
MAP = PACKAGE.parent / "docs" / "map.md"
BEGIN, END = "<!-- rooms: generated -->\n", "<!-- end of rooms -->\n"
RENEW = "python tests/rooms.py --write"


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file, at its top or inside a function, for types or for use; each file is parsed once."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports."""
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}: a relative import"
            if node.module == "fedgossip":
                yield from (f"fedgossip.{alias.name}" for alias in node.names)
            else:
                yield str(node.module)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def packages() -> set[str]:
    return {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}


def arrows() -> list[tuple[str, str]]:
    """Return (room, room that it imports), fewest that still lead everywhere, in the order of the alphabet."""
    graph = nx.DiGraph()
    for path in FILES:
        for name in imports(path):
            of, _, inner = name.partition(".")
            if of == "fedgossip" and inner.split(".")[0] in packages() and room(path) not in LAZY:
                graph.add_edge(room(path), inner.split(".")[0])
    graph.remove_nodes_from({room(path) for path in FILES} & LAZY)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return sorted(nx.transitive_reduction(graph).edges)


class Docstring(NamedTuple):
    text: str
    source: str
    """The text as the file has it, with its quotes."""


@cache
def docstrings(path: Path) -> list[Docstring]:
    """Return the texts that are statements of their own: docstrings, and those below a name or a field."""
    source, found = path.read_text(), list[Docstring]()
    lines, todo = source.split("\n"), list[ast.AST]([ast.parse(source)])
    for node in todo:  # of statements alone: expressions are most of a tree
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.append(Docstring(node.value.value, "\n".join(lines[node.lineno - 1 : node.end_lineno])))
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo += part if isinstance(part := getattr(node, name, None), list) else []
    return found


def said(path: Path) -> str:
    """Return the first paragraph of the docstring of a module, as one line."""
    _, text, _ = path.read_text().split('"""', 2)
    return " ".join(text.split("\n\n")[0].split())


def rooms_and_picture() -> str:
    """Return what docs/design.md shows of the rooms: a table, and their arrows."""
    table = [f"| `{name}/` | {said(PACKAGE / name / '__init__.py')} |" for name in sorted(packages())]
    importing = groupby(arrows(), key=itemgetter(0))
    drawn = [f"    {name} --> {' & '.join(imported for _, imported in leading)}" for name, leading in importing]
    lines = ["| room | what is in it |", "| --- | --- |", *table, "", "```mermaid", "graph TD", *drawn, "```", ""]
    return BEGIN + "\n".join(lines) + END


def the_map() -> str:
    """Return docs/map.md: a heading for each folder, a line for each module."""
    lines = ["# The map", "", f"Every module, by its first line.  Generated: `{RENEW}`.", ""]
    for folder in sorted({path.parent for path in FILES} - {PACKAGE}):
        lines += [f"## {folder.relative_to(PACKAGE).as_posix()}", "", said(folder / "__init__.py"), ""]
        lines += [f"- `{p.stem}`: {said(p)}" for p in sorted(folder.glob("*.py")) if p.stem != "__init__"] + [""]
    return "\n".join(lines).replace("][", "]\\[")  # two brackets in a row are a link by reference


def parts(design: str) -> tuple[str, str, str]:
    """Return what stands before the generated part, that part, and what stands after it."""
    before, rest = design.split(BEGIN, 1)
    drawn, after = rest.split(END, 1)
    return before, BEGIN + drawn + END, after


def main(words: list[str]) -> int:
    before, drawn, after = parts(DESIGN.read_text())
    if "--write" in words:
        DESIGN.write_text(before + rooms_and_picture() + after)
        MAP.write_text(the_map())
    elif drawn != rooms_and_picture() or MAP.read_text() != the_map():
        print(f"{DESIGN.name} and {MAP.name} are of an older tree: {RENEW}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
