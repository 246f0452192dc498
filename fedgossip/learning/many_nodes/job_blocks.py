"""Which jobs a GPU trains together, and the fallbacks.

The jobs of a call are divided into blocks that `ModuleStack` trains.  Too little memory: blocks of half the size, down
to one node; after that `sharing` takes over, and the loop trains once batches are split.  An unsuitable module is
trained by the loop from then on, with one report.  On a CPU the loop trains: there a node's bits may not depend on its
block.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import torch
from torch import nn

from fedgossip.core.machine import Report
from fedgossip.data.dataset import Dataset
from fedgossip.data.ragged import Ragged
from fedgossip.learning.many_nodes.module_stack import JobResult, ModuleStack, first_line
from fedgossip.learning.many_nodes.stacked_engine import Outcome
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.one_model.module_engine import Assignment, ModuleLoop
from fedgossip.learning.one_model.sharing import GpuSharing, OutOfMemory
from fedgossip.learning.settings import TrainSettings

LARGEST_BLOCK = 64
"""Maximum number of nodes; an estimate, not measured here: beyond it a GPU is saturated."""

SHARE_OF_MEMORY = 4
"""The weights of a block may take one part in so many of a GPU's free memory: activations need the rest."""

KINDS = ("cuda",)
"""The devices on which jobs are trained together."""

STEPS_THAT_PAY = 20_000
"""Number of steps of all blocks in a run above which compiling is advised; an estimate: a minute, at 3 ms a step."""


class JobBlocks:
    """Trains jobs together with `stack`; without one reports the `reason` once several jobs arrive.

    `rounds`: of the run, for the estimate whether compiling would pay.
    """

    def __init__(
        self, stack: ModuleStack | None, reason: str, sharing: GpuSharing, device: torch.device, rounds: int
    ) -> None:
        self._stack, self._reason, self._sharing, self._device = stack, reason, sharing, device
        self._rounds, self._told = rounds, set[str]()
        self._block = LARGEST_BLOCK
        if stack is not None and device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            self._block = max(1, min(LARGEST_BLOCK, free // SHARE_OF_MEMORY // stack.bytes_of_node))
        self._unsaid: list[Report] = []
        self._write: Callable[[Report], None] = self._unsaid.append

    def report_to(self, write: Callable[[Report], None]) -> None:
        """Send reports for the run's record here from now on; first the unreported ones."""
        unsaid, self._unsaid, self._write = self._unsaid, [], write
        for report in unsaid:
            write(report)

    def train(self, jobs: Sequence[Assignment]) -> list[Outcome] | None:
        """Train the jobs and update their nodes' states; None, and nothing changed, where the loop has to."""
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
        """Train the jobs; None for an unsuitable module, which is not tried again."""
        _, round = jobs[0].name
        try:
            found = self._in_blocks(stack, jobs)
        except OutOfMemory:
            raise
        except Exception as error:  # the user's module too: the loop, which repeats the jobs, raises it again
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
        if report.name not in self._told:
            self._told.add(report.name)
            self._write(report)

    def _in_blocks(self, stack: ModuleStack, jobs: Sequence[Assignment]) -> list[JobResult]:
        found: dict[int, JobResult] = {}
        while len(found) < len(jobs):
            left = [job for job in jobs if id(job) not in found]
            part = next(all_blocks(left, self._block))
            with suppress(OutOfMemory):
                found.update(zip(map(id, part), stack.train(part), strict=True))
                continue
            self._give_back()  # with the error its frames, which hold used memory, are gone
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
    """Yield the jobs in blocks of at most so many, those with active terms in blocks of their own.

    Blocks are of nearly equal size, for each size is compiled anew; jobs with equal numbers of steps are adjacent.
    """
    for pulled in (False, True):
        kind = [job for job in jobs if bool(job.terms and job.terms.active) == pulled]
        order, parts = sorted(kind, key=steps_of, reverse=True), -(-len(kind) // most)
        ends = [-(-part * len(order) // parts) for part in range(parts + 1)] if kind else []
        yield from (order[begin:end] for begin, end in pairwise(ends))


def against(module: nn.Module, train: Dataset, settings: TrainSettings) -> str:
    """Return why the loop has to train the module, as far as known without a try; "" without a reason."""
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
    """Return the trainer of several nodes' jobs together on a device of KINDS; elsewhere None.

    The loop, which trains the others, captures its steps there.
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
