from __future__ import annotations

import functools
import gc
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import commands
import pytest
import zmq
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

import fedgossip  # noqa: F401 before torch, which every test may import: it chooses torch's kernels

BY_ANY_CLOCK: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""How long an example takes belongs to the machine."""

# The short form plays the same examples whatever ran before; the long one draws others, and keeps what fails.
TESTS = Path(__file__).parent
sys.path += sorted({str(path.parent) for path in TESTS.rglob("test_*.py")})  # tests share cases across folders

settings.register_profile("short", derandomize=True, database=None, **BY_ANY_CLOCK)
settings.register_profile("long", **BY_ANY_CLOCK)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the long forms (minutes each)")


def pytest_configure(config: pytest.Config) -> None:
    """Hear Ctrl-C also where a shell has started the tests in the background: processes inherit what is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    watch_for_sockets()
    settings.load_profile("long" if config.getoption("--long") else "short")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import a share of all tests first, each worker another: it finds the files of the others compiled.

    In a clean checkout each of four workers would otherwise rewrite the assertions of every file, all at one time.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    files = sorted(TESTS.rglob("test_*.py"))[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]
    for file in files:
        with suppress(Exception, pytest.skip.Exception):  # collected again, and reported, in its turn
            importlib.import_module(file.stem)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, need in NEEDS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(need)
        if "long" in item.keywords and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="long form: run with --long"))
        if "gpu" in item.keywords and not cuda_is_there():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and torch finds none here"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the garbage collector from the libraries and the tests: they stay until the last test has ended."""
    gc.collect()
    gc.freeze()


@cache
def cuda_is_there() -> bool:
    import torch

    return torch.cuda.is_available()


NEEDS = {"real_data": "data", "disk": "root", "two_machines": "root", "networks": "root"}
"""The marker that a test has by itself, where it uses this fixture."""

ASKED = (
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "socket.bind",
    "socket.connect",
)
"""The audit events that only a test marked `sockets` may raise; ZeroMQ raises none, so its sockets are asked."""

unmarked: list[str] | None = None
"""What a test without the marker has opened or started; None while it may."""


def watch_for_sockets() -> None:
    """Have every socket and process of this Python asked for the marker `sockets` of the test that runs."""

    def ask(event: str, words: tuple[Any, ...], asked: tuple[str, ...] = ASKED) -> None:  # the names go before the hook
        if event in asked and not looks_up(words):
            needs_the_marker(event)

    sys.addaudithook(ask)
    for name in ("bind", "connect"):
        setattr(zmq.Socket, name, asking(getattr(zmq.Socket, name), f"zmq.Socket.{name}"))


def looks_up(words: tuple[Any, ...]) -> bool:
    """Whether a library lists the system's fonts (matplotlib, first figure) or libraries (torch with CUDA, import)."""
    return bool(words) and words[0] in ("fc-list", "/sbin/ldconfig")


def asking(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(call)
    def asked(*args: Any, **keys: Any) -> Any:
        needs_the_marker(name)
        return call(*args, **keys)

    return asked


def needs_the_marker(what: str) -> None:
    if unmarked is not None:
        unmarked.append(what)
        pytest.fail(f"{what} in a test without the marker: @pytest.mark.sockets")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """From here on a test without the marker may not; fixtures of its module, which it is the first to use, neither."""
    global unmarked  # noqa: PLW0603  an audit hook is this process's, and stays
    unmarked = None if "sockets" in item.keywords else []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Let a test that fails leave nothing that another would stumble over."""
    commands.started.clear()
    try:
        yield
    except BaseException:
        commands.end_what_is_left()
        raise


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail a test that has hidden it: a thread's failure, say, is nobody's."""
    global unmarked
    found, unmarked = unmarked, None
    yield
    if found:
        pytest.fail(f"{', '.join(found)} in a test without the marker: @pytest.mark.sockets", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Try a test of real processes once more where it fails: what else the machine did may have been in its way.

    The first failure is told, and counted as a rerun: one that comes twice is a fault of ours.
    """
    if "sockets" not in item.keywords:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = [report.longreprtext for report in reports if report.failed]
    if failed and not any("Timeout (>" in text for text in failed):  # the clock of a second try would not run
        for report in reports:
            if report.failed:
                report.outcome = "rerun"  # type: ignore[assignment]
                item.ihook.pytest_runtest_logreport(report=report)
        forget_what_failed()
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def forget_what_failed() -> None:
    """Let go of what a failed test has left open now: found later, it would be the failure of another test."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        sys.__dict__.pop(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    if report.outcome == "rerun":  # type: ignore[comparison-overlap]
        return "rerun", "R", ("RERUN", {"yellow": True})
    return None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell the first failures of tests that were tried again."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed at first: {report.nodeid}", yellow=True)
        terminalreporter.line(report.longreprtext)


OF_A_SHELL = (
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "XDG_STATE_HOME"),
    *("FEDGOSSIP_LINKS", "FEDGOSSIP_TRACEBACK", "RAY_ADDRESS", "SLURMD_NODENAME"),
)
"""Variables that change what commands print, or where they run and keep things, for the shell that starts the tests."""


@pytest.fixture(scope="session", autouse=True)
def no_shell(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands run as in a shell that sets nothing, and keep the keys of peers in a folder of the tests."""
    for name in OF_A_SHELL:
        os.environ.pop(name, None)
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def forgotten_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget what a test has imported from files that it made: another may have a module of that name."""
    last = next(reversed(sys.modules))
    yield
    for name in [*takewhile(lambda name: name != last, reversed(sys.modules))]:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path_factory.getbasetemp()):
            del sys.modules[name]


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paint the figures of pages, and render none: most of a page's time, where numbers and words are judged."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda _, to, **__: to.write("<svg></svg>"))


@pytest.fixture(autouse=True)
def says_which_device_it_means(
    request: pytest.FixtureRequest,
    forgotten_modules: None,  # before monkeypatch, which ends first
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fail a test that trains where "auto" takes it, in this process: with a GPU it would be another test."""
    devices = sys.modules.get("fedgossip.learning.one_model.devices")
    if devices is None or {"gpu", "anywhere"} & set(request.node.keywords):
        return
    chosen = devices.device_for

    def device_for(name: str) -> Any:
        assert name != "auto", 'this test trains with device = "auto": say "cpu" where that is meant'
        return chosen(name)

    monkeypatch.setattr(devices, "device_for", device_for)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start scripts without torch's compiler; the process of the tests has it."""
    places = [str(Path(__file__).with_name("no_compiler")), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))


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
