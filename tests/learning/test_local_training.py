"""How one process trains: precision, memory formats, compiling, where examples lie, and too little memory."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_learning import images, jobs_of, made_up, task_of
from torch import nn
from torch.nn import functional

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import add
from fedgossip.core.machine import Terms
from fedgossip.core.task import Job
from fedgossip.data.data import load, split
from fedgossip.data.dataset import Dataset
from fedgossip.data.partitions import partition
from fedgossip.learning.many_nodes.stacked_engine import LayerStack
from fedgossip.learning.models import models
from fedgossip.learning.one_model import devices, loading
from fedgossip.learning.one_model.batches import Batches, BatchPlan
from fedgossip.learning.one_model.devices import FIRST_SCALE, GROWTH_STEPS, LOSS_SCALE, LossScale
from fedgossip.learning.one_model.module_engine import ModuleLoop
from fedgossip.learning.one_model.sharing import GpuSharing, OutOfMemory, settle
from fedgossip.learning.settings import OF_THE_MACHINE, TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.runs import checkpoints

CPU = torch.device("cpu")


def difference(model: str, data: Dataset, **how: Any) -> np.ndarray:
    """What one job of three steps of eight changes."""
    how = {"batch_size": 8, "local_steps": 3, "device": "cpu", **how}
    task = task_of(model, data, TrainSettings(**how))
    found = task.train([Job(2, 1, task.initial(2))])[0].difference
    assert found is not None and found.dtype == np.float32
    return found


def away(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["cnn:small", "cnn:small-bn", "mlp:64-16-3"])
@pytest.mark.parametrize(("precision", "digits"), [("bfloat16", 8), ("float16", 11)])
def test_a_step_in_sixteen_bits_is_nearly_that_in_32_bits(model: str, precision: str, digits: int) -> None:
    """A number is rounded by at most 2^-digits of itself; a dozen operations in a row, taken with the same sign."""
    expected = difference(model, images(), local_steps=1)
    found = difference(model, images(), local_steps=1, precision=precision)
    assert 0 < away(found, expected) < 12 * 2.0**-digits


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_sixteen_bits_learn_the_digits_as_32_bits_do(precision: str) -> None:
    train, test = split(load("digits"), 0.2, 0)
    found = []
    for kind in ("float32", precision):
        how = TrainSettings(local_steps=300, momentum=0.9, device="cpu", precision=kind)
        task = TorchTask(train, test, [np.arange(len(train))], "mlp:64-32-10", how, seed=0, rounds=1)
        update = task.train([Job(0, 0, task.initial(0))])[0]
        assert (
            update.difference is not None and task.state(0)["velocity"].dtype == update.difference.dtype == np.float32
        )
        found.append(task.evaluate([add(task.initial(0), update.difference)])[0]["accuracy"])
    assert found[0] > 0.85 and abs(found[1] - found[0]) < 0.03


def test_float16_equals_autocast_with_torchs_grad_scaler() -> None:
    data, how = images(), TrainSettings(batch_size=8, local_steps=3, device="cpu", precision="float16")
    task = task_of("cnn:small", data, how)
    module = models.build("cnn:small", data.shape, data.classes, 1)
    optimiser, scaler = torch.optim.SGD(module.parameters(), lr=how.lr), torch.amp.GradScaler("cpu")
    plan = Batches(partition("size-skewed", data.labels, 9, seed=3), how, 1, 8).plan(2, 1)
    for rows in plan.indices:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = module(torch.tensor(data.x[rows]))
        scaler.scale(functional.cross_entropy(logits.float(), torch.tensor(data.y[rows]))).backward()
        scaler.step(optimiser)
        scaler.update()
    found = task.train([Job(2, 1, task.initial(2))])[0].difference
    np.testing.assert_allclose(found, task.layout.read(module) - task.initial(2), atol=1e-7)


def test_a_loss_scale_halves_where_it_overflows_and_doubles_after_many_good_steps() -> None:
    scale = LossScale()
    assert (scale.value, scale.take(False), scale.value) == (FIRST_SCALE, False, FIRST_SCALE / 2)
    assert all(scale.take(True) for _ in range(GROWTH_STEPS - 1)) and scale.value == FIRST_SCALE / 2
    scale = LossScale(scale.get_state())  # in the next job
    assert scale.take(True) and scale.value == FIRST_SCALE
    assert LossScale(np.array([1.0, 0])).take(False)  # nothing is left to scale: the explosion is to be seen


def test_a_step_that_overflows_is_skipped_and_the_node_remembers_the_scale() -> None:
    how = TrainSettings(batch_size=8, local_steps=2, device="cpu", precision="float16", optimizer="adam", lr=0.001)
    task = task_of("cnn:small", images(), how)
    task.load_state(2, {LOSS_SCALE: np.array([2.0**100, 0])})
    update = task.train([Job(2, 0, task.initial(2))])[0]
    assert update.difference is not None and not update.difference.any()
    assert np.array_equal(task.state(2)[LOSS_SCALE], [2.0**98, 0]) and task.state(2)["steps"] == 0
    assert task.train([Job(2, 0, task.initial(2), Terms(0.1))])[0].metrics["steps"] == 1  # of 0: nobody divides by it
    task.load_state(2, {})
    assert task.train([Job(2, 0, task.initial(2), Terms(0.1))])[0].metrics["steps"] == 2


def test_skipped_steps_do_not_move_adams_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose first k steps are skipped equals the job without those k batches, to the bit."""
    how = TrainSettings(batch_size=8, local_steps=30, device="cpu", precision="float16", optimizer="adam", lr=0.001)
    task, shorter = (task_of("mlp:64-8-3", images(), how) for _ in range(2))
    task.load_state(2, {LOSS_SCALE: np.array([2.0**36, 0])})
    found = task.train([Job(2, 0, task.initial(2))])[0].difference
    taken = int(task.state(2)["steps"])
    skipped, plan = 30 - taken, task._batches.plan(2, 0)
    assert 5 < skipped < 25 and np.array_equal(task.state(2)[LOSS_SCALE], [2.0 ** (36 - skipped), taken])
    shorter.load_state(2, {LOSS_SCALE: np.array([2.0 ** (36 - skipped), 0])})
    monkeypatch.setattr(shorter._batches, "plan", lambda *_: BatchPlan(plan.indices[skipped:], plan.counts[skipped:]))
    assert np.array_equal(shorter.train([Job(2, 0, task.initial(2))])[0].difference, found)


def test_an_explosion_is_no_overflow() -> None:
    how = TrainSettings(batch_size=8, device="cpu", precision="float16")
    task = task_of("cnn:small", images(), how)
    vector = np.full(task.length, 1e30, np.float32)
    with pytest.raises(TrainingError, match="node 1, round 0"):
        task.train([Job(1, 0, vector)])


def test_options_take_a_dense_model_out_of_the_hand_written_path() -> None:
    plain, cast = (task_of("mlp:12-7-4", made_up(), TrainSettings(device="cpu", precision=p)) for p in
                   ("float32", "bfloat16"))  # fmt: skip
    assert isinstance(plain._engine, LayerStack) and isinstance(cast._engine, ModuleLoop)
    assert isinstance(task_of("softmax", made_up(), TrainSettings(device="cpu", prefetch=1))._engine, ModuleLoop)


# --- memory formats and compiling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["cnn:small", "cnn:small-bn"])
def test_channels_last_learns_the_same(model: str) -> None:
    expected = difference(model, images(), momentum=0.9)
    np.testing.assert_allclose(difference(model, images(), momentum=0.9, channels_last=True), expected, atol=1e-6)


class Watching(nn.Conv2d):
    """Writes down whether its images came with the channels innermost."""

    seen: list[bool] = []  # noqa: RUF012

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.seen.append(input.is_contiguous(memory_format=torch.channels_last))
        return super().forward(input)


def watching(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(Watching(1, 4, 3), nn.ReLU(), Watching(4, 4, 3), nn.Flatten(), nn.Linear(64, classes))


@pytest.mark.parametrize("channels_last", [True, False])
def test_every_convolution_sees_channels_last_where_it_is_asked_for(channels_last: bool) -> None:
    Watching.seen.clear()
    difference("test_local_training:watching", images(), local_steps=1, channels_last=channels_last)
    # the trials before a run see plain images; with one channel there is no difference
    assert Watching.seen[-2:] == [True, channels_last]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, where it loads its compiler
@pytest.mark.parametrize("how", [{}, {"precision": "bfloat16", "channels_last": True}])
@pytest.mark.sockets
def test_a_compiled_model_learns_the_same(how: dict[str, Any]) -> None:
    if not devices._compiler():
        pytest.skip("torch.compile needs a C++ compiler here, and there is none")
    expected = difference("cnn:small-bn", images(), **how)
    tolerance = 1e-6 if not how else 12 * 2.0**-8 * float(np.linalg.norm(expected))
    np.testing.assert_allclose(difference("cnn:small-bn", images(), compile=True, **how), expected, atol=tolerance)


# --- where examples lie -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"local_steps": 4}, {"local_epochs": 2}])
@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_that_are_made_ready_ahead_give_the_same_bits(how: dict[str, int], ahead: int) -> None:
    settings = TrainSettings(batch_size=5, device="cpu", momentum=0.9, **how)
    tasks = [task_of("cnn:small-bn", images(), replace(settings, prefetch=number)) for number in (0, ahead)]
    for round in range(2):
        job = Job(2, round, tasks[0].initial(2))
        first, second = (task.train([job])[0] for task in tasks)
        assert np.array_equal(first.difference, second.difference) and first.metrics == second.metrics
    vectors = [job.vector for job in jobs_of(tasks[0], 3)]
    assert tasks[0].evaluate(vectors) == tasks[1].evaluate(vectors)


def makers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "batches"]


def streamed(ahead: int, examples: int = 40) -> loading.Streamed:
    return loading.Streamed(made_up(examples), CPU, ahead)


def test_no_more_batches_are_made_than_were_asked_for_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    source, made, more = streamed(2), [], threading.Event()
    send = source._way.send

    def counted(number: int, *rest: Any) -> Any:
        made.append(number)
        if len(made) > 3:
            more.set()
        return send(number, *rest)

    monkeypatch.setattr(source._way, "send", counted)
    with source.batches([np.arange(4)] * 10) as batches:
        next(batches)
        assert not more.wait(0.2) and len(made) <= 3  # one is used, two wait
        next(batches)
        assert more.wait(30)
    assert not makers()


def test_a_loader_that_is_left_early_leaves_no_thread() -> None:
    with pytest.raises(ZeroDivisionError), streamed(1).batches([np.arange(4)] * 10) as batches:
        next(batches)
        raise ZeroDivisionError
    assert not makers()


def test_what_goes_wrong_in_the_thread_is_raised_to_who_waits() -> None:
    with pytest.raises(IndexError), streamed(1).batches([np.array([999])]) as batches:
        next(batches)
    assert not makers()


def test_examples_stay_in_host_memory_where_a_gpu_has_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    data = made_up(100, 12)
    size = 100 * (12 * 4 + 8)  # float32 features, an int64 label
    assert loading.bytes_of(data) == size
    for free, ahead in ((4 * size, 0), (4 * size - 1, loading.DEFAULT_AHEAD)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10 * free))
        assert loading.ahead_of(TrainSettings(), torch.device("cuda", 0), size) == ahead
        assert loading.ahead_of(TrainSettings(prefetch=0), torch.device("cuda", 0), size) == 0
        assert loading.ahead_of(TrainSettings(), CPU, size) == 0


class MadeUpCuda:
    """The calls of torch.cuda that copy a batch beside the training, in the order in which they come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        numbers = iter(range(1000))

        def event() -> Any:
            name = f"event {next(numbers)}"
            return SimpleNamespace(
                name=name,
                record=lambda stream: self.calls.append(("record", name)),
                synchronize=lambda: self.calls.append(("synchronize", name)),
            )

        trainer = SimpleNamespace(wait_event=lambda event: self.calls.append(("wait", event.name)))
        monkeypatch.setattr(torch.cuda, "Event", event)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: "side")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: trainer)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda shape, dtype, pin_memory: empty(shape, dtype=dtype))
        lent = lambda tensor, stream: self.calls.append(("lend", stream is trainer and str(tensor.dtype)))  # noqa: E731
        monkeypatch.setattr(torch.Tensor, "record_stream", lent)


def test_a_pinned_buffer_is_filled_again_only_when_its_copy_is_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of CUDA calls, on a made-up CUDA: what the calls do was not seen."""
    data, cuda = made_up(40), MadeUpCuda(monkeypatch)
    way = loading._Stream(CPU, 2)
    wanted = [np.arange(start, start + 4) for start in (0, 9, 20)] + [np.arange(7)]
    for number, rows in enumerate(wanted):
        x, y = way.arrived(way.send(number, data.x, data.y, rows))
        assert np.array_equal(x.numpy(), data.x[rows]) and np.array_equal(y.numpy(), data.y[rows])
    first, second = cuda.calls[:5], cuda.calls[5:10]
    buffer, arrived = first[0][1], first[1][1]
    assert first == [
        ("record", buffer),
        ("record", arrived),
        ("wait", arrived),
        ("lend", "torch.float32"),
        ("lend", "torch.int64"),
    ]
    assert second[0][1] != buffer
    assert cuda.calls[10:12] == [("synchronize", buffer), ("record", buffer)]  # the third batch takes the first buffer
    assert cuda.calls[16] == ("synchronize", second[0][1]) and cuda.calls[17][1] != second[0][1]  # a larger one


# --- too little memory ------------------------------------------------------------------------------------------------

LIMIT = {"rows": 100, "left": 0}


class Hungry(nn.Module):
    """Runs out of memory where a batch has more than LIMIT["rows"] rows, or as often as LIMIT["left"] says."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > LIMIT["rows"] or LIMIT["left"]:
            LIMIT["left"] = max(0, LIMIT["left"] - 1)
            raise OutOfMemory("made up")
        found: torch.Tensor = self.layer(x)
        return found


def hungry(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Hungry(shape[0], classes)


@pytest.fixture
def limit() -> Iterator[dict[str, int]]:
    yield LIMIT
    LIMIT.update(rows=100, left=0)


HUNGRY = "test_local_training:hungry"


@pytest.mark.parametrize("how", [{}, {"prefetch": 2}, {"precision": "float16"}])
def test_where_memory_is_short_batches_come_in_pieces_and_give_the_same_step(
    limit: dict[str, int], how: dict[str, Any]
) -> None:
    settings = TrainSettings(batch_size=8, local_epochs=1, momentum=0.9, clip_norm=1.0, device="cpu", **how)
    plain, short = (task_of(HUNGRY, made_up(), settings) for _ in range(2))
    for round in range(2):
        limit["rows"] = 100
        expected = plain.train([Job(2, round, plain.initial(2), Terms(0.1))])[0]
        limit["rows"] = 3
        found = short.train([Job(2, round, short.initial(2), Terms(0.1))])[0]
        np.testing.assert_allclose(found.difference, expected.difference, atol=1e-3 if "precision" in how else 1e-6)
        assert found.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-3)
        np.testing.assert_allclose(short.state(2)["velocity"], plain.state(2)["velocity"], atol=1e-3)
    assert short._sharing.pieces == 4  # 8 rows in pieces of at most 3: halved twice


def test_a_job_that_ran_out_of_memory_in_its_midst_is_trained_once(limit: dict[str, int]) -> None:
    settings = TrainSettings(batch_size=8, local_steps=2, optimizer="adam", device="cpu")
    expected = task_of(HUNGRY, made_up(), settings)
    task = task_of(HUNGRY, made_up(), settings)
    jobs = [Job(1, 0, task.initial(0)), Job(2, 0, task.initial(0))]
    plain = expected.train(jobs)
    forward, calls = task._engine._module.forward, []

    def third_fails(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        limit["left"] = int(len(calls) == 3)  # node 1 is done then
        found: torch.Tensor = forward(x)
        return found

    task._engine._module.forward = third_fails
    found = task.train(jobs)
    for one, other in zip(plain, found, strict=True):
        np.testing.assert_allclose(one.difference, other.difference, atol=1e-6)
    assert task.state(1)["steps"] == 2


def test_evaluation_takes_smaller_parts_too(limit: dict[str, int]) -> None:
    task = task_of(HUNGRY, made_up(700), TrainSettings(batch_size=8, device="cpu"))
    limit["rows"] = 1000
    expected = task.evaluate([task.initial(0)])[0]
    limit["rows"] = 150
    assert task.evaluate([task.initial(0)])[0] == pytest.approx(expected)
    assert task._sharing.pieces == 4


def test_one_example_that_does_not_fit_is_an_error_with_advice(limit: dict[str, int]) -> None:
    task = task_of(HUNGRY, made_up(), TrainSettings(batch_size=4, device="cpu"))
    limit["rows"] = 0
    with pytest.raises(TrainingError, match="in 4 pieces") as error:
        task.train([Job(0, 0, task.initial(0))])
    assert "fsdp" in error.value.advice


class Turns:
    """Slots that write down who asked for what."""

    def __init__(self, asked: list[object]) -> None:
        self.asked = asked

    def turn(self, *, alone: bool = False) -> Any:
        self.asked.append(alone)
        return nullcontext()

    def give_back(self) -> None:
        self.asked.append("gave back")


@pytest.mark.parametrize(("failures", "pieces"), [(1, 1), (2, 2), (3, 4)])
def test_first_alone_then_in_pieces(failures: int, pieces: int) -> None:
    asked: list[object] = []
    sharing, tries = GpuSharing([Turns(asked)], most_pieces=8), iter(range(10))  # type: ignore[list-item]

    def job() -> int:
        if next(tries) < failures:
            raise OutOfMemory("made up")
        return sharing.pieces

    assert sharing.run(job) == pieces
    assert asked == [False] + failures * ["gave back", True]
    asked.clear()
    assert sharing.run(lambda: sharing.pieces) == pieces and asked == [False]  # the next job need not be alone


def made_up_gpu(device: torch.device) -> Any:
    return SimpleNamespace(name="made up", uuid=f"gpu-{device.index}")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A made-up machine; nothing computes there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", made_up_gpu)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 450)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))


def settled(**how: Any) -> tuple[torch.device, GpuSharing]:
    return settle(TrainSettings(**how), nn.Linear(2, 2), "schema")


@pytest.mark.anywhere
def test_clients_settle_on_the_emptiest_gpu_and_leave_it_when_they_end(two_gpus: None) -> None:
    first, second = settled(), settled(device="cuda")
    assert [device for device, _ in (first, second)] == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert settled(device="cuda:1")[0] == torch.device("cuda", 1)  # asked for, and gone again
    del first
    assert settled()[0] == torch.device("cuda", 0)


@pytest.mark.anywhere
def test_a_job_on_a_gpu_has_a_turn_and_leaves_its_peak(two_gpus: None, tmp_path: Path) -> None:
    _, sharing = settled()
    (folder,) = tmp_path.glob("fedgossip-*/cuda-gpu-0")
    assert sharing.run(lambda: [path.read_text().split()[0] for path in folder.glob("slot-*")]) == ["900"]
    assert sharing.run(lambda: [path.read_text().split()[0] for path in folder.glob("slot-*")]) == ["350"]
    assert [path.read_text() for path in folder.glob("peak-*")] == ["350"]  # 450 held at most, 100 before


@pytest.mark.anywhere
def test_a_client_of_several_processes_has_all_its_gpus_alone(two_gpus: None, tmp_path: Path) -> None:
    device, sharing = settled(processes=2)
    found = sharing.run(lambda: sorted(path.parent.name for path in tmp_path.glob("*/*/slot-*")))
    assert device == torch.device("cuda") and found == ["cuda-gpu-0", "cuda-gpu-1"]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"precision": "float8"}, "unknown precision"),
        ({"device": "cuda:x"}, "unknown device"),
        ({"prefetch": -1}, "prefetch = -1"),
        ({"prefetch": True}, "prefetch = True"),
        ({"prefetch": 65}, "prefetch = 65"),
        ({"processes": 0}, "processes = 0"),
        ({"processes": 100}, "processes = 100"),
        ({"parallel": "dp"}, "unknown parallel"),
        ({"parallel": "fsdp"}, "with one process"),
        ({"processes": 4, "batch_size": 3}, "batch_size = 3 for 4 processes"),
        ({"processes": 2, "device": "cuda:1"}, "is one GPU"),
        ({"processes": 2, "device": "mps"}, "is one GPU"),
        ({"processes": 2, "parallel": "fsdp", "compile": True}, "compile with"),
    ],
)
def test_settings_that_cannot_work_are_refused_when_they_are_read(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        TrainSettings(**wrong)
    assert error.value.advice


def refused(model: str = "cnn:small", **how: Any) -> str:
    with pytest.raises(ConfigError) as error:
        task_of(model, images(), TrainSettings(**{"device": "cpu", **how}))
    assert error.value.advice
    return str(error.value)


def test_channels_last_needs_a_convolution() -> None:
    assert "no convolution" in refused("mlp:64-8-3", channels_last=True)


class Scaled(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.factor, self.layer = nn.Parameter(torch.tensor(1.0)), nn.Linear(64, classes)


def scaled(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Scaled(classes)


def test_a_single_number_cannot_be_divided() -> None:
    said = refused("test_local_training:scaled", processes=2, parallel="fsdp")
    assert "factor is one number" in said


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "no C++ compiler" in refused(compile=True)


def test_a_precision_that_torch_cannot_compute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise RuntimeError("\"slow_conv2d_cpu\" not implemented for 'Half'\nand so on")

    monkeypatch.setattr(devices.functional, "conv2d", unknown)
    assert refused(precision="float16").endswith("not implemented for 'Half'")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds none here" in refused(device="cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "there are 2 GPUs" in refused(device="cuda:2")
    assert "torch finds 2 here" in refused(device="cuda", processes=3)


def test_the_keys_of_the_machine_are_keys_of_the_settings() -> None:
    assert set(OF_THE_MACHINE) < set(TrainSettings.__dataclass_fields__)
    assert {f"train.{key}" for key in OF_THE_MACHINE} < set(checkpoints.MAY_DIFFER)
