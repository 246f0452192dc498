"""Running statistics are averaged as they are, whatever a method does with parameters; or the run is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import frozen
import numpy as np
import pytest
import scipy.stats
import statistics_kit as kit
import tomli_w
from commands import in_process
from over_sockets import run_over_sockets
from safetensors.numpy import load_file, save_file
from sklearn.datasets import load_breast_cancer
from statistics_kit import CHANNELS, PARAMETERS, CountingTask, federated, gossip, parallel

from fedgossip import ConfigError, load_experiment, simulate
from fedgossip.algorithms.codecs.names import CODECS
from fedgossip.algorithms.federated.names import ALGORITHMS
from fedgossip.algorithms.gossip.names import METHODS
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import digest
from fedgossip.cli.run.run import exit_code
from fedgossip.core.task import PARAMETER, STATISTIC, Job, Segment, Update, covering, statistics_in
from fedgossip.learning.one_model.flat import Layout
from fedgossip.plans import compose
from fedgossip.plans.completeness import describe_wrong_numbers
from fedgossip.runs.run_directory import Run
from fedgossip.secure.aborts import RoundAbandoned
from fedgossip.secure.fixed_point import FINE, LIMBS, add, mean_statistics, words_of_statistics

DIRECTED = "directed-exponential"
APART = ("dsgd", "push-sum", "push-diging", "relaysgd", "choco", "window-doubling")
"""Gossip methods with other rounds: below, in HULL or in REFUSED."""

MEANS: dict[str, dict[str, Any]] = {
    **{name: gossip(name) for name in METHODS if name not in APART},
    "dsgd cta": gossip(options={"order": "cta"}),
    "dsgdm nesterov": gossip("dsgdm", options={"nesterov": True}),
    "slowmo": gossip("slowmo", options={"base": "gradient-tracking", "every": 2, "alpha": 0.9}),
    "d2": gossip("d2", weights="lazy"),
}
"""Methods whose rounds are those of D-PSGD on the same graph."""

ROBUST = ("median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "clipped-mean")
SHARES = {"top-k": ":0.3", "random-k": ":0.3", "qsgd": ":7", "int8": ":4"}
CODED = [name + SHARES.get(name, "") for name in CODECS if name != "dgc"]  # of gradients alone

ALIKE = "scaffold", "feddyn"
"""Federated methods whose clients count alike, whatever their examples: below, in HULL."""

SERVERS: dict[str, dict[str, Any]] = {
    **{name: federated(name) for name in ALGORITHMS if name not in ("fedavg", "fedsgd", "cocoa", *ALIKE, *ROBUST)},
    "fedavg twice": federated(options={"lr": 2.0}),
    "fedavgm of nesterov": federated("fedavgm", options={"nesterov": True, "lr": 0.7}),
    **{f"fedavg by {one}": federated(codec=one) for one in CODED},
}
"""Federated methods whose mean is that of FedAvg."""

HULL: dict[str, dict[str, Any]] = {
    "push-sum": gossip("push-sum", DIRECTED),
    "push-sum mixed": gossip("push-sum", DIRECTED, options={"momentum": "mixed"}),
    "push-diging": gossip("push-diging", DIRECTED),
    "feddyn": federated("feddyn"),
    "relaysgd": gossip("relaysgd", "path"),
    "asynchronous": gossip(mode="async"),
    "asynchronous push-sum": gossip("push-sum", DIRECTED, mode="async"),
    "with losses": {**gossip("dsgdm", deadline=1.0, least_deadline=0.5), "faults": frozen.LOSSY},
    "push-sum with losses": {**gossip("push-sum", deadline=1.0, least_deadline=0.5), "faults": frozen.LOSSY},
    "asynchronous with losses": {**gossip(mode="async", deadline=1.0), "faults": frozen.LOSSY},
    **{f"combine {one}": gossip(graph="complete", combine=one) for one in ("clipped", "trimmed-mean", "median", "nna")},
    "scaffold": federated("scaffold"),
    "fedbuff": {**federated("fedbuff"), "simulation": frozen.UNEVEN},
    **{name: federated(name) for name in ROBUST if name != "multi-krum"},
    "secure scaffold": federated("scaffold", secure=True),
    "secure fedavgm by random-k": federated("fedavgm", secure=True, codec="random-k:0.3"),
    "ring outer": parallel(outer={"lr": 0.7, "beta": 0.9}),
    "star outer": parallel(method="star", outer={"lr": 1.5}),
}
"""Other methods: their statistics are some mean of what was counted."""


def run(experiment: dict[str, Any], engine: str = "sim") -> tuple[Run, CountingTask]:
    task = CountingTask(6)
    return simulate(experiment, engine=engine, task=task), task


def statistics_of(experiment: dict[str, Any], engine: str = "sim") -> list[np.ndarray[Any, Any]]:
    vectors = run(experiment, engine)[0].vectors
    counted = (
        vectors[-1:] if "coordinator" in experiment else vectors
    )  # behind the clients, who have what they were sent
    return [one[PARAMETERS:] for one in counted if one is not None]


@pytest.mark.parametrize("name", MEANS)
def test_statistics_of_a_gossip_method_have_the_bits_of_plain_gossip(name: str) -> None:
    experiment = MEANS[name]
    plain = {**experiment, "algorithm": {"name": "dsgd"}}
    wanted = statistics_of(plain, "stacked")
    for engine in ("sim", "stacked"):
        assert digest(statistics_of(experiment, engine)) == digest(wanted)


@pytest.mark.parametrize("name", SERVERS)
def test_statistics_of_a_federated_method_or_codec_have_the_bits_of_the_mean(name: str) -> None:
    wanted = statistics_of(federated(), "stacked")
    for engine in ("sim", "stacked"):
        assert digest(statistics_of(SERVERS[name], engine)) == digest(wanted)


@pytest.mark.parametrize("name", ["krum", "geometric-median", "clipped-mean", "trimmed-mean"])
def test_a_rule_against_liars_leaves_of_statistics_the_median(name: str) -> None:
    assert digest(statistics_of(federated(name))) == digest(statistics_of(federated("median")))


@pytest.mark.parametrize("name", ["nna", "geometric-median", "clipped", "trimmed-mean"])
def test_a_rule_of_neighbours_leaves_of_statistics_the_median(name: str) -> None:
    wanted = digest(statistics_of(gossip(graph="complete", combine="median")))
    for engine in ("sim", "stacked"):
        assert digest(statistics_of(gossip(graph="complete", combine=name), engine)) == wanted


@pytest.mark.parametrize("name", [*HULL, *MEANS, *SERVERS])
def test_a_statistic_is_a_mean_of_what_was_counted(name: str) -> None:
    """So no variance is below 0, and the loss is a number in every round."""
    found, task = run({**MEANS, **SERVERS, **HULL}[name])
    counted = np.stack(task.counted)
    lowest, highest = counted.min(axis=0), counted.max(axis=0)
    for vector in found.vectors:
        if vector is not None:
            slack = np.float32(1e-5) * np.abs(counted).max(axis=0)  # roundings of sums
            assert (vector[PARAMETERS:] >= lowest - slack).all()
            assert (vector[PARAMETERS:] <= highest + slack).all()
            assert (vector[PARAMETERS + CHANNELS :] >= 0).all()
    assert found.summary["events"].get("not_finite") is None
    assert not any(word.startswith("The loss") for word in found.summary["lacking"])


@pytest.mark.parametrize(
    "name", [one for one in HULL if "losses" not in one and "async" not in one and one != "fedbuff"]
)
def test_stacked_arrays_have_the_bits_of_the_simulator_with_statistics(name: str) -> None:
    assert run(HULL[name])[0].digest == run(HULL[name], "stacked")[0].digest


def test_no_bound_of_an_update_cuts_statistics_in_a_secure_sum() -> None:
    """Variances of 1e5 beside coordinator.secure.bound = 1, whose mean is that of the sum in the clear."""
    secure = federated(secure=True)
    secure["coordinator"]["secure"] = {"on": True, "bound": 1.0, "weight_max": 8}
    (wanted,), (found,) = statistics_of(federated()), statistics_of(secure)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_workers_of_an_outer_step_have_the_mean_of_what_they_counted() -> None:
    (wanted,) = statistics_of(federated())
    for found in statistics_of(parallel(outer={"lr": 0.7})):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.sockets
@pytest.mark.parametrize(
    "name", ["dsgdm", "push-sum mixed", "secure fedavgm by random-k", "fedavg by top-k:0.3", "ring outer"]
)
def test_bits_over_sockets_are_those_of_the_simulator(name: str) -> None:
    experiment = {**MEANS, **SERVERS, **HULL}[name]
    task = CountingTask(6)
    plan = compose.plan(load_experiment(experiment)).with_segments(task.segments)
    vectors, _ = run_over_sockets(plan, task)
    assert digest([v for v in plan.outcome(vectors) if v is not None]) == run(experiment)[0].digest


# --- refused ----------------------------------------------------------------------------------------------------------

LOCAL = {"train": {"buffers": "local"}}
REFUSED: dict[str, tuple[dict[str, Any], str, list[dict[str, Any]]]] = {
    "choco": (gossip("choco"), "choco sends what has changed", [{"algorithm": {"name": "dsgd"}}, LOCAL]),
    "diloco by a codec": (
        gossip("diloco", options={"codec": "int8:256"}),
        "diloco sends what has changed by int8:256",
        [{"algorithm": {"name": "diloco"}}, LOCAL],
    ),
    "fragments": (
        gossip("diloco", options={"fragments": 3}),
        "diloco keeps what was trained of a fragment",
        [{"algorithm": {"name": "diloco"}}, LOCAL],
    ),
    "window-doubling": (
        gossip("window-doubling", "window-doubling"),
        "window-doubling sends sums over a window",
        [{"algorithm": {"name": "dsgd"}, "topology": {"graph": "one-peer-exponential", "n": 5}}, LOCAL],
    ),
    "private": (gossip(graph="complete", private=True), "algorithm.private rounds", [gossip(), LOCAL]),
    "weights below 0": (
        gossip(weights="best-constant", graph="star"),
        "has the weight -0.333",
        [gossip(weights="metropolis", graph="star"), LOCAL],
    ),
    "fedsgd": (federated("fedsgd"), "clients of fedsgd send gradients", [federated(), LOCAL]),
    "a budget of clients": (
        federated(secure=True, privacy={"unit": "client", "max_epsilon": 1000.0}),
        'coordinator.privacy.unit = "client" adds noise',
        [LOCAL],
    ),
    **{
        f"{method} of gradients": (
            parallel(method=method),
            f"workers of {method} send gradients",
            [parallel(method="ring", outer={"lr": 0.7})],
        )
        for method in ("ring", "parameter-server", "mapreduce")
    },
    "parallel.codec": (
        parallel(outer={"lr": 0.7}, codec="top-k:0.3"),
        "parallel.codec = 'top-k:0.3' would cut",
        [parallel(outer={"lr": 0.7})],
    ),
    "parallel.outer.fragments": (
        parallel(outer={"lr": 0.7, "fragments": 2}),
        "parallel.outer.fragments keeps",
        [parallel(outer={"lr": 0.7})],
    ),
    "parallel.outer.delay": (
        parallel(outer={"lr": 0.7, "delay": 1}),
        "parallel.outer.delay adds",
        [parallel(outer={"lr": 0.7})],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_that_cannot_average_a_statistic_is_refused_and_what_it_names_is_not(name: str) -> None:
    experiment, words, instead = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        run(experiment)
    assert words in str(refused.value)
    assert repr(kit.MEAN) in str(refused.value)
    for change in instead:
        local = change is LOCAL
        assert not local or 'train.buffers = "local"' in refused.value.advice
        segments = kit.SEGMENTS[:1] if local else kit.SEGMENTS
        compose.plan(load_experiment({**experiment, **change})).with_segments(segments)


def test_every_method_has_its_line_here() -> None:
    named = str({**MEANS, **SERVERS, **HULL, **REFUSED})
    assert {name for name in [*METHODS, *ALGORITHMS] if f"'{name}'" not in named} == {"cocoa", "multi-krum"}


# --- the layout, the wide numbers -------------------------------------------------------------------------------------


def test_a_layout_declares_buffers_as_statistics() -> None:
    parts = [("weight", (3, 2)), ("bias", (3,))], [("running_mean", (3,)), ("running_var", (3,))]
    layout = Layout.from_shapes(*parts)
    assert [one.kind for one in layout.segments] == [PARAMETER, PARAMETER, STATISTIC, STATISTIC]
    assert statistics_in(layout.segments) == layout.length - layout.parameters == 6


def test_a_parameter_behind_a_statistic_is_refused() -> None:
    segments = (Segment("mean", 0, (2,), STATISTIC), Segment("weight", 2, (2,)))
    with pytest.raises(ConfigError, match="'weight' is a parameter behind 'mean', a statistic"):
        covering(segments, 4)


@pytest.mark.parametrize("clients", [1, 3, 200])
def test_a_sum_of_whole_statistics_is_the_weighted_mean(clients: int) -> None:
    """Against exact fractions, for numbers from 1e-9 to 1e18 with either sign."""
    from fractions import Fraction

    rng = np.random.default_rng(1)
    each = (rng.choice([-1, 1], (clients, 6)) * 10.0 ** rng.uniform(-9, 18, (clients, 6))).astype(np.float32)
    weights = rng.integers(1, (1 << 23) - 1, clients).tolist()
    total = np.zeros(6 * LIMBS, np.uint32)
    for statistics, weight in zip(each, weights, strict=True):
        add(total, words_of_statistics(statistics, weight, rng.bytes), 1)
    found = mean_statistics(total, sum(weights), clients)
    for place in range(6):
        exact = sum(Fraction(float(one)) * weight for one, weight in zip(each[:, place], weights, strict=True))
        assert abs(Fraction(float(found[place])) - exact / sum(weights)) <= Fraction(1, 1 << 40) + abs(exact) / 2**52


def test_no_client_can_put_a_statistic_beyond_its_bound_into_a_sum() -> None:
    with pytest.raises(RoundAbandoned, match="a running statistic of 2e"):
        words_of_statistics(np.array([2e19], np.float32), 1, bytes)
    with pytest.raises(RoundAbandoned, match="beyond 2"):
        mean_statistics(np.full(LIMBS, 0x3FFFFF, np.uint32), 1, 1)


def test_a_sum_of_statistics_does_not_show_the_carries_of_its_numbers() -> None:
    """1023 + 1 carries in its lowest limb, 1024 + 0 does not: by their chance the sums of limbs look alike."""
    rng, unit = np.random.default_rng(5), 2.0**-FINE

    def sums(*numbers: int) -> Any:
        total = np.zeros((4000, LIMBS), np.uint32)
        for number in numbers:
            each = np.full(4000, number * unit)
            total += words_of_statistics(each, 1, rng.bytes).reshape(4000, LIMBS)
        assert (mean_statistics(total.reshape(-1), 2, 2) == sum(numbers) * unit / 2).all()
        return total.view(np.int32)

    one, other = sums(1023, 1), sums(1024, 0)
    assert set(one[:, 0] & 1023) == set(other[:, 0] & 1023) == {0}
    for limb in range(3):
        assert scipy.stats.ks_2samp(one[:, limb] >> 10, other[:, limb] >> 10).pvalue > 0.001


# --- a model that answers with what is no number ----------------------------------------------------------------------


class Miscounting(CountingTask):
    """Counts variances below 0 from `begun` to before `mended`."""

    def __init__(self, n: int, begun: int, mended: int) -> None:
        super().__init__(n)
        self.wrong = range(begun, mended)

    def _trained(self, job: Job) -> Update:
        update = super()._trained(job)
        change = update.difference.copy()  # type: ignore[union-attr]
        change[-CHANNELS:] = (-1 if job.round in self.wrong else 1) - job.vector[-CHANNELS:]
        return replace(update, difference=change)


@pytest.mark.parametrize(
    ("begun", "mended", "status"),
    [(9, 10, "partial"), (2, 4, "partial"), (5, 6, "finished"), (10, 10, "finished")],
)
@pytest.mark.parametrize("kind", ["gossip", "federated"])
def test_a_run_is_partial_where_its_model_answers_with_no_number_at_the_end_or_often(
    kind: str, begun: int, mended: int, status: str
) -> None:
    """Of the ten measured rounds (0, 1, ..., 9 and 10) one may: not the last, and not two."""
    experiment = {**(gossip() if kind == "gossip" else federated()), "rounds": 10, "eval": {"every": 1}}
    found = simulate(experiment, task=Miscounting(6, begun, mended))
    assert found.summary["status"] == status
    wrong = mended - begun
    words = f"The loss is nan of {wrong} of 11 measured rounds, round {begun + 1} first;"
    lacking = (f"{words} the first tensor that is not right is {kit.VARIANCE!r}.",) if status == "partial" else ()
    assert tuple(found.summary["lacking"]) == lacking
    assert (exit_code(found) == 0) == (status == "finished")


def test_a_final_model_that_is_not_finite_makes_a_run_partial_where_nothing_is_measured() -> None:
    vector = CountingTask(1).initial(0).copy()
    vector[3] = np.inf
    assert describe_wrong_numbers((), [vector], kit.SEGMENTS) == (
        "Tensor 'weight' of the final model is not right: not finite, or a variance below 0.",
    )
    assert describe_wrong_numbers((), [CountingTask(1).initial(0)], kit.SEGMENTS) == ()


# --- BatchNorm --------------------------------------------------------------------------------------------------------

OWN = """
from torch import nn

def normed(shape, classes):
    first, second = nn.BatchNorm1d(shape[0]), nn.BatchNorm1d(8)
    return nn.Sequential(first, nn.Linear(shape[0], 8), second, nn.ReLU(), nn.Linear(8, classes))

def flat(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))
"""


def learning(folder: Path, source: str = "own_norms:normed", rounds: int = 3, **sections: Any) -> dict[str, Any]:
    (folder / "own_norms.py").write_text(OWN)
    columns, ill = load_breast_cancer(return_X_y=True)
    rows = [",".join(map(str, [*row, each])) for row, each in zip(columns.tolist(), ill.tolist(), strict=True)]
    head = ",".join([*(f"c{place}" for place in range(columns.shape[1])), "ill"])
    (folder / "bc.csv").write_text("\n".join([head, *rows]))
    return {
        "rounds": rounds,
        "data": {"source": f"csv:{folder}/bc.csv?label=ill"},
        "model": {"source": source},
        "train": {"lr": 0.05, "local_steps": 8, "device": "cpu"},
        "eval": {"every": rounds},
        **sections,
    }


def test_a_model_with_batchnorm_on_unscaled_columns_learns_by_a_secure_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means of hundreds and variances of 1e5 beside a bound of 1; then its weights are spoiled, and nobody uses it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    experiment = learning(tmp_path, coordinator={"clients": 3, "min_clients": 3, "algorithm": "fedadam"})
    found = simulate(experiment, engine="stacked", out=tmp_path / "run")
    assert found.summary["score"]["averaged"] > 0.85
    file = tmp_path / "run" / "model" / "weights.safetensors"
    tensors = load_file(file)
    assert max(tensors["0.running_var"]) > 1e4
    tensors["2.running_var"][:] = -1.0
    save_file(tensors, file)
    facts = json.loads((file.parent / "model.json").read_text())
    facts["weights"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (file.parent / "model.json").write_text(json.dumps(facts))
    said = in_process(["evaluate", "run", "bc.csv", "--run-code"], tmp_path, monkeypatch, capsys)
    assert said.code == TrainingError.exit_code
    assert "'2.running_var' is the first that is not right" in said.errors[0]


def test_dry_run_run_and_simulation_refuse_a_statistic_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = learning(tmp_path, "mlp:8", topology={"graph": "ring", "n": 3}, algorithm={"name": "choco"})
    experiment["data"] = {"source": "digits"}
    experiment["model"] = {"source": "cnn:small-bn"}
    (tmp_path / "exp.toml").write_text(tomli_w.dumps(experiment))
    with pytest.raises(ConfigError) as simulated:
        simulate(experiment)
    for more in (["--dry-run"], ["--on", "stacked"]):
        said = in_process(["run", "exp.toml", *more], tmp_path, monkeypatch, capsys)
        assert said.code == ConfigError.exit_code
        assert said.errors == [f"error: {simulated.value}"]


NOT_STACKED = ("async", "losses", "fedbuff")


@pytest.mark.long
@pytest.mark.parametrize("source", ["own_norms:flat", "cnn:small-bn"])
@pytest.mark.parametrize("name", [*MEANS, *SERVERS, *HULL])
def test_a_model_with_batchnorm_learns_by_every_method(
    name: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digits, unlike at each node, above chance (0.1) by far; simulated, and the same on stacked arrays."""
    monkeypatch.syspath_prepend(tmp_path)
    given = {**MEANS, **SERVERS, **HULL}[name]
    data = {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3}}
    experiment = {**given, **learning(tmp_path, source, 8), "data": data}
    del experiment["task"]
    engines = ["sim"] if any(word in name for word in NOT_STACKED) else ["sim", "stacked"]
    runs = [simulate(experiment, engine=engine) for engine in engines]
    assert len({one.digest for one in runs}) == 1
    for vector in runs[0].vectors:
        if vector is not None:
            assert np.isfinite(vector).all()
    assert np.isfinite(runs[0].summary["test_loss"])
    assert runs[0].summary["score"]["averaged"] > 0.2
    assert not any(word.startswith("The loss") for word in runs[0].summary["lacking"])
