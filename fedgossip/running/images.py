"""A simulation as plain data and arrays, and back: every machine, message under way, timer and random stream.

An image is taken between two events.  What follows from the experiment alone (the graph, the task, the fault script)
is not in it: such objects stand by a name, and the new run's own take their place.  Objects that two refer to are one
again afterwards.  Only classes of fedgossip are made, by setting their attributes; nothing is ever called or unpickled.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.checkpoints import DTYPES
from fedgossip.errors import ResumeError

Array = npt.NDArray[Any]

_PLAIN = (type(None), bool, int, float, str)
_LONGEST = 1 << 63

_CONTAINERS = (list, tuple, set, frozenset)
_WITH_CONTENTS = (*_CONTAINERS, dict, deque, int, float, str, bytes)
"""A subclass of these has contents that are no attributes."""


class ImageError(Exception):
    """Something in a simulation that cannot be written down; the run goes on without images."""


class _Writer:
    """Numbers every object that it meets; the table of nodes refers to objects by number."""

    def __init__(self, known: Mapping[str, object]) -> None:
        self.nodes: list[Any] = []
        self.arrays: list[Array] = []
        self._numbers: dict[int, int] = {}
        self._names = {id(one): name for name, one in known.items()}
        self._alive: list[object] = []  # an object made on the way must not give its id to another

    def ref(self, value: Any) -> Any:
        """Return a plain value itself, or [number] of an object."""
        if type(value) in _PLAIN and not (isinstance(value, int) and abs(value) >= _LONGEST):
            return value
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.nodes)
            self._alive.append(value)
            self.nodes.append(None)
            self.nodes[number] = self._node(value)
        return [number]

    def _node(self, value: Any) -> list[Any]:
        if (name := self._names.get(id(value))) is not None:
            return ["known", name]
        match value:
            case np.ndarray() if value.dtype.name in DTYPES:
                self.arrays.append(value)
                return ["array", len(self.arrays) - 1, bool(value.flags.writeable)]
            case np.generic():
                return ["number", value.dtype.name, value.item()]
            case np.dtype():
                return ["dtype", value.name]
            case int() | bytes() if type(value) in (int, bytes):
                return [type(value).__name__, str(value) if isinstance(value, int) else value.hex()]
            case FunctionType() if _is_ours(value):
                return ["function", f"{value.__module__}:{value.__qualname__}"]
            case MethodType():
                return ["method", self.ref(value.__self__), value.__name__]
            case np.random.Generator():
                return ["stream", self.ref(dict(value.bit_generator.state))]
            case dict() if type(value) is dict:
                return ["dict", [[self.ref(key), self.ref(one)] for key, one in value.items()]]
            case deque() if type(value) is deque:
                return ["deque", [self.ref(one) for one in value], value.maxlen]
            case list() | tuple() | set() | frozenset() if type(value) in _CONTAINERS:
                return [type(value).__name__, [self.ref(one) for one in value]]
            case _:
                return self._object(value)

    def _object(self, value: Any) -> list[Any]:
        kind = type(value)
        if not _is_ours(kind) or isinstance(value, _WITH_CONTENTS):
            raise ImageError(f"{kind.__module__}.{kind.__qualname__}")
        fields = []
        for name in _attributes(value):
            try:
                fields.append([name, self.ref(getattr(value, name))])
            except ImageError as error:
                raise ImageError(f"{error} in {kind.__qualname__}.{name}") from None
        return ["object", f"{kind.__module__}:{kind.__qualname__}", fields]


def _is_ours(named: Any) -> bool:
    """Whether a class or function stands in a module of fedgossip, where it can be found by its name."""
    return named.__module__.partition(".")[0] == "fedgossip" and "<" not in named.__qualname__


def _attributes(value: object) -> Iterator[str]:
    for kind in reversed(type(value).__mro__):
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name
    if isinstance(value, msgspec.Struct) and "__slots__" not in type(value).__dict__:
        yield from value.__struct_fields__
    yield from vars(value) if hasattr(value, "__dict__") else ()


_FIXED: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class _Reader:
    def __init__(self, nodes: list[Any], arrays: Mapping[int, Array], known: Mapping[str, object]) -> None:
        self._nodes, self._arrays, self._known = nodes, arrays, known
        self._made: dict[int, Any] = {}

    def value(self, ref: Any) -> Any:
        if not isinstance(ref, list):
            return ref
        (number,) = ref
        if number not in self._made:
            self._made[number] = self._value(number, *self._nodes[number])
        return self._made[number]

    def _value(self, number: int, kind: str, *parts: Any) -> Any:
        match kind:
            case "known":
                return self._known[parts[0]]
            case "array":
                array = self._arrays[parts[0]]
                array.flags.writeable = parts[1]
                return array
            case "function":
                return _named(parts[0], FunctionType)
            case "method":
                of = self.value(parts[0])
                return MethodType(_method(type(of), parts[1]), of)
            case "object":
                return self._object(number, *parts)
            case "dict" | "list" | "tuple" | "set" | "frozenset" | "deque":
                return self._collection(number, kind, *parts)
            case _:
                return self._number(kind, *parts)

    def _number(self, kind: str, *parts: Any) -> Any:
        match kind:
            case "number":
                return np.dtype(parts[0]).type(parts[1])
            case "dtype":
                return np.dtype(parts[0])
            case "int":
                return int(parts[0])
            case "bytes":
                return bytes.fromhex(parts[0])
            case "stream":
                stream = np.random.Generator(np.random.PCG64())
                stream.bit_generator.state = self.value(parts[0])
                return stream
            case _:
                raise ValueError(f"{kind} is not known")

    def _collection(self, number: int, kind: str, refs: list[Any], longest: int | None = None) -> Any:
        if kind == "dict":
            mapping: dict[Any, Any] = {}
            self._made[number] = mapping  # before its contents, which may refer to it
            mapping.update((self.value(key), self.value(one)) for key, one in refs)
            return mapping
        if kind == "list":
            several: list[Any] = []
            self._made[number] = several
            several.extend(self.value(one) for one in refs)
            return several
        if kind == "deque":
            return deque((self.value(one) for one in refs), longest)
        return _FIXED[kind](self.value(one) for one in refs)

    def _object(self, number: int, name: str, fields: list[list[Any]]) -> Any:
        kind = _named(name, type)
        if issubclass(kind, msgspec.Struct):
            return kind(**{key: self.value(one) for key, one in fields})
        made = self._made[number] = kind.__new__(kind)
        for key, one in fields:
            object.__setattr__(made, key, self.value(one))  # frozen ones too
        return made


def _named(name: str, kind: type) -> Any:
    """Return the class or function of fedgossip that is called so.  Raises ValueError."""
    module, _, path = name.partition(":")
    if module.partition(".")[0] != "fedgossip":
        raise ValueError(f"{name} is none of ours")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = vars(found)[part]
    if not isinstance(found, kind):
        raise ValueError(f"{name} is no {kind.__name__}")
    return found


def _method(kind: type, name: str) -> FunctionType:
    found = next(vars(one)[name] for one in kind.__mro__ if name in vars(one))
    if not isinstance(found, FunctionType):
        raise ValueError(f"{kind.__name__}.{name} is no method")
    return found


def taken(root: object, known: Mapping[str, object]) -> dict[str, Array]:
    """Return `root` as named arrays, for a checkpoint.  Raises ImageError where something cannot be written down."""
    writer = _Writer(known)
    start = writer.ref(root)
    try:
        table = msgspec.msgpack.encode([start, writer.nodes])
    except (TypeError, OverflowError, RecursionError) as error:
        raise ImageError(str(error)) from None
    arrays = {f"array/{number}": array for number, array in enumerate(writer.arrays)}
    return {"table": np.frombuffer(table, np.uint8), **arrays}


def restored(arrays: Mapping[str, Array], known: Mapping[str, object]) -> Any:
    """Return what `taken` was given.  Raises ResumeError for what is no image of this version."""
    try:
        start, nodes = msgspec.msgpack.decode(arrays["table"].tobytes())
        numbered = {int(name.partition("/")[2]): array for name, array in arrays.items() if name != "table"}
        return _Reader(nodes, numbered, known).value(start)
    except (
        msgspec.MsgspecError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        ImportError,
        StopIteration,
    ) as error:
        text = f"the image of the simulation cannot be read ({type(error).__name__}: {error})"
        raise ResumeError(text, "Start the run again: it is a function of its experiment.") from None
