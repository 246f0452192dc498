"""A paradigm, and the setting of its predicted rounds.

All-reduce by a codec among the paradigms, "ring+top-k:0.01"; and whether compression pays under these links.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, LinearCodec, VectorLayout
from fedgossip.algorithms.codecs.low_rank import low_rank_of
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.collectives.names import COLLECTIVES, GATHERS
from fedgossip.base.errors import ConfigError
from fedgossip.core.messages import TAIL
from fedgossip.lab.costs.base import Cost, EqualLinks, TrainingTimes
from fedgossip.lab.costs.formulas import all_gather, all_reduce_in_turn
from fedgossip.lab.costs.methods import WHOLE, Buckets, collective, gathered
from fedgossip.topology.schedules.schedules import Schedule


@dataclass(frozen=True)
class Setting:
    """The setting of a predicted round: `size` bytes of a model; the graph where there is one."""

    size: int
    links: EqualLinks
    times: TrainingTimes
    schedule: Schedule | None = None
    parts: tuple[float, ...] = (1.0,)
    """Share of the model on each server."""
    buckets: Buckets = WHOLE
    element: int = 4
    """Bytes of one of its elements."""

    @property
    def workers(self) -> int:
        return len(self.times.known)

    @property
    def training(self) -> float:
        return self.times.mean


@dataclass(frozen=True)
class Paradigm:
    """One way to train in parallel."""

    section: str
    """Its section of the file, which is its own kind of run."""
    sets: Mapping[str, Mapping[str, Any]]
    """Keys that it sets in sections of the file, by section."""
    cost: Callable[[Setting], Cost]
    formula: Callable[[Setting], float | None]
    """The textbook's seconds of a round beside its training; None without a closed form."""
    words: str
    """Description for the user."""
    every_step: bool = False
    """Whether a round is one batch of each worker instead of a local training."""
    extra: int = 0
    """Number of elements sent beside a model."""
    one_participant: bool = False
    """Whether the workers are processes of one participant, which has all the examples."""
    ignores: tuple[str, ...] = ()
    """Keys of its section that only others use."""


WARM = 1 << 20
"""A round after the warm-up of any codec."""


def coded_paradigm(dense: Paradigm, method: str, codec_name: str) -> Paradigm:
    """Return the paradigm of a collective with coded gradients.  Raises ConfigError for an unsupported one."""
    if low_rank_of(codec_name) is not None:
        text = f"{method}+{codec_name}: its bytes follow from the shapes of the model's tensors, which no cost knows"
        advice = f"Run the file with --set parallel.codec={codec_name}; with --dry-run it says its bytes."
        raise ConfigError(text, advice)
    codec = make_codec(codec_name)
    if not isinstance(codec, LinearCodec) and method not in GATHERS:
        text = f"{method}+{codec_name}: payloads of {codec_name} cannot be added, and {method} adds at every step"
        raise ConfigError(text, f"Take {' or '.join(f'{one}+{codec_name}' for one in GATHERS)}.")
    return replace(
        dense,
        sets={"parallel": {"method": method, "codec": codec_name}},
        cost=lambda at: _cost(method, codec, at),
        formula=lambda at: _formula(method, codec, at),
        words=f"{dense.words}, gradients by {codec_name}",
    )


def _layout(at: Setting) -> VectorLayout:
    """Return the layout of a gradient, as one tensor."""
    return VectorLayout.of_length(at.size // at.element - TAIL, np.dtype(f"f{at.element}"))


def _cost(method: str, codec: Codec, at: Setting) -> Cost:
    layout = _layout(at)
    if isinstance(codec, LinearCodec):
        size = (codec.elements(layout.length) + TAIL) * at.element
        return collective(method, size, at.links, at.times, at.element, replace(WHOLE, elements=at.buckets.elements))
    return gathered(method, codec.size(layout, WARM), at.size, at.links, at.times)


def _formula(method: str, codec: Codec, at: Setting) -> float | None:
    layout = _layout(at)
    if isinstance(codec, LinearCodec):
        size = (codec.elements(layout.length) + TAIL) * at.element
        return all_reduce_in_turn(method, at.workers, size, at.links, at.training)
    return all_gather(method, at.workers, codec.size(layout, WARM), at.size, at.links)


def dense_of(name: str) -> str | None:
    """Return the uncoded counterpart of a coded paradigm; None for others."""
    method, plus, _ = name.partition("+")
    return method if plus and method in COLLECTIVES else None


@cache
def codec_seconds(name: str, length: int, workers: int) -> float:
    """Return the processor seconds of a worker's codec per round on this machine: one encoding, and all decodings."""
    codec = make_codec(name.partition("+")[2])
    vector = np.random.default_rng(0).standard_normal(length).astype(np.float32)
    layout, turn = VectorLayout.of(vector), CodecTurn(0, 0, WARM)
    payload = codec.encode(vector, layout, turn)
    decoded = 1 if isinstance(codec, LinearCodec) else workers
    decoding = _quickest(lambda: codec.decode(payload, layout, turn))
    return _quickest(lambda: codec.encode(vector, layout, turn)) + decoded * decoding


def _quickest(work: Callable[[], object]) -> float:
    found = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)
