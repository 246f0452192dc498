"""The journal of a run by folder, with images of the participant: its machine, its host's account, its sent messages.

    compact   the host is idle, and the journal's events are longer than an image: the image replaces them
    restore   a new process makes the same machine, gives it the image, and replays the events after it

An image is written as that of a simulation (`image_write`), with the same checks, and with the secrets of open sums:
they follow from the replaced events too.  Before it replaces them it is read once as a new process would; a machine
that fails this keeps its events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fedgossip.base.errors import FedgossipError, NotWrittenError, ResumeError
from fedgossip.core.machine import Event, Machine
from fedgossip.core.task import memory_of
from fedgossip.drivers.image_write import BEGUN, Array, Begun, ImageError, restored, write_image
from fedgossip.net.folder_links import FolderLinks
from fedgossip.net.host_ports import ImagedHost
from fedgossip.protocols.federated.aggregation_round import Exchange, LeafSum
from fedgossip.protocols.federated.clear_tier import ClearRound, IntegerPart
from fedgossip.protocols.federated.client_round import ClientPart, PreparedContribution, SecurePart, Summand
from fedgossip.protocols.federated.leaf import SumPart
from fedgossip.protocols.federated.secure_round import SecureRound
from fedgossip.runs.audit_recorder import Recorder
from fedgossip.runs.journal import Journal

PRIVATE: Begun = {
    **BEGUN,
    ClientPart: (*BEGUN[ClientPart], SecurePart, IntegerPart),
    SumPart: (SecurePart, IntegerPart),
    Exchange: (*BEGUN[Exchange], SecureRound, ClearRound),
    Summand: (PreparedContribution, LeafSum),
}
"""As BEGUN, with the objects of secure sums: a journal is for its owner alone."""

_KNOWN = ("machine", "links", "task", "hello", "ports", "meter", "_refusals", "_training")
"""A host's attributes outside its image."""


@dataclass
class HostJournal:
    """The `EventJournal` of a participant with these links.  `externals`: the plan's; `make`: returns a new machine."""

    journal: Journal
    links: FolderLinks
    recorder: Recorder | None
    externals: Mapping[str, object]
    make: Callable[[], Machine]
    failed: Callable[[FedgossipError], None]
    """Called with the reason if an image is due and cannot be written or read."""
    _possible: bool = True
    """Whether this process writes images."""

    def __post_init__(self) -> None:
        self.rounds = self.journal.rounds
        self.began_ns = self.journal.began_ns
        self.write = self.journal.write
        self.resume, self.finish = self.links.resume, self.links.finish

    @property
    def memory(self) -> Mapping[str, Array] | None:
        return self.journal.memory

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        return iter(self.journal)

    def compact(self, host: ImagedHost) -> None:
        """Replace grown events by an image; without room, or for a machine of another kind, they stay."""
        if not (self._possible and self.journal.grown):
            return
        host.drop_replaced_timers()
        known, accounts = self._list_known(host), self._list_accounts(host)
        try:
            image = write_image([host.machine, *accounts], dict(memory_of(host.task, host.node)), known)
            restored(image, [self.make(), *accounts], known, PRIVATE)
            self.journal.replace(image, self.recorder.lines if self.recorder else 0)
        except ImageError:  # of a method of one's own, say
            self._possible = False
        except (ResumeError, NotWrittenError) as error:
            self._possible = False
            self.failed(error)

    def restore(self, host: ImagedHost) -> bool:
        """Give a new host the state in the image, if there is one.  Raises ResumeError."""
        image, self.journal.image = self.journal.image, None
        if image is None:
            return False
        objects = [host.machine, *self._list_accounts(host)]
        try:
            found, self.journal.memory = restored(image, objects, self._list_known(host), PRIVATE)
        except ResumeError as error:
            advice = "Put a good copy there; a damaged run cannot resume."
            raise ResumeError(f"{self.journal.path}: {error}", advice) from None
        for one, attributes in zip(objects, found, strict=True):
            vars(one).update(attributes)
        return True

    def _list_accounts(self, host: ImagedHost) -> list[object]:
        return [host, host.meter, self.links.traffic, *self.links.queues]

    def _list_known(self, host: ImagedHost) -> Mapping[str, object]:
        return {**self.externals, **{name: vars(host)[name] for name in _KNOWN}}
