"""`fedgossip lecture`: topics of a course on distributed training, each comparing a formula with a run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.text import columns, console, echo, print_json

if TYPE_CHECKING:
    from fedgossip.lab.lectures.lesson import Lesson

WIDTH = 100  # columns
INDEX = "index.html"


@click.command()
@click.argument("topic", required=False)
@click.option("--answers", is_flag=True, help="Show the answers to the questions.")
@click.option("--html", type=click.Path(path_type=Path), help="Write the lecture as one page, with its picture.")
@click.option("--all", "every", is_flag=True, help="Give all lectures, as pages of a folder.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("lectures"), show_default=True, help="That folder."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def lecture(topic: str | None, answers: bool, html: Path | None, every: bool, out: Path, as_json: bool) -> int:
    """Give the lecture on TOPIC: three paragraphs, a run, its numbers next to their formulas, three questions.

    Without a TOPIC all are listed.  Nothing is downloaded.  Exit code 1 if a number is outside its tolerance.
    """
    from fedgossip.lab.lectures.topics import name_of, topics

    if every:
        if topic or html or answers:
            raise click.UsageError("--all gives every lecture: no TOPIC, --html or --answers with it")
        return _course(out, as_json=as_json)
    if topic is None:
        if html or answers:
            raise click.UsageError("name a TOPIC; fedgossip lecture lists them")
        if as_json:
            print_json({name: one.title for name, one in topics().items()})
        else:
            echo(columns([[name, one.title] for name, one in topics().items()]))
        return 0
    name = name_of(topic)

    from fedgossip.lab.lectures.lesson import give
    from fedgossip.report.page.lectures import write_lecture

    lesson = give(name)
    if html:
        write_lecture(html, lesson.page())
    if as_json:
        print_json(_facts(lesson))
    else:
        _print(lesson, answers=answers)
        echo(f"\nThe page: {html}" if html else f"\nWith the picture: fedgossip lecture {name} --html {name}.html")
    return 0 if lesson.holds else 1


def _course(out: Path, *, as_json: bool) -> int:
    from fedgossip.base import outside_files, owner_files
    from fedgossip.lab.lectures.lesson import give
    from fedgossip.lab.lectures.topics import topics
    from fedgossip.report.page.lectures import write_course, write_lecture

    owner_files.make_folder(out)
    outside_files.checked_folder(out)
    lessons = []
    for name in topics():
        lesson = give(name)
        lessons.append(lesson)
        write_lecture(out / f"{name}.html", lesson.page())
        if not as_json:
            agree = sum(one.holds for one in lesson.numbers)
            _line(f"{name}: {agree} of {len(lesson.numbers)} numbers agree, {lesson.seconds:.1f} s", lesson.holds)
    write_course(out / INDEX, [lesson.page() for lesson in lessons])
    if as_json:
        print_json({lesson.name: _facts(lesson) for lesson in lessons})
    else:
        echo(f"{sum(one.seconds for one in lessons):.0f} s of CPU; open {out / INDEX}")
    return 0 if all(one.holds for one in lessons) else 1


def _print(lesson: Lesson, *, answers: bool) -> None:
    from fedgossip.report.page.lectures import HEADS

    page = lesson.page()
    echo(f"{page.title}\n")
    for words in page.says:
        echo("\n".join(textwrap.wrap(words, WIDTH)) + "\n")
    if page.names:
        echo(f"With {page.setting}.\n")
    for line, row in zip(
        columns([HEADS, *(row.cells for row in page.rows)]).split("\n"), [None, *page.rows], strict=True
    ):
        _line(line, row is None or row.holds)
    echo()
    for number, (asked, answer) in enumerate(page.questions, 1):
        echo("\n".join(textwrap.wrap(f"{number}. {asked}", WIDTH, subsequent_indent="   ")))
        if answers:
            echo("\n".join(textwrap.wrap(answer, WIDTH, initial_indent="   ", subsequent_indent="   ")))
    if not answers:
        echo("   Answers: --answers")
    echo("\n" + "\n".join(textwrap.wrap(f"Source: {page.source}", WIDTH)))


def _line(words: str, good: bool) -> None:
    if good:
        echo(words)
    else:
        console(soft_wrap=True).print(words, style="bold red")


def _facts(lesson: Lesson) -> Mapping[str, Any]:
    page = lesson.page()
    return {
        "title": page.title,
        "agrees": lesson.holds,
        "seconds": lesson.seconds,
        "names": page.names,
        "numbers": [
            {"what": row.what, "run": row.measured, "formula": row.formula, "expected": row.expected,
             "within": row.within, "agrees": row.holds}
            for row in page.rows
        ],
        "questions": page.questions,
    }  # fmt: skip
