"""`fedgossip plan`: the work of a federated run, in words for a site's board to read, compare and sign."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base.untrusted_text import quoted
from fedgossip.cli.output_files import OutputFile
from fedgossip.cli.people.keys import key_option
from fedgossip.cli.run.participant import portable_option, run_code_option
from fedgossip.cli.text import CommandGroup, columns, echo, echo_json, print_json
from fedgossip.core.glossary import used_in

if TYPE_CHECKING:
    from fedgossip.experiment import Experiment
    from fedgossip.plans.approvals.approvals import Approval, ApprovalRequest
    from fedgossip.plans.approvals.plan_statement import PlanStatement
    from fedgossip.plans.approvals.site_approvals import SiteApprovals
    from fedgossip.plans.plan import Plan

HASH_LEAST = 8
"""Minimum number of digits that identify a plan."""
WIDTH = 100
"""Characters of a line of words."""


@click.group(cls=CommandGroup)
def plan() -> None:
    """Read the plan of a run, compare it with the last approved one, sign it or revoke the approval."""


def _experiment(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        run_code_option,
        click.option("--model", type=click.Path(path_type=Path),
                     help="The plan by which the sites judge this model: `fedgossip evaluate`."),
        click.option("--seed", type=int, help="Replace the file's seed; at all participants."),
        portable_option,
        click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True,
                     help="Replace a key of the file; at all participants."),
        click.argument("experiment", type=click.Path(path_type=Path)),
    ):  # fmt: skip
        command = option(command)
    return command


KEY = key_option("The site's own key pair, from `fedgossip keys new`.")
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@plan.command()
@_experiment
@click.option("--out", type=OutputFile(".json", mark='"experiment": {'), help="Write the hashed plan to this file too.")
@JSON
def show(
    experiment: Path,
    overrides: tuple[str, ...],
    seed: int | None,
    model: Path | None,
    run_code: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Describe in words the work of EXPERIMENT, with its hash, which is the same at all sites: compare
    it by telephone.
    """
    from fedgossip.plans.approvals import plan_statement

    _, found = stated(experiment, overrides, seed, model, run_code=run_code)
    if out is not None:
        plan_statement.write(out, found)
        echo(f"Wrote {out}: sha256 {found.hash}", err=True)
    if as_json:
        echo_json(plan_statement.encoded(found).decode())
        return
    _print_statement(found)


@plan.command("hash")
@_experiment
@click.option("--against", metavar="DIGITS", default="", help="The groups that another site has read out to you.")
def hash_(
    experiment: Path,
    overrides: tuple[str, ...],
    seed: int | None,
    model: Path | None,
    run_code: bool,
    against: str,
) -> int:
    """Print the hash of EXPERIMENT's plan as digits to read out by telephone; or of a plan.json.

    With --against it compares, and ends with code 1 if another plan was read out.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.plans.approvals import plan_statement

    if experiment.suffix == ".json":
        if overrides or model or seed is not None:
            advice = "Name the experiment file, or leave --set, --seed and --model out."
            raise ConfigError(f"{experiment}: a plan.json has its keys, its seed and its model already", advice)
        found = plan_statement.read(experiment)
    else:
        _, found = stated(experiment, overrides, seed, model, run_code=run_code)
    own = plan_statement.spoken(found.hash)
    echo(own)
    if not against:
        return 0
    fault = _other_plan(own.split(), "".join(against.split()))
    echo(fault or "The same plan.", err=True)
    return int(bool(fault))


def _other_plan(own: Sequence[str], digits: str) -> str:
    """Return the difference to the given digits, or ""."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.plans.approvals.plan_statement import GROUP_DIGITS

    if not (digits.isascii() and digits.isdecimal()) or len(digits) != GROUP_DIGITS * len(own):
        text = f"these are {len(digits)} characters; a plan is read out as {len(own)} groups of {GROUP_DIGITS} digits"
        raise ConfigError(text, "Have it read out again: fedgossip plan hash FILE at both ends.")
    groups = [digits[at : at + GROUP_DIGITS] for at in range(0, len(digits), GROUP_DIGITS)]
    wrong = [str(at + 1) for at, (one, other) in enumerate(zip(own, groups, strict=True)) if one != other]
    if not wrong:
        return ""
    which = f"group {wrong[0]} differs" if len(wrong) == 1 else f"groups {', '.join(wrong)} differ"
    return f"ANOTHER PLAN: {which}.  Where one group alone differs, have it read out again; else compare the files."


@plan.command()
@_experiment
@KEY
@JSON
def diff(
    experiment: Path,
    overrides: tuple[str, ...],
    seed: int | None,
    model: Path | None,
    run_code: bool,
    key: Path,
    as_json: bool,
) -> int:
    """List the differences of EXPERIMENT from the plan that this key approved last.  Exit code 1 if any exist."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.plans.approvals import plan_statement

    _, now = stated(experiment, overrides, seed, model, run_code=run_code)
    before = _approvals(key).last()
    if before is None:
        advice = "Read the whole: fedgossip plan show; then sign it: fedgossip plan approve."
        raise ConfigError(f"{key} has approved no plan that stands", advice)
    found = plan_statement.changes(before, now)
    if as_json:
        print_json({"approved": before.hash, "now": now.hash, "changes": found})
        return int(bool(found))
    echo(f"approved {before.hash[:16]}, now {now.hash[:16]}: {_counted(len(found))}")
    for name, was, has, meaning in found:
        echo(f"\n{name}: approved {was}; now {has}" + (f"\n    {meaning}" if meaning else ""))
    return int(bool(found))


def _counted(changes: int) -> str:
    if not changes:
        return "the same plan"
    return "one key differs" if changes == 1 else f"{changes} keys differ"


@plan.command()
@_experiment
@KEY
@click.option("--id", "node", type=click.IntRange(min=0), help="Which client this site is.")
@click.option(
    "--endpoints",
    type=click.Path(path_type=Path),
    help="File with the ids, addresses and public keys of all: with these participants, and no others.",
)
@click.option(
    "--invite",
    default="",
    help="To join by it (its text, its file, or -), with whomever its organiser lets in; instead of the two before.",
)
@click.option(
    "--data", default="", help="With --invite: this site's own data, as `fedgossip join --data` is to have them."
)
@click.option(
    "--plan",
    "named",
    metavar="HASH",
    default="",
    help="The first digits, 8 or more, of the hash that you have read; asked for on a terminal.",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True, max=3650),
    default=90.0,
    show_default=True,
    help="How long the approval holds.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds in all, over all runs.  [default: one run]")
@click.option("--by", default="", metavar="NAME", help="The approving person; part of the model's release.")
def approve(
    experiment: Path,
    overrides: tuple[str, ...],
    seed: int | None,
    model: Path | None,
    run_code: bool,
    key: Path,
    node: int | None,
    endpoints: Path | None,
    invite: str,
    data: str,
    named: str,
    days: float,
    rounds: int | None,
    by: str,
) -> None:
    """Sign the plan of EXPERIMENT with the site's key.  From then on `fedgossip client`, and `fedgossip join` as a
    client, with this key take part only in approved plans.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.cli.people.invited import invite_text
    from fedgossip.net.invites.invitation import read
    from fedgossip.plans.approvals.approvals import request_to_join
    from fedgossip.plans.approvals.plan_statement import spoken

    run, statement = stated(experiment, overrides, seed, model, run_code=run_code)
    approvals = _approvals(key)
    if invite and node is None and endpoints is None:
        request = request_to_join(statement, run.experiment, read(invite_text((invite,))).key, data)
    elif node is not None and endpoints is not None and not invite and not data:
        request = _request(run, statement, approvals, key, node, endpoints)
    else:
        advice = "Name --id and --endpoints; or, to join, the invite, and --data where it brings its own."
        raise ConfigError("no participants: an approval names them, or the organiser of an invite", advice)
    _confirm(statement, named)
    made = approvals.approve(request, days, rounds or statement.rounds, by)
    until = made.until.partition("T")[0]
    echo(f"Approved: plan {made.plan}, for {made.rounds} rounds, until {until}.  It is in {approvals.path}.")
    if request.records:
        echo(f"It is with the records that this site has now ({request.records[:16]}), and with no others.")
    echo(f"By telephone: {spoken(made.plan)}", err=True)
    echo("Other sites have approved the same where they read out these digits.", err=True)


def _request(
    run: Plan, statement: PlanStatement, approvals: SiteApprovals, key: Path, node: int, endpoints: Path
) -> ApprovalRequest:
    """Return the request that client `node` approves.  Raises ConfigError if the key is not its own."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.net.endpoints import load_endpoints
    from fedgossip.plans.approvals.approvals import request_of
    from fedgossip.plans.federated.federation import FederationPlan

    if not isinstance(run, FederationPlan):
        text = "peers of a graph are approved by an invite: none of them keeps the list of the others"
        raise ConfigError(text, "Name the invite alone: --invite fg1-...")
    if node >= run.learners:
        raise ConfigError(f"there is no client {node}", f"Clients are 0 to {run.learners - 1}.")
    known = load_endpoints(endpoints, run.n, lambda _: False)  # over a folder no participant has an address
    if approvals.verify != known[node].verify:
        advice = f"Put `fedgossip keys show {quoted(key)}` there, or name the right file with --key, or the right --id."
        raise ConfigError(f"{key} is not the key that {endpoints} gives this client", advice)
    return request_of(run, statement, node, known)


def _confirm(statement: PlanStatement, named: str) -> None:
    """Ask a person to type the plan's name.  Raises ConfigError for another name, or without a terminal."""
    from fedgossip.base.errors import ConfigError

    if not named:
        _print_statement(statement)
        if not sys.stdin.isatty():
            advice = f"Read it, then name it: --plan {statement.hash[:HASH_LEAST]}..., at least {HASH_LEAST} digits."
            raise ConfigError("which plan do you approve?", advice)
        named = click.prompt(f"To approve it type the first {HASH_LEAST} digits of its hash", err=True)
    if len(named) < HASH_LEAST or not statement.hash.startswith(named.lower()):
        text = f"you named plan {named!r}; this is {statement.hash[:16]}"
        raise ConfigError(text, f"Read it again: fedgossip plan show; name {HASH_LEAST} digits of its hash or more.")


@plan.command()
@KEY
@click.option("--plan", "named", metavar="HASH", required=True, help="The first digits of its hash, 8 or more.")
@click.option("--why", default="no reason given", help="For the log.")
def revoke(key: Path, named: str, why: str) -> None:
    """Revoke an approval: no further run begins under it.  To stop a running one, stop the client."""
    from fedgossip.base.errors import ConfigError

    approvals = _approvals(key)
    matching = [one for one in approvals.all() if len(named) >= HASH_LEAST and one.plan.startswith(named.lower())]
    if not matching:
        raise ConfigError(f"{key} has approved no plan {named!r}", "See them: fedgossip plan approved")
    if done := approvals.revoked(matching[-1]):
        raise ConfigError(f"the approval of plan {matching[-1].plan[:16]} was revoked {done}", "Nothing is to be done.")
    approvals.revoke(matching[-1], why)
    echo(f"Revoked: plan {matching[-1].plan}.")


@plan.command()
@KEY
@JSON
def approved(key: Path, as_json: bool) -> None:
    """List this key's approvals, their use, and its refusals."""
    approvals = _approvals(key)
    found = [_standing(approvals, one) for one in approvals.all()]
    if as_json:
        print_json(found)
    elif found:
        head = ["plan", "name", "client", "approved", "until", "rounds", "by", ""]
        echo(columns([head, *([str(cell) for cell in one.values()] for one in found)]))
    if not as_json and (refused := approvals.refusals()):
        times = "once" if len(refused) == 1 else f"{len(refused)} times"
        echo(f"Refused {times}; the last, on {refused[-1][0]}: {refused[-1][1]}", err=True)
    if not as_json and not found:
        echo(f"Nothing: there is no approval in {approvals.path}.", err=True)


def _standing(approvals: SiteApprovals, one: Approval) -> dict[str, object]:
    from fedgossip.plans.approvals.approvals import JOINING

    over, client = approvals.revoked(one), "by invite" if one.participant == JOINING else one.participant
    state = f"revoked {over}" if over else ("ended" if approvals.ended(one) else "")
    return {
        "plan": one.plan[:16], "name": one.name, "client": client, "approved": one.time.partition("T")[0],
        "until": one.until.partition("T")[0], "rounds": f"{approvals.used(one)} of {one.rounds}", "by": one.by,
        "state": state,
    }  # fmt: skip


# --- shared by all of them
# ----------------------------------------------------------------------------------------------


def stated(
    experiment: Path, overrides: Sequence[str], seed: int | None, model: Path | None = None, *, run_code: bool
) -> tuple[Plan, PlanStatement]:
    """Return the run of an experiment file, of a coordinator or of gossip, and its plan as one file.

    `model`: the folder of the model that the sites are to evaluate; `run_code`: run code named in the file, to which a
    reader of a plan has not agreed.  Raises ConfigError for other runs.
    """
    from fedgossip.data.custom import check_allowed
    from fedgossip.experiment import load_experiment

    whole = load_experiment(experiment, overrides, seed=seed)
    whose = "the plan is of code that would run to be shown"
    check_allowed(whole.named_code, experiment, run_code=run_code, whose=whose)
    if model is None:
        return stated_of(whole, str(experiment))
    from fedgossip.learning.models.model_files import read_checked_facts
    from fedgossip.sites.plans.evaluation import stated_evaluation

    return stated_evaluation(whole, read_checked_facts(model))


def stated_of(whole: Experiment, named: str) -> tuple[Plan, PlanStatement]:
    """Return the same for an experiment, with or without agreed statistics.  `named`: for errors."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.plans import compose
    from fedgossip.plans.approvals.plan_statement import statement_of
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.plans.gossip.gossip import GossipPlan
    from fedgossip.sites.plans.fits import stated_fit

    if (fit := stated_fit(whole)) is not None:
        return fit
    made = compose.plan(whole)
    if not isinstance(made, FederationPlan | GossipPlan):
        text = f"{named} has neither [coordinator] nor [topology]"
        raise ConfigError(text, "Plans are approved by the clients of a coordinator, and by peers that join a graph.")
    task, _ = compose.task_of_dry_run(made.experiment, made.learners, [], unagreed=True)
    return made, statement_of(made, task)


def _approvals(key: Path) -> SiteApprovals:
    import time

    from fedgossip.net.identity import Identity
    from fedgossip.plans.approvals.site_approvals import SiteApprovals

    return SiteApprovals(key, Identity.load(key), time.time_ns)


def _print_statement(statement: PlanStatement) -> None:
    from fedgossip.cli.text import wrapped
    from fedgossip.plans.approvals import plan_statement

    found = plan_statement.lines(statement)
    echo(wrapped(found, WIDTH))
    echo("\nIts words (all: fedgossip explain WORD)")
    echo(wrapped(used_in(text for line in found for text in line).items(), WIDTH))
    echo(f"\nhash {statement.hash}")
