"""Any recorded number as the score of a sweep: its value is that of the record, and another name is refused."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
from commands import in_process

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.core.records import NetworkRow, PeerRow, read_rows
from fedgossip.lab.sweeps.page import page_of, rounds_to_target, runs_of_table
from fedgossip.lab.sweeps.table import SweepTable

QUADRATIC = {"rounds": 6, "task": {"kind": "quadratic", "dim": 3}, "topology": {"graph": "ring", "n": 4}}
GRID = {"topology.graph": ["ring", "complete"]}


def swept(folder: Path, **keys: Any) -> SweepTable:
    return fedgossip.sweep({"name": "small", "base": QUADRATIC, "seeds": 2, "grid": GRID, **keys}, folder / "s")


def recorded(table: SweepTable, row: Any) -> list[NetworkRow]:
    rows = read_rows(table.folder / row["cell"] / "metrics.jsonl")
    return [one for one in rows if isinstance(one, NetworkRow) and one.round <= row["rounds"]]


def add_logged(table: SweepTable, name: str) -> None:
    """Add a number to the record that a loop would have logged: peer + 10 round + 100 seed."""
    for row in table.rows:
        path = table.folder / row["cell"] / "metrics.jsonl"
        rows = read_rows(path)
        for one in rows:
            if isinstance(one, PeerRow) and one.round:
                one.logged = {name: one.peer + 10.0 * one.round + 100.0 * row["seed"]}
        path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in rows))


def test_every_recorded_number_can_be_the_score(tmp_path: Path) -> None:
    table = swept(tmp_path, engine="sim", base={**QUADRATIC, "eval": {"every": 1}})
    for name, field in (
        ("loss", "loss"), ("test_loss", "test_loss"), ("consensus_before", "consensus_before"),
        ("bytes", "bytes_sent"), ("seconds", "seconds"), ("rounds", "round"),
    ):  # fmt: skip
        found = table.scored_by(name)
        assert found.better == "lower" and len(found.rows) == 4
        for row in found.rows:
            assert row[found.compared] == getattr(recorded(table, row)[-1], field) is not None, name
        cheap = found.difference("topology.graph=complete")
        assert cheap and cheap.pairs == 2
    assert table.scored_by("bytes").difference("topology.graph=complete").mean > 0  # 12 links instead of 8
    distances = table.scored_by("consensus_distance").scores("topology.graph=complete")
    assert all(value == pytest.approx(0.0, abs=1e-6) for value in distances.values()) and len(distances) == 2


@pytest.mark.parametrize("equal", ["rounds", "bytes"])
def test_such_a_score_is_of_the_round_and_the_mean_of_the_others(tmp_path: Path, equal: str) -> None:
    base = {**QUADRATIC, "rounds": 12, "eval": {"every": 2}}
    table = swept(tmp_path, base=base, equal=equal, over=2, seeds=1)
    assert (table.rows[1]["rounds"] < 12) == (equal == "bytes")
    for name in ("loss", "consensus_distance"):
        for row in table.scored_by(name).rows:
            evaluated = [one for one in recorded(table, row) if one.measured]
            assert row[name] == pytest.approx(fmean(getattr(one, name) for one in evaluated[-2:]))


def test_at_equal_bytes_the_consensus_distance_is_that_of_the_round(tmp_path: Path) -> None:
    """That of the end stood beside the scores of an earlier round."""
    base = {**QUADRATIC, "rounds": 12, "task": {"kind": "averaging"}, "topology": {"graph": "ring", "n": 6}}
    grid = {"topology.graph": ["ring", "star"]}
    table = swept(tmp_path, base={**base, "eval": {"every": 1}}, grid=grid, equal="bytes", seeds=1)
    assert table.rows[0]["rounds"] < 12
    for row in table.scored_by("consensus_distance").rows:
        assert row["consensus_distance"] == recorded(table, row)[-1].consensus_distance > 1e-4


def test_a_logged_number_is_a_score_in_the_direction_that_is_given(tmp_path: Path) -> None:
    table = swept(tmp_path)
    add_logged(table, "grad norm")
    found = table.scored_by("grad norm?better=lower")
    assert (found.score, found.better) == ("grad norm", "lower")
    assert {row["seed"]: row["grad norm"] for row in found.rows} == {1: 161.5, 2: 261.5}
    assert table.scored_by("grad norm").better == "higher"
    assert page_of(found).measured == "grad norm"
    for wrong in ("grad norm?better=less", "grad norm?unit=m", "grad norm?", "loss?better=higher"):
        with pytest.raises(ConfigError, match="is no score"):
            table.scored_by(wrong)


def test_a_logged_number_never_replaces_a_column(tmp_path: Path) -> None:
    table = swept(tmp_path, seeds=1)
    add_logged(table, "degree")
    with pytest.raises(ConfigError, match="'degree' is a column of the table already"):
        table.scored_by("degree")


def test_a_score_that_no_run_has_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    table = swept(tmp_path, seeds=1)
    for name in ("mean_peer", "auroc", "seconds", "status"):  # arrays have no time, a quadratic has no score
        with pytest.raises(ConfigError, match=f"no run has recorded '{name}'") as refused:
            table.scored_by(name)
        known = refused.value.advice.removeprefix("They have recorded ").rstrip(".").split(", ")
        assert {"test_loss", "consensus_distance", "bytes", "loss"} <= set(known) and name not in known
        assert all(table.scored_by(one).scores("topology.graph=ring") for one in known)


def test_rounds_to_a_cost_are_no_table(tmp_path: Path) -> None:
    table = swept(tmp_path, seeds=1).scored_by("bytes")
    assert rounds_to_target(table, runs_of_table(table), None) == []
    with pytest.raises(ConfigError, match="a target of bytes"):
        rounds_to_target(table, runs_of_table(table), 3.0)


def test_the_report_takes_the_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(*words: str) -> Any:
        return in_process(["report", *words], tmp_path, monkeypatch, capsys)

    monkeypatch.setattr("fedgossip.lab.sweeps.page.curves_of", lambda runs, width: {})  # they do not depend on it
    table = swept(tmp_path)
    said = report("s", "--score", "loss", "--paper", "paper")
    assert said.code == 0, said.err
    assert "--score loss" in (tmp_path / "paper" / "COMMANDS.txt").read_text()
    assert "Training loss" in (tmp_path / "s" / "sweep.html").read_text()
    assert ",loss" in (tmp_path / "s" / "table.csv").read_text().splitlines()[0]
    refused = report("s", "--score", "auroc")
    assert refused.code == 2 and "no run has recorded 'auroc'" in refused.err and "consensus_distance" in refused.err
    alone = report(str(table.folder / table.rows[0]["cell"]), "--score", "loss")
    assert alone.code == 2 and "--score is for the folder of a sweep" in alone.err
    for words, why in [
        (["--width", "3"], "--width is for the folder of a sweep; fedgossip plot RUN..."),
        (["--target", "0.9"], "--target is for the folder of a sweep"),
    ]:
        assert why in report(str(table.folder / table.rows[0]["cell"]), *words).err
    assert "--width goes with --paper" in report("s", "--width", "3").err
    assert "--out is for several runs" in report("s", "--out", "here.html").err


def test_a_page_by_the_worst_peer_names_it(tmp_path: Path) -> None:
    base = {
        "rounds": 2, "train": {"device": "cpu", "local_steps": 1},
        "model": {"source": "softmax"}, "topology": {"graph": "ring", "n": 4},
    }  # fmt: skip
    found = swept(tmp_path, base=base, seeds=1).scored_by("worst_peer")
    assert page_of(found).measured == "worst peer's accuracy" and found.better == "higher"
    assert found.scores("topology.graph=ring") == {found.rows[0]["seed"]: found.rows[0]["worst_peer"]}
