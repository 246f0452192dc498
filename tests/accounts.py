"""What a site's account may say, written out apart from the package."""

from __future__ import annotations

GRID = sorted(eighths / 8 * 2.0**-power for power in range(20) for eighths in (5, 6, 7, 8))


def next_rate(rate: float) -> float:
    """Return the least rate of 1, 7/8, 6/8, 5/8, 1/2, 7/16 and so on that is not below one."""
    return next(one for one in GRID if one >= rate)
