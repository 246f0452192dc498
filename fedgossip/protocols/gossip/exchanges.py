"""The accounts of pairwise exchanges: each offer is answered once or never, despite loss, repetition and reordering.

    at its sender      open -----------> answered or declined: closed          at most one per partner
                                                  | no reply in time: Query, repeated
        at its receiver    unseen ---> answered: the answer is kept until Settled, or until a higher number is received
                         |  \\---> declined: for ever
                         \\ Query: declined, for ever: the offer itself may still be on the way

A partner has at most one open offer, so the receiver keeps at most one answer per partner; the sender keeps a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Answer, Decline

LIFE = 1 << 20
"""Distance between the numbers of a checkpoint and those of the life resumed from it: the last life had gone on."""


class Ledger:
    """One peer's accounts with all partners.  The machine fills `round` and `schema` of messages.

    `life` numbers a life that may have lost the state of its predecessors.
    """

    def __init__(self, life: int = 0) -> None:
        self.life = life
        self.last: dict[NodeId, int] = {}
        """The newest number of our offers to each partner."""
        self.open: dict[NodeId, int] = {}
        """Our offers with an unknown outcome."""
        self.seen: dict[NodeId, int] = {}
        """The newest number of each partner's offers that was answered or declined."""
        self.answers: dict[NodeId, Answer] = {}
        """Answers sent, and not settled."""

    # --- offers of ours -------------------------------------------------------------------------------------------

    def offer(self, to: NodeId) -> int:
        """Open an account; return its number."""
        assert to not in self.open, "the last offer is not settled"
        self.open[to] = self.last[to] = max(self.last.get(to, -1) + 1, self.life * LIFE)
        return self.open[to]

    def knows(self, to: NodeId, number: int) -> bool:
        """Return whether this offer was ever made."""
        return 0 <= number <= self.last.get(to, -1)

    def close(self, to: NodeId, number: int) -> bool:
        """Close the account; return False where it is not open."""
        if self.open.get(to) != number:
            return False
        del self.open[to]
        return True

    # --- offers of theirs -----------------------------------------------------------------------------------------

    def repeated(self, sender: NodeId, number: int, round: int) -> Answer | Decline | None:
        """Return the previous reply to this offer; None for a new one."""
        if number > self.seen.get(sender, -1):
            return None
        return self.asked(sender, number, round)

    def asked(self, sender: NodeId, number: int, round: int) -> Answer | Decline:
        """Return the outcome of an offer; an unseen one is declined from now on."""
        given = self.answers.get(sender)
        if given and given.number == number:
            return given
        return self.decline(sender, number, round)

    def decline(self, sender: NodeId, number: int, round: int) -> Decline:
        if number > self.seen.get(sender, -1):
            self.answers.pop(sender, None)
            self.seen[sender] = number
        return Decline(number, round)

    def answer(self, sender: NodeId, answer: Answer) -> None:
        self.answers[sender] = answer
        self.seen[sender] = answer.number

    def settled(self, sender: NodeId, number: int) -> None:
        given = self.answers.get(sender)
        if given and given.number <= number:
            del self.answers[sender]

    def reborn(self, partner: NodeId) -> None:
        """Reset a partner in a new life: its numbers may begin again; an answer that it may query is kept."""
        self.seen.pop(partner, None)

    # --- for a new life of this peer ------------------------------------------------------------------------------

    def saved(self) -> tuple[dict[str, Vector], dict[str, object]]:
        vectors = {f"answer/{node}": answer.vectors[0] for node, answer in self.answers.items()}
        facts: dict[str, object] = {
            name: {str(node): number for node, number in kept.items()}
            for name, kept in (("last", self.last), ("open", self.open), ("seen", self.seen))
        }
        facts["answers"] = {str(node): [answer.number, answer.round] for node, answer in self.answers.items()}
        return vectors, facts

    @classmethod
    def restored(cls, vectors: Mapping[str, Vector], facts: Mapping[str, Any], schema: str, life: int = 0) -> Ledger:
        ledger = cls(life)
        ledger.last = {int(node): number + LIFE for node, number in facts["last"].items()}
        ledger.open = {int(node): number for node, number in facts["open"].items()}
        ledger.seen = {int(node): number for node, number in facts["seen"].items()}
        ledger.answers = {
            int(node): Answer(number, round, schema, (vectors[f"answer/{node}"],))
            for node, (number, round) in facts["answers"].items()
        }
        return ledger
