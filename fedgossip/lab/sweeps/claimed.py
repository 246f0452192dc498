"""Runs one cell in whichever of several processes claims it: shared by workers of a sweep and of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedgossip.experiment import Experiment
from fedgossip.lab.sweeps.cells import FAILED, INTERRUPTED, CellOutcome, run_cell, write_failure
from fedgossip.lab.sweeps.claims import ClaimLostError, claim


def run_claimed(
    claims: Path,
    name: str,
    place: Path,
    engine: str,
    experiment: Callable[[], Experiment],
    outcome: Callable[[], CellOutcome | None],
    *,
    report: bool = False,
) -> CellOutcome | None:
    """Run the cell `name` in the run directory `place`; return its outcome, None where another process has it.

    `outcome`: returns an existing outcome.  Raises KeyboardInterrupt where it was stopped; it can be resumed.
    """
    held = claim(claims, name)
    if held is None:
        return None
    try:
        if (found := outcome()) is not None:  # another process finished it a moment ago
            return found
        try:
            found = run_cell(experiment(), place, engine, report=report, watch=lambda _: held.check())
        except ClaimLostError:
            return None
        except Exception as error:  # a fault of ours, or of a function of the user's, costs this cell alone
            found = CellOutcome.of(FAILED, error)
        if found.status == INTERRUPTED:
            raise KeyboardInterrupt
        if found.summary is None:
            write_failure(place, found)
        return found
    finally:
        held.release()
