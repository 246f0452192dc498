"""Mixed precision: layers compute in 16 bits by the rules of torch's autocast; weights and steps stay float32.

float16 has 5 bits of exponent: gradients below 6e-8 would be lost.  So the loss is scaled up before the backward pass
and the gradient down again after it; where it overflowed the step is skipped and the scale halved, and after many good
steps it is doubled (Micikevicius et al., Mixed precision training, ICLR 2018; the numbers are torch's GradScaler's).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
import torch

from fedgossip.learning.one_model.devices import dtype_of

FIRST_SCALE = 2.0**16
GROWTH_STEPS = 2000
"""Good steps after which the scale is doubled."""

LOSS_SCALE = "loss_scale"
"""Under this name a node's state holds [scale, good steps since it changed], float64."""


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which a model computes with `precision`; nothing for float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype_of(precision))


class LossScale:
    """The scale of one node's loss; a power of two, so that dividing by it is exact."""

    def __init__(self, kept: npt.NDArray[np.float64] | None = None) -> None:
        self.value, self._good = (FIRST_SCALE, 0) if kept is None else (float(kept[0]), int(kept[1]))

    def take(self, finite: bool) -> bool:
        """Return whether to take a step with a `finite` gradient or not, and set the scale for the next one.

        With a gradient that is not finite even without scaling the step is taken: training has diverged, and that must
        be visible.
        """
        if not finite:
            if self.value <= 1:
                return True
            self.value, self._good = self.value / 2, 0
            return False
        self._good += 1
        if self._good == GROWTH_STEPS:
            self.value, self._good = self.value * 2, 0
        return True

    def kept(self) -> npt.NDArray[np.float64]:
        """Return the state for the node's next job."""
        return np.array([self.value, self._good], np.float64)
