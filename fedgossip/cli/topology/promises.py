"""The guarantees of a graph, in the words and numbers of `fedgossip topology show` and `compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedgossip.cli.text import some

if TYPE_CHECKING:
    from fedgossip.topology import Forecast, Schedule

ROUNDS_MEAN = "rounds, typically / in the worst case"
GAP_MEANS = "worst case: share of a disagreement that one round removes"
N_W_MEANS = "typical case: models that each one in effect averages"


def title(schedule: Schedule) -> str:
    """Return the head of a table or a drawing."""
    graph = schedule.mixing(0).topology
    if schedule.period == 1:
        word = ("arc" if graph.directed else "edge") + ("" if graph.edge_count == 1 else "s")
        return f"{graph.name}: {graph.n} nodes, {graph.edge_count} {word}, {schedule.rule} weights"
    rounds = f"{schedule.period} rounds that repeat" if schedule.period else "every round drawn afresh"
    return f"{schedule.name}: {schedule.n} nodes, {rounds}, {schedule.rule} weights"


def rows(promise: Forecast) -> list[tuple[str, str, str]]:
    """Return (quantity, value, meaning) of one graph, or of a schedule as far as known."""
    return _describe_graph(promise) if promise.period == 1 else _describe_rounds(promise)


def _describe_graph(promise: Forecast) -> list[tuple[str, str, str]]:
    rows = [
        ("most neighbours", str(promise.degree_max), "models that the busiest node sends per round"),
        ("spectral gap", _number(promise.spectral_gap, promise), f"{GAP_MEANS} (0 none, 1 all)"),
        ("effective neighbours n_W", _effective(promise), f"{N_W_MEANS} (1 alone, n all)"),
        ("rounds to halve", _both(promise.typical_to_halve, promise.rounds_to_halve, promise), ROUNDS_MEAN),
        ("rounds to 1 %", _both(promise.typical_to_1_percent, promise.rounds_to_1_percent, promise), "the same"),
        ("one round leaves", _plain(promise.mean_contraction), "of a disagreement in a random direction"),
        ("slem", _number(promise.slem, promise), "1 - gap; at most this is left after one round"),
    ]
    if promise.rate is not None and promise.slem is not None and abs(promise.rate - promise.slem) > 1e-9:
        rows.append(("rate", _plain(promise.rate), "a round leaves this in the long run: the size of λ2"))
    if promise.exact_after is not None:
        rows.append(("exact", _exact(promise), "when everybody has exactly the mean of all models"))
    if promise.lambda2 is not None and promise.lambda_n is not None:
        rows.append(("λ2", _number(promise.lambda2, promise), "second largest eigenvalue of the weights"))
        rows.append(("λn", _number(promise.lambda_n, promise), "smallest eigenvalue"))
    if promise.algebraic_connectivity is not None:
        rows.append(("algebraic connectivity", f"{promise.algebraic_connectivity:.7g}", "μ2 of the graph's Laplacian"))
    return [*rows, ("computed by", promise.method, _error(promise))]


def _describe_rounds(promise: Forecast) -> list[tuple[str, str, str]]:
    """Return the guarantees of a schedule, without the gap of one step."""
    repeats = f"after {promise.period} rounds" if promise.period else "never"
    long_run = (promise.rate or None) if promise.period else None
    rows = [
        ("exact", _exact(promise), "when everybody has exactly the mean of all models"),
        ("rounds to halve", _both(promise.typical_to_halve, promise.rounds_to_halve, promise), ROUNDS_MEAN),
        ("rounds to 1 %", _both(promise.typical_to_1_percent, promise.rounds_to_1_percent, promise), "the same"),
        ("unlucky draws", _late(promise), f"rounds, worst case: 9 in 10 of {promise.draws} draws need no more"),
        ("a round leaves", _plain(long_run), "of the worst disagreement, in the long run"),
        ("one round leaves", _plain(promise.mean_contraction), "of a disagreement in a random direction"),
        (
            "expected contraction",
            _plain(promise.expected_contraction),
            "‖E[W'W] - J‖: of the sum of squares, in the worst direction",
        ),
        ("effective neighbours n_W", _effective(promise), f"{N_W_MEANS} (1 alone, n all)"),
        ("most neighbours", str(promise.degree_max), "models that the busiest node sends in a round"),
        ("messages", f"{promise.messages:.3g}", "models that a node sends in a round, on average"),
        ("repeats", repeats, "each round's graph follows from its number and the seed"),
        ("computed by", promise.method, _METHODS.get(promise.method, "exact to rounding")),
    ]
    return [row for row in rows if row[1] != "-"]


_METHODS = {
    "estimated": "by random vectors and Lanczos; ± is a 95 % interval",
    "expected": "averages over what is drawn; exact to rounding",
    "construction": "what the algorithm of this name makes of it",
    "unknown": "no formula is known",
}


def _exact(promise: Forecast) -> str:
    return "never" if promise.exact_after is None else f"after {some(promise.exact_after, 'round')}"


def _error(promise: Forecast) -> str:
    if not promise.resolved:
        return "did not converge: the gap is tiny or the graph too large"
    return f"eigenvalues to within {promise.residual:.1e}" if promise.residual else "exact to rounding"


def compared(promise: Forecast) -> tuple[str, ...]:
    """Return the cells after the name; callers may omit the first ones."""
    return (
        str(promise.n),
        str(promise.edges),
        str(promise.degree_max),
        _gap(promise),
        _effective(promise),
        _both(promise.typical_to_halve, promise.rounds_to_halve, promise),
        _both(promise.typical_to_1_percent, promise.rounds_to_1_percent, promise),
        "-" if promise.exact_after is None else str(promise.exact_after),
    )


def _gap(promise: Forecast) -> str:
    if promise.spectral_gap is None:
        return "-" if promise.resolved else "unresolved"
    return f"{promise.spectral_gap:.4g}"


def _number(value: float | None, promise: Forecast) -> str:
    if value is None:
        return "-" if promise.resolved else "unresolved"
    if value != promise.spectral_gap and 0 < 1 - abs(value) < 1e-6 and promise.spectral_gap:
        return f"{'-' if value < 0 else ''}(1 - {promise.spectral_gap:.7g})"
    return f"{value:.7g}" if abs(value) > 1e-14 else "0"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _effective(promise: Forecast) -> str:
    if promise.n_w is None:
        return "-" if promise.resolved else "unresolved"
    return f"{promise.n_w:.2f}" + (f" ± {promise.n_w_error:.2f}" if promise.n_w_error else "")


def _rounds(value: int | None, promise: Forecast) -> str:
    if value is None and promise.rate is None:
        return "-" if promise.resolved else "unresolved"
    if value is None:
        return "never" if promise.resolved else "unresolved"
    return str(value)


def _both(typical: int | None, worst: int | None, promise: Forecast) -> str:
    text = _rounds(worst, promise)
    return text if typical is None else f"{typical} / {text}"


def _late(promise: Forecast) -> str:
    return f"{promise.late_to_halve}, {promise.late_to_1_percent}" if promise.draws else "-"


def ranking(gamma: float) -> str:
    """Return a note for readers that rank graphs by these numbers."""
    memory = f"n_W remembers {1 / (1 - gamma):.0f} rounds (gamma {gamma:g})."
    return f"{memory}  Where gap and n_W rank graphs differently, training usually follows n_W."
