"""`fedgossip predict` and `fedgossip evaluate`: a model that a run has left, on examples of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.text import columns, echo

if TYPE_CHECKING:
    from fedgossip.learning.model_files import ModelFacts

Command = Callable[..., Any]

MODEL = click.argument("model", type=click.Path(path_type=Path))


def _options(command: Command) -> Command:
    """The options by which a model is opened."""
    node = click.option("--node", type=click.IntRange(min=0),
                        help="Whose own layers it has, where some stay at the nodes.")  # fmt: skip
    code = click.option("--run-code", is_flag=True, help="Let the modules run that came with the model.")
    return node(code(command))


@click.command()
@MODEL
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("scored.csv"), show_default=True,
              help="File to write; one that is there is not written over.")
@_options
def predict(model: Path, file: Path, out: Path, node: int | None, run_code: bool) -> None:
    """Write the rows of FILE, a CSV table, with what MODEL says of each: a run directory, or its folder model/.

    Columns are found by their names, in any order; what the model does not know is kept and not read.
    """
    from fedgossip.errors import ConfigError
    from fedgossip.learning.loaded_model import load_model
    from fedgossip.learning.scored_tables import scored
    from fedgossip.owner_files import opened

    if out.exists():
        raise ConfigError(f"{out}: there already", "Name another file with --out.")
    text, unknown = scored(load_model(model, node=node, run_code=run_code), file)
    if unknown:
        echo(f"not read: {', '.join(unknown)}", err=True)
    with opened(out, "xb") as written:
        written.write(text.encode())
    echo(f"Wrote {out}: {text.count(chr(10)) - 1} rows", err=True)


@click.command()
@MODEL
@click.argument("source", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
@_options
def evaluate(model: Path, source: str, as_json: bool, node: int | None, run_code: bool) -> None:
    """Measure MODEL on the labelled examples of FILE: a CSV table, or what data.source can name."""
    from fedgossip.learning.loaded_model import load_model
    from fedgossip.learning.scored_tables import examples_of

    loaded = load_model(model, node=node, run_code=run_code)
    examples = examples_of(loaded, source)
    measured = loaded.evaluate(examples)
    if as_json:
        echo(json.dumps({"examples": len(examples), **measured}))
        return
    rows = [["examples", str(len(examples))], *([name, f"{value:.6g}"] for name, value in measured.items())]
    echo(columns([*rows, *_in_the_run(loaded.facts)]))


def _in_the_run(facts: ModelFacts) -> list[list[str]]:
    score = facts.score
    if score.get("value") is None:
        return []
    on = f", on {score['on']}" if score.get("on") else ""
    return [["in its run", f"{score['value']:.6g} {score['name']}{on}"]]
