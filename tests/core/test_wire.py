"""Frames: what goes in comes out, and nothing that a stranger sends costs more than the frame that carried it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.base.vectors import Vector, frozen
from fedgossip.core import wire
from fedgossip.core.messages import (
    BUCKETS,
    COMPARED_MAX,
    DECLARED,
    MODEL_CHUNK,
    NEWS_MAX,
    AnyMessage,
    Carrier,
    ChunkRequest,
    Compare,
    CompareBuckets,
    ConfirmDead,
    Contribution,
    Count,
    Entry,
    Expected,
    Final,
    Hello,
    IndirectAck,
    Invite,
    Join,
    Leaving,
    MembershipUpdate,
    Model,
    ModelChunk,
    ModelInfo,
    ModelQuery,
    Ping,
    PingReq,
    Pong,
    Suspicion,
)
from fedgossip.core.wire import CHUNK_BYTES, HEADER_BYTES_MAX, MARK_BYTES, Assembler, FrameError, Vocabulary

SCHEMA = "0123456789abcdef"
PER_CHUNK = CHUNK_BYTES // 4
"""float32 elements in a whole chunk."""

Frames = list[tuple[bytes, bytes]]


def cut(message: AnyMessage, transfer: int = 1) -> Frames:
    """The frames of `message` as they leave a link."""
    return [(mark, bytes(body)) for mark, body in wire.frames(message, transfer, wire.chunks(message))]


def hear(assembler: Assembler, frames: Iterable[tuple[bytes, bytes]]) -> list[AnyMessage]:
    """Give the frames to `assembler` the way a link does; return the messages that became whole."""
    heard: list[AnyMessage] = []
    for mark, body in frames:
        target = assembler.mark(mark)
        if target is None:
            message = assembler.header(body)
        else:
            taken = body[: len(target)]  # recv_into: the rest of a longer frame is dropped, its true size returned
            target[: len(taken)] = taken
            message = assembler.landed(len(body))
        if message is not None:
            heard.append(message)
    return heard


def model(length: int = 10, *, round: int = 3, count: int = 1, dtype: str = "float32", schema: str = SCHEMA) -> Model:
    rng = np.random.default_rng(length + 31 * count)
    return Model(round, schema, tuple(frozen(rng.standard_normal(length).astype(dtype)) for _ in range(count)))


def expecting(message: Model) -> Assembler:
    first = message.vectors[0]
    return Assembler(Expected(message.schema, first.dtype.name, first.size, len(message.vectors)))


def same(left: AnyMessage, right: AnyMessage) -> bool:
    if not (isinstance(left, Model) and isinstance(right, Model)):
        return left == right
    vectors = zip(left.vectors, right.vectors, strict=True)
    return (left.round, left.schema) == (right.round, right.schema) and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in vectors
    )


def refusal(assembler: Assembler, frames: Iterable[tuple[bytes, bytes]]) -> str:
    with pytest.raises(FrameError) as refused:
        hear(assembler, frames)
    return refused.value.reason


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """What the assembler asked memory for."""
    asked: list[tuple[int, str]] = []

    def empty(length: int, dtype: str) -> Vector:
        asked.append((length, dtype))
        return np.empty(length, dtype)

    monkeypatch.setattr(wire, "empty", empty)
    return asked


# --- what goes in comes out -----------------------------------------------------------------------------------------

lengths = st.one_of(st.integers(1, 40), st.sampled_from([k * PER_CHUNK + off for k in (1, 2, 3) for off in (-1, 0, 1)]))
models = st.builds(
    model,
    lengths,
    round=st.integers(0, 2**40),
    count=st.integers(1, 3),
    dtype=st.sampled_from(["float32", "float64"]),
    schema=st.text(max_size=40),
)
counts, orders, texts = st.integers(0, 2**53), st.integers(-1, 2**40), st.text(max_size=60)
entries = st.builds(Entry, counts, counts, texts, texts, texts, orders, orders, texts, texts)
news = st.one_of(
    entries,
    st.builds(Suspicion, counts, counts, counts, texts),
    st.builds(ConfirmDead, counts, counts, counts, counts, texts),
)
membership = st.one_of(
    st.builds(Ping, counts, orders, texts),
    st.builds(Pong, counts, orders, texts),
    st.builds(PingReq, counts, counts),
    st.builds(IndirectAck, counts, counts),
    st.builds(MembershipUpdate, st.lists(news, max_size=4).map(tuple)),
    st.builds(Compare, st.lists(st.tuples(counts, counts, orders), max_size=9).map(tuple), st.just((0, 127))),
    st.builds(CompareBuckets, st.tuples(*[counts] * BUCKETS)),
    st.builds(Join, entries),
    st.just(ModelQuery()),
    st.builds(ModelInfo, counts, texts),
    st.builds(ChunkRequest, counts, texts, counts),
)
small = st.one_of(
    st.builds(Leaving, st.integers(0, 2**40)),
    st.builds(Hello, *[st.text(max_size=80) for _ in range(3)]),
    membership,
)


@settings(max_examples=40, deadline=None)
@given(models, st.integers(0, 2**32 - 1))
def test_a_model_arrives_with_the_same_bits(sent: Model, transfer: int) -> None:
    (heard,) = hear(expecting(sent), cut(sent, transfer))
    assert same(heard, sent)


@given(small, st.integers(0, 2**32 - 1))
def test_a_small_message_arrives_equal(sent: AnyMessage, transfer: int) -> None:
    assert hear(expecting(model()), cut(sent, transfer)) == [sent]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(small, st.builds(model, st.just(PER_CHUNK + 5), round=st.integers(0, 99))), max_size=6))
def test_messages_arrive_in_the_order_sent(sent: list[AnyMessage]) -> None:
    frames = [pair for transfer, message in enumerate(sent) for pair in cut(message, transfer)]
    heard = hear(expecting(model(PER_CHUNK + 5)), frames)
    assert len(heard) == len(sent) and all(map(same, heard, sent))


@given(st.integers(1, 3), st.integers(1, 4 * PER_CHUNK))
@settings(max_examples=20, deadline=None)
def test_the_chunks_to_come_are_counted_down_and_given_up(count: int, length: int) -> None:
    sent = model(length, count=count)
    assembler, frames = expecting(sent), cut(sent)
    assert assembler.expected.payload_bytes == sent.payload_bytes and assembler.missing_chunks == 0
    for left in range(len(frames) - 1, 0, -1):
        hear(assembler, [frames[len(frames) - 1 - left]])
        assert assembler.missing_chunks == left
    assembler.give_up()
    assert assembler.missing_chunks == 0 and refusal(assembler, frames[-1:]) == "order"


def test_special_numbers_keep_their_bits() -> None:
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x00000001, 0x7F800000], np.uint32)
    sent = Model(0, SCHEMA, (frozen(bits.view(np.float32)),))
    (heard,) = hear(expecting(sent), cut(sent))
    assert isinstance(heard, Model)
    assert heard.vectors[0].view(np.uint32).tolist() == bits.tolist()


@settings(max_examples=40, deadline=None)
@given(st.one_of(models, small))
def test_wire_bytes_is_the_sum_of_the_frames(message: AnyMessage) -> None:
    assert wire.wire_bytes(message) == sum(len(mark) + len(body) for mark, body in cut(message))


def test_chunks_are_views_of_the_vector_and_no_larger_than_the_limit() -> None:
    """On a machine of the other byte order they are copies: numbers travel with the lowest byte first."""
    sent = model(2 * PER_CHUNK + 7)
    chunks = wire.chunks(sent)
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES, CHUNK_BYTES, 28]
    shared = {np.shares_memory(np.frombuffer(chunk, np.uint8), sent.vectors[0]) for chunk in chunks}
    assert shared == {sys.byteorder == "little"}


def test_a_model_that_arrived_belongs_to_its_receiver_alone() -> None:
    sent = model()
    first, second = hear(expecting(sent), cut(sent) + cut(sent, 2))
    assert isinstance(first, Model) and isinstance(second, Model)
    assert first.vectors[0].flags.writeable and not np.shares_memory(first.vectors[0], second.vectors[0])


@pytest.mark.parametrize("length", [10, MODEL_CHUNK, MODEL_CHUNK + 10])
def test_a_piece_of_a_model_is_as_long_as_what_is_left_and_no_longer(length: int) -> None:
    whole = model(length).vectors[0]
    assembler = Assembler(Expected(SCHEMA, "float32", length))
    for start in range(0, length, MODEL_CHUNK):
        part = whole[start : start + MODEL_CHUNK]
        (heard,) = hear(assembler, cut(ModelChunk(7, "d", start, SCHEMA, (part,))))
        assert isinstance(heard, ModelChunk) and (heard.start, heard.vectors[0].tolist()) == (start, part.tolist())
    for start, size in [(1, 9), (MODEL_CHUNK * (length // MODEL_CHUNK + 1), 1), (0, length + 1)]:
        wrong = ModelChunk(7, "d", start, SCHEMA, (frozen(np.zeros(size, np.float32)),))
        assert refusal(assembler, cut(wrong)[:1]) == "size"


def test_the_largest_membership_messages_fit_into_a_header() -> None:
    big = 2**40
    entry = Entry(big, big, "a" * 128, "k" * 40, "v" * 64, big, big, "a" * 128, "s" * 128)
    compared = Compare(((big, big, big),) * COMPARED_MAX, tuple(range(BUCKETS))), CompareBuckets((big,) * BUCKETS)
    for message in (MembershipUpdate((entry,) * NEWS_MAX), *compared):
        ((_, body),) = cut(message)
        assert len(body) <= HEADER_BYTES_MAX and hear(expecting(model()), cut(message)) == [message]


def test_too_much_news_or_too_long_a_text_is_refused() -> None:
    entry = Entry(1, 1, "a", "k", "v")
    many, long = MembershipUpdate((entry,) * (NEWS_MAX + 1)), Join(Entry(1, 1, "a" * 129, "k", "v"))
    other = Compare((), (BUCKETS,)), CompareBuckets((1,) * (BUCKETS - 1))
    for message in (many, long, *other, Compare(((1, -1, 0),)), MembershipUpdate((ConfirmDead(1, 1, -1, 1),))):
        assert refusal(expecting(model()), cut(message)) == "header"


@pytest.mark.parametrize(
    "of",
    [
        lambda v: Invite(7, SCHEMA, v, 5),
        lambda v: Contribution(7, SCHEMA, v, 60, 12, 0.5),
        lambda v: Final(7, SCHEMA, v),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_what_a_coordinator_and_a_client_say_arrives_whole(of: Any, count: int) -> None:
    sent = of(model(PER_CHUNK + 3, count=count).vectors)
    (heard,) = hear(Assembler(Expected(SCHEMA, "float32", PER_CHUNK + 3, count)), cut(sent))
    fields = [f.name for f in dataclasses.fields(sent) if f.name != "vectors"]
    assert type(heard) is type(sent) and all(getattr(heard, name) == getattr(sent, name) for name in fields)
    assert [v.tobytes() for v in heard.vectors] == [v.tobytes() for v in sent.vectors]


# --- what is refused ------------------------------------------------------------------------------------------------


@given(st.binary(max_size=20).filter(lambda mark: len(mark) != MARK_BYTES or mark[:1] not in (b"H", b"C")))
def test_a_mark_that_cannot_be_read_is_refused(mark: bytes) -> None:
    assert refusal(expecting(model()), [(mark, b"")]) == "mark"


def test_a_chunk_that_nobody_announced_is_refused() -> None:
    _header, chunk = cut(model())
    assert refusal(expecting(model()), [chunk]) == "order"


def test_a_chunk_out_of_order_is_refused() -> None:
    sent = model(3 * PER_CHUNK)
    header, first, second, third = cut(sent)
    assert refusal(expecting(sent), [header, second]) == "order"
    assert refusal(expecting(sent), [header, first, third]) == "order"
    assert refusal(expecting(sent), [header, first, first]) == "order"


def test_a_chunk_of_another_transfer_is_refused() -> None:
    header, _ = cut(model(), 1)
    _, chunk = cut(model(), 2)
    assert refusal(expecting(model()), [header, chunk]) == "order"


def test_after_an_interruption_the_rest_is_dropped_and_the_next_header_heard() -> None:
    sent = model(3 * PER_CHUNK)
    header, first, *rest = cut(sent)
    assembler = expecting(sent)
    hear(assembler, [header, first])
    assert hear(assembler, cut(Leaving(4), 2)) == [Leaving(4)]
    for stale in rest:
        assert refusal(assembler, [stale]) == "order"
    (heard,) = hear(assembler, cut(sent, 3))
    assert same(heard, sent)


@pytest.mark.parametrize("length", [10, PER_CHUNK + 3])
@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_a_chunk_of_the_wrong_size_is_refused(length: int, change: int) -> None:
    sent = model(length)
    *before, (mark, body) = cut(sent)
    wrong = body[:change] if change < 0 else body + bytes(change)
    assert refusal(expecting(sent), [*before, (mark, wrong)]) == "truncated"


def test_a_refused_chunk_closes_its_transfer() -> None:
    sent = model(PER_CHUNK + 3)
    assembler = expecting(sent)
    header, (mark, body), last = cut(sent)
    assert refusal(assembler, [header, (mark, body[:-4])]) == "truncated"
    assert refusal(assembler, [last]) == "order"


def test_a_header_above_the_limit_is_refused() -> None:
    frames = cut(Hello("x" * HEADER_BYTES_MAX, "", ""))
    assert refusal(expecting(model()), frames) == "oversized"


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "model", "round": 0, "schema": SCHEMA, "parts": [["float32", 10]], "extra": 1},
        {"type": "model", "round": 0, "schema": SCHEMA},
        {"type": "model", "round": 0, "schema": SCHEMA, "parts": ["float32", 10]},
        {"type": "model", "round": "0", "schema": SCHEMA, "parts": [["float32", 10]]},
        {"type": "leaving", "round": -1},
        {"type": "leaving", "round": 1.5},
        {"type": "leaving", "round": None},
        {"type": "run", "command": "x"},
        [],
    ],
)
def test_a_header_of_another_shape_is_refused(fields: Any) -> None:
    (mark, _), *_ = cut(model())
    with pytest.raises(FrameError, match="cannot be read") as refused:
        hear(expecting(model()), [(mark, msgspec.msgpack.encode(fields))])
    assert refused.value.reason == "header" and "the same fedgossip" in refused.value.advice  # a later release's, say


def test_text_that_is_no_utf_8_is_refused() -> None:
    (mark, body), *_ = cut(Hello("schema", "experiment", "0.1.0"))
    assert refusal(expecting(model()), [(mark, body.replace(b"schema", b"\xffchema"))]) == "header"


def test_a_header_that_is_cut_short_is_refused() -> None:
    (mark, body), *_ = cut(model())
    for size in range(len(body)):
        assert refusal(expecting(model()), [(mark, body[:size])]) == "header"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (model(schema="another"), "schema"),
        (model(11), "size"),
        (model(dtype="float64"), "size"),
        (model(count=2), "size"),
        (model(10**6), "size"),
    ],
)
def test_a_model_of_another_layout_is_refused_before_memory_is_taken(
    sent: Model, reason: str, allocations: list[tuple[int, str]]
) -> None:
    assert refusal(expecting(model()), cut(sent)) == reason
    assert allocations == []


@given(st.integers(), st.text(max_size=9), st.lists(st.integers(-(2**63), 2**64 - 1), max_size=5))
def test_announced_sizes_are_compared_and_never_believed(round: int, dtype: str, sizes: list[int]) -> None:
    fields = {"type": "model", "round": round % 2**63, "schema": SCHEMA, "parts": [(dtype, size) for size in sizes]}
    (mark, _), *_ = cut(model())
    reason = refusal(expecting(model()), [(mark, msgspec.msgpack.encode(fields))])
    assert reason in ("size", "header")


marks = st.one_of(
    st.binary(max_size=12),
    st.tuples(st.sampled_from([b"H", b"C"]), st.integers(0, 3), st.integers(0, 3)).map(
        lambda parts: parts[0] + parts[1].to_bytes(4, "little") + parts[2].to_bytes(4, "little")
    ),
)
pieces = st.one_of(
    st.tuples(marks, st.binary(max_size=200)),
    st.sampled_from(cut(model(), 1) + cut(model(), 2) + cut(Leaving(1), 3) + cut(model(11), 2)),
)


@settings(max_examples=200)
@given(st.lists(pieces, max_size=12))
def test_garbage_raises_frame_errors_only_and_a_good_message_is_heard_after_it(garbage: Frames) -> None:
    assembler = expecting(model())
    for pair in garbage:
        try:
            hear(assembler, [pair])
        except FrameError as error:
            assert error.reason in ("mark", "order", "header", "oversized", "schema", "size", "truncated")
    (heard,) = hear(assembler, cut(model(), 9))
    assert same(heard, model())


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_are_no_header(body: bytes) -> None:
    (mark, _), *_ = cut(model())
    try:
        heard = hear(expecting(model()), [(mark, body)])
    except FrameError:
        return
    assert all(not isinstance(message, Model | ModelChunk) for message in heard)


@given(st.data())
def test_a_changed_byte_in_a_header_is_refused_or_read_but_never_another_error(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from([model(), Leaving(300), Hello("schema", "experiment", "0.1.0")]))
    (mark, body), *_ = cut(message)
    at = data.draw(st.integers(0, len(body) - 1))
    changed = body[:at] + bytes([data.draw(st.integers(0, 255))]) + body[at + 1 :]
    try:
        hear(expecting(model()), [(mark, changed)])
    except FrameError as error:
        assert error.reason in ("header", "schema", "size")


def test_an_array_of_no_elements_is_refused_when_it_is_sent_and_when_it_is_announced() -> None:
    """No chunk would follow, so that such a message would never be whole."""
    empty = Model(0, SCHEMA, (frozen(np.zeros(0, np.float32)),))
    with pytest.raises(ValueError, match="a vector of 0 float32"):
        wire.chunks(empty)
    (announced,) = [(mark, bytes(body)) for mark, body in wire.frames(empty, 1, [])]
    assert refusal(Assembler(Expected(SCHEMA, "float32", 8)), [announced]) == "size"


def test_a_message_of_two_arrays_of_unlike_types_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declared once: header, bounds, what may be allocated and the frames follow."""

    @dataclass(frozen=True, slots=True, eq=False)
    class Sparse(Carrier):
        round: Count
        schema: str
        vectors: tuple[Any, ...]

        @classmethod
        def allowed(cls, header: Any, expected: Expected) -> tuple[tuple[str, int], ...]:
            return ("uint32", 3), (expected.dtype, 3)

    monkeypatch.setattr(wire, "VOCABULARY", Vocabulary([*DECLARED, Sparse]))
    sent = Sparse(4, SCHEMA, (np.array([1, 5, 9], np.uint32), frozen(np.array([0.5, -1, 2], np.float32))))
    expected = Expected(SCHEMA, "float32", 10)
    (heard,) = hear(Assembler(expected), cut(sent))
    assert heard.round == 4 and [v.tolist() for v in heard.vectors] == [[1, 5, 9], [0.5, -1, 2]]
    assert [v.dtype.name for v in heard.vectors] == ["uint32", "float32"]
    assert wire.wire_bytes(sent) == sum(len(mark) + len(body) for mark, body in cut(sent))
    other = Sparse(4, SCHEMA, (sent.vectors[1], sent.vectors[1]))
    assert refusal(Assembler(expected), cut(other)[:1]) == "size"
    assert refusal(Assembler(expected), cut(Sparse(-1, SCHEMA, sent.vectors))[:1]) == "header"
