"""Removes the masks: secrets are put together again and checked against their commitments, their streams subtracted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fedgossip.secure import shamir
from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage
from fedgossip.secure.collecting import Session
from fedgossip.secure.frames import commitment
from fedgossip.secure.masks import mask_infos, self_key
from fedgossip.secure.primitives import Agreement, public_of
from fedgossip.secure.ring import Words, add_streams, subtract_streams

Shares = Mapping[int, bytes]
"""Shares by the holder's place in the roster plus one."""


def unmask(
    total: Words, session: Session, survivors: tuple[int, ...], revealed: Mapping[int, Shares]
) -> tuple[tuple[int, int], ...]:
    """Remove all masks from `total`, in place; return (owner, holder) of each share that does not fit.

    `revealed`: for each client that has shared, shares of its b if it survives, of its mask key if not.  Raises
    RoundAbandoned (SHARE_INVALID) naming a client whose secret cannot be found; `total` is then worthless.
    """
    culprits: list[tuple[int, int]] = []
    alive = set(survivors)
    secrets = {v: _recovered(session, v, shares, v in alive, culprits) for v, shares in revealed.items()}
    lost = {v: secret for v, secret in secrets.items() if v not in alive}
    width = session.descriptor.width
    subtract_streams(total, (self_key(session.sid, secrets[v], v, session.words) for v in survivors), width)
    # survivor u added it for v if u < v, and subtracted it if u > v
    below = _pairs(session, lost, lambda v: [u for u in session.neighbours[v] if u in alive and u < v])
    above = _pairs(session, lost, lambda v: [u for u in session.neighbours[v] if u in alive and u > v])
    subtract_streams(total, below, width)
    add_streams(total, above, width)
    return tuple(culprits)


def _recovered(session: Session, v: int, shares: Shares, alive: bool, culprits: list[tuple[int, int]]) -> bytes:
    """Return b of a survivor, or the mask key of a lost client; holders that have lied before are asked last."""
    keys = session.keys[v]

    def right(secret: bytes) -> bool:
        return commitment(keys.origin, v, secret) == keys.commitment if alive else public_of(secret) == keys.s_pk

    liars = {holder for _, holder in culprits}
    asked = sorted(shares, key=lambda place: (place - 1 in liars, place))
    found = shamir.recover({place: shares[place] for place in asked}, session.descriptor.t, right)
    if found is None:
        what = f"the shares of client {v} do not give the secret that it committed itself to"
        raise RoundAbandoned(Reason.SHARE_INVALID, what, peer=v, stage=Stage.UNMASK)
    secret, wrong = found
    culprits.extend((v, place - 1) for place in wrong)
    return secret


def _pairs(session: Session, lost: Mapping[int, bytes], partners: Callable[[int], list[int]]) -> Iterator[bytes]:
    """Yield the key of each mask between a lost client and a survivor."""
    for v, secret in lost.items():
        others = tuple(partners(v))
        publics, infos = [session.keys[u].s_pk for u in others], mask_infos(v, others, session.words)
        for (key,) in Agreement(secret, session.keys[v].s_pk).keys(publics, session.sid, infos):
            yield key
