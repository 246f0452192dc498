"""The common part of the adapters: a model's arrays as the vector of a sum, and the replies of a stage."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from logging import Logger
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.secure import Reason, RoundAbandoned, SumClient, SumServer

RECORD = "fedgossip"
"""Name of a message's record with its frame."""

Arrays = Mapping[str, npt.NDArray[Any]]


def check_version(package: str, framework: str, tested: Sequence[str]) -> None:
    """Warn of a version outside `tested`, which lists versions without their last number."""
    if (found := version(package)).split(".")[:2] not in [one.split(".") for one in tested]:
        warnings.warn(f"{framework} {found} is untested; tested: {' and '.join(tested)}", stacklevel=3)


def model_bytes(arrays: Arrays) -> bytes:
    """Return the model as the bytes that all participants of a round compare."""
    return b"".join(f"{name!r} {one.dtype} {one.shape}\n".encode() + one.tobytes() for name, one in arrays.items())


def flat(arrays: Arrays) -> npt.NDArray[np.float64]:
    """Return all elements, [length], in the order of the arrays."""
    return np.concatenate([np.zeros(0), *(one.astype(np.float64).reshape(-1) for one in arrays.values())])


def moved(arrays: Arrays, change: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays plus a change [length]; integers become float64."""
    parts, at = {}, 0
    for name, old in arrays.items():
        new = old + change[at : at + old.size].reshape(old.shape)
        parts[name], at = (new.astype(old.dtype) if old.dtype.kind == "f" else new), at + old.size
    return parts


def check_length(server: SumServer, arrays: Arrays) -> None:
    """Raise ConfigError for a model with another length than the encoding's."""
    size, length = sum(one.size for one in arrays.values()), server.encoding.ring.length
    if size != length:
        text = f"a model of {size} numbers; the encoding is of {length}"
        raise ConfigError(text, f"Encoding(length={size}, ...), at all participants.")


def give(
    client: SumClient,
    round: int,
    before: Arrays,
    after: Arrays,
    metrics: dict[str, Any],
    weight: str,
    log: Logger | None,
) -> None:
    """Add a client's change of the model to the sum of a round, with its metrics; one of them is its `weight`.

    Raises RoundAbandoned (SCHEMA, OVERFLOW) without a value: frameworks send an exception's text to the server.
    """
    if [(name, one.shape) for name, one in after.items()] != [(name, one.shape) for name, one in before.items()]:
        raise RoundAbandoned(Reason.SCHEMA, "the trained arrays have other names or shapes than the received ones")
    if metrics.keys() != (names := {weight, *dict(client.encoding.ring.metrics)}):
        text = f"a reply with the metrics {sorted(metrics)}; the weight and Encoding(metrics=) are {sorted(names)}"
        raise RoundAbandoned(Reason.SCHEMA, text)
    rest = {name: value for name, value in metrics.items() if name != weight}
    try:
        client.give(round, flat(after) - flat(before), weight=metrics[weight], metrics=rest)
    except RoundAbandoned as error:
        if log:
            log.warning("secure sum: %s", error)  # with the value, only on this machine
        raise RoundAbandoned(error.reason, "values that the encoding does not represent") from None


def take(
    server: SumServer, replies: Iterable[tuple[Any, Mapping[str, Any] | str]], senders: dict[int, Any], log: Logger
) -> dict[int, bytes]:
    """Return the frames of the next stage, by place, after the replies of a stage: (sender, record, or the reason for
    none).

    `senders`: sender of each client that has replied, by its place.  Raises RoundAbandoned.
    """
    for sender, record in replies:
        try:
            if isinstance(record, str):
                raise ProtocolError(record)
            place, frame = record.get("place"), record.get("frame")
            if not isinstance(place, int) or not isinstance(frame, bytes) or senders.get(place, sender) != sender:
                raise ProtocolError("no frame of an awaited client", "Does its adapter run before all other parts?")
            frames = server.take(place, frame)
        except ProtocolError as error:
            log.warning("secure sum: the reply of node %s is left out: %s", sender, error)
            continue
        senders[place] = sender
        if frames:
            return frames
    return server.close()
