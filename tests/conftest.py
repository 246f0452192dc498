from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import fedgossip  # noqa: F401 before torch, which every test may import: it chooses torch's kernels


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the long forms (minutes each)")


def pytest_configure() -> None:
    """Hear Ctrl-C also where a shell has started the tests in the background: processes inherit what is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if "long" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="long form: run with --long"))


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
