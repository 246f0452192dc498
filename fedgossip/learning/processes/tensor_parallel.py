"""Layers over several processes: each computes with its part of the weights, and torch adds up or brings together.

Source: Shoeybi and others, Megatron-LM: training multi-billion parameter language models using model parallelism,
arXiv:1909.08053 (2019).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.distributed.tensor.parallel import parallelize_module

from fedgossip.learning.processes.grid import TENSOR, ProcessGrid
from fedgossip.learning.processes.plans import PackedColwise, Plan


def divide(module: nn.Module, plan: Plan, grid: ProcessGrid) -> Mapping[str, int]:
    """Divide the layers of the plan over the tensor axis; return which parameters are several matrices, and how many.

    What their elements are afterwards is for those to say who hold the parts (`parts`).
    """
    packed: dict[str, int] = {}
    for name, style in plan.items():
        layer = module.get_submodule(name)
        if isinstance(style, PackedColwise):
            packed |= {f"{name}.{part}": style.matrices for part, _ in layer.named_parameters()}
        parallelize_module(layer, grid.mesh[TENSOR], style, src_data_rank=None)
    return packed
