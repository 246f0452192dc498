"""The descent methods by name: what takes the step on a mean gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedgossip.algorithms.descent.adam import FTRL, LAMB, Adagrad, Adam
from fedgossip.algorithms.descent.base import Descent
from fedgossip.algorithms.descent.sgd import LARS, SGD
from fedgossip.core.task import Segment

DESCENTS = ("sgd", "adam", "adamw", "adagrad", "ftrl", "lars", "lamb")


def make_descent(
    name: str,
    segments: Sequence[Segment] = (),
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    l1: float = 0.0,
) -> Descent[Any]:
    """Return the method of that name, one of DESCENTS; what it has no use for does not count."""
    if name == "sgd":
        return SGD(momentum, nesterov, weight_decay)
    if name in ("adam", "adamw"):
        return Adam(weight_decay, decoupled=name == "adamw")
    if name == "adagrad":
        return Adagrad(weight_decay)
    if name == "ftrl":
        return FTRL(l1, weight_decay)
    return LARS(segments, momentum, weight_decay) if name == "lars" else LAMB(segments, weight_decay)
