"""Secure sums as a library: the shown programs, restarts at every stage, and what is refused before it leaves."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import numpy as np
import pytest
from secure_kit import entropy_of

from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.secure import (
    Encoding,
    ExactEncoding,
    Reason,
    RoundAbandoned,
    SumClient,
    SumServer,
    frames,
    session,
    sign_card,
)
from fedgossip.secure.primitives import signer
from fedgossip.secure.session import ParticipantRoster, RosterMember

PAGE = Path(__file__).parents[2] / "docs" / "privacy" / "secure-library.md"
KEYS = [bytes([number + 1]) * 32 for number in range(6)]
BOSS = bytes([99]) * 32
CARDS = [sign_card(key) for key in KEYS]
FLOATS = Encoding(length=3, bound=100.0)


def client_of(place: int, encoding: Any = FLOATS, members: Sequence[bytes] = CARDS[:5], **words: Any) -> SumClient:
    words = {"task": "t", "n_min": 3, "entropy": entropy_of("library", place, words.get("state", b"")), **words}
    return SumClient(KEYS[place], members, sign_card(BOSS), encoding, **words)


def server_of(encoding: Any = FLOATS, members: Sequence[bytes] = CARDS[:5], **words: Any) -> SumServer:
    return SumServer(BOSS, members, encoding, **{"task": "t", "n_min": 3, **words})


class Crew:
    """A server and its clients; `gone` drop before their answer of a stage, `restarted` go on from their state."""

    def __init__(self, encoding: Any = FLOATS, n: int = 5) -> None:
        self.encoding, self.server = encoding, server_of(encoding, CARDS[:n])
        self.clients = {place: client_of(place, encoding, CARDS[:n]) for place in range(n)}

    def run(self, round: int, gone: dict[int, int] | None = None, *, restarted: bool = False) -> None:
        frames, stage = self.server.begin(round, self.clients), 0
        while frames:
            replies = {}
            for place, frame in frames.items():
                if (gone or {}).get(place, 9) <= stage:
                    continue
                if (reply := self.clients[place].answer(frame)) is not None:
                    replies[place] = reply
                if restarted:
                    state = self.clients[place].state
                    self.clients[place] = client_of(place, self.encoding, CARDS[: len(self.clients)], state=state)
                    if reply is not None:
                        assert self.clients[place].answer(frame) == reply
            frames = {}
            for place, reply in replies.items():
                frames |= self.server.take(place, reply)
            if self.server.waiting and not frames:
                frames = self.server.close()
            stage += 1


def refused(reason: Reason, call: Any, *words: Any, **named: Any) -> str:
    with pytest.raises(RoundAbandoned) as error:
        call(*words, **named)
    assert error.value.reason is reason
    return str(error.value)


# --- the page, and the floors -----------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_the_programs_of_the_page_sum_over_queues_and_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block, right in zip(blocks, ([6, -6, 400], [7.5, 0, 10]), strict=True):
        exec(compile(block, str(PAGE), "exec"), names)
        assert np.abs(names["server"].sum - right).max() <= names["encoding"].error(5)
    capsys.readouterr()


@pytest.mark.sockets
def test_the_library_loads_neither_torch_nor_zmq() -> None:
    asked = "import sys, fedgossip.secure; print(sorted({'torch', 'zmq'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_page_names_every_reason() -> None:
    text = PAGE.read_text()
    without_library = {Reason.POINT, Reason.DEADLINE}  # of requests of sites, and of drivers with clocks
    assert {reason for reason in Reason if f"`{reason}`" not in text} == without_library


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [None, 0, 1, 2, 3, 4])
def test_a_sum_is_right_with_a_client_gone_at_each_stage(stage: int | None) -> None:
    crew = Crew()
    values = {place: np.array([100.0, -100.0, place / 3]) for place in range(5)}
    for place, client in crew.clients.items():
        client.give(1, values[place])
    crew.run(1, {} if stage is None else {2: stage})
    there = [0, 1, 3, 4] if stage is not None and stage < 3 else range(5)
    assert crew.server.result.clients == tuple(there)
    right = sum(values[place] for place in there)
    assert np.abs(crew.server.sum - right).max() <= FLOATS.error(len(there))


@pytest.mark.parametrize("absent", [None, 2])
def test_a_whole_round_skips_frames_that_change_nothing(absent: int | None) -> None:
    replies: Queue[tuple[int, bytes]] = Queue()
    inboxes: dict[int, Queue[bytes]] = {place: Queue() for place in range(5)}
    first = set(inboxes) - {absent}

    def send(place: int, frame: bytes) -> None:
        for each in (b"junk", frame, frame):
            inboxes[place].put(each)

    def receive() -> tuple[int, bytes] | None:
        """Return None where only an absent client's reply is missing."""
        return replies.get(timeout=30) if server.waiting != {absent} else None

    def take_part(client: SumClient) -> bytes:
        def reply(frame: bytes) -> None:
            for each in (b"junk", frame, frame):
                replies.put((client.place, each))

        client.give(1, [1.0, 2.0, 3.0])
        client.take_part(reply, lambda: inboxes[client.place].get(timeout=30))
        return client.sum_digest

    server, clients = server_of(), [client_of(place) for place in sorted(first)]
    with ThreadPoolExecutor(5) as threads:
        digests = threads.map(take_part, clients)
        result = server.collect(1, range(5), send, receive)
        assert result.clients == tuple(sorted(first)) and len({*digests}) == 1
    assert np.abs(result.sum - np.array([1.0, 2.0, 3.0]) * len(first)).max() <= FLOATS.error(len(first))


@pytest.mark.timeout(60)
def test_a_sender_of_frames_without_end_holds_off_no_deadline() -> None:
    with pytest.raises(ProtocolError, match="client 2: more than 100 frames in a stage"):
        server_of().collect(1, range(5), lambda *_: None, lambda: (2, b"junk"))
    for strangers in (itertools.count(5), itertools.repeat([2]), itertools.repeat("2"), itertools.repeat(math.nan)):
        with pytest.raises(ProtocolError, match="no member: more than 100 frames in a stage"):
            server_of().collect(1, range(5), lambda *_: None, lambda of=strangers: (next(of), b"junk"))  # type: ignore
    client = client_of(0)
    client.give(1, [1.0, 2.0, 3.0])
    with pytest.raises(ProtocolError, match="100 frames, and no end of the round"):
        client.take_part(lambda _: None, lambda: b"junk")


def test_weights_and_metrics_are_in_the_sum() -> None:
    encoding = Encoding(length=2, bound=8.0, weight_max=50, metrics={"loss": 10.0})
    crew = Crew(encoding)
    for place, client in crew.clients.items():
        client.give(1, [place, -8.0], weight=place + 1, metrics={"loss": float(place)})
    crew.run(1)
    result = crew.server.result
    assert result.weight == 15.0
    assert np.abs(result.sum - [40.0, -120.0]).max() <= encoding.error(5)
    assert result.metrics["loss"] == pytest.approx(40 / 15, abs=1e-4)
    assert np.abs(result.mean - [40 / 15, -8.0]).max() <= encoding.error(5) / 15


def test_whole_numbers_are_summed_exactly_over_the_same_clients() -> None:
    crew = Crew(ExactEncoding((1 << 100, 10)))
    for round in (1, 2):
        for place, client in crew.clients.items():
            client.give(round, [place - (1 << 100) * (place == 0), place])
        if round == 1:
            crew.run(1)
            assert crew.server.sum.tolist() == [10 - (1 << 100), 10]
        else:  # without one client the difference of both sums would be that client's numbers
            refused(Reason.COMPANY, crew.run, 2, {3: 2})


def test_a_restart_after_every_answer_changes_no_byte() -> None:
    plain, restarted = Crew(), Crew()
    for crew in (plain, restarted):
        for round in (1, 2):
            for place, client in crew.clients.items():
                client.give(round, [round, place, 0.5])
            crew.run(round, restarted=crew is restarted)
    assert np.abs(restarted.server.sum - plain.server.sum).max() <= 2 * FLOATS.error(5)
    refused(Reason.REPLAY, restarted.clients[0].answer, server_of().begin(1, range(5))[0])


def test_a_restarted_server_begins_no_earlier_round() -> None:
    crew = Crew()
    for client in crew.clients.values():
        client.give(4, [1, 2, 3])
    crew.run(4)
    again = server_of(state=crew.server.state)
    refused(Reason.REPLAY, again.begin, 4, range(5))
    assert again.begin(5, range(5)).keys() == set(range(5))


# --- refusals, before anything is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words", "reason"),
    [
        ([1, 2, float("nan")], {}, Reason.OVERFLOW),
        ([1, 2, float("inf")], {}, Reason.OVERFLOW),
        ([1, 2, 100.1], {}, Reason.OVERFLOW),
        ([1, 2], {}, Reason.SCHEMA),
        (["a", 1, 2], {}, Reason.SCHEMA),
        ([1, 2, 3], {"weight": 2}, Reason.OVERFLOW),
        ([1, 2, 3], {"weight": True}, Reason.OVERFLOW),
        ([1, 2, 3], {"metrics": {"loss": 1.0}}, Reason.SCHEMA),
    ],
)
def test_values_outside_of_the_encoding_are_refused_where_they_are_given(
    values: Any, words: Any, reason: Reason
) -> None:
    refused(reason, client_of(0).give, 1, values, **words)


def test_a_metric_beyond_its_bound_is_refused() -> None:
    client = client_of(0, Encoding(3, 1.0, metrics={"loss": 10.0}))
    refused(Reason.OVERFLOW, client.give, 1, [0, 0, 0], metrics={"loss": 10.5})


@pytest.mark.parametrize("numbers", [[1 << 300, 0], [11, 11], [0.5, 1], [1]])
def test_a_number_that_is_not_whole_or_too_large_is_refused(numbers: Any) -> None:
    with pytest.raises(RoundAbandoned) as error:
        client_of(0, ExactEncoding((1 << 100, 10))).give(1, numbers)
    assert error.value.reason in (Reason.OVERFLOW, Reason.SCHEMA)


def test_a_sum_that_could_overflow_begins_at_no_end() -> None:
    wide = Encoding(length=3, bound=1.0, bits=31)
    refused(Reason.OVERFLOW, server_of(wide).begin, 1, range(5))


def test_a_server_with_other_numbers_or_another_version_is_refused() -> None:
    others: Iterable[tuple[Any, Reason]] = [
        (Encoding(length=3, bound=50.0), Reason.POLICY),
        (Encoding(length=3, bound=100.0, bits=20), Reason.POLICY),
        (Encoding(length=4, bound=100.0), Reason.POLICY),
        (ExactEncoding((1, 2, 3)), Reason.POLICY),
    ]
    for encoding, reason in others:
        refused(reason, client_of(0).answer, server_of(encoding).begin(1, range(5))[0])
    refused(Reason.POLICY, client_of(0, n_min=4).answer, server_of().begin(1, range(5))[0])
    refused(Reason.POLICY, client_of(0, task="other").answer, server_of().begin(1, range(5))[0])
    refused(Reason.ROSTER, client_of(0, members=CARDS).answer, server_of().begin(1, range(5))[0])
    refused(Reason.MODEL_HASH, client_of(0).answer, server_of().begin(1, range(5), b"one")[0], b"another")
    text = refused(Reason.POLICY, client_of(0).answer, invitation_of("fedgossip/secagg/2"))
    assert "protocol 'fedgossip/secagg/2'" in text


def invitation_of(proto: str) -> bytes:
    """An invitation of another version of the protocol, signed by the coordinator."""
    roster = ParticipantRoster(tuple(RosterMember(card[:32], "", "", (), card[32:]) for card in CARDS[:5]))
    model = session.model_hash(b"")
    d = session.proposal(roster, FLOATS.ring, range(5), task_id="t", round=1, model=model, n_min=3)
    invitation = frames.SessionInvite(msgspec.structs.replace(d, proto=proto))
    return frames.pack(invitation, frames.COORDINATOR, signer(BOSS)[1])


def test_a_client_that_is_in_twice_is_refused() -> None:
    refused(Reason.ROSTER, server_of().begin, 1, [0, 1, 2, 3, 3])
    refused(Reason.ROSTER, server_of, FLOATS, [*CARDS[:4], CARDS[0]])


def test_cohorts_that_differ_by_one_client_begin_no_round() -> None:
    crew = Crew(n=6)
    for client in crew.clients.values():
        client.give(1, [1, 2, 3])
    crew.run(1)
    refused(Reason.POLICY, crew.server.begin, 2, range(5))
    assert crew.server.begin(2, range(4))


def test_frames_out_of_order_and_of_others_change_nothing() -> None:
    server, client = server_of(), client_of(0)
    invitation = server.begin(1, range(5))[0]
    for bad in (b"", b"x" * 200, invitation[:-1]):
        with pytest.raises(ProtocolError):
            client.answer(bad)
    keys = client.answer(invitation)
    assert keys is not None and client.answer(invitation) == keys
    with pytest.raises(ProtocolError, match="did not sign"):
        server.take(1, keys)
    server.take(0, keys)
    with pytest.raises(ProtocolError, match="a second"):
        server.take(0, keys)
    with pytest.raises(ProtocolError, match="no sum yet"):
        _ = server.sum


def test_values_that_are_due_are_asked_for_and_the_session_goes_on() -> None:
    crew = Crew(n=3)
    frames = crew.server.begin(1, range(3))
    for _ in range(2):
        for place, frame in dict(frames).items():
            reply = crew.clients[place].answer(frame)
            assert reply is not None
            frames |= crew.server.take(place, reply)
    client = crew.clients[0]
    client.give(0, [1, 1, 1])
    with pytest.raises(ConfigError, match="the values of round 1 are due; those of round 0 were given"):
        client.answer(frames[0])
    client.give(1, [1, 1, 1])
    masked = client.answer(frames[0])
    assert masked is not None and crew.server.take(0, masked) == {} and 0 not in crew.server.waiting


@pytest.mark.parametrize("round", [True, "1", b"1", 1.5, -1, 1 << 64, None])
def test_a_round_that_is_none_stays_out_of_the_state(round: Any) -> None:
    """A server of a framework names the round; a state that cannot be read again is a memory that is lost."""
    client = client_of(0)
    with pytest.raises(RoundAbandoned, match="no whole number"):
        client.give(round, [1, 1, 1])
    assert client_of(0, state=client.state).answer(server_of().begin(1, range(3))[0])


@pytest.mark.parametrize("frame", [1 << 40, True, "x", [1], None])
def test_a_frame_that_is_not_of_bytes_takes_no_memory(frame: Any) -> None:
    with pytest.raises(ProtocolError, match="not of bytes"):
        client_of(0).answer(frame)
    server = server_of()
    server.begin(1, range(3))
    with pytest.raises(ProtocolError, match="not of bytes"):
        server.take(0, frame)


@pytest.mark.parametrize("state", [b"x", b"\x93\xc0\xc0\xc0"])
def test_a_damaged_state_is_refused_in_one_line(state: bytes) -> None:
    with pytest.raises(ConfigError, match="damaged"):
        client_of(0, state=state)
    with pytest.raises(ConfigError, match="damaged"):
        server_of(state=state)


def test_keys_and_cards_of_another_length_are_refused() -> None:
    with pytest.raises(ConfigError, match="a key of 3 bytes"):
        sign_card(b"abc")
    with pytest.raises(ConfigError, match="a card of 32 bytes"):
        server_of(members=[card[:32] for card in CARDS])
    with pytest.raises(ConfigError, match="not among the members"):
        client_of(5)
    refused(Reason.ROSTER, server_of, FLOATS, [CARDS[0][:32] + CARDS[1][32:], *CARDS[1:5]])
