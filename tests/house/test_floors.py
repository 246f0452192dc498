"""The house: a module imports only lower floors, or its own package; and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import house
import pytest
import rooms
from rooms import FILES, LAZY, PACKAGE, import_statements, imports, room

FLOORS = [
    {"base"},
    {"core", "topology"},
    {"algorithms", "secure", "faults"},
    {"protocols", "data", "audit", "adapters"},
    {"learning", "privacy", "simulation", "net"},
    {"experiment", "report"},
    {"plans"},
    {"runs"},
    {"drivers"},
    {"sites", "lab"},
    {"cli"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

PURE = {"abc", "numpy", "dataclasses", "functools", "typing", "bisect", "collections", "__future__"}
"""All that a protocol may import beside fedgossip: no zmq, torch, time, threading, asyncio, random, logging, os."""

HOMES = {
    "torch": {"learning", "lab"},
    "onnx": {"lab"},
    "onnxruntime": {"lab"},
    "onnxscript": {"lab"},
    "sklearn": {"data"},
    "zmq": {"net", "cli"},
    "cryptography": {"net", "secure"},
    "matplotlib": {"report", "sites", "cli"},
    "opacus": {"learning", "privacy"},
    "zeroconf": {"net"},
    "websockets": {"net"},
    "segno": {"cli"},
    "flwr": {"adapters"},
    "nvflare": {"adapters"},
    "ray": {"drivers", "lab"},
    "submitit": {"drivers", "lab"},
    "pickle": {"data"},
    "pyarrow": {"data", "lab"},
    "openpyxl": {"data"},
    "pyreadstat": {"data"},
    "psycopg": {"data"},
    "PIL": {"data"},
    "random": {"learning"},  # whose state a loop of the user's own finds as it left it
}


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in FILES} - LAZY == set(FLOOR)


def test_a_module_imports_only_lower_floors_or_its_own_package() -> None:
    above = [
        f"{path.relative_to(PACKAGE)} on floor {FLOOR[own]} imports {name}"
        for path in FILES
        if (own := room(path)) not in LAZY
        for name in imports(path)
        if (parts := name.split("."))[0] == "fedgossip" and len(parts) > 1 and parts[1] in FLOOR and parts[1] != own
        if FLOOR[parts[1]] >= FLOOR[own]
    ]
    assert above == []


def test_heavy_libraries_stay_in_their_rooms() -> None:
    astray = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in FILES
        for name in imports(path)
        if (top := name.split(".")[0]) in HOMES and room(path) not in HOMES[top]
    ]
    assert astray == []


def _beside(folder: str, allowed: Collection[str]) -> list[str]:
    """Return what modules of `folder` import beside fedgossip and `allowed`."""
    paths = sorted((PACKAGE / folder).rglob("*.py"))
    found = ((path, name) for path in paths for name in imports(path))
    return [f"{path.name} imports {name}" for path, name in found if name.split(".")[0] not in {*allowed, "fedgossip"}]


def test_protocols_import_nothing_that_acts() -> None:
    assert _beside("protocols", PURE) == []


def test_the_secure_sum_imports_no_clock_socket_or_random_source() -> None:
    computing = {"cryptography", "msgspec", "bisect", "contextlib", "decimal", "enum", "fractions", "functools"}
    computing |= {"hashlib", "hmac", "itertools", "math", "operator", "types"}
    assert _beside("secure", PURE | computing) == []


@pytest.mark.sockets
@pytest.mark.parametrize("words", [["-c", "import fedgossip, fedgossip.cli"], ["-m", "fedgossip", "--help"]])
def test_neither_the_import_nor_the_help_loads_torch(words: list[str]) -> None:
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", *words], capture_output=True, text=True, check=True
    ).stderr
    modules = {line.rsplit("|", 1)[1].strip() for line in loaded.splitlines() if "|" in line}
    assert "fedgossip.cli" in modules
    assert not modules & {"torch", "scipy", "networkx", "zmq", "sklearn", "matplotlib"}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_the_design_and_the_map_are_of_todays_tree() -> None:
    _, drawn, _ = rooms.parts(rooms.DESIGN.read_text())
    assert drawn == rooms.rooms_and_picture() and rooms.MAP.read_text() == rooms.the_map(), f"renew: {rooms.RENEW}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Inside a package either: whoever reads one file has read all that it stands on, or can."""
    there = {_module(path): path for path in FILES if room(path) not in LAZY}
    above = {name: set(_imported(path, there.keys())) for name, path in there.items()}
    while low := {name for name, needs in above.items() if not needs}:
        above = {name: needs - low for name, needs in above.items() if name not in low}
    assert above == {}


KNOWN_AS = {"numpy": "np", "numpy.typing": "npt", "networkx": "nx"}
"""The only renames of an import: what everybody calls them."""


def test_no_two_classes_share_a_name() -> None:
    """One word has one meaning: who reads a class's name in a message or a trace knows where it stands."""
    homes: dict[str, list[Path]] = {}
    for path in FILES:
        for name in re.findall(r"^ *class (\w+)[(:]", path.read_text(), re.MULTILINE):
            homes.setdefault(name, []).append(path)
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    found = {name: [path.name for path in paths if name in _classes(path)] for name, paths in twice.items()}
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def _classes(path: Path) -> set[str]:
    """Return the names of a file's classes, without those of an example in a docstring."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}


def test_no_object_is_cut_over_files_by_inheritance() -> None:
    """A class that only its one subclass uses is a slice of that one: it belongs into its file, or is a part of it."""
    assert house.sliced() == []


def test_no_import_is_renamed() -> None:
    """A name that needs `as` to be told from another one is not good enough."""
    renamed = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {alias.name} as {alias.asname}"
        for path in FILES
        for node in import_statements(path)
        for alias in node.names
        if alias.asname not in (None, KNOWN_AS.get(alias.name))
    ]
    assert renamed == []


def _imported(path: Path, there: Collection[str]) -> Iterator[str]:
    """The modules that the file imports: a submodule itself, not the package that it lies in."""
    for node in import_statements(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found = inner if inner in there else node.module
                if found in there:
                    yield found
