"""`--portable`, of every command that reads an experiment to take part in it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]


def portable_option(command: Command) -> Command:
    """Let a command that has `--set`, as `overrides`, take `--portable` too."""

    @click.option("--portable", is_flag=True, help="The same bits on unlike processors: --set train.portable=true.")
    @functools.wraps(command)
    def taken(*given: Any, portable: bool, overrides: tuple[str, ...], **named: Any) -> Any:
        more = ("train.portable=true",) if portable else ()
        return command(*given, overrides=(*overrides, *more), **named)

    return taken
