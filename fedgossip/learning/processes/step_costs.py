"""Memory, computation and messages of each of a participant's processes in a step, in closed form.

`fedgossip run --dry-run` prints it, `fedgossip advise mesh` ranks meshes by it, and `simulation.inside` uses its times.
Memory of a process:

    parameters   its stage's; 1 / tensor of the plan's layers; with FSDP, some rows of these
    gradients    the same number
    slots        the same number for each of the optimiser's: momentum one, adam two
    together     with FSDP and zero = 2, all parameters of its stage between the passes, divided only by the tensor axis
    activations  saved by the forward passes for the backward ones, of gpt only:

    bytes = 4 rows context (blocks (4 w + (15 w + heads) / t + 4) + 2 w + 2 + letters)

of `w` the width, `t` = mesh.tensor, `rows` of a process's part of a batch.  A block saves the inputs and outputs of its
two norms, 4 w; queries, keys and values, the first two also rotated, 5 w; attention's output, also in rows, 2 w, with a
number per head; both ends of its GELU, 8 w; the norms' means and deviations, 4.  The end saves 2 w, 2, and the log
probabilities.  With mesh.sequence the norms' inputs are divided too.  Not counted: characters, and tables of angles.

With mesh.context a process saves its positions, and of the end all log probabilities; "ulysses" saves 2 w / t less in a
block.  A stage's `rows` are the maximum number of pieces between its forward and backward passes: all with "gpipe"
((Huang and others, 2019), S - s at stage s of S with "1f1b" (Narayanan and others, 2021).

With experts in place of the 8 w of a block: the router's n shares of a position, and its `top` with their sum; for each
use of an expert by a position 10 w at the expert's process, and 2 w + 1 at the position's (w + 1 if they are one
process).  An upper bound: as many uses as the capacity admits, at a process whose experts are full.

A step of P processes on k processors takes, in seconds, with `rows` of a process in one of `pieces` of a batch:

    work      pieces (A + B rows) / S, the mean of S stages; times P / k for P > k
    idle      until pieces + S - 1 turns of the longest stage are over; with P > k others compute meanwhile
    messages  by the closed forms of collectives: tensor, by each divided layer forward and back; pipeline, by each
              turn forward and back; context, blocks of keys and values or all-to-alls; expert, all-to-alls of
              positions, there and back, forward and backward; data, gradients, and the rows of FSDP, gathered twice
              (zero = 2: once) and scattered once

A + B rows: seconds of one process for a batch.  The idle share of equal stages is (S - 1) / (S - 1 + pieces).  Counted
are products of matrices (torch's FLOP counter), with numbers of 4 bytes; not the optimiser's steps, overlap of
gradients, and torch's work per message.  Experts are used equally: a position by min(1, capacity) times its `top`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedgossip.algorithms.collectives.names import EqualLinks, all_gather, all_reduce
from fedgossip.base.errors import ConfigError
from fedgossip.data.dataset import Dataset
from fedgossip.learning.models.models import Experts, Transformer, TransformerStage
from fedgossip.learning.one_model import loading
from fedgossip.learning.one_model.weights import Place, chunk
from fedgossip.learning.processes.grid import CONTEXT, DATA, EXPERT, PIPELINE, TENSOR
from fedgossip.learning.processes.plans import PackedColwise, Plan, plan_of, stages_of
from fedgossip.learning.settings import LET_GO, RING, ULYSSES, TrainSettings

FLOAT, INDEX = 4, 8  # bytes

Stands = Mapping[str, tuple[int, int]]
"""Index of a process along an axis of the grid, and the axis's size."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes of one process; gradients take as much as parameters.  Activations are None if not counted."""

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

    `context`: positions of a text.  A user's style is assumed to divide nothing.
    """
    sizes = {
        PIPELINE: len(stages),
        DATA: settings.parts_of_batch,
        CONTEXT: settings.mesh.context,
        EXPERT: settings.mesh.expert,
        TENSOR: settings.mesh.tensor,
    }
    saved = [_saved(module, one, number, settings, context) for number, one in enumerate(stages)]
    names = {id(layer): name for name, layer in module.named_modules()}
    found = []
    for places in product(*map(range, sizes.values())):
        stands = dict(zip(sizes, zip(places, sizes.values(), strict=True), strict=True))
        stage, part, _, _, shard = places
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
    """Return the place of one process's part of a tensor, whose `axes` are divided by axes of the grid, for each of
    `matrices` matrices.
    """
    found, shape = whole, whole.shape
    if TENSOR in axes:
        axis = axes[TENSOR]
        if matrices > 1:
            found, axis = Place.tensor(whole.offset, (matrices, shape[0] // matrices, *shape[1:])), 1
        found = found.divided(axis, *stands[TENSOR])
    if EXPERT in axes:
        found = found.divided(axes[EXPERT], *stands[EXPERT])
    if DATA in axes:
        row = math.prod(shape[1:])
        if axes.get(TENSOR, 0):  # cut along another axis than rows: a row is shorter
            row = found.size // shape[0]
        start, stop = chunk(found.size // row if row else 0, *stands[DATA])
        found = found.between(start * row, stop * row)
    return found


CONTAINERS = (nn.Sequential, nn.ModuleList)


def experts_of(module: nn.Module) -> list[Experts]:
    """Return the layers of experts."""
    return [layer for layer in module.modules() if isinstance(layer, Experts)]


def gathered_layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers that FSDP gathers one by one: the elements of lists of layers."""
    for container in module.modules():
        if isinstance(container, CONTAINERS):
            for layer in container:
                if not isinstance(layer, CONTAINERS) and next(layer.parameters(), None) is not None:
                    yield layer


def _divided(
    stage: nn.Module, names: Mapping[int, str], plan: Plan, settings: TrainSettings
) -> Iterator[tuple[nn.Parameter, Mapping[str, int], int]]:
    rows = {DATA: 0} if settings.parallel == "fsdp" else {}
    of_experts = {EXPERT: 0} if settings.mesh.expert > 1 else {}
    for layer in stage.modules():
        style = plan.get(names.get(id(layer), ""))
        matrices = style.matrices if isinstance(style, PackedColwise) else 1
        for name, parameter in layer.named_parameters(recurse=False):
            own = of_experts if isinstance(layer, Experts) and name != "router" else {}
            yield parameter, {**_axis_of(style, layer, name), **own, **rows}, matrices


def _axis_of(style: ParallelStyle | None, layer: nn.Module, name: str) -> Mapping[str, int]:
    looked_up = isinstance(layer, nn.Embedding)
    if isinstance(style, ColwiseParallel):
        return {TENSOR: 1 if looked_up else 0}
    if isinstance(style, RowwiseParallel) and name == "weight":
        return {TENSOR: 0 if looked_up else 1}
    return {}


def _saved(module: nn.Module, stage: nn.Module, number: int, settings: TrainSettings, context: int) -> int | None:
    """Return the bytes that a transformer's stage saves for the backward pass; None for other stages."""
    mesh = settings.mesh
    if not isinstance(module, Transformer) or not isinstance(stage, Transformer | TransformerStage):
        return None
    width, rows = module.behind.normalized_shape[0], math.ceil(settings.batch_size / settings.parts_of_batch)
    own = math.ceil(rows / mesh.expert)
    given = 1 / mesh.tensor if mesh.sequence else 1
    wide = 0 if module.experts else 8 * width
    block = given * (2 * width + 4) + 2 * width + (7 * width + wide + module.heads) / mesh.tensor
    if mesh.attention == ULYSSES:  # queries, keys and values by heads are copies of their own
        block -= 2 * width / mesh.tensor
    end, letters = (given * (width + 2) + width, module.layer.out_features) if number == mesh.pipeline - 1 else (0, 0)
    share = _count_pieces(number, settings) / settings.microbatches if mesh.pipeline > 1 else 1
    counted = context * (own * (len(stage.blocks) * block + end) / mesh.context + rows * letters)
    saved = sum(_saved_by(one, mesh.expert, own, rows, context) for one in experts_of(stage))
    return round(FLOAT * (share * counted + saved))


def _saved_by(experts: Experts, parts: int, own: int, rows: int, context: int) -> int:
    """Return the maximum of numbers that a process saves of a block's experts: with `own` of the batch's `rows`
    texts, and 1 / parts of the experts.
    """
    (n, width), top = experts.router.shape, experts.top
    full = math.ceil(experts.capacity * rows * context * top / n)
    received = min(n // parts * full, rows * context * min(top, n // parts))
    sent = min(n * full, own * context * top)
    back = width + 1 if parts == 1 else 2 * width + 1
    return own * context * (n + (top + 1) * (top > 1)) + 10 * width * received + back * sent


def uses_of(experts: Experts) -> float:
    """Return how many experts a position uses, if all experts are used equally."""
    return experts.top * min(1.0, experts.capacity)


def _count_pieces(number: int, settings: TrainSettings) -> int:
    """Return the maximum number of pieces of a batch between a stage's forward and backward passes."""
    pieces, stages = settings.microbatches, settings.mesh.pipeline
    early = settings.mesh.schedule == "1f1b" and pieces >= stages  # else `pipeline` takes gpipe
    return min(pieces, stages - number) if early else pieces


# --- the seconds and the bytes of a step ------------------------------------------------------------------------------

AXES = TENSOR, PIPELINE, CONTEXT, EXPERT, DATA

ROWS = "rows"
"""Messages of the data axis with FSDP."""

LINKED = (*AXES, ROWS)
"""Kinds of messages: each may have a link of its own."""

Links = Mapping[str, EqualLinks]

WAYS = (("ddp", LET_GO), ("fsdp", 2), ("fsdp", LET_GO))
"""Storage of parameters over the data axis: all in each process, or rows (ZeRO 2 and 3)."""


ZERO_1 = "zero 1"
"""A storage that is only counted: as ddp, but each of N processes has the optimiser's slots of 1/N of the elements."""


def name_way(parallel: str, zero: int) -> str:
    """Return the name of one of WAYS."""
    return parallel if parallel == "ddp" else f"{parallel}, zero {zero}"


@dataclass(frozen=True)
class StepSeconds:
    """The seconds of a step; `messages`: by the axis of the mesh that causes them."""

    work: float
    idle: float
    messages: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """Return the time of the step."""
        return self.work + self.idle + sum(self.messages.values())


@dataclass(frozen=True)
class StepShape:
    """Memory, computation and messages of a participant's processes in a step."""

    settings: TrainSettings
    memory: Sequence[ProcessMemory]
    by_way: Mapping[str, int]
    """Bytes of the fullest process by each of WAYS that the settings allow."""
    rows: float
    """Examples of a process in a piece of a batch."""
    pieces: int
    places: int
    """Rows of a linear layer for an example: a process's positions of a text, else 1."""
    flops: tuple[float, ...]
    """FLOPs of an example forward and back, by stage: of one process with all its rows."""
    whole_flops: float
    """FLOPs of an example in one process with the whole model."""
    uncounted: str
    """A layer whose products torch does not count: all FLOPs are then equal shares of 1; else empty."""
    held: int
    """Parameter bytes of a process without a division by rows."""
    units: int
    """Number of gatherings by FSDP in a pass: of each listed layer, and of all other parameters together."""
    passed: float
    """Maximum bytes of an example between two stages."""
    divided: tuple[tuple[float, float, float], ...]
    """Per divided layer: bytes of a row that are summed forward, summed back, and gathered forward."""
    blocks: int
    """Attention layers of a process."""
    width: int
    """Width of a position between the layers, only for the process's own heads."""
    logits: int
    experts: int
    """Experts of a block, over all processes; 0 without."""
    uses: float
    """Of these by a position."""
    common: int
    """Parameter bytes of a process that are not those of experts, without a division by rows."""

    @classmethod
    def from_module(
        cls, module: nn.Module, source: str, base: Path | None, settings: TrainSettings, train: Dataset
    ) -> StepShape:  # fmt: skip
        """Divide a model by the mesh of the settings.  Raises ConfigError as the processes would."""
        mesh, text, places = settings.mesh, isinstance(module, Transformer), train.shape[0] if train.shape else 1
        plan = plan_of(module, source, base, mesh, train.shape) if settings.processes > 1 else {}
        stages = [module] if mesh.pipeline == 1 else stages_of(module, source, base, mesh.pipeline)
        by_way = {}
        for parallel, zero in WAYS if settings.parts_of_batch > 1 else ():
            with contextlib.suppress(ConfigError):
                way = replace(settings, parallel=parallel, zero=zero, offload=False)
                held = memory_of(module, stages, plan, way, places)
                by_way[name_way(parallel, zero)] = max(one.total for one in held)
                if parallel == "ddp":
                    by_way[ZERO_1] = max(
                        one.total - one.slots + FLOAT * -(-one.slots // (FLOAT * settings.parts_of_batch))
                        for one in held
                    )
        unsharded = replace(settings, parallel="ddp", zero=LET_GO, offload=False)
        pieces = settings.microbatches if mesh.pipeline > 1 else 1
        first = next(iter(module.named_parameters()))[0].rpartition(".")[0]
        layers = ((module.get_submodule(name), style, name != first) for name, style in plan.items())
        gathered = list(gathered_layers(module))
        listed = {id(one) for layer in gathered for one in layer.parameters()}
        rest = any(id(one) not in listed for one in module.parameters())
        own, whole, passed = _passes(module, stages, plan, mesh.tensor, train)
        whole_rows = max(one.parameters for one in memory_of(module, stages, plan, unsharded, places))
        experts = experts_of(module)
        of_experts = sum(one.wide.numel() + one.narrow.numel() for one in experts) // mesh.expert
        uncounted = next((name for name, layer in module.named_modules() if isinstance(layer, nn.LSTM)), "")
        if uncounted or not whole:  # as if all layers took as long
            own, whole, uncounted = (1 / mesh.tensor,) * len(stages), float(len(stages)), uncounted or source
        return cls(
            settings,
            memory=memory_of(module, stages, plan, settings, places),
            by_way=by_way,
            rows=settings.batch_size / (settings.parts_of_batch * mesh.expert * pieces),
            pieces=pieces,
            places=places // mesh.context if text else 1,
            flops=tuple(flops / mesh.context for flops in own),
            whole_flops=whole,
            uncounted=uncounted,
            held=whole_rows,
            units=len(gathered) + rest,
            passed=passed,
            divided=tuple(_sums(layer, style, gives_back=back) for layer, style, back in layers),
            blocks=-(-len(module.blocks) // mesh.pipeline) if isinstance(module, Transformer) else 0,
            width=module.behind.normalized_shape[0] // mesh.tensor if isinstance(module, Transformer) else 0,
            logits=module.layer.out_features if isinstance(module, Transformer) else 0,
            experts=len(experts[0].router) if experts else 0,
            uses=uses_of(experts[0]) if experts else 0.0,
            common=whole_rows - FLOAT * of_experts,
        )

    @cached_property
    def fullest(self) -> ProcessMemory:
        """Return the process with the most memory."""
        return max(self.memory, key=lambda one: one.total)

    @property
    def copied(self) -> int:
        """Return the bytes that a process copies over PCIe in a step with train.offload: its rows for each gathering,
        and their gradients back.
        """
        times = (2 if self.settings.zero == LET_GO else 1) + 1
        return times * self.fullest.parameters if self.settings.offload else 0

    @property
    def on_device(self) -> int:
        """Return the maximum bytes of a process, without those in host memory by train.offload."""
        if not self.settings.offload:
            return self.fullest.total
        return max(one.together + (one.activations or 0) for one in self.memory)

    @property
    def turns(self) -> int:
        """Return the turns of a pipeline's step: until the last piece has passed the last stage."""
        return self.pieces + self.settings.mesh.pipeline - 1

    def times(self, compute: Callable[[float], float], links: Links, cores: int | None = None) -> StepSeconds:
        """Return the seconds of a step.  `compute`: rows -> seconds of one process with the whole model; `links`: of
        each of LINKED; `cores`: number of shared cores, None: one each.
        """
        mesh, processes = self.settings.mesh, self.settings.processes
        stages = mesh.pipeline
        mean, most = sum(self.flops) / stages, max(self.flops)
        turn, longest = (compute(self.rows * stages * flops / self.whole_flops) / stages for flops in (mean, most))
        work = self.pieces * turn * max(1.0, processes / (cores or processes))
        return StepSeconds(work, max(0.0, self.turns * longest - work), self._messages(links, self.turns - 1))

    @property
    def sent(self) -> Mapping[str, float]:
        """Return the bytes that the busiest process sends in a step, by axis: seconds at 1 byte/s without latency, and
        pieces in both directions.
        """
        return self._messages(dict.fromkeys(LINKED, EqualLinks(0.0, 1.0, 1.0)), self.pieces)

    def _messages(self, links: Links, passes: int) -> Mapping[str, float]:
        settings, mesh = self.settings, self.settings.mesh
        row, found = self.rows * self.places, dict.fromkeys(AXES, 0.0)
        for forward, back, gathered in self.divided:
            for size in (forward, back):
                found[TENSOR] += all_reduce("ring", mesh.tensor, row * size, links[TENSOR]) if size else 0.0
            if gathered:
                found[TENSOR] += all_gather("ring", mesh.tensor, row * gathered / mesh.tensor, 0.0, links[TENSOR])
        found[TENSOR] *= self.pieces / mesh.pipeline  # a stage has only its own layers
        if mesh.pipeline > 1:
            found[PIPELINE] = 2 * passes * links[PIPELINE].one(self.rows * self.passed)
        if mesh.context > 1:
            found[CONTEXT] = self._attention(links[CONTEXT]) + all_reduce("ring", mesh.context, self.held, links[DATA])
        if mesh.expert > 1:
            found[EXPERT] = self._routed(links[EXPERT]) + all_reduce("ring", mesh.expert, self.common, links[DATA])
        parts = settings.parts_of_batch
        if settings.parallel == "ddp":
            found[DATA] = all_reduce("ring", parts, self.held, links[DATA])
        else:  # rows of each layer: gathered once or twice, and gradients scattered
            times = 2 if settings.zero == 2 else 3
            share = self.held / parts / self.units
            found[DATA] = times * self.units * all_gather("ring", parts, share, 0.0, links[ROWS])
        return {axis: value for axis, value in found.items() if value}

    def _attention(self, links: EqualLinks) -> float:
        """Return the seconds of attention's messages, and of the gathered logits."""
        mesh = self.settings.mesh
        count, part = mesh.context, FLOAT * self.rows * self.places * self.width
        if mesh.attention == RING:  # keys and values; back their gradients too, and home
            block = (count - 1) * links.one(2 * part) + count * links.one(4 * part)
        else:  # queries, keys, values and attention's output, forward and back
            block = 8 * _all_to_all(count, part, links)
        return self.blocks * block + self._gathered_logits(count, links)

    def _routed(self, links: EqualLinks) -> float:
        """Return the seconds of the experts' messages, and of the gathered logits."""
        count, part = self.settings.mesh.expert, FLOAT * self.rows * self.places * self.uses * self.width
        counts = all_gather("ring", count, INDEX * self.experts, 0.0, links)
        chances = all_reduce("ring", count, FLOAT * self.experts, links)
        block = counts + chances + 4 * _all_to_all(count, part, links)  # there and back, and so their gradients
        return self.blocks * block + self._gathered_logits(count, links)

    def _gathered_logits(self, count: int, links: EqualLinks) -> float:
        return all_gather("ring", count, FLOAT * self.rows * self.places * self.logits, 0.0, links)


def _all_to_all(count: int, size: float, links: EqualLinks) -> float:
    """Return the seconds in which each of `count` processes sends an equal part of `size` bytes to each other."""
    return (count - 1) * links.latency + (count - 1) / count * size / links.rate


def _sums(layer: nn.Module, style: ParallelStyle, *, gives_back: bool) -> tuple[float, float, float]:
    outputs = int(getattr(layer, "out_features", 0) or getattr(layer, "embedding_dim", 0))
    inputs = int(getattr(layer, "in_features", 0))
    if isinstance(style, RowwiseParallel):
        return FLOAT * outputs, 0, 0
    if isinstance(style, ColwiseParallel):
        gathered = FLOAT * outputs if any(isinstance(one, Replicate) for one in style.output_layouts) else 0
        return 0, FLOAT * inputs * gives_back, gathered
    return 0, 0, 0


def _passes(
    module: nn.Module, stages: Sequence[nn.Module], plan: Plan, tensor: int, train: Dataset
) -> tuple[tuple[float, ...], float, float]:
    """Pass an example through the stages, forward and back.

    Returns a process's FLOPs by stage; those with the whole model; and the maximum bytes of an example between two
    stages.
    """
    (h, _), names = batch_of(train, 1), {id(layer): name for name, layer in module.named_modules()}
    places = train.shape[0] if train.shape else 1

    def unused(experts: Experts) -> float:  # an evaluation passes all positions through all experts
        numbers = experts.wide.numel() + experts.narrow.numel()
        return 6 * places * numbers * (1 - uses_of(experts) / len(experts.router))

    own, whole, passed = list[float](), 0.0, 0
    module.eval()  # no dropout drawn, no statistics of a batch of one
    for stage in stages:
        h = h.detach().requires_grad_(bool(own)) if h.is_floating_point() else h
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            h = stage(h)
            h.sum().backward()
        counts, root = counter.get_flop_counts(), type(stage).__name__
        total = undivided = float(counter.get_total_flops()) - sum(map(unused, experts_of(stage)))
        if tensor > 1:
            undivided = sum(
                sum(counts.get(f"{root}.{name}" if name else root, {}).values())
                for name, layer in stage.named_modules()
                if names.get(id(layer)) not in plan and next(layer.parameters(recurse=False), None) is not None
            )
        own.append((total - undivided) / tensor + undivided)
        whole += total
        passed = max(passed, h.numel() if stage is not stages[-1] else 0)
    module.zero_grad()
    return tuple(own), whole, float(FLOAT * passed)


def batch_of(train: Dataset, rows: int) -> loading.Batch:
    """Return a batch of `rows` examples, on the CPU."""
    data = loading.examples(train.subset(np.arange(min(rows, len(train)))), torch.device("cpu"), 0)
    with data.batches([np.arange(rows) % len(train)]) as batches:
        return next(iter(batches))
