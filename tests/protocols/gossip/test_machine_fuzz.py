"""No sequence of messages, from whatever sender, makes a machine raise, grow, or keep honest participants from the end.

Cases are counted, so that a run is the same every time; about half a minute of one core.  Longer, with new seeds:

    pytest --long tests/protocols/gossip/test_machine_fuzz.py                               an hour in all
    FEDGOSSIP_FUZZ_SECONDS=600 pytest --long tests/protocols/gossip/test_machine_fuzz.py    ten minutes in all
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any

import machine_fuzz
import msgspec
import numpy as np
import pytest
from fuzz_casts import SCENES, STRANGER
from fuzz_words import FRAMES, MESSAGES, Words, carried, opened

from fedgossip.core import messages
from fedgossip.protocols.gossip.partner_set import PartnerSet
from fedgossip.protocols.gossip.sync_gossip import SyncGossip
from fedgossip.secure import frames

PAIRS = [(name, kind) for name, scene in SCENES.items() for kind in scene.senders]
CASES = 3
SLOW = {"member": 4}
"""Cases of what takes longer."""
LONG_SECONDS = float(os.environ.get("FEDGOSSIP_FUZZ_SECONDS", "3600"))
FIRST_LONG = 1_000
EXAMPLES = 120
"""Messages of a kind in which each of its fields is changed at least once."""


@pytest.fixture(scope="module", autouse=True)
def undisturbed_runs() -> Iterator[None]:
    """Those of this module's quick signatures are for its tests alone, all of them."""
    machine_fuzz.undisturbed.cache_clear()
    yield
    machine_fuzz.undisturbed.cache_clear()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_fuzz.quick(monkeypatch)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_honest_participants_go_on_whatever_is_said(name: str, kind: str) -> None:
    stages = [machine_fuzz.checked(name, kind, seed) for seed in range(SLOW.get(name, CASES))]
    assert sum(stage.evil for stage in stages) > len(stages)


@pytest.mark.long
@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_honest_participants_go_on_whatever_is_said_for_long(name: str, kind: str) -> None:
    seed, until = FIRST_LONG, time.monotonic() + LONG_SECONDS / len(PAIRS)
    while time.monotonic() < until:
        machine_fuzz.checked(name, kind, seed)
        seed += 1


# --- the fuzzer itself ------------------------------------------------------------------------------------------------


def words(seed: int = 0) -> Words:
    draw = np.random.default_rng(seed)
    return Words(
        draw, (0, 1, 2, STRANGER), 3, "float32", "s", sealed=lambda frame: b"s" * 64 + msgspec.msgpack.encode(frame)
    )


def test_every_message_and_every_frame_of_a_secure_sum_is_in_the_vocabulary() -> None:
    assert set(MESSAGES) == set(messages.DECLARED) - {messages.Hello}  # hosts keep that to themselves
    assert set(FRAMES) == set(frames.Frame.__subclasses__()) - {frames.Keys}  # a part of others


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_of_every_kind_is_made_and_each_of_its_fields_is_changed(kind: type) -> None:
    w, changed = words(), set[str]()
    made = [w.example(kind) for _ in range(EXAMPLES)]
    assert any(carried(message) is not None for message in made)
    for message in made:
        other = w.other(message)
        changed |= {one.name for one in dataclasses.fields(message) if not _same(message, other, one.name)}
    assert changed == {one.name for one in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_of_every_kind_is_made_and_each_of_its_fields_is_changed(kind: Any) -> None:
    w, changed = words(), set[str]()
    for _ in range(EXAMPLES):
        frame = w.example(kind)
        changed |= {name for name in frame.__struct_fields__ if not _same(frame, w.other(frame), name)}
    assert changed == set(kind.__struct_fields__)
    assert any(opened(w.sealed(w.example(kind))) is not None for _ in range(100) if w.sealed)


def _same(a: Any, b: Any, name: str) -> bool:
    return _plain(getattr(a, name)) == _plain(getattr(b, name))


def _plain(value: Any) -> object:
    """What tells two of them apart: the repr of a frame shows its kind alone."""
    return msgspec.msgpack.encode(value) if isinstance(value, frames.Frame) else repr(value)


def test_a_case_is_the_same_every_time() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        machine_fuzz.play("async_gossip", "neighbour", 5, trace.append)
    assert traces[0] == traces[1] and any("EVIL" in line for line in traces[0])


def _raises(self: PartnerSet, *_: Any) -> None:
    raise KeyError("planted")


def _forgets(self: PartnerSet, sender: int, *_: Any) -> None:
    self.__dict__.setdefault("planted", []).append(sender)


@pytest.mark.parametrize(
    ("planted", "said"),
    [(_raises, "KeyError: 'planted'"), (_forgets, "its state is another")],
)
def test_a_fault_that_is_planted_is_found(planted: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_fuzz.undisturbed("sync_gossip", 0)  # without it
    check = PartnerSet.check

    def faulty(self: PartnerSet, sender: int, what: str) -> None:
        if sender == STRANGER:
            planted(self, sender)
        check(self, sender, what)

    monkeypatch.setattr(PartnerSet, "check", faulty)
    with pytest.raises(machine_fuzz.Broken, match=said) as found:
        for seed in range(0, 30, machine_fuzz.WORLDS):
            machine_fuzz.checked("sync_gossip", "stranger", seed)
    assert found.value.__notes__[0].startswith("python tests/machine_fuzz.py sync_gossip stranger ")


def test_memory_that_grows_with_what_is_said_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_fuzz.undisturbed("sync_gossip", 0)
    heard = SyncGossip.received

    def keeping(self: SyncGossip[Any], sender: int, message: Any, now_ns: int) -> Any:
        self.__dict__.setdefault("planted", []).append(message)
        return heard(self, sender, message, now_ns)

    monkeypatch.setattr(SyncGossip, "received", keeping)
    monkeypatch.setattr(machine_fuzz, "look", _size_alone(machine_fuzz.look))
    with pytest.raises(machine_fuzz.Broken, match="bytes after"):
        for seed in range(0, 60, machine_fuzz.WORLDS):
            machine_fuzz.checked("sync_gossip", "neighbour", seed)


def _size_alone(look: Any) -> Any:
    return lambda machine: (0, look(machine)[1])
