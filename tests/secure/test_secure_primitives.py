"""Known answers of the standards and of the papers, and the arithmetic below a secure sum."""

from __future__ import annotations

import copy
import hashlib
import hmac
import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_kit import entropy_of

from fedgossip.secure import fixed_point, graph, primitives, shamir
from fedgossip.secure.primitives import REMEMBERED_BYTES, Remembered, Secret, keystream, memory, remembering, transcript

# --- the standards' vectors -------------------------------------------------------------------------------------------


def test_x25519_gives_the_answer_of_rfc_7748() -> None:
    secret = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    public = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    shared = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert primitives.Agreement(secret).agree(public).hex() == shared


def test_ed25519_gives_the_answer_of_rfc_8032() -> None:
    key = Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    )
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    signature = bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
        "655141438e7a100b"
    )
    assert key.sign(b"") == signature
    assert primitives.verify(public, signature, b"")
    assert not primitives.verify(public, signature, b"other")


def hkdf(salt: bytes, key: bytes, info: bytes, size: int) -> bytes:
    """RFC 5869, in five lines."""
    pseudorandom, block, out = hmac.digest(salt, key, "sha256"), b"", b""
    while len(out) < size:
        block = hmac.digest(pseudorandom, block + info + bytes([len(out) // 32 + 1]), "sha256")
        out += block
    return out[:size]


def test_hkdf_gives_the_answer_of_rfc_5869_and_derive_is_hkdf() -> None:
    answer = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert hkdf(bytes(range(13)), b"\x0b" * 22, bytes(range(0xF0, 0xFA)), 42).hex() == answer
    named, other = transcript("mask", 1, 2, 1000), transcript("enc", 1, 2)
    for salt, key in ((b"salt", b"key"), (b"", b""), (b"s" * 64, b"k" * 65), (b"s" * 65, bytes(32))):
        assert primitives.derive(salt, key, "mask", 1, 2, 1000) == hkdf(salt, key, named, 32)
        assert primitives.derived(salt, [key, b"j"], [(named, other), (other,)]) == [
            (hkdf(salt, key, named, 32), hkdf(salt, key, other, 32)), (hkdf(salt, b"j", other, 32),),
        ]  # fmt: skip


def test_chacha20_poly1305_gives_the_answer_of_rfc_8439() -> None:
    text = (
        b"Ladies and Gentlemen of the class of '99: "
        b"If I could offer you only one tip for the future, sunscreen would be it."
    )
    sealed = ChaCha20Poly1305(bytes(range(0x80, 0xA0))).encrypt(
        bytes.fromhex("070000004041424344454647"), text, bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    )
    assert sealed[:4].hex() == "d31a8d34" and sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"


def test_the_keystream_is_aes_256_in_counter_mode_from_zero() -> None:
    # AES-256 of zeros under the zero key: the first block of the stream
    assert keystream(bytes(32)).update(bytes(16)).hex() == "dc95c078a2408989ad48a21492842087"


def test_a_short_stream_is_the_beginning_of_the_stream_for_both_ends() -> None:
    keys = [hashlib.sha256(bytes([i])).digest() for i in range(3)]
    expected = [keystream(key).update(bytes(100)) for key in keys]
    assert primitives.short_streams(keys, 100) == expected
    with remembering():
        for _ in range(5):
            assert primitives.short_streams(keys, 100) == expected
            assert primitives.short_streams(keys[:1], 40) == [expected[0][:40]]


def test_a_part_that_is_put_behind_a_transcript_is_one_of_its_parts() -> None:
    begun = transcript("share", b"session")
    assert begun + primitives.encode_part(4) + primitives.encode_part(17) == transcript("share", b"session", 4, 17)


def test_a_seal_opens_for_the_same_key_and_binding_alone() -> None:
    key, bound = b"k" * 32, b"1 to 2"
    alone = primitives.seal([key], [b"shares"], [bound])
    with remembering():
        assert primitives.seal([key], [b"shares"], [bound]) == alone, "a process that is everybody seals as others do"
        for place in (nullcontext(), remembering()):
            with place:
                sealed = primitives.seal([key, key], [b"shares", b"others"], [bound, bound])
                changed = sealed[0][:-1] + bytes([sealed[0][-1] ^ 1])
                opened = primitives.unseal([key, b"j" * 32, key, key, key], [*sealed[:1] * 3, changed, sealed[1]],
                                           [bound, bound, b"2 to 1", bound, bound])  # fmt: skip
                assert opened == [b"shares", None, None, None, b"others"]
                assert primitives.unseal([key], sealed[:1], [bound]) == [b"shares"], "once more, if it is asked for"


@settings(max_examples=200, deadline=None)
@given(*(st.lists(st.one_of(st.binary(max_size=3), st.integers(0, 300)), max_size=4) for _ in range(2)))
def test_two_different_lists_of_parts_are_never_the_same_bytes(
    left: list[bytes | int], right: list[bytes | int]
) -> None:
    def texts(parts: list[bytes | int]) -> list[bytes]:
        return [part if isinstance(part, bytes) else str(part).encode() for part in parts]

    assert (transcript("p", *left) == transcript("p", *right)) == (texts(left) == texts(right))


def test_a_secret_is_neither_shown_nor_copied_and_can_be_erased() -> None:
    secret = Secret(b"live key bytes")
    assert "live" not in repr(secret) + str(secret) + f"{secret!r}"
    for escape in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            escape(secret)
    secret.erase()
    with pytest.raises(ValueError, match="erased"):
        secret.read()


def test_keys_of_small_order_are_those_with_which_everybody_agrees_on_zero() -> None:
    """Whatever the highest bit is, which X25519 leaves out; the points beside them are of a large order."""
    field = 2**255 - 19
    near = {*range(3), *range(field - 3, 2**255), *primitives._OF_ORDER_8}
    near |= {point + beside for point in primitives._OF_ORDER_8 for beside in (-1, 1)}
    found = set()
    for coordinate in near:
        for highest in (0, 1 << 255):
            key = (coordinate | highest).to_bytes(32, "little")
            try:
                primitives.Agreement(b"a" * 32).agree(key)
            except ValueError:
                found.add(coordinate)
            assert primitives.small_order(key) == (coordinate in found)
    assert len(found) == 7
    assert not primitives.small_order(primitives.public_of(b"s" * 32))
    assert primitives.small_order(bytes(31)) and primitives.small_order(b"s" * 33), "these are no keys"


# --- the ring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 7, fixed_point.BLOCK, fixed_point.BLOCK + 3, 3 * fixed_point.BLOCK + 1])
@pytest.mark.parametrize("streams", [0, 1, fixed_point.STREAMS, fixed_point.STREAMS + 1, 2 * fixed_point.STREAMS + 5])
def test_added_streams_are_the_sum_of_the_streams_and_come_off_again(length: int, streams: int) -> None:
    keys = [hashlib.sha256(bytes([i])).digest() for i in range(streams)]
    total = np.arange(length, dtype=np.uint32)
    expected = total.astype(np.uint64)
    for key in keys:
        expected += np.frombuffer(keystream(key).update(bytes(4 * length)), "<u4")
    fixed_point.add_streams(total, keys)
    assert (total == (expected % 2**32).astype(np.uint32)).all()
    fixed_point.subtract_streams(total, iter(keys))
    assert (total == np.arange(length)).all()


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20))
def test_signed_integers_survive_the_ring(numbers: list[int]) -> None:
    assert fixed_point.centred(fixed_point.words(np.array(numbers, np.int64))).tolist() == numbers


def test_a_uniform_mask_from_the_ring_leaves_nothing_to_see() -> None:
    """Zeros and large numbers, masked, have the same statistics: each byte value about equally often."""
    for fill in (0, 0x7FFFFFFF):
        words = np.full(1 << 16, fill, np.uint32)
        fixed_point.add_streams(words, [b"m" * 32])
        counts = np.bincount(words.view(np.uint8), minlength=256)
        assert abs(counts - 1024).max() < 6 * 32  # six standard deviations of a binomial


# --- Shamir -----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(0, 8), st.integers(0, shamir.P - 1), st.randoms(use_true_random=False))
def test_any_t_shares_give_the_secret_back(t: int, more: int, value: int, order: object) -> None:
    secret = value.to_bytes(32, "little")
    holders = list(range(1, t + more + 1))
    shares = shamir.split(secret, holders, t, entropy_of("shamir", value, t))
    order.shuffle(holders)  # type: ignore[attr-defined]
    assert shamir.combine({x: shares[x] for x in holders[:t]}) == secret


@pytest.mark.parametrize(("t", "largest"), [(1, 5), (3, 5), (43, 64), (25, 1000), (60, 1000), (150, 180), (170, 200)])
def test_two_secrets_that_are_split_together_have_the_shares_of_each_alone(t: int, largest: int) -> None:
    """Few of them by integers, more by matrices, very many by integers again."""
    holders = [largest - 2 * place for place in range(t)] if largest > 2 * t else list(range(1, largest + 1))
    for one, other in ((bytes(32), (shamir.P - 1).to_bytes(32, "little")), (b"\1" * 32, b"\2" * 32)):
        drawn = entropy_of("two", t)(2 * 32 * t)
        together = shamir.split_two(one, other, holders, t, io.BytesIO(drawn).read)
        entropy = io.BytesIO(drawn).read
        alone = [shamir.split(secret, holders, t, entropy) for secret in (one, other)]
        assert together == [alone[0][x] + alone[1][x] for x in holders]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 5000), min_size=1, max_size=9, unique=True), st.data())
def test_polynomials_of_digits_have_the_values_of_integers(terms: int, places: list[int], data: object) -> None:
    elements = st.one_of(st.integers(0, shamir.P - 1), st.sampled_from([0, 1, shamir.P - 1, 2**256 - 2**16]))
    both = data.draw(st.tuples(*[st.lists(elements, min_size=terms, max_size=terms)] * 2))  # type: ignore[attr-defined]
    found = shamir.values_of_two([[c.to_bytes(32, "little") for c in one] for one in both], tuple(places))
    for coefficients, values in zip(both, found, strict=True):
        expected = [sum(c * x**j for j, c in enumerate(coefficients[::-1])) % shamir.P for x in places]
        assert [int.from_bytes(value, "little") for value in values] == expected


def test_digits_of_the_largest_polynomials_are_still_exact() -> None:
    terms, highest = shamir.TERMS_MOST, (2**256 - 2**16).to_bytes(32, "little")
    (values, _), x = shamir.values_of_two([[highest] * terms] * 2, (5000, 4999)), 5000
    expected = sum((2**256 - 2**16) * x**j for j in range(terms)) % shamir.P
    assert int.from_bytes(values[0], "little") == expected


def test_fewer_shares_fit_every_secret() -> None:
    """For t - 1 shares of one secret there is a polynomial through any other secret: they tell nothing."""
    shares = shamir.split(bytes(32), [1, 2, 3], 3, entropy_of("perfect"))
    for other in (b"\x01" * 32, b"\x7f" * 32):
        through = {0: other, 1: shares[1], 2: shares[2]}
        third = sum(f * int.from_bytes(through[p], "little") for p, f in enumerate(shamir.basis((0, 1, 2), 3)))
        assert shamir.combine({1: shares[1], 2: shares[2], 3: (third % shamir.P).to_bytes(32, "little")}) == other


@pytest.mark.parametrize("wrong", [(1,), (2, 3), (1, 4, 6)])
def test_wrong_shares_are_found_and_their_holders_named(wrong: tuple[int, ...]) -> None:
    secret = b"\x05" * 32
    shares = shamir.split(secret, range(1, 11), 5, entropy_of("wrong"))
    spoilt = {x: bytes(32) if x in wrong else share for x, share in shares.items()}
    found = shamir.recover(spoilt, 5, lambda value: value == secret)
    assert found is not None and found[0] == secret and sorted(found[1]) == sorted(wrong)


def test_shares_beyond_the_first_set_cost_nothing_where_it_is_right() -> None:
    """Looking at each of them takes t^2 products: minutes with 500 clients."""
    shares = shamir.split(b"\x05" * 32, range(1, 11), 5, entropy_of("spare"))
    shamir.basis.cache_clear()
    assert shamir.recover({**shares, 9: bytes(32)}, 5, lambda value: value == b"\x05" * 32) == (b"\x05" * 32, ())
    assert shamir.basis.cache_info().misses == 1


def test_too_many_wrong_shares_are_no_secret_and_the_search_is_bounded() -> None:
    tried = []
    shares = shamir.split(b"\x05" * 32, range(1, 41), 20, entropy_of("lost"))
    assert shamir.recover(shares, 20, lambda value: bool(tried.append(value))) is None
    assert len(tried) == shamir.TRIES_MAX
    assert shamir.recover({1: shares[1]}, 20, lambda value: True) is None


@pytest.mark.parametrize(("holders", "t"), [([1, 1], 2), ([0, 1], 2), ([1, 2], 3), ([1, 2], 0)])
def test_shares_that_could_not_work_are_refused(holders: list[int], t: int) -> None:
    with pytest.raises(ValueError, match="places"):
        shamir.split(bytes(32), holders, t, entropy_of())


def test_a_draw_of_p_or_more_is_drawn_again() -> None:
    draws = iter([b"\xff" * 32, shamir.P.to_bytes(32, "little"), b"\x01" * 32])
    assert shamir.draw(lambda size: next(draws)) == b"\x01" * 32


def test_the_field_is_the_largest_prime_below_two_to_the_256() -> None:
    assert shamir.P == 2**256 - 189
    assert all(pow(a, shamir.P - 1, shamir.P) == 1 for a in (2, 3, 5, 7, 11, 13))


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "corrupt", "dropping", "semi_malicious", "answer"),
    [
        (100, 0.05, 0.33, False, (28, 6)),
        (1000, 0.05, 0.33, False, (72, 24)),
        (100, 0.05, 0.33, True, (72, 39)),
        (100, 0.33, 0.05, False, (34, 29)),
        (1000, 0.33, 0.05, True, (132, 109)),
        (100, 0.05, 0.05, False, (12, 6)),
        (10, 0.33, 0.33, False, (8, 4)),
        (100, 0.1, 0.3, False, (34, 11)),
        (100, 0.1, 0.3, True, (72, 42)),
        (1000, 0.1, 0.3, False, (88, 36)),
        (1000, 0.1, 0.3, True, (414, 247)),
    ],
)
def test_the_graph_parameters_are_the_known_ones(
    n: int, corrupt: float, dropping: float, semi_malicious: bool, answer: tuple[int, int]
) -> None:
    assert graph.parameters(n, corrupt, dropping, semi_malicious=semi_malicious) == answer


@settings(max_examples=30, deadline=None)
@given(st.integers(65, 200), st.integers(1, 30), st.binary(min_size=32, max_size=32))
def test_the_harary_graph_is_regular_symmetric_and_its_circle_connects_all(n: int, half: int, sid0: bytes) -> None:
    cohort = range(0, 3 * n, 3)
    neighbours = graph.harary(cohort, 2 * half, sid0)
    assert all(len(set(of) - {u}) == 2 * half for u, of in neighbours.items())
    assert all(u in neighbours[v] for u, of in neighbours.items() for v in of)
    assert sorted(graph.shuffled(cohort, sid0)) == list(cohort)


def test_every_client_computes_the_same_graph_and_each_session_another() -> None:
    first = graph.harary(range(100), 34, b"a" * 32)
    assert first == graph.harary(range(100), 34, b"a" * 32) != graph.harary(range(100), 34, b"b" * 32)


@pytest.mark.parametrize("k", [0, 1, 3, 70, 71])
def test_a_harary_graph_that_is_none_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="even number"):
        graph.harary(range(70), k, bytes(32))


def test_the_threshold_leaves_no_room_for_two_lists_of_survivors() -> None:
    """Each honest client answers one list, a third of the group both: 2 t is more than they can give."""
    for m in range(4, 1001):
        t, corrupt = graph.policy_threshold(m), m // 3
        assert 2 * t > (m - corrupt) + 2 * corrupt
        assert t > corrupt


def test_a_process_that_is_everybody_agrees_by_a_hash_and_checks_only_what_it_did_not_sign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other, third = (primitives.Agreement(bytes([number] * 32)) for number in (1, 2, 3))
    publics = [primitives.public_of(bytes([number] * 32)) for number in (1, 2)]
    identity, sign = primitives.signer(bytes(32))
    before, alone = sign(b"before"), one.agree(publics[1])
    key = primitives.derive(bytes(32), alone, "enc", 1, 2)
    checked: list[bytes] = []
    verified = primitives._verified
    monkeypatch.setattr(primitives, "_verified", lambda *what: checked.append(what[2]) or verified(*what))
    with remembering():
        for _ in range(3):
            assert one.agree(publics[1]) == other.agree(publics[0]) != alone
            assert third.agree(publics[0]) != one.agree(publics[1])
            assert (
                primitives.derive(bytes(32), alone, "enc", 1, 2) == key != primitives.derive(bytes(32), alone, "enc", 2)
            )
            assert primitives.verify(identity, sign(b"yes"), b"yes")
            assert primitives.verify(identity, before, b"before")
            assert not primitives.verify(identity, sign(b"yes"), b"no")
            for small in (bytes(32), b"\1" + bytes(31)):
                assert primitives.small_order(small)
                with pytest.raises(ValueError, match="shared key"):
                    one.agree(small)
    assert checked == [b"before", b"no"], "what was signed in here is known, the rest is checked once"
    assert memory() is None, "what two agreed on is not kept any longer"
    assert one.agree(publics[1]) == alone, "participants that are real agree as ever"
    assert primitives.verify(identity, sign(b"yes"), b"yes") and checked[2:] == [b"yes"]


def test_what_is_remembered_is_bounded_in_bytes_and_taken_once() -> None:
    here = Remembered()
    for number in range(10):
        here.keep(number, "a", REMEMBERED_BYTES // 4)
        assert here.get(number) == "a" and sum(here.get(one) is not None for one in range(10)) <= 3
    assert here.take(9, REMEMBERED_BYTES // 4) == "a" and here.take(9) is None


def test_a_key_for_a_pair_is_derived_once_for_both_ends_and_is_that_of_two_that_are_alone() -> None:
    secrets = [bytes([number] * 32) for number in (1, 2)]
    publics = [primitives.public_of(secret) for secret in secrets]
    ends = [primitives.Agreement(secret, public) for secret, public in zip(secrets, publics, strict=True)]
    infos = (transcript("enc", 1, 2), transcript("enc", 2, 1))

    def of_both(salt: bytes) -> list[tuple[bytes, ...]]:
        return [
            key for end, public in zip(ends, publics[::-1], strict=True) for key in end.keys([public], salt, [infos])
        ]

    alone = of_both(b"sid")
    assert alone == primitives.derived(b"sid", [ends[0].agree(publics[1])], [infos]) * 2
    with remembering():
        for _ in range(2):
            here = of_both(b"sid")
            assert here == primitives.derived(b"sid", [ends[0].agree(publics[1])], [infos]) * 2
            assert of_both(b"other") != here


def test_parts_that_python_takes_for_equal_are_different_transcripts() -> None:
    assert len({transcript("x", part) for part in (1, True, "True", b"1\0")}) == 3, "a truth is its word, a 1 is not"


def test_many_draws_at_once_are_those_of_one_by_one() -> None:
    """Values of p and more are left out: the first and the third here."""
    numbers = [shamir.P, 5, 2**256 - 1, 7, shamir.P - 1, 9]
    content = b"".join(number.to_bytes(32, "little") for number in numbers)

    def entropy() -> Callable[[int], bytes]:
        stream = io.BytesIO(content)
        return stream.read

    one_by_one = entropy()
    assert shamir.draws(4, entropy()) == [shamir.draw(one_by_one) for _ in range(4)]
    assert [int.from_bytes(value, "little") for value in shamir.draws(3, entropy())] == [5, 7, shamir.P - 1]
