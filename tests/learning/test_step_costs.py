"""A step inside a participant: its FLOPs, seconds, bytes and memory are those of the closed forms."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed

from fedgossip import load_experiment, simulate
from fedgossip.base.errors import ConfigError
from fedgossip.core.run_summary import StepFacts
from fedgossip.data.objectives import Objective
from fedgossip.lab.compare.measured import setting_of
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.processes.step_costs import StepShape, batch_of
from fedgossip.learning.task import TorchTask
from fedgossip.plans import compose
from fedgossip.runs.summary import inside_facts

A, B, F = 1e-4, 1e8, 1e8
BATCH = 32
LAYERS = 64 * 128, 128 * 64, 64 * 10
FLOPS = 4 * LAYERS[0] + 6 * (LAYERS[1] + LAYERS[2])
"""Of an example: a multiplication and a sum for each weight, forward, and for both gradients; the input has none."""
BYTES = 4 * (65 * 128 + 129 * 64 + 65 * 10)


def content(**train: Any) -> dict[str, Any]:
    return {
        "rounds": 2, "topology": {"graph": "ring", "n": 2}, "model": {"source": "mlp:64-128-64-10"},
        "train": {"device": "cpu", "local_steps": 3, "batch_size": BATCH, "microbatches": 4, **train},
        "simulation": {"latency": 0.0, "inside": {"flops": F, "latency": A, "bandwidth": B}},
    }  # fmt: skip


def task_and_step(**train: Any) -> tuple[TorchTask, StepFacts]:
    plan = compose.plan(load_experiment(content(**train)))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    step = compose.step_inside(plan.experiment, task)
    assert isinstance(task, TorchTask) and step is not None
    return task, step


def ring(n: int, size: float) -> float:
    return 2 * (n - 1) * (A + size / n / B)


def test_the_virtual_time_of_a_run_is_that_of_its_steps_and_the_cost_model_has_it_too() -> None:
    found = simulate(content())
    step, seconds = found.summary["inside"], BATCH * FLOPS / F
    assert step["flops"] == BATCH * FLOPS and step["seconds"] == step["work"] == pytest.approx(seconds)
    assert found.summary["seconds"] == pytest.approx(2 * 3 * seconds, rel=1e-6)
    plan = compose.plan(load_experiment(content(processes=2)))  # the rows of a run are those of its mesh
    facts = inside_facts(plan, task_and_step(processes=2)[0], "sim", (100, 100), found.rows)
    assert facts["inside_bytes"] == 2 * 3 * BYTES and found.summary["inside_bytes"] == 0
    setting = setting_of(load_experiment(content()), BYTES, 4, step)
    assert setting is not None and setting.times.known == pytest.approx((3 * seconds,) * 2)


def test_parts_of_a_batch_send_their_gradients_and_zero_its_rows_by_the_closed_forms() -> None:
    for processes in (2, 4):
        _, step = task_and_step(processes=processes)
        assert step["work"] == pytest.approx(BATCH * FLOPS / F / processes) and step["idle"] == 0
        assert step["messages"] == {"data": pytest.approx(ring(processes, BYTES))}
        assert step["sent"] == {"data": pytest.approx(2 * (processes - 1) / processes * BYTES)}
        for zero, times in ((2, 2), (3, 3)):
            _, rows = task_and_step(processes=processes, parallel="fsdp", zero=zero)
            assert rows["sent"] == {"data": pytest.approx(times * (processes - 1) / processes * BYTES)}
            assert rows["by_way"] == step["by_way"] and rows["memory"] == step["by_way"][f"fsdp, zero {zero}"]
    each = max(
        -(-rows // 4) * wide for rows, wide in ((128, 65), (64, 129), (10, 65))
    )  # an even share, but for rounding
    assert step["by_way"]["ddp"] == 2 * BYTES and step["by_way"]["fsdp, zero 3"] <= 2 * BYTES / 4 + 8 * each / 4
    assert step["by_way"]["fsdp, zero 2"] == step["by_way"]["fsdp, zero 3"] + BYTES


def test_copies_pass_pcie_and_zero_1_divides_the_slots() -> None:
    given = content(processes=2, parallel="fsdp", offload=True)
    with pytest.raises(ConfigError, match=r"its copies need inside\.pcie"):
        simulate(given)
    given["simulation"]["inside"]["pcie"] = 1e6
    plan = compose.plan(load_experiment(given))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    step, without = compose.step_inside(plan.experiment, task), task_and_step(processes=2, parallel="fsdp")[1]
    assert step is not None and step["copied"] == 3 * BYTES / 2, "rows there for both passes, gradients back"
    assert step["messages"]["offload"] == pytest.approx(3 * BYTES / 2 / 1e6) and step["memory"] == 0
    assert step["seconds"] == pytest.approx(without["seconds"] + 3 * BYTES / 2 / 1e6)
    given = content(processes=2, optimizer="adam")
    del given["simulation"]["inside"]["bandwidth"]
    given["simulation"]["inside"]["links"] = "nvlink4"
    given["simulation"]["inside"] |= {"zero": 1, "memory": 3 * BYTES}
    plan = compose.plan(load_experiment(given))
    step = compose.step_inside(plan.experiment, compose.task_of(plan.experiment, plan.learners)[0])
    assert step is not None and step["memory"] == 3 * BYTES, "parameters, gradients, and half of two moments"
    assert step["messages"]["data"] == pytest.approx(2 * (A + BYTES / 2 / 450e9)), "900 GB/s of an H100, both ways"
    assert step["by_way"] == {
        "ddp": 4 * BYTES,
        "zero 1": 3 * BYTES,
        "fsdp, zero 2": 3 * BYTES,
        "fsdp, zero 3": 2 * BYTES,
    }


def test_divided_layers_send_their_sums_and_stages_their_pieces() -> None:
    _, step = task_and_step(processes=2, mesh={"tensor": 2})
    row = 4 * BATCH
    sums = ring(2, 64 * row) + ring(2, 64 * row) + A + 10 * row / 2 / B  # forward, back, and the gathered outputs
    assert step["messages"]["tensor"] == pytest.approx(sums)
    assert step["sent"]["tensor"] == pytest.approx(2 * 64 * row + 10 * row / 2)
    _, step = task_and_step(processes=2, mesh={"pipeline": 2})
    longest = BATCH / 4 * (4 * LAYERS[0] + 6 * LAYERS[1]) / F
    assert step["work"] + step["idle"] == pytest.approx(5 * longest), "4 pieces through 2 stages"
    assert step["messages"]["pipeline"] == pytest.approx(2 * 4 * (A + BATCH / 4 * 4 * 64 / B))
    assert step["sent"]["pipeline"] == 2 * BATCH * 4 * 64, "each piece there, or its gradient back"


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("pieces", [2, 8])
def test_the_idle_share_of_equal_stages_is_that_of_the_bubble(schedule: str, pieces: int) -> None:
    task, _ = task_and_step(processes=2, mesh={"pipeline": 2, "schedule": schedule}, microbatches=pieces)
    shape = task.step_shape()
    times = replace(shape, flops=(shape.whole_flops / 2,) * 2).times(lambda rows: rows / 1000, task_links())
    assert times.idle / (times.idle + times.work) == pytest.approx(1 / (1 + pieces))
    assert times.work == pytest.approx(BATCH / 1000 / 2)


def task_links() -> Any:
    from fedgossip.algorithms.collectives.names import EqualLinks
    from fedgossip.learning.processes.step_costs import AXES

    return dict.fromkeys(AXES, EqualLinks(A, B, B))


def test_the_flops_of_a_transformer_are_those_of_its_matrices_and_of_attention(tmp_path: Path) -> None:
    text = tmp_path / "play.txt"
    text.write_text("".join(f"A{k}:\n{'to be or not to be, ' * 20}\n\n" for k in range(4)))
    given = content() | {"data": {"source": f"text:{text}?context=16&min_chars=40"}, "model": {"source": "gpt:2-16-4"}}
    plan = compose.plan(load_experiment(given))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    assert isinstance(task, TorchTask)
    shape, width, places = task.step_shape(), 16, 16
    block = 12 * width**2 + 2 * places * width  # four matrices of attention, eight of the inner width; scores and sums
    assert shape.whole_flops == 6 * places * (2 * block + width * shape.logits)


def shape_of_experts(tmp_path: Path, model: str, **train: Any) -> tuple[StepShape, TorchTask]:
    """16 places of a text, 8 texts a batch, a width of 16."""
    text = tmp_path / "play.txt"
    text.write_text("".join(f"A{k}:\n{'to be or not to be, ' * 20}\n\n" for k in range(4)))
    given = content(batch_size=8, **train) | {"data": {"source": f"text:{text}?context=16&min_chars=40"}}
    plan = compose.plan(load_experiment(given | {"model": {"source": model}}))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    assert isinstance(task, TorchTask)
    return task.step_shape(), task


def test_positions_travel_to_their_experts_by_the_closed_forms(tmp_path: Path) -> None:
    """Of 4 experts of a block a position uses 2, and a process has 2; the router's products are of all 4."""
    source, w, n, top, places = "gpt:2-16-4?experts=4&top=2", 16, 4, 2, 16
    alone = shape_of_experts(tmp_path, source)[0]
    block = 4 * w**2 + 2 * places * w + n * w + top * 8 * w**2
    assert alone.whole_flops == 6 * places * (2 * block + w * alone.logits)
    shape = shape_of_experts(tmp_path, source, processes=2, mesh={"expert": 2})[0]
    times = shape.times(lambda rows: rows / 1000, task_links())
    assert times.work == pytest.approx(0.004) and times.idle == 0
    own = 4 * places  # a process's positions
    exchange = A + 4 * own * top * w / 2 / B
    letters = A + 4 * own * shape.logits / B
    common = 4 * (2 * (4 * w**2 + 4 * w + n * w) + 2 * w * shape.logits + 2 * w)
    each = A + 8 * n / B + ring(2, 4 * n) + 4 * exchange
    assert times.messages == {"expert": pytest.approx(2 * each + letters + ring(2, common))}
    assert shape.common == common and shape.held == common + 4 * 2 * 2 * 8 * w**2


@pytest.mark.parametrize("source", ["gpt:2-16-2?experts=2&top=2&capacity=1", "gpt:2-16-2?experts=1", "gpt:2-16-2"])
def test_a_block_saves_the_counted_activations(source: str, tmp_path: Path) -> None:
    """With all experts at every position the bound of the capacity is the number; bytes of whole pieces of memory."""
    shape, task = shape_of_experts(tmp_path, source)
    module, saved = task._remade().train(), dict[int, torch.Tensor]()
    weights = {one.untyped_storage().data_ptr() for one in module.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if tensor.is_floating_point() and memory.data_ptr() not in weights:
            saved[memory.data_ptr()] = tensor.detach()
        return tensor

    x, y = batch_of(task._recipe.like, 8)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        Criterion(Objective()).mean(module(x), y)
    assert sum(one.untyped_storage().nbytes() for one in saved.values()) == pytest.approx(
        shape.fullest.activations, rel=0.03
    )


def test_experts_save_no_more_than_their_capacity_admits(tmp_path: Path) -> None:
    """8 texts of 16 places, 2 uses each: an expert of 4 takes 32 of 256 at half of an even share, one of 2 too."""
    source, w, n, top = "gpt:1-16-2?experts=4&top=2&capacity=0.5", 16, 4, 2
    one = shape_of_experts(tmp_path, source)[0].fullest.activations
    dense = shape_of_experts(tmp_path, "gpt:1-16-2")[0].fullest.activations
    assert one is not None and dense is not None
    assert one - dense == 4 * (128 * (n + top + 1 - 8 * w) + 128 * (11 * w + 1))
    two = shape_of_experts(tmp_path, source, processes=2, mesh={"expert": 2})[0].fullest.activations
    letters = 4 * 64 * shape_of_experts(tmp_path, source)[0].logits
    more = (
        64 * (2 * w + 1) + 64 * w
    )  # positions of one process may fill all experts; results that travel are saved twice
    assert two == one // 2 + letters + 4 * more


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"simulation.inside.memory": 1000},
            f"a process holds {2 * BYTES:,} bytes, more than simulation.inside.memory = 1,000",
        ),
        ({"simulation.per_example": 1.0}, "simulation.inside with simulation.per_example"),
        ({"task.kind": "quadratic", "model.source": None}, "torch trains no model by it"),
        ({"train.processes": 2, "train.parallel": "hogwild"}, "its processes take no step together"),
        ({"simulation.inside.links": "pcie5"}, "with links and bandwidth"),
        ({"simulation.inside.links": "nvlnk4"}, "nvlnk4"),
        ({"simulation.inside.zero": 1}, "inside with zero = 1"),
        ({"train.processes": 2, "train.accumulate": 2}, "with accumulate"),
        ({"simulation.inside.flops": 0}, "simulation.inside.flops"),
        ({"simulation.inside.flops": None}, "simulation.inside without flops"),
    ],
)
def test_steps_that_have_no_time_and_meshes_that_do_not_fit_are_refused(keys: dict[str, Any], told: str) -> None:
    given = content()
    for key, value in keys.items():
        at = given
        for part in key.split(".")[:-1]:
            at = at.setdefault(part, {})
        at[key.split(".")[-1]] = value
        if value is None:
            del at[key.split(".")[-1]]
    with pytest.raises(ConfigError, match=told):
        simulate(given)


PAGE = (Path(__file__).parents[2] / "docs" / "together" / "parallel.md").read_text()
SHOWN = r"^\| `(\{.*\})` \| (\d) \| ([\d.]+) ms \| ([\d.]+) ms \| ([\d.]+) ms \| ([\d.]+) ms \| ([\d,]+) B \|"


def test_the_documents_steps_are_those_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "mesh.toml").write_text(PAGE.split("<!-- file: mesh.toml -->\n```toml\n")[1].split("```")[0])
    shown = re.findall(SHOWN, PAGE, re.MULTILINE)
    assert len(shown) == 5
    for mesh, processes, *figures, sent in shown:
        words = ["--set", f"train.mesh={mesh}", "--set", f"train.processes={processes}", "--set", "train.device=cpu"]
        said = typed(["run", "mesh.toml", "--dry-run", "--json", *words], tmp_path)
        step = json.loads(said.out)["inside"]
        found = step["seconds"], step["work"], step["idle"], sum(step["messages"].values())
        assert [f"{1000 * seconds:.3g}" for seconds in found] == figures
        assert f"{sum(step['sent'].values()):,.0f}" == sent


def test_the_dry_run_prints_the_step_and_what_each_stage_and_each_way_holds(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(
        'model = { source = "mlp:64-128-64-10" }\ntopology = { graph = "ring", n = 2 }\n'
        'train = { device = "cpu", processes = 4, mesh = { data = 2, pipeline = 2 } }\n'
        "simulation = { inside = { flops = 1e8 } }\n"
    )
    said = typed(["run", "e.toml", "--dry-run"], tmp_path)
    first, second = 2 * 4 * (65 * 128 + 129 * 64), 2 * 4 * 65 * 10
    assert said.code == 0 and f"by stage, in bytes: {first:,}, {second:,}" in said.out, said.err
    assert "a step inside a participant: " in said.out and f"in bytes: by ddp {first:,}" in said.out
    (tmp_path / "d.toml").write_text(
        'model = { source = "mlp:64-128-64-10" }\ntopology = { graph = "ring", n = 2 }\n'
        'train = { device = "cpu", processes = 2, momentum = 0.9 }\n'
    )
    held = f"by ddp {3 * BYTES:,}; by zero 1 {5 * BYTES // 2:,}; by fsdp, zero 2"
    assert held in typed(["run", "d.toml", "--dry-run"], tmp_path).out, "by stage, without simulation.inside too"
