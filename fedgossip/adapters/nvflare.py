"""Secure sums in NVFlare: an executor around a site's executor, and a base of controllers of models.

    class Site(SecureSumExecutor):                         # around the executor that trains
        def make_client(self, fl_ctx): return SumClient(key_of(fl_ctx), cards, boss_card, encoding, task="wards", ...)

    class Controller(SecureSums, FedAvg):                  # in this order
        def make_server(self, fl_ctx): return SumServer(boss_key, cards, encoding, task="wards")

A round of training is one task as before, then five tasks "fedgossip".  The controller receives one result: the model
changed by the weighted mean of all changes, and the means of the declared metrics.  It never has a single site's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.adapters.exchange import RECORD, check_length, check_version, give, model_bytes, moved, take
from fedgossip.base.errors import ConfigError, missing
from fedgossip.secure import Reason, RoundAbandoned, SumClient, SumServer

try:
    from nvflare.apis.controller_spec import ClientTask, Task
    from nvflare.apis.dxo import DataKind, MetaKey, from_shareable
    from nvflare.apis.executor import Executor
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable, make_reply
    from nvflare.apis.signal import Signal
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils
except ImportError:
    raise missing("nvflare", "nvflare", "a secure sum in NVFlare") from None

TESTED = ("2.9",)
"""Tested versions of NVFlare, without their last number."""

Model = dict[str, npt.NDArray[Any]]


def _numbers(params: Any) -> Model:
    if any(not isinstance(one, np.ndarray) for one in params.values()):
        advice = "Exchange numpy: params_exchange_format = ExchangeFormat.NUMPY, its default."
        raise ConfigError("a model with arrays that are not numpy's", advice)
    return {name: one.copy() for name, one in params.items()}  # an executor may train in place


class SecureSumExecutor(Executor):  # type: ignore[misc]
    """An executor of "train" and "fedgossip" that sends frames of a secure sum in place of `inner`'s results.

    The weight of a result is its meta property NUM_STEPS_CURRENT_ROUND; its metrics are those that the encoding
    declares.  `clear_tasks`: further tasks of `inner`, with metrics sent in the clear.  All other tasks, and models as
    results, are refused: "submit_model" would send this site's own model, and so may any name that a server invents.
    The client's state is that of this process: it ends with the job.
    """

    def __init__(self, inner: Executor, train_task: str = "train", clear_tasks: Sequence[str] = ()) -> None:
        super().__init__()
        check_version("nvflare", "NVFlare", TESTED)
        self.inner, self.train_task, self.clear_tasks = inner, train_task, list(clear_tasks)
        self._client: SumClient | None = None

    def make_client(self, fl_ctx: FLContext) -> SumClient:
        """Return this site's client, with its key, once a job."""
        raise NotImplementedError

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Pass an event on, as NVFlare only calls this component."""
        self.inner.handle_event(event_type, fl_ctx)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Return the reply; for a refused task, and in an abandoned round, an error without this site's numbers."""
        try:
            if task_name in (self.train_task, RECORD):
                return self._answered(task_name, shareable, fl_ctx, abort_signal)
            if task_name not in self.clear_tasks:
                raise RoundAbandoned(Reason.POLICY, f"a task {task_name!r}, which is not among clear_tasks")
            reply = self.inner.execute(task_name, shareable, fl_ctx, abort_signal)
            if reply.get_return_code() == ReturnCode.OK and from_shareable(reply).data_kind != DataKind.METRICS:
                raise RoundAbandoned(Reason.SCHEMA, f"the task {task_name!r} would send more than metrics in the clear")
            return reply
        except RoundAbandoned as error:
            self.log_error(fl_ctx, f"secure sum: {error}")
            return make_reply(ReturnCode.EXECUTION_RESULT_ERROR)

    def _answered(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        asked = shareable.pop(RECORD, None)
        if not isinstance(asked, dict) or not isinstance(asked.get("frame"), bytes):  # the server may lie
            raise RoundAbandoned(Reason.POLICY, f"a task {task_name} without an invitation to a secure sum")
        client = self._client = self._client or self.make_client(fl_ctx)
        if task_name == RECORD:
            return _shareable(place=client.place, frame=client.answer(asked["frame"]) or b"")
        if not isinstance(round := asked.get("round"), int):
            raise RoundAbandoned(Reason.POLICY, "an invitation without a round")
        before = _numbers(from_shareable(shareable).data)
        frame = client.answer(asked["frame"], model_bytes(before))  # joins first: another model is refused
        reply = self.inner.execute(task_name, shareable, fl_ctx, abort_signal)
        if reply.get_return_code() != ReturnCode.OK:
            return make_reply(reply.get_return_code())
        trained = from_shareable(reply)
        if trained.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
            raise RoundAbandoned(Reason.SCHEMA, f"a result of kind {trained.data_kind}; models are summed")
        after = _numbers(trained.data)
        if trained.data_kind == DataKind.WEIGHT_DIFF:
            before = {name: np.zeros_like(one) for name, one in before.items()}
        found = trained.meta.get(MetaKey.INITIAL_METRICS) or {}
        declared = {name: found[name] for name, _ in client.encoding.ring.metrics if name in found}
        metrics = {**declared, WEIGHT: trained.meta.get(WEIGHT, 1)}
        give(client, round, before, after, metrics, WEIGHT, None)  # no log: NVFlare may stream it to the server
        return _shareable(place=client.place, frame=frame or b"")


WEIGHT = MetaKey.NUM_STEPS_CURRENT_ROUND


def _shareable(**record: object) -> Shareable:
    made = make_reply(ReturnCode.OK)
    made[RECORD] = record
    return made


class SecureSums:
    """The base of a controller with secure sums, listed before FedAvg or another controller that uses `send_model`.

    `stage_seconds`: of each later stage; a silent site counts as dropped after them.  With too few sites the model
    stays unchanged, with a warning.
    """

    stage_seconds = 600

    def make_server(self, fl_ctx: FLContext) -> SumServer:
        """Return the server of the sums, once a job."""
        raise NotImplementedError

    def send_model(
        self: Any,
        task_name: str = "train",
        data: FLModel = None,
        targets: list[str] | None = None,
        min_responses: int | None = None,  # noqa: ARG002  # the secure sum's own bound counts
        timeout: int = 0,
        callback: Callable[[FLModel], object] | None = None,
    ) -> None:
        """Train at the sites and pass one result to `callback`.

        Raises ConfigError for a model of another length, and RoundAbandoned if a site does not follow the protocol.
        """
        if not hasattr(self, "_sums"):
            check_version("nvflare", "NVFlare", TESTED)
            self._sums, self._sum_round = self.make_server(self.fl_ctx), 0
        server, before = self._sums, _numbers(data.params)
        check_length(server, before)
        self._sum_round += 1
        invitation = next(iter(server.begin(self._sum_round, server.places, model_bytes(before)).values()))
        message = FLModelUtils.to_shareable(data)
        message[RECORD] = {"round": self._sum_round, "frame": invitation}
        names = [getattr(one, "name", one) for one in targets or self.engine.get_clients()]
        mean, weight, metrics = np.zeros(server.encoding.ring.length), 1.0, None
        try:
            senders: dict[int, str] = {}
            replies = self._asked([(Task(name=task_name, data=message, timeout=timeout), names)])
            frames = take(server, replies, senders, self.logger)
            while server.waiting:
                frames = take(server, self._staged(frames, senders), senders, self.logger)
            self._staged(frames, senders)
            mean, weight, metrics = server.result.mean, server.result.weight, server.result.metrics
        except RoundAbandoned as error:
            if error.reason is not Reason.TOO_FEW:
                raise
            self.warning(f"secure sum: round {self._sum_round} leaves the model as it is: {error}")
        # weight 1: the only result is multiplied and divided by it, without rounding
        facts = {"meta": {WEIGHT: 1, "client_name": RECORD, RECORD: {"weight": weight}}, "metrics": metrics or None}
        result = FLModel(ParamsType.FULL, moved(before, mean), current_round=data.current_round, **facts)
        if callback:
            callback(result)

    def _staged(self: Any, frames: dict[int, bytes], senders: dict[int, str]) -> Iterable[tuple[str, Any]]:
        return self._asked(  # type: ignore[no-any-return]
            (Task(name=RECORD, data=_shareable(frame=frame), timeout=self.stage_seconds), [senders[place]])
            for place, frame in frames.items()
        )

    def _asked(self: Any, tasks: Iterable[tuple[Task, list[str]]]) -> list[tuple[str, Any]]:
        """Send the tasks, each to its sites, and return the replies: (site, record, or the reason for none)."""
        replies: list[tuple[str, Any]] = []

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:  # noqa: ARG001  # NVFlare passes them by name
            code, record = client_task.result.get_return_code(), client_task.result.get(RECORD)
            good = code == ReturnCode.OK and isinstance(record, dict)
            replies.append((client_task.client.name, record if good else f"an error: {code}"))

        for task, sites in tasks:
            task.result_received_cb = received
            self.broadcast(task=task, targets=sites, fl_ctx=self.fl_ctx, min_responses=0)  # 0: of all; by default 1
        while self.get_num_standing_tasks() and not self.abort_signal.triggered:
            time.sleep(self._task_check_period)
        return replies
