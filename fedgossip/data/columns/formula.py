"""A formula is a short notation of a model's columns: model.formula is replaced by the equivalent keys.

    formula   outcome ~ term + term ...          outcome: NAME, or Surv(TIME, EVENT)
    term      factor, factor:factor (a product; of three too), factor*factor (both, and their product),
              C(NAME), log(NAME), spline(NAME, KNOT, KNOT, KNOT ...), offset(NAME), strata(NAME)
    factor    NAME, NAME=LEVEL (1 if the column of words has it), C(NAME); `body mass` for other names

Nothing in it is executed: each token is one of the grammar, or the formula is refused at its position.  The outcome
becomes label=, the other columns keep=, of both tables; products, logarithms and splines become [data.columns]; an
offset and strata become options of model.source.  The experiment, including its hash, is the same as with these keys.

The operators are those of Wilkinson and Rogers, Symbolic description of factorial models, Applied Statistics 22 (1973).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple
from urllib.parse import quote

from fedgossip.base.errors import ConfigError

LENGTH = 10_000
"""Maximum number of letters of a formula."""
_TOKEN = re.compile(r"\s*(?:`([^`]*)`|([^\W\d][\w.]*)|([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)|(.))", re.DOTALL)
COLUMNS = 1000
"""Maximum number of columns of a formula: three columns of a hundred categories make a million products."""
OPTIONS = "offset", "strata"
FUNCTIONS = "C", "log", "spline", *OPTIONS
LEAST_KNOTS = 3
SHOWN = 60
"""Maximum number of letters of a formula in an error."""


class Token(NamedTuple):
    kind: str
    """name, number or mark."""
    text: str
    place: int
    """Position of its first letter, from 1."""


class Factor(NamedTuple):
    token: Token
    parts: Sequence[str]
    """Its parts in a product: NAME, or NAME=LEVEL of each level except the first."""
    columns: Mapping[str, Mapping[str, Any] | None]
    """Its columns outside products, with the declarations of computed ones; {} for a level."""


class Formula(NamedTuple):
    """The parsed content of a formula."""

    labels: tuple[str, ...]
    kept: tuple[str, ...]
    """The columns of the model, including computed ones."""
    made: Mapping[str, Mapping[str, Any]]
    """The declarations of computed columns."""
    options: Mapping[str, str]
    """Options of model.source: offset and strata."""


def tokens_of(text: str, refused: Callable[[Token, str, str], ConfigError]) -> Sequence[Token]:
    """Return the tokens of a text, the last one its end.  Raises the `refused` of a token, why and advice."""
    tokens = list[Token]()
    for found in _TOKEN.finditer(text.rstrip()[: LENGTH + 1]):
        kind = "name" if found[1] is not None or found[2] else "number" if found[3] else "mark"
        word = next(one for one in found.groups() if one is not None)
        tokens.append(Token(kind, word, found.end() - len(found[0].lstrip()) + 1))
    tokens.append(Token("end", "", len(text) + 1))
    if len(text) > LENGTH:
        raise refused(tokens[-1], f"a formula has at most {LENGTH:,} letters", "Leave terms out.")
    return tokens


def parsed(text: str, levels: Mapping[str, Sequence[str]]) -> Formula:
    """Return a parsed formula; `levels`: the declared categories of columns.  Raises ConfigError, with the position."""
    return _Parser(text, levels).formula()


class _Parser:
    def __init__(self, text: str, levels: Mapping[str, Sequence[str]]) -> None:
        self._text, self._levels, self._at = text, levels, 0
        self._kept, self._made, self._options = dict[str, int](), dict[str, Mapping[str, Any]](), dict[str, str]()
        self._tokens = tokens_of(text, self._refused)

    def _refused(self, token: Token, why: str, advice: str) -> ConfigError:
        where = "at its end" if token.kind == "end" else f"letter {token.place}, {token.text!r}"
        return ConfigError(f"model.formula = {self._text[:SHOWN]!r}, {where}: {why}", advice)

    def _next(self, *expected: str) -> Token:
        token = self._tokens[self._at]
        if token.kind not in expected and not (token.kind == "mark" and token.text in expected):
            known = {"name": "a column", "number": "a number", "end": "the end"}
            wanted = " or ".join(known.get(one, repr(one)) for one in expected)
            raise self._refused(token, f"expected is {wanted}", "Write y ~ age + sex + age:bmi; names are of columns.")
        self._at += 1
        return token

    def _is(self, text: str) -> bool:
        token = self._tokens[self._at]
        return token.kind == "mark" and token.text == text

    def formula(self) -> Formula:
        labels = self._outcome()
        self._next("~")
        while True:
            self._terms()
            if self._next("+", "end").kind == "end":
                break
        for name, place in self._kept.items():
            if name in labels:
                raise self._refused(self._token_at(place), f"{name!r} is the outcome", "Leave it out after the ~.")
        for name, one in self._made.items():
            for of in one.get("product", ()):
                if (factor := of.partition("=")[0]) not in self._kept:
                    text = f"{name!r} without {factor!r}: the factors of a product must be columns too"
                    raise self._refused(self._token_at(self._kept[name]), text, f"Add it: + {factor}.")
        return Formula(labels, tuple(self._kept), self._made, self._options)

    def _token_at(self, place: int) -> Token:
        return next(one for one in self._tokens if one.place == place)

    def _outcome(self) -> tuple[str, ...]:
        first = self._next("name")
        if first.text != "Surv" or not self._is("("):
            return (self._column(first.text, first),)
        self._next("(")
        time = self._next("name")
        self._next(",")
        event = self._next("name")
        self._next(")")
        return self._column(time.text, time), self._column(event.text, event)

    def _terms(self) -> None:
        begin = self._tokens[self._at]
        if begin.kind == "number":
            if self._next("number").text != "1":
                raise self._refused(begin, "each model has its intercept", "Leave the number out.")
        elif begin.kind == "name" and begin.text in OPTIONS and self._tokens[self._at + 1].text == "(":
            self._option(self._next("name"))
        else:
            self._factors(begin)

    def _factors(self, begin: Token) -> None:
        factors, marks = [self._factor()], list[str]()
        while self._is(":") or self._is("*"):
            marks.append(self._next(":", "*").text)
            factors.append(self._factor())
        if marks not in ([], ["*"], [":"], [":", ":"]):
            raise self._refused(begin, "a product is of two columns, or of three", "Write a*b, a:b or a:b:c.")
        for one in factors:
            if marks and any(one.columns.values()):
                text = "in a product: a column that is made is no part of another"
                raise self._refused(one.token, text, "Write the column itself.")
            if not marks and not one.columns:
                text = "a level alone: a column of words has a term for each but the first"
                level = one.parts[0]
                raise self._refused(one.token, text, f"Write {one.token.text}, or a product, age:{level}.")
        for parts in product(*(one.parts for one in factors)) if marks else ():
            self._keep(":".join(parts), begin, {"product": list(parts)})
        for one in factors if marks in ([], ["*"]) else ():
            for name, made in (one.columns or {one.token.text: None}).items():
                self._keep(name, begin, made)

    def _option(self, token: Token) -> None:
        self._next("(")
        name = self._next("name")
        if token.text == "offset" and name.text == "log" and self._is("("):
            self._next("(")
            of = self._next("name").text
            self._next(")")
            name = name._replace(text=f"log({of})")
            self._made[name.text] = {"log": of}
        self._next(")")
        if self._options.setdefault(token.text, name.text) != name.text:
            raise self._refused(token, f"{token.text} twice", "A model has one.")
        self._keep(name.text, token, self._made.get(name.text))

    def _factor(self) -> Factor:
        token = self._next("name")
        if not self._is("("):
            return self._level_of(token) if self._is("=") else Factor(token, [token.text], {token.text: None})
        if token.text not in FUNCTIONS:
            text = f"{token.text} is no function of a formula, and nothing in it is run"
            raise self._refused(token, text, f"There are {', '.join(FUNCTIONS)}, and Surv for an outcome.")
        if token.text in OPTIONS:
            raise self._refused(token, f"{token.text} is a term of its own", "Put a + before it.")
        self._next("(")
        name, knots = self._next("name").text, list[float]()
        while token.text == "spline" and self._is(","):
            self._next(",")
            knots.append(float(self._next("number").text))
        self._next(")")
        if token.text == "log":
            return Factor(token, [], {f"log({name})": {"log": name}})
        if token.text == "C":
            return self._categories(token, name)
        if len(knots) < LEAST_KNOTS:
            text, advice = f"a spline of {len(knots)} knots", f"Give three or more: spline({name}, 30, 50, 70)."
            raise self._refused(token, text, advice)
        terms = range(1, len(knots) - 1)
        made = {f"{name} spline {term}": {"spline": name, "knots": knots, "term": term} for term in terms}
        return Factor(token, [], {name: None, **made})

    def _level_of(self, token: Token) -> Factor:
        self._next("=")
        return Factor(token, [f"{token.text}={self._next('name', 'number').text}"], {})

    def _categories(self, token: Token, name: str) -> Factor:
        if not (levels := self._levels.get(name, ())):
            text = f"C({name}): its levels are not declared"
            advice = f'List them: [data.columns.{name}] categories = ["0", "1"]; a column of words stands without C().'
            raise self._refused(token, text, advice)
        return Factor(token, [f"{name}={level}" for level in levels[1:]], {name: None})

    def _column(self, name: str, token: Token) -> str:
        if "," in name or not name:
            text = f"{name!r} is no name of a column here"
            raise self._refused(token, text, "Rename it by aliases in [data.columns].")
        return name

    def _keep(self, name: str, token: Token, made: Mapping[str, Any] | None = None) -> None:
        self._kept.setdefault(self._column(name, token), token.place)
        if len(self._kept) > COLUMNS:
            text = f"more than {COLUMNS:,} columns"
            raise self._refused(token, text, "Leave terms out, or put categories together: merge in [data.columns].")
        if made:
            self._made[name] = made


def write_out(content: dict[str, Any], where: str) -> None:
    """Replace model.formula by the equivalent keys.  Raises ConfigError for an invalid one."""
    model, data = content.get("model"), content.get("data")
    text = model.pop("formula", "") if isinstance(model, dict) else ""
    if not text or not isinstance(model, dict):
        return
    tables = [key for key in ("source", "test") if isinstance(data, dict) and ":" in str(data.get(key, ""))]
    if not isinstance(text, str) or not isinstance(data, dict) or len(tables) < 2 or data.get("scale") != "federated":
        advice = 'Write it as text, with data.scale = "federated", a table of each site, and data.test.'
        raise ConfigError(f"{where}: model.formula is of columns that sites agree on", advice)
    columns = data.get("columns", {})
    if not isinstance(columns, dict):
        return  # refused by the check of this key
    declared = {name: one.get("categories", ()) for name, one in columns.items() if isinstance(one, Mapping)}
    found = parsed(text, declared)
    if twice := found.made.keys() & columns.keys():
        text = f"{where}: model.formula makes {min(twice)!r}, which [data.columns] declares too"
        raise ConfigError(text, "Name the declared column in backquotes, or leave the declaration out.")
    for key in tables:
        path, _, query = str(data[key]).partition("?")
        given = [one for one in query.split("&") if one]
        if any(one.partition("=")[0] in ("label", "drop", "keep") for one in given):
            text = f"{where}: label, drop or keep in data.{key} with model.formula, which names all columns"
            raise ConfigError(text, "Leave them out of the source.")
        more = [f"{name}={','.join(quote(one) for one in several)}" for name, several in (
            ("label", found.labels), ("keep", found.kept))]  # fmt: skip
        data[key] = f"{path}?{'&'.join([*given, *more])}"
    if found.made:
        data["columns"] = {**columns, **found.made}
    for name, value in found.options.items():
        source = str(model.get("source", ""))
        model["source"] = f"{source}{'&' if '?' in source else '?'}{name}={quote(value)}"
