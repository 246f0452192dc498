"""What the tests themselves start: nothing of a test that fails is left for the next."""

from __future__ import annotations

from pathlib import Path

import commands
import pytest

PEER = ["peer", "experiment.toml", "--id", "0", "--key", "0.key", "--endpoints", "endpoints.toml", "--out", "peer0"]


@pytest.mark.sockets
def test_what_a_failed_test_has_started_is_ended_and_its_pipes_are_closed(tmp_path: Path) -> None:
    first, second = commands.start(["--help"], tmp_path), commands.start(PEER, tmp_path)
    commands.finish(first)
    commands.end_what_is_left()
    for process in (first, second):
        assert process.returncode is not None
        assert all(pipe is not None and pipe.closed for pipe in (process.stdout, process.stderr))
