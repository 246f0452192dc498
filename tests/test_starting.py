"""What a command loads before it answers, and bundled data read without the library that brings them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn import datasets

from fedgossip.errors import ConfigError
from fedgossip.learning import bundled

LOADED = """
import sys
from fedgossip.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, *sorted({"torch", "sklearn", "scipy.stats", "matplotlib"} & set(sys.modules)))
"""


@pytest.mark.sockets
@pytest.mark.parametrize("words", [["doctor"], ["topology", "show", "ring", "--n", "8"]])
def test_a_command_that_computes_no_model_loads_no_torch(words: list[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda or torch.version.hip:
        pytest.skip("a torch for GPUs is asked for them")
    command = [sys.executable, "-c", LOADED, *words]
    said = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert said.stdout.splitlines()[-1] == "0", said.stdout + said.stderr


def test_bundled_data_are_those_of_the_library() -> None:
    x, y = datasets.load_digits(return_X_y=True)
    found = bundled.digits()
    assert np.array_equal(found.x, (x / 16).astype(np.float32)) and np.array_equal(found.y, y)
    x, y = datasets.load_breast_cancer(return_X_y=True)
    found = bundled.breast_cancer()
    assert np.array_equal(found.x, x) and np.array_equal(found.y, y)
    x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    found = bundled.diabetes()
    assert np.array_equal(found.x, x) and np.array_equal(found.y[:, 0], y)


def test_data_that_are_not_there_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match=r"digits\.csv\.gz") as refused:
        bundled.digits()
    assert "pip install" in refused.value.advice
