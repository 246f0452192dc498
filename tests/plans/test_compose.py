"""From an experiment to the parts of a run: which data a run learns from, is tested on, and says hello with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_data import write_pair

import fedgossip
from fedgossip import load_experiment
from fedgossip.base.errors import ConfigError
from fedgossip.core.task import Job, LocalTask, Update
from fedgossip.experiment import checked
from fedgossip.plans import compose
from fedgossip.plans.approvals.plan_statement import statement_of
from fedgossip.plans.compose import DataShares
from fedgossip.runs.collect import collect_peers


def experiment(**data: Any) -> fedgossip.Experiment:
    return load_experiment(
        {
            "rounds": 2,
            "data": data,
            "train": {"device": "cpu", "batch_size": 2},
            "topology": {"graph": "ring", "n": 3},
        }
    )


# --- the test set ---------------------------------------------------------------------------------------------------


def test_a_source_with_a_test_set_of_its_own_is_tested_on_it(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", 9)
    write_pair(tmp_path, "t10k", 6)
    run = fedgossip.simulate(experiment(source=f"mnist:{tmp_path}", test="own"))
    assert sum(run.summary["data"]["sizes"]) == 9
    assert run.summary["data"]["test"] == "the source's own 6"


def test_the_summary_says_which_share_was_held_out() -> None:
    assert fedgossip.simulate(experiment(test=0.25)).summary["data"]["test"] == "25 % of the examples: 450"


def test_a_source_without_a_test_set_of_its_own_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"digits brings no test set of its own") as error:
        compose.task_of(experiment(test="own"), 3)
    assert "data.test = 0.2" in error.value.advice


@pytest.mark.parametrize("test", [0, 1, -0.5, "onw"])
def test_what_is_no_test_set_is_refused(test: object) -> None:
    with pytest.raises(ConfigError, match=r"data\.test = ") as error:
        experiment(test=test)
    assert '"own"' in error.value.advice


# --- the first words ------------------------------------------------------------------------------------------------


def hello(data: dict[str, Any]) -> str:
    made = compose.plan(experiment(**data))
    task, shares = compose.task_of(made.experiment, 3)
    return compose.hello_of(made, task.schema, shares.digest).experiment


def saved(folder: Path, change: float = 0.0, label: int = 0) -> dict[str, Any]:
    folder.mkdir()
    x = np.arange(60, dtype=np.float32).reshape(30, 2)
    x[7, 1] += change
    y = np.arange(30) % 2
    y[4] = label
    np.savez(folder / "a.npz", x=x, y=y)
    return {"source": f"npz:{folder}/a.npz"}


def test_peers_with_the_same_data_in_different_places_say_the_same(tmp_path: Path) -> None:
    assert hello(saved(tmp_path / "here")) == hello(saved(tmp_path / "there"))


@pytest.mark.parametrize("other", [{"change": 0.5}, {"label": 1}])
def test_peers_whose_files_differ_refuse_each_other(tmp_path: Path, other: dict[str, Any]) -> None:
    assert hello(saved(tmp_path / "here")) != hello(saved(tmp_path / "there", **other))


# --- a file of every peer's own -------------------------------------------------------------------------------------


def sites(folder: Path, n: int = 3, names: str = "abc") -> dict[str, Any]:
    """Write a table per site, of unlike sizes and labels, and a common one for the test."""
    random = np.random.default_rng(0)

    def write(path: Path, rows: int, kinds: str) -> None:
        lines = [f"{x:.3f},{y:.3f},{kinds[k % len(kinds)]}" for k, (x, y) in enumerate(random.normal(size=(rows, 2)))]
        path.write_text("\n".join(["u,v,kind", *lines]) + "\n")

    write(folder / "common.csv", 12, names)
    for site in range(n):
        write(folder / f"site-{site}.csv", 6 + 5 * site, names[site:])  # the last site knows one kind alone
    return {
        "source": f"csv:{folder}/site-{{peer}}.csv?label=kind",
        "test": f"csv:{folder}/common.csv?label=kind",
        "partition": {"kind": "own"},
    }


def test_every_peer_learns_from_its_own_file_to_the_same_bits_as_simulated(tmp_path: Path) -> None:
    settings = experiment(**sites(tmp_path))
    simulated = fedgossip.simulate(settings)
    assert simulated.summary["data"]["sizes"] == [6, 11, 16]
    assert simulated.summary["data"]["shares"] == [[2, 2, 2], [0, 6, 5], [0, 0, 16]]  # as the common file names them
    tasks = [compose.task_of(settings, 3, [node]) for node in range(3)]
    assert simulated.digest == fedgossip.simulate(settings, task=Apart([task for task, _ in tasks])).digest
    assert len({shares.digest for _, shares in tasks}) == 1


class Apart:
    """A task of peers that hold their own data alone."""

    def __init__(self, tasks: Sequence[LocalTask]) -> None:
        self.tasks = tasks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tasks[0], name)

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        return [self.tasks[job.node].train([job])[0] for job in jobs]


@pytest.mark.sockets
def test_processes_with_files_of_their_own_end_with_the_digest_of_the_simulator(tmp_path: Path) -> None:
    settings = experiment(**sites(tmp_path))
    run = fedgossip.run_local(settings, tmp_path / "run", report=False)
    assert run.digest == fedgossip.simulate(settings).digest
    for site in range(3):
        (tmp_path / f"site-{site}.csv").unlink()  # who collects has none of them
    folders = [tmp_path / "run" / "peers" / f"{node:02d}" for node in range(3)]
    assert collect_peers(compose.plan(settings), folders, tmp_path / "collected").digest == run.digest


def test_a_file_that_is_missing_matters_to_its_peer_alone(tmp_path: Path) -> None:
    settings = experiment(**sites(tmp_path))
    (tmp_path / "site-1.csv").unlink()
    compose.task_of(settings, 3, [0])
    with pytest.raises(ConfigError, match=r"there is no file .*site-1\.csv"):
        compose.task_of(settings, 3, [1])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("v,u,kind\n1,2,a\n", "columns"),
        ("u,kind\n1,a\n", "columns"),
        ("u,v,kind\n1,2,z\n", "unknown label 'z'"),
    ],
)
def test_a_file_unlike_the_common_one_is_refused(tmp_path: Path, table: str, message: str) -> None:
    settings = experiment(**sites(tmp_path))
    (tmp_path / "site-1.csv").write_text(table)
    with pytest.raises(ConfigError, match=message):
        compose.task_of(settings, 3, [1])


@pytest.mark.parametrize(
    "change", [{"partition": {"kind": "iid"}}, {"test": 0.2}, {"test": "own"}, {"source": "digits"}]
)
def test_half_of_an_own_data_experiment_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        experiment(**{**sites(tmp_path), **change})
    assert error.value.advice


def test_a_test_set_in_another_file_leaves_all_of_the_source_to_train_on(tmp_path: Path) -> None:
    data = sites(tmp_path)
    _, shares = compose.task_of(experiment(source=data["source"].format(peer=0), test=data["test"]), 3)
    assert sum(shares.sizes or []) == 6
    assert shares.test.endswith("common.csv?label=kind: 12")


def test_more_examples_than_a_secure_sum_counts_are_refused_by_the_plan_naming_the_key() -> None:
    """Each such client trained in every round for nothing, and the dry run was content."""
    content = {"rounds": 1, "train": {"device": "cpu"}, "coordinator": {"clients": 5, "secure": {"weight_max": 400}}}
    plan = compose.plan(checked(content, ""))
    plan.with_shares(DataShares("mine", trained_on={0: 400}))
    with pytest.raises(ConfigError, match=r"client 3 has 401 examples, and coordinator\.secure\.weight_max = 400"):
        plan.with_shares(DataShares("mine", trained_on={0: 400, 3: 401}))
    content["coordinator"]["secure"] = {"on": False}
    compose.plan(checked(content, "")).with_shares(DataShares("mine", trained_on={3: 401}))


@pytest.mark.parametrize(
    ("secure", "sizes", "most"),
    [({}, [9, 14_250], 20_000), ({}, [9, 10], 10_000), ({}, [60_000], 100_000), ({"weight_max": 70_000}, [9], 70_000)],
)
def test_a_secure_sum_counts_as_many_examples_as_the_largest_client_has(
    secure: dict[str, Any], sizes: list[int], most: int
) -> None:
    content = {"rounds": 1, "train": {"device": "cpu"}, "coordinator": {"clients": 5, "secure": secure}}
    plan = compose.plan(checked(content, "")).with_shares(DataShares("", sizes=sizes, trained_on={0: max(sizes)}))
    assert plan.numbers.fixed_point(10, "").weight_max == plan.most_examples == most


def test_sites_with_tables_of_their_own_say_how_many_examples_count() -> None:
    """Nobody knows the others' sizes, nor whether the elements have the bits for so many."""
    content = {"rounds": 1, "train": {"device": "cpu"}, "coordinator": {"clients": 5}}
    for shares in (DataShares("", trained_on={0: 10_001}), DataShares("", sizes=[10**7], trained_on={0: 10**7})):
        with pytest.raises(ConfigError, match=r"coordinator\.secure\.weight_max = 10,000"):
            compose.plan(checked(content, "")).with_shares(shares)


def test_a_hello_and_a_statement_leave_the_plan_s_fingerprint_as_it_is() -> None:
    """A client pins the hash of its task before it says hello, and its coordinator names it afterwards."""
    plan = compose.plan(load_experiment({"coordinator": {"clients": 5}, "task": {"kind": "quadratic"}}))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    before = copy.deepcopy(plan.fingerprint)
    compose.hello_of(plan, task.schema)
    statement_of(plan, task)
    assert plan.fingerprint == before


@pytest.mark.parametrize(("clients", "advice"), [(4, "Set coordinator.min_clients = 3"), (2, "Take more clients")])
def test_a_secure_sum_over_two_is_refused_with_what_makes_it_one_over_three(clients: int, advice: str) -> None:
    content = {"rounds": 2, "task": {"kind": "averaging"}, "coordinator": {"clients": clients, "min_clients": 2}}
    with pytest.raises(ConfigError, match="a sum over 2 reveals each") as caught:
        compose.plan(load_experiment(content))
    assert caught.value.advice.startswith(advice)
