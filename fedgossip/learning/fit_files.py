"""fit.json, whatever was fitted: found in its folder, and read."""

from __future__ import annotations

from pathlib import Path

from fedgossip.errors import ConfigError
from fedgossip.learning.glm_fit import FIT, FORMAT, GlmFit
from fedgossip.learning.told_files import read_told

Fit = GlmFit
ADVICE = "The sites make it together: fedgossip fit EXPERIMENT."


def fit_in(path: Path) -> Fit | None:
    """Return the fit in a folder; None where there is none.  Raises ConfigError for one that is not at its end."""
    if not (path / FIT).is_file():
        return None
    fit = read_told(GlmFit, path / FIT, FORMAT, "fit", ADVICE)
    if not fit.converged:
        text = f"{path / FIT}: not at the end after {fit.design.steps} steps, so its estimates say nothing"
        raise ConfigError(text, "Fit again, as the command has advised.")
    return fit
