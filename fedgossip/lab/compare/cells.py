"""The cells of a comparison: an ordinary run directory each, one per paradigm, number of workers and seed.

A finished cell is not run again, a stopped one continues, a failed one is reported.  One file has the sections of
several kinds of run; common sections apply to all.  All use the same number of examples: workers that exchange every
step have train.local_steps times as many rounds of one batch each, and fewer workers have larger batches.

On a cluster, workers run the cells listed in a folder:

    asked/list.json      the engine, whether reports are wanted, and the names of the cells
    asked/NAME.toml      the experiment of a cell; its run directory is NAME
    claims/              the process of each running cell, as in the folder of a sweep

    python -m fedgossip.lab.compare.cells FOLDER ...       a worker, with the arguments of `lab.sweeps.worker`
"""

from __future__ import annotations

import contextlib
import copy
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, reason
from fedgossip.base.limits import limits_of
from fedgossip.core import run_format
from fedgossip.core.records import Row
from fedgossip.core.run_summary import RunSummary
from fedgossip.data.objectives import SPARSE
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.experiment.reading import RUN_KINDS, check_keys, checked
from fedgossip.experiment.run_sections import COMPARE, CompareSection
from fedgossip.lab.compare.names import Paradigm, paradigm_of
from fedgossip.lab.sweeps.cells import FAILED, INTERRUPTED, CellOutcome, check_same, outcome_in, run_cell, run_claimed
from fedgossip.lab.sweeps.sweep import on_cluster
from fedgossip.lab.sweeps.worker import Stopped, main
from fedgossip.runs.run_directory import write_whole


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

    `driver`: sim or local.  `backend`: ray:ADDRESS or slurm:PARTITION with `jobs` workers; "": this process.  Raises
    ConfigError for a folder of another experiment, and if paradigms with equal workers and seed used different data.
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
                    advice = "Use a data.partition that suits all kinds of run."
                    raise ConfigError(f"{path} and {of[0]}: not the same data at the same workers", advice)
        yield done


def _together(data: Mapping[str, Any]) -> Mapping[str, Any]:
    shares, sizes = data["shares"], data["sizes"]
    counts = [[sum(column) for column in zip(*shares, strict=True)]] if shares else shares
    return {**data, "shares": counts, "sizes": [sum(sizes)] if sizes else sizes}


OF_KINDS = {*RUN_KINDS, "algorithm"}
"""Sections specific to one kind of run."""

PLAIN = Experiment()
"""The defaults of the sections that all kinds of run have."""
WORKERS = 4
"""Default number of workers."""

Content = Mapping[str, Any]


def compare_section(content: Content, where: str) -> CompareSection:
    """Return [compare] of the file.  Raises ConfigError, also for a key that no paradigm has."""
    check_keys(content, where)
    try:
        found = msgspec.convert(content.get(COMPARE, {}), CompareSection)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: [compare]: {error}", "See docs/together/paradigms.md.") from None
    for name, limit in limits_of(CompareSection):
        if not limit.allows(value := getattr(found, name)):
            raise ConfigError(f"{where}: compare.{name} = {value!r} {limit.refusal}", limit.advice(value))
    if "local_epochs" in content.get("train", {}):
        advice = "Give train.local_steps: all paradigms then see the same number of examples."
        raise ConfigError(f"{where}: train.local_epochs in a comparison", advice)
    return found


def workers_of(content: Content, where: str) -> int:
    """Return topology.n, coordinator.clients or parallel.workers of the file, else WORKERS.  Raises ConfigError if they
    differ.
    """
    sizes = [(section, kind.size) for section, kind in RUN_KINDS.items()]
    given = {size: content.get(section, {}).get(size.partition(".")[2]) for section, size in sizes}
    found = {size: number for size, number in given.items() if isinstance(number, int)}
    if len(set(found.values())) > 1:
        unlike = ", ".join(f"{key} = {number}" for key, number in found.items())
        raise ConfigError(f"{where}: {unlike}: which number of workers?", "Give one number, or --workers 4,8.")
    return next(iter(found.values()), WORKERS)


def experiment_for(content: Content, paradigm: Paradigm, workers: int, most: int, seed: int, where: str) -> Experiment:
    """Return the experiment of a paradigm with `workers`; `most` is the largest compared number.

    Raises ConfigError as `load_experiment` does.
    """
    own = {key: copy.deepcopy(value) for key, value in content.items() if key not in (OF_KINDS - _list_kept(paradigm))}
    own.pop(COMPARE, None)
    own["seed"] = seed
    for key in paradigm.ignores:
        own.get(paradigm.section, {}).pop(key, None)
    _put(own, paradigm.section, _section(own.get(paradigm.section, {}), paradigm.section, workers))
    for section, sets in paradigm.sets.items():
        _put(own, section, sets)
    train = own.setdefault("train", {})
    steps = train.setdefault("local_steps", PLAIN.train.local_steps)
    batch = train.get("batch_size", PLAIN.train.batch_size)
    train["batch_size"] = max(1, batch * most // workers)
    if paradigm.one_participant:  # it takes the steps of all its workers, on the examples of all
        train["local_steps"] = steps * workers
        if own.get("task", {}).get("kind") == SPARSE:
            own["task"]["examples"] = own["task"].get("examples", PLAIN.task.examples) * workers
    simulation = own.setdefault("simulation", {})
    if "per_example" not in simulation and "inside" not in simulation:
        training = simulation.get("training", PLAIN.simulation.training)
        simulation["per_example"] = training / (steps * batch)
    if paradigm.every_step:
        own["rounds"] = own.get("rounds", PLAIN.rounds) * steps
        measured = own.setdefault("eval", {})
        measured["every"] = measured.get("every", PLAIN.eval.every) * steps
    return checked(own, where)


def _list_kept(paradigm: Paradigm) -> set[str]:
    return {paradigm.section, "algorithm"} if paradigm.section == "topology" else {paradigm.section}


def _section(given: Content, section: str, workers: int) -> dict[str, Any]:
    if section == "topology":
        graph = given.get("graph", "ring")
        small = {1: "none", 2: "complete"}
        return {"graph": small.get(workers, graph) if graph == "ring" else graph, "n": workers}
    size = RUN_KINDS[section].size.partition(".")[2]
    if section == "coordinator" and "secure" not in given:
        return {size: workers, "secure": {"on": False}}
    return {size: workers}


def _put(content: dict[str, Any], path: str, values: Content) -> None:
    for key in path.split("."):
        content = content.setdefault(key, {})
    content.update(values)


ASKED, LIST, CLAIMS = "asked", "list.json", "claims"

PAUSE = 0.2
"""Seconds between two checks of cells that other processes run."""

ENDING_SECONDS = 10.0
"""Maximum number of seconds for workers without a cell to end."""


class Listed(msgspec.Struct):
    """The request to workers."""

    engine: str
    report: bool
    names: list[str]


_LISTED = msgspec.json.Decoder(Listed)


class PlacedCells:
    """Cells of a folder run by workers, from construction until `stop`."""

    def __init__(
        self, folder: Path, cells: Mapping[str, Experiment], engine: str, backend: str, jobs: int, *, report: bool
    ) -> None:
        self._folder = folder
        for inner in (ASKED, CLAIMS):
            owner_files.make_folder(folder / inner)
        for name, experiment in cells.items():
            (folder / name / run_format.FAILURE).unlink(missing_ok=True)  # retried
            write_whole(folder / ASKED / f"{name}.toml", tomli_w.dumps(experiment.to_dict()).encode())
        listed = Listed(engine, report, list(cells))
        write_whole(folder / ASKED / LIST, msgspec.json.encode(listed))
        self._paths = [folder / name for name in cells]
        jobs = min(jobs, len(cells))
        self._workers = on_cluster("fedgossip.lab.compare.cells", folder, backend, jobs) if cells else None

    def outcome(self, name: str) -> CellOutcome:
        """Wait for a cell, and return its outcome.  Raises FedgossipError if no worker can run any."""
        path = self._folder / name
        while (found := outcome_in(path)) is None:
            if self._workers is None or not self._workers.working():
                text = "no worker runs it any more; the same command resumes"
                return outcome_in(path) or CellOutcome(FAILED, None, text, 1)
            time.sleep(PAUSE)
        return found

    def stop(self) -> None:
        """End running workers, whose cells can be resumed; workers without a cell end on their own."""
        if self._workers:
            until = time.monotonic() + ENDING_SECONDS
            with contextlib.suppress(ConfigError):
                while all(map(outcome_in, self._paths)) and time.monotonic() < until and self._workers.working():
                    time.sleep(PAUSE)
            self._workers.stop()


def work(folder: Path, until: float, stopped: Stopped) -> Iterator[str]:
    """Run the unclaimed listed cells, and yield their names; start none after `until`.

    Raises ConfigError for an empty list, KeyboardInterrupt for a stopped cell.
    """
    try:
        listed = from_json(_LISTED, outside_files.read_bytes(folder / ASKED / LIST))
    except (OSError, UnreadableError) as error:
        raise ConfigError(
            f"{folder / ASKED / LIST}: {reason(error)}", "fedgossip compare --backend makes it."
        ) from None
    names = listed.names
    while not stopped() and (names := [name for name in names if outcome_in(folder / name) is None]):
        some = False
        for name in names:
            if stopped() or time.time() > until:
                return
            path, file = folder / name, folder / ASKED / f"{name}.toml"
            about = (
                folder / CLAIMS,
                name,
                path,
                listed.engine,
                partial(load_experiment, file),
                partial(outcome_in, path),
            )
            if outcome_in(path) is None and run_claimed(*about, report=listed.report):
                some = True
                yield name
        if not some:
            time.sleep(PAUSE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], work))
