"""The recipes of docs/design.md, section 9, followed: what they say to write is all that is needed.

That of a message is followed in tests/core/test_wire.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import fedgossip
from fedgossip.algorithms.federated import names as federated
from fedgossip.algorithms.federated.base import Federated
from fedgossip.algorithms.federated.fedavg import ServerSgd, Training
from fedgossip.algorithms.federated.means import Mean
from fedgossip.algorithms.gossip import names
from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.task import Job, Update
from fedgossip.topology.graphs import grammar
from fedgossip.topology.graphs.families import ring
from fedgossip.topology.graphs.graph import Topology

DESIGN = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
PROBLEM = {"kind": "quadratic", "dim": 3}


def test_every_recipe_has_at_most_ten_lines() -> None:
    section = DESIGN.split("\n## 9. How to add")[1]
    recipes = re.split(r"\n(?=\*\*)", section)[1:]
    assert len(recipes) == 15
    assert all(len(recipe.strip().splitlines()) <= 10 for recipe in recipes)


def test_a_gossip_algorithm_is_a_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "METHODS", {**names.METHODS, "another": names.Method(DSGD)})
    for module in ("fedgossip.experiment.checks", "fedgossip.plans.gossip.gossip"):
        monkeypatch.setattr(f"{module}.METHODS", names.METHODS)
    content = {"rounds": 5, "task": PROBLEM, "topology": {"graph": "ring", "n": 4}}
    run = fedgossip.simulate({**content, "algorithm": {"name": "another"}})
    assert run.digest == fedgossip.simulate(content).digest


def test_a_federated_algorithm_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(*, lr: float = 0.5) -> Federated:
        return Federated(Training(), Mean(), ServerSgd(lr))

    monkeypatch.setitem(federated.ALGORITHMS, "halved", halved)
    section = {"clients": 4, "secure": {"on": False}}
    halfway = fedgossip.simulate({"rounds": 3, "task": PROBLEM, "coordinator": {**section, "algorithm": "halved"}})
    options = {"algorithm": "fedavg", "options": {"lr": 0.5}}
    assert (
        halfway.digest
        == fedgossip.simulate({"rounds": 3, "task": PROBLEM, "coordinator": {**section, **options}}).digest
    )


def test_a_graph_is_a_function_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def chorded(request: grammar.Request) -> Topology:
        around = ring(request.size())
        across = [[i, i + around.n // 2] for i in range(around.n // 2)]
        return Topology(around.n, np.concatenate([around.edges, across]), "chorded")

    family = grammar.Family("chorded", "a ring, and each node joined to the one across", chorded)
    monkeypatch.setitem(grammar.FAMILIES, "chorded", family)
    assert fedgossip.resolve("chorded", 8).degrees().tolist() == [3] * 8


class Line:
    """A task of one's own: every peer comes nearer to its own number by a tenth of the way."""

    length, dtype, schema = 1, np.dtype(np.float64), "line"

    def initial(self, node: int) -> Vector:
        return frozen(np.zeros(1))

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [Update(frozen(0.1 * (job.node - job.vector)), 1, {"loss": 0.0}) for job in jobs]

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{"loss": float(abs(vector[0] - 1.5))} for vector in vectors]


def test_a_task_is_an_object() -> None:
    run = fedgossip.simulate({"rounds": 200, "topology": {"graph": "complete", "n": 4}}, task=Line())
    assert [float(x[0]) for x in run.vectors] == pytest.approx([1.5] * 4, abs=1e-6)
