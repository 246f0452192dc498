"""Folders of peers, put together afterwards, tell what the run told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgossip import ConfigError, load_experiment, run_local
from fedgossip.running import compose
from fedgossip.running.collect import collect_peers


def test_collected_folders_tell_what_the_run_told(tmp_path: Path) -> None:
    experiment = {"rounds": 6, "train": {"device": "cpu"}, "topology": {"graph": "path", "n": 3}}
    plan = compose.plan(load_experiment(experiment))
    run = run_local(experiment, tmp_path / "run", report=False)
    folders = [tmp_path / "run" / "peers" / name for name in ("02", "00", "01")]
    collected = collect_peers(plan, folders, tmp_path / "collected")
    assert collected.digest == run.digest is not None
    assert collected.accuracy == run.accuracy
    assert collected.summary["bytes_sent"] == run.summary["bytes_sent"]


def test_a_folder_too_few_is_named(tmp_path: Path) -> None:
    experiment = {"rounds": 2, "task": {"kind": "averaging"}, "topology": {"graph": "path", "n": 3}}
    plan = compose.plan(load_experiment(experiment))
    run_local(experiment, tmp_path / "run", report=False)
    with pytest.raises(ConfigError, match=r"no folder of peers \[1\]"):
        collect_peers(plan, [tmp_path / "run" / "peers" / name for name in ("00", "02")], tmp_path / "out")
