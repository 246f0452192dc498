"""The line through the times of messages, and the command that measures them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fedgossip import load_experiment
from fedgossip.costs.fitted import fitted
from fedgossip.net.link_times import SIZES
from tests.commands import in_process


def test_a_line_is_found_again() -> None:
    line = fitted(SIZES, [0.002 + size / 5e8 for size in SIZES])
    assert line.latency == pytest.approx(0.002) and line.rate == pytest.approx(5e8) and line.residual < 1e-9


def test_the_residual_says_how_far_a_time_is_off() -> None:
    noise = 1 + 0.1 * np.where(np.arange(len(SIZES)) % 2, 1.0, -1.0)
    line = fitted(SIZES, [(0.002 + size / 5e8) * float(one) for size, one in zip(SIZES, noise, strict=True)])
    assert line.latency == pytest.approx(0.002, rel=0.2) and line.rate == pytest.approx(5e8, rel=0.2)
    assert 0.05 < line.residual < 0.25


@pytest.mark.parametrize(("sizes", "seconds"), [([1, 1], [0.1, 0.2]), ([1, 10], [0.3, 0.2])])
def test_what_is_no_line_is_refused(sizes: list[float], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match=r"two sizes|longer messages"):
        fitted(sizes, seconds)


@pytest.mark.sockets
def test_the_command_prints_eight_sizes_and_a_line_for_an_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["doctor", "--links"], tmp_path, monkeypatch, capsys)
    assert said.code == 0, said.err
    assert [f"{size:,}" in said.out for size in SIZES] == [True] * 8
    (line,) = re.findall(r"^simulation = .*$", said.out, re.MULTILINE)
    path = tmp_path / "it.toml"
    path.write_text(f'{line}\n[topology]\ngraph = "ring"\nn = 3\n')
    simulation = load_experiment(path).simulation
    assert simulation.latency >= 0 and simulation.bandwidth == simulation.downlink
