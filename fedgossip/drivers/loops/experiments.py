"""The experiment of launched loops, where no file describes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgossip.base.errors import ConfigError
from fedgossip.experiment.sections import ENDLESS


@dataclass(frozen=True)
class Wished:
    """Options of the command line; None: not given."""

    n: int | None = None
    graph: str | None = None
    coordinator: bool = False
    algorithm: str | None = None
    mode: str | None = None
    rounds: int | None = None
    local_steps: int | None = None
    name: str = ""

    def overrides(self, experiment: Path | None) -> list[str]:
        """Return the options beside a file, as texts of --set.  Raises ConfigError for those that must be in the
        file.
        """
        if experiment is None:
            return []
        if self.graph or self.coordinator or self.n is not None:
            advice = "Change it there, or with --set topology.n=..."
            raise ConfigError(f"-n, --graph and --coordinator stand in {experiment} already", advice)
        said = {"algorithm.name": self.algorithm, "algorithm.mode": self.mode, "rounds": self.rounds}
        said["train.local_steps"] = self.local_steps
        return [f"{key}={value}" for key, value in said.items() if value is not None]


def experiment_of(wished: Wished) -> dict[str, Any]:
    """Return the requested experiment, in a file's shape.  Raises ConfigError."""
    if wished.n is None:
        raise ConfigError("how many loops?", "Give -n 4, or --experiment FILE.")
    content: dict[str, Any] = {"name": wished.name, "task": {"kind": "loop"}}
    if wished.local_steps is not None:
        content["train"] = {"local_steps": wished.local_steps}
    if wished.coordinator:
        return content | _federated(wished)
    if wished.n == 1 and wished.graph not in (None, "none"):
        raise ConfigError(f"one loop has no other to exchange with on {wished.graph!r}", "Leave --graph out.")
    graph = wished.graph or ("ring" if wished.n > 1 else "none")
    content["topology"] = {"graph": graph, "n": wished.n}
    said = {"name": wished.algorithm, "mode": wished.mode}
    content["algorithm"] = {key: value for key, value in said.items() if value is not None}
    return content | {"rounds": wished.rounds or ENDLESS}


def _federated(wished: Wished) -> dict[str, Any]:
    if wished.graph or wished.mode:
        given = "--graph" if wished.graph else "--mode"
        raise ConfigError(f"--coordinator and {given}", "Clients have no neighbours: give one of them.")
    section: dict[str, Any] = {"clients": wished.n}
    if wished.algorithm:
        section["algorithm"] = wished.algorithm
    return {"coordinator": section, "rounds": wished.rounds or ENDLESS}
