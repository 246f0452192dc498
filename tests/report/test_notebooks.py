"""Notebooks: those of the examples run, objects are displayed, and code of a cell is refused where it cannot go."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import fedgossip
from fedgossip.base.errors import ConfigError, FedgossipError
from fedgossip.report.page import page

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
SMALL = {"rounds": 2, "topology": {"graph": "ring", "n": 4}}
NUMBERS = {**SMALL, "task": {"kind": "quadratic", "dim": 3}}


class Shell:
    """An IPython shell as `register` uses it."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, str], Any] = {}
        self.display_formatter = types.SimpleNamespace(formatters={"text/html": self})

    def for_type_by_name(self, home: str, name: str, show: Any) -> None:
        self.by_name[home, name] = show

    def shown(self, value: Any) -> str:
        return str(self.by_name[type(value).__module__, type(value).__name__](value))


@pytest.fixture(scope="module")
def shell() -> Shell:
    found = Shell()
    page.register(found)
    return found


@pytest.mark.sockets
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """Without Jupyter: its cells in one namespace."""
    import matplotlib

    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "__notebook__"}
    with contextlib.chdir(tmp_path):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), path.name, "exec"), names)
    matplotlib.pyplot.close("all")


@pytest.mark.sockets
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_kernel(path: Path, tmp_path: Path) -> None:
    nbclient, nbformat = (pytest.importorskip(name) for name in ("nbclient", "nbformat"))
    pytest.importorskip("ipykernel")
    book = nbformat.read(path, 4)
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any("<svg" in output.get("data", {}).get("text/html", "") for cell in book.cells for output in outputs(cell))


def outputs(cell: Any) -> Any:
    return cell.get("outputs", ())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_its_pictures_inside(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    found = [output for cell in cells for output in outputs(cell)]
    assert any("<svg" in "".join(output.get("data", {}).get("text/html", ())) for output in found)
    assert not any(output["output_type"] == "error" for output in found)
    assert "/tmp" not in path.read_text() and "/home" not in path.read_text()


def test_three_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


def test_graphs_forecasts_and_spectra_are_displayed(shell: Shell) -> None:
    ring = fedgossip.resolve("ring", 8)
    mixing = fedgossip.build(ring, "metropolis")
    drawn = shell.shown(ring)
    assert "<svg" in drawn and "8 nodes, 8 edges, degree 2 to 2" in drawn
    assert shell.shown(ring) != drawn  # ids of drawings in one page differ
    large = shell.shown(fedgossip.resolve("ring", 2000))
    assert "<svg" not in large and "2000 nodes" in large
    promised = fedgossip.forecast(mixing)
    shown = shell.shown(promised)
    assert f"{promised.rounds_to_1_percent}</td>" in shown and "spectral gap" in shown
    assert "spectral gap" in shell.shown(fedgossip.spectrum(mixing))


def test_a_run_is_displayed(shell: Shell, tmp_path: Path) -> None:
    run = fedgossip.simulate(NUMBERS, out=tmp_path / "<b>run")
    shown = shell.shown(run)
    assert "finished" in shown and str(run.digest)[:16] in shown and "<svg" in shown
    assert "<b>run" not in shown and "&lt;b&gt;run" in shown
    assert repr(run) == f"Run('ring', finished, digest={str(run.digest)[:16]}, directory={str(run.directory)!r})"
    assert "none" in shell.shown(fedgossip.simulate(NUMBERS))


def test_a_sweep_is_displayed(shell: Shell, tmp_path: Path) -> None:
    table = fedgossip.sweep({"base": NUMBERS, "grid": {"topology.graph": ["ring", "star"]}}, tmp_path / "sweep")
    shown = shell.shown(table)
    assert shown.count("<tr>") == 3 and "star" in shown
    assert re.fullmatch(r"SweepTable\('\S+', 2 rows of which 2 are done, .+\)", repr(table))


def test_every_displayed_class_exists() -> None:
    for home, name, _ in page.SHOWN:
        assert getattr(sys.modules.get(home) or __import__(home, fromlist=["x"]), name).__module__ == home


def test_in_a_kernel_join_names_simulate_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    model = torch.nn.Linear(2, 1)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    with pytest.raises(ConfigError, match="no run to take part in") as caught:
        fedgossip.join(model, torch.optim.SGD(model.parameters(), 0.1))
    assert "fedgossip.simulate_loop(function, n=4)" in caught.value.advice and "launch" not in caught.value.advice


@pytest.mark.sockets
def test_a_function_of_a_cell_is_refused_by_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def own(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return torch.nn.Linear(64, 10)

    monkeypatch.setattr(sys.modules["__main__"], "own", own, raising=False)
    data = {"source": "digits"}
    experiment = {**SMALL, "data": data, "model": {"source": "__main__:own"}, "train": {"device": "cpu"}}
    assert fedgossip.simulate(experiment).summary["status"] == "finished"
    with pytest.raises(FedgossipError, match="exists in the process that defined it") as caught:
        fedgossip.run_local(experiment, tmp_path / "run")
    assert "own:own" in caught.value.advice
