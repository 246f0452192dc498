"""Real participants as actors of Ray: the bits of `run`, folders brought here, nothing of ours pickled or left behind.

Ray itself is 240 MB, more than what all tests need otherwise: it is not in the extra `dev`.  Without it a stand-in of
the few calls that are used runs the same actors in threads.
"""

from __future__ import annotations

import json
import os
import pickletools
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import in_process, start
from test_clusters import await_until, processes_of, written

from fedgossip.base.errors import ConfigError, NetworkError
from fedgossip.drivers.clusters import placing as ray_engine
from fedgossip.drivers.clusters import ray_cluster
from fedgossip.drivers.clusters.meeting import RAY, SLURM, Resources
from fedgossip.drivers.clusters.placing import run_placed
from fedgossip.drivers.clusters.ray_cluster import connected
from fedgossip.drivers.simulate import simulate
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.report.page import comparison, sections
from fedgossip.report.watch import follow

NOT_HERE = "Ray is not installed (240 MB): pip install 'fedgossip[cluster]'"


class ActorLost(Exception):
    """What the stand-in raises of an actor that was killed."""


class StandIn:
    """The calls of Ray that are used, in this process: each actor is an object with a thread of its own."""

    exceptions = SimpleNamespace(RayError=ActorLost, RayTaskError=type("RayTaskError", (ActorLost,), {}))

    def __init__(self, cpus: int) -> None:
        self.cpus, self.open, self.actors = cpus, True, []  # type: ignore[var-annotated]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cpus)}

    available_resources = cluster_resources

    def is_initialized(self) -> bool:
        return self.open

    def shutdown(self) -> None:
        self.open = False

    def remote(self, kind: type) -> Any:
        stand_in = self

        class Made:
            def options(self, **_: object) -> Made:
                return self

            def remote(self) -> Any:
                stand_in.actors.append(_Actor(kind()))
                return stand_in.actors[-1]

        return Made()

    def kill(self, actor: Any) -> None:
        actor.lost = True

    def wait(self, refs: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        found = wait_for(refs, timeout, FIRST_COMPLETED if num_returns < len(refs) else "ALL_COMPLETED")
        return [one for one in refs if one in found.done], [one for one in refs if one in found.not_done]

    def get(self, ref: Any, timeout: float | None = None) -> Any:
        return ref.result(timeout)


class _Actor:
    def __init__(self, inner: Any) -> None:
        self.inner, self.lost = inner, False
        self.thread = ThreadPoolExecutor(1)
        inner.host = lambda: "127.0.0.1"  # Ray says which

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            if self.lost:
                raise ActorLost("The actor died.")
            return getattr(self.inner, name)(*given)

        return SimpleNamespace(remote=lambda *given: self.thread.submit(call, *given))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    found = StandIn(4)
    monkeypatch.setattr(ray_engine, "connected", lambda address, cpus: found)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return found


def placed(folder: Path, n: int, rounds: int, **more: Any) -> Any:
    plan = compose.plan(load_experiment(written(folder, n=n, rounds=rounds)))
    return run_placed(plan, folder / "run", Resources(RAY), report=False, **more)


@pytest.mark.sockets
def test_actors_end_with_the_digest_of_the_simulator_and_their_folders_are_here(
    stand_in: StandIn, tmp_path: Path
) -> None:
    run = placed(tmp_path, 2, 4)
    assert run.summary["driver"] == "ray"
    assert run.summary["digest"] == simulate(tmp_path / "q.toml").summary["digest"]
    for node in range(2):
        here = tmp_path / "run" / "peers" / f"{node:02d}"
        assert json.loads((here / "ended.json").read_text())["status"] == "finished"
        assert (here / "model" / "weights.safetensors").exists()
    assert not stand_in.open and not list(tmp_path.glob("fedgossip-*"))  # nothing is left on the nodes


@pytest.mark.sockets
def test_a_launch_ends_with_words_for_people(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, rounds=1)
    said = in_process(["launch", "q.toml", "--on", "ray", "--out", "run"], tmp_path, monkeypatch, capsys)
    assert said.code == 0 and "2 peers, ring, 1 round, real processes, actors of Ray" in said.out, said
    assert "as real processes, actors of Ray" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("told", [follow.DRIVERS, sections.DRIVERS, comparison.DRIVERS])
def test_runs_of_every_engine_are_told_in_words(told: Mapping[str, str]) -> None:
    assert told.keys() == {"sim", "stacked", "local", "peers", SLURM, RAY}


def test_a_cluster_that_does_not_start_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_given: object) -> None:
        raise Exception("The current node timed out during startup.")  # as Ray does

    monkeypatch.setattr(ray_cluster, "needed", lambda *_: SimpleNamespace(init=init))
    with pytest.raises(NetworkError, match="does not start on this machine: The current node timed out"):
        connected("local")


@pytest.mark.long
@pytest.mark.sockets
def test_an_actor_that_is_lost_has_died_and_the_others_go_on(stand_in: StandIn, tmp_path: Path) -> None:
    """Its process says goodbye, which nobody brings here any more."""
    seen: list[object] = []

    def watch(row: object) -> None:
        seen.append(row)
        if len(seen) == 20:
            stand_in.actors[2].lost = True
            stand_in.actors[2].inner._child.ask()

    run = placed(tmp_path, 3, 400, watch=watch)
    assert stand_in.actors[2].inner._child._process.wait(20) == 130
    assert run.summary["events"]["died"] == 1 and run.summary["status"] == "partial"
    assert processes_of(tmp_path) == []


@pytest.mark.long
@pytest.mark.sockets
def test_a_coordinator_and_its_clients_under_a_secure_sum_are_placed_too(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "federated.toml"
    file.write_text('rounds = 3\ntask = { kind = "quadratic", dim = 64 }\ncoordinator = { clients = 3 }\n')
    run = run_placed(compose.plan(load_experiment(file)), tmp_path / "run", Resources(RAY), report=False)
    assert run.summary["status"] == "finished" and len(stand_in.actors) == 4
    assert run.summary["digest"] == simulate(file).summary["digest"]
    assert (tmp_path / "run" / "peers" / "03" / "audit.jsonl").exists()


@pytest.mark.sockets
def test_participants_that_do_not_listen_in_time_are_told_and_ended(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = ["sleep", "100"]
    monkeypatch.setattr(ray_cluster, "start_participant", lambda *_, **__: subprocess.Popen(idle))
    plan = compose.plan(load_experiment(written(tmp_path)))
    with pytest.raises(NetworkError, match=r"peers \[0, 1\] did not start"):
        run_placed(plan, tmp_path / "run", Resources(RAY, start_seconds=1.0), report=False)
    assert [actor.inner._child.code for actor in stand_in.actors] == [-signal.SIGTERM] * 2
    assert processes_of(tmp_path) == [] and not list(tmp_path.glob("fedgossip-*"))


def test_more_participants_than_processors_are_refused_before_anything_starts(
    stand_in: StandIn, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="5 participants of 1 processors each: the cluster has 4"):
        placed(tmp_path, 5, 4)
    assert not (tmp_path / "run").exists() and not stand_in.actors and not stand_in.open
    plan = compose.plan(load_experiment(written(tmp_path)))
    with pytest.raises(ConfigError, match=r"2 participants of 0.5 GPUs each: the cluster has 0"):
        run_placed(plan, tmp_path / "run", Resources(RAY, gpus=0.5))


@pytest.mark.sockets
def test_a_cluster_that_does_not_answer_is_told_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself waits for minutes.  Nobody there, one who says nothing, one who speaks another language."""
    monkeypatch.setattr("fedgossip.drivers.clusters.ray_cluster.ANSWER_SECONDS", 0.3)
    monkeypatch.setattr("fedgossip.drivers.clusters.ray_cluster.needed", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(NetworkError, match="no answer") as told:
            connected(f"127.0.0.1:{port}")
        assert told.value.exit_code == 3

        def speak() -> None:
            while True:
                line, _ = server.accept()
                with line:
                    line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    if line.recv(100).endswith(b"end"):
                        return

        speaking = threading.Thread(target=speak, daemon=True)
        speaking.start()
        with pytest.raises(NetworkError, match="another server answers there"):
            connected(f"127.0.0.1:{port}")
        with socket.create_connection(("127.0.0.1", port)) as last:
            last.sendall(b"end")
        speaking.join(5)
    with pytest.raises(NetworkError, match="refused"):
        connected(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "ray", "--partition", "gpu"], "--partition goes with --on slurm"),
        (["--address", "local"], "--address goes with --on ray"),
        (["--on", "ray", "--detach"], "--detach goes with --on slurm"),
    ],
)
def test_options_of_another_engine_are_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path)
    found = in_process(["launch", "q.toml", *words, "--out", "run"], tmp_path, monkeypatch, capsys)
    assert found.code == 2 and said in found.err, found.err


# --- a cluster of two processors, started here ------------------------------------------------------------------

CLUSTER = """
import sys, ray
made = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
print(made.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster whose nodes put their folders into `tmp_path`."""
    pytest.importorskip("ray", reason=NOT_HERE)
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "5eed" * 16}.items():
        monkeypatch.setenv(name, value)
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "RAY_TMPDIR": "/tmp",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    head = subprocess.Popen([sys.executable, "-c", CLUSTER], env=environment, **pipes)  # type: ignore[call-overload]
    try:
        yield head.stdout.readline().strip()
    finally:
        head.communicate(timeout=60)


LAUNCH = ["launch", "q.toml", "--on", "ray", "--out", "run", "--no-report", "--json", "--address"]


@pytest.mark.sockets
def test_a_cluster_of_ray_ends_with_the_digest_of_run_and_pickles_the_name_of_the_actor_alone(
    cluster: str, tmp_path: Path
) -> None:
    written(tmp_path)
    running = start([*LAUNCH, cluster], tmp_path)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    told = json.loads(out)
    assert told["digest"] == simulate(tmp_path / "q.toml").summary["digest"] and told["driver"] == "ray", err
    written(tmp_path, n=3)
    refused = start([*LAUNCH[:4], "--out", "other", "--address", cluster], tmp_path)
    _, err = refused.communicate(timeout=300)
    assert refused.returncode == 2 and "the cluster has 2" in err and not (tmp_path / "other").exists()
    from ray import cloudpickle

    pickled = cloudpickle.dumps(ray_engine.RayParticipant)
    named = [arg for _, arg, _ in pickletools.genops(pickled) if isinstance(arg, str)]
    assert named == ["fedgossip.drivers.clusters.ray_cluster", "RayParticipant"] and len(pickled) < 100


@pytest.mark.long
@pytest.mark.sockets
def test_a_killed_actor_has_died_and_ctrl_c_leaves_no_process(cluster: str, tmp_path: Path) -> None:
    written(tmp_path, rounds=100_000)
    running = start([*LAUNCH, cluster], tmp_path)
    record = tmp_path / "run" / "metrics.jsonl"
    await_until(lambda: record.exists() and record.read_bytes().count(b"\n") > 30, running)
    (one, other) = sorted(participants(tmp_path))
    actor = int(Path(f"/proc/{one}/stat").read_text().split()[3])
    os.kill(actor, signal.SIGKILL)
    await_until(lambda: one not in processes_of(tmp_path), running)
    before = record.stat().st_size
    await_until(lambda: record.stat().st_size > before, running)  # the other goes on
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=300)
    assert running.returncode == 130 and "fedgossip launch --resume run" in err, err
    assert other not in processes_of(tmp_path) and participants(tmp_path) == []
    resumed = start(["launch", "--resume", "run", "--no-report", "--json", "--set", "rounds=100000"], tmp_path)
    size = record.stat().st_size
    await_until(lambda: record.stat().st_size > size + 1000, resumed)
    resumed.send_signal(signal.SIGINT)
    _, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 130, err
    until = time.monotonic() + 20
    while processes_of(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert participants(tmp_path) == []


def participants(folder: Path) -> list[int]:
    """The processes of participants, by the folder on their node."""
    return [pid for pid in processes_of(folder) if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.sockets  # its import asks the system whether it has IPv6
def test_the_stand_in_is_asked_for_nothing_that_ray_lacks() -> None:
    ray = pytest.importorskip("ray", reason=NOT_HERE)
    names = [name for name in vars(StandIn) if not name.startswith("_")]
    assert not [name for name in names if not hasattr(ray, name)]
    assert issubclass(ray.exceptions.RayTaskError, ray.exceptions.RayError)
