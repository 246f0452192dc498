"""How an experiment's codec stands in its run: what is added up, and what each worker sends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedgossip.algorithms.collectives.names import COLLECTIVES, GATHERS
from fedgossip.codecs.base import Codec, LinearCodec, VectorLayout
from fedgossip.codecs.names import make_codec
from fedgossip.codecs.senders import Sender, sender_of
from fedgossip.codecs.sparse import DeepGradient
from fedgossip.experiment import ParallelExperiment
from fedgossip.machine import NodeId
from fedgossip.messages import TAIL
from fedgossip.protocols.coded_gradients import CodedGradients
from fedgossip.protocols.round_sums import CodedSums, DenseSums, RoundSums, sums_of
from fedgossip.task import Segment


def codec_of(experiment: ParallelExperiment) -> Codec | None:
    """Return what gradients go by; None: as they are."""
    return make_codec(experiment.parallel.codec) if experiment.parallel.codec else None


def sums_for(
    experiment: ParallelExperiment, length: int, kind: np.dtype[np.floating], segments: Sequence[Segment], bucket: int
) -> RoundSums:
    """Return how the rounds of a collective add up gradients [length]; `bucket`: elements of a bucket."""
    codec, method = codec_of(experiment), experiment.parallel.method
    if codec is None:
        return DenseSums(COLLECTIVES[method].table, length, kind, bucket)
    table = COLLECTIVES[method].table if isinstance(codec, LinearCodec) else GATHERS[method]
    return sums_of(table, codec, VectorLayout.of_length(length, kind, segments), experiment.seed, bucket)


def coded_gradients(experiment: ParallelExperiment, node: NodeId, sums: RoundSums) -> CodedGradients | None:
    """Return how a worker's gradients go by the codec of the sums; None where they go as they are."""
    if not isinstance(sums, CodedSums):
        return None
    return CodedGradients(node, gradient_sender(experiment, sums.codec), sums)


def gradient_sender(experiment: ParallelExperiment, codec: Codec) -> Sender:
    """Return how a worker sends gradients by a codec; dgc clips each to 1/sqrt(m) of what the mean is held to."""
    train = experiment.train
    longest = math.inf if train.clip_norm is None else train.clip_norm / math.sqrt(experiment.parallel.workers)
    return sender_of(codec, train.momentum, longest)


def corrects_momentum(experiment: ParallelExperiment) -> bool:
    """Whether momentum is applied by who sends, so that the step has none."""
    return isinstance(codec_of(experiment), DeepGradient)


def payload_sent(sums: RoundSums, workers: int, itemsize: int, round: int) -> list[int]:
    """Return the bytes of vectors that each worker sends in a round."""
    if isinstance(sums, CodedSums) and not isinstance(sums.codec, LinearCodec):
        size = sums.codec.size(sums.layout, round)
        return [sums.collective(workers).sent(rank, workers * size) for rank in range(workers)]
    return [sums.collective(workers).sent(rank, sums.length + TAIL) * itemsize for rank in range(workers)]
