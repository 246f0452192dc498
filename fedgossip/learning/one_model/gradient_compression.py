"""How gradients travel among the processes of one participant: `train.compression`.  No torch here."""

from __future__ import annotations

from fedgossip.base.errors import ConfigError

NONE, BF16, POWERSGD = "none", "bf16", "powersgd"
RANK_MOST = 256


def rank_of(compression: str) -> int | None:
    """Return the rank of "powersgd:RANK"; None for "none" and "bf16".  Raises ConfigError for another text."""
    name, _, rank = compression.partition(":")
    if name == POWERSGD:
        if rank.isascii() and rank.isdigit() and 1 <= int(rank) <= RANK_MOST:
            return int(rank)
        text = f"compression = {compression!r}: {POWERSGD} takes a rank, a whole number from 1 to {RANK_MOST}"
        raise ConfigError(text, f'Write "{POWERSGD}:2", say.')
    if compression in (NONE, BF16):
        return None
    raise ConfigError(f"unknown compression {compression!r}", f'Known: "{NONE}", "{POWERSGD}:RANK", "{BF16}".')
