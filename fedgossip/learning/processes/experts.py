"""Experts of a transformer divided over several processes: positions travel to their experts by all-to-all, and back.

    1  a process has some texts of each batch, and n / size experts of each block; all other weights are whole
    2  the processes exchange the number of positions per expert, so an expert's capacity is that of the whole batch
    3  each admitted position is sent to its experts' process; the results return by the same way

Positions are admitted in the order of one process's batch.  Logits are gathered at the end: every process computes the
loss of one process, and gradients are sums over the processes; those of an expert are complete in its own.

Source: Lepikhin and others, GShard: scaling giant models with conditional computation and automatic sharding, ICLR
2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from fedgossip.base.errors import ConfigError
from fedgossip.learning.models.models import Experts, TrainingOutputs, Transformer, pass_expert
from fedgossip.learning.settings import MeshSettings


def check_experts(module: object, source: str, mesh: MeshSettings) -> None:
    """Raise ConfigError for a model whose experts cannot be divided equally."""
    if mesh.expert == 1:
        return
    where = f"mesh.expert = {mesh.expert}"
    if not isinstance(module, Transformer) or not module.experts:
        raise ConfigError(f"{where}: {source} has no experts", f"Take gpt:2-64-4?experts={2 * mesh.expert}&top=2.")
    if module.experts % mesh.expert:
        text = f"{where}: {source} has {module.experts} experts"
        raise ConfigError(text, f"Take a multiple of {mesh.expert} experts, or fewer processes.")


@dataclass(eq=False)
class ExpertGroup:
    """The processes with the experts of one transformer, as torch's group, and this process's rank in it."""

    group: distributed.ProcessGroup
    rank: int
    size: int
    rows: list[int] = field(default_factory=list)
    """Number of texts of each process in the present pass."""

    def divide(self, rows: int) -> slice:
        """Divide a batch of `rows` texts; return this process's."""
        self.rows = [len(part) for part in torch.arange(rows).tensor_split(self.size)]
        start = sum(self.rows[: self.rank])
        return slice(start, start + self.rows[self.rank])

    def all_counts(self, counts: Tensor) -> Tensor:
        """Return the counts [n] of every process, [size, n]."""
        found = [torch.empty_like(counts) for _ in range(self.size)]
        distributed.all_gather(found, counts, group=self.group)
        return torch.stack(found)


def divide_experts(module: Transformer, mesh: DeviceMesh) -> None:
    """Make a transformer take its texts of a batch, keep its experts, and return the logits of all texts."""
    group = ExpertGroup(mesh.get_group(), mesh.get_local_rank(), mesh.size())

    def take(_module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (characters,) = given
        return (characters[group.divide(len(characters))],)

    def bring_together(_module: Any, _given: Any, found: Tensor | TrainingOutputs) -> Tensor | TrainingOutputs:
        if isinstance(found, TrainingOutputs):
            return found._replace(last=_AllTexts.apply(found.last, group))  # type: ignore[no-untyped-call]
        whole: Tensor = _AllTexts.apply(found, group)  # type: ignore[no-untyped-call]
        return whole

    module.register_forward_pre_hook(take)
    module.register_forward_hook(bring_together)
    for block in module.blocks:
        experts = block.experts
        assert isinstance(experts, Experts), "by check_experts"
        for name in ("wide", "narrow"):
            own = getattr(experts, name).detach().chunk(group.size)[group.rank].clone()
            setattr(experts, name, nn.Parameter(DTensor.from_local(own, mesh, [Shard(0)], run_check=False)))
        experts.forward = partial(_pass_experts, experts, group)  # type: ignore[method-assign]


def _pass_experts(experts: Experts, group: ExpertGroup, h: Tensor) -> Tensor:
    """As `Experts.forward`, with the experts of all processes and the positions of whole batches."""
    places, n = h.reshape(-1, h.shape[-1]), len(experts.router)
    p, shares, chosen = experts.route(places)
    taken = functional.one_hot(chosen, n)  # [places, top, n]
    counts = group.all_counts(taken.sum((0, 1)))
    whole, most = int(counts.sum()) // experts.top, int(counts.sum())  # in an evaluation all are admitted
    if experts.training:
        most = math.ceil(experts.capacity * whole * experts.top / n)
        chance: Tensor = _SumOfParts.apply(p.sum(0), group)  # type: ignore[no-untyped-call]
        experts.uneven = n * (counts.sum(0) / (whole * experts.top) * (chance / whole)).sum() - 1
    earlier = counts.cumsum(0) - counts  # of the processes before each
    before = taken.view(-1, n).cumsum(0).view_as(taken) + earlier[group.rank]
    admitted = torch.minimum(counts, (most - earlier).clamp(min=0))  # [size, n]
    kept = (taken.bool() & (before <= most)).permute(2, 0, 1)  # by expert, so by process
    _, rows, choice = kept.nonzero(as_tuple=True)
    each = n // group.size
    mine = admitted[:, group.rank * each : (group.rank + 1) * each]
    sent = admitted[group.rank].view(group.size, each).sum(1).tolist()
    received = mine.sum(1).tolist()
    here: Tensor = _Exchanged.apply(places[rows], sent, received, group)  # type: ignore[no-untyped-call]
    of_expert = torch.arange(each).repeat(group.size).repeat_interleave(mine.reshape(-1).cpu()).to(h.device)
    wide, narrow = (cast(DTensor, weights).to_local() for weights in (experts.wide, experts.narrow))
    done = torch.zeros_like(here)
    for e in range(each):
        (where,) = (of_expert == e).nonzero(as_tuple=True)
        done = done.index_add(0, where, pass_expert(here[where], wide[e], narrow[e]))
    back: Tensor = _Exchanged.apply(done, received, sent, group)  # type: ignore[no-untyped-call]
    return torch.zeros_like(places).index_add(0, rows, back * shares[rows, choice].unsqueeze(-1)).view_as(h)


class _Exchanged(torch.autograd.Function):
    """All-to-all of rows: `sent` to, and `received` from each process, in order of the ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: Sequence[int], received: Sequence[int], group: ExpertGroup) -> Tensor:
        ctx.way = received, sent, group
        return _exchange(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradient, *ctx.way), None, None, None


def _exchange(rows: Tensor, sent: Sequence[int], received: Sequence[int], group: ExpertGroup) -> Tensor:
    found = rows.new_empty((sum(received), rows.shape[1]))
    distributed.all_to_all_single(found, rows.contiguous(), list(received), list(sent), group=group.group)
    return found


class _SumOfParts(torch.autograd.Function):
    """A sum over the processes, all of which compute the same loss with it: each keeps the gradient of its own part."""

    @staticmethod
    def forward(_ctx: Any, part: Tensor, group: ExpertGroup) -> Tensor:
        found = part.clone()
        distributed.all_reduce(found, group=group.group)
        return found

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _AllTexts(torch.autograd.Function):
    """[part, ...] of each process -> [whole, ...] in all; backward, each takes the gradient of its own texts."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ExpertGroup) -> Tensor:
        most, start = max(group.rows), sum(group.rows[: group.rank])
        ctx.own = slice(start, start + len(part))
        padded = torch.cat([part, part.new_zeros((most - len(part), *part.shape[1:]))])  # gloo gathers equal parts
        found = [torch.empty_like(padded) for _ in range(group.size)]
        distributed.all_gather(found, padded, group=group.group)
        return torch.cat([one[:rows] for one, rows in zip(found, group.rows, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[ctx.own], None
