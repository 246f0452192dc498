"""A trained table: put together of servers' checkpoints, written, read again, and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import in_process
from test_keyed_rows import COPIED, Wide, clicks, keys_of, served

from fedgossip import TrainedTable, load_table, save_table, simulate
from fedgossip.base.errors import ConfigError
from fedgossip.base.keyed_rows import KeyedTable, Rows
from fedgossip.base.vectors import frozen
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose

DRAWN = TrainedTable(
    KeyedTable(1000, 2, seed=3, scale=0.5), Rows(keys_of(4, 90, 800), frozen(np.arange(6, dtype=np.float32)))
)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_table_that_is_written_is_read_again(ending: str, tmp_path: Path) -> None:
    save_table(DRAWN, tmp_path / f"table.{ending}")
    found = load_table(tmp_path / f"table.{ending}")
    assert found.table == DRAWN.table and np.array_equal(found.touched.keys, DRAWN.touched.keys)
    assert np.array_equal(found.rows(np.arange(1000)), DRAWN.rows(np.arange(1000)))


def test_rows_come_in_the_order_asked_for_whether_or_not_somebody_has_touched_them() -> None:
    first = DRAWN.table.first(keys_of(5)).tolist()
    assert DRAWN.rows([800, 5, 4, 800]).tolist() == [[4, 5], first, [0, 1], [4, 5]]
    assert DRAWN.rows([]).shape == (0, 2)
    for wrong, words in (([1000], "row 1000 of a table of 1000"), ([-1], "from 0 on"), ([0.5], "from 0 on")):
        with pytest.raises(ConfigError) as caught:
            DRAWN.rows(wrong)
        assert words in f"{caught.value} {caught.value.advice}"


def test_of_copies_the_newest_counts_whoever_died(tmp_path: Path) -> None:
    crash = {"kind": "crash"}
    faults = [{**crash, "peers": [4], "start": 0.3}, {**crash, "peers": [5], "start": 1.9, "after": 0.1}]
    whole = simulate(clicks(servers=3, rounds=12)).table
    run = simulate(clicks(servers=3, rounds=12, faults=faults, **COPIED), out=tmp_path / "run")
    found = load_table(tmp_path / "run")
    assert run.table and whole and len(whole.touched.keys) > 500
    for one in (run.table, found):
        assert np.array_equal(one.touched.keys, whole.touched.keys)
        assert np.array_equal(one.touched.values, whole.touched.values)


@pytest.mark.parametrize("staleness", [2, "async"])
def test_without_a_step_for_all_the_last_push_is_in_it(staleness: Any) -> None:
    """Checkpoints between are not kept; all rows that any batch needed are touched."""
    task = Wide(10**5, 4)
    plan = compose.plan(load_experiment(served(staleness=staleness))).with_table(task.table)
    run = simulate_plan(plan, task=task)
    keys = {int(key) for node in range(4) for clock in range(5) for key in task.keys(node, clock, 1)}
    assert run.table and {*run.table.touched.keys.tolist()} == keys


def test_a_vector_leaves_no_table(tmp_path: Path) -> None:
    experiment = {**clicks(), "task": {"kind": "quadratic", "dim": 40}}
    assert simulate(experiment, out=tmp_path / "run").table is None
    with pytest.raises(ConfigError, match=r"no table\.safetensors"):
        load_table(tmp_path / "run")


def test_the_command_shows_it_and_writes_it_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_table(DRAWN, tmp_path / "table.safetensors")
    said = in_process(["table", ".", "--rows", "90,5", "--out", "out.npz"], tmp_path, monkeypatch, capsys)
    assert said.code == 0 and "1,000 rows of 2, float32; untouched ones: drawn from seed 3" in said.out
    assert "row 90   2 3" in said.out and "keys [3], rows [3, 2]" in said.out
    assert np.array_equal(load_table(tmp_path / "out.npz").touched.keys, DRAWN.touched.keys)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nowhere"], "No such file"),
        (["bad.npz"], "no trained table"),
        (["bad.safetensors"], "no trained table"),
        (["other.npz"], "no trained table"),
        (["good.npz", "--out", "x.csv"], "as .npz or .safetensors"),
        (["good.npz", "--rows", "1,x"], "'x' is no row"),
        (["good.npz", "--rows", "1000"], "row 1000 of a table of 1000"),
    ],
)
def test_what_is_no_table_is_a_line_and_an_advice(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_table(DRAWN, tmp_path / "good.npz")
    np.savez(tmp_path / "other.npz", keys=np.array([3, 1], np.uint32), rows=np.zeros((2, 2)))
    for name in ("bad.npz", "bad.safetensors"):
        (tmp_path / name).write_bytes(b"x" * 100)
    said = in_process(["table", *words], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and error in said.errors[0] and len(said.err.splitlines()) == 2, said.err


def test_keys_that_cannot_be_are_refused(tmp_path: Path) -> None:
    facts = {"rows_in_all": 10, "width": 1, "seed": 0, "scale": 0.0}
    for keys in ([3, 3], [2, 10]):
        np.savez(tmp_path / "x.npz", keys=np.array(keys, np.uint32), rows=np.zeros((2, 1)), **facts)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="do not ascend"):
            load_table(tmp_path / "x.npz")
