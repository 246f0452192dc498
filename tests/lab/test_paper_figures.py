"""The figures of a paper and of `fedgossip plot`: what is drawn is what was recorded, what tables claim holds."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from commands import Output, in_process

import fedgossip
from fedgossip.core.records import NetworkRow, read_rows
from fedgossip.lab.sweeps.folder import SweepFolder
from fedgossip.lab.sweeps.page import page_of, rounds_to_target, runs_of_table, write_paper
from fedgossip.lab.sweeps.table import SweepTable, table_of
from fedgossip.report.page import drawing
from fedgossip.report.page.learning_curves import holm, robust_limits, student_p, widened
from fedgossip.report.page.sweep_figures import latex, paintings, sides

T_OF_3 = 4.302653  # t(0.975) with 2 degrees of freedom, any table
QUADRATIC = {
    "rounds": 6,
    "eval": {"every": 2},
    "task": {"kind": "quadratic", "sigma": 0.3},
    "topology": {"graph": "ring", "n": 4},
}
GRID = {"topology.graph": ["ring", "complete"], "algorithm.name": ["dsgd", "gradient-tracking"]}

CURVES = {f"{graph}, {algorithm}" for graph in GRID["topology.graph"] for algorithm in GRID["algorithm.name"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    table = fedgossip.sweep({"name": "s", "base": QUADRATIC, "seeds": 3, "grid": GRID}, folder / "s")
    write_paper(table, folder / "paper", 3.3)
    return folder


@pytest.fixture
def said(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *words: in_process(list(words), place, monkeypatch, capsys)


def numbers(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def recorded(place: Path, combination: str) -> list[list[NetworkRow]]:
    """Return the network's rows of each seed."""
    rows = [row for row in numbers(place / "s" / "table.csv") if row["combination"] == combination]
    files = [place / "s" / row["cell"] / "metrics.jsonl" for row in rows]
    return [[row for row in read_rows(file) if isinstance(row, NetworkRow)] for file in files]


def test_every_number_of_a_curve_is_that_of_the_record_and_the_files_are_the_same_bytes_again(
    place: Path, said: Any
) -> None:
    found = said("report", "s", "--paper", "again", "--width", "column")
    assert found.code == 0, found.err
    drawn = numbers(place / "paper" / "curve-test-loss-by-bytes.csv")
    assert {row["curve"] for row in drawn} == CURVES
    for graph in GRID["topology.graph"]:
        runs = recorded(place, f"topology.graph={graph} algorithm.name=dsgd")
        mine = [row for row in drawn if row["curve"] == f"{graph}, dsgd"]
        assert [int(row["round"]) for row in mine] == [row.round for row in runs[0] if row.test_loss is not None]
        for row in mine:
            at = [next(one for one in run if one.round == int(row["round"])) for run in runs]
            losses = [one.test_loss for one in at if one.test_loss is not None]
            half = T_OF_3 * stdev(losses) / math.sqrt(3)
            assert float(row["bytes"]) == fmean(one.bytes_sent for one in at) and row["seeds"] == "3"
            assert float(row["mean"]) == pytest.approx(fmean(losses), rel=1e-15)
            assert float(row["high"]) - float(row["mean"]) == pytest.approx(half, rel=1e-6, abs=1e-15)
    files = {path.name: path.read_bytes() for path in (place / "paper").iterdir()}
    pdf = files["curve-test-loss-by-bytes.pdf"]
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf, "fonts are embedded as outlines"
    assert {f"{name[:-4]}.csv" for name in files if name.endswith(".pdf")} <= files.keys()
    again = {path.name: path.read_bytes() for path in (place / "again").iterdir()}
    assert all(again[name] == content for name, content in files.items() if name.endswith((".pdf", ".csv")))
    assert b"--width 3.3" in again["COMMANDS.txt"]


def test_a_problem_with_a_known_answer_is_compared_by_its_loss(place: Path) -> None:
    table = (place / "paper" / "scores.tex").read_text()
    assert "--" not in table.split(r"\toprule")[1] and "% test loss" in table
    losses = [runs[-1].test_loss for runs in recorded(place, "topology.graph=ring algorithm.name=dsgd")]
    heat = numbers(place / "paper" / "heat.csv")[0]
    assert float(heat["mean"]) == pytest.approx(fmean(loss for loss in losses if loss is not None))
    differences = numbers(place / "paper" / "differences.csv")
    assert [row["pairs"] for row in differences] == ["3"] * 3 and all(0 <= float(row["p"]) <= 1 for row in differences)


def test_rounds_and_bytes_to_a_target_are_those_of_the_first_row_that_is_as_good(place: Path) -> None:
    name = "topology.graph=complete algorithm.name=dsgd"
    runs, table = recorded(place, name), table_of(SweepFolder.opened(place / "s"))
    target = max(row.test_loss for run in runs for row in run if row.round == 2 and row.test_loss is not None)
    row = next(one for one in rounds_to_target(table, runs_of_table(table), target) if one["combination"] == name)
    first = [next(row for row in run if row.test_loss is not None and row.test_loss <= target) for run in runs]
    assert row["reached"] == row["seeds"] == 3 and row["rounds"] == fmean(one.round for one in first)
    assert row["bytes"] == fmean(one.bytes_sent for one in first)
    assert "seconds" not in row, "arrays record none"
    never = rounds_to_target(table, runs_of_table(table), -1.0)
    assert {(row["reached"], row["rounds"]) for row in never} == {(0, None)}


def scored(scores: dict[str, list[float]]) -> SweepTable:
    rows = [
        {"combination": f"algorithm.name={name}", "algorithm.name": name, "seed": seed, "status": "finished",
         "mean_peer": score, "gap": None, "n_w": None}
        for name, of in scores.items() for seed, score in enumerate(of)
    ]  # fmt: skip
    return SweepTable(Path("s"), "s", ["algorithm.name"], [], rows, "algorithm.name=a", "rounds", "accuracy", "higher")


def test_bold_is_what_the_interval_supports() -> None:
    clear = latex(page_of(scored({"a": [0.5, 0.6, 0.7], "b": [0.71, 0.8, 0.91]})))
    assert r"b & \textbf{80.67 $\pm$ 10.02}" in clear and clear.count("textbf") == 1
    assert "textbf" not in latex(page_of(scored({"a": [0.5, 0.6, 0.7], "b": [0.9, 0.61, 0.5]})))
    assert "textbf" not in latex(page_of(scored({"a": [0.5], "b": [0.9]}))), "one seed has no interval"


def test_values_that_are_tables_are_named_in_figures_by_what_differs() -> None:
    """Whole they leave no room for the figure: its names were cut, and matplotlib warned, which is an error here."""
    common = "device=cpu, local_epochs=1, momentum=0.9"
    more = "scaling=linear, base_batch=32, schedule=warmup:10,cosine"
    table = scored({f"{common}, lr=0.1": [0.5], f"{common}, lr=0.2, {more}": [0.6], common: [0.7]})
    page = page_of(replace(table, reference=f"algorithm.name={common}"))
    down, across = sides(page)
    assert down == ["lr=0.1", "lr=0.2, scaling=linear, base_batch=32,\nschedule=warmup:10,cosine", common]
    assert across == [page.metric.word]
    heat = paintings(page)["heat"]
    assert drawing.draw("heat", heat.height, heat.paint, heat.width).startswith("<svg")


def two_by_two(graphs: dict[str, float], **without: str) -> SweepTable:
    """Two algorithms on each graph; `without`: the status of b's cell on a graph, or "left out"."""
    rows = [
        {"combination": f"{graph}, {name}", "topology.graph": graph, "algorithm.name": name, "seed": seed,
         "status": without.get(graph, "finished") if name == "b" else "finished",
         "mean_peer": None if name == "b" and graph in without else 0.5 + 0.1 * seed, "gap": None, "n_w": n_w}
        for graph, n_w in graphs.items() for name in "ab" for seed in (1, 2)
        if name == "a" or without.get(graph) != "left out"
    ]  # fmt: skip
    keys = ["topology.graph", "algorithm.name"]
    return SweepTable(Path("s"), "s", keys, [], rows, rows[0]["combination"], "rounds", "accuracy", "higher")


def painted(table: SweepTable, name: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure()
    paintings(page_of(table))[name].paint(figure)
    return figure.axes[0]


def test_a_cell_without_a_score_names_its_reason() -> None:
    axes = painted(two_by_two({"ring": 3.0, "star": 2.0, "path": 1.0}, star="refused", path="left out"), "heat")
    assert sorted(text.get_text() for text in axes.texts if "%" not in text.get_text()) == ["not run", "refused"]


def test_graphs_of_one_n_w_lie_beside_each_other() -> None:
    axes = painted(two_by_two({"torus": 7.0, "cube": 7.0, "star": 2.0}), "by-n-w")
    places = [x for bars in axes.containers for x in bars[0].get_xdata()]
    assert len({round(x, 6) for x in places}) == len(places) == 6
    (torus,), (cube,) = ([text.xy[0] for text in axes.texts if text.get_text() == name] for name in ("torus", "cube"))
    assert torus < 7.0 < cube


def test_curves_of_one_value_have_an_axis() -> None:
    low, high = widened(2.0, 2.0)
    assert low < 2.0 < high


def test_p_is_of_the_paired_t_test_and_holm_adjusts_it() -> None:
    """t = 1 / (1 / sqrt 3) = sqrt 3 of 0, 1, 2 with 2 degrees of freedom: p = 1 - t / sqrt(2 + t²)."""
    assert student_p([0.0, 1.0, 2.0]) == pytest.approx(1 - math.sqrt(3 / 5))
    assert student_p([1.0]) is None and student_p([2.0, 2.0]) == 0.0
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm's own procedure by hand


def test_one_diverged_value_takes_no_limits() -> None:
    assert robust_limits([0.30, 0.31, 0.32, 0.33, 1e9, math.inf]) == (0.30, 0.33)
    assert robust_limits([0.10, 0.85, 0.86, 0.87, 0.88]) == (0.85, 0.88)
    assert robust_limits([0.3, 0.5, 0.7, 0.9]) == (0.3, 0.9) and robust_limits([]) == (0.0, 1.0)


@pytest.mark.parametrize("ending", ["pdf", "png", "svg", "csv"])
def test_one_command_makes_one_figure(place: Path, said: Any, ending: str) -> None:
    begins = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml", "csv": b"panel,curve,round,bytes,mean"}
    found = said("plot", "s", "--x", "bytes", "--y", "consensus_distance", "--out", f"one.{ending}")
    assert found.code == 0, found.err
    assert (place / f"one.{ending}").read_bytes().startswith(begins[ending])


def test_without_a_file_it_is_on_the_terminal_and_runs_are_named_by_what_differs(place: Path, said: Any) -> None:
    cells = sorted(str(path.relative_to(place)) for path in (place / "s" / "cells").iterdir())
    whole, single = said("plot", *cells, "--y", "test_loss"), said("plot", cells[0], cells[0], "--y", "test_loss")
    assert whole.code == single.code == 0, whole.err + single.err
    assert {line[2:] for line in whole.out.splitlines()} >= CURVES
    assert single.out.count(cells[0]) == 1, "two runs of one name and seed are two curves"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--y", "acuracy"], "none of the runs has recorded 'acuracy'"),
        (["--x", "hours"], "there is no axis 'hours'"),
        (["--x", "epoch"], "not all of the runs can be drawn by epoch"),
        (["--out", "a.doc"], "no figure is written as .doc"),
        (["--width", "0.2"], "is none of column, page"),
        (["--width", "wide"], "is none of column, page"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(said: Any, words: list[str], why: str) -> None:
    found: Output = said("plot", "s", *words)
    assert found.code == 2 and why in found.err and "Traceback" not in found.err
