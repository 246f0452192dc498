"""Published numbers, as files (results/ID.toml), and their comparison with numbers computed here.

title = "..."
source = "authors, title, place and year; which numbers were verified elsewhere, and how"
claim = "the sentence that the checks support"
basis = "derived"                       # of each expected number: "published", "derived" from the paper's formula, or
                                        # "computed" apart (the default); a check may have its own
[[check]]
what = "the 8-node graph, Metropolis weights"
measure = "slem"                        # a function of one of the modules of measures here
of = { graph = "boyd-8" }               # its arguments
expect = 0.81255454
within = 5e-9                           # or share = 0.02, of the expected; or least, most in place of expect
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.lab.repro import graph_measures, hospital_measures, run_measures

FOLDER = Path(__file__).parent / "results"

MEASURES: Mapping[str, Callable[..., float]] = {
    name: function
    for module in (
        run_measures,
        graph_measures,
        hospital_measures,
        graph_measures,
        run_measures,
        run_measures,
        run_measures,
    )
    for name, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
}
"""Measures by function name."""


Basis = Literal["published", "derived", "computed"]

BASES: Mapping[Basis, str] = {
    "published": "published",
    "derived": "by the paper's formula",
    "computed": "computed apart",
}
"""The word for each basis."""


class PublishedCheck(msgspec.Struct, forbid_unknown_fields=True):
    """One number, or one side of a claim."""

    what: str
    measure: str
    of: dict[str, Any] = msgspec.field(default_factory=dict)
    expect: float | None = None
    within: float = 0.0
    share: float = 0.0
    least: float = -math.inf
    most: float = math.inf
    slow: bool = False
    """Skipped with --fast."""
    basis: Basis | None = None
    """Overrides the result's basis."""
    full: bool = False
    """Computed only with --full: it takes minutes, and needs examples that fedgossip does not include."""


class PublishedResult(msgspec.Struct, forbid_unknown_fields=True):
    """The contents of a result file."""

    title: str
    source: str
    claim: str
    check: list[PublishedCheck]
    basis: Basis = "computed"
    """Origin of the expected numbers."""


@dataclass(frozen=True)
class CheckedValue:
    """The result of a check."""

    check: PublishedCheck
    value: float
    seconds: float
    """Processor seconds."""
    basis: Basis

    @property
    def holds(self) -> bool:
        """Return whether the value equals the expected one, within the check's tolerance."""
        one = self.check
        if one.expect is None:
            return one.least <= self.value <= one.most
        return abs(self.value - one.expect) <= one.within + one.share * abs(one.expect)

    @property
    def expected(self) -> str:
        """Return the expected value in words."""
        one = self.check
        if one.expect is None:
            low = f"at least {one.least:g}" if one.least > -math.inf else ""
            high = f"at most {one.most:g}" if one.most < math.inf else ""
            return ", ".join(end for end in (low, high) if end)
        near = f" within {one.within:g}" if one.within else f" within {one.share:.1%}" if one.share else ""
        return f"{one.expect:.9g}{near}"


def list_ids() -> list[str]:
    """Return the ids of all results, in order."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def result_of(name: str) -> PublishedResult:
    """Return the result with this id.  Raises ConfigError for an unknown one."""
    if name not in list_ids():
        raise ConfigError(f"no published result is called {name!r}", nearest(name, list_ids()))
    return msgspec.convert(from_toml((FOLDER / f"{name}.toml").read_text("utf-8")), PublishedResult)


def chosen(result: PublishedResult, *, fast: bool = False, full: bool = False) -> list[PublishedCheck]:
    """Return the checks to compute: without the slow ones, or with those that take minutes."""
    return [one for one in result.check if not (fast and one.slow) and (full or not one.full)]


def checked(result: PublishedResult, *, fast: bool = False, full: bool = False) -> Iterator[CheckedValue]:
    """Compute each number of a result again, and yield it when done."""
    for one in chosen(result, fast=fast, full=full):
        began = _processor_seconds()
        value = float(MEASURES[one.measure](**one.of))
        yield CheckedValue(one, value, _processor_seconds() - began, one.basis or result.basis)


def _processor_seconds() -> float:
    return sum(os.times()[:4])
