"""Optional libraries: each is in one of the project's extras, and its absence is reported in one way."""

from __future__ import annotations

import importlib
from typing import Any

from fedgossip.base.errors import ConfigError


def needed(module: str, extra: str, what: str, otherwise: str = "") -> Any:
    """Return a module that `what` needs.  Raises ConfigError, which names the extra, and what works without it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(f"{module.partition('.')[0]}: {error}", extra, what, otherwise) from None


def missing(package: str, extra: str, what: str, otherwise: str = "") -> ConfigError:
    """Return the error of a package that `what` needs."""
    advice = f"pip install 'fedgossip[{extra}]'"
    return ConfigError(f"{what} needs {package}", f"{advice}; {otherwise}" if otherwise else advice)
