"""fit.json of any kind of model: located in its folder, and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedgossip.base.errors import ConfigError
from fedgossip.core.run_format import CURVES, FIT, FIT_OF_TREES, MODEL, TABLES
from fedgossip.data.agreed.sums_task import read_sums_file
from fedgossip.sites.fits import tree_result
from fedgossip.sites.fits.cox.cox_result import CoxFit
from fedgossip.sites.fits.families import family
from fedgossip.sites.fits.families.family import FamilyFit
from fedgossip.sites.fits.glm.glm_result import FORMAT, GlmFit
from fedgossip.sites.fits.survival.survival_curves import CurveFit
from fedgossip.sites.fits.tree_result import TreesFit

Fit = GlmFit | CoxFit
AnyFit = Fit | CurveFit | TreesFit | FamilyFit
FARTHEST = 1e30
"""Bound of estimates and their covariances: products of larger ones with a table's numbers overflow."""
ADVICE = "The sites make it together: fedgossip fit EXPERIMENT."


def fit_in(path: Path) -> Fit | None:
    """Return the fit in a folder; None without one.  Raises ConfigError for an unfinished one."""
    if not (path / FIT).is_file() and (path / CURVES).is_file():
        text = f"{path}: survival curves, which are of groups and predict nothing for one record"
        raise ConfigError(text, f'Read {CURVES}; model.source = "cox?..." fits hazards, which do.')
    if not (path / FIT).is_file() and (path / TABLES).is_file() and not (path / MODEL).is_dir():
        text = f"{path}: tables of a statistic, which predict nothing for one record"
        raise ConfigError(text, f"Read {TABLES}; glm, cox, trees and the families with a folder {MODEL}/ predict.")
    if not (path / FIT).is_file():
        return None
    kinds: Any = Fit  # a type to msgspec, unknown to type checkers
    fit: Fit = read_sums_file(kinds, path / FIT, FORMAT, "fit", ADVICE)
    if not fit.converged:
        text = f"{path / FIT}: not at the end after {fit.design.steps} steps, so its estimates mean nothing"
        raise ConfigError(text, "Fit again, as the command has advised.")
    if isinstance(fit, GlmFit) and fit.design.family == "logistic" and len(fit.design.classes) != 2:
        raise ConfigError(f"{path / FIT}: a logistic model without two classes", ADVICE)
    numbers = [one.estimate for one in fit.coefficients] + [one or 0.0 for row in fit.covariance for one in row]
    if max(map(abs, numbers), default=0.0) > FARTHEST:
        raise ConfigError(f"{path / FIT}: an estimate, or its variance, beyond {FARTHEST:g}", ADVICE)
    return fit


def read_fit(path: Path) -> tuple[str, AnyFit] | None:
    """Return the file name and the contents of a fit of any kind; None without one.  Raises as `fit_in`."""
    if (path / CURVES).is_file():
        return CURVES, read_sums_file(CurveFit, path / CURVES, FORMAT, "survival curves", ADVICE)
    if (path / FIT_OF_TREES).is_file():
        return FIT_OF_TREES, read_sums_file(TreesFit, path / FIT_OF_TREES, tree_result.FORMAT, "trees", ADVICE)
    if (path / TABLES).is_file():
        return TABLES, read_sums_file(FamilyFit, path / TABLES, family.FORMAT, "tables", ADVICE)
    fit = fit_in(path)
    return None if fit is None else (FIT, fit)
