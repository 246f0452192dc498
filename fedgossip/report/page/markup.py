"""The pieces of a page.  Every text is escaped here, unless its type is `Markup`."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import tempfile
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from fedgossip.base.untrusted_text import printable
from fedgossip.report.page.drawing import DARK

REPORT_SCRIPTS = ("figure.js", "script.js")
"""Scripts of every page, in this order."""


class Markup(str):
    """Text in markup, which enters the page unchanged."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Return `value` as harmless text."""
    return value if isinstance(value, Markup) else Markup(html.escape(printable(str(value), keep="\n\t"), quote=True))


def join(parts: Iterable[Markup | None]) -> Markup:
    return Markup("\n".join(part for part in parts if part))


def figure(name: str, svg: str | None, title: str, caption: str) -> Markup | None:
    """Return a captioned figure; None if there is nothing to draw."""
    if svg is None:
        return None
    described = svg.replace("<svg ", f'<svg role="img" aria-label="{text(f"{title}. {caption}")}" ', 1)
    return Markup(
        f'<figure id="{text(name)}">\n{described}\n'
        f"<figcaption><b>{text(title)}.</b> {text(caption)}</figcaption>\n</figure>"
    )


def paragraph(words: str, kind: str = "") -> Markup:
    mark = f' class="{kind}"' if kind else ""
    return Markup(f"<p{mark}>{text(words)}</p>")


def section(title: str, *parts: Markup | None) -> Markup | None:
    """Return a titled section; None if all its parts are missing."""
    inside = join(parts)
    return Markup(f"<section>\n<h2>{text(title)}</h2>\n{inside}\n</section>") if inside else None


def grid(*cells: Markup | None, kind: str = "grid") -> Markup | None:
    """Return cells side by side, below each other on a phone; None without any."""
    inside = join(cells)
    return Markup(f'<div class="{kind}">\n{inside}\n</div>') if inside else None


LONG = 9
"""Values of more letters are set smaller, to fit their card; markup sets its own size."""


def cards(facts: Iterable[tuple[str, str, str]]) -> Markup:
    """Return (what, value, note) as large figures."""

    def card(what: str, value: str, note: str) -> str:
        kind = "value long" if len(value) > LONG and not isinstance(value, Markup) else "value"
        return (
            f'<div><dt>{text(what)}</dt><dd class="{kind}">{text(value)}</dd><dd class="note">{text(note)}</dd></div>'
        )

    return Markup('<dl class="cards">\n' + "\n".join(card(*fact) for fact in facts) + "\n</dl>")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> Markup:
    """Return a table with numbers in its last `numbers` columns."""
    first = len(heads) - numbers

    def mark(column: int) -> str:
        return ' class="number"' if column >= first else ""

    head = "".join(f'<th scope="col"{mark(column)}>{text(name)}</th>' for column, name in enumerate(heads))
    body = "\n".join(
        "<tr>" + "".join(f"<td{mark(column)}>{text(value)}</td>" for column, value in enumerate(row)) + "</tr>"
        for row in rows
    )
    return Markup(
        '<div class="card scroll wide"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def facts_table(title: str, rows: Iterable[tuple[str, str, str]]) -> Markup | None:
    """Return (name, value, explanation) as a card; None without rows."""
    lines = [
        f'<tr><th scope="row">{text(name)}{f"<small>{text(why)}</small>" if why else ""}</th>'
        f'<td class="number">{text(value)}</td></tr>'
        for name, value, why in rows
    ]
    if not lines:
        return None
    body = "\n".join(lines)
    listed = f'<table class="plain"><tbody>\n{body}\n</tbody></table>'
    return Markup(f'<div class="card">\n<h3>{text(title)}</h3>\n{listed}\n</div>')


def folded(title: str, inside: Markup) -> Markup:
    return Markup(f'<details class="card"><summary>{text(title)}</summary><div>\n{inside}\n</div></details>')


def document(title: str, head: Markup, body: Markup) -> str:
    """Return the complete page.  Its policy forbids the browser all requests, and all scripts but the page's own."""
    script = "".join(files(__package__).joinpath(name).read_text("utf-8") for name in REPORT_SCRIPTS)
    style = files(__package__).joinpath("style.css").read_text("utf-8") + _dark_figures()
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="fedgossip">
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<header>
{head}
</header>
<main>
{body}
</main>
<footer>Made by fedgossip. One file, nothing is loaded from elsewhere: keep it, send it, print it.</footer>
<script>{script}</script>
</body>
</html>
"""


def write_atomically(path: Path, page: str) -> None:
    """Write `page` to `path` atomically; a reader sees either the old page or the new one."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _dark_figures() -> str:
    rules = "\n".join(
        f'svg [style*="{part}: {light}"] {{ {part}: {dark} !important; }}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    )
    return f"@media screen and (prefers-color-scheme: dark) {{\n{rules}\n}}\n"
