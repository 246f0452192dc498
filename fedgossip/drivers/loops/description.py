"""A loop's description of its model before its run begins: for the launcher, a coordinator, and its own next life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.run_format import LOOP, LOOP_FIRST
from fedgossip.core.task import PARAMETER, Segment
from fedgossip.drivers.loops.task import DescribedTask
from fedgossip.plans.compose import DataShares
from fedgossip.runs.run_directory import write_whole


class Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    kind: str = PARAMETER


class LoopModel(msgspec.Struct):
    """loop.json: the layout of a loop's exchanged tensors, and the properties that other loops must share."""

    schema: str
    dtype: str
    tensors: list[Tensor]
    frozen: list[float] = []
    first: list[float] = []

    @property
    def segments(self) -> tuple[Segment, ...]:
        found, start = [], 0
        for one in self.tensors:
            found.append(Segment(one.name, start, tuple(one.shape), one.kind))
            start = found[-1].stop
        return tuple(found)

    @property
    def likeness(self) -> Likeness:
        return Likeness(frozen=tuple(self.frozen), probe=tuple(self.first))


@dataclass(frozen=True)
class Described:
    """A loop's model, and the weights that it began with."""

    model: LoopModel
    first: Vector

    def task(self) -> DescribedTask:
        return DescribedTask(self.first, self.model.segments, self.model.schema, self.model.likeness)

    @property
    def learning(self) -> tuple[DescribedTask, DataShares]:
        """The task and shares for a participant, or a collector, in place of the task that only loops have."""
        return self.task(), DataShares("the loops' own")

    def keep(self, folder: Path) -> None:
        """Write it into the folder of a participant that has no loop.  Raises NotWrittenError."""
        describe(folder, self.model, self.first)


def first_description(folders: Sequence[Path]) -> Described | None:
    """Return the first loop's description from these folders, or from those in them; None where no loop took part."""
    inside = [one for folder in folders for one in (folder, *sorted(folder.glob("*/")))]
    return next((described(folder) for folder in inside if is_described(folder)), None)


def describe(folder: Path, model: LoopModel, first: Vector) -> LoopModel:
    """Write a loop's initial state into its folder; in a later life, return the description of the first.

    It includes frozen parameters: a teacher, an average, a target network has moved on since, as in the other loops.
    Raises NotWrittenError.
    """
    if (folder / LOOP).exists():
        before = _read(folder / LOOP)
        if before.schema != model.schema:
            return model
        return msgspec.structs.replace(model, first=before.first, frozen=before.frozen)
    from safetensors.numpy import save

    write_whole(folder / LOOP_FIRST, save({"vector": np.ascontiguousarray(first)}))
    write_whole(folder / LOOP, msgspec.json.encode(model))
    return model


def described(folder: Path) -> Described:
    """Return the initial description of the loop of `folder`.  Raises ConfigError."""
    from safetensors.numpy import load

    content = outside_files.read_bytes(folder / LOOP_FIRST, outside_files.LARGE)
    return Described(_read(folder / LOOP), frozen(load(content)["vector"]))


def is_described(folder: Path) -> bool:
    """Whether the loop of `folder` has written its description."""
    return (folder / LOOP).exists()


def model_of(segments: Sequence[Segment], schema: str, dtype: str, like: Likeness) -> LoopModel:
    """Return the description of a layout."""
    tensors = [Tensor(one.name, list(one.shape), one.kind) for one in segments]
    return LoopModel(schema, dtype, tensors, list(like.frozen), list(like.probe))


def _read(path: Path) -> LoopModel:
    try:
        return from_json(msgspec.json.Decoder(LoopModel), outside_files.read_bytes(path))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", "Start the run in a new folder.") from None
