"""The folder of a model, complete for a user without the rest of the run.

    model.json             its description: source, layout, classes, columns, scaling, score, versions
    weights.safetensors    every tensor, trained, frozen and local to a node
    trees.json             boosted trees, in place of weights.safetensors
    own/003.safetensors    tensors that stay at node 3, of a simulated run
    code/                  a copy of the user's modules that build it

model.json is written last: a folder without it is no model.  No torch here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError
from fedgossip.base.owner_files import make_folder
from fedgossip.core.run_format import MODEL, MODEL_BEST, MODEL_CODE, MODEL_FACTS, MODEL_OWN, TREES, WEIGHTS
from fedgossip.core.task import Tensors, WholeModel, make_contiguous
from fedgossip.data import objectives
from fedgossip.data.columns.declarations import TableEncoding
from fedgossip.learning.models import architectures

KEPT = MODEL_BEST, MODEL
"""Model folders of a run directory: commands on a run use the first existing one."""
FORMAT = 1
RATES = "glm:poisson"
"""The source of a linear layer and its exponential: rates and counts, fitted by sums and never by training."""


class ColumnScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offset subtracted from each number before training, and its divisor."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


class ModelFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of model.json."""

    format: int = FORMAT
    source: Annotated[str, architectures.CODE] = ""
    """As `model.source` in the experiment; "" if the tensors are no model that can be rebuilt."""
    kind: str = ""
    """Kind of task, as in `objectives`."""
    loss: Annotated[str, objectives.CODE] = ""
    metrics: Annotated[tuple[str, ...], objectives.CODE] = ()
    seed: int = 0
    shape: tuple[int, ...] = ()
    """Shape of one example."""
    outputs: int = 0
    """Number of outputs for an example."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of the outputs; their numbers without names."""
    columns: tuple[str, ...] = ()
    """Names of an example's numbers, for examples of a table."""
    encoding: TableEncoding | None = None
    """Mapping of columns to numbers, unless all are numbers already."""
    labels: tuple[str, ...] = ()
    """Names of the label columns."""
    vocabulary: str | None = None
    scale: ColumnScale | None = None
    label_scale: ColumnScale | None = None
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Name and shape of each tensor."""
    schema: str = ""
    """The hash of the averaged tensors: names, shapes, type."""
    lacks: tuple[str, ...] = ()
    """Tensors in their state before the training, because they stay at the nodes."""
    node: int | None = None
    """The node whose personal tensors are in the weights."""
    own: tuple[int, ...] = ()
    """The nodes with personal tensors in own/."""
    code: str = ""
    """The hash of the user's modules, as in the handshake of a link."""
    modules: tuple[str, ...] = ()
    """Their files in code/."""
    weights: str = ""
    """sha256 of weights.safetensors, or of `document`."""
    document: str = ""
    """The file of a model without tensors."""
    score: Mapping[str, Any] = {}
    """The run's measurement: the metric's name, its value, and its data."""
    versions: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        scaled = [self.scale.mean, self.scale.deviation] if self.scale and self.scale.mean else []
        lengths = {*map(len, scaled), *([len(self.encoding.features)] if self.encoding else [])}
        lengths |= {math.prod(self.shape)} if self.shape else set()
        if len(lengths) > 1:
            raise ValueError(f"columns, scale and shape of an example that differ: {sorted(lengths)} numbers")


def write_model(folder: Path, model: WholeModel, write: Callable[[Path, bytes], None], **about: Any) -> None:
    """Write a model's folder, with further facts; `write` writes a file atomically.  Raises as `write` does."""
    from safetensors.numpy import save

    facts = {**model.facts, **about}
    if model.document is None:
        schema = {"schema": str(facts.get("schema", ""))}
        facts["document"], content = "", save(make_contiguous(model.tensors), metadata=schema)
    else:
        facts["document"], content = model.document
    make_folder(folder)
    (folder / MODEL_FACTS).unlink(missing_ok=True)
    write(folder / (facts["document"] or WEIGHTS), content)
    for name, text in model.code.items():
        make_folder((folder / MODEL_CODE / name).parent)
        write(folder / MODEL_CODE / name, text)
    for node, tensors in model.own.items():
        make_folder(folder / MODEL_OWN)
        write(folder / MODEL_OWN / f"{node:03d}.safetensors", save(make_contiguous(tensors)))
    facts |= {
        "layout": [[name, list(tensor.shape)] for name, tensor in model.tensors.items()],
        "lacks": model.lacks,
        "own": sorted(model.own),
        "modules": sorted(model.code),
        "weights": hashlib.sha256(content).hexdigest(),
    }
    checked = msgspec.convert(msgspec.to_builtins(facts), ModelFacts)
    write(folder / MODEL_FACTS, msgspec.json.format(msgspec.json.encode(checked), indent=1))


def find_folder(path: Path) -> Path:
    """Return a model's folder: `path`, or the model folder of a run's best round, else of its last.  Raises
    ConfigError.
    """
    for folder in (path, *(path / kept for kept in KEPT)):
        if (folder / MODEL_FACTS).is_file():
            return _checked(folder, path)
    if (path / WEIGHTS).is_file():
        raise ConfigError(
            f"{path}: weights and no {MODEL_FACTS}", "It was not written to its end, or not copied whole."
        )
    raise ConfigError(f"{path}: no model there", f"Name a run directory, or its folder {MODEL}/.")


def _checked(folder: Path, path: Path) -> Path:
    """Return a model's folder.  Raises ConfigError if a link points outside it."""
    try:
        return outside_files.check_folder(folder, within=path)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror}", "Copy the folder again.") from None


def facts_of(folder: Path) -> ModelFacts:
    """Read the description of a model.  Raises ConfigError for an unreadable file, and for another format."""
    path = folder / MODEL_FACTS
    try:
        facts = from_json(msgspec.json.Decoder(ModelFacts), outside_files.read_bytes(path))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", f"A model is a folder with {MODEL_FACTS} and {WEIGHTS}."
        ) from None
    except UnreadableError as error:
        raise ConfigError(f"{path}: cannot be read: {error}", "Copy the folder again.") from None
    advice = "Use the release of fedgossip that wrote it."
    if facts.format != FORMAT:
        raise ConfigError(f"{path}: format {facts.format}; this is fedgossip for format {FORMAT}", advice)
    if facts.document not in ("", TREES):  # a name that would be opened
        raise ConfigError(f"{path}: a model in {facts.document!r}, which this release does not know", advice)
    return facts


def weights_file(facts: ModelFacts) -> str:
    """Return the name of the model's weights file in its folder."""
    return facts.document or WEIGHTS


def content_of(folder: Path, facts: ModelFacts) -> bytes:
    """Read the weights file of the model.  Raises ConfigError for a file with another hash."""
    path = folder / weights_file(facts)
    content = _bytes(path)
    if hashlib.sha256(content).hexdigest() != facts.weights:
        raise ConfigError(f"{path}: not the weights that {MODEL_FACTS} describes", "Copy the folder again.")
    return content


def read_checked_facts(path: Path) -> ModelFacts:
    """Return the description of a model, after checking its weights.  Raises ConfigError."""
    folder = find_folder(path)
    facts = facts_of(folder)
    content_of(folder, facts)
    return facts


def tensors_of(folder: Path, facts: ModelFacts, node: int | None = None) -> Tensors:
    """Read the weights, including those that stay at `node`.

    Raises ConfigError for a file with another hash, and if the node's tensors are missing.
    """
    path, content = folder / WEIGHTS, content_of(folder, facts)
    if node not in (None, facts.node) and not facts.lacks:
        raise ConfigError(f"{folder}: no layers of it stay at a node", "Leave --node, or node=, out.")
    own = _read_own(folder, facts, node) if facts.lacks else {}
    tensors = {**_unpacked(path, content), **own}
    if [(name, tuple(tensors[name].shape)) for name, _ in facts.layout if name in tensors] != list(facts.layout):
        raise ConfigError(f"{path}: other tensors than {MODEL_FACTS} describes", "Copy the folder again.")
    return tensors


def _read_own(folder: Path, facts: ModelFacts, node: int | None) -> Tensors:
    if node is None:
        text = f"{folder}: {', '.join(facts.lacks[:3])} stay at the peers, and are not in the average of their models"
        known = f"Name one of {_ranges(facts.own)} with --node, load_model(path, node=...)" if facts.own else ""
        raise ConfigError(text, f"{known or 'Use the model of one peer: peers/00/model, or that of a client'}.")
    if node not in facts.own:
        text = f"{folder}: nothing there of node {node}"
        raise ConfigError(text, f"There are {_ranges(facts.own)}." if facts.own else "Use that peer's own folder.")
    path = folder / MODEL_OWN / f"{node:03d}.safetensors"
    return _unpacked(path, _bytes(path))


def _ranges(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes[:20])) + (", ..." if len(nodes) > 20 else "")


def _bytes(path: Path) -> bytes:
    try:
        return outside_files.read_bytes(path, outside_files.LARGE, within=path.parent)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "Copy the folder again.") from None


def _unpacked(path: Path, content: bytes) -> dict[str, npt.NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return {name: np.array(tensor) for name, tensor in load(content).items()}
    except (SafetensorError, ValueError, KeyError) as error:
        raise ConfigError(f"{path}: not tensors: {error}", "Copy the folder again.") from None
