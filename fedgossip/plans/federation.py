"""A federated run: a coordinator, its clients, and what they must agree on.

Clients are 0 to n - 2, the coordinator is n - 1.  What only real runs have (keys, a policy of the client's own) comes
in as `Credentials`; a simulation draws keys for everybody from its seed: real cryptography, and no secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedgossip import kernels
from fedgossip.algorithms.federated.base import Federated
from fedgossip.algorithms.sampling import BySize, Poisson, Sampling, Uniform
from fedgossip.errors import ConfigError
from fedgossip.experiment import CoordinatorSection, Experiment, PrivacySection
from fedgossip.machine import Checkpoint, Machine, NodeId
from fedgossip.metrics import Network
from fedgossip.plans.completeness import Lacking, of_federation
from fedgossip.plans.credentials import Credentials, Logged, Own
from fedgossip.plans.plan import EXHAUSTED, PARTIAL, Arrays, Results, hash_of
from fedgossip.plans.privacy_budget import BudgetPurse, cost_of_training, purse_of
from fedgossip.plans.secure_encoding import Numbers
from fedgossip.plans.tasks import DataShares
from fedgossip.privacy.guarantee import guarantee
from fedgossip.protocols import client_round
from fedgossip.protocols.buffered import Buffered, BufferedSettings
from fedgossip.protocols.client import Answering, Client, ClientSettings, Plainly, Securely
from fedgossip.protocols.client_round import Chances
from fedgossip.protocols.coordinator import Coordinator, CoordinatorSettings
from fedgossip.protocols.secure_round import SecureSumming, SessionTerms
from fedgossip.protocols.telling import Telling, telling
from fedgossip.records import EventRow, PeerRow, Row
from fedgossip.roles import Roles, federated_roles
from fedgossip.secure import graph
from fedgossip.secure.client import SecAggClient
from fedgossip.secure.primitives import signer
from fedgossip.secure.session import ParticipantRoster, Policy, RosterMember
from fedgossip.seeds import stream
from fedgossip.simulation.cohorts import Rounds, run_rounds
from fedgossip.task import LocalTask, Segment
from fedgossip.vectors import Vector

FEDBUFF = "fedbuff"
PHASES = 6


@dataclass(frozen=True)
class FederationPlan:
    """What is known before anything is trained; `federated` is the algorithm."""

    experiment: Experiment
    section: CoordinatorSection
    federated: Federated[Any]
    cohort: int
    """Clients that are wanted in a round."""
    least: int
    """Contributions without which a round is abandoned."""
    sizes: tuple[int, ...] | None = None
    """Examples of each client, where they are known."""
    trained_on: Mapping[NodeId, int] = field(default_factory=dict)
    """Examples that a client trains on, of those that are held here."""
    segments: tuple[Segment, ...] = ()
    pausable: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pausable", not self.secure)

    @property
    def secure(self) -> bool:
        return self.section.secure.on

    @property
    def unit(self) -> str:
        """What a budget of privacy protects: record, client, or none."""
        return self.section.privacy.unit

    @property
    def budget(self) -> PrivacySection | None:
        return None if self.unit == "none" else self.section.privacy

    @property
    def buffered(self) -> bool:
        return self.section.algorithm == FEDBUFF

    @cached_property
    def roles(self) -> Roles:
        return federated_roles(self.section.clients)

    @property
    def n(self) -> int:
        return self.section.clients + 1

    @property
    def coordinator(self) -> NodeId:
        return self.section.clients

    @property
    def learners(self) -> int:
        return self.section.clients

    @property
    def name(self) -> str:
        return self.section.algorithm

    @property
    def banner(self) -> Sequence[str]:
        s = self.section
        how = f"steps of {self.goal} answers" if self.buffered else f"{self.cohort} in a round"
        line = f"{s.algorithm}, {s.clients} clients, {how}"
        if not self.secure:
            off = "NO secure aggregation (coordinator.secure.on = false): the coordinator sees every update"
            return [line, off, *self._budget_line, *kernels.remarks()]
        seen = f"the coordinator sees sums alone, each over at least {self.least} of {self.invited} clients"
        masks = f"; taking the masks off a sum needs {self.threshold} of them" if self.threshold else ""
        told = self._budget_line or [self._no_budget_line]
        return [line, f"secure aggregation: {seen}{masks}", *told, *kernels.remarks()]

    @property
    def _no_budget_line(self) -> str:
        """What a coordinator that lies has without a budget; full batches leave nothing to chance."""
        tells = "with a client and without it, tell what it learned"
        if self._whole:
            return f"NO budget of privacy, and whole passes in each round: two sums, {tells}"
        return f"no budget of privacy: many sums, {tells}"

    @property
    def _whole(self) -> bool:
        """Whether every round goes over all examples of a client, as far as it is known here."""
        t, sizes = self.experiment.train, self.trained_on.values() or self.sizes or ()
        steps = t.local_steps or 0
        return t.local_epochs is not None or any(steps * t.batch_size >= size for size in sizes)

    @property
    def _budget_line(self) -> Sequence[str]:
        p = self.section.privacy
        if self.unit == "none":
            return []
        worth = f"epsilon at most {p.max_epsilon:g}: {guarantee(p.max_epsilon)}"
        return [f"privacy of each {p.unit}: noise {p.noise:g}, clip {p.clip:g}; {worth}"]

    @property
    def vectors(self) -> int:
        return self.federated.clients.vectors

    @property
    def gradients(self) -> bool:
        return self.federated.clients.gradient

    @property
    def fingerprint(self) -> Mapping[str, object]:
        content = self.experiment.to_dict()
        for key in ("start_timeout", "return_timeout", "silence"):
            content["coordinator"].pop(key, None)
        if not self.section.privacy.test_noise:  # folders and policies from before it
            content["coordinator"]["privacy"].pop("test_noise", None)
        return content

    @property
    def patience(self) -> tuple[float, float]:
        return self.section.start_timeout, self.section.deadline

    restart_overrides = ()

    @property
    def masks(self) -> bool:
        return self.secure

    @property
    def externals(self) -> Mapping[str, object]:
        return {}

    def partners(self, node: NodeId) -> Sequence[NodeId]:
        return tuple(range(self.learners)) if node == self.coordinator else (self.coordinator,)

    # --- a secure sum ---------------------------------------------------------------------------------------------

    @property
    def invited(self) -> int:
        """Clients in the cohort of a secure sum."""
        return min(self.learners, math.ceil(self.cohort * self.section.over_selection - 1e-9))

    @property
    def threshold(self) -> int | None:
        """Shares that give a secret back; None where it follows from the graph."""
        if self.section.secure.threshold is not None or self.invited > graph.COMPLETE_MAX:
            return self.section.secure.threshold
        return graph.policy_threshold(self.invited)

    @cached_property
    def numbers(self) -> Numbers:
        """How contributions become integers that can be summed, with noise where there is some."""
        return Numbers(
            self.section,
            self.experiment.train,
            invited=self.invited,
            least=self.least,
            vectors=self.vectors,
            by_examples=self._by_examples,
            telling=self.telling,
        )

    @property
    def _by_examples(self) -> bool:
        rule = self.federated.clients
        return rule.weight(2) > rule.weight(1) and self.unit != "client"

    @property
    def telling(self) -> Telling:
        """What clients tell beside their vectors."""
        return telling(
            self.unit,
            secure=self.secure,
            by_examples=self._by_examples,
            tested=self._tests_at_clients,
            adaptive=self.section.privacy.adaptive,
            noisy_tests=self.section.privacy.test_noise > 0,
        )

    def masked(self, length: int) -> int:
        return self.numbers.fixed_point(length, "").words if self.secure else 0

    @property
    def task_id(self) -> str:
        return f"fedgossip/{hash_of(self.fingerprint)}"

    def policy(self, coordinator: bytes, length: int, layout: str) -> Policy:
        """What a client of this experiment insists on, that has no policy file."""
        fixed, adaptive = self.numbers.fixed_point(length, layout), self.section.privacy.adaptive
        return Policy(coordinator, self.task_id, fixed, self.least, rule=self.numbers.rule, adaptive=adaptive)

    @cached_property
    def _simulated(self) -> Sequence[Credentials]:
        """Keys for everybody, from the seed: for simulations, which keep no secrets."""
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
        )

    def _chances(self, node: NodeId, own: Credentials | None = None) -> Callable[[int], Chances]:
        """Rounding takes chances that are no secret, and the same in every driver."""
        seed = self.experiment.seed

        def chances(round: int) -> Chances:
            rounding = stream(seed, "rounding", node, round).bytes
            return Chances(rounding, own.noise(round) if own else rounding)

        return chances

    def _purse(self, node: NodeId, own: Credentials | None) -> BudgetPurse | None:
        """The coordinator counts what its sums tell of clients; each client, what has left it."""
        p, log, before = self.section.privacy, own.log if own else (), own.spent if own else ()
        if not self.spends(node):
            return None
        if self.unit == "client":
            return purse_of(p, 1.0, 1, log, before)
        if node not in self.trained_on:
            advice = "A run with a budget of privacy can be neither recorded nor replayed."
            raise ConfigError(f"nobody knows how many examples client {node} has, nor what it has spent", advice)
        cost = cost_of_training(self.experiment, self.trained_on[node])
        return purse_of(p, *cost, log, before, self.client_settings.tests)

    def spends(self, node: NodeId) -> bool:
        """Whether a participant keeps an account of privacy: of records each client, of clients all."""
        return self.unit == "client" or (self.unit == "record" and node != self.coordinator)

    def with_shares(self, shares: DataShares) -> FederationPlan:
        sizes = tuple(shares.sizes) if shares.sizes else None
        return replace(self, sizes=sizes, trained_on=shares.trained_on)

    def with_segments(self, segments: tuple[Segment, ...]) -> FederationPlan:
        return replace(self, segments=segments)

    # --- machines -------------------------------------------------------------------------------------------------

    def machine(
        self,
        node: NodeId,
        initial: Vector,
        schema: str,
        resumed: Checkpoint | None = None,
        *,
        incarnation: int = 0,
        own: Own | None = None,
    ) -> Machine:
        who = own if isinstance(own, Credentials) else None
        if self.secure and who is None:
            advice = "A secure sum can be neither recorded nor replayed: its secrets are written down nowhere."
            raise ConfigError(f"participant {node} of a secure sum has no keys", advice)
        if node != self.coordinator:
            return self._client(node, initial, schema, resumed, who)
        if self.buffered:
            return self._buffered(initial, schema, resumed)
        return self._coordinator(initial, schema, resumed, incarnation, who)

    def _coordinator(
        self, initial: Vector, schema: str, resumed: Checkpoint | None, life: int, who: Credentials | None
    ) -> Coordinator[Any]:
        s = self.section
        settings = CoordinatorSettings(
            rounds=self.experiment.rounds,
            min_clients=self.least,
            deadline_ns=_ns(s.deadline),
            least_deadline_ns=_ns(min(s.deadline, s.least_deadline)),
            start_ns=_ns(s.start_timeout),
            return_ns=_ns(min(s.return_timeout, s.start_timeout)),
            score=self.experiment.score,
        )
        summing = self._summing(initial, schema, life, who, resumed) if who and self.secure else None
        run = self.coordinator, range(self.learners), self.federated, self.sampling, initial, schema, settings
        return Coordinator(*run, resumed, summing, self._purse(self.coordinator, who))

    def _summing(
        self, initial: Vector, schema: str, life: int, who: Credentials, resumed: Checkpoint | None
    ) -> SecureSumming:
        fixed = self.numbers.fixed_point(initial.size, schema)
        terms = SessionTerms(
            roster=who.roster.first(self.learners),
            fixed=fixed,
            rule=self.numbers.rule,
            sign=who.sign,
            task_id=self.task_id,
            n_min=self.least,
            threshold=self.threshold,
            neighbours=self.section.secure.neighbours,
        )
        clip: Any = resumed.facts.get("clip") if resumed else None
        clipping = self.numbers.clipping(clip)
        return SecureSumming(terms, self.federated.clients, initial.dtype, self.learners, life, clipping)

    def _buffered(self, initial: Vector, schema: str, resumed: Checkpoint | None) -> Buffered[Any]:
        s, goal = self.section, self.goal
        settings = BufferedSettings(
            rounds=self.experiment.rounds,
            goal=goal,
            at_once=min(self.learners, s.at_once or 2 * goal),
            most_stale=s.most_stale,
            min_clients=self.least,
            deadline_ns=_ns(s.deadline),
            start_ns=_ns(s.start_timeout),
            seed=self.experiment.seed,
            score=self.experiment.score,
        )
        clients = range(self.learners)
        return Buffered(self.coordinator, clients, self.federated, initial, schema, settings, resumed)

    @property
    def goal(self) -> int:
        """FedBuff's K."""
        return self.section.goal or min(10, max(1, self.learners // 2))

    def _client(
        self, node: NodeId, initial: Vector, schema: str, resumed: Checkpoint | None, who: Credentials | None
    ) -> Client:
        rule = self.federated.clients
        answering = self._securely(node, initial, schema, who) if who and self.secure else Plainly()
        purse = self._purse(node, who)
        about = node, self.coordinator, rule, initial, schema, self.client_settings
        return Client(*about, resumed, answering, purse, self.telling)

    def _securely(self, node: NodeId, initial: Vector, schema: str, who: Credentials) -> Answering:
        policy = who.policy or self.policy(who.roster.identity(self.coordinator), initial.size, schema)
        roster, past = who.roster.first(self.learners), client_round.past_of(who.log)
        return Securely(SecAggClient(node, roster, policy, who.sign, who.entropy, past), self._chances(node, who))

    @property
    def client_settings(self) -> ClientSettings:
        """Clients test the model that they are sent in the rounds that are evaluated."""
        e, s = self.experiment, self.section
        every = e.eval.every if self._tests_at_clients else 0
        session = _ns(PHASES * s.deadline)
        return ClientSettings(e.rounds, _ns(s.silence), session_ns=session, test_every=every)

    @property
    def _tests_at_clients(self) -> bool:
        return self.experiment.data.local_test > 0

    @cached_property
    def sampling(self) -> Sampling:
        """Who is invited."""
        s, seed, clients = self.section, self.experiment.seed, tuple(range(self.learners))
        if s.sampling == "poisson":
            return Poisson(seed, clients, self.cohort / self.learners)
        if s.sampling == "size":
            if self.sizes is None:
                advice = 'Set coordinator.sampling = "uniform".'
                raise ConfigError("clients with data of their own: nobody knows who has how many examples", advice)
            return BySize(seed, dict(enumerate(self.sizes)), self.cohort, s.over_selection)
        return Uniform(seed, clients, self.cohort, s.over_selection)

    # --- the run --------------------------------------------------------------------------------------------------

    def for_restart(self) -> FederationPlan:
        return self

    def is_complete(self, node: NodeId, rounds: int, *, stopped: bool = False) -> bool:
        """A client has done its part when the coordinator has sent it home."""
        return rounds == self.experiment.rounds if node == self.coordinator else not stopped

    def arrays(self, task: LocalTask, record: Network, write: Callable[[Row], None]) -> Arrays:
        if self.buffered:
            raise ConfigError("the stacked engine goes by rounds: no fedbuff", "Run it with --on sim.")
        if self.unit != "none":
            raise ConfigError("the stacked engine keeps no budget of privacy", "Run it with --on sim.")
        fixed = self.numbers.fixed_point(task.length, task.schema) if self.secure else None
        chances = [self._chances(node) for node in range(self.learners)]
        who = self.federated, self.sampling, self.learners
        rounds = Rounds(*who, self.experiment.rounds, self.least, fixed, chances, self.experiment.score)
        state = rounds.start(task)

        def finish(between: Callable[[], None]) -> Results:
            model = run_rounds(rounds, state, task, record, write, tests=self.client_settings.tests, between=between)
            return Results([*[None] * self.learners, model])

        return state, finish

    def outcome(self, vectors: Sequence[Vector | None]) -> Sequence[Vector | None]:
        """The global model."""
        return [vectors[self.coordinator]]

    def verdict(self, words: Sequence[str | None]) -> str:
        """The coordinator's word decides; a run that some clients did not see to its end is partial."""
        said, clients = words[self.coordinator], words[: self.learners]
        if said != "finished":
            return said or "failed"
        whole = all(word in ("finished", EXHAUSTED) for word in clients) or not any(clients)  # arrays have no clients
        return "finished" if whole else PARTIAL

    def lacking(self, rows: Sequence[Row], node: NodeId | None = None) -> Lacking:
        all_in_each = self.cohort == self.learners and not self.buffered
        return of_federation(rows, self.coordinator, node, all_in_each=all_in_each)

    def facts(self, rows: Sequence[Row]) -> dict[str, Any]:
        s = self.section
        abandoned = sum(isinstance(row, EventRow) and row.name == "abandoned" for row in rows)
        return {
            "graph": "coordinator",
            "algorithm": s.algorithm,
            "mode": "federated",
            "clients": s.clients,
            "cohort": self.cohort,
            "secure": self.secure,
            "rounds_abandoned": abandoned,
            **self._privacy(rows),
        }

    def _privacy(self, rows: Sequence[Row]) -> dict[str, Any]:
        """What was spent, by whoever spent most; None where only those know it whose rows are not here."""
        if self.unit == "none":
            return {}
        p = self.section.privacy
        done = [row for row in rows if isinstance(row, PeerRow)]
        epsilon = max((row.epsilon for row in done if row.epsilon is not None), default=None if done else 0.0)
        about = {"unit": p.unit, "noise": p.noise, "clip": p.clip, "delta": p.delta, "max_epsilon": p.max_epsilon}
        worth = guarantee(p.max_epsilon if epsilon is None else epsilon)
        return {"epsilon": epsilon, "privacy": {**about, "epsilon": epsilon, "guarantee": worth}}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
