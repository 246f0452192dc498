"""fit.json, whatever was fitted: found in its folder, and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedgossip.errors import ConfigError
from fedgossip.learning.cox_fit import CoxFit
from fedgossip.learning.glm_fit import FIT, FORMAT, GlmFit
from fedgossip.learning.survival_fit import CURVES
from fedgossip.learning.told_files import read_told

Fit = GlmFit | CoxFit
ADVICE = "The sites make it together: fedgossip fit EXPERIMENT."


def fit_in(path: Path) -> Fit | None:
    """Return the fit in a folder; None where there is none.  Raises ConfigError for one that is not at its end."""
    if not (path / FIT).is_file() and (path / CURVES).is_file():
        text = f"{path}: survival curves, which are of groups and say nothing of one record"
        raise ConfigError(text, f'Read {CURVES}; model.source = "cox?..." fits hazards, which do.')
    if not (path / FIT).is_file():
        return None
    kinds: Any = Fit  # a type to msgspec, and none to type checkers
    fit: Fit = read_told(kinds, path / FIT, FORMAT, "fit", ADVICE)
    if not fit.converged:
        text = f"{path / FIT}: not at the end after {fit.design.steps} steps, so its estimates say nothing"
        raise ConfigError(text, "Fit again, as the command has advised.")
    return fit
