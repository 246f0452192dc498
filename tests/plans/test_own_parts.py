"""Parts of the user's own: one run in every driver, hashed into the likeness, and refused by name where wrong."""

from __future__ import annotations

import textwrap
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import digest
from fedgossip.core.records import PeerRow
from fedgossip.data.custom import importing_nothing, keys_of_code
from fedgossip.drivers.invite_joining import declared_run
from fedgossip.experiment.sections import FederatedExperiment, GossipExperiment
from fedgossip.plans import compose
from fedgossip.plans.own_parts import make_partition, measured_by
from fedgossip.plans.tasks import examples_of
from fedgossip.report.page.reading import read_run

EXAMPLES = Path(__file__).parents[2] / "examples"

LEARNING = {
    "rounds": 4,
    "data": {"partition": {"kind": "own_parts:mostly", "iid": 0.3}},
    "train": {
        "schedule": "own_parts:inverse",
        "optimizer": "own_parts:lion",
        "lr": 0.01,
        "device": "cpu",
        "local_steps": 2,
    },
}
COORDINATOR = {
    "clients": 4, "cohort": 2, "algorithm": "own_parts:averaged", "options": {"fresh": 0.7},
    "sampling": "own_parts:InTurn", "codec": "own_parts:Coarse", "secure": {"on": False}, "min_clients": 1,
}  # fmt: skip
PEERS = {
    **LEARNING,
    "topology": {"graph": "complete", "n": 4},
    "algorithm": {"combine": "own_parts:Nearest"},
    "adversary": {"peers": [3], "attack": "own_parts:Silent"},
}


@pytest.fixture(autouse=True)
def beside_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)


@pytest.mark.parametrize("content", [{**LEARNING, "coordinator": COORDINATOR}, PEERS], ids=["coordinator", "peers"])
def test_the_examples_parts_are_one_run_in_the_simulator_and_on_stacked_arrays(content: dict[str, Any]) -> None:
    runs = [simulate(content, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest is not None


@pytest.mark.sockets
@pytest.mark.parametrize("content", [{**LEARNING, "coordinator": COORDINATOR}, PEERS], ids=["coordinator", "peers"])
def test_the_examples_parts_are_the_same_run_over_sockets(content: dict[str, Any]) -> None:
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(plan.outcome(vectors)) == simulate(content).digest  # type: ignore[arg-type]


GRADIENTS = {"parallel": {"workers": 3, "method": "all-to-all", "codec": "own_parts:Coarse"}}
CHANGES = {
    "topology": {"graph": "ring", "n": 4},
    "algorithm": {"name": "choco", "options": {"codec": "own_parts:Halved", "gamma": 0.3}},
}


@pytest.mark.sockets
@pytest.mark.parametrize("content", [GRADIENTS, CHANGES], ids=["gradients", "changes"])
def test_a_codec_of_ones_own_is_one_run_of_collectives_and_of_choco_in_every_driver(content: dict[str, Any]) -> None:
    content = {"rounds": 3, "task": {"kind": "quadratic", "dim": 9, "placement": "random"}, **content}
    runs = [simulate(content, engine=engine) for engine in ("sim", "stacked")]
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(plan.outcome(vectors)) == runs[0].digest == runs[1].digest  # type: ignore[arg-type]


def test_a_codec_of_ones_own_is_described_before_consent_and_refused_where_payloads_are_added() -> None:
    for content in (GRADIENTS, CHANGES):
        e = load_experiment(content)
        assert declared_run(e).terms(9, 4).how.startswith(f"by the code of {e.named_code[0]}")
    with pytest.raises(ConfigError, match="cannot be added"):
        load_experiment({"parallel": {**GRADIENTS["parallel"], "method": "tree"}})
    with pytest.raises(ConfigError, match=r"own_parts:Coarse is no codec for it: it is no contraction"):
        algorithm = {"name": "choco", "options": {"codec": "own_parts:Coarse"}}
        compose.plan(load_experiment({**CHANGES, "algorithm": algorithm}))


def test_each_key_is_declared_and_hashed_and_nothing_is_imported_while_a_file_is_read() -> None:
    common = {"data.partition", "train.schedule", "train.optimizer"}
    assert common | {f"coordinator.{one}" for one in ("algorithm", "sampling", "available", "codec")} <= {
        *keys_of_code(FederatedExperiment)
    }
    assert common | {"algorithm.combine", "adversary.attack"} <= {*keys_of_code(GossipExperiment)}
    with importing_nothing("an invite"):
        experiments = [load_experiment({**LEARNING, "coordinator": COORDINATOR}), load_experiment(PEERS)]
        with pytest.raises(ConfigError, match="names code that would run"):
            compose.plan(experiments[0])
    named = {name for one in experiments for name in one.named_code}
    words = ["lion", "inverse", "mostly", "averaged", "InTurn", "Coarse", "Nearest", "Silent"]
    assert named == {f"own_parts:{word}" for word in words}


LEAST_SQUARES = {
    "rounds": 6,
    "eval": {"every": 2},
    "topology": {"graph": "ring", "n": 4},
    "task": {
        "kind": "own_task:LeastSquares",
        "options": {"dim": 3},
        "metrics": ["away?better=lower", "own_task:residual?of=model&better=lower"],
    },
}


def test_a_task_of_ones_own_is_one_run_in_every_driver_and_its_numbers_are_in_the_record(tmp_path: Path) -> None:
    out = tmp_path / "run"
    runs = [simulate(LEAST_SQUARES, out=out), simulate(LEAST_SQUARES, engine="stacked")]
    assert runs[0].digest == runs[1].digest is not None
    task, _ = compose.task_of(load_experiment(LEAST_SQUARES), 4)
    x = np.mean(runs[0].vectors, axis=0)
    away = [float(np.linalg.norm(one - task.best)) for one in (x, *runs[0].vectors)]  # type: ignore[attr-defined]
    assert runs[0].summary["score"]["averaged"] == pytest.approx(away[0], rel=1e-12)
    assert runs[0].summary["score"]["worst_peer"] == pytest.approx(max(away[1:]), rel=1e-12)
    gradient = lambda one: np.mean([task.gradient(node, one) for node in range(4)], axis=0)  # noqa: E731
    slopes = [float(np.linalg.norm(gradient(one))) for one in (x, *runs[0].vectors)]
    for run in runs:
        assert run.network()[-1].metrics == {"residual": pytest.approx(slopes[0], rel=1e-9)}
        at_peers = [row.metrics["residual"] for row in run.rows if isinstance(row, PeerRow) and row.round == 6]
        assert at_peers == pytest.approx(slopes[1:], rel=1e-12)
    lines = read_run(out).logged
    assert [point[0] for point in lines["residual"]] == [0, 2, 4, 6]
    assert lines["residual.peers"][-1][1:] == pytest.approx((np.mean(slopes[1:]), min(slopes[1:]), max(slopes[1:])))


@pytest.mark.sockets
def test_a_task_of_ones_own_is_the_same_run_over_sockets() -> None:
    plan = compose.plan(load_experiment(LEAST_SQUARES))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(plan.outcome(vectors)) == simulate(LEAST_SQUARES).digest  # type: ignore[arg-type]


def test_the_full_gradient_is_that_of_all_examples_and_of_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slopes.py").write_text("""
import numpy as np
def slope(model, task): return float(np.linalg.norm(task.full_gradient(model)[1]))
def apart(model, task):
    mean = sum(len(task._shares[i]) * task.full_gradient(model, i)[1].astype(float) for i in range(3))
    mean = mean / sum(map(len, task._shares.values()))
    return float(np.abs(mean - task.full_gradient(model)[1]).max())
def f(model, task): return task.full_gradient(model)[0]
""")
    monkeypatch.chdir(tmp_path)
    for kind in ("learning", "quadratic"):
        named = ["slope", "f", *(["apart"] if kind == "learning" else [])]
        metrics = [f"slopes:{name}?of=model&better=lower" for name in named]
        content: dict[str, Any] = {"rounds": 2, "task": {"kind": kind, "metrics": metrics, "placement": "random"}}
        content |= {"topology": {"graph": "ring", "n": 3}, "train": {"device": "cpu"}}
        run = simulate(content, engine="stacked")
        first, last = run.network()[0], run.network()[-1]
        assert last.metrics["f"] < first.metrics["f"] and last.score_averaged < first.score_averaged
        if kind == "quadratic":
            assert last.metrics["f"] == pytest.approx(last.test_loss, rel=1e-6)
        else:
            data, x = examples_of(load_experiment(content), range(3), 3).train, np.mean(run.vectors, axis=0)
            outputs = data.x.reshape(len(data), -1) @ x[:640].reshape(10, 64).T + x[640:]
            losses = np.log(np.exp(outputs).sum(axis=1)) - outputs[np.arange(len(data)), data.y]
            assert last.metrics["f"] == pytest.approx(losses.mean(), rel=1e-5) and last.metrics["apart"] < 1e-6


@pytest.mark.parametrize("model", ["softmax", "resnet:8-gn"])
def test_an_optimizer_of_ones_own_with_the_formula_of_sgd_has_the_bits_of_sgd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    source = "def plain(weights, gradient, first, second, rate): weights.sub_(gradient.mul_(rate))\n"
    shape = "import numpy as np\ndef data(): return np.random.default_rng(0).random((40, 1, 4, 4)), np.arange(40) % 3\n"
    (tmp_path / "own_sgd.py").write_text(source + shape)
    monkeypatch.chdir(tmp_path)
    digests = []
    for optimizer in ("sgd", "own_sgd:plain"):
        train = {"optimizer": optimizer, "weight_decay": 0.01, "local_steps": 2, "device": "cpu"}
        content = {"rounds": 2, "model": {"source": model}, "train": train, "topology": {"graph": "ring", "n": 3}}
        content["data"] = {"source": "own_sgd:data"}
        digests.append(simulate(content, engine="stacked").digest)
    assert digests[0] == digests[1] is not None


def test_the_schedule_of_ones_own_is_the_formula() -> None:
    train = load_experiment(PEERS).train
    assert [train.rate(r, 100) for r in (0, 20, 60)] == pytest.approx([0.01, 0.005, 0.0025])


# --- what is refused --------------------------------------------------------------------------------------------------

TASK = """
class part:
    length, dtype, schema = 3, np.dtype(np.float64), "own"
    def initial(self, node): return np.ones(3)
    def train(self, jobs): return [Update(None, 1) for _ in jobs]
    def evaluate(self, vectors): return [{"loss": 1} for _ in vectors]
"""
MODEL = """
class Applied(torch.nn.Module):
    def __init__(self, function): super().__init__(); self.function = function
    def forward(self, x): return self.function(x)
def net(width, scale=1.0, before=lambda x: x):
    made = torch.nn.Sequential(Applied(before), torch.nn.Linear(64, width), torch.nn.Linear(width, 10))
    made[1].weight.data *= scale
    return made
SHARED = net(5)
def part(shape, classes):
"""
WRONG = {
    "schedule": [
        ("def part(round, rounds): return float(np.random.rand())", "gave two rates"),
        ("def part(round, rounds): return -1", "returned -1"),
        ("def part(round, rounds): raise KeyError(3)", "raised KeyError"),
    ],
    "partition": [
        ("def part(labels, n, seed): return np.array_split(np.random.permutation(len(labels)), n)", "two partitions"),
        ("def part(labels, n, seed): labels[:] = 0", "read-only"),
        ("def part(labels, n, seed): return [range(len(labels))] * n", "given twice"),
        ("def part(labels, n, seed): return [range(len(labels))]", "expected 4"),
        ("def part(labels, n, seed, share=1): return 0", "iid"),
        ("part = lambda labels, n, seed: np.array_split(np.arange(len(labels)), n)", "is a lambda"),
    ],
    "algorithm": [
        ("def part(): return 3", "expected Federated"),
        ("part = lambda: 3", "is a lambda"),
        (
            """
            class Server(ServerSgd):
                def step(self, state, aggregate): return type(state)(state.x[1:])
            def part(): return Federated(Training(), Mean(), Server())
            """,
            "expected float32",
        ),
        (
            """
            class Server(ServerSgd):
                def step(self, state, aggregate):
                    aggregate.vectors[0][0] += np.random.rand()
                    return super().step(state, aggregate)
            def part(): return Federated(Training(), Mean(), Server())
            """,
            "read-only|two results",
        ),
    ],
    "sampling": [
        ("class part:\n    def draw(self, round, here): return Draw((9,), 1)", "draw of round 0"),
        ("class part: pass", "without 'draw'"),
        (
            "class part:\n    def draw(self, round, here): return Draw((int(np.random.randint(4)),), 1)",
            "two results",
        ),
    ],
    "codec": [("class part:\n    contraction = size = encode = None", "without 'decoded'")],
    "attack": [
        ("class part:\n    aimed = False\n    def vector(self, seen, to): return seen.own[1:]", "expected float32"),
        ("class part:\n    aimed = False\n    def vector(self, seen, to): seen.own[:] = 0", "read-only"),
    ],
    "optimizer": [
        ("part = lambda weights, gradient, first, second, rate: 0", "is a lambda"),
        ("def part(weights, gradient): pass", "first, second, rate"),
        ("def part(weights, gradient, first, second, rate): raise KeyError(3)", "raised KeyError"),
        ("def part(weights, gradient, first, second, rate): return weights - gradient * rate", "as they were"),
        ("def part(weights, gradient, first, second, rate): weights.div_(0)", "not finite"),
        (
            "def part(weights, gradient, first, second, rate): weights.sub_(gradient * rate * float(np.random.rand()))",
            "two results",
        ),
        (
            "def part(weights, gradient, first, second, rate): weights.sub_(rate * gradient / gradient.norm())",
            "mixes elements",
        ),
    ],
    "task": [
        ("class part: pass", "without 'length'"),
        (TASK + "    def evaluate(self, vectors): return [{'loss': np.random.rand()} for _ in vectors]", "two results"),
        (TASK + "    def evaluate(self, vectors): return [{}]", "no list of 2"),
        (TASK + "    def evaluate(self, vectors): return [{'x': 'a'} for _ in vectors]", "expected a number"),
        (TASK + "    def train(self, jobs): return [Update(job.vector[1:], 1) for job in jobs]", "expected float64"),
        (TASK + "    def train(self, jobs): jobs[0].vector[:] = 1", "read-only"),
        (TASK + "    def train(self, jobs): return [3 for _ in jobs]", "expected fedgossip.Update"),
        (TASK + "    def train(self, jobs): return [Update(job.vector / 0, 1) for job in jobs]", "not finite|divide"),
    ],
    "metric": [
        ("def part(model, task): return float(np.random.rand())", "two numbers"),
        ("def part(model, task): return model", "expected a number"),
        ("def part(model, task): model[:] = 0", "read-only"),
        ("def part(model): return 0", "task"),
        ("part = lambda model, task: 0", "is a lambda"),
        ("def loss(model, task): return 0", "another name|named as the loss"),
    ],
    "data": [
        ("def part(): return np.random.rand(40, 3), np.arange(40) % 2", "two sets of examples"),
        ("part = lambda: (np.ones((40, 3)), np.arange(40) % 2)", "is a lambda"),
    ],
    "client": [
        (
            """
            def part(client): return np.random.rand(10, 64), np.arange(10)
            def common(): return np.ones((10, 64)), np.arange(10)
            """,
            "client 0: .* two sets of examples",
        ),
    ],
    "model": [
        (MODEL + "    time.calls = getattr(time, 'calls', 3) + 1\n    return net(time.calls)", "two shapes"),
        (MODEL + "    return net(5, np.random.rand())", "two models for the same arguments: 1.weight differs"),
        (MODEL + "    return SHARED", "one module twice"),
        (MODEL + "    return net(5, 1, lambda x: x * float(np.random.rand()))", "two results"),
        (MODEL + "    return net(5, 1, lambda x: x.mul_(2))", "changed its arguments"),
        ("part = lambda shape, classes: None", "is a lambda"),
    ],
    "loss": [
        ("def part(outputs, labels): return outputs.mean() * float(np.random.rand())", "two results"),
        ("def part(outputs, labels): return outputs.mul_(2).mean()", "changed its arguments"),
        ("part = lambda outputs, labels: outputs.mean()", "is a lambda"),
    ],
    "measure": [
        ("def part(outputs, labels): return float(np.random.rand())", "part.* gave two results"),
        ("def part(outputs, labels): labels.sort(); return 1.0", "part.* changed its arguments"),
        ("part = lambda outputs, labels: 1.0", "is a lambda"),
    ],
    "gossip": [
        (
            """
            class part(DSGD):
                def mixed(self, state, mixed): return super().mixed(state, (mixed[0] * np.float32(np.random.rand()),))
            """,
            "two results",
        ),
        ("part = lambda: DSGD()", "is a lambda"),
    ],
    "combine": [
        (
            "class part:\n    linear, tolerates = True, 0\n    def combine(self, n, r, m): return 0",
            "weighted sum",
        ),
        (
            "class part:\n    linear, tolerates = False, 0\n    def combine(self, n, r, m): return m.pop(n)",
            "pop",
        ),
    ],
}
HEAD = """
import time
import numpy as np
import torch
from fedgossip import Update
from fedgossip.algorithms.federated.base import Federated
from fedgossip.algorithms.federated.fedavg import ServerSgd, Training
from fedgossip.algorithms.federated.sums import Mean
from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.algorithms.sampling import Draw
"""


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "schedule": lambda text: {"train": {"schedule": text}},
    "partition": lambda text: {"data": {"partition": {"kind": text}}},
    "algorithm": lambda text: {"coordinator": {"algorithm": text}},
    "sampling": lambda text: {"coordinator": {"sampling": text}},
    "codec": lambda text: {"coordinator": {"codec": text}},
    "attack": lambda text: {"adversary": {"peers": [1], "attack": text}},
    "optimizer": lambda text: {"train": {"optimizer": text}},
    "task": lambda text: {"task": {"kind": text}},
    "metric": lambda text: {"task": {"kind": "quadratic", "metrics": [f"{text}?of=model"]}},
    "data": lambda text: {"data": {"source": text}},
    "client": lambda text: {
        "coordinator": {},
        "data": {"source": text, "test": text.replace(":part", ":common"), "partition": {"kind": "own"}},
    },
    "model": lambda text: {"model": {"source": text}},
    "loss": lambda text: {"task": {"loss": text}},
    "measure": lambda text: {"task": {"metrics": [text]}},
    "gossip": lambda text: {"algorithm": {"name": text}},
    "combine": lambda text: {"algorithm": {"combine": text}},
}


@pytest.mark.parametrize(("kind", "source", "why"), [(kind, *one) for kind, all_ in WRONG.items() for one in all_])
def test_a_wrong_part_is_refused_by_its_name_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, source: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"wrong_{kind}_{zlib.crc32(source.encode())}"
    (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(source))
    text = f"{name}:{'loss' if 'def loss' in source else 'part'}"
    content: dict[str, Any] = {"rounds": 2, **PLACES[kind](text)}
    if kind != "task":
        content["train"] = {"device": "cpu", **content.get("train", {})}
    if kind == "partition" and why == "iid":
        content["data"]["partition"]["iid"] = 1
    if "coordinator" in content:
        content["coordinator"] |= {"clients": 4, "secure": {"on": False}}
    else:
        content["topology"] = {"graph": "complete", "n": 4}
    with pytest.raises(ConfigError, match=why) as caught:
        plan = compose.plan(load_experiment(content))
        measured_by(plan.experiment, compose.task_of(plan.experiment, plan.learners)[0])
        assert getattr(plan, {"sampling": "sampling", "gossip": "algorithm"}.get(kind, ""), None), "made when needed"
    assert name in str(caught.value)


def evenly(classes: Any, peers: int, root: int, share: float = 1.0) -> Any:
    return np.array_split(np.arange(len(classes)), peers)


def openly(labels: Any, n: int, seed: int, **options: Any) -> Any:
    return evenly(labels, n, seed)


def test_options_of_a_partition_are_those_behind_its_three_arguments_whatever_they_are_called() -> None:
    labels, here = np.arange(8), "tests.plans.test_own_parts"
    assert len(make_partition(f"{here}:evenly", labels, 2, 0, {"share": 0.5})) == 2
    assert len(make_partition(f"{here}:openly", labels, 2, 0, {"share": 0.5})) == 2
    for name, advice in (("evenly", "Known: share."), ("test_the_schedule_of_ones_own_is_the_formula", "none")):
        with pytest.raises(ConfigError, match="has no option 'zz'") as caught:
            make_partition(f"{here}:{name}", labels, 2, 0, {"zz": 1})
        assert advice in caught.value.advice


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"codec": "own_parts:Coarse"}, "with a secure sum"),
        ({"sampling": "own_parts:InTurn"}, "keep their size"),
        ({"sampling": "own_parts:InTurn", "privacy": {"unit": "record"}}, "a budget counts on cohorts"),
    ],
)
def test_a_part_that_breaks_the_promise_of_another_key_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        compose.plan(load_experiment({"coordinator": {"clients": 6, **more}}))


def test_what_a_part_raises_in_a_run_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = """
    class Server(ServerSgd):
        def step(self, state, aggregate):
            if aggregate.clients == 5: raise KeyError("late")
            return super().step(state, aggregate)
    def part(): return Federated(Training(), Mean(), Server())
    """
    (tmp_path / "late_part.py").write_text(HEAD + textwrap.dedent(source))
    content = {"rounds": 2, "train": {"device": "cpu"}, "coordinator": {"clients": 5, "algorithm": "late_part:part"}}
    with pytest.raises(TrainingError, match=r"late_part:part: step raised KeyError\('late'\)"):
        simulate(content, engine="stacked")
    assert simulate({**content, "coordinator": {**content["coordinator"], "clients": 6}}).digest
