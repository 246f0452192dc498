"""Estimates as statisticians print them: for the commands that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedgossip.cli.text import columns, short

if TYPE_CHECKING:
    from fedgossip.sites.fits.glm.glm_result import Coefficient


def table_of(coefficients: Sequence[Coefficient], statistic: str, ratio: str | None) -> list[str]:
    """Return a line for each; `statistic` is what estimate / error is called, `ratio` what exp(estimate) is."""
    head = ["column", "estimate", "std. error", statistic, "p", "95 % from", "to"]
    head += [ratio, "from", "to"] if ratio else []
    return [columns([head, *(_line(one, ratio=bool(ratio)) for one in coefficients)])]


def _line(one: Coefficient, *, ratio: bool) -> list[str]:
    numbers = [one.estimate, one.error, one.statistic]
    row = [one.name, *map(short, numbers), chance(one.p), short(one.low), short(one.high)]
    if not ratio:
        return row
    return [*row, *(["", "", ""] if one.name.startswith("(") else map(short, one.ratio))]


def remarks(against: Sequence[str], constant: Sequence[str], silent: Sequence[str]) -> list[str]:
    """Return remarks on the columns."""
    lines = []
    if against:
        lines.append(f"compared with: {', '.join(against)}")
    if constant:
        lines.append(f"left out, for they have one value at every site: {', '.join(constant)}")
    if silent:
        text = "depend on each other, so their errors are not known and their estimates are one choice of many"
        lines.append(f"{text}: {', '.join(silent)}")
    return lines


def chi_squared(statistic: float, freedom: int, p: float) -> str:
    degrees = "1 degree" if freedom == 1 else f"{freedom} degrees"
    return f"chi squared {statistic:.4g} of {degrees} of freedom, p {chance(p)}"


def chance(p: float | None) -> str:
    return "-" if p is None else "<1e-16" if p < 1e-16 else f"{p:.2g}"
