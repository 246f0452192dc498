"""The forecast that a run began with: written before its first row, and held against its rows when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgossip.forecasts import RunForecast, digest_of, encoded, kept, read_forecast, scores_kept
from fedgossip.records import NetworkRow
from fedgossip.scores import Score


@dataclass(frozen=True)
class Foretold:
    """A forecast and the sha256 of its file."""

    forecast: RunForecast
    sha256: str

    @classmethod
    def of(cls, forecast: RunForecast | None) -> Foretold | None:
        """The forecast of a run that begins."""
        return None if forecast is None else cls(forecast, digest_of(encoded(forecast)))

    @classmethod
    def left_in(cls, folder: Path) -> Foretold | None:
        """The forecast of a run that goes on.  Raises ConfigError for a file that is none."""
        found = read_forecast(folder)
        return None if found is None else cls(*found)

    def facts(self, rows: Sequence[NetworkRow], score: Score) -> dict[str, Any]:
        """What the summary says of it."""
        one = self.forecast
        file = {"level": one.level, "sha256": self.sha256, "exact": one.exact, "width": one.width, "wide": one.wide}
        return {
            "forecast_file": file,
            "forecast_kept": kept(one, rows),
            "forecast_scores_kept": scores_kept(one, rows, share=score.share),
        }
