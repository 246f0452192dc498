"""A simulated population costs its cohorts: clients take their seats with their first invitation; no bit changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resuming import from_the_middle

from fedgossip import simulate
from fedgossip.algorithms.sampling import ReportedLoss
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.core.records import NetworkRow
from fedgossip.core.task import Job
from fedgossip.drivers.local import run_local
from fedgossip.experiment import load_experiment
from fedgossip.learning import task
from fedgossip.plans import compose, tasks
from fedgossip.plans.federated import federation
from fedgossip.plans.plan import Plan
from fedgossip.protocols.federated.client import Client

CLIENTS = 1_200
KINDS: dict[str, dict[str, Any]] = {
    "secure": {},
    "plain": {"secure": {"on": False}},
    "scaffold": {"secure": {"on": False}, "algorithm": "scaffold"},
    "over-selected": {"over_selection": 1.5, "secure": {"on": False}},
    "by share": {"participation": 0.02, "cohort": None},
}


def crowd(clients: int = CLIENTS, rounds: int = 4, **section: Any) -> dict[str, Any]:
    about = {"clients": clients, "cohort": 20, **section}
    about = {key: value for key, value in about.items() if value is not None}
    return {"rounds": rounds, "task": {"kind": "quadratic", "dim": 5}, "coordinator": about}


@pytest.fixture
def seated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clients that got a machine."""
    found: list[int] = []
    made = Client.__init__

    def counting(self: Client, node: int, *rest: Any, **named: Any) -> None:
        found.append(node)
        made(self, node, *rest, **named)

    monkeypatch.setattr(Client, "__init__", counting)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_vacant_seats_change_no_bit(kind: str, seated: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same models, rounds, times and cohorts as with a machine for each client from the start."""
    late = simulate(crowd(**KINDS[kind]))
    few = len(seated)
    monkeypatch.setattr(federation, "SEATED_MOST", CLIENTS)
    early = simulate(crowd(**KINDS[kind]))
    assert few <= 4 * 30 and len(seated) - few == CLIENTS, "a client costs a machine with its first invitation alone"
    assert late.digest == early.digest is not None
    assert late.summary["status"] == early.summary["status"] == "finished"

    def told(run: Any) -> list[tuple[Any, ...]]:
        rows = [row for row in run.rows if isinstance(row, NetworkRow)]
        return [(row.round, row.seconds, row.test_loss, row.loss, row.bytes_sent) for row in rows]

    assert told(late) == told(early)


@pytest.mark.timeout(60)
def test_of_a_hundred_thousand_clients_the_invited_ones_get_machines(seated: list[int]) -> None:
    """It takes a second or two; a list that is walked for each client took minutes."""
    run = simulate(crowd(100_000, rounds=3))
    assert run.summary["status"] == "finished" and len(seated) <= 60


@pytest.mark.parametrize("sampling", ["power-of-choice", "oort"])
def test_cohorts_by_losses_need_losses_and_times(sampling: str) -> None:
    section = {"secure": {"on": False}, "sampling": sampling, "min_clients": 1, "start_timeout": 5.0}
    plain = crowd(30, rounds=12, cohort=5, **section)
    plain["task"] = {"kind": "quadratic", "dim": 2, "placement": "random"}
    whole = simulate(plain)
    assert whole.digest == simulate(plain).digest != simulate({**plain, "seed": 5}).digest
    uniform = {**plain, "coordinator": {**plain["coordinator"], "sampling": "uniform"}}
    assert whole.digest != simulate(uniform).digest
    for section, text in (
        ({"secure": {"on": True}}, "secure sum hides"),
        ({"candidates": 3}, "candidates"),
        ({"algorithm": "fedbuff"}, "fedbuff"),
        ({"algorithm": "fedbuff", "sampling": "poisson"}, "fedbuff, which invites every client"),
        ({"algorithm": "fedbuff", "sampling": "uniform", "over_selection": 1.5}, "over_selection with fedbuff"),
    ):
        with pytest.raises(ConfigError, match=text):
            simulate({**plain, "coordinator": {**plain["coordinator"], **section}})
    with pytest.raises(ConfigError, match="stacked engine"):
        simulate(plain, engine="stacked")


def test_a_coordinator_that_comes_back_has_the_losses_from_its_checkpoint() -> None:
    seen = {3: ReportedLoss(0.5, 10, 4, 1.25), 7: ReportedLoss(2.0, 4, 2, 0.5)}
    plan: Any = compose.plan(load_experiment(crowd(30, secure={"on": False}, sampling="power-of-choice")))
    first = plan.machine(30, np.zeros(5, np.float32), "s")
    first.seen = dict(seen)
    checkpoint = first._next()[0]
    assert json.loads(json.dumps(checkpoint.facts)) == checkpoint.facts, "as a file has them"
    assert plan.machine(30, np.zeros(5, np.float32), "s", checkpoint).seen == seen


DRAWN = """
import numpy as np

def client(number):
    assert number != 734_221, "no such device"
    random = np.random.default_rng([7, number])
    x = random.standard_normal((3 + number % 5, 4)).astype(np.float32)
    return x, (x.sum(1) > 0).astype(int)

def common():
    return client(-1 % 2**32)
"""


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The sections of examples that are a function of the client's number."""
    name = f"drawn_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(DRAWN)
    monkeypatch.chdir(tmp_path)
    source = {"source": f"{name}:client", "test": f"{name}:common", "partition": {"kind": "own"}}
    return {"data": source, "train": {"device": "cpu", "momentum": 0.9}}


@pytest.mark.parametrize("model", ["softmax", "one at a time"])
def test_examples_that_are_made_when_their_client_trains_change_no_bit(
    model: str, drawn: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the model: momentum stays with a client, though its examples do not."""
    if model != "softmax":
        monkeypatch.setattr(task, "shape_of", lambda *_: None)
    found = []
    for most, engine in ((tasks.HELD_MOST, "sim"), (3, "sim"), (3, "stacked")):
        monkeypatch.setattr(tasks, "HELD_MOST", most)
        found.append(simulate({**crowd(8, cohort=4, secure={"on": False}), "task": {}, **drawn}, engine=engine).digest)
    assert found[0] == found[1] == found[2] is not None


def test_a_client_whose_examples_cannot_be_made_is_named(drawn: dict[str, Any]) -> None:
    experiment = load_experiment({**crowd(1_000_000), "task": {}, **drawn})
    made, shares = compose.task_of(experiment, 1_000_000)
    assert shares.trained_on == {}
    with pytest.raises(TrainingError, match=r"client 734221: drawn_\w+:client raised .*no such device.*line 5"):
        made.train([Job(734_221, 0, made.initial(734_221))])


def test_a_process_makes_the_examples_of_its_own_client_alone(drawn: dict[str, Any]) -> None:
    _, shares = compose.task_of(load_experiment({**crowd(1_000_000), "task": {}, **drawn}), 1_000_000, [12])
    assert shares.trained_on == {12: 5}


def test_a_population_with_faults_has_all_its_seats_taken(seated: list[int]) -> None:
    """A fault may strike a client before its first invitation."""
    run = simulate({**crowd(1_001, rounds=1), "faults": [{"kind": "crash", "peers": [7], "start": 0.0}]})
    assert len(seated) == 1_001
    assert run.summary["events"]["crashed"] == 1


def test_a_stopped_population_goes_on_bit_for_bit(tmp_path: Path) -> None:
    plan = compose.plan(load_experiment(crowd(secure={"on": False}, algorithm="scaffold")))
    whole, on = from_the_middle(plan, tmp_path, events=10)
    assert on.summary["status"] == "finished" and on.digest == whole.digest


def test_other_plans_have_no_vacant_seat() -> None:
    plan = compose.plan(
        load_experiment({"rounds": 1, "task": {"kind": "averaging"}, "topology": {"graph": "ring", "n": 4}})
    )
    assert isinstance(plan, Plan) and not plan.with_engine("sim").vacant
    small = compose.plan(load_experiment(crowd(1_000)))
    assert not small.with_engine("sim").vacant
    assert len(compose.plan(load_experiment(crowd())).with_engine("sim").vacant) == CLIENTS


def stored(clients: int, **section: Any) -> dict[str, Any]:
    """An experiment with models of 650 numbers."""
    plain = crowd(clients, **{"cohort": 10, "secure": {"on": False}, **section})
    return {**plain, "data": {"source": "digits"}, "task": {"kind": "learning"}, "train": {"device": "cpu"}}


@pytest.mark.parametrize(
    ("about", "engine", "models"),
    [
        ({}, "sim", 1),  # an answer may be asked for again
        ({}, "stacked", 0),
        ({"algorithm": "scaffold"}, "sim", 2),
        ({"algorithm": "scaffold"}, "stacked", 1),
        ({"personal": "ditto"}, "stacked", 1),
        ({"personal": "finetune"}, "stacked", 0),
        ({"codec": "top-k:0.1"}, "sim", 1),
        ({"secure": {"on": True}}, "sim", 0),
    ],
)
def test_clients_whose_stored_models_no_memory_holds_are_refused_before_the_run(
    about: dict[str, Any], engine: str, models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 clients 4 rounds of 10 invite 100 (1 - 0.9^4) = 34 on average."""
    plain = stored(100, **about)
    seat = {"sim": 1_000, "stacked": 1_500}[engine]
    least = 100 * seat + 34 * models * 4 * 650
    monkeypatch.setattr("fedgossip.base.machine_memory.MEMORY", least - 1)
    with pytest.raises(ConfigError, match="101 participants with models of 2,600 bytes take at least"):
        simulate(plain, engine=engine)
    monkeypatch.setattr("fedgossip.base.machine_memory.MEMORY", least)
    assert simulate(plain, engine=engine).summary["status"] == "finished"


def test_targets_that_no_memory_holds_are_refused_by_their_number() -> None:
    """An allocation of 4 TB failed before the first round, one of 30 GB ended the process."""
    many = {**crowd(1_000_000), "task": {"kind": "quadratic", "dim": 1_000_000}}
    with pytest.raises(ConfigError, match=r"the targets of 1,000,000 nodes of 1,000,000 elements take at least 4,000"):
        simulate(many)


def test_local_processes_that_no_memory_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgossip.base.machine_memory.MEMORY", 80_000_000)
    with pytest.raises(ConfigError, match=r"5 processes take at least 0\.1 GB of memory"):
        run_local(crowd(4, cohort=3), tmp_path / "run")
    assert not (tmp_path / "run").exists()
