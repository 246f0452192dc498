"""All edges of one peer of synchronous gossip, and those of its models that partners may still request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgossip.algorithms.gossip.base import Vectors
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Effect, NodeId, Report, Send
from fedgossip.core.messages import Account, Model

# The account of one edge of synchronous gossip: in every round both ends mix each other's model, or neither does.
#
# A mixing keeps the mean because i takes as much from j as j takes from i.  If a message is late or lost, one end may
# have mixed and the other not.  Without losses no extra message is sent: every model has two numbers of its edge,
#
# used      the last round for which the sender mixed a model of the receiver
# missing   the round that the sender had to mix without one, if it is not settled
#
# i mixed round s without j's model, and had sent its own: j may have mixed it.   i: open(s)
# from now on i sends missing = s, and neither end mixes over this edge until it is settled:
#   j sends used = s:                     j has mixed.  i adds w (x_j - x_i), both of round s, once it has x_j;
#                                         j sends it again while i lacks it
#   j sends used < s, in a later round:   j has not.  The edge did not count in round s
#   j leaves with used < s:               neither will it
#
# The number for round s is final once j has completed that round: it may be repeated, reordered and lost.  At most one
# round per edge is open, so memory is bounded.
#
# Source: none; the idea of compensating lost mass is that of running-sum ratio consensus (Hadjicostis, Vaidya and
# Dominguez-Garcia 2016), reversed: there every edge keeps sums permanently, here only an edge that has lost a message.


@dataclass(slots=True)
class Open:
    """Round `round` was mixed without the partner's model; the partner may have mixed this peer's."""

    round: int
    weight: float
    own: tuple[Vector, ...]
    theirs: tuple[Vector, ...] | None = None
    counted: bool = False


@dataclass(slots=True)
class Edge:
    """One end's account with one partner."""

    used: int = -1
    offered: int = -1
    """The last round whose model was sent to the partner while nothing was open: the partner may mix it."""
    confirmed: bool = True
    """Whether the partner has certainly received this peer's model of round `used`: until then it may request it."""
    open: Open | None = None
    helped: tuple[int, int, int] = (-1, 0, 0)
    """(round, number of times, time in nanoseconds) of this peer's model sent to the partner again."""

    def may_help(self, round: int, now_ns: int, again_ns: int) -> bool:
        """Return whether to send the model of `round` again now: at once, then after doubling waits; count it if so."""
        of, times, at_ns = self.helped
        if of != round:
            times = 0
        # the wait stops doubling at eight times, or a long outage would delay the repair as long again
        elif now_ns < at_ns + again_ns * 2 ** min(times - 1, 3):
            return False
        self.helped = round, times + 1, now_ns
        return True

    @property
    def missing(self) -> int:
        return -1 if self.open is None else self.open.round

    def offer(self, round: int) -> None:
        """Record that the model of `round` is sent with this account."""
        if self.open is None:
            self.offered = round

    def missed(self, round: int, weight: float, own: tuple[Vector, ...]) -> None:
        """Record `round` as mixed without the partner's model; the partner may have mixed this peer's, if offered."""
        if self.offered == round:
            self.open = Open(round, weight, own)

    def update(self, round: int, used: int, missing: int) -> None:
        """Update the edge from the account that the partner sent in its `round`."""
        if self.open is not None:
            if used == self.open.round:
                self.open.counted = True
            elif round > self.open.round:
                self.open = None
        # a later account that does not list round `used` as missing: the partner has that model
        if round > self.used != missing:
            self.confirmed = True

    def parted(self, rounds: int) -> None:
        """Close the edge after the partner's last round `rounds`: it has reported all mixed rounds."""
        if self.offered >= rounds:
            self.offered = -1
        if self.open is not None and not self.open.counted:
            self.open = None

    def late(self, model: Model) -> None:
        """Record a model of a past round: it may be the missing one."""
        if self.open and model.round == self.open.round and self.open.theirs is None:
            self.open.theirs = model.vectors

    def repair(self) -> Open | None:
        """Return the correction to apply now, and close it; None if nothing is open, or a model is still missing."""
        if self.open is None or not self.open.counted or self.open.theirs is None:
            return None
        repaired, self.open = self.open, None
        return repaired

    @property
    def settled(self) -> bool:
        return self.open is None and self.confirmed


KEPT_ROUNDS = 8
"""Maximum number of this peer's past models stored for requests; without losses one is stored."""


class EdgeLedger:
    """The accounts of all edges, `edges`, and the messages that contain them.

    A model of a past round is in `sent` only if a partner may still request it, at most KEPT_ROUNDS of them; `views`
    has the graph of each round's first sending.
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.edges: dict[NodeId, Edge] = {}
        self.sent: dict[int, Vectors] = {}
        self.views: dict[int, str] = {}
        self.among: str | None = None  # the view of the last exchanged round
        self.since = 0  # the first round of that view
        self._asking: dict[int, int] = {}  # used round: number of its unconfirmed edges

    def edge(self, node: NodeId) -> Edge:
        edge = self.edges.get(node)
        if edge is None:
            edge = self.edges[node] = Edge()
        return edge

    # --- a round --------------------------------------------------------------------------------------------------

    def opens(self, round: int, view: str) -> bool:
        """Open a round with the graph `view`; return whether the set of participants has changed since the last one."""
        others = self.among is not None and self.among != view
        if others:
            self.since = round
        self.among = self.views[round] = view
        return others

    def models(self, round: int, vectors: Vectors, targets: Iterable[NodeId]) -> list[Effect]:
        """Return the sends of a round, with the account of each target's edge; equal accounts share one message."""
        made: dict[tuple[int, int], Model] = {}
        sends: list[Effect] = []
        for to in targets:
            edge = self.edges.get(to) or self.edge(to)
            edge.offer(round)
            account = edge.used, edge.missing
            # one object for all receivers with equal accounts: its header is encoded once
            model = made.get(account)
            if model is None:
                model = made[account] = Model(round, self.schema, vectors, *account, self.views[round])
            sends.append(Send(to, model))
        return sends

    def counted(self, round: int, nodes: Iterable[NodeId], here: Mapping[NodeId, Any]) -> list[NodeId]:
        """Return those of `nodes` whose edge both ends announced for the same graph (`here`: their models)."""
        view, counted = self.views[round], list[NodeId]()
        for node in nodes:
            edge, model = self.edges.get(node) or self.edge(node), here[node]
            if edge.offered != round or model.missing >= 0 or model.view != view:
                continue
            if not edge.confirmed:
                self._confirmed(edge.used)
            edge.used, edge.confirmed = round, False
            counted.append(node)
        if counted:
            self._asking[round] = self._asking.get(round, 0) + len(counted)
        return counted

    def closes(self, round: int, vectors: Vectors) -> None:
        """Close a mixed round: store the sent vectors as long as a partner may request them."""
        self.sent[round] = vectors
        self.forget(round)

    # --- accounts of partners -----------------------------------------------------------------------------------------

    def update(self, node: NodeId, round: int, used: int, missing: int) -> Edge:
        """Update the edge from the account that the partner sent in its `round`; return the edge."""
        edge = self.edges.get(node) or self.edge(node)
        waited = not edge.confirmed
        edge.update(round, used, missing)
        if waited and edge.confirmed:
            self._confirmed(edge.used)
        return edge

    def _confirmed(self, round: int) -> None:
        left = self._asking[round] = self._asking[round] - 1
        if not left:
            del self._asking[round]
            self.sent.pop(round, None)

    def account(self, node: NodeId, round: int, *, asks: bool = False) -> Account:
        edge = self.edge(node)
        return Account(round, edge.used, edge.missing, asks)

    def help(self, node: NodeId, missing: int, round: int, now_ns: int, again_ns: int) -> list[Effect]:
        """Return the reply to a partner that mixed `missing` alone: the account, and the model if this peer mixed."""
        edge = self.edge(node)
        if edge.used > missing or (edge.used == missing and edge.confirmed):  # an overtaken, older message
            return []
        if edge.used == missing and missing in self.sent:
            if not edge.may_help(missing, now_ns, again_ns):  # already on its way
                return []
            view = self.views[missing]
            return [Send(node, Model(missing, self.schema, self.sent[missing], edge.used, edge.missing, view))]
        effects: list[Effect] = []
        if edge.used == missing:  # dropped: too long ago
            effects.append(Report("unsettled", {"peer": node, "round": missing}, round))
            self._confirmed(missing)
            edge.used, edge.confirmed = -1, True
        return [*effects, Send(node, self.account(node, round))]

    def repeat(
        self, node: NodeId, asked: int, round: int, outgoing: Vectors, now_ns: int, again_ns: int
    ) -> list[Effect]:
        """Return the reply to a partner that waits for this peer's model of round `asked`.

        `outgoing`: the vectors sent in this peer's `round`; empty before that.
        """
        edge = self.edge(node)
        ours = self.sent.get(asked)
        if asked == round and outgoing:
            ours = outgoing
        elif edge.open and edge.open.round == asked:
            ours = edge.open.own
        if not ours and asked < round:  # it did not count
            return [Send(node, self.account(node, round))]
        if not (ours and edge.may_help(asked, now_ns, again_ns)):
            return []
        missing = -1
        if asked not in (edge.offered, edge.used, edge.missing):  # it was sent while the edge was held
            missing = edge.missing if edge.open else asked  # so that it does not count
        return [Send(node, Model(asked, self.schema, ours, edge.used, missing, self.views[asked]))]

    def repair(self, node: NodeId) -> Open | None:
        """Return the correction of the edge to `node`, if it is complete, and close it."""
        return self.edge(node).repair()

    def reborn(self, node: NodeId, *, asked: bool) -> bool:
        """Reset the edge of a restarted partner; return whether its last incarnation left something open.

        `asked`: this peer's model of the open round was sent.
        """
        before = self.edge(node)
        if not before.confirmed:
            self._confirmed(before.used)
        self.edges[node] = Edge()
        return asked or not before.settled

    def forget(self, round: int) -> None:
        """Drop this peer's models of rounds that no partner can request; its current round is `round`."""
        for old in sorted(self.sent) if len(self.sent) > 1 or round not in self._asking else ():
            if old not in self._asking or len(self.sent) > KEPT_ROUNDS:
                del self.sent[old]
        if len(self.views) > len(self.sent) + 1:
            asked = {*self.sent, round, *(edge.missing for edge in self.edges.values())}
            self.views = {at: view for at, view in self.views.items() if at in asked}

    # --- the end --------------------------------------------------------------------------------------------------

    def unsettled(self, silent: Collection[NodeId]) -> Sequence[tuple[NodeId, int]]:
        """Return each partner with an open round, and the round; for `silent` ones also rounds they may request."""
        return [
            (node, edge.missing if edge.open else edge.used)
            for node, edge in sorted(self.edges.items())
            if edge.open or (not edge.confirmed and node in silent)
        ]
