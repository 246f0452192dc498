"""The cells of a comparison: an ordinary run directory each, one per paradigm, number of workers and seed.

A finished cell is not run again; a stopped one continues.  A failed cell is reported, and the others run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgossip.base.errors import ConfigError
from fedgossip.core import run_format
from fedgossip.core.records import Row
from fedgossip.core.run_summary import RunSummary
from fedgossip.experiment import Experiment
from fedgossip.lab.compare.experiments import experiment_for
from fedgossip.lab.compare.names import paradigm_of
from fedgossip.lab.compare.setting import Paradigm
from fedgossip.lab.sweeps.cells import INTERRUPTED, CellOutcome, check_same, outcome_in, run_cell
from fedgossip.lab.sweeps.listed import PlacedCells


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    name: str
    workers: int
    seed: int

    @property
    def paradigm(self) -> Paradigm:
        return paradigm_of(self.name)

    @property
    def folder(self) -> str:
        """The name of its run directory."""
        name = re.sub(r"[^\w@.,=-]", "-", self.name)
        return f"{name}-w{self.workers}-s{self.seed}"


@dataclass(frozen=True)
class DoneCell:
    """A cell's outcome: its run directory with its summary, or the error in place of one."""

    cell: Cell
    experiment: Experiment | None
    path: Path
    summary: RunSummary | None
    error: str = ""
    again: bool = False
    """Whether it was finished before."""


@dataclass(frozen=True)
class CellGrid:
    """The cells made from the content of one file."""

    content: Mapping[str, Any]
    where: str
    paradigms: Sequence[str]
    workers: Sequence[int]
    seeds: Sequence[int]
    rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates of paradigms with their own."""

    @property
    def cells(self) -> list[Cell]:
        """Return all cells: the first seed of all first, for early results."""
        return [Cell(p, m, seed) for seed in self.seeds for m in self.workers for p in self.paradigms]

    def experiment(self, cell: Cell) -> Experiment:
        content = self.content
        if cell.name in self.rates:
            content = {**content, "train": {**content.get("train", {}), "lr": self.rates[cell.name]}}
        return experiment_for(content, cell.paradigm, cell.workers, max(self.workers), cell.seed, self.where)


def run_cells(
    grid: CellGrid,
    out: Path,
    driver: str,
    *,
    report: bool = True,
    watch: Callable[[Row], None] | None = None,
    backend: str = "",
    jobs: int = 1,
) -> Iterator[DoneCell]:
    """Run every unfinished cell, and yield each outcome.

    `driver`: sim or local.  `backend`: ray:ADDRESS or slurm:PARTITION, whose `jobs` workers run the cells; "": this
    process, one after the other.  Raises ConfigError where a folder holds a run of another experiment, and where two
    paradigms with as many workers and the same seed did not learn from the same data.
    """
    there = {cell.folder: found for cell in grid.cells if (found := outcome_in(out / cell.folder)) and found.summary}
    with contextlib.ExitStack() as stack:
        placed = None
        if backend:
            placed = PlacedCells(out, _open(grid, out, there), driver, backend, jobs, report=report)
            stack.callback(placed.stop)

        def run(cell: Cell, experiment: Experiment) -> CellOutcome:
            if placed:
                return placed.outcome(cell.folder)
            (out / cell.folder / run_format.FAILURE).unlink(missing_ok=True)  # a worker's failure: run again
            return run_cell(experiment, out / cell.folder, driver, report=report, watch=watch)

        yield from _done(grid, out, there, run)


def _open(grid: CellGrid, out: Path, there: Mapping[str, CellOutcome]) -> dict[str, Experiment]:
    """Return the experiments of unfinished cells, by their folders.  Raises ConfigError."""
    found = {}
    for cell in grid.cells:
        with contextlib.suppress(ConfigError):  # an invalid one is reported at its turn
            found[cell.folder] = grid.experiment(cell)
    for name, experiment in found.items():
        check_same(out / name, experiment, "comparison")
    return {name: experiment for name, experiment in found.items() if name not in there}


def _done(
    grid: CellGrid,
    out: Path,
    there: Mapping[str, CellOutcome],
    run: Callable[[Cell, Experiment], CellOutcome],
) -> Iterator[DoneCell]:
    seen: dict[tuple[int, int, int], tuple[Path, object]] = {}
    for cell in grid.cells:
        path = out / cell.folder
        try:
            experiment = grid.experiment(cell)
        except ConfigError as error:
            yield DoneCell(cell, None, path, None, f"{error}  {error.advice}".strip())
            continue
        check_same(path, experiment, "comparison")
        found = there.get(cell.folder)
        outcome = found or run(cell, experiment)
        if outcome.status == INTERRUPTED:
            raise KeyboardInterrupt
        done = DoneCell(cell, experiment, path, outcome.summary, outcome.error, again=found is not None)
        if done.summary is not None:
            data = done.summary["data"]
            for what in (data, _together(data)):
                participants = len(what["sizes"] or ())
                of = seen.setdefault((cell.workers, cell.seed, participants), (path, what))
                if of[1] != what:
                    advice = "Take data.partition from what no kind of run changes."
                    raise ConfigError(f"{path} and {of[0]}: not the same data at the same workers", advice)
        yield done


def _together(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a summary's description of the data as if one participant had all of them."""
    shares, sizes = data["shares"], data["sizes"]
    counts = [[sum(column) for column in zip(*shares, strict=True)]] if shares else shares
    return {**data, "shares": counts, "sizes": [sum(sizes)] if sizes else sizes}
