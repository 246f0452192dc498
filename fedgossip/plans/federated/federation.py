"""The plan of a federated run: cohort, content of a sum, the machines of coordinator and clients, and the verdict.

It follows from the experiment and the clients' numbers of examples.  Clients have the first ids; the coordinator, the
root of the tree (`tree`), is n - 1.  `Credentials` hold keys and policy; a simulation derives keys from its seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, VectorLayout
from fedgossip.algorithms.federated.adapter_distance import adapters_in
from fedgossip.algorithms.federated.base import ClientRule, EndingRule, Federated, is_over
from fedgossip.algorithms.federated.coded import CodedClient, UploadCodec
from fedgossip.algorithms.federated.running_statistics import with_statistics
from fedgossip.algorithms.sampling import Sampling, Uniform, sampling_named
from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Machine, NodeId
from fedgossip.core.messages import Invite
from fedgossip.core.metrics import Network
from fedgossip.core.records import NetworkRow, PeerRow, Row
from fedgossip.core.roles import Roles
from fedgossip.core.run_summary import MethodFacts
from fedgossip.core.task import PARAMETER, LocalTask, Segment, statistics_in
from fedgossip.data.custom import is_function
from fedgossip.experiment import CoordinatorSection, FederatedExperiment
from fedgossip.plans import completeness
from fedgossip.plans.federated.availability import available_sampling
from fedgossip.plans.federated.credentials import Credentials, DrawnMembers, Logged, Own
from fedgossip.plans.federated.privacy_budget import AccountedBudget, cost_of_training, purse_of, statistics_spends
from fedgossip.plans.federated.secure_encoding import Numbers, check_weights, weight_max_for
from fedgossip.plans.federated.tree import TierGroup, Tree, tree_of
from fedgossip.plans.federated_words import banner_of, facts_of, outlook_of, terms_of
from fedgossip.plans.least_memory import Clients
from fedgossip.plans.own_parts import codec_named, make_sampling
from fedgossip.plans.plan import (
    EXHAUSTED,
    PARTIAL,
    Arrays,
    JoiningTerms,
    Plan,
    Results,
    RunOutlook,
    Seat,
    hash_of,
    nanoseconds,
    without_folders,
)
from fedgossip.plans.statistics_checks import check_federated_statistics
from fedgossip.plans.tasks import DataShares
from fedgossip.protocols.federated import client_round
from fedgossip.protocols.federated.aggregation_round import ClientsBelow, SumReading
from fedgossip.protocols.federated.buffered import Buffered, BufferedSettings
from fedgossip.protocols.federated.clear_tier import AnsweringInIntegers, ClearSumming
from fedgossip.protocols.federated.client import Abstaining, Answering, Client, ClientSettings, Plainly, Securely, never
from fedgossip.protocols.federated.client_round import Chances, SentMetrics, metrics_of
from fedgossip.protocols.federated.coordinator import PHASES, Coordinator, CoordinatorSettings, state_in
from fedgossip.protocols.federated.leaf import LeafCoordinator, LeafSettings, SumAnswering
from fedgossip.protocols.federated.secure_round import SecureSumming, SessionTerms
from fedgossip.secure import graph
from fedgossip.secure.aborts import Reason
from fedgossip.secure.client import SecAggClient
from fedgossip.secure.encoding import NO_NOISE, ExactSums
from fedgossip.secure.session import ParticipantRoster, Policy
from fedgossip.secure.session_history import AskedBefore, Questions
from fedgossip.simulation.cohorts import Rounds, check_cohorts, run_rounds

FEDBUFF = "fedbuff"
SEATED_MOST = 1_000
"""Maximum number of clients for which a simulation makes all machines at its start and sends them its last model."""


@dataclass(frozen=True)
class FederationPlan(Plan):
    """The plan of a federated run; see plans.plan.Plan.  `federated` is the algorithm."""

    experiment: FederatedExperiment
    section: CoordinatorSection
    federated: Federated[Any]
    cohort: int
    """Number of clients that a round uses."""
    least: int
    """Minimum number of contributions; a round with fewer is abandoned.  With tiers, the minimum per leaf."""
    sizes: tuple[int, ...] | None = None
    """Number of examples of each client; None if unknown."""
    trained_on: Mapping[NodeId, int] = field(default_factory=dict)
    """Number of examples that each client in this process trains on."""
    segments: tuple[Segment, ...] = ()
    exact: ExactSums | None = None
    """Encoding of statistics in runs that sum them; None for models."""
    questions: Questions | None = field(default=None, repr=False, compare=False)
    """Checks by local clients before they answer an exact sum."""
    abstaining: frozenset[NodeId] = frozenset()
    """Clients of this process that decline each invitation because their tables do not fit."""
    vacancies: bool = False
    """Whether a simulation makes a client's machine at its first invitation."""

    def with_segments(self, segments: tuple[Segment, ...]) -> Self:
        length, statistics = (segments[-1].stop if segments else 0), statistics_in(segments)
        apart = with_statistics(self.federated, length - statistics, length) if statistics else self.federated
        return replace(super().with_segments(segments), federated=apart)

    def check_statistics(self, tensor: str) -> None:
        check_federated_statistics(self.section, self.gradients, tensor)

    @property
    def secure(self) -> bool:
        return self.section.secure.on

    def hides(self, client: NodeId) -> bool:
        """Return whether a client's coordinator sees only sums, not this client's messages."""
        return self.secure and self.tree.group(self.tree.parent(client)).secure

    @property
    def unit(self) -> str:
        """Unit that the privacy budget protects: record, client, or none."""
        return self.section.privacy.unit

    @property
    def buffered(self) -> bool:
        return self.section.algorithm == FEDBUFF

    @cached_property
    def tree(self) -> Tree:
        """Tree of coordinators and clients."""
        return tree_of(self.section)

    @cached_property
    def roles(self) -> Roles:
        return self.tree.roles

    @property
    def coordinator(self) -> NodeId:
        return self.tree.root

    @property
    def name(self) -> str:
        return self.section.algorithm if self.exact is None else self.experiment.task.kind

    @property
    def exact_layout(self) -> str:
        return "" if self.exact is None else self.exact.schema.hex()

    @property
    def gives_model(self) -> bool:
        return self.exact is None

    @property
    def vectors(self) -> int:
        return self.federated.clients.vectors

    @property
    def gradients(self) -> bool:
        return self.federated.clients.gradient

    @cached_property
    def codec(self) -> Codec | None:
        """Codec of uploads; None: uncoded."""
        return codec_named(self.section.codec) if self.section.codec else None

    def coding(self, length: int, kind: np.dtype[np.floating]) -> UploadCodec | None:
        """Return the encoding of uploaded updates [length]; None: uncoded."""
        if self.codec is None:
            return None
        statistics = statistics_in(self.segments)
        parameters = [one for one in self.segments if one.kind == PARAMETER]
        layout = VectorLayout.of_length(length - statistics, kind, parameters)
        return UploadCodec(self.codec, layout, self.experiment.seed, statistics)

    def client_rule(self, coding: UploadCodec | None) -> ClientRule:
        """Return the client's rule."""
        return CodedClient(self.federated.clients, coding, added=self.secure) if coding else self.federated.clients

    def count_upload_bytes(self, length: int, kind: np.dtype[np.floating]) -> int:
        """Return the bytes of vectors in a client's first answer; with a secure sum those of the masked vector."""
        if words := self.masked(length):
            return 4 * words
        if coding := self.coding(length, kind):
            return coding.size(0)
        return length * kind.itemsize * self.vectors

    @property
    def fingerprint(self) -> Mapping[str, object]:  # a new copy: callers that hash it remove keys in place
        return self.experiment.shared()

    @property
    def patience(self) -> tuple[float, float]:
        return self.section.start_timeout, self.section.deadline

    @property
    def goal(self) -> int:
        """Buffer size, K of FedBuff."""
        return self.section.goal or min(10, max(1, self.learners // 2))

    @cached_property
    def sampling(self) -> Sampling:
        """Sampling rule of invitations.  Raises ConfigError for sampling by unknown sizes."""
        s, e, n = self.section, self.experiment, self.learners
        known = s.over_selection, s.candidates or 2 * self.invited, self.sizes
        own = make_sampling(s.sampling, e.seed, n, self.cohort) if is_function(s.sampling) else None
        rule = own or sampling_named(s.sampling, e.seed, range(n), self.cohort, *known)
        if s.available is None:
            return rule
        limits = self.invited if self.secure else 0, self.least
        return available_sampling(s.available, rule, e.seed, n, e.rounds, *limits)

    @property
    def client_settings(self) -> ClientSettings:
        """Settings that clients receive: rounds, deadlines, and when they test the model of a round."""
        e, s = self.experiment, self.section
        every = e.eval.every if e.data.local_test else 0
        session, patience = nanoseconds(PHASES * s.deadline), e.stop.patience * e.eval.every
        return ClientSettings(e.rounds, nanoseconds(s.silence), session_ns=session, test_every=every, patience=patience)

    @property
    def pausable(self) -> bool:
        return not self.secure and not self.experiment.loops

    @property
    def vacant(self) -> Collection[NodeId]:
        return range(self.learners) if self.vacancies else ()

    def with_engine(self, engine: str) -> FederationPlan:
        """Return the plan for `engine`; "sim" makes machines of many clients late, except with faults and fedbuff."""
        many = engine == "sim" and self.learners > SEATED_MOST and not self.buffered
        flat = not self.section.tiers
        return replace(self, vacancies=many and flat and not self.experiment.faults)

    @property
    def banner(self) -> Sequence[str]:
        return banner_of(self)

    def outlook(self, task: LocalTask) -> RunOutlook:
        return outlook_of(self, task)

    @property
    def masks(self) -> bool:
        return self.secure

    @cached_property
    def _coordinator_alone(self) -> Sequence[NodeId]:
        return (self.coordinator,)

    def partners(self, node: NodeId) -> Sequence[NodeId]:
        if self.vacancies:  # a tuple per client would take a second for a million clients
            return range(self.learners) if node == self.coordinator else self._coordinator_alone
        below = () if node < self.learners else self.tree.group(node).members
        return below if node == self.coordinator else (*below, self.tree.parent(node))

    @cached_property
    def _drawn(self) -> tuple[DrawnMembers, ParticipantRoster]:
        members = DrawnMembers(self.experiment.seed, self.n)
        return members, members.roster()

    def simulated(self, node: NodeId, incarnation: int = 0, log: Sequence[Logged] = ()) -> Own | None:
        if not self.secure and self.unit == "none":
            return None
        seed, (members, roster) = self.experiment.seed, self._drawn
        return Credentials(
            members.keys(node)[1],
            stream(seed, "entropy", node, incarnation).bytes,
            roster,
            log=tuple(log),
            noise=lambda round: stream(seed, "noise", node, round).bytes,
            spent=self.agreed_before(node),
        )

    def agreed_before(self, node: NodeId) -> Sequence[Mapping[str, object]]:
        """Return a client's spending on the statistics of this run, if no ledger records it."""
        tables = node < self.learners and self.exact is None and self.unit == "record"
        return statistics_spends(self.experiment) if tables else ()

    def _chances(self, node: NodeId, own: Credentials | None = None) -> Callable[[int], Chances]:
        seed = self.experiment.seed

        def chances(round: int) -> Chances:
            rounding = stream(seed, "rounding", node, round).bytes
            return Chances(rounding, own.noise(round) if own else rounding)

        return chances

    def _purse(self, node: NodeId, own: Credentials | None) -> AccountedBudget | None:
        """Return the privacy budget: for sums the coordinator's; for releases of each client its own."""
        p, log, before = self.section.privacy, own.log if own else (), own.spent if own else ()
        total = own.total if own else None
        if not self.spends(node):
            return None
        if self.unit == "client" or self.exact is not None:  # each round is one release, of all records
            return purse_of(p, 1.0, 1, log, before, total=total)
        if node not in self.trained_on:
            advice = "A run with a privacy budget can be neither recorded nor replayed."
            raise ConfigError(
                f"the number of examples of client {node} is unknown, and the budget that it has spent", advice
            )
        cost = cost_of_training(self.experiment, self.trained_on[node])
        return purse_of(p, *cost, log, before, self.client_settings.tests, total)

    def with_shares(self, shares: DataShares) -> FederationPlan:
        """Return the plan with these numbers.  Raises ConfigError if a secure sum cannot hold a local client's."""
        sized = replace(self, sizes=tuple(shares.sizes) if shares.sizes else None, trained_on=shares.trained_on)
        if self.secure and self.weighs_examples:
            check_weights(sized.weight_max, shares.trained_on, self.roles)
        return sized

    # --- a secure sum ---------------------------------------------------------------------------------------------

    @property
    def invited(self) -> int:
        """Number of clients in the cohort of a secure sum."""
        # 1e-9: the float product 100 * 1.1 is just above 110
        return min(self.learners, math.ceil(self.cohort * self.section.over_selection - 1e-9))

    @property
    def threshold(self) -> int | None:
        """Number of shares that reconstruct a secret; None if it follows from the graph, or from a group's size."""
        if not self.tree.flat:
            return None
        if self.section.secure.threshold is not None or self.invited > graph.COMPLETE_MAX:
            return self.section.secure.threshold
        return graph.policy_threshold(self.invited)

    @cached_property
    def numbers(self) -> Numbers:
        """Encoding of contributions as integers for a sum, with noise if the run has any."""
        return Numbers(
            self.section,
            self.experiment.train,
            self.federated.clients,
            invited=self.invited,
            least=self.least,
            vectors=self.vectors,
            by_examples=self.weighs_examples,
            weight_max=self.weight_max,
            sent_metrics=self.sent_metrics,
            score=self.experiment.score,
            exact=self.exact,
            statistics=statistics_in(self.segments),
        )

    @property
    def weight_max(self) -> int:
        """Maximum number of examples of a client in a secure sum; by default as sizes require and bits allow."""
        return weight_max_for(self.section.secure, max(self.sizes or (), default=0))

    @property
    def most_examples(self) -> int | None:
        """Maximum number of examples that one contribution may count; None without a bound."""
        return self.weight_max if self.secure and self.weighs_examples else None

    @property
    def weighs_examples(self) -> bool:
        """Whether a contribution counts by its number of examples."""
        rule = self.federated.clients
        return rule.weight(2) > rule.weight(1) and self.unit != "client"

    @property
    def sent_metrics(self) -> SentMetrics:
        """Metrics that clients report in addition to their vectors."""
        return metrics_of(
            self.unit,
            secure=self.secure,
            by_examples=self.weighs_examples,
            tested=self.experiment.data.local_test > 0,
            adaptive=self.section.privacy.adaptive,
            noisy_tests=self.section.privacy.test_noise > 0,
            compared=self._compared,
            loops=self.experiment.task.kind == "loop",
        )

    @property
    def _compared(self) -> tuple[str, ...]:
        if not self.experiment.personal:
            return ()
        return ("gains", "twentieth") if self.experiment.score.share else ("gains",)

    def masked(self, length: int) -> int:
        return self.numbers.fixed_point(length, "").words if self.secure else 0

    @cached_property
    def task_id(self) -> str:
        return f"fedgossip/{hash_of(without_folders(dict(self.fingerprint)))}"

    def policy(self, parent: NodeId, key: bytes, length: int, layout: str, limits: Mapping[str, Any] = {}) -> Policy:
        """Return the demands of a participant below `parent`, with its `key`; `limits`: those of a policy file."""
        group, adaptive = self.tree.group(parent), self.section.privacy.adaptive
        least, rule = (group.least, None) if group.tier else (self.least, self.numbers.rule)  # noise is the clients'
        about = key, self.task_id, self.numbers.fixed_point(length, layout), least
        usual = Policy(*about, rule=rule, adaptive=adaptive, company=self.tree.company(parent))
        return replace(usual, **limits)

    def spends(self, node: NodeId) -> bool:
        """Return whether a participant keeps a privacy account: clients for record privacy, all for client privacy."""
        root, client = node == self.coordinator, node < self.learners
        return (client or root) if self.unit == "client" else client and self.unit == "record"

    def abstains(self, node: NodeId) -> bool:
        return node in self.abstaining

    # --- machines -------------------------------------------------------------------------------------------------

    def seated(self, seat: Seat) -> Machine:
        who = seat.own if isinstance(seat.own, Credentials) else None
        if self.secure and who is None:
            advice = "A secure sum can be neither recorded nor replayed: its secrets are written down nowhere."
            raise ConfigError(f"participant {seat.node} of a secure sum has no keys", advice)
        if seat.node < self.learners:
            return self._client(seat, who)
        if seat.node != self.coordinator:
            assert who, "checked above: tiers are of integers in secure sums"
            return self._leaf(seat, who, self.tree.group(seat.node))
        return self._buffered(seat) if self.buffered else self._coordinator(seat, who)

    def _coordinator_settings(self, group: TierGroup) -> CoordinatorSettings:
        s = self.section
        return CoordinatorSettings(
            rounds=self.experiment.rounds,
            min_clients=self.least if group.tier == 0 else group.least,
            deadline_ns=nanoseconds(s.deadline),
            least_deadline_ns=nanoseconds(min(s.deadline, s.least_deadline)),
            start_ns=nanoseconds(s.start_timeout),
            return_ns=nanoseconds(min(s.return_timeout, s.start_timeout)),
            score=self.experiment.score,
            patience=self.experiment.stop.patience,
            every=0 if self.experiment.selects_at_clients else self.experiment.eval.every,
            below=group.tier,
            informs_uninvited=not self.vacancies,
        )

    def _coordinator(self, seat: Seat, who: Credentials | None) -> Coordinator[Any]:
        group = self.tree.group(seat.node)
        coding = self.coding(seat.initial.size, seat.initial.dtype)
        summing = self._summing(seat, who, group) if who and self.secure else None
        sampling = self.sampling if self.tree.flat else Uniform(self.experiment.seed, group.members, len(group.members))
        run = seat.node, group.members, self.federated, sampling, seat.initial, seat.schema
        limits = self._coordinator_settings(group), seat.resumed, summing, self._purse(seat.node, who), coding
        adapters = adapters_in(self.segments) if self.experiment.loops and summing is None else ()
        return Coordinator(*run, *limits, adapters)

    def _leaf(self, seat: Seat, who: Credentials, group: TierGroup) -> LeafCoordinator:
        above = self.tree.group(self.tree.parent(seat.node))
        down, s = self._coordinator_settings(group), self.section
        session_ns = PHASES * self._coordinator_settings(above).deadlines().longest_ns
        settings = LeafSettings(down, nanoseconds(s.silence), self.client_settings.idle_ns, session_ns)
        fixed = self.numbers.fixed_point(seat.initial.size, seat.schema)
        answering: SumAnswering
        if above.secure:
            key, roster = who.roster.identity(above.coordinator), who.roster.first(self.coordinator)
            policy = self.policy(above.coordinator, key, seat.initial.size, seat.schema)
            party = SecAggClient(seat.node, roster, policy, who.sign, who.entropy, client_round.past_of(who.log))
            answering = Securely(party, self._chances(seat.node, who))
        else:
            answering = AnsweringInIntegers(fixed, self._chances(seat.node, who))
        layout, summing = Invite(0, seat.schema, (seat.initial,) * self.vectors), self._summing(seat, who, group)
        about = seat.node, above.coordinator, group.members, summing, answering, layout, settings
        return LeafCoordinator(*about, seat.resumed)

    def _summing(self, seat: Seat, who: Credentials, group: TierGroup) -> SecureSumming | ClearSumming:
        """Return the way in which a coordinator sums its members' contributions."""
        fixed, rule, tree = self.numbers.fixed_point(seat.initial.size, seat.schema), self.numbers.rule, self.tree
        below = {} if group.tier == 0 else {
            node: ClientsBelow(tree.leaves_below(node, self.least), tree.clients_below(node)) for node in group.members
        }  # fmt: skip
        coding, onward = self.coding(seat.initial.size, seat.initial.dtype), seat.node != self.coordinator
        reading = SumReading(self.federated.clients, seat.initial.dtype, rule, coding, below, onward)
        least = self.least if group.tier == 0 else group.least
        if not group.secure:
            return ClearSumming(fixed, reading, least, seat.incarnation)
        terms = SessionTerms(
            roster=who.roster.first(self.coordinator),
            fixed=fixed,
            rule=rule if group.tier == 0 else None,  # the noise is the clients'
            sign=who.sign,
            task_id=self.task_id,
            n_min=least,
            threshold=self.threshold if tree.flat else group.threshold,
            neighbours=self.section.secure.neighbours,
        )
        clip: Any = seat.resumed.facts.get("clip") if seat.resumed else None
        return SecureSumming(terms, reading, group.members, seat.incarnation, self.numbers.clipping(clip))

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
        answering = self._answering(seat, who) if who and self.secure else Plainly()
        answering = Abstaining(Reason.SCHEMA.value) if seat.node in self.abstaining else answering
        rule = self.client_rule(self.coding(seat.initial.size, seat.initial.dtype))
        purse = self._purse(seat.node, who)
        about = seat.node, self.tree.parent(seat.node), rule, seat.initial, seat.schema, self.client_settings
        server = self.federated.server
        whole = server.over if isinstance(server, EndingRule) else never
        return Client(*about, seat.resumed, answering, purse, self.sent_metrics, whole)

    def _answering(self, seat: Seat, who: Credentials) -> Answering:
        parent = self.tree.parent(seat.node)
        if not self.tree.group(parent).secure:
            fixed, rule = self.numbers.fixed_point(seat.initial.size, seat.schema), self.numbers.rule
            noise = rule.compute_noise(fixed) if rule else NO_NOISE
            return AnsweringInIntegers(fixed, self._chances(seat.node, who), noise)
        policy = who.policy or self.policy(parent, who.roster.identity(parent), seat.initial.size, seat.schema)
        roster, past = who.roster.first(self.coordinator), client_round.past_of(who.log)
        if who.company:
            past.company, past.members = who.company, past.members if past.company == who.company else ""
        party = SecAggClient(seat.node, roster, policy, who.sign, who.entropy, past)
        round: Any = seat.resumed.facts.get("pending_round", -1) if seat.resumed else -1
        whole = self.tree.flat
        before = AskedBefore(round, seat.resumed.vectors["x"], whole=whole) if seat.resumed and round >= 0 else None
        return Securely(party, self._chances(seat.node, who), self.questions, before, whole)

    # --- the run --------------------------------------------------------------------------------------------------

    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:
        """Return whether the coordinator has released the client."""
        if node == self.coordinator and not self.experiment.endless:
            return rounds == self.experiment.rounds
        return not stopped

    def model_in(self, checkpoint: Checkpoint) -> Vector | None:
        server = self.federated.server
        return None if self.buffered else server.broadcast(state_in(server, checkpoint))[0]

    def is_over(self, node: NodeId, model: Vector) -> bool:
        return node == self.coordinator and is_over(self.federated.server, model)

    def least_memory(self, engine: str, size: int) -> int:
        about = self.learners, self.cohort, self.experiment, self.federated, self.sampling, self.codec
        return Clients(*about).least_memory(engine, size)

    def check_arrays(self, task: LocalTask) -> None:  # noqa: ARG002
        if self.buffered:
            raise ConfigError("the stacked engine goes by rounds: no fedbuff", "Run it with --on sim.")
        if self.unit != "none":
            raise ConfigError("the stacked engine keeps no privacy budget", "Run it with --on sim.")
        if not self.tree.flat:
            advice = "Run it with --on sim; or leave coordinator.tiers out, for the same model."
            raise ConfigError("the stacked engine has one coordinator, and no coordinator.tiers", advice)
        check_cohorts(self.sampling, self.learners)

    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        fixed = self.numbers.fixed_point(task.length, task.schema) if self.secure else None
        chances = [self._chances(node) for node in range(self.learners)]
        e, coding = self.experiment, self.coding(task.length, task.dtype)
        who = replace(self.federated, clients=self.client_rule(coding)), self.sampling, self.learners
        rounds = Rounds(*who, e.rounds, self.least, fixed, chances, e.score, self.sent_metrics, coding=coding)
        state = rounds.start(task)

        def finish(between: Callable[[], None]) -> Results:
            model = run_rounds(rounds, state, task, record, write, tests=self.client_settings.tests, between=between)
            return Results([*[None] * self.learners, model])

        return state, finish

    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        """Return the global model."""
        return [vectors[self.coordinator]]

    def verdict(self, words: Sequence[str | None]) -> str:
        """Return the coordinator's status; partial if some clients ended early."""
        status, clients = words[self.coordinator], words[: self.coordinator]
        if status != "finished":
            return status or "failed"
        words = [word for word in clients if word] if self.vacancies else clients
        whole = all(word in ("finished", EXHAUSTED) for word in words) or not any(words)  # arrays have no clients
        return "finished" if whole else PARTIAL

    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> completeness.Lacking:
        if node is not None and self.learners <= node < self.coordinator:
            return completeness.Lacking()  # a leaf coordinator has no rounds
        all_in_each = self.cohort == self.learners and not self.buffered and self.section.available is None
        found = completeness.find_missing_work(rows, self.coordinator, node, all_in_each=all_in_each)
        return completeness.with_exchanges(found, rows, self.exchanges, self.roles, node)

    def exchanges(self, row: Row) -> tuple[int, int]:
        if isinstance(row, NetworkRow) or row.peer != self.coordinator:
            return 0, 0
        if self.buffered:
            return completeness.count_missing_updates(row)
        if not isinstance(row, PeerRow) or not row.round:
            return 0, 0
        return completeness.count_missing_clients(row, self.sampling.draw(row.round - 1, range(self.learners)).wanted)

    def terms(self, parameters: int, itemsize: int) -> JoiningTerms:
        return terms_of(self, parameters, itemsize)

    def facts(self, rows: Sequence[Row]) -> MethodFacts:
        return facts_of(self, rows)
