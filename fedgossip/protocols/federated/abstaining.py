"""A client that declines every invitation with a reason."""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.core.machine import Effect, Log, NodeId, Send
from fedgossip.core.messages import Invite, Message, Refusal
from fedgossip.protocols.federated.client_round import ClientPart, PreparedContribution


@dataclass(frozen=True)
class Abstaining:
    """Declines every invitation."""

    reason: str
    """One of `core.messages.federated.REFUSALS`."""

    def part(self, coordinator: NodeId, invite: Invite, before: ClientPart | None) -> ClientPart:  # noqa: ARG002
        return RefusedPart(coordinator, invite, self.reason)


class RefusedPart:
    """Sends a refusal with its reason, and nothing else."""

    over = True

    def __init__(self, coordinator: NodeId, invite: Invite, reason: str) -> None:
        self.coordinator, self.invite, self.reason = coordinator, invite, reason

    def begin(self) -> list[Effect]:
        invite = self.invite
        log = Log("refused", {"session": invite.session, "round": invite.round, "reason": self.reason})
        return [log, *self.again()]

    def trained(self, work: PreparedContribution) -> list[Effect]:  # noqa: ARG002
        return []

    def handle(self, message: Message) -> list[Effect]:  # noqa: ARG002
        return []

    def again(self) -> list[Effect]:
        return [Send(self.coordinator, Refusal(self.invite.round, self.invite.session, self.reason))]

    def give_up(self) -> list[Effect]:
        return []

    def coordinator_restarted(self) -> list[Effect]:
        return []
