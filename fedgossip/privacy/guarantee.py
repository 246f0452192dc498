"""Names for an epsilon: one verdict, in the same words in plans, in the head of a run, in reports and in the docs.

Words as in NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees, 2025: a guarantee, stronger or
weaker, for a unit of privacy.  The limits are those of the three tiers in Ponomareva et al., How to DP-fy ML, JAIR 77
(2023), section 5.2.1.
"""

from __future__ import annotations

import math

STRONG, REASONABLE = 1.0, 10.0
"""Maximum epsilon of each verdict; above the last, odds change more than 20 000 times."""


def guarantee(epsilon: float) -> str:
    """Return the verdict on a guarantee with this epsilon, in two to five words."""
    if epsilon <= STRONG:
        return "a strong guarantee"
    return "a reasonable guarantee" if epsilon <= REASONABLE else "a weak guarantee, or none"


def meaning(epsilon: float, unit: str) -> str:
    """Return the verdict and its meaning for one `unit`, in a sentence."""
    verdict = guarantee(epsilon)
    return f"{verdict.capitalize()}: the odds that one {unit} was there change by up to {_times(epsilon)}."


def _times(epsilon: float) -> str:
    if epsilon > math.log(1e6):
        return "more than a million times"
    ratio = math.exp(epsilon)
    return f"{ratio:.3g} times" if ratio < 1000 else f"{ratio:,.0f} times"
