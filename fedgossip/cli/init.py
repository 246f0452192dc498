"""`fedgossip init`: a folder to start from, with a commented experiment and its files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from fedgossip.base import owner_files
from fedgossip.base.errors import ConfigError, NotWrittenError, nearest
from fedgossip.cli.text import echo
from fedgossip.core import run_format

TEMPLATES = {
    "own-loop": "a training loop of your own, with four lines added",
    "digits": "eight peers of a ring read digits",
    "csv": "a table of your own",
    "own-model": "a model, data, a loss and a metric of your own",
    "hospitals": "clients of a coordinator that sees sums alone, each with a file of its own",
    "research": "a graph and an algorithm of your own, compared over seeds",
}
"""A description of each template, by its folder in fedgossip/cli/templates.  Python files have the suffix .py.txt
there.
"""


@click.command(epilog="  ".join(f"{name}: {text}." for name, text in TEMPLATES.items()))
@click.argument("template", default="digits")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
def init(template: str, folder: Path | None) -> None:
    """Make a FOLDER (by default named as the template) with a commented experiment to start from."""
    if template not in TEMPLATES:
        raise ConfigError(f"there is no template {template!r}", nearest(template, tuple(TEMPLATES)))
    place = folder or Path(template)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"{place}: not empty", f"Name a new folder: fedgossip init {template} FOLDER.")
    try:
        owner_files.make_folder(place)
        for name, content in written(template):
            owner_files.written(place / name, content)
    except OSError as error:
        raise NotWrittenError(place, error) from None
    echo(f"{place}: {TEMPLATES[template]}.")
    echo(f"Next:  cd {shlex.quote(str(place))}  and  {_first_command(place / 'README.md')}  (README.md has more)")


def _first_command(readme: Path) -> str:
    lines = [text.partition("#")[0].strip() for text in readme.read_text().splitlines() if text.startswith("    ")]
    return next(command for command in lines if run_format.EXPERIMENT in command)


def written(template: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file of a template."""
    source: Traversable = files("fedgossip.cli").joinpath("templates", template)
    for file in sorted(source.iterdir(), key=lambda one: one.name):
        yield file.name.removesuffix(".txt") if file.name.endswith(".py.txt") else file.name, file.read_bytes()
