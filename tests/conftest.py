from __future__ import annotations

import os
import signal
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import fedgossip  # noqa: F401 before torch, which every test may import: it chooses torch's kernels

settings.register_profile("patient", deadline=None)  # how long an example takes belongs to the machine
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the long forms (minutes each)")


def pytest_configure() -> None:
    """Hear Ctrl-C also where a shell has started the tests in the background: processes inherit what is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "long" in item.keywords and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="long form: run with --long"))
        if "cuda" in item.keywords and not cuda_is_there():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and torch finds none here"))


@cache
def cuda_is_there() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def says_which_device_it_means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that trains where "auto" takes it, in this process: with a GPU it would be another test."""
    devices = sys.modules.get("fedgossip.learning.devices")
    if devices is None or {"cuda", "anywhere"} & set(request.node.keywords):
        return
    chosen = devices.device_for

    def device_for(name: str) -> Any:
        assert name != "auto", 'this test trains with device = "auto": say "cpu" where that is meant'
        return chosen(name)

    monkeypatch.setattr(devices, "device_for", device_for)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Where mnist/ and shakespeare/ should be: named by FEDGOSSIP_DATA, or shared/data beside the checkout."""
    return Path(os.environ.get("FEDGOSSIP_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture
def real_data(data_folder: Path) -> Path:
    """The folder with mnist/ and shakespeare/."""
    if not (data_folder / "mnist").is_dir():
        pytest.skip(f"no real data at {data_folder}: set FEDGOSSIP_DATA to a folder with mnist/ and shakespeare/")
    return data_folder
