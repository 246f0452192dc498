"""`fedgossip step`: what a person, or cron, types for a run whose messages are files of a folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import fit_sites
import pytest
from commands import finish, start, typed

from fedgossip.base.vectors import digest
from fedgossip.drivers.simulate import simulate
from fedgossip.net.endpoints import block, signed
from fedgossip.net.identity import Identity

pytestmark = pytest.mark.sockets  # starts a process

EXPERIMENT = """
rounds = 2
task = { kind = "quadratic", dim = 3, sigma = 0.1, placement = "random" }
"""
RING = '[topology]\nn = 3\ngraph = "ring"\n'
CLIENTS = "[coordinator]\nclients = 3\nmin_clients = 3\n"


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk's syncs take longer than all else; what they are for is tested with the kills."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def prepared(folder: Path, sections: str, n: int) -> Path:
    """Write the experiment, keys and endpoints of all, and make the shared folder."""
    (folder / "pilot.toml").write_text(EXPERIMENT + sections)
    blocks = []
    for node in range(n):
        identity = Identity.new()
        identity.save(folder / f"{node}.key")
        blocks.append(block(node, signed(identity, "")))
    (folder / "endpoints.toml").write_text("\n".join(blocks))
    shared = folder / "with space ü"
    shared.mkdir()
    return shared


def begin(folder: Path, shared: Path, node: int, command: tuple[str, ...], *more: str) -> None:
    words = [command[0], "pilot.toml", *command[1:], "--endpoints", "endpoints.toml", "--key", f"{node}.key"]
    said = typed([*words, "--out", f"out{node}", "--links", f"folder:{shared}", "--once", *more], folder)
    assert said.code == 0, said.err
    assert f"fedgossip step out{node}" in said.err


def vector(folder: Path, node: int) -> object:
    from safetensors.numpy import load_file

    return load_file(folder / f"out{node}" / "vector.safetensors")["vector"]


def step_all(folder: Path, nodes: range) -> None:
    for _ in range(30):
        said = [typed(["step", f"out{node}"], folder) for node in nodes]
        assert {one.code for one in said} == {0}, [one.err for one in said]
        if all("The run is over" in one.err for one in said):
            return
    raise AssertionError([one.err for one in said])


def test_peers_of_a_ring_go_on_by_steps(tmp_path: Path) -> None:
    shared = prepared(tmp_path, RING, 3)
    for node in range(3):
        begin(tmp_path, shared, node, ("peer", "--id", str(node)))
    step_all(tmp_path, range(3))
    found = digest([vector(tmp_path, node) for node in range(3)])  # type: ignore[misc]
    assert found == simulate(tmp_path / "pilot.toml").digest


def test_a_folder_of_somebody_else_chooses_no_command(tmp_path: Path) -> None:
    """Not one that names code, nor `join --yes` with the reader's own table; nor by another word in one's own."""
    shared = prepared(tmp_path, RING, 3)
    (tmp_path / "evil.py").write_text("open('RAN', 'w')\n")
    (tmp_path / "evil.toml").write_text('algorithm = { name = "evil:Alg" }\n' + EXPERIMENT + RING)
    begin(tmp_path, shared, 0, ("peer", "--id", "0"))
    known = ["--endpoints", "endpoints.toml", "--key", "0.key", "--links", f"folder:{shared}"]
    own = json.loads((tmp_path / "out0" / "step.json").read_text())
    for words in (
        ["peer", "evil.toml", "--id", "0", *known, "--out", "got"],
        ["join", "fg1-" + "a" * 40, "--yes", "--data", "csv:mine.csv?label=y"],
        [*own["words"], "--set", "algorithm.name=evil:Alg"],
    ):
        (tmp_path / "out0" / "step.json").write_text(json.dumps({**own, "words": words}))
        said = typed(["step", "out0"], tmp_path)
        assert said.code == 2 and "step.json: no command of yours on this machine: fedgossip " in said.err, said
        assert "type it with --once" in said.err and not (tmp_path / "RAN").exists()


def test_one_that_stays_and_one_that_steps_every_while_end_together(tmp_path: Path) -> None:
    """`--poll` in a process of its own, `fedgossip step --every` in this one."""
    shared = prepared(tmp_path, '[topology]\nn = 2\ngraph = "path"\n', 2)
    words = ["peer", "pilot.toml", "--id", "0", "--endpoints", "endpoints.toml", "--key", "0.key", "--out", "out0"]
    staying = start([*words, "--links", f"folder:{shared}", "--poll", "0.1"], tmp_path)
    begin(tmp_path, shared, 1, ("peer", "--id", "1"))
    said = typed(["step", "out1", "--every", "0.1s"], tmp_path)
    assert said.code == 0, said.err
    stayed = finish(staying)
    assert stayed.code == 0
    found = digest([vector(tmp_path, node) for node in range(2)])  # type: ignore[misc]
    assert found == simulate(tmp_path / "pilot.toml").digest
    assert "The run is over" in typed(["step", "out1"], tmp_path).err
    kept = (tmp_path / "out0" / "journal.bin").exists()  # where it ended before its last message was fetched
    assert kept == ("fedgossip step out0" in stayed.err)
    typed(["step", "out0"], tmp_path)
    assert "The run is over" in typed(["step", "out0"], tmp_path).err


def test_a_stick_that_is_not_there_is_a_line_and_every_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = prepared(tmp_path, '[topology]\nn = 2\ngraph = "path"\n', 2)
    for node in range(2):
        begin(tmp_path, shared, node, ("peer", "--id", str(node)))
    away = shared.rename(tmp_path / "unplugged")
    shared.mkdir()
    said = typed(["step", "out1"], tmp_path)
    assert said.code == 3 and "no file of this run exists there" in said.errors[0] and not list(shared.iterdir())
    waits = 0

    def sleep(_seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 2:
            shared.rmdir()
            away.rename(shared)
        typed(["step", "out0"], tmp_path)

    monkeypatch.setattr("fedgossip.cli.run.peer.time.sleep", sleep)
    said = typed(["step", "out1", "--every", "1h"], tmp_path)
    assert said.code == 0 and said.err.count("no file of this run exists there") == 2
    step_all(tmp_path, range(2))
    assert digest([vector(tmp_path, node) for node in range(2)]) == simulate(tmp_path / "pilot.toml").digest  # type: ignore[misc]


def test_a_usb_stick_between_three_hospitals_and_a_coordinator(tmp_path: Path) -> None:
    """Each machine has the folder while the stick is there: one at a time."""
    stick = prepared(tmp_path, CLIENTS, 4)
    assert typed(["privacy", "policy", "pilot.toml", "--endpoints", "endpoints.toml"], tmp_path).code == 0
    begin(tmp_path, stick, 3, ("coordinator",))
    for node in range(3):
        begin(tmp_path, stick, node, ("client", "--id", str(node)))
    step_all(tmp_path, range(4))
    assert digest([vector(tmp_path, 3)]) == simulate(tmp_path / "pilot.toml").digest  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["kaplan-meier", pytest.param("glm", marks=pytest.mark.long)])
def test_statistics_and_a_fit_of_five_sites_have_the_bytes_of_one_machine(name: str, tmp_path: Path) -> None:
    """And an evaluation, where a fit has a model."""
    for site in range(fit_sites.SITES):
        fit_sites.patients(tmp_path / f"site-{site}.csv", site)
    fit_sites.patients(tmp_path / "test.csv", 99)
    kind = '[task]\nkind = "regression"\n' if name == "kaplan-meier" else ""
    text = fit_sites.own_tables(name, fit_sites.QUERY[name], source=fit_sites.SOURCE[name], more=kind)
    (tmp_path / f"{name}.toml").write_text(text)
    assert typed(["data", "agree", f"{name}.toml"], tmp_path).code == 0
    assert typed(["fit", f"{name}.toml", "--to", "here"], tmp_path).code == 0
    if name == "glm":
        assert typed(["evaluate", "here", f"{name}.toml"], tmp_path).code == 0
    machines = [tmp_path / f"machine{node}" for node in range(fit_sites.SITES + 1)]
    keys = []
    for node, machine in enumerate(machines):
        machine.mkdir()
        for file in (f"{name}.toml", "test.csv", *([f"site-{node}.csv"] if node < fit_sites.SITES else [])):
            shutil.copy(tmp_path / file, machine)
        keys.append(typed(["keys", "new", "--id", str(node), "--client"], machine).out)
    for machine in machines:
        (machine / "endpoints.toml").write_text("\n".join(keys))
    result = "survival.json" if name == "kaplan-meier" else "fit.json"
    together(machines, "agreeing", ["data", "agree", f"{name}.toml"], f"{name}.json")
    together(machines, "fitting", ["fit", f"{name}.toml", "--to", "here"], f"here/{result}")
    files = [f"{name}.json", f"here/{result}"]
    if name == "glm":
        together(machines, "judging", ["evaluate", "here", f"{name}.toml"], "here/model/evaluation.json")
        files.append("here/model/evaluation.json")
    for file in files:
        assert {(machine / file).read_bytes() for machine in machines} == {(tmp_path / file).read_bytes()}, file


def together(machines: Sequence[Path], what: str, command: Sequence[str], result: str) -> None:
    """Type a command on all machines, with a folder of its own, and `step` until all have the result."""
    (machines[0].parent / what).mkdir()
    for node, machine in enumerate(machines):
        words = [*command, "--endpoints", "endpoints.toml", "--out", f"{what}-log", "--links", f"folder:../{what}"]
        said = typed([*words, *(["--id", str(node)] if node < fit_sites.SITES else []), "--once"], machine)
        assert said.code == 0, said.err
    for _ in range(80):
        if all((machine / result).exists() for machine in machines):
            break
        said_of = [typed(["step", f"{what}-log"], machine) for machine in machines]
        assert {one.code for one in said_of} == {0}, [one.err for one in said_of]
    for machine in machines:  # once more changes nothing
        assert typed(["step", f"{what}-log"], machine).code == 0
    paid = (machines[0] / "peer.key.spent").read_text().splitlines()
    assert len(paid) == len(set(paid)), "a step is no release"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["step", "nowhere"], "nowhere: no participant of a run by folder"),
        (["step", "out0", "--every", "soon"], "'soon' is no time"),
        (["peer", "pilot.toml", "--id", "0", "--endpoints", "endpoints.toml", "--once"], "--once is for a run over"),
        (["peer", "pilot.toml", "--id", "0", "--endpoints", "endpoints.toml", "--links", "box:x"], "neither left out"),
        (["host", "pilot.toml", "--links", "folder:smb://ann:sesame@nas/run"], "--links: a URL"),
        (["join", "-", "--links", "https://ann:sesame@cloud/run"], "--links: a URL"),
        (
            ["peer", "pilot.toml", "--id", "0", "--endpoints", "endpoints.toml", "--key", "0.key", "--once", "--links",
             "folder:gone", "--out", "o"],
            "gone: no such folder",
        ),
    ],
)  # fmt: skip
def test_each_mistake_has_its_line(tmp_path: Path, words: list[str], error: str) -> None:
    prepared(tmp_path, RING, 3)
    said = typed(words, tmp_path)
    assert said.code == 2
    assert error in said.errors[0] and "sesame" not in said.err
