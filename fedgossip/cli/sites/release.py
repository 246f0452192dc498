"""`fedgossip release`: a model with all documents for a responsible board, in one signed file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base.untrusted_text import line, quoted
from fedgossip.cli.people.keys import key_option
from fedgossip.cli.text import CommandGroup, columns, echo, print_json
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.sites.releases.checking import CheckedRelease
    from fedgossip.sites.releases.released import Release

PATH = click.Path(path_type=Path)
MAKE = "make"


class _Short(CommandGroup):
    """`fedgossip release RUN` without a subcommand makes a release of RUN."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else [MAKE, *args])


@click.group(cls=_Short)
def release() -> None:
    """A model with its card, its privacy statement, its lineage and its logs, in one signed file.

    `fedgossip release RUN` is short for `fedgossip release make RUN`.
    """


@release.command(MAKE)
@click.argument("run", type=PATH)
@click.option(
    "--use",
    type=PATH,
    default=Path(run_format.USE),
    show_default=True,
    help="File with the intended use of the model and its limits, written by a person.",
)
@click.option(
    "--logs",
    type=PATH,
    multiple=True,
    metavar="FOLDER",
    help="Folder of the coordinator, or of a site, with the logs to include.  [default: RUN]",
)
@click.option("--endpoints", type=PATH, help="All participants' keys.  [default: those in RUN]")
@key_option("One's own key pair, which signs.")
@click.option("--out", type=PATH, help="File to write.  [default: NAME-release.zip]")
def make(run: Path, use: Path, logs: tuple[Path, ...], endpoints: Path | None, key: Path, out: Path | None) -> int:
    """Make a release of RUN, the directory of a federated run: a page, card.html, and one signed zip with all files."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.net.identity import Identity
    from fedgossip.report.page.reading import read_run
    from fedgossip.runs.run_directory import write_whole
    from fedgossip.sites.releases.gathering import ReleaseSources, gathered
    from fedgossip.sites.releases.released import write_signed

    read_run(run)  # a wrong folder is refused before a missing key
    identity = Identity.load(key)
    made, contents = gathered(ReleaseSources(run, use, logs, endpoints), identity.verify)
    path = out or Path(f"{_plain(made.name)}-release.zip")
    if path.exists():
        raise ConfigError(f"{path}: there already", "Name another file with --out.")
    write_signed(path, contents, identity)
    page = run / run_format.CARD
    content = contents[run_format.CARD]
    assert isinstance(content, bytes), "it was made just now"
    write_whole(page, content)
    echo("\n".join(_lines(made)))
    echo(f"Wrote {path}, and its page: {page}", err=True)
    return 0


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name) or "model"


def _lines(made: Release) -> list[str]:
    m = made.model
    rows = [
        ["model", f"{m.source}, {m.numbers:,} numbers, sha256 {m.weights[:16]}"],
        ["privacy", _privacy(made)],
        ["plan", f"{made.plan[:16]}, {_approved(made)}"],
        ["judged", _judged(made)],
        ["logs", _logs(made)],
        ["files", f"{len(made.files) + 1}"],
        *([what, line(text, 1000)] for what, text in made.study),
        ["signed by", made.signer],
    ]
    return [columns(rows)]


def _judged(made: Release) -> str:
    if made.judged:
        return "by the sites, by secure sums"
    advice = "" if made.fit_alone else ": fedgossip evaluate"
    return f"NOT judged by the sites{advice}"


def _privacy(made: Release) -> str:
    p = made.privacy
    if p.epsilon is None:
        return "no budget: nothing is promised of single records"
    return f"epsilon {p.epsilon:.4g} at delta {p.delta:g} for each {p.unit}"


def _approved(made: Release) -> str:
    if not made.approvals:
        return "which no site has signed"
    return f"signed by {len(made.approvals)} of {made.sites or len(made.approvals)} sites"


def _logs(made: Release) -> str:
    sound = sum(one.sound for one in made.logs)
    return f"{sound} of {len(made.logs)} sound" if made.logs else "none"


@release.command()
@click.argument("file", type=PATH)
@click.option(
    "--endpoints", type=PATH, help="Keys of all participants, from people whom you trust; it must contain the signer's."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def verify(file: Path, endpoints: Path | None, as_json: bool) -> int:
    """Verify a release, offline and on any machine: that FILE is as signed, and its contents are consistent.

    Ends with code 1 if a byte was changed, or some content is inconsistent.
    """
    from fedgossip.sites.releases.checking import check

    found = check(file, endpoints)
    if as_json:
        print_json({"file": str(file), "sound": not found.faults, "faults": found.faults, "whose": found.whose,
                    "release": found.release})  # fmt: skip
    else:
        echo("\n".join(_verified(file, found)))
    return 1 if found.faults else 0


def _verified(file: Path, found: CheckedRelease) -> list[str]:
    if found.faults:
        return [f"{file}: NOT sound", *(f"  {fault}" for fault in found.faults)]
    head = f"{file}: sound, as it was signed on {found.release.made}"
    return [head, *_lines(found.release), f"the key is {found.whose}"]


@release.command()
@click.argument("file", type=PATH)
@click.option("--site", type=click.IntRange(min=0), required=True, help="The site that withdraws.")
def withdraw(file: Path, site: int) -> int:
    """List the parts of a release that contain a site's data, and print the commands that train a model without it.
    Nothing is unlearned.
    """
    from fedgossip.sites.releases.checking import check, contains
    from fedgossip.sites.releases.released import ReleaseError, ranges

    found = check(file)
    if found.faults:
        raise ReleaseError(f"{file}: not sound: {found.faults[0]}", f"See all: fedgossip release verify {quoted(file)}")
    made = found.release
    inside = contains(made, site)
    known = ranges(made.counted[site]) if made.counted else "the record does not name them"
    echo(f"site {site} was counted in rounds: {known}, of {made.rounds}")
    echo("\n".join(inside) if inside else "nothing in this release contains its data")
    if inside:
        echo("Its data cannot be removed from them: nothing is unlearned.")
        echo("Withdraw this release, and train again:")
        echo("\n".join(_again(made, site)))
    return 0


def _again(made: Release, site: int) -> list[str]:
    """Return the commands of a training without a site."""
    left = made.sites - 1
    fewer = f" --set coordinator.min_clients={left}" if left < made.least else ""
    common = f"EXPERIMENT.toml --endpoints endpoints.toml{fewer}"
    begun = f"{common} --set coordinator.start_timeout=60"
    others = ", ".join(str(one) for one in range(made.sites) if one != site)
    forget, agree = f"  rm {shlex.quote(made.agreed_file)}", f"  fedgossip data agree {begun}"
    approve = ["  fedgossip plan approve " + common + " --id K"] if made.approvals else []
    lead, take_part = f"coordinator {begun} --out without-{site}", f"client {begun} --id K --out without-{site}"
    if made.fit:
        lead, take_part = (f"fit {begun}{who} --to without-{site}" for who in ("", " --id K"))
    return [
        "at the coordinator:",
        *([forget, agree] if made.agreed else []),
        f"  fedgossip {lead}",
        f"at the sites K = {others}:",
        *([forget, f"{agree} --id K"] if made.agreed else []),
        *([] if made.fit else ["  rm policy.toml", f"  fedgossip privacy policy {common}", *approve]),
        f"  fedgossip {take_part}",
        f"site {site} stays away: the others begin without it, and each run ends as partial, with code 9",
    ]
