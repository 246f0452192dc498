"""Texts about a gossip run: its forecast, and its graph in the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedgossip.algorithms.codecs.base import VectorLayout
from fedgossip.algorithms.gossip.choco import Choco
from fedgossip.algorithms.gossip.fragments import FragmentedDiLoCo
from fedgossip.base.vectors import frozen
from fedgossip.core.messages import CodedModel, Model, ModelFragment
from fedgossip.core.records import NetworkRow, Row
from fedgossip.core.task import LocalTask
from fedgossip.core.wire import wire_bytes
from fedgossip.experiment import GossipExperiment
from fedgossip.plans.plan import JoiningTerms, RunOutlook
from fedgossip.topology import Forecast, Schedule, Spectrum, Topology
from fedgossip.topology.spectra.convergence import PairwiseRates, disagreement_edges, outlook


def outlook_of(
    schedule: Schedule,
    topology: Topology,
    forecast: Forecast,
    task: LocalTask,
    vectors: int,
    pairs: tuple[PairwiseRates, int] | None = None,
) -> RunOutlook:
    """Return a round's traffic and the disagreement's decay; `vectors` per message; `pairs`: rates and number of
    pairwise exchanges.
    """
    size = wire_bytes(Model(0, task.schema, (task.initial(0),) * vectors))
    lines = [f"{schedule.n} peers, {links_of(forecast, topology)}"]
    if pairs:
        facts = {"forecast": forecast.to_dict(), "pairwise": pairwise_facts(*pairs)}
        exchanged = 2 * size * pairs[1] * schedule.n  # an offer and its answer
        return RunOutlook(exchanged, facts, [*lines, *_promised_of_pairs(*pairs)])
    if schedule.period != 1 and forecast.exact_after:
        lines.append(f"the exact mean after {forecast.exact_after} rounds, for they change and complete each other")
    if promised := _promised(forecast):
        lines.append(promised)
    return RunOutlook(int(size * forecast.messages * schedule.n), {"forecast": forecast.to_dict()}, lines)


def outlook_of_changes(outlook: RunOutlook, algorithm: Choco, task: LocalTask, messages: float) -> RunOutlook:
    """Return the outlook of CHOCO-SGD: its `messages` of a round have a payload and no model.  Raises ConfigError."""
    length = task.length
    size = algorithm.codec.size(VectorLayout.of_length(length, task.dtype), 1)
    payload = frozen(np.zeros(size, np.uint8))
    sent = wire_bytes(CodedModel(1, 0, size, task.schema, (payload,)))
    gamma, contraction = algorithm.gamma(length), algorithm.contraction(length)
    text = f"{algorithm.codec.name} of what has changed, contraction {contraction:.2g}; mixed with gamma {gamma:g}"
    return replace(outlook, bytes_per_round=int(sent * messages), lines=[outlook.lines[0], text])


def outlook_of_fragments(
    outlook: RunOutlook, algorithm: FragmentedDiLoCo, task: LocalTask, messages: float
) -> RunOutlook:
    """Return the outlook if each of a round's `messages` has a fragment of mean size.  Raises ConfigError."""
    fragments = algorithm.fragments(task.length)
    parts = [task.initial(0)[fragments.part(number)] for number in range(fragments.count)]
    sizes = [wire_bytes(ModelFragment(0, part.size, task.schema, (part,))) for part in parts]
    most = f"at most {fragments.largest:,} of {task.length:,} elements"
    text = f"{fragments.count} fragments, {most}: one in a round, each every {fragments.count} rounds"
    return replace(outlook, bytes_per_round=int(sum(sizes) / len(sizes) * messages), lines=[outlook.lines[0], text])


def relayed_outlook(outlook: RunOutlook, topology: Topology) -> RunOutlook:
    """Return the outlook of RelaySGD on a tree; the graph's weights give no bound for it."""
    late = longest_way(topology)
    text = f"each model counts once in every peer's mean, {_rounds(late).removeprefix('in ')} late at most"
    return replace(outlook, lines=[outlook.lines[0], text])


def longest_way(tree: Topology) -> int:
    """Return the diameter of a tree minus one: the maximum age of a model in rounds."""
    far = _steps_from(tree, 0)
    return max(_steps_from(tree, max(far, key=far.__getitem__)).values()) - 1


def _steps_from(tree: Topology, start: int) -> dict[int, int]:
    steps, ring = {start: 0}, [start]
    for node in ring:
        for other in tree.neighbours(node):
            if other not in steps:
                steps[other] = steps[node] + 1
                ring.append(other)
    return steps


def links_of(forecast: Forecast, topology: Topology) -> str:
    """Return the number of links in words; for a changing graph the numbers per round and of a node's neighbours."""
    if forecast.period == 1:
        return f"{topology.edge_count} links"
    busiest = "1 neighbour" if forecast.degree_max == 1 else f"{forecast.degree_max} neighbours"
    each = f"{forecast.edges} links a round, {busiest} at a time"
    if not forecast.period:
        return f"{each}, drawn afresh"
    return f"{each}, {int(topology.degrees().max())} in a period of {forecast.period}"


def _promised(forecast: Forecast) -> str:
    n_w = [] if forecast.n_w is None else [f"n_W({forecast.gamma}) {forecast.n_w:.2f}"]
    worst = [_rounds(count) for count in (forecast.rounds_to_halve, forecast.rounds_to_1_percent)]
    falls = f"disagreement falls to a half {worst[0]}, to 1 % {worst[1]}"
    if forecast.slem is not None and n_w:
        return f"gap {1 - forecast.slem:.6f}, {n_w[0]}; {falls}"
    if forecast.rate is None and forecast.rounds_to_halve is None:
        return ""
    rate = [f"a round leaves {forecast.rate:.4f} of a disagreement in the long run"] if forecast.rate else []
    typical = [forecast.typical_to_halve, forecast.typical_to_1_percent]
    often = f"; typically {_rounds(typical[0])} and {_rounds(typical[1])}" if all(typical) else ""
    return "; ".join([*rate, *n_w, f"{falls} in the worst direction{often}"])


def _promised_of_pairs(rates: PairwiseRates, exchanges: int) -> list[str]:
    left = rates.compute_remaining(exchanges)
    if left is None:
        return []
    counts = [_rounds(rates.rounds_to(share, exchanges)) for share in (0.5, 0.01)]
    often = "an exchange" if exchanges == 1 else f"{exchanges} exchanges"
    text = f"a round, in which each peer begins {often}, leaves {'' if rates.rate else 'at most '}{left:.4f}"
    return [f"{text} of a disagreement in the long run; it falls to a half {counts[0]}, to 1 % {counts[1]}"]


def pairwise_facts(rates: PairwiseRates, exchanges: int) -> dict[str, Any]:
    """Return the rates of pairwise exchanges as plain data: of the squared distance per exchange, of the distance per
    round.
    """
    return {"bound": rates.bound, "rate": rates.rate, "round": rates.compute_remaining(exchanges)}


def band_of(schedule: Schedule, rows: Sequence[Row]) -> Mapping[str, Sequence[float]] | None:
    """Return the bounds of D-PSGD's distance per round, from its updates' spread, without eigenvalues; None without
    measurements.
    """
    networks = [row for row in rows if isinstance(row, NetworkRow)]
    spread = _spread_by_round(networks)
    edges = disagreement_edges(schedule, spread) if any(spread) else None
    if edges is None:
        return None
    lower, upper = edges
    first = networks[0].consensus_distance if networks[0].round == 0 else None
    if first and (left := outlook(schedule, len(spread)).worst) is not None:
        lower, upper = (lower - first * left).clip(min=0.0), upper + first * left
    return {"lower": [float(f"{one:.6g}") for one in lower], "upper": [float(f"{one:.6g}") for one in upper]}


def _spread_by_round(networks: Sequence[NetworkRow]) -> list[float]:
    """Return the updates' spread of rounds 1, 2, ...; an unmeasured round has the value of the round before."""
    known = {row.round: row.update_spread for row in networks if row.round and row.update_spread is not None}
    found, held = [], known[min(known)] if known else 0.0
    for round in range(1, max((row.round for row in networks), default=0) + 1):
        held = known.get(round, held)
        found.append(held)
    return found


def terms_of(experiment: GossipExperiment, name: str, n: int | None, size: int) -> JoiningTerms:
    """Return a peer's terms; `n`: None if only the graph determines it; `size`: bytes of a message, 0 if unknown."""
    a = experiment.algorithm
    how = f"{name}{f', {n} peers' if n else ''}; {a.name}, {a.mode}"
    seen = "masked: neighbours learn their sum alone" if a.private else "in the clear: they see your model"
    each = f", about {size:,} bytes each time" if size else ""
    return JoiningTerms(how, f"this peer's model to its neighbours{each}; no data", seen)


def _rounds(count: int | None) -> str:
    if count is None:
        return "never"
    return "in 1 round" if count == 1 else f"in {count:,} rounds"


def described_topology(topology: Topology, schedule: Schedule, rows_up_to: int = 512) -> dict[str, Any]:
    """Return the graph and its weights as plain data, for the summary and the report."""
    described: dict[str, Any] = {
        "n": topology.n,
        "name": topology.name,
        "directed": topology.directed,
        "edges": topology.edges.tolist() if topology.edge_count <= 20_000 else [],
        "labels": list(topology.labels) if topology.labels else None,
    }
    if topology.n <= rows_up_to:
        mixing = schedule.mixing(0)
        described["rows"] = [{str(j): w for j, w in mixing.row(i).items()} for i in range(topology.n)]
    if schedule.period != 1:
        described["period"] = schedule.period
    return described


def eigenvalues(spectrum: Spectrum | None, n: int, up_to: int = 4096) -> Sequence[float] | None:
    """Return the mixing's eigenvalues in descending order; None if unknown or if n exceeds `up_to`."""
    values = spectrum.eigenvalues if spectrum else None
    return None if values is None or n > up_to else [float(v) for v in values]


def modes(spectrum: Spectrum | None, up_to: int = 4096) -> Sequence[tuple[float, float]] | None:
    """Return the complex eigenvalues of a directed normal mixing without the mean's; None for others and for large
    ones.
    """
    found = spectrum.modes if spectrum else None
    return None if found is None or found.size > up_to else [(float(one.real), float(one.imag)) for one in found]
