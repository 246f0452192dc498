"""A user's own algorithm: the same bits in every driver, and what it gets wrong names it and its round."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.algorithms.gossip.names import METHODS, GraphFacts, make
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import digest
from fedgossip.plans import compose

EXAMPLES = Path(__file__).parents[2] / "examples"
SLEM = float(1 / 3 + 2 / 3 * np.cos(2 * np.pi / 8))


def experiment(name: str, rounds: int = 30, **more: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "task": {"kind": "averaging", "dim": 2, "dtype": "float64"},
        "topology": {"graph": "ring", "n": 8},
        "algorithm": {"name": name, **more},
    }


@pytest.mark.sockets
def test_the_example_is_one_algorithm_in_every_driver_and_follows_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    content = experiment("two_tap:TwoTap", options={"slem": SLEM})
    stacked = simulate(content, engine="stacked")
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.n)
    vectors, _ = run_over_sockets(plan, task)
    assert stacked.digest == simulate(content).digest == digest(vectors)
    om = 2 / (1 + np.sqrt(1 - SLEM**2))
    before = x = np.stack([task.initial(node) for node in range(8)])
    for _ in range(30):
        before, x = x, om * plan.mixing.matrix() @ x + (1 - om) * before
    assert np.abs(np.stack(stacked.vectors) - x).max() < 1e-13


def test_the_example_has_fewer_than_forty_lines_of_code() -> None:
    lines = (EXAMPLES / "two_tap.py").read_text().split('"""')[2].splitlines()
    assert sum(bool(line.strip()) for line in lines) < 40


WRONG = {
    "Two": ("def trained(self, state, update, step):\n    return state, (state.x, state.x)", "2 vectors for 1 slots"),
    "Short": ("def trained(self, state, update, step):\n    return state, (state.x[..., :1],)", "expected float64"),
    "Other": (
        "def trained(self, state, update, step):\n    return state, (state.x.astype('f4'),)",
        r"returned float32 .*expected float64",
    ),
    "None_": ("def trained(self, state, update, step):\n    return None", "no .state, vectors."),
    "Raises": (
        "def mixed(self, state, mixed):\n    return 1 / 0 if self.n else state",
        r"mixed raised ZeroDivision.* \(wrong_raises_\w+\.py, line 8\)",
    ),
    "Bare": ("def mixed(self, state, mixed):\n    return mixed[0]", "a state is a frozen dataclass"),
    "Loses": ("def model(self, state):\n    return None", "NoneType"),
}


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.parametrize("name", sorted(WRONG))
def test_what_it_gets_wrong_names_it_and_its_round(
    name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, said = WRONG[name]
    module = f"wrong_{name.lower()}_{engine}"
    source = "from fedgossip.algorithms.gossip.dsgd import DSGD\n\n\nclass Own(DSGD):\n    n = 1\n\n"
    (tmp_path / f"{module}.py").write_text(source + textwrap.indent(method, "    ") + "\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainingError, match=rf"{module}:Own, round 0: .*{said}"):
        simulate(experiment(f"{module}:Own"), engine=engine)


@pytest.mark.sockets
def test_over_sockets_too_it_ends_the_run_and_hangs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of a neighbour that completes the round is not what is at fault."""
    method = "def mixed(self, state, mixed):\n        return 1 / 0"
    source = f"from fedgossip.algorithms.gossip.dsgd import DSGD\n\n\nclass Own(DSGD):\n    {method}\n"
    (tmp_path / "fails_in_mixing.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    plan = compose.plan(load_experiment(experiment("fails_in_mixing:Own")))
    task, _ = compose.task_of(plan.experiment, plan.n)
    with pytest.raises(TrainingError, match="fails_in_mixing:Own, round 0: mixed raised ZeroDivisionError"):
        run_over_sockets(plan, task)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Own:\n    pass", "has no method 'start'"),
        ("from fedgossip.algorithms.gossip.dsgd import DSGD\nclass Own(DSGD):\n    slots = ()", "slots = ()"),
        ("class Own:\n    def __init__(self):\n        raise ValueError('no')", "ValueError"),
    ],
)
def test_what_is_no_algorithm_is_refused_before_anything_runs(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"no_algorithm_{abs(hash(source))}"
    (tmp_path / f"{module}.py").write_text(source + "\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        compose.plan(load_experiment(experiment(f"{module}:Own")))
    assert said in str(refused.value) and f"{module}:Own" in str(refused.value)


def test_unknown_names_and_options_are_refused_with_what_is_near() -> None:
    with pytest.raises(ConfigError, match="'dsgdd' is not known"):
        simulate(experiment("dsgdd"))
    with pytest.raises(ConfigError, match="dsgd has no option 'mu'"):
        simulate(experiment("dsgd", options={"mu": 1}))


def test_every_registered_method_is_made_and_says_what_it_needs() -> None:
    for name, method in METHODS.items():
        algorithm = make(name, method, GraphFacts(8), {})
        assert algorithm.slots[0].name == "x" and algorithm.needs.sums in ("rows", "columns", "both")
        assert set(method.modes) <= {"sync", "async"}
