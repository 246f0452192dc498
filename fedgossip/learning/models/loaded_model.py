"""A trained model as a whole: all its tensors and the facts for its use, and a model loaded from its folder.

A loaded model is a callable on examples in their original units.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgossip.base.errors import ConfigError, FedgossipError, TrainingError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.run_format import MODEL_CODE, TREES
from fedgossip.core.task import STATISTIC, Segment, Tensors, WholeModel, first_wrong
from fedgossip.data.custom import check_allowed, code_in, code_of, importing_nothing, modules_of
from fedgossip.data.dataset import OF_COLUMNS, Dataset
from fedgossip.data.objectives import MULTI_LABEL, REGRESSION, Objective
from fedgossip.learning.measuring import ROWS, Measuring, as_learned, like_of
from fedgossip.learning.models import architectures, models
from fedgossip.learning.models.model_files import (
    RATES,
    ColumnScale,
    ModelFacts,
    content_of,
    facts_of,
    find_folder,
    tensors_of,
)
from fedgossip.learning.models.trees import TreeMargins, decoded_trees
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.losses import fitted
from fedgossip.learning.one_model.module_engine import PERSONAL
from fedgossip.learning.settings import TrainSettings


class LoadedModel:
    """A model at the end of its run; call it with unscaled examples [m, ...].

    It returns float64: probabilities [m, classes], or of each label [m, k]; of a regression numbers [m, k] in the
    labels' units; of text the next character's probabilities [m, context, vocabulary].  `facts` are the contents of
    model.json.
    """

    def __init__(self, facts: ModelFacts, module: nn.Module, folder: Path) -> None:
        self.facts, self.module, self._folder = facts, module.eval(), folder

    def __call__(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Raises ConfigError for examples of another shape; TrainingError if the module raises."""
        return self._answers(self._scaled(np.asarray(x)))

    def predict_scaled(self, examples: Dataset) -> npt.NDArray[np.float64]:
        """Return the result of a call for already scaled examples.

        Raises ConfigError for another scale or kind.
        """
        ours = self.like
        if (examples.kind, examples.mean, examples.deviation) != (ours.kind, ours.mean, ours.deviation):
            text = f"{examples.name}: examples of {examples.kind}, on another scale than the model learned from"
            raise ConfigError(text, "Name the experiment that the model was trained by, with the same agreed.json.")
        return self._answers(self._checked(examples.x))

    def _answers(self, x: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        outputs = self.outputs_of(x).double()
        if self.facts.kind == REGRESSION:
            return self.like.in_units(outputs.reshape(len(outputs), -1).numpy())
        shares = outputs.sigmoid() if self.facts.kind == MULTI_LABEL else outputs.softmax(-1)
        return shares.reshape(len(shares), -1).numpy() if self.facts.kind == MULTI_LABEL else shares.numpy()

    def having(self, module: nn.Module, **facts: Any) -> LoadedModel:
        """Return the same model with other layers, and with `facts` replaced."""
        return LoadedModel(msgspec.structs.replace(self.facts, **facts), module, self._folder)

    @property
    def like(self) -> Dataset:
        """Return one empty example, with the columns, classes and scales of the model's training data."""
        return like_of(self.facts)

    def evaluate(self, examples: Dataset) -> dict[str, float]:
        """Return "loss" and the metrics of the run, on unscaled examples.

        Raises ConfigError for another shape or kind, TrainingError for a result that is not finite.
        """
        scaled = as_learned(examples, self.facts)
        with _modules_of(self.facts):
            measuring = Measuring(self.facts, scaled, self._base)
        return measuring.measure(lambda rows: self.outputs_of(self._checked(scaled.x[rows])), self.unusable)

    def unusable(self, what: str) -> TrainingError:
        """Return the error of a model with outputs that are not finite; `what` describes them; it names the first wrong
        tensor.
        """
        tensors = {name: one.numpy() for name, one in self.module.state_dict().items() if one.is_floating_point()}
        each = (first_wrong(one.reshape(-1), [Segment(name, 0, one.shape, STATISTIC)]) for name, one in tensors.items())
        tensor = next(filter(None, each), "")
        which = f"tensor {tensor!r} is the first that is not right" if tensor else "its weights are all finite"
        return TrainingError(
            f"the model cannot be used: its {what}; {which}", "Train it again, with a smaller train.lr."
        )

    @property
    def _base(self) -> Path:
        return self._folder / MODEL_CODE

    def _scaled(self, x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        if x.dtype.kind not in "fiub":
            raise ConfigError(f"examples of type {x.dtype}", "They are numbers, as the model learned from.")
        x = self._checked(x)
        if self.facts.scale is None:
            return x
        mean, deviation = (np.array(one).reshape(self.facts.shape) for one in (self.like.mean, self.like.deviation))
        return np.asarray((x - mean) / deviation, np.float32)

    def _checked(self, x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        if x.shape[1:] != self.facts.shape or x.ndim < 1:
            text = f"examples of shape {tuple(x.shape[1:])}; the model learned from {self.facts.shape}"
            raise ConfigError(text, "One example is one row: x[None] for a single one.")
        return x

    @torch.no_grad()
    def outputs_of(self, x: npt.NDArray[np.generic]) -> torch.Tensor:
        """Return the module's outputs for scaled examples, float32.  Raises TrainingError if the module raises."""
        kind = np.int64 if self.facts.vocabulary is not None else np.float32
        parts = []
        try:
            for start in range(0, len(x), ROWS):
                parts.append(self.module(torch.from_numpy(np.array(x[start : start + ROWS], kind))).float())
        except FedgossipError:
            raise
        except Exception as error:
            raise TrainingError(f"the model raised {error!r}", "Does it fit the examples?") from error
        outputs = torch.cat(parts) if parts else torch.zeros((0, self.facts.outputs))
        labels = torch.zeros((len(outputs), self.facts.outputs))
        return fitted(outputs, labels) if self.facts.kind in OF_COLUMNS else outputs


def load_model(path: Path | str, *, node: int | None = None, run_code: bool = False) -> LoadedModel:
    """Return the model of a run directory, or of its folder model/.

    `node`: the node whose personal layers to use, if some stay at the nodes.  `run_code`: run the copied modules of the
    model's author, a program.  Raises ConfigError for an incomplete model, and for one that cannot be rebuilt.
    """
    folder = find_folder(Path(path))
    facts = facts_of(folder)
    if not facts.source:
        advice = "Load weights.safetensors into the module that you trained: safetensors.torch.load_file."
        raise ConfigError(f"{folder}: tensors of a task without a recipe for its model", advice)
    _check_code(folder, facts, run_code)
    if facts.document:
        return LoadedModel(facts, _trees(folder, facts), folder)
    tensors = tensors_of(folder, facts, node)
    vocabulary = len(facts.vocabulary) if facts.vocabulary is not None else None

    def built() -> nn.Module:
        if facts.source == RATES:
            return models.rates(math.prod(facts.shape))
        return models.build(facts.source, facts.shape, facts.outputs, facts.seed, vocabulary, base=folder / MODEL_CODE)

    with _modules_of(facts):
        if not code_in(facts):  # sizes in a file allocate no memory before they match its tensors
            with torch.device("meta"):
                _check_parts(folder, facts, built, tensors)
        module = _check_parts(folder, facts, built, tensors)
    parts = parts_of(module)
    with torch.no_grad():
        for name, tensor in tensors.items():
            parts[name].copy_(torch.from_numpy(tensor))
    return LoadedModel(facts, module, folder)


ANOTHER = "makes another model than the one that was saved"


def _check_parts(folder: Path, facts: ModelFacts, built: Callable[[], nn.Module], tensors: Tensors) -> nn.Module:
    """Return the result of `built`.  Raises ConfigError unless its tensors are the folder's."""
    advice = "Does its function depend on this machine, or on the release of a library?"
    text = f"{folder}: {facts.source[:100]} {ANOTHER}"
    try:
        module = built()
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes that torch rejects
        raise ConfigError(f"{text}: {str(error).partition(chr(10))[0][:200]}", advice) from error
    if {name: tensor.shape for name, tensor in parts_of(module).items()} != {
        name: tensor.shape for name, tensor in tensors.items()
    }:
        raise ConfigError(text, advice)
    return module


def _trees(folder: Path, facts: ModelFacts) -> nn.Module:
    file = decoded_trees(content_of(folder, facts), str(folder / TREES))
    if facts.shape != (len(facts.columns),):  # it determines the allocated memory
        raise ConfigError(f"{folder}: {facts.source[:100]} {ANOTHER}", "Copy the folder again.")
    return TreesModule(TreeMargins(file, facts.columns), two=len(facts.classes) == 2)


class TreesModule(nn.Module):
    """Boosted trees as a module: returns logits, or numbers in deviations of the label, for scaled examples."""

    def __init__(self, margins: TreeMargins, *, two: bool) -> None:
        super().__init__()
        self.margins, self._two = margins, two

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.from_numpy(self.margins(x.numpy()))
        return torch.cat([torch.zeros_like(found), found], dim=1) if self._two else found  # the first class's are zero


def _check_code(folder: Path, facts: ModelFacts, run_code: bool) -> None:
    """Raise ConfigError for unapproved or changed code; the names in use decide, not model.json."""
    names = code_in(facts)
    origin = f"included: {', '.join(facts.modules[:5])}" if facts.modules else "is not in its folder"
    check_allowed(names, folder, run_code=run_code, whose=f"the model is made by code that {origin}")
    if code_of(names, folder / MODEL_CODE) != facts.code:
        raise ConfigError(f"{folder / MODEL_CODE}: not the code that model.json describes", "Copy the folder again.")


@contextmanager
def _modules_of(facts: ModelFacts) -> Iterator[None]:
    if not code_in(facts):
        with importing_nothing(facts.source):
            yield
        return
    names = {file.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".") for file in facts.modules}
    names |= {name.partition(".")[0] for name in names}
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


Memory = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Recipe:
    """The sources of a model: its construction and its data; `like` is one example."""

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
        return [*filter(None, [architectures.CODE.find_name(self.source)]), *self.objective.functions]

    def code(self) -> dict[str, bytes]:
        """Return the user's modules by their paths in one folder."""
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


def build_whole_model(
    recipe: Recipe,
    module: nn.Module,
    layout: Layout,
    settings: TrainSettings,
    vector: Vector,
    memories: Mapping[NodeId, Memory],
    node: NodeId | None,
) -> WholeModel:
    """Return the model of `vector`, in `module`, with the tensors of `node`, or of all nodes, in `memories`."""
    layout.write(module, vector)
    personal = Layout.personal_of(module, settings.stays)
    about = {**recipe.facts(layout.schema), "node": node}
    if node is not None:
        own = _select_own(personal, memories.get(node, {}))
        return WholeModel({**_tensors(module), **own}, about, recipe.code())
    lacks = (*personal.names, *(_statistics(module) if settings.buffers == "local" else ()))
    parts = {who: _select_own(personal, memory) for who, memory in sorted(memories.items())} if lacks else {}
    return WholeModel(_tensors(module), about, recipe.code(), lacks, {who: own for who, own in parts.items() if own})


def _select_own(personal: Layout, memory: Memory) -> dict[str, npt.NDArray[Any]]:
    """Return a node's part of its model: personal parameters, local buffers."""
    found = {}
    if PERSONAL in memory:
        found = {name: np.array(memory[PERSONAL][where]).reshape(shape) for name, where, shape in personal.places()}
    return found | {name[7:]: np.array(kept) for name, kept in memory.items() if name.startswith("buffer:")}


def _statistics(module: nn.Module) -> Iterable[str]:
    """Yield the names of running statistics."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.running_mean is not None:
            yield from (f"{name}.running_mean".lstrip("."), f"{name}.running_var".lstrip("."))


def parts_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module by their names."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _tensors(module: nn.Module) -> Tensors:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in parts_of(module).items()}
