"""Reading an experiment file: TOML in, typed settings out.

Every key but the graph, or the number of clients, has a default.  An unknown key is an error that names the nearest.
"""

from __future__ import annotations

import os
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.decoding import from_toml
from fedgossip.errors import ConfigError, nearest
from fedgossip.experiment.checks import check
from fedgossip.experiment.sections import SECTIONS, Experiment
from fedgossip.faults import KINDS


def load(source: Path | str | Mapping[str, Any], overrides: Sequence[str] = (), **top: Any) -> Experiment:
    """Return the experiment of a file, or of a mapping of the same shape.

    `overrides` are "section.key=value" texts (values as in TOML; a bare word is a string); `top` replaces top-level
    keys.  Relative paths inside a file are relative to that file.  Raises ConfigError, naming the key.
    """
    if isinstance(source, Mapping):
        where, content = "experiment", _copied(source)
    else:
        where, content = str(source), _read(Path(source))
    for override in overrides:
        _override(content, override)
    content.update({key: value for key, value in top.items() if value is not None})
    if not isinstance(source, Mapping):
        _anchor_paths(content, Path(source).resolve().parent)
    return checked(content, where)


def checked(content: dict[str, Any], where: str) -> Experiment:
    """Return `content` as an Experiment.  Raises ConfigError for the first key that is unknown or wrong."""
    for path, key, known in _unknown(content, Experiment, ""):
        raise ConfigError(f"{where}: unknown key {path + key!r}", nearest(key, known))
    try:
        experiment = msgspec.convert(content, Experiment)
    except ConfigError as error:  # of the [train] section, which checks itself
        raise ConfigError(f"{where}: [train]: {error}", error.advice) from None
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        if "missing required field" in text and ("`clients`" in text or "`graph`" in text):
            what, least = ("clients", "[coordinator]  clients = 8") if "`clients`" in text else (
                "graph", '[topology]  graph = "ring"  n = 8'
            )
            raise ConfigError(f"{where}: no {what}", f"Give at least:  {least}") from None
        raise ConfigError(f"{where}: {place.rstrip('`') or 'the file'}: {text[0].lower()}{text[1:]}", "") from None
    if experiment.coordinator and "algorithm" in content:
        advice = "The algorithm of a federated run is coordinator.algorithm, with coordinator.options."
        raise ConfigError(f"{where}: [algorithm] is a section of gossip", advice)
    check(experiment, where)
    return experiment


def _read(path: Path) -> dict[str, Any]:
    try:
        return from_toml(path.read_text())
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise ConfigError(f"{path}: {reason}", "README shows an experiment file to start from.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}", "Strings need quotes; sections are [name].") from None


def _override(content: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: no '='", "Write --set section.key=value, for example --set train.lr=0.05")
    try:
        parsed = from_toml(f"v = {value.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    *sections, last = key.strip().split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise ConfigError(f"--set {text}: {section!r} is no section", "Write --set section.key=value.")
    content[last] = parsed


def _unknown(content: Mapping[str, Any], kind: type, path: str) -> Iterator[tuple[str, str, list[str]]]:
    known = typing.get_type_hints(kind)
    for key, value in content.items():
        if key not in known:
            yield path, key, list(known)
        elif isinstance(value, Mapping) and (section := _section(known[key])):
            yield from _unknown(value, section, f"{path}{key}.")
        elif key == "faults" and isinstance(value, Sequence):
            for number, entry in enumerate(value):
                yield from _unknown_of_fault(entry, f"faults[{number}]")


def _section(kind: Any) -> type | None:
    """The section that a field of this type holds, if it does."""
    found = [one for one in (kind, *typing.get_args(kind)) if one in SECTIONS]
    return found[0] if found else None


def _unknown_of_fault(entry: object, where: str) -> Iterator[tuple[str, str, list[str]]]:
    """Raise ConfigError for a kind that there is not; yield the keys that its kind has not."""
    if not isinstance(entry, Mapping):
        return  # refused as what it is
    kind = entry.get("kind")
    if kind not in KINDS:
        what = f"kind = {kind!r} is not known" if "kind" in entry else "no kind"
        raise ConfigError(f"{where}: {what}", nearest(str(kind), KINDS))
    known = [*KINDS[kind].__struct_fields__, "kind"]
    yield from ((f"{where} ({kind}).", key, known) for key in entry if key not in known)


def _anchor_paths(content: dict[str, Any], base: Path) -> None:
    """Make the paths of the graph and of the data absolute: the resolved experiment runs from anywhere."""
    topology, data = content.get("topology"), content.get("data")
    if isinstance(topology, dict) and isinstance(graph := topology.get("graph"), str) and _is_path(graph, base):
        topology["graph"] = str((base / graph).resolve())
    for key in ("source", "test"):
        if not (isinstance(data, dict) and isinstance(source := data.get(key), str)):
            continue
        kind, colon, rest = source.partition(":")
        if colon and kind in ("csv", "npz", "text", "mnist", "fashion-mnist"):
            name, mark, query = rest.partition("?")
            data[key] = f"{kind}:{(base / Path(name).expanduser()).resolve()}{mark}{query}"


def _is_path(graph: str, base: Path) -> bool:
    return os.sep in graph or graph.endswith((".toml", ".txt", ".edges")) or (base / graph).is_file()


def _copied(source: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in source.items()}
