"""What mkdocs does to the pages of docs/ beside drawing them: see mkdocs.yml.

The README is the first page.  The Python interface is a page of its own, of the docstrings of what `fedgossip` exports.
Files of the project that are no pages are named where a page links to them.  The picture of the rooms stays text, for
what draws it would be fetched from elsewhere.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
UPWARDS = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    files.append(File.generated(config, "index.md", content=first_page()))
    files.append(File.generated(config, "api.md", content=interface()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page as mkdocs takes it."""
    folder = posixpath.dirname(page.file.src_uri)
    return UPWARDS.sub(lambda link: _named(link, folder), markdown).replace("```mermaid", "```text")


def _named(link: re.Match[str], folder: str) -> str:
    """Return a link that leads out of docs/ as the name of what is there; any other link as it is."""
    place = posixpath.normpath(posixpath.join("docs", folder, link[2]))
    if place.startswith("docs/"):
        return link[0]
    words = link[1].strip("`")
    return f"`{place}`" if words.rstrip("/") in place else f"{words} (`{place}`)"


def first_page() -> str:
    """Return the README, with links as docs/ has them."""
    text = (ROOT / "README.md").read_text()
    inside = text.replace("](docs/", "](")
    return re.sub(r"\]\((?!https?:|[\w/-]+\.(?:md|svg))([^)#]+)", r"](../\1", inside)


def interface() -> str:
    """Return the page of all that `fedgossip` exports, by where it is declared."""
    import fedgossip

    parts = ["# The Python interface", "", "What `import fedgossip` gives; each name is loaded when it is used.", ""]
    for name in sorted(set(fedgossip.__all__) & set(fedgossip.HOMES), key=str.lower):
        parts += [f"::: {fedgossip.HOMES[name]}.{name}", "    options:", f"      heading: fedgossip.{name}", ""]
    return "\n".join(parts)
