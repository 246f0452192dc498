"""Positions of a text divided over several processes: only attention uses the positions of other processes.

ring       keys and values circulate; each process adds the attention of its queries to every block, by online softmax,
           and the gradients of a block circulate with it.  Of 2 c pieces process r has the pieces r and 2 c - 1 - r, so
           all have equal work (causal)
ulysses    an all-to-all before attention gives each process all positions of some heads, and one after it restores the
           division

All other layers of a transformer work position by position.  Logits are gathered at the end: every process computes the
loss of one process, and gradients of weights are sums over the processes.

Sources: Liu, Zaharia and Abbeel, Ring attention with blockwise transformers, ICLR 2024; Brandon and others, Striped
attention, 2023, of the balance; Jacobs and others, DeepSpeed Ulysses, arXiv:2309.14509 (2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional

from fedgossip.base.errors import ConfigError
from fedgossip.learning.models.models import Transformer, turned
from fedgossip.learning.settings import RING, MeshSettings


def check_context(module: object, source: str, mesh: MeshSettings, places: int) -> None:
    """Raise ConfigError for a model, or texts of `places` positions, that cannot be divided by positions."""
    if mesh.context == 1:
        return
    where = f"mesh.context = {mesh.context}"
    if not isinstance(module, Transformer):
        raise ConfigError(f"{where}: {source} has no attention over places of a text", "Take gpt:2-64-4.")
    pieces = mesh.context * (2 if mesh.attention == RING else 1)
    if places % pieces:
        text = f"{where} by {mesh.attention}: {places} places of a text in {pieces} pieces"
        raise ConfigError(text, f"Set context= in data.source to a multiple of {pieces}.")
    heads, rest = divmod(module.heads, mesh.tensor)
    if mesh.attention != RING and (rest or heads % mesh.context):
        text = f'{where} by "ulysses": {module.heads} heads for {mesh.tensor * mesh.context} processes'
        raise ConfigError(text, f'Each has whole heads: take fewer processes, or mesh.attention = "{RING}".')


@dataclass(frozen=True, eq=False)
class ContextGroup:
    """The processes with positions of the same texts, as torch's group, and this process's rank in it."""

    group: distributed.ProcessGroup
    rank: int
    size: int
    attention: str

    def pieces(self, rank: int) -> tuple[int, ...]:
        """Return the pieces of a text that a process has, ascending."""
        return (rank, 2 * self.size - 1 - rank) if self.attention == RING else (rank,)

    def places(self, whole: int, rank: int | None = None) -> Tensor:
        """Return the positions that a process, by default this one, has of texts of `whole` positions."""
        pieces = self.pieces(self.rank if rank is None else rank)
        length = whole // (self.size * len(pieces))
        return torch.cat([torch.arange(piece * length, (piece + 1) * length) for piece in pieces])

    def passed_on(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Send tensors to the next process; return those of the previous one."""
        line = torch.cat([one.reshape(-1) for one in tensors])
        found = torch.empty_like(line)
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        moves = [
            distributed.P2POp(distributed.isend, line, group=self.group, group_peer=after),
            distributed.P2POp(distributed.irecv, found, group=self.group, group_peer=before),
        ]
        for work in distributed.batch_isend_irecv(moves):
            work.wait()
        parts = torch.split(found, [one.numel() for one in tensors])
        return [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]


def divide_context(module: Transformer, group: ContextGroup) -> None:
    """Make a transformer take its positions of whole texts, attend to those of others, and return the logits of all."""
    attention = ring_attention if group.attention == RING else ulysses_attention

    def take(_module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (characters,) = given
        return (characters[:, group.places(characters.shape[1]).to(characters.device)],)

    def bring_together(_module: Any, _given: Any, logits: Tensor) -> Tensor:
        whole: Tensor = _Together.apply(logits, group)  # type: ignore[no-untyped-call]
        return whole

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        places = group.places(queries.shape[-2] * group.size).to(queries.device)
        return attention(turned(queries, places), turned(keys, places), values, group)

    module.register_forward_pre_hook(take)
    module.register_forward_hook(bring_together)
    for block in module.blocks:
        block.attend = attend  # type: ignore[assignment]


class _Together(torch.autograd.Function):
    """[b, part, k] of each process -> [b, whole, k] in all; backward, each takes the gradient at its own positions."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ContextGroup) -> Tensor:
        ctx.group, whole = group, part.shape[1] * group.size
        found = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size)]
        distributed.all_gather(found, part.contiguous(), group=group.group)
        places = torch.cat([group.places(whole, rank) for rank in range(group.size)])
        return torch.cat(found, dim=1)[:, torch.argsort(places).to(part.device)]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[:, ctx.group.places(gradient.shape[1]).to(gradient.device)], None


# --- by a ring --------------------------------------------------------------------------------------------------------


def ring_attention(queries: Tensor, keys: Tensor, values: Tensor, group: ContextGroup) -> Tensor:
    """Return the causal attention of this process's queries to all positions; each [b, heads, part, d]."""
    found: Tensor = _RingAttention.apply(queries, keys, values, group)  # type: ignore[no-untyped-call]
    return found


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, group: ContextGroup) -> Tensor:
        found, sums = torch.zeros_like(queries), torch.zeros_like(queries[..., :1])
        most = torch.full_like(sums, -math.inf)
        block = [keys, values]
        for step in range(group.size):
            for mine, theirs, mask in _pairs(group, step, queries):
                scores = _scores(queries[:, :, mine], block[0][:, :, theirs], mask)
                higher = torch.maximum(most[:, :, mine], scores.amax(-1, keepdim=True))
                shares, scale = torch.exp(scores - higher), torch.exp(most[:, :, mine] - higher)
                found[:, :, mine] = found[:, :, mine] * scale + shares @ block[1][:, :, theirs]
                sums[:, :, mine] = sums[:, :, mine] * scale + shares.sum(-1, keepdim=True)
                most[:, :, mine] = higher
            if step < group.size - 1:
                block = group.passed_on(block)
        found /= sums
        ctx.group = group
        ctx.save_for_backward(queries, keys, values, found, most + torch.log(sums))
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        queries, keys, values, found, norms = ctx.saved_tensors
        group, scale = ctx.group, 1 / math.sqrt(queries.shape[-1])
        along = (gradient * found).sum(-1, keepdim=True)
        of_queries = torch.zeros_like(queries)
        block = [keys, values, torch.zeros_like(keys), torch.zeros_like(values)]
        for step in range(group.size):
            for mine, theirs, mask in _pairs(group, step, queries):
                q, k, v, pull = (
                    queries[:, :, mine],
                    block[0][:, :, theirs],
                    block[1][:, :, theirs],
                    gradient[:, :, mine],
                )
                shares = torch.exp(_scores(q, k, mask) - norms[:, :, mine])
                of_scores = shares * (pull @ v.transpose(-1, -2) - along[:, :, mine]) * scale
                of_queries[:, :, mine] += of_scores @ k
                block[2][:, :, theirs] += of_scores.transpose(-1, -2) @ q
                block[3][:, :, theirs] += shares.transpose(-1, -2) @ pull
            block = group.passed_on(block)  # after the last step too: gradients are then at home
        return of_queries, block[2], block[3], None


def _pairs(group: ContextGroup, step: int, queries: Tensor) -> list[tuple[slice, slice, bool]]:
    mine, theirs = group.pieces(group.rank), group.pieces((group.rank - step) % group.size)
    length = queries.shape[-2] // len(mine)
    at = [slice(n * length, (n + 1) * length) for n in range(len(mine))]
    return [(at[i], at[j], q == k) for i, q in enumerate(mine) for j, k in enumerate(theirs) if q >= k]


def _scores(queries: Tensor, keys: Tensor, masked: bool) -> Tensor:
    found = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
    if masked:
        later = torch.ones(found.shape[-2:], dtype=torch.bool, device=found.device).triu(1)
        found = found.masked_fill(later, -math.inf)
    return found


# --- by heads ---------------------------------------------------------------------------------------------------------


def ulysses_attention(queries: Tensor, keys: Tensor, values: Tensor, group: ContextGroup) -> Tensor:
    """As `ring_attention`: each process attends with 1 / size of the heads over all positions."""
    q, k, v = (_ByHeads.apply(one, group) for one in (queries, keys, values))  # type: ignore[no-untyped-call]
    seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    found: Tensor = _ByPlaces.apply(seen, group)  # type: ignore[no-untyped-call]
    return found


class _ByHeads(torch.autograd.Function):
    """[b, heads, part, d] -> [b, heads / size, whole, d]."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ContextGroup) -> Tensor:
        ctx.group = group
        return _divide_by_heads(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _divide_by_places(gradient, ctx.group), None


class _ByPlaces(torch.autograd.Function):
    """The inverse of `_ByHeads`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ContextGroup) -> Tensor:
        ctx.group = group
        return _divide_by_places(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _divide_by_heads(gradient, ctx.group), None


def _divide_by_heads(tensor: Tensor, group: ContextGroup) -> Tensor:
    return torch.cat(_exchanged(tensor.chunk(group.size, dim=1), group), dim=2)


def _divide_by_places(tensor: Tensor, group: ContextGroup) -> Tensor:
    return torch.cat(_exchanged(tensor.chunk(group.size, dim=2), group), dim=1)


def _exchanged(parts: Sequence[Tensor], group: ContextGroup) -> list[Tensor]:
    """All-to-all: return the part that each process has for this one."""
    given = torch.stack([part.contiguous() for part in parts])
    found = torch.empty_like(given)
    distributed.all_to_all_single(found, given, group=group.group)
    return list(found.unbind(0))
