"""Masked parts that have come, added up by round: one vector's memory a round, however many neighbours there are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgossip.core.machine import NodeId
from fedgossip.secure.neighbourhood import words_of
from fedgossip.secure.ring import Words


class PartialSum:
    """What has come of one round, added up."""

    def __init__(self, sender: NodeId, words: Words) -> None:
        # what came over a link is ours; what a simulated peer sent to several may have other readers
        self.total = words if words.flags.writeable else words.copy()
        self.heard = {sender}

    def add(self, sender: NodeId, words: Words) -> None:
        self.total += words
        self.heard.add(sender)


class MaskedSums:
    """One peer's, of the current round and of at most `lead` after it.

    A sender counts once in a round; integers have no order, so that the sums are those of any order of arrival.
    """

    def __init__(self, lead: int) -> None:
        self.lead = lead
        self.of: dict[int, PartialSum] = {}

    def heard(self, round: int) -> frozenset[NodeId]:
        return frozenset(self.of[round].heard) if round in self.of else frozenset()

    def put(self, sender: NodeId, round: int, words: Words, current: int) -> bool:
        """Add a part of round `current` or later up; false for one that is in already."""
        if round > current + self.lead:  # it has gone on without us, and so shall we
            return True
        here = self.of.get(round)
        if here and sender in here.heard:
            return False
        if here:
            here.add(sender, words)
        else:
            self.of[round] = PartialSum(sender, words)
        return True

    def take(self, round: int) -> Words:
        """Return the sum of a round of which something is here."""
        return self.of.pop(round).total

    def go_to(self, round: int) -> None:
        """Forget the rounds before."""
        for old in [r for r in self.of if r < round]:
            del self.of[old]


def times(terms: Sequence[tuple[Words, int]]) -> Words:
    """The sum of words, each so many times; there are as many terms as there are weights."""
    if not terms:
        return np.zeros(0, np.uint32)
    (first, count), *rest = terms
    total = np.multiply(first, np.uint32(count), out=words_of(first.size))
    for words, count in rest:
        total += words * np.uint32(count)
    return total
