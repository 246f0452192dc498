"""The accounts of pairwise exchanges: each offer is answered once or never, whatever is lost, repeated or overtaken.

    at its sender      open -----------> answered or declined: closed          at most one per partner
                         | no word in time: Query, again and again
    at its receiver    unseen ---> answered: the answer is kept until Settled, or until a higher number comes
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
"""A new life's numbers begin so far beyond those of its checkpoint: the last life had gone on from there."""


class Ledger:
    """One peer's accounts with all partners.  `round` and `schema` of messages are the machine's business.

    `life` numbers the life of a peer that may know nothing of those before.
    """

    def __init__(self, life: int = 0) -> None:
        self.life = life
        self.last: dict[NodeId, int] = {}
        """Of the offers to each partner, the newest number."""
        self.open: dict[NodeId, int] = {}
        """Offers whose fate is not known."""
        self.seen: dict[NodeId, int] = {}
        """Of the offers of each partner, the newest number that was answered or declined."""
        self.answers: dict[NodeId, Answer] = {}
        """Given, and not settled."""

    # --- offers of ours -------------------------------------------------------------------------------------------

    def offer(self, to: NodeId) -> int:
        """Open an account; return its number."""
        assert to not in self.open, "the last offer is not settled"
        self.open[to] = self.last[to] = max(self.last.get(to, -1) + 1, self.life * LIFE)
        return self.open[to]

    def knows(self, to: NodeId, number: int) -> bool:
        """Whether there ever was such an offer."""
        return 0 <= number <= self.last.get(to, -1)

    def close(self, to: NodeId, number: int) -> bool:
        """Close the account; false where it is not open (any more)."""
        if self.open.get(to) != number:
            return False
        del self.open[to]
        return True

    # --- offers of theirs -----------------------------------------------------------------------------------------

    def repeated(self, sender: NodeId, number: int, round: int) -> Answer | Decline | None:
        """What was said to this offer before; None for a new one."""
        if number > self.seen.get(sender, -1):
            return None
        return self.asked(sender, number, round)

    def asked(self, sender: NodeId, number: int, round: int) -> Answer | Decline:
        """Tell what became of an offer; one that was never seen is declined from now on."""
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
        """The partner is in a new life: its numbers may begin again; what it may ask for is kept."""
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
