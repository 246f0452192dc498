"""The outer step: momentum over the displacements of rounds of local training.

    v  <-  beta v + D                   D: the displacement of a round; v begins with 0
    x  <-  x + lr v                     nesterov: x + lr (beta v + D)

-D is the pseudo-gradient of DiLoCo (Douillard and others, DiLoCo: distributed low-communication training of language
models, 2023), whose outer step is Nesterov's; without nesterov it is the server of FedAvgM (Hsu, Qi and Brown, 2019).
lr = 1 and beta = 0 add D.  One source for a server (`federated/fedavgm`), peers of a graph (`diloco`) and workers
of a collective (`descent/outer`), so they have the same bits where they have the same D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, linear

LR, BETA = 0.7, 0.9  # DiLoCo's


@dataclass(frozen=True)
class OuterStep:
    """`lr` above 0, `beta` in [0, 1).  Raises ConfigError for others; `where` names their key."""

    lr: float = LR
    beta: float = BETA
    nesterov: bool = True
    where: str = "algorithm.options"

    def __post_init__(self) -> None:
        if not _number(self.lr) or not 0 < self.lr < float("inf"):
            raise ConfigError(f"{self.where}: lr is {self.lr!r}; expected a number above 0", f"Take {LR}.")
        if not _number(self.beta) or not 0 <= self.beta < 1:
            text = f"{self.where}: beta is {self.beta!r}; expected a number from 0 to below 1"
            raise ConfigError(text, f"Take {BETA}.")
        if self.nesterov not in (True, False) or _number(self.nesterov):
            text = f"{self.where}: nesterov is {self.nesterov!r}; expected true or false"
            raise ConfigError(text, "Write true for Nesterov's form.")

    @property
    def gain(self) -> float:
        """The first step of x for a D of 1."""
        return self.lr * (1 + self.beta) if self.nesterov else self.lr

    def taken(self, x: Vector, v: Vector, moved: Vector) -> tuple[Vector, Vector]:
        """Return (x, v) after the step, of D = `moved`; arrays [d] or [n, d]."""
        v = linear((self.beta, v), (1, moved))
        if not self.nesterov:
            return linear((1, x), (self.lr, v)), v
        return linear((1, x), (self.lr * self.beta, v), (self.lr, moved)), v


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
