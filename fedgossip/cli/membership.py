"""`fedgossip privacy membership`: does a model tell which records it was trained on?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.text import columns, echo, print_json

if TYPE_CHECKING:
    from fedgossip.learning.loaded_model import LoadedModel
    from fedgossip.privacy.membership import Losses, MeasuredShare, MembershipTest, Right

FLAGGED = 1
"""The exit code where a model tells of its records."""


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("file", metavar="FILE")
@click.option("--holdout", metavar="FILE", required=True,
              help="Records like those of FILE that the model was not trained on: a CSV file, or a source.")
@click.option("--node", type=click.IntRange(min=0), help="Whose own layers it has, where some stay at the nodes.")
@click.option("--run-code", is_flag=True, help="Let the modules run that came with the model.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def membership(model: Path, file: str, holdout: str, node: int | None, run_code: bool, as_json: bool) -> int:
    """Test at a site, alone, whether MODEL tells which records it was trained on.  Nothing leaves this machine.

    FILE holds records that MODEL was trained on.  Ends with code 1 where they can be told from others.
    """
    from fedgossip.learning.loaded_model import load_model
    from fedgossip.privacy.membership import membership_test

    loaded = load_model(model, node=node, run_code=run_code)
    trained, right = _losses(loaded, file)
    others, right_of_others = _losses(loaded, holdout)
    both = None if right is None or right_of_others is None else (right, right_of_others)
    found = membership_test(trained, others, both)
    if as_json:
        print_json({**dataclasses.asdict(found), "flagged": found.flagged, "epsilon": found.epsilon})
    else:
        echo("\n".join(lines(found)))
    return FLAGGED if found.flagged else 0


def _losses(model: LoadedModel, source: str) -> tuple[Losses, Right | None]:
    from fedgossip.learning.record_losses import losses_of, right_of
    from fedgossip.learning.scored_tables import examples_of

    examples, kind = examples_of(model, source), model.facts.kind
    answers = model(examples.x)
    return losses_of(kind, answers, examples.y), right_of(kind, answers, examples.y)


def lines(found: MembershipTest) -> list[str]:
    """Return what the tests say, for a person."""
    from fedgossip.privacy.membership import CONFIDENCE

    head = ["guess by", "of those trained on", "of the others", ""]
    rows = [
        [guess.name, _share(guess.found), _share(guess.alarms), "TELLS" if guess.tells else "tells nothing"]
        for guess in found.guesses
    ]
    losses = f"mean loss {found.trained_loss:.4g} and {found.other_loss:.4g}"
    return [
        f"{found.trained} records that the model was trained on, {found.others} others: {losses}",
        f"the lower loss is that of the record trained on in {100 * found.auroc:.1f} % of pairs; 50 % is chance",
        columns([head, *rows]),
        f"exact intervals of {100 * CONFIDENCE:g} %, thresholds chosen on other records than they are judged on",
        verdict(found),
    ]


def _share(share: MeasuredShare) -> str:
    return f"{100 * share.value:.1f} % ({100 * share.low:.1f} to {100 * share.high:.1f})"


def verdict(found: MembershipTest) -> str:
    """Return the verdict in a sentence."""
    if found.flagged:
        bound = f"no epsilon below {found.epsilon:.2g} can be promised of it"
        return f"FLAGGED: this model tells which records it was trained on; {bound}"
    return "not flagged: these tests do not tell its records from others; only a budget of privacy bounds all tests"
