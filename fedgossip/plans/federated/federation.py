"""A federated run as drivers have it: the machines of its coordinator and clients, and how it is run and judged.

`Credentials` hold keys and the client's own policy of a real run; a simulation draws all keys from its seed: real
cryptography without secrets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedgossip.algorithms.federated.base import EndingRule, is_over
from fedgossip.algorithms.federated.coded import UploadCodec
from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Machine, NodeId
from fedgossip.core.metrics import Network
from fedgossip.core.records import PeerRow, Row
from fedgossip.core.run_summary import MethodFacts
from fedgossip.core.task import LocalTask
from fedgossip.plans.completeness import Lacking, of_clients, of_federation, with_exchanges
from fedgossip.plans.federated.credentials import Credentials, Logged, Own
from fedgossip.plans.federated.federated_run import FederatedRun
from fedgossip.plans.federated.privacy_budget import AccountedBudget, cost_of_training, purse_of, statistics_spends
from fedgossip.plans.federated_words import banner_of, facts_of, outlook_of, terms_of
from fedgossip.plans.plan import EXHAUSTED, PARTIAL, Arrays, JoiningTerms, Results, RunOutlook, Seat, nanoseconds
from fedgossip.plans.tasks import DataShares
from fedgossip.protocols.federated import client_round
from fedgossip.protocols.federated.abstaining import Abstaining
from fedgossip.protocols.federated.buffered import Buffered, BufferedSettings
from fedgossip.protocols.federated.client import Answering, Client, Plainly, Securely, never
from fedgossip.protocols.federated.client_round import Chances
from fedgossip.protocols.federated.coordinator import Coordinator, CoordinatorSettings, state_in
from fedgossip.protocols.federated.secure_round import SecureSumming, SessionTerms
from fedgossip.secure.aborts import Reason
from fedgossip.secure.client import SecAggClient
from fedgossip.secure.primitives import signer
from fedgossip.secure.session import ParticipantRoster, RosterMember
from fedgossip.secure.session_history import AskedBefore
from fedgossip.simulation.cohorts import Rounds, run_rounds


@dataclass(frozen=True)
class FederationPlan(FederatedRun):
    """The plan of a federated run; see plans.plan.Plan."""

    @property
    def pausable(self) -> bool:
        return not self.secure and not self.experiment.loops

    @property
    def banner(self) -> Sequence[str]:
        return banner_of(self)

    def outlook(self, task: LocalTask) -> RunOutlook:
        return outlook_of(self, task)

    @property
    def masks(self) -> bool:
        return self.secure

    def partners(self, node: NodeId) -> Sequence[NodeId]:
        return tuple(range(self.learners)) if node == self.coordinator else (self.coordinator,)

    @cached_property
    def _simulated(self) -> Sequence[Credentials]:
        """Draw all keys from the seed, for simulations, which keep no secrets."""
        signers = [signer(stream(self.experiment.seed, "identity", node).bytes(32)) for node in range(self.n)]
        members = [
            RosterMember(identity, "", f"sim:{node}").signed(sign) for node, (identity, sign) in enumerate(signers)
        ]
        roster = ParticipantRoster(tuple(members))
        return [
            Credentials(sign, stream(self.experiment.seed, "entropy", node).bytes, roster)
            for node, (_, sign) in enumerate(signers)
        ]

    def simulated(self, node: NodeId, incarnation: int = 0, log: Sequence[Logged] = ()) -> Own | None:
        if not self.secure and self.unit == "none":
            return None
        seed = self.experiment.seed
        entropy = stream(seed, "entropy", node, incarnation).bytes
        return replace(
            self._simulated[node],
            entropy=entropy,
            log=tuple(log),
            noise=lambda round: stream(seed, "noise", node, round).bytes,
            spent=self.agreed_before(node),
        )

    def agreed_before(self, node: NodeId) -> Sequence[Mapping[str, object]]:
        """Return a client's spending on the statistics of this run, where no ledger records it."""
        told = node != self.coordinator and self.exact is None
        return statistics_spends(self.experiment) if told else ()

    def _chances(self, node: NodeId, own: Credentials | None = None) -> Callable[[int], Chances]:
        """Return the chances of rounding, which are no secret and the same in every driver."""
        seed = self.experiment.seed

        def chances(round: int) -> Chances:
            rounding = stream(seed, "rounding", node, round).bytes
            return Chances(rounding, own.noise(round) if own else rounding)

        return chances

    def _purse(self, node: NodeId, own: Credentials | None) -> AccountedBudget | None:
        """Return the budget: the coordinator accounts for clients in its sums; each client, for its own releases."""
        p, log, before = self.section.privacy, own.log if own else (), own.spent if own else ()
        total = own.total if own else None
        if not self.spends(node):
            return None
        if self.unit == "client":
            return purse_of(p, 1.0, 1, log, before, total=total)
        if self.exact is not None:  # each round is one release, of all records
            return purse_of(p, 1.0, 1, log, before, total=total)
        if node not in self.trained_on:
            advice = "A run with a budget of privacy can be neither recorded nor replayed."
            raise ConfigError(f"nobody knows how many examples client {node} has, nor what it has spent", advice)
        cost = cost_of_training(self.experiment, self.trained_on[node])
        return purse_of(p, *cost, log, before, self.client_settings.tests, total)

    def with_shares(self, shares: DataShares) -> FederationPlan:
        """Raises ConfigError where a secure sum cannot hold the number of examples of one that is held here."""
        sized = replace(self, sizes=tuple(shares.sizes) if shares.sizes else None, trained_on=shares.trained_on)
        most, held = sized.weight_max, max(shares.trained_on.values(), default=0)
        if self.secure and self._by_examples and 1 < most < held:
            node = next(node for node, count in shares.trained_on.items() if count == held)
            text = f"{self.roles.label(node)} has {held:,} examples, and coordinator.secure.weight_max = {most:,}"
            usual = 10 ** math.ceil(math.log10(held))
            raise ConfigError(text, f"All set it alike, to what the largest may have: weight_max = {usual}.")
        return sized

    # --- machines -------------------------------------------------------------------------------------------------

    def seated(self, seat: Seat) -> Machine:
        who = seat.own if isinstance(seat.own, Credentials) else None
        if self.secure and who is None:
            advice = "A secure sum can be neither recorded nor replayed: its secrets are written down nowhere."
            raise ConfigError(f"participant {seat.node} of a secure sum has no keys", advice)
        if seat.node != self.coordinator:
            return self._client(seat, who)
        return self._buffered(seat) if self.buffered else self._coordinator(seat, who)

    def _coordinator(self, seat: Seat, who: Credentials | None) -> Coordinator[Any]:
        s = self.section
        settings = CoordinatorSettings(
            rounds=self.experiment.rounds,
            min_clients=self.least,
            deadline_ns=nanoseconds(s.deadline),
            least_deadline_ns=nanoseconds(min(s.deadline, s.least_deadline)),
            start_ns=nanoseconds(s.start_timeout),
            return_ns=nanoseconds(min(s.return_timeout, s.start_timeout)),
            score=self.experiment.score,
            patience=self.experiment.stop.patience,
            every=0 if self.experiment.selects_at_clients else self.experiment.eval.every,
        )
        coding = self.coding(seat.initial.size, seat.initial.dtype)
        summing = self._summing(seat, who, coding) if who and self.secure else None
        run = seat.node, range(self.learners), self.federated, self.sampling, seat.initial, seat.schema, settings
        return Coordinator(*run, seat.resumed, summing, self._purse(seat.node, who), coding)

    def _summing(self, seat: Seat, who: Credentials, coding: UploadCodec | None) -> SecureSumming:
        terms = SessionTerms(
            roster=who.roster.first(self.learners),
            fixed=self.numbers.fixed_point(seat.initial.size, seat.schema),
            rule=self.numbers.rule,
            sign=who.sign,
            task_id=self.task_id,
            n_min=self.least,
            threshold=self.threshold,
            neighbours=self.section.secure.neighbours,
        )
        clip: Any = seat.resumed.facts.get("clip") if seat.resumed else None
        about = self.federated.clients, seat.initial.dtype, self.learners, seat.incarnation
        return SecureSumming(terms, *about, self.numbers.clipping(clip), coding)

    def _buffered(self, seat: Seat) -> Buffered[Any]:
        s, goal = self.section, self.goal
        settings = BufferedSettings(
            rounds=self.experiment.rounds,
            goal=goal,
            at_once=min(self.learners, s.at_once or 2 * goal),
            most_stale=s.most_stale,
            min_clients=self.least,
            deadline_ns=nanoseconds(s.deadline),
            start_ns=nanoseconds(s.start_timeout),
            seed=self.experiment.seed,
            score=self.experiment.score,
        )
        run = seat.node, range(self.learners), self.federated, seat.initial, seat.schema, settings
        return Buffered(*run, seat.resumed)

    def _client(self, seat: Seat, who: Credentials | None) -> Client:
        answering = self._securely(seat, who) if who and self.secure else Plainly()
        answering = Abstaining(Reason.SCHEMA.value) if seat.node in self.abstaining else answering
        rule = self.client_rule(self.coding(seat.initial.size, seat.initial.dtype))
        purse = self._purse(seat.node, who)
        about = seat.node, self.coordinator, rule, seat.initial, seat.schema, self.client_settings
        server = self.federated.server
        whole = server.over if isinstance(server, EndingRule) else never
        return Client(*about, seat.resumed, answering, purse, self.telling, whole)

    def _securely(self, seat: Seat, who: Credentials) -> Answering:
        policy = who.policy or self.policy(who.roster.identity(self.coordinator), seat.initial.size, seat.schema)
        roster, past = who.roster.first(self.learners), client_round.past_of(who.log)
        if who.company:
            past.company, past.members = who.company, past.members if past.company == who.company else ""
        party = SecAggClient(seat.node, roster, policy, who.sign, who.entropy, past)
        round: Any = seat.resumed.facts.get("pending_round", -1) if seat.resumed else -1
        before = AskedBefore(round, seat.resumed.vectors["x"]) if seat.resumed and round >= 0 else None
        return Securely(party, self._chances(seat.node, who), self.questions, before)

    # --- the run --------------------------------------------------------------------------------------------------

    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:
        """Whether the coordinator has released the client."""
        if node == self.coordinator and not self.experiment.endless:
            return rounds == self.experiment.rounds
        return not stopped

    def model_in(self, checkpoint: Checkpoint) -> Vector | None:
        server = self.federated.server
        return None if self.buffered else server.broadcast(state_in(server, checkpoint))[0]

    def is_over(self, node: NodeId, model: Vector) -> bool:
        return node == self.coordinator and is_over(self.federated.server, model)

    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        if self.buffered:
            raise ConfigError("the stacked engine goes by rounds: no fedbuff", "Run it with --on sim.")
        if self.unit != "none":
            raise ConfigError("the stacked engine keeps no budget of privacy", "Run it with --on sim.")
        fixed = self.numbers.fixed_point(task.length, task.schema) if self.secure else None
        chances = [self._chances(node) for node in range(self.learners)]
        e, coding = self.experiment, self.coding(task.length, task.dtype)
        who = replace(self.federated, clients=self.client_rule(coding)), self.sampling, self.learners
        rounds = Rounds(*who, e.rounds, self.least, fixed, chances, e.score, self.telling, coding=coding)
        state = rounds.start(task)

        def finish(between: Callable[[], None]) -> Results:
            model = run_rounds(rounds, state, task, record, write, tests=self.client_settings.tests, between=between)
            return Results([*[None] * self.learners, model])

        return state, finish

    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        """The global model."""
        return [vectors[self.coordinator]]

    def verdict(self, words: Sequence[str | None]) -> str:
        """Return the coordinator's status; partial where some clients ended early."""
        said, clients = words[self.coordinator], words[: self.learners]
        if said != "finished":
            return said or "failed"
        whole = all(word in ("finished", EXHAUSTED) for word in clients) or not any(clients)  # arrays have no clients
        return "finished" if whole else PARTIAL

    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> Lacking:
        all_in_each = self.cohort == self.learners and not self.buffered
        found = of_federation(rows, self.coordinator, node, all_in_each=all_in_each)
        return with_exchanges(found, rows, self.exchanges, self.roles, node)

    def exchanges(self, row: Row) -> tuple[int, int]:
        if self.buffered or not isinstance(row, PeerRow) or row.peer != self.coordinator or not row.round:
            return 0, 0
        return of_clients(row, self.sampling.draw(row.round - 1, range(self.learners)).wanted)

    def terms(self, parameters: int, itemsize: int) -> JoiningTerms:
        return terms_of(self, parameters, itemsize)

    def facts(self, rows: Sequence[Row]) -> MethodFacts:
        return facts_of(self, rows)
