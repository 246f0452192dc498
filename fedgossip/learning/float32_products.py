"""Whether products of float32 matrices are rounded as float32 is: settings may take shorter numbers without a word.

Then each element is off by at most n / (2^24 - n) of the sum of its n products' magnitudes, whatever their order
(Higham, Accuracy and stability of numerical algorithms, 2002, section 3.1), which `private` counts on.
"""

from __future__ import annotations

from functools import lru_cache

import torch

ROWS, WIDTH = 128, 192
"""Of the matrices that are multiplied to see it."""


def are_float32(device: torch.device) -> bool:
    """Whether it is known of a device: of CPUs whose product of random matrices is as near as that to float64's."""
    return device.type == "cpu" and _as_near(torch.get_float32_matmul_precision())


@lru_cache(maxsize=3)
def _as_near(setting: str) -> bool:
    """Whether products are right as torch is set up: bfloat16 is off by 2^-9, and TF32 by 2^-12; none is flushed."""
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.randn(ROWS, WIDTH, generator=drawn) for _ in range(2))
    off = (torch.mm(a.T, b).double() - torch.mm(a.double().T, b.double())).abs()
    most = torch.mm(a.double().T.abs(), b.double().abs()) * (ROWS / (2**24 - ROWS))
    flushes = not bool(torch.tensor(1e-40) * 1 > 0)
    return setting == "highest" and not flushes and bool((off <= most).all())
