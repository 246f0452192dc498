"""The version of this release, and the commit that it was made of."""

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
"""Maximum time of git."""


def commit() -> str:
    """Return the commit of this package, with -dirty behind it where files of the checkout differ; "" where unknown."""
    from pathlib import Path

    package = Path(PACKAGE)
    try:
        return (package / COMMIT_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return commit_of(package.parent)


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout; "" for another folder, also for one inside somebody else's checkout."""
    import subprocess

    if not (folder / ".git").exists() or not (folder / "hatch_build.py").exists():
        return ""
    words = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
