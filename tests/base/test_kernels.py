"""Which kernels torch computes with is settled before torch is loaded, in every kind of process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import threaded  # noqa: F401 this process has a thread more than its first, too
from kernels_seen import FOLDER

from fedgossip import load_experiment, simulate
from fedgossip.base import kernels
from fedgossip.base.errors import ConfigError
from fedgossip.cli.run.progress import event_text, federated_text
from fedgossip.core.records import EventRow
from fedgossip.drivers import peer_processes
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.peer_processes import PeerProcesses
from fedgossip.learning.own_loop.global_state import GlobalState
from fedgossip.learning.settings import TrainSettings
from fedgossip.plans import compose

x86 = pytest.mark.skipif(platform.machine() not in kernels.X86, reason="torch has MKL on x86-64 alone")
AUTO, COMPATIBLE = 2, 3

AVERAGING = {
    "rounds": 3,
    "topology": {"graph": "ring", "n": 4},
    "task": {"kind": "averaging"},
    "algorithm": {"start_timeout": 60.0},
}


def python(code: str, **environment: str) -> str:
    """What a program of a user's prints, who has set this and nothing else."""
    clean = {name: value for name, value in os.environ.items() if name not in kernels.PORTABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr == ""
    return done.stdout


# --- one place -------------------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_the_import_asks_for_reproducible_kernels_before_torch_is_there() -> None:
    code = "import sys, os, fedgossip; print(os.environ['MKL_CBWR'], 'torch' in sys.modules)"
    assert python(code).split() == ["AUTO", "False"]


@pytest.mark.sockets
def test_what_the_user_has_set_stays() -> None:
    code = "from fedgossip import kernels; print(kernels.mode())"
    assert python(code, MKL_CBWR="AVX2,STRICT").strip() == "MKL_CBWR=AVX2,STRICT"
    assert python(code, **kernels.PORTABLE).strip() == "portable"


@pytest.mark.sockets
@x86
def test_torch_that_was_imported_first_and_has_computed_nothing_is_in_time() -> None:
    code = "import torch, fedgossip; from fedgossip import kernels; print(kernels.mode(), kernels.mkl_mode())"
    assert python(code).split() in (["reproducible", str(AUTO)], ["as", "they", "come", "None"])


@x86
def test_these_tests_compute_with_them() -> None:
    assert kernels.mkl_mode() in (AUTO, None)


def seen_in(folder: Path) -> set[tuple[str, ...]]:
    return {tuple(path.read_text().split()) for path in folder.iterdir()}


def local_run(folder: Path, *, portable: bool) -> tuple[str, set[tuple[str, ...]]]:
    """Run two peers from a program that has set nothing; return what it printed, and the kernels of its peers: forked
    from the warmed parent, which has loaded torch before a peer knows its experiment."""
    (folder / "seen").mkdir()
    experiment = {
        "rounds": 1,
        "model": {"source": "kernels_seen:model"},
        "train": {"device": "cpu", "local_steps": 1, "portable": portable},
        "topology": {"graph": "path", "n": 2},
        "algorithm": {"start_timeout": 60.0},
    }
    code = f"import fedgossip; fedgossip.run_local({experiment!r}, {str(folder / 'run')!r}, report=False)"
    path = os.pathsep.join(part for part in sys.path if part)
    printed = python(code, PYTHONPATH=path, **{FOLDER: str(folder / "seen")})
    return printed, {words[1:] for words in seen_in(folder / "seen") if words[0] == "fork_server"}


@pytest.mark.sockets
@x86
@pytest.mark.parametrize("portable", [pytest.param(False, marks=pytest.mark.long), True])
def test_every_peer_of_a_local_run_computes_with_its_kernels_and_no_warning_is_seen(portable, tmp_path) -> None:
    printed, peers = local_run(tmp_path, portable=portable)
    assert printed == ""
    assert not any((folder / "log.txt").read_text() for folder in (tmp_path / "run" / "peers").iterdir())
    mode, number = ("portable", COMPATIBLE) if portable else ("reproducible", AUTO)
    assert len(peers) == 1
    (found,) = peers
    assert found[0] == mode and found[1] in (str(number), "None")
    assert found[2] == "AVX2" or not portable


@pytest.mark.sockets
@x86
def test_the_processes_of_a_team_compute_with_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.delenv(kernels.MKL)  # a program that has loaded torch first: its ranks are better off
    how = {"device": "cpu", "local_steps": 1, "processes": 2}
    experiment = {"model": {"source": "kernels_seen:model"}, "train": how, "topology": {"graph": "path", "n": 2}}
    simulate({"rounds": 1, **experiment})
    ranks = {words[1:3] for words in seen_in(tmp_path) if words[0] == "worker"}
    assert ranks <= {("reproducible", str(AUTO)), ("reproducible", "None")} and ranks


LATE = """
import json, torch
torch.ones(2, 2) @ torch.ones(2, 2)
import fedgossip
from fedgossip.cli.doctor import _kernels
from fedgossip.plans import compose
how = {"rounds": 1, "train": {"device": "cpu", "local_steps": 1}, "topology": {"graph": "ring", "n": 3}}
plan = compose.plan(fedgossip.load_experiment(how))
try:
    fedgossip.simulate(how, overrides=["train.portable=true"])
except fedgossip.ConfigError as error:
    refused = [str(error), error.advice]
print(json.dumps([fedgossip.simulate(how).summary["kernels"], list(plan.banner), _kernels(), refused]))
"""


@pytest.mark.sockets
@x86
def test_where_torch_has_computed_first_the_head_the_summary_and_the_doctor_say_so_and_portable_is_refused() -> None:
    summary, head, (fine, doctor), (refused, advice) = json.loads(python(LATE))
    assert summary == "as they come"
    assert "torch had computed before fedgossip was imported" in head[0] and head[0] in doctor and not fine
    assert "torch was loaded with other kernels" in refused
    assert "MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=avx2" in advice


@pytest.mark.parametrize(("given", "threads"), [(None, 1), ("3", 3), ("4,2", 4), ("0", 1), ("many", 1)])
def test_launched_and_simulated_loops_have_the_threads_of_the_environment_else_one(
    given: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert GlobalState.make_initial(0, 0).threads == threads


@pytest.mark.sockets
def test_the_kernels_are_asked_for_when_the_run_is_planned() -> None:
    """Before anything else of the run, for an account of privacy may load torch; and anew for another run."""
    code = (
        "import os, sys, fedgossip; from fedgossip.plans import compose\n"
        "for portable in (False, True, False):\n"
        "    how = {'train': {'portable': portable}, 'topology': {'graph': 'ring', 'n': 3}}\n"
        "    compose.plan(fedgossip.load_experiment(how))\n"
        "    print(os.environ['MKL_CBWR'], os.environ.get('ATEN_CPU_CAPABILITY'), 'torch' in sys.modules)"
    )
    usual, portable = ["AUTO", "None", "False"], ["COMPATIBLE", "avx2", "False"]
    assert python(code).split() == usual + portable + usual


# --- what a run says of them -----------------------------------------------------------------------------------------


def test_the_summary_names_the_processor_and_the_kernels() -> None:
    learned = {"rounds": 1, "train": {"device": "cpu", "local_steps": 1}, "topology": {"graph": "ring", "n": 3}}
    summary = simulate(learned).summary
    assert summary["processor"] == kernels.processor() and summary["kernels"] == kernels.mode()
    if Path("/proc/cpuinfo").exists() and platform.machine() in kernels.X86:
        assert "model name" in Path("/proc/cpuinfo").read_text() and ", family " in summary["processor"]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"device": "cuda"}, "device = 'cuda'"),
        ({"device": "mps"}, "device = 'mps'"),
        ({"threads": 2}, "threads = 2"),
        ({"compile": True}, "compile = True"),
        ({"channels_last": True}, "channels_last = True"),
        ({"precision": "bfloat16"}, "precision = 'bfloat16'"),
        ({"processes": 2}, "processes = 2"),
    ],
)
def test_what_rounds_otherwise_on_another_machine_is_refused_for_portable_runs(how, what) -> None:
    with pytest.raises(ConfigError, match=f"portable = true, and {what}") as refused:
        TrainSettings(portable=True, **how)
    assert refused.value.advice


def test_a_portable_run_takes_the_cpu_where_auto_would_take_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from fedgossip.learning.one_model import devices, sharing

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "settle", lambda: None)  # of this process
    device, _ = sharing.settle(TrainSettings(portable=True), torch.nn.Linear(2, 2), "schema")
    assert device == torch.device("cpu")


def test_peers_agree_on_whether_a_run_is_portable_and_runs_of_before_keep_their_hash() -> None:
    def hashed(**train: object) -> str:
        found = {"topology": {"graph": "ring", "n": 3}, "train": {"device": "cpu", **train}}
        return compose.hello_of(compose.plan(load_experiment(found)), "schema").experiment

    try:
        assert hashed() == hashed(portable=False) != hashed(portable=True)
    finally:
        kernels.prefer(portable=False)


def test_a_checkpoint_of_before_the_option_goes_on() -> None:
    from fedgossip.runs.checkpoints import differences

    now = load_experiment({"topology": {"graph": "ring", "n": 3}}).to_dict()
    was = {**now, "train": {key: value for key, value in now["train"].items() if key != "portable"}}
    assert differences(was, now) == []
    assert differences(was, {**now, "train": {**now["train"], "portable": True}}) == [
        "train.portable: was not there, is true"
    ]


def test_processors_matter_only_where_they_decide_the_bits() -> None:
    def mark(node: int, **more: object) -> int:
        return compose.processor_of(compose.plan(load_experiment({"train": {"device": "cpu"}, **more})), node)

    ring = {"topology": {"graph": "ring", "n": 3}}
    try:
        assert mark(0, **ring) == kernels.processor_mark() != 0
        assert mark(0, **ring, task={"kind": "averaging"}) == 0
        assert mark(3, coordinator={"clients": 3, "secure": {"on": False}}) == 0  # the coordinator trains nothing
        assert mark(0, topology=ring["topology"], train={"portable": True}) == 0
    finally:
        kernels.prefer(portable=False)


@pytest.mark.parametrize(("text", "who"), [(event_text, "peer 2"), (federated_text, "client 2")])
def test_processors_that_differ_are_told_in_one_line_with_the_remedy(text, who) -> None:
    said = text(EventRow(0, 1, "unlike", 2))
    assert said.startswith(f"{who} has another kind of processor") and "train.portable" in said and "\n" not in said


# --- how local peers come to be --------------------------------------------------------------------------------------


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


@pytest.mark.sockets
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads cannot be counted here")
@pytest.mark.parametrize("modules", [("fedgossip.drivers.peer",), ("fedgossip.drivers.peer", "threaded")])
def test_a_peer_is_forked_only_while_there_is_one_thread(
    modules: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From Python 3.12 on a fork of several threads is a DeprecationWarning; here every warning is an error."""
    monkeypatch.setattr(peer_processes, "NUMERIC", modules)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    plan = compose.plan(load_experiment(AVERAGING))
    seen: list[str] = []
    with PeerProcesses(learning=False) as family:
        finished = run_local_plan(
            plan, tmp_path / "run", family=family, report=False, watch=lambda _: seen.extend(_commands(family))
        )
    assert any('{"node"' in words for words in seen) == ("threaded" in modules)
    assert finished.digest == simulate(AVERAGING).digest
    assert "Warning" not in capfd.readouterr().err


def _commands(family: PeerProcesses) -> list[str]:
    found = []
    for pid in family.pids.values():
        try:
            found.append(command(pid))
        except OSError:  # it has ended
            continue
    return found
