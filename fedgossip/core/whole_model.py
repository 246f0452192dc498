"""A model with all that somebody needs who has nothing else of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class WholeModel:
    """`tensors`: every parameter and buffer by its name, trained, frozen and what stays at a node.

    `facts`: what the tensors are for, as plain data (`learning.models.models.model_files` says which).  `code`: the
    user's
    own modules, each by its path below one folder.  `lacks`: names of tensors that are as before the training, because
    they stay at their nodes; `own`: those of each node that is known here.  `document`: the file
    that the model is, by its name, where it is no tensors.
    """

    tensors: Tensors
    facts: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, bytes] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    own: Mapping[int, Tensors] = field(default_factory=dict)
    document: tuple[str, bytes] | None = None


def named(tensors: Tensors) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors as safetensors takes them: each in one piece."""
    return {name: tensor.copy(order="C") for name, tensor in tensors.items()}
