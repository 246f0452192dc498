"""`fedgossip privacy membership`: does a model reveal which records it was trained on?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.text import columns, echo, print_json

if TYPE_CHECKING:
    from fedgossip.learning.models.loaded_model import LoadedModel
    from fedgossip.privacy.membership import MeasuredShare, MembershipTest
    from fedgossip.sites.plans.evaluation import Asked

FLAGGED = 1
"""The exit code where a model reveals its records."""


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("file", metavar="FILE")
@click.option(
    "--holdout",
    metavar="FILE",
    help="Records like those of FILE that the model was not trained on: a CSV file, or a source.",
)
@click.option("--id", "site", type=click.IntRange(min=0), help="Which site this is, where FILE is an experiment.")
@click.option("--node", type=click.IntRange(min=0), help="Node with the local layers to use, where nodes have some.")
@click.option("--run-code", is_flag=True, help="Allow the modules inside the model's folder to run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def membership(
    model: Path, file: str, holdout: str | None, site: int | None, node: int | None, run_code: bool, as_json: bool
) -> int:
    """Test at a site, alone, whether MODEL reveals which records it was trained on.  Nothing leaves this machine.

    FILE holds records that MODEL was trained on, --holdout others.  Or FILE.toml is the experiment, --id the site: then
    those are the records that the site has trained on, and those that it has kept from the training (data.local_test).
    Ends with code 1 where they can be distinguished.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.learning.models.loaded_model import load_model
    from fedgossip.learning.models.scored_tables import examples_of
    from fedgossip.sites.plans.evaluation import compared

    loaded = load_model(model, node=node, run_code=run_code)
    if file.endswith(".toml"):
        if site is None or holdout is not None:
            raise ConfigError(f"{file}: an experiment, of which a site has records", "Give --id K, and no --holdout.")
        sides = _of_site(loaded, Path(file), site, run_code=run_code)
    elif holdout is None or site is not None:
        raise ConfigError(f"{file}: records that the model was trained on", "Name others with --holdout, and no --id.")
    else:
        examples = [examples_of(loaded, source) for source in (file, holdout)]
        sides = [(loaded(one.x), one.y) for one in examples]
    found = compared(loaded.facts.kind, *sides)
    if as_json:
        print_json({**dataclasses.asdict(found), "flagged": found.flagged, "epsilon": found.epsilon})
    else:
        echo("\n".join(lines(found)))
    return FLAGGED if found.flagged else 0


def _of_site(model: LoadedModel, path: Path, site: int, *, run_code: bool) -> list[Asked]:
    """Run a model on the records that a site has trained on, and on those that it has kept."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.data.named_code import check_allowed
    from fedgossip.experiment import load_experiment
    from fedgossip.plans import compose
    from fedgossip.plans.tasks import examples_of
    from fedgossip.sites.plans.evaluation import asked, parted

    experiment = load_experiment(path)
    check_allowed(experiment.named_code, path, run_code=run_code)
    sites = compose.plan(experiment).learners
    if site >= sites:
        raise ConfigError(f"there is no site {site}", f"Sites are the clients 0 to {sites - 1}.")
    own = "{peer}" in experiment.data.source
    examples = examples_of(experiment, [site] if own else range(sites), sites)
    kept, trained = parted(experiment, site, examples)
    if not len(trained):
        raise ConfigError(f"{path}: no site keeps records from its training", "Set data.local_test, or name --holdout.")
    return [asked(model, examples.train.subset(part)) for part in (trained, kept)]


def lines(found: MembershipTest) -> list[str]:
    """Return the results of the tests, for a person."""
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
        return f"FLAGGED: this model reveals which records it was trained on; {bound}"
    return "not flagged: these tests do not tell its records from others; only a budget of privacy bounds all tests"
