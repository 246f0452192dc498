"""The table of a sweep: a row for every compared cell, including failed and refused ones.

Methods are compared on the same seeds, which share data, first model and batches: intervals are of differences, by
Student's t (assumes normality) and a bootstrap's percentiles (too narrow for few; Efron, Annals of Statistics 7, 1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError, needed
from fedgossip.base.scores import HIGHER, LOWER
from fedgossip.base.untrusted_text import csv_rows
from fedgossip.core import run_format
from fedgossip.core.records import NetworkRow, read_rows
from fedgossip.data.objectives import score_of_loops
from fedgossip.lab.sweeps.cells import FAILED, CellOutcome
from fedgossip.lab.sweeps.folder import SweepFolder, write_shared
from fedgossip.lab.sweeps.grid import SweepCell, Values, format_value, name_values
from fedgossip.report.page.learning_curves import (
    LEVEL,
    MEASURES,
    Interval,
    measured_values,
    student_interval,
    student_p,
)
from fedgossip.report.page.reading import RecordedRun, read_run

SCORES = ("mean_peer", "averaged", "worst_peer")
UNSCORED = ("test_loss", "consensus_distance")
"""Compared columns of tasks without a score: the first that some cell has."""
COSTS = {"bytes": "bytes_sent", "seconds": "seconds", "rounds": "rounds"}
"""Scores that measure no model, and their columns."""
OPEN = "open"
"""The status of a cell that has not run."""


@dataclass(frozen=True, repr=False)
class SweepTable:
    """The results of a sweep.  `rows`: of plain values; None for a cell without one."""

    folder: Path
    name: str
    keys: Sequence[str]
    tuned: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    reference: str
    """The combination to which differences refer, as `combination` of a row."""
    equal: str
    score: str
    """The name of the score."""
    better: str
    over: int = 1
    """Number of last evaluated rounds in the mean of a score."""
    compared: str = "mean_peer"
    """The compared column: for tasks without a score the test loss, or else the consensus distance."""

    def scored_by(self, name: str) -> SweepTable:
        """Return the table with another number of the record as its score.

        `name`: a score (mean_peer, averaged, worst_peer), loss, test_loss, consensus_distance, bytes, seconds, rounds,
        or a logged number, "NAME?better=lower" if smaller is better.  A number without a column is read from the cells'
        records, as the other scores are.  Raises ConfigError for a name that no finished cell has.
        """
        base, _, query = name.partition("?")
        done = [row for row in self.rows if row["cell"] and row["status"] not in (OPEN, "failed", "refused")]
        columns = {**{column: column for column in (*SCORES, *UNSCORED)}, **COSTS}
        held = [one for one, column in columns.items() if any(row[column] is not None for row in done)]
        if not any(row["seconds"] for row in done):
            held = [one for one in held if one != "seconds"]  # arrays have no time
        runs = {} if base in held else {row["cell"]: read_run(self.folder / row["cell"]) for row in done}
        known = list(dict.fromkeys([*held, *(one for run in runs.values() for one in _recorded(run))]))
        if base not in known:
            there = f"They have recorded {', '.join(known)}." if known else "None of the cells has been run to its end."
            raise ConfigError(f"{self.folder}: no run has recorded {base!r}", there)
        fixed = base in columns or base in MEASURES
        options = dict(parse_qsl(query, keep_blank_values=True))
        if "?" in name and (fixed or list(options) != ["better"] or options["better"] not in (HIGHER, LOWER)):
            advice = f"Write {base}." if fixed else f"Write {base}?better=higher or {base}?better=lower."
            raise ConfigError(f"{name!r} is no score", advice)
        if base in SCORES:
            return replace(self, compared=base)
        better = LOWER if fixed else score_of_loops(name).better
        if base in held:
            return replace(self, compared=columns[base], score=base.replace("_", " "), better=better)
        if base in self.rows[0]:
            raise ConfigError(f"{base!r} is a column of the table already", "Log the number under another name.")
        rows = [{**row, base: _average_record(runs, row, base, self.over)} for row in self.rows]
        return replace(self, rows=rows, compared=base, score=MEASURES.get(base, base), better=better)

    @property
    def done(self) -> int:
        """Number of cells with a score."""
        return sum(row["status"] not in (OPEN, "failed", "refused") for row in self.rows)

    @property
    def open(self) -> int:
        """Number of cells that have not run."""
        return sum(row["status"] == OPEN for row in self.rows)

    @property
    def failed(self) -> int:
        """Number of cells that failed, or were refused."""
        return len(self.rows) - self.done - self.open

    @property
    def combinations(self) -> list[str]:
        """The combinations of the grid, in its order."""
        return list(dict.fromkeys(row["combination"] for row in self.rows))

    def scores(self, combination: str, which: str = "") -> dict[int, float]:
        """Return a combination's scores by seed, without missing ones."""
        which = which or self.compared
        mine = [row for row in self.rows if row["combination"] == combination and row[which] is not None]
        return {row["seed"]: row[which] for row in mine}

    def difference(self, combination: str, other: str = "", which: str = "") -> PairedDifference | None:
        """Return the difference of a combination's score to another's, or to the reference's, seed by seed."""
        return paired_difference(self.scores(combination, which), self.scores(other or self.reference, which))

    def correlation(self, fact: str, which: str = "", **only: Any) -> RankCorrelation | None:
        """Return the agreement of the order by a graph's fact ("gap", "n_w") with that by the mean score, of rows with
        the values `only`.
        """
        points = self.points(fact, which, **only)
        return rank_correlation([x for x, _, _ in points], [y for _, y, _ in points])

    def points(self, fact: str, which: str = "", **only: Any) -> list[tuple[float, float, str]]:
        """Return (fact, mean score, combination) of the combinations with both."""
        found, which = [], which or self.compared
        for name in self.combinations:
            rows = [row for row in self.rows if row["combination"] == name and row[fact] is not None]
            rows = [row for row in rows if all(row[key] == value for key, value in only.items())]
            scores = [row[which] for row in rows if row[which] is not None]
            if scores:
                found.append((sum(row[fact] for row in rows) / len(rows), sum(scores) / len(scores), name))
        return found

    def __repr__(self) -> str:
        return f"SweepTable({self.name!r}, {len(self.rows)} rows of which {self.done} are done, {self.score})"

    def to_csv(self) -> str:
        """Return the rows as CSV."""
        return csv_rows(self.rows)

    def write(self) -> None:
        """Write table.csv and cells.jsonl into the sweep's folder; table.parquet if pyarrow is installed.

        Several processes may write them at the same time.  Raises NotWrittenError.
        """
        write_shared(self.folder / run_format.SWEEP_TABLE, self.to_csv().encode())
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in self.rows)
        write_shared(self.folder / run_format.SWEEP_ROWS, lines)
        try:
            self.to_parquet(self.folder / run_format.SWEEP_PARQUET)
        except ConfigError:  # an optional file: without the extra nothing is missing
            return

    def to_parquet(self, path: Path) -> None:
        """Write the rows as Parquet.  Raises NotWrittenError; ConfigError without pyarrow (extra `research`)."""
        arrow, parquet = (needed(name, "research", "a parquet file") for name in ("pyarrow", "pyarrow.parquet"))
        content = arrow.BufferOutputStream()
        parquet.write_table(arrow.Table.from_pylist([dict(row) for row in self.rows]), content)
        write_shared(path, content.getvalue().to_pybytes())


def table_of(sweep: SweepFolder) -> SweepTable:
    """Return the table of the finished cells; unfinished ones are rows too."""
    grid = sweep.grid
    cells = [(cell, sweep.outcome(cell)) for cell in sweep.compared()]
    limits = _equal(sweep, cells)
    rows = {cell.label: _row(sweep, cell, outcome, limits.get(cell.seed)) for cell, outcome in cells}
    every = []
    for values in grid.combinations:
        state = sweep.choice(values)
        for seed in grid.seeds:
            if state.chosen is not None:
                every.append(rows[SweepCell(values, state.chosen, seed).label])
                continue
            outcome = CellOutcome(FAILED, None, f"no trial has a score: {state.failed}") if state.failed else None
            nothing = tuple((key, None) for key in sweep.tuning.keys)
            every.append(_row(sweep, SweepCell(values, nothing, seed), outcome, None))
    known = next((row for row in every if row["score"]), None)
    reference = next(v for v in grid.combinations if grid.file.reference.items() <= dict(v).items())
    keys, tuned = list(grid.file.grid), list(sweep.tuning.keys)
    score, better = (known["score"], known["better"]) if known else ("", "higher")
    compared = "mean_peer"
    if not known and (other := next((one for one in UNSCORED if any(row[one] is not None for row in every)), "")):
        score, better, compared = other.replace("_", " "), "lower", other
    return SweepTable(
        sweep.path,
        grid.name,
        keys,
        tuned,
        every,
        name_values(reference),
        grid.file.equal,
        score,
        better,
        grid.file.over,
        compared,
    )


def _recorded(run: RecordedRun) -> list[str]:
    return [name for name in (*MEASURES, *run.logged) if measured_values(run, name)]


def _average_record(runs: Mapping[str, RecordedRun], row: Mapping[str, Any], name: str, over: int) -> float | None:
    """Return the mean of a cell's last `over` numbers, of evaluated rounds where possible."""
    if row["cell"] not in runs:
        return None
    run = runs[row["cell"]]
    known = {round: value for round, (_, value) in measured_values(run, name).items() if round <= row["rounds"]}
    evaluated = [one.round for one in run.network if one.test_loss is not None or one.score_averaged is not None]
    values = [known[round] for round in evaluated if round in known] or list(known.values())
    return fmean(values[-over:]) if values else None


def _row(sweep: SweepFolder, cell: SweepCell, outcome: CellOutcome | None, limit: float | None) -> dict[str, Any]:
    summary: Mapping[str, Any] = (outcome.summary if outcome else None) or {}
    score, forecast = summary.get("score") or {}, summary.get("forecast") or {}
    place = "" if any(value is None for _, value in cell.tuned) else str(sweep.place(cell).relative_to(sweep.path))
    row = {
        "combination": name_values(cell.values),
        **_plain(cell.values),
        **_plain(cell.tuned),
        "seed": cell.seed,
        "status": outcome.status if outcome else OPEN,
        "score": score.get("name", ""),
        "better": score.get("better", ""),
        **{which: score.get(which) for which in SCORES},
        "test_loss": summary.get("test_loss"),
        "consensus_distance": summary.get("consensus_distance"),
        "rounds": summary.get("rounds"),
        "bytes_sent": summary.get("bytes_sent"),
        "bytes_of_busiest": (summary.get("busiest") or {}).get("bytes"),
        "seconds": summary.get("seconds"),
        "gap": forecast.get("spectral_gap") if forecast.get("period") == 1 else None,  # of one graph: see numerics.md
        "n_w": forecast.get("n_w"),
        "degree": forecast.get("degree_max"),
        "digest": summary.get("digest"),
        "error": outcome.error if outcome else "",
        "cell": place,
    }
    plain = (limit is None and sweep.grid.file.over == 1) or not summary
    return row if plain else {**row, **_cut(sweep, cell, limit)}


def _plain(values: Values) -> dict[str, Any]:
    return {key: value if isinstance(value, int | float | str | None) else format_value(value) for key, value in values}


def _equal(sweep: SweepFolder, cells: Sequence[tuple[SweepCell, CellOutcome | None]]) -> dict[int, float]:
    """Return per seed the minimum over cells of bytes or seconds; {} if rounds are equal."""
    which = {"bytes": "bytes_sent", "seconds": "seconds"}.get(sweep.grid.file.equal)
    if which is None:
        return {}
    found: dict[int, float] = {}
    for cell, outcome in cells:
        summary: Mapping[str, Any] = (outcome.summary if outcome else None) or {}
        if summary.get("status"):
            had = float(summary[which])
            found[cell.seed] = min(had, found.get(cell.seed, had))
    return found


def _cut(sweep: SweepFolder, cell: SweepCell, limit: float | None) -> dict[str, Any]:
    which = "bytes_sent" if sweep.grid.file.equal == "bytes" else "seconds"
    rows = [row for row in read_rows(sweep.place(cell) / run_format.ROWS) if isinstance(row, NetworkRow)]
    there = [row for row in rows if row.measured and (limit is None or getattr(row, which) <= limit)]
    if not there:
        return dict.fromkeys((*SCORES, *UNSCORED))
    last, taken = there[-1], there[-sweep.grid.file.over :]
    scores = {score: _mean_of([getattr(row, f"score_{score}") for row in taken]) for score in SCORES}
    losses = {name: _mean_of([getattr(row, name) for row in taken]) for name in UNSCORED}
    return {**scores, **losses, "rounds": last.round, "bytes_sent": last.bytes_sent, "seconds": last.seconds}


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


RESAMPLED = 10_000
"""Number of bootstrap samples."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of the differences over the common seeds; intervals of two seeds or more."""

    mean: float
    pairs: int
    student: Interval | None
    bootstrap: Interval | None
    p: float | None = None
    """P-value of the two-sided paired t test."""

    @property
    def sure(self) -> bool:
        """Return whether 0 is outside the wider, Student's interval."""
        return self.student is not None and not self.student[0] <= 0.0 <= self.student[1]


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> PairedDifference | None:
    """Return `ours` less `theirs`, by their common seeds; None without any."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    differences = np.array([ours[seed] - theirs[seed] for seed in common])
    mean = float(differences.mean())
    student = student_interval(differences.tolist())
    if student is None:
        return PairedDifference(mean, len(common), None, None)
    drawn = seeds.stream(0, "bootstrap", len(common)).integers(0, len(common), (RESAMPLED, len(common)))
    middle = _middle(differences[drawn].mean(axis=1))
    return PairedDifference(mean, len(common), student, middle, student_p(differences.tolist()))


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rho; 1 for the same order, -1 for the reverse order."""

    rho: float
    points: int
    bootstrap: Interval | None


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> RankCorrelation | None:
    """Return Spearman's rho of two rows of numbers; None for fewer than three points, or if one is constant."""
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    drawn = seeds.stream(0, "bootstrap", len(x)).integers(0, len(x), (RESAMPLED // 10, len(x)))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.array([_rho(a[rows], b[rows]) for rows in drawn])
    found = found[np.isfinite(found)]
    return RankCorrelation(_rho(a, b), len(x), _middle(found) if len(found) else None)


def _rho(x: np.ndarray, y: np.ndarray) -> float:
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


def _middle(drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
