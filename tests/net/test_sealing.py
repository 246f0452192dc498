"""The keys of sealed streams and their records: known answers, and what an attacker on the wire can do to records."""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from zmq.utils import z85

from fedgossip.base.errors import ConfigError
from fedgossip.core.wire import FrameError
from fedgossip.net.identity import Identity
from fedgossip.net.sockets import LINUX
from fedgossip.net.streams import sealing
from fedgossip.net.streams.sealed_stream import (
    HEAD_BYTES,
    KEPT_BUFFERS,
    RECORD_BYTES_MAX,
    SMALL_BYTES,
    Buffers,
    SealedStream,
)
from fedgossip.net.streams.sealing import (
    TAG_BYTES,
    Opener,
    SealBrokenError,
    Sealer,
    StreamOffer,
    Suite,
    WornOutError,
    answered,
    suites_here,
    suites_wanted,
)

AES, CHACHA = Suite.AES_256_GCM, Suite.CHACHA20_POLY1305
BOTH = frozenset(Suite)
CALLER, CALLEE = Identity.new(), Identity.new()
MARK = b"C" + bytes(8)


# --- known answers ----------------------------------------------------------------------------------------------------


def hkdf(salt: bytes, secret: bytes, info: bytes) -> bytes:
    """RFC 5869, 32 bytes of SHA-256: extract, then the first block of expand."""
    return hmac.digest(hmac.digest(salt, secret, "sha256"), info + b"\x01", "sha256")


def test_the_reference_of_hkdf_gives_the_known_answer() -> None:
    """RFC 5869, A.1."""
    made = hkdf(bytes(range(13)), b"\x0b" * 22, bytes(range(0xF0, 0xFA)))
    assert made.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_keys_follow_from_the_shares_and_the_transcript(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 7748, 6.1: Bob's secret and Alice's share; then the key schedule, written out."""
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    alice = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    private = X25519PrivateKey.from_private_bytes(bob)
    monkeypatch.setattr(sealing.X25519PrivateKey, "generate", lambda: private)
    offer = bytes([sealing.VERSION, 0b110]) + alice
    answer, agreed = answered(offer, BOTH, 5700, CALLER.public, CALLEE.public)
    assert agreed and agreed.suite == AES
    label = b"fedgossip/links/1"
    keys = z85.decode(CALLER.public) + z85.decode(CALLEE.public)
    salt = hashlib.sha256(label + bytes([sealing.VERSION]) + keys + offer + answer).digest()
    assert agreed.to_callee == hkdf(salt, shared, label + b" to callee")
    assert agreed.to_caller == hkdf(salt, shared, label + b" to caller")


def test_a_record_sealed_by_aes_is_the_known_answer() -> None:
    """McGrew and Viega, GCM, test case 14: all zero, and the first nonce is zero too."""
    sealed = bytearray(32)
    Sealer(AES, bytes(32)).seal_into(bytes(16), b"", memoryview(sealed))
    assert sealed.hex() == "cea7403d4d606b6e074ec5d3baf39d18" + "d0d1c8a799996bf0265b98b5d48ab919"


def test_a_record_sealed_by_chacha_is_the_known_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 8439, A.5; its nonce is a number far beyond ours."""
    sealed = bytes.fromhex(
        "64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb24c6cfc18755d43eea09ee94e382d26b0"
        "bdb7b73c321b0100d4f03b7f355894cf332f830e710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c855"
        "9797a06ef4f0ef61c186324e2b3506383606907b6a7c02b0f9f6157b53c867e4b9166c767b804d46a59b5216cde7a4e9"
        "9040c5a40433225ee282a1b0a06c523eaf4534d7f83fa1155b0047718cbc546a0d072b04b3564eea1b422273f548271a"
        "0bb2316053fa76991955ebd63159434ecebb4e466dae5a1073a6727627097a1049e617d91d361094fa68f0ff77987130"
        "305beaba2eda04df997b714d6c6f2c29a6ad5cb4022b02709b" + "eead9d67890cbb22392336fea1851f38"
    )
    monkeypatch.setattr(sealing, "RECORDS_MAX", 2**64)
    key = bytes.fromhex("1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0")
    opener = Opener(CHACHA, key)
    opener.records = int.from_bytes(bytes.fromhex("0102030405060708"), "little")
    text = bytearray(len(sealed) - TAG_BYTES)
    opener.open_into(memoryview(sealed), bytes.fromhex("f33388860000000000004e91"), text)
    assert text.startswith(b"Internet-Drafts are draft documents valid for a maximum of six months")


# --- what is agreed on ------------------------------------------------------------------------------------------------


def agreed_by(offer: StreamOffer, ours: frozenset[Suite] = BOTH) -> tuple[bytes, sealing.Agreed]:
    answer, agreed = answered(offer.text, ours, 5700, CALLER.public, CALLEE.public)
    assert agreed
    return answer, agreed


def test_both_ends_have_the_same_keys_one_for_each_direction() -> None:
    offer = StreamOffer(BOTH)
    answer, theirs = agreed_by(offer)
    ours, port = offer.keys(answer, CALLER.public, CALLEE.public)
    assert ours == theirs and port == 5700 and ours.to_callee != ours.to_caller
    assert ours.to_callee.hex() not in repr(ours)


def test_every_connection_has_keys_and_a_ticket_of_its_own() -> None:
    found = [agreed_by(StreamOffer(BOTH))[1] for _ in range(8)]
    same = StreamOffer(BOTH)
    found += [agreed_by(same)[1] for _ in range(8)]  # an offer that is repeated too: the callee's share is fresh
    assert len({key for one in found for key in (one.to_callee, one.to_caller, one.ticket)}) == 3 * len(found)


@pytest.mark.parametrize("at", [1, 2, 33], ids=["suites", "first of the share", "last of the share"])
def test_an_offer_that_was_changed_gives_other_keys(at: int) -> None:
    offer = StreamOffer(BOTH)
    changed = bytearray(offer.text)
    changed[at] ^= 0b010 if at == 1 else 1
    answer, theirs = answered(bytes(changed), BOTH, 5700, CALLER.public, CALLEE.public)
    assert theirs
    ours, _ = offer.keys(answer, CALLER.public, CALLEE.public)
    assert {ours.to_callee, ours.to_caller}.isdisjoint({theirs.to_callee, theirs.to_caller})


@pytest.mark.parametrize("who", ["caller", "callee"])
def test_keys_are_bound_to_both_long_term_keys(who: str) -> None:
    offer, other = StreamOffer(BOTH), Identity.new().public
    answer, theirs = agreed_by(offer)
    names = (other, CALLEE.public) if who == "caller" else (CALLER.public, other)
    assert offer.keys(answer, *names)[0].to_callee != theirs.to_callee


@pytest.mark.parametrize(
    ("caller", "callee", "suite"),
    [(BOTH, BOTH, AES), (BOTH, {CHACHA}, CHACHA), ({CHACHA}, BOTH, CHACHA), ({AES}, BOTH, AES)],
)
def test_aes_is_taken_where_both_have_it(caller: set[Suite], callee: set[Suite], suite: Suite) -> None:
    assert agreed_by(StreamOffer(caller), frozenset(callee))[1].suite == suite


def test_ends_without_a_suite_in_common_are_told_which() -> None:
    with pytest.raises(FrameError, match="AES-256-GCM; this end has ChaCha20-Poly1305") as refused:
        answered(StreamOffer({AES}).text, {CHACHA}, 5700, CALLER.public, CALLEE.public)
    assert refused.value.reason == "suite"


def test_an_answer_with_a_suite_that_was_not_offered_is_refused() -> None:
    offer = StreamOffer({AES})
    answer, _ = agreed_by(offer)
    with pytest.raises(FrameError, match="not offered"):
        offer.keys(answer[:1] + bytes([CHACHA]) + answer[2:], CALLER.public, CALLEE.public)


def test_who_has_keys_agrees_on_nothing_with_who_has_none() -> None:
    """Without a suite records are copied; neither an offer nor an answer can bring one that has keys to that."""
    with pytest.raises(FrameError, match="nothing; this end has") as refused:
        answered(StreamOffer(()).text, BOTH, 5700, CALLER.public, CALLEE.public)
    assert refused.value.reason == "suite"
    open_answer, open_end = answered(StreamOffer(()).text, (), 5700, "", "")
    assert open_end is not None and open_end.suite is None
    with pytest.raises(FrameError, match="suite 0, which was not offered"):
        StreamOffer(BOTH).keys(open_answer, CALLER.public, CALLEE.public)
    with pytest.raises(FrameError, match="this end has nothing"):
        answered(StreamOffer(BOTH).text, (), 5700, "", "")


def test_a_share_that_makes_the_key_known_to_all_is_refused() -> None:
    """RFC 7748, 6.1: the result is all zero for a point of small order."""
    for share in (bytes(32), b"\x01" + bytes(31)):
        with pytest.raises(FrameError, match="X25519"):
            answered(bytes([sealing.VERSION, 0b110]) + share, BOTH, 5700, CALLER.public, CALLEE.public)


def test_offers_and_answers_of_another_size_or_version_are_no_agreement() -> None:
    offer = StreamOffer(BOTH)
    for text in (b"", offer.text[:-1], offer.text + b"x"):
        with pytest.raises(FrameError):
            answered(text, BOTH, 5700, CALLER.public, CALLEE.public)
    assert answered(b"\x01" + offer.text[1:], BOTH, 5700, CALLER.public, CALLEE.public) == (b"", None)
    answer, _ = agreed_by(offer)
    for text in (b"", answer[:-1], b"\x01" + answer[1:]):
        with pytest.raises(FrameError):
            offer.keys(text, CALLER.public, CALLEE.public)


def test_the_environment_says_what_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "has_aes", lambda: False)
    assert suites_here() == {CHACHA}
    monkeypatch.setattr(sealing, "has_aes", lambda: True)
    for value, suites in {"sealed": BOTH, "curve": set(), "aes-256-gcm": {AES}, "chacha20-poly1305": {CHACHA}}.items():
        monkeypatch.setenv("FEDGOSSIP_LINKS", value)
        assert suites_wanted() == suites
    monkeypatch.setenv("FEDGOSSIP_LINKS", "none")
    with pytest.raises(ConfigError, match="FEDGOSSIP_LINKS = 'none'"):
        suites_wanted()


# --- on the wire ------------------------------------------------------------------------------------------------------


@dataclass
class Wire:
    """A caller's stream, and a callee's; in between somebody who has all bytes in hand."""

    caller: SealedStream
    callee: SealedStream
    tapped: socket.socket
    inlet: socket.socket
    buffers: Buffers = field(default_factory=Buffers)

    def records(self, *bodies: bytes) -> list[bytes]:
        """What the caller sends for each of them."""
        sent = []
        for body in bodies:
            assert self.caller.send(MARK, body) and self.caller.flush()
            sent.append(self.tapped.recv(RECORD_BYTES_MAX))
        return sent

    def heard(self, *records: bytes) -> list[bytes]:
        """What the callee opens of these bytes."""
        for record in records:
            self.inlet.sendall(record)
        found = []
        while self.callee.arrived():
            found.append(bytes(self.callee.open()))
        return found


def wired(suite: Suite = AES) -> Wire:
    offer = StreamOffer({suite})
    answer, theirs = agreed_by(offer)
    ours, _ = offer.keys(answer, CALLER.public, CALLEE.public)
    (out, tapped), (inlet, into) = socket.socketpair(), socket.socketpair()
    for end in (out, into):
        end.setblocking(False)
    buffers = Buffers()
    caller, callee = (
        SealedStream(out, *ours.make_caller_pair(), buffers),
        SealedStream(into, *theirs.make_callee_pair(), buffers),
    )
    return Wire(caller, callee, tapped, inlet, buffers)


def closed(wire: Wire) -> None:
    for end in (wire.caller, wire.callee, wire.tapped, wire.inlet):
        end.close()


@pytest.fixture(params=list(Suite), ids=lambda suite: suite.words)
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    made = wired(request.param)
    yield made
    closed(made)


def test_what_is_sent_is_heard_and_not_seen(wire: Wire) -> None:
    bodies = [b"", b"a chunk of a model" * 100, b"x" * 5000]
    records = wire.records(*bodies)
    assert wire.heard(*records) == bodies
    assert b"a chunk" not in b"".join(records)
    assert [len(r) for r in records] == [HEAD_BYTES + len(body) + TAG_BYTES for body in bodies]


def test_records_that_come_in_pieces_are_heard(wire: Wire) -> None:
    (record,) = wire.records(b"in pieces")
    for byte in record[:-1]:
        assert wire.heard(bytes([byte])) == []
    assert wire.heard(record[-1:]) == [b"in pieces"]


class Reads:
    """A connection that counts how often it is read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.count = connection, 0

    def __getattr__(self, name: str) -> object:
        self.count += name in ("recv_into", "recvmsg_into")
        return getattr(self._connection, name)


def test_what_has_come_is_read_once_and_the_selector_tells_of_more(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(wire.callee._connection)
    monkeypatch.setattr(wire.callee, "_connection", reads)
    (record,) = wire.records(bytes(100))
    assert wire.heard(record[:50]) == [] and reads.count == len(["the head", "what there is of the body"])
    assert wire.heard(record[50:]) == [bytes(100)]


def test_small_records_go_in_one_piece_with_the_large_one_behind_them(wire: Wire) -> None:
    large = bytes(SMALL_BYTES + 1)
    assert wire.caller.send(MARK, b"small") and wire.caller.send(MARK, b"too") and wire.caller.sending
    assert wire.caller.send(MARK, large) and not wire.caller.sending
    sent = wire.tapped.recv(2 * RECORD_BYTES_MAX)
    assert len(sent) == 3 * (HEAD_BYTES + TAG_BYTES) + len(b"smalltoo") + len(large)
    assert wire.heard(sent) == [b"small", b"too", large]


@pytest.mark.parametrize("cut", [1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1])
def test_the_head_of_a_record_may_come_with_the_one_before_it(wire: Wire, cut: int) -> None:
    first, second, third = wire.records(b"first", b"second", b"third")
    assert wire.heard(first + second[:cut]) == [b"first"]
    assert wire.heard(second[cut:] + third) == [b"second", b"third"]


def test_a_length_that_no_record_has_costs_none_of_the_records_before_it(wire: Wire) -> None:
    (record,) = wire.records(b"as it was")
    wire.inlet.sendall(record + struct.pack("<9sI", MARK, 2**32 - 1))
    assert wire.callee.arrived() and bytes(wire.callee.open()) == b"as it was"
    with pytest.raises(FrameError, match="4294967295 bytes"):
        wire.callee.arrived()


@pytest.mark.parametrize(
    "order",
    [(0, 0), (1,), (0, 2), (1, 0), (0, 1, 0)],
    ids=["repeated", "first left out", "cut out", "swapped", "again"],
)
def test_a_record_out_of_its_order_does_not_open(wire: Wire, order: tuple[int, ...]) -> None:
    records = wire.records(b"zero", b"one", b"two")
    with pytest.raises(SealBrokenError):
        wire.heard(*(records[number] for number in order))


@pytest.mark.parametrize("at", [0, 1, HEAD_BYTES, -1], ids=["kind", "number", "body", "tag"])
def test_a_record_with_a_bit_changed_does_not_open(wire: Wire, at: int) -> None:
    record = bytearray(wire.records(b"as it was")[0])
    record[at] ^= 1
    with pytest.raises(SealBrokenError):
        wire.heard(bytes(record))


def test_a_record_that_is_cut_or_longer_does_not_open(wire: Wire) -> None:
    record = wire.records(b"as it was")[0]
    mark, size = struct.unpack("<9sI", record[:HEAD_BYTES])
    with pytest.raises(SealBrokenError):
        wire.heard(struct.pack("<9sI", mark, size - 1) + record[HEAD_BYTES:-1])


def test_a_stream_that_ends_in_the_middle_is_at_its_end(wire: Wire) -> None:
    record = wire.records(b"as it was")[0]
    assert wire.heard(record[:-1]) == []
    wire.inlet.close()
    with pytest.raises(EOFError):
        wire.heard()


def test_a_length_that_no_record_has_is_refused_before_memory_is_taken(wire: Wire) -> None:
    with pytest.raises(FrameError, match="4294967295 bytes"):
        wire.heard(struct.pack("<9sI", MARK, 2**32 - 1))


def test_records_of_another_connection_do_not_open(wire: Wire) -> None:
    other = wired()
    try:
        with pytest.raises(SealBrokenError):
            wire.heard(*other.records(b"of the connection before"))
    finally:
        closed(other)


def test_records_that_come_back_to_their_sender_do_not_open(wire: Wire) -> None:
    (record,) = wire.records(b"mine")
    wire.tapped.sendall(record)
    assert wire.caller.arrived()
    with pytest.raises(SealBrokenError):
        wire.caller.open()


def test_a_key_that_is_worn_out_seals_and_opens_nothing(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "RECORDS_MAX", 3)
    records = wire.records(b"0", b"1", b"2")
    with pytest.raises(WornOutError):
        wire.records(b"3")
    assert wire.heard(*records) == [b"0", b"1", b"2"]
    with pytest.raises(SealBrokenError):
        wire.heard(records[0])


@pytest.mark.sockets
@pytest.mark.skipif(not LINUX, reason="other systems do not say what has arrived")
def test_a_stream_says_whether_all_that_was_sent_has_arrived() -> None:
    """Whoever hangs up before it has may take it back."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        here = socket.create_connection(door.getsockname())
        there, _ = door.accept()
    here.setblocking(False)
    stream = SealedStream(here, Sealer(AES, bytes(32)), Opener(AES, bytes(32)), Buffers())
    try:
        sent = 0
        while stream.send(MARK, bytes(RECORD_BYTES_MAX - HEAD_BYTES - TAG_BYTES)) and not stream.sending:
            sent += RECORD_BYTES_MAX
        assert stream.sending and stream.arriving  # the other end's system has no room for more
        while stream.arriving or not stream.flush():
            assert there.recv(1 << 20)
    finally:
        stream.close()
        there.close()


def test_a_stream_between_two_records_has_no_buffer_and_used_ones_are_kept() -> None:
    made = wired()
    try:
        records = made.records(*[bytes(1000)] * 50)
        made.heard(*records)
        assert len(made.caller._buffers._free) == 1  # which both have used in turns
        assert made.caller._out is None and made.callee._in is None
        for _ in range(KEPT_BUFFERS + 5):
            made.buffers.give(memoryview(bytearray(RECORD_BYTES_MAX)))
        assert len(made.buffers._free) == KEPT_BUFFERS
    finally:
        closed(made)
