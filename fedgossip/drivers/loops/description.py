"""A loop's description of its model before its run, for the launcher, a coordinator, and its next incarnation; and the
experiment of launched loops without a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, reason
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.run_format import LOOP, LOOP_FIRST
from fedgossip.core.task import PARAMETER, Segment
from fedgossip.drivers.loops.task import DescribedTask
from fedgossip.experiment.sections import ENDLESS
from fedgossip.learning.one_model.flat import Layout
from fedgossip.plans.compose import DataShares
from fedgossip.runs.run_directory import write_whole


class Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    kind: str = PARAMETER
    type: str = ""
    """Its dtype in the loop if tensors differ from the vector; "": that of the vector."""


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

    def difference(self, other: LoopModel) -> str:
        """Return the first difference between the layouts in words, from the point of view of `other`."""
        for mine, theirs in zip(self.tensors, other.tensors, strict=False):
            if (mine.name, mine.shape) != (theirs.name, theirs.shape):
                return f"{mine.name!r} {mine.shape} here is {theirs.name!r} {theirs.shape} there"
            if (ours := mine.type or self.dtype) != (type := theirs.type or other.dtype):
                return f"{mine.name!r} of {ours} here is of {type} there"
        longer, side = (self, "here") if len(self.tensors) > len(other.tensors) else (other, "there")
        beyond = longer.tensors[min(len(self.tensors), len(other.tensors)) :]
        return f"{beyond[0].name!r} is {side} alone" if beyond else "its set of parameters differs"


@dataclass(frozen=True)
class Described:
    """A loop's model, and its initial weights."""

    model: LoopModel
    first: Vector

    def task(self) -> DescribedTask:
        return DescribedTask(self.first, self.model.segments, self.model.schema, self.model.likeness)

    @property
    def learning(self) -> tuple[DescribedTask, DataShares]:
        """Return the task and shares for a participant or a collector, in place of the task that only loops have."""
        return self.task(), DataShares("the loops' own")

    def keep(self, folder: Path) -> None:
        """Write it into the folder of a participant without a loop.  Raises NotWrittenError."""
        describe(folder, self.model, self.first)


def first_description(folders: Sequence[Path]) -> Described | None:
    """Return the first loop's description from these folders, or their subfolders; None if no loop took part."""
    inside = [one for folder in folders for one in (folder, *sorted(folder.glob("*/")))]
    return next((described(folder) for folder in inside if is_described(folder)), None)


def describe(folder: Path, model: LoopModel, first: Vector) -> LoopModel:
    """Write a loop's initial state into its folder; in a later incarnation, return the description of the first.

    It includes frozen parameters, which may change (a teacher, a target network).  Raises NotWrittenError.
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


def check_alike(models: Sequence[LoopModel]) -> None:
    """Raise ConfigError, naming the first different parameter, for loops with models that cannot be averaged."""
    for node, one in enumerate(models):
        if one.schema != models[0].schema:
            text = f"loops 0 and {node} have different models: {models[0].difference(one)} (here 0, there {node})"
            raise ConfigError(text, "All loops need the same model; requires_grad decides which tensors are exchanged.")
        if unlike := models[0].likeness.unlike(one.likeness):
            what = "first weights" if "probe" in unlike else "frozen parameters"
            advice = "Make the model from the same seed, for example torch.manual_seed(0), or from the same checkpoint."
            raise ConfigError(f"loops 0 and {node} begin with different {what}", advice)


def is_described(folder: Path) -> bool:
    """Return whether the loop of `folder` has written its description."""
    return (folder / LOOP).exists()


def model_of(layout: Layout, like: Likeness) -> LoopModel:
    """Return the description of a layout."""
    types = layout.types or ("",) * len(layout.names)
    both = zip(layout.segments, types, strict=True)
    tensors = [Tensor(one.name, list(one.shape), one.kind, type) for one, type in both]
    return LoopModel(layout.schema, layout.kind, tensors, list(like.frozen), list(like.probe))


def _read(path: Path) -> LoopModel:
    try:
        return from_json(msgspec.json.Decoder(LoopModel), outside_files.read_bytes(path))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{path}: cannot be read: {reason(error)}", "Start the run in a new folder.") from None


@dataclass(frozen=True)
class Wished:
    """Options of the command line; None: not given."""

    n: int | None = None
    graph: str | None = None
    coordinator: bool = False
    algorithm: str | None = None
    mode: str | None = None
    rounds: int | None = None
    local_steps: int | None = None
    name: str = ""

    def overrides(self, experiment: Path | None) -> list[str]:
        """Return the options given in addition to a file, as texts of --set.

        Raises ConfigError for options that must be in the file.
        """
        if experiment is None:
            return []
        if self.graph or self.coordinator or self.n is not None:
            advice = "Change it there, or with --set topology.n=..."
            raise ConfigError(f"-n, --graph and --coordinator stand in {experiment} already", advice)
        return [f"{key}={value}" for key, value in self.keys.items() if value is not None]

    @property
    def keys(self) -> dict[str, object]:
        """The options by the keys of an experiment."""
        size, name = "topology.n", "algorithm.name"
        if self.coordinator:
            size, name = "coordinator.clients", "coordinator.algorithm"
        values = {size: self.n, name: self.algorithm, "topology.graph": self.graph, "algorithm.mode": self.mode}
        return {**values, "rounds": self.rounds, "train.local_steps": self.local_steps}


def experiment_of(wished: Wished) -> dict[str, Any]:
    """Return the requested experiment, in a file's shape.  Raises ConfigError."""
    if wished.n is None:
        raise ConfigError("how many loops?", "Give -n 4, or --experiment FILE.")
    content: dict[str, Any] = {"name": wished.name, "task": {"kind": "loop"}}
    if wished.local_steps is not None:
        content["train"] = {"local_steps": wished.local_steps}
    if wished.coordinator:
        return content | _federated(wished)
    if wished.n == 1 and wished.graph not in (None, "none"):
        raise ConfigError(f"one loop has no other to exchange with on {wished.graph!r}", "Leave --graph out.")
    graph = wished.graph or ("ring" if wished.n > 1 else "none")
    content["topology"] = {"graph": graph, "n": wished.n}
    algorithm = {"name": wished.algorithm, "mode": wished.mode}
    content["algorithm"] = {key: value for key, value in algorithm.items() if value is not None}
    return content | {"rounds": wished.rounds or ENDLESS}


def _federated(wished: Wished) -> dict[str, Any]:
    if wished.graph or wished.mode:
        given = "--graph" if wished.graph else "--mode"
        raise ConfigError(f"--coordinator and {given}", "Clients have no neighbours: give one of them.")
    section: dict[str, Any] = {"clients": wished.n}
    if wished.algorithm:
        section["algorithm"] = wished.algorithm
    return {"coordinator": section, "rounds": wished.rounds or ENDLESS}
