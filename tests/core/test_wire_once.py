"""What a message costs on the wire is found once, when it is made ready to be sent, however many it is for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hub_kit import invite, wheel

import fedgossip
from fedgossip.base.vectors import frozen
from fedgossip.core import wire
from fedgossip.core.messages import Hello, Invite, Model
from fedgossip.core.wire import CHUNK_BYTES, VOCABULARY, wire_bytes
from fedgossip.net.links.outbox import Cuts, Outbox
from fedgossip.simulation.simulator import Simulator


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the header of a message was made, by its kind."""
    counts: Counter[str] = Counter()
    plain = wire.Vocabulary.encoded

    def counted(self: wire.Vocabulary, message: Any) -> bytes:
        counts[type(message).__name__] += 1
        return plain(self, message)

    monkeypatch.setattr(wire.Vocabulary, "encoded", counted)
    return counts


def drained(outbox: Outbox) -> int:
    """Send everything; return its bytes."""
    size = 0
    while (pair := outbox.next()) is not None:
        size += sum(map(len, pair))
        outbox.sent()
    return size


@pytest.mark.sockets
def test_a_message_for_many_partners_is_made_ready_once(encoded: Counter[str]) -> None:
    cuts = Cuts()
    boxes = [Outbox(cuts) for _ in range(5)]
    model = Model(3, "layout", (frozen(np.zeros(CHUNK_BYTES // 2, np.float32)),))
    for box in boxes:
        box.put(model)
    sizes = {drained(box) for box in boxes}
    assert encoded == {"Model": 1} and sizes == {cuts.packed(model).size} == {wire_bytes(model)}


@pytest.mark.sockets
def test_a_coordinators_invitation_is_made_ready_once_and_by_no_receiver(encoded: Counter[str]) -> None:
    with wheel(3) as w:
        w.start()
        encoded.clear()
        model = invite(5)
        for node in range(3):
            w.hub.send(node, model)
        w.until(lambda: all(w.arrived(node, Invite) for node in range(3)))
        assert encoded == {"Invite": 1} and w.hub.bytes_sent == 3 * wire_bytes(model)
        heard = [event.size for node in range(3) for event in w.heard[node] if not said(event, Hello)]
        assert heard == [wire_bytes(model)] * 3


def said(event: Any, kind: type) -> bool:
    return not hasattr(event, "size") or isinstance(event.message, kind)


def test_a_simulated_broadcast_costs_one_computation(encoded: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []  # kept alive, so that no two have one identity
    plain = Simulator._carry

    def noted(self: Simulator, link: tuple[int, int], received: Any, cost: tuple[int, int]) -> Any:
        sent.append(received.message)
        return plain(self, link, received, cost)

    monkeypatch.setattr(Simulator, "_carry", noted)
    monkeypatch.setattr(VOCABULARY, "_lengths", {})
    topology = {"graph": "complete", "n": 6}
    fedgossip.simulate({"rounds": 3, "topology": topology, "task": {"kind": "quadratic", "dim": 3}})
    assert sum(encoded.values()) == len({_said(message) for message in sent}) < len({id(message) for message in sent})


def _said(message: Any) -> bytes:
    return VOCABULARY.encoded(message)
