"""Parts of the user's own: one run in every driver, hashed into the likeness, and refused by name where wrong."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import digest
from fedgossip.data.custom import importing_nothing
from fedgossip.data.named_code import keys_of_code
from fedgossip.experiment.sections import FederatedExperiment, GossipExperiment
from fedgossip.plans import compose

EXAMPLES = Path(__file__).parents[2] / "examples"

LEARNING = {
    "rounds": 4,
    "data": {"partition": {"kind": "own_parts:mostly", "iid": 0.3}},
    "train": {"schedule": "own_parts:inverse", "device": "cpu", "local_steps": 2},
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


def test_each_key_is_declared_and_hashed_and_nothing_is_imported_while_a_file_is_read() -> None:
    common = {"data.partition", "train.schedule"}
    assert common | {f"coordinator.{one}" for one in ("algorithm", "sampling", "codec")} <= {
        *keys_of_code(FederatedExperiment)
    }
    assert common | {"algorithm.combine", "adversary.attack"} <= {*keys_of_code(GossipExperiment)}
    with importing_nothing("an invite"):
        experiments = [load_experiment({**LEARNING, "coordinator": COORDINATOR}), load_experiment(PEERS)]
        with pytest.raises(ConfigError, match="names code that would run"):
            compose.plan(experiments[0])
    named = {name for one in experiments for name in one.named_code}
    words = ["inverse", "mostly", "averaged", "InTurn", "Coarse", "Nearest", "Silent"]
    assert named == {f"own_parts:{word}" for word in words}


def test_the_schedule_of_ones_own_is_the_formula() -> None:
    train = load_experiment(PEERS).train
    assert [train.rate(r, 100) for r in (0, 20, 60)] == pytest.approx([0.1, 0.05, 0.025])


# --- what is refused --------------------------------------------------------------------------------------------------

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
import numpy as np
from fedgossip.algorithms.federated.base import Federated
from fedgossip.algorithms.federated.fedavg import ServerSgd, Training
from fedgossip.algorithms.federated.means import Mean
from fedgossip.algorithms.sampling import Draw
"""


@pytest.mark.parametrize(("kind", "source", "why"), [(kind, *one) for kind, all_ in WRONG.items() for one in all_])
def test_a_wrong_part_is_refused_by_its_name_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, source: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"wrong_{kind}_{len(source)}"
    (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(source))
    content: dict[str, Any] = {"rounds": 2, "train": {"device": "cpu"}}
    text = f"{name}:part"
    if kind in ("algorithm", "sampling", "codec"):
        content["coordinator"] = {"clients": 4, "secure": {"on": False}, kind: text}
    else:
        content["topology"] = {"graph": "complete", "n": 4}
    match kind:
        case "schedule":
            content["train"]["schedule"] = text
        case "partition":
            content["data"] = {"partition": {"kind": text, **({"iid": 1} if why == "iid" else {})}}
        case "attack":
            content["adversary"] = {"peers": [1], "attack": text}
        case "combine":
            content["algorithm"] = {"combine": text}
    with pytest.raises(ConfigError, match=why) as caught:
        plan = compose.plan(load_experiment(content))
        compose.task_of(plan.experiment, plan.learners)
        assert kind == "sampling" and plan.sampling  # type: ignore[attr-defined]
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"codec": "own_parts:Coarse"}, "beside a secure sum"),
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
