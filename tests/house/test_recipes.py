"""The recipes of docs/design.md, section 7, followed: what they say to write is all that is needed.

tests/core/test_wire.py follows that of a message, tests/house/test_third_kind.py that of a kind of run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

import fedgossip
from fedgossip.algorithms.codecs import names as codecs
from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout, as_bytes, of_bytes
from fedgossip.algorithms.federated import names as federated
from fedgossip.algorithms.federated.base import Aggregate, Federated, Vectors
from fedgossip.algorithms.federated.fedavg import ServerModel, ServerSgd, Training
from fedgossip.algorithms.federated.sums import Mean
from fedgossip.algorithms.gossip import names
from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen, linear
from fedgossip.cli import COMMANDS, cli
from fedgossip.core.task import Job, Update
from fedgossip.data import bundled
from fedgossip.data.data import NOTHING, SOURCES, DataSource, load
from fedgossip.data.dataset import from_arrays
from fedgossip.runs.run_directory import Run
from fedgossip.topology.graphs import grammar
from fedgossip.topology.graphs.families import ring
from fedgossip.topology.graphs.graph import Topology

PROBLEM = {"kind": "quadratic", "dim": 3}


def test_a_gossip_algorithm_is_a_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "METHODS", {**names.METHODS, "another": names.Method(DSGD)})
    for module in ("fedgossip.experiment.checks", "fedgossip.plans.gossip.gossip"):
        monkeypatch.setattr(f"{module}.METHODS", names.METHODS)
    content = {"rounds": 5, "task": PROBLEM, "topology": {"graph": "ring", "n": 4}}
    run = fedgossip.simulate({**content, "algorithm": {"name": "another"}})
    assert run.digest == fedgossip.simulate(content).digest


def federated_run(algorithm: str, **more: Any) -> Run:
    section = {"clients": 4, "secure": {"on": False}, "algorithm": algorithm, **more}
    return fedgossip.simulate({"rounds": 3, "task": PROBLEM, "coordinator": section})


def test_a_federated_algorithm_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(*, lr: float = 0.5) -> Federated:
        return Federated(Training(), Mean(), ServerSgd(lr))

    monkeypatch.setitem(federated.ALGORITHMS, "halved", halved)
    assert federated_run("halved").digest == federated_run("fedavg", options={"lr": 0.5}).digest


@dataclass(frozen=True)
class Halfway:
    """A server rule: half of the mean update."""

    def start(self, x: Vector) -> ServerModel:
        return ServerModel(x)

    def broadcast(self, state: ServerModel) -> Vectors:
        return (state.x,)

    def step(self, state: ServerModel, aggregate: Aggregate) -> ServerModel:
        return ServerModel(linear((1, state.x), (0.5, aggregate.vectors[0])))


def test_a_server_rule_is_a_class_with_three_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(federated.ALGORITHMS, "halfway", lambda: Federated(Training(), Mean(), Halfway()))
    assert federated_run("halfway").digest == federated_run("fedavg", options={"lr": 0.5}).digest


class Whole(Codec):
    """All bytes of a vector."""

    def contraction(self, layout: VectorLayout) -> float:
        return 1.0

    def size(self, layout: VectorLayout, round: int) -> int:
        return layout.length * layout.itemsize

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:
        return as_bytes(vector)

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:
        return of_bytes(payload, layout.dtype)


def test_a_codec_is_a_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "CODECS", {**codecs.CODECS, "whole": lambda name, _: Whole(name)})
    ring_of_three = {"workers": 3, "method": "ring"}
    content = {"rounds": 3, "task": PROBLEM, "train": {"lr": 0.1}}
    run = fedgossip.simulate({**content, "parallel": {**ring_of_three, "codec": "whole"}})
    plain = fedgossip.simulate({**content, "parallel": ring_of_three})
    assert run.vectors[0] == pytest.approx(plain.vectors[0], abs=1e-6)


def test_a_data_source_is_a_function_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "threes", lambda: from_arrays("threes", np.eye(3), [0, 1, 2]), raising=False)
    monkeypatch.setitem(SOURCES, "threes", DataSource("threes", "three points", "bundled:threes", NOTHING))
    assert load("threes").classes == 3
    with pytest.raises(ConfigError, match="threes takes nothing after its name"):
        load("threes:PATH")


def test_a_data_source_without_a_change_is_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "threes.py").write_text("import numpy as np\ndef data():\n    return np.eye(3), [0, 1, 2]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("threes:data").classes == 3


def test_a_command_is_a_module_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def greet() -> None:
        click.echo("there")

    monkeypatch.setitem(COMMANDS, "greet", (__name__, "Greet."))
    monkeypatch.setitem(globals(), "greet", greet)
    assert "Greet." in CliRunner().invoke(cli, ["--help"]).output
    assert CliRunner().invoke(cli, ["greet"]).output == "there\n"


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
