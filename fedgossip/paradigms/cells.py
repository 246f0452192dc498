"""The cells of a comparison: an ordinary run directory each, one per paradigm, number of workers and seed.

A cell that has come to its end is not run again; one that was stopped goes on.  One that fails is told, and the others
are run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgossip.checkpoints import differences
from fedgossip.decoding import UnreadableError, json_value
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.errors import ConfigError, FedgossipError
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.paradigms.experiments import experiment_for
from fedgossip.paradigms.names import Paradigm, paradigm_of
from fedgossip.plans import compose
from fedgossip.records import Row
from fedgossip.rundir.run_directory import INCOMPLETE, WHOLE


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
        """What its run directory is called."""
        return f"{self.name.replace(':', '-')}-w{self.workers}-s{self.seed}"


@dataclass(frozen=True)
class DoneCell:
    """What came of a cell: its run directory with its summary, or the error that says why there is none."""

    cell: Cell
    experiment: Experiment | None
    path: Path
    summary: Mapping[str, Any] | None
    error: str = ""
    again: bool = False
    """Whether it was there already."""


@dataclass(frozen=True)
class CellGrid:
    """Which cells there are, made of the content of one file."""

    content: Mapping[str, Any]
    where: str
    paradigms: Sequence[str]
    workers: Sequence[int]
    seeds: Sequence[int]

    @property
    def cells(self) -> list[Cell]:
        """All of them: the first seed of all first, so that something can be seen soon."""
        return [Cell(p, m, seed) for seed in self.seeds for m in self.workers for p in self.paradigms]

    def experiment(self, cell: Cell) -> Experiment:
        return experiment_for(self.content, cell.paradigm, cell.workers, max(self.workers), cell.seed, self.where)


def run_cells(
    grid: CellGrid, out: Path, driver: str, *, report: bool = True, watch: Callable[[Row], None] | None = None
) -> Iterator[DoneCell]:
    """Run every cell that is not there, and yield what came of each.

    `driver`: sim or local.  Raises ConfigError where a folder holds a run of another experiment, and where two
    paradigms with as many workers and the same seed did not learn from the same data.
    """
    seen: dict[tuple[int, int], tuple[Path, object]] = {}
    for cell in grid.cells:
        path = out / cell.folder
        try:
            experiment = grid.experiment(cell)
        except ConfigError as error:
            yield DoneCell(cell, None, path, None, f"{error}  {error.advice}".strip())
            continue
        _check_same(path, experiment)
        if (summary := _whole(path)) is not None:
            done = DoneCell(cell, experiment, path, summary, again=True)
        else:
            done = _run(cell, experiment, path, driver, watch, report=report)
        if done.summary is not None:
            of = seen.setdefault((cell.workers, cell.seed), (path, done.summary["data"]))
            if of[1] != done.summary["data"]:
                advice = "Take data.partition from what no kind of run changes."
                raise ConfigError(f"{path} and {of[0]}: not the same data at the same workers", advice)
        yield done


def _run(
    cell: Cell,
    experiment: Experiment,
    path: Path,
    driver: str,
    watch: Callable[[Row], None] | None,
    *,
    report: bool,
) -> DoneCell:
    try:
        plan = compose.plan(experiment)
        if driver == "local":
            shutil.rmtree(path, ignore_errors=True)
            run = run_local_plan(plan, path, report=report, watch=watch)
        else:
            run = simulate_plan(plan, out=path, report=report, watch=watch, resume=(path / INCOMPLETE).exists())
    except FedgossipError as error:
        return DoneCell(cell, experiment, path, None, f"{error}  {error.advice}".strip())
    if run.summary["status"] == "interrupted":
        raise KeyboardInterrupt
    return DoneCell(cell, experiment, path, run.summary)


def _check_same(path: Path, experiment: Experiment) -> None:
    """Raise ConfigError for a cell of another file; what was there is left as it is."""
    if not (path / "experiment.toml").is_file():
        return
    before = load_experiment(path / "experiment.toml").to_dict()
    if found := differences(before, experiment.to_dict(), simulated=True):
        advice = "Give a new folder with --out, or the file that it was made of."
        raise ConfigError(f"{path}: a cell of another comparison: {'; '.join(found[:3])}", advice)


def _whole(path: Path) -> Mapping[str, Any] | None:
    """The summary of a cell that has come to its end."""
    if (path / INCOMPLETE).exists() or not (path / "summary.json").is_file():
        return None
    try:
        summary = json_value((path / "summary.json").read_bytes())
    except (OSError, UnreadableError):
        return None
    return summary if isinstance(summary, dict) and summary.get("status") in WHOLE else None
