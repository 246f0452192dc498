"""What a measure returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedgossip.report.page.lectures import Picture


@dataclass(frozen=True)
class MeasuredLecture:
    """Numbers by the names that expressions use, and the picture."""

    values: Mapping[str, float]
    picture: Picture
