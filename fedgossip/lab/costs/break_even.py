"""Below which bandwidth fewer bytes are worth the time that they cost elsewhere: coding them, or rounds more.

Links are linear: with S bytes saved one after the other, and t seconds more of everything that is not bytes,

    compressing pays while  S / b > t,  so below  b = S / t
"""

from __future__ import annotations

import math


def break_even(saved_bytes: float, seconds_more: float) -> float:
    """Return the bytes per second, each way, below which saving bytes pays; 0.0: nowhere, infinite: everywhere.

    `saved_bytes`: on the way that is waited for; `seconds_more`: what that costs, below 0 where it spares time too.
    Where more bytes are sent, and time is spared, it would pay above a bandwidth alone: 0.0 too.
    """
    if saved_bytes <= 0:
        return 0.0
    return saved_bytes / seconds_more if seconds_more > 0 else math.inf
