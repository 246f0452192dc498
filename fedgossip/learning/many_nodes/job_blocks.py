"""Choice of the jobs that a GPU trains together, in blocks of `ModuleStack`, and the fallbacks.

Too little memory: half the block, down to one node; then `sharing`, and the loop with split batches.  An unsuitable
module is left to the loop, with one report.  On a CPU the loop trains: a node's bits may not depend on its block.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedgossip.base.vectors import empty
from fedgossip.core.machine import Report
from fedgossip.data.dataset import Dataset, Indices
from fedgossip.data.ragged import Ragged
from fedgossip.learning.many_nodes.stacked_engine import Outcome
from fedgossip.learning.one_model import optimizers, weights
from fedgossip.learning.one_model.devices import autocast
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.loading import Padded, Resident, Streamed
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.one_model.module_engine import (
    PERSONAL,
    STEPS,
    Assignment,
    Done,
    ModuleLoop,
    outcome,
    remembered,
)
from fedgossip.learning.one_model.sharing import GpuSharing, OutOfMemory
from fedgossip.learning.settings import TrainSettings

LARGEST_BLOCK = 64
"""Maximum number of nodes per block.  An estimate, not measured: beyond it a GPU is saturated."""

SHARE_OF_MEMORY = 4
"""The weights of a block may use 1 / this share of a GPU's free memory: activations need the rest."""

KINDS = ("cuda",)
"""Kinds of devices that train jobs together."""

STEPS_THAT_PAY = 20_000
"""Number of steps of all blocks in a run above which compiling is advised (about a minute)."""


class JobBlocks:
    """Trains jobs together with `stack`; without a stack reports the `reason` once.  `rounds` of the run decide whether
    compiling pays.
    """

    def __init__(
        self, stack: ModuleStack | None, reason: str, sharing: GpuSharing, device: torch.device, rounds: int
    ) -> None:
        self._stack, self._reason, self._sharing, self._device = stack, reason, sharing, device
        self._rounds, self._reported = rounds, set[str]()
        self._block = LARGEST_BLOCK
        if stack is not None and device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            self._block = max(1, min(LARGEST_BLOCK, free // SHARE_OF_MEMORY // stack.bytes_of_node))
        self._unsaid: list[Report] = []
        self._write: Callable[[Report], None] = self._unsaid.append

    def report_to(self, write: Callable[[Report], None]) -> None:
        """Send reports for the run's record to `write` from now on, including the unreported ones."""
        unsaid, self._unsaid, self._write = self._unsaid, [], write
        for report in unsaid:
            write(report)

    def train(self, jobs: Sequence[Assignment]) -> list[Outcome] | None:
        """Train the jobs and update their nodes' states.  None, with nothing changed, if the loop must train them."""
        several = len(jobs) > 1 and len({id(job.state) for job in jobs}) == len(jobs)  # a node's jobs are ordered
        if not several or self._sharing.pieces > 1:
            return None
        _, round = jobs[0].name
        found = None if self._stack is None else self._tried(self._stack, jobs)
        if found is None:
            self._once(Report("one_by_one", {"reason": self._reason}, round))
            return None
        for job, trained in zip(jobs, found, strict=True):
            job.state.update(trained.kept)
        return [trained.outcome for trained in found]

    def _tried(self, stack: ModuleStack, jobs: Sequence[Assignment]) -> list[JobResult] | None:
        """Train the jobs; None for an unsuitable module."""
        _, round = jobs[0].name
        try:
            found = self._train_in_blocks(stack, jobs)
        except OutOfMemory:
            raise
        except Exception as error:  # also of the user's module: the loop repeats the jobs, and raises it again
            self._stack, self._reason = None, first_line(error)
            return None
        if stack.not_compiled:
            self._once(Report("not_compiled", {"reason": stack.not_compiled}, round))
        elif not stack.compiles:
            steps = self._rounds * sum(max(map(steps_of, part)) for part in all_blocks(jobs, self._block))
            if steps >= STEPS_THAT_PAY:
                self._once(Report("compiling_pays", {"steps": steps}, round))
        return found

    def not_captured(self, reason: str, round: int) -> None:
        """Record that the loop captures no more steps."""
        self._once(Report("not_captured", reason, round))

    def _once(self, report: Report) -> None:
        if report.name not in self._reported:
            self._reported.add(report.name)
            self._write(report)

    def _train_in_blocks(self, stack: ModuleStack, jobs: Sequence[Assignment]) -> list[JobResult]:
        found: dict[int, JobResult] = {}
        while len(found) < len(jobs):
            left = [job for job in jobs if id(job) not in found]
            part = next(all_blocks(left, self._block))
            with suppress(OutOfMemory):
                found.update(zip(map(id, part), stack.train(part), strict=True))
                continue
            self._give_back()  # after the handler: the error's frames held used memory
            if len(part) == 1:
                raise OutOfMemory("out of memory, with one node at a time")
            self._block = len(part) // 2
        return [found[id(job)] for job in jobs]

    def _give_back(self) -> None:
        gc.collect()
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                torch.cuda.empty_cache()


def steps_of(job: Assignment) -> int:
    """Return the number of steps of a job."""
    return len(job.plan.counts)


def all_blocks(jobs: Sequence[Assignment], most: int) -> Iterator[list[Assignment]]:
    """Yield the jobs in blocks of at most `most` and nearly equal size (each size is compiled separately); jobs with
    active terms in separate blocks, jobs with equal steps adjacent.
    """
    for pulled in (False, True):
        kind = [job for job in jobs if bool(job.terms and job.terms.active) == pulled]
        order, parts = sorted(kind, key=steps_of, reverse=True), -(-len(kind) // most)
        ends = [-(-part * len(order) // parts) for part in range(parts + 1)] if kind else []
        yield from (order[begin:end] for begin, end in pairwise(ends))


def against(module: nn.Module, train: Dataset, settings: TrainSettings) -> str:
    """Return why the loop has to train the module, as far as known without a trial; "" without a reason."""
    if isinstance(train.x, Ragged):
        return "lines have several lengths"
    if any(isinstance(part, nn.RNNBase) for part in module.modules()):
        return "the model has recurrent layers"
    if settings.precision == "float16":
        return "in float16 each node skips steps of its own"
    if settings.accumulate > 1:
        return "a step is of several batches"
    return "convolutions see channels_last" if settings.channels_last else ""


def blocks_of(
    loop: ModuleLoop,
    module: nn.Module,
    layout: Layout,
    train: Dataset,
    settings: TrainSettings,
    *,
    device: torch.device,
    criterion: Criterion,
    sharing: GpuSharing,
    rounds: int,
) -> JobBlocks | None:
    """Return the trainer of several nodes' jobs together on a device of KINDS; otherwise None.

    The loop, which trains other jobs, captures its steps on these devices.
    """
    if device.type not in KINDS:
        return None
    stack, reason = None, against(module, train, settings)
    if not reason:
        how = module, layout, settings
        stack = ModuleStack(*how, device=device, criterion=criterion, examples=loop.examples, compiles=settings.compile)
    blocks = JobBlocks(stack, reason, sharing, device, rounds)
    loop.capture(train, blocks.not_captured)
    return blocks


# Many copies of any module, trained together by torch.func: one gradient of all of them in place of one after another.
#
#     line        [k, trained]    the trained elements of k nodes, personal ones first; then other averaged elements
#     gradient    vmap over the nodes of grad of (loss of functional_call(module, a node's tensors, its batch))
#     step        `optimizers`, elementwise on [k, trained]
#
# It equals `ModuleLoop` up to rounding, not to the bit: products over the node axis use other kernels, so a node's bits
# may depend on the other nodes of its block.  Hence it is only for GPUs, where bits are not guaranteed.  Attention is
# computed by its formula, because the fused kernels have no node axis.
#
# Nodes with more steps than others continue alone, and batches of another size are computed separately: no example is
# padded, so batch statistics equal those of the loop.  Unsupported operations of a module raise: random draws, reads of
# a number, in-place changes of data shared by all nodes, and operations that vmap can only run one by one.


COMPILED_SIZES = 4
"""Maximum number of block sizes with a compiled gradient, in order of appearance; others run uncompiled."""

ONE_BY_ONE = "There is a performance drop because we have not yet implemented the batching rule"
"""torch's warning for an operation without a batching rule, which runs for one node after another."""

Kept = dict[str, npt.NDArray[Any]]
"""A node's state after a job, by name."""

Buffers = dict[str, torch.Tensor]
"""Buffers outside the vector, of one node, or [k, ...] of all."""

GradientAndLoss = tuple[torch.Tensor, tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, Buffers]]]
Gradients = Callable[..., GradientAndLoss]
"""(line, statistics, buffers, x, y) of all nodes -> gradient, (loss, (loss, statistics and buffers afterwards))."""


class JobResult(NamedTuple):
    """The result of a job, and its node's state after all jobs."""

    outcome: Outcome
    kept: Kept


@dataclass(frozen=True, slots=True, eq=False)
class NodesBatch:
    """A batch of the same size for some nodes of a block: the first `active`, or those in `nodes`."""

    step: int
    active: int
    nodes: Sequence[int] | None
    rows: Indices
    """Examples of all these nodes, concatenated."""


@dataclass(slots=True, eq=False)
class NodeRows:
    """The state of some nodes on the device; a step changes it in place."""

    all: torch.Tensor
    slots: list[torch.Tensor]
    buffers: Buffers
    pull: optimizers.Pull | None

    def first(self, nodes: int) -> NodeRows:
        """Return the first nodes, as views."""
        return self._map(lambda tensor: tensor[:nodes])

    def copied(self, nodes: torch.Tensor) -> NodeRows:
        """Return copies of some nodes."""
        return self._map(lambda tensor: tensor[nodes])

    def put(self, nodes: torch.Tensor, part: NodeRows) -> None:
        """Write a copy from `copied` back."""
        pairs = [(self.all, part.all), *zip(self.slots, part.slots, strict=True)]
        for whole, some in [*pairs, *((self.buffers[name], one) for name, one in part.buffers.items())]:
            whole[nodes] = some

    def _map(self, chosen: Callable[[torch.Tensor], torch.Tensor]) -> NodeRows:
        pull = self.pull
        if pull is not None:
            pull = optimizers.Pull(chosen(pull.mu), chosen(pull.anchor), chosen(pull.correction))
        buffers = {name: chosen(one) for name, one in self.buffers.items()}
        return NodeRows(chosen(self.all), [chosen(one) for one in self.slots], buffers, pull)


class ModuleStack:
    """Trains the jobs of several nodes together, for any module that vmap supports.

    A node's state stays unchanged (`JobResult.kept`).  `compiles`: whether to compute the gradient of all nodes by
    torch.compile, if that works.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        settings: TrainSettings,
        *,
        device: torch.device,
        criterion: Criterion,
        examples: Resident | Padded | Streamed,
        compiles: bool = False,
    ) -> None:
        self._module, self._layout, self._settings, self._device = module, layout, settings, device
        self._criterion, self._examples = criterion, examples
        own = Layout.personal_of(module, settings.stays)
        self._own, self._trained = own.length, own.length + layout.parameters
        self._fresh_own = own.read(module) if own.length else np.empty(0, np.float32)
        self._segments = weights.trained_segments(own, layout)
        self._averaged = [one for one in layout.segments if one.start >= layout.parameters]
        self._remembers = remembered(module, layout, settings)
        local = weights.local_buffers(module, layout)
        self._fresh = {name: one.detach().cpu().numpy().copy() for name, one in local.items()}
        self._plain: Gradients = torch.func.vmap(torch.func.grad_and_value(self._loss, has_aux=True))
        how: Any = {"mode": "reduce-overhead", "dynamic": False}
        self._compiled: Gradients | None = torch.compile(self._plain, **how) if compiles else None
        self.compiles, self.not_compiled = compiles, ""
        """Whether to compile, and the reason if compiling was given up."""
        self._sizes: set[int] = set()
        self._width = settings.examples_per_step

    @property
    def bytes_of_node(self) -> int:
        """Return the bytes of weights, gradient, slots, terms, and an equal number of temporary values; without
        activations.
        """
        return 4 * (self._own + self._layout.length) * (6 + len(self._settings.slots))

    # --- a block ----------------------------------------------------------------------------------------------

    def train(self, jobs: Sequence[Assignment]) -> list[JobResult]:
        """Train the jobs of different nodes, all with active terms or all without.

        Raises as the module does, without changing anything.
        """
        order = sorted(range(len(jobs)), key=lambda k: -len(jobs[k].plan.counts))
        found = self._train_block([jobs[k] for k in order])
        places = {k: place for place, k in enumerate(order)}
        return [found[places[k]] for k in range(len(jobs))]

    def _train_block(self, jobs: Sequence[Assignment]) -> list[JobResult]:
        """Train jobs in order of their steps, the most first."""
        steps = [len(job.plan.counts) for job in jobs]
        taken = [int(job.state[STEPS]) if STEPS in job.state else 0 for job in jobs]
        rates = optimizers.rates(self._settings, [job.lr for job in jobs], taken, steps[0])
        factors = optimizers.factors(rates, self._device).expand(-1, -1, len(jobs)).unsqueeze(-1)
        standing, losses = self._loaded(jobs), torch.zeros((steps[0], len(jobs)), device=self._device)
        batches = list(batches_of(jobs))
        uneven = iter(self._places([one.nodes for one in batches if one.nodes is not None]))
        self._module.train()
        with _force_formula(), self._examples.batches([one.rows for one in batches]) as examples:
            for batch, (x, y) in zip(batches, examples, strict=True):
                factor, lost = factors[batch.step], losses[batch.step]
                if batch.nodes is None:
                    whole = batch.active == len(jobs) and len(batch.rows) == self._width * len(jobs)
                    part = standing.first(batch.active)
                    lost[: batch.active] = self._step(part, x, y, factor[:, : batch.active], whole=whole)
                    continue
                nodes = next(uneven)
                part = standing.copied(nodes)
                lost[nodes] = self._step(part, x, y, factor[:, nodes], whole=False)
                standing.put(nodes, part)
        return self._stored(jobs, standing, losses.cpu().numpy(), [a + b for a, b in zip(taken, steps, strict=True)])

    def _places(self, nodes: Sequence[Sequence[int]]) -> Sequence[torch.Tensor]:
        together = torch.tensor([one for part in nodes for one in part], dtype=torch.int64, device=self._device)
        return torch.split(together, [len(part) for part in nodes])

    def _step(
        self, part: NodeRows, x: torch.Tensor, y: torch.Tensor, factors: torch.Tensor, *, whole: bool
    ) -> torch.Tensor:
        """Step some nodes; return their losses [k].  `whole`: all of a block, on whole batches."""
        k = len(part.all)
        x, y = (one.view(k, len(one) // k, *one.shape[1:]) for one in (x, y))
        line, statistics = part.all[:, : self._trained], part.all[:, self._trained :]
        with torch.no_grad():
            gradient, (_, (loss, after, buffers)) = self._gradients((line, statistics, part.buffers, x, y), whole=whole)
            if self._averaged:
                statistics.copy_(after)
            for name, buffer in part.buffers.items():
                buffer.copy_(buffers[name])
            self._optimise(line, gradient.contiguous(), part, factors)  # may be an expanded scalar
        return loss

    def _optimise(self, line: torch.Tensor, gradient: torch.Tensor, part: NodeRows, factors: torch.Tensor) -> None:
        settings, (rate, root, kept, mean) = self._settings, factors
        if settings.clip_norm is not None:
            optimizers.clip([gradient], settings.clip_norm)
        if part.pull is not None:
            part.pull.add_to(gradient[:, self._own :], line[:, self._own :])
        if settings.by_layers:
            how = settings, [line], [gradient], [[slot] for slot in part.slots], self._layers
            optimizers.step_by_layers(*how, rate=rate, root=root, mean=mean)
        else:
            optimizers.step(settings, line, gradient, part.slots, rate=rate, root=root, kept=kept)

    def _layers(self, tensors: Sequence[torch.Tensor]) -> list[tuple[Sequence[torch.Tensor], bool]]:
        (line,) = tensors
        return [([line[:, one.start : one.stop]], len(one.shape) > 1) for one in self._segments]

    # --- the gradient -----------------------------------------------------------------------------------------

    def _loss(
        self, line: torch.Tensor, statistics: torch.Tensor, buffers: Buffers, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, Buffers]]:
        """Return one node's loss; then the loss again with the buffers after the pass."""
        parts = torch.split(
            line, [one.stop - one.start for one in self._segments]
        )  # whose gradients are joined at once
        tensors = {one.name: part.view(one.shape) for one, part in zip(self._segments, parts, strict=True)}
        pieces = torch.split(statistics, [one.stop - one.start for one in self._averaged]) if self._averaged else ()
        # copies: a pass changes them in place, and inputs of a graph must stay constant
        counted = {one.name: p.view(one.shape).clone() for one, p in zip(self._averaged, pieces, strict=True)}
        mine = {name: buffer.clone() for name, buffer in buffers.items()}
        with autocast(self._settings.precision, self._device):
            outputs = torch.func.functional_call(self._module, {**tensors, **counted, **mine}, (x,))
        loss = self._criterion.mean(outputs, y)
        after = torch.cat([one.reshape(-1) for one in counted.values()]) if counted else statistics
        return loss, (loss.detach(), after, mine)

    def _gradients(self, inputs: tuple[Any, ...], *, whole: bool) -> GradientAndLoss:
        """Compute gradients, compiled for whole batches of a whole block: few sizes."""
        k = len(inputs[0])
        if self._compiled is None or not whole or (k not in self._sizes and len(self._sizes) == COMPILED_SIZES):
            return self._plain(*inputs)
        self._sizes.add(k)
        try:
            if self._device.type == "cuda":
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            return self._compiled(*inputs)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            self._compiled = None
            found = self._plain(*inputs)  # if this raises too, the module is the cause, not the compiler
            self.not_compiled = first_line(error)
            return found

    # --- indices --------------------------------------------------------------------------------------------

    def _loaded(self, jobs: Sequence[Assignment]) -> NodeRows:
        rows = np.empty((len(jobs), self._own + self._layout.length), np.float32)
        for row, job in zip(rows, jobs, strict=True):
            row[: self._own], row[self._own :] = job.state.get(PERSONAL, self._fresh_own), job.vector
        none = np.zeros(self._trained, np.float32)
        slots = [self._device_rows([job.state.get(slot, none) for job in jobs]) for slot in self._settings.slots]
        buffers = {
            name: self._device_rows([job.state.get(f"buffer:{name}", fresh) for job in jobs])
            for name, fresh in self._fresh.items()
        }
        return NodeRows(torch.from_numpy(rows).to(self._device), slots, buffers, self._pull_of(jobs))

    def _pull_of(self, jobs: Sequence[Assignment]) -> optimizers.Pull | None:
        terms = [job.terms for job in jobs if job.terms is not None and job.terms.active]
        if not terms:
            return None
        assert len(terms) == len(jobs), "jobs with terms and without are blocks of their own"
        length = self._layout.parameters
        none = np.zeros(length, np.float32)
        corrections = [none if one.correction is None else one.correction[:length] for one in terms]
        mu = np.array([[one.pull] for one in terms], np.float32)
        anchors = self._device_rows([job.vector[:length] for job in jobs])
        return optimizers.Pull(torch.from_numpy(mu).to(self._device), anchors, self._device_rows(corrections))

    def _device_rows(self, rows: Sequence[npt.NDArray[Any]]) -> torch.Tensor:
        return torch.from_numpy(np.stack(rows)).to(self._device)

    def _stored(
        self, jobs: Sequence[Assignment], standing: NodeRows, losses: npt.NDArray[np.float32], taken: Sequence[int]
    ) -> list[JobResult]:
        lines = standing.all.cpu().numpy()
        slots = [slot.cpu().numpy() for slot in standing.slots]
        buffers = {f"buffer:{name}": buffer.cpu().numpy() for name, buffer in standing.buffers.items()}
        found = []
        for k, job in enumerate(jobs):
            trained = empty(self._layout.length, np.float32)
            trained[:] = lines[k, self._own :]
            kept: Kept = {name: np.array(values[k]) for name, values in buffers.items()}
            kept |= {name: values[k].copy() for name, values in zip(self._settings.slots, slots, strict=True)}
            if self._own:
                kept[PERSONAL] = lines[k, : self._own].copy()
            if slots:
                kept[STEPS] = np.array(taken[k])
            assert kept.keys() == self._remembers.keys()
            mean = float(losses[: len(job.plan.counts), k].astype(np.float64).mean())
            found.append(JobResult(outcome(job.vector, trained, Done(mean, 0)), kept))
        return found


def batches_of(jobs: Sequence[Assignment]) -> Iterator[NodesBatch]:
    """Yield the batches of jobs in order of their steps, the most first: for each step one batch per size."""
    plans = [job.plan for job in jobs]
    for step in range(len(plans[0].counts)):
        active = sum(len(plan.counts) > step for plan in plans)
        sizes: dict[int, list[int]] = {}
        for node, plan in enumerate(plans[:active]):
            sizes.setdefault(int(plan.counts[step]), []).append(node)
        for size, nodes in sizes.items():
            rows = np.concatenate([plans[node].indices[step, :size] for node in nodes])
            yield NodesBatch(step, active, None if len(sizes) == 1 else nodes, rows)


@contextmanager
def _force_formula() -> Iterator[None]:
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("error", ONE_BY_ONE)
        yield


def first_line(error: Exception) -> str:
    """Return an error's text in one line for a record."""
    reason = str(error).strip().partition("\n")[0][:200]
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__
