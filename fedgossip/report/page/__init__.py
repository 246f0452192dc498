"""The page of a run directory: what was run, what it learned, how well the peers agreed, what was forecast.

It imports `report`, `privacy`, `data` and matplotlib.  `page` reads a directory by `reading`, asks each of `sections`
(empty without records), draws by `drawing`, and writes one file, always with the same bytes.
"""

from __future__ import annotations

from fedgossip.report.page.page import write_comparison, write_report

__all__ = ["write_comparison", "write_report"]
