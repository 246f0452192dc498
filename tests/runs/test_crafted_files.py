"""Checkpoints and traces of somebody else's making: read as they were written, or refused in one line."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedgossip.base.errors import FedgossipError
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Checkpoint, Event, Fired, PeerJoined, Received, Started, Trained
from fedgossip.core.messages import Leaving, Model
from fedgossip.core.run_format import CHECKPOINT
from fedgossip.drivers.replay import replay_trace
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.runs import checkpoints
from fedgossip.runs.checkpoints import About, RefusedError, Stored
from fedgossip.runs.trace import FRAME, MAGIC, Opening, Reading, Trace, Traced, TraceError

MUTANTS = 200
EVIL: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 1e308, -0.5, float("inf"), "", "x" * 500,
    "object", "float32", "M8[ns]", "V10", "bool", [], {}, [[]], [0] * 300, [2**62, 2**62, 4], {"is": "tuple", "of": []},
    {"is": "Model"}, {"is": "CARRIERS"}, {"is": {}}, "Rostered", "Received", "Started", "ProtocolError",
]  # fmt: skip
"""Put in the place of whatever stood there."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value in a value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def mutated(value: Any, chance: random.Random) -> Any:
    """Return a copy in which something is evil, gone, doubled, or of another name."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 2))):
        *way, last = chance.choice([path for path in places(value) if path])
        holder = value
        for key in way:
            holder = holder[key]
        keys = holder.keys() if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        if last not in keys:
            continue
        match chance.randrange(5):
            case 0 if isinstance(holder, dict):
                holder[f"{last}2"] = holder.pop(last)
            case 1 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[last]))
            case 2:
                del holder[last]
            case _:
                holder[last] = copy.deepcopy(chance.choice(EVIL))
    return value


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    facts = {"absent": [1, 2], "deep": {"x": [2**80]}}
    machine = Checkpoint(3, {"state/0": frozen(np.arange(6, dtype=np.float32))}, facts)
    checkpoints.write(tmp_path, Stored(About(1, "layout", "1", {"rounds": 9}), machine, {"steps": np.arange(4)}))
    return tmp_path / CHECKPOINT


def opened(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"]["about"] = json.loads(header["__metadata__"]["about"])
    return header, content[8 + size :]


def closed(path: Path, header: Any, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write it as one would who knows how: with the hash that it then has."""
    if isinstance(header, dict) and isinstance(meta := header.get("__metadata__"), dict) and "about" in meta:
        meta["about"] = json.dumps(meta["about"])
        monkeypatch.setattr(checkpoints, "_hash", lambda *_: meta.get("sha256"))
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize("seed", range(4))
def test_a_crafted_checkpoint_is_read_or_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    header, body = opened(checkpoint)
    chance, refused = random.Random(seed), 0
    for _ in range(MUTANTS // 4):
        closed(checkpoint, mutated(header, chance), body, monkeypatch)
        try:
            found = checkpoints.read(checkpoint)
        except RefusedError as error:
            assert error.reason in ("corrupt", "format") and len(str(error).splitlines()) == 1
            refused += 1
        else:
            assert isinstance(found.machine.round, int) and isinstance(found.about.node, int)
    assert refused > MUTANTS // 16


CRAFTED = {
    "a number too large": lambda h: h["vector/state/0"].update(data_offsets=[0, 2**80]),
    "backwards": lambda h: h["vector/state/0"].update(data_offsets=[24, 0], shape=[-6]),
    "more than there is": lambda h: h["vector/state/0"].update(shape=[2**40], data_offsets=[0, 2**42]),
    "sizes that overflow": lambda h: h["vector/state/0"].update(shape=[2**62, 4]),
    "many dimensions": lambda h: h["vector/state/0"].update(shape=[1] * 70 + [6]),
    "one over the other": lambda h: h["task/steps"].update(data_offsets=[0, 32]),
    "a round that is none": lambda h: h["__metadata__"]["about"].update(round=-1),
    "facts that are none": lambda h: h["__metadata__"]["about"].update(facts=[]),
    "a name for a number": lambda h: h["__metadata__"]["about"].update(node="1"),
}


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED.keys())
def test_what_cannot_be_in_a_checkpoint_is_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]
) -> None:
    header, body = opened(checkpoint)
    change(header)
    closed(checkpoint, header, body, monkeypatch)
    with pytest.raises(RefusedError):
        checkpoints.read(checkpoint)


# --- traces -----------------------------------------------------------------------------------------------------------


def model(round: int) -> Model:
    return Model(round, "layout", (frozen(np.full(4, round, np.float32)),))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """What node 0 of a ring of three was told in three rounds."""
    settings = {"rounds": 3, "topology": {"graph": "ring", "n": 3}, "task": {"kind": "averaging", "dim": 4}}
    plan, initial = compose.plan(load_experiment(settings)), frozen(np.zeros(4, np.float32))
    opening = Opening(0, 0, "layout", "0", plan.experiment.to_dict(), initial)
    written = Trace(tmp_path / "whole.bin", opening, lambda *_: pytest.fail("it was not written"))
    machine = Traced(plan.machine(0, initial, "layout"), written)
    told: list[Event] = [Started(), PeerJoined(1), PeerJoined(2)]
    for round in range(3):
        told += [Trained(round, None), *(Received(node, model(round)) for node in (1, 2))]
    told += [Received(1, Leaving(3)), Received(2, Leaving(3)), Received(2, model(9)), Fired(("deadline", 0))]
    for now, event in enumerate(told):
        with contextlib.suppress(FedgossipError):
            machine.handle(event, now)
    written.close()
    return tmp_path / "whole.bin"


def records(path: Path) -> list[tuple[Any, bytes]]:
    content, at, found = path.read_bytes(), len(MAGIC), []
    while at < len(content):
        length, size, _ = FRAME.unpack_from(content, at)
        at += FRAME.size
        found.append((msgspec.msgpack.decode(content[at : at + length]), content[at + length : at + length + size]))
        at += length + size
    return found


def put(path: Path, told: list[tuple[Any, bytes]]) -> Path:
    content = [MAGIC]
    for header, body in told:
        text = msgspec.msgpack.encode(header)
        content += [FRAME.pack(len(text), len(body), zlib.crc32(body, zlib.crc32(text))), text, body]
    path.write_bytes(b"".join(content))
    return path


@pytest.mark.parametrize("seed", range(4))
def test_a_crafted_trace_is_read_and_replayed_or_refused(trace: Path, tmp_path: Path, seed: int) -> None:
    assert replay_trace(trace).equal
    told = records(trace)
    chance, refused = random.Random(seed), 0
    for _ in range(MUTANTS // 4):
        crafted = list(told)
        at = chance.choice((0, chance.randrange(len(crafted))))
        crafted[at] = mutated(crafted[at][0], chance), crafted[at][1]
        path = put(tmp_path / "trace.bin", crafted)
        try:
            with Reading(path) as reading:
                list(reading)
            replay_trace(path)
        except TraceError as error:
            assert len(str(error).splitlines()) == 1
            refused += 1
    assert refused > MUTANTS // 16
