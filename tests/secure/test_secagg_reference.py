"""FG-SecAgg/1 as its page describes it: known answers, and a second implementation of the client."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import secagg_vectors
from plain_secagg import PlainClient, RefusedError, digest, neighbours_of, pinned_floats, words_of_floats

from fedgossip.secure import Encoding, RoundAbandoned, SumClient, SumServer, frames, graph, session, sign_card

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "fg-secagg-1.md"
BOSS = bytes([77]) * 32
VECTORS = json.loads(secagg_vectors.FILE.read_text())


def test_our_session_gives_the_known_answers() -> None:
    assert json.loads(json.dumps(secagg_vectors.session())) == VECTORS, (
        "a change of the protocol's bytes: is that meant?"
    )


def test_the_second_implementation_gives_the_known_answers() -> None:
    """Its masked header announces no keys, so that only its words are compared there."""
    v = VECTORS
    members = [bytes.fromhex(one["card"]) for one in v["clients"]]
    pinned = {"task_id": v["descriptor"]["task_id"], "schema_hash": bytes.fromhex(v["descriptor"]["schema_hash"])}
    for place, one in enumerate(v["clients"]):
        drawn = iter([bytes.fromhex(one[name]) for name in ("c_sk", "s_sk", "b", "coefficients")])
        client = PlainClient(
            bytes.fromhex(one["key"]), members, bytes.fromhex(v["coordinator"]["card"]), pinned, 3,
            lambda size, drawn=drawn: next(drawn)[:size],
        )  # fmt: skip
        client.give(one["input"])
        for stage, received in one["received"].items():
            reply = client.answer(bytes.fromhex(received))
            if stage == "delivery":
                assert reply is not None and reply.endswith(client.masked)
                assert client.masked.hex() == one["masked"], f"client {place}"
            elif stage != "result":
                assert reply is not None and reply.hex() == one["sent"][stage], f"client {place}, {stage}"
        assert client.sid.hex() == v["sid"]


@pytest.mark.parametrize("stage", [9, 2, 4])
def test_plain_clients_and_ours_sum_together(stage: int) -> None:
    """Two of each kind and one that drops before its answer of a stage; 9: it does not."""
    keys, encoding = [bytes([7 + place]) * 32 for place in range(5)], Encoding(3, 50.0)
    cards, boss = [sign_card(key) for key in keys], sign_card(BOSS)
    pinned, half = pinned_floats("mixed", 3, 50.0, 24), lambda: 0.5
    clients: dict[int, Any] = {}
    values = {place: [50.0, -50.0, place / 7] for place in range(5)}
    for place, key in enumerate(keys):
        drawn = secagg_vectors.random_of(f"mixed {place}")
        if place % 2:
            clients[place] = PlainClient(key, cards, boss, pinned, 3, drawn)
            clients[place].give(words_of_floats(values[place], 50.0, 24, half))
        else:
            clients[place] = SumClient(key, cards, boss, encoding, task="mixed", n_min=3, entropy=drawn)
            clients[place].give(1, values[place])
    server = SumServer(BOSS, cards, encoding, task="mixed", n_min=3)
    frames, at = server.begin(1, range(5)), 0
    while frames:
        replies = [(v, clients[v].answer(frame)) for v, frame in frames.items() if v != 1 or at < stage]
        frames, at = {}, at + 1
        for v, reply in replies:
            if reply is not None:
                frames |= server.take(v, reply)
        if server.waiting and not frames:
            frames = server.close()
    there = [v for v in range(5) if v != 1 or stage > 2]
    assert server.result.clients == tuple(there)
    assert np.abs(server.sum - np.sum([values[v] for v in there], axis=0)).max() <= encoding.error(5)


def test_both_compute_the_same_harary_graph() -> None:
    cohort = list(range(3, 93))
    d = {"cohort": cohort, "graph": "harary", "k": 16}
    sid0 = digest("desc", b"some")
    ours = graph.harary(cohort, 16, sid0)
    assert {v: tuple(neighbours_of(v, d, sid0)) for v in cohort} == ours


def test_the_second_implementation_refuses_what_ours_refuses() -> None:
    """A changed frame at each stage: no reply from either, and the session of the plain client has not moved."""
    v = VECTORS
    one = v["clients"][0]
    members = [bytes.fromhex(each["card"]) for each in v["clients"]]
    drawn = iter([bytes.fromhex(one[name]) for name in ("c_sk", "s_sk", "b", "coefficients")])
    client = PlainClient(
        bytes.fromhex(one["key"]), members, bytes.fromhex(v["coordinator"]["card"]), {}, 3, lambda _: next(drawn)
    )
    client.give(one["input"])
    for received in one["received"].values():
        frame = bytearray.fromhex(received)
        frame[-1] ^= 1
        with pytest.raises(RefusedError):
            client.answer(bytes(frame))
        client.answer(bytes.fromhex(received))


def test_the_page_defines_what_the_bytes_contain() -> None:
    """Every purpose of a hash or key, and every field of a frame."""
    text = PAGE.read_text()
    kinds = chain(frames.Downward.__args__, frames.Upward.__args__, [frames.Keys, session.Descriptor])
    fields = {field for kind in kinds for field in kind.__struct_fields__}
    purposes = {"member", "desc", "sid", "keys", "b", "U1", "enc", "mask", "self", "share", "ids", "U3", "frame",
                "graph", "roster", "schema"}  # fmt: skip
    assert {name for name in fields if not re.search(rf"`[^`]*\b{name}\b[^`]*`", text)} == set()
    assert {one for one in purposes if f'"{one}"' not in text} == set()


def test_a_count_that_is_not_of_the_clients_ends_the_round() -> None:
    keys, encoding = [bytes([7 + place]) * 32 for place in range(4)], Encoding(2, 1.0)
    cards = [sign_card(key) for key in keys]
    server = SumServer(BOSS, cards, encoding, task="t", n_min=3)
    clients = [
        PlainClient(key, cards, sign_card(BOSS), pinned_floats("t", 2, 1.0, 24), 3, secagg_vectors.random_of(str(at)))
        for at, key in enumerate(keys)
    ]
    for client in clients:
        client.give([*words_of_floats([1.0, -1.0], 1.0, 24, lambda: 0.0)[:-1], 2])  # a count of two
    frames = server.begin(1, range(4))
    with pytest.raises(RoundAbandoned, match="a sum of 8 clients, where 4 exist"):
        while frames:
            replies = [(v, clients[v].answer(frame)) for v, frame in frames.items()]
            frames = {}
            for v, reply in replies:
                frames |= server.take(v, reply) if reply is not None else {}
