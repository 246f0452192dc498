"""The consensus rate of a mixing and of pairwise averaging, and the effective number of neighbours.

Definitions: slem = ||W - J||_2 (symmetric W: max(|l_2|, |l_n|)), spectral_gap = 1 - slem: the bound for one round.
rate = the largest |eigenvalue| except the mean's: the long-run factor per round.  For normal mixings both are equal;
others are measured by the norms of powers (`eigen`).  The gap is the rate of the worst direction, and ranks a star
above two cliques.  The effective number of neighbours n_W averages over directions, and ranks them as training does.

**Pairwise averaging**, as in asynchronous gossip.  One exchange averages the ends i, j of an edge: W_ij = I - (e_i -
e_j)(e_i - e_j)'/2, a projection.  A node drawn uniformly chooses one of its neighbours uniformly, so edge {i, j} has
p_ij = (1/d_i + 1/d_j) / n, and

    E W = I - 1/2 sum p_ij (e_i - e_j)(e_i - e_j)'
    bound  =  lambda_2(E W)                        E ||x - mean||^2 falls at least by this factor per exchange
    rate   =  the largest eigenvalue of X -> E[W X W] outside consensus: the decay in the long run

The slowest pattern reaches the bound once, and leaves half of it as noise in faster ones: bound^2 <= rate <= bound.  On
a regular graph of m edges the bound is 1 - mu_2 / (2 m), mu_2 the algebraic connectivity.

Source of model and bound: Boyd, Ghosh, Prabhakar and Shah, Randomized gossip algorithms, IEEE Trans. Inf. Theory 52,
2006.

**The forecast of every round**, from the graph only: the remaining disagreement, and the one added by learning.

With P_{r,t} = W_{r+t-1} ... W_r of the actual rounds,

    typical(t) = ||P_{0,t} - J||_F / sqrt(n - 1)     the root mean square over all directions
    worst(t)   = ||P_{0,t} - J||_2                   the largest remaining share of any disagreement

(`eigen` if only columns or rows sum to one).  If the updates of round s differ by delta_s, in no special direction, the
distance of D-PSGD (adapt, then combine) lies between

    fresh_t^2  = sum_s delta_s^2 ||P_{s,t-s} - J||_F^2 / (n - 1)      updates of different rounds are unrelated
    steady_t^2 = ||sum_s delta_s (P_{s,t-s} - J)||_F^2 / (n - 1)      all updates have the same direction
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, Topology
from fedgossip.topology.schedules.schedules import Schedule
from fedgossip.topology.spectra import eigen
from fedgossip.topology.spectra.eigen import Reached
from fedgossip.topology.spectra.spectrum import Spectrum, spectrum
from fedgossip.topology.weights.mixing_matrix import Mixing, from_edge_weights

_ONE = 1 - 1e-12  # an eigenvalue this near to 1 in size counts as 1
_EXACT = 1e-12  # a slem below this is 0
_QUADRATURE_STEPS = 300
_TYPICAL_LIMIT = 100_000  # nodes; beyond it the mean over all directions, computed some 80 times, costs seconds


@dataclass(frozen=True)
class Forecast:
    """The forecast from a graph and its weights before training; None for unknown fields.

    rounds_to_halve, rounds_to_1_percent: rounds of pure mixing to this share in the worst direction; None also for
    never.  typical_to_halve, typical_to_1_percent: the same for the root mean square over directions.  (For large
    directed graphs upper bounds, from slem.)  If rounds are drawn, the worst are medians over `draws` sequences;
    late_to_halve and late_to_1_percent suffice for nine of ten sequences; typical ones are of the expected square.
    mean_contraction: remaining share after a round in a random direction.  expected_contraction: of drawn rounds,
    ||E[W'W] - J||_2.  floor, ceiling: stationary disagreement per unit of spread added each round, before mixing: fresh
    noise, or the same each round.  n_w_error: half n_w's 95 % interval, 0 if exact.

    For a time-varying schedule (`sequences.forecast_of`) edges and degree_max are of the busiest round; slem, gap and
    eigenvalues are None.  messages: sent by a node per round, on average.  period: 1 for one graph, 0 for never.  rate:
    |l_2| of one graph, ||product of a period - J||^(1/period) of a cycle, the root of the expected share of squares of
    a random one.  exact_after: rounds to the exact mean, or None.
    """

    n: int
    edges: int
    degree_max: int
    weights: str
    lambda2: float | None
    lambda_n: float | None
    slem: float | None
    spectral_gap: float | None
    algebraic_connectivity: float | None
    n_w: float | None
    n_w_error: float
    gamma: float
    rounds_to_halve: int | None
    rounds_to_1_percent: int | None
    mean_contraction: float | None
    floor: float | None
    ceiling: float | None
    method: str
    residual: float
    resolved: bool
    messages: float
    period: int
    rate: float | None
    exact_after: int | None
    typical_to_halve: int | None = None
    typical_to_1_percent: int | None = None
    late_to_halve: int | None = None
    late_to_1_percent: int | None = None
    draws: int = 0
    expected_contraction: float | None = None

    def to_dict(self) -> dict[str, float | int | str | bool | None]:
        """Return the fields as a JSON-compatible dict."""
        return dataclasses.asdict(self)


def effective_neighbours(mixing: Mixing, gamma: float) -> float | None:
    """Return n_W(gamma), the effective number of models whose noise is averaged, between 1 and n.

    n_W = [1 / (1 - gamma)] / mean_i sum_{k>=1} gamma^(k-1) ||(W^k)_i||^2: 1 without exchange, n on a complete graph.
    gamma in [0, 1) is the decay of a contribution; 0.9 is about ten rounds.  Exact if all eigenvalues are known; a
    reproducible estimate for large graphs; None if unreliable.  Raises ConfigError for another gamma.

    Source: Vogels, Hendrikx and Jaggi, Beyond spectral gap, NeurIPS 2022.
    """
    check_gamma(gamma)
    return _effective(mixing, gamma, spectrum(mixing))[0]


def rounds_to(factor: float, slem: float) -> int | None:
    """Return the number of rounds until slem^rounds <= factor; None (never) if slem >= 1.

    Raises ConfigError for a factor outside (0, 1).
    """
    if not 0 < factor < 1:
        raise ConfigError(f"shrink to {factor:g}", "Give a factor between 0 and 1, e.g. 0.5.")
    return _rounds(factor, 1.0 - slem)


def forecast(mixing: Mixing, gamma: float = 0.9, found: Spectrum | None = None) -> Forecast:
    """Return the forecast of `mixing`; see Forecast.  `found`: its spectrum, if already computed.

    Raises ConfigError for a gamma outside [0, 1).
    """
    check_gamma(gamma)
    found = found or spectrum(mixing)
    n_w, error = _effective(mixing, gamma, found)
    floor, ceiling = _stationary(found)
    halve, percent = _reached(mixing, found)
    exact = _exact_after(mixing, found)
    return Forecast(
        n=mixing.n,
        edges=mixing.topology.edge_count,
        degree_max=int(mixing.topology.degrees().max()),
        weights=mixing.rule,
        lambda2=found.lambda2,
        lambda_n=found.lambda_n,
        slem=found.slem,
        spectral_gap=found.spectral_gap,
        algebraic_connectivity=found.algebraic_connectivity,
        n_w=n_w,
        n_w_error=error,
        gamma=gamma,
        rounds_to_halve=halve.worst,
        rounds_to_1_percent=percent.worst,
        typical_to_halve=halve.typical,
        typical_to_1_percent=percent.typical,
        mean_contraction=_mean_contraction(mixing),
        floor=floor,
        ceiling=ceiling,
        method=found.method,
        residual=found.residual,
        resolved=found.resolved,
        messages=float(mixing.topology.out_degrees.mean()),
        period=1,
        rate=0.0 if exact else found.rate,
        exact_after=exact,
    )


def disagreement_band(
    modes: npt.NDArray[np.complexfloating] | FloatArray, spread: npt.NDArray[np.floating]
) -> tuple[FloatArray, FloatArray]:
    """Return (lower [t], upper [t]), bounds of the disagreement if round s adds a spread of spread[s].

    modes: the eigenvalues [n - 1] of a normal mixing, without the mean's.  The update is mixed.  For spread in no
    special direction: unrelated updates, fresh_t^2 = sum_{s<=t} spread_s^2 mean_k |l_k|^(2(t-s+1)), or equal ones,
    steady_t^2 = mean_k |sum_{s<=t} l_k^(t-s+1) spread_s|^2.  The lower bound is the smaller of the two.
    """
    values, counts = np.unique(np.asarray(modes, np.complex128), return_counts=True)
    shares, sizes = counts / max(1, counts.sum()), np.abs(values)
    fresh, steady = np.zeros_like(sizes), np.zeros_like(values)
    lower, upper = np.zeros(len(spread)), np.zeros(len(spread))
    for t, delta in enumerate(np.asarray(spread, np.float64)):
        fresh = sizes**2 * (fresh + delta**2)
        steady = values * (steady + delta)
        edges = math.sqrt(shares @ fresh), math.sqrt(shares @ np.abs(steady) ** 2)
        lower[t], upper[t] = min(edges), max(edges)
    return lower, upper


# --- results from a spectrum ------------------------------------------------------------------------------------


def check_gamma(gamma: float) -> None:
    """Raise ConfigError unless 0 <= gamma < 1."""
    if not 0 <= gamma < 1:
        raise ConfigError(f"gamma {gamma:g}", "Give a memory of at least 0 and below 1, e.g. 0.9.")


def _effective(mixing: Mixing, gamma: float, found: Spectrum) -> tuple[float | None, float]:
    if mixing.stochastic != "both":
        return None, 0.0
    if found.eigenvalues is not None and found.normal:
        squares = found.eigenvalues**2
        return _n_w(mixing.n, gamma, float(np.sum(squares / (1.0 - gamma * squares)))), 0.0
    if mixing.n <= eigen.DENSE_LIMIT:
        return _n_w(mixing.n, gamma, _doubled_sum(mixing.matrix(), gamma)), 0.0
    return _estimated(mixing, gamma) if mixing.symmetric else (None, 0.0)


def _n_w(n: int, gamma: float, total: float) -> float:
    return n / ((1.0 - gamma) * total)


def _doubled_sum(W: FloatArray, gamma: float) -> float:
    """Return sum_{k>=1} gamma^(k-1) ||W^k||_F^2 by doubling: S_2m = S_m + gamma^m W^m S_m W^m'."""
    total, power, share = W @ W.T, W, gamma
    while share > 1e-18:
        total = total + share * (power @ total @ power.T)
        power, share = power @ power, share * share
    return float(np.trace(total))


def _estimated(mixing: Mixing, gamma: float) -> tuple[float | None, float]:
    # the nearest poles of l^2 / (1 - gamma l^2) lie at +-1/sqrt(gamma), which sets how fast the quadrature converges
    edge = 1.0 / math.sqrt(max(gamma, 1e-6))
    steps = math.ceil(8.0 / math.log(edge + math.sqrt(edge**2 - 1.0)))
    if steps > _QUADRATURE_STEPS:
        return None, 0.0
    W = mixing.sparse()
    traces = np.array([mixing.n, W.diagonal().sum(), W.data @ W.data]) - 1.0
    trace, error = eigen.quadrature(W.dot, traces, lambda values: values**2 / (1.0 - gamma * values**2), max(8, steps))
    total = trace + 1.0 / (1.0 - gamma)
    n_w = _n_w(mixing.n, gamma, total)
    return n_w, n_w * error / total


def _mean_contraction(mixing: Mixing) -> float | None:
    # sqrt(mean_{k>=2} l_k^2) = ||W - J||_F / sqrt(n - 1), which needs no eigenvalue
    if mixing.n == 1:
        return 0.0
    if mixing.stochastic != "both":
        return None
    row = mixing.turned
    squares = float(mixing.values @ mixing.values if row is None else mixing.n * (row[1] @ row[1]))
    return math.sqrt(max(0.0, squares - 1.0) / (mixing.n - 1))


def _reached(mixing: Mixing, found: Spectrum) -> tuple[Reached, Reached]:
    """Return the rounds until half of a disagreement remains, and until 1 %."""
    if not found.normal and mixing.n <= eigen.LIMIT:
        powers = eigen.Powers(mixing)
        return powers.reached(0.5), powers.reached(0.01)
    gap = found.spectral_gap
    worst = [None if gap is None else _rounds(factor, gap) for factor in (0.5, 0.01)]
    if found.eigenvalues is None or not found.normal or found.n > _TYPICAL_LIMIT:
        return Reached(worst[0], None), Reached(worst[1], None)
    share = eigen.typical_of(np.abs(found.eigenvalues[1:]))
    return Reached(worst[0], eigen.first(share, 0.5)), Reached(worst[1], eigen.first(share, 0.01))


def _exact_after(mixing: Mixing, found: Spectrum) -> int | None:
    if found.normal:
        return 1 if found.slem is not None and found.slem < _EXACT else None
    return eigen.Powers(mixing).exact_after if mixing.n <= eigen.LIMIT else None


def _stationary(found: Spectrum) -> tuple[float | None, float | None]:
    if found.eigenvalues is None or not found.normal or found.n == 1:
        return None, None
    others = found.eigenvalues[1:] if found.modes is None else found.modes
    if float(np.abs(others).max()) >= _ONE:
        return None, None
    squares, steady = np.abs(others) ** 2, np.abs(others / (1.0 - others))
    return math.sqrt(float((squares / (1.0 - squares)).mean())), math.sqrt(float((steady**2).mean()))


def _rounds(factor: float, gap: float) -> int | None:
    if gap <= 0:
        return None
    if gap >= 1:
        return 1
    # a small allowance: 0.5 at a slem of 0.5 is one round regardless of the logarithms' rounding
    return max(1, math.ceil(math.log(factor) / math.log1p(-gap) - 1e-9))


NODES_LIMIT = 128
"""Maximum number of nodes for the second moment: its operator acts on matrices [n, n]."""


@dataclass(frozen=True)
class PairwiseRates:
    """Remaining share of E ||x - mean||^2 after an exchange.  None: an unresolved `bound`, or `rate` for many nodes."""

    n: int
    bound: float | None
    rate: float | None

    def compute_remaining(self, exchanges: int = 1) -> float | None:
        """Return the remaining share of the distance after each peer started `exchanges` exchanges; for many peers a
        bound.
        """
        each = self.bound if self.rate is None else self.rate
        return None if each is None else math.sqrt(max(each, 0.0)) ** (self.n * exchanges)

    def rounds_to(self, share: float, exchanges: int = 1) -> int | None:
        """Return the rounds until the distance is at most `share` of its initial value; None for never."""
        left = self.compute_remaining(exchanges)
        if left is None or left >= 1:
            return None
        return 1 if left == 0 else max(1, math.ceil(math.log(share) / math.log(left) - 1e-9))


def pairwise_rates(topology: Topology) -> PairwiseRates:
    """Return the rates of exchanges between uniformly drawn neighbours in an undirected graph."""
    degrees, (u, v) = topology.degrees(), topology.edges.T
    chances = (1.0 / degrees[u] + 1.0 / degrees[v]) / topology.n
    mean = from_edge_weights(topology, "pairwise", chances / 2)
    with eigen.one_thread():
        rate = _second_moment(topology, chances) if topology.n <= NODES_LIMIT else None
    return PairwiseRates(topology.n, spectrum(mean).lambda2, rate)


def _second_moment(topology: Topology, chances: FloatArray) -> float:
    """Return the largest eigenvalue of X -> C (sum p W X W) C, C = I - J, by Lanczos on matrices [n, n]."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    n, (u, v) = topology.n, topology.edges.T
    if n < 3:
        return 0.0  # one exchange is the mean
    laplacian = np.zeros((n, n))
    for at, to, sign in ((u, u, 1.0), (v, v, 1.0), (u, v, -1.0), (v, u, -1.0)):
        np.add.at(laplacian, (at, to), sign * chances)

    def apply_exchange(flat: FloatArray) -> FloatArray:
        X = _centred(flat.reshape(n, n))
        moved = X - 0.5 * (laplacian @ X + X @ laplacian)
        apart = chances * (X[u, u] + X[v, v] - X[u, v] - X[v, u]) / 4
        for at, to, sign in ((u, u, 1.0), (v, v, 1.0), (u, v, -1.0), (v, u, -1.0)):
            np.add.at(moved, (at, to), sign * apart)
        return _centred(moved).ravel()

    begun = _centred(np.random.Generator(np.random.PCG64(0)).standard_normal((n, n)))
    operator = LinearOperator((n * n, n * n), matvec=apply_exchange, dtype=np.float64)
    (largest,) = eigsh(operator, k=1, which="LA", v0=(begun + begun.T).ravel(), return_eigenvectors=False)
    return float(largest)


def _centred(X: FloatArray) -> FloatArray:
    rows = X - X.mean(axis=0)
    return np.asarray(rows - rows.mean(axis=1, keepdims=True))


BAND_NODES_LIMIT = 512
"""Maximum number of nodes for whole products; above it, DRAWS columns estimate the typical share to within 1 %."""
DRAWS = 64
BAND_WORK = 200_000_000
"""Maximum number of multiplications for the band of one run."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """Remaining shares of a disagreement after rounds 1, 2, ..., float64 [rounds].

    worst is None for more than NODES_LIMIT nodes.
    """

    typical: FloatArray
    worst: FloatArray | None

    @property
    def rounds(self) -> int:
        """Number of forecast rounds."""
        return len(self.typical)


def outlook(schedule: Schedule, rounds: int) -> Outlook:
    """Return the remaining shares of a disagreement after each of the first `rounds` of a schedule."""
    n, whole = schedule.n, schedule.n <= BAND_NODES_LIMIT
    draw = np.random.Generator(np.random.PCG64(0))
    product = np.eye(n) if whole else draw.standard_normal((n, DRAWS))
    weight, began = np.ones((n, 1)), product
    typical, worst = np.empty(rounds), np.empty(rounds)
    with eigen.one_thread():
        for round in range(rounds):
            W = schedule.mixing(round).sparse()
            product, weight = np.asarray(W @ product), np.asarray(W @ weight)
            if whole:
                typical[round] = eigen.typical(product, schedule.stochastic)
                worst[round] = eigen.worst(product, schedule.stochastic)
            else:
                typical[round] = _away(product / weight, schedule.stochastic, began)
    return Outlook(typical, worst if whole else None)


def disagreement_edges(schedule: Schedule, spread: Sequence[float]) -> tuple[FloatArray, FloatArray] | None:
    """Return (lower [t], upper [t]) of D-PSGD's distance after round t, from each round's spread of updates.

    None if only columns sum to one, and for too many nodes and rounds.
    """
    n = schedule.n
    entries = len(schedule.mixing(0).values)
    if schedule.stochastic == "columns" or 2 * entries * n * len(spread) > BAND_WORK or n > BAND_NODES_LIMIT:
        return None
    centred = np.eye(n) - 1.0 / n
    fresh, steady = np.zeros((n, n)), np.zeros((n, n))
    edges = np.empty((2, len(spread)))
    for round, delta in enumerate(spread):
        W = schedule.mixing(round).sparse()
        steady = np.asarray(W @ (steady + delta * centred))
        half = np.asarray(W @ (fresh + delta**2 * centred))
        fresh = np.asarray(W @ half.T)
        left = _subtract_mean(_subtract_mean(fresh).T), _subtract_mean(steady)
        edges[:, round] = math.sqrt(max(0.0, float(np.trace(left[0])))), float(np.linalg.norm(left[1]))
    edges /= math.sqrt(max(1, n - 1))
    return edges.min(axis=0), edges.max(axis=0)


def _subtract_mean(product: FloatArray) -> FloatArray:
    return np.asarray(product - product.mean(axis=0))


def _away(held: FloatArray, stochastic: str, began: FloatArray) -> float:
    """Return the remaining share of random columns' disagreement: each norm is about sqrt(n)."""
    mean = held.mean(axis=0) if stochastic == "rows" else began.mean(axis=0)
    return float(np.linalg.norm(held - mean) / np.linalg.norm(began - began.mean(axis=0)))
