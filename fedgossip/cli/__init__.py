"""The command line: each command parses its arguments, calls one function of a lower room and prints the result.

It may import everything.  Commands are imported when they are used: `fedgossip --help` loads only click.  `fedgossip
run FILE`: COMMANDS names the module of `run`, which reads the experiment, starts a driver and prints its rows.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from fedgossip.base import signals
from fedgossip.base.errors import EXIT_CODES, FedgossipError, nearest
from fedgossip.base.untrusted_text import masked
from fedgossip.base.version import __version__, commit
from fedgossip.cli import completion, text
from fedgossip.cli.text import echo

STOPPED = 130
"""Return code of a command that was asked to end; the signal decides the exit code."""

TOML = ".toml"
"""Last letters of the names of experiment and sweep files."""

COMMANDS = {
    "demo": ("fedgossip.cli.run.demo", "Eight graphs and real peers on real data, in under a minute."),
    "init": ("fedgossip.cli.init", "Make a folder with a commented experiment to begin from."),
    "run": ("fedgossip.cli.run.run", "Run an experiment file: simulated, or as processes of this machine."),
    "forecast": (
        "fedgossip.cli.lab.forecast",
        "Forecast a run before it begins: disagreement and scores, graph by graph.",
    ),
    "launch": ("fedgossip.cli.run.launch", "Run a script with a training loop of your own, once per peer."),
    "host": ("fedgossip.cli.people.host", "Invite others to a run, and be one of its peers."),
    "join": ("fedgossip.cli.people.join", "Take part in a run by an invite."),
    "pilot": ("fedgossip.cli.people.pilot", "A whole pilot of sites: from their tables to a signed release."),
    "relay": ("fedgossip.cli.people.relay", "Connect peers that cannot accept connections."),
    "peer": ("fedgossip.cli.run.peer", "Run one peer of a run over several machines."),
    "coordinator": ("fedgossip.cli.run.peer", "Run the coordinator of a federated run over several machines."),
    "client": ("fedgossip.cli.run.peer", "Run one client of a federated run over several machines."),
    "step": ("fedgossip.cli.run.peer", "Continue a run by folder, as far as possible now."),
    "worker": ("fedgossip.cli.run.peer", "Run one worker of a parallel run over several machines."),
    "server": ("fedgossip.cli.run.peer", "Run one server of a parallel run over several machines."),
    "manager": (
        "fedgossip.cli.run.peer",
        "Run the manager of parameter servers with copies over several machines.",
    ),
    "privacy": (
        "fedgossip.cli.sites.privacy",
        "Privacy of a federated run: plan a budget, pin a policy, see its use.",
    ),
    "plan": ("fedgossip.cli.sites.plan", "Read, compare and approve the plan of a federated run; revoke an approval."),
    "keys": ("fedgossip.cli.people.keys", "Make and show the keys by which peers identify each other."),
    "topology": ("fedgossip.cli.topology.topology", "Look at graphs: list, show, compare, draw."),
    "watch": ("fedgossip.cli.run.watch", "Watch a run in progress: on the terminal, or as a page."),
    "board": (
        "fedgossip.cli.run.watch",
        "All runs of a folder on one page: a table, and their curves together.",
    ),
    "runs": ("fedgossip.cli.run.runs", "List runs."),
    "collect": ("fedgossip.cli.run.runs", "Combine the folders of a run's peers into one run."),
    "data": ("fedgossip.cli.sites.data", "Agree on columns and statistics with other sites, as secure sums."),
    "predict": ("fedgossip.cli.sites.evaluate", "Score the rows of a table with the model of a run."),
    "model": ("fedgossip.cli.lab.model", "A trained model for small machines: as an ONNX file, and measured."),
    "evaluate": (
        "fedgossip.cli.sites.evaluate",
        "Measure a model on labelled examples: your own, or those of all sites.",
    ),
    "release": ("fedgossip.cli.sites.release", "A model with its card, privacy, lineage and logs in one signed file."),
    "fit": ("fedgossip.cli.sites.fit", "Fit a linear, logistic or Poisson model to all sites' tables, by secure sums."),
    "table": ("fedgossip.cli.run.runs", "Show or write the trained rows of a run whose model is a table."),
    "replay": (
        "fedgossip.cli.run.replay",
        "Replay the events of a run in fresh machines, and compare the bits.",
    ),
    "timeline": (
        "fedgossip.cli.lab.timeline",
        "Draw computing, sending, receiving and waiting in the first rounds of a run.",
    ),
    "lecture": ("fedgossip.cli.lab.lecture", "A course on distributed training: formulas and runs, topic by topic."),
    "advise": ("fedgossip.cli.lab.advise", "Advice before a run: the mesh of a participant's processes."),
    "compare": ("fedgossip.cli.lab.compare", "Compare ways to train in parallel, from one file, on one page."),
    "sweep": (
        "fedgossip.cli.lab.sweep",
        "Run a grid of keys and seeds of one experiment, and compare them on one page.",
    ),
    "repro": ("fedgossip.cli.lab.repro", "Compute published numbers and claims again, and compare."),
    "report": ("fedgossip.cli.run.runs", "Write the report page of a run again, or of several side by side."),
    "plot": ("fedgossip.cli.lab.plot", "Draw one number of runs, or of a sweep, as a figure or on the terminal."),
    "audit": (
        "fedgossip.cli.sites.audit",
        "Show, verify and export the log of a participant; verify a coordinator's rounds.",
    ),
    "explain": ("fedgossip.cli.explain", "Explain a key, an exit code, an event, a command or a term."),
    "doctor": ("fedgossip.cli.doctor", "Check this machine: its abilities, and missing parts."),
    "completion": ("fedgossip.cli.completion", "Print the script that completes commands in bash, zsh or fish."),
}


class _Lazy(click.Group):
    """A group with its commands' names and one-line helps, which imports a command only to run it."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            raise click.UsageError(f"there is no command {name!r}. {nearest(name, COMMANDS)}", context)
        command: click.Command = getattr(importlib.import_module(COMMANDS[name][0]), name)
        return command

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, context, incomplete)]

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


HELP = f"""Decentralized and federated learning: peers that learn together by gossip.

Start with `fedgossip demo`; `fedgossip explain WORD` explains a key, an event or an exit code.  Exit codes:
{", ".join(f"{code} {one.name}" for code, one in EXIT_CODES.items())}.
"""


@click.group(cls=_Lazy, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _option, wanted: _print_version(context) if wanted else None,
    help="Show the version, with its commit, and exit.",
)
def cli() -> None:
    """Every command of the command line."""


def _print_version(context: click.Context) -> None:
    if not context.resilient_parsing:
        made_of = commit()
        echo(f"fedgossip, version {__version__}{f' (commit {made_of})' if made_of else ''}")
        context.exit()


def main() -> NoReturn:
    """Run the command line.  An error prints its line and a line of advice, after the traceback if FEDGOSSIP_TRACEBACK
    is set.
    """
    text.prepare()
    with signals.as_interrupt():
        code = _run()
    gc.freeze()  # skips the interpreter's final collection: half a second with torch loaded, and it frees nothing
    sys.exit(signals.exit_code() if code == STOPPED else code)


def _run() -> int:
    try:
        if line := os.environ.get(completion.VARIABLE):
            return completion.complete(cli, line)
        code = cli(standalone_mode=False)
    except FedgossipError as error:
        code = _fail(str(error), error.advice, error.exit_code, error)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.ClickException as error:
        code = _fail(error.format_message(), _of_usage(error), error.exit_code, None)
    except (KeyboardInterrupt, click.Abort):
        code = _fail("stopped", "", STOPPED, None)
    except SystemExit as error:  # of other code: its exit code would be mistaken for a command's
        if isinstance(error.__context__, BrokenPipeError):  # by click, which treats any broken pipe as the output's
            return _fail("unexpected BrokenPipeError", FAULT, 1, error)
        advice = "The code of a model, loss or metric of yours did it; with FEDGOSSIP_TRACEBACK=1 it is shown where."
        code = _fail(f"stopped in its midst by sys.exit({error.code!r})", advice, 5, error)
    except OSError as error:
        code = _fail(*_explain_disk_error(error), 2, error)
    except Exception as error:
        if isinstance(error, MemoryError) or OF_TORCH in str(error):
            advice = "Use a smaller model, smaller batches, fewer peers, or a machine with more memory."
            return _fail(f"out of memory: {error}", advice, 2, error)
        code = _fail(f"unexpected {type(error).__name__}: {error}", FAULT, 1, error)
    return code if isinstance(code, int) else 0


class LackingFileError(click.UsageError):
    """A command was not given its file, of names that end in `suffix`."""

    def __init__(self, message: str, suffix: str = TOML) -> None:
        super().__init__(message)
        self.suffix = suffix


def _of_usage(error: click.ClickException) -> str:
    """Return the advice for words that a command does not take; if its file is missing, the names of those here."""
    typed = next((f"fedgossip {word}" for word in sys.argv[1:2] if word in COMMANDS), "fedgossip")
    where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else typed
    named = error.param and error.param.human_readable_name if isinstance(error, click.MissingParameter) else None
    suffix = error.suffix if isinstance(error, LackingFileError) else TOML if named in ("EXPERIMENT", "SWEEP") else None
    if suffix is None:
        return f"See {where} --help"
    here = ", ".join(sorted(path.name for path in Path().glob(f"*{suffix}"))[:5])
    files = f"Here: {here}." if here else "fedgossip init digits makes one, and init own-loop one for training loops."
    return f"{files}  See {where} --help"


OF_TORCH = "can't allocate memory"
"""Text of torch's RuntimeError for a processor without memory."""

FAULT = "This is a fault of fedgossip: set FEDGOSSIP_TRACEBACK=1 to see where, and report it."


def _explain_disk_error(error: OSError) -> tuple[str, str]:
    """Return the message and the advice for a path that could not be used."""
    place = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    if isinstance(error, FileNotFoundError) and place and not place.parent.exists():  # the name may be of a part
        return f"there is no folder {place.parent}", "Make it, or name another place."
    advice = "Choose a folder that can be written and has room, with --out."
    if isinstance(error, FileExistsError | NotADirectoryError):
        advice = "A file is where a folder was expected: give another folder with --out."
    return f"{place}: {error.strerror}" if place else str(error.strerror or error), advice


def _fail(message: str, advice: str, code: int, error: BaseException | None) -> int:
    if error is not None and os.environ.get("FEDGOSSIP_TRACEBACK"):
        traceback.print_exception(error)
    for line in (f"error: {message}", advice):  # a third-party message may have several lines
        if line:
            echo(masked(" ".join(line.split())), err=True)
    return code
