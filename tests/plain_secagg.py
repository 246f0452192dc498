"""A second client of FG-SecAgg/1, written from docs/reference/fg-secagg-1.md with nothing of fedgossip.

It needs `cryptography` alone: msgpack, the shares and the sums are plain Python, slow and short.  `PlainClient` takes
and returns the frames of `fedgossip.secure.SumClient`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

LABEL = "fedgossip/secagg/1"
P = 2**256 - 189
NONE = bytes(32)


class RefusedError(Exception):
    """The session is over for this client."""


def require(true: object, what: str) -> None:
    if not true:
        raise RefusedError(what)


# --- section 1: bytes -------------------------------------------------------------------------------------------------


def transcript(purpose: str, *parts: bytes | str | int) -> bytes:
    whole = [LABEL.encode(), purpose.encode()]
    whole += [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(struct.pack(">I", len(one)) + one for one in whole)


def digest(purpose: str, *parts: bytes | str | int) -> bytes:
    return hashlib.sha256(transcript(purpose, *parts)).digest()


def derive(salt: bytes, key: bytes, purpose: str, *parts: str | int) -> bytes:
    return HKDF(SHA256(), 32, salt, transcript(purpose, *parts)).derive(key)


def keystream(key: bytes, size: int) -> bytes:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def packed(value: Any) -> bytes:
    """Return msgpack: integers and lengths in their shortest form, floats with 64 bits, maps in order."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            if value < 128:
                return bytes([value])
            return next(head + value.to_bytes(size, "big") for head, size in
                        ((b"\xcc", 1), (b"\xcd", 2), (b"\xce", 4), (b"\xcf", 8)) if value < 256**size)  # fmt: skip
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case bytes():
            size = len(value)
            head = b"\xc4" + bytes([size]) if size < 256 else b"\xc5" + struct.pack(">H", size)
            return head + value
        case str():
            text = value.encode()
            return (bytes([0xA0 | len(text)]) if len(text) < 32 else b"\xd9" + bytes([len(text)])) + text
        case dict():
            head = bytes([0x80 | len(value)]) if len(value) < 16 else b"\xde" + struct.pack(">H", len(value))
            return head + b"".join(packed(name) + packed(one) for name, one in value.items())
    size = len(value)
    return (bytes([0x90 | size]) if size < 16 else b"\xdc" + struct.pack(">H", size)) + b"".join(map(packed, value))


def unpacked(data: bytes) -> Any:
    value, end = _read(data, 0)
    require(end == len(data), "bytes behind a message")
    return value


_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDC: 2, 0xDE: 2, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


def _read(data: bytes, at: int) -> tuple[Any, int]:
    head, at = data[at], at + 1
    if head in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[head], at
    if head == 0xCB:
        return struct.unpack(">d", data[at : at + 8])[0], at + 8
    if head < 0x80:
        return head, at
    if head in _SIZED:
        number, at = int.from_bytes(data[at : at + _SIZED[head]], "big"), at + _SIZED[head]
        if head in (0xCC, 0xCD, 0xCE, 0xCF):
            return number, at
    else:
        require(head < 0xC0, f"no msgpack of this protocol: {head:#x}")
        number = head & (0x1F if head >= 0xA0 else 0x0F)
    require(number <= len(data) - at, "a length beyond the message")
    if head in (0xC4, 0xC5, 0xC6):
        return data[at : at + number], at + number
    if head in (0xD9, 0xDA) or 0xA0 <= head < 0xC0:
        return data[at : at + number].decode(), at + number
    items = []
    pairs = head == 0xDE or head < 0x90
    for _ in range(number * (2 if pairs else 1)):
        one, at = _read(data, at)
        items.append(one)
    return (dict(zip(items[::2], items[1::2], strict=True)) if pairs else items), at


# --- section 2: shares ------------------------------------------------------------------------------------------------


def share(secret: bytes, falling: Sequence[bytes], place: int) -> bytes:
    """Return the value at `place` of the polynomial with these coefficients, highest first, and the secret at 0."""
    total = 0
    for one in (*falling, secret):
        total = (total * place + int.from_bytes(one, "little")) % P
    return total.to_bytes(32, "little")


# --- section 3: the graph ---------------------------------------------------------------------------------------------


def neighbours_of(me: int, d: dict[str, Any], sid0: bytes) -> list[int]:
    cohort = list(d["cohort"])
    if d["graph"] == "complete":
        return [v for v in cohort if v != me]
    stream, at = keystream(derive(sid0, sid0, "graph"), 64 * len(cohort)), 0
    for last in range(len(cohort) - 1, 0, -1):
        bound = last + 1
        while True:
            value, at = int.from_bytes(stream[at : at + 8], "little"), at + 8
            if value < 2**64 - 2**64 % bound:
                break
        other = value % bound
        cohort[last], cohort[other] = cohort[other], cohort[last]
    place, n, half = cohort.index(me), len(cohort), d["k"] // 2
    return sorted({cohort[(place + step) % n] for step in range(-half, half + 1) if step})


# --- section 4: the client --------------------------------------------------------------------------------------------


class PlainClient:
    """One participant.  `words`: its numbers, modulo 2^32; `pinned`: the fields of the descriptor that must be so."""

    def __init__(
        self, key: bytes, members: Sequence[bytes], coordinator: bytes, pinned: dict[str, Any], n_min: int,
        random: Callable[[int], bytes],
    ) -> None:  # fmt: skip
        self._key = Ed25519PrivateKey.from_private_bytes(key)
        identity = self._key.public_key().public_bytes_raw()
        self.identities = [card[:32] for card in members]
        self.me, self._coordinator = self.identities.index(identity), coordinator[:32]
        parts = []
        for card in members:
            content = transcript("member", card[:32], "", "")
            require(_signed(card[:32], card[32:], content), "a card that its owner did not sign")
            parts += [content, card[32:]]
        self.pinned = {**pinned, "proto": LABEL, "roster_hash": digest("roster", *parts)}
        self.n_min, self._random = n_min, random
        self.round, self.due, self.words = -1, "Invite", list[int]()

    def give(self, words: Sequence[int]) -> None:
        self.words = [word % 2**32 for word in words]

    def answer(self, frame: bytes) -> bytes | None:
        body = frame[64:]
        content = transcript("frame", -1, hashlib.sha256(body).digest())
        require(_signed(self._coordinator, frame[:64], content), "a frame that the coordinator did not sign")
        message = unpacked(body)
        kind = message["type"]
        require(kind == self.due, f"{kind} where {self.due} is due")
        require(kind == "Invite" or message["sid"] == self.sid, "another session")
        require(message.get("to", self.me) == self.me, "a frame for another client")
        return getattr(self, f"_{kind.lower()}")(message)  # type: ignore[no-any-return]

    def _frame(self, kind: str, **fields: Any) -> bytes:
        body = packed({"type": kind, **fields})
        return self._key.sign(transcript("frame", self.me, hashlib.sha256(body).digest())) + body

    # S0
    def _invite(self, message: dict[str, Any]) -> bytes:
        d = message["descriptor"]
        n, m, cohort = len(d["cohort"]), d["k"] + 1, d["cohort"]
        require(all(d[name] == value for name, value in self.pinned.items()), "another session than pinned here")
        require(cohort == sorted(set(cohort)) and self.me in cohort, "a cohort that is no ascending list with me")
        require(cohort[-1] < len(self.identities) and n <= 1000, "a cohort of strangers")
        require(n >= d["n_min"] >= max(self.n_min, 3), "too few clients")
        complete = d["graph"] == "complete" and d["k"] == n - 1
        harary = d["graph"] == "harary" and n > 64 and d["k"] % 2 == 0 and 2 <= d["k"] < n
        require(complete or harary, "another graph")
        require(max(2 * m // 3 + 1, 3) <= d["t"] <= m, "another threshold")
        require(n * (2 ** (d["q_bits"] - 1) - 1) < 2**31, "a sum that could overflow")
        require(d["round"] > self.round, "an earlier round")
        self.round, self.d = d["round"], d
        self.sid = sid0 = digest("desc", packed(d))
        self.neighbours = neighbours_of(self.me, d, sid0)
        self.c, self.s, self.b = (self._random(32) for _ in range(3))
        require(max(int.from_bytes(one, "little") for one in (self.s, self.b)) < P, "draw again")
        keys = {"type": "Keys", "client": self.me, "origin": sid0, "c_pk": _public(self.c), "s_pk": _public(self.s),
                "commitment": digest("b", sid0, self.me, self.b)}  # fmt: skip
        self.keys = {**keys, "signature": self._key.sign(self._keys_content(keys))}
        self.due = "Neighbourhood"
        return self._frame("Advertise", sid=sid0, keys=self.keys)

    def _keys_content(self, keys: dict[str, Any]) -> bytes:
        d = self.d
        return transcript("keys", keys["origin"], d["task_id"], d["round"], d["roster_hash"], keys["client"],
                          keys["c_pk"], keys["s_pk"], keys["commitment"])  # fmt: skip

    # S1
    def _neighbourhood(self, message: dict[str, Any]) -> bytes:
        found = {keys["client"]: keys for keys in message["keys"]}
        publics = {keys[name] for keys in found.values() for name in ("c_pk", "s_pk")}
        require(len(publics) == 2 * len(message["keys"]), "a key that is there twice")
        require(found.keys() <= {*self.neighbours, self.me} and found.get(self.me) == self.keys, "keys of others")
        for v, keys in found.items():
            require(keys["origin"] in {self.sid, self.d["previous"]} - {NONE}, "keys of another session")
            require(_signed(self.identities[v], keys["signature"], self._keys_content(keys)), f"{v} did not sign")
        require(len(found) >= self.d["t"], "too few neighbours")
        parts = [part for v in sorted(found) for part in (v, *(found[v][n] for n in ("c_pk", "s_pk", "commitment")))]
        if self.d["graph"] == "complete":
            require(message["h1"] == digest("U1", *parts), "another hash of all keys")
        self.sid = sid = digest("sid", self.sid, message["h1"])
        t, others = self.d["t"], sorted(found.keys() - {self.me})
        self.c_agreed = {v: _agreed(self.c, found[v]["c_pk"]) for v in others}
        self.s_agreed = {v: _agreed(self.s, found[v]["s_pk"]) for v in others}
        drawn = self._random(2 * (t - 1) * 32)
        falling = [drawn[at : at + 32] for at in range(0, len(drawn), 32)]
        pair = {v: share(self.s, falling[: t - 1], v + 1) + share(self.b, falling[t - 1 :], v + 1) for v in found}
        self.pairs = {self.me: pair[self.me]}
        sealed = [[v, ChaCha20Poly1305(derive(sid, self.c_agreed[v], "enc", self.me, v))
                   .encrypt(bytes(12), pair[v], transcript("share", sid, self.me, v))] for v in others]  # fmt: skip
        self.due = "Delivery"
        return self._frame("Shares", sid=sid, sealed=sealed)

    # S2
    def _delivery(self, message: dict[str, Any]) -> bytes:
        sid, me, size = self.sid, self.me, len(self.words)
        for v, text in message["sealed"]:
            require(v in self.c_agreed and v not in self.pairs, "shares of a stranger, or twice")
            key, bound = derive(sid, self.c_agreed[v], "enc", v, me), transcript("share", sid, v, me)
            try:
                self.pairs[v] = ChaCha20Poly1305(key).decrypt(bytes(12), text, bound)
            except InvalidTag:
                raise RefusedError(f"shares that {v} did not seal") from None
        require(len(self.pairs) >= self.d["t"], "too few have shared")
        own = _words(derive(sid, self.b, "self", me, size), size)
        total = [word + one for word, one in zip(self.words, own, strict=True)]
        for v in self.pairs.keys() - {me}:
            sign = 1 if me < v else -1
            mask = _words(derive(sid, self.s_agreed[v], "mask", min(me, v), max(me, v), size), size)
            total = [one + sign * word for one, word in zip(total, mask, strict=True)]
        self.masked = struct.pack(f"<{size}I", *(one % 2**32 for one in total))
        del self.c, self.s, self.b, self.c_agreed, self.s_agreed
        self.due = "Survivors"
        hashed = hashlib.sha256(self.masked).digest()
        return self._frame("Masked", sid=sid, length=size, digest=hashed, ahead=None) + self.masked

    # S3
    def _survivors(self, message: dict[str, Any]) -> bytes:
        ids, group = message["ids"], {*self.neighbours, self.me}
        require(ids == sorted(set(ids)) and set(ids) <= set(self.d["cohort"]) and self.me in ids, "other survivors")
        require(set(ids) & group <= self.pairs.keys(), "survivors that never shared")
        require(len(ids) >= self.d["n_min"] and len(set(ids) & group) >= self.d["t"], "too few survivors")
        self.alive, self.u3 = set(ids), digest("ids", *ids)
        self.due = "Consents"
        return self._frame("Consent", sid=self.sid, signature=self._key.sign(transcript("U3", self.sid, self.u3)))

    # S4
    def _consents(self, message: dict[str, Any]) -> bytes:
        signers = [v for v, _ in message["signatures"]]
        able = self.alive & set(self.neighbours)
        require(len(set(signers)) == len(signers) and set(signers) <= able, "signatures of others, or twice")
        for v, signature in message["signatures"]:
            content = transcript("U3", self.sid, self.u3)
            require(_signed(self.identities[v], signature, content), f"{v} did not sign these survivors")
        require(len(signers) + 1 >= self.d["t"], "too few have signed")
        shares = [[v, v in self.alive, pair[32:] if v in self.alive else pair[:32]]
                  for v, pair in sorted(self.pairs.items())]  # fmt: skip
        del self.pairs
        self.due = "Result"
        return self._frame("Reveal", sid=self.sid, shares=shares)

    # S5
    def _result(self, message: dict[str, Any]) -> None:
        require(message["survivors"] == self.u3, "a sum of other clients")
        self.digest, self.due = message["digest"], "Invite"


def _public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _agreed(secret: bytes, public: bytes) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise RefusedError("a key of small order") from None


def _words(key: bytes, size: int) -> tuple[int, ...]:
    return struct.unpack(f"<{size}I", keystream(key, 4 * size))


def _signed(identity: bytes, signature: bytes, content: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


# --- section 5: floats ------------------------------------------------------------------------------------------------


def pinned_floats(task: str, length: int, bound: float, bits: int) -> dict[str, Any]:
    """Return the fields of the descriptor for `Encoding(length, bound, bits)`."""
    schema = digest("schema", "", length, "weight", "nothing", "count")
    return {"task_id": task, "ring_bits": 32, "q_bits": bits, "clip_l2": 2 * bound * math.sqrt(length),
            "clip_inf": bound, "weight_max": 1, "schema_hash": schema, "model_hash": hashlib.sha256(b"").digest(),
            "dp": {"sigma": 0.0, "bit_sigma": 0.0, "honest": 0}}  # fmt: skip


def words_of_floats(values: Sequence[float], bound: float, bits: int, chance: Callable[[], float]) -> list[int]:
    """Return the words of floats: each rounded up with the chance of its fraction; the weight, a zero, a count."""
    limit = 2 ** (bits - 1) - 1
    return [*(math.floor(value * limit / bound + chance()) for value in values), limit, 0, 1]
