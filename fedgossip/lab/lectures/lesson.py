"""One lecture: runs its measure, and compares every number with its formula."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedgossip.lab.lectures import computed, trained
from fedgossip.lab.lectures.topics import Topic, TopicNumber, declared_names, topics, value_of
from fedgossip.lab.lectures.trained import MeasuredLecture
from fedgossip.report.page.lectures import LecturePage, LectureRow, Picture

MEASURES: Mapping[str, Callable[..., MeasuredLecture]] = {
    name: function
    for module in (trained, computed)
    for name, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
}
"""Measures by function name."""


@dataclass(frozen=True)
class ComparedNumber:
    """A number of a topic: as measured in the run, and by the formula."""

    number: TopicNumber
    measured: float
    expected: float

    @property
    def holds(self) -> bool:
        """Return whether both agree within the topic's tolerance; NaN never does."""
        most = self.number.within * (abs(self.expected) or 1.0)
        return abs(self.measured - self.expected) <= most


@dataclass(frozen=True)
class Lesson:
    """A lecture with its results; `seconds` of processor time."""

    name: str
    topic: Topic
    numbers: list[ComparedNumber]
    names: Mapping[str, float]
    """Values of the names in formulas."""
    picture: Picture
    seconds: float

    @property
    def holds(self) -> bool:
        return all(one.holds for one in self.numbers)

    def page(self) -> LecturePage:
        """Return the content of its page."""
        words = {word for one in self.topic.numbers for word in re.findall(r"\w+", one.formula)}
        used = {name: value for name, value in self.names.items() if name in words}
        rows = [
            LectureRow(one.number.what, one.measured, one.number.formula, one.expected, one.number.within, one.holds)
            for one in self.numbers
        ]
        return LecturePage(
            self.name, self.topic.title, self.topic.says, rows, used, self.picture, self.topic.picture,
            self.topic.questions, self.topic.source,
        )  # fmt: skip


def give(name: str) -> Lesson:
    """Run the measure of a topic and compare its numbers."""
    topic = topics()[name]
    began = sum(os.times()[:2])
    found = MEASURES[topic.measure](**topic.given)
    names = {**declared_names(topic), **found.values}
    compared = [ComparedNumber(one, value_of(one.run, names), value_of(one.formula, names)) for one in topic.numbers]
    return Lesson(name, topic, compared, names, found.picture, sum(os.times()[:2]) - began)
