"""What the documents name is there: links, files, rooms, modules and what stands in them."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from rooms import FILES, PACKAGE, docstrings, packages

from fedgossip.algorithms.federated.names import ALGORITHMS

ROOT = PACKAGE.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "RESULTS.md"]

TESTS = sorted((ROOT / "tests").rglob("*.py"))

LINK = re.compile(r"\]\(([^)\s]+)\)")
QUOTED = re.compile(r"`([^`\n]+)`")
OF_THE_HOUSE = re.compile(rf"(?:fedgossip/)?({'|'.join(sorted(packages()))})/([a-z_0-9/]*)(?:\.([A-Za-z_]\w*))?")
COMMENT = re.compile(r"(?<!\S)# .*")
OF_THE_FOLDERS = re.compile(r"(?:docs|tests|examples|benchmarks|topologies)/[\w./*-]+")


def anchors(document: Path) -> set[str]:
    """The names that a link can have behind its #, as they are made of headings."""
    heads = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


def names_in(module: Path) -> set[str]:
    """All that a module defines: at its top, in its classes, and what it takes from others."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.alias(name=name) | ast.Name(id=name):
                found.add(name)
    return found


def lacking(words: str) -> Iterator[str]:
    """Yield what the words between two backticks name and is not there."""
    if (PACKAGE / words.removeprefix("fedgossip/")).exists():
        return
    if found := OF_THE_HOUSE.fullmatch(words):
        room, inner, name = found.groups()
        place = PACKAGE / room / inner
        module = place.with_suffix(".py")
        file = module if module.exists() else place / "__init__.py"
        if not file.exists() or (name and name != "py" and name not in names_in(file)):
            yield words
    elif OF_THE_FOLDERS.fullmatch(words) and not list(ROOT.glob(words.rstrip("/"))):
        module, _, name = words.rpartition(".")
        if not (file := ROOT / f"{module}.py").exists() or name not in names_in(file):
            yield words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_within_the_project_leads_somewhere(document: Path) -> None:
    dead = []
    for target in LINK.findall(document.read_text()):
        path, _, anchor = target.partition("#")
        to = document.parent / path if path else document
        if "://" not in target and (not to.exists() or (anchor and anchor not in anchors(to))):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_and_module_that_a_document_names_is_there(document: Path) -> None:
    assert [what for words in QUOTED.findall(document.read_text()) for what in lacking(words)] == []


def test_every_name_between_backticks_in_a_docstring_is_one_of_the_code() -> None:
    """A module or an argument that was renamed lives on in docstrings otherwise."""
    known: set[str] = set()
    quoted: list[tuple[str, str]] = []
    for path in FILES:
        known |= set(_module(path).split("."))
        text = path.read_text()
        for docstring in docstrings(path):
            quoted += [(_module(path), words) for words in QUOTED.findall(docstring.text)]
            text = text.replace(docstring.source, "")
        known |= set(re.findall(r"\w+", COMMENT.sub("", text)))
    known |= {name for path in TESTS for name in (path.stem, path.parent.name, "tests", "py")}
    known |= set(keyword.kwlist)
    known |= {part for name in ALGORITHMS for part in name.split("-")}  # names made of functions' names
    unknown = [(where, words) for where, words in quoted if set(re.findall(r"[A-Za-z_]\w*", words)) - known]
    assert unknown == []


DOTTED = re.compile(r"`([a-z_]+(?:\.\w+)+)`|\b[Ss]ee ([a-z_]+(?:\.\w+)+)|\b(fedgossip(?:\.\w+)+)")
"""A dotted path in a docstring: between backticks, behind "see", or from the package on."""
FILE_NAME = re.compile(r".*\.(csv|json|jsonl|log|md|npz|onnx|pt|py|safetensors|toml|txt|zip)")


@cache
def _names_in(module: Path) -> frozenset[str]:
    return frozenset(names_in(module)) if module.exists() else frozenset()


def leads_from(folder: Path, parts: list[str]) -> bool:
    """Whether parts of a dotted path lead from a folder to a folder, a module, or a name in one."""
    first, rest = parts[0], parts[1:]
    if (folder / first).is_dir():
        return not rest or leads_from(folder / first, rest)
    if (module := folder / f"{first}.py").exists():
        return not rest or rest[0] in _names_in(module)
    return first in _names_in(folder / "__init__.py")


def dead_paths(path: Path, settings: str) -> Iterator[str]:
    """Yield the paths in docstrings of a module that lead nowhere: dotted ones of modules, and those with slashes."""
    for text in (docstring.text for docstring in docstrings(path)):
        yield from (found for words in QUOTED.findall(text) if "/" in words for found in lacking(words))
        for quoted, seen, whole in DOTTED.findall(text):
            words = quoted or seen or whole
            parts = words.removeprefix("fedgossip.").split(".")
            homes = [path.parent] if quoted else [file.parent for file in FILES if file.stem == parts[0]]
            of_modules = whole or parts[0] in packages() or any((home / f"{parts[0]}.py").exists() for home in homes)
            leads = any(leads_from(home, parts) for home in (PACKAGE, path.parent, *homes))
            if of_modules and not leads and f"`{words}" not in settings and not FILE_NAME.fullmatch(words):
                yield words


def test_every_path_in_a_docstring_leads_somewhere() -> None:
    settings = (ROOT / "docs" / "reference" / "reference.md").read_text()
    assert [(_module(path), words) for path in FILES for words in dead_paths(path, settings)] == []


def test_a_path_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    dead = ["base.nothing", "fedgossip.base.nothing", "protocols/gossip/nothing", "seeds.nothing"]
    module = tmp_path / "module.py"
    module.write_text(f'"""{dead[1]}, `base.seeds.stream`, `{dead[0]}`, `{dead[2]}`; see {dead[3]}."""')
    assert sorted(dead_paths(module, "")) == dead


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_the_citation_is_of_this_version() -> None:
    from fedgossip import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_benchmark_has_its_short_form_in_the_makefile() -> None:
    """But those of other programs, which another Python runs, and the files that benchmarks share."""
    programs = {path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    named = set(re.findall(r"benchmarks/(\w+\.py)", (ROOT / "Makefile").read_text()))
    assert {path.name for path in programs} - {"flower.py", "decentralizepy_round.py", "other_populations.py"} == named
