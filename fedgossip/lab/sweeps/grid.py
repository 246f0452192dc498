"""A sweep file: an experiment, keys with lists of values, seeds; and the cells that follow from it.

name = "graphs"
base = "e.toml"                          # or a table [base] with the experiment itself
seeds = 5                                # the same ones in every cell: data, first model and batches follow
engine = "stacked"
[grid]
"topology.graph" = ["ring", "torus"]
"algorithm.name" = ["dsgd", "gradient-tracking"]
[tune]                                   # on data.validation, with seeds of its own (`folder.Tuning`)
"train.lr" = { from = 0.01, to = 1.0, factor = 2, widen = 3 }
[skip]
"algorithm.name=d2" = ["topology.graph=el-oracle:4"]
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.limits import Within, limits_of
from fedgossip.experiment import Experiment, checked, ignores
from fedgossip.experiment.reading import anchor_paths, content_of
from fedgossip.lab.sweeps.cells import ENGINES, cell_hash

MOST_CELLS = 100_000
"""Maximum number of cells of a grid; each seed counts as a cell."""

EQUALS = ("rounds", "bytes", "seconds")

Values = tuple[tuple[str, Any], ...]
"""Keys and their values, in the order of the file."""


class SweepFile(msgspec.Struct, forbid_unknown_fields=True):
    """The contents of a sweep file."""

    base: str | dict[str, Any]
    """The experiment: the path of its file, from the folder of this one, or its content."""
    name: str = ""
    seeds: int | list[int] = 1
    """Number of seeds, from the base's seed on; or a list of them."""
    engine: str = "stacked"
    """stacked, sim or local."""
    equal: str = "rounds"
    """Equal resource of all cells of a seed at their comparison: rounds, bytes, or seconds (not stacked)."""
    over: Annotated[int, Within(1, 1_000_000)] = 1
    """Number of last evaluated rounds in a score's mean; use a graph's period."""
    reference: dict[str, Any] = msgspec.field(default_factory=dict)
    """The combination to which differences refer: some keys of the grid; by default, the first."""
    grid: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    tune: dict[str, Any] = msgspec.field(default_factory=dict)
    skip: dict[str, list[str]] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SweepCell:
    """One run of a sweep, by its values."""

    values: Values
    """Values of the keys of the grid."""
    tuned: Values
    """Values of the tuned keys: chosen, or tried."""
    seed: int
    trial: bool = False
    """Whether it is a trial of tuning, measured on the validation set."""

    @property
    def label(self) -> str:
        """Return all values that distinguish it from the others, as on a command line."""
        return " ".join(
            [name_values(self.values), *([name_values(self.tuned)] if self.tuned else []), f"seed={self.seed}"]
        ).strip()


@dataclass(frozen=True)
class SweepGrid:
    """A checked sweep.  Its cells follow from it, and from the results of trials (`tuning`)."""

    file: SweepFile
    content: Mapping[str, Any]
    """Content of the base, its paths absolute."""
    where: str
    _known: dict[str, tuple[Experiment, str]] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return self.file.name or Path(self.where).stem

    @cached_property
    def seeds(self) -> list[int]:
        """Return the seeds of every combination."""
        first, given = int(self.content.get("seed", 1)), self.file.seeds
        return list(given) if isinstance(given, list) else list(range(first, first + given))

    @cached_property
    def combinations(self) -> list[Values]:
        """Return the combinations of the grid without skipped ones; the last key varies first."""
        keys = list(self.file.grid)
        every = (tuple(zip(keys, values, strict=True)) for values in itertools.product(*self.file.grid.values()))
        skipped = [{left, right} for left, rights in self.file.skip.items() for right in rights]
        return [values for values in every if not any(one <= {assignment(*pair) for pair in values} for one in skipped)]

    def experiment(self, cell: SweepCell) -> Experiment:
        """Return the experiment of a cell.  Raises ConfigError."""
        return self._make_experiment(cell)[0]

    def hash(self, cell: SweepCell) -> str:
        """Return the name of its folder.  Raises ConfigError."""
        return self._make_experiment(cell)[1]

    def _make_experiment(self, cell: SweepCell) -> tuple[Experiment, str]:
        name = f"{cell.label} {cell.trial}"
        if name not in self._known:
            content = copy.deepcopy(dict(self.content))
            changes = [*cell.values, *cell.tuned, ("seed", cell.seed)]
            for key, value in [*changes, ("eval.on", "validation")] if cell.trial else changes:
                _put(content, key, copy.deepcopy(value), self.where)
            experiment = checked(content, self.where)
            self._known[name] = experiment, cell_hash(experiment, self.file.engine)
        return self._known[name]

    def to_toml(self) -> str:
        """Return the sweep as a self-contained file."""
        import tomli_w

        found = {key: value for key, value in msgspec.to_builtins(self.file).items() if value}
        return tomli_w.dumps({**found, "name": self.name, "base": dict(self.content)})


def name_values(values: Values) -> str:
    """Return the name of a combination."""
    return " ".join(assignment(key, value) for key, value in values)


def assignment(key: str, value: Any) -> str:
    """Return "algorithm.name=d2", as in [skip] and on the command line."""
    return f"{key}={format_value(value)}"


def format_value(value: Any) -> str:
    """Return a value in table form: words bare, tables without their outer braces."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={format_value(one)}" for key, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_sweep(
    source: Path | str | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    engine: str | None = None,
    seeds: int | None = None,
) -> SweepGrid:
    """Return the sweep of a file or mapping.  Raises ConfigError, naming the key.

    `overrides`: "section.key=value" for the base; `engine` and `seeds` replace the file's.
    """
    where, content = ("sweep", dict(source)) if isinstance(source, Mapping) else (str(source), _read(Path(source)))
    known = [one.encode_name for one in msgspec.structs.fields(SweepFile)]
    for key in content:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}", nearest(key, known))
    given = {"engine": engine, "seeds": seeds}
    try:
        file = msgspec.convert({**content, **{k: v for k, v in given.items() if v is not None}}, SweepFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {str(error).replace('`', '')}", "See docs/use/sweeps.md.") from None
    folder = Path(where).resolve().parent
    base: Any = file.base if isinstance(file.base, Mapping) else folder / file.base
    _, experiment = content_of(base, overrides)
    if isinstance(base, Mapping):
        anchor_paths(experiment, folder)
    for key in PATHS & file.grid.keys():
        file.grid[key] = [_anchored(key, value, folder) for value in file.grid[key]]
    grid = SweepGrid(file, experiment, where)
    _check(grid)
    return grid


PATHS = {"topology.graph", "data.source", "data.test", "data.common"}
"""Keys of a grid with values that may be files: a worker reads the sweep from another folder."""


def _anchored(key: str, value: Any, folder: Path) -> Any:
    section, _, last = key.partition(".")
    held = {section: {last: value}}
    anchor_paths(held, folder)
    return held[section][last]


def _check(grid: SweepGrid) -> None:
    file, where = grid.file, grid.where
    _check_engine(file, where)
    for key, limit in limits_of(SweepFile):
        if not limit.allows(value := getattr(file, key)):
            raise ConfigError(f"{where}: {key} = {value!r} {limit.refusal}", "See docs/use/sweeps.md.")
    seeds = grid.seeds
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise ConfigError(f"{where}: seeds = {file.seeds!r}", "Give how many, 1 or more, or a list of different ones.")
    for key, values in file.grid.items():
        if not values:
            raise ConfigError(f"{where}: grid.{key} has no values", "List them, or leave the key out.")
        if key in ("seed", "eval.on", "data.validation") or key in file.tune:
            other = "tune" if key in file.tune else "seeds" if key == "seed" else "the base"
            raise ConfigError(f"{where}: {key} in the grid", f"It belongs to {other}.")
    _check_named(grid)
    total = len(seeds)
    for values in file.grid.values():
        total *= len(values)
    if total > MOST_CELLS:
        raise ConfigError(f"{where}: {total:,} cells, and {MOST_CELLS:,} are the most", "Take fewer values, or seeds.")
    if not grid.combinations:
        raise ConfigError(f"{where}: [skip] leaves nothing of the grid", "Take a line of it out.")


def _check_engine(file: SweepFile, where: str) -> None:
    for key, value, known in (("engine", file.engine, ENGINES), ("equal", file.equal, EQUALS)):
        if value not in known:
            raise ConfigError(f"{where}: {key} = {value!r} is not known", nearest(value, known))
    if file.equal == "seconds" and file.engine == "stacked":
        raise ConfigError(f'{where}: equal = "seconds", and arrays have no time', 'Set engine = "sim".')
    for key in (*file.grid, *file.tune):
        if ignores(file.engine, key):
            raise ConfigError(
                f'{where}: {key} is swept, and engine = "{file.engine}" ignores it', 'Set engine = "sim".'
            )


def _check_named(grid: SweepGrid) -> None:
    """Raise ConfigError for an unknown word of [skip] or reference."""
    there = {assignment(key, value) for key, values in grid.file.grid.items() for value in values}
    named = [*(assignment(key, value) for key, value in grid.file.reference.items())]
    for left, rights in grid.file.skip.items():
        named += [left, *rights]
    for one in named:
        if one not in there:
            key = one.partition("=")[0]
            what = f"{key} is no key of the grid" if key not in grid.file.grid else f"{one!r} is not in the grid"
            advice = nearest(one, there) if key in grid.file.grid else nearest(key, grid.file.grid or ["none"])
            raise ConfigError(f"{grid.where}: {what}", advice)


def _put(content: dict[str, Any], key: str, value: Any, where: str) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = content.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{where}: {key}: {section!r} is no section", "Write section.key.")
        content = inner
    content[last] = value


def _read(path: Path) -> dict[str, Any]:
    try:
        return from_toml(outside_files.read_text(path))
    except OSError as error:
        what = (error.strerror or "cannot be read").lower()
        raise ConfigError(f"{path}: {what}", "See docs/use/sweeps.md.") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {error}", "Keys with dots need quotes; sections are [name].") from None
