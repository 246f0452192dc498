"""The learning rate of each paradigm, from the same five values: the one with the least final test loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedgossip.lab.compare.cells import CellGrid, run_cells
from fedgossip.lab.compare.measured import MeasuredCell, measured
from fedgossip.learning.settings import TrainSettings

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors of the file's train.lr."""


@dataclass(frozen=True)
class TunedRate:
    """The trials of a paradigm.  `losses`: the final test loss by learning rate; None for a failed run."""

    losses: Mapping[float, float | None]

    @property
    def chosen(self) -> float | None:
        """Return the rate of the least loss, the smaller on a tie; None where every run failed."""
        there = {rate: loss for rate, loss in self.losses.items() if loss is not None}
        return min(sorted(there), key=lambda rate: there[rate], default=None)


def rates_of(grid: CellGrid) -> list[float]:
    """Return the five values, ascending."""
    given = grid.content.get("train", {}).get("lr", TrainSettings().lr)
    return [float(given) * factor for factor in FACTORS]


def tuned(
    grid: CellGrid,
    out: Path,
    driver: str,
    tell: Callable[[float, MeasuredCell], None],
    *,
    backend: str = "",
    jobs: int = 1,
) -> dict[str, TunedRate]:
    """Run each paradigm with each rate, once, with most workers and the first seed; `tell` gets each cell.

    The runs have a folder for each rate in `out`; finished ones are not run again.
    `backend`, `jobs`: as `run_cells`.
    """
    losses: dict[str, dict[float, float | None]] = {name: {} for name in grid.paradigms}
    for rate in rates_of(grid):
        one = replace(
            grid, rates=dict.fromkeys(grid.paradigms, rate), workers=[max(grid.workers)], seeds=grid.seeds[:1]
        )
        for done in run_cells(one, out / f"lr-{rate:g}", driver, report=False, backend=backend, jobs=jobs):
            cell = measured(done, driver)
            tell(rate, cell)
            losses[done.cell.name][rate] = _loss(cell)
    return {name: TunedRate(found) for name, found in losses.items()}


def _loss(cell: MeasuredCell) -> float | None:
    found = cell.point.loss if cell.point and not cell.error else math.inf
    return found if math.isfinite(found) else None


def chosen_rates(found: Mapping[str, TunedRate]) -> dict[str, float]:
    """Return the chosen rate of each paradigm with one."""
    return {name: one.chosen for name, one in found.items() if one.chosen is not None}


def rows_of(found: Mapping[str, TunedRate]) -> Sequence[Mapping[str, object]]:
    """Return the search as plain data: for each paradigm the result of each rate, and the chosen one."""
    rows = []
    for name, one in found.items():
        losses = [{"lr": lr, "test_loss": loss} for lr, loss in one.losses.items()]
        rows.append({"paradigm": name, "losses": losses, "lr": one.chosen})
    return rows
