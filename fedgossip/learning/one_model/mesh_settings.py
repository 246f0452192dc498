"""The axes by which the processes of one participant divide a step.  No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.limits import OneOf, Within, limits_of

MOST_PROCESSES = 64
SCHEDULES = ("1f1b", "gpipe")

NOT_BUILT: Mapping[str, tuple[str, str]] = {
    "train.mesh.context": (
        "context parallelism (ring attention) is not built: torch has no way to divide its attention on a CPU",
        "Take mesh.tensor with mesh.sequence = true, which divides what lies between the layers by places of the text;"
        " or stages, mesh.pipeline; or fewer characters, context= in data.source.",
    ),
}
"""Keys that somebody may look for, by their full names: what there is to say of each, and what to take instead."""


@dataclass(frozen=True)
class MeshSettings:
    """[train.mesh]: data x tensor x pipeline processes train one model; the product is train.processes
    (docs/together/parallel.md)."""

    data: Annotated[int, Within(0, MOST_PROCESSES)] = 0
    """Parts of every batch.  0: as many as the other axes leave of the processes."""
    tensor: Annotated[int, Within(1, MOST_PROCESSES)] = 1
    """Parts of every layer's weights, whose products are added up; of mlp, gpt, and own models with a plan."""
    pipeline: Annotated[int, Within(1, MOST_PROCESSES)] = 1
    """Stages: so many processes have the layers one after the other, and pieces of a batch pass through them."""
    sequence: bool = False
    """With tensor: what lies between the divided layers (norms) is divided too, by places of the text."""
    schedule: Annotated[str, OneOf(SCHEDULES)] = "1f1b"
    """Of the stages: "gpipe", all pieces forward and then all back; "1f1b", a piece goes back as soon as it can, and
    fewer are remembered at once."""

    def __post_init__(self) -> None:
        for name, limit in limits_of(type(self)):
            value = getattr(self, name)
            if isinstance(limit, OneOf):
                if value not in limit.words:
                    raise ConfigError(f"unknown mesh.{name} {value!r}", nearest(str(value), limit.words))
            elif not limit.allows(value) or not isinstance(value, int):
                raise ConfigError(f"mesh.{name} = {value!r} {limit.refusal}", limit.advice(value))
        if self.sequence and self.tensor == 1:
            raise ConfigError("mesh.sequence without mesh.tensor", "Set mesh.tensor to 2 or more, or leave it out.")

    @property
    def within(self) -> int:
        """The processes that have one part of a batch: each a part of the model."""
        return self.tensor * self.pipeline

    def parts_of_batch(self, processes: int) -> int:
        """Return into how many parts so many processes divide a batch.  Raises ConfigError where they do not fit."""
        said = f"mesh = {self.data or 'data'} x {self.tensor} x {self.pipeline} (data, tensor, pipeline)"
        if processes % self.within or (self.data and self.data * self.within != processes):
            product = max(1, self.data) * self.within
            text = f"{said} for processes = {processes}"
            raise ConfigError(text, f"The product of the axes is the number of processes: set processes = {product}.")
        return processes // self.within
