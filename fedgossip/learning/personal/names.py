"""The personal methods by name, as an experiment file has them: a line each; their options are its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any
from urllib.parse import parse_qsl

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.limits import limits_of
from fedgossip.learning.personal.base import PersonalMethod
from fedgossip.learning.personal.logits import FedDF, FedMD
from fedgossip.learning.personal.methods import Apfl, Ditto, FedRep, Finetune, Ifca, MeanRegularised, PFedMe

METHODS: Mapping[str, tuple[type[Any], str]] = {
    "finetune": (Finetune, "the shared model, trained further"),
    "ditto": (Ditto, "a model pulled to the shared one"),
    "mr-mtl": (MeanRegularised, "models pulled to their mean"),
    "apfl": (Apfl, "a learned mixture with the shared model"),
    "fedrep": (FedRep, "a head on a shared body"),
    "pfedme": (PFedMe, "the Moreau envelope's model"),
    "ifca": (Ifca, "the model of a cluster"),
    "feddf": (FedDF, "distilled from the mean logits for common examples"),
    "fedmd": (FedMD, "distilled from them, and trained further"),
}

OF_LOGITS = ("feddf", "fedmd")
"""Methods that exchange logits in place of models."""

PERSONAL: Mapping[str, str] = {name: what for name, (_, what) in METHODS.items()}

WRITTEN = {"lambda": "pull"}
"""Options whose names are words of Python."""


def method_of(key: str, text: str) -> PersonalMethod:
    """Return the method that `key` = NAME?OPTION=VALUE&... names.  Raises ConfigError for what is not known."""
    name, _, query = text.partition("?")
    if name not in METHODS:
        raise ConfigError(f"{key} = {text!r} is not known", nearest(name, METHODS))
    made, _ = METHODS[name]
    types = {field.name: field.type for field in fields(made)}
    written = {option: word for word, option in WRITTEN.items()}
    limits, known = dict(limits_of(made)), [written.get(option, option) for option in types]
    options: dict[str, Any] = {}
    for word, value in parse_qsl(query, keep_blank_values=True):
        option = WRITTEN.get(word, word)
        if word not in known:
            raise ConfigError(f"{key} = {text!r}: {name} has no option {word!r}", nearest(word, known))
        options[option] = (
            value if option not in limits else _number(key, text, word, value, whole="int" in types[option])
        )
        limit = limits.get(option)
        if limit is not None and not limit.allows(options[option]):
            raise ConfigError(f"{key} = {text!r}: {word} = {value} {limit.refusal}", limit.advice(options[option]))
    found: PersonalMethod = made(**options)
    return found


def _number(key: str, text: str, word: str, value: str, *, whole: bool) -> float:
    try:
        return int(value) if whole else float(value)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"{key} = {text!r}: {word} = {value!r} is not {kind}", f"Write {word}=1, say.") from None
