"""Each benchmark runs in its short form, that of `make bench`.  Its figures are for people."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LINES = re.findall(r"^\t\$\(BIN\)/python (benchmarks/.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_what_a_benchmark_imports_is_there() -> None:
    """In seconds, where the benchmarks themselves are of the long form."""
    gone = []
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("fedgossip"):
                module = importlib.import_module(str(one.module))
                names = [name.name for name in one.names if not hasattr(module, name.name)]
                gone += [f"{path.name}: {one.module}.{name}" for name in names if not _is_module(module, name)]
    assert not gone


def _is_module(package: ModuleType, name: str) -> bool:
    return hasattr(package, "__path__") and importlib.util.find_spec(f"{package.__name__}.{name}") is not None


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.timeout(660)
@pytest.mark.parametrize("line", LINES)
def test_a_benchmark_comes_to_its_end(line: str) -> None:
    """With bytecode kept, whatever the shell says: some start dozens of processes."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    typed = subprocess.run(
        [sys.executable, *line.split()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert typed.returncode == 0, typed.stderr[-2000:]
    assert typed.stdout.strip()
