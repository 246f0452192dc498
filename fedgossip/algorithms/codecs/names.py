"""The codecs by name, as written in an experiment file: one line each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from fedgossip.algorithms.codecs.base import Codec
from fedgossip.algorithms.codecs.low_rank import LOW_RANK
from fedgossip.algorithms.codecs.quantized import QSGD, BFloat16, Half, Int8, Sign, TernGrad
from fedgossip.algorithms.codecs.sparse import DeepGradient, RandomK, TopK
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.limits import MOST

LEVELS_MAX = 127
BLOCK_MAX = 1 << 20


def _plain(codec: Codec) -> Callable[[str, list[str]], Codec]:
    def make(name: str, given: list[str]) -> Codec:
        if given:
            raise ConfigError(f"{name}: {codec.name} takes no number", f'Write "{codec.name}".')
        return codec

    return make


def _share(name: str, given: list[str]) -> float:
    kind = name.partition(":")[0]
    share = _number(given[0]) if len(given) == 1 else math.nan
    if not 0 < share <= 1:
        text = f"{name}: {kind} takes the share of elements that are sent, above 0 and at most 1"
        raise ConfigError(text, f'Write, for example, "{kind}:0.01".')
    return share


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def _parse_count(name: str, word: str, most: int, what: str) -> int:
    found = _number(word)
    if not (1 <= found <= most and found == int(found)):
        raise ConfigError(f"{name}: {what} is a whole number from 1 to {most:,}", 'For example "int8:256" or "qsgd:7".')
    return int(found)


def _int8(name: str, given: list[str]) -> Codec:
    stochastic = given[-1:] == ["stochastic"]
    sizes = given[:-1] if stochastic else given
    if len(sizes) > 1:
        raise ConfigError(f"{name}: int8 takes a block, and stochastic", 'Write "int8:256" or "int8:256:stochastic".')
    return Int8(name, _parse_count(name, sizes[0], BLOCK_MAX, "a block of int8") if sizes else 256, stochastic)


def _qsgd(name: str, given: list[str]) -> Codec:
    if len(given) != 1:
        raise ConfigError(f"{name}: qsgd takes the number of levels on each side of 0", 'Write "qsgd:7": 4 bits each.')
    return QSGD(name, _parse_count(name, given[0], LEVELS_MAX, "the number of levels of qsgd"))


def _dgc(name: str, given: list[str]) -> Codec:
    if len(given) < 2:
        return DeepGradient(name, _share(name, given))
    share, rounds = _share(name, given[:1]), _number(given[1])
    if len(given) > 2 or not (0 <= rounds <= MOST and rounds == int(rounds)):
        text = f"{name}: dgc takes a share, and the rounds of each share of its warm-up"
        raise ConfigError(text, 'Write "dgc:0.01", or "dgc:0.001:50".')
    return DeepGradient(name, share, int(rounds))


CODECS: Mapping[str, Callable[[str, list[str]], Codec]] = {
    "bf16": _plain(BFloat16()),
    "fp16": _plain(Half()),
    "int8": _int8,
    "top-k": lambda name, given: TopK(name, _share(name, given)),
    "random-k": lambda name, given: RandomK(name, _share(name, given)),
    "dgc": _dgc,
    "qsgd": _qsgd,
    "terngrad": _plain(TernGrad("terngrad")),
    "sign": _plain(Sign()),
}
"""Each codec's constructor, from (name as written, parameters after its colons)."""

NUMBERS = {"int8": ":BLOCK", "top-k": ":SHARE", "random-k": ":SHARE", "dgc": ":SHARE", "qsgd": ":LEVELS"}
"""Parameters of a codec after its name."""

FORMS = {name + NUMBERS.get(name, ""): "" for name in CODECS}
"""Forms of the names, for the reference."""


def make_codec(name: str) -> Codec:
    """Return the codec of a name such as `top-k:0.01`.  Raises ConfigError for an unknown one."""
    kind, *given = name.split(":")
    if kind == LOW_RANK:
        advice = 'Take "top-k:0.01" or "random-k:0.01" here; or it, as parallel.codec, with parallel.method = "ring".'
        raise ConfigError(f"{name} takes two sums one after the other, which collectives alone make", advice)
    if kind not in CODECS:
        raise ConfigError(f"there is no codec {name!r}", nearest(kind, CODECS))
    return CODECS[kind](name, given)
