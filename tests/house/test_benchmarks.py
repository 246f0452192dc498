"""Each benchmark runs in its short form, that of `make bench`.  Its figures are for people."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = re.findall(r"^\t\$\(BIN\)/python (benchmarks/.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)


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
