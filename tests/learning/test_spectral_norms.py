"""Models with spectral norms: u and v follow from the weights, and a mean of them is in no vector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import parametrizations

import fedgossip
from fedgossip.base.vectors import Vector, linear
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.own_loop.parameters import Exchanged

Norm = Callable[[nn.Module], nn.Module]
NORMS = [parametrizations.spectral_norm, torch.nn.utils.spectral_norm]
IDS = ["parametrization", "hook"]


def trained(norm: Norm, seed: int) -> nn.Module:
    """A model whose directions belong to its weights, by some forward passes."""
    torch.manual_seed(seed)
    model = nn.Sequential(norm(nn.Linear(6, 8)), nn.ReLU(), norm(nn.Conv1d(1, 4, 3)), nn.BatchNorm1d(4))
    for _ in range(30):
        model[2](model[0](torch.randn(5, 6)).unsqueeze(1))
    return model


def largest(layer: Any) -> float:
    layer.eval()
    layer(torch.randn(2, 6) if isinstance(layer, nn.Linear) else torch.randn(2, 1, 8))  # a hook makes the weight here
    return float(torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2))


def by_file(norm: Norm, models: list[nn.Module]) -> tuple[Vector, Callable[[nn.Module, Vector], None]]:
    layout = Layout.from_module(models[0])
    return linear(*((1 / len(models), layout.read(one)) for one in models)), layout.write


def by_loop(norm: Norm, models: list[nn.Module]) -> tuple[Vector, Callable[[nn.Module, Vector], None]]:
    mean = linear(*((1 / len(models), Exchanged(one).read()) for one in models))
    return mean, lambda model, vector: Exchanged(model).write(vector)


def by_change(norm: Norm, models: list[nn.Module]) -> tuple[Vector, Callable[[nn.Module, Vector], None]]:
    mean, _ = by_loop(norm, models)
    return mean, lambda model, vector: Exchanged(model).add(linear((1.0, vector), (-1.0, Exchanged(model).read())))


@pytest.mark.parametrize("norm", NORMS, ids=IDS)
@pytest.mark.parametrize("how", [by_file, by_loop, by_change])
def test_the_mean_of_models_has_the_spectral_norm_that_its_layers_promise(norm: Norm, how: Any) -> None:
    models = [trained(norm, seed) for seed in range(4)]
    mean, write = how(norm, models)
    fresh = trained(norm, 9)
    write(fresh, mean)
    assert largest(fresh[0]) == pytest.approx(1, abs=1e-3)
    assert largest(fresh[2]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("norm", NORMS, ids=IDS)
def test_directions_travel_in_no_vector_and_statistics_do(norm: Norm) -> None:
    names = Exchanged(trained(norm, 0)).layout.names
    assert not [name for name in names if name.endswith(("_u", "_v"))]
    assert "3.running_var" in names


OWN_MODEL = """
from torch import nn

def model(shape, outputs):
    norm = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(norm(nn.Linear(shape[0], 16)), nn.ReLU(), norm(nn.Linear(16, outputs)))
"""


def test_a_run_s_score_and_its_file_are_of_the_normalised_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "normed.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    content = {
        "rounds": 3,
        "topology": {"graph": "ring", "n": 4},
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.1}},
        "model": {"source": "normed:model"},
        "train": {"local_steps": 4, "lr": 0.5, "device": "cpu"},
    }
    runs = [fedgossip.simulate(content, out=tmp_path / engine, engine=engine) for engine in ("stacked", "sim")]
    assert runs[0].digest == runs[1].digest and runs[0].summary["score"] == runs[1].summary["score"]
    tensors = load_file(tmp_path / "sim" / "model" / "weights.safetensors")
    for layer in ("0", "2"):
        at = f"{layer}.parametrizations.weight"
        weight, u, v = (tensors[f"{at}.{end}"] for end in ("original", "0._u", "0._v"))
        assert float(u @ weight @ v) == pytest.approx(float(torch.linalg.matrix_norm(weight, 2)), rel=1e-3)
