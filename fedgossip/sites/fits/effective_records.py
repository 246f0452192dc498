"""Effective number of a site's records at a point of a fit: sums dominated by few records disclose these.

    n       = sum of w / max of (w, unit)          w: the working weights of the records, unit: a record's at the start
    n_j     = sum of w x_j^2 / max of w x_j^2      x_j: the scaled column of one coefficient

Equal weights give the number of records.  `unit` refuses a point at which all of a site's records have small weight, so
that a sum over sites is nearly that of another site.

Source of n: the largest share of one record in a sum is 1 / n, as in the dominance rules of official statistics
(Hundepool et al., Statistical disclosure control, 2012, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from fedgossip.sites.fits.glm.glm import Values

CUT_SHORT = "the last rounds failed, or sites refused a point at which few of their records count"
"""Why a fit has taken fewer steps than it may, and is not at its end."""
LOOK = (
    "The events of its rounds (metrics.jsonl) name the column: values far out, or a rare category, carry its sum, or "
    "its coefficients diverge. Declare its bounds or cuts in [data.columns], leave it out, drop=COLUMN, or "
    "agree on a smaller data.suppress"
)


def effective(weights: Values, unit: float = 0.0) -> float:
    """Return the effective number of records [m] with these weights, all >= 0; 0 where all are 0."""
    largest = max(float(weights.max(initial=0.0)), unit)
    return float(weights.sum()) / largest if largest > 0 else 0.0


def too_few(weights: Values, unit: float, columns: Sequence[tuple[str, Values]], least: int) -> str:
    """Return in words a sum with fewer than `least` effective records; "" where all have enough.

    A column with few of its own, such as a rare category, may have half as many at the point.
    """
    if effective(weights, unit) < least:
        return f"fewer than {least} of this site's records count there"
    for name, values in columns:
        squares = values * values
        if effective(weights * squares) < min(least, effective(squares) / 2):
            return f"fewer than {least} of this site's records count there for {name!r}"
    return ""
