"""A run of training loops by invite: everybody's own script takes part, and none of them travels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import in_process
from test_host_join import People

HANGS_SECONDS = 240.0
"""Four processes that import torch begin in half a minute on a busy machine."""

LOOPS = """
rounds = 3
task.kind = "loop"
train.local_steps = 2
topology = { graph = "complete", n = 2 }
"""
SCRIPT = """
import sys
import torch
import fedgossip

torch.manual_seed(0)
model = torch.nn.Linear(3, {width})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
peer = fedgossip.join(model, optimizer)
draw = torch.Generator().manual_seed(peer.node)
while not peer.done:
    loss = model(torch.randn(8, 3, generator=draw)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    peer.step(examples=8)
peer.close()
print("weights", sys.argv[1], [round(value, 6) for value in model.weight.flatten().tolist()])
"""


@pytest.fixture
def people(tmp_path: Path, no_compiler: None) -> Iterator[People]:
    made = People(tmp_path, HANGS_SECONDS)
    yield made
    made.stop()


def scripts(people: People, width: int = 1, theirs: int = 1) -> None:
    (people.home("host") / "experiment.toml").write_text(LOOPS)
    (people.home("host") / "train.py").write_text(SCRIPT.format(width=width))
    (people.home("b") / "mine.py").write_text(SCRIPT.format(width=theirs))


@pytest.mark.sockets
def test_everybodys_own_script_takes_part_by_an_invite(people: People) -> None:
    scripts(people)
    invite = people.host("--script", "train.py anna")
    people.join("b", invite, "--script", "mine.py bob")
    assert [people.ended(who) for who in ("host", "b")] == [0, 0], people.said("b") + people.said("host")
    said = people.said("b")
    assert "mine.py bob: your own, not shown to others" in said and "no data" in said
    weights = [people.said(who, "out").splitlines()[-1].partition("[")[2] for who in ("host", "b")]
    assert weights[0] == weights[1]  # on a graph of two both have the mean after the last round
    assert "weights anna" in people.said("host", "out") and "weights bob" in people.said("b", "out")
    assert "The script is over; everything is in joined/" in people.said("b")
    assert not [*people.home("b").rglob("train.py")] and not [*people.home("host").rglob("mine.py")]


@pytest.mark.sockets
@pytest.mark.long
def test_a_coordinator_leads_loops_that_join_by_an_invite(people: People) -> None:
    scripts(people)
    text = 'rounds = 3\ntask.kind = "loop"\ntrain.local_steps = 2\ncoordinator.clients = 3\n'
    (people.home("host") / "experiment.toml").write_text(text)
    invite = people.host("--script", "train.py anna")
    for who in "bcd":
        (people.home(who) / "mine.py").write_text(SCRIPT.format(width=1))
        people.join(who, invite, "--script", "mine.py x")
    assert [people.ended(who) for who in ("host", *"bcd")] == [0] * 4, people.said("host") + people.said("b")
    weights = [people.said(who, "out").splitlines()[-1].partition("[")[2] for who in "bcd"]
    assert weights[0] == weights[1] == weights[2]  # the model that the coordinator has sent last


@pytest.mark.sockets
@pytest.mark.long
def test_a_script_with_another_model_is_refused_and_says_so(people: People) -> None:
    scripts(people, theirs=2)
    people.join("b", people.host("--script", "train.py x"), "--script", "mine.py x")
    assert people.ended("b") != 0 and people.ended("host") != 0
    assert "another model" in people.said("b") or "model" in people.said("b").splitlines()[-2], people.said("b")


@pytest.mark.parametrize(
    ("text", "words", "error"),
    [
        (LOOPS, (), "each participant has a training loop"),
        (LOOPS, ("--script", "nowhere.py"), "nowhere.py: no such file"),
        (LOOPS.replace('task.kind = "loop"', 'task.kind = "averaging"'), ("--script", "train.py"), "of no loops"),
        ('task.kind = "loop"\ncoordinator.clients = 3\n', ("--script", "train.py"), "ended before it joined"),
    ],
    ids=["none", "no file", "no loops", "coordinator"],
)
def test_a_script_that_does_not_fit_the_run_is_a_line_and_an_advice(
    text: str, words: tuple[str, ...], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "experiment.toml").write_text(text)
    (tmp_path / "train.py").write_text("import fedgossip\n")
    said = in_process(["host", "experiment.toml", *words], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and error in said.errors[0] and len(said.err.splitlines()) == 2 and not said.out, said.err
