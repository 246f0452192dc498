"""Makes one page of a run directory: what was run, what it learned, how well the peers agreed, what was forecast."""

from __future__ import annotations

from fedgossip.report.page.page import write_comparison, write_report

__all__ = ["write_comparison", "write_report"]
