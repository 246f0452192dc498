"""Glossary of technical terms.  glossary.toml is the one source: `fedgossip explain WORD` prints each term,
docs/reference/reference.md those of [pages], docs/sites/glossary.md and documents for boards those of [sites].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import msgspec

from fedgossip.base.decoding import from_toml

PAGES, SITES = "pages", "sites"


@cache
def terms_of(part: str) -> Mapping[str, str]:
    """Return the terms of PAGES or SITES with their meanings, in the order of the file."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return msgspec.convert(from_toml(text), dict[str, dict[str, str]])[part]


def terms() -> Mapping[str, str]:
    """Return all terms with their meanings."""
    return {**terms_of(PAGES), **terms_of(SITES)}


@cache
def pattern() -> re.Pattern[str]:
    """Return the expression that finds a term of SITES, or its plural; not inside a key, a path or a number."""
    longest = sorted(terms_of(SITES), key=len, reverse=True)
    return re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest))})s?(?![\w/=-]|\.\w)", re.IGNORECASE)


def used_in(texts: Iterable[str]) -> Mapping[str, str]:
    """Return the terms of SITES in the texts, in the order of first use, with the first sentence of each meaning."""
    known = {name.lower(): name for name in terms_of(SITES)}
    found = dict.fromkeys(known[one[1].lower()] for text in texts for one in pattern().finditer(text))
    return {name: first_sentence(terms_of(SITES)[name]) for name in found}


def first_sentence(meaning: str) -> str:
    return re.split(r"(?<=\.)\s", meaning, maxsplit=1)[0]
