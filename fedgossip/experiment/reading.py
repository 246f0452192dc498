"""Reading an experiment file: from TOML to the typed settings of one kind of run.

Every key has a default, except the graph or the number of participants.  An unknown key is an error that names the
nearest known one.

RUN_KINDS has one line per kind of run, keyed by the section that only this kind has: its experiment, its checks, and
the name of its plan.  A name, because plans are above this room (`plans/compose` imports them).
"""

from __future__ import annotations

import math
import os
import re
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import parse_qsl, quote

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.untrusted_text import quoted
from fedgossip.core import run_format
from fedgossip.data.columns.declarations import file_declaration
from fedgossip.data.columns.formula import write_out
from fedgossip.data.columns.table_schema import FEDERATED
from fedgossip.data.data import SOURCES
from fedgossip.data.table_files import OF_TABLES, QUERY, SQL, database_in
from fedgossip.experiment.checks import check, check_federated, check_gossip, check_parallel
from fedgossip.experiment.run_sections import COMPARE, CompareSection, TierSection
from fedgossip.experiment.sections import (
    ENDLESS,
    ENDLESS_WORD,
    DataSection,
    Experiment,
    FederatedExperiment,
    GossipExperiment,
    ParallelExperiment,
)
from fedgossip.faults import KINDS
from fedgossip.learning.settings import HOGWILD


def load_experiment(
    source: Path | str | Mapping[str, Any], overrides: Sequence[str] = (), *, size: int | None = None, **top: Any
) -> Experiment:
    """Return the experiment of a file, or of a mapping of the same shape.

    `overrides` are "section.key=value" texts (values as in TOML; a bare word is a string).  `size` replaces the number
    of participants in any kind of run; `top` replaces top-level keys.  Relative paths inside a file are relative to
    that file.  Raises ConfigError, naming the key.
    """
    where, content = content_of(source, overrides)
    key_of_size = kind_in(content, where).size if size is not None else ""
    check_agree(overrides, {key_of_size: size, **top})
    if size is not None:
        _override(content, f"{key_of_size}={size}")
    content.update({key: _plain(value) for key, value in top.items() if value is not None})
    return checked(content, where)


def check_agree(overrides: Sequence[str], options: Mapping[str, object]) -> None:
    """Raise ConfigError if an override contradicts an option; `options`: their values by key, None if not given."""
    for text in overrides:
        key, _, value = text.partition("=")
        given = options.get(key.strip())
        if given is not None and str(given) != value.strip():
            raise ConfigError(f"--set {text}, and {given} by another option", "Leave one of them out.")


def content_of(source: Path | str | Mapping[str, Any], overrides: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return the file's name for errors, and its content with absolute paths, as `load_experiment` reads it."""
    if isinstance(source, Mapping):
        where, content = "experiment", _copied(source)
    elif not isinstance(cast(object, source), str | os.PathLike):
        text = f"an experiment is no {type(source).__name__}"
        raise ConfigError(text, "Give the path of a file, a mapping of the same shape, or an Experiment.")
    else:
        where, content = str(source), _read(Path(source))
    for override in overrides:
        _override(content, override)
    if "model" in content:
        write_out(content, where)
    _declare_files(content, where)
    if not isinstance(source, Mapping):
        anchor_paths(content, Path(source).resolve().parent)
    return where, content


def faults_in(path: Path) -> list[Any]:
    """Return the [[faults]] blocks of a fault script, a file of nothing else.  Raises ConfigError."""
    content = _read(path)
    if set(content) != {"faults"}:
        raise ConfigError(f"{path}: no fault script", "It holds [[faults]] blocks, and nothing else.")
    return cast("list[Any]", content["faults"])


def file_kept_in(run: Path) -> Path:
    """Return the path of a run directory's experiment file.  Raises ConfigError if it cannot be read, or is a link that
    leads out of the directory.
    """
    path = run / run_format.EXPERIMENT
    try:
        return outside_files.check_file(path, FILE_MAX)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "Is this the folder of a run?  Copy it again.") from None


def checked(content: dict[str, Any], where: str) -> Experiment:
    """Return `content` as an Experiment.  Raises ConfigError for the first key that is unknown or wrong."""
    check_keys(content, where)
    kind = kind_in(content, where)
    content = _raced(content)
    endless = content.get("rounds") == ENDLESS_WORD
    try:
        experiment = msgspec.convert({**content, "rounds": ENDLESS} if endless else content, kind.experiment)
    except ConfigError as error:  # of the [train] section, which checks itself
        raise ConfigError(f"{where}: [train]: {error}", error.advice) from None
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        place, section = place.rstrip("`"), kind.experiment.kind
        if "missing required field" in text and place == section:
            advice = f"Give at least:  [{section}]  {_find_clients(content[section]) or kind.least}"
            raise ConfigError(f"{where}: no {text.split('`')[1]}", advice) from None
        if advice := _as_a_table(content, place):
            raise ConfigError(f"{where}: {place} is a table, not one word", advice) from None
        advice = _describe_type(text, place)
        raise ConfigError(f"{where}: {place or 'the file'}: {text[0].lower()}{text[1:]}", advice) from None
    if endless and not experiment.endless:
        advice = 'Give a number, or task.kind = "loop" with a [topology] or a [coordinator].'
        raise ConfigError(f'{where}: rounds = "endless": only loops of your own end by themselves', advice)
    kind.check(experiment, where)
    check(experiment, where)
    _check_study(experiment, kind.size, where)
    return experiment


def _find_clients(section: Mapping[str, object]) -> str:
    """Return the missing number of clients, which valid tiers imply; "" without tiers."""
    sizes = [one.clients or 0 for one in msgspec.convert(section.get("tiers", []), list[TierSection])]
    named = "clients = all in the groups of the first of the tiers" if sizes else ""
    return f"clients = {math.prod(sizes)}" if all(sizes) and sizes else named


def _check_study(experiment: Experiment, size: str, where: str) -> None:
    section, key = size.split(".")
    named, count = experiment.study.sites, getattr(getattr(experiment, section), key)
    if len(set(named)) != len(named):
        raise ConfigError(f"{where}: study.sites has a name twice", "Give each site a name of its own.")
    if named and count is not None and len(named) != count:
        raise ConfigError(f"{where}: study.sites has {len(named)} names, and {size} = {count}", "Name all, or none.")


def _raced(content: dict[str, Any]) -> dict[str, Any]:
    """Return `content`; for hogwild, with [train] set so that the workers are one participant's processes."""
    parallel, train = content.get("parallel"), content.get("train", {})
    if not (isinstance(parallel, Mapping) and parallel.get("method") == HOGWILD and isinstance(train, Mapping)):
        return content
    workers = parallel.get("workers")
    overrides = {"processes": workers, "parallel": HOGWILD} if isinstance(workers, int) else {}
    return {**content, "train": {**overrides, **train}}


AGREED_FILE = DataSection().agreed

_OF_A_KIND = {
    "dirichlet": "alpha = 0.3",
    "shard": "shards_per_peer = 2",
    "pathological": "classes_per_peer = 2",
    "size-skewed": "exponent = 1.5",
}
"""Examples of the options of each kind of partition."""


def _as_a_table(content: Mapping[str, Any], place: str) -> str:
    value: Any = content
    for part in place.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if not isinstance(value, str):
        return ""
    if place == "data.partition":
        more = f", {_OF_A_KIND[value]}" if value in _OF_A_KIND else ""
        return f'Write data.partition = {{ kind = "{value}"{more} }}'
    first = {"topology": "graph", "task": "kind", "algorithm": "name", "data": "source", "model": "source"}
    return f'Write {place} = {{ {first[place]} = "{value}" }}' if place in first else ""


_TYPES = {
    "int": "Write a whole number, without quotes.",
    "float": "Write a number, without quotes.",
    "str": 'Write text in quotes, "like this".',
    "bool": "Write true or false, without quotes.",
    "array": "Write a list, such as [1, 2].",
    "object": "Write a table: { key = value }, or the keys in a section of that name.",
}


def _describe_type(text: str, place: str) -> str:
    """Return the correct form of a value of the expected type, or the key's limits."""
    expected = re.match(r"Expected `(\w+).*`, got ", text)
    known = _TYPES.get(expected[1], "") if expected else ""
    key = re.sub(r"\[[^]]*\]", "", place)
    return known or f"fedgossip explain {key or 'rounds'}  lists the allowed values."


FILE_MAX = 16 << 20
"""Maximum number of bytes of an experiment file: reading a device may never end."""


def _read(path: Path) -> dict[str, Any]:
    try:
        # utf-8-sig: editors on Windows write a byte order mark
        text = outside_files.read_bytes(outside_files.resolve(path), FILE_MAX).decode("utf-8-sig")
        return from_toml(text)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise ConfigError(f"{path}: {reason}", _instead(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}", "A file of TOML is text in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(path, text, str(error)) from None


def _instead(path: Path) -> str:
    """Return which experiment may be meant by a path where none can be read."""
    beside = [one.name for one in (path if path.is_dir() else path.parent).glob("*.toml")]
    return nearest(path.name, beside) if 0 < len(beside) < 20 else "fedgossip init digits  makes one to start from."


def _not_toml(path: Path, content: str, text: str) -> ConfigError:
    """Return the error of invalid TOML; a duplicate is named."""
    if path.suffix == ".py":
        advice = (
            f"fedgossip launch -n 2 {quoted(path)}  starts it; host and join have --script, with an experiment file."
        )
        return ConfigError(f"{path}: a script, no experiment file", advice)
    line = re.search(r"at line (\d+)", text)
    if table := re.match(r"Cannot declare \((.+)\) twice", text):
        name = ".".join(re.findall(r"'([^']*)'", table[1]))
        what = f"the table {name!r} is there twice" + (f", in line {line[1]} again" if line else "")
        advice = f"Write all its keys in one place: under one [{name}], or as {name}.key = ..."
        return ConfigError(f"{path}: {what}", advice)
    if text.startswith("Cannot overwrite a value") and line:
        written = content.splitlines()[int(line[1]) - 1].partition("=")[0].strip()
        return ConfigError(f"{path}: {written!r} is given twice, in line {line[1]} again", "Take one of the two out.")
    return ConfigError(
        f"{path}: not TOML: {text}", "Strings need quotes; sections are [name]; whole numbers have at most 64 bits."
    )


def _override(content: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: no '='", "Write --set section.key=value, for example --set train.lr=0.05")
    try:
        parsed = from_toml(f"v = {value.strip()}")["v"]
    except tomllib.TOMLDecodeError as error:
        if value.strip().lstrip("+-").isdecimal():
            raise ConfigError(f"--set {text}: {error}", "Use a smaller number.") from None
        parsed = value.strip()
    *sections, last = key.strip().split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise ConfigError(f"--set {text}: {section!r} is no section", "Write --set section.key=value.")
    content[last] = parsed


def _list_keys() -> Mapping[str, Any]:
    hints = [keys_of(kind.experiment) for kind in RUN_KINDS.values()]
    return {key: held for one in hints for key, held in one.items()} | {COMPARE: CompareSection}


@cache
def keys_of(section: type) -> Mapping[str, Any]:
    """Return the type of each key of a section, in the order of their declaration, with annotations."""
    hints = typing.get_type_hints(section, include_extras=True)
    return {key: held for key, held in hints.items() if typing.get_origin(held) is not ClassVar}


def _unknown(content: Mapping[str, Any], known: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, list[str]]]:
    for key, value in content.items():
        if key not in known:
            yield path, key, list(known)
        elif isinstance(value, Mapping) and (section := section_in(known[key])):
            yield from _unknown(value, keys_of(section), f"{path}{key}.")
        elif key == "faults" and isinstance(value, Sequence):
            for number, entry in enumerate(value):
                yield from _unknown_of_fault(entry, f"faults[{number}]")


def check_keys(content: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for the first key that exists in no kind of run."""
    for path, key, known in _unknown(content, _list_keys(), ""):
        raise ConfigError(f"{where}: unknown key {path + key!r}", _near_key(path, key, known))


def _near_key(path: str, key: str, known: Sequence[str]) -> str:
    """Return the nearest known key; for a top-level key, the sections that have a key of this name."""
    having = [
        f"{section}.{key}"
        for section, kind in sorted(_list_keys().items())
        if (found := section_in(kind)) and key in keys_of(found)
    ]
    return f"Did you mean {' or '.join(having)}?" if having and not path else nearest(key, known)


def section_in(kind: Any) -> type | None:
    """Return the section type that a field of this type holds; None if it holds a value or a list."""
    types = [one for one in (kind, *typing.get_args(kind)) if isinstance(one, type)]
    listed = typing.get_origin(kind) in (list, tuple)
    found = (one for one in types if not listed and (issubclass(one, msgspec.Struct) or is_dataclass(one)))
    return next(found, None)


def _unknown_of_fault(entry: object, where: str) -> Iterator[tuple[str, str, list[str]]]:
    """Raise ConfigError for an unknown kind; yield its unknown keys."""
    if not isinstance(entry, Mapping):
        return  # msgspec refuses its type later
    kind = entry.get("kind")
    if kind not in KINDS:
        what = f"kind = {kind!r} is not known" if "kind" in entry else "no kind"
        raise ConfigError(f"{where}: {what}", nearest(str(kind), KINDS))
    known = [*KINDS[kind].__struct_fields__, "kind"]
    yield from ((f"{where} ({kind}).", key, known) for key in entry if key not in known)


def anchor_paths(content: dict[str, Any], base: Path) -> None:
    """Make the paths of the graph and of the data absolute, so that the resolved experiment runs from anywhere."""
    topology, data, coordinator = (content.get(key) for key in ("topology", "data", "coordinator"))
    available = str(coordinator.get("available", "")) if isinstance(coordinator, dict) else ""
    if isinstance(coordinator, dict) and available.startswith("trace:"):
        name, mark, query = available.removeprefix("trace:").partition("?")
        coordinator["available"] = f"trace:{(base / Path(name).expanduser()).resolve()}{mark}{query}"
    if isinstance(topology, dict) and isinstance(graph := topology.get("graph"), str) and _is_path(graph, base):
        topology["graph"] = str((base / graph).resolve())
    if isinstance(data, dict) and data.get("scale") == FEDERATED:
        data["agreed"] = str((base / Path(str(data.get("agreed", AGREED_FILE))).expanduser()).resolve())
    for key in ("source", "test", "common"):
        if not (isinstance(data, dict) and isinstance(source := data.get(key), str)):
            continue
        kind, colon, rest = source.partition(":")
        if colon and kind in SOURCES and SOURCES[kind].place:
            name, mark, query = rest.partition("?")
            path, server = database_in(name, {}) if kind == SQL else (name, "")
            place = server or (base / Path(path).expanduser()).resolve()
            data[key] = f"{kind}:{place}{mark}{_anchored_query(query, base)}"


def _anchored_query(options: str, base: Path) -> str:
    """Return the options of a source with the path of its query file made absolute."""
    given = parse_qsl(options, keep_blank_values=True)
    if QUERY not in dict(given):
        return options
    paths = [(key, str((base / Path(value).expanduser()).resolve()) if key == QUERY else value) for key, value in given]
    return "&".join(f"{key}={quote(value, safe='/{}, ')}" for key, value in paths)


def _declare_files(content: dict[str, Any], where: str) -> None:
    """Add the format in [data.file] to the options of the tables in data.source and data.test."""
    data = content.get("data")
    declared = data.get("file") if isinstance(data, dict) else None
    if not (isinstance(data, dict) and isinstance(declared, dict) and declared):
        return
    file_declaration(declared, f"{where}: data.file")
    tables = [key for key in ("source", "test") if str(data.get(key, "")).partition(":")[0] in OF_TABLES]
    if not tables:
        raise ConfigError(f"{where}: data.file without a table", f"Tables are {', '.join(OF_TABLES)}: csv:PATH.")
    for key in tables:
        path, mark, query = str(data[key]).partition("?")
        given = {name for name, _ in parse_qsl(query, keep_blank_values=True)}
        more = [f"{name}={quote(value)}" for name, value in declared.items() if name not in given]
        data[key] = path + "?" * bool(mark or more) + "&".join([*([query] if query else []), *more])


def _is_path(graph: str, base: Path) -> bool:
    return os.sep in graph or graph.endswith((".toml", ".txt", ".edges")) or (base / graph).is_file()


def _copied(source: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _plain(v) for k, v in source.items()}


def _plain(value: Any) -> Any:
    """Return a value of Python: of a number of another library (numpy's, a tensor) its own, of a path its text."""
    if isinstance(value, Mapping):
        return _copied(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    return value


@dataclass(frozen=True)
class RunKind:
    """The kind of run that a section of an experiment file selects."""

    experiment: type[Experiment]
    """The class with a field of the section's name."""
    plan: str
    """module:function that takes the experiment and returns its plans.plan.Plan."""
    least: str
    """Minimal content of the section."""
    members: str
    """Description of the participants in advice."""
    size: str
    """Key for the number of participants."""
    check: Callable[[Any, str], None]
    """Raises ConfigError for an invalid experiment of this kind; called with the experiment and the file's name."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Advice for sections of other kinds: what to write in place of each."""


RUN_KINDS: dict[str, RunKind] = {
    "topology": RunKind(
        GossipExperiment,
        "fedgossip.plans.gossip.gossip:gossip_plan",
        'graph = "ring"  n = 8',
        "peers that talk to neighbours",
        "topology.n",
        check_gossip,
    ),
    "coordinator": RunKind(
        FederatedExperiment,
        "fedgossip.plans.federated.federation_checks:federation_plan",
        "clients = 8",
        "clients of a coordinator",
        "coordinator.clients",
        check_federated,
        {"algorithm": "The algorithm of a federated run is coordinator.algorithm, with coordinator.options."},
    ),
    "parallel": RunKind(
        ParallelExperiment,
        "fedgossip.plans.parallel.parallel:parallel_plan",
        "workers = 4",
        "workers that share every step",
        "parallel.workers",
        check_parallel,
        {"algorithm": "The method of a parallel run is parallel.method, and train.optimizer takes the step."},
    ),
}
"""Kinds of run by the section that only this kind has."""


def kind_in(content: Mapping[str, object], where: str) -> RunKind:
    """Return the kind of run that the sections of a file describe.  Raises ConfigError if there is none or several."""
    given = [section for section in RUN_KINDS if section in content]
    if not given:
        least = ",  or:  ".join(f"[{section}]  {kind.least}" for section, kind in RUN_KINDS.items())
        raise ConfigError(f"{where}: {_all('no', RUN_KINDS)}", f"Give at least:  {least}")
    if len(given) > 1:
        keep = ", ".join(f"[{section}] for {RUN_KINDS[section].members}" for section in given)
        advice = f"Keep one: {keep}.  Or compare them: fedgossip compare {where}"
        raise ConfigError(f"{where}: {_all('a', given)} in one file", advice)
    kind = RUN_KINDS[given[0]]
    if COMPARE in content:
        advice = f"Run it: fedgossip compare {where}"
        raise ConfigError(f"{where}: [{COMPARE}], so this is a comparison of several runs", advice)
    for section in content:
        if section not in kind.experiment.__struct_fields__:
            check_keys(content, where)
            advice = kind.instead.get(section, "Leave it out.")
            raise ConfigError(f"{where}: [{section}] is a section of other runs than [{given[0]}]", advice)
    return kind


def _all(word: str, sections: Mapping[str, object] | list[str]) -> str:
    """ "no [topology] and no [coordinator]"."""
    return " and ".join(f"{word} [{section}]" for section in sections)
