"""Options of several commands: `--portable`, of those that read an experiment to take part in it, and `--run-code`, of
those that read untrusted files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]


run_code_option = click.option(
    "--run-code", is_flag=True, help="Allow the files to name code to run, and places to write to."
)
"""Without it nothing is imported that a run directory, a trace or a model's folder names, and no record sent there."""


def portable_option(command: Command) -> Command:
    """Let a command that has `--set`, as `overrides`, take `--portable` too."""

    @click.option("--portable", is_flag=True, help="The same bits on unlike processors: --set train.portable=true.")
    @functools.wraps(command)
    def taken(*given: Any, portable: bool, overrides: tuple[str, ...], **named: Any) -> Any:
        more = ("train.portable=true",) if portable else ()
        return command(*given, overrides=(*overrides, *more), **named)

    return taken
