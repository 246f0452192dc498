"""Whether products of float32 matrices are rounded as float32 is: settings may take shorter numbers without a word.

Then each element is off by at most n / (2^24 - n) of the sum of its n products' magnitudes, whatever their order
(Higham, Accuracy and stability of numerical algorithms, 2002, section 3.1), which `private` counts on.
"""

from __future__ import annotations

from functools import lru_cache

import torch

ROWS, WIDTH = 128, 192
"""Of the matrices that are multiplied to see it."""

UNSET = ("none", "ieee")
"""What torch's settings for a backend are where they ask for nothing shorter."""


def are_float32(device: torch.device) -> bool:
    """Whether it is known of a device: of CPUs whose product of random matrices is as near as that to float64's."""
    return device.type == "cpu" and _nothing_shorter() and _as_near()


def _nothing_shorter() -> bool:
    """Whether neither torch's older setting nor its newer ones ask for shorter numbers, now; and none is flushed."""
    try:
        set_so = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch does not tell it where the newer ones have been set
        set_so = False
    backends = (torch.backends, torch.backends.mkldnn, getattr(torch.backends.mkldnn, "matmul", None))
    newer = all(getattr(one, "fp32_precision", "none") in UNSET for one in backends)
    return set_so and newer and bool(torch.tensor(1e-40) * 1 > 0)


@lru_cache(maxsize=1)
def _as_near() -> bool:
    """Whether products are right where nothing shorter is asked for: bfloat16 is off by 2^-9, and TF32 by 2^-12."""
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.randn(ROWS, WIDTH, generator=drawn) for _ in range(2))
    off = (torch.mm(a.T, b).double() - torch.mm(a.double().T, b.double())).abs()
    most = torch.mm(a.double().T.abs(), b.double().abs()) * (ROWS / (2**24 - ROWS))
    return bool((off <= most).all())
