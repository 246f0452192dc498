"""Secure sums of `fedgossip.secure` beside Flower's SecAgg+: right or wrong, CPU seconds and bytes, in one process.

    python benchmarks/secure_library.py --clients 4,10,100 --floats 650,100000 --turns 3
    PYTHONPATH=FOLDER_OF_FLWR python benchmarks/secure_library.py --flower ...

Every client adds values of magnitude 100; one client is gone from each stage in turn (none, keys, shares, masked,
unmask; ours has consent in addition).  Flower is its `SecAggPlusWorkflow` and `secaggplus_mod` (the legacy interface),
called directly: with a clipping range of 128, and once more with its own, of 8.  Both use the same graph and threshold.
CPU is that of the process around each call; bytes are of the frames, or of Flower's messages as it serialises them,
in both directions.  A mean is right within `--tolerance` of the mean in the clear.  Prints a line per case, then JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

BOUND = 128.0
STAGES = {"fedgossip": ["keys", "shares", "masked", "consent", "unmask"],
          "flower": ["keys", "shares", "masked", "unmask"]}  # fmt: skip


class Meter:
    """CPU seconds and bytes of one session."""

    def __init__(self) -> None:
        self.client = self.server = 0.0
        self.bytes = 0

    def spent(self, call: Callable[[], Any], side: str) -> Any:
        before = time.process_time()
        found = call()
        setattr(self, side, getattr(self, side) + time.process_time() - before)
        return found


def graph_of(n: int) -> tuple[int, int]:
    """Return the share group and threshold of both."""
    from fedgossip.secure import graph

    k = n - 1 if n <= graph.COMPLETE_MAX else (graph.parameters(n, 0.05, 0.05, semi_malicious=True) or (n - 1, 0))[0]
    return k + 1, graph.policy_threshold(k + 1)


def run_fedgossip(values: Any, gone: int | None, meter: Meter) -> Any:
    from fedgossip.secure import Encoding, SumClient, SumServer, sign_card

    n, d = values.shape
    encoding = Encoding(d, BOUND)
    keys, boss = [os.urandom(32) for _ in range(n)], os.urandom(32)
    cards = [sign_card(key) for key in keys]
    server = SumServer(boss, cards, encoding, task="benchmark", n_min=3)
    words: Any = {"task": "benchmark", "n_min": 3, "entropy": os.urandom}
    clients = [SumClient(key, cards, sign_card(boss), encoding, **words) for key in keys]
    for client, own in zip(clients, values, strict=True):
        meter.spent(partial(client.give, 1, own), "client")
    frames, stage = meter.spent(partial(server.begin, 1, range(n)), "server"), 0
    while frames:
        meter.bytes += sum(map(len, frames.values()))
        replies = {}
        for v, frame in frames.items():
            if v != 1 or gone is None or stage < gone:
                reply = meter.spent(partial(clients[v].answer, frame), "client")
                if reply is not None:
                    replies[v] = reply
        frames = {}
        meter.bytes += sum(map(len, replies.values()))
        for v, reply in replies.items():
            frames |= meter.spent(partial(server.take, v, reply), "server")
        if server.waiting and not frames:
            frames = meter.spent(server.close, "server")
        stage += 1
    return server.result.mean


def run_flower(values: Any, gone: int | None, meter: Meter, clipping: float = BOUND) -> Any:
    """Return the mean of Flower's workflow; None where it halts.  Serialising is not counted as CPU."""
    from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server import LegacyContext
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    n, d = values.shape
    group, threshold = graph_of(n)
    contexts = {v + 1: Context(1, v + 1, {}, RecordDict(), {}) for v in range(n)}
    found: list[Any] = []

    def carried(message: Any) -> Any:
        proto = message_to_proto(message)
        meter.bytes += proto.ByteSize()
        return message_from_proto(proto)

    def trained(message: Any, context: Any) -> Any:
        one = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([values[context.node_id - 1]]), 1, {})
        return Message(compat.fitres_to_recorddict(one, False), reply_to=message)

    class Grid:
        stage = 0
        cpu = 0.0

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            began, replies = time.process_time(), []
            for message in messages:
                v, received = message.metadata.dst_node_id, carried(message)
                if v == 2 and gone is not None and self.stage >= gone:
                    replies.append(Message(Error(0, "gone"), reply_to=received))
                    continue
                try:
                    reply = meter.spent(partial(secaggplus_mod, received, contexts[v], trained), "client")
                except Exception as error:  # as its client app replies
                    reply = Message(Error(0, repr(error)), reply_to=received)
                replies.append(carried(reply))
            self.stage += 1
            self.cpu += time.process_time() - began
            return replies

    class Everyone:
        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
            return [(SimpleNamespace(node_id=v), FitIns(parameters, {})) for v in contexts]

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            found.append(parameters_to_ndarrays(results[0][1].parameters)[0])
            return None, {}

    context: Any = LegacyContext(Context(1, 0, {}, RecordDict(), {}), strategy=Everyone())  # type: ignore[arg-type]
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    start = ndarrays_to_parameters([np.zeros(d, np.float32)])
    context.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(start, True)
    workflow = SecAggPlusWorkflow(group, threshold, max_weight=1.0, clipping_range=clipping)
    grid: Any = Grid()
    before = time.process_time()
    workflow(grid, context)
    meter.server = time.process_time() - before - grid.cpu
    return found[0] if found else None


def case(program: str, n: int, d: int, gone: int | None, tolerance: float, clipping: float) -> dict[str, Any]:
    drawn = np.random.default_rng((n, d)).uniform(-100, 100, (n, d)).astype(np.float32)
    meter, stages = Meter(), STAGES[program]
    lost = gone is not None and gone <= stages.index("masked")
    right = np.delete(drawn, 1, axis=0).mean(0, dtype=np.float64) if lost else drawn.mean(0, dtype=np.float64)
    try:
        run = run_fedgossip if program == "fedgossip" else partial(run_flower, clipping=clipping)
        mean = run(drawn, gone, meter)
        off = float("nan") if mean is None else float(np.abs(mean - right).max())
        outcome = "halts" if mean is None else "right" if off <= tolerance else "wrong"
    except Exception as error:  # the outcome of the program
        off, outcome = float("nan"), f"fails: {type(error).__name__}: {error}"[:90]
    return {
        "program": program, "clients": n, "floats": d, "gone": "nobody" if gone is None else stages[gone],
        "clipping": clipping if program == "flower" else BOUND, "outcome": outcome, "largest error": off,
        "client cpu s": meter.client / n, "server cpu s": meter.server, "bytes per client": meter.bytes / n,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="4,10,100")
    parser.add_argument("--floats", default="650,100000")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--flower", action="store_true")
    parser.add_argument("--only", default="", help="stages: nobody,masked")
    options = parser.parse_args()
    logging.disable()
    programs = [("fedgossip", BOUND)] + [("flower", BOUND), ("flower", 8.0)] * options.flower
    rows = []
    for n in map(int, options.clients.split(",")):
        for d in map(int, options.floats.split(",")):
            for program, clipping in programs:
                for gone in [None, *range(len(STAGES[program]))]:
                    name = "nobody" if gone is None else STAGES[program][gone]
                    if (options.only and name not in options.only.split(",")) or (clipping == 8.0 and gone is not None):
                        continue
                    turns = [case(program, n, d, gone, options.tolerance, clipping) for _ in range(options.turns)]
                    numbers = ("client cpu s", "server cpu s", "bytes per client")
                    middle = {name: statistics.median(turn[name] for turn in turns) for name in numbers}
                    outcomes = "; ".join(sorted({turn["outcome"] for turn in turns}))
                    rows.append({**turns[0], **middle, "outcome": outcomes})
                    print(" | ".join(f"{value:.4g}" if isinstance(value, float) else str(value)
                                     for value in rows[-1].values()), flush=True)  # fmt: skip
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
