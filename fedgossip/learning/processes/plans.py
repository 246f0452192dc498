"""Division of a model's layers over processes: torch's styles by the names of the layers.

    mlp    the first layer by outputs, the next by inputs, alternating: one sum for every two layers
    gpt    queries, keys and values by heads, their output layer by inputs; the wide layer by outputs, the narrow by
           inputs; embedding and logits by the characters (Shoeybi and others, Megatron-LM, arXiv:1909.08053, 2019)
    own    the result of the user's `parallel_plan(module)`, in the module of the model's function

With `sequence`, layers between these are divided by positions of the text, and gathered before each (Korthikanti and
others, Reducing activation recomputation in large transformer models, MLSys 2023).

A model in stages is a row of modules:

    gpt           equal numbers of blocks; the first stage embeds characters, the last computes logits
    a Sequential  equal numbers of layers with weights
    own           the result of the user's `stages(module, n)`, in the module of the model's function
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

from fedgossip.base.errors import ConfigError
from fedgossip.base.limits import CalledWith, check_call
from fedgossip.data import custom
from fedgossip.learning.models import models
from fedgossip.learning.models.models import Transformer, TransformerStage
from fedgossip.learning.processes.context import check_context
from fedgossip.learning.processes.experts import check_experts
from fedgossip.learning.settings import MeshSettings

Plan = Mapping[str, ParallelStyle]
PLAN = "parallel_plan"
HOW = f"Write {PLAN}(module) next to it, torch's styles by the names of layers; docs/together/parallel.md has one."


class PackedColwise(ColwiseParallel):
    """A layer whose outputs are concatenated `matrices` of one size, each divided: a process has the same heads of Q, K
    and V.
    """

    def __init__(
        self, matrices: int, *, input_layouts: Placement | None = None, output_layouts: Placement | None = None
    ) -> None:
        super().__init__(input_layouts=input_layouts, output_layouts=output_layouts)
        self.matrices = matrices


def plan_of(module: nn.Module, source: str, base: Path | None, mesh: MeshSettings, shape: Sequence[int]) -> Plan:
    """Return the plan of the model named `source`, as in an experiment, for examples of this shape.

    `base`: folder of the user's modules.  Raises ConfigError if the model cannot be divided.
    """
    check_context(module, source, mesh, shape[0])
    check_experts(module, source, mesh)
    if mesh.tensor == 1:
        return {}
    found = _make_own_plan(module, source, base, mesh) if models.is_own(source) else _plan_of(module, source, mesh)
    if mesh.sequence and shape[0] % mesh.tensor:
        text = f"mesh.sequence: {shape[0]} places of a text for {mesh.tensor} processes"
        raise ConfigError(text, f"Set context= in data.source to a multiple of {mesh.tensor}.")
    for name, style in found.items():
        _check_layer(name, style, module, mesh.tensor)
    return found


def _plan_of(module: nn.Module, source: str, mesh: MeshSettings) -> Plan:
    if isinstance(module, Transformer):
        if module.heads % mesh.tensor:
            text = f"mesh.tensor = {mesh.tensor} for {module.heads} heads ({source})"
            advice = f"Each process has whole heads: take a multiple of {mesh.tensor}, or fewer processes."
            raise ConfigError(text, advice)
        return _transformer(len(module.blocks), sequence=mesh.sequence)
    if mesh.sequence:
        raise ConfigError(f"mesh.sequence: {source} knows no places of a text", "Leave it out, or take gpt:2-64-4.")
    if source.partition(":")[0] in ("mlp", "softmax") and isinstance(module, nn.Sequential):
        return _dense([name for name, layer in module.named_children() if isinstance(layer, nn.Linear)])
    advice = "Take mlp or gpt, or a model of your own with a plan; or divide batches alone (docs/together/parallel.md)."
    raise ConfigError(f"mesh.tensor = {mesh.tensor}: {source} has no plan of its layers", advice)


def _make_own_plan(module: nn.Module, source: str, base: Path | None, mesh: MeshSettings) -> Plan:
    plan = custom.find_beside(source, base, PLAN)
    where = f"mesh.tensor = {mesh.tensor}: {source}"
    if plan is None:
        raise ConfigError(f"{where} has no plan of its layers", HOW)
    check_call(f"{source.partition(':')[0]}:{PLAN}", plan, CalledWith(("module",), HOW))
    how = {"sequence": True} if mesh.sequence else {}
    if how and "sequence" not in inspect.signature(plan).parameters:
        raise ConfigError(f"{where}: its plan knows no sequence", f"Write {PLAN}(module, sequence), or leave it out.")
    found = custom.call_part(f"{where}: {PLAN}", plan, module, **how)
    if not isinstance(found, Mapping) or not all(isinstance(style, ParallelStyle) for style in found.values()):
        raise ConfigError(f"{where}: {PLAN} gives no styles by the names of layers", HOW)
    known = [name for name, _ in module.named_modules()]
    for name in found:
        if name not in known:
            raise ConfigError(f"{where}: {PLAN} names {name!r}, and there is no such layer", HOW)
    return found


def _dense(layers: Sequence[str]) -> Plan:
    found: dict[str, ParallelStyle] = {}
    for number, name in enumerate(layers):
        last = number == len(layers) - 1
        if number % 2:
            found[name] = RowwiseParallel()
        else:
            found[name] = ColwiseParallel(output_layouts=Replicate()) if last else ColwiseParallel()
    return found


def _transformer(layers: int, *, sequence: bool) -> Plan:
    between: Placement = Shard(1) if sequence else Replicate()  # [b, context, width] between the divided layers
    found: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "layer": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    for block in (f"blocks.{number}" for number in range(layers)):
        found[f"{block}.asked"] = PackedColwise(3, input_layouts=between)
        found[f"{block}.out"] = RowwiseParallel(output_layouts=between)
        found[f"{block}.wide"] = ColwiseParallel(input_layouts=between)
        found[f"{block}.narrow"] = RowwiseParallel(output_layouts=between)
    if sequence:
        norms = [f"blocks.{number}.{name}" for number in range(layers) for name in ("before", "between")]
        found |= {name: SequenceParallel(use_local_output=True) for name in (*norms, "behind")}
    return found


def _check_layer(name: str, style: ParallelStyle, module: nn.Module, parts: int) -> None:
    layer = module.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        return
    what, size = "", 0
    if isinstance(style, RowwiseParallel):
        what, size = "inputs", layer.in_features
    elif isinstance(style, PackedColwise):
        what, size = "outputs of each matrix", layer.out_features // style.matrices
    elif isinstance(style, ColwiseParallel) and Replicate() not in style.output_layouts:
        what, size = "outputs", layer.out_features
    if size % parts:
        text = f"mesh.tensor = {parts}: the layer {name!r} has {size} {what}"
        raise ConfigError(text, f"Take a multiple of {parts}.")


STAGES = "stages"
HOW_STAGES = (
    f"Write {STAGES}(module, n) next to it, which returns n modules of its layers; docs/together/parallel.md has one."
)


def stages_of(module: nn.Module, source: str, base: Path | None, n: int) -> Sequence[nn.Module]:
    """Return n stages of the model named `source`, which share its layers.

    Raises ConfigError if it has none.
    """
    where = f"mesh.pipeline = {n}: {source}"
    if name := next((name for name, _ in module.named_buffers()), ""):
        advice = "Take a model without BatchNorm and without buffers, for example gpt:2-64-4."
        raise ConfigError(f"{where} has the buffer {name}, and pieces of a batch would change it one by one", advice)
    found = _stages(module, source, base, n, where)
    seen = [id(parameter) for stage in found for parameter in stage.parameters()]
    named = {id(parameter): name for name, parameter in module.named_parameters()}
    if set(seen) - named.keys():
        raise ConfigError(f"{where}: a stage has a parameter that the model has not", HOW_STAGES)
    for parameter, name in named.items():
        if seen.count(parameter) != 1:
            raise ConfigError(
                f"{where}: {name} is in {seen.count(parameter)} of the stages, and belongs in one", HOW_STAGES
            )
    if not all(any(parameter.requires_grad for parameter in stage.parameters()) for stage in found):
        raise ConfigError(f"{where}: a stage has nothing to train", "Take fewer stages.")
    return found


def _stages(module: nn.Module, source: str, base: Path | None, n: int, where: str) -> Sequence[nn.Module]:
    if models.is_own(source) and (own := custom.find_beside(source, base, STAGES)):
        check_call(f"{source.partition(':')[0]}:{STAGES}", own, CalledWith(("module", "n"), HOW_STAGES))
        found = custom.call_part(f"{where}: {STAGES}", own, module, n)
        if not isinstance(found, Sequence) or len(found) != n or not all(isinstance(one, nn.Module) for one in found):
            raise ConfigError(f"{where}: {STAGES} gives no {n} modules", HOW_STAGES)
        return found
    if isinstance(module, Transformer):
        _check_enough(len(module.blocks), "blocks", n, where)
        parts = np.array_split(np.arange(len(module.blocks)), n)
        return [TransformerStage(module, range(part[0], part[-1] + 1)) for part in parts]
    if isinstance(module, nn.Sequential):
        heavy = [number for number, layer in enumerate(module) if next(layer.parameters(), None) is not None]
        _check_enough(len(heavy), "layers with weights", n, where)
        begins = [0, *(int(part[0]) for part in np.array_split(heavy, n)[1:])]
        return [module[begin:end] for begin, end in zip(begins, [*begins[1:], len(module)], strict=True)]
    raise ConfigError(f"{where} defines no stages", HOW_STAGES)


def _check_enough(layers: int, what: str, n: int, where: str) -> None:
    if layers < n:
        raise ConfigError(f"{where} has {layers} {what}", f"Set mesh.pipeline to {layers} or less.")


def leave_others(module: nn.Module, stage: nn.Module) -> None:
    """Free the memory of all parameters except a stage's; names and shapes stay."""
    mine = {id(parameter) for parameter in stage.parameters()}
    for layer in module.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if id(parameter) not in mine:
                empty = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
                layer.register_parameter(name, empty)
