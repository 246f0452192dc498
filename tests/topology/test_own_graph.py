"""Graphs, weights, schedules and algorithms of the user's own: one run in every driver, and what is wrong is named.

Nothing of them runs before it was checked; peers with another file are refused by the name of the function.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets

import fedgossip
from fedgossip import load_experiment, simulate
from fedgossip.algorithms.gossip.base import Needs
from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.algorithms.gossip.push_sum import PushSum
from fedgossip.base import limits
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import digest
from fedgossip.core.messages import Hello
from fedgossip.core.model_fingerprint import CODE
from fedgossip.data.custom import codes_of
from fedgossip.drivers.members import check_open, graphs_of
from fedgossip.net.transport import refused
from fedgossip.plans import compose
from fedgossip.topology import Cycle, Mixing, Schedule, Topology, build, resolve, resolve_schedule

EXAMPLES = Path(__file__).parents[2] / "examples"
QUADRATIC = {"kind": "quadratic", "dim": 3, "placement": "random"}


def experiment(graph: str = "ring", n: int = 8, weights: str | None = None, **more: Any) -> dict[str, Any]:
    topology = {"graph": graph, "n": n, **({"weights": weights} if weights else {})}
    return {"rounds": 12, "task": QUADRATIC, "topology": topology, **more}


Mine = Callable[[str], str]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Mine:
    """Writes a module, and returns its name."""
    monkeypatch.chdir(tmp_path)
    head = "from pathlib import Path\nimport numpy as np\nfrom fedgossip.topology import *\n\n\ndef edges(n):\n"
    head += "    return [(i, (i + 1) % n) for i in range(n)]\n\n\n"

    def write(source: str) -> str:
        name = f"mine_{abs(hash((request.node.name, source)))}"
        (tmp_path / f"{name}.py").write_text(head + textwrap.dedent(source))
        return name

    return write


# --- the same run everywhere ------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_the_example_is_one_run_in_every_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    content = experiment("own_graph:clusters", weights="own_graph:shy")
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.n)
    vectors, _ = run_over_sockets(plan, task)
    digests = {simulate(content, engine=engine).digest for engine in ("sim", "stacked")}
    local = fedgossip.run_local({**content, "topology": {**content["topology"], "n": 5}}, tmp_path / "run")
    assert digests == {digest(vectors)}
    assert local.digest == simulate(experiment("own_graph:clusters", 5, "own_graph:shy")).digest


@pytest.mark.sockets
def test_the_example_runs_and_has_fewer_than_forty_lines_of_code(tmp_path: Path) -> None:
    from test_examples import printed

    assert printed("own_graph.py", tmp_path) == "the same run: True\n"
    lines = (EXAMPLES / "own_graph.py").read_text().split('"""', 2)[2].splitlines()
    assert sum(bool(line.strip()) for line in lines) < 40


def test_objects_given_in_python_are_those_that_names_give() -> None:
    mixing = build(resolve("ring", 8))
    named = simulate(experiment()).digest
    for engine in ("sim", "stacked"):
        for given in ({"mixing": mixing}, {"mixing": mixing.matrix()}, {"schedule": mixing}, {"algorithm": DSGD()}):
            assert simulate(experiment(), engine=engine, **given).digest == named  # type: ignore[arg-type]
    without = {key: value for key, value in experiment().items() if key != "topology"}
    assert simulate(without, schedule=mixing).digest == named


def test_a_schedule_of_ones_own_is_that_of_its_name() -> None:
    ready = resolve_schedule("base:2", 6)
    given = Cycle("mine", 6, ready.period, "base", ready.mixing)
    assert simulate(experiment(), schedule=given).digest == simulate(experiment("base:2", 6)).digest


def test_rounds_that_never_repeat_are_one_run_in_both_engines(mine: Mine) -> None:
    module = mine(
        """
        class Shuffled:
            period, stochastic = 0, "both"

            def __init__(self, n, seed):
                self.n, self.seed = n, seed

            def partners(self, node):
                return [other for other in range(self.n) if other != node]

            def mixing(self, round):
                pairs = np.random.default_rng([self.seed, round]).permutation(self.n).reshape(-1, 2)
                return build(Topology.from_edges(self.n, pairs, "shuffled"))
        """
    )
    content = experiment(f"{module}:Shuffled")
    assert simulate(content).digest == simulate(content, engine="stacked").digest
    assert simulate(content).digest != simulate({**content, "seed": 2}).digest


def test_an_algorithm_that_gives_shares_away_brings_the_weights_for_it() -> None:
    content = experiment("directed-exponential", 6)
    named = simulate({**content, "algorithm": {"name": "push-sum"}})
    assert simulate(content, algorithm=PushSum()).digest == named.digest


def test_others_than_were_there_at_the_start_have_the_users_graph_too(mine: Mine) -> None:
    module = mine(
        """
        def even(n, seed):
            if n % 2:
                raise ValueError("odd")
            return Topology.from_edges(n, edges(n), "even")
        """
    )
    plan: Any = compose.plan(load_experiment(experiment(f"{module}:even")))
    make = graphs_of(plan)
    assert isinstance(graph := make(tuple(range(6))), Mixing)
    assert graph.topology.name == "even"
    assert isinstance(other := make(tuple(range(7))), Mixing)
    assert other.topology.name == "exponential"


# --- what is wrong ----------------------------------------------------------------------------------------------------

WRONG = {
    "another size": ("return build(Topology.from_edges(n + 1, edges(n + 1), 'x'))", "returned 9 nodes; expected 8"),
    "another size of graph": ("return Topology.from_edges(n + 1, edges(n + 1), 'x')", "returned 9 nodes; expected 8"),
    "raises": ("return 1 / 0", "raised ZeroDivisionError.*line 11"),
    "nothing": ("return None", "returned nothing; expected a Topology, a Mixing or a Schedule"),
    "a matrix": ("return np.eye(n)", "returned a ndarray; expected"),
    "apart": ("return Topology.from_edges(n, [(0, 1)], 'x')", "falls into 7 components"),
    "apart in all rounds": (
        "return Cycle('x', n, 2, 'x', lambda phase: build(Topology.from_edges(n, [(0, 1)], 'x')))",
        "falls into 7 components",
    ),
    "an edge to a stranger": ("return Topology(n, np.array([*edges(n), (0, 99)]))", "99"),
    "a list of edges": ("return Topology(n, edges(n))", "not sorted and unique"),
    "edges twice": ("return Topology(n, np.array([*edges(n), *edges(n)]))", "not sorted and unique"),
    "a count": (
        "own.asked = getattr(own, 'asked', 0) + 1\n"
        "    return Topology.from_edges(n, edges(n) + [(0, 1 + own.asked)], 'x')",
        "two different graphs for the same arguments",
    ),
    "a round of another size": (
        "return Cycle('x', n, 2, 'x', lambda phase: build(Topology.from_edges(n + phase, edges(n + phase), 'x')))",
        "round 1: 9 nodes; expected 8",
    ),
    "a round that is none": ("return Cycle('x', n, 2, 'x', lambda phase: None)", "round 0: nothing; expected a Mixing"),
}


@pytest.mark.parametrize("kind", sorted(WRONG))
def test_a_graph_that_is_wrong_is_refused_by_the_name_of_its_function(kind: str, mine: Mine) -> None:
    body, said = WRONG[kind]
    module = mine(f"def own(n, seed):\n    {body}\n")
    with pytest.raises(ConfigError, match=rf"{module}:own.*{said}") as error:
        compose.plan(load_experiment(experiment(f"{module}:own")))
    assert "\n" not in str(error.value)
    assert error.value.advice


def test_the_order_in_which_rounds_are_asked_for_has_no_say(mine: Mine) -> None:
    module = mine(
        """
        def own(n, seed):
            chance = np.random.default_rng(seed)
            def make(phase):
                return build(Topology.from_edges(n, edges(n) + [(0, int(chance.integers(2, n - 1)))], "x"))
            return Cycle("x", n, 6, "x", make)
        """
    )
    with pytest.raises(ConfigError, match="two different graphs"):
        compose.plan(load_experiment(experiment(f"{module}:own")))


WEIGHTS = {
    "lost": ("return np.eye(topology.n) * 0.98", "the weights of row 0 sum to 0.98, not to 1"),
    "too small": ("return np.eye(3)", "3"),
    "not joined": ("return np.full((topology.n, topology.n), 1 / topology.n)", "mine|ring"),
    "words": ("return 'uniform'", "no weights"),
    "raises": ("raise KeyError('no')", "raised KeyError"),
    "another graph": ("return build(Topology.from_edges(4, edges(4), 'x'))", "weights of another graph"),
    "chance": (
        "own.a = getattr(own, 'a', 0) + 0.1\n"
        "    return np.eye(topology.n) * (1 - own.a) + own.a * build(topology).matrix()",
        "two different graphs",
    ),
}


@pytest.mark.parametrize("kind", sorted(WEIGHTS))
def test_weights_that_are_wrong_are_refused_by_the_name_of_their_function(kind: str, mine: Mine) -> None:
    body, said = WEIGHTS[kind]
    module = mine(f"def own(topology):\n    {body}\n")
    with pytest.raises(ConfigError, match=rf"{module}:own.*({said})"):
        compose.plan(load_experiment(experiment(weights=f"{module}:own")))


def test_rows_alone_are_enough_for_a_mean_and_not_for_an_algorithm_that_needs_both(mine: Mine) -> None:
    module = mine(
        """
        def plain(topology):
            A = np.eye(topology.n)
            for u, v in topology.edges:
                A[u, v] = A[v, u] = 1
            return A / A.sum(axis=1, keepdims=True)
        """
    )
    content = experiment("star", weights=f"{module}:plain")
    assert simulate(content).summary["status"] == "finished"
    with pytest.raises(ConfigError, match=rf"{module}:plain: gradient-tracking on 'star': the columns"):
        simulate({**content, "algorithm": {"name": "gradient-tracking"}})
    with pytest.raises(ConfigError, match=rf"{module}:plain: private gossip"):
        simulate({**experiment("complete", weights=f"{module}:plain"), "algorithm": {"private": True, "mode": "async"}})


def test_weights_beside_a_graph_that_brings_its_own_are_refused(mine: Mine) -> None:
    module = mine("def own(n, seed):\n    return build(Topology.from_edges(n, edges(n), 'x'))\n")
    with pytest.raises(ConfigError, match=f"{module}:own brings weights of its own"):
        simulate(experiment(f"{module}:own", weights="metropolis"))


def test_a_function_needs_to_know_how_many_peers_there_are(mine: Mine) -> None:
    module = mine("def own(n, seed):\n    return Topology.from_edges(n, edges(n), 'x')\n")
    content = experiment(f"{module}:own")
    del content["topology"]["n"]
    with pytest.raises(ConfigError, match="is a function of the number of peers"):
        simulate(content)


class Late:
    """A schedule that is wrong from round 9 on."""

    n, period = 4, 0

    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    def partners(self, node: int) -> list[int]:
        return [other for other in range(4) if other != node]

    def mixing(self, round: int) -> Any:
        return self.wrong if round >= 9 else build(resolve("ring", 4))


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_later_round_that_is_wrong_ends_the_run_by_its_number(engine: str) -> None:
    for wrong, said in ((None, "nothing"), (build(resolve("ring", 5)), "5 nodes; expected 4")):
        schedule: Any = Late(wrong)
        with pytest.raises(TrainingError, match=f"schedule, round 9: {said}"):
            simulate(experiment(), schedule=schedule, engine=engine)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schedule": 5}, "schedule: a int is no schedule: it has no n"),
        ({"mixing": [[1, 2], [3, 4]]}, "mixing: .*row 0 sum to 3"),
        ({"mixing": np.eye(2)}, "mixing: .*falls into 2 components"),
        ({"algorithm": 3}, "int has no method 'start'"),
        ({"mixing": np.full((2, 2), 0.5), "schedule": build(resolve("ring", 4))}, "both schedule and mixing"),
    ],
)
def test_objects_that_are_wrong_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate(experiment(), **given)


def test_what_was_given_in_python_is_not_found_by_its_name() -> None:
    for content, said in ((experiment("given"), "graph"), ({**experiment(), "algorithm": {"name": "given"}}, "algo")):
        with pytest.raises(ConfigError, match=f"the {said}.* was given in Python"):
            simulate(content)


# --- peers with other files -------------------------------------------------------------------------------------------


def test_peers_with_another_function_are_refused_by_its_name(tmp_path: Path) -> None:
    hellos = []
    for name, text in (("one", "def graph(): 1"), ("two", "def graph(): 2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(text)
        (tmp_path / name / "other.py").write_text("the same")
        code = codes_of(["mine:graph", "other:weights", "ring"], tmp_path / name)
        hellos.append(Hello("schema", f"experiment {name}", "1", code=code))
    refusal = refused(4, *hellos)
    assert refusal is not None
    assert (refusal.reason, "mine:graph" in refusal.text, "other:weights" in refusal.text) == (CODE, True, False)


def test_another_experiment_is_still_one_where_the_functions_are_the_same() -> None:
    ours = Hello("schema", "experiment", "1", code="mine:graph=abc")
    refusal = refused(4, replace(ours, experiment="another"), ours)
    assert refusal is not None
    assert refusal.reason == "experiment"


def test_what_a_function_gives_is_part_of_the_experiment(mine: Mine) -> None:
    """Also where it reads a file, and its source is the same."""
    module = mine(
        """
        def own(n, seed):
            extra = [tuple(map(int, line.split())) for line in Path("links.txt").read_text().splitlines()]
            return Topology.from_edges(n, edges(n) + extra, "x")

        def rare(topology):
            return build(topology, Path("rule.txt").read_text())
        """
    )

    def said(graph: str, weights: str | None = None) -> str:
        plan = compose.plan(load_experiment(experiment(graph, weights=weights)))
        return compose.hello_of(plan, "schema").experiment

    Path("links.txt").write_text("0 2\n")
    first = said(f"{module}:own")
    Path("links.txt").write_text("0 3\n")
    assert first != said(f"{module}:own")
    Path("rule.txt").write_text("lazy")
    first = said("ring", f"{module}:rare")
    Path("rule.txt").write_text("metropolis")
    assert first != said("ring", f"{module}:rare")


# --- what an algorithm needs ------------------------------------------------------------------------------------------


class Needing(DSGD):
    def __init__(self, **needs: Any) -> None:
        self.needs = Needs(**needs)


ONE_PEER = ("one-peer-exponential", None)
UNMET: dict[str, tuple[dict[str, Any], tuple[str, str | None], dict[str, Any], str]] = {
    "columns": ({"sums": "both"}, ("el-local:2", None), {}, "the columns of its weights do not sum to one"),
    "rows": ({"sums": "both"}, ("directed-exponential", "push"), {}, "rows"),
    "own_graph": ({"own_graph": True}, ("ring", None), {}, "has its own graph"),
    "constant": ({"constant": True}, ONE_PEER, {}, "changes by the round"),
    "symmetric": ({"symmetric": True}, ("directed-exponential", None), {}, "the same both ways"),
    "symmetric rounds": ({"symmetric": True}, ONE_PEER, {}, "round 0"),
    "lambda_n": ({"lambda_n": -1 / 3}, ("hypercube", "uniform"), {}, "smallest eigenvalue is above -0.333333"),
    "lambda_n at it": ({"lambda_n": -1 / 3}, ("circulant:1", "uniform"), {"n": 6}, "smallest eigenvalue"),
    "tree": ({"tree": True}, ("ring", None), {}, "has the cycle"),
    "directed tree": ({"tree": True}, ("directed-exponential", None), {}, "is none"),
    "plain_sgd": ({"plain_sgd": True}, ("ring", None), {"train": {"momentum": 0.9, "device": "cpu"}}, "plain SGD"),
    "weighs_alike": ({"weighs_alike": True}, ("ring", "metropolis"), {}, "counts all models alike"),
    "lossless": ({"lossless": True}, ("ring", None), {"faults": [{"kind": "drop", "probability": 0.1}]}, "a drop"),
    "linear": ({"linear": True}, ("ring", None), {"algorithm": {"combine": "median"}}, "no meaning but in a sum"),
}
MET: dict[str, tuple[dict[str, Any], tuple[str, str | None], dict[str, Any]]] = {
    "constant": ({"constant": True}, ("ring", None), {}),
    "symmetric": ({"symmetric": True}, ("random-matching", None), {}),
    "lambda_n": ({"lambda_n": -1 / 3}, ("ring", "lazy"), {}),
    "tree": ({"tree": True}, ("star", None), {}),
    "plain_sgd": ({"plain_sgd": True}, ("ring", None), {}),
    "lossless": ({"lossless": True}, ("ring", None), {"faults": [{"kind": "slow", "peers": [1], "factor": 2.0}]}),
}


@pytest.mark.parametrize("kind", sorted(UNMET))
def test_an_algorithm_without_what_it_needs_is_refused_before_anything_runs(kind: str) -> None:
    needs, (graph, weights), more, said = UNMET[kind]
    content = experiment(graph, weights=weights, **more)
    if kind == "plain_sgd":
        content["task"] = {"kind": "learning"}
    with pytest.raises(ConfigError, match=said) as error:
        simulate(content, algorithm=Needing(**needs))
    assert "Needing" in str(error.value)
    assert error.value.advice


@pytest.mark.parametrize("kind", sorted(MET))
def test_an_algorithm_that_has_what_it_needs_runs(kind: str) -> None:
    needs, (graph, weights), more = MET[kind]
    assert simulate(experiment(graph, 8, weights, **more), algorithm=Needing(**needs)).summary["status"] == "finished"


def test_every_need_has_a_case() -> None:
    tested = {field for needs, *_ in UNMET.values() for field in needs}
    assert tested == set(Needs.__dataclass_fields__) - {"constant_members", "elements"}  # of the model, not of a graph


@pytest.mark.parametrize("needs", [{"constant_members": True}, {"constant": True}, {"tree": True}, {"lambda_n": -0.3}])
def test_members_come_and_go_only_where_the_graph_may_change(needs: dict[str, Any]) -> None:
    plan: Any = compose.plan(load_experiment(experiment("path", weights="lazy")))
    check_open(plan)
    with pytest.raises(ConfigError, match="no peer can join or leave"):
        check_open(replace(plan, given=Needing(**needs)))


def test_a_tree_is_told_from_a_graph_with_a_cycle_by_the_cycle() -> None:
    joined = Topology.from_edges(7, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (3, 5)], "nearly")
    schedule: Schedule = build(joined)
    with pytest.raises(ConfigError, match=r"cycle ") as error:
        simulate(experiment(n=7), schedule=schedule, algorithm=Needing(tree=True))
    found = [int(node) for node in str(error.value).rpartition("cycle ")[2].split(" - ")]
    assert found[0] == found[-1]
    assert set(found) == {3, 4, 5}
    assert len(found) == 4


# --- one name, one thing ----------------------------------------------------------------------------------------------


def test_two_entries_of_one_name_are_refused() -> None:
    assert limits.table(("a", 1), ("b", 2)) == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="two entries are called 'a': 1 and 2"):
        limits.table(("a", 1), ("a", 2))
