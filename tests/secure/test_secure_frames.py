"""Frames that nobody signed change nothing, signed nonsense ends a round at most, and no key byte is ever shown.

Long form (`--long`): 10^6 mutated frames instead of 20 000 (some minutes).
"""

from __future__ import annotations

import base64
import gc
import io
import logging
import random
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import secure_kit
from secure_kit import MODEL, Course, Room, plain_sum, public, run, signer

from fedgossip.base.errors import FedgossipError, ProtocolError
from fedgossip.secure import frames, primitives, secrets
from fedgossip.secure.aborts import RoundAbandoned
from fedgossip.secure.primitives import remembering
from fedgossip.secure.secrets import Secret

FRAMES = 45
"""Frames of a session of five clients that are mutated: five to each, four from each."""


STAGES_UP = ["keys", "shares", "consent", "reveal"]
STAGES_DOWN = ["invite", "neighbourhood", "delivery", "survivors", "consents"]


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """The frame with something wrong: bits, bytes, its length, pieces of it, or all of it."""
    data = bytearray(frame)
    kind = rng.randrange(6)
    at = rng.randrange(len(data))
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(9))
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        data += rng.randbytes(rng.randrange(1, 40))
    elif kind == 4:
        other = rng.randrange(len(data))
        data[at], data[other] = data[other], data[at]
    else:
        data = bytearray(rng.randbytes(rng.randrange(200)))
    return bytes(data)


def refused(call: Callable[[bytes], Any], frame: bytes, rng: random.Random, times: int) -> int:
    """Tell `call` mutated frames; each must be refused and nothing else happen.  Return how many there were."""
    told = 0
    for _ in range(times):
        wrong = mutated(frame, rng)
        if wrong != frame:
            told += 1
            with pytest.raises(ProtocolError):
                call(wrong)
    return told


def bombarded(times: int, seed: int) -> int:
    """A session in which before every true frame `times` mutated ones of it come; return how many came."""
    room, course, rng = Room(5), Course(), random.Random(seed)
    inputs = room.inputs()
    told = 0

    def told_client(stage: str, v: int, frame: bytes) -> Any:
        if stage == "invite":
            return room.clients[v].join(frame, MODEL)
        if stage == "neighbourhood":
            return course.advertised[v].share(frame)
        if stage == "delivery":
            return course.shared[v].mask(frame, inputs[v])
        return course.masked[v].consent(frame) if stage == "survivors" else course.consented[v].reveal(frame)

    def down(stage: str, v: int, frame: bytes) -> bytes:
        nonlocal told
        told += refused(lambda wrong: told_client(stage, v, wrong), frame, rng, times)
        return frame

    def up(stage: str, v: int, frame: bytes) -> bytes:
        nonlocal told
        told += refused(lambda wrong: course.server[-1].take(v, wrong), frame, rng, times)
        for other in set(range(5)) - {v}:  # a true frame from somebody else's link
            with pytest.raises(ProtocolError):
                course.server[-1].take(other, frame)
        return frame

    run(room, inputs=inputs, up=up, down=down, course=course)
    assert course.summed is not None and not course.client_aborts
    assert course.summed.survivors == (0, 1, 2, 3, 4)
    assert (course.summed.total == plain_sum(inputs, range(5))).all()
    return told


def test_20_000_mutated_frames_change_nothing() -> None:
    assert bombarded(20_500 // FRAMES, seed=1) >= 20_000


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_mutated_frames_change_nothing() -> None:
    assert bombarded(1_025_000 // FRAMES, seed=2) >= 1_000_000


def resigned(frame: bytes, sender: int, rng: random.Random) -> bytes:
    """A mutated body under the right signature of who sends it: a corrupt participant."""
    body = mutated(frame[frames.SIGNATURE :], rng)
    sign = secure_kit.signer(sender)
    return sign(frames._signed(sender, body)) + body


def test_signed_nonsense_ends_the_round_or_nothing_and_never_gives_another_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    secure_kit.quick(monkeypatch)
    sums = 0
    for seed in range(600):
        rng = random.Random(seed)
        target = rng.choice([(stage, v) for stage in STAGES_UP + STAGES_DOWN for v in range(5)])

        def change(stage: str, v: int, frame: bytes, target: Any = target, rng: random.Random = rng) -> bytes:
            return resigned(frame, v if stage in STAGES_UP else -1, rng) if (stage, v) == target else frame

        room, course = Room(5), Course()
        try:
            run(room, up=change, down=change, course=course)
        except (RoundAbandoned, ProtocolError):
            continue
        assert course.summed is not None
        assert (course.summed.total == plain_sum(room.inputs(), course.summed.survivors)).all()
        sums += 1
    assert sums > 10  # one client that lies or is lied to is one that drops


@pytest.mark.parametrize(
    "body", [b"", b"\xc0", b"\x80", b"\x81\xa4type\xa6Result", b"\xdf\xff\xff\xff\xff", b"\x91" * 60_000]
)
def test_a_signed_body_that_is_no_message_is_refused(body: bytes) -> None:
    frame = signer(0)(frames._signed(0, body)) + body
    with pytest.raises(ProtocolError):
        frames.from_client(frame, 0, public(0))


def test_a_frame_above_the_limit_is_not_even_hashed() -> None:
    with pytest.raises(ProtocolError, match="bytes"):
        frames.from_client(bytes(frames.FRAME_MAX + 1), 0, public(0))


def test_unknown_keys_in_a_message_are_refused() -> None:
    body = msgspec.msgpack.encode({"type": "Consent", "sid": bytes(32), "signature": bytes(64), "more": 1})
    with pytest.raises(ProtocolError, match="no message"):
        frames.from_client(signer(0)(frames._signed(0, body)) + body, 0, public(0))
    assert frames.from_client(frames.pack(frames.Consent(bytes(32), bytes(64)), 0, signer(0)), 0, public(0))


def test_a_process_that_is_everybody_reads_its_own_frames_as_others_do() -> None:
    """What it packed it need not decode; what was changed on the way, or is another's, is refused as ever."""
    message = frames.Reveal(bytes(32), ((1, True, bytes(32)), (2, False, bytes([5] * 32))))
    with remembering():
        for _ in range(2):
            frame = frames.pack(message, 0, signer(0))
            for wrong in (frame[:-1], frame[:70] + bytes([frame[70] ^ 1]) + frame[71:]):
                with pytest.raises(ProtocolError):
                    frames.from_client(wrong, 0, public(0))
            for sender, identity in ((1, public(0)), (0, public(1))):
                with pytest.raises(ProtocolError):
                    frames.from_client(frame, sender, identity)
            with pytest.raises(ProtocolError):
                frames.from_coordinator(frame, public(0))
            assert [frames.from_client(frame, 0, public(0)) for _ in range(2)] == [message] * 2
        with pytest.raises(ProtocolError, match="bytes"):
            frames.from_client(frames.pack(message, 0, signer(0)) + bytes(frames.FRAME_MAX), 0, public(0))


def test_a_repeated_frame_is_ignored() -> None:
    """Networks repeat: the frame of the stage before neither advances a step nor ends a session."""
    room, course = Room(5), Course()
    before: dict[int, bytes] = {}

    def down(stage: str, v: int, frame: bytes) -> bytes:
        if stage in ("delivery", "survivors", "consents"):
            with pytest.raises(ProtocolError):
                if stage == "delivery":
                    course.shared[v].mask(before[v], room.inputs()[v])
                elif stage == "survivors":
                    course.masked[v].consent(before[v])
                else:
                    course.consented[v].reveal(before[v])
        before[v] = frame
        return frame

    run(room, down=down, course=course)
    assert course.summed is not None and not course.client_aborts


# --- nothing secret is shown ------------------------------------------------------------------------------------------


def recorded(patch: pytest.MonkeyPatch) -> set[bytes]:
    """Every secret that comes up from now on: entropy, agreements, derived keys, whatever is put into a Secret."""
    found: set[bytes] = set()

    def note(value: bytes) -> None:
        found.update(bytes(value[at : at + 32]) for at in range(0, len(value), 32))  # many may stand in one value

    def keep(function: Callable[..., bytes]) -> Callable[..., bytes]:
        def wrapped(*args: Any) -> bytes:
            note(value := function(*args))
            return value

        return wrapped

    plain_entropy, plain_init, plain_with = secure_kit.entropy_of, Secret.__init__, primitives.Agreement.agree
    plain_derived = primitives.derived
    patch.setattr(secure_kit, "entropy_of", lambda *name: keep(plain_entropy(*name)))
    patch.setattr(primitives.Agreement, "agree", keep(plain_with))

    def derived(*of: Any) -> list[tuple[bytes, ...]]:
        keys = plain_derived(*of)
        found.update(key for each in keys for key in each)
        return keys

    patch.setattr(primitives, "derived", derived)

    def init(self: Secret, value: bytes) -> None:
        note(value)
        plain_init(self, value)

    patch.setattr(Secret, "__init__", init)
    return found


def forms(secret: bytes) -> list[str]:
    """A secret as it could be written: half of it is enough to be found."""
    half = secret[:16]
    return [half.hex(), repr(half)[2:-1], base64.b64encode(secret)[:20].decode(), str(int.from_bytes(secret, "little")),
            str(int.from_bytes(secret, "big")), str(list(half))[1:-1]]  # fmt: skip


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(error) + repr(error.args) + repr(vars(error))


def test_no_key_byte_is_in_any_repr_log_or_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    secrets = recorded(monkeypatch)
    texts: list[str] = []
    courses = []
    for attack in (None, "shares", "delivery", "survivors", "consents", "reveal", "neighbourhood"):
        room, course, rng = Room(5, seed=attack), Course(), random.Random(3)
        courses += [room, course]

        def change(
            stage: str, v: int, frame: bytes, course: Any = course, attack: Any = attack, rng: random.Random = rng
        ) -> bytes:
            texts.extend(repr(thing) for thing in vars(course).values())
            return resigned(frame, v if stage in STAGES_UP else -1, rng) if stage == attack and v < 2 else frame

        try:
            run(room, up=change, down=change, course=course)
        except FedgossipError as error:
            texts.append(shown(error))
        texts.extend(shown(error) for error in course.client_aborts.values())
    # str: some classes of other libraries have a descriptor there
    objects = [thing for thing in gc.get_objects() if str(type(thing).__module__).startswith("fedgossip.secure")]
    texts.extend(repr(thing) for thing in objects)
    logging.getLogger().removeHandler(handler)
    text = "\n".join([*texts, log.getvalue()])
    assert len(secrets) > 500 and len(objects) > 100 and len(text) > 10_000
    hits = [secret for secret in secrets if any(form in text for form in forms(secret))]
    assert hits == []


def test_the_search_for_secrets_finds_them_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = recorded(monkeypatch)
    room = Room(5)
    room.clients[0].join(frames.pack(frames.SessionInvite(room.proposal()), -1, signer(-1)), MODEL)
    leaks = [repr(next(iter(secrets))), next(iter(secrets)).hex(), str([int.from_bytes(s, "little") for s in secrets])]
    assert all(any(form in leak for s in secrets for form in forms(s)) for leak in leaks)


def test_frames_that_carry_shares_do_not_show_them() -> None:
    message = frames.Reveal(bytes(32), ((1, True, b"share of somebody, 32 bytes long"),))
    assert repr(message) == "<Reveal>"


def test_erasing_overwrites() -> None:
    secret = Secret(b"x" * 32)
    view = secret._bytes
    secret.erase()
    assert secret.erased and not view


def test_keys_announced_ahead_can_be_thrown_away() -> None:
    course = run(Room(5))
    ahead = course.masked[0].ahead
    assert isinstance(ahead, secrets.Ahead) and ahead.public is not None
    ahead.erase()
    assert ahead.public is None
