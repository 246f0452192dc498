"""A sweep's folder, and the open work in it: a function of the file and of the finished cells.

    sweep.toml           the sweep, including its base
    cells/HASH/          a run directory each
    claims/HASH.1        the process that runs it, or ran it (`claims`)
    table.csv, cells.jsonl, sweep.html      derived from the cells on request

No list of finished cells exists: every later process on any machine sees the same state.

Tuned keys take the best values of trials on the validation set, with separate seeds.  If the best value is at an end,
values continue beyond it, `widen` times at most.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError, NotWrittenError, nearest, not_writable
from fedgossip.base.limits import Within, limits_of
from fedgossip.base.scores import HIGHER, LOWER
from fedgossip.core.run_format import CELLS, FAILURE, SWEEP
from fedgossip.data.idx import keep_files
from fedgossip.lab.sweeps.cells import FAILED, CellOutcome, outcome_in, refusal, run_claimed, write_failure
from fedgossip.lab.sweeps.grid import SweepCell, SweepGrid, Values, name_values, read_sweep
from fedgossip.report.page.learning_curves import measured_values
from fedgossip.report.page.reading import RecordedRun, read_run

Ended = tuple[SweepCell, CellOutcome]

PAUSE = 0.2
"""Seconds between two checks of cells that other processes run."""


def write_shared(path: Path, content: bytes) -> None:
    """Write a file atomically that several processes may write at the same time.  Raises NotWrittenError."""
    try:
        owner_files.placed(path, content)
    except OSError as error:
        raise NotWrittenError(path, error) from None


class SweepFolder:
    """A sweep and its folder."""

    def __init__(self, path: Path, grid: SweepGrid) -> None:
        self.path, self.grid = path, grid
        self.tuning: Tuning = tuning_of(grid)
        self._ended: dict[str, CellOutcome] = {}

    @classmethod
    def create(cls, path: Path, grid: SweepGrid) -> SweepFolder:
        """Create the folder, or open one with this sweep.  Raises ConfigError for another sweep's, and for a cell
        that no experiment can be read from.

        Several processes may create it at the same time.
        """
        found = cls(path, grid)
        for cell in found.wanted():  # a refused sweep leaves no folder
            grid.experiment(cell)
        try:
            owner_files.make_folder(path)
            outside_files.check_folder(path)
            others = [one for one in path.iterdir() if one.suffix != ".part"]  # before the check: others may create it
            if others and not (path / SWEEP).exists():
                raise ConfigError(f"{path}: not empty, and no sweep", "Give another folder with --out.")
            write_shared(path / SWEEP, grid.to_toml().encode())
            for inner in ("cells", "claims"):
                owner_files.make_folder(path / inner)
        except OSError as error:
            raise not_writable(path, error) from None
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
        states = {name_values(values): self.choice(values) for values in self.grid.combinations}
        trials = [cell for state in states.values() for cell in state.trials]
        return [*trials, *self.compared({name: state.chosen for name, state in states.items()})]

    def compared(self, chosen: dict[str, Values | None] | None = None) -> Iterator[SweepCell]:
        """Yield the compared cells, as far as their tuned values are chosen."""
        if chosen is None:
            chosen = {name_values(values): self.choice(values).chosen for values in self.grid.combinations}
        for seed in self.grid.seeds:
            for values in self.grid.combinations:
                if (tuned := chosen[name_values(values)]) is not None:
                    yield SweepCell(values, tuned, seed)

    def open_cells(self) -> list[SweepCell]:
        """Return the unfinished needed cells."""
        return [cell for cell in self.wanted() if self.outcome(cell) is None]

    def refuse(self) -> int:
        """Record the combinations without a possible run (for all seeds) first; return their number."""
        found = {}
        for cell in self.open_cells():
            name = name_values(cell.values)
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
        """Run a cell, unless another process does; return its outcome, None if another process has it.

        Raises KeyboardInterrupt if it was stopped; it can be resumed.
        """
        name, engine = self.grid.hash(cell), self.grid.file.engine
        return run_claimed(
            self.claims, name, self.place(cell), engine, lambda: self.grid.experiment(cell), lambda: self.outcome(cell)
        )

    def work(self, until: float, stopped: Callable[[], bool] = lambda: False) -> Iterator[Ended]:
        """Run cells, starting none after `until` (seconds of the epoch), and yield each; wait for other processes'
        cells, which may need others.
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


TRIAL_SEEDS = 1_000_000
"""Seeds of trials begin after this."""

SCORES = ("mean_peer", "averaged", "worst_peer")
SUMMED = {"loss": "test_loss", "consensus_distance": "consensus_distance", "bytes": "bytes_sent", "seconds": "seconds"}
"""Other numbers of a summary with smaller values better, and their keys there."""

OutcomeOf = Callable[[SweepCell], CellOutcome | None]
RecordOf = Callable[[SweepCell], RecordedRun]


class TunedKey(msgspec.Struct, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """Tried values of a key: from, from * factor, ... up to `to`."""

    first: Annotated[float, Within(1e-12, 1e12)]
    last: Annotated[float, Within(1e-12, 1e12)]
    factor: Annotated[float, Within(1.01, 1e6)] = 2.0
    widen: Annotated[int, Within(0, 20)] = 3
    """Maximum number of extensions beyond an end with the best value."""

    def value(self, place: int) -> float:
        """Return the value at an index; 0 is `from`, and indices continue beyond both ends."""
        return float(f"{self.first * self.factor**place:.6g}")

    @property
    def places(self) -> range:
        many = 1
        while self.first * self.factor**many <= self.last * (1 + 1e-9):
            many += 1
        return range(many)


class ListedKey(msgspec.Struct):
    """Listed values of a key, without extension."""

    values: list[Any]
    widen = 0

    def value(self, place: int) -> Any:
        return self.values[place]

    @property
    def places(self) -> range:
        return range(len(self.values))


@dataclass(frozen=True)
class Tuning:
    """[tune] of a sweep: the keys, their criterion, and the number of seeds of each trial."""

    keys: Mapping[str, TunedKey | ListedKey]
    by: str = "mean_peer"
    seeds: int = 1
    better: str = ""
    """Direction of a number in neither SCORES nor SUMMED."""

    def choose(self, values: Values, outcome_of: OutcomeOf, record_of: RecordOf) -> TuningState:
        """`fedgossip host`: invite others to a run by a line of text, and be one of its peers, or its coordinator."""
        if not self.keys:
            return TuningState((), [])
        ends = {key: [tuned.places.start, tuned.places.stop - 1] for key, tuned in self.keys.items()}
        widened = dict.fromkeys(self.keys, 0)
        while True:
            ranges = [range(low, high + 1) for low, high in ends.values()]
            trials = {places: self._trials(values, places) for places in itertools.product(*ranges)}
            if [cell for cells in trials.values() for cell in cells if outcome_of(cell) is None]:
                return TuningState(None, [cell for cells in trials.values() for cell in cells])
            scores = {places: self._score(cells, outcome_of, record_of) for places, cells in trials.items()}
            known = {places: score for places, score in scores.items() if score is not None}
            every = [cell for cells in trials.values() for cell in cells]
            if not known:
                return TuningState(None, every, failed=next(o.error for c in every if (o := outcome_of(c))))
            best = max(known, key=lambda places: known[places])
            if not self._go_on(best, ends, widened):
                return TuningState(trials[best][0].tuned, every)

    def _go_on(self, best: Sequence[int], ends: dict[str, list[int]], widened: dict[str, int]) -> bool:
        moved = False
        for (key, tuned), place in zip(self.keys.items(), best, strict=True):
            low, high = ends[key]
            if place in (low, high) and widened[key] < tuned.widen:
                widened[key] += 1
                ends[key] = [low - (place == low), high + (place == high)]
                moved = True
        return moved

    def _trials(self, values: Values, places: Sequence[int]) -> list[SweepCell]:
        tuned = tuple((key, one.value(place)) for (key, one), place in zip(self.keys.items(), places, strict=True))
        return [SweepCell(values, tuned, TRIAL_SEEDS + number, trial=True) for number in range(self.seeds)]

    def _score(self, cells: Sequence[SweepCell], outcome_of: OutcomeOf, record_of: RecordOf) -> float | None:
        """Return the trials' mean, larger is better; None after a failure."""
        found = []
        for cell in cells:
            outcome = outcome_of(cell)
            if outcome is None or outcome.summary is None:
                return None
            summary: Mapping[str, Any] = outcome.summary
            less = self.by in SUMMED or (self.better or summary["score"]["better"]) == LOWER
            value = summary["score"][self.by] if self.by in SCORES else summary.get(SUMMED.get(self.by, ""))
            if self.by not in (*SCORES, *SUMMED):
                value = self._recorded(record_of(cell))
            if value is None:
                return None
            found.append(-float(value) if less else float(value))
        return fmean(found)

    def _recorded(self, run: RecordedRun) -> float:
        values = list(measured_values(run, self.by).values())
        if not values:
            known = [*SCORES, *SUMMED, *run.logged]
            raise ConfigError(f"tune.by = {self.by!r}: no trial has recorded it", nearest(self.by, known))
        return values[-1][1]


@dataclass(frozen=True)
class TuningState:
    """The progress of a choice.  `chosen`: the values, or None; `trials`: all needed so far."""

    chosen: Values | None
    trials: Sequence[SweepCell]
    failed: str = ""
    """The reason if no choice is possible: no trial has a score."""


def tuning_of(grid: SweepGrid) -> Tuning:
    """Return [tune] of a sweep, checked.  Raises ConfigError."""
    given = dict(grid.file.tune)
    by, seeds, where = given.pop("by", "mean_peer"), given.pop("seeds", 1), f"{grid.where}: tune"
    if not isinstance(by, str) or not by:
        raise ConfigError(
            f"{where}.by = {by!r} is no name", f"Known: {', '.join((*SCORES, *SUMMED))}, or a logged number."
        )
    by, better = _name_and_direction(by, where)
    if not isinstance(seeds, int) or isinstance(seeds, bool) or not 1 <= seeds <= 1000:
        raise ConfigError(f"{where}.seeds = {seeds!r}", "Give a number from 1 to 1000.")
    keys = {key: _key(f"{where}.{key}", value) for key, value in given.items()}
    if keys and not grid.content.get("data", {}).get("validation"):
        advice = "Set data.validation = 0.1 in the base: trials are judged there, and never on the test set."
        raise ConfigError(f"{grid.where}: [tune], and the base keeps nothing for validation", advice)
    return Tuning(keys, by, seeds, better)


def _name_and_direction(by: str, where: str) -> tuple[str, str]:
    name, _, query = by.partition("?")
    if name in (*SCORES, *SUMMED):
        if query:
            raise ConfigError(f"{where}.by = {by!r}", f"Write {name}.")
        return name, ""
    options = dict(parse_qsl(query, keep_blank_values=True))
    if list(options) != ["better"] or options["better"] not in (HIGHER, LOWER):
        advice = f"Of another number write {name}?better=lower, or higher.  {nearest(name, (*SCORES, *SUMMED))}"
        advice += "  All are measured on the validation set; the test set is left for the end."
        raise ConfigError(f"{where}.by = {by!r} is not known", advice)
    return name, options["better"]


def _key(where: str, value: object) -> TunedKey | ListedKey:
    if isinstance(value, list) and value:
        return ListedKey(value)
    advice = "Write { from = 0.01, to = 1.0, factor = 2, widen = 3 }, or a list of values."
    try:
        found = msgspec.convert(value, TunedKey)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {str(error).replace('`', '')}", advice) from None
    for name, limit in limits_of(TunedKey):
        if not limit.allows(getattr(found, name)):
            key = {"first": "from", "last": "to"}.get(name, name)
            raise ConfigError(f"{where}.{key} = {getattr(found, name)!r} {limit.refusal}", advice)
    if found.last < found.first:
        raise ConfigError(f"{where}: to = {found.last:g} is below from = {found.first:g}", advice)
    return found
