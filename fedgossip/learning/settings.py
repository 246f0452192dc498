"""Settings of training: optimiser, learning-rate schedule, precision, mesh; without torch, for checks of files."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fedgossip.base.errors import ConfigError, TrainingError, nearest
from fedgossip.base.limits import ABOVE_0, MOST, OneOf, Within, limits_of
from fedgossip.base.seeds import stream
from fedgossip.data.custom import NamesCode, call_part, function, is_function

# The learning rate over the rounds: "constant", "cosine", "step:30,0.1", each optionally after "warmup:5,".
#
# warm-up   round r of W   the share (r + 1) / W of the rate, so the last of them has all of it
# cosine    to 0 at the last round, from the end of the warm-up on
# step      times a factor every given number of rounds, counted from the first one
# milestones  times a factor from each of some rounds on
# inverse   times b / (r + b) in round r: a / (t + b) of theorems, for lr = a / b
#
# Large batches begin with small steps: Goyal, Dollar, Girshick, Noordhuis, Wesolowski, Kyrola, Tulloch, Jia and He,
# Accurate, large minibatch SGD, arXiv:1706.02677 (2017), section 2.2.  There the warm-up begins at the rate of a small
# batch; here it begins at 1 / W for every batch size.


SHAPES = ("constant", "cosine", "step", "milestones", "inverse")
WARMUP = "warmup"
WRITTEN = (
    "Write constant, cosine, step:ROUNDS,FACTOR (step:30,0.1), milestones:ROUND,...,FACTOR (milestones:30,45,0.1) or "
    "inverse:ROUNDS (inverse:20); warmup:ROUNDS, may stand before it."
)


@dataclass(frozen=True)
class RateSchedule:
    """A parsed schedule.  `warmup`: rounds; `every` and `factor`: of "step"; `every` also of "inverse"; `milestones`:
    rounds, ascending.
    """

    shape: str = "constant"
    warmup: int = 0
    every: int = 1
    factor: float = 1.0
    milestones: tuple[int, ...] = ()

    def rate(self, peak: float, round: int, rounds: int) -> float:
        """Return the rate of `round` (from 0) of `rounds`, with the maximum `peak`."""
        if round < self.warmup:
            return peak * (round + 1) / self.warmup
        if self.shape == "constant":
            return peak
        if self.shape == "inverse":
            return peak * self.every / (round + self.every)
        if self.shape == "milestones":
            return float(peak * self.factor ** sum(round >= one for one in self.milestones))
        if self.shape == "cosine":
            done, all_of_them = min(round, rounds) - self.warmup, max(1, rounds - self.warmup)
            return peak * 0.5 * (1 + math.cos(math.pi * done / all_of_them))
        return float(peak * self.factor ** (round // self.every))


@dataclass(frozen=True)
class OwnSchedule:
    """A user's function, imported when called: (round, rounds) -> the share of the rate."""

    text: str

    def rate(self, peak: float, round: int, rounds: int) -> float:
        """Return the rate of a round.  Raises TrainingError for an invalid share."""
        share = call_part(self.text, function(self.text), round, rounds)
        if isinstance(share, int | float) and 0 <= share < math.inf:
            return peak * float(share)
        advice = "Return a number from 0 on; lr is multiplied by it."
        raise TrainingError(f"{self.text}({round}, {rounds}) returned {share!r}"[:200], advice)


def schedule_of(text: str) -> RateSchedule | OwnSchedule:
    """Return the schedule of a text.  Raises ConfigError for an invalid text."""
    if is_function(text) and text.partition(":")[0] not in (*SHAPES, WARMUP):
        return OwnSchedule(text)
    first, _, after = text.partition(",")
    kind, colon, count = first.partition(":")
    if kind != WARMUP:
        return _shape_of(text, text, 0)
    if not (colon and count.isdecimal() and 1 <= int(count) < 2**31):
        raise ConfigError(f"schedule = {text!r}", f"A warm-up has a number of rounds: {WARMUP}:5.  {WRITTEN}")
    return _shape_of(text, after or "constant", int(count))


def _shape_of(text: str, shape: str, warmup: int) -> RateSchedule:
    kind, _, rest = shape.partition(":")
    if kind not in SHAPES:
        raise ConfigError(f"unknown schedule {kind!r}", nearest(kind, (*SHAPES, WARMUP)))
    if kind in ("constant", "cosine") and not rest:
        return RateSchedule(kind, warmup)
    try:
        if kind == "inverse" and 1 <= int(rest) <= MOST:
            return RateSchedule(kind, warmup, int(rest))
        *counts, factor = rest.split(",")
        rounds = tuple(int(one) for one in counts)
        if rounds and min(rounds) >= 1 and 0 < float(factor) < math.inf:
            if kind == "step" and len(rounds) == 1:
                return RateSchedule(kind, warmup, rounds[0], float(factor))
            if kind == "milestones" and list(rounds) == sorted(set(rounds)):
                return RateSchedule(kind, warmup, factor=float(factor), milestones=rounds)
    except ValueError:
        pass
    raise ConfigError(f"schedule = {text!r}", WRITTEN)


# The axes by which the processes of one participant divide a step.  No torch here.


MOST_PROCESSES = 64
SCHEDULES = ("1f1b", "gpipe")
RING, ULYSSES = ATTENTIONS = ("ring", "ulysses")


@dataclass(frozen=True)
class MeshSettings:
    """[train.mesh]: data x tensor x pipeline processes train one model; the product is train.processes
    (docs/together/parallel.md)."""

    data: Annotated[int, Within(0, MOST_PROCESSES)] = 0
    """Parts of every batch.  0: the number of processes divided by the other axes."""
    tensor: Annotated[int, Within(1, MOST_PROCESSES)] = 1
    """Parts of every layer's weights, whose products are summed; for mlp, gpt, and users' models with a plan."""
    pipeline: Annotated[int, Within(1, MOST_PROCESSES)] = 1
    """Stages: this number of processes share the layers in order, and pieces of a batch pass through them."""
    context: Annotated[int, Within(1, MOST_PROCESSES)] = 1
    """Parts of every text, for gpt: each process has some positions, and attention covers all (ring, or ulysses)."""
    attention: Annotated[str, OneOf(ATTENTIONS)] = RING
    """With context: "ring", keys and values circulate through the processes; "ulysses", two all-to-alls give each
    process all positions of some heads.
    """
    expert: Annotated[int, Within(1, MOST_PROCESSES)] = 1
    """Parts of the experts of gpt:...?experts=: positions travel to them by all-to-all; alone, without other axes."""
    sequence: bool = False
    """With tensor: layers between the divided ones (norms) are divided too, by positions of the text."""
    schedule: Annotated[str, OneOf(SCHEDULES)] = "1f1b"
    """Order of the stages' work: "gpipe", all pieces forward and then all back; "1f1b", a piece returns as soon as
    possible, and fewer are stored at once.
    """

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
        if self.context == 1 and self.attention != RING:
            text = f"mesh.attention = {self.attention!r} without mesh.context"
            raise ConfigError(text, "Set mesh.context to 2 or more, or leave it out.")
        if self.context > 1 and (self.pipeline > 1 or self.sequence):
            other = "pipeline" if self.pipeline > 1 else "sequence"
            raise ConfigError(
                f"mesh.context with mesh.{other}", "Leave one of them out; context goes with tensor and data."
            )
        others = [one for one in ("data", "tensor", "pipeline", "context") if getattr(self, one) > 1]
        if self.expert > 1 and others:
            text = f"mesh.expert with mesh.{others[0]}: capacity and balance are those of a whole batch"
            raise ConfigError(text, f"Leave {others[0]} out; set processes = {self.expert}.")

    @property
    def within(self) -> int:
        """The number of processes per part of a batch: each has a part of the model."""
        return self.tensor * self.pipeline * self.context * self.expert

    def parts_of_batch(self, processes: int) -> int:
        """Return the number of parts of a batch over `processes`.  Raises ConfigError if they do not fit the axes."""
        sentence = f"mesh = {self.data or 'data'} x {self.tensor} x {self.pipeline} (data, tensor, pipeline)"
        if self.context > 1:
            sentence += f" x {self.context} (context)"
        if self.expert > 1:
            sentence += f" x {self.expert} (expert)"
        if processes % self.within or (self.data and self.data * self.within != processes):
            product = max(1, self.data) * self.within
            text = f"{sentence} for processes = {processes}"
            raise ConfigError(text, f"The product of the axes is the number of processes: set processes = {product}.")
        return processes // self.within


# Transfer of gradients between the processes of one participant: `train.compression`.  No torch here.


NONE, BF16, POWERSGD = "none", "bf16", "powersgd"
RANK_MOST = 256


def rank_of(compression: str) -> int | None:
    """Return the rank of "powersgd:RANK"; None for "none" and "bf16".  Raises ConfigError for another text."""
    name, _, rank = compression.partition(":")
    if name == POWERSGD:
        if rank.isascii() and rank.isdigit() and 1 <= int(rank) <= RANK_MOST:
            return int(rank)
        text = f"compression = {compression!r}: {POWERSGD} takes a rank, a whole number from 1 to {RANK_MOST}"
        raise ConfigError(text, f'Write, for example, "{POWERSGD}:2".')
    if compression in (NONE, BF16):
        return None
    raise ConfigError(f"unknown compression {compression!r}", f'Known: "{NONE}", "{POWERSGD}:RANK", "{BF16}".')


OWN_SLOTS = ("own first", "own second")
"""Slots of a user's optimiser: zeros before its first step."""

# each optimiser's state of a node between steps, one number per trained element
SLOTS: Mapping[str, tuple[str, ...]] = {
    "sgd": ("velocity",),
    "adam": ("first", "second"),
    "adamw": ("first", "second"),
    "lars": ("velocity",),
    "lamb": ("first", "second"),
}
BY_LAYERS = ("lars", "lamb")
"""Optimisers with steps in proportion to each layer's weights."""
SCALINGS = ("none", "linear", "sqrt")
DEVICES = ("auto", "cpu", "cuda", "mps")
BUFFERS = ("average", "local")
PRECISIONS = ("float32", "bfloat16", "float16")
HOGWILD = "hogwild"
PARALLEL = ("ddp", "fsdp", HOGWILD)
LET_GO = 3
"""The default of [train] zero."""
OF_THE_MACHINE = (
    "device",
    "threads",
    "channels_last",
    "compile",
    "capture",
    "prefetch",
    "processes",
    "parallel",
    "offload",
    "compression",
    "zero",
    "mesh",
    "microbatches",
)
"""Keys that each peer chooses for its own machine: they affect only the rounding of sums."""

WHOLE = (
    "batch_size",
    "accumulate",
    "base_batch",
    "threads",
    "local_steps",
    "local_epochs",
    "fewest_epochs",
    "processes",
    "microbatches",
)
"""Keys with whole values of at least 1."""

MOST_AHEAD = 64  # batches


@dataclass(frozen=True)
class TrainSettings:
    """[train]: local training of one round; exactly one of local_steps and local_epochs (neither given: 5 steps)."""

    optimizer: Annotated[str, NamesCode(), OneOf(SLOTS, own=True)] = "sgd"
    """Optimiser of a step, adam and adamw with their usual 0.9, 0.999 and 1e-8.  Its state stays at the peer.  For
    large batches lars (trust 0.001, so lr is large: 1 to 30) and lamb: steps in proportion to each layer's weights,
    biases and scales of norms by lr only.  "module:function", of (weights, gradient, first, second, rate): changes
    weights, first and second in place, element by element (docs/use/experiments.md).
    """
    lr: Annotated[float, Within(ABOVE_0)] = 0.1
    """Learning rate.  Larger learns faster until the loss explodes."""
    momentum: float = 0.0
    """sgd and lars: 0 <= momentum < 1, the kept share of the last step."""
    weight_decay: Annotated[float, Within(0)] = 0.0
    """Added to the gradient as weight_decay * weights.  adamw: decoupled, every step first subtracts the share lr *
    weight_decay of the weights, without effect on the moments (Loshchilov and Hutter, ICLR 2019).
    """
    nesterov: bool = False
    """sgd with momentum: look ahead."""
    schedule: Annotated[str, NamesCode((*SHAPES, WARMUP).__contains__)] = "constant"
    """"constant", "cosine" (to 0 at the last round), "step:ROUNDS,FACTOR" (lr *= FACTOR every ROUNDS rounds),
    "milestones:30,45,0.1" (lr *= 0.1 from round 30 and 45 on), "inverse:B" (lr * B / (round + B)).  The prefix
    "warmup:ROUNDS," lets the rate rise in equal steps first: "warmup:5,cosine".  "module:function", of (round, rounds):
    the share of lr in a round (from 0).
    """
    scaling: Annotated[str, OneOf(SCALINGS)] = "none"
    """Dependence of lr on the examples of one step, batch_size * accumulate, with [parallel] those of all workers:
    linear (times examples / base_batch), sqrt (the root of that), or none.
    """
    base_batch: Annotated[int, Within(1, MOST)] = 256
    """The examples of a step at which scaling leaves lr unchanged."""
    batch_size: Annotated[int, Within(1, MOST)] = 16
    """Examples per step."""
    accumulate: Annotated[int, Within(1, MOST)] = 1
    """Number of batches in one step, on their mean gradient: a large batch in the memory of a small one, the same to
    rounding.  Models of linear layers and small convolutions take the large batch in one piece.
    """
    local_steps: Annotated[int | None, Within(1)] = None
    """Steps per round, each of exactly batch_size examples (times accumulate)."""
    local_epochs: Annotated[int | None, Within(1)] = None
    """In place of local_steps: passes over the node's examples per round; the last batch of a pass may be smaller."""
    fewest_epochs: Annotated[int | None, Within(1)] = None
    """With local_epochs: a node's passes in a round are drawn, from this to local_epochs, all equally likely, by (seed,
    node, round).  Models stragglers that send partial work (FedProx) and unequal work (FedNova's U(2, 5) is
    local_epochs = 5 with this 2).  Left out: all passes.
    """
    slowed: Annotated[float, Within(0, 1)] = 1.0
    """With fewest_epochs: the share of nodes per round whose passes are drawn; the others make all of them."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:1", "mps" or "auto": the first available of cuda, mps, cpu.  With several GPUs "auto" and
    "cuda" take the one with the fewest clients of this machine.
    """
    buffers: Annotated[str, OneOf(BUFFERS)] = "average"
    """Running statistics (BatchNorm): "average" makes them part of the vector, "local" keeps them at the node."""
    personal: str = ""
    """Parameters that never leave their node: patterns of names, separated by commas: "layer.*" gives every node a
    personal head (Arivazhagan et al. 2019), "norm*" with buffers = "local" is FedBN (Li et al., ICLR 2021).
    """
    threads: Annotated[int, Within(1, 1024)] = 1
    """Threads of torch, per peer.  1: peers share the cores, and train together; the bits follow from the number."""
    clip_norm: Annotated[float | None, Within(ABOVE_0)] = None
    """Scale a step's gradient down to this length if it is longer; none leaves it.  Applies to local steps, and to
    gradients of dgc (docs/together/codecs.md).
    """
    precision: Annotated[str, OneOf(PRECISIONS)] = "float32"
    """"bfloat16" or "float16": layers compute in it by the rules of torch's autocast, and use half the memory; weights,
    optimiser and messages stay float32.  With float16 the loss is scaled, and a step that overflows is skipped.  Few
    CPUs compute with it; others are many times slower.
    """
    channels_last: bool = False
    """Convolutions read their images with the channels innermost: faster on GPUs with tensor cores, and some CPUs."""
    compile: bool = False
    """Train through torch.compile: the first steps take longer, seconds to minutes, the later ones less.  On a CUDA GPU
    also for many nodes of a simulation trained together."""
    capture: bool = True
    """On a CUDA GPU the step of a model that trains alone is captured once and replayed, one launch in place of
    hundreds; the first steps check that a replay equals the step.  false: never.
    """
    prefetch: Annotated[int | None, Within(0, MOST_AHEAD)] = None
    """Number of batches that a separate thread prepares ahead, from examples in host memory; more takes more memory.  0
    keeps the examples on the training device.  none: 0 on the CPU, and if they fit into a quarter of a GPU's free
    memory, else 2.  From 1 on torch's own modules train, with different rounding: another digest.
    """
    processes: Annotated[int, Within(1, MOST_PROCESSES)] = 1
    """Processes that train one client together, each with its part of every batch, or of the model as in `mesh`: one
    per GPU, or all on the CPU.
    """
    parallel: Annotated[str, OneOf(PARALLEL)] = "ddp"
    """With several processes: "ddp", each holds the whole model; "fsdp", each holds a part of it (FSDP2); "hogwild",
    all step on one model in shared memory without waiting, each on its own batches (docs/together/parallel.md).
    """
    zero: Annotated[int, Within(2, LET_GO)] = LET_GO
    """fsdp: 3, a layer's parameters are gathered for its forward pass and again for its backward one; 2, they stay
    gathered in between: fewer bytes between the processes, and all parameters in each of them between the passes.
    """
    offload: bool = False
    """fsdp: parameters, gradients and the optimiser's state are in host memory, and steps are taken there; a layer is
    on the GPU during its computation.  On a CPU it has no benefit: everything is in host memory.
    """
    compression: str = NONE
    """Transfer of gradients between processes that each have the whole model (ddp): "powersgd:RANK", as products of two
    narrow matrices, with the error added later; "bf16", 16 bits a number, only on GPUs; or "none", uncompressed.
    """
    mesh: MeshSettings = field(default_factory=MeshSettings)
    """Division of a step over several processes; by default each takes a part of every batch."""
    microbatches: Annotated[int, Within(1, MOST)] = 4
    """With mesh.pipeline: the number of pieces of a batch that pass through the stages, all of one size."""
    count_lost: bool = False
    """hogwild: count the updates lost when processes write at the same time; the record has their share."""
    portable: bool = False
    """The same bits on different x86-64 processors: kernels common to all of them, on the CPU, one thread.  Training
    takes up to 3 times as long on processors with AVX-512 (docs/reference/numerics.md).
    """

    def __post_init__(self) -> None:
        if self.local_steps is None and self.local_epochs is None:
            object.__setattr__(self, "local_steps", 5)
        elif self.local_steps is not None and self.local_epochs is not None:
            raise ConfigError("local_steps and local_epochs are both given", "Give one of them.")
        self._check_passes()
        if not re.fullmatch(r"cuda:\d{1,3}", self.device):
            _word("device", self.device, DEVICES)
        for name in WHOLE:
            _check_whole(name, getattr(self, name))
        for name, limit in limits_of(type(self)):
            value = getattr(self, name)
            if isinstance(limit, OneOf) and not limit.allows(value):
                _word(name, value, limit.words)
            elif not limit.allows(value):
                raise ConfigError(f"{name} = {value!r} {limit.refusal}", limit.advice(value))
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum = {self.momentum!r} {Within.refusal}", "Set it at least 0, below 1.")
        if self.decoupled and self.rate_of(self.examples_per_step) * self.weight_decay > 1:
            advice = "A step takes lr * weight_decay off each weight; 0.01 is usual."
            raise ConfigError(f"weight_decay = {self.weight_decay:g} with lr = {self.lr:g}", advice)
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov without momentum", "Set momentum, for example 0.9.")
        if self.optimizer not in ("sgd", "lars") and self.momentum:
            raise ConfigError(f"momentum with {self.optimizer}", "momentum belongs to sgd and lars; leave it out.")
        if self.optimizer != "sgd" and self.nesterov:
            raise ConfigError(f"nesterov with {self.optimizer}", "nesterov belongs to sgd; leave it out.")
        schedule_of(self.schedule)
        self._check_processes()
        self._check_portable()

    def _check_passes(self) -> None:
        if self.fewest_epochs is not None and not self.fewest_epochs <= (self.local_epochs or 0):
            text = f"fewest_epochs = {self.fewest_epochs} with local_epochs = {self.local_epochs or 'unset'}"
            raise ConfigError(text, "Passes are drawn from fewest_epochs to local_epochs.")
        if self.slowed != 1 and self.fewest_epochs is None:
            raise ConfigError(
                f"slowed = {self.slowed:g} without fewest_epochs", "It is the share that draws its passes."
            )

    def passes(self, seed: int, node: int, round: int) -> int:
        """Return the number of passes of a node in a round, with local_epochs."""
        assert self.local_epochs is not None
        if self.fewest_epochs is None:
            return self.local_epochs
        drawn = stream(seed, "unequal work", node, round)
        slowed = drawn.random() < self.slowed
        return int(drawn.integers(self.fewest_epochs, self.local_epochs + 1)) if slowed else self.local_epochs

    def _check_processes(self) -> None:
        """Raise ConfigError for settings that several processes, or one, do not support."""
        if self.offload and self.parallel != "fsdp":
            text = f"offload with parallel = {self.parallel!r}, whose processes hold no parts to bring in and out"
            raise ConfigError(text, 'Leave it out, or set parallel = "fsdp".')
        if self.zero != LET_GO and self.parallel != "fsdp":
            text = f"zero = {self.zero!r} with parallel = {self.parallel!r}, whose processes hold no parts"
            raise ConfigError(text, 'Leave it out, or set parallel = "fsdp".')
        self._check_compression()
        if self.parallel == HOGWILD:
            self._check_hogwild()
            return
        if self.count_lost:
            text = f"count_lost with parallel = {self.parallel!r}, which loses no update"
            raise ConfigError(text, f'Leave it out, or set parallel = "{HOGWILD}".')
        parts = self.parts_of_batch
        if self.processes == 1:
            if self.parallel == "fsdp":
                raise ConfigError('parallel = "fsdp" with one process', "Give processes = 2 or more, one per GPU.")
            return
        if self.batch_size < parts:
            advice = "Each process takes a part of every batch; use a larger batch_size or fewer processes."
            raise ConfigError(f"batch_size = {self.batch_size} for {parts} processes", advice)
        if ":" in self.device or self.device == "mps":
            advice = 'Use device = "cuda", a GPU for each process, or "cpu".'
            raise ConfigError(f"device = {self.device!r} is one GPU, for {self.processes} processes", advice)
        if self.by_layers and self.parallel == "fsdp":
            text = f'{self.optimizer} with parallel = "fsdp": no process holds a whole layer to measure'
            raise ConfigError(text, 'Use parallel = "ddp", or another optimizer.')
        if self.compile and self.parallel == "fsdp":
            raise ConfigError('compile with parallel = "fsdp"', 'Leave compile out, or use parallel = "ddp".')
        if self.divided:
            self._check_divided(parts)

    def _check_compression(self) -> None:
        rank_of(self.compression)
        if self.compression == NONE:
            return
        where = f"compression = {self.compression!r}"
        if self.processes == 1 or self.parallel != "ddp" or self.divided:
            how = (
                "one process" if self.processes == 1 else "a mesh" if self.divided else f"parallel = {self.parallel!r}"
            )
            text = f'{where} with {how}: it is of processes that hold the whole model each, parallel = "ddp"'
            raise ConfigError(text, "Leave it out; a codec compresses the messages between participants.")
        if self.compile or self.precision == "float16":
            what = (
                "compile" if self.compile else 'precision = "float16", whose overflows would stay in the stored error'
            )
            raise ConfigError(f"{where} with {what}", "Leave one of the two out.")

    def _check_divided(self, parts: int) -> None:
        axes = ("tensor", "pipeline", "context", "expert")
        where = f"mesh.{next(axis for axis in axes if getattr(self.mesh, axis) > 1)}"
        if self.by_layers:
            text = f"{self.optimizer} with {where}: no process holds a whole layer to measure"
            raise ConfigError(text, "Use another optimizer, or divide batches alone.")
        for name, usual in (("precision", "float32"), ("compile", False), ("channels_last", False)):
            if getattr(self, name) != usual:
                raise ConfigError(f"{name} = {getattr(self, name)!r} with {where}", f"Leave {name} out.")
        if self.mesh.expert > 1 and (parts > 1 or self.parallel == "fsdp"):
            what = 'parallel = "fsdp"' if parts == 1 else f"processes = {self.processes}"
            text = f"mesh.expert = {self.mesh.expert} with {what}: capacity and balance are those of a whole batch"
            raise ConfigError(text, f'Set processes = {self.mesh.expert}, with parallel = "ddp".')
        if self.mesh.pipeline > 1 and self.parallel == "fsdp":
            text = 'mesh.pipeline with parallel = "fsdp": torch gathers the rows of stages out of step on a CPU'
            raise ConfigError(text, 'Use parallel = "ddp": each process holds its stage alone.')
        if self.mesh.pipeline > 1 and self.batch_size % (parts * self.microbatches):
            each = parts * self.microbatches
            text = f"batch_size = {self.batch_size} for {parts} x {self.microbatches} microbatches, all of one size"
            raise ConfigError(text, f"Set batch_size to {-(-self.batch_size // each) * each}, or fewer microbatches.")

    def _check_hogwild(self) -> None:
        where = f'parallel = "{HOGWILD}"'
        if self.divided:
            text = f"mesh = tensor {self.mesh.tensor}, pipeline {self.mesh.pipeline} with {where}"
            raise ConfigError(f"{text}, whose processes have the whole model each", 'Use parallel = "ddp".')
        if self.slots:
            what = f"{self.optimizer} with momentum" if self.optimizer == "sgd" else self.optimizer
            text = f"{what} with {where}: its state would be a mixture of all processes' steps"
            raise ConfigError(text, 'Use optimizer = "sgd" without momentum, or parallel = "ddp".')
        if self.device not in ("auto", "cpu"):
            advice = 'Use device = "cpu"; or parallel = "ddp", a GPU for each process.'
            raise ConfigError(f"device = {self.device!r} with {where}, whose model lies in shared memory", advice)
        for name, usual in (("precision", "float32"), ("compile", False)):
            if getattr(self, name) != usual:
                raise ConfigError(f"{name} = {getattr(self, name)!r} with {where}", f"Leave {name} out.")
        if self.local_steps is not None and self.local_steps < self.processes:
            text = f"local_steps = {self.local_steps} for {self.processes} processes, which take a batch each"
            raise ConfigError(f"{text} with {where}", f"Set local_steps to {self.processes} or more.")

    def _check_portable(self) -> None:
        if not self.portable:
            return
        if self.device not in ("auto", "cpu"):
            raise ConfigError(f"portable = true, and device = {self.device!r}", 'A GPU rounds its own way; use "cpu".')
        usual = {"threads": 1, "precision": "float32", "channels_last": False, "compile": False, "processes": 1}
        for name, value in usual.items():
            if getattr(self, name) != value:
                advice = f"It computes in an order of this machine's own; leave {name} out, or portable."
                raise ConfigError(f"portable = true, and {name} = {getattr(self, name)!r}", advice)

    @property
    def parts_of_batch(self) -> int:
        """Return the number of parts of a batch over the processes."""
        return self.mesh.parts_of_batch(self.processes)

    @property
    def divided(self) -> bool:
        """Return whether a mesh divides the model over processes."""
        return self.mesh.within > 1

    @property
    def in_parts(self) -> bool:
        """Return whether no process has the whole model: because of a mesh, or FSDP."""
        return self.divided or self.parallel == "fsdp"

    @property
    def slots(self) -> tuple[str, ...]:
        """Return the names of the optimiser's state; () for sgd without momentum."""
        return () if self.optimizer == "sgd" and not self.momentum else SLOTS.get(self.optimizer, OWN_SLOTS)

    @property
    def own_optimizer(self) -> bool:
        """Return whether the optimiser is a user's function."""
        return self.optimizer not in SLOTS

    @property
    def by_layers(self) -> bool:
        """Return whether steps are in proportion to each layer's weights."""
        return self.optimizer in BY_LAYERS

    @property
    def examples_per_step(self) -> int:
        """Number of examples per step of one peer."""
        return self.batch_size * self.accumulate

    @property
    def decoupled(self) -> bool:
        """Whether weights decay separately from the gradient."""
        return self.optimizer == "adamw" and self.weight_decay > 0

    @property
    def as_modules(self) -> bool:
        """Return whether training uses torch's own modules even if a hand-written path exists."""
        return self.precision != "float32" or self.channels_last or self.compile or self.processes > 1

    @property
    def stays(self) -> tuple[str, ...]:
        """The patterns of `personal`."""
        return tuple(pattern.strip() for pattern in self.personal.split(",") if pattern.strip())

    @property
    def plain(self) -> bool:
        """Whether a step is weights -= lr * gradient and nothing else."""
        return not (self.slots or self.weight_decay or self.clip_norm)

    def rate_of(self, examples: int) -> float:
        """Return the highest learning rate of a run with steps of `examples` examples."""
        if self.scaling == "none":
            return self.lr
        larger = examples / self.base_batch
        return self.lr * (larger if self.scaling == "linear" else math.sqrt(larger))

    def rate(self, round: int, rounds: int, examples: int | None = None) -> float:
        """Return the learning rate of `round` (from 0) of `rounds`; `examples`: of a step, None: those of one peer."""
        peak = self.rate_of(self.examples_per_step if examples is None else examples)
        return schedule_of(self.schedule).rate(peak, round, rounds)


def _word(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ConfigError(f"unknown {name} {value!r}", nearest(str(value), known))


def _check_whole(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{name} = {value!r}", f"{name} is a whole number, at least 1.")
