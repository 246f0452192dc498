"""Settings of a federated run: cohort, content of a sum, minimum number of contributions.

Everything is derived from the experiment and the clients' numbers of examples; `federation` creates the machines.
Clients are 0 to n - 2, the coordinator is n - 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, VectorLayout
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.federated.base import ClientRule, Federated
from fedgossip.algorithms.federated.coded import CodedClient, UploadCodec
from fedgossip.algorithms.federated.running_statistics import with_statistics
from fedgossip.algorithms.sampling import BySize, Poisson, Sampling, Uniform
from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId
from fedgossip.core.roles import Roles, federated_roles
from fedgossip.core.task import PARAMETER, Segment, statistics_in
from fedgossip.experiment import CoordinatorSection, FederatedExperiment, SecureSection
from fedgossip.plans.federated.secure_encoding import BITS_MANY, Numbers
from fedgossip.plans.plan import PlanDefaults, hash_of, nanoseconds, without_folders
from fedgossip.plans.statistics_checks import check_federated_statistics
from fedgossip.protocols.federated.client import ClientSettings
from fedgossip.protocols.federated.client_metrics import Telling, telling
from fedgossip.secure import graph
from fedgossip.secure.exact_sums import ExactSums
from fedgossip.secure.session import Policy
from fedgossip.secure.session_history import Questions

FEDBUFF = "fedbuff"
PHASES = 6
WEIGHT_MAX = 10_000
"""Maximum number of examples of a client in a secure sum, by default."""


@dataclass(frozen=True)
class FederatedRun(PlanDefaults):
    """A federated run before training; `federated` is the algorithm."""

    experiment: FederatedExperiment
    section: CoordinatorSection
    federated: Federated[Any]
    cohort: int
    """Number of clients that are wanted in a round."""
    least: int
    """Minimum number of contributions; a round with fewer is abandoned."""
    sizes: tuple[int, ...] | None = None
    """Number of examples of each client, where they are known."""
    trained_on: Mapping[NodeId, int] = field(default_factory=dict)
    """Number of examples that a client trains on, for clients that are held here."""
    segments: tuple[Segment, ...] = ()
    exact: ExactSums | None = None
    """The encoding of statistics in runs that sum them; None for models."""
    questions: Questions | None = field(default=None, repr=False, compare=False)
    """Checks of local clients before they answer, where sums are exact."""
    abstaining: frozenset[NodeId] = frozenset()
    """Clients that are held here and answer each invitation with a refusal: their tables do not fit."""

    def with_segments(self, segments: tuple[Segment, ...]) -> Self:
        length = segments[-1].stop if segments else 0
        apart = with_statistics(self.federated, length - statistics_in(segments), length)
        return replace(super().with_segments(segments), federated=apart)

    def check_statistics(self, tensor: str) -> None:
        check_federated_statistics(self.section, self.gradients, tensor)

    @property
    def secure(self) -> bool:
        return self.section.secure.on

    @property
    def unit(self) -> str:
        """The unit that a budget of privacy protects: record, client, or none."""
        return self.section.privacy.unit

    @property
    def buffered(self) -> bool:
        return self.section.algorithm == FEDBUFF

    @cached_property
    def roles(self) -> Roles:
        return federated_roles(self.section.clients)

    @property
    def coordinator(self) -> NodeId:
        return self.section.clients

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
        """The codec of uploads; None: uncoded."""
        return make_codec(self.section.codec) if self.section.codec else None

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
        rule = self.federated.clients
        return CodedClient(rule, coding, added=self.secure) if coding else rule

    def sent_up(self, length: int, kind: np.dtype[np.floating]) -> int:
        """Return the bytes of vectors in a client's answer to the first round; those of a masked vector."""
        if words := self.masked(length):
            return 4 * words
        if coding := self.coding(length, kind):
            return coding.size(0)
        return length * kind.itemsize * self.vectors

    @property
    def fingerprint(self) -> Mapping[str, object]:
        content = self.experiment.to_dict()
        for key in ("start_timeout", "return_timeout", "silence"):
            content["coordinator"].pop(key, None)
        if not self.section.privacy.test_noise:  # folders and policies from before it
            content["coordinator"]["privacy"].pop("test_noise", None)
        if self.section.secure.score_max == SecureSection().score_max:
            content["coordinator"]["secure"].pop("score_max", None)
        if not self.section.codec:
            content["coordinator"].pop("codec", None)
        content["coordinator"]["secure"].setdefault("weight_max", WEIGHT_MAX)  # as releases before had it
        content.pop("track", None)  # each may track for itself
        return content

    @property
    def patience(self) -> tuple[float, float]:
        return self.section.start_timeout, self.section.deadline

    @property
    def goal(self) -> int:
        """The buffer size, K of FedBuff."""
        return self.section.goal or min(10, max(1, self.learners // 2))

    @cached_property
    def sampling(self) -> Sampling:
        """The sampling rule of invitations.  Raises ConfigError for sampling by unknown sizes."""
        s, seed, clients = self.section, self.experiment.seed, tuple(range(self.learners))
        if s.sampling == "poisson":
            return Poisson(seed, clients, self.cohort / self.learners)
        if s.sampling == "size":
            if self.sizes is None:
                advice = 'Set coordinator.sampling = "uniform".'
                raise ConfigError("clients with data of their own: nobody knows who has how many examples", advice)
            return BySize(seed, dict(enumerate(self.sizes)), self.cohort, s.over_selection)
        return Uniform(seed, clients, self.cohort, s.over_selection)

    @property
    def client_settings(self) -> ClientSettings:
        """Return whether clients test the model of a round: they do so in the rounds that are evaluated."""
        e, s = self.experiment, self.section
        every = e.eval.every if self._tests_at_clients else 0
        session = nanoseconds(PHASES * s.deadline)
        patience = e.stop.patience * e.eval.every
        return ClientSettings(e.rounds, nanoseconds(s.silence), session_ns=session, test_every=every, patience=patience)

    @property
    def _tests_at_clients(self) -> bool:
        return self.experiment.data.local_test > 0

    # --- a secure sum ---------------------------------------------------------------------------------------------

    @property
    def invited(self) -> int:
        """Number of clients in the cohort of a secure sum."""
        return min(self.learners, math.ceil(self.cohort * self.section.over_selection - 1e-9))

    @property
    def threshold(self) -> int | None:
        """Number of shares that give a secret back; None where it follows from the graph."""
        if self.section.secure.threshold is not None or self.invited > graph.COMPLETE_MAX:
            return self.section.secure.threshold
        return graph.policy_threshold(self.invited)

    @cached_property
    def numbers(self) -> Numbers:
        """The encoding of contributions as integers that can be summed, with noise where there is some."""
        return Numbers(
            self.section,
            self.experiment.train,
            invited=self.invited,
            least=self.least,
            vectors=self.vectors,
            by_examples=self._by_examples,
            weight_max=self.weight_max,
            telling=self.telling,
            score=self.experiment.score,
            exact=self.exact,
            statistics=statistics_in(self.segments),
        )

    @property
    def weight_max(self) -> int:
        """Maximum number of examples of a client in a secure sum: as the experiment says; else as the sizes of all
        clients need it, where they are known and an element has the bits for it."""
        s = self.section.secure
        if s.weight_max is not None:
            return s.weight_max
        largest = max(self.sizes or (), default=0)
        fits = 2 ** ((s.bits or BITS_MANY) - 1) - 1
        steps = (first * 10**power for power in range(4, 10) for first in (1, 2, 5))
        wanted = next((step for step in steps if step >= largest), WEIGHT_MAX)
        return wanted if wanted <= fits else WEIGHT_MAX

    @property
    def most_examples(self) -> int | None:
        """Maximum number of examples that one contribution may count; None where nothing bounds it."""
        return self.weight_max if self.secure and self._by_examples else None

    @property
    def _by_examples(self) -> bool:
        rule = self.federated.clients
        return rule.weight(2) > rule.weight(1) and self.unit != "client"

    @property
    def telling(self) -> Telling:
        """The metrics that clients report beside their vectors."""
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
        return f"fedgossip/{hash_of(without_folders(dict(self.fingerprint)))}"

    def policy(self, coordinator: bytes, length: int, layout: str) -> Policy:
        """Return the policy of a client of this experiment that has no policy file."""
        fixed, adaptive = self.numbers.fixed_point(length, layout), self.section.privacy.adaptive
        return Policy(coordinator, self.task_id, fixed, self.least, rule=self.numbers.rule, adaptive=adaptive)

    def spends(self, node: NodeId) -> bool:
        """Return whether a participant keeps a privacy account: clients for record privacy, all for client privacy."""
        return self.unit == "client" or (self.unit == "record" and node != self.coordinator)

    def abstains(self, node: NodeId) -> bool:
        return node in self.abstaining
