"""Measures of lectures that simulate training: agreement, drift, noise, staleness, scaling, deaths, certificates.

Some simulate whole runs: machines and messages in virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.federated.cocoa import CERTIFICATE, gap_of
from fedgossip.algorithms.hash_ring import owners
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.records import NetworkRow, PeerRow
from fedgossip.core.task import Job, Update
from fedgossip.core.timeline import ITEMS, Timeline, TimelineLog
from fedgossip.drivers.simulate import simulate, simulate_plan
from fedgossip.experiment.reading import RUN_KINDS, load_experiment
from fedgossip.lab.compare.measured import round_seconds
from fedgossip.lab.compare.names import paradigm_of
from fedgossip.learning.linear.convex import ConvexTask
from fedgossip.plans import compose
from fedgossip.report.page.lectures import Circle, Circles, Picture, Plot, PlottedCurve
from fedgossip.report.page.timeline import NamedTimeline
from fedgossip.runs.run_directory import Run
from fedgossip.runs.summary import busiest


def agreed(graphs: Mapping[str, str], n: int, dim: int, rounds: int) -> MeasuredLecture:
    """Average random vectors on graphs, and record the peers' distance from their mean.

    Returns NAME_rate, the factor per round over the second half, and NAME_left, the final distance over the first;
    picture: distances.
    """
    values, curves = dict[str, float](), list[PlottedCurve]()
    for name, graph in graphs.items():
        run = simulate(
            {
                "rounds": rounds, "task": {"kind": "averaging", "dim": dim, "dtype": "float64"}, "eval": {"every": 1},
                "topology": {"graph": graph, "n": n, "allow_disconnected": True},
            },
            engine="stacked",
        )  # fmt: skip
        apart = [row.consensus_distance or 0.0 for row in run.rows if isinstance(row, NetworkRow)]
        half = len(apart) // 2
        values[f"{name}_rate"] = (apart[-1] / apart[half]) ** (1 / (len(apart) - 1 - half))
        values[f"{name}_left"] = apart[-1] / apart[0]
        curves.append(PlottedCurve(graph, list(range(len(apart))), apart))
    return MeasuredLecture(values, Plot("round", "distance to the mean", curves, "y"))


class _Drifting:
    """Clients k with f_k(x) = h_k/2 (x - c_k)^2 that take E steps of gradient descent in a round.  A LocalTask."""

    length, dtype, schema = 1, np.dtype(np.float64), "drifting"

    def __init__(self, curvatures: Sequence[float], centres: Sequence[float], rate: float, steps: int) -> None:
        self._clients = list(zip(curvatures, centres, strict=True))
        self._rate, self._steps = rate, steps

    def initial(self, _node: NodeId) -> Vector:
        return frozen(np.full(1, 2.0))

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._trained(job) for job in jobs]

    def _trained(self, job: Job) -> Update:
        curvature, centre = self._clients[job.node]
        x = job.vector
        for _ in range(self._steps):
            x = x - self._rate * curvature * (x - centre)
        return Update(frozen(x - job.vector), 1, {"loss": 0.0})

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return the model itself as the loss, so that the record has its course."""
        return [{"loss": float(vector[0])} for vector in vectors]


def drifted(h0: float, h1: float, rate: float, steps: int, rounds: int) -> MeasuredLecture:
    """Train two clients with optima 1 and -1 by FedAvg, with one and with several local steps.

    Returns end_one and end_many, the final models, and pace_one and pace_many, a round's factor of the distance to
    them.
    """
    values, curves = dict[str, float](), list[PlottedCurve]()
    for name, local in (("one", 1), ("many", steps)):
        task = _Drifting([h0, h1], [1.0, -1.0], rate, local)
        content = {
            "rounds": rounds, "eval": {"every": 1}, "task": {"kind": "averaging"},
            "coordinator": {"clients": 2, "algorithm": "fedavg", "secure": {"on": False}},
        }  # fmt: skip
        rows = simulate(content, task=task).rows
        x = [row.test_loss for row in rows if isinstance(row, NetworkRow) and row.test_loss is not None]
        values[f"end_{name}"] = x[-1]
        values[f"pace_{name}"] = (x[4] - x[3]) / (x[3] - x[2])
        curves.append(PlottedCurve(f"local steps: {local}", list(range(len(x))), x))
    best = (h0 - h1) / (h0 + h1)
    curves.append(PlottedCurve("optimum", [0, rounds], [best, best]))
    return MeasuredLecture(values, Plot("round", "model", curves))


def noisy(batches: Sequence[int], rate: float, sigma: float, dim: int, rounds: int) -> MeasuredLecture:
    """Train on noisy gradients until the loss is stationary, with workers' batches of several sizes.

    A batch of m averages m workers' gradients, at the rate, and m times it.  Returns same_M and scaled_M, each
    coordinate's variance.
    """
    values = dict[str, float]()
    points: dict[str, list[float]] = {"same": [], "scaled": []}
    for workers in batches:
        for name, step in (("same", rate), ("scaled", rate * workers)):
            content = {
                "rounds": rounds, "eval": {"every": 1}, "train": {"lr": step},
                "task": {"kind": "quadratic", "dim": dim, "sigma": sigma, "placement": "smooth", "dtype": "float64"},
                "parallel": {"workers": workers, "method": "star"},
            }  # fmt: skip
            run = simulate(content, engine="stacked")
            losses = [row.test_loss for row in run.rows if isinstance(row, NetworkRow) and row.test_loss is not None]
            spread = dim * (0.0 if workers == 1 else 1.0)  # of the workers' own optima, in every loss
            half = len(losses) // 2
            variance = float(np.mean([2 * one - spread for one in losses[half:]])) / dim
            values[f"{name}_{workers}"] = variance
            points[name].append(variance)
    m = list(batches)
    curves = [
        PlottedCurve("run, same rate", m, points["same"], points=True),
        PlottedCurve("run, rate times m", m, points["scaled"], points=True),
        PlottedCurve("formula, same rate", m, [rate * sigma**2 / (one * (2 - rate)) for one in m]),
        PlottedCurve("formula, rate times m", m, [rate * sigma**2 / (2 - rate * one) for one in m]),
    ]
    return MeasuredLecture(values, Plot("workers m, a batch each", "variance of a coordinate", curves, "xy"))


def stale_border(workers: Sequence[int], steps: int = 160, halvings: int = 7) -> MeasuredLecture:
    """Search the learning rate at which asynchronous servers begin to diverge, on f(x) = x^2/2.

    W workers push in turn, W - 1 steps late.  Returns border_W; picture: the border by formula, and rates that
    converged or diverged in x <- x - rate x_(k steps ago).
    """
    values = dict[str, float]()
    for count in workers:
        low, high = 0.0, 2.5
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (low, middle) if _diverges(count, middle, steps) else (middle, high)
        values[f"border_{count}"] = (low + high) / 2
    kept: dict[bool, tuple[list[float], list[float]]] = {False: ([], []), True: ([], [])}
    for age in range(9):
        for rate in np.linspace(0.1, 2.2, 22):
            past = [1.0] * (age + 1)
            for _ in range(600):
                past.append(past[-1] - rate * past[-1 - age])
                past = past[-age - 1 :]
            found = kept[not max(map(abs, past)) < 1.0]
            found[0].append(age)
            found[1].append(float(rate))
    ages = list(np.linspace(0, 8, 81))
    border = [2 * math.sin(math.pi / (2 * (2 * age + 1))) for age in ages]
    curves = [
        PlottedCurve("converges", *kept[False], points=True),
        PlottedCurve("diverges", *kept[True], points=True),
        PlottedCurve("border, by formula", ages, border),
        PlottedCurve("border, by servers", [one - 1 for one in workers], list(values.values()), points=True),
    ]
    return MeasuredLecture(values, Plot("steps that a gradient is old", "learning rate times curvature", curves))


def _diverges(workers: int, rate: float, steps: int) -> bool:
    content = {
        "rounds": steps, "train": {"lr": rate}, "eval": {"every": steps // 4},
        "task": {"kind": "quadratic", "dtype": "float64", "placement": "random", "dim": 4},
        "simulation": {"training": 1.0, "latency": 1e-6},
        "faults": [{"kind": "slow", "peers": [k], "factor": 1 + k / workers, "stop": 1.0} for k in range(1, workers)],
        "parallel": {"workers": workers, "method": "parameter-server", "server": {"staleness": "async"}},
    }  # fmt: skip
    try:
        rows = simulate(content).rows
    except TrainingError:
        return True
    losses = [row.test_loss for row in rows if isinstance(row, NetworkRow) and row.test_loss is not None]
    return not losses[-2] < losses[0]  # after the last round workers wait for each other


def scaled(counts: Sequence[int], a: float, b: float, C: float, dim: int) -> MeasuredLecture:
    """Simulate rings with a fixed total batch (strong scaling), and a fixed batch per worker (weak).

    Returns strong_M, T(1)/T(M), and weak_M, with M times the work.
    """
    values = {"d": 4.0 * dim}
    strong, weak = list[float](), list[float]()
    for m in counts:
        for name, training in (("strong", C / m), ("weak", C)):
            if m == 1:
                seconds = training
            else:
                run, _, _ = simulated_once({"method": "ring"}, m, a, b, training, dim, 4)
                seconds = round_seconds(run.rows, m)
            gain = C / seconds if name == "strong" else m * C / seconds
            values[f"{name}_{m}"] = gain
            (strong if name == "strong" else weak).append(gain)
    most = max(counts)
    serial = (1 / values[f"strong_{most}"] - 1 / most) / (1 - 1 / most)
    sizes = list(counts)
    curves = [
        PlottedCurve("strong scaling, run", sizes, strong, points=True),
        PlottedCurve("weak scaling, run", sizes, weak, points=True),
        PlottedCurve(f"Amdahl, s = {serial:.2g}", sizes, [1 / (serial + (1 - serial) / one) for one in sizes]),
        PlottedCurve("Gustafson, the same s", sizes, [serial + (1 - serial) * one for one in sizes]),
        PlottedCurve("m", sizes, list(map(float, sizes))),
    ]
    return MeasuredLecture(values | {"serial": serial}, Plot("workers", "speed-up", curves, "xy"))


def died(
    m: int, a: float, b: float, C: float, dim: int, at: float, rounds: int, mtbf: float, save: float
) -> MeasuredLecture:
    """Kill a worker of a ring after `at` seconds, and let machines fail at random between checkpoints.

    Returns before_s and after_s, seconds of a round, and `interval` and `waste`, the best time between checkpoints of
    `save` seconds with failures `mtbf` apart, and its lost share; picture: the timeline.
    """
    fault = [{"kind": "crash", "peers": [m - 1], "start": at}]
    _, timeline, names = simulated_once({"method": "ring", "faults": fault}, m, a, b, C, dim, rounds)
    ends = [one.at / 1e9 for one in timeline.rounds if one.node == 0]
    lengths = np.diff(ends)
    place = int(np.searchsorted(ends, at)) - 1
    values = {
        "d": 4.0 * dim, "before_s": float(lengths[:place].mean()), "after_s": float(lengths[place + 1 :].mean()),
    }  # fmt: skip
    random = np.random.Generator(np.random.PCG64(7))
    wasted = dict[float, float]()
    for interval in np.geomspace(0.4, 2.5, 25) * math.sqrt(2 * save * mtbf):
        needs = interval + save
        failures = random.exponential(mtbf, 400_000)
        through = failures >= needs
        wasted[float(interval)] = 1 - interval * through.sum() / (failures[~through].sum() + needs * through.sum())
    best = np.polyfit(np.log(list(wasted)), list(wasted.values()), 4)
    fine = np.linspace(math.log(min(wasted)), math.log(max(wasted)), 2000)
    curve = np.polyval(best, fine)
    values |= {"interval": float(np.exp(fine[curve.argmin()])), "waste": float(curve.min())}
    return MeasuredLecture(values, [NamedTimeline("a ring of which one dies", timeline.first(place + 3), names)])


def certified(lam: float, clients: int, rounds: int) -> MeasuredLecture:
    """Fit ridge regression by CoCoA, and solve it exactly.

    Returns `primal`, the final objective, `best`, the exact one, `above`, their difference, and `gap`, the certificate;
    picture: the gap by round.
    """
    content: dict[str, Any] = {
        "rounds": rounds, "data": {"source": "diabetes"}, "eval": {"every": 1},
        "task": {"kind": "convex", "loss": "squares", "lam": lam},
        "coordinator": {"clients": clients, "algorithm": "cocoa", "secure": {"on": False}},
    }  # fmt: skip
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    assert isinstance(task, ConvexTask)
    run = simulate_plan(plan, task=task)
    final = next(one for one in run.vectors if one is not None)
    columns = len(final) - CERTIFICATE
    best = task.objective(_least_of_quadratic(task.objective, columns))
    gaps = [row.score_averaged for row in run.network() if row.score_averaged is not None]
    values = {"primal": task.objective(final[:-CERTIFICATE]), "best": best, "gap": gap_of(final) or math.nan}
    values["above"] = values["primal"] - best
    curves = [PlottedCurve("certified distance", list(range(len(gaps))), gaps)]
    return MeasuredLecture(values, Plot("round", "duality gap", curves, "y"))


def _least_of_quadratic(value: Callable[[npt.NDArray[np.float64]], float], columns: int) -> npt.NDArray[np.float64]:
    """Return the minimum of a quadratic function from its values at unit vectors and their sums."""
    units, zero = np.eye(columns), value(np.zeros(columns))
    alone = np.array([value(one) - zero for one in units])
    backward = np.array([value(-one) - zero for one in units])
    hessian = np.diag(alone + backward)
    for i in range(columns):
        for j in range(i):
            hessian[i, j] = hessian[j, i] = value(units[i] + units[j]) - zero - alone[i] - alone[j]
    found: npt.NDArray[np.float64] = np.linalg.solve(hessian, -(alone - backward) / 2)
    return found


FLOAT = 4
"""Bytes of an element."""


def simulated(
    runs: Mapping[str, Mapping[str, Any]],
    m: int,
    a: float,
    b: float,
    C: float,
    dim: int,
    rounds: int = 6,
    shown: int = 2,
) -> MeasuredLecture:
    """Run paradigms of `fedgossip compare` with m learners of `dim` elements, and measure a round of each.

    `runs`: by name { method = "ring", simulation = { ... }, parallel = { ... } } and further sections.  a: latency in
    seconds; b: bytes per second in each direction; C: seconds of training.  Returns d, a vector's bytes, and per run
    NAME_s, seconds of a round, NAME_sent, bytes of the busiest, and NAME_wait, learners' share of waiting; picture:
    `shown` rounds.
    """
    values, drawn = {"d": float(FLOAT * dim)}, list[NamedTimeline]()
    for name, sections in runs.items():
        run, timeline, names = simulated_once(sections, m, a, b, C, dim, rounds)
        rows = [row for row in run.rows if isinstance(row, PeerRow)]
        values[f"{name}_s"] = round_seconds(rows, m)
        values[f"{name}_sent"] = busiest(rows, {})["bytes"] / rounds
        waits = sum(timeline.seconds(node, 0, timeline.until)["waiting"] for node in range(m))
        values[f"{name}_wait"] = waits / (m * timeline.until / 1e9)
        drawn.append(NamedTimeline(str(sections.get("title", name)), timeline.first(shown), names))
    return MeasuredLecture(values, drawn)


def simulated_once(
    sections: Mapping[str, Any], m: int, a: float, b: float, training: float, dim: int, rounds: int
) -> tuple[Run, Timeline, Sequence[str]]:
    """Simulate one of `simulated`; return the run, its timeline, and the names of its participants."""
    own = {name: section for name, section in sections.items() if name not in ("method", "title")}
    paradigm = paradigm_of(sections["method"])
    network = {"latency": a, "bandwidth": b, "downlink": b, "training": training, **own.pop("simulation", {})}
    section: dict[str, float] = {RUN_KINDS[paradigm.section].size.partition(".")[2]: m}
    if paradigm.section == "parallel":
        section |= {"deadline": 1e4, "least_deadline": 1e4}
    content: dict[str, Any] = {
        "rounds": rounds, "task": {"kind": "quadratic", "dim": dim}, "eval": {"every": rounds},
        "simulation": {key: value for key, value in network.items() if value != 0 or key != "downlink"},
        paradigm.section: section,
    }  # fmt: skip
    for path, given in [*paradigm.sets.items(), *own.items()]:
        at = content
        for key in path.split(".")[:-1]:
            at = at.setdefault(key, {})
        last = path.split(".")[-1]
        at[last] = {**at.get(last, {}), **given} if isinstance(given, Mapping) else given
    plan = compose.plan(load_experiment(content))
    log = TimelineLog(plan.n, plan.roles.counted, ITEMS)
    run = simulate_plan(plan, timeline=log)
    return run, log.timeline(), [plan.roles.label(node) for node in range(plan.n)]


def hashed(servers: int, many: int, points: int, length: int) -> MeasuredLecture:
    """Place `length` elements on servers by consistent hashing, then with one more server.

    Returns `moved`, the share with another owner then, `among`, moved between old servers, `modulo`, moved if element i
    belongs to i modulo S, and `spread`, the relative deviation of `many` servers' shares; picture: the circle.
    """
    before, after = owners(length, servers, points), owners(length, servers + 1, points)
    changed = before != after
    places = range(servers * (servers + 1))
    modulo = sum(place % servers != place % (servers + 1) for place in places) / len(places)
    shares = np.bincount(owners(length, many, points), minlength=many) * many / length
    few = [
        Circle(f"{count} servers, 4 points each", [int(one) for one in owners(360, count, 4)], count)
        for count in (servers, servers + 1)
    ]
    values = {
        "moved": float(changed.mean()),
        "among": float((changed & (after != servers)).mean()),
        "modulo": modulo,
        "spread": float(shares.std()),
    }
    return MeasuredLecture(values, Circles(few))


@dataclass(frozen=True)
class MeasuredLecture:
    """Numbers by their names in expressions, and the picture."""

    values: Mapping[str, float]
    picture: Picture
