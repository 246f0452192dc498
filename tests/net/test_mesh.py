"""One client whose processes have parts of the model: their steps are those of one process that has all of it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import commands
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file
from torch import nn

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Terms
from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.experiment import load_experiment
from fedgossip.learning.processes.engine import DistributedLoop
from fedgossip.learning.settings import MeshSettings
from fedgossip.learning.task import TorchTask, TrainSettings

STEP = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "clip_norm": 0.5}
ADAM = {"optimizer": "adam", "lr": 0.01}
CLOSE = 5e-6
"""float32 sums in another order; updates are about 0.3.  Adam divides by near zero: 2e-6 was seen, else 8e-7."""


def text() -> Dataset:
    """Windows of 8 characters out of 13: neither is a multiple of the other."""
    letters = np.random.default_rng(0).integers(0, 13, 900)
    windows = np.stack([letters[start : start + 9] for start in range(0, 800, 10)])
    return Dataset("letters", windows[:, :-1], windows[:, 1:], 13, vocabulary="abcdefghijklm")


def rows() -> Dataset:
    draw = np.random.default_rng(0)
    return Dataset("rows", draw.standard_normal((80, 20)).astype(np.float32), draw.integers(0, 7, 80), 7)


def task_of(model: str, *, processes: int = 1, mesh: Mapping[str, Any] | None = None, **how: Any) -> TorchTask:
    """A node of 70 examples, whose last batch of an epoch is smaller than the others."""
    data = text() if model.startswith("gpt") else rows()
    given = {"batch_size": 8, "local_epochs": 1, "device": "cpu", **how}
    settings = TrainSettings(processes=processes, mesh=MeshSettings(**(mesh or {})), **given)
    shares = [np.arange(70), np.arange(35, 80)]
    return TorchTask(data, data.subset(np.arange(30)), shares, model, settings, seed=1, rounds=9)


@contextmanager
def ended(task: TorchTask) -> Iterator[TorchTask]:
    """The task, whose processes are ended after its use."""
    try:
        yield task
    finally:
        assert isinstance(task._engine, DistributedLoop)
        if task._engine.standing.group:
            task._engine.standing.group.close()


def trained(task: TorchTask, round: int = 0, terms: Terms | None = None) -> npt.NDArray[np.floating]:
    (update,) = task.train([Job(0, round, task.initial(0), terms)])
    assert update.difference is not None
    return update.difference


def check_same(one: TorchTask, several: TorchTask) -> None:
    """Two rounds, the second with terms, what is remembered after them, a gradient, and what is evaluated."""
    correction = frozen(np.linspace(-0.1, 0.1, one.length).astype(np.float32))
    for round, terms in enumerate([None, Terms(0.3, correction)]):
        first, second = trained(one, round, terms), trained(several, round, terms)
        assert np.abs(first).max() > 0.01
        np.testing.assert_allclose(second, first, atol=CLOSE)
    check_states(one, several)
    moved = frozen(one.initial(0) + first)
    if not one.settings.stays:  # a gradient trains nothing, and what stays is trained
        job = Job(1, 2, one.initial(0), gradient=True)
        (alone,), (together,) = one.gradients([job]), several.gradients([job])
        assert alone.difference is not None and together.difference is not None
        np.testing.assert_allclose(together.difference, alone.difference, atol=CLOSE)
    assert several.evaluate([moved])[0] == pytest.approx(one.evaluate([moved])[0], rel=1e-5)


def check_states(one: TorchTask, several: TorchTask) -> None:
    first, second = one.state(0), several.state(0)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(second[name], first[name], atol=CLOSE)


# --- the same steps ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def divided() -> Iterator[TorchTask]:
    with ended(task_of("gpt:1-16-2", processes=2, mesh={"tensor": 2, "sequence": True}, **STEP)) as task:
        yield task


@pytest.mark.sockets
def test_two_processes_with_half_of_every_layer_take_the_steps_of_one(divided: TorchTask) -> None:
    check_same(task_of("gpt:1-16-2", **STEP), divided)


@pytest.mark.sockets
def test_two_processes_with_half_of_every_text_take_the_steps_of_one() -> None:
    """By a ring: gradients of keys and values go round with them."""
    with ended(task_of("gpt:1-16-2", processes=2, mesh={"context": 2}, **STEP)) as task:
        check_same(task_of("gpt:1-16-2", **STEP), task)


@pytest.mark.sockets
def test_what_an_optimiser_remembers_goes_from_one_mesh_to_another_and_back(divided: TorchTask) -> None:
    """A checkpoint knows no mesh: rounds on one process, on two, and on one again are those of one alone."""
    alone, one = task_of("gpt:1-16-2", **STEP), task_of("gpt:1-16-2", **STEP)
    expected = [trained(alone, round) for round in range(3)]
    found, state = [], {}
    for round, task in enumerate([one, divided, one]):
        task.load_state(0, state)
        found.append(trained(task, round))
        state = {name: np.array(array) for name, array in task.state(0).items()}
    np.testing.assert_allclose(found, expected, atol=CLOSE)
    assert np.abs(expected[2] - expected[0]).max() > 100 * CLOSE  # the momentum matters


MESHES = [
    ("mlp:20-16-12-7", 2, {"tensor": 2}, {}),
    ("softmax", 2, {"tensor": 2}, {}),
    ("gpt:2-16-2", 2, {"tensor": 2}, {"personal": "layer.*,blocks.1.asked*"}),
    ("gpt:2-16-2", 2, {"tensor": 2, "sequence": True}, ADAM),
    ("gpt:1-32-4", 4, {"tensor": 4}, {}),
    ("gpt:2-16-2", 4, {"data": 2, "tensor": 2}, {}),
    ("gpt:2-16-2", 4, {"tensor": 2, "sequence": True}, {"accumulate": 2}),
    ("gpt:2-16-2", 4, {"tensor": 2}, {"parallel": "fsdp"}),
    ("gpt:2-16-2", 4, {"tensor": 2, "sequence": True}, {"parallel": "fsdp", **ADAM}),
    ("mlp:20-16-12-7", 4, {"tensor": 2}, {"parallel": "fsdp", "personal": "layer3.*"}),
    ("gpt:2-16-2", 4, {"tensor": 2, "sequence": True}, {"parallel": "fsdp", "offload": True}),
    ("mesh_models:narrow", 4, {"tensor": 2}, {}),
    ("gpt:2-16-2", 2, {"pipeline": 2}, {"microbatches": 2}),
    ("mlp:20-16-12-7", 2, {"pipeline": 2, "schedule": "gpipe"}, {"personal": "layer3.*"}),
    ("gpt:2-16-2", 4, {"pipeline": 2}, {"microbatches": 2, **ADAM}),
    ("gpt:2-16-2", 4, {"pipeline": 2, "tensor": 2, "sequence": True}, {}),
    ("gpt:4-16-2", 4, {"pipeline": 4}, {}),
    ("mesh_models:halves", 2, {"pipeline": 2}, {}),
    ("gpt:2-16-2", 2, {"context": 2, "attention": "ulysses"}, ADAM),
    ("gpt:2-16-2", 4, {"context": 4}, {}),
    ("gpt:2-16-4", 4, {"context": 4, "attention": "ulysses"}, {}),
    ("gpt:2-16-2", 4, {"context": 2, "tensor": 2}, {}),
    ("gpt:2-16-2", 4, {"context": 2}, {"parallel": "fsdp"}),
    ("gpt:2-16-2?experts=4&top=2&capacity=0.6", 2, {"expert": 2}, {}),
    ("gpt:1-16-2?experts=2&top=2", 2, {"expert": 2}, ADAM),
    ("gpt:1-16-2?experts=4&top=1&capacity=0.5&balance=0.5", 4, {"expert": 4}, {}),
]


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("model", "processes", "mesh", "how"), MESHES)
def test_any_mesh_takes_the_steps_of_one_process(model: str, processes: int, mesh: Any, how: dict[str, Any]) -> None:
    given = how if "optimizer" in how else {**STEP, **how}
    of_several = ("parallel", "microbatches", "offload")
    one = task_of(model, **{name: value for name, value in given.items() if name not in of_several})
    with ended(task_of(model, processes=processes, mesh=mesh, **given)) as several:
        check_same(one, several)


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.timeout(900)
@pytest.mark.parametrize("attention", ["ring", "ulysses"])
@pytest.mark.parametrize("processes", [2, 4])
def test_texts_of_4096_places_are_divided_by_places(processes: int, attention: str) -> None:
    letters = np.random.default_rng(0).integers(0, 13, (4, 4097))
    data = Dataset("long", letters[:, :-1], letters[:, 1:], 13, vocabulary="abcdefghijklm")

    def update(**how: Any) -> npt.NDArray[np.floating]:
        settings = TrainSettings(batch_size=2, local_steps=1, lr=0.5, device="cpu", **how)
        task = TorchTask(data, data.subset(np.arange(1)), [np.arange(4)], "gpt:1-16-4", settings, seed=1, rounds=1)
        try:
            return trained(task)
        finally:
            task.end_processes()

    several = update(processes=processes, mesh=MeshSettings(context=processes, attention=attention))
    np.testing.assert_allclose(several, update(), atol=CLOSE / 10)


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.timeout(900)
def test_a_gossip_peer_may_be_a_mesh() -> None:
    """Three peers of two processes with half of every layer each, and three of one process: the models are the same."""
    from fedgossip import simulate

    def models(train: Mapping[str, Any]) -> list[npt.NDArray[np.floating]]:
        content = {
            "rounds": 3,
            "data": {"source": "digits"},
            "model": {"source": "mlp:64-32-10"},
            "train": {"device": "cpu", "local_steps": 3, **train},
            "topology": {"graph": "ring", "n": 3},
        }
        return [np.asarray(one) for one in simulate(load_experiment(content)).vectors]

    one, mesh = models({}), models({"processes": 2, "mesh": {"tensor": 2}})
    np.testing.assert_allclose(mesh, one, atol=1e-5)


def tied(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model whose first layer is its last too, so that no cut parts them."""
    layer = nn.Linear(shape[0], shape[0])
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], shape[0]), layer, nn.Tanh(), layer)


# --- what each process holds ------------------------------------------------------------------------------------------


def test_a_process_holds_its_share_of_a_transformer() -> None:
    """12 w w numbers of a block are divided, 4 w of its norms are not; 13 characters are 7 and 6."""
    task = task_of("gpt:2-16-2", processes=4, mesh={"tensor": 2, "pipeline": 2}, **ADAM)
    blocks, norms = 12 * 16 * 16 // 2, 4 * 16
    counts = [blocks + norms + 16 * letters for letters in (7, 6)]  # of the first stage, which embeds them
    counts += [blocks + norms + 16 * letters + 2 * 16 for letters in (7, 6)]
    assert [one.parameters for one in task.memory] == [4 * count for count in counts]
    assert [one.slots for one in task.memory] == [8 * count for count in counts]
    assert [(one.stage, one.shard) for one in task.memory] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(("attention", "copied"), [("ring", 0), ("ulysses", 2 * 16)])
def test_a_process_with_some_places_saves_its_share_and_the_logits_of_all(attention: str, copied: int) -> None:
    """Parameters are whole; of 8 places of 8 texts a process has 4, in a block of width 16 with 2 heads."""
    one = task_of("gpt:2-16-2", processes=2, mesh={"context": 2, "attention": attention}).memory
    whole = task_of("gpt:2-16-2", processes=2, batch_size=16, parallel="fsdp").memory
    block, end = 4 * 16 + 15 * 16 + 2 + 4, 2 * 16 + 2
    assert whole[0].activations == 4 * 8 * 8 * (2 * block + end + 13)
    assert [each.activations for each in one] == 2 * [4 * 8 * (4 * (2 * (block - copied) + end) + 8 * 13)]
    assert one[0].parameters == sum(each.parameters for each in whole)


def test_a_process_with_some_experts_has_all_other_parameters() -> None:
    """Of 4 experts of 8 w w numbers in each of 2 blocks one of 2 processes has 2."""
    two, four = (task_of("gpt:2-16-2?experts=4", processes=n, mesh={"expert": n}).memory for n in (2, 4))
    assert {a.parameters - b.parameters for a in two for b in four} == {4 * 2 * 8 * 16 * 16}


def test_a_mesh_without_parts_of_texts_keeps_its_hash() -> None:
    content = {"topology": {"graph": "ring", "n": 2}, "train": {"processes": 2, "mesh": {"tensor": 2}}}
    assert not {"context", "expert"} & load_experiment(content).to_dict()["train"]["mesh"].keys()


def test_rows_of_what_processes_have_in_common_add_up_to_it() -> None:
    how: dict[str, Any] = {"processes": 6, "mesh": {"tensor": 2}, "batch_size": 12, **STEP}
    copies, rows = task_of("gpt:2-16-2", **how).memory, task_of("gpt:2-16-2", **how, parallel="fsdp").memory
    assert 3 * sum(one.parameters for one in rows) == sum(one.parameters for one in copies)
    assert all(one.slots == one.parameters for one in rows)


def test_a_stage_remembers_the_pieces_that_are_not_back_yet() -> None:
    """One block each of four: as pieces, 4 of 8 at the first and 1 at the last, and 8 everywhere by gpipe."""
    how: dict[str, Any] = {"processes": 4, "batch_size": 16, "microbatches": 8}
    early, late = (
        [one.activations or 0 for one in task_of("gpt:4-16-2", mesh={"pipeline": 4, "schedule": name}, **how).memory]
        for name in ("1f1b", "gpipe")
    )
    piece = 4 * 2 * 8 * (4 * 16 + 15 * 16 + 2 + 4)  # bytes, rows, places, and a block of width 16 with 2 heads
    end = 4 * 2 * 8 * (2 * 16 + 2 + 13)
    assert early == [4 * piece, 3 * piece, 2 * piece, piece + end] and late == [8 * piece] * 3 + [8 * (piece + end)]
    few = task_of("gpt:4-16-2", mesh={"pipeline": 4}, **{**how, "microbatches": 2}).memory
    assert few[0].activations == 2 * 4 * piece, "with fewer pieces than stages torch has gpipe alone"


def test_rows_by_fsdp_alone_are_told_too_and_a_weight_that_two_layers_share_once() -> None:
    """20 x 16 and 16 x 7 with biases, of two processes: torch's chunks of 16 and 7 rows, 7 as 4 and 3."""
    memory = task_of("mlp:20-16-7", processes=2, parallel="fsdp", **ADAM).memory
    counts = [8 * 21 + 4 * 17, 8 * 21 + 3 * 17]
    assert [one.parameters for one in memory] == [4 * count for count in counts]
    memory = task_of("test_mesh:tied", processes=2, parallel="fsdp").memory
    assert [one.parameters for one in memory] == [4 * 2 * 10 * 21] * 2


def test_all_parameters_of_a_tensor_part_are_together_between_the_passes_by_zero_2() -> None:
    how: dict[str, Any] = {"processes": 4, "mesh": {"tensor": 2}, "parallel": "fsdp", "batch_size": 12}
    rows, kept = task_of("gpt:2-16-2", **how).memory, task_of("gpt:2-16-2", **how, zero=2).memory
    copies = task_of("gpt:2-16-2", **{**how, "parallel": "ddp"}).memory
    assert [one.parameters for one in kept] == [one.parameters for one in rows]
    assert [one.together for one in kept] == [one.parameters for one in copies] and not any(
        one.together for one in (*rows, *copies)
    )


def test_a_dry_run_says_what_offloading_keeps_where(tmp_path: Path) -> None:
    content = """
rounds = 1
data = { source = "digits" }
model = { source = "mlp:64-32-10" }
train = { momentum = 0.9, processes = 2, parallel = "fsdp", offload = true, zero = 2, device = "cpu" }
topology = { graph = "ring", n = 3 }
"""
    (tmp_path / "offload.toml").write_text(content)
    said = commands.typed(["run", "offload.toml", "--dry-run"], tmp_path)
    held = 4 * (16 * 65 + 5 * 33)
    assert f"parameters {held:,}, gradients as many, slots {held:,}" in said.out, said
    assert f"between its passes all parameters too, {4 * (32 * 65 + 10 * 33):,} bytes" in said.out
    assert "parameters, gradients and slots in host memory" in said.out and "nothing is gained" in said.out


def test_a_dry_run_says_what_the_fullest_process_holds(tmp_path: Path) -> None:
    content = """
rounds = 1
data = { source = "digits" }
model = { source = "mlp:64-32-10" }
train = { momentum = 0.9, processes = 4, mesh = { data = 2, tensor = 2 }, device = "cpu" }
topology = { graph = "ring", n = 3 }
"""
    (tmp_path / "mesh.toml").write_text(content)
    said = commands.typed(["run", "mesh.toml", "--dry-run"], tmp_path)
    held = 4 * (16 * 65 + 10 * 17)  # half of 32 outputs of 64 and a bias; half of 32 inputs for each of 10, and theirs
    assert f"fullest of 4 processes of a learner holds, in bytes: parameters {held:,}" in said.out, said
    assert f"slots {held:,}, activations not counted" in said.out


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.timeout(900)
def test_what_processes_hold_is_what_is_said_of_them() -> None:
    """Bytes of tensors, counted in the processes; the tables of angles are not counted."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        from mesh_memory import MESHES as SHOWN
        from mesh_memory import held

        shown = [("gpt:2-64-4", *one) for one in (*SHOWN[1:4], *SHOWN[6:8], *SHOWN[-2:])]
        shown.append(("gpt:2-64-4?experts=2&top=2&capacity=1", 2, {"expert": 2}, "ddp"))
        for model, processes, mesh, parallel in shown:
            measured, told = held(model, processes, mesh, parallel)
            for one, other in zip(measured, told, strict=True):
                assert (one["parameters"], one["slots"]) == (other.parameters, other.slots)
                assert one["together"] == other.together
                assert one["activations"] == pytest.approx(other.activations, rel=0.03)
    finally:
        del sys.path[0]


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.timeout(900)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_goes_on_with_another_mesh_by_the_command(optimizer: str, tmp_path: Path) -> None:
    """Two rounds as 2 x 1, two more as stages, two more as one process: the model of six rounds of one process."""
    content = f'''
rounds = 2
data = {{ source = "digits" }}
model = {{ source = "mlp:64-32-10" }}
train = {{ device = "cpu", local_steps = 5, lr = 0.01, optimizer = "{optimizer}" }}
topology = {{ graph = "ring", n = 3 }}
'''
    (tmp_path / "mesh.toml").write_text(content)
    how = ["--set", "train.momentum=0.9"] if optimizer == "sgd" else []
    whole = ["run", "mesh.toml", "--no-report", *how]
    axes = ("train.processes", "train.mesh.tensor", "train.mesh.pipeline")
    meshes = [
        [f"{axis}={size}" for axis, size in zip(axes, one, strict=True)] for one in ((2, 2, 1), (2, 1, 2), (1, 1, 1))
    ]
    assert commands.typed([*whole, "--out", "alone", "--set", "rounds=6"], tmp_path).code == 0
    for number, mesh in enumerate(meshes):
        first = [*whole, "--out", "run"] if number == 0 else ["run", "--resume", "run", "--no-report"]
        words = [word for key in (f"rounds={2 * number + 2}", *mesh) for word in ("--set", key)]
        said = commands.typed([*first, *words], tmp_path)
        assert said.code == 0, said
    alone, found = (load_file(tmp_path / run / "model" / "weights.safetensors") for run in ("alone", "run"))
    assert alone.keys() == found.keys()
    for name in alone:
        np.testing.assert_allclose(found[name], alone[name], atol=1e-5)


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_a_process_of_a_mesh_that_is_killed_is_named(divided: TorchTask) -> None:
    """Last of those that use the group: it is gone afterwards, and the next job starts another."""
    divided.evaluate([divided.initial(0)])
    assert isinstance(divided._engine, DistributedLoop) and divided._engine.standing.group
    running = divided._engine.standing.group._processes
    running[1].send_signal(signal.SIGKILL)
    with pytest.raises(TrainingError, match="process 1 of 2 was ended by SIGKILL"):
        divided.train([Job(0, 5, divided.initial(0))])
    assert all(process.returncode is not None for process in running) and divided._engine.standing.group is None


@pytest.mark.long
@pytest.mark.sockets
def test_the_job_after_a_death_has_a_new_mesh() -> None:
    with ended(task_of("mlp:20-16-7", processes=2, mesh={"tensor": 2})) as task:
        task.evaluate([task.initial(0)])
        assert isinstance(task._engine, DistributedLoop) and task._engine.standing.group
        task._engine.standing.group._processes[0].kill()
        with pytest.raises(TrainingError):
            trained(task)
        np.testing.assert_allclose(trained(task), trained(task_of("mlp:20-16-7")), atol=CLOSE)


@pytest.mark.parametrize(
    ("how", "text", "advice"),
    [
        ({"processes": 4, "mesh": {"data": 1, "tensor": 2}}, "for processes = 4", "set processes = 2"),
        ({"processes": 3, "mesh": {"tensor": 2}}, "for processes = 3", "set processes = 2"),
        ({"mesh": {"tensor": 2}}, "for processes = 1", "set processes = 2"),
        ({"processes": 2, "mesh": {"sequence": True}}, "without mesh.tensor", "2 or more"),
        ({"processes": 2, "mesh": {"tensor": 0}}, "mesh.tensor = 0", "at least 1"),
        ({"processes": 2, "mesh": {"schedule": "zero"}}, "unknown mesh.schedule", "gpipe"),
        ({"processes": 2, "mesh": {"tensor": 2}, "parallel": "hogwild"}, "whole model", "ddp"),
        ({"processes": 2, "mesh": {"tensor": 2}, "optimizer": "lars"}, "whole layer", "another optimizer"),
        ({"processes": 2, "mesh": {"tensor": 2}, "precision": "bfloat16"}, "bfloat16", "Leave precision out"),
        (
            {"processes": 2, "mesh": {"pipeline": 2}, "precision": "float16"},
            "float16.* with mesh.pipe",
            "Leave precision",
        ),
        ({"processes": 4, "mesh": {"pipeline": 2}, "parallel": "fsdp"}, "out of step", "its stage alone"),
        ({"processes": 2, "mesh": {"tensor": 2}, "channels_last": True}, "channels_last", "Leave channels_last out"),
        ({"processes": 2, "mesh": {"tensor": 2}, "offload": True}, "offload with parallel = 'ddp'", "fsdp"),
        ({"processes": 2, "parallel": "hogwild", "offload": True}, "offload with parallel = 'hogwild'", "fsdp"),
        ({"parallel": "fsdp", "offload": True}, "with one process", "processes = 2"),
        ({"processes": 2, "zero": 2}, "zero = 2 with parallel = 'ddp'", "fsdp"),
        ({"processes": 2, "parallel": "fsdp", "zero": 1}, "zero = 1", "at least 2, at most 3"),
        ({"processes": 3, "mesh": {"context": 2}}, r"for processes = 3", "set processes = 2"),
        ({"processes": 2, "mesh": {"attention": "ulysses"}}, "without mesh.context", "2 or more"),
        ({"processes": 2, "mesh": {"context": 2, "attention": "rings"}}, "unknown mesh.attention", "ring"),
        ({"processes": 4, "mesh": {"context": 2, "pipeline": 2}}, "mesh.context with mesh.pipeline", "Leave one"),
        (
            {"processes": 4, "mesh": {"context": 2, "tensor": 2, "sequence": True}},
            "context with mesh.sequence",
            "Leave one",
        ),
        ({"processes": 4, "mesh": {"expert": 2, "tensor": 2}}, "mesh.expert with mesh.tensor", "Leave tensor out"),
        ({"processes": 4, "mesh": {"expert": 2}}, "expert = 2 with processes = 4", "Set processes = 2"),
        ({"processes": 2, "mesh": {"expert": 2}, "parallel": "fsdp"}, 'with parallel = "fsdp"', "ddp"),
        ({"processes": 2, "mesh": {"expert": 2}, "optimizer": "lamb"}, "lamb with mesh.expert", "another optimizer"),
        ({"processes": 2, "mesh": {"context": 2}, "optimizer": "lars"}, "lars with mesh.context", "another optimizer"),
        ({"processes": 2, "mesh": {"pipeline": 2}, "batch_size": 10}, "10 for 1 x 4 microbatches", "batch_size to 12"),
        ({"processes": 2, "mesh": {"tensor": 2}, "compile": True}, "compile", "Leave compile out"),
    ],
)
def test_settings_that_do_not_fit_a_mesh_are_refused(how: dict[str, Any], text: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        load_experiment({"topology": {"graph": "ring", "n": 2}, "train": how})
    assert advice in error.value.advice


@pytest.mark.parametrize(
    ("model", "mesh", "text", "advice"),
    [
        ("gpt:1-12-3", {"tensor": 2}, "2 for 3 heads", "multiple of 2"),
        ("gpt:1-36-3", {"tensor": 3, "sequence": True}, "8 places of a text for 3", "multiple of 3"),
        ("mlp:20-15-7", {"tensor": 2}, "the layer 'layer1' has 15 outputs", "multiple of 2"),
        ("mlp:20-16-7", {"tensor": 2, "sequence": True}, "no places of a text", "gpt"),
        ("test_distributed:partly", {"tensor": 2}, "no plan of its layers", "parallel_plan"),
        ("gpt:1-16-2", {"pipeline": 2}, "has 1 blocks", "pipeline to 1"),
        ("mlp:20-7", {"pipeline": 2}, "has 1 layers with weights", "pipeline to 1"),
        ("test_distributed:partly", {"pipeline": 2}, "has the buffer layers.1.0.running_mean", "BatchNorm"),
        ("test_mesh:tied", {"pipeline": 2}, "2.weight is in 2 of the stages", "stages"),
        ("mlp:20-16-7", {"context": 2}, "no attention over places", "gpt"),
        ("gpt:1-18-3", {"context": 3}, "by ring: 8 places of a text in 6 pieces", "multiple of 6"),
        ("gpt:1-18-3", {"context": 3, "attention": "ulysses"}, "8 places of a text in 3 pieces", "multiple of 3"),
        ("gpt:1-18-3", {"context": 2, "attention": "ulysses"}, "3 heads for 2 processes", "ring"),
        ("mesh_models:narrow", {"tensor": 2, "sequence": True}, "knows no sequence", "parallel_plan"),
        ("gpt:1-16-2", {"expert": 2}, "has no experts", "experts=4"),
        ("gpt:1-16-2?experts=3", {"expert": 2}, "has 3 experts", "multiple of 2"),
    ],
)
def test_models_that_cannot_be_divided_are_refused(model: str, mesh: dict[str, Any], text: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        task_of(model, processes=mesh.get("tensor", mesh.get("context", 2)), mesh=mesh)
    assert advice in error.value.advice
