"""`fedgossip demo`, the first command of the README, in two rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import typed

from fedgossip.cli.run.demo import GRAPHS

pytestmark = [pytest.mark.sockets, pytest.mark.anywhere]


def test_the_demo_shows_every_graph_and_processes_with_the_simulated_bits(tmp_path: Path) -> None:
    said = typed(["demo", "--rounds", "2", "--out", "out"], tmp_path)
    assert said.code == 0, said.err
    table = [line for line in said.out.splitlines() if line.count("%") == 3]
    assert all(line.strip().startswith(name) for line, (name, _) in zip(table, GRAPHS, strict=True))
    digests = [line.split("sha256 ")[1] for line in said.out.splitlines() if "sha256 " in line]
    assert len(digests) == 2 and len(digests[0]) == 64 and digests[0] == digests[1]
    assert "equal: over all 16 final models" in said.out
    assert "ring, real processes: 16 peers, 2 rounds" in said.err
    assert (tmp_path / "out" / "report.html").exists()
