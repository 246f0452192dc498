"""The descriptor of a session, the roster of its participants, and the policy for refusals by an honest client.

Each client checks the proposed descriptor against its policy, a local file.  Everything that matters is hashed into
sid0: clients that differ derive different keys, and their masks do not cancel.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated

import msgspec

from fedgossip.base.errors import ConfigError
from fedgossip.secure import graph
from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage, too_few
from fedgossip.secure.encoding import NO_NOISE, Noise, NoiseRule, RingEncoding
from fedgossip.secure.fixed_point import RING_BITS
from fedgossip.secure.primitives import LABEL, Sign, digest, transcript, verify

Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Text = Annotated[str, msgspec.Meta(max_length=200)]

N_MIN = 3
NONE = bytes(32)
"""The sid of "no session before this one"."""


# --- the roster -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RosterMember:
    """One participant's own signed entry: its Ed25519 identity, its key of the links, its address, and more."""

    identity: bytes
    curve: str
    endpoint: str
    attributes: tuple[tuple[str, str], ...] = ()
    signature: bytes = b""

    def content(self) -> bytes:
        """Return the content of the member's signature."""
        named = [part for pair in sorted(self.attributes) for part in pair]
        return transcript("member", self.identity, self.curve, self.endpoint, *named)

    def signed(self, sign: Sign) -> RosterMember:
        return RosterMember(self.identity, self.curve, self.endpoint, self.attributes, sign(self.content()))


@dataclass(frozen=True)
class ParticipantRoster:
    """All possible participants; a member's id is its place.  Each client pins it; construction checks signatures."""

    members: Sequence[RosterMember]
    _parts: dict[int, ParticipantRoster] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len({member.identity for member in self.members}) < len(self.members):
            raise RoundAbandoned(Reason.ROSTER, "an identity occurs twice")
        for place, member in enumerate(self.members):
            if not verify(member.identity, member.signature, member.content()):
                raise RoundAbandoned(Reason.ROSTER, f"member {place} has not signed its entry", peer=place)

    @classmethod
    def make_simulated(cls, members: Sequence[RosterMember], hash: bytes) -> ParticipantRoster:
        """Return the roster of a simulation: `members` may be made when they are read, so nothing is checked."""
        roster = object.__new__(cls)
        object.__setattr__(roster, "members", members)
        object.__setattr__(roster, "_parts", {})
        roster.__dict__["hash"] = hash
        return roster

    @cached_property
    def hash(self) -> bytes:
        return digest("roster", *(part for member in self.members for part in (member.content(), member.signature)))

    def first(self, count: int) -> ParticipantRoster:
        """Return the roster of the first members, without a new check; always the same object."""
        if count not in self._parts:
            members = self.members[:count]
            content = (part for member in members for part in (member.content(), member.signature))
            hash = digest("roster", *content) if isinstance(members, tuple) else digest("drawn", self.hash, count)
            self._parts[count] = ParticipantRoster.make_simulated(members, hash)
        return self._parts[count]

    def identity(self, member: int) -> bytes:
        return self.members[member].identity

    def company(self, ids: Sequence[int]) -> str:
        """Return the hash of the identities of some members, in hex: the same in every roster, in any order."""
        return digest("company", *sorted(map(self.identity, ids))).hex()


def ranges(ids: Sequence[int]) -> str:
    """Return ascending ids as text: "0-3,7"."""
    return _ranges(tuple(ids))


@lru_cache(maxsize=8)  # a simulation logs one cohort for each of its clients
def _ranges(ids: tuple[int, ...]) -> str:
    parts: list[list[int]] = []
    for one in ids:
        if parts and one == parts[-1][1] + 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def ids_in(text: str) -> list[int]:
    """Return the ids in a text of `ranges`."""
    found: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


# --- the number of a session ------------------------------------------------------------------------------------------

LIVES = 1 << 32
"""Maximum number of sessions between two starts of a coordinator; each start continues from the next multiple."""


def session_of(life: int, round: int) -> int:
    """Return the number of the session of a round, unique even after a crash with lost state."""
    return life * LIVES + round


def round_of(session: int) -> int:
    return session % LIVES


# --- the descriptor ---------------------------------------------------------------------------------------------------


class Descriptor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A session as the coordinator proposes it."""

    proto: Text = LABEL
    task_id: Text
    round: Number
    """The number of the session (`session_of`), strictly increasing, also over restarts of a coordinator."""
    roster_hash: Hash
    previous: Hash = NONE
    """sid of the session before, with masked messages that announced the keys for this one."""
    cohort: Annotated[tuple[Id, ...], msgspec.Meta(max_length=graph.COHORT_MAX)]
    graph: Text
    """"complete" or "harary"."""
    k: Id
    """Number of neighbours of each client; n - 1 in the complete graph."""
    t: Id
    """Number of shares that restore a secret, of the k + 1 of a share group: the neighbours and the client itself."""
    n_min: Id
    """Minimum number of clients in a sum."""
    ring_bits: Id = RING_BITS
    """Bits of a summed number: of one word, or of several."""
    q_bits: Id
    clip_l2: float
    clip_inf: float
    weight_max: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    schema_hash: Hash
    model_hash: Hash
    dp: Noise = NO_NOISE
    deadlines: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**62)], ...], msgspec.Meta(max_length=6)] = ()
    """Nanoseconds of each stage, for drivers; they are in the hash so that all participants have the same."""

    @property
    def width(self) -> int:
        """Number of words of a number."""
        return self.ring_bits // RING_BITS

    def neighbours(self, sid0: bytes) -> Mapping[int, tuple[int, ...]]:
        """Return the graph of clients that share masks; read-only, for a process computes it once."""
        return _neighbours(self.graph, self.cohort, self.k, sid0)


def sid0_of(descriptor: Descriptor) -> bytes:
    """Return the hash of the descriptor; fields have one order and one encoding each."""
    return digest("desc", msgspec.msgpack.encode(descriptor))


def model_hash(model: bytes | memoryview) -> bytes:
    """Return the hash of the global model's bytes."""
    return hashlib.sha256(model).digest()


def proposal(
    roster: ParticipantRoster,
    fixed: RingEncoding,
    cohort: Sequence[int],
    *,
    task_id: str,
    round: int,
    model: bytes,
    n_min: int = 5,
    k: int | None = None,
    t: int | None = None,
    previous: bytes = NONE,
    noise: Noise | None = None,
) -> Descriptor:
    """Return a descriptor that clients with the same roster and numbers accept; `model` is the model's hash.

    Up to 64 clients complete; above, a Harary graph with k neighbours, by default for 5 % corrupt and 5 % dropping; t:
    by default the policy's smallest.
    """
    n = len(cohort)
    kind = "complete" if n <= graph.COMPLETE_MAX or k == n - 1 else "harary"
    if kind == "complete":
        k = n - 1
    elif k is None:
        k = (graph.parameters(n, 0.05, 0.05, semi_malicious=True) or (n - 1 - (n - 1) % 2, 0))[0]
    return Descriptor(
        task_id=task_id,
        round=round,
        roster_hash=roster.hash,
        previous=previous,
        cohort=tuple(sorted(cohort)),
        graph=kind,
        k=k,
        t=graph.policy_threshold(k + 1) if t is None else t,
        n_min=n_min,
        ring_bits=fixed.ring_bits,
        q_bits=fixed.q_bits,
        clip_l2=fixed.clip_l2,
        clip_inf=fixed.clip_inf,
        weight_max=fixed.weight_max,
        schema_hash=fixed.schema,
        model_hash=model,
        dp=noise or NO_NOISE,
    )


# --- refusals ---------------------------------------------------------------------------------------------------------


def _refuse(reason: Reason, what: str) -> RoundAbandoned:
    return RoundAbandoned(reason, what, stage=Stage.KEYS)


def check_sound(d: Descriptor, roster: ParticipantRoster, fixed: RingEncoding) -> None:
    """Raise RoundAbandoned for a descriptor that no client should accept."""
    n, m = len(d.cohort), d.k + 1
    if d.proto != LABEL or d.ring_bits != fixed.ring_bits:
        here = f"this is {LABEL!r} in {fixed.ring_bits}"
        raise _refuse(Reason.POLICY, f"protocol {d.proto!r} in {d.ring_bits} bits; {here}")
    if d.roster_hash != roster.hash:
        raise _refuse(Reason.ROSTER, "another roster")
    if list(d.cohort) != sorted(set(d.cohort)) or not n or d.cohort[-1] >= len(roster.members):
        raise _refuse(Reason.ROSTER, "a cohort that is not an ascending list of members")
    if n > graph.COHORT_MAX:
        raise _refuse(Reason.POLICY, f"{n} clients; at most {graph.COHORT_MAX}")
    if n < max(d.n_min, N_MIN):
        raise too_few(Stage.KEYS, n, max(d.n_min, N_MIN), "clients in the cohort")
    if d.graph == "harary":
        fits = n > graph.COMPLETE_MAX and d.k % 2 == 0 and 2 <= d.k < n
    else:
        fits = d.graph == "complete" and d.k == n - 1
    if not fits:
        raise _refuse(Reason.POLICY, f"graph {d.graph!r} with {d.k} neighbours for {n} clients")
    if not graph.policy_threshold(m) <= d.t <= m:
        raise _refuse(Reason.POLICY, f"threshold {d.t} of {m}; at least {graph.policy_threshold(m)}")
    if not 0 <= d.dp.sigma < math.inf or not 0 <= d.dp.bit_sigma < math.inf or d.dp.on != (d.dp.honest > 0):
        raise _refuse(Reason.POLICY, "noise that is none")
    if d.dp.honest > d.n_min:
        raise _refuse(Reason.POLICY, f"the noise of {d.dp.honest} clients is counted on, and {d.n_min} are enough")
    fixed.check_sum(n, d.dp.sigma * math.sqrt(n))


@dataclass(frozen=True)
class Policy:
    """The demands of one client, from a local file, never from the network."""

    coordinator: bytes = field(repr=False)
    """The coordinator's Ed25519 key: frames without its signature have no effect."""
    task_id: str
    fixed: RingEncoding
    n_min: int = 5
    """Minimum number of clients in a sum; 3 or more."""
    cohort_max: int = graph.COHORT_MAX
    rule: NoiseRule | None = None
    """The noise that this client adds; a session with less, or more, is refused."""
    adaptive: bool = False
    """Whether the clip may follow the updates, up to the pinned bound on an element."""
    company: frozenset[int] | None = None
    """The ids that may be in a cohort with this one; None: all of the roster."""

    def __post_init__(self) -> None:
        if self.n_min < N_MIN or not self.n_min <= self.cohort_max <= graph.COHORT_MAX:
            raise ConfigError(
                f"n_min = {self.n_min}, cohort_max = {self.cohort_max}",
                f"A sum of fewer than {N_MIN} reveals each; at most {graph.COHORT_MAX} take part.",
            )

    def numbers(self, d: Descriptor) -> RingEncoding:
        """Return the encoding of numbers in this session: the pinned one, with the session's clip."""
        return self.fixed.clipped_at(d.clip_l2)

    def check(self, d: Descriptor, roster: ParticipantRoster, me: int, model: bytes) -> None:
        """Raise RoundAbandoned for a descriptor that this client does not accept; `model`: hash of the local model."""
        check_sound(d, roster, self.fixed)
        if me not in d.cohort:
            raise _refuse(Reason.ROSTER, "a cohort without this client")
        if self.company is not None and (others := sorted(set(d.cohort) - self.company)):
            raise _refuse(Reason.ROSTER, f"a cohort with {ranges(others)}, whose coordinator is another")
        mine = self.fixed
        clip_fits = 0 < d.clip_l2 <= mine.clip_inf if self.adaptive else d.clip_l2 == mine.clip_l2
        if not clip_fits or (d.clip_inf, d.q_bits, d.weight_max) != (mine.clip_inf, mine.q_bits, mine.weight_max):
            raise _refuse(Reason.POLICY, "other clipping, bits or weights than pinned here")
        if d.dp != (self.rule.compute_noise(self.numbers(d)) if self.rule else NO_NOISE):
            raise _refuse(Reason.POLICY, "other noise than pinned here")
        if d.task_id != self.task_id or d.n_min < self.n_min or len(d.cohort) > self.cohort_max:
            raise _refuse(
                Reason.POLICY, f"task {d.task_id!r} with {d.n_min} to {len(d.cohort)} clients; pinned here are "
                f"{self.task_id!r} and {self.n_min} to {self.cohort_max}",
            )  # fmt: skip
        if d.schema_hash != mine.schema:
            raise _refuse(Reason.SCHEMA, "another layout of the masked vector than pinned here")
        if d.model_hash != model:
            raise _refuse(Reason.MODEL_HASH, "another global model than the one here")


@lru_cache(maxsize=4)
def _neighbours(kind: str, cohort: tuple[int, ...], k: int, sid0: bytes) -> Mapping[int, tuple[int, ...]]:
    return graph.complete(cohort) if kind == "complete" else graph.harary(cohort, k, sid0)
