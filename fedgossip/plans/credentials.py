"""Who a participant is to the others, where that is more than the key of its links."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedgossip.net.endpoints import Endpoints, roster_of
from fedgossip.net.identity import Identity
from fedgossip.secure.pairs import Pairs
from fedgossip.secure.primitives import Entropy, Sign
from fedgossip.secure.session import ParticipantRoster, Policy

Logged = tuple[str, Mapping[str, object]]
"""The kind and the facts of a line of a participant's own log."""


@dataclass(frozen=True)
class Credentials:
    """What only this participant has, and the roster that all have."""

    sign: Sign = field(repr=False)
    entropy: Entropy = field(repr=False)
    roster: ParticipantRoster
    """Of all participants, the coordinator last."""
    policy: Policy | None = None
    """What this client insists on, from a file of its own; without, what the experiment says."""
    log: Sequence[Logged] = ()
    """What lives before this one have put down."""
    spent: Sequence[Mapping[str, object]] = ()
    """What this key has spent of privacy on the same data, beside what is in the log."""
    noise: Callable[[int], Entropy] = field(default=lambda _round: os.urandom, repr=False)
    """Of the noise of a round."""


Own = Credentials | Pairs
"""What a participant needs of its own to make its masks: in a secure sum, or in private gossip."""


def real(
    identity: Identity,
    endpoints: Endpoints,
    policy: Policy | None = None,
    log: Sequence[Logged] = (),
    spent: Sequence[Mapping[str, object]] = (),
) -> Credentials:
    """Return those of a participant of a real run.  Raises ConfigError for entries that are not signed."""
    return Credentials(identity.sign_bytes, os.urandom, roster_of(endpoints), policy, log, spent)
