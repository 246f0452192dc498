"""The gossip algorithms by name: one line per method determines checks, plans, the dry run and the docs.

    make("window-doubling", METHODS["window-doubling"], GraphFacts(13), {})

A user's algorithm, "module:Class", is any class with the methods of `base.GossipAlgorithm`.  It is constructed with
`n`, if it takes it, and its options; its errors name it and the round.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from fedgossip.algorithms.codecs.base import Codec
from fedgossip.algorithms.gossip.base import WEIGHT, GossipAlgorithm, Needs, Slot, Step, Vectors
from fedgossip.algorithms.gossip.choco import Choco
from fedgossip.algorithms.gossip.dsgd import DSGD, CombineThenAdapt
from fedgossip.algorithms.gossip.fragments import FragmentedDiLoCo
from fedgossip.algorithms.gossip.gradient_tracking import D2, EXTRA, GradientTracking
from fedgossip.algorithms.gossip.momentum import DecentLaM, MixedMomentum, QuasiGlobal, TwoTap
from fedgossip.algorithms.gossip.outer import BETA, LR, DiLoCo, OuterStep, SlowMo
from fedgossip.algorithms.gossip.push_sum import PushDIGing, PushMomentum, PushSum
from fedgossip.algorithms.gossip.relaysgd import RelaySGD
from fedgossip.algorithms.gossip.window_doubling import WindowDoubling
from fedgossip.base.errors import ConfigError, TrainingError, nearest, place_of
from fedgossip.base.limits import CalledWith, check_call, check_options, check_values, table
from fedgossip.base.vectors import Vector

Made = GossipAlgorithm[Any]


@dataclass(frozen=True)
class Method:
    """Values of `algorithm.name`."""

    make: Callable[..., Made]
    modes: tuple[str, ...] = ("sync",)
    what: str = ""
    """A few words, shown after the name in the reference."""
    weights: str | None = None
    """Default weights if the experiment sets none."""
    private: bool = False
    """Whether peers may learn only sums of models (`algorithm.private`)."""
    facts: tuple[str, ...] = ("n",)
    """Fields of `GraphFacts` passed to `make` if it has a parameter of that name; an experiment cannot set them."""


@dataclass(frozen=True)
class GraphFacts:
    """Facts of a run's graph for its algorithm: peers, spectral gap and ||I - W||, None: unknown."""

    n: int
    gap: float | None = None
    norm: float | None = None


def dsgd(order: str = "atc") -> Made:
    """Return D-PSGD that adapts, then combines ("atc"), or the other way round ("cta").

    Raises ConfigError for another order.
    """
    if order not in ORDERS:
        raise ConfigError(f"dsgd has no order {order!r}", f"Take one of {', '.join(ORDERS)}.")
    return ORDERS[order]()


ORDERS: Mapping[str, Callable[[], Made]] = {"atc": DSGD, "cta": CombineThenAdapt}


def push_sum(momentum: str = "local", beta: float | None = None) -> Made:
    """Return push-sum; momentum "mixed" is sent as mass, with share `beta` retained; "local" is `train.momentum`.

    Raises ConfigError for another word, and for a beta outside [0, 1) or without "mixed".
    """
    if momentum not in ("local", "mixed"):
        raise ConfigError(f"push-sum has no momentum {momentum!r}", 'Take "mixed"; or "local", with train.momentum.')
    if momentum == "mixed":
        return PushMomentum() if beta is None else PushMomentum(beta)
    if beta is not None:
        raise ConfigError('push-sum has no beta with momentum = "local"', 'Take momentum = "mixed", or train.momentum.')
    return PushSum()


def slowmo(
    n: int,
    base: str = "dsgd",
    base_options: Mapping[str, Any] | None = None,
    every: int = 12,
    alpha: float = 1.0,
    beta: float = 0.7,
    nesterov: bool = False,
) -> Made:
    """Return SlowMo around the algorithm `base` with its options.  Raises ConfigError for an unfit base or option."""
    if base not in SLOWED:
        raise ConfigError(f"slowmo has no base {base!r}", nearest(base, SLOWED))
    return SlowMo(make(base, METHODS[base], GraphFacts(n), base_options or {}), every, alpha, beta, nesterov=nesterov)


def choco(
    codec: str | Codec = "top-k:0.1",
    gamma: float | str = "practical",
    gap: float | None = None,
    norm: float | None = None,
) -> Made:
    """Return CHOCO-SGD.  Raises ConfigError as `Choco`."""
    return Choco(codec, gamma, gap, norm)


def diloco(
    lr: float = LR,
    beta: float = BETA,
    nesterov: bool = True,
    codec: str | Codec = "",
    gamma: float | str | None = None,
    fragments: int = 1,
    gap: float | None = None,
    norm: float | None = None,
) -> Made:
    """Return DiLoCo; with a codec, on coded changes as in CHOCO-SGD; or a fragment at a time.

    Raises ConfigError as each of them, for coded fragments, and for a gamma without a codec.
    """
    if codec and fragments != 1:
        text = f"diloco: fragments = {fragments!r} with codec = {codec!r}, which sends a whole model"
        raise ConfigError(text, "Leave one of them out; [parallel] takes both.")
    if codec:
        rule = "practical" if gamma is None else gamma
        return Choco(codec, rule, gap, norm, OuterStep(lr, beta, nesterov))
    if gamma is not None:
        raise ConfigError(f"diloco: gamma is {gamma!r} without a codec", 'Name one, for example codec = "int8:256".')
    if fragments != 1:
        return FragmentedDiLoCo(OuterStep(lr, beta, nesterov), fragments)
    return DiLoCo(lr, beta, nesterov=nesterov)


SLOWED = ("dsgd", "gradient-tracking", "d2", "dsgdm", "qg-dsgdm", "decentlam")
"""Algorithms that slowmo can wrap: their state next to x does not contain past values of the model."""

METHODS: Mapping[str, Method] = table(
    ("dsgd", Method(dsgd, ("sync", "async"), private=True)),
    ("push-sum", Method(push_sum, ("sync", "async"), weights="push", what="directed graphs too")),
    ("push-diging", Method(PushDIGing, weights="push", what="gradient tracking on directed graphs")),
    ("window-doubling", Method(WindowDoubling, what="with the graph of that name")),
    (
        "gradient-tracking",
        Method(GradientTracking, what="agrees on the optimum however unlike the data are, for two vectors a message"),
    ),
    ("d2", Method(D2, what='the same optimum, for one vector, with weights = "lazy" and no losses')),
    ("extra", Method(EXTRA, what="the same optimum, for one vector, with a step bound by the graph and no losses")),
    ("dsgdm", Method(MixedMomentum, what="momentum")),
    ("qg-dsgdm", Method(QuasiGlobal, what="momentum")),
    ("decentlam", Method(DecentLaM, what="momentum")),
    ("two-tap", Method(TwoTap)),
    ("slowmo", Method(slowmo, what="slow momentum round another method")),
    ("choco", Method(choco, facts=("gap", "norm"), what="sends what has changed, in fewer bytes")),
    ("diloco", Method(diloco, facts=("gap", "norm"), what="an outer step after long local work")),
    (
        "relaysgd",
        Method(RelaySGD, what="on a tree: every model counts once in every mean, however unlike the data are"),
    ),
)


def make(name: str, method: Method, context: GraphFacts, options: Mapping[str, Any]) -> Made:
    """Return the algorithm of a run.  Raises ConfigError for an unknown option, and for a value out of its limits."""
    facts = _check_names(name, method, tuple(options))
    check_values(name, method.make, options)
    return method.make(**options, **{key: getattr(context, key) for key in facts})


@lru_cache(maxsize=64)  # every peer of a simulation makes its own algorithm
def _check_names(name: str, method: Method, options: Collection[str]) -> Sequence[str]:
    """Return the facts that a method takes.  Raises ConfigError for an unknown option."""
    check_options(name, method.make, options, ours=method.facts)
    takes = inspect.signature(method.make).parameters
    return [key for key in method.facts if key in takes]


def own(name: str, kind: Callable[..., Made]) -> Method:
    """Return the method of a user's class, checked in every round.  Making it raises ConfigError for a bad class."""

    def make(**given: Any) -> Made:
        try:
            algorithm = kind(**given)
        except Exception as error:
            advice = "The class is yours; its options are algorithm.options."
            raise ConfigError(f"{name} cannot be made: {error!r}", advice) from error
        return Checked(name, algorithm)

    make.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
    return Method(make, weights=_derive_weights(kind))


def given(algorithm: Made) -> Method:
    """Return the method of an object passed in Python; its return values are checked in every round."""
    return Method(lambda: Checked(type(algorithm).__name__, algorithm), weights=_derive_weights(algorithm))


def _derive_weights(source: object) -> str | None:
    needs = getattr(source, "needs", None)
    return "push" if isinstance(needs, Needs) and needs.sums == "columns" else None


Given = TypeVar("Given")

_SEE = "See GossipAlgorithm in fedgossip/algorithms/gossip/base.py."

MEMBERS = ("start", "trained", "mixed", "model", "seen", "corrected", "rejoined")


def _describe_shape(vector: Vector) -> tuple[object, ...]:
    """Return the properties that must be equal for vectors [d] or [rows, d] of one algorithm."""
    return vector.dtype, vector.ndim, vector.shape[-1:]


class Checked:
    """Wraps an algorithm.  Raises ConfigError if it lacks a method, TrainingError for invalid return values."""

    def __init__(self, name: str, algorithm: GossipAlgorithm[Any]) -> None:
        self.name, self.algorithm, self.round = name, algorithm, 0
        self.first: Vector | None = None  # what all models are like
        missing = [method for method in MEMBERS if not callable(getattr(algorithm, method, None))]
        if missing:
            raise ConfigError(f"{name} has no method {missing[0]!r}", _SEE)
        for method in MEMBERS:
            _, *arguments = inspect.signature(getattr(GossipAlgorithm, method)).parameters
            check_call(f"{name}.{method}", getattr(algorithm, method), CalledWith(tuple(arguments), _SEE))
        slots = tuple(getattr(algorithm, "slots", ()))
        if not slots or not all(isinstance(slot, Slot) for slot in slots):
            raise ConfigError(f"{name}: slots = {slots!r}", 'Give a Slot per vector that a round mixes: (Slot("x"),).')
        self.needs: Needs = getattr(algorithm, "needs", Needs())
        self._weighted = self.needs.sums == "columns"
        if self._weighted and slots[-1] != WEIGHT:
            advice = 'Give as the last slot base.WEIGHT, Slot("weight", length=1, dtype="float64").'
            raise ConfigError(f"{name}: needs.sums = 'columns', and what is given away has no weight", advice)
        if any(slot.length is not None or slot.dtype for slot in slots[: -1 if self._weighted else None]):
            raise ConfigError(f"{name}: a slot of another length or type than the model's", "Mix vectors like it.")
        self.slots: tuple[Slot, ...] = slots

    def start(self, x: Vector) -> Any:
        """See `GossipAlgorithm.start`.  Raises TrainingError for a state that is no dataclass."""
        self.first = x
        return self._state(self._call("start", self.algorithm.start, x))

    def trained(self, state: Any, update: Vector | None, step: Step) -> tuple[Any, Vectors]:
        """See `GossipAlgorithm.trained`.  Raises TrainingError, by method and round, for bad results and exceptions."""
        self.round = step.round
        given = self._call("trained", self.algorithm.trained, state, update, step)
        if not (isinstance(given, tuple) and len(given) == 2):
            raise self._wrong("trained returned no (state, vectors)")
        begun, outgoing = given
        return self._state(begun), self._vectors("trained", outgoing, self.model(state))

    def mixed(self, state: Any, mixed: Vectors) -> Any:
        """See `GossipAlgorithm.mixed`.  Raises TrainingError as `trained` does."""
        after = self._state(self._call("mixed", self.algorithm.mixed, state, mixed))
        self._like("mixed", self.model(after), mixed[0])
        return after

    def model(self, state: Any) -> Vector:
        """See `GossipAlgorithm.model`.  Raises TrainingError for another length or type than the first vector's."""
        model, first = self._call("model", self.algorithm.model, state), self.first
        if first is None or (isinstance(model, np.ndarray) and _describe_shape(model) == _describe_shape(first)):
            return model
        return self._like("model", model, first)

    def seen(self, state: Any, outgoing: Vectors) -> Vector:
        """See `GossipAlgorithm.seen`.  Raises TrainingError as `model` does."""
        return self._like("seen", self._call("seen", self.algorithm.seen, state, outgoing), outgoing[0])

    def corrected(self, state: Any, differences: Vectors) -> Any:
        """See `GossipAlgorithm.corrected`.  Raises TrainingError as `start` does."""
        return self._state(self._call("corrected", self.algorithm.corrected, state, differences))

    def rejoined(self, state: Any, model: Vector) -> Any:
        """See `GossipAlgorithm.rejoined`.  Raises TrainingError as `start` does."""
        return self._state(self._call("rejoined", self.algorithm.rejoined, state, model))

    def _call(self, method: str, call: Callable[..., Given], *arguments: Any) -> Given:
        try:
            return call(*arguments)
        except Exception as error:
            raise self._wrong(f"{method} raised {error!r}{place_of(error)}") from error

    def _state(self, state: Any) -> Any:
        if not is_dataclass(state):
            raise self._wrong(f"a state is a frozen dataclass of arrays and numbers, not {type(state).__name__}")
        return state

    def _vectors(self, method: str, vectors: Sequence[Vector], like: Vector) -> Vectors:
        if not (isinstance(vectors, tuple) and len(vectors) == len(self.slots)):
            found = len(vectors) if isinstance(vectors, tuple | list) else type(vectors).__name__
            raise self._wrong(f"{method} returned {found} vectors for {len(self.slots)} slots")
        if not self._weighted:
            return tuple(self._like(method, vector, like) for vector in vectors)
        *likes, weight = vectors
        ones = np.ones((*like.shape[:-1], 1))
        return (*(self._like(method, vector, like) for vector in likes), self._like(method, weight, ones))

    def _like(self, method: str, vector: Any, like: Vector) -> Vector:
        if not (isinstance(vector, np.ndarray) and vector.dtype == like.dtype and vector.shape == like.shape):
            found = f"{vector.dtype} {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
            raise self._wrong(f"{method} returned {found}; expected {like.dtype} {like.shape}")
        return vector

    def _wrong(self, what: str) -> TrainingError:
        return TrainingError(
            f"{self.name}, round {self.round}: {what}", "The algorithm is yours; see examples/two_tap.py."
        )
