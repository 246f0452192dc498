"""What is told of a gossip run: its forecast before it begins, and its graph in the summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedgossip.experiment import GossipExperiment
from fedgossip.messages import Model
from fedgossip.plans.plan import JoiningTerms, RunOutlook
from fedgossip.task import LocalTask
from fedgossip.topology import Forecast, Schedule, Spectrum, Topology
from fedgossip.wire import wire_bytes


def outlook_of(
    schedule: Schedule, topology: Topology, forecast: Forecast, task: LocalTask, vectors: int
) -> RunOutlook:
    """What a round will send, and how fast disagreement will die out; `vectors`: those of a message."""
    size = wire_bytes(Model(0, task.schema, (task.initial(0),) * vectors))
    lines = [f"{schedule.n} peers, {topology.edge_count} links"]
    if schedule.period != 1 and forecast.exact_after:
        lines.append(f"the exact mean after {forecast.exact_after} rounds, for they change and complete each other")
    if forecast.slem is not None and forecast.n_w is not None:
        halved, gone = _rounds(forecast.rounds_to_halve), _rounds(forecast.rounds_to_1_percent)
        gap = f"gap {1 - forecast.slem:.6f}, n_W({forecast.gamma}) {forecast.n_w:.2f}"
        lines.append(f"{gap}; disagreement falls to a half {halved}, to 1 % {gone}")
    return RunOutlook(int(size * forecast.messages * schedule.n), {"forecast": forecast.to_dict()}, lines)


def terms_of(experiment: GossipExperiment, name: str, n: int, size: int) -> JoiningTerms:
    """What a peer agrees to; `size`: bytes of a message."""
    a = experiment.algorithm
    how = f"{name}, {n} peers; {a.name}, {a.mode}"
    seen = "masked: neighbours learn their sum alone" if a.private else "as it is: they see your model"
    each = f", about {size:,} bytes each time" if size else ""
    return JoiningTerms(how, f"this peer's model to its neighbours{each}; no data", seen)


def _rounds(count: int | None) -> str:
    """A number of rounds in words; None is never."""
    if count is None:
        return "never"
    return "in 1 round" if count == 1 else f"in {count:,} rounds"


def described_topology(topology: Topology, schedule: Schedule, rows_up_to: int = 512) -> dict[str, Any]:
    """The graph and its weights as plain data, for the summary and the report."""
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
    """The mixing's eigenvalues, descending, where they are known and few enough to keep."""
    values = spectrum.eigenvalues if spectrum else None
    return None if values is None or n > up_to else [float(v) for v in values]


def modes(spectrum: Spectrum | None, up_to: int = 4096) -> Sequence[tuple[float, float]] | None:
    """The complex eigenvalues of a directed normal mixing, the mean's left out; None of others, and of large ones."""
    found = spectrum.modes if spectrum else None
    return None if found is None or found.size > up_to else [(float(one.real), float(one.imag)) for one in found]
