"""Reasons to abandon a secure sum: a driver decides by `reason`, a person reads the line."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from fedgossip.base.errors import FedgossipError


class Stage(IntEnum):
    """The stages of a session; a client that leaves before stage s has sent nothing of it."""

    KEYS = 0
    SHARES = 1
    MASKED = 2
    CONSIST = 3
    UNMASK = 4
    RESULT = 5


SUMMED = "summed"
"""The outcome of a session with a sum; every other session ends for a `Reason`."""


class Reason(StrEnum):
    POLICY = "POLICY"
    """This client's own policy does not allow the session."""
    ROSTER = "ROSTER"
    """A participant is not in the pinned roster, or the rosters differ."""
    SIG = "SIG"
    """A client's signature, forwarded by the coordinator, does not verify."""
    DUPKEY = "DUPKEY"
    """A key is used twice, or is of small order, so that every agreement with it gives zero."""
    COMPANY = "COMPANY"
    """The sum would be over other clients than earlier ones, in a run with one fixed set for all sums."""
    POINT = "POINT"
    """The request does not follow from the sums before, or few of this client's records count there."""
    TOO_FEW = "TOO_FEW"
    AEAD = "AEAD"
    """A sealed share was changed in transit, or sealed by another key; `peer`: the client that had to seal it."""
    SCHEMA = "SCHEMA"
    """The numbers have another length, type or layout than agreed."""
    MODEL_HASH = "MODEL_HASH"
    """The coordinator's model differs from the local one."""
    REPLAY = "REPLAY"
    """The round is not later than the last one."""
    TWICE = "TWICE"
    """A one-time step of a session was requested again."""
    INCONSISTENT_U3 = "INCONSISTENT_U3"
    """The lists of survivors contradict each other."""
    SHARE_INVALID = "SHARE_INVALID"
    """No set of shares restores the secret that `peer` committed to."""
    OVERFLOW = "OVERFLOW"
    """The ring is too small for a number, or for a sum over that number of clients; or a number is not finite."""
    BOUND = "BOUND"
    """No contributions within the agreed bounds give this sum; it does not show which client violated them."""
    DEADLINE = "DEADLINE"


_ADVICE = {
    Reason.POLICY: "Ask who runs the coordinator, or change your policy file if you agree with the session.",
    Reason.ROSTER: "Was every participant given the same roster file?",
    Reason.COMPANY: "Bring the same sites back; else fit by a new plan, or allow it: privacy ledger --other-sites.",
    Reason.POINT: "Nothing was sent. Ask who runs the coordinator; all sites begin again together if it is no lie.",
    Reason.TOO_FEW: "Wait for more clients; the next attempt is a new session with fresh keys.",
    Reason.DEADLINE: "The next attempt is a new session with fresh keys.",
    Reason.OVERFLOW: "Use fewer bits or clients; look for a diverged model if a number was not finite.",
    Reason.MODEL_HASH: "Every client must train on the same model: fetch it again, or distrust the coordinator.",
}
_UNTRUSTED = "A participant violates the protocol: do not repeat this before you know which, and why."


class RoundAbandoned(FedgossipError):  # noqa: N818  (what happened, as the others of the family that may be retried)
    """The session is over and its secrets are erased; a later one has fresh keys."""

    def __init__(
        self,
        reason: Reason,
        what: str,
        *,
        peer: int | None = None,
        stage: Stage | None = None,
        have: int | None = None,
        need: int | None = None,
    ) -> None:
        where = f", stage {stage.name}" if stage is not None else ""
        super().__init__(f"secure sum abandoned ({reason}{where}): {what}", _ADVICE.get(reason, _UNTRUSTED))
        self.what, self.reason, self.peer, self.stage, self.have, self.need = what, reason, peer, stage, have, need
        self.exit_code = 7 if reason in (Reason.TOO_FEW, Reason.DEADLINE) else 4


def too_few(stage: Stage, have: int, need: int, what: str) -> RoundAbandoned:
    """Return the abort for `have` of `need` clients."""
    return RoundAbandoned(Reason.TOO_FEW, f"{have} {what}, {need} are needed", stage=stage, have=have, need=need)
