"""Use of an experiment's codec in its run: sums, and messages of each worker."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, LinearCodec, VectorLayout
from fedgossip.algorithms.codecs.low_rank import LowRank, low_rank_of
from fedgossip.algorithms.codecs.senders import Sender, sender_of
from fedgossip.algorithms.codecs.sparse import DeepGradient
from fedgossip.algorithms.collectives.names import COLLECTIVES, GATHERS
from fedgossip.algorithms.gossip.fragments import Fragments, segments_within
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import TAIL
from fedgossip.core.task import Segment
from fedgossip.experiment import ParallelExperiment
from fedgossip.plans.own_parts import codec_named
from fedgossip.protocols.allreduce.coded_fragments import (
    CodedFragments,
    CodedGradients,
    FragmentSums,
    LowRankGradients,
    LowRankSums,
    RoundCoding,
)
from fedgossip.protocols.allreduce.round_sums import CodedSums, DenseSums, RoundSums, sums_of


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
    """Return how the rounds of a collective add up gradients [length]; `bucket`: elements of a bucket."""
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
    """Return how the rounds of a collective add up, each one of these fragments of vectors of such tensors."""
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
    """Return how a worker sends gradients by a codec; dgc clips each to 1/sqrt(m) of what the mean is held to."""
    train = experiment.train
    longest = math.inf if train.clip_norm is None else train.clip_norm / math.sqrt(experiment.parallel.workers)
    return sender_of(codec, train.momentum, longest)


def corrects_momentum(experiment: ParallelExperiment) -> bool:
    """Whether the sender applies momentum, so that the step has none."""
    return isinstance(codec_of(experiment), DeepGradient)


def low_rank_words(experiment: ParallelExperiment, sums: RoundSums, segments: Sequence[Segment]) -> list[str]:
    """Return the number of tensors sent as factors in words, where gradients are of low rank."""
    if low_rank_of(experiment.parallel.codec) is None:
        return []
    parts = sums.parts if isinstance(sums, FragmentSums) else (sums,)
    count = sum(len(one.low.matrices) for one in parts if isinstance(one, LowRankSums))
    return [f"{experiment.parallel.codec}: {count} of {len(segments)} tensors by factors, the others whole"]


def payload_sent(sums: RoundSums, workers: int, itemsize: int, round: int) -> list[int]:
    """Return the bytes of vectors that each worker sends in a round."""
    sums = sums.at(round) if isinstance(sums, FragmentSums) else sums
    if isinstance(sums, CodedSums) and not isinstance(sums.codec, LinearCodec):
        size = sums.codec.size(sums.layout, round)
        return [sums.collective(workers).sent(rank, workers * size) for rank in range(workers)]
    lengths = [sums.length(round) + TAIL, *([sums.low.second_length + 1] if isinstance(sums, LowRankSums) else [])]
    table = sums.collective(workers)
    return [sum(table.sent(rank, length) for length in lengths) * itemsize for rank in range(workers)]
