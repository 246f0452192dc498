"""`fedgossip repro`: published numbers and claims, reproduced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.text import columns, echo, print_json

if TYPE_CHECKING:
    from fedgossip.lab.repro.published import CheckedValue

EVERY, LIST = "all", "list"


@click.command()
@click.argument("name", metavar="ID|list|all")
@click.option("--fast", is_flag=True, help="Leave out the checks that take longest.")
@click.option("--full", is_flag=True, help="With those that take minutes, and the folder FEDGOSSIP_DATA.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def repro(name: str, fast: bool, full: bool, as_json: bool) -> int:
    """Reproduce published results, and report for each number whether it agrees with the expected one: published, from
    the paper's formula, or computed independently.

    Exit code 1 if a number does not agree.
    """
    from fedgossip.lab.repro.published import checked, chosen, list_ids, result_of

    if fast and full:
        raise click.UsageError("--fast omits the additions of --full: give one of them.")
    if name == LIST:
        _list(as_json=as_json)
        return 0
    facts: dict[str, Any] = {}
    for one in list_ids() if name == EVERY else [name]:
        result = result_of(one)
        if not chosen(result, fast=fast, full=full):
            if not as_json:
                echo(f"{one}: {result.title}\n  not computed: it takes minutes; --full does\n")
            continue
        found = []
        if not as_json:
            echo(f"{one}: {result.title}\n  {result.claim}\n  {result.source}")
        for value in checked(result, fast=fast, full=full):
            found.append(value)
            if name != EVERY and not as_json:
                echo(f"  {_format(value)}")
        wrong = [value for value in found if not value.holds]
        if not as_json:
            for value in wrong if name == EVERY else ():
                echo(f"  {_format(value)}")
            seconds = sum(value.seconds for value in found)
            echo(f"  {len(found) - len(wrong)} of {len(found)} numbers agree; {seconds:.1f} s of CPU\n")
        facts[one] = {"title": result.title, "agrees": not wrong, "numbers": [_plain(value) for value in found]}
    agree = sum(one["agrees"] for one in facts.values())
    if as_json:
        print_json(facts)
    elif name == EVERY:
        echo(f"{agree} of {len(facts)} results agree.")
    return 0 if agree == len(facts) else 1


def _list(*, as_json: bool) -> None:
    from fedgossip.lab.repro.published import list_ids, result_of

    results = {name: result_of(name) for name in list_ids()}
    if as_json:
        facts = {n: {"title": one.title, "claim": one.claim, "source": one.source} for n, one in results.items()}
        print_json(facts)
        return
    echo(columns([["id", "numbers", "what"], *([n, str(len(one.check)), one.title] for n, one in results.items())]))


def _format(value: CheckedValue) -> str:
    from fedgossip.lab.repro.published import BASES

    mark = "agrees" if value.holds else "DIFFERS"
    return f"{mark:8} {value.check.what}: {value.value:.9g}; {BASES[value.basis]} {value.expected}"


def _plain(value: CheckedValue) -> dict[str, Any]:
    one = value.check
    return {
        "what": one.what, "measure": one.measure, "value": value.value, "expected": value.expected,
        "basis": value.basis, "agrees": value.holds, "seconds": value.seconds,
    }  # fmt: skip
