"""A simulation as plain data and arrays, and back: every machine, message under way, timer and random stream.

An image is taken between two instants.  It is restored into a simulation newly made from the same experiment, which
keeps its own callables, graph, task, fault script, and cached properties.  A value is read as the declared type of its
place, otherwise as its counterpart's class, or refused.  An object with two references is one object again. Attributes
are set; nothing is called, imported or unpickled, and no class is looked up by a name in the image.
"""

from __future__ import annotations

import typing
from collections import Counter, OrderedDict, abc, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import FunctionType, MethodType, NoneType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.federated.base import Accumulator
from fedgossip.algorithms.federated.robust_aggregation import Kept
from fedgossip.algorithms.federated.running_statistics import KeptApart
from fedgossip.algorithms.federated.sums import MeanOf
from fedgossip.base.errors import ResumeError
from fedgossip.drivers.image_types import (
    ATTRIBUTES_SINCE,
    ATTRIBUTES_UNTIL,
    UNDECLARED,
    Hint,
    alternatives,
    attributes,
    current_name,
    declared,
    is_ours,
    name_of,
    origin_of,
    state,
)
from fedgossip.protocols.federated.aggregation_round import Exchange, PlainRound
from fedgossip.protocols.federated.client_round import ClientPart, PlainPart
from fedgossip.runs.checkpoints import DTYPES

Array = npt.NDArray[Any]

_PLAIN = (NoneType, bool, int, float, str)
_LONGEST = 1 << 63

_MAPPINGS = (dict, Counter, OrderedDict)
_CONTAINERS = (list, tuple, set, frozenset)
_WITH_CONTENTS = (*_CONTAINERS, dict, deque, int, float, str, bytes)
"""A subclass of these has contents outside its attributes."""


class ImageError(Exception):
    """Part of a simulation cannot be written to an image; the run continues without images."""


class Known:
    """Objects of a simulation that follow from its experiment, and all callables: no image contains them."""

    def __init__(self, known: Mapping[str, object]) -> None:
        self._names = {id(one): name for name, one in known.items()}

    def name_of(self, value: object) -> str | None:
        """Return the name of such an object; None for one that an image contains."""
        if isinstance(value, FunctionType | MethodType):
            return value.__qualname__
        return self._names.get(id(value))


class _Writer:
    """Numbers every object that it encounters; the table of nodes refers to objects by number."""

    def __init__(self, known: Known) -> None:
        self.nodes: list[Any] = []
        self.arrays: list[Array] = []
        self._numbers: dict[int, int] = {}
        self._known = known
        self._alive: list[object] = []  # keep a reference: a temporary object must not pass its id on to another

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
        if (name := self._known.name_of(value)) is not None:
            return ["known", name]
        match value:
            case Enum() if is_ours(type(value)):
                return ["enum", name_of(type(value)), value.name]
            case slice() | range():
                return [type(value).__name__, value.start, value.stop, value.step]
            case np.ndarray() if value.dtype.name in DTYPES:
                return self._array(value)
            case np.generic():
                return ["number", value.dtype.name, value.item()]
            case np.dtype():
                return ["dtype", value.name]
            case int() | bytes() | bytearray() if type(value) in (int, bytes, bytearray):
                return [type(value).__name__, str(value) if isinstance(value, int) else value.hex()]
            case np.random.Generator():
                return ["stream", self.ref(dict(value.bit_generator.state))]
            case dict() if type(value) in _MAPPINGS:
                return [type(value).__name__, [[self.ref(key), self.ref(one)] for key, one in value.items()]]
            case deque() if type(value) is deque:
                return ["deque", [self.ref(one) for one in value], value.maxlen]
            case list() | tuple() | set() | frozenset() if type(value) in _CONTAINERS:
                return [type(value).__name__, [self.ref(one) for one in value]]
            case _:
                return self._object(value)

    def _array(self, value: Array) -> list[Any]:
        base = value.base
        if (
            isinstance(base, np.ndarray)
            and value.flags.writeable
            and base.flags.c_contiguous
            and base.dtype.name in DTYPES
        ):
            offset = _address(value) - _address(base)  # a write through one is visible in the other
            return ["view", self.ref(base), value.dtype.name, offset, [*value.shape], [*value.strides]]
        self.arrays.append(value)
        return ["array", len(self.arrays) - 1, bool(value.flags.writeable)]

    def _object(self, value: Any) -> list[Any]:
        kind = type(value)
        if not is_ours(kind) or isinstance(value, _WITH_CONTENTS):
            raise ImageError(name_of(kind))
        fields = []
        for name in attributes(value):
            try:
                fields.append([name, self.ref(getattr(value, name))])
            except ImageError as error:
                raise ImageError(f"{error} in {kind.__qualname__}.{name}") from None
        return ["object", name_of(kind), fields]


def _address(array: Array) -> int:
    first: int = array.__array_interface__["data"][0]
    return first


def write_image(objects: Sequence[object], data: object, known: Mapping[str, object]) -> dict[str, Array]:
    """Return `objects`' attributes and plain `data` as named arrays; `known`: objects of the experiment, by name.

    Raises ImageError for a value that cannot be written.
    """
    writer = _Writer(Known(known))
    start = writer.ref([*map(state, objects), data])
    try:
        table = msgspec.msgpack.encode([start, writer.nodes])
    except (TypeError, OverflowError, RecursionError) as error:
        raise ImageError(str(error)) from None
    arrays = {f"array/{number}": array for number, array in enumerate(writer.arrays)}
    return {"table": np.frombuffer(table, np.uint8), **arrays}


def restored(
    arrays: Mapping[str, Array], objects: Sequence[object], known: Mapping[str, object], begun: Begun | None = None
) -> tuple[list[dict[str, Any]], Any]:
    """Return the arguments of `taken`: the attributes of each object, and the data.

    `objects` and `known` of a new simulation stay unchanged.  Raises ResumeError for another version, or simulation.
    """
    try:
        start, nodes = msgspec.msgpack.decode(arrays["table"].tobytes())
        numbered = {int(name.partition("/")[2]): array for name, array in arrays.items() if name != "table"}
        reader = Reader(nodes, numbered, Known(known).name_of, begun or BEGUN)
        kind, (*refs, data) = nodes[number_in(start)]
        if kind != "list" or len(refs) != len(objects):
            raise UnfitError(f"a {kind} of {len(refs)}")
        attributes = [reader.fields_of(ref, one) for ref, one in zip(refs, objects, strict=True)]
        return attributes, reader.value(data, UNDECLARED, NOTHING)
    except UnfitError as error:
        raise ResumeError(f"the image of the simulation cannot be taken up: {error}", ADVICE) from None
    except _UNREADABLE as error:
        text = f"the image of the simulation cannot be read ({type(error).__name__}: {error})"
        raise ResumeError(text, ADVICE) from None


def contained(arrays: Mapping[str, Array], place: int, name: str) -> list[int]:
    """Return the elements of the list `name`, of the object at `place`, that an image contains; others follow from the
    experiment.

    Empty for invalid data, which `restored` refuses.
    """
    try:
        start, nodes = msgspec.msgpack.decode(arrays["table"].tobytes())
        fields = dict(nodes[number_in(nodes[number_in(start)][1][place])][1])
        listed = nodes[number_in(fields[name])][1]
        return [number for number, one in enumerate(listed) if nodes[number_in(one)][0] != "known"]
    except (UnfitError, *_UNREADABLE):
        return []


_UNREADABLE = (
    msgspec.MsgspecError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)
"""Errors of a malformed table, or of malformed numbers."""

ADVICE = "Start the run again: it is a function of its experiment."

Follows = Callable[[object], str | None]
"""Returns the name of an object of the new simulation that follows from the experiment, so that no image
contains it.
"""

Begun = Mapping[Hint, tuple[type, ...]]

BEGUN: Begun = {
    ClientPart: (PlainPart,),
    Exchange: (PlainRound,),
    Accumulator: (MeanOf, Kept, KeptApart),
}
"""Implementations of a protocol for objects created during a run: a new simulation has none to compare with."""


class UnfitError(Exception):
    """An image does not fit the simulation that should resume from it."""


NOTHING = object()
"""Counterpart of an object that the new simulation does not have so far."""

_KINDS: Mapping[str, tuple[type, ...]] = {
    "list": (list, abc.Sequence, abc.Iterable),
    "tuple": (tuple, abc.Sequence, abc.Iterable, abc.Hashable),
    "set": (set, abc.Iterable),
    "frozenset": (frozenset, abc.Iterable, abc.Hashable),
    "deque": (deque,),
    "dict": (dict, abc.Mapping),
    "Counter": (Counter, abc.Mapping),
    "OrderedDict": (OrderedDict, abc.Mapping),
}
"""Types with which a container may be declared."""

_SCALARS: Mapping[Hint, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
    str: (str,),
    bytes: (bytes,),
    bytearray: (bytearray,),
    NoneType: (NoneType,),
    slice: (slice,),
}
"""Accepted Python and numpy types for each declared type of number or text."""

_OF_NUMPY = (np.ndarray, np.dtype, np.random.Generator)

_ANY = (NoneType, bool, int, float, str, bytes, bytearray, slice, np.generic, *_OF_NUMPY)
"""Types other than objects of fedgossip."""

_MAPPINGS_BY_NAME: dict[str, type[dict[Any, Any]]] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}

_FIXED: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class Reader:
    """Reads each node as the declared type of its place, and like `fresh`, its counterpart in a new run."""

    def __init__(self, nodes: list[Any], arrays: Mapping[int, Array], follows: Follows, begun: Begun = BEGUN) -> None:
        self._nodes, self._arrays, self._follows = nodes, arrays, follows
        self._made: dict[int, Any] = {}
        self._followed: dict[str, object] = {}
        self._read: set[tuple[int, Hint]] = set()  # containers, and the types that they were read as
        self._stands_for = {protocol: set(kinds) for protocol, kinds in begun.items()}

    def fields_of(self, ref: Any, of: object) -> dict[str, Any]:
        """Return the attributes of `of` from a mapping of them."""
        kind, pairs = self._nodes[number_in(ref)]
        if kind != "dict":
            raise UnfitError(f"{kind} where the attributes of a {type(of).__name__} belong")
        return self._fields(pairs, type(of), of)

    def value(self, ref: Any, hint: Hint, fresh: object) -> Any:
        number = number_in(ref) if isinstance(ref, list) else None
        node = None if number is None else self._nodes[number]
        follows = self._follows(fresh)
        if node is not None and node[0] in ("known", "function", "method"):
            if follows is None:
                return self._find_followed(node[1], hint, fresh)
            self._followed[follows] = fresh
            return fresh
        if follows is not None:
            raise UnfitError(f"something in the place of {follows}, which the experiment makes")
        if number is None or node is None:
            return _checked(ref, hint, fresh)
        match node[0]:
            case "enum":
                return self._member(node[1], node[2], hint, fresh)
            case "object":
                return self._object(number, node[1], node[2], hint, fresh)
            case kind if kind in _KINDS:
                return self._container(number, kind, node[1:], hint, fresh)
            case _:
                if number not in self._made:
                    self._made[number] = self._simple(*node)
                return _checked(self._made[number], hint, fresh)

    def _find_followed(self, name: str, hint: Hint, fresh: object) -> object:
        """Return a callable for an object made during the run: the one of this name that a part before it has."""
        found = self._followed.get(name) if fresh is NOTHING else None
        if not callable(found) or abc.Callable not in map(origin_of, alternatives(hint)):
            raise UnfitError(f"{name}, which no image holds")
        return found

    def _simple(self, kind: str, *parts: Any) -> Any:
        match kind:
            case "array":
                array = self._arrays[parts[0]]
                array.flags.writeable = bool(parts[1])
                return array
            case "view" if parts[1] in DTYPES:
                base, _, offset, shape, strides = parts
                return self._view(base, np.dtype(parts[1]), offset, shape, strides)
            case "slice":
                return slice(*(None if one is None else int(one) for one in parts))
            case "range":
                return range(*map(int, parts))
            case "number" if parts[0] in DTYPES:
                return np.dtype(parts[0]).type(parts[1])
            case "dtype" if parts[0] in DTYPES:
                return np.dtype(parts[0])
            case "int":
                return int(parts[0])
            case "bytes" | "bytearray":
                return (bytes if kind == "bytes" else bytearray).fromhex(parts[0])
            case "stream":
                stream = np.random.Generator(np.random.PCG64())
                stream.bit_generator.state = self.value(parts[0], dict, NOTHING)
                return stream
            case _:
                raise UnfitError(f"{kind!r}, which is no kind of thing")

    def _view(self, ref: Any, kind: np.dtype[Any], offset: int, shape: list[int], strides: list[int]) -> Array:
        """Return a part of another array, in the same memory.  Raises ValueError for its bounds."""
        base = self.value(ref, np.ndarray, NOTHING)
        return np.ndarray(tuple(shape), kind, base.data, offset, tuple(strides))

    def _member(self, name: str, member: str, hint: Hint, fresh: object) -> Enum:
        kind = next((one for one in self._classes(hint, fresh) if name_of(one) == current_name(name)), None)
        if kind is None or not issubclass(kind, Enum) or member not in kind.__members__:
            raise UnfitError(f"{member} of {name} where {_words(hint)} belongs")
        return kind[member]

    def _object(self, number: int, name: str, fields: list[Any], hint: Hint, fresh: object) -> Any:
        kind = next((one for one in self._classes(hint, fresh) if name_of(one) == current_name(name)), None)
        if kind is None or issubclass(kind, Enum):
            raise UnfitError(f"a {name} where {_words(hint)} belongs")
        if number in self._made:
            if type(self._made[number]) is not kind:
                raise UnfitError(f"one thing as a {name} and as another")
            return self._made[number]
        same = fresh if type(fresh) is kind else NOTHING
        if issubclass(kind, msgspec.Struct):
            return self._made.setdefault(number, kind(**self._fields(fields, kind, same)))
        made = self._made[number] = kind.__new__(kind)
        for key, one in self._fields(fields, kind, same).items():
            object.__setattr__(made, key, one)  # frozen ones too
        return made

    def _classes(self, hint: Hint, fresh: object) -> Iterator[type]:
        """Yield the admitted classes for an object; for a protocol, those that implement it."""
        same = {type(fresh)} if is_ours(type(fresh)) else set()
        for one in map(origin_of, alternatives(hint)):
            if one is UNDECLARED or one is abc.Callable:  # a callable, as in the new simulation
                yield from same
            elif _is_protocol(one):
                self._stands_for[one] = same | self._stands_for.get(one, set())
                yield from self._stands_for[one]
            elif isinstance(one, type) and is_ours(one):
                yield from {one} | {kind for kind in same if issubclass(kind, one)}

    def _fields(self, fields: list[Any], kind: type, fresh: object) -> dict[str, Any]:
        hints = declared(kind)
        there = set(attributes(fresh)) if fresh is not NOTHING else set(hints)
        fields = [field for field in fields if field[0] not in ATTRIBUTES_UNTIL.get(kind.__name__, ())]
        names = [name for name, _ in fields]
        lacking = there - set(names)
        given = fresh is not NOTHING or issubclass(kind, msgspec.Struct)  # by the new simulation, or by a default
        older = given and lacking <= ATTRIBUTES_SINCE.get(kind.__name__, set())
        if (lacking and not older) or not set(names) <= there | set(hints):
            found = ", ".join(map(str, sorted(there.symmetric_difference(names), key=str)))
            raise UnfitError(f"a {kind.__name__} with other attributes ({found})")
        made = {}
        for name, ref in fields:
            try:
                made[name] = self.value(ref, hints.get(name, UNDECLARED), getattr(fresh, name, NOTHING))
            except UnfitError as error:
                raise UnfitError(f"{error}, in {kind.__name__}.{name}") from None
        return made | {name: getattr(fresh, name) for name in lacking if fresh is not NOTHING}

    def _container(self, number: int, kind: str, parts: Sequence[Any], hint: Hint, fresh: object) -> Any:
        found = [one for one in alternatives(hint) if one is UNDECLARED or origin_of(one) in _KINDS[kind]]
        if not found or (UNDECLARED in found and _is_present(fresh) and type(fresh).__name__ != kind):
            raise UnfitError(f"a {kind} where {_words(hint)} belongs")
        again = number in self._made
        if again and (number, found[0]) in self._read:
            return self._made[number]
        self._read.add((number, found[0]))
        made = self._filled(number, kind, parts, found[0], fresh, again=again)
        return self._made.setdefault(number, made)

    def _filled(self, number: int, kind: str, parts: Sequence[Any], hint: Hint, fresh: object, *, again: bool) -> Any:
        """Make a container; with `again`, only check its contents against another type."""
        if kind in _MAPPINGS_BY_NAME:
            mapping = _MAPPINGS_BY_NAME[kind]()
            if not again:
                self._made[number] = mapping  # before its contents, which may refer to it
            of_key, of_value = _split_mapping(hint, kind)
            before = fresh if isinstance(fresh, dict) else {}
            for key_ref, ref in parts[0]:
                key = _key(self.value(key_ref, of_key, NOTHING))
                mapping[key] = self.value(ref, of_value, before.get(key, NOTHING))
            return mapping
        several: list[Any] = []
        if kind == "list" and not again:
            self._made[number] = several
        several.extend(self._elements(kind, parts[0], hint, fresh))
        if kind == "list":
            return several
        if kind == "deque":
            return deque(several, parts[1])
        return _FIXED[kind](several if kind == "tuple" else map(_key, several))

    def _elements(self, kind: str, refs: list[Any], hint: Hint, fresh: object) -> Iterator[Any]:
        before = fresh if isinstance(fresh, list | tuple) else ()
        hints = typing.get_args(hint)
        if kind == "tuple" and hints and origin_of(hint) is tuple and hints[-1] is not Ellipsis:
            if len(hints) != len(refs):
                raise UnfitError(f"{len(refs)} things where {_words(hint)} belongs")
        else:
            hints = (hints[0] if hints else UNDECLARED,) * len(refs)
            if kind == "list" and hints and hints[0] is UNDECLARED and len(before) not in (0, len(refs)):
                raise UnfitError(f"{len(refs)} things where {len(before)} belong")
        for place, (ref, one) in enumerate(zip(refs, hints, strict=True)):
            yield self.value(ref, one, before[place] if place < len(before) else NOTHING)


def _split_mapping(hint: Hint, kind: str) -> tuple[Hint, Hint]:
    parts = typing.get_args(hint)
    if kind == "Counter":
        return (parts[0] if parts else UNDECLARED), int
    return parts or (UNDECLARED, UNDECLARED)


def number_in(ref: Any) -> int:
    """Return the number of the node that [number] refers to."""
    (number,) = ref
    if type(number) is not int or number < 0:
        raise UnfitError(f"a reference to {number!r}")
    return number


def _is_present(fresh: object) -> bool:
    return fresh is not NOTHING and fresh is not None


def _is_protocol(hint: Hint) -> bool:
    return bool(getattr(hint, "_is_protocol", False))


def _words(hint: Hint) -> str:
    return "something else" if hint is UNDECLARED else str(getattr(hint, "__name__", hint))


def _checked(value: Any, hint: Hint, fresh: object) -> Any:
    if not any(_fits(value, one, fresh) for one in alternatives(hint)):
        raise UnfitError(f"a {type(value).__name__} where {_words(hint)} belongs")
    if isinstance(value, np.ndarray) and isinstance(fresh, np.ndarray):
        another = value.shape != fresh.shape and fresh.size
        if another or value.dtype != fresh.dtype:
            raise UnfitError(f"{value.dtype}{value.shape} where {fresh.dtype}{fresh.shape} belongs")
    return value


def _fits(value: Any, hint: Hint, fresh: object) -> bool:
    if hint is UNDECLARED or hint is abc.Hashable:
        return _is(value, _kind_of(fresh)) if _is_present(fresh) else isinstance(value, _ANY)
    if origin_of(hint) is typing.Literal:
        return any(type(value) is type(one) and value == one for one in typing.get_args(hint))
    if isinstance(value, range):
        return origin_of(hint) is abc.Sequence
    return _is(value, origin_of(hint))


def _is(value: Any, kind: Hint) -> bool:
    if isinstance(value, bool | np.bool_):
        return kind is bool
    return isinstance(value, _SCALARS.get(kind, kind if kind in _OF_NUMPY else ()))


def _kind_of(fresh: object) -> Hint:
    if isinstance(fresh, np.generic):
        fresh = fresh.item()
    return next((one for one in _OF_NUMPY if isinstance(fresh, one)), type(fresh))


def _key(value: Any) -> Any:
    """Return a key of plain values at every depth: hashing it calls no code of fedgossip."""
    if isinstance(value, tuple | frozenset):
        for one in value:
            _key(one)
    elif type(value) not in (NoneType, bool, int, float, str, bytes):
        raise UnfitError(f"a {type(value).__name__} as a key")
    return value
