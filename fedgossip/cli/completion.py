"""`fedgossip completion`: the script with which a shell completes commands and options, and the
replies to that shell.
"""

from __future__ import annotations

import click
from click import shell_completion

from fedgossip.cli.text import echo

VARIABLE = "_FEDGOSSIP_COMPLETE"
"""Set by the shell's script, for example to bash_complete: the command line then only prints words."""

FILES = {
    "bash": '~/.bashrc:  eval "$(fedgossip completion bash)"',
    "zsh": '~/.zshrc, below compinit:  eval "$(fedgossip completion zsh)"',
    "fish": "~/.config/fish/config.fish:  fedgossip completion fish | source",
}
"""The line for each shell, and the file to add it to."""


@click.command()
@click.argument("shell", type=click.Choice(list(FILES)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in bash, zsh or fish.

    Add the line in its first comment to the file named there.
    """
    kind = shell_completion.get_completion_class(shell)
    assert kind, "click has a class for each of them"
    # not the class's own source(): for bash it starts a bash, to read its version
    script = shell_completion.ShellComplete.source(kind(context.find_root().command, {}, "fedgossip", VARIABLE))
    echo(f"# {FILES[shell]}\n{script.strip()}")


def complete(group: click.Group, instruction: str) -> int:
    """Print the words that complete the line in the shell's variables; none for an unknown command."""
    try:
        return shell_completion.shell_complete(group, {}, "fedgossip", VARIABLE, instruction)
    except click.ClickException:
        return 0
