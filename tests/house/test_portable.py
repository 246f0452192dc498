"""Portable runs: digests, and hashes of every operation that engines use, as other processors have computed them.

Here expectations do come from outputs, for that is the promise: what one machine computed, every x86-64 machine does.
A processor, or a torch, that breaks it is told by the name of the operation.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from portable_runs import ON_MNIST, OPERATIONS, RUNS

from fedgossip.base import kernels
from fedgossip.learning.one_model import optimizers
from fedgossip.learning.one_model.devices import _flags

pytestmark = pytest.mark.sockets

LEARNING = Path(optimizers.__file__).parent

ON_AMD_AND_INTEL = {
    "softmax": "c2aeb3d74e7e",
    "mlp:64-32-10": "5e135de41fca",
    "mlp:64-33-17-10": "eef53fa19e28",
    "cnn:small": "dbce31529528",
}
"""What an AMD EPYC (Zen 5; torch 2.13, NumPy 2.4) and an Intel Xeon (torch 2.11, NumPy 2.5) both came to, and another
Xeon (torch 2.13, NumPy 2.4)."""

ON_INTEL = {
    "adam": "c2d0463f430e",
    "momentum": "41ebeb0a8480",
    "table": "602c8e2fc17e",
    "batch norm": "1dde4e99300f",
}
"""What the last of these came to, with NumPy's and oneDNN's instruction sets restricted to SSE4 and without."""

OF_OPERATIONS = {
    "bmm, baddbmm of one": "49ca6034e357",
    "bmm, baddbmm of eight": "135d58145225",
    "linear": "e4e130e62181",
    "convolution 3x3": "52a87264da6a",
    "convolution 5x5, stride 2": "945fd25d3343",
    "convolution, one dimension": "60ada3bda929",
    "max pooling": "3cc912082ce5",
    "average pooling": "bc7c4e8b4c60",
    "batch norm": "32323bd600c6",
    "batch norm, evaluated": "88f71f3b43ea",
    "layer norm": "7c8533743440",
    "group norm": "3d36f50c320b",
    "embedding": "788ce93778a0",
    "GRU": "bf995d491c8a",
    "LSTM": "02cc07ddc63f",
    "attention": "c24f74e76ea8",
    "softmax": "a5da08395f9d",
    "log softmax": "910099e0c218",
    "cross entropy": "361098cd12af",
    "ReLU": "9a199d4bf6f9",
    "GELU": "ff0a2fc056eb",
    "SiLU": "8e2379059faf",
    "sigmoid": "fa3ae08a8d86",
    "tanh": "34bd87adcd8f",
    "exp": "22cce39efa84",
    "log": "d2eab8548392",
    "reciprocal": "b32a3fb980b6",
    "rsqrt": "fb0c4adc731e",
    "square_root": "6b249212a9ae",
    "sums": "ffc15df1d89b",
    "means, variances": "4a1d10fdd384",
    "dot": "dc0cea8463f7",
    "sgd": "f646f0185cfd",
    "sgd with momentum": "d16d3a84760a",
    "adam": "4ded9ea8b85d",
    "clipping": "979970d342b7",
    "clipping per example": "d28ffa8120a9",
    "uniform draws": "1101481b8de7",
    "normal draws": "b19682e2c562",
    "dropout": "2e59d384ae29",
    "mixing": "0b89cbff9b2f",
}


@pytest.fixture(scope="module")
def found(data_folder: Path) -> dict[str, dict[str, str]]:
    """What a portable process of this machine comes to."""
    if platform.machine() not in kernels.X86 or "avx2" not in _flags():
        pytest.skip("portable runs are for x86-64 processors with AVX2")
    path = os.pathsep.join(part for part in sys.path if part)
    data = {"FEDGOSSIP_DATA": str(data_folder)} if (data_folder / "mnist").is_dir() else {}
    clean = {name: value for name, value in os.environ.items() if name != "FEDGOSSIP_DATA"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "portable_runs.py")],
        env={**clean, **data, **kernels.PORTABLE, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert not done.returncode, done.stderr
    told: dict[str, dict[str, str]] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("name", RUNS)
def test_a_portable_run_has_one_digest_on_every_processor(name, found):
    assert found["runs"][name] == {**ON_AMD_AND_INTEL, **ON_INTEL}[name]


@pytest.mark.parametrize("name", ON_MNIST)
def test_a_portable_run_of_images_has_one_digest_on_every_processor(name, found, real_data):
    assert found["runs"][name] == ON_AMD_AND_INTEL[name]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_portable_operation_has_one_hash_on_every_processor(name, found):
    here = f"{kernels.processor()}, torch {torch.__version__}, numpy {np.__version__}"
    assert found["operations"][name] == OF_OPERATIONS[name], f"{name} differs on {here}"


# --- roots ------------------------------------------------------------------------------------------------------


def roots(path: Path) -> Iterator[str]:
    """Every call in a file that takes a root of a tensor, or may."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value.id if isinstance(node.func.value, ast.Name) else "a tensor"
            if node.func.attr in ("sqrt", "sqrt_", "std", "pow", "pow_", "norm") and of not in ("np", "math"):
                yield f"{path.name}:{node.lineno} {of}.{node.func.attr}"
        match node:
            case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=float(exponent))) if exponent % 1:
                yield f"{path.name}:{node.lineno} ** {exponent}"


def test_engines_take_roots_by_square_root_alone():
    """torch's own are not rounded correctly with every kernel: `optimizers.square_root`, which falls back on a GPU."""
    files = [path for path in sorted(LEARNING.glob("*.py")) if "import torch" in path.read_text()]
    found = [place for path in files for place in roots(path)]
    assert [place.split(":")[0] for place in found] == ["optimizers.py"], found


@pytest.mark.parametrize("shape", [(100_003,), (1, 2500), (4, 33, 17)])
def test_roots_are_rounded_correctly(shape):
    """A float64 root of a float32 number, rounded to float32, is the correctly rounded one: 53 >= 2 * 24 + 2 bits.

    Source: Figueroa, When is double rounding innocuous?, SIGNUM Newsletter 30 (1995).
    """
    x = torch.from_numpy(np.random.default_rng(0).random(shape).astype(np.float32) * 3)
    expected = np.sqrt(x.numpy().astype(np.float64)).astype(np.float32)
    assert np.array_equal(optimizers.square_root(x).numpy(), expected)
    turned = x.transpose(0, -1)
    assert np.array_equal(optimizers.square_root(turned).numpy(), expected.swapaxes(0, -1))
