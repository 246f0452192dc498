"""Known answers of FG-SecAgg/1: one session of five clients, of which one drops before its vector, as JSON.

    python tests/secagg_vectors.py --write

Random bytes are SHAKE-256 of a name, so that the file follows from this one; another implementation takes them from
the file.  Everything binary is in hex.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedgossip.secure import Encoding, secrets, server, sign_card
from fedgossip.secure.client import SecAggClient
from fedgossip.secure.fixed_point import Quantised, little
from fedgossip.secure.primitives import derive, keystream, signer
from fedgossip.secure.session import ParticipantRoster, Policy, RosterMember, model_hash, proposal

FILE = Path(__file__).parent / "secure" / "fg-secagg-1.json"
N, GONE, LENGTH = 5, 3, 6


def random_of(name: str) -> Callable[[int], bytes]:
    """Return a source of the consecutive bytes of SHAKE-256(name)."""
    at = 0

    def draw(size: int) -> bytes:
        nonlocal at
        at += size
        return hashlib.shake_256(name.encode()).digest(at)[at - size :]

    return draw


class Noted:
    """A source of random bytes that keeps what it gave."""

    def __init__(self, name: str) -> None:
        self._draw, self.given = random_of(name), list[bytes]()

    def __call__(self, size: int) -> bytes:
        self.given.append(self._draw(size))
        return self.given[-1]


def session() -> dict[str, Any]:
    """Return the facts and frames of the session."""
    keys, boss = [random_of(f"key {v}")(32) for v in range(N)], random_of("coordinator")(32)
    cards, encoding = [sign_card(key) for key in keys], Encoding(LENGTH, 10.0).ring
    roster = ParticipantRoster(tuple(RosterMember(card[:32], "", "", (), card[32:]) for card in cards))
    policy = Policy(signer(boss)[0], "known answers", encoding, n_min=3)
    noted = [Noted(f"client {v}") for v in range(N)]
    parties = [SecAggClient(v, roster, policy, signer(keys[v])[1], noted[v]) for v in range(N)]
    model = model_hash(b"")
    d = proposal(roster, encoding, range(N), task_id="known answers", round=1, model=model, n_min=3)
    inputs = [np.frombuffer(random_of(f"input {v}")(4 * encoding.words), "<u4").astype(np.uint32) for v in range(N)]
    received: list[dict[str, str]] = [{} for _ in range(N)]
    sent: list[dict[str, str]] = [{} for _ in range(N)]

    def note(v: int, stage: str, frame: bytes, reply: bytes | None) -> None:
        received[v][stage] = frame.hex()
        if reply is not None:
            sent[v][stage] = reply.hex()

    inviting = server.invite(roster, d, encoding, signer(boss)[1])
    sid0, steps = inviting.session.sid, [party.join(inviting.frame, model) for party in parties]
    for v, step in enumerate(steps):
        note(v, "invite", inviting.frame, step.frame)
        inviting.take(v, step.frame)
    distributing, shared = inviting.close(), []
    secrets = [{"c_sk": c, "s_sk": s, "b": b} for c, s, b in (one.given[:3] for one in noted)]
    for v, step in enumerate(steps):
        shared.append(step.share(distributing.frame_for(v)))
        note(v, "neighbourhood", distributing.frame_for(v), shared[v].frame)
        distributing.take(v, shared[v].frame)
    summing, masked = distributing.close(), {}
    for v in range(N):
        received[v]["delivery"] = summing.frame_for(v).hex()
        if v != GONE:
            masked[v] = shared[v].mask(summing.frame_for(v), Quantised(inputs[v], bytes(16)))
            sent[v]["delivery"] = masked[v].frame.hex()
            summing.take_whole(v, masked[v].frame, masked[v].words)
    consenting, consented = summing.close(), {}
    for v, one in masked.items():
        consented[v] = one.consent(consenting.frame)
        note(v, "survivors", consenting.frame, consented[v].frame)
        consenting.take(v, consented[v].frame)
    unmasking = consenting.close()
    for v, agreed in consented.items():
        revealed = agreed.reveal(unmasking.frame_for(v))
        note(v, "consents", unmasking.frame_for(v), revealed.frame)
        unmasking.take(v, revealed.frame)
    summed = unmasking.close()
    for v in masked:
        received[v]["result"] = summed.frame.hex()
    sid = summed.sid
    del received[GONE]["delivery"]
    first = derive(sid, secrets[0]["b"], "self", 0, encoding.words)
    return {
        "coordinator": {"key": boss.hex(), "card": sign_card(boss).hex()},
        "roster_hash": roster.hash.hex(),
        "descriptor": {name: value.hex() if isinstance(value, bytes) else value
                       for name, value in msgspec.to_builtins(d, builtin_types=(bytes,)).items()},
        "descriptor_msgpack": msgspec.msgpack.encode(d).hex(),
        "sid0": sid0.hex(), "sid": sid.hex(),
        "clients": [{"key": keys[v].hex(), "card": cards[v].hex(), **{k: s.hex() for k, s in secrets[v].items()},
                     "coefficients": noted[v].given[3].hex(), "input": inputs[v].tolist(),
                     **({"masked": little(masked[v].words).hex()} if v in masked else {}),
                     "received": received[v], "sent": sent[v]} for v in range(N)],
        "self_mask_of_client_0": {"key": first.hex(), "words": _stream(first)},
        "shares_of_client_0": {"of": ["s_sk", "b"], "at": [v + 1 for v in range(N)], "values": _shares(noted[0], d.t)},
        "survivors": list(summed.survivors),
        "sum": summed.total.tolist(),
    }  # fmt: skip


def _stream(key: bytes) -> list[int]:
    return np.frombuffer(keystream(key).update(bytes(16)), "<u4").tolist()  # type: ignore[no-any-return]


def _shares(noted: Noted, t: int) -> list[list[str]]:
    """Return the shares of a client's mask key and of its b, at each place."""
    drawn = iter([noted.given[3]])
    whole = secrets.shamir.split_two(noted.given[1], noted.given[2], range(1, N + 1), t, lambda _: next(drawn))
    return [[pair[:32].hex(), pair[32:].hex()] for pair in whole]


if __name__ == "__main__":
    text = json.dumps(session(), indent=1)
    if "--write" in sys.argv:
        FILE.write_text(text + "\n")
    else:
        print(text)
