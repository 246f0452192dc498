"""Common base of runs with [parallel]: workers with one model, a step on their mean gradient, codecs of sums or
messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, LinearCodec, VectorLayout
from fedgossip.algorithms.codecs.low_rank import LowRank, low_rank_of
from fedgossip.algorithms.codecs.senders import Sender, sender_of
from fedgossip.algorithms.codecs.sparse import DeepGradient
from fedgossip.algorithms.collectives.names import COLLECTIVES, GATHERS
from fedgossip.algorithms.descent.base import Descent, OuterDescent, StatisticsDescent
from fedgossip.algorithms.descent.methods import make_descent
from fedgossip.algorithms.gossip.fragments import Fragments, fragments_of, segments_within
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import TAIL
from fedgossip.core.records import NetworkRow, Row
from fedgossip.core.run_summary import MethodFacts
from fedgossip.core.task import Segment, statistics_in
from fedgossip.experiment import ParallelExperiment
from fedgossip.experiment.run_sections import ASYNC
from fedgossip.plans.completeness import Lacking, with_exchanges
from fedgossip.plans.own_parts import codec_named
from fedgossip.plans.plan import PARTIAL, Plan
from fedgossip.plans.statistics_checks import check_parallel_statistics
from fedgossip.protocols.allreduce.coded_fragments import (
    CodedFragments,
    CodedGradients,
    FragmentSums,
    LowRankGradients,
    LowRankSums,
    RoundCoding,
)
from fedgossip.protocols.allreduce.round_sums import CodedSums, DenseSums, RoundSums, sums_of


@dataclass(frozen=True)
class SharedSteps(Plan):
    """A run with [parallel], before training."""

    experiment: ParallelExperiment
    segments: tuple[Segment, ...] = ()

    @property
    def gradients(self) -> bool:
        return not self.experiment.parallel.local

    @property
    def one_model(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return self.experiment.parallel.method

    def descent_of(self, segments: Sequence[Segment]) -> Descent[Any]:
        """Return the descent on a vector of these tensors: `parallel.outer`, `parallel.descent`, or [train]'s."""
        train, p = self.experiment.train, self.experiment.parallel
        if p.races or p.local:
            after = OuterStep(1.0, 0.0, nesterov=False)  # the model after its steps
            own = after if p.races else OuterStep(p.outer.lr, p.outer.beta, p.outer.nesterov, "parallel.outer")
            outer = OuterDescent(own)
            statistics = statistics_in(segments)
            return StatisticsDescent(outer, statistics) if statistics else outer
        return make_descent(
            p.descent or train.optimizer,
            segments,
            momentum=0.0 if corrects_momentum(self.experiment) else train.momentum,
            nesterov=train.nesterov,
            weight_decay=train.weight_decay,
            l1=p.l1,
        )

    def check_statistics(self, tensor: str) -> None:
        check_parallel_statistics(self.experiment, tensor)

    def check_length(self, length: int, segments: Sequence[Segment]) -> None:
        self.fragments(length, segments)

    def fragments(self, length: int, segments: Sequence[Segment]) -> Fragments:
        """Return the fragments of a vector [length] of these tensors; one is sent per round."""
        p = self.experiment.parallel
        return fragments_of(length, segments, p.outer.fragments if p.local else 1)

    def rate(self, round: int) -> float:
        """Return the step size of a round."""
        e = self.experiment
        return e.train.rate(round, e.rounds, e.parallel.workers * e.parallel.accumulate * e.train.batch_size)

    @property
    def fingerprint(self) -> Mapping[str, object]:
        content = self.experiment.to_dict()
        content["parallel"].pop("start_timeout", None)
        return content

    @property
    def patience(self) -> tuple[float, float]:
        return self.experiment.parallel.start_timeout, self.experiment.parallel.deadline

    def verdict(self, words: Sequence[str | None]) -> str:
        """Return the status: the common model exists if any worker finished."""
        statuses = {words[node] for node in self.roles.counted}
        if {"finished", PARTIAL} & statuses:
            return "finished" if statuses == {"finished"} else PARTIAL
        return "failed" if "failed" in statuses or statuses == {None} else "interrupted"

    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> Lacking:
        return with_exchanges(Lacking(), rows, self._rounds_of_all, self.roles, node)

    def exchanges(self, row: Row) -> tuple[int, int]:
        asynchronous = self.experiment.parallel.server.staleness == ASYNC
        return (0, 0) if asynchronous else self._rounds_of_all(row)  # a slow worker may still do its rounds

    def _rounds_of_all(self, row: Row) -> tuple[int, int]:
        """Return (missing, expected) workers of a round: all workers are expected to have a row."""
        if not isinstance(row, NetworkRow) or not row.round or self.experiment.parallel.races:
            return 0, 0
        return max(0, self.learners - row.peers), self.learners

    def facts(self, rows: Sequence[Row]) -> MethodFacts:  # noqa: ARG002
        p = self.experiment.parallel
        codec: MethodFacts = {"codec": p.codec} if p.codec else {}
        descent = "outer" if p.outer.lr else p.descent or self.experiment.train.optimizer
        return {"algorithm": p.method, "mode": "parallel", "descent": descent, **codec}


def codec_of(experiment: ParallelExperiment) -> Codec | None:
    """Return the codec of gradients; None: uncoded, or of low rank."""
    name = experiment.parallel.codec
    return codec_named(name, "parallel.codec") if name and low_rank_of(name) is None else None


def low_rank(experiment: ParallelExperiment, layout: VectorLayout) -> LowRank | None:
    """Return the low-rank form of gradients; None: another form, or no suitable tensor."""
    rank = low_rank_of(experiment.parallel.codec)
    low = LowRank(rank, layout, experiment.seed) if rank else None
    return low if low and low.matrices else None


def sums_for(
    experiment: ParallelExperiment, length: int, kind: np.dtype[np.floating], segments: Sequence[Segment], bucket: int
) -> RoundSums:
    """Return the sums of a collective's rounds over gradients [length]; `bucket`: elements of a bucket."""
    method = experiment.parallel.collective
    if low := low_rank(experiment, VectorLayout.of_length(length, kind, segments)):
        return LowRankSums(COLLECTIVES[method].table, low, bucket)
    codec = codec_of(experiment)
    if codec is None:
        return DenseSums(COLLECTIVES[method].table, length, kind, bucket)
    table = COLLECTIVES[method].table if isinstance(codec, LinearCodec) else GATHERS[method]
    return sums_of(table, codec, VectorLayout.of_length(length, kind, segments), experiment.seed, bucket)


def fragment_sums(
    experiment: ParallelExperiment,
    fragments: Fragments,
    kind: np.dtype[np.floating],
    segments: Sequence[Segment],
    bucket: int,
) -> RoundSums:
    """Return the sums of a collective's rounds, each over one of these fragments of vectors of these tensors."""
    cuts = [fragments.part(number) for number in range(fragments.count)]
    within = [segments_within(segments, part) if len(cuts) > 1 else segments for part in cuts]
    parts = [
        sums_for(experiment, part.stop - part.start, kind, tensors, bucket)
        for part, tensors in zip(cuts, within, strict=True)
    ]
    return FragmentSums(tuple(parts)) if len(parts) > 1 else parts[0]


def coded_updates(experiment: ParallelExperiment, node: NodeId, sums: RoundSums) -> RoundCoding | None:
    """Return the encoding of a worker's updates in the sums; None: uncoded."""
    if not isinstance(sums, FragmentSums):
        return coded_gradients(experiment, node, sums)
    parts = [coded_gradients(experiment, node, one) for one in sums.parts]
    return CodedFragments(parts) if any(parts) else None


def coded_gradients(
    experiment: ParallelExperiment, node: NodeId, sums: RoundSums
) -> CodedGradients | LowRankGradients | None:
    """Return the encoding of a worker's gradients in the sums; None: uncoded."""
    if isinstance(sums, LowRankSums):
        return LowRankGradients(node, sums)
    if not isinstance(sums, CodedSums):
        return None
    return CodedGradients(node, gradient_sender(experiment, sums.codec), sums)


def gradient_sender(experiment: ParallelExperiment, codec: Codec) -> Sender:
    """Return the sender of a worker's gradients for a codec; dgc clips each to 1/sqrt(m) of the bound of the mean."""
    train = experiment.train
    longest = math.inf if train.clip_norm is None else train.clip_norm / math.sqrt(experiment.parallel.workers)
    return sender_of(codec, train.momentum, longest)


def corrects_momentum(experiment: ParallelExperiment) -> bool:
    """Return whether the sender applies momentum, so that the step has none."""
    return isinstance(codec_of(experiment), DeepGradient)


def low_rank_words(experiment: ParallelExperiment, sums: RoundSums, segments: Sequence[Segment]) -> list[str]:
    """Return the number of tensors sent as factors, in words, for low-rank gradients."""
    if low_rank_of(experiment.parallel.codec) is None:
        return []
    parts = sums.parts if isinstance(sums, FragmentSums) else (sums,)
    count = sum(len(one.low.matrices) for one in parts if isinstance(one, LowRankSums))
    return [f"{experiment.parallel.codec}: {count} of {len(segments)} tensors by factors, the others whole"]


def payload_sent(sums: RoundSums, workers: int, itemsize: int, round: int) -> list[int]:
    """Return the bytes of vectors that each worker sends in a round."""
    sums = sums.select_sums(round) if isinstance(sums, FragmentSums) else sums
    if isinstance(sums, CodedSums) and not isinstance(sums.codec, LinearCodec):
        size = sums.codec.size(sums.layout, round)
        return [sums.collective(workers).sent(rank, workers * size) for rank in range(workers)]
    lengths = [sums.length(round) + TAIL, *([sums.low.second_length + 1] if isinstance(sums, LowRankSums) else [])]
    table = sums.collective(workers)
    return [sum(table.sent(rank, length) for length in lengths) * itemsize for rank in range(workers)]
