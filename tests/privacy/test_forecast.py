"""What is forecast of a run before it begins, held against the run."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Output, in_process

import fedgossip
from fedgossip.algorithms.gossip.dsgd import DSGD, Iterate
from fedgossip.base.errors import ConfigError
from fedgossip.core.forecasts import NarrowedForecast, RunForecast, digest_of, inside, kept, read_forecast
from fedgossip.core.records import NetworkRow
from fedgossip.drivers.forecasting import AUTO_ROUNDS, forecast_of, forecast_run, plans_of
from fedgossip.plans import compose
from fedgossip.report.page.forecast import band
from fedgossip.report.page.numbers import percent
from fedgossip.report.page.page import write_comparison, write_report
from fedgossip.report.page.reading import read_run
from fedgossip.report.watch.follow import Follower
from fedgossip.report.watch.places import find
from fedgossip.report.watch.table import learned
from fedgossip.topology import resolve, resolve_schedule
from fedgossip.topology.spectra.convergence import disagreement_edges, outlook, pairwise_rates

GRAPHS = (
    *("ring", "torus:4x4", "hypercube", "star", "path", "tree", "two-cliques", "regular:3", "one-peer-exponential"),
    *("base:1", "el-oracle:4", "random-matching", "directed-exponential", "complete"),
)


def quadratic(graph: str = "ring", rounds: int = 400, algorithm: str = "dsgd", **task: Any) -> dict[str, Any]:
    weights = {"weights": "lazy"} if algorithm == "d2" else {}
    return {
        "rounds": rounds,
        "topology": {"graph": graph, "n": 16, **weights},
        "algorithm": {"name": algorithm},
        "task": {"kind": "quadratic", "dtype": "float64", "eta": 0.1, **task},
    }


def digits(graph: str, model: str, alpha: float, steps: int, lr: float) -> dict[str, Any]:
    return {
        "rounds": 60,
        "topology": {"graph": graph, "n": 16},
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": alpha}},
        "model": {"source": model},
        "train": {"lr": lr, "batch_size": 16, "local_steps": steps, "device": "cpu"},
        "eval": {"every": 20},
    }


def distances(experiment: dict[str, Any]) -> np.ndarray:
    run = fedgossip.simulate(experiment, engine="stacked")
    return np.array([row.consensus_distance for row in run.network() if row.round])


@pytest.mark.parametrize(("placement", "expected"), [("smooth", 0.42462948), ("alternating", 0.00065746)])
@pytest.mark.parametrize("level", ["probe", "shadow"])
def test_the_forecast_of_a_quadratic_is_its_formula(level: str, placement: str, expected: float) -> None:
    """(1/n) sum_k (eta l_k / (1 - (1-eta) l_k))^2 B_k^2, docs/reference/numerics.md section 4, on a ring of 16."""
    (found,) = forecast_run(quadratic(placement=placement), level)
    assert found.exact
    assert found.lower == found.upper
    assert found.upper[-1] ** 2 == pytest.approx(expected, abs=5e-9)
    assert np.abs(distances(quadratic(placement=placement)) - found.upper).max() < 1e-9


METHODS = [
    ("gradient-tracking", "ring"),
    ("d2", "ring"),
    ("extra", "ring"),
    ("dsgdm", "ring"),
    ("qg-dsgdm", "base:1"),
    ("decentlam", "torus:4x4"),
    ("two-tap", "ring"),
    ("push-sum", "directed-exponential"),
    ("dsgd", "el-oracle:4"),
    ("dsgd", "el-local:4"),
    ("window-doubling", "window-doubling"),
    ("slowmo", "ring"),
    ("push-diging", "directed-exponential"),
]


@pytest.mark.parametrize(("algorithm", "graph"), METHODS)
def test_every_linear_method_is_forecast_by_its_own_object(algorithm: str, graph: str) -> None:
    """No formula is written twice: where the loss is a quadratic both levels are the run itself, on any schedule."""
    experiment = quadratic(graph, 60, algorithm, placement="random")
    measured = distances(experiment)
    for level in ("probe", "shadow"):
        (found,) = forecast_run(experiment, level)
        assert np.abs(np.array(found.upper) - measured).max() < 1e-9 * measured.max(), level
        assert found.lower == found.upper


def test_a_shadow_knows_the_noise_of_a_run_and_a_probe_its_expected_square() -> None:
    """.00684153 of sigma = 1, eta = .1: (eta^2 sigma^2 / n) sum_k l_k^2 / (1 - (1-eta)^2 l_k^2), per coordinate."""
    experiment = quadratic(rounds=60, placement="alternating", sigma=1.0, dim=40)
    (shadow,) = forecast_run(experiment, "shadow")
    assert np.abs(distances(experiment) - shadow.upper).max() < 1e-9
    many = 40_000  # of one batch's product with another of what lasts, 1 / sqrt(many) is left by chance
    (probe,) = forecast_run(quadratic(rounds=200, placement="alternating", sigma=1.0, dim=many), "probe")
    assert probe.upper[-1] ** 2 / many == pytest.approx(0.00684153 + 0.00065746, rel=0.05)


def test_rounds_that_begin_apart_are_forecast_too() -> None:
    experiment = {
        "rounds": 20,
        "topology": {"graph": "base:1", "n": 11},
        "task": {"kind": "averaging", "dim": 8, "dtype": "float64"},
    }
    (found,) = forecast_run(experiment, "probe")
    measured = distances(experiment)
    assert measured[0] > 0.1
    assert np.abs(measured - found.upper).max() < 1e-9


class ClippedMean(DSGD):
    """D-PSGD that lets nobody move further than 1: not linear."""

    def mixed(self, state: Iterate, mixed: tuple[np.ndarray, ...]) -> Iterate:
        return Iterate(state.x + np.clip(mixed[0] - state.x, -1.0, 1.0))


def test_there_is_no_forecast_of_a_rule_that_is_not_linear() -> None:
    with pytest.raises(ConfigError, match="the forecast of given is not known: it is not linear"):
        fedgossip.simulate(quadratic(rounds=4), engine="stacked", algorithm=ClippedMean(), forecast="shadow")


def test_there_is_no_forecast_of_a_median(command: Callable[..., Output]) -> None:
    said = command("forecast", "q.toml", "--set", "algorithm.combine=median")
    assert (said.code, "not known" in said.err) == (2, True)


FEW = ("torus:4x4", "one-peer-exponential", "el-oracle:4")
SETTINGS = {
    "mlp": ("mlp:64-32-10", 0.3, 5, 0.1),
    "softmax": ("softmax", 10.0, 1, 0.1),
    "mlp, one large step": ("mlp:64-32-10", 1.0, 1, 0.3),
    "softmax, large steps": ("softmax", 0.3, 5, 0.3),
}
LONG = [pytest.param(name, GRAPHS, marks=pytest.mark.long) for name in SETTINGS]


@pytest.mark.parametrize(("setting", "graphs"), [("mlp", FEW), ("softmax", FEW), *LONG])
def test_what_is_learned_lies_between_the_edges_of_a_shadow(setting: str, graphs: tuple[str, ...]) -> None:
    found = forecast_run(digits("ring", *SETTINGS[setting]), "shadow", graphs=graphs)
    for graph, forecast in zip(graphs, found, strict=True):
        run = fedgossip.simulate(digits(graph, *SETTINGS[setting]), engine="stacked")
        share = kept(forecast, run.network())
        assert share is not None
        assert share >= 0.95, graph
        assert forecast.scores is not None
        assert forecast.scores.rounds == [20, 40, 60]
    wide = {one.graph for one in found if one.wide}
    assert wide <= {"ring", "star", "path", "tree", "two-cliques", "regular:3"}


CANCELLING = [
    ("gradient-tracking", "one-peer-exponential", 0.1, 0.95),  # 85 % without the edge for what a response takes away
    ("gradient-tracking", "torus:4x4", 0.1, 0.95),
    ("d2", "ring", 0.1, 0.95),
    ("d2", "torus:4x4", 0.1, 0.85),
    ("d2", "star", 0.1, 0.75),
    ("qg-dsgdm", "base:1", 0.02, 0.75),
]


@pytest.mark.long
@pytest.mark.parametrize(("algorithm", "graph", "lr", "least"), CANCELLING)
def test_methods_that_cancel_what_lasts_keep_to_their_edges_so_often(
    algorithm: str, graph: str, lr: float, least: float
) -> None:
    """See docs/reference/numerics.md, section 7, for what is outside."""
    experiment = digits(graph, "mlp:64-32-10", 0.3, 5, lr) | {"algorithm": {"name": algorithm}}
    experiment["topology"] |= {"weights": "lazy"} if algorithm == "d2" else {}
    (found,) = forecast_run(experiment, "shadow")
    share = kept(found, fedgossip.simulate(experiment, engine="stacked").network())
    assert share is not None
    assert share >= least


REMEMBERING = [{"momentum": 0.9, "lr": 0.02}, pytest.param({"optimizer": "adam", "lr": 0.002}, marks=pytest.mark.long)]


@pytest.mark.parametrize("train", REMEMBERING)
def test_an_optimiser_that_goes_on_answering_is_followed(train: dict[str, Any]) -> None:
    """Without the answers of later rounds the lower edge lies above the run: 7 % of these rounds were kept."""
    experiment = digits("base:1", "mlp:64-32-10", 0.3, 5, 0.1)
    experiment["train"] = experiment["train"] | train
    (found,) = forecast_run(experiment, "shadow")
    share = kept(found, fedgossip.simulate(experiment, engine="stacked").network())
    assert share is not None
    assert share >= 0.95


def test_a_run_of_many_rounds_is_not_held_up_by_a_forecast_that_nobody_asked_for() -> None:
    content = {"task": {"kind": "averaging"}, "topology": {"graph": "ring", "n": 4}}
    for rounds, there in ((AUTO_ROUNDS, True), (10_000_000, False)):
        (plan,) = plans_of({"rounds": rounds, **content})
        task, shares = compose.task_of(plan.experiment, plan.learners)
        assert (forecast_of(plan, task, shares, "auto", None) is not None) == there


def test_the_file_says_how_its_run_is_forecast(tmp_path: Path) -> None:
    """And peers that forecast otherwise, or not at all, are still of one run."""
    plain, asked = quadratic(rounds=9), quadratic(rounds=9) | {"forecast": {"level": "shadow", "rounds": 4}}
    run = fedgossip.simulate(asked, engine="stacked", out=tmp_path / "run")
    read = read_forecast(tmp_path / "run")
    assert read is not None
    assert (read[0].level, read[0].rounds, run.summary["forecast_kept"]) == ("shadow", 4, 1.0)
    assert (len(forecast_run(asked)[0].upper), len(forecast_run(plain)[0].upper)) == (4, 9)
    hellos = [compose.hello_of(plans_of(one)[0], "schema") for one in (plain, asked)]
    assert hellos[0] == hellos[1]
    none = fedgossip.simulate(asked, engine="stacked", forecast="none")
    assert (none.digest, "forecast_kept" in none.summary) == (run.digest, False)


def test_a_forecast_leaves_the_bits_of_the_run_alone() -> None:
    experiment = digits("ring", "mlp:64-16-10", 0.3, 2, 0.1) | {"rounds": 6}
    experiment["train"] = experiment["train"] | {"momentum": 0.9}  # the task remembers something
    plain, forecast = (fedgossip.simulate(experiment, engine="stacked", forecast=how) for how in (None, "shadow"))
    assert plain.digest == forecast.digest
    assert "forecast_kept" not in plain.summary
    assert forecast.summary["forecast_kept"] is not None


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_run_begins_with_its_forecast_and_ends_with_what_was_kept(tmp_path: Path, engine: str) -> None:
    out = tmp_path / "run"
    run = fedgossip.simulate(quadratic(rounds=30), engine=engine, out=out, report=True, forecast="shadow")
    file, record = out / "forecast.json", out / "metrics.jsonl"
    assert file.stat().st_mtime_ns <= (out / "experiment.toml").stat().st_mtime_ns <= record.stat().st_mtime_ns
    assert run.summary["forecast_kept"] == 1.0
    assert run.summary["forecast_file"]["sha256"] == digest_of(file.read_bytes())
    read = read_forecast(out)
    assert read is not None
    assert read[0].level == "shadow"
    assert read[0].rounds == 30


def test_the_report_draws_the_forecast_and_no_other_file(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fedgossip.simulate(quadratic(rounds=20), engine="stacked", out=out, forecast="probe")
    drawn = band(read_run(out))
    assert drawn is not None
    assert drawn.foretold
    page = write_report(out).read_text()
    assert "The measurement kept to it" in page
    assert "forecast before the run" in page
    file = out / "forecast.json"
    file.write_text(file.read_text().replace('"jobs": 48', '"jobs": 49'))  # fitted afterwards
    assert read_run(out).foretold is None
    assert "not the one that this run began with" in write_report(out).read_text()


def test_a_page_of_several_runs_draws_each_over_its_forecast(tmp_path: Path) -> None:
    folders = [tmp_path / graph for graph in ("ring", "star")]
    for folder in folders:
        fedgossip.simulate(quadratic(folder.name, rounds=9), engine="stacked", out=folder, forecast="probe")
    page = write_comparison(tmp_path / "page.html", folders, "two").read_text()
    assert [f"{graph} ({percent(1.0)})" in page for graph in ("ring", "star")] == [True, True]
    assert "Forecast kept" in page
    assert "the area was forecast before each run" in page


def test_a_graph_that_changes_has_a_band_and_words_of_its_links(tmp_path: Path) -> None:
    """From the spread of the run's own updates, where nothing was forecast before it."""
    experiment = digits("base:1", "softmax", 10.0, 1, 0.1) | {"rounds": 12}
    run = fedgossip.simulate(experiment, engine="stacked", out=tmp_path / "run", report=True)
    assert run.summary["links"] == "8 links a round, 1 neighbour at a time, 4 in a period of 4"
    measured = [row.consensus_distance for row in run.network() if row.round]
    edges = run.summary["band"]
    assert len(edges["lower"]) == len(edges["upper"]) == len(measured) == 12
    page = (tmp_path / "run" / "report.html").read_text()
    assert "4 rounds without training leave nothing of it" in page
    assert "1 neighbour at a time" in page


@pytest.mark.parametrize("graph", ["base:1", "el-oracle:2", "directed-exponential"])
def test_the_edges_of_a_graph_that_changes_are_sums_of_its_products(graph: str) -> None:
    """fresh: sum delta_s^2 ||P - J||_F^2 / (n - 1); steady: the same of their sum, multiplied out."""
    schedule, spread = resolve_schedule(graph, 6, seed=1), [1.0, 0.5, 2.0, 1.5, 0.25]
    lower, upper = disagreement_edges(schedule, spread)
    Ws = [schedule.mixing(round).matrix() for round in range(5)]
    for t in range(1, 6):
        left = [functools.reduce(lambda P, W: W @ P, Ws[s:t], np.eye(6)) - 1 / 6 for s in range(t)]
        fresh = sum(spread[s] ** 2 * np.sum(left[s] ** 2) for s in range(t)) / 5
        steady = np.sum(sum(spread[s] * left[s] for s in range(t)) ** 2) / 5
        assert (lower[t - 1], upper[t - 1]) == pytest.approx(sorted(np.sqrt([fresh, steady])), abs=1e-7)
        outlook_of = outlook(schedule, 5)
        assert outlook_of.worst[t - 1] == pytest.approx(np.linalg.norm(left[0], 2), abs=1e-7)
        assert outlook_of.typical[t - 1] == pytest.approx(np.linalg.norm(left[0]) / np.sqrt(5), abs=1e-12)


def test_who_watches_a_run_sees_its_forecast(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = fedgossip.simulate(quadratic(rounds=5), engine="stacked", out=out, forecast="probe")
    follower = Follower(find([out]))
    follower.poll(5.0)
    assert f"(forecast {run.network()[-1].consensus_distance:.3g}" in " ".join(learned(follower.state))
    (_, values), *_ = follower.state.curves["distance"].points()[1:]
    assert values[0] == pytest.approx(values[1]) == pytest.approx(values[2])


@pytest.mark.long
def test_a_watched_run_narrows_its_forecast_and_keeps_to_that(tmp_path: Path) -> None:
    """Each round against the interval that was given for it before: of the whole set below 99.6 % of rounds keep."""
    out, experiment = tmp_path / "run", digits("torus:4x4", *SETTINGS["mlp"])
    fedgossip.simulate(experiment, engine="stacked", out=out, forecast="shadow")
    follower = Follower(find([out]))
    follower.poll(5.0)
    points = [values for _, values in follower.state.curves["distance"].points()]
    inner = [values for values in points if len(values) == 5]
    assert len(inner) == 49  # the edges of the first round are one, so the first fit is of rounds 2 to 11
    assert all(low <= at_least * 1.0001 and at_most <= high * 1.0001 for _, low, high, at_least, at_most in inner)
    assert np.mean([at_least * 0.95 <= d <= at_most * 1.05 for d, _, _, at_least, at_most in inner]) >= 0.95
    assert np.mean([np.log(v[4] / v[3]) / np.log(v[2] / v[1]) for v in inner]) < 0.7


def test_a_forecast_that_narrows_says_where_the_run_ends() -> None:
    forecast = RunForecast("shadow", "ring", "dsgd", 4, [1.0] * 30, [100.0] * 30)
    narrowed = NarrowedForecast(forecast)
    for round in range(1, 11):
        assert narrowed.edges(30) is None
        narrowed.take(round, 10.0)  # half of the way, on a logarithmic axis
    assert narrowed.edges(11) == pytest.approx((100**0.44, 100**0.56))
    assert narrowed.edges(30) == pytest.approx((100**0.25, 100**0.75))


@pytest.mark.long
@pytest.mark.parametrize("setting", SETTINGS)
def test_all_runs_keep_to_their_narrowed_forecasts(setting: str) -> None:
    held, widths = [], []
    found = forecast_run(digits("ring", *SETTINGS[setting]), graphs=GRAPHS[:-1])
    for graph, forecast in zip(GRAPHS[:-1], found, strict=True):
        at_the_10th, by_10 = NarrowedForecast(forecast), NarrowedForecast(forecast)
        for round, distance in enumerate(distances(digits(graph, *SETTINGS[setting])), start=1):
            for one in (at_the_10th, by_10):
                if edges := one.edges(round):
                    held.append(edges[0] * 0.95 <= distance <= edges[1] * 1.05)
            if edges:
                whole = np.log(forecast.upper[round - 1] / forecast.lower[round - 1])
                widths.append(np.log(edges[1] / edges[0]) / max(whole, 1e-9))
            by_10.take(round, distance)
            if round <= 10:
                at_the_10th.take(round, distance)
    assert np.mean(held) >= 0.98
    assert np.mean(widths) < 0.6


@pytest.mark.parametrize(("graph", "algorithm"), [("el-oracle:4", "dsgd"), ("ring", "push-sum"), ("base:1", "dsgd")])
def test_a_dry_run_says_what_any_graph_promises(graph: str, algorithm: str, command: Callable[..., Output]) -> None:
    changed = [f"--set=topology.graph={graph}", f"--set=algorithm.name={algorithm}"]
    said = command("run", "q.toml", "--dry-run", *changed)
    (line,) = [line for line in said.out.splitlines() if "disagreement falls" in line]
    assert "typically in" in line


def test_what_lies_outside_does_not_count_as_kept() -> None:
    rows = [NetworkRow(round, 4, 0.0, 0, consensus_distance=value) for round, value in ((1, 1.0), (2, 2.2), (3, 0.5))]
    forecast = RunForecast("shadow", "ring", "dsgd", 4, [1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    assert kept(forecast, rows) == pytest.approx(1 / 3)
    assert inside(1e-9, 0.0, 0.0, 1.0)  # rounding where nothing was expected
    assert not inside(1e-9, 0.5, 1.0, 1.0)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Output]:
    """The command line, typed in a folder with two experiments."""
    (tmp_path / "q.toml").write_text('rounds = 10\n[topology]\ngraph = "ring"\nn = 8\n[task]\nkind = "quadratic"\n')
    (tmp_path / "fed.toml").write_text('rounds = 4\n[coordinator]\nclients = 4\n[data]\nsource = "digits"\n')
    return lambda *words: in_process(words, tmp_path, monkeypatch, capsys)


def test_a_forecast_of_several_graphs_by_the_command(tmp_path: Path, command: Callable[..., Output]) -> None:
    done = command("forecast", "q.toml", "--graphs", "ring", "base:1", "--json", "--out", "forecasts.json")
    told = json.loads(done.out)
    assert [one["graph"] for one in told] == ["ring", "base:1"]
    assert json.loads((tmp_path / "forecasts.json").read_text()) == told
    shown = command("forecast", "q.toml", "--level", "graph", "ring", "base:1")
    assert (shown.code, "base:1" in shown.out) == (0, True)


def test_exchanges_of_pairs_leave_what_their_second_moment_says() -> None:
    """Path of 16: lambda_2(E W) = .99879530; a ring of m = 16: 1 - mu_2 / (2 m); sum p W (x) W, multiplied out."""
    assert pairwise_rates(resolve("path", 16)).bound == pytest.approx(0.99879530, abs=5e-9)
    assert pairwise_rates(resolve("ring", 16)).bound == pytest.approx(1 - (2 - 2 * np.cos(np.pi / 8)) / 32, abs=1e-12)
    topology, centred = resolve("star", 7), np.eye(7) - 1 / 7
    moment = np.zeros((49, 49))
    for i in range(7):
        for j in topology.neighbours(i):
            W = np.eye(7)
            W[np.ix_([i, j], [i, j])] = 0.5
            moment += np.kron(W, W) / 7 / len(topology.neighbours(i))
    both = np.kron(centred, centred)
    rates = pairwise_rates(topology)
    assert rates.rate == pytest.approx(np.linalg.eigvalsh(both @ moment @ both).max(), abs=1e-10)
    assert rates.bound is not None
    assert rates.bound**2 < rates.rate < rates.bound


def test_an_asynchronous_run_is_told_what_its_pairs_promise(command: Callable[..., Output], tmp_path: Path) -> None:
    """And exchanges of peers that take turns, one a round each, are no worse than drawn ones."""
    said = command("forecast", "q.toml", "--level", "graph", "--set", "algorithm.mode=async", "path", "ring", "--json")
    told = {one["graph"]: one["round"] for one in json.loads(said.out)}
    assert told["ring"] == pytest.approx(pairwise_rates(resolve("ring", 8)).compute_remaining())
    dry = command("run", "q.toml", "--dry-run", "--set", "algorithm.mode=async")
    assert f"leaves {told['ring']:.4f} of a disagreement" in dry.out
    experiment = {
        "rounds": 60,
        "topology": {"graph": "path", "n": 8},
        "algorithm": {"mode": "async"},
        "task": {"kind": "averaging", "dim": 200, "dtype": "float64"},
    }
    run = fedgossip.simulate(experiment, out=tmp_path / "run", report=True)
    distance = [row.consensus_distance for row in run.network()]
    assert (distance[60] / distance[10]) ** (1 / 50) < told["path"] * 1.02
    assert "exchanges between pairs" in (tmp_path / "run" / "report.html").read_text()


REFUSED = {
    "unknown graph": (["--graphs", "rign"], "ring"),
    "federated": (["fed.toml", "--level", "shadow"], "no disagreement between peers"),
    "asynchronous": (["--level", "shadow", "--set", "algorithm.mode=async"], "no rounds"),
    "too large": (["--memory", "0.0000001"], "--memory"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_forecast_is_refused_in_a_line_and_an_advice(case: str, command: Callable[..., Output]) -> None:
    words, told = REFUSED[case]
    said = command("forecast", *([] if words[0].endswith(".toml") else ["q.toml"]), *words)
    assert (said.code, told in said.err, len(said.err.strip().splitlines())) == (2, True, 2)


def test_a_model_too_large_for_all_graphs_says_how_many_fit() -> None:
    """16 peers, 1 number each, two edges of two arrays in float64: 512 bytes a graph."""
    graphs = list(itertools.islice(GRAPHS, 4))
    with pytest.raises(ConfigError) as refused:
        forecast_run(quadratic(rounds=3), "shadow", graphs=graphs, memory_gb=1.1e-6)
    assert "2 of them fit" in refused.value.advice
