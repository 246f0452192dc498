"""Participants placed by a Slurm of one node, which the test starts from Debian's packages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import alive, free_ports, in_process, start, wait_until
from test_clusters import await_until, child_of, processes_of, written

pytestmark = [pytest.mark.sockets, pytest.mark.long, pytest.mark.root]

DAEMONS = ("munged", "slurmctld", "slurmd")
SLOTS = 6
"""Processors that the node is said to have."""

CONFIGURATION = """
ClusterName=fedgossip
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={slots} State=UNKNOWN
PartitionName=desk Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


APART = 'mount --make-rprivate / && mount -t tmpfs none "$0" && exec "$@"'
"""The shell's words that start a program which has a disk of its own at a folder."""


@pytest.fixture
def slurm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Slurm of this machine alone, under /tmp, for a socket's path is short; its commands find it by SLURM_CONF.

    With the parameter "apart" its node has a disk of its own where the test's folder is.
    """
    away = ["unshare", "--mount", "sh", "-c", APART, str(tmp_path)] if hasattr(request, "param") else []
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if missing := [name for name in (*DAEMONS, "sbatch", "srun") if shutil.which(name) is None]:
        pytest.skip(f"needs slurm-wlm and munge of Debian: no {', '.join(missing)}")
    if os.geteuid():
        pytest.skip("needs root, as which slurmd runs")
    folder = Path("/tmp") / f"fedgossip-slurm-{os.getpid()}"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    control, node = free_ports(2)
    host = socket.gethostname().partition(".")[0]
    text = CONFIGURATION.format(host=host, control=control, node=node, folder=folder, slots=SLOTS)
    (folder / "slurm.conf").write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    munged = [
        "munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed", "--log-file=/dev/null",
    ]  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []
    with (folder / "log").open("wb") as log:
        try:
            running.append(subprocess.Popen(munged, stdout=log, stderr=log))
            wait_until((folder / "munge.socket").exists, 20, "munged")
            for words in (["slurmctld", "-D", "-c"], [*away, "slurmd", "-D", "-N", host]):
                running.append(subprocess.Popen(words, stdout=log, stderr=log))
            wait_until(idle, 60, f"a node that is idle; {folder}/log")
            yield folder
        finally:
            for process in reversed(running):
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            shutil.rmtree(folder)


def idle() -> bool:
    told = subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True, check=False)
    return told.returncode == 0 and told.stdout.split() == ["idle"]


LAUNCH = ["launch", "q.toml", "--on", "slurm", "--partition", "desk", "--out", "run", "--no-report"]


def test_tasks_of_a_real_slurm_end_with_the_digest_of_the_simulator(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, n=3)
    placed = start([*LAUNCH, "--json"], tmp_path)
    out, err = placed.communicate(timeout=300)
    assert placed.returncode == 0, err
    simulated = in_process(["run", "q.toml", "--json", "--out", "sim", "--no-report"], tmp_path, monkeypatch, capsys)
    told = json.loads(out)
    assert told["digest"] == json.loads(simulated.out)["digest"] and told["driver"] == "slurm"
    wait_until(idle, 60, "the job is over for Slurm too")
    assert processes_of(tmp_path / "run") == []


def test_a_task_that_is_killed_has_died_and_the_others_go_on(slurm: Path, tmp_path: Path) -> None:
    written(tmp_path, n=4, rounds=3000)
    placed = start([*LAUNCH, "--json"], tmp_path)
    record = tmp_path / "run" / "metrics.jsonl"
    await_until(lambda: record.exists() and record.read_bytes().count(b"\n") > 30, placed)
    os.kill(child_of(tmp_path / "run", 2), signal.SIGKILL)
    out, err = placed.communicate(timeout=300)
    assert placed.returncode == 9, err
    told = json.loads(out)
    assert told["events"]["died"] == 1 and told["status"] == "partial"


def test_ctrl_c_ends_the_job_and_leaves_no_process(slurm: Path, tmp_path: Path) -> None:
    written(tmp_path, rounds=100_000)
    placed = start(LAUNCH, tmp_path)
    record = tmp_path / "run" / "metrics.jsonl"
    await_until(lambda: record.exists() and record.read_bytes().count(b"\n") > 30, placed)
    pids = processes_of(tmp_path / "run")
    placed.send_signal(signal.SIGINT)
    _, err = placed.communicate(timeout=300)
    assert placed.returncode == 130 and "fedgossip launch --resume run" in err, err
    wait_until(idle, 60, "the job is cancelled")
    assert pids and not any(alive(pid) for pid in pids)


def test_a_job_that_slurm_stops_is_queued_again_and_goes_on(slurm: Path, tmp_path: Path) -> None:
    """As Slurm does before the time is over: the participants keep what they have, and the job goes on."""
    written(tmp_path, n=2, rounds=2000)
    placed = start([*LAUNCH, "--json"], tmp_path)
    record = tmp_path / "run" / "metrics.jsonl"
    await_until(lambda: record.exists() and record.read_bytes().count(b"\n") > 30, placed)
    (job,) = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["scancel", "--signal=TERM", job], check=True)
    out, err = placed.communicate(timeout=380)
    assert placed.returncode == 0, err
    assert json.loads(out)["status"] == "finished" and "PENDING" in err


@pytest.mark.parametrize(
    ("n", "words", "said"),
    [(2, ["--partition", "nowhere"], "Slurm refuses the job"), (7, [], f"has {SLOTS}")],
    ids=["no such partition", "too many"],
)
def test_what_slurm_has_no_place_for_is_refused_in_its_words(
    n: int, words: list[str], said: str, slurm: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    written(tmp_path, n=n)
    found = in_process([*LAUNCH, *words], tmp_path, monkeypatch, capsys)
    assert found.code == 2 and said in found.errors[0] and "Traceback" not in found.err, found.err


@pytest.mark.parametrize("slurm", ["apart"], indirect=True)
def test_a_folder_that_is_not_shared_is_told(slurm: Path, tmp_path: Path) -> None:
    written(tmp_path, n=2)
    placed = start(LAUNCH, tmp_path)
    _, err = placed.communicate(timeout=300)
    assert placed.returncode == 2 and "do not see this folder" in err and "that all nodes share" in err, err
