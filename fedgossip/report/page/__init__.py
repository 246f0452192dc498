"""The page of a run directory: the run, its learning, the peers' agreement, and the forecast.

It imports `report`, `privacy`, `data` and matplotlib.  `page` reads a directory by `reading`, calls each of `sections`
(empty without records), draws by `drawing`, and writes one file, always with the same bytes.
"""

from __future__ import annotations

from fedgossip.report.page.page import write_comparison, write_report

__all__ = ["write_comparison", "write_report"]
