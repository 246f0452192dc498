"""A model with everything needed to use it without its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class WholeModel:
    """`tensors`: every parameter and buffer by name, trained, frozen and local.  `facts`: how to use the tensors, as
    plain data (listed in `learning.models.model_files`).  `code`: the user's own modules, by path below one
    folder.  `lacks`: names of local tensors at their initial values, because nodes do not share them; `own`: the local
    tensors of each known node.  `document`: the file of a model without tensors, by name."""

    tensors: Tensors
    facts: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, bytes] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    own: Mapping[int, Tensors] = field(default_factory=dict)
    document: tuple[str, bytes] | None = None


def named(tensors: Tensors) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors as contiguous arrays, for safetensors."""
    return {name: tensor.copy(order="C") for name, tensor in tensors.items()}
