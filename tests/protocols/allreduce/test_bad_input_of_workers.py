"""What workers of one model and their servers are given and cannot use, item by item: refused with a line and advice
before anything trains, or answered by a machine that goes on as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import typed
from test_allreduce import quadratic as reduced
from test_parameter_server import quadratic as served

from fedgossip import simulate
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import PeerJoined, Received, Send, Started
from fedgossip.core.messages import PieceTaken, Pulled, PullHeld, ReduceChunk, ShardPull, ShardPush
from fedgossip.core.records import PeerRow
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose

TASK = 'rounds = 3\n[task]\nkind = "quadratic"\ndim = 40\n'
SERVED = '[parallel]\nworkers = 2\nmethod = "parameter-server"\n'

REFUSED: dict[str, tuple[str, str, str]] = {
    "more than 64 workers": (
        "[parallel]\nworkers = 65\n",
        "65 workers, and 64 can all know each other",
        "[topology]",
    ),
    "momentum with adam": (
        '[parallel]\nworkers = 4\n[train]\noptimizer = "adam"\nmomentum = 0.9\n',
        "momentum with adam",
        "momentum belongs to sgd",
    ),
    "[algorithm] with [parallel]": (
        '[parallel]\nworkers = 4\n[algorithm]\nname = "dsgd"\n',
        "[algorithm] is a section of other runs",
        "parallel.method",
    ),
    "gradients that nothing clips": (
        "[parallel]\nworkers = 4\n[train]\nclip_norm = 1.0\n",
        "train.clip_norm is of local steps",
        "dgc",
    ),
    "staleness -1": (
        SERVED + "[parallel.server]\nstaleness = -1\n",
        "parallel.server.staleness = -1 is no number of rounds",
        '"async"',
    ),
    "more copies than servers": (
        SERVED + "[parallel.server]\nservers = 2\nreplication = 3\n",
        "parallel.server.replication = 3, and parallel.server.servers = 2",
        "a server of its own",
    ),
    "no virtual nodes": (
        SERVED + "[parallel.server]\nvirtual_nodes = 0\n",
        "parallel.server.virtual_nodes = 0 is out of range",
        "at least 1",
    ),
    "lars with ranges": (
        SERVED + 'descent = "lars"\n[parallel.server]\nplacement = "ranges"\n',
        "lars goes by whole tensors",
        'placement = "tensors"',
    ),
    "more servers than elements": (
        SERVED + "[parallel.server]\nservers = 5\n[task]\ndim = 3\n",
        "5 servers for a model of 3 elements",
        "3 at most",
    ),
}


@pytest.mark.parametrize("item", REFUSED)
def test_a_dry_run_refuses_it_in_a_line_with_a_line_of_advice(item: str, tmp_path: Path) -> None:
    section, words, advice = REFUSED[item]
    task = "" if "[task]" in section else TASK
    text = task + section if task else "rounds = 3\n" + section.replace("[task]\n", '[task]\nkind = "quadratic"\n')
    (tmp_path / "run.toml").write_text(text)
    said = typed(["run", "run.toml", "--dry-run"], tmp_path)
    first, second = said.err.strip().splitlines()
    assert said.code == 2 and words in first and advice in second


@pytest.mark.parametrize("command", [["run", "run.toml"], ["worker", "run.toml", "--id", "0"]])
def test_a_roster_of_members_has_no_place_beside_workers(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TASK + "[parallel]\nworkers = 4\n")
    said = typed([*command, "--members", "members.toml"], tmp_path)
    assert said.code == 2 and "No such option '--members'" in said.err


def test_one_worker_sends_nothing() -> None:
    run = simulate(reduced(1, rounds=3))
    assert run.summary["status"] == "finished"
    assert sum(row.payload_sent for row in run.rows if isinstance(row, PeerRow)) == 0


@pytest.mark.parametrize(("workers", "dim", "bucket"), [(8, 3, 64), (4, 40, 1)])
def test_more_parts_than_elements_and_a_bucket_of_a_byte_run(workers: int, dim: int, bucket: int) -> None:
    experiment = reduced(workers, rounds=3, parallel={"bucket": bucket})
    experiment["task"]["dim"] = dim
    assert simulate(experiment).summary["status"] == "finished"


# --- at a machine -----------------------------------------------------------------------------------------------------


def worker() -> Any:
    """Worker 0 of two that all-reduce 40 elements, in its first round."""
    machine = compose.plan(load_experiment(reduced(2))).machine(0, np.zeros(40, np.float32), "s")
    machine.handle(Started(), 0)
    machine.handle(PeerJoined(1), 0)
    return machine


def reduce_chunk(epoch: int, schema: str = "s", length: int = 21, round: int = 0) -> Received:
    vector = frozen(np.ones(length, np.float32))
    return Received(1, ReduceChunk(epoch, round, 0, 0, 21, length, 0.0, schema, (vector,)))


CHUNKS: dict[str, tuple[Received, str]] = {
    "another layout": (reduce_chunk(0, schema="t"), "another layout"),
    "another shape": (reduce_chunk(0, length=20), "a chunk that the collective has not"),
    "two rounds ahead": (reduce_chunk(0, round=2), "one can be a round ahead at most"),
}


@pytest.mark.parametrize("item", CHUNKS)
def test_a_worker_refuses_a_chunk_of(item: str) -> None:
    event, words = CHUNKS[item]
    with pytest.raises(ProtocolError, match=words) as caught:
        worker().handle(event, 0)
    assert caught.value.peer == 1


def test_a_chunk_of_an_epoch_to_come_is_left_to_be_sent_again() -> None:
    assert worker().handle(reduce_chunk(64), 0) == []


def server() -> Any:
    """One of two servers, without copies."""
    machine = compose.plan(load_experiment(served(2, 2))).machine(2, np.zeros(40, np.float32), "s")
    machine.handle(Started(), 0)
    for node in range(2):
        machine.handle(PeerJoined(node), 0)
    return machine


def push(machine: Any, shard: int, clock: int = 0, sender: int = 0) -> list[Any]:
    part = np.ones(machine.placement.shards[shard].length, np.float32)
    message = ShardPush(0, shard, clock, clock, 0, 1.0, 0, part.size, "s", (frozen(part),))
    said: list[Any] = [one.message for one in machine.handle(Received(sender, message), 0) if isinstance(one, Send)]
    return said


def test_a_server_refuses_a_push_for_what_it_does_not_own() -> None:
    machine = server()
    other = next(one.number for one in machine.placement.shards if one.number not in machine.shards)
    with pytest.raises(ProtocolError, match=f"names shard {other}, which this server does not own"):
        push(machine, other)


def test_a_pull_that_is_said_twice_is_answered_once() -> None:
    machine = server()
    shard = min(machine.shards)
    pull = Received(0, ShardPull(0, shard, 1, 0))
    assert [one for one in machine.handle(pull, 0) if isinstance(one, Send)] == []
    (held,) = [one.message for one in machine.handle(pull, 0) if isinstance(one, Send)]
    assert isinstance(held, PullHeld)
    push(machine, shard)
    answers = [one for one in push(machine, shard, sender=1) if isinstance(one, Pulled)]
    assert len(answers) == 1 and machine.handle(pull, 0) == [], "it is under way until the worker says it is there"


def test_a_push_of_a_clock_that_is_over_counts_no_more() -> None:
    machine = server()
    shard = min(machine.shards)
    push(machine, shard)
    push(machine, shard, sender=1)
    before, steps = machine.model, machine.shards[shard].steps
    assert push(machine, shard) == [PieceTaken(0, shard, 0, 0)]
    assert steps == machine.shards[shard].steps == 1 and (machine.model == before).all()
