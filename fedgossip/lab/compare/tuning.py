"""The learning rate of each paradigm, from the same five values: the one whose run ends with the least test loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedgossip.lab.compare.cells import CellGrid, run_cells
from fedgossip.lab.compare.measured import MeasuredCell, measured
from fedgossip.learning.settings import TrainSettings

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""By which the file's train.lr is multiplied."""


@dataclass(frozen=True)
class TunedRate:
    """What was tried for a paradigm.  `losses`: the test loss at the end by learning rate; None where it failed."""

    losses: Mapping[float, float | None]

    @property
    def chosen(self) -> float | None:
        """The rate of the least loss, the smaller of two; None where every run failed."""
        there = {rate: loss for rate, loss in self.losses.items() if loss is not None}
        return min(sorted(there), key=lambda rate: there[rate], default=None)


def rates_of(grid: CellGrid) -> list[float]:
    """The five values, ascending."""
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
    """Run each paradigm with each rate, once, with most workers and the first seed; `tell` is given each cell.

    The runs stand in a folder for each rate in `out`; those that are there are not run again.
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
    """The rate of each paradigm that has one."""
    return {name: one.chosen for name, one in found.items() if one.chosen is not None}


def rows_of(found: Mapping[str, TunedRate]) -> Sequence[Mapping[str, object]]:
    """The search as plain data: for each paradigm what each rate gave, and which was chosen."""
    rows = []
    for name, one in found.items():
        losses = [{"lr": lr, "test_loss": loss} for lr, loss in one.losses.items()]
        rows.append({"paradigm": name, "losses": losses, "lr": one.chosen})
    return rows
