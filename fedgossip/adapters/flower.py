"""Secure sums in Flower, by its Message API: a mod of the ClientApp, and a strategy around FedAvg, FedAdam and others.

    app = ClientApp(mods=[SecureSumMod(client_of)])       # the first mod;  client_of(context, state) -> SumClient
    SecureSumStrategy(FedAdam(), SumServer(...), clients=range(5)).start(grid, arrays)

The sum contains each client's change of the model, weighted by its number of examples, and the declared metrics.  The
inner strategy receives one reply with their mean and total weight.  Five exchanges follow each training message.

The mod stores the client's state in `Context.state`, as a ClientApp may be a new process for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any

import numpy.typing as npt

from fedgossip.adapters.exchange import RECORD, check_length, check_version, give, model_bytes, moved, take
from fedgossip.base.errors import ConfigError, missing
from fedgossip.secure import Reason, RoundAbandoned, SumClient, SumServer

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.serverapp import strategy
except ImportError:
    raise missing("flwr", "flower", "a secure sum in Flower") from None

TESTED = ("1.42",)
"""Tested versions of Flower, without their last number."""

_COMPARING = ["Bulyan", "FedMedian", "FedTrimmedAvg", "FedXgbBagging", "FedXgbCyclic", "Krum", "MultiKrum", "QFedAvg"]
BY_REPLY = tuple(getattr(strategy, name) for name in _COMPARING)
"""Strategies that compare single replies, which a sum hides."""

_LOG = getLogger("flwr")


def _numbers(arrays: Any) -> dict[str, npt.NDArray[Any]]:
    return {name: array.numpy() for name, array in arrays.items()}


def _only(records: Mapping[str, Any], what: str) -> Any:
    if len(records) != 1:
        raise RoundAbandoned(Reason.SCHEMA, f"a message with {len(records)} {what}; one is summed")
    return next(iter(records.values()))


def _record(reply: Message) -> Mapping[str, Any] | str:
    return f"an error: {reply.error.reason}" if reply.has_error() else reply.content.get(RECORD, {})


class SecureSumMod:
    """A mod that replies to training messages by frames of a secure sum; the first of the ClientApp's mods.

    `client`: returns the node's SumClient for its Context and its saved state.  Its errors contain no values.
    """

    def __init__(self, client: Callable[[Context, bytes], SumClient], *, weighted_by_key: str = "num-examples") -> None:
        check_version("flwr", "Flower", TESTED)
        self._client, self._weighted_by = client, weighted_by_key

    def __call__(self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        """Return the reply.  Raises RoundAbandoned (POLICY) for training without an invitation to a secure sum."""
        if (kind := message.metadata.message_type).split(".")[0] != "train":
            reply = call_next(message, context)
            if not reply.has_error() and reply.content.array_records:  # a server that lies asks by any other name
                raise RoundAbandoned(Reason.SCHEMA, f"the reply to {kind[:40]!r} would send arrays in the clear")
            return reply
        asked = message.content.pop(RECORD, None)
        if asked is None:
            raise RoundAbandoned(Reason.POLICY, "a message of training without an invitation to a secure sum")
        saved = context.state.get(RECORD)
        client = self._client(context, saved["state"] if saved else b"")
        if not message.content.array_records:
            frame = client.answer(asked["frame"])
        else:
            before = _numbers(_only(message.content.array_records, "ArrayRecords"))
            frame = client.answer(asked["frame"], model_bytes(before))  # joins first: another model is refused
            reply = call_next(message, context)
            if reply.has_error():
                return reply
            after = _numbers(_only(reply.content.array_records, "ArrayRecords"))
            metrics = dict(_only(reply.content.metric_records, "MetricRecords"))
            give(client, asked["round"], before, after, metrics, self._weighted_by, _LOG)
        context.state[RECORD] = ConfigRecord({"state": client.state})
        answer = ConfigRecord({"place": client.place, "frame": frame or b""})
        return Message(RecordDict({RECORD: answer}), reply_to=message)


class SecureSumStrategy(strategy.Strategy):  # type: ignore[misc]
    """A strategy that passes to an inner one the mean of all clients' models, from a secure sum of their changes.

    `inner`: such as FedAvg or FedAdam; `clients`: of `SumServer.begin`, in every round; `timeout`: seconds of each
    later stage before missing clients count as dropped.  A round with too few leaves the model unchanged, and warns.
    Raises ConfigError for a strategy that needs single replies.  Scores of an evaluation are sent in the clear.
    """

    def __init__(self, inner: Any, server: SumServer, clients: Sequence[int], *, timeout: float = 600.0) -> None:
        check_version("flwr", "Flower", TESTED)
        if isinstance(inner, BY_REPLY) or not isinstance(inner, strategy.FedAvg):
            text = f"{type(inner).__name__} inside a secure sum, which discloses the mean of all replies alone"
            raise ConfigError(text, "Use FedAvg, FedAvgM, FedProx, FedAdam, FedYogi or FedAdagrad.")
        self.inner, self._server, self._clients, self._timeout = inner, server, clients, timeout
        self._round, self._before = 0, dict[str, npt.NDArray[Any]]()
        self._grid: Any = None

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> list[Message]:
        """Return the inner strategy's messages, with the invitation.  Raises ConfigError for another length."""
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        check_length(self._server, numbers := _numbers(arrays))
        self._round, self._before, self._grid = self._round + 1, numbers, grid  # over several calls of start()
        frames = self._server.begin(self._round, self._clients, model_bytes(numbers))
        for message in messages:
            message.content[RECORD] = ConfigRecord({"round": self._round, "frame": next(iter(frames.values()))})
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Return the inner strategy's result for the mean.  Raises RoundAbandoned if a client does not follow the
        protocol.
        """
        nodes: dict[int, int] = {}
        try:
            frames = self._take(replies, nodes)
            while self._server.waiting:
                frames = self._take(self._exchange(frames, nodes), nodes)
        except RoundAbandoned as error:
            if error.reason is not Reason.TOO_FEW:
                raise
            _LOG.warning("secure sum: round %d leaves the model as it is: %s", server_round, error)
            return None, None
        self._exchange(frames, nodes)
        result = self._server.result
        parts = {name: Array(one) for name, one in moved(self._before, result.mean).items()}
        metrics = MetricRecord({self.inner.weighted_by_key: result.weight, **result.metrics})
        content = RecordDict({self.inner.arrayrecord_key: ArrayRecord(parts), "metrics": metrics})
        return self.inner.aggregate_train(server_round, [Message(content, dst_node_id=1, message_type="train")])

    def _exchange(self, frames: Mapping[int, bytes], nodes: Mapping[int, int]) -> Any:
        records = {nodes[place]: RecordDict({RECORD: ConfigRecord({"frame": one})}) for place, one in frames.items()}
        messages = [Message(record, node, "train") for node, record in records.items()]
        return self._grid.send_and_receive(messages, timeout=self._timeout)

    def _take(self, replies: Iterable[Message], nodes: dict[int, int]) -> dict[int, bytes]:
        """Return the frames of the next stage; `nodes`: node of each client that has replied, by its place."""
        return take(self._server, ((one.metadata.src_node_id, _record(one)) for one in replies), nodes, _LOG)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()
