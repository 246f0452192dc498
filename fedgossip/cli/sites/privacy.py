"""`fedgossip privacy`: the guarantees of a run, before anything is sent; and the spent budget of a key over all its
runs.  `privacy membership` tests whether a model reveals the records that it was trained on.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.people.keys import key_option
from fedgossip.cli.run.participant import portable_option
from fedgossip.cli.text import CommandGroup, columns, echo, echo_json, print_json, times, wrapped
from fedgossip.core.run_format import SPENT

if TYPE_CHECKING:
    from fedgossip.learning.models.loaded_model import LoadedModel
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.plans.federated.ledger import RecordsSpent, SpentBudget
    from fedgossip.privacy.accounting import Mechanism
    from fedgossip.privacy.membership import MeasuredShare, MembershipTest
    from fedgossip.sites.plans.evaluation import Asked


WIDTH = 110
"""Characters of a line of words."""


@click.group(cls=CommandGroup)
def privacy() -> None:
    """Privacy of a federated run: plan a budget, pin a policy, show the spent part, test a model."""


FLAGGED = 1
"""The exit code if a model reveals its records."""


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
    these are the records that the site has trained on, and those that it has kept from the training (data.local_test).
    Ends with code 1 if they can be distinguished.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.learning.models.loaded_model import load_model
    from fedgossip.learning.models.scored_tables import examples_of
    from fedgossip.sites.plans.evaluation import compared

    loaded = load_model(model, node=node, run_code=run_code)
    if file.endswith(".toml"):
        if site is None or holdout is not None:
            raise ConfigError(f"{file}: an experiment, of which a site has records", "Give --id K, and no --holdout.")
        sides = _ask_of_site(loaded, Path(file), site, run_code=run_code)
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


def _ask_of_site(model: LoadedModel, path: Path, site: int, *, run_code: bool) -> list[Asked]:
    from fedgossip.base.errors import ConfigError
    from fedgossip.data.custom import check_allowed
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
    """Return the results of the tests as lines for a reader."""
    from fedgossip.privacy.membership import CONFIDENCE

    head = ["guess by", "of those trained on", "of the others", ""]
    rows = [
        [guess.name, _share(guess.found), _share(guess.alarms), "TELLS" if guess.succeeds else "tells nothing"]
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
    return "not flagged: these tests do not distinguish its records from others; only a privacy budget bounds all tests"


privacy.add_command(membership)


@privacy.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")
@portable_option
@click.option(
    "--id",
    "node",
    type=click.IntRange(min=0),
    help="As client K can know it, that has its own file alone: the others are taken to be as large.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="Count the earlier spending of this key on the same data; of a client's, with its --id.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def plan(experiment: Path, overrides: tuple[str, ...], node: int | None, key: Path | None, as_json: bool) -> int:
    """Compute the guarantee of EXPERIMENT's budget before anything is sent: epsilon, for each adversary, and the noise
    relative to the learned quantity.  Exit code 6 if the budget ends before the rounds do.
    """
    import dataclasses

    from fedgossip.cli.text import columns
    from fedgossip.plans.federated.privacy_budget import outlook
    from fedgossip.plans.tasks import is_unagreed
    from fedgossip.privacy.forecast import lines

    made = _federated(experiment, overrides, "a run without a privacy budget", BUDGET)
    agreed = key is not None and not is_unagreed(made.experiment)  # its ledger holds that then
    found = outlook(made, node, _read_spent(made, node, key) if key else (), agreed=agreed)
    if as_json:
        import msgspec

        computed = {name: getattr(found, name) for name in ("tight", "noise_wanted", "fits", "ratio")}
        facts = {**dataclasses.asdict(found), **computed}
        echo_json(msgspec.json.encode(facts).decode())
    else:
        echo(columns(lines(found)))
    return 0 if found.fits else 6


BUDGET = 'Write [coordinator.privacy] with unit = "record" or "client".'


def _federated(experiment: Path, overrides: tuple[str, ...], otherwise: str, advice: str) -> FederationPlan:
    from fedgossip.base.errors import ConfigError
    from fedgossip.experiment import load_experiment
    from fedgossip.plans import compose
    from fedgossip.plans.federated.federation import FederationPlan

    plan = compose.plan(load_experiment(experiment, overrides))
    if not isinstance(plan, FederationPlan):
        raise ConfigError(otherwise, advice)
    return plan


def _read_spent(plan: FederationPlan, node: int | None, key: Path) -> list[Mechanism]:
    from fedgossip.base.errors import ConfigError
    from fedgossip.plans.federated.ledger import data_of, read_releases

    who = plan.coordinator if node is None else node
    if not plan.spends(who):
        raise ConfigError("records are accounted for by each client", "Name the key's client with --id.")
    return read_releases(key.with_name(f"{key.name}.{SPENT}"), plan.unit, data_of(plan.experiment.data.source, who))


@privacy.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option(
    "--endpoints",
    type=click.Path(path_type=Path),
    required=True,
    help="File with all participants' ids, addresses and public keys.",
)
@click.option("--id", "node", type=click.IntRange(min=0), help="Which client this is; with coordinator.tiers.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")
@portable_option
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("policy.toml"), show_default=True, help="File to make."
)
@click.option(
    "--approval-days",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Ask for `fedgossip plan approve`, which holds so many days at most.",
)
@click.option("--approval-rounds", type=click.IntRange(min=0), default=0, help="And for so many rounds at most.")
@click.option("--short", is_flag=True, help="Print only the entries that people decide on.")
def policy(
    experiment: Path,
    endpoints: Path,
    node: int | None,
    overrides: tuple[str, ...],
    out: Path,
    approval_days: float,
    approval_rounds: int,
    short: bool,
) -> None:
    """Write the policy of a client of EXPERIMENT, and print it: read it before you agree."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.net.endpoints import load_endpoints
    from fedgossip.plans import compose
    from fedgossip.plans.approvals.approvals import HowLong
    from fedgossip.plans.federated import policy

    otherwise, advice = f"{experiment} is no run with a secure sum", "A policy is for [coordinator.secure]."
    plan = _federated(experiment, overrides, otherwise, advice)
    if not plan.secure:
        raise ConfigError(otherwise, advice)
    if node is None and not plan.tree.flat:
        raise ConfigError("with coordinator.tiers each policy names the leaf coordinator of one client", "Give --id.")
    client = node or 0
    if client >= plan.learners:
        raise ConfigError(f"there is no client {client}", f"Clients are 0 to {plan.learners - 1}.")
    if not plan.hides(client):
        text = f"client {client}: its leaf coordinator sees its updates (coordinator.tiers, secure = false)"
        raise ConfigError(text, advice)
    known = load_endpoints(endpoints, plan.n, lambda _: False)  # over a folder no participant has an address
    # by torch: the policy pins the model's outputs
    task, _ = compose.task_of(plan.experiment, plan.learners, [], unagreed=True)
    made = policy.policy_of(plan, client, known, task, HowLong(approval_days, approval_rounds))
    policy.write(out, made)
    echo(wrapped(policy.summary(made), WIDTH) + "\n" if short else policy.text(made), nl=False)
    echo(f"It is in {out}, readable by you alone.", err=True)


@privacy.command()
@key_option("The key that has taken part.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Of the epsilon that is shown.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def spent(key: Path, delta: float, as_json: bool) -> None:
    """Report the privacy budget that this key has spent in all its runs over a network, by its subject."""
    from fedgossip.cli.text import columns
    from fedgossip.plans.federated.ledger import accounts

    found = accounts(key.with_name(f"{key.name}.{SPENT}"), delta)
    if as_json:
        import msgspec

        echo_json(msgspec.json.encode(found).decode())
    elif found:
        echo(columns([(f"{a.unit}, {a.data}", _account(a, delta)) for a in found]))
    else:
        echo(f"Nothing: there is no {key.name}.{SPENT} beside {key}.", err=True)


def _account(account: SpentBudget, delta: float) -> str:
    runs = "1 run" if account.runs == 1 else f"{account.runs} runs"
    return f"epsilon {account.epsilon:.4g} at delta {delta:g}, by {account.releases} releases in {runs}"


@privacy.command()
@key_option("The key that has taken part: the ledger is next to it.")
@click.option("--ledger", "path", type=click.Path(path_type=Path), help="The ledger, if it is not next to the key.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Of the epsilon that is shown, and limited.")
@click.option(
    "--max-epsilon-total",
    "limit",
    type=click.FloatRange(min=0, min_open=True),
    help="From now on refuse a release that would bring a data set above it, over all runs.",
)
@click.option(
    "--allow-exact",
    "exact",
    type=click.IntRange(min=0),
    help="In addition allow this number of releases without noise: statistics, evaluations, fits.",
)
@click.option(
    "--other-sites",
    is_flag=True,
    help="Allow exact sums to be repeated with other sites: the difference of both results is then known.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def ledger(
    key: Path,
    path: Path | None,
    delta: float,
    limit: float | None,
    exact: int | None,
    other_sites: bool,
    as_json: bool,
) -> None:
    """Report the budget spent by all runs together for each of this site's data sets, identified by their records; or
    limit it.
    """
    from fedgossip.plans.federated.ledger import counted, data_sets

    place = path or key.with_name(f"{key.name}.{SPENT}")
    if limit is not None or exact is not None:
        _limit(place, limit, delta, exact)
    if other_sites:
        _allow_other_sites(place)
    found, held = data_sets(place, delta)
    if as_json:
        import msgspec

        echo_json(msgspec.json.encode({"limit": held, "data_sets": found}).decode())
        return
    allowed = f" of {held.max_epsilon_total:g}" if held and held.delta == delta else ""
    for one in found:
        echo(f"{one.data[-1]}{f', records {one.records[:16]}' if one.records else ''}")
        if len(one.data) > 1:
            echo(f"    also known as {', '.join(one.data[:-1])}")
        echo(f"    epsilon {one.epsilon:.4g}{allowed} for each record at delta {delta:g}, {_describe_runs(one)}")
        if one.exact:
            echo(f"    and {counted(one.exact)} without noise, which no epsilon covers")
    if held:
        noiseless = f"; {times(held.exact)} without noise" if held.exact else "; nothing without noise"
        echo(f"This site allows epsilon {held.max_epsilon_total:g} at delta {held.delta:g} in all{noiseless}.")
    if not found:
        echo(f"Nothing was spent yet: there is no release in {place}.", err=True)


def _limit(path: Path, limit: float | None, delta: float, exact: int | None) -> None:
    import contextlib

    from fedgossip.base.errors import ConfigError
    from fedgossip.plans.federated.ledger import SpentLedger, TotalLimit

    with contextlib.closing(SpentLedger(path, "none", "")) as book:
        most = limit if limit is not None else book.limit.max_epsilon_total if book.limit else None
        if most is None:
            raise ConfigError("--allow-exact without a limit", "Give --max-epsilon-total too.")
        allowed = exact if exact is not None else book.limit.exact if book.limit else 0
        book.set_limit(TotalLimit(most, delta, allowed))


def _allow_other_sites(path: Path) -> None:
    import contextlib

    from fedgossip.plans.federated.ledger import SpentLedger

    with contextlib.closing(SpentLedger(path, "none", "")) as book:
        book.allow_other_sites()
    echo("Sums that were made of these records may now be made with other sites.", err=True)


def _describe_runs(one: RecordsSpent) -> str:
    runs = "1 run" if one.runs == 1 else f"{one.runs} runs"
    releases = "1 release" if one.releases == 1 else f"{one.releases} releases"
    return f"by {releases} with noise; {runs}"
