"""What a stranger walks through this tree, in numbers: python tests/house.py

Files, rooms, folders and arrows are counted from the sources.  Files that are entered by a round are counted by running
it under sys.setprofile in a process of its own.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import rooms
from rooms import FILES, PACKAGE

DIALECT = re.compile(
    r"\b(tells?|told|telling|says?|said|saying|hears?|heard|comes?|came|coming|who|whom|whose|whoever|whatever|nobody|anew"
    r"|alike|beside|among|at all|such a|so many|as many|by itself|lets? go|(go(es)?|going|gone|went) on"
    r"|(is|are|was) there|what (is|it|its|an?|the|was|are|were|has|have|others?|each|all|one|goes|no|peers?|clients?)"
    r"|as (it|they|he|one) (is|was|are|were|stands?)|where (there|none|one|it|they|nobody|no)|of (ours|theirs|its own)"
    r"|(of|by|with|from|to|at|in|for|on|after|before) which|that (is|are|was|were|has|have))\b",
    re.I,
)
"""Verbs that the house's style keeps for people, clauses in place of nouns, and words of the dialect."""


def dialect(text: str) -> float:
    """Return the markers of the dialect per 1 000 words."""
    return 1000 * len(DIALECT.findall(text)) / len(text.split())


WALK = """
import sys, pathlib
import fedgossip
{before}
entered = set()
def profile(frame, event, arg):
    entered.add(frame.f_code.co_filename)
sys.setprofile(profile)
{walked}
sys.setprofile(None)
print(sum("/fedgossip/" in name and not name.endswith("__init__.py") for name in entered))
"""

CLEAR = {"rounds": 1, "task": {"kind": "quadratic", "dim": 4}}
GOSSIP = {**CLEAR, "topology": {"graph": "ring", "n": 6}}
SECURE = {**CLEAR, "coordinator": {"clients": 4, "algorithm": "fedavg"}}

WALKS = {
    "the simplest simulate": f"fedgossip.simulate({GOSSIP!r})",
    "a secure FedAvg run of one round": f"fedgossip.simulate({SECURE!r})",
}


def module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def importers() -> Iterator[tuple[str, str]]:
    """Yield (importing module, imported module) of all files of the package."""
    there = {module(path) for path in FILES}
    for path in FILES:
        for node in rooms.import_statements(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    if (found := inner if inner in there else node.module) in there:
                        yield module(path), found


def folder_of(name: str) -> str:
    return name.rpartition(".")[0]


def sliced() -> list[str]:
    """Return the objects that are cut over files: a class with one subclass, in another file, and no other use."""
    defined: dict[str, Path] = {}
    bases: dict[str, set[str]] = {}
    used: dict[str, set[Path]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined[node.name] = path
                bases[node.name] = {
                    name.id for base in node.bases for name in ast.walk(base) if isinstance(name, ast.Name)
                }
            elif isinstance(node, ast.Name):
                used.setdefault(node.id, set()).add(path)
    return [
        f"{name} ({', '.join(module(defined[one]) for one in (base, name))})"
        for name in defined
        for base in bases[name] & defined.keys()
        if sum(base in those for those in bases.values()) == 1 and used[base] == {defined[name]} != {defined[base]}
    ]


def docstrings(paths: Iterable[Path]) -> str:
    """Return all docstrings, and the texts below attributes, of the files."""
    return "\n".join(one.text for path in paths for one in rooms.docstrings(path))


def prose(page: Path) -> str:
    """Return the text of a page without its code."""
    return re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)


def main() -> None:
    folders = Counter(path.parent for path in FILES if path.stem != "__init__")
    pairs = {(one, other) for one, other in importers() if one != other}
    readers: dict[str, set[str]] = {}
    for one, other in pairs:
        readers.setdefault(other, set()).add(one)
    named = [(one.split(".")[1], other.split(".")[1]) for one, other in pairs if "." in one and "." in other]
    arrows = {(one, other) for one, other in named if one != other and one not in rooms.LAZY}
    single = [
        name for name, by in readers.items() if len(by) == 1 and {folder_of(one) for one in by} == {folder_of(name)}
    ]
    text_of_all = docstrings(FILES)
    design = rooms.DESIGN.read_text()
    largest, most = folders.most_common(1)[0]
    print(f"files of the package                      {len(FILES)}")
    print(f"lines of the package                      {sum(path.read_text().count(chr(10)) for path in FILES)}")
    print(f"top-level rooms                           {len({rooms.room(path) for path in FILES} - rooms.LAZY)}")
    print(f"largest folder                            {most} ({largest.relative_to(PACKAGE)})")
    print(f"import arrows between rooms               {len(arrows)}")
    print(f"modules with one reader, in their folder  {len(single)}")
    cut = sliced()
    print(f"objects sliced by inheritance             {len(cut)} {'; '.join(cut)}")
    print(f"words of docstrings                       {len(text_of_all.split())}")
    print(f"markers of the dialect per 1 000 words    {dialect(text_of_all):.1f}")
    pages = [prose(page) for page in rooms.DESIGN.parent.rglob("*.md") if "reference" not in page.parts]
    print(f"of the pages                              {dialect(chr(10).join(pages)):.1f}")
    lines = design.count(chr(10))
    print(f"docs/design.md                            {lines} lines, {len(design.split())} words")
    for name, walked in WALKS.items():
        text = WALK.format(before=walked, walked=walked)  # imports are no part of the walk
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        print(f"files entered by {name:24} {done.stdout.split()[-1]}")


if __name__ == "__main__":
    main()
