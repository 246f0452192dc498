"""Codecs: what comes out is what the papers promise, in as many bytes as are said, and nothing else is taken."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some
from hypothesis.extra import numpy as arrays

from fedgossip.algorithms.codecs.base import CodecTurn, VectorLayout
from fedgossip.algorithms.codecs.names import CODECS, make_codec
from fedgossip.algorithms.codecs.quantized import Sign, packed, packed_bytes, unpacked
from fedgossip.algorithms.codecs.senders import Feedback, MomentumCorrection, sender_of
from fedgossip.algorithms.codecs.sparse import DeepGradient, RandomK, largest
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.task import Segment

NAMES = [
    "bf16",
    "fp16",
    "int8",
    "int8:64",
    "int8:256:stochastic",
    "top-k:0.01",
    "top-k:0.4",
    "top-k:1",
    "random-k:0.1",
    "dgc:0.001:2",
    "qsgd:1",
    "qsgd:7",
    "qsgd:127",
    "terngrad",
    "sign",
]
TURN = CodecTurn(1, 2, 40)
SOME = settings(max_examples=25, deadline=None)

# numbers whose squares and shares are normal numbers; denormals have a test of their own
numbers = some.floats(-1e4, 1e4, width=32).map(lambda x: x if abs(x) > 1e-3 else 0.0)
vectors = arrays.arrays(np.float32, some.integers(1, 700), elements=numbers, fill=some.just(0.0))


def tensors(length: int) -> tuple[Segment, ...]:
    """Three: the second has no elements."""
    half = length // 2
    cut = [Segment("a", 0, (half,)), Segment("none", half, (0, 3)), Segment("b", half, (length - half,))]
    return tuple(cut)


LEVELS = ["qsgd:1", "qsgd:127"]


def round_trip(name: str, vector: Vector, turn: CodecTurn = TURN) -> Vector:
    codec, layout = make_codec(name), VectorLayout.of(vector, tensors(vector.size))
    payload = codec.encode(vector, layout, turn)
    assert payload.size == codec.size(layout, turn.round)
    return codec.decode(payload, layout, turn)


def normal(length: int, kind: str = "float32") -> Vector:
    return frozen(np.random.default_rng(3).standard_normal(length).astype(kind))


@pytest.mark.parametrize("name", [name for name in NAMES if make_codec(name).contraction(VectorLayout.of(normal(9)))])
@SOME
@given(vector=vectors)
def test_a_contraction_is_off_by_no_more_than_it_says_for_every_vector(name: str, vector: Vector) -> None:
    codec, layout = make_codec(name), VectorLayout.of(vector, tensors(vector.size))
    if isinstance(codec, RandomK):
        return  # in the mean over rounds: see the test of its draws
    off = float(np.square(round_trip(name, vector).astype(np.float64) - vector).sum())
    whole = float(np.square(vector, dtype=np.float64).sum())
    assert off <= (1 - codec.contraction(layout)) * whole * (1 + 1e-6)


@pytest.mark.parametrize(
    "name", ["int8:64:stochastic", "qsgd:7", *(pytest.param(one, marks=pytest.mark.long) for one in LEVELS)]
)
def test_the_mean_of_4000_draws_is_the_vector(name: str) -> None:
    vector = normal(64) * np.float32(3)
    draws = np.stack([round_trip(name, vector, CodecTurn(1, 0, round)) for round in range(4000)]).astype(np.float64)
    error = draws.std(axis=0) / math.sqrt(len(draws))
    assert make_codec(name).unbiased
    assert (np.abs(draws.mean(axis=0) - vector) <= 5 * error + 1e-6).all()


def test_the_mean_of_terngrad_is_the_vector_after_it_was_cut() -> None:
    codec, vector = make_codec("terngrad"), normal(64) ** 3
    layout = VectorLayout.of(vector)
    draws = np.stack([round_trip_of(codec, vector, layout, round) for round in range(4000)]).astype(np.float64)
    cut = codec.cut(vector)
    assert np.abs(cut).max() < np.abs(vector).max()
    scale = np.abs(cut).max()
    deviation = np.sqrt(np.abs(cut) * (scale - np.abs(cut)))  # of one draw: 0 or the scale
    assert (np.abs(draws.mean(axis=0) - cut) <= 5 * deviation / math.sqrt(4000) + 1e-6).all()


def round_trip_of(codec: object, vector: Vector, layout: VectorLayout, round: int) -> Vector:
    turn = CodecTurn(1, 0, round)
    return codec.decode(codec.encode(vector, layout, turn), layout, turn)


def test_random_k_scaled_is_right_in_the_mean_and_unscaled_leaves_out_what_it_says() -> None:
    vector, share = normal(64), 0.25
    scaled, plain = RandomK("scaled", share, scaled=True), RandomK("plain", share)
    layout = VectorLayout.of(vector)
    draws = np.stack([round_trip_of(scaled, vector, layout, round) for round in range(4000)])
    assert (np.abs(draws.mean(axis=0) - vector) <= 5 * draws.std(axis=0) / math.sqrt(4000)).all()
    off = [np.square(round_trip_of(plain, vector, layout, round) - vector).sum() for round in range(4000)]
    assert np.mean(off) == pytest.approx((1 - share) * np.square(vector).sum(), rel=0.02)


def test_payloads_of_random_k_can_be_added() -> None:
    codec, layout = RandomK("random-k", 0.1), VectorLayout.of(normal(1000))
    one, two = normal(1000), np.arange(1000, dtype=np.float32)
    parts = [codec.reduced(vector, CodecTurn(1, node, 7)) for node, vector in enumerate((one, two))]
    whole = codec.restored(parts[0] + parts[1], 1000, CodecTurn(1, 5, 7))
    assert (
        whole == codec.decode(codec.encode(one + two, layout, CodecTurn(1, 9, 7)), layout, CodecTurn(1, 0, 7))
    ).all()
    assert (codec.chosen(1000, CodecTurn(1, 0, 7)) != codec.chosen(1000, CodecTurn(1, 0, 8))).any()


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_zeros_one_element_and_the_least_numbers_come_back(name: str, kind: str) -> None:
    assert not round_trip(name, np.zeros(600, kind)).any()
    one = round_trip(name, np.array([-2.5], kind))
    # QSGD, without a bound, is that exact where a bucket has one element; a share of one is that one
    kept = make_codec(name).contraction(VectorLayout.of(one))
    assert one[0] == pytest.approx(-2.5, rel=max(1e-2, math.sqrt(1 - (kept or 1))))
    least = np.array([np.finfo(kind).smallest_subnormal, -np.finfo(kind).smallest_subnormal] * 9, kind)
    assert np.abs(round_trip(name, least)).max() <= 20 * np.finfo(kind).smallest_subnormal


@pytest.mark.parametrize("name", NAMES)
def test_the_same_payload_comes_of_the_same_vector_and_turn(name: str) -> None:
    vector = normal(3000)
    assert (round_trip(name, vector) == round_trip(name, vector.copy())).all()


@pytest.mark.parametrize(
    ("name", "bytes_of_10_million"),
    [
        ("bf16", 2 * 10**7),
        ("int8:256", 10**7 + 4 * 39063),
        ("top-k:0.01", 8 * 10**5),
        ("top-k:0.1", 10**7 // 8 + 4 * 10**6),
        ("random-k:0.01", 4 * 10**5),
        ("dgc:0.001", 8 * 10**4),
        ("qsgd:7", 5 * 10**6 + 4 * 19532),
        ("terngrad", 10**7 // 4 + 8),
        ("sign", 10**7 // 8 + 8),
    ],
)
def test_ten_million_elements_take_the_bytes_of_the_table(name: str, bytes_of_10_million: int) -> None:
    segments = (Segment("a", 0, (10**6,)), Segment("b", 10**6, (9 * 10**6,)))
    assert make_codec(name).size(VectorLayout(10**7, np.dtype("float32"), segments), 10**6) == bytes_of_10_million


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_ten_million_elements_come_back(name: str) -> None:
    vector = normal(10**7)
    off = (
        np.square(round_trip(name, vector) - vector, dtype=np.float64).sum() / np.square(vector, dtype=np.float64).sum()
    )
    assert off < (1 if make_codec(name).contraction(VectorLayout.of(vector)) else 30)


def test_the_warm_up_of_dgc_sends_the_shares_of_the_paper() -> None:
    codec = make_codec("dgc:0.001:2")
    assert isinstance(codec, DeepGradient)
    assert [codec.k(10_000, round) for round in range(0, 12, 2)] == [2500, 625, 156, 40, 10, 10]


@SOME
@given(vector=vectors, share=some.floats(0.01, 1))
@example(vector=np.ones(50, np.float32), share=0.5)
def test_the_largest_are_the_largest_and_of_equal_ones_the_first(vector: Vector, share: float) -> None:
    k = max(1, round(share * vector.size))
    by_hand = sorted(sorted(range(vector.size), key=lambda at: (-abs(vector[at]), at))[:k])
    assert largest(vector, k).tolist() == by_hand


@SOME
@given(codes=some.lists(some.integers(0, 255), min_size=1, max_size=300), width=some.integers(1, 8))
def test_numbers_of_a_few_bits_come_back(codes: list[int], width: int) -> None:
    small = np.array(codes, np.uint8) >> (8 - width)
    data = packed(small, width)
    assert data.size == packed_bytes(small.size, width)
    assert (unpacked(data, width, small.size) == small).all()


def test_bits_of_several_blocks_come_back() -> None:
    codes = np.random.default_rng(0).integers(0, 32, (1 << 17) + 13).astype(np.uint8)
    assert (unpacked(packed(codes, 5), 5, codes.size) == codes).all()


# --- what is remembered ---------------------------------------------------------------------------------------------


@SOME
@given(given_=some.lists(arrays.arrays(np.int16, 24), min_size=1, max_size=8))
@pytest.mark.parametrize("name", ["top-k:0.1", "random-k:0.2", "sign", "int8:8"])
def test_all_that_was_sent_and_what_is_left_are_all_that_was_given(name: str, given_: list[Vector]) -> None:
    """Exactly: whole numbers in float64, whose sums are not rounded; means of signs are shares of 24."""
    layout = VectorLayout.of(np.zeros(24))
    sender = Feedback(make_codec(name))
    memory, sent = sender.start(layout), np.zeros(24)
    for round, vector in enumerate(given_):
        turn = CodecTurn(1, 0, round)
        payload, memory = sender.send(memory, vector.astype(np.float64), layout, turn)
        sent += sender.codec.decode(payload, layout, turn)
    total = np.sum([one.astype(np.float64) for one in given_], axis=0)
    if name in ("sign", "int8:8"):
        assert np.allclose(sent + memory[0], total, rtol=0, atol=1e-9)
    else:
        assert (sent + memory[0] == total).all()


def test_signs_climb_where_the_gradient_falls_and_with_feedback_they_do_not() -> None:
    """Karimireddy et al. 2019, counterexample 1, exactly: f(x) = x / 4 on [-1, 1]; the gradient is 4 with probability
    1/4 and -1 with 3/4, 1/4 in the mean.  Of its sign the mean is -1/2: a step against it goes up."""
    gradients = np.array([4.0, -1.0, -1.0, -1.0])  # each as likely
    layout, turn = VectorLayout.of(np.zeros(1)), CodecTurn(1, 0, 0)
    codec = Sign()
    signs = [float(np.sign(codec.decode(codec.encode(g[None], layout, turn), layout, turn)[0])) for g in gradients]
    assert gradients.mean() == 1 / 4
    assert np.mean(signs) == -1 / 2

    rate, rounds = 2.0**-10, 4000
    drawn = gradients[np.random.default_rng(0).integers(0, 4, rounds)]
    plain, fed, memory, sender = 0.0, 0.0, (np.zeros(1),), Feedback(codec)
    for gradient in drawn:
        plain = min(1.0, max(-1.0, plain - rate * float(np.sign(gradient))))
        payload, memory = sender.send(memory, gradient[None], layout, turn)
        fed = min(1.0, max(-1.0, fed - rate * float(codec.decode(payload, layout, turn)[0])))
    assert plain > 0.99  # at the worst point, 1
    assert fed < -0.5  # on its way to the best, -1


def test_dgc_sends_what_it_gathers_and_forgets_only_that() -> None:
    """Everything that is gathered is sent once, or still there: with momentum 0, exactly."""
    layout, sender = VectorLayout.of(np.zeros(20)), sender_of(make_codec("dgc:0.1:0"), 0.0)
    assert isinstance(sender, MomentumCorrection)
    memory, sent, total = sender.start(layout), np.zeros(20), np.zeros(20)
    for round in range(15):
        vector = np.random.default_rng(round).integers(-50, 50, 20).astype(np.float64)
        turn = CodecTurn(1, 0, round)
        payload, memory = sender.send(memory, vector, layout, turn)
        arrived = sender.codec.decode(payload, layout, turn)
        assert np.count_nonzero(arrived) <= 2
        assert not memory[0][arrived != 0].any()  # momentum factor masking
        sent, total = sent + arrived, total + vector
    assert (sent + memory[1] == total).all()


# --- what is refused ------------------------------------------------------------------------------------------------


def payload_of(name: str, length: int = 600) -> tuple[np.ndarray, VectorLayout]:
    vector = normal(length)
    layout = VectorLayout.of(vector)
    return make_codec(name).encode(vector, layout, TURN).copy(), layout


def refused(name: str, payload: np.ndarray, layout: VectorLayout, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        make_codec(name).decode(payload, layout, TURN)


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_of_another_length_is_refused(name: str) -> None:
    payload, layout = payload_of(name)
    for wrong in (payload[:-1], np.concatenate([payload, payload[:1]]), payload[:0]):
        refused(name, wrong, layout, "bytes, not")


@pytest.mark.parametrize(
    ("name", "at", "byte", "why"),
    [
        ("int8:256", -1, 0x80, "level below"),
        ("int8:256", 3, 0xBF, "negative scale"),
        ("qsgd:7", -1, 0xFF, "level above"),
        ("qsgd:7", 3, 0xFF, "negative norm"),
        ("terngrad", -1, 0xFF, "level that is not"),
        ("sign", 3, 0xBF, "negative scale"),
        ("top-k:0.01", -1, 0xFF, "beyond the end"),
        ("top-k:0.4", -1, None, "places for 240 elements"),
        ("bf16", 1, 0x7F, "not finite"),
        ("random-k:0.1", 3, 0x7F, "not finite"),
    ],
)
def test_a_level_a_place_or_a_number_out_of_range_is_refused(name: str, at: int, byte: int | None, why: str) -> None:
    payload, layout = payload_of(name)
    payload[at] = payload[at] ^ 1 if byte is None else byte
    if why == "not finite":
        payload[at - 1] = 0xFF
    refused(name, payload, layout, why)


def test_places_that_do_not_ascend_are_refused() -> None:
    payload, layout = payload_of("top-k:0.01")
    payload[24:28], payload[28:32] = payload[28:32].copy(), payload[24:28].copy()
    refused("top-k:0.01", payload, layout, "do not ascend")


@pytest.mark.parametrize("name", NAMES)
def test_no_byte_that_is_changed_raises_anything_but_a_protocol_error(name: str) -> None:
    payload, layout = payload_of(name, 70)
    chance = np.random.default_rng(4)
    for _ in range(300):
        changed = payload.copy()
        changed[chance.integers(payload.size, size=3)] = chance.integers(256, size=3)
        try:
            vector = make_codec(name).decode(changed, layout, TURN)
        except ProtocolError:
            continue
        assert vector.size == 70 and np.isfinite(vector).all()


def test_what_is_too_large_for_a_half_comes_later() -> None:
    vector, layout = np.array([1.0, -70000.0], np.float32), VectorLayout.of(np.zeros(2, np.float32))
    sender = sender_of(make_codec("fp16"))
    _, memory = sender.send(sender.start(layout), vector, layout, TURN)
    assert memory[0].tolist() == [0.0, -70000.0 + 65504.0]


@pytest.mark.parametrize(
    "name",
    [
        "top-k",
        "top-k:0",
        "top-k:1.5",
        "top-k:x",
        "random-k:-1",
        "qsgd",
        "qsgd:0",
        "qsgd:128",
        "qsgd:2.5",
        "int8:0",
        "int8:a:b",
        "bf16:2",
        "zip",
        "dgc:0.1:-1",
    ],
)
def test_a_codec_that_there_is_not_is_refused_with_advice(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_codec(name)
    assert name.partition(":")[0] in str(refused.value) and refused.value.advice


def test_every_codec_is_tested_here() -> None:
    assert {name.partition(":")[0] for name in NAMES} == set(CODECS)
