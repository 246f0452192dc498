"""The refusals of the package, by their words, and those that are lost since the frozen list or a revision.

    python tests/refusals.py                names the lost ones of tests/refusals.txt
    python tests/refusals.py REVISION       those of a revision of git
    python tests/refusals.py --write        freezes the present ones

A refusal is a call that makes an error, or reports a missing package; its words are the literals in the call and in the
variables that it names.  One that shares half of its words with a new refusal is reworded, not lost.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from rooms import FILES, PACKAGE

FROZEN = Path(__file__).with_name("refusals.txt")
REFUSES = re.compile(r"\w*Error|_?refused?|RoundAbandoned|needed|missing|Refused")
ALIKE = 0.5
"""Share of the words that two texts of one refusal have in common."""

LITTLE = {
    "an",
    "and",
    "are",
    "as",
    "at",
    "by",
    "for",
    "from",
    "has",
    "in",
    "is",
    "it",
    "not",
    "of",
    "on",
    "or",
    "the",
    "to",
}


def literals(node: ast.AST) -> Iterator[str]:
    """Yield the literals of an expression, in order; a variable as its name in braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        yield f"{{{node.id}}}"
    else:
        for inner in ast.iter_child_nodes(node):
            yield from literals(inner)


def refusals(source: str) -> Iterator[str]:
    """Yield each refusal of a module in a line: its literals, with each text of the variables in it."""
    if not re.search(REFUSES, source):
        return
    for scope in ast.walk(ast.parse(source)):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = list(ast.walk(scope))
        named: dict[str, list[str]] = {}
        for node in inside:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                named.setdefault(f"{{{node.targets[0].id}}}", []).append(" ".join(literals(node.value)))
        for node in inside:
            if isinstance(node, ast.Call) and REFUSES.fullmatch(ast.unparse(node.func).rpartition(".")[2]):
                parts = [[*named.get(one, [one])] for part in (*node.args, *node.keywords) for one in literals(part)]
                for k in range(max(map(len, parts), default=0)):
                    text = " ".join(each[min(k, len(each) - 1)] for each in parts)
                    text = " ".join(re.sub(r"\{\w+\}", " ", text).split())
                    if len(words(text)) > 1:
                        yield text


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z_]{2,}", text.lower())) - LITTLE


def lost(before: set[str], present: set[str]) -> list[str]:
    """Return the earlier refusals that are not there, and that no new one has the words of."""
    new = {text: words(text) for text in present - before}
    gone = []
    for text in sorted(before - present):
        old = words(text)
        shares = {other: len(old & found) / max(1, len(old | found)) for other, found in new.items()}
        other = max(shares, key=shares.__getitem__, default="")
        if shares.get(other, 0) >= ALIKE:
            del new[other]  # one refusal each
        else:
            gone.append(text)
    return gone


def present() -> set[str]:
    return {text for path in FILES for text in refusals(path.read_text())}


def of_revision(revision: str) -> set[str]:
    packed = subprocess.run(
        ["git", "archive", revision, "fedgossip"], cwd=PACKAGE.parent, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        files = (archive.extractfile(each) for each in archive if each.name.endswith(".py"))
        return {text for file in files if file for text in refusals(file.read().decode())}


def main(words: list[str]) -> None:
    if words == ["--write"]:
        FROZEN.write_text("".join(f"{text}\n" for text in sorted(present())))
        return
    before = of_revision(words[0]) if words else set(FROZEN.read_text().splitlines())
    gone = lost(before, present())
    print(*gone, f"{len(before)} refusals before, {len(gone)} lost", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
