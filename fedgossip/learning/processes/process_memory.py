"""What each process that has a part of a model holds in a step, in closed form: `fedgossip run --dry-run` prints it.

parameters   those of its stage; of the plan's layers 1 / tensor; of all that, with FSDP, some rows
gradients    as many
slots        as many for each that the optimiser has: momentum one, adam two
together     all parameters of its stage, as a tensor axis leaves them: with FSDP and zero = 2, between the passes
activations  what the forward passes save for the backward ones, of gpt alone:

    bytes = 4 rows context (blocks (4 w + (15 w + heads) / t + 4) + 2 w + 2 + letters)

of `w` the width, `t` = mesh.tensor, `rows` of a process's part of a batch.  A block saves what its two norms were
given and gave, 4 w; queries, keys and values as one, and the first two again when they are turned, 5 w; what
attention gave, and that in rows, 2 w, with a number for each head; both ends of its GELU, 8 w; of the norms means and
deviations, 4.  The end saves 2 w, 2, and the logarithms of the probabilities.  With mesh.sequence what the
norms were given is divided too; what they gave is brought together in front of the layers, and saved so.  Not counted:
characters, and the tables of angles, which do not grow with rows.

With mesh.context a process saves that of its places, and of the end the logarithms of all; by "ulysses" 2 w / t less
in a block, since queries, keys and values are copies of their own.

A stage has its own blocks, and the last one the end; its `rows` are those of as many pieces as it has at most seen
forward and not yet back.  With "gpipe" (Huang and others, 2019) that is all of them, and with "1f1b" (Narayanan and
others, 2021) of S stages at most S - s at stage s, from 0 on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from fedgossip.learning.models.models import Transformer, TransformerStage
from fedgossip.learning.one_model.weights import Place, chunk
from fedgossip.learning.processes.grid import CONTEXT, DATA, PIPELINE, TENSOR
from fedgossip.learning.processes.plans import PackedColwise, Plan
from fedgossip.learning.settings import LET_GO, ULYSSES, TrainSettings

FLOAT = 4  # bytes

Stands = Mapping[str, tuple[int, int]]
"""Where a process stands along an axis of the grid, and how many do."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes of one process; gradients take as many as parameters.  Activations are None where they are not counted."""

    stage: int
    part: int
    shard: int
    parameters: int
    slots: int
    activations: int | None
    together: int = 0

    @property
    def total(self) -> int:
        return 2 * self.parameters + self.slots + self.together + (self.activations or 0)


def memory_of(
    module: nn.Module, stages: Sequence[nn.Module], plan: Plan, settings: TrainSettings, context: int
) -> list[ProcessMemory]:
    """Return the memory of every process, in order of the ranks; `stages` share the layers of the module.

    `context`: places of a text.  A user's own style outside torch's is assumed to divide nothing.
    """
    sizes = {
        PIPELINE: len(stages),
        DATA: settings.parts_of_batch,
        CONTEXT: settings.mesh.context,
        TENSOR: settings.mesh.tensor,
    }
    saved = [_saved(module, one, number, settings, context) for number, one in enumerate(stages)]
    names = {id(layer): name for name, layer in module.named_modules()}
    found = []
    for places in product(*map(range, sizes.values())):
        stands = dict(zip(sizes, zip(places, sizes.values(), strict=True), strict=True))
        stage, part, _, shard = places
        held, trained, together, counted = 0, 0, 0, set[int]()
        for parameter, axes, matrices in _divided(stages[stage], names, plan, settings):
            if id(parameter) in counted:  # a weight that two layers share
                continue
            counted.add(id(parameter))
            size = part_of(Place.tensor(0, tuple(parameter.shape)), axes, stands, matrices).size
            held += size
            trained += size * parameter.requires_grad
            if settings.zero != LET_GO:
                undivided = {axis: along for axis, along in axes.items() if axis != DATA}
                together += part_of(Place.tensor(0, tuple(parameter.shape)), undivided, stands, matrices).size
        slots = trained * len(settings.slots)
        found.append(ProcessMemory(stage, part, shard, FLOAT * held, FLOAT * slots, saved[stage], FLOAT * together))
    return found


def part_of(whole: Place, axes: Mapping[str, int], stands: Stands, matrices: int = 1) -> Place:
    """Return the place of one process's part of a tensor, which axes of the grid divide along `axes` of its own.

    `matrices`: the tensor is so many, one behind the other, each of them divided.
    """
    found, shape = whole, whole.shape
    if TENSOR in axes:
        axis = axes[TENSOR]
        if matrices > 1:
            found, axis = Place.tensor(whole.offset, (matrices, shape[0] // matrices, *shape[1:])), 1
        found = found.divided(axis, *stands[TENSOR])
    if DATA in axes:
        row = math.prod(shape[1:])
        if axes.get(TENSOR, 0):  # cut along another axis than rows: a row is shorter
            row = found.size // shape[0]
        start, stop = chunk(found.size // row if row else 0, *stands[DATA])
        found = found.between(start * row, stop * row)
    return found


def _divided(
    stage: nn.Module, names: Mapping[int, str], plan: Plan, settings: TrainSettings
) -> Iterator[tuple[nn.Parameter, Mapping[str, int], int]]:
    rows = {DATA: 0} if settings.parallel == "fsdp" else {}
    for layer in stage.modules():
        style = plan.get(names.get(id(layer), ""))
        matrices = style.matrices if isinstance(style, PackedColwise) else 1
        for name, parameter in layer.named_parameters(recurse=False):
            yield parameter, {**_axis_of(style, layer, name), **rows}, matrices


def _axis_of(style: ParallelStyle | None, layer: nn.Module, name: str) -> Mapping[str, int]:
    looked_up = isinstance(layer, nn.Embedding)
    if isinstance(style, ColwiseParallel):
        return {TENSOR: 1 if looked_up else 0}
    if isinstance(style, RowwiseParallel) and name == "weight":
        return {TENSOR: 0 if looked_up else 1}
    return {}


def _saved(module: nn.Module, stage: nn.Module, number: int, settings: TrainSettings, context: int) -> int | None:
    """Return the bytes that a stage of a transformer, or all of it, saves for the backward pass; None of others."""
    mesh = settings.mesh
    if not isinstance(module, Transformer) or not isinstance(stage, Transformer | TransformerStage):
        return None
    width, rows = module.behind.normalized_shape[0], math.ceil(settings.batch_size / settings.parts_of_batch)
    given = 1 / mesh.tensor if mesh.sequence else 1
    block = given * (2 * width + 4) + 2 * width + (15 * width + module.heads) / mesh.tensor
    if mesh.attention == ULYSSES:  # queries, keys and values by heads are copies of their own
        block -= 2 * width / mesh.tensor
    end = (given * (width + 2) + width) / mesh.context + module.layer.out_features if number == mesh.pipeline - 1 else 0
    share = _at_once(number, settings) / settings.microbatches if mesh.pipeline > 1 else 1
    return round(FLOAT * rows * share * context * (len(stage.blocks) * block / mesh.context + end))


def _at_once(number: int, settings: TrainSettings) -> int:
    """Return how many pieces of a batch a stage has seen forward and not yet back, at most."""
    pieces, stages = settings.microbatches, settings.mesh.pipeline
    early = settings.mesh.schedule == "1f1b" and pieces >= stages  # else `pipeline` takes gpipe
    return min(pieces, stages - number) if early else pieces
