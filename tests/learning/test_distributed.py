"""One client in several processes: the steps are those of one, and nothing that ends or fails is left behind."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import alive, wait_until
from test_learning import images
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.distributed.tensor import DTensor

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Terms
from fedgossip.core.task import Job
from fedgossip.learning.one_model import devices
from fedgossip.learning.one_model.batches import BatchPlan
from fedgossip.learning.one_model.sharing import OutOfMemory
from fedgossip.learning.processes import parts, processes
from fedgossip.learning.processes.engine import DistributedLoop
from fedgossip.learning.processes.group import Team
from fedgossip.learning.processes.ipc import Alive, Channel, SharedArrays
from fedgossip.learning.processes.processes import Group
from fedgossip.learning.task import TorchTask, TrainSettings

pytestmark = pytest.mark.sockets

MARK = 99.0
"""A first pixel that no other example has: whoever computes it raises."""

SHARES = [np.arange(17), np.arange(17, 57), np.arange(57, 65)]
"""Node 0 has a last batch of one example, fewer than processes; node 2 the marked one."""


class Partly(nn.Module):
    """A model with all that is awkward: a layer that is not used, one that is frozen, BatchNorm, lists of layers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(1, 3, 3), nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())])
        self.unused, self.frozen = nn.Linear(5, 7), nn.Linear(108, 20)
        self.frozen.requires_grad_(False)
        self.last = nn.Linear(20, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x[:, 0, 0, 0] == MARK).any():
            raise ValueError("a marked example")
        for layer in self.layers:
            x = layer(x)
        found: torch.Tensor = self.last(torch.tanh(self.frozen(x.flatten(1))))
        return found


def partly(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Partly(classes)


def task_of(model: str = "test_distributed:partly", **how: Any) -> TorchTask:
    settings = TrainSettings(**{"batch_size": 8, "local_epochs": 1, "device": "cpu", **how})
    data = images()
    test = data.subset(np.arange(57))
    data.x[60, 0, 0, 0] = MARK
    return TorchTask(data, test, SHARES, model, settings, seed=1, rounds=9)


def group_of(task: TorchTask) -> Group:
    assert isinstance(task._engine, DistributedLoop) and task._engine.standing.group
    return task._engine.standing.group


@contextmanager
def ended(task: TorchTask) -> Iterator[TorchTask]:
    """The task, whose processes are ended after its use."""
    try:
        yield task
    finally:
        assert isinstance(task._engine, DistributedLoop)
        if task._engine.standing.group:
            task._engine.standing.group.close()


STEP = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "clip_norm": 1.0}
OWN = {**STEP, "personal": "layers.1.*", "buffers": "local"}


@pytest.fixture(scope="module")
def replicated() -> Iterator[TorchTask]:
    with ended(task_of(processes=2, **STEP)) as task:
        yield task


@pytest.fixture(scope="module")
def sharded() -> Iterator[TorchTask]:
    with ended(task_of(processes=2, parallel="fsdp", **OWN)) as task:
        yield task


# --- the same steps ---------------------------------------------------------------------------------------------------


def check_same(one: TorchTask, several: TorchTask) -> None:
    start = one.initial(0)
    correction = frozen(np.linspace(-0.1, 0.1, one.length).astype(np.float32))
    for round, terms in enumerate([None, None, Terms(0.3, correction)]):
        jobs = [Job(node, round, start, terms) for node in (0, 1)]
        for first, second in zip(one.train(jobs), several.train(jobs), strict=True):
            assert first.difference is not None and second.difference is not None
            np.testing.assert_allclose(second.difference, first.difference, atol=2e-6)
            assert second.metrics == pytest.approx(first.metrics, rel=1e-5)
    for node in (0, 1):
        first, second = one.state(node), several.state(node)
        assert first.keys() == second.keys() and first["velocity"].any()
        for name in first:
            assert first[name].dtype == second[name].dtype and first[name].shape == second[name].shape
            np.testing.assert_allclose(second[name], first[name], atol=2e-6)


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_gradients_of_several_processes_are_those_of_one(parallel: str) -> None:
    with ended(task_of(processes=2, parallel=parallel, buffers="local")) as several:
        check_gradients(task_of(buffers="local"), several)


def check_gradients(one: TorchTask, several: TorchTask) -> None:
    jobs = [Job(node, 1, one.initial(0), gradient=True) for node in (0, 1)]
    for first, second in zip(one.gradients(jobs), several.gradients(jobs), strict=True):
        assert first.difference is not None and second.difference is not None
        assert np.abs(first.difference).max() > 1e-3
        np.testing.assert_allclose(second.difference, first.difference, atol=2e-6)
        assert second.metrics == pytest.approx(first.metrics, rel=1e-5)


def check_evaluation(one: TorchTask, several: TorchTask) -> None:
    draw = np.random.default_rng(0)
    vectors = [frozen((one.initial(0) + 0.1 * draw.standard_normal(one.length)).astype(np.float32)) for _ in range(3)]
    for first, second in zip(one.evaluate(vectors), several.evaluate(vectors), strict=True):
        assert second == pytest.approx(first, rel=1e-5)
    job = Job(1, 5, vectors[0])
    one.train([job])
    several.train([job])  # an evaluation between two trainings, and one after it
    assert several.evaluate_own(1, vectors[1]) == pytest.approx(one.evaluate_own(1, vectors[1]), rel=1e-4)
    assert several.evaluate([vectors[2]])[0] == pytest.approx(one.evaluate([vectors[2]])[0], rel=1e-5)


def test_two_processes_that_hold_the_whole_model_take_the_steps_of_one(replicated: TorchTask) -> None:
    one = task_of(**STEP)
    check_same(one, replicated)
    check_evaluation(one, replicated)


def test_two_processes_that_hold_a_part_each_take_the_steps_of_one(sharded: TorchTask) -> None:
    one = task_of(**OWN)
    check_same(one, sharded)
    check_evaluation(one, sharded)


def test_two_processes_whose_parts_are_offloaded_take_the_steps_of_one() -> None:
    """And give its gradients; on a CPU parts lie in host memory either way, the way through torch is another."""
    one, how = task_of(buffers="local", **STEP), {"processes": 2, "parallel": "fsdp", "offload": True}
    with ended(task_of(buffers="local", **STEP, **how)) as several:
        check_same(one, several)
        check_gradients(one, several)
        check_evaluation(one, several)


@pytest.mark.long
def test_two_processes_whose_layers_stay_together_between_the_passes_take_the_steps_of_one() -> None:
    """Also after an evaluation, which has no backward pass to let a layer go."""
    one = task_of(**OWN)
    with ended(task_of(processes=2, parallel="fsdp", zero=2, **OWN)) as several:
        check_same(one, several)
        check_evaluation(one, several)
        check_same(one, several)


@pytest.mark.parametrize(("zero", "evaluated", "trained"), [(2, 0, 1), (3, 0, 0)])
def test_layers_stay_together_until_the_backward_pass_by_zero_2_alone(zero: int, evaluated: int, trained: int) -> None:
    with alone():
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        parts.shard(module, init_device_mesh("cpu", (1,), mesh_dim_names=("data",)), zero=zero)

        def whole() -> set[int]:
            """Whether the layers are together: their parameters are then no parts."""
            return {int(not isinstance(tensor, DTensor)) for tensor in module.parameters()}

        with torch.no_grad():
            module(torch.ones(3, 4))
        assert whole() == {evaluated}
        loss = module(torch.ones(3, 4)).sum()
        assert whole() == {trained}
        loss.backward()
        assert whole() == {0}


@contextmanager
def alone() -> Iterator[None]:
    """A group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(("device", "pinned"), [("cpu", False), ("cuda", True)])
@pytest.mark.parametrize("offload", [True, False])
def test_what_is_offloaded_stays_in_host_memory_which_is_locked_beside_a_gpu_alone(
    device: str, pinned: bool, offload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises where memory is to be locked without an accelerator.  "meta" stands for a device elsewhere."""
    told: list[tuple[nn.Module, OffloadPolicy]] = []
    monkeypatch.setattr(
        parts, "fully_shard", lambda layer, *, offload_policy, **_: told.append((layer, offload_policy))
    )
    monkeypatch.setattr(parts, "HeldParts", lambda *_: None)
    task = task_of(processes=2, parallel="fsdp", offload=offload)
    assert isinstance(task._engine, DistributedLoop)
    mesh: Any = SimpleNamespace(mesh={"data": SimpleNamespace(device_type=device)}, team=Team())
    module, setup = Partly(3), task._engine.standing.how[0]
    how: Any = {"shape": (8, 8), "criterion": None, "grid": mesh, "device": torch.device("meta")}
    parts.divided(setup, module, task.layout, **how)
    assert len(told) == 3 and told[-1][0] is module
    assert all(policy == CPUOffloadPolicy(pin_memory=pinned) for _, policy in told) is offload
    assert {tensor.device.type for tensor in module.parameters()} == {"cpu" if offload else "meta"}


def test_where_memory_is_short_every_process_cuts_its_part_in_pieces(
    replicated: TorchTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BatchNorm counts over a piece of all processes: rows 0, 1 of the first and 4, 5 of the second come together."""
    one, job = task_of(**STEP), Job(1, 7, replicated.initial(1), Terms(0.1))
    monkeypatch.setattr(one._sharing, "pieces", 2)
    monkeypatch.setattr(replicated._sharing, "pieces", 2)
    found = replicated.train([job])[0].difference
    in_order, plan = one.train([job])[0].difference, one._batches.plan(1, 7)
    turned = BatchPlan(plan.indices[:, [0, 1, 4, 5, 2, 3, 6, 7]], plan.counts)
    monkeypatch.setattr(one._batches, "plan", lambda node, round: turned)
    one.load_state(1, {})
    np.testing.assert_allclose(found, one.train([job])[0].difference, atol=2e-6)
    assert found is not None and in_order is not None and np.abs(found - in_order).max() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("several_by", [{}, {"parallel": "fsdp"}, {"parallel": "fsdp", "offload": True}])
@pytest.mark.parametrize("how", [{"precision": "float16", "optimizer": "adam", "lr": 0.01}, {"prefetch": 2}])
def test_other_options_go_together_with_several_processes(several_by: dict[str, Any], how: dict[str, Any]) -> None:
    one = task_of("mlp:64-16-3", **how)
    job = Job(1, 0, one.initial(1))
    expected = one.train([job])[0].difference
    with ended(task_of("mlp:64-16-3", processes=3, **several_by, **how)) as several:
        found = several.train([job])[0].difference
    assert expected is not None and found is not None
    assert np.linalg.norm(found - expected) < (0.05 if "precision" in how else 1e-5) * np.linalg.norm(expected)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_compiled_model_in_two_processes_takes_the_steps_of_one() -> None:
    if not devices._compiler():
        pytest.skip("torch.compile needs a C++ compiler here, and there is none")
    one = task_of("cnn:small")
    job = Job(1, 0, one.initial(1))
    with ended(task_of("cnn:small", processes=2, compile=True)) as two:
        np.testing.assert_allclose(two.train([job])[0].difference, one.train([job])[0].difference, atol=2e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 16])
@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_the_parts_of_a_batch_weigh_as_the_whole(size: int, rows: int, pieces: int) -> None:
    """The weighted sum of the parts' means is the mean of all; and all processes compute as many pieces."""
    values = np.random.default_rng(rows).standard_normal(rows)
    parts = [Team(rank, size).pieces_of(np.arange(rows), pieces) for rank in range(size)]
    total = sum(values[piece].mean() * weight for part in parts for piece, weight in part)
    assert total == pytest.approx(values.mean())
    assert len({len(part) for part in parts}) == 1 and 1 <= len(parts[0]) <= pieces
    evaluated = [Team(rank, size).part_of(rows) for rank in range(size)]
    counted = np.concatenate([np.arange(rows)[part] for part, counts in evaluated if counts])
    assert np.array_equal(counted, np.arange(rows)) and all(len(np.arange(rows)[part]) for part, _ in evaluated)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_process_that_is_killed_in_the_midst_of_a_job_is_named_and_the_other_is_ended(
    replicated: TorchTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, receive, killed = replicated._batches.plan, Channel.receive, []

    def long(node: int, round: int) -> BatchPlan:
        return BatchPlan(np.tile(plan(node, round).indices, (2000, 1)), np.tile(plan(node, round).counts, 2000))

    def heard(channel: Channel) -> Any:
        message = receive(channel)
        if isinstance(message, Alive) and not killed:  # it has trained for a second
            killed.extend(group_of(replicated)._processes)
            killed[1].kill()
        return message

    monkeypatch.setattr(replicated._batches, "plan", long)
    monkeypatch.setattr(Channel, "receive", heard)
    with pytest.raises(TrainingError, match="process 1 of 2 was ended by SIGKILL") as error:
        replicated.train([Job(1, 0, replicated.initial(1))])
    assert error.value.advice and len(killed) == 2
    assert all(process.returncode is not None for process in killed)


@pytest.mark.long
def test_an_error_in_one_process_is_a_training_error_here_and_the_next_job_has_a_new_group() -> None:
    with ended(task_of(processes=2)) as task:
        with pytest.raises(TrainingError, match=r"process [01] of 2: ValueError: a marked example"):
            task.train([Job(2, 0, task.initial(2))])
        found, one = task.train([Job(0, 0, task.initial(0))])[0], task_of()
        expected = one.train([Job(0, 0, one.initial(0))])[0]
        np.testing.assert_allclose(found.difference, expected.difference, atol=2e-6)


def test_a_process_without_a_task_to_listen_to_ends_by_itself() -> None:
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-m", "fedgossip.learning.processes.worker", str(theirs.fileno())]
    with subprocess.Popen(words, pass_fds=[theirs.fileno()], env=processes._environment(1)) as process:
        theirs.close()
        ours.close()
        assert process.wait(60) == 0


@pytest.mark.long
def test_a_process_that_stands_still_is_an_error_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with ended(task_of("softmax", processes=2)) as task:
        task.evaluate([task.initial(0)])
        running = group_of(task)._processes
        running[0].send_signal(signal.SIGSTOP)
        monkeypatch.setattr(processes, "SILENT_SECONDS", 0.5)
        monkeypatch.setattr(processes, "STOP_SECONDS", 0.1)
        with pytest.raises(TrainingError, match=r"within 0\.5 s"):
            task.train([Job(0, 0, task.initial(0))])
        assert all(process.returncode is not None for process in running)


@pytest.mark.long
def test_a_process_that_runs_out_of_memory_makes_all_take_smaller_pieces() -> None:
    """Of 8 rows each of two processes has 4; one process alone has all of them."""
    one, job = task_of("test_distributed:hungry"), Job(1, 0, task_of("softmax").initial(1))
    expected = one.train([job])[0].difference
    with ended(task_of("test_distributed:hungry", processes=2)) as two:
        found = two.train([job])[0].difference
        np.testing.assert_allclose(found, expected, atol=2e-6)
        assert (one._sharing.pieces, two._sharing.pieces) == (4, 2)


class Hungry(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 2 and torch.is_grad_enabled():
            raise OutOfMemory("made up")
        found: torch.Tensor = super().forward(x)
        return found


def hungry(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Hungry(nn.Flatten(), nn.Linear(64, classes))


HOST = """
import sys
sys.path.insert(0, sys.argv[1])
from test_distributed import group_of, task_of
task = task_of("softmax", processes=2)
task.evaluate([task.initial(0)])
print(group_of(task)._folder.name, *[one.pid for one in group_of(task)._processes], flush=True)
if sys.argv[2] == "killed":
    sys.stdin.read()
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "ends"])
def test_no_process_is_left_when_the_peer_is_gone(how: str) -> None:
    words = [sys.executable, "-c", HOST, str(Path(__file__).parents[1]), how]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout
        folder, *words = host.stdout.readline().split()
        pids = [int(word) for word in words]
        assert len(pids) == 2 and Path(folder).is_dir()
        if how == "killed":
            host.kill()
        wait_until(lambda: not any(map(alive, pids)), 60, "the processes end")
        assert not Path(folder).exists()


def test_whatever_interrupts_a_job_ends_the_group() -> None:
    task, closed = task_of("softmax", processes=2), []
    assert isinstance(task._engine, DistributedLoop)
    assert task._engine.standing.group is None  # nothing is started before the first job

    class Interrupted:
        given = found = SharedArrays.new()

        def ask(self, order: object) -> Any:
            raise KeyboardInterrupt

        def close(self) -> None:
            closed.append(self)

    task._engine.standing.group = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        task.evaluate([task.initial(0)])
    assert len(closed) == 1 and task._engine.standing.group is None
    os.close(Interrupted.given.descriptor)


# --- boards -----------------------------------------------------------------------------------------------------------


def test_arrays_on_a_board_are_those_laid_there_for_everybody_who_maps_it() -> None:
    board = SharedArrays.new()
    other = SharedArrays(os.dup(board.descriptor))
    for size in (3, 1000, 2):
        arrays = {"a": np.arange(size, dtype=np.float32), "none": np.empty((0, 4)), "one": np.array(7)}
        found = other.views(board.lay(arrays))
        assert all(
            np.array_equal(found[name], arrays[name]) and found[name].dtype == arrays[name].dtype for name in arrays
        )
    places = board.room({"answer": ("float32", (5,))})
    other.views(places)["answer"][:] = 3
    assert np.array_equal(board.views(places)["answer"], np.full(5, 3, np.float32))
    for one in (board, other):
        os.close(one.descriptor)


@pytest.mark.long
def test_a_full_disk_is_an_error_and_not_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    board = SharedArrays.new()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ConfigError, match="No space left") as error:
        board.lay({"a": np.zeros(10)})
    assert "TMPDIR" in error.value.advice
    os.close(board.descriptor)
