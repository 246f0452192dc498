"""A script's initial model, for a coordinator that trains nothing: the script is run up to its join."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgossip.base.errors import ConfigError, FedgossipError, TrainingError
from fedgossip.drivers.loops.description import Described
from fedgossip.drivers.loops.joining import described, place
from fedgossip.drivers.loops.loop_handle import JoinedLoop
from fedgossip.drivers.loops.seats import NODE, N
from fedgossip.learning.own_loop.parameters import Exchanged
from fedgossip.plans.compose import Plan


class _JoinedError(BaseException):
    """The script has joined, and is no longer needed."""


class _FirstModel:
    """A seat that only waits for the first model."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.experiment = plan, plan.experiment
        self.found: Described | None = None

    def join(self, exchanged: Exchanged, optimizers: Sequence[Any]) -> JoinedLoop:  # noqa: ARG002
        self.found = described(self.plan, exchanged, "the first model")
        raise _JoinedError


def first_model_of(plan: Plan, script: Sequence[str]) -> Described:
    """Run a script here, as loop 0, up to `fedgossip.join`; return the description of its model.

    Raises ConfigError for a script that never joins, TrainingError for one that raises before.
    """
    listening = _FirstModel(plan)
    words, path, token = sys.argv, list(sys.path), place.set(listening)
    os.environ.update({NODE: "0", N: str(plan.learners)})
    sys.argv, sys.path[:] = list(script), [str(Path(script[0]).resolve().parent), *path]
    try:
        runpy.run_path(script[0], run_name="__main__")
    except _JoinedError:
        pass
    except FedgossipError:
        raise
    except Exception as error:
        traceback.print_exc()
        text = f"{script[0]} raised {type(error).__name__} before it joined: {error}"
        raise TrainingError(text, "The fault is in the script.") from error
    finally:
        place.reset(token)
        sys.argv, sys.path[:] = words, path
        for name in (NODE, N):
            os.environ.pop(name, None)
    if listening.found is None:
        raise ConfigError(f"{script[0]} ended before it joined", "Does it call fedgossip.join(model, optimizer)?")
    return listening.found
