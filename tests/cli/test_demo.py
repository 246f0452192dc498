"""`fedgossip demo`, the first command of the README, in two rounds; and the core, without what stands on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedgossip.cli.run.demo import GRAPHS

pytestmark = [pytest.mark.sockets, pytest.mark.anywhere]

WITHOUT_LEAVES = """
import importlib, sys
from importlib.abc import MetaPathFinder
from pathlib import Path

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("fedgossip.sites", "fedgossip.lab")):
            raise ModuleNotFoundError(f"no module named {name}", name=name)

sys.meta_path.insert(0, Absent())
import fedgossip
root = Path(fedgossip.__file__).parent
for path in sorted(root.rglob("*.py")):
    place = path.relative_to(root)
    if not place.as_posix().startswith(("sites/", "lab/", "cli/", "__main__", "drivers/clusters/", "adapters/")):
        importlib.import_module(".".join(("fedgossip", *place.with_suffix("").parts)).removesuffix(".__init__"))
from fedgossip.__main__ import command
command()
"""


def test_the_demo_shows_every_graph_and_processes_with_the_simulated_bits_without_sites_and_lab(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WITHOUT_LEAVES, "demo", "--rounds", "2", "--out", "out"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert said.returncode == 0, said.stderr
    table = [line for line in said.stdout.splitlines() if line.count("%") == 3]
    assert all(line.strip().startswith(name) for line, (name, _) in zip(table, GRAPHS, strict=True))
    digests = [line.split("sha256 ")[1] for line in said.stdout.splitlines() if "sha256 " in line]
    assert len(digests) == 2 and len(digests[0]) == 64 and digests[0] == digests[1]
    assert "equal: over all 16 final models" in said.stdout
    assert "ring, real processes: 16 peers, 2 rounds" in said.stderr
    assert (tmp_path / "out" / "report.html").exists()
