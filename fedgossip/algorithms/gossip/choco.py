"""CHOCO-SGD: gossip of changes, encoded by a codec (Koloskova, Stich and Jaggi, Decentralized stochastic optimization
and gossip algorithms with compressed communication, ICML 2019):

    q_i     =  Q(x_i + u_i - xhat_i)                      the only message of i
    xhat_i  <- xhat_i + q_i                               at i and at each of its neighbours
    x_i     <- x_i + u_i + gamma sum_j W_ij (xhat_j - xhat_i)

xhat_i begins at 0 everywhere, so no model is sent whole.  The part that Q omits is sent later; the mean of all x is
kept for any Q.  A link carries changes of xhat_i (`protocols/gossip/replicas`).

gamma, 0 < gamma <= 1: a larger one agrees sooner, until it diverges; a coarser Q needs a smaller one.  For a spectral
gap g, a contraction c of Q and b = ||I - W||

    theorem      g^2 c / (16 g + g^2 + 4 b^2 + 2 g b^2 - 8 g c)      always converges; thousands of times below
                                                                     the limit of most runs
    practical    2 c / ((1 + 2 c) b)                                 fedgossip's default: averaging by top-k converged
                                                                     on every tested graph (tests)

For random-k the practical rule is c / ((2 - c) b) (`practical_by_places`).  Neither contains g: divergence depends on c
and the largest eigenvalue of I - W.

With an outer step (`diloco` with a codec) u_i is the outer step of x_i and v_i along the local change alone, so peers
stay up to lr / (1 - beta) times further apart than in `diloco`.  If v included the disagreement, averaging by signs
would diverge, and a late change would move the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.codecs.quantized import QSGD, Sign
from fedgossip.algorithms.codecs.sparse import DeepGradient, RandomK
from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.vectors import Vector, add, frozen, linear, subtract

KNOWN_TO_ALL = -1
"""Version of the initial xhat: 0 at all peers."""


@dataclass(frozen=True, eq=False)
class Replicated:
    """Arrays [d] or [n, d]: the model, its replica at the others, and the last round's payload, [bytes] or [n, bytes].

    The payload is stored because a randomised codec cannot repeat it.
    """

    x: Vector
    known: Vector
    coded: Payload | None = None
    version: int = KNOWN_TO_ALL
    """The round in which `known` last changed, by `coded`."""
    base: int = KNOWN_TO_ALL
    """The round of its previous change."""
    v: Vector | None = None
    """The outer momentum, of this peer's updates only."""


def theorem(gap: float, norm: float, contraction: float) -> float:
    """Return the gamma for which averaging is proven to converge; 0 on a graph without a gap.

    Source: Koloskova, Stich and Jaggi (ICML 2019), theorem 2.
    """
    squared = norm**2
    return gap**2 * contraction / (16 * gap + gap**2 + 4 * squared + 2 * gap * squared - 8 * gap * contraction)


def practical(_gap: float, norm: float, contraction: float) -> float:
    """Return the default gamma, above the theorem's; `norm` is above 0."""
    return 2 * contraction / ((1 + 2 * contraction) * norm)


def practical_by_places(_gap: float, norm: float, contraction: float) -> float:
    """Return random-k's default gamma: half of the largest for which averaging converges.

    An element sent with probability c changes by gamma b times its last change in each of T rounds: E (1 - gamma b T)²
    = 1
    - 2 gamma b / c + (gamma b)² (2 - c) / c² < 1 for gamma below 2 c / ((2 - c) b).  2 c / ((1 + 2 c) b) diverged.
    """
    return contraction / ((2 - contraction) * norm)


RULES: Mapping[str, Callable[[float, float, float], float]] = {"practical": practical, "theorem": theorem}
"""(spectral gap, ||I - W||, contraction) -> gamma"""

SIGNS = 2 / math.pi
"""The contraction of signs of a vector of normal elements; the minimum, 1 / d, belongs to one nonzero element."""


class Choco:
    """CHOCO-SGD by a codec or its name, and gamma: a number, or a rule of RULES, which needs the graph's gap and ||I -
    W||.

    `outer`: each peer takes that step along its update first.  Raises ConfigError for a codec without contraction, or
    an invalid gamma.
    """

    slots = (MODEL,)
    needs = Needs(sums="both", constant=True, constant_members=True, symmetric=True, linear=True)

    def __init__(
        self,
        codec: str | Codec = "top-k:0.1",
        gamma: float | str = "practical",
        gap: float | None = None,
        norm: float | None = None,
        outer: OuterStep | None = None,
    ) -> None:
        self.outer, name = outer, "diloco" if outer else "choco"
        if isinstance(gamma, str) and gamma not in RULES:
            raise ConfigError(f"{name}: there is no rule {gamma!r} for gamma", nearest(gamma, RULES))
        if not isinstance(gamma, str) and (
            isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 < gamma <= 1
        ):
            text = f"{name}: gamma is {gamma!r}; expected a number above 0 and at most 1"
            raise ConfigError(text, "Halve it where the peers drift apart, or leave it out: it is computed then.")
        self.codec, self._gamma, self._gap, self._norm = _contracting(codec, name), gamma, gap, norm

    def gamma(self, length: int) -> float:
        """Return gamma for models of `length` elements; a rule's has two digits.  Raises ConfigError without a gap."""
        if not isinstance(self._gamma, str):
            return float(self._gamma)
        if not self._norm:  # one peer, or no edges
            return 1.0
        rule = RULES[self._gamma]
        if isinstance(self.codec, RandomK) and rule is practical:
            rule = practical_by_places
        found = rule(self._gap or 0.0, self._norm, self.contraction(length))
        if not found:
            text = f"choco: gamma = {self._gamma!r} on a graph whose gap is {'not known' if self._gap is None else 0}"
            raise ConfigError(text, 'Name a number, or gamma = "practical".')
        return float(f"{min(1.0, found):.2g}")

    def contraction(self, length: int) -> float:
        """Return the codec's contraction factor used by the gamma rules."""
        if isinstance(self.codec, Sign):
            return max(SIGNS, 1 / length)
        return self.codec.contraction(VectorLayout.of_length(length, np.dtype("float32")))

    def start(self, x: Vector) -> Replicated:
        zeros = frozen(np.zeros_like(x))
        return Replicated(x, zeros, v=zeros if self.outer else None)

    def trained(self, state: Replicated, update: Vector | None, step: Step) -> tuple[Replicated, Vectors]:
        x, v = self._learned(state, update)
        coded, new = self._encode_changes(subtract(x, state.known), step.round)
        known = add(state.known, new)
        return Replicated(x, known, coded, step.round, state.version, v), (known,)

    def _learned(self, state: Replicated, update: Vector | None) -> tuple[Vector, Vector | None]:
        if self.outer and state.v is not None:
            return self.outer.taken(state.x, state.v, frozen(np.zeros_like(state.x)) if update is None else update)
        return state.x if update is None else add(state.x, update), None

    def mixed(self, state: Replicated, mixed: Vectors) -> Replicated:
        gamma = self.gamma(state.x.shape[-1])
        return replace(state, x=linear((1, state.x), (gamma, mixed[0]), (-gamma, state.known)))

    def model(self, state: Replicated) -> Vector:
        return state.x

    def seen(self, state: Replicated, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return state.x

    def corrected(self, state: Replicated, differences: Vectors) -> Replicated:
        return replace(state, x=linear((1, state.x), (self.gamma(state.x.shape[-1]), differences[0])))

    def rejoined(self, state: Replicated, model: Vector) -> Replicated:
        return replace(self.start(model), v=state.v)

    def _encode_changes(self, changes: Vector, round: int) -> tuple[Payload, Vector]:
        layout, turn = VectorLayout.of_length(changes.shape[-1], changes.dtype), CodecTurn(0, 0, round)
        if changes.ndim == 1:
            coded = frozen(self.codec.encode(changes, layout, turn))
            return coded, self.codec.decode(coded, layout, turn)
        rows = [self.codec.encode(row, layout, turn) for row in changes]
        return frozen(np.stack(rows)), frozen(np.stack([self.codec.decode(row, layout, turn) for row in rows]))


def _contracting(named: str | Codec, method: str) -> Codec:
    codec = make_codec(named) if isinstance(named, str) else named
    codec, name = replace(codec, divided=True) if isinstance(codec, QSGD) else codec, codec.name
    least = codec.contraction(VectorLayout.of_length(2, np.dtype("float32")))
    if not least or isinstance(codec, DeepGradient):
        text = f"{method}: {name} is no codec for it: it is no contraction"
        raise ConfigError(text, "Take top-k:SHARE, random-k:SHARE, qsgd:LEVELS, int8:BLOCK, sign, bf16 or fp16.")
    return codec
