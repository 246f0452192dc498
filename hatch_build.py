"""A step of hatchling: a wheel and an sdist name the commit that they were built from, for `fedgossip --version`."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        here = runpy.run_path(str(root / "fedgossip/base/version.py"))
        target = f"fedgossip/{here['COMMIT_FILE']}"
        found = here["commit_of"](root)
        if version == "editable" or not found or (root / target).exists():  # an sdist has the file already
            return
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "commit.txt"
        file.write_text(f"{found}\n", encoding="utf-8")
        build_data["force_include"][str(file)] = target

    def finalize(self, *_: Any) -> None:
        if folder := getattr(self, "_folder", None):
            folder.cleanup()
