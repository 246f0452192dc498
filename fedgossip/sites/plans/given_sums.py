"""Statistics and fits over a user's transport: any object with `sum(numbers) -> numbers`, at every site.

    encoding = encoding_of_agreement(experiment)          # for SumClient and SumServer, the same at all sites
    table = agree_by_sums(experiment, site, sums)         # then written to data.agreed, as `fedgossip data agree` does
    encoding = encoding_of_fit(experiment)
    result = fit_by_sums(experiment, site, sums)          # the contents of fit.json, of every kind of fit

`FramedSums` and `serve_sums` make the sums by `fedgossip.secure`, over two functions that send and receive bytes.

Each round calls `sum` once with this site's whole numbers; all sites compute the same result, and check each state
(`SumsTask.check`).  The caller is responsible for approvals and ledgers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, is_over
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.agreed.sums_task import SumsTask
from fedgossip.experiment import Experiment
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.secure import ExactEncoding, Reason, RoundAbandoned, SumClient, SumServer
from fedgossip.secure.encoding import ExactSums, integers_of, words_in, words_of
from fedgossip.secure.fixed_point import Words, little
from fedgossip.secure.session_history import AskedBefore
from fedgossip.secure.sums import FRAMES_MAX
from fedgossip.sites.plans.fits import planned_fit
from fedgossip.sites.plans.statistics import agreed_from, statistics_plan, statistics_task


class GivenSums(Protocol):
    """The sum over all sites, over any transport."""

    def sum(self, numbers: Sequence[int], /) -> Sequence[int]:
        """Return the sums of all sites' numbers, in the same order; whole numbers of up to 512 bits."""
        ...


class FramedSums:
    """The sums at one site, by secure sums: its coordinator runs `serve_sums`, which ends where a site leaves `with`.

    `send(frame)` and `receive()` exchange frames with the coordinator; `receive` raises at its deadline.
    """

    def __init__(self, client: SumClient, send: Callable[[bytes], object], receive: Callable[[], bytes]) -> None:
        self._client, self._send, self._receive = client, send, receive
        self._rounds = count(1)

    def __enter__(self) -> FramedSums:
        return self

    def __exit__(self, *_: object) -> None:
        self._send(_END)

    def sum(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return the sum that the coordinator signed.  Raises as `SumClient.take_part`."""
        self._client.give(next(self._rounds), numbers)
        self._client.take_part(self._send, self._receive)
        for _ in range(FRAMES_MAX):  # repeated frames of the round may come first
            if hashlib.sha256(words := self._receive()).digest() == self._client.sum_digest:
                return integers_of(np.frombuffer(words, "<u4"), self._client.encoding.ring.ring_bits)[:-1]
        raise ProtocolError(f"{FRAMES_MAX} frames, and none is the signed sum", "Who else writes to this transport?")


_END = b""


class _SiteEndedError(Exception):
    pass


def serve_sums(
    server: SumServer, send: Callable[[int, bytes], object], receive: Callable[[], tuple[int, bytes] | None]
) -> None:
    """Coordinate a round of all sites after the other, until a site ends.

    `send(site, frame)` and `receive()` as of `SumServer.collect`.
    """

    def reply() -> tuple[int, bytes] | None:
        if (received := receive()) and received[1] == _END and received[0] in server.places:
            raise _SiteEndedError
        return received

    with suppress(_SiteEndedError):
        for round in count(1):
            result = server.collect(round, server.places, send, reply)
            words = words_of([*result.sum, len(result.clients)], server.encoding.ring.ring_bits)
            for site in result.clients:
                send(site, bytes(little(words)))


def encoding_of_agreement(experiment: Experiment) -> ExactEncoding:
    """Return the numbers of `agree_by_sums`, with their bounds.  Raises ConfigError."""
    return _encoding(statistics_plan(experiment)[0].exact)


def encoding_of_fit(experiment: Experiment) -> ExactEncoding:
    """Return the numbers of `fit_by_sums`, with their bounds.  Raises ConfigError, also before the agreement."""
    return _encoding(planned_fit(experiment).plan.exact)


def _encoding(exact: ExactSums | None) -> ExactEncoding:
    assert exact is not None, "a plan of sums has them"
    return ExactEncoding(exact.bounds, exact.ring_bits, exact.layout)


def agree_by_sums(experiment: Experiment, site: NodeId, sums: GivenSums) -> AgreedTable:
    """Return the statistics of all sites' tables.

    Raises ConfigError for a table that does not fit, and with a budget; TooFewPeersError; RoundAbandoned for a sum
    outside the agreed numbers.
    """
    if experiment.budget is not None:
        raise ConfigError("statistics with a budget, over given sums", "Use  fedgossip data agree, which charges it.")
    plan, schema = statistics_plan(experiment)
    plan, task, refused = statistics_task(plan, schema, _held(plan, site))
    return agreed_from(task, _rounds(plan, task, refused, site, sums), schema, plan.experiment.data.suppress)


def fit_by_sums(experiment: Experiment, site: NodeId, sums: GivenSums) -> Any:
    """Return the contents of the fit's file.

    Raises ConfigError for a table that does not fit, and before the agreement; TooFewPeersError; RoundAbandoned for a
    sum outside the agreed numbers, or a point at which too few records count.
    """
    fit = planned_fit(experiment)
    plan, task, refused = fit.of_sites(_held(fit.plan, site))
    return fit.result(_rounds(plan, task, refused, site, sums))


def _held(plan: FederationPlan, site: NodeId) -> list[NodeId]:
    if not 0 <= site < plan.learners:
        raise ConfigError(f"there is no site {site}", f"Sites are the clients 0 to {plan.learners - 1}.")
    if not plan.tree.flat:
        text = "coordinator.tiers over given sums, each of which is over all sites"
        raise ConfigError(text, "Leave coordinator.tiers out, for the same result.")
    return [site]


def _rounds(plan: FederationPlan, task: SumsTask, refused: Any, site: NodeId, sums: GivenSums) -> Vector:
    """Return the last state of the run; all sites are in every sum."""
    if site in refused:
        raise refused[site]
    server, clients, before = plan.federated.server, plan.learners, None
    state = server.start(task.initial(site))
    for number in range(plan.experiment.rounds):
        (x,) = server.broadcast(state)
        if is_over(server, x):
            break
        task.check(site, number, x, before)
        (update,) = task.train([Job(site, number, x)])
        own = None if update.difference is None else words_in(update.difference)
        assert own is not None, "a site's numbers are words"
        whole = _sum_of(sums, own, task.exact, clients)
        total = task.exact.decode(whole, clients).mean
        state = server.step(state, Aggregate((total,), clients, 1.0, number))
        before = AskedBefore(number, x, clients, hashlib.sha256(little(whole)).digest())
    return server.broadcast(state)[0]


def _sum_of(sums: GivenSums, own: Words, exact: ExactSums, clients: int) -> Words:
    bits = exact.ring_bits
    total = np.asarray(sums.sum(integers_of(own, bits)), object).reshape(-1).tolist()
    if len(total) != len(exact.bounds) or not all(isinstance(one, int) for one in total):
        text = f"a sum of {len(total)} values; {len(exact.bounds)} whole numbers were agreed"
        raise RoundAbandoned(Reason.SCHEMA, text)
    if any(abs(one) > clients * bound for one, bound in zip(total, exact.bounds, strict=True)):  # before a modulus
        raise RoundAbandoned(Reason.BOUND, "a sum beyond the bounds of all sites")
    return words_of([*total, clients], bits)
