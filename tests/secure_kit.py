"""A cohort, its coordinator and the messages between them, moved by hand: everything follows from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgossip.secure import frames, primitives, secrets, server, session
from fedgossip.secure.aborts import RoundAbandoned
from fedgossip.secure.client import Advertised, Consented, Revealed, SecAggClient, Shared, VectorMasked
from fedgossip.secure.fixed_point import FixedPoint, Quantised, Words
from fedgossip.secure.primitives import Entropy, Sign
from fedgossip.secure.secrets import Ahead
from fedgossip.secure.server import Summed, Summing, invite
from fedgossip.secure.session import Descriptor, ParticipantRoster, Policy, RosterMember, model_hash, proposal

MODEL = model_hash(b"the global model")
NEVER = 5
"""The stage before which one that never drops drops."""


def entropy_of(*name: object) -> Entropy:
    """Random bytes that follow from the name."""
    drawn = 0

    def draw(size: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(f"{name} {drawn}".encode()).digest(size)

    return draw


@lru_cache(maxsize=2048)
def identity(number: int) -> Ed25519PrivateKey:
    """The key of a participant; -1 is the coordinator."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"identity {number}".encode()).digest())


def signer(number: int) -> Sign:
    return identity(number).sign


@lru_cache(maxsize=2048)
def public(number: int) -> bytes:
    return identity(number).public_key().public_bytes_raw()


@lru_cache
def roster_of(n: int) -> ParticipantRoster:
    return ParticipantRoster(
        tuple(RosterMember(public(i), f"curve {i}", f"tcp://host{i}").signed(signer(i)) for i in range(n))
    )


def numbers(length: int = 4, **changes: Any) -> FixedPoint:
    return FixedPoint(
        **{"length": length, "clip_l2": 10.0, "clip_inf": 1.0, "weight_max": 100, "q_bits": 20, **changes}
    )


def drawn(words: int, *name: object) -> Quantised:
    """Words that follow from the name, all 32 bits used."""
    values = np.frombuffer(hashlib.shake_256(repr(name).encode()).digest(4 * words), np.uint32).copy()
    return Quantised(values, hashlib.sha256(repr(name).encode()).digest())


@dataclass
class Room:
    """Clients of one roster and task, all there from the beginning."""

    n: int
    fixed: FixedPoint = field(default_factory=numbers)
    n_min: int = 3
    seed: object = 0
    k: int | None = None
    members: int | None = None

    def __post_init__(self) -> None:
        self.roster = roster_of(self.members or self.n)
        self.policy = Policy(public(-1), "task", self.fixed, n_min=self.n_min)
        self.clients = {
            v: SecAggClient(v, self.roster, self.policy, signer(v), entropy_of(self.seed, v)) for v in range(self.n)
        }

    def proposal(self, round: int = 0, **changes: Any) -> Descriptor:
        words = {"task_id": "task", "round": round, "model": MODEL, "n_min": self.n_min, "k": self.k, **changes}
        return proposal(self.roster, self.fixed, words.pop("cohort", range(self.n)), **words)

    def inputs(self) -> dict[int, Quantised]:
        return {v: drawn(self.fixed.words, self.seed, v) for v in range(self.n)}


def upload(summing: Summing, client: int, masked: VectorMasked) -> None:
    intake = summing.take(client, masked.frame)
    for chunk in masked.chunks():
        intake.chunk(chunk)
    intake.done()


def plain_sum(inputs: Mapping[int, Quantised], clients: Sequence[int]) -> Words:
    total = np.zeros_like(next(iter(inputs.values())).values)
    for v in clients:
        total += inputs[v].values
    return total


@dataclass
class Course:
    """One session as it went: what each client was at each stage, and how it ended."""

    advertised: dict[int, Advertised] = field(default_factory=dict)
    shared: dict[int, Shared] = field(default_factory=dict)
    masked: dict[int, VectorMasked] = field(default_factory=dict)
    consented: dict[int, Consented] = field(default_factory=dict)
    revealed: dict[int, Revealed] = field(default_factory=dict)
    server: list[Any] = field(default_factory=list)
    client_aborts: dict[int, RoundAbandoned] = field(default_factory=dict)
    summed: Summed | None = None


def quick(patch: pytest.MonkeyPatch) -> None:
    """Make many small sessions cheap: a hash in the place of Ed25519, and X25519 that remembers its answers.

    Everything else is as it is; what signatures defend is tested with real ones.
    """

    def stand_in(number: int) -> Sign:
        return lambda data: hashlib.sha512(public(number) + data).digest()

    def verify(key: bytes, signature: bytes, data: bytes) -> bool:
        return signature == hashlib.sha512(key + data).digest()

    for module in (frames, frames, server, session):
        patch.setattr(module, "verify", verify)
    patch.setattr("secure_kit.signer", stand_in)
    patch.setattr("secure_kit.roster_of", lru_cache(roster_of.__wrapped__))
    agreed = lru_cache(1 << 16)(lambda secret, key: primitives.Agreement(secret).agree(key))

    class Remembering:
        def __init__(self, secret: bytes, public: bytes) -> None:
            self.secret = secret

        def keys(self, publics: Sequence[bytes], salt: bytes, infos: Sequence[tuple[bytes, ...]]) -> Any:
            return primitives.derived(salt, [agreed(self.secret, key) for key in publics], infos)

    patch.setattr(secrets, "Agreement", Remembering)
    patch.setattr(server, "Agreement", Remembering)
    remembered = lru_cache(1 << 16)(primitives.public_of)
    patch.setattr(secrets, "public_of", remembered)
    patch.setattr(server, "public_of", remembered)


Hook = Callable[[str, int, bytes], bytes]


def run(
    room: Room,
    descriptor: Descriptor | None = None,
    drops: Mapping[int, int] | None = None,
    inputs: Mapping[int, Quantised] | None = None,
    ahead: Mapping[int, Ahead] | None = None,
    summed_before: Summed | None = None,
    up: Hook = lambda stage, client, frame: frame,
    down: Hook = lambda stage, client, frame: frame,
    course: Course | None = None,
) -> Course:
    """Run a session; client v drops before stage drops[v].  `up` and `down` see and may change every frame.

    `course` is filled as it goes, for hooks that look, and for what the coordinator abandons.

    A client that abandons the session is one that drops.  Raises what the coordinator raises.
    """
    d = descriptor or room.proposal()
    inputs = inputs or room.inputs()
    ahead, known = ahead or {}, summed_before.ahead if summed_before else {}
    course = Course() if course is None else course

    def there(stage: int, clients: Any) -> list[int]:
        return [v for v in clients if (drops or {}).get(v, NEVER) > stage]

    def attempt(into: dict[int, Any], v: int, step: Callable[[], Any]) -> bool:
        try:
            into[v] = step()
        except RoundAbandoned as error:
            course.client_aborts[v] = error
        return v in into

    inviting = invite(room.roster, d, room.fixed, signer(-1), known)
    course.server.append(inviting)
    for v in there(0, d.cohort):
        frame = down("invite", v, inviting.frame)
        joined = attempt(course.advertised, v, lambda: room.clients[v].join(frame, MODEL, ahead.get(v)))  # noqa: B023
        if joined and course.advertised[v].frame:
            inviting.take(v, up("keys", v, course.advertised[v].frame))
    distributing = inviting.close()
    course.server.append(distributing)
    for v in there(1, course.advertised):
        frame = down("neighbourhood", v, distributing.frame_for(v))
        if attempt(course.shared, v, lambda: course.advertised[v].share(frame)):  # noqa: B023
            distributing.take(v, up("shares", v, course.shared[v].frame))
    summing = distributing.close()
    course.server.append(summing)
    for v in there(2, course.shared):
        frame = down("delivery", v, summing.frame_for(v))
        if attempt(course.masked, v, lambda: course.shared[v].mask(frame, inputs[v])):  # noqa: B023
            upload(summing, v, course.masked[v])
    consenting = summing.close()
    course.server.append(consenting)
    for v in there(3, course.masked):
        frame = down("survivors", v, consenting.frame)
        if attempt(course.consented, v, lambda: course.masked[v].consent(frame)):  # noqa: B023
            consenting.take(v, up("consent", v, course.consented[v].frame))
    server = consenting.close()
    course.server.append(server)
    for v in there(4, course.consented):
        frame = down("consents", v, server.frame_for(v))
        if attempt(course.revealed, v, lambda: course.consented[v].reveal(frame)):  # noqa: B023
            server.take(v, up("reveal", v, course.revealed[v].frame))
    course.summed = server.close()
    for v, step in course.revealed.items():
        attempt({}, v, lambda: step.finish(course.summed.frame, course.summed.total))  # noqa: B023
    return course
