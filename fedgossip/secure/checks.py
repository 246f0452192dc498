"""The checks of an honest client on data forwarded by the coordinator: keys, survivors, signatures."""

from __future__ import annotations

from collections.abc import Sequence, Set

from fedgossip.secure import frames
from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage, too_few
from fedgossip.secure.primitives import once, once_for, small_order, verify
from fedgossip.secure.session import NONE, Descriptor, ParticipantRoster


def keys_are_signed(keys: frames.Keys, descriptor: Descriptor, round: int, roster: ParticipantRoster) -> bool:
    """Return whether these keys carry their client's signature for this round."""
    identity, d = roster.identity(keys.client), descriptor
    return once(
        (keys, identity, d.task_id, round, d.roster_hash),
        lambda: verify(identity, keys.signature, keys.content(d, round)),
    )


def check_keys(
    message: frames.Neighbourhood,
    descriptor: Descriptor,
    sid0: bytes,
    roster: ParticipantRoster,
    own: frames.Keys,
    neighbours: Sequence[int],
) -> dict[int, frames.Keys]:
    """Return the keys of the share group by client, all signed and distinct, including one's own.

    Raises RoundAbandoned for any others.
    """

    def wrong(reason: Reason, what: str, peer: int | None = None) -> RoundAbandoned:
        return RoundAbandoned(reason, what, peer=peer, stage=Stage.SHARES)

    found = {keys.client: keys for keys in message.keys}
    distinct = once_for(message.keys, "publics", lambda: len({p for k in message.keys for p in (k.c_pk, k.s_pk)}))
    if len(found) < len(message.keys) or distinct < 2 * len(message.keys):
        raise wrong(Reason.DUPKEY, "a client, or a key, is there twice")
    strangers = found.keys() - {*neighbours, own.client}
    if strangers:
        raise wrong(Reason.ROSTER, f"keys of {min(strangers)}, who is no neighbour", min(strangers))
    if own.client not in found:
        raise wrong(Reason.ROSTER, "one's own keys are not among them")
    if found[own.client] != own:
        raise wrong(Reason.REPLAY, "other keys than one's own under one's own name", own.client)

    def check_each() -> bool:
        for v, keys in found.items():
            if keys.origin != sid0 and not keys.origin == descriptor.previous != NONE:
                raise wrong(Reason.REPLAY, f"keys of {v} from another session", v)
            if not keys_are_signed(keys, descriptor, descriptor.round, roster):
                raise wrong(Reason.SIG, f"keys that {v} did not sign", v)
            if small_order(keys.c_pk) or small_order(keys.s_pk):
                raise wrong(Reason.DUPKEY, f"a key of client {v} is of small order", v)
        return True

    once_for(message.keys, (sid0, roster.hash), check_each)
    if descriptor.graph == "complete" and message.h1 != once_for(
        message.keys, "U1", lambda: frames.hash_of_keys(found)
    ):
        raise wrong(Reason.SIG, "the hash of all keys is not of these")
    return found


def check_survivors(ids: tuple[int, ...], descriptor: Descriptor, me: int, group: Set[int], shared: Set[int]) -> None:
    """Raise RoundAbandoned for impossible or too few survivors; `shared` is U2 within the group."""

    def wrong(reason: Reason, what: str) -> RoundAbandoned:
        return RoundAbandoned(reason, what, stage=Stage.CONSIST)

    alive = set(ids)
    if list(ids) != sorted(alive):
        raise wrong(Reason.INCONSISTENT_U3, "survivors that are not in ascending order")
    if not alive <= set(descriptor.cohort):
        raise wrong(Reason.ROSTER, "survivors from outside the cohort")
    if me not in alive:
        raise wrong(Reason.INCONSISTENT_U3, "survivors without this client, who is there")
    if not alive & group <= shared:
        raise wrong(Reason.INCONSISTENT_U3, "survivors that never shared their secrets")
    if len(ids) < descriptor.n_min:
        raise too_few(Stage.CONSIST, len(ids), descriptor.n_min, "clients survive")


def check_consents(
    message: frames.Consents,
    sid: bytes,
    me: int,
    roster: ParticipantRoster,
    group: Set[int],
    survivors: tuple[int, ...],
) -> int:
    """Return the number of other group members that signed these survivors, each once.

    Raises RoundAbandoned for an invalid signature.
    """
    content = frames.consent_content(sid, frames.hash_of_ids(survivors))
    signers = [v for v, _ in message.signatures]
    if len(set(signers)) < len(signers):
        raise RoundAbandoned(Reason.TWICE, "a signature is there twice", stage=Stage.UNMASK)
    able = (group & set(survivors)) - {me}
    for v, signature in message.signatures:
        if v not in able:
            raise RoundAbandoned(
                Reason.ROSTER, f"a signature of {v}, who cannot have signed", peer=v, stage=Stage.UNMASK
            )
        if not verify(roster.identity(v), signature, content):
            raise RoundAbandoned(Reason.SIG, f"{v} did not sign these survivors", peer=v, stage=Stage.UNMASK)
    return len(signers)
