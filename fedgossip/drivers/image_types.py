"""Declared types of the attributes of a class, read from its source.

Fields of dataclasses and structs have types; other attributes are assigned to `self` in methods, with a type there or
at the parameter of `__init__`.  Without one, the counterpart in a new simulation determines it.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache, cached_property
from typing import Any

import msgspec

Hint = Any
"""A type in source form: a class, a union, list[int], ..."""

UNDECLARED: Hint = object


RENAMED: Mapping[str, str] = {
    "ALittle": "ALittleIsEnough",
    "BudgetPurse": "AccountedBudget",
    "Company": "PartnerSet",
    "Diffused": "Tracked",
    "Giver": "ModelSource",
    "InMotion": "MomentumState",
    "InTwo": "TwoSizes",
    "Overheard": "ObservedModels",
    "Taker": "ModelFetch",
    "Telling": "SentMetrics",
    "Unmixed": "UnmixedState",
}
"""Names of classes in images of earlier releases, with the current ones."""


ATTRIBUTES_SINCE: Mapping[str, frozenset[str]] = {
    "AllReduce": frozenset({"repeats", "stuck_ns"}),
    "AskedBefore": frozenset({"whole"}),
    "Buffered": frozenset({"uninformed"}),
    "Checkpoint": frozenset({"unsettled"}),
    "Coordinator": frozenset({"invited", "seen", "stopped", "uninformed"}),
    "CoordinatorSettings": frozenset({"below", "informs_uninvited"}),
    "Meter": frozenset({"_away", "_left", "_of_jobs"}),
    "NetworkRow": frozenset({"metrics"}),
    "PeerRow": frozenset({"metrics"}),
    "ParcelMail": frozenset({"late_from"}),
    "PreparedContribution": frozenset({"counts"}),
    "Pairing": frozenset({"declines"}),
    "PartnerSet": frozenset({"missed_after_goodbye"}),
    "NetworkSettings": frozenset({"racks"}),
    "PushPullWorker": frozenset({"accrued", "rate", "taken"}),
    "Replicated": frozenset({"coded"}),
    "ServerManager": frozenset({"answering", "whole"}),
    "StatisticsByMedian": frozenset({"middle"}),
    "Securely": frozenset({"whole"}),
    "Simulator": frozenset({"_begun", "gone", "seat", "timeline"}),
    "Tenure": frozenset({"whole"}),
    "TenureShards": frozenset({"whole"}),
    "WorkerSettings": frozenset({"fetch", "push"}),
    "Network": frozenset(
        {"_aside", "_kept", "_scored", "_several", "_untold", "at_clients", "best", "best_model", "ended_with"},
    ),
}
"""Attributes, by class, missing in images of earlier releases: they start as in a new simulation."""
ATTRIBUTES_UNTIL: Mapping[str, frozenset[str]] = {
    "Membership": frozenset({"_hashed"}),
    "Meter": frozenset({"_logged"}),
    "Network": frozenset({"_wrong"}),
    "ReplicaGossip": frozenset({"payload"}),
    "Replicated": frozenset({"new"}),
}
"""Attributes, by class, only in images of earlier releases: dropped."""


@cache
def declared(kind: type) -> Mapping[str, Hint]:
    """Return the type of each attribute of `kind`, including its bases'; UNDECLARED without a written type."""
    found: dict[str, Hint] = {}
    for one in reversed(kind.__mro__):
        if is_ours(one):
            written = inspect.get_annotations(one) if _has_fields(one) else dict(_list_assigned(one))
            given = {name: _resolved(text, one) for name, text in written.items() if not _is_class_variable(text)}
            # an untyped assignment in a subclass does not override the type declared in a base
            found |= {name: hint for name, hint in given.items() if hint is not UNDECLARED or name not in found}
    given = _list_parameters(kind)
    return {name: _bound(hint, given) for name, hint in found.items()} if given else found


def _list_parameters(kind: type) -> dict[Hint, Hint]:
    """Return the types that a class and its bases give to the type variables of generic bases."""
    bases = [base for one in kind.__mro__ for base in one.__dict__.get("__orig_bases__", ())]
    pairs = [(getattr(typing.get_origin(base), "__parameters__", ()), typing.get_args(base)) for base in bases]
    return {name: hint for names, hints in pairs for name, hint in zip(names, hints, strict=False) if name is not hint}


def _bound(hint: Hint, given: Mapping[Hint, Hint]) -> Hint:
    if isinstance(hint, typing.TypeVar):
        return given.get(hint, hint)
    names = getattr(hint, "__parameters__", ()) if typing.get_origin(hint) else ()
    return hint[tuple(given.get(name, name) for name in names)] if names else hint


def is_ours(named: Any) -> bool:
    """Return whether a class or function is defined in a module of fedgossip, and is found there by its name."""
    return named.__module__.partition(".")[0] == "fedgossip" and "<" not in named.__qualname__


def name_of(kind: type) -> str:
    """Return the name of a class in an image: no two classes of fedgossip share one, while modules move."""
    return kind.__qualname__


def current_name(name: str) -> str:
    """Return the current name of an image's class; images of earlier releases include its module."""
    own = name.rpartition(":")[2]
    return RENAMED.get(own, own)


def attributes(value: object) -> Iterator[str]:
    """Yield the names of an object's state: its attributes without the values of cached properties."""
    for kind in reversed(type(value).__mro__):
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name
    if isinstance(value, msgspec.Struct) and "__slots__" not in type(value).__dict__:
        yield from value.__struct_fields__
    yield from state(value) if hasattr(value, "__dict__") else ()


def state(value: object) -> dict[str, Any]:
    """Return the attributes of an object in its `__dict__`, without cached properties: those are computed again."""
    kind: type = type(value)
    derived = derived_names(kind)
    return {name: one for name, one in vars(value).items() if name not in derived}


@cache
def derived_names(kind: type) -> frozenset[str]:
    """Return the names of the cached properties of a class."""
    found = {name: one for base in reversed(kind.__mro__) for name, one in vars(base).items()}
    return frozenset(name for name, one in found.items() if isinstance(one, cached_property))


@cache
def alternatives(hint: Hint) -> tuple[Hint, ...]:
    """Return the members of a union; a one-element tuple for other types.  A type that admits everything is
    UNDECLARED.  An alias stands for its value: numpy's NDArray is one from numpy 2.5 on.
    """
    alias = origin_of(hint)
    if hasattr(alias, "__value__") and not isinstance(alias, type):
        parts = typing.get_args(hint)
        return alternatives(alias.__value__[parts] if parts else alias.__value__)
    if alias in (typing.Union, types.UnionType):
        return tuple(one for part in typing.get_args(hint) for one in alternatives(part))
    if hint is None:  # as written within list[None]
        return (types.NoneType,)
    return (UNDECLARED if hint is Any or isinstance(hint, typing.TypeVar) else hint,)


@cache
def origin_of(hint: Hint) -> Hint:
    """Return list of list[int]; the type itself if it has no parts."""
    found: Hint = typing.get_origin(hint)
    return hint if found is None else found


def _is_class_variable(text: object) -> bool:
    return isinstance(text, str) and text.startswith(("ClassVar", "typing.ClassVar"))


def _has_fields(kind: type) -> bool:
    return is_dataclass(kind) or issubclass(kind, msgspec.Struct)


def _resolved(text: Any, kind: type) -> Hint:
    """Return the type named by an annotation in the source of `kind`, or UNDECLARED."""
    if text is None:
        return UNDECLARED
    holder = type("Holder", (), {"__annotations__": {"it": text}})
    try:
        return typing.get_type_hints(holder, vars(sys.modules[kind.__module__]))["it"]
    except (NameError, TypeError):  # a name for the type checker alone
        return UNDECLARED


def _list_assigned(kind: type) -> Iterator[tuple[str, str | None]]:
    written: dict[str, str | None] = {}
    for method in _parse_classes(kind.__module__)[kind.__qualname__].body:
        if not isinstance(method, ast.FunctionDef):
            continue
        arguments = [*method.args.args, *method.args.kwonlyargs]
        parameters = {one.arg: ast.unparse(one.annotation) for one in arguments if one.annotation}
        for name, text in _assigned(method, parameters):
            written[name] = written.get(name) or text
    yield from written.items()


@cache
def _parse_classes(module: str) -> Mapping[str, ast.ClassDef]:
    """Return the classes in the source of a module, by qualified name; one parse for all of them."""
    found: dict[str, ast.ClassDef] = {}

    def look(body: list[ast.stmt], within: str) -> None:
        for one in body:
            if isinstance(one, ast.ClassDef):
                found[within + one.name] = one
                look(one.body, f"{within}{one.name}.")

    look(ast.parse(inspect.getsource(sys.modules[module])).body, "")
    return found


def _assigned(method: ast.FunctionDef, parameters: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    for statement in ast.walk(method):
        if isinstance(statement, ast.AnnAssign) and (name := _attribute(statement.target)):
            yield name, ast.unparse(statement.annotation)
        elif isinstance(statement, ast.Assign):
            for target, value in _pairs(statement):
                if name := _attribute(target):
                    begins = method.name == "__init__" and isinstance(value, ast.Name)
                    yield name, parameters.get(value.id) if begins and isinstance(value, ast.Name) else None


def _pairs(statement: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target with its value; a, b = c, d yields two pairs."""
    for target in statement.targets:
        if not isinstance(target, ast.Tuple):
            yield target, statement.value
        elif isinstance(statement.value, ast.Tuple) and len(target.elts) == len(statement.value.elts):
            yield from zip(target.elts, statement.value.elts, strict=True)
        else:
            yield from ((one, statement.value) for one in target.elts)


def _attribute(target: ast.expr) -> str | None:
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr
    return None
