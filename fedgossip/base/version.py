"""The version of this release, and the commit of its source."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported at their use: every import of fedgossip reads this module
    from pathlib import Path

__version__ = "0.1.0"

PACKAGE = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120
COMMIT_FILE = "base/commit.txt"
"""In a wheel and an sdist, below the package: hatch_build.py writes it."""

GIT_SECONDS = 5.0
"""Maximum duration of a git command, in seconds."""


def commit() -> str:
    """Return the commit of this package, with the suffix -dirty if files of the checkout differ; "" if unknown."""
    from pathlib import Path

    package = Path(PACKAGE)
    try:
        return (package / COMMIT_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return commit_of(package.parent)


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout; "" for another folder, also for one inside another project's checkout."""
    import subprocess

    if not (folder / ".git").exists() or not (folder / "hatch_build.py").exists():
        return ""
    words = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
