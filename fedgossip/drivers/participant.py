"""Makes the links and the machine of a real participant from its own keys, policy and log."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgossip.base.errors import ConfigError
from fedgossip.base.machine_memory import check_fits
from fedgossip.base.vectors import Vector
from fedgossip.core import run_format
from fedgossip.core.machine import Checkpoint, Machine, NodeId
from fedgossip.core.messages import Hello
from fedgossip.core.records import EventRow
from fedgossip.core.roles import CLIENT, SERVER, TIER
from fedgossip.data.objectives import SUMS
from fedgossip.data.partitions import PLACE
from fedgossip.data.record_groups import source_digest
from fedgossip.drivers.members import Informed, member_of
from fedgossip.experiment import BEST, FederatedExperiment, GossipExperiment
from fedgossip.net.connections import check_clients
from fedgossip.net.endpoints import Endpoints, Members
from fedgossip.net.folder_links import FolderLinks
from fedgossip.net.host_ports import ALONE, SharedParts
from fedgossip.net.hub.client import ClientLinks
from fedgossip.net.hub.server import CoordinatorLinks, TierLinks
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.net.relays.reachability import DIRECT, Ways
from fedgossip.net.sockets import check_links
from fedgossip.net.transport import Transport
from fedgossip.plans.federated.credentials import real
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.federated.ledger import TRAINING, SpentLedger, counted, data_of
from fedgossip.plans.federated.privacy_budget import account_before
from fedgossip.plans.gossip.gossip import peer_of
from fedgossip.plans.plan import Plan
from fedgossip.plans.tasks import released_rows
from fedgossip.runs.audit_recorder import Recorder
from fedgossip.runs.incarnations import MakeMachine
from fedgossip.runs.journal import Journal
from fedgossip.runs.mask_ledger import private_maker
from fedgossip.secure.primitives import Entropy
from fedgossip.secure.session import Policy

PROCESS_BYTES = 20_000_000
"""Minimum memory of a participant's process, in addition to that of other processes: 22 MB without torch."""


@dataclass(frozen=True)
class Given:
    """The start options of a participant."""

    folder: Path
    identity: Identity
    endpoints: Endpoints
    hello: Hello
    links: Transport
    members: Members | None
    join: bool
    resume: bool
    policy: Policy | None
    masked: Path | None
    spent: Path | None
    data: str = ""
    journal: Journal | None = None


@dataclass(frozen=True)
class FolderCarrier:
    """A shared folder in place of sockets.  `poll_seconds`: maximum time between two looks; `once`: do all possible
    work, and end; `patience_seconds`: minimum wait for a missing participant in a round.
    """

    root: Path
    poll_seconds: float = 2.0
    once: bool = False
    patience_seconds: float = 72 * 3600.0

    def stretch(self, plan: Plan) -> float:
        """Return the factor, 1 or more, of a participant's waits relative to sockets; it is not part of the
        experiment.
        """
        e = plan.experiment
        assert isinstance(e, FederatedExperiment | GossipExperiment)
        waits = e.coordinator if isinstance(e, FederatedExperiment) else e.algorithm
        return max(1.0, self.patience_seconds / (min(waits.least_deadline, waits.deadline) or waits.deadline))


@dataclass(frozen=True)
class Made:
    """`recorder` writes the log of a coordinator or a client; peers have none."""

    make: MakeMachine
    recorder: Recorder | None = None
    events: Sequence[EventRow] = ()
    """Rows at the start of the record."""


def folder_links(node: NodeId, identity: Identity, carrier: FolderCarrier, folder: Path) -> FolderLinks:
    """Return a participant's links through a shared folder; its private state is in its own.  Raises ConfigError."""
    poll_seconds = 0.0 if carrier.once else carrier.poll_seconds
    return FolderLinks(node, carrier.root, identity, folder / run_format.FOLDER_STATE, poll_seconds)


def check_journalled(plan: Plan) -> None:
    """Raise ConfigError for a run that cannot resume from a journal of its events, and so cannot use a folder."""
    e = plan.experiment
    what = ""
    if not isinstance(e, FederatedExperiment | GossipExperiment):
        what = f"a run of [{e.kind}]"
    elif isinstance(e, GossipExperiment) and plan.masks:
        what = "private gossip"
    elif any(plan.spends(node) for node in range(plan.n)):
        what = "a run with a privacy budget"
    elif e.loops:
        what = "a training loop of one's own"
    if what:
        advice = "Federated runs, also with secure sums and in tiers, fits, and gossip go over a folder."
        raise ConfigError(f"{what} does not go over a folder", advice)


def transport_of(
    plan: Plan, node: NodeId, bind: str, identity: Identity, ways: Ways = DIRECT, shared: SharedParts = ALONE
) -> Transport:
    """Return a participant's transport; a listening one binds at `bind`.  Raises NetworkError."""
    transport = plan.roles.get_role(node).transport
    if transport == SERVER:
        return CoordinatorLinks(node, bind, identity)
    if transport == TIER:
        tier = TierLinks(node, plan.partners(node)[-1], bind, identity)
        tier.reach(ways)
        return tier
    client = transport == CLIENT
    links = ClientLinks(node, identity, shared) if client else Links(node, bind, identity)
    links.routing.reach(ways)
    return links


@contextlib.contextmanager
def open_maker(plan: Plan, node: NodeId, given: Given) -> Iterator[Made]:
    """Yield the maker of the machine, and close its files at the end.  Raises FedgossipError."""
    with contextlib.ExitStack() as stack:
        if given.members:
            yield Made(_member(plan, node, given, given.members))
        elif plan.roles.get_role(node).logged:
            yield _logged(plan, node, given, stack)
        elif plan.masks:
            ledger = given.masked or given.folder / run_format.MASKED
            who = node, given.hello, given.identity, given.endpoints, ledger, stack
            yield Made(private_maker(plan, *who, resume=given.resume))
        else:
            yield Made(_plain(plan, node, given))


def _plain(plan: Plan, node: NodeId, given: Given) -> MakeMachine:
    def make(initial: Vector, checkpoint: Checkpoint | None, incarnation: int) -> Machine:
        return peer_of(plan, node, initial, given.hello.schema, checkpoint, incarnation=incarnation)

    return make


def _member(plan: Plan, node: NodeId, given: Given, members: Members) -> MakeMachine:
    def make(initial: Vector, checkpoint: Checkpoint | None, _incarnation: int) -> Machine:
        life = int(time.time())  # above the numbers of earlier incarnations, unless the clock was set back
        about = plan, node, initial, given.hello.schema, given.identity, members, life
        member = member_of(*about, join=given.join, resumed=checkpoint)
        machine = Informed(member, members, given.folder)
        if members.organiser:
            assert isinstance(given.links, Links)
            given.links.admit_guests(machine.introduction())
        return machine

    return make


def _logged(plan: Plan, node: NodeId, given: Given, stack: contextlib.ExitStack) -> Made:
    role, run, spends = plan.roles.get_role(node).name, given.hello.experiment, plan.spends(node)
    recorder = stack.enter_context(Recorder(given.folder, node, role, given.identity, run, synced=plan.masks or spends))
    ledger = _ledger(plan, node, given, stack)
    journal = given.journal
    entropy: Entropy = journal.entropy if journal else os.urandom
    before = recorder.account(ledger) if ledger and spends else ()
    if spends and given.spent is None and isinstance(plan, FederationPlan):  # of this machine: the ledger is the run's
        before = [*before, *plan.agreed_before(node)]
    exact = ledger.exact_before(recorder.first) if ledger else {}
    if ledger and not spends:
        what, rows = TRAINING if plan.experiment.learns else plan.experiment.task.kind, _rows(plan, node, given)
        ledger.note_exact(what, recorder.first, rows, plan.experiment.data.suppress)
    if journal:
        journal.note(len(recorder.past), "")
        recorder.repeat(journal.logged)
    own = None
    if plan.masks or spends:
        total = ledger.total() if ledger and node < plan.learners else None
        company = ""
        if ledger and plan.exact_layout and node < plan.learners:
            recorder.keep_companies(ledger)
            company = ledger.company(plan.exact_layout)
        past = recorder.past
        if journal:
            journal.note(len(past), company)
            past, company = past[: journal.logged], journal.company
        own = real(given.identity, given.endpoints, given.policy, past, before, total, company, entropy)
    if own and plan.masks and node >= plan.learners:
        recorder.transcribe(own.roster.first(plan.n - 1))

    def make(initial: Vector, checkpoint: Checkpoint | None, incarnation: int) -> Machine:
        return plan.machine(node, initial, given.hello.schema, checkpoint, incarnation=incarnation, own=own)

    return Made(make, recorder, [*_report_spent(plan, node, before), *_exact_before(node, exact)])


def _ledger(plan: Plan, node: NodeId, given: Given, stack: contextlib.ExitStack) -> SpentLedger | None:
    """Return the ledger of this participant's published records; None without one."""
    e, budget = plan.experiment, plan.experiment.budget
    discloses = node < plan.learners and not plan.abstains(node) and (e.learns or e.task.kind in SUMS)
    if not (plan.spends(node) or (discloses and given.spent)):
        return None
    source = given.data or e.data.source
    records = source_digest(source.replace(PLACE, str(node))) if discloses and _has_own_data(source, given) else ""
    path, unit = given.spent or given.folder / run_format.SPENT, budget.unit if budget else "none"
    return stack.enter_context(contextlib.closing(SpentLedger(path, unit, data_of(source, node), records)))


def _rows(plan: Plan, node: NodeId, given: Given) -> str:
    """Return which of its records a participant releases, for its ledger; "" for all."""
    return released_rows(plan.experiment, (given.data or plan.experiment.data.source).replace(PLACE, str(node)))


def _has_own_data(source: str, given: Given) -> bool:
    return PLACE in source or bool(given.data)


def _report_spent(plan: Plan, node: NodeId, before: Sequence[Mapping[str, object]]) -> list[EventRow]:
    p = plan.experiment.budget
    if not (p and before):
        return []
    about = {"epsilon": account_before(before).epsilon(p.delta), "limit": p.max_epsilon, "releases": len(before)}
    return [EventRow(0, node, "spent_before", about)]


def _exact_before(node: NodeId, released: Mapping[str, int]) -> list[EventRow]:
    about = {"times": sum(released.values()), "what": counted(released)}
    return [EventRow(0, node, "exact_before", about)] if released else []


def check_open_files(plan: Plan, nodes: Iterable[NodeId]) -> None:
    """Raise NetworkError if a process here may not open enough files: it would close connections and report its
    partners as lost.
    """
    for node in nodes:
        if node == plan.roles.leader:
            check_clients(plan.n - 1)
        else:
            check_links(len(plan.partners(node)))


def check_processes(plan: Plan) -> None:
    """Raise NetworkError as `check_open_files`, and ConfigError if this machine has too little memory for a process of
    each participant.
    """
    check_open_files(plan, range(plan.n))
    advice = "Take fewer participants, run it on several machines, or with --on sim."
    check_fits(f"{plan.n:,} processes", plan.n * PROCESS_BYTES, advice)


def check_selection(plan: Plan, *, whole: bool) -> None:
    """Raise ConfigError if no real participant can compare all models; `whole`: a process here reads them, but none
    waits for it.
    """
    e = plan.experiment
    if plan.roles.leader is not None or not e.selects:
        return
    if e.stop.patience:
        text = f"stop.patience = {e.stop.patience} of peers without a coordinator: none has the models of all"
        raise ConfigError(text, "Run it with --on sim or --on stacked, or take [coordinator].")
    if not whole:
        text = f'eval.keep = "{BEST}" of peers on machines of their own: none has the models of all'
        raise ConfigError(text, "Leave it out, or take [coordinator].")


def check_recordable(plan: Plan, trace_bytes: int) -> None:
    """Raise ConfigError for a trace of a run with masked messages, or with a privacy budget."""
    if trace_bytes and plan.experiment.budget:
        advice = "Leave --trace out; clients and coordinators keep signed logs, see `fedgossip audit show`."
        raise ConfigError("a run with a privacy budget cannot be replayed: its account is not in a trace", advice)
    if trace_bytes and plan.masks:
        advice = "Leave --trace out; clients and coordinators keep signed logs, see `fedgossip audit show`."
        raise ConfigError("a run with masks cannot be replayed: its secrets are written down nowhere", advice)
