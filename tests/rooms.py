"""The picture of the rooms in docs/design.md: which package imports which.

    python tests/rooms.py --write        draw it again, from the imports

An arrow goes from a package to one that it imports, directly or by way of single modules (`machine`, `wire`, ...).  An
arrow is left out where others lead there too.  tests/house/test_floors.py says what a package may import at all.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx

PACKAGE = Path(__file__).parents[1] / "fedgossip"
FILES = sorted(PACKAGE.rglob("*.py"))
LAZY = {"__init__", "__main__"}  # the package's face: names that are loaded when used

DESIGN = PACKAGE.parent / "docs" / "design.md"
BEGIN, END = "```mermaid\n", "```\n"
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
    """Return (package, package that it imports), fewest that still lead everywhere, in the order of the alphabet."""
    graph = nx.DiGraph()
    for path in FILES:
        for name in imports(path):
            of, _, inner = name.partition(".")
            if of == "fedgossip" and inner and room(path) not in LAZY:
                graph.add_edge(room(path), inner.split(".")[0])
    graph.remove_nodes_from({room(path) for path in FILES} & LAZY)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    reached = nx.transitive_closure_dag(graph).subgraph(packages())
    return sorted(nx.transitive_reduction(reached).edges)


def picture() -> str:
    lines = [f"    {importing} --> {imported}" for importing, imported in arrows()]
    return BEGIN + "\n".join(["graph TD", *lines, ""]) + END


def parts(design: str) -> tuple[str, str, str]:
    """Return what stands before the picture, the picture, and what stands after it."""
    before, rest = design.split(BEGIN, 1)
    drawn, after = rest.split(END, 1)
    return before, BEGIN + drawn + END, after


def main(words: list[str]) -> int:
    before, drawn, after = parts(DESIGN.read_text())
    if "--write" in words:
        DESIGN.write_text(before + picture() + after)
    elif drawn != picture():
        print(f"the picture in {DESIGN.name} is an old one: {RENEW}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
