"""Secure sums in NVFlare, with the real package: models as in the clear, sites that end, and what is refused."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedgossip.adapters.exchange import model_bytes
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.secure import Encoding, SumClient, SumServer, sign_card

pytest.importorskip("nvflare", reason="needs the extra nvflare")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs

from fedgossip.adapters.nvflare import RECORD, SecureSumExecutor, SecureSums

common_decomposers.register()  # of numpy's arrays, as every process of NVFlare does

N, BOSS = 4, bytes([99]) * 32
KEYS = [bytes([number + 1]) * 32 for number in range(N)]
CARDS = [sign_card(key) for key in KEYS]
ENCODING = Encoding(length=9, bound=4.0, weight_max=64, metrics={"loss": 10.0})
START = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.float32)}


class Trainer(Executor):  # type: ignore[misc]
    """Goes half the way to its site's own target, in place as NVFlare's own trainers do."""

    def __init__(self, far: float = 1.0, kind: str = DataKind.WEIGHTS) -> None:
        super().__init__()
        self.far, self.kind, self.events = far, kind, list[str]()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        self.events.append(event_type)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        if task_name != "train":
            return make_reply(ReturnCode.TASK_UNKNOWN)
        number, model = fl_ctx.number, from_shareable(shareable).data
        old = {name: one.copy() for name, one in model.items()}
        own = np.random.default_rng(number)
        for name in model:
            model[name] += (0.5 * self.far * (own.normal(size=model[name].shape) - model[name])).astype(np.float32)
        if self.kind == DataKind.WEIGHT_DIFF:
            model = {name: one - old[name] for name, one in model.items()}
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 10 + number, MetaKey.INITIAL_METRICS: {"loss": 1.0 / (1 + number)}}
        return DXO(self.kind, model, meta).to_shareable()


class Site(SecureSumExecutor):
    def make_client(self, fl_ctx: Any) -> SumClient:
        words: dict[str, Any] = {"task": "t", "n_min": 3, "entropy": os.urandom}
        return SumClient(KEYS[fl_ctx.number], CARDS, sign_card(BOSS), ENCODING, **words)


class Sites(SecureSums):
    """What a controller has of NVFlare, with sites in this process; `gone`: a site's last task, counted from 0."""

    _task_check_period = 0.01

    def __init__(self, gone: dict[int, int] | None = None, **how: Any) -> None:
        self.executors: list[Any] = [Site(Trainer(**how)) for _ in range(N)]
        self.gone, self.sent, self.logged = gone or {}, list[bytes](), list[str]()
        self.fl_ctx, self.abort_signal = None, Signal()
        self.engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=f"site-{k}") for k in range(N)])
        self.logger = SimpleNamespace(warning=lambda text, *values: self.logged.append(text % values))

    def make_server(self, fl_ctx: Any) -> SumServer:
        return SumServer(BOSS, CARDS, ENCODING, task="t", n_min=3)

    def broadcast(self, task: Any, targets: list[str], fl_ctx: Any, min_responses: int = 1) -> None:
        assert min_responses == 0, "NVFlare ends a task after so many replies, and drops the others"
        for name in targets:
            number = int(name[-1])
            self.gone[number] = self.gone.get(number, 1 << 20) - 1
            if self.gone[number] < -1:
                continue
            message = fobs.loads(fobs.dumps(task.data))
            reply = self.executors[number].execute(task.name, message, FakeContext(number), Signal())
            self.sent.append(fobs.dumps(reply))
            done = SimpleNamespace(client=SimpleNamespace(name=name), result=fobs.loads(self.sent[-1]))
            task.result_received_cb(client_task=done, fl_ctx=fl_ctx)

    def get_num_standing_tasks(self) -> int:
        return 0

    def warning(self, text: str) -> None:
        self.logged.append(text)

    def trained(self, rounds: int = 2) -> FLModel:
        found = [FLModel(params={name: one.copy() for name, one in START.items()})]
        for _ in range(rounds):
            self.send_model(data=FLModel(params=found[-1].params), callback=found.append)
        return found[-1]


class FakeContext(FLContext):  # type: ignore[misc]
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def get_engine(self) -> Any:
        return SimpleNamespace(fire_event=lambda *_words: None)


def flat(params: Any) -> Any:
    return np.concatenate([one.ravel() for one in params.values()])


def in_the_clear(rounds: int = 2, sites: Any = range(N)) -> Any:
    """FedAvg by examples, of what the sites' own executor makes."""
    model, weights = dict(START), np.array([10.0 + number for number in sites])
    for _ in range(rounds):
        asked = [FLModelUtils.to_shareable(FLModel(params={k: v.copy() for k, v in model.items()})) for _ in sites]
        made = [Trainer().execute("train", one, FakeContext(k), None) for one, k in zip(asked, sites, strict=True)]
        models = [from_shareable(one).data for one in made]
        model = {name: np.average([one[name] for one in models], axis=0, weights=weights) for name in START}
    return flat(model)


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_the_model_is_that_of_fedavg_in_the_clear_and_no_site_sends_its_own(kind: str) -> None:
    sites = Sites(kind=kind)
    found = sites.trained()
    assert np.abs(flat(found.params) - in_the_clear()).max() < 1e-5
    assert all(one.dtype == np.float32 for one in found.params.values())
    weights = np.array([10 + number for number in range(N)])
    assert found.metrics["loss"] == pytest.approx(np.average(1 / np.arange(1, N + 1), weights=weights), abs=1e-5)
    assert found.meta[RECORD] == {"weight": weights.sum()} and sites.logged == []
    assert all(set(fobs.loads(one)) - {"__headers__"} == {RECORD} for one in sites.sent)
    assert len(sites.sent) == 2 * N * 6  # training, and five stages


@pytest.mark.parametrize("last", range(5))
def test_a_site_that_is_gone_after_any_stage_leaves_the_others_sum(last: int) -> None:
    sites = Sites(gone={2: last})
    there = [0, 1, 2, 3] if last >= 2 else [0, 1, 3]  # its masked vector is there, and counts
    assert np.abs(flat(sites.trained(1).params) - in_the_clear(1, there)).max() < 1e-5


def test_too_few_sites_leave_the_model_as_it_is_and_the_run_goes_on() -> None:
    sites = Sites(gone={1: 0, 2: 0})
    found = sites.trained(1)
    assert all(np.array_equal(found.params[name], START[name]) for name in START)
    assert "leaves the model as it is" in sites.logged[-1]


@pytest.mark.parametrize("task", ["train", "submit_model", "validate", "Train"])
def test_a_task_by_which_a_model_would_leave_in_the_clear_is_refused(task: str) -> None:
    """Training without an invitation, and whatever names a lying server makes up; allowed ones send metrics alone."""

    class Obliging(Trainer):
        def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
            if task_name == "validate":
                return DXO(DataKind.METRICS, {"score": 0.5}).to_shareable()
            return super().execute("train", shareable, fl_ctx, abort_signal)

    def asked() -> Shareable:
        return FLModelUtils.to_shareable(FLModel(params={name: one.copy() for name, one in START.items()}))

    strict, open_ = Site(Obliging()), Site(Obliging(), clear_tasks=["validate", "submit_model"])
    reply = strict.execute(task, asked(), FakeContext(0), Signal())
    assert reply.get_return_code() == ReturnCode.EXECUTION_RESULT_ERROR and set(reply) == {"__headers__"}
    reply = open_.execute(task, asked(), FakeContext(0), Signal())
    if task == "validate":
        assert from_shareable(reply).data == {"score": 0.5}
    else:
        assert reply.get_return_code() == ReturnCode.EXECUTION_RESULT_ERROR and set(reply) == {"__headers__"}


@pytest.mark.parametrize("more", [{}, {"round": "x"}, {"round": 1, "frame": b""}, {"round": 1, "frame": b"x" * 9}])
def test_an_invitation_that_is_none_brings_no_frame(more: dict[str, Any]) -> None:
    site = Site(Trainer())
    begun = SumServer(BOSS, CARDS, ENCODING, task="t", n_min=3).begin(1, range(N), model_bytes(START))
    asked = FLModelUtils.to_shareable(FLModel(params={name: one.copy() for name, one in START.items()}))
    asked[RECORD] = {"frame": begun[0], **more}
    with contextlib.suppress(ProtocolError):  # by which NVFlare's runner makes an error
        reply = site.execute("train", asked, FakeContext(0), Signal())
        assert reply.get_return_code() == ReturnCode.EXECUTION_RESULT_ERROR and set(reply) == {"__headers__"}


def test_events_are_passed_on() -> None:
    site = Site(inner := Trainer())
    site.handle_event("_start_run", FakeContext(0))
    assert inner.events == ["_start_run"]


def test_a_site_that_sends_its_model_in_the_clear_is_left_out() -> None:
    sites = Sites()
    sites.executors[1] = Trainer()
    assert np.abs(flat(sites.trained(1).params) - in_the_clear(1, [0, 2, 3])).max() < 1e-5
    assert "the reply of node site-1 is left out" in sites.logged[0]


def test_values_beyond_the_bound_leave_the_site_out_and_are_in_no_message() -> None:
    sites = Sites()
    sites.executors[0].inner.far = 1e3
    assert np.abs(flat(sites.trained(1).params) - in_the_clear(1, [1, 2, 3])).max() < 1e-5
    assert fobs.loads(sites.sent[0]).get_return_code() == "EXECUTION_RESULT_ERROR"
    assert set(fobs.loads(sites.sent[0])) == {"__headers__"}


def test_a_model_of_another_length_is_refused_before_anything_is_sent() -> None:
    sites = Sites()
    with pytest.raises(ConfigError, match="a model of 1 numbers; the encoding is of 9"):
        sites.send_model(data=FLModel(params={"w": np.zeros(1)}))
    with pytest.raises(ConfigError, match="not numpy's"):
        sites.send_model(data=FLModel(params={"w": [0.0]}))
    assert sites.sent == []


def test_an_untested_version_warns_with_the_tested_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgossip.adapters.exchange.version", lambda _: "3.1.0")
    with pytest.warns(UserWarning, match=r"NVFlare 3\.1\.0 is untested; tested: 2\.9"):
        Site(Trainer())


JOB = """
import numpy as np
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob
from parts import N, Controller, Site, Trainer

job = FedJob("sums", min_clients=N)
job.to(Controller(num_clients=N, num_rounds=2, persistor_id=""), "server")
for number in range(N):
    job.to(Site(Trainer()), f"site-{number}")
job.simulator_run("workspace")
"""

PARTS = """
from nvflare.app_common.workflows.fedavg import FedAvg

class Controller(SecureSums, FedAvg):
    make_server = Sites.make_server

    def load_model(self):
        return FLModel(params=dict(START))

    def save_model(self, model):
        np.savez(OUT, **model.params)
"""


@pytest.mark.long
@pytest.mark.sockets
def test_a_job_in_nvflares_own_simulator(tmp_path: Path) -> None:
    """Processes of sites, by NVFlare's messages."""
    text = (
        Path(__file__)
        .read_text()
        .partition("\nJOB = ")[0]
        .replace("fl_ctx.number", "int(fl_ctx.get_identity_name()[-1])")
    )
    (tmp_path / "parts.py").write_text(f"{text}\n{PARTS}".replace("OUT", repr(str(tmp_path / "model.npz"))))
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    with np.load(tmp_path / "model.npz") as found:
        assert np.abs(flat(found) - in_the_clear()).max() < 1e-5, done.stdout[-2000:]
