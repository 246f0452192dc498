"""The algorithms by name, combined as in their papers.

    make("fedprox", clients=100, mu=0.1)

Defaults of options are those of the functions; all accept the server's options (lr).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from fedgossip.algorithms.federated import fedopt, robust_aggregation
from fedgossip.algorithms.federated.base import Aggregation, Federated
from fedgossip.algorithms.federated.cocoa import dual_rules
from fedgossip.algorithms.federated.fedavg import (
    Gradient,
    GradientServer,
    Normalised,
    Nova,
    ServerSgd,
    Training,
    proximal,
)
from fedgossip.algorithms.federated.fedopt import Momentum
from fedgossip.algorithms.federated.scaffold import Controlled, Dynamic, DynamicServer, Scaffold
from fedgossip.algorithms.federated.sums import Mean
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.limits import ABOVE_0, BELOW_1, MOST, OneOf, Within, check_options, check_values, table

Made = Federated[Any]

Positive = Annotated[float, Within(ABOVE_0)]
PositiveOr0 = Annotated[float, Within(0)]
Count = Annotated[int, Within(1, MOST)]
CountOr0 = Annotated[int, Within(0, MOST)]
Share = Annotated[float, Within(0, BELOW_1)]
Weighting = Annotated[str, OneOf(("examples", "clients"))]


def fedavg(*, lr: Positive = 1.0, weighting: Weighting = "examples") -> Made:
    """FedAvg: the mean of the clients' updates, times `lr`; weighted by "examples", or equally by "clients"."""
    return Federated(Training(weighting=weighting), Mean(), ServerSgd(lr))


def fedsgd(*, lr: Positive = 0.1) -> Made:
    """FedSGD: a step of `lr` along the mean of the clients' gradients."""
    return Federated(Gradient(), Mean(), GradientServer(lr))


def fedprox(*, mu: PositiveOr0 = 0.01, lr: Positive = 1.0, weighting: Weighting = "examples") -> Made:
    """FedProx: FedAvg with clients pulled back by `mu` times the distance to the received model."""
    return Federated(proximal(mu, weighting), Mean(), ServerSgd(lr))


def scaffold(*, clients: int, lr: Positive = 1.0) -> Made:
    """SCAFFOLD of `clients` clients in all: control variates remove the drift of local steps."""
    return Federated(Controlled(), Mean(), Scaffold(clients, lr))


def feddyn(*, clients: int, alpha: Positive = 0.1) -> Made:
    """FedDyn of `clients` clients in all: each client's penalty, of weight `alpha`, follows its gradient."""
    return Federated(Dynamic(alpha), Mean(), DynamicServer(clients, alpha))


def fednova(*, lr: Positive = 1.0, momentum: Share = 0.0) -> Made:
    """FedNova: updates divided by their number of steps; `momentum` is that of the clients' training."""
    return Federated(Normalised(momentum), Mean(), Nova(lr))


def fedavgm(*, lr: float = 1.0, beta: float = 0.9, nesterov: bool = False) -> Made:
    """FedAvgM: the server's momentum `beta`; with `nesterov` the outer step of DiLoCo."""
    return Federated(Training(), Mean(), Momentum(OuterStep(lr, beta, nesterov, "coordinator.options")))


def fedadagrad(*, lr: Positive = 0.01, beta1: Share = 0.0, tau: Positive = 1e-3) -> Made:
    """FedAdagrad; `tau` is added to the root of the second moment."""
    return Federated(Training(), Mean(), fedopt.Adaptive(fedopt.adagrad, lr, beta1, 0.0, tau))


def fedyogi(*, lr: Positive = 0.01, beta1: Share = 0.9, beta2: Share = 0.99, tau: Positive = 1e-3) -> Made:
    """FedYogi; `tau` is added to the root of the second moment."""
    return Federated(Training(), Mean(), fedopt.Adaptive(fedopt.yogi, lr, beta1, beta2, tau))


def fedadam(*, lr: Positive = 0.01, beta1: Share = 0.9, beta2: Share = 0.99, tau: Positive = 1e-3) -> Made:
    """FedAdam; `tau` is added to the root of the second moment."""
    return Federated(Training(), Mean(), fedopt.Adaptive(fedopt.adam, lr, beta1, beta2, tau))


def cocoa(
    *,
    clients: int,
    aggregation: str = "add",
    local: float = 1.0,
    gap: PositiveOr0 = 0.0,
    threshold: float = 0.0,
) -> Made:
    """CoCoA of `clients` in all, `local` passes in a round; changes are added or averaged; ends at gap `gap`."""
    client, server = dual_rules(clients, aggregation, local, gap, threshold)
    return Federated(client, Mean(), server)


def _robust(aggregation: Aggregation, lr: float) -> Made:
    return Federated(Training(weighting="clients"), aggregation, ServerSgd(lr))


def median(*, lr: Positive = 1.0) -> Made:
    """The median of each coordinate."""
    return _robust(robust_aggregation.ByRule(robust_aggregation.median), lr)


def trimmed_mean(*, cut: Count = 1, lr: Positive = 1.0) -> Made:
    """The mean of each coordinate without its `cut` smallest and largest."""
    return _robust(robust_aggregation.ByRule(robust_aggregation.trimmed_mean, {"cut": cut}, 2 * cut + 1), lr)


def krum(*, faulty: CountOr0 = 1, lr: Positive = 1.0) -> Made:
    """Krum: the contribution closest to its nearest others, with `faulty` malicious ones among all."""
    return _robust(robust_aggregation.ByRule(robust_aggregation.krum, {"faulty": faulty}, 2 * faulty + 3), lr)


def multi_krum(*, faulty: CountOr0 = 1, keep: Count = 2, lr: Positive = 1.0) -> Made:
    """Multi-Krum: the mean of the `keep` best by Krum's score."""
    least = max(2 * faulty + 3, keep + faulty)
    return _robust(
        robust_aggregation.ByRule(robust_aggregation.multi_krum, {"faulty": faulty, "keep": keep}, least), lr
    )


def geometric_median(*, lr: Positive = 1.0) -> Made:
    """The point of least summed distance."""
    return _robust(robust_aggregation.ByRule(robust_aggregation.geometric_median), lr)


def clipped_mean(*, longest: Positive = 1.0, lr: Positive = 1.0) -> Made:
    """The mean of the updates, each scaled down to the maximum norm `longest`."""
    return _robust(robust_aggregation.ByRule(robust_aggregation.clipped_mean, {"longest": longest}), lr)


ALGORITHMS: dict[str, Callable[..., Made]] = table(
    *(
        (made.__name__.replace("_", "-"), made)
        for made in (
            fedavg,
            fedsgd,
            fedprox,
            scaffold,
            feddyn,
            fednova,
            fedavgm,
            fedadagrad,
            fedyogi,
            fedadam,
            cocoa,
            median,
            trimmed_mean,
            krum,
            multi_krum,
            geometric_median,
            clipped_mean,
        )
    )
)
"""Algorithms by their names in an experiment file.  "fedbuff": any of them on `protocols.federated.buffered`."""


OURS = ("clients", "threshold")
"""Parameters that an experiment cannot set."""


def make(name: str, *, clients: int, threshold: float = 0.0, **options: Any) -> Made:
    """Return the algorithm `name` for `clients` clients; `threshold`: of the task, see `CoCoA`.

    Raises ConfigError for an unknown name or option.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"algorithm {name!r} is not known", nearest(name, ALGORITHMS))
    made = ALGORITHMS[name]
    check_options(name, made, options, ours=OURS)
    check_values(name, made, options)
    ours, takes = {"clients": clients, "threshold": threshold}, inspect.signature(made).parameters
    return made(**options, **{key: ours[key] for key in OURS if key in takes})
