"""Properties of a schedule: rounds to the exact mean, rate over whole periods, effective neighbours.

One step does not characterise a sequence: one-peer exponential has slem 1 for even n, and the exact mean of 2^p nodes
after log2 n rounds.  Therefore slem and gap are None, and `rate` is the long-run one.

Large cycles are estimated without dense products: E z'A z = tr A for random signs z, so a few vectors give ||W_k ...
W_1 - J||_F^2, with a 95 % interval, hence n_W, floor and typical rounds.  The worst direction is P'P's largest
eigenvalue by Lanczos, P = W_k ... W_1 applied round by round.

Sources: Hutchinson, A stochastic estimator of the trace of the influence matrix for Laplacian smoothing splines,
Communications in Statistics - Simulation and Computation 18 (1989); for Lanczos see `eigen`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedgossip.base import seeds
from fedgossip.topology.graphs.graph import FloatArray
from fedgossip.topology.schedules.schedules import Cycle, Endless, Random, Schedule
from fedgossip.topology.spectra import eigen
from fedgossip.topology.spectra.convergence import Forecast, check_gamma, forecast, rounds_to
from fedgossip.topology.spectra.spectrum import Spectrum
from fedgossip.topology.weights.mixing_matrix import Mixing

WORST_LIMIT = 512  # nodes; beyond it dense products are not made, and n_w, floor and rounds are estimated
LEAST = 0.01  # how far the worst direction is followed,
PERIODS = 100  # and for how many periods at most
DRAWS, DRAWS_WORK, DRAWN_LIMIT = 64, 4_000_000, 256
"""Limits of the sequences drawn for a random schedule's worst direction: number of draws, draws * n^3, and n."""
MOMENT_LIMIT, MOMENT_ROUNDS, MOMENT_END = 200, 600, 1e-8
"""Limits of dense second moments: maximum number of nodes, maximum number of rounds, and the remaining share that ends
the computation.
"""
UNKNOWN = (
    *("lambda2", "lambda_n", "slem", "spectral_gap", "algebraic_connectivity", "n_w", "mean_contraction"),
    *("rounds_to_halve", "rounds_to_1_percent", "typical_to_halve", "typical_to_1_percent"),
    *("floor", "ceiling", "rate", "exact_after"),
)  # None unless the schedule provides them


def forecast_of(schedule: Schedule, gamma: float = 0.9, found: Spectrum | None = None) -> Forecast:
    """Return the forecast of any schedule before training; None for unknown fields.

    One graph: `spectral.forecast`, `found` its spectrum if already computed.  A cycle: products of rounds, in closed
    form if circulant, else dense; for large ones only exact_after and estimates.  Random: expected values, and the
    worst directions of drawn sequences.  Raises ConfigError for a gamma outside [0, 1).
    """
    check_gamma(gamma)
    if isinstance(schedule, Mixing):
        return forecast(schedule, gamma, found)
    if schedule.n == 1 or (schedule.period == 1 and not (isinstance(schedule, Cycle) and schedule.algorithm)):
        return forecast(schedule.mixing(0), gamma)  # no disagreement in any round, or one graph in all
    if isinstance(schedule, Random):
        return _forecast_random(schedule, gamma)
    if isinstance(schedule, Endless):
        return _report(schedule, gamma, "unknown")
    return _forecast_cycle(schedule, gamma)


def product_norm(schedule: Schedule) -> float | None:
    """Return ||W_p ... W_2 W_1 - J||_2 over one period; None if rounds never repeat, and above 512 nodes unless exact
    or circulant.
    """
    if not schedule.period:
        return None
    if _exact_after(schedule):
        return 0.0
    left = _compute_remaining(schedule, eigen.worst)
    return None if left is None else left[schedule.period - 1]


# --- cycles -----------------------------------------------------------------------------------------------------


def _forecast_cycle(schedule: Schedule, gamma: float) -> Forecast:
    if isinstance(schedule, Cycle) and schedule.algorithm:
        exact: int | None = schedule.period
        numbers = dict.fromkeys(("exact_after", "rounds_to_halve", "rounds_to_1_percent"), exact)
        return _report(schedule, gamma, "construction", rate=0.0, **numbers)
    exact, norm = _exact_after(schedule), product_norm(schedule)
    if _sizes(schedule) is None and schedule.n > WORST_LIMIT and schedule.stochastic == "both":
        return _forecast_large(schedule, gamma, exact)
    worst, typical = _compute_remaining(schedule, eigen.worst), _compute_remaining(schedule, eigen.typical)
    deviation, lasting = _deviation(schedule, gamma), _deviation(schedule, 1.0)
    return _report(
        schedule,
        gamma,
        "dense" if _sizes(schedule) is None else "closed form",
        rate=None if norm is None else norm ** (1.0 / schedule.period),
        exact_after=exact,
        n_w=None if deviation is None else schedule.n / (1.0 + (1.0 - gamma) * deviation),
        mean_contraction=math.sqrt(_mean_left(schedule)),
        floor=None if lasting is None else math.sqrt(lasting / (schedule.n - 1)),
        rounds_to_halve=exact if worst is None else _first(worst, 0.5),
        rounds_to_1_percent=exact if worst is None else _first(worst, LEAST),
        typical_to_halve=None if typical is None else _first(typical, 0.5),
        typical_to_1_percent=None if typical is None else _first(typical, LEAST),
    )


def _forecast_large(schedule: Schedule, gamma: float, exact: int | None) -> Forecast:
    """Return estimates by random vectors and Lanczos for a large, non-circulant cycle."""
    remembered, lasting = estimated_deviation(schedule, gamma), estimated_deviation(schedule, 1.0)
    typical, norm = typical_left(schedule, LEAST), None if exact else period_left(schedule)
    numbers: dict[str, float | int | None] = {}
    if remembered is not None:
        n_w = schedule.n / (1.0 + (1.0 - gamma) * remembered.value)
        numbers = {"n_w": n_w, "n_w_error": n_w * n_w / schedule.n * (1.0 - gamma) * remembered.error}
    return _report(
        schedule,
        gamma,
        "estimated",
        **numbers,
        rate=0.0 if exact else None if norm is None else norm ** (1.0 / schedule.period),
        exact_after=exact,
        mean_contraction=math.sqrt(_mean_left(schedule)),
        floor=None if lasting is None else math.sqrt(lasting.value / (schedule.n - 1)),
        rounds_to_halve=worst_reached(schedule, 0.5),
        rounds_to_1_percent=worst_reached(schedule, LEAST),
        typical_to_halve=None if typical is None else _first(typical, 0.5),
        typical_to_1_percent=None if typical is None else _first(typical, LEAST),
    )


def _sizes(schedule: Schedule) -> list[FloatArray] | None:
    """Return |eigenvalue| [n - 1] per round on the same Fourier modes; None if not circulant."""
    found = []
    for round in range(schedule.period):
        generator = schedule.mixing(round).generator
        if generator is None:
            return None
        deficits, imaginary = eigen.circulant_deficits(schedule.n, *generator)
        found.append(np.hypot(1.0 - deficits, imaginary)[1:])
    return found


def _exact_after(schedule: Schedule) -> int | None:
    """Return the rounds to the exact mean at all nodes, from a period applied to random vectors; or None."""
    x = np.random.Generator(np.random.PCG64(0)).standard_normal((schedule.n, 2))
    mean = x.mean(axis=0)
    for round in range(schedule.period):
        x = schedule.mixing(round).sparse() @ x
        if np.abs(x - mean).max() < eigen.EXACT:
            return round + 1
    return None


def _compute_remaining(schedule: Schedule, share_of: Callable[[FloatArray, str], float]) -> list[float] | None:
    """Return the remaining shares after k = 1, 2, ... rounds, a period at least, down to 1 %; None if too costly."""
    sizes = _sizes(schedule)
    if sizes is None and schedule.n > WORST_LIMIT:
        return None
    found: list[float] = []
    with eigen.one_thread():
        for share in _shares(schedule, share_of) if sizes is None else _shares_circulant(sizes, share_of):
            found.append(share)
            whole = len(found) >= schedule.period
            if (whole and share <= LEAST) or len(found) == PERIODS * schedule.period:
                break
    return found


def _shares(schedule: Schedule, share_of: Callable[[FloatArray, str], float]) -> Iterator[float]:
    product = np.eye(schedule.n)
    for round in itertools.count():
        product = schedule.mixing(round).sparse() @ product
        yield share_of(product, schedule.stochastic)


def _shares_circulant(sizes: list[FloatArray], share_of: Callable[[FloatArray, str], float]) -> Iterator[float]:
    left = np.ones_like(sizes[0])
    for size in itertools.cycle(sizes):
        left = left * size
        yield float(left.max() if share_of is eigen.worst else np.sqrt(np.mean(left**2)))


def _first(left: list[float], factor: float) -> int | None:
    # the allowance counts a share of exactly one half despite rounding
    return next((rounds for rounds, share in enumerate(left, 1) if share <= factor * (1 + 1e-9)), None)


def _deviation(schedule: Schedule, gamma: float) -> float | None:
    """Return sum_{k>=1} gamma^(k-1) ||W_{r+k-1} ... W_r - J||_F^2, the mean over the rounds r of a period.

    Backwards: with G_r = sum_k gamma^(k-1) D' D, D = W_{r+k-1} ... W_r - J, is G_r = W_r' (I - J + gamma G_{r+1}) W_r.
    """
    sizes = _sizes(schedule)
    if sizes is not None:
        return _deviation_circulant(sizes, gamma)
    if schedule.n > WORST_LIMIT or not _exact_after(schedule):
        return None
    centred = np.eye(schedule.n) - 1.0 / schedule.n
    G, total = np.zeros_like(centred), 0.0
    for round in reversed(range(2 * schedule.period)):  # an exact period erases the initial G
        Wt = schedule.mixing(round).sparse().T.tocsr()
        G = Wt @ (Wt @ (centred + gamma * G)).T
        total += float(np.trace(G)) if round < schedule.period else 0.0
    return max(0.0, total) / schedule.period


def _deviation_circulant(sizes: list[FloatArray], gamma: float) -> float | None:
    """The same recursion per mode, g_r = s_r^2 (1 + gamma g_{r+1}), with g periodic: g_0 = a + b g_0."""
    a, b = np.zeros_like(sizes[0]), np.ones_like(sizes[0])
    for size in reversed(sizes):
        a, b = size**2 * (1.0 + gamma * a), size**2 * gamma * b
    if float(b.max()) >= 1.0:
        return None
    g, total = a / (1.0 - b), 0.0
    for size in reversed(sizes):
        g = size**2 * (1.0 + gamma * g)
        total += float(g.sum())
    return total / len(sizes)


def _mean_left(schedule: Schedule) -> float:
    """Return the mean of (||W_r||_F^2 - 1)/(n - 1) over a period: the remaining share of the square after a round."""
    squares = [float(np.sum(schedule.mixing(round).values ** 2)) for round in range(schedule.period)]
    return max(0.0, (math.fsum(squares) / len(squares) - 1.0) / (schedule.n - 1))


# --- random ones ------------------------------------------------------------------------------------------------


def _forecast_random(schedule: Random, gamma: float) -> Forecast:
    """Expected values: with c the remaining share of sum ||x_i - mean||^2, E ||W_k ... W_1 - J||_F^2 = (n - 1) c^k."""
    left = schedule.contraction
    if schedule.moment is not None and schedule.n <= MOMENT_LIMIT:
        return _forecast_by_moments(schedule, schedule.moment, gamma)
    if left is None:
        return _report(schedule, gamma, "unknown")
    rate = math.sqrt(left)
    numbers: dict[str, float | int | None] = {
        "rate": rate,
        "mean_contraction": rate,
        "expected_contraction": left,
        "typical_to_halve": rounds_to(0.5, rate),
        "typical_to_1_percent": rounds_to(0.01, rate),
        **_worst_of_draws(schedule, rounds_to(LEAST, rate)),
    }
    if schedule.stochastic == "both":  # else the mean moves, and n_w and the floors are undefined
        numbers["n_w"] = schedule.n / (1.0 + (schedule.n - 1) * (1.0 - gamma) * left / (1.0 - gamma * left))
    if schedule.stochastic == "both" and left < 1.0:  # a graph that never mixes has no floor to settle at
        numbers["floor"] = math.sqrt(left / (1.0 - left))
        numbers["ceiling"] = math.sqrt(
            left * (1.0 + 2.0 * _compute_kept_weight(schedule) / (1.0 - _compute_kept_weight(schedule))) / (1.0 - left)
        )
    return _report(schedule, gamma, "expected", **numbers)


def _forecast_by_moments(schedule: Random, moment: Callable[[FloatArray], FloatArray], gamma: float) -> Forecast:
    """Expected values if directions differ: E ||W_k ... W_1 - J||_F^2 = tr M_k, M_k = E[W' M_k-1 W], M_0 = I - J."""
    n = schedule.n
    M = np.eye(n) - 1.0 / n
    lefts: list[float] = []
    with eigen.one_thread():
        worst = float(np.linalg.eigvalsh(moment(M))[-1])
        while len(lefts) < MOMENT_ROUNDS and not (lefts and lefts[-1] < MOMENT_END):
            M = moment(M)
            lefts.append(max(0.0, float(np.trace(M))) / (n - 1))
    squares = np.array(lefts)
    rate2 = float(squares[-1] / squares[-2]) if len(lefts) > 1 and squares[-2] > 0 else float(squares[-1])
    ended = rate2 < 1.0 - 1e-9
    tail = float(squares[-1]) * rate2 / (1.0 - rate2) if ended else math.inf  # the remainder: a geometric series
    weights = gamma ** np.arange(len(lefts))
    remembered = float(weights @ squares) + gamma ** len(lefts) * float(squares[-1]) * rate2 / (1.0 - gamma * rate2)
    reached = {factor: next((k for k, c in enumerate(lefts, 1) if c <= factor**2), None) for factor in (0.5, LEAST)}
    numbers: dict[str, float | int | None] = {
        "rate": math.sqrt(rate2),
        "mean_contraction": math.sqrt(lefts[0]),
        "expected_contraction": worst,
        "typical_to_halve": reached[0.5],
        "typical_to_1_percent": reached[LEAST],
        "n_w": n / (1.0 + (n - 1) * (1.0 - gamma) * remembered),
        "floor": math.sqrt(float(squares.sum()) + tail) if ended else None,
        **_worst_of_draws(schedule, reached[LEAST]),
    }
    return _report(schedule, gamma, "expected", **numbers)


def _worst_of_draws(schedule: Random, typical: int | None) -> dict[str, float | int | None]:
    """Return the rounds until half, and 1 %, remain in the worst direction of drawn sequences.

    `typical`: the expected rounds to 1 %; a draw is followed ten times as long.
    """
    n = schedule.n
    if typical is None or n > DRAWN_LIMIT:
        return {}
    draws = min(DRAWS, max(4, DRAWS_WORK // n**3))
    seen: list[tuple[int, int]] = []
    with eigen.one_thread():
        for draw in range(draws):
            fresh = dataclasses.replace(schedule, seed=int(seeds.stream(0, "forecast", n, draw).integers(1 << 31)))
            shares = itertools.islice(_shares(fresh, eigen.worst), 10 * typical)
            above = list(itertools.takewhile(lambda share: share > LEAST, shares))
            seen.append((1 + sum(share > 0.5 for share in above), 1 + len(above)))
    quantiles = [math.ceil(np.quantile(found, q)) for found in zip(*seen, strict=True) for q in (0.5, 0.9)]
    names = ("rounds_to_halve", "late_to_halve", "rounds_to_1_percent", "late_to_1_percent")
    return {**dict(zip(names, quantiles, strict=True)), "draws": draws}


def _compute_kept_weight(schedule: Random) -> float:
    """Return the w of E W = w I + (1 - w) J."""
    mixing = schedule.mixing(0)
    trace = float(mixing.values[mixing.ids == mixing.receivers].sum())
    return (trace - 1.0) / (schedule.n - 1)


# --- both -------------------------------------------------------------------------------------------------------


def _report(schedule: Schedule, gamma: float, method: str, **numbers: float | int | None) -> Forecast:
    mixings = [schedule.mixing(round) for round in range(schedule.period or 1)]
    sent = [mixing.topology.out_degrees for mixing in mixings]
    unknown: dict[str, float | int | None] = dict.fromkeys(UNKNOWN)
    return Forecast(
        n=schedule.n,
        edges=max(mixing.topology.edge_count for mixing in mixings),
        degree_max=max(int(degrees.max()) for degrees in sent),
        weights=schedule.rule,
        gamma=gamma,
        method=method,
        residual=0.0,
        resolved=True,
        messages=float(np.mean(sent)),
        period=schedule.period,
        **{**unknown, "n_w_error": 0.0, **numbers},  # type: ignore[arg-type]
    )


PHASES = 64  # maximum period; the estimate starts at each of its rounds
WORK = 1_000_000_000  # multiplications of each estimate, some seconds
LEAST_STEPS = 60  # of Lanczos, that must fit into it
LEFT = 1e-10  # of the squares: smaller ones count as 0
TAIL = 1e-6  # a remembered rest that is this share of the sum is left out


@dataclass(frozen=True)
class TraceEstimate:
    """An estimated value, and half the width of its 95 % interval."""

    value: float
    error: float


def estimated_deviation(schedule: Schedule, gamma: float) -> TraceEstimate | None:
    """Return sum_{k>=1} gamma^(k-1) ||W_{r+k-1} ... W_r - J||_F^2, the mean over rounds r of a period.

    For doubly stochastic rounds; None above PHASES rounds, or WORK.
    """
    if schedule.period > PHASES:
        return None
    z = _signs(schedule.n)
    total, work = np.zeros(z.shape[1]), 0.0
    for begin in range(schedule.period):
        x, remembered, seen = z, 1.0, np.zeros(z.shape[1])
        for round in range(begin, begin + 10**9):
            W = schedule.mixing(round).sparse()
            x = W @ x
            squares = np.einsum("ij,ij->j", x, x)
            seen += remembered * squares
            remembered *= gamma
            rest = float(squares.max())
            if rest < LEFT * schedule.n or remembered * rest < (1.0 - gamma) * TAIL * float(seen.max()):
                break
            work += W.nnz * z.shape[1]
            if work > WORK:
                return None
        total += seen
    each = total / schedule.period
    return TraceEstimate(float(each.mean()), eigen.interval(each))


def typical_left(schedule: Schedule, least: float) -> list[float] | None:
    """Return the typical remaining shares after 1, 2, ... rounds, a period at least, down to `least`; None for too much
    work.
    """
    x = _signs(schedule.n)
    found: list[float] = []
    work = 0.0
    while not found or len(found) < schedule.period or found[-1] > least:
        W = schedule.mixing(len(found)).sparse()
        x = W @ x
        found.append(math.sqrt(float(np.mean(np.einsum("ij,ij->j", x, x))) / (schedule.n - 1)))
        work += W.nnz * x.shape[1]
        if work > WORK:
            return None
    return found


def worst_reached(schedule: Schedule, factor: float) -> int | None:
    """Return the rounds until no direction has more than `factor` left; None if unresolved."""
    high = 1
    while (more := _more_left(schedule, high, factor)) is True:
        high *= 2
    low = high // 2
    while more is False and high - low > 1:
        middle = (low + high) // 2
        more = _more_left(schedule, middle, factor)
        low, high = (middle, high) if more else (low, middle)
        more = False if more is not None else None
    return high if more is False else None


def period_left(schedule: Schedule) -> float | None:
    """Return ||W_p ... W_1 - J||_2 of a period; None if Lanczos does not resolve it."""
    square, sure = _worst_square(schedule, schedule.period)
    return math.sqrt(square) if sure else None


def _more_left(schedule: Schedule, rounds: int, factor: float) -> bool | None:
    """Whether more than `factor` remains after `rounds`; None if unresolved."""
    square, sure = _worst_square(schedule, rounds)
    if square > factor**2 * (1 + 1e-9):  # a Ritz value is never more than the largest eigenvalue
        return True
    return False if sure else None


def _worst_square(schedule: Schedule, rounds: int) -> tuple[float, bool]:
    """Return a lower bound of ||W_t ... W_1 - J||_2^2 by Lanczos, and whether it is resolved."""
    Ws = [schedule.mixing(round).sparse() for round in range(min(rounds, schedule.period))]
    order = [round % len(Ws) for round in range(rounds)]
    work = 2 * sum(Ws[round].nnz for round in order)
    if work * LEAST_STEPS > WORK:
        return 0.0, False
    turned = [W.T.tocsr() for W in Ws]

    def square(x: FloatArray) -> FloatArray:
        for round in order:
            x = Ws[round] @ x
        for round in reversed(order):
            x = turned[round] @ x
        return x

    ends = eigen.lanczos_ends(square, schedule.n, work, lambda low, high: max(high - low, 1e-300))
    return max(0.0, ends.high), ends.resolved or ends.high < LEFT


def _signs(n: int) -> FloatArray:
    z = seeds.stream(0, "trace", n).choice([-1.0, 1.0], (n, int(np.clip(2_000_000 // n, 8, 64))))
    return np.asarray(z - z.mean(axis=0))
