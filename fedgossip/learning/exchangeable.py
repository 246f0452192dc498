"""Which tensors of a module a vector can contain: one rule, for models of files and for loops alike.

A vector contains the parameters with requires_grad, and the running statistics: floating buffers that a checkpoint
keeps and that have finite values.  A mask with -inf is a constant table, the same everywhere, and stays with its
module; so do integers, whose mean has no meaning, and buffers rebuilt with the module (persistent=False).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fedgossip.base.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

FFA: Final = "lora:ffa"
BOTH: Final = "lora:both"
PRODUCT: Final = "lora:product"
LORA: Final = {"lora": FFA, FFA: FFA, BOTH: BOTH, PRODUCT: PRODUCT}
"""Ways in which adapters of low rank travel: see `own_loop/adapters`."""


def trained_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters with requires_grad, by name, in named_parameters order.

    Raises ConfigError, naming the first, for a parameter with values other than real numbers.
    """
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    for name, parameter in trained:
        if (refused := _refusal(parameter)) is not None:
            raise ConfigError(f"the parameter {name!r} {refused[0]}", refused[1])
    return trained


def averaged_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the floating buffers that are averaged, by name.  Raises ConfigError for one without values."""
    kept = set(module.state_dict(keep_vars=True))
    found = []
    for name, buffer in module.named_buffers():
        if name not in kept:
            continue
        if (refused := _valueless(buffer)) is not None:
            raise ConfigError(f"the buffer {name!r} {refused[0]}", refused[1])
        if buffer.is_floating_point() and bool(buffer.isfinite().all()):
            found.append((name, buffer))
    return found


def _refusal(tensor: torch.Tensor) -> tuple[str, str] | None:
    import torch

    if (refused := _valueless(tensor)) is not None:
        return refused
    if tensor.is_complex():
        advice = "Keep torch.view_as_real(it) as the parameter, and torch.view_as_complex of that in forward()."
        return f"is {tensor.dtype}, and a vector holds real numbers", advice
    if tensor.layout is not torch.strided:
        return f"is {tensor.layout}, and a vector holds dense tensors", "Make it dense; its gradients may be sparse."
    return None


def _valueless(tensor: torch.Tensor) -> tuple[str, str] | None:
    from torch.nn.parameter import is_lazy

    if is_lazy(tensor):
        return "has no shape yet (of a lazy layer)", "Pass one batch through the model first, or name its sizes."
    if tensor.is_meta:
        return "has no values (device meta)", "Call model.to_empty(device=...) and initialise it first."
    return None
