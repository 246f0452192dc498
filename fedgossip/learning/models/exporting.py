"""A trained model as a whole: all its tensors, and the facts for its use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Tensors, WholeModel
from fedgossip.data.custom import code_of, modules_of
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import Objective
from fedgossip.learning.models import architectures
from fedgossip.learning.models.model_files import ColumnScale
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.module_engine import PERSONAL
from fedgossip.learning.settings import TrainSettings

Memory = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Recipe:
    """The sources of a model: its construction and its data; `like` is one example of them."""

    source: str
    seed: int
    like: Dataset
    objective: Objective
    base: Path | None = None

    def facts(self, schema: str) -> dict[str, Any]:
        """Return the fields of `model_files.ModelFacts`."""
        like, named = self.like, self._functions
        return {
            "source": self.source,
            "kind": like.kind,
            "loss": self.objective.loss,
            "metrics": self.objective.metrics,
            "seed": self.seed,
            "shape": like.shape,
            "outputs": like.outputs,
            "classes": like.class_names or tuple(map(str, range(like.classes))),
            "columns": like.columns,
            "encoding": like.encoding,
            "labels": like.label_names,
            "vocabulary": like.vocabulary,
            "scale": _scale(like.mean, like.deviation),
            "label_scale": _scale(like.label_mean, like.label_deviation),
            "schema": schema,
            "code": code_of(named, self.base),
        }

    @property
    def _functions(self) -> Sequence[str]:
        return [*filter(None, [architectures.CODE.named_by(self.source)]), *self.objective.functions]

    def code(self) -> dict[str, bytes]:
        """Return the user's own modules by the path that each has below one folder."""
        files = modules_of(self._functions, self.base)
        return {_place(name, path): path.read_bytes() for name, path in sorted(files.items())}


def _scale(mean: tuple[float, ...], deviation: tuple[float, ...]) -> ColumnScale | None:
    return ColumnScale(mean, deviation) if mean else None


def _place(module: str, path: Path) -> str:
    folder = module.replace(".", "/")
    return f"{folder}/__init__.py" if path.stem == "__init__" else f"{folder}.py"


def example_of(data: Dataset) -> Dataset:
    """Return the first example alone, with all facts about the set."""
    return data.subset(np.arange(1))


def whole_model(
    recipe: Recipe,
    module: nn.Module,
    layout: Layout,
    settings: TrainSettings,
    vector: Vector,
    memories: Mapping[NodeId, Memory],
    node: NodeId | None,
) -> WholeModel:
    """Return the model of `vector`, in `module`, with the tensors in `memories` of `node`, or of all nodes."""
    layout.write(module, vector)
    personal = Layout.personal_of(module, settings.stays)
    about = {**recipe.facts(layout.schema), "node": node}
    if node is not None:
        own = _own(personal, memories.get(node, {}))
        return WholeModel({**_tensors(module), **own}, about, recipe.code())
    lacks = (*personal.names, *(_statistics(module) if settings.buffers == "local" else ()))
    parts = {who: _own(personal, memory) for who, memory in sorted(memories.items())} if lacks else {}
    return WholeModel(_tensors(module), about, recipe.code(), lacks, {who: own for who, own in parts.items() if own})


def _own(personal: Layout, memory: Memory) -> dict[str, npt.NDArray[Any]]:
    """Return a node's own part of its model: personal parameters, local buffers."""
    found = {}
    if PERSONAL in memory:
        found = {name: np.array(memory[PERSONAL][where]).reshape(shape) for name, where, shape in personal.places()}
    return found | {name[7:]: np.array(kept) for name, kept in memory.items() if name.startswith("buffer:")}


def _statistics(module: nn.Module) -> Iterable[str]:
    """Yield the names of running statistics."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            yield from (f"{name}.running_mean".lstrip("."), f"{name}.running_var".lstrip("."))


def parts_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module by their names."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _tensors(module: nn.Module) -> Tensors:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in parts_of(module).items()}
