"""A sweep's folder, and the open work in it: a function of the file and of the finished cells.

    sweep.toml           the sweep, with its base in it
    cells/HASH/          a run directory each
    claims/HASH.1        who runs it, or did (`claims`)
    table.csv, cells.jsonl, sweep.html      derived from the cells on request

There is no list of finished cells, so none can be wrong: after any kind of end, every later process on any machine sees
the same state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError
from fedgossip.core.run_format import CELLS, FAILURE, SWEEP
from fedgossip.data.idx import keep_files
from fedgossip.lab.sweeps.cells import FAILED, CellOutcome, outcome_in, refusal, write_failure
from fedgossip.lab.sweeps.claimed import run_claimed
from fedgossip.lab.sweeps.grid import SweepCell, SweepGrid, Values, named, read_sweep
from fedgossip.lab.sweeps.tuning import Tuning, TuningState, tuning_of
from fedgossip.report.page.reading import read_run
from fedgossip.runs.run_directory import write_whole

Ended = tuple[SweepCell, CellOutcome]

PAUSE = 0.2
"""Seconds between two looks at cells that others run."""


class SweepFolder:
    """A sweep and its folder."""

    def __init__(self, path: Path, grid: SweepGrid) -> None:
        self.path, self.grid = path, grid
        self.tuning: Tuning = tuning_of(grid)
        self._ended: dict[str, CellOutcome] = {}

    @classmethod
    def made(cls, path: Path, grid: SweepGrid) -> SweepFolder:
        """Create the folder, or open one with this sweep.  Raises ConfigError for another sweep's."""
        found = cls(path, grid)
        try:
            owner_files.made(path)
            outside_files.check_folder(path)
            if not (path / SWEEP).exists() and any(path.iterdir()):
                raise ConfigError(f"{path}: not empty, and no sweep", "Give another folder with --out.")
            for inner in ("cells", "claims"):
                owner_files.made(path / inner)
            write_whole(path / SWEEP, grid.to_toml().encode())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}", "Choose a folder that can be written, with --out.") from None
        return found

    @classmethod
    def opened(cls, path: Path) -> SweepFolder:
        """Return the sweep in a folder.  Raises ConfigError without one."""
        if not (path / SWEEP).is_file():
            raise ConfigError(f"{path}: no sweep", "fedgossip sweep FILE makes one.")
        return cls(outside_files.checked_folder(path), read_sweep(path / SWEEP))

    @property
    def claims(self) -> Path:
        return self.path / "claims"

    def place(self, cell: SweepCell) -> Path:
        """Return the run directory of a cell."""
        return self.path / CELLS / self.grid.hash(cell)

    def outcome(self, cell: SweepCell) -> CellOutcome | None:
        """Return the outcome of a cell; None for an unfinished one.  Outcomes are read once."""
        name = self.grid.hash(cell)
        if name not in self._ended and (found := outcome_in(self.path / CELLS / name)):
            self._ended[name] = found
        return self._ended.get(name)

    def choice(self, values: Values) -> TuningState:
        """Return the progress of the choice of a combination's tuned keys."""
        return self.tuning.choose(values, self.outcome, lambda cell: read_run(self.place(cell)))

    def wanted(self) -> list[SweepCell]:
        """Return all cells known to be needed: trials first, then compared ones, the first seed first."""
        states = {named(values): self.choice(values) for values in self.grid.combinations}
        trials = [cell for state in states.values() for cell in state.trials]
        return [*trials, *self.compared({name: state.chosen for name, state in states.items()})]

    def compared(self, chosen: dict[str, Values | None] | None = None) -> Iterator[SweepCell]:
        """Yield the compared cells, as far as their tuned values are chosen."""
        if chosen is None:
            chosen = {named(values): self.choice(values).chosen for values in self.grid.combinations}
        for seed in self.grid.seeds:
            for values in self.grid.combinations:
                if (tuned := chosen[named(values)]) is not None:
                    yield SweepCell(values, tuned, seed)

    def open_cells(self) -> list[SweepCell]:
        """Return the unfinished ones of them."""
        return [cell for cell in self.wanted() if self.outcome(cell) is None]

    def refuse(self) -> int:
        """Record the combinations without a possible run, before anything runs; return their number.

        Where only a drawn graph of some seed is impossible, that cell fails alone.
        """
        found = {}
        for cell in self.open_cells():
            name = named(cell.values)
            if name not in found:
                found[name] = refusal(self.grid.experiment(cell))
            if (why := found[name]) is not None:
                write_failure(self.place(cell), why)
        return sum(why is not None for why in found.values())

    def retry(self) -> None:
        """Remove the failures of cells, so that they run again; refused cells stay refused while invalid."""
        for cell in self.wanted():
            (self.place(cell) / FAILURE).unlink(missing_ok=True)
        self._ended.clear()

    def run(self, cell: SweepCell) -> CellOutcome | None:
        """Run a cell, unless another process does; return its outcome, None where another has it.

        Raises KeyboardInterrupt where it was stopped; it can be resumed.
        """
        name, engine = self.grid.hash(cell), self.grid.file.engine
        return run_claimed(
            self.claims, name, self.place(cell), engine, lambda: self.grid.experiment(cell), lambda: self.outcome(cell)
        )

    def work(self, until: float, stopped: Callable[[], bool] = lambda: False) -> Iterator[Ended]:
        """Run cells until none is open, and yield each; no new one is begun after `until` (seconds of the epoch).

        Waits for cells in other processes: their outcomes may make other cells necessary.
        """
        with keep_files():  # unpacking them takes a third of a small cell
            while not stopped() and (todo := self.open_cells()):
                some = False
                for cell in todo:
                    if stopped() or time.time() > until:
                        return
                    if self.outcome(cell) is None and (found := self.run(cell)) is not None:
                        some = True
                        yield cell, found
                if not some:
                    time.sleep(PAUSE)

    def give_up(self, cell: SweepCell, why: str) -> None:
        """Record that a cell failed because its worker died."""
        write_failure(self.place(cell), CellOutcome(FAILED, None, why, 1))
