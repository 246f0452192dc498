"""A simulation goes on from an image of its middle."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedgossip import Run
from fedgossip.core.run_format import CHECKPOINT
from fedgossip.drivers import simulate
from fedgossip.drivers.sim_checkpoint import Pauses
from fedgossip.plans.compose import Plan


def _copied(to: Path, middle: int, events: int) -> type[Pauses]:
    """Return what copies the run directory, with an image in it, so many events after round `middle`."""

    class Once(Pauses):
        seen = 0

        def __call__(self) -> None:
            self.seen += max(self.simulation.record.reached) >= middle
            if self.seen == events + 1:
                self.write()
                assert self.folder is not None
                shutil.copytree(self.folder, to)

    return Once


def halves(plan: Plan, folder: Path, engine: str = "sim", events: int = 0) -> tuple[Run, Path]:
    """Return the undisturbed run, and a copy of its folder as it was so many events after half of its rounds."""
    left = folder / "left"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(simulate, "Pauses", _copied(left, plan.experiment.rounds // 2, events))
        return simulate.simulate_plan(plan, engine=engine, out=folder / "run"), left


def from_the_middle(plan: Plan, folder: Path, engine: str = "sim", events: int = 0) -> tuple[Run, Run]:
    """Return the undisturbed run, and the same run from an image of its middle, which is there."""
    whole, left = halves(plan, folder, engine, events)
    assert (left / CHECKPOINT).exists(), "without an image the run would begin again, and show nothing"
    return whole, simulate.simulate_plan(plan, engine=engine, out=left, resume=True)
