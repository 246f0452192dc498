"""Numbers that distinguish two models with equal trained layouts: projections of their frozen tensors and their
outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from fedgossip.base.seeds import integer, stream
from fedgossip.data.dataset import Dataset
from fedgossip.learning.one_model.flat import Layout

PROJECTIONS = 4
EXAMPLES = 8
"""Number of examples of the common test set, drawn by the seed."""

CHUNK = 1 << 20
"""Number of elements processed at a time."""

SCALE = 1e3
"""asinh(SCALE x) grows with the logarithm of large x, so that no large element hides a small one."""


def frozen_of(module: nn.Module, layout: Layout) -> tuple[float, ...]:
    """Return projections of frozen parameters and unmixed buffers, by name, shape and type; () without any."""
    mixed = set(layout.names)
    parameters = [(name, tensor) for name, tensor in module.named_parameters() if not tensor.requires_grad]
    buffers = [(name, tensor) for name, tensor in module.named_buffers() if name not in mixed]
    kept = [(name, tensor.detach().cpu()) for name, tensor in (*parameters, *buffers) if tensor.numel()]
    return projected((f"{name}/{tuple(one.shape)}/{one.dtype}", one) for name, one in kept)


def probe_of(module: nn.Module, test: Dataset, seed: int) -> tuple[float, ...]:
    """Return projections of the outputs of the untrained `module` for examples of `test`.

    () if the outputs are no numbers: training will report that.
    """
    drawn = stream(seed, "probe").choice(len(test), min(EXAMPLES, len(test)), replace=False)
    batch = torch.from_numpy(np.ascontiguousarray(test.x[np.sort(drawn)]))
    was_training = module.training
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(integer(seed, "probe"))
        try:
            given = module.eval()(batch)
        except Exception:  # the user's own code
            return ()
        finally:
            module.train(was_training)
    if not isinstance(given, torch.Tensor) or not torch.isfinite(given).all():
        return ()
    values = given.double().numpy().reshape(-1)
    signs = 2.0 * stream(seed, "probe-signs").integers(0, 2, (PROJECTIONS, values.size)) - 1.0
    return tuple(float(one) / math.sqrt(values.size) for one in (signs * values).sum(axis=1))


def projected(named: Iterable[tuple[str, torch.Tensor]]) -> tuple[float, ...]:
    """Return a few projections of named tensors; () for none."""
    total, elements = np.zeros(PROJECTIONS), 0
    for name, tensor in named:
        draw = stream(0, f"frozen/{name}")
        flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
        for start in range(0, flat.numel(), CHUNK):
            values = np.arcsinh(SCALE * flat[start : start + CHUNK].double().numpy()) + 1.0
            bits = draw.integers(0, 1 << PROJECTIONS, values.size, np.uint8)
            for place in range(PROJECTIONS):
                total[place] += float(((2.0 * (bits >> place & 1)) - 1.0) @ values)
        elements += flat.numel()
    return tuple(float(one) / math.sqrt(elements) for one in total) if elements else ()
