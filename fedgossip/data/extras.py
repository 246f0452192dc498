"""Optional libraries: each is one of the project's extras."""

from __future__ import annotations

import importlib
from typing import Any

from fedgossip.base.errors import ConfigError


def needed(module: str, extra: str, what: str) -> Any:
    """Return a module that `what` needs.  Raises ConfigError, naming the extra with it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(f"{what} needs {package}: {error}", f"pip install 'fedgossip[{extra}]'") from None
