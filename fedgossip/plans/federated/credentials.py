"""Credentials of a participant, if it needs more than the key of its links."""

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
"""Kind and facts of a line of a participant's own log."""


@dataclass(frozen=True)
class Credentials:
    """Items that only this participant has, and the common roster."""

    sign: Sign = field(repr=False)
    entropy: Entropy = field(repr=False)
    roster: ParticipantRoster
    """Entries of all participants, the coordinator last."""
    policy: Policy | None = None
    """Demands of this client from its policy file; None: those of the experiment."""
    log: Sequence[Logged] = ()
    """Lines written to the log before this start."""
    spent: Sequence[Mapping[str, object]] = ()
    """Privacy that this key has spent on the same data, in addition to the log."""
    total: TotalBudget | None = None
    """The site's limit over all runs for each record; None: no limit."""
    company: str = ""
    """Hash of the clients of earlier exact sums of the same records; "": no such sum."""
    noise: Callable[[int], Entropy] = field(default=lambda _round: os.urandom, repr=False)
    """Source of random bytes for a round's noise."""


Own = Credentials | Pairs
"""Items with which a participant makes its masks, in a secure sum or in private gossip."""


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
    """Return the credentials of a participant of a real run.  Raises ConfigError for unsigned entries."""
    return Credentials(identity.sign_bytes, entropy, roster_of(endpoints), policy, log, spent, total, company)


class DrawnMembers(Sequence[RosterMember]):
    """Members of a simulation with keys derived from the seed, made when read, for invited ones only; without
    signatures, as nothing is secret.
    """

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.size = seed, size
        self._made: dict[int, tuple[RosterMember, Sign]] = {}

    def keys(self, node: int) -> tuple[bytes, Sign]:
        """Return a participant's identity and its signing function."""
        member, sign = self._make(node)
        return member.identity, sign

    def _make(self, node: int) -> tuple[RosterMember, Sign]:
        if node not in self._made:
            identity, sign = signer(stream(self.seed, "identity", node).bytes(32))
            self._made[node] = RosterMember(identity, "", f"sim:{node}"), sign
        return self._made[node]

    def roster(self) -> ParticipantRoster:
        """Return the roster of all members."""
        return ParticipantRoster.make_simulated(self, digest("simulated", self.seed, self.size))

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, place: int) -> RosterMember: ...
    @overload
    def __getitem__(self, place: slice) -> DrawnMembers: ...
    def __getitem__(self, place: int | slice) -> RosterMember | DrawnMembers:
        if isinstance(place, slice):
            first = DrawnMembers(self.seed, len(range(*place.indices(self.size))))
            first._made = self._made  # members keep their indices: rosters are only truncated at the end
            return first
        if not 0 <= place < self.size:
            raise IndexError(place)
        return self._make(place)[0]
