"""Trials of users' models, losses and metrics on a few examples, before anything runs: each is called twice.

A function that changes its arguments, or returns another result the second time (because of time or global randomness),
is refused by name; torch's generator has the same state each time.  Exceptions are left to the run, which reports them
with their place: a metric may need more examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream
from fedgossip.data.custom import is_function
from fedgossip.data.dataset import Dataset
from fedgossip.data.ragged import Ragged
from fedgossip.learning.models import models
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.one_model.scoring import Scoring

EXAMPLES = 8
"""Number of examples of the test set."""
TOLERANCE = 1e-4
"""Relative tolerance: kernels may sum in another order at another memory address."""
ALONE = "BatchNorm needs more: another train.batch_size leaves no example alone; with GroupNorm a batch may be one."
STEADY = "Let it depend on its arguments alone; torch's own generator is seeded."


def check_own_parts(
    source: str,
    module: nn.Module,
    remade: Callable[[], nn.Module],
    test: Dataset,
    criterion: Criterion,
    scoring: Scoring,
) -> None:
    """Raise ConfigError as described in the module's docstring.  `remade`: builds the module of `source` again."""
    own_model, own_loss = models.is_own(source), is_function(criterion.name)
    if not (own_model or own_loss or scoring.own):
        return
    again, where = remade(), f"model.source = {source!r}"
    if own_model:
        _check_made(where, module, again)
    rows = np.sort(stream(0, "own-trials").choice(len(test), min(EXAMPLES, len(test)), replace=False))
    x, y = (torch.from_numpy(np.array(part[rows])) for part in (test.x, test.y))
    again.eval()
    try:
        outputs = _call_twice(where, again, x)
        if own_loss:
            _call_twice(f"task.loss = {criterion.name!r}", criterion.mean, outputs, y)
        for name, metric in scoring.own.items():
            _call_twice(f"task.metrics: {name!r}", metric, outputs.float().numpy(), y.numpy())
    except ConfigError:
        raise
    except Exception:  # the user's own code
        return


def check_one_example(source: str, remade: Callable[[], nn.Module], train: Dataset, smallest: int) -> None:
    """Raise ConfigError if the smallest batch is one example, and BatchNorm refuses it."""
    if smallest > 1:
        return
    x = train.x.padded(np.arange(1)) if isinstance(train.x, Ragged) else np.array(train.x[:1])
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            remade().train()(torch.from_numpy(x))
    except Exception as error:  # the run reports others with their place
        if "more than 1 value per channel" in str(error):
            raise ConfigError(f"{source}: a batch here is one example: {error}", ALONE) from error


def _check_made(where: str, module: nn.Module, again: nn.Module) -> None:
    one, other = ({**dict(made.named_parameters()), **dict(made.named_buffers())} for made in (module, again))
    if again is module:
        raise ConfigError(f"{where} gave one module twice", "Make a new one in each call.")
    if [(name, each.shape) for name, each in one.items()] != [(name, each.shape) for name, each in other.items()]:
        raise ConfigError(f"{where} gave models of two shapes for the same arguments", STEADY)
    if unlike := [name for name in one if not torch.equal(one[name].nan_to_num(), other[name].nan_to_num())]:
        raise ConfigError(f"{where} gave two models for the same arguments: {unlike[0]} differs", STEADY)


def _call_twice(where: str, part: Callable[..., Any], *given: Any) -> Any:
    found = []
    for _ in range(2):
        copies = [np.array(each) if isinstance(each, np.ndarray) else each.clone() for each in given]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            found.append(part(*copies))
        if not all(np.array_equal(each, before, equal_nan=True) for each, before in zip(copies, given, strict=True)):
            raise ConfigError(f"{where} changed its arguments", "Let it work on copies of them.")
    first, second = found
    if not np.allclose(first, second, rtol=TOLERANCE, atol=TOLERANCE**2, equal_nan=True):
        raise ConfigError(f"{where} gave two results for the same arguments", STEADY)
    return first
