"""A hub and its spokes over real sockets: who is spoken to, in what order, and what a dead or a slow client costs."""

from __future__ import annotations

import re
import resource
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq
from commands import typed
from hub_kit import CHUNKS, DIM, HELLO, SECONDS, contribution, heard_until, invite, values, wheel
from test_net_security import arrived, calling, greeting, header, mark

from fedgossip.base.errors import ConfigError, NetworkError
from fedgossip.base.vectors import Vector
from fedgossip.core.messages import Contribution, Expected, Invite, Leaving
from fedgossip.core.wire import CHUNK_BYTES, wire_bytes
from fedgossip.drivers.local import run_local
from fedgossip.net import connections
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.hub import router_sender
from fedgossip.net.hub import server as hubs
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.router_sender import CHUNKS_IN_A_ROW, MODELS, SPEAKING_CHUNKS, ClientLine, FairSender
from fedgossip.net.hub.server import CoordinatorLinks
from fedgossip.net.identity import Identity
from fedgossip.net.links.outbox import OUTBOX_MESSAGES, Cuts, Outbox, Pair
from fedgossip.net.sockets import SILENCE_MS
from fedgossip.net.streams.sealed_way import SealedWay
from fedgossip.net.streams.streams import Streams
from fedgossip.net.transport import Arrived, LinkDown, LinkEvent, LinkUp, Rejected

pytestmark = pytest.mark.sockets


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_what_is_said_comes_whole_in_both_directions(transport: str, tmp_path: Path) -> None:
    address = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/hub"
    with wheel(3, address) as w:
        w.start()
        model = invite(5)
        for node in range(3):
            w.hub.send(node, model)
        w.until(lambda: all(w.arrived(node, Invite) for node in range(3)))
        assert all(values(w.arrived(node, Invite)) == [(3, 5.0)] for node in range(3))
        for node, spoke in w.spokes.items():
            spoke.send(3, contribution(node))
            spoke.send(3, Leaving(1, done=True))
        w.until(lambda: len(w.arrived(3, Leaving)) == 3)
        assert values(w.arrived(3, Contribution)) == [(0, 0.0), (1, 1.0), (2, 2.0)]
        assert w.hub.bytes_sent == 3 * wire_bytes(model) and w.hub.dropped == 0
        assert [w.reasons(node) for node in range(4)] == [[]] * 4


def test_the_first_word_of_both_ends_is_a_hello_and_the_link_is_up_after_it() -> None:
    with wheel(1) as w:
        w.spoke(0, replace(HELLO, process=7))
        w.until(lambda: w.up(0) and w.up(1))
        assert w.heard[1] == [Arrived(0, replace(HELLO, process=7)), LinkUp(0, afresh=True)]
        assert w.heard[0] == [Arrived(1, replace(HELLO, process=99)), LinkUp(1, afresh=True)]


def test_what_is_said_on_a_link_that_is_down_is_lost() -> None:
    with wheel(1) as w:
        w.hub.send(0, invite(1))
        spoke = w.spoke(0)
        spoke.send(1, contribution(1))
        w.until(lambda: w.up(0) and w.up(1))
        w.hub.send(0, invite(2))
        spoke.send(1, contribution(2))
        w.until(lambda: w.arrived(0, Invite) and w.arrived(1, Contribution))
        assert values(w.arrived(0, Invite)) == [(1, 2.0)] and values(w.arrived(1, Contribution)) == [(0, 2.0)]


# --- turns ----------------------------------------------------------------------------------------------------------


def test_however_many_send_at_once_only_so_many_vectors_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_sender, "QUIET_SECONDS", 60.0)
    n = 12
    with wheel(n, turns_at_once=3) as w:
        w.start()
        most = 0

        def complete() -> bool:
            nonlocal most
            open_now = [node for node in range(n) if w.hub._clients[node].assembler.missing_chunks]
            most = max(most, len(open_now))
            return len(w.arrived(n, Contribution)) == n

        for node, spoke in w.spokes.items():
            spoke.send(n, contribution(node))
        w.until(complete)
        assert values(w.arrived(n, Contribution)) == [(node, float(node)) for node in range(n)]
        assert 1 <= most <= 3


def test_a_message_of_one_chunk_needs_no_turn() -> None:
    with wheel(2, dim=DIM // CHUNKS, turns_at_once=0) as w:
        w.start()
        w.spokes[0].send(2, contribution(4, DIM // CHUNKS))
        w.until(lambda: w.arrived(2, Contribution))


def test_words_of_the_links_overtake_a_model_that_is_on_its_way() -> None:
    """A client that is sent a model may send at the same time."""
    with wheel(1) as w:
        w.start()
        for round in range(3):
            w.hub.send(0, invite(round))
        w.spokes[0].send(1, contribution(3))
        w.until(lambda: len(w.arrived(0, Invite)) == 3 and w.arrived(1, Contribution))


def falls_silent_after(spoke: ClientLinks, pairs: int) -> None:
    """Let a client hand no more than so many words and chunks to ZeroMQ."""
    following, sent, given = spoke._next, spoke._outbox.sent, 0

    def count() -> None:
        nonlocal given
        given += 1
        sent()

    spoke._outbox.sent = count  # type: ignore[method-assign]
    spoke._next = lambda: following() if given < pairs else None  # type: ignore[method-assign]


# --- broken connections ---------------------------------------------------------------------------------------------


def test_a_client_that_closes_is_told_as_down_and_as_up_when_it_is_back() -> None:
    with wheel(2) as w:
        w.start()
        w.spokes.pop(0).close()
        w.until(lambda: LinkDown(0) in w.heard[2])
        w.forget()
        w.start(0)
        assert w.heard[2][-1] == LinkUp(0, afresh=True)
        w.hub.send(0, invite(3))
        w.hub.send(1, invite(4))
        w.until(lambda: w.arrived(0, Invite) and w.arrived(1, Invite))
        assert values(w.arrived(0, Invite)) == [(2, 3.0)] and values(w.arrived(1, Invite)) == [(2, 4.0)]


def test_last_words_before_a_goodbye_are_heard() -> None:
    with wheel(1) as w:
        w.start()
        spoke = w.spokes.pop(0)
        spoke.send(1, Leaving(3, done=True))
        spoke.close(5.0)
        w.until(lambda: w.arrived(1, Leaving) and LinkDown(0) in w.heard[1])


def test_a_connection_that_breaks_in_the_middle_of_a_message_costs_that_message_and_its_turn() -> None:
    with wheel(2, turns_at_once=1) as w:
        w.start()
        falls_silent_after(w.spokes[0], 2 + CHUNKS // 2)  # its turn is asked for, the head, chunks
        w.spokes[0].send(2, contribution(1))
        w.until(lambda: w.hub._clients[0].assembler.missing_chunks == CHUNKS - CHUNKS // 2)
        w.spokes.pop(0).close()
        w.until(lambda: LinkDown(0) in w.heard[2])
        assert not w.hub.turns.going and w.hub._clients[0].assembler._vectors == () and w.reasons(2) == []
        w.spokes[1].send(2, contribution(2))
        w.start(0)
        w.spokes[0].send(2, contribution(3))
        w.until(lambda: len(w.arrived(2, Contribution)) >= 2)
        assert values(w.arrived(2, Contribution)) == [(0, 3.0), (1, 2.0)] and w.reasons(2) == []


def test_a_broken_connection_that_nobody_has_told_of_is_noticed_when_it_is_spoken_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with wheel(1) as w:
        w.start()
        monkeypatch.setattr(w.hub._callers, "look", list)
        w.spokes.pop(0).close()

        def told() -> bool:
            w.hub.send(0, Leaving(1))
            return LinkDown(0) in w.heard[1]

        w.until(told)


def test_the_same_process_on_a_new_connection_takes_the_place_of_the_old_one_which_is_hung_up_on() -> None:
    with wheel(1) as w:
        w.spoke(0, replace(HELLO, process=5))
        w.until(lambda: w.up(1) and w.up(0))
        old = w.spokes[0]
        w.forget()
        w.spoke(0, replace(HELLO, process=5))
        w.until(lambda: w.up(1) and w.up(0))
        assert [type(event) for event in w.heard[1]] == [LinkDown, Arrived, LinkUp]
        assert old.poll(5000) == [LinkDown(1)]
        old.close()
        w.hub.send(0, invite(1))
        w.until(lambda: w.arrived(0, Invite))


def test_a_later_life_takes_the_place_of_the_one_before() -> None:
    with wheel(1) as w:
        w.spoke(0, replace(HELLO, process=5))
        w.until(lambda: w.up(1))
        old = w.spokes[0]
        w.spoke(0, replace(HELLO, process=6, incarnation=1))
        w.until(lambda: len([e for e in w.heard[1] if isinstance(e, LinkUp)]) == 2 and w.up(0))
        old.close()
        w.until(lambda: w.up(1))


def test_another_process_with_the_same_key_is_told_so_and_waits_until_the_first_is_gone() -> None:
    with wheel(1) as w:
        w.spoke(0, replace(HELLO, process=5))
        w.until(lambda: w.up(1) and w.up(0))
        first = w.spokes.pop(0)
        w.forget()
        w.spoke(0, replace(HELLO, process=6))
        w.until(lambda: "twin" in w.reasons(0))
        assert w.heard[1] == [Arrived(0, replace(HELLO, process=6))] and not w.up(0)
        w.hub.send(0, invite(1))
        w.until(lambda: w.hub.idle)
        heard = [event for _ in range(20) for event in first.poll(50)]
        assert any(isinstance(event, Arrived) and isinstance(event.message, Invite) for event in heard)
        assert not w.arrived(0, Invite)
        first.close()
        w.until(lambda: w.up(1) and w.up(0), "the second one is heard")
        w.spokes[0].send(1, contribution(2))
        w.until(lambda: w.arrived(1, Contribution))


def test_another_process_with_the_same_key_sees_the_end_of_the_coordinator() -> None:
    """It has no link, so no end of one was reported: it waited for coordinator.silence, ten minutes."""
    with wheel(1) as w:
        w.spoke(0, replace(HELLO, process=5))
        w.until(lambda: w.up(1) and w.up(0))
        first = w.spokes.pop(0)
        w.forget()
        w.spoke(0, replace(HELLO, process=6))
        w.until(lambda: "twin" in w.reasons(0))
        w.hub.close()
        heard_until(w.spokes[0], lambda seen: LinkDown(1) in seen)
        first.close()


def test_a_hub_that_is_back_on_its_port_is_called_again_by_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGERS", 0)
    n = 30
    with wheel(n) as w:
        w.start()
        address, expected = w.hub.address, w.expected
        w.hub.close()
        w.hub = CoordinatorLinks(n, address, w.keys[n])
        clients = {node: Endpoint("", w.keys[node].public) for node in range(n)}
        w.hub.connect(tuple(clients), clients, expected, replace(HELLO, process=100, incarnation=1))
        w.forget()
        w.until(lambda: w.up(n) == set(range(n)) and all(w.up(node) for node in range(n)))
        assert all(LinkDown(n) in w.heard[node] for node in range(n))


def test_a_descriptor_that_is_used_again_is_the_new_callers() -> None:
    """One client hangs up and another calls before the hub looks; without encryption nobody waits for it to look."""
    hub = CoordinatorLinks(2, "tcp://127.0.0.1:*", None)
    hub.connect((0, 1), {0: Endpoint("", ""), 1: Endpoint("", "")}, Expected("layout", "float32", DIM), HELLO)
    where, used_again = {2: Endpoint(hub.address, "")}, 0
    try:
        for first, second in [(0, 1), (1, 0)] * 5:
            _called(first, where, hub).close()
            before = hub._clients[first].here
            spoke = _called(second, where, None)
            events: list[LinkEvent] = []
            while LinkUp(second, afresh=True) not in events:
                hub._receive(events)  # as if the monitor had told of the break after the poll, and before this
            assert LinkDown(first) in events and not hub._clients[first].up and hub._clients[second].up
            used_again += before.descriptor == hub._clients[second].here.descriptor  # type: ignore[union-attr]
            spoke.close()
            heard_until(hub, lambda seen, second=second: LinkDown(second) in seen)  # type: ignore[misc]
    finally:
        hub.close()
    assert used_again


def test_a_caller_that_takes_the_name_of_its_last_connection_is_up_on_the_new_one() -> None:
    hub = CoordinatorLinks(2, "tcp://127.0.0.1:*", None)
    hub.connect((0,), {0: Endpoint("", "")}, Expected("layout", "float32", DIM), HELLO)
    where = {2: Endpoint(hub.address, "")}
    try:
        first = _called(0, where, hub)
        second = _called(0, where, None)
        heard_until(hub, lambda seen: seen and seen[-1] == LinkUp(0, afresh=True))
        first.close()
        hub.send(0, Leaving(1))
        heard_until(hub, lambda _: any(isinstance(e, Arrived) and e.message == Leaving(1) for e in second.poll(1)))
        assert hub._clients[0].up
        second.close()
    finally:
        hub.close()


def test_a_client_that_has_nothing_to_hear_is_said_something_without_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP tells of a cut only where something was to be brought."""
    clock = [time.monotonic()]
    monkeypatch.setattr(hubs, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with wheel(1) as w:
        w.start()
        w.until(lambda: w.hub.idle)
        spoke = w.spokes[0]
        while spoke._dealer.poll(100):  # type: ignore[union-attr]
            spoke.poll(0)
        for _ in range(3):
            clock[0] += hubs.PROBE_SECONDS
            w.hub.poll(0)
            assert spoke._dealer.poll(5000)  # type: ignore[union-attr]
            assert spoke.poll(0) == []
        w.hub.close()


def _called(node: int, where: dict[int, Endpoint], hub: CoordinatorLinks | None) -> ClientLinks:
    """Return a spoke that has said Hello, and has been heard where a hub is given."""
    spoke = ClientLinks(node, None)
    spoke.connect((2,), where, Expected("layout", "float32", DIM), HELLO)
    end = time.monotonic() + SECONDS
    while not (spoke._connected and (hub is None or hub._clients[node].up)):
        assert time.monotonic() < end
        spoke.poll(1)
        if hub:
            hub.poll(1)
    return spoke


def test_a_client_that_talks_on_hears_the_last_word_of_a_hub_that_closes() -> None:
    """Who hangs up with words unread takes back, by TCP's reset, what the other end has not read yet."""
    with wheel(1) as w:
        w.start()
        spoke = w.spokes.pop(0)
        heard: list[Arrived] = []

        def talk() -> None:
            end = time.monotonic() + SECONDS
            while not heard and time.monotonic() < end:
                spoke.send(1, contribution(1, DIM // CHUNKS))
                heard.extend(e for e in spoke.poll(1) if isinstance(e, Arrived) and isinstance(e.message, Invite))
                time.sleep(0.005)
            spoke.close()

        thread = threading.Thread(target=talk)
        thread.start()
        for round in range(4):
            w.hub.send(0, invite(round))
        w.hub.close(SECONDS)
        thread.join()
        assert heard


# --- slow clients ---------------------------------------------------------------------------------------------------


def test_one_that_reads_nothing_keeps_no_other_waiting() -> None:
    n, rounds = 4, 12
    with wheel(n) as w:
        w.start()
        stopped = w.spokes.pop(0)
        for round in range(rounds):
            model = invite(round)
            for node in range(n):
                w.hub.send(node, model)
            w.until(lambda round=round: all(len(w.arrived(node, Invite)) == round + 1 for node in w.spokes))  # type: ignore[misc]
        assert not w.hub.idle and w.hub._clients[0].line.stuck
        assert w.hub.dropped >= rounds - OUTBOX_MESSAGES - 1 - 2 - _in_kernel(), "bounded"
        stopped.close()
        w.until(lambda: w.hub.idle)


def test_a_stream_is_sent_some_chunks_before_the_next_which_has_its_turn_all_the_same() -> None:
    order: list[int] = []

    class Way(SealedWay):
        def send(self, pair: Pair) -> bool:
            order.append(self.node)
            return True

    nothing: Any = SimpleNamespace()
    speaker = FairSender(nothing, nothing)
    for node in range(2):
        speaker.put(ClientLine(node, Outbox(Cuts()), way=Way(node, sends=True)), invite(0))
    speaker.speak()
    in_turns = [min(CHUNKS_IN_A_ROW, 1 + CHUNKS - at) for at in range(0, 1 + CHUNKS, CHUNKS_IN_A_ROW)]
    assert order == [node for taken in in_turns for node in range(2) for _ in range(taken)]


def _in_kernel() -> int:
    """How many models may be in socket buffers: of 2 MiB each, up to 6 MiB either side."""
    return 6 + SPEAKING_CHUNKS // CHUNKS


def test_models_that_nobody_takes_are_let_go_however_many_clients_wait_for_them() -> None:
    """Each of several slow clients waits for other models; the coordinator keeps no more than MODELS of them."""
    n = 3
    with wheel(n) as w:
        w.start()
        stopped = [w.spokes.pop(node) for node in range(n)]
        sent: list[weakref.ref[Vector]] = []
        for round in range(3 * MODELS):
            model = invite(round)
            sent.append(weakref.ref(model.vectors[0]))
            w.hub.send(round % n, model)
            w.hub.poll(0)
        del model
        within_zeromq = n * (SPEAKING_CHUNKS // CHUNKS + 1)
        before_they_are_given_up = SILENCE_MS / 2000
        w.until(
            lambda: sum(one() is not None for one in sent) <= MODELS + within_zeromq,
            "the oldest are let go",
            before_they_are_given_up,
        )
        assert w.hub.dropped >= 3 * MODELS - MODELS - within_zeromq - n * _in_kernel()
        for spoke in stopped:
            spoke.close()


def test_one_that_goes_silent_in_the_middle_of_its_message_gives_way_and_loses_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router_sender, "STALLED_SECONDS", 0.3)
    with wheel(2, turns_at_once=1) as w:
        w.start()
        falls_silent_after(w.spokes[0], 2 + CHUNKS // 2)
        w.spokes[0].send(2, contribution(1))
        w.until(lambda: w.hub._clients[0].assembler.missing_chunks == CHUNKS - CHUNKS // 2)
        silent = w.spokes.pop(0)
        w.spokes[1].send(2, contribution(2))
        w.until(lambda: w.arrived(2, Contribution), "the other is heard")
        w.until(lambda: "stalled" in w.reasons(2))
        assert values(w.arrived(2, Contribution)) == [(1, 2.0)]
        assert not w.hub._clients[0].assembler.missing_chunks and 0 not in w.hub.turns.going
        silent.close()


# --- limits and mistakes --------------------------------------------------------------------------------------------


def test_two_hundred_clients_talk_with_one_hub() -> None:
    n, dim = 200, 1000
    with wheel(n, dim=dim) as w:
        w.start()
        model = invite(7, dim)
        for node in range(n):
            w.hub.send(node, model)
        w.until(lambda: all(w.arrived(node, Invite) for node in range(n)))
        for node, spoke in w.spokes.items():
            spoke.send(n, contribution(node, dim))
        w.until(lambda: len(w.arrived(n, Contribution)) == n)
        assert values(w.arrived(n, Contribution)) == [(node, float(node)) for node in range(n)]


def test_a_port_that_is_taken_is_an_error_with_advice() -> None:
    with wheel(1) as w, pytest.raises(NetworkError, match="cannot listen") as refused:
        CoordinatorLinks(1, w.hub.address, w.keys[1])
    assert "another port" in refused.value.advice


def test_too_few_open_files_are_an_error_before_anybody_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1000, 3000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    connections.check_clients(500)
    assert limits[-1] == (3000, 3000)  # whatever is needed: as many as the system allows
    with pytest.raises(NetworkError, match="1000 clients need"):
        connections.check_clients(1000)


@pytest.mark.parametrize("limit", [64, 128, 160])
def test_a_run_that_needs_more_open_files_than_there_may_be_is_refused_at_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int
) -> None:
    """Peers hung up on each other in place of that, and accused the keys: 8 on a complete graph have 7 links each."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: None)
    content = {"rounds": 2, "task": {"kind": "quadratic"}, "topology": {"graph": "complete", "n": 8}}
    with pytest.raises(NetworkError, match=f"7 partners need 184 open files, and this process may have {limit}"):
        run_local(content, tmp_path / "run")
    with pytest.raises(NetworkError, match=r"(3 clients|one partner.s links) need [0-9]+ open files"):
        run_local({"rounds": 2, "task": {"kind": "quadratic"}, "coordinator": {"clients": 3}}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_host_that_may_not_open_enough_files_invites_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: None)
    text = 'rounds = 2\n[coordinator]\nclients = 3\n[task]\nkind = "quadratic"\n'
    (tmp_path / "e.toml").write_text(text)
    said = typed(["host", "e.toml", "--folder", "here"], tmp_path)
    assert said.code == 3 and re.match("error: 3 clients need [0-9]+ open files", said.errors[0]), said
    assert said.out == "" and not (tmp_path / "here").exists()


def test_a_spoke_has_one_coordinator_and_refuses_an_address_that_is_none() -> None:
    keys = [Identity.new(), Identity.new()]
    spoke = ClientLinks(0, keys[0])
    try:
        with pytest.raises(ConfigError, match="is no address"):
            spoke.connect((1,), {1: Endpoint("nowhere", keys[1].public)}, Expected("s", "float32", 1), HELLO)
        spoke.meet(1, Endpoint("tcp://127.0.0.1:9", keys[1].public))
        with pytest.raises(ConfigError, match="ours is 1"):
            spoke.meet(2, Endpoint("tcp://127.0.0.1:9", keys[1].public))
        assert spoke.partners == (1,) and "tcp://127.0.0.1:9" in spoke.address
    finally:
        spoke.close()


def test_a_spoke_follows_a_coordinator_that_has_moved() -> None:
    with wheel(1) as w:
        w.start()
        moved = CoordinatorLinks(1, "tcp://127.0.0.1:*", w.keys[1])
        moved.connect((0,), {0: Endpoint("", w.keys[0].public)}, w.expected, HELLO)
        w.spokes[0].meet(1, Endpoint(moved.address, w.keys[1].public))
        w.until(lambda: LinkDown(0) in w.heard[1])
        w.hub.close()
        w.hub = moved
        w.forget()
        w.until(lambda: w.up(0) and w.up(1))


def test_a_wrong_key_of_the_coordinator_is_told_to_the_client() -> None:
    with wheel(1) as w:
        spoke = w.spokes[0] = ClientLinks(0, w.keys[0])
        w.heard[0] = []
        spoke.connect((1,), {1: Endpoint(w.hub.address, Identity.new().public)}, w.expected, HELLO)
        w.until(lambda: w.reasons(0))
        assert set(w.reasons(0)) <= {"hung_up", "handshake"} and not w.up(1)


def test_a_client_whose_key_is_not_known_hears_that_it_is_refused() -> None:
    with wheel(1) as w:
        spoke = w.spokes[0] = ClientLinks(0, Identity.new())
        w.heard[0] = []
        spoke.connect((1,), {1: Endpoint(w.hub.address, w.keys[1].public)}, w.expected, HELLO)
        w.until(lambda: "handshake" in w.reasons(0) and "unknown_key" in w.reasons(1))
        assert not w.up(0) and not w.up(1)


class Full:
    """A ROUTER that takes nothing, but for one message after `opens`."""

    def __init__(self, clock: list[float], opens: float) -> None:
        self.clock, self.opens, self.tried = clock, opens, list[float]()
        self.router_mandatory, self.sndhwm = False, 0

    def send(self, frame: bytes, *_: object, **__: object) -> None:
        if frame != b"name" or self.clock[0] >= self.opens:
            self.opens = self.opens if frame == b"name" else np.inf
            return
        self.tried.append(self.clock[0])
        raise zmq.Again


def test_tries_become_rarer_the_longer_a_client_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    router = Full(clock, opens=2.0)
    monkeypatch.setattr(router_sender, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    speaker = router_sender.FairSender(router, Streams(None, ()))  # type: ignore[arg-type]
    line = router_sender.ClientLine(0, Outbox(Cuts()), b"name")
    for _ in range(2):
        speaker.put(line, Leaving(0))
    while clock[0] < 3.0:
        speaker.speak()
        clock[0] += 0.001
    before, after = ([at for at in router.tried if (at < 2.0) is early] for early in (True, False))
    for tries in (before, after):
        gaps = np.diff(tries)
        assert gaps[0] <= 0.004 and np.all(gaps <= router_sender.RETRY_SECONDS_MAX + 0.002) and len(tries) < 50
    assert not speaker.idle


def test_a_message_may_take_long_if_only_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, passes = [0.0], [0.0]  # what passes does so while it listens
    monkeypatch.setattr(hubs, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with wheel(1) as w, calling(w.hub, w.keys[0]) as slow:
        poll = w.hub.poller.poll

        def listen(timeout_ms: int) -> list[tuple[Any, int]]:
            clock[0], passes[0] = clock[0] + passes[0], 0.0
            return poll(timeout_ms)

        monkeypatch.setattr(w.hub.poller, "poll", listen)
        slow.send(*greeting(HELLO))
        heard_until(w.hub, arrived)
        slow.send(mark(b"A", 3), b"")
        heard_until(w.hub, lambda _: w.hub.turns.has(0, 3))
        fields = {"type": "contribution", "round": 0, "schema": "layout", "parts": [["float32", DIM]]}
        slow.send(mark(b"H", 3), header(**fields, examples=1, steps=1, loss=0.0))
        events: list[LinkEvent] = []
        for index in range(CHUNKS):
            passes[0] = 0.9 * router_sender.STALLED_SECONDS
            slow.send(mark(b"C", 3, index), bytes(CHUNK_BYTES))
            left = CHUNKS - 1 - index
            events += heard_until(w.hub, lambda heard, left=left: w.hub._clients[0].assembler.missing_chunks == left)  # type: ignore[misc]
        assert [event.message.examples for event in arrived(events)] == [1]  # type: ignore[union-attr]
        w.hub.close()


def test_rejections_say_whom_they_are_about() -> None:
    with wheel(1) as w:
        w.start()
        w.spokes[0]._outbox.add_control((b"garbage", b""))
        w.spokes[0]._flush()
        w.until(lambda: w.reasons(1))
        (refused,) = [event for event in w.heard[1] if isinstance(event, Rejected)]
        assert (refused.sender, refused.reason) == (0, "mark")
