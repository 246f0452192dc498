"""The credentials of a participant, where they are more than the key of its links."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from fedgossip.base.seeds import stream
from fedgossip.net.endpoints import Endpoints, roster_of
from fedgossip.net.identity import Identity
from fedgossip.privacy.budget import TotalBudget
from fedgossip.secure.pairs import Pairs
from fedgossip.secure.primitives import Entropy, Sign, digest, signer
from fedgossip.secure.session import ParticipantRoster, Policy, RosterMember

Logged = tuple[str, Mapping[str, object]]
"""The kind and the facts of a line of a participant's own log."""


@dataclass(frozen=True)
class Credentials:
    """The things that only this participant has, and the roster that all have."""

    sign: Sign = field(repr=False)
    entropy: Entropy = field(repr=False)
    roster: ParticipantRoster
    """The entries of all participants, the coordinator last."""
    policy: Policy | None = None
    """The demands of this client, from a file of its own; None: those of the experiment."""
    log: Sequence[Logged] = ()
    """The lines that earlier lives have written into the log."""
    spent: Sequence[Mapping[str, object]] = ()
    """The privacy that this key has spent on the same data, beside what is in the log."""
    total: TotalBudget | None = None
    """The site's limit over all runs for each record; None: no limit."""
    company: str = ""
    """Hash of the clients of earlier exact sums of the same records; "": no such sum."""
    noise: Callable[[int], Entropy] = field(default=lambda _round: os.urandom, repr=False)
    """The random bytes of a round's noise."""


Own = Credentials | Pairs
"""The things of its own that a participant needs to make its masks, in a secure sum or in private gossip."""


def real(
    identity: Identity,
    endpoints: Endpoints,
    policy: Policy | None = None,
    log: Sequence[Logged] = (),
    spent: Sequence[Mapping[str, object]] = (),
    total: TotalBudget | None = None,
    company: str = "",
    entropy: Entropy = os.urandom,
) -> Credentials:
    """Return the credentials of a participant of a real run.  Raises ConfigError for entries that are not signed."""
    return Credentials(identity.sign_bytes, entropy, roster_of(endpoints), policy, log, spent, total, company)


class DrawnMembers(Sequence[RosterMember]):
    """A simulation's members, keys drawn from the seed when read, of invited ones alone, without signatures: there are
    no secrets.
    """

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.size = seed, size
        self._keys: dict[int, tuple[bytes, Sign]] = {}

    def keys(self, node: int) -> tuple[bytes, Sign]:
        """Return a participant's identity and its signing function."""
        if node not in self._keys:
            self._keys[node] = signer(stream(self.seed, "identity", node).bytes(32))
        return self._keys[node]

    def roster(self) -> ParticipantRoster:
        """Return the roster of all members."""
        return ParticipantRoster.drawn(self, digest("simulated", self.seed, self.size))

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, place: int) -> RosterMember: ...
    @overload
    def __getitem__(self, place: slice) -> DrawnMembers: ...
    def __getitem__(self, place: int | slice) -> RosterMember | DrawnMembers:
        if isinstance(place, slice):
            first = DrawnMembers(self.seed, len(range(*place.indices(self.size))))
            first._keys = self._keys  # members keep their places: rosters are cut at the end alone
            return first
        if not 0 <= place < self.size:
            raise IndexError(place)
        return RosterMember(self.keys(place)[0], "", f"sim:{place}")
