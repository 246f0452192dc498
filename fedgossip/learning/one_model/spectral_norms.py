"""The directions of spectral norms, computed from the weights: they are in no vector.

    torch divides a weight W by u' W v, its largest singular value: u and v are buffers, of length 1.

A mean of directions is shorter than 1, so u' W v would be too small and the weight too large in every evaluation of the
model.  Therefore u and v stay with their module, and are computed from W when a vector is written to the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

STEPS = 50
"""Number of power iterations; of two nearly equal singular values either is suitable."""


@dataclass(frozen=True)
class _Directions:
    """Paths of u [rows] and v [columns] in the module, and the matrix of the largest singular value."""

    u: str
    v: str
    matrix: Callable[[], torch.Tensor]


def directions(module: nn.Module) -> set[str]:
    """Return the paths of the buffers that `settle` writes."""
    return {path for one in _find_directions(module) for path in (one.u, one.v)}


def settle(module: nn.Module) -> None:
    """Write the directions of the present weights: a function of the weights only."""
    import torch

    found = list(_find_directions(module))
    buffers = dict(module.named_buffers()) if found else {}
    with torch.no_grad():
        for one in found:
            matrix = one.matrix()
            v = torch.arange(1, matrix.shape[1] + 1, device=matrix.device).to(matrix.dtype).cos()  # from none at random
            for _ in range(STEPS):
                u = torch.nn.functional.normalize(matrix.mv(v), dim=0)
                v = torch.nn.functional.normalize(matrix.mT.mv(u), dim=0)
            buffers[one.u].copy_(u)
            buffers[one.v].copy_(v)


def _find_directions(module: nn.Module) -> Iterator[_Directions]:
    from torch.nn.utils.parametrizations import _SpectralNorm
    from torch.nn.utils.spectral_norm import SpectralNorm

    for path, part in module.named_modules():
        at = f"{path}." if path else ""
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                yield _Directions(f"{at}{hook.name}_u", f"{at}{hook.name}_v", partial(_get_hook_matrix, hook, part))
        chains: Any = getattr(part, "parametrizations", {})
        for name, chain in chains.items():
            for place, one in enumerate(chain):
                if isinstance(one, _SpectralNorm) and hasattr(one, "_u"):  # none for a vector, whose norm is exact
                    inside = f"{at}parametrizations.{name}.{place}."
                    yield _Directions(f"{inside}_u", f"{inside}_v", partial(_compute_chain_matrix, chain, place))


def _get_hook_matrix(hook: Any, part: nn.Module) -> torch.Tensor:
    matrix: torch.Tensor = hook.reshape_weight_to_matrix(getattr(part, f"{hook.name}_orig"))
    return matrix


def _compute_chain_matrix(chain: Any, place: int) -> torch.Tensor:
    given = [chain.original] if chain.is_tensor else [getattr(chain, f"original{at}") for at in range(chain.ntensors)]
    for before in list(chain)[:place]:
        given = [before(*given)]
    matrix: torch.Tensor = chain[place]._reshape_weight_to_matrix(given[0])
    return matrix
