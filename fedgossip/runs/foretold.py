"""The forecast of a run: written before its first row, and compared with its rows at its end.

Where messages or peers were lost, it is computed again for the actual mixing, to separate errors of the forecast from
effects of the network.  That is a second curve, never the forecast of record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgossip.base.scores import Score
from fedgossip.core.forecasts import RunForecast, digest_of, encoded, kept, read_forecast, scores_kept
from fedgossip.core.records import NetworkRow, Row
from fedgossip.core.run_summary import ForecastFacts


@dataclass(frozen=True)
class Foretold:
    """A forecast and the sha256 of its file."""

    forecast: RunForecast
    sha256: str
    again: Callable[[Sequence[Row]], RunForecast | None] | None = None
    """Computes the same forecast for the recorded mixing of the rounds; None where all went as planned."""

    @classmethod
    def of(cls, forecast: RunForecast | None) -> Foretold | None:
        """The forecast of a run that begins."""
        return None if forecast is None else cls(forecast, digest_of(encoded(forecast)))

    @classmethod
    def left_in(cls, folder: Path) -> Foretold | None:
        """The forecast of a resumed run.  Raises ConfigError for an invalid file."""
        found = read_forecast(folder)
        return None if found is None else cls(*found)

    def realised(self, rows: Sequence[Row]) -> RunForecast | None:
        """What would have been forecast, had it been known what would be lost."""
        return self.again(rows) if self.again else None

    def facts(self, rows: Sequence[NetworkRow], score: Score, realised: RunForecast | None = None) -> ForecastFacts:
        """Return the summary's facts on the forecast, and on that of the actual mixing."""
        one = self.forecast
        later: ForecastFacts = {} if realised is None else {"forecast_realised_kept": kept(realised, rows)}
        file = {"level": one.level, "sha256": self.sha256, "exact": one.exact, "width": one.width, "wide": one.wide}
        return {
            "forecast_file": file,
            "forecast_kept": kept(one, rows),
            "forecast_scores_kept": scores_kept(one, rows, share=score.share),
            **later,
        }
