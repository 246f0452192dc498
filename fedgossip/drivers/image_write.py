"""A simulation as plain data and arrays, and back: every machine, message under way, timer and random stream.

An image is taken between two instants, and is restored into a simulation newly made from the same experiment.  The
image contains neither callables nor anything that follows from the experiment alone (the graph, the task, the fault
script): the new simulation keeps its own.  It contains no cached properties either: they follow from the other
attributes of their object and are computed again; none holds state.  Types are checked: an attribute takes its declared
type, and an object without one takes the class of its counterpart.  An object with two references is one object again
afterwards.  Attributes are set; nothing is called, imported or unpickled, and no class is looked up by a name in the
image.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from enum import Enum
from types import FunctionType, MethodType, NoneType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ResumeError
from fedgossip.drivers.image_restore import NOTHING, Reader, UnfitError, number_in
from fedgossip.drivers.image_types import UNDECLARED, attributes, is_ours, name_of, state
from fedgossip.runs.checkpoints import DTYPES

Array = npt.NDArray[Any]

_PLAIN = (NoneType, bool, int, float, str)
_LONGEST = 1 << 63

_MAPPINGS = (dict, Counter, OrderedDict)
_CONTAINERS = (list, tuple, set, frozenset)
_WITH_CONTENTS = (*_CONTAINERS, dict, deque, int, float, str, bytes)
"""A subclass of these has contents that are no attributes."""


class ImageError(Exception):
    """Part of a simulation cannot be written to an image; the run goes on without images."""


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
    """Numbers every object that it meets; the table of nodes refers to objects by number."""

    def __init__(self, known: Known) -> None:
        self.nodes: list[Any] = []
        self.arrays: list[Array] = []
        self._numbers: dict[int, int] = {}
        self._known = known
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
            case int() | bytes() if type(value) in (int, bytes):
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


def taken(objects: Sequence[object], data: object, known: Mapping[str, object]) -> dict[str, Array]:
    """Return the attributes of `objects`, and plain `data`, as named arrays, for a checkpoint.

    `known`: objects made from the experiment, by name.  Raises ImageError for a value that cannot be written.
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
    arrays: Mapping[str, Array], objects: Sequence[object], known: Mapping[str, object]
) -> tuple[list[dict[str, Any]], Any]:
    """Return the arguments of `taken`: the attributes of each object, and the data.

    `objects` and `known` are those of a newly made simulation and stay unchanged.  Raises ResumeError for data that are
    not an image of this version, or of another simulation.
    """
    try:
        start, nodes = msgspec.msgpack.decode(arrays["table"].tobytes())
        numbered = {int(name.partition("/")[2]): array for name, array in arrays.items() if name != "table"}
        reader = Reader(nodes, numbered, Known(known).name_of)
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
