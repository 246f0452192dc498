"""Every key of an experiment file, from its declaration: type, default, limits, and meaning.

The meaning of a key is the text below its declaration, so there is no second table to keep consistent.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import math
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from fedgossip.base.limits import ABOVE_0, KnownNames, Limit, between
from fedgossip.experiment.reading import RUN_KINDS, keys_of, section_in
from fedgossip.experiment.run_sections import COMPARE, CompareSection
from fedgossip.faults import KINDS

Struct = type[msgspec.Struct]

NONE, REQUIRED = "none", "required"


@dataclass(frozen=True)
class Key:
    """One key: `name` as --set takes it; a key of a block in a list ([[faults]]) is prefixed with the list's name."""

    name: str
    type: str
    default: str
    """As TOML, or the words "none" and "required"."""
    allowed: str
    """Allowed values in words; empty if the meaning suffices."""
    meaning: str
    of: str = ""
    """Kinds of block that have the key; empty if all have it."""


@dataclass(frozen=True)
class Section:
    """A section of the file, or a block that may be repeated, with its keys."""

    name: str
    meaning: str
    keys: Sequence[Key]


@cache
def sections() -> Sequence[Section]:
    """Return every section in the order of declaration; those of all kinds of run are first."""
    found: dict[str, Section] = {}
    for kind in RUN_KINDS.values():
        for one in _sections(kind.experiment, ""):
            found.setdefault(one.name, one)
    for one in _sections(CompareSection, f"{COMPARE}."):
        found[one.name] = one
    found[""] = dataclasses.replace(found[""], meaning="Keys at the top of the file, above all sections.")
    return [*found.values(), _faults()]


def keys() -> Mapping[str, Sequence[Key]]:
    """Return the keys by name; a key of [[faults]] may have a different meaning in each kind of fault."""
    found: dict[str, list[Key]] = {}
    for section in sections():
        for key in section.keys:
            found.setdefault(key.name, []).append(key)
    return found


def fault_kinds() -> Mapping[str, str]:
    """Return the description of each kind of fault."""
    return {name: _line(kind.__doc__) for name, kind in KINDS.items()}


def _sections(of: type, path: str) -> Iterator[Section]:
    hints, meant = keys_of(of), meanings(of)
    plain = {name: hint for name, hint in hints.items() if section_in(hint) is None}
    keys = [_key(path, name, of, hint, meant) for name, hint in plain.items()]
    yield Section(path.rstrip("."), _line(of.__doc__), keys)
    for name, hint in hints.items():
        if inner := section_in(hint):
            yield from _sections(inner, f"{path}{name}.")
        elif block := _block_in(hint):
            yield from _sections(block, f"{path}{name}.")


def _faults() -> Section:
    found: dict[Key, list[str]] = {}
    for kind, struct in KINDS.items():
        meant = meanings(struct)
        for name, hint in keys_of(struct).items():
            found.setdefault(_key("faults.", name, struct, hint, meant), []).append(kind)
    of = {key: "" if len(kinds) == len(KINDS) else ", ".join(kinds) for key, kinds in found.items()}
    order = [f"faults.{name}" for name in ("start", "stop", "peers", "links", "messages")]
    keys = [dataclasses.replace(key, of=kinds) for key, kinds in of.items()]
    keys.sort(key=lambda key: (order.index(key.name) if key.name in order else len(order), key.name))
    which = Key("faults.kind", "text", REQUIRED, ", ".join(f"`{name}`" for name in KINDS), "What goes wrong.")
    what = "[[faults]]: what goes wrong, when, and to whom; in the simulator and in real processes of one machine."
    return Section("faults", what, [which, *keys])


def _block_in(hint: Any) -> Struct | None:
    if typing.get_origin(hint) is not list:
        return None
    (inner,) = typing.get_args(hint)
    return inner if isinstance(inner, type) and issubclass(inner, msgspec.Struct) else None


def meanings(of: type) -> dict[str, str]:
    """Return the text below each field of a class, and of its base classes, as one line."""
    found: dict[str, str] = {}
    for one in reversed(of.__mro__):
        if "__annotations__" not in vars(one) or one.__module__.partition(".")[0] == "msgspec":
            continue
        found |= texts_below(class_bodies(sys.modules[one.__module__])[one.__qualname__])
    return found


@cache
def class_bodies(module: types.ModuleType) -> Mapping[str, Sequence[ast.stmt]]:
    """Return the body of each class of a module, by its name: the module is parsed once, not once for each class."""
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def texts_below(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Return the text below each annotated name of a class or a module, as one line."""
    return {
        ast.unparse(field.target): _line(str(text.value.value))
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _key(path: str, name: str, of: type, hint: Any, meant: Mapping[str, str]) -> Key:
    return Key(path + name, _type(hint), _default(of, name), _allowed(hint), meant.get(name, ""))


def _default(of: type, name: str) -> str:
    if dataclasses.is_dataclass(of):
        return written(getattr(of(), name))
    field = next(one for one in msgspec.structs.fields(typing.cast(Struct, of)) if one.name == name)
    if field.default_factory is not msgspec.NODEFAULT:
        return written(field.default_factory())
    return REQUIRED if field.required else written(field.default)


def written(value: object) -> str:
    """Return a value in TOML notation; "none" for None, which TOML cannot express."""
    if isinstance(value, dict) and value:
        return f"{{ {', '.join(f'{key} = {written(one)}' for key, one in value.items())} }}"
    return NONE if value is None else json.dumps(value)


WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "table"}


def _type(hint: Any) -> str:
    if hasattr(hint, "__metadata__"):
        return _type(hint.__origin__)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(one) for one in inner if one is not types.NoneType)
    if origin in (list, tuple):
        word = WORDS.get(getattr(inner[0], "__origin__", inner[0]))
        return f"list of {word}s" if word else "list"
    return WORDS[origin or hint]


def _allowed(hint: Any) -> str:
    for one in (hint, *typing.get_args(hint)):
        for limit in getattr(one, "__metadata__", ()):
            if isinstance(limit, Limit | KnownNames):
                return limit.wording
            if isinstance(limit, msgspec.Meta):
                return between(ABOVE_0 if limit.gt == 0 else limit.ge or 0, limit.le or math.inf)
    return ""
