"""A model as stages, each a module of its own whose input is the output of the one before it.

gpt           as many blocks each; characters are embedded in the first, logits are made in the last
a Sequential  as many layers with weights each
own           the result of `stages(module, n)`, beside the function that makes the model
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from fedgossip.base.errors import ConfigError
from fedgossip.base.signatures import CalledWith, check_call
from fedgossip.data import custom
from fedgossip.learning.models import models
from fedgossip.learning.models.gpt import Transformer, TransformerStage

STAGES = "stages"
HOW = f"Write {STAGES}(module, n) beside it, which gives n modules of its layers; docs/together/parallel.md has one."


def stages_of(module: nn.Module, source: str, base: Path | None, n: int) -> Sequence[nn.Module]:
    """Return n stages of the model that `source` names, which share its layers.

    Raises ConfigError where it has none.
    """
    where = f"mesh.pipeline = {n}: {source}"
    if name := next((name for name, _ in module.named_buffers()), ""):
        advice = "Take a model without BatchNorm and without buffers, gpt:2-64-4 say."
        raise ConfigError(f"{where} has the buffer {name}, and pieces of a batch would change it one by one", advice)
    found = _stages(module, source, base, n, where)
    seen = [id(parameter) for stage in found for parameter in stage.parameters()]
    named = {id(parameter): name for name, parameter in module.named_parameters()}
    if set(seen) - named.keys():
        raise ConfigError(f"{where}: a stage has a parameter that the model has not", HOW)
    for parameter, name in named.items():
        if seen.count(parameter) != 1:
            raise ConfigError(f"{where}: {name} is in {seen.count(parameter)} of the stages, and belongs in one", HOW)
    if not all(any(parameter.requires_grad for parameter in stage.parameters()) for stage in found):
        raise ConfigError(f"{where}: a stage has nothing to train", "Take fewer stages.")
    return found


def _stages(module: nn.Module, source: str, base: Path | None, n: int, where: str) -> Sequence[nn.Module]:
    if models.is_own(source) and (own := custom.beside(source, base, STAGES)):
        check_call(f"{source.partition(':')[0]}:{STAGES}", own, CalledWith(("module", "n"), HOW))
        found = custom.given_by(f"{where}: {STAGES}", own, module, n)
        if not isinstance(found, Sequence) or len(found) != n or not all(isinstance(one, nn.Module) for one in found):
            raise ConfigError(f"{where}: {STAGES} gives no {n} modules", HOW)
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
    raise ConfigError(f"{where} says nothing of stages", HOW)


def _check_enough(layers: int, what: str, n: int, where: str) -> None:
    if layers < n:
        raise ConfigError(f"{where} has {layers} {what}", f"Set mesh.pipeline to {layers} or less.")


def leave_others(module: nn.Module, stage: nn.Module) -> None:
    """Leave all parameters but those of a stage without memory; names and shapes stay."""
    mine = {id(parameter) for parameter in stage.parameters()}
    for layer in module.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if id(parameter) not in mine:
                empty = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
                layer.register_parameter(name, empty)
