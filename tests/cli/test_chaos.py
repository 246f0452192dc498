"""`fedgossip demo --chaos`: what hits whom is said in words, and the end tells what it cost."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from fedgossip.cli.run import demo
from fedgossip.cli.run.demo import FAULTS, LINKS, PeerTable, plan_of, words
from fedgossip.core.records import EventRow, NetworkRow, PeerRow
from fedgossip.faults import FaultScript, Strike
from fedgossip.runs.run_directory import Run


def test_the_script_of_the_demo_kills_several_suspends_one_and_leaves_time_to_recover() -> None:
    plan = plan_of("chaos", 1, 200, [LINKS, *FAULTS])
    strikes = [one for one in FaultScript(plan.experiment.faults, plan.n, 1).schedule(100.0) if isinstance(one, Strike)]
    killed = {one.node for one in strikes if one.kind == "crash"}
    assert len(killed) >= 3 and {one.node for one in strikes} - killed == {7}
    assert all(one.back_ns is not None and one.back_ns < 18e9 for one in strikes)  # 200 rounds last 20 s at least


def test_plain_lines_say_what_hits_whom(capsys: pytest.CaptureFixture[str]) -> None:
    with PeerTable(100) as board:
        board(PeerRow(1, 3, 0.5, 0.25, 10, 10, 0.1, 0.1, 0.1, 1.0))
        board(EventRow(1, 3, "crashed"))
        board(EventRow(1, 3, "restarted"))
        board(EventRow(1, 3, "resumed", {"round": 1, "incarnation": 1}))
        board(EventRow(1, 0, "partition", [[0], [1]]))
    said = capsys.readouterr().out
    for text in ("peer 3: SIGKILL", "starts again", "checkpoint of round 1", "0 1 2 3 | 4 5 6 7"):
        assert text in said
    assert "\x1b" not in said


def test_the_table_has_a_line_per_peer_with_its_state() -> None:
    from rich.console import Console

    board = PeerTable(100)
    board(PeerRow(7, 3, 0.5, 0.25, 10, 10, 0.1, 0.1, 0.1, 1.0))
    board(PeerRow(100, 4, 0.5, 0.5, 10, 10, 0.1, 0.1, 0.1, 1.0))
    board(NetworkRow(5, 8, 1.0, 1, score_averaged=0.75))
    board._print = lambda text: None  # type: ignore[method-assign]
    board(EventRow(1, 2, "asleep"))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(board.table())
    lines = console.export_text().splitlines()
    assert any("3" in line and "7/100" in line and "25.0 %" in line and "learning" in line for line in lines)
    assert any("100/100" in line and "done" in line for line in lines)
    assert any("asleep" in line and "put to sleep" in line for line in lines)
    assert "75.0 %" in "".join(lines)


def test_the_end_puts_the_accuracy_beside_that_of_the_undisturbed_run() -> None:
    def run(averaged: float, worst: float, **events: int) -> Run:
        accuracy: dict[str, Any] = {"averaged": averaged, "mean_peer": averaged, "worst_peer": worst}
        return Run({"score": accuracy, "events": events}, [], [np.zeros(1)] * 7 + [None], None)

    said = "\n".join(words(run(0.95, 0.91, crashed=4, restarted=3), run(0.96, 0.955)))
    for text in ("4 kills, 3 returns", "7 of 8 peers", "95.0 %", "91.0 %", "96.0 %", "95.5 %"):
        assert text in said
    assert demo.PEERS == 8
