"""Numbers for people: three significant digits, units that fit, and a dash for missing measurements."""

from __future__ import annotations

import math

from fedgossip.core.records import kind_of
from fedgossip.core.roles import Roles

# Numbers of rounds as people count them: completed rounds, or the open one.


def number_round(event: str, round: int, roles: Roles) -> int:
    """Return the round of an event as people count it: under a leader by the number of its result."""
    return round + (roles.leader is not None and round >= 0 and kind_of(event).open_round)


NOTHING = "–"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NOISE = 1e-12
"""Eigenvalues are exact up to some roundings of 2.2e-16 times the number of nodes."""
BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
SECOND_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def number(value: float | None) -> str:
    """Return `value` with three significant digits: 0.871, 12.3, 2 140, 4.2 × 10⁻⁷."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-3 or size >= 1e7:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{_minus(_trimmed(mantissa))} × 10{str(int(power)).translate(SUPERSCRIPTS)}"
    if size >= 999.5:
        return _minus(f"{float(f'{value:.3g}'):,.0f}".replace(",", "\u202f"))
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return _minus(_trimmed(f"{rounded:.{decimals}f}"))


def near_one(value: float | None) -> str:
    """Return a rate: like `number`, but 0.9999868 becomes 1 − 1.32 × 10⁻⁵, not 1; rounding errors become 0, or 1."""
    if value is None or not 0.995 <= value < 1 - NOISE:
        return number(0.0 if value is not None and abs(value) < NOISE else value)
    return f"1 − {number(1 - value)}"


def count(value: int | None) -> str:
    """Return a whole number, exact, in groups of three."""
    return NOTHING if value is None else f"{value:,}".replace(",", "\u202f")


def percent(value: float | None) -> str:
    """Return a share of one in percent: 0.8934 becomes 89.3 %."""
    return NOTHING if value is None or math.isnan(value) else f"{value * 100:.1f}\u202f%"


def data_size(value: float | None) -> str:
    """Return bytes in decimal units: 1 230 000 becomes 1.23 MB."""
    return NOTHING if value is None else _with_unit(value, BYTE_UNITS)


def duration(value: float | None) -> str:
    """Return seconds in the largest unit that gives at least one: 0.0042 becomes 4.2 ms."""
    return NOTHING if value is None else _with_unit(value, SECOND_UNITS)


def plural(amount: int, word: str) -> str:
    """Return "1 peer" or "12 peers"."""
    return f"{count(amount)} {word}" + ("" if amount == 1 else "s")


def byte_unit(largest: float) -> tuple[str, float]:
    """Return the unit, and its size in bytes, for an axis that ends at `largest`."""
    return _unit(largest, BYTE_UNITS)


def second_unit(largest: float) -> tuple[str, float]:
    """Return the unit, and its length in seconds, for an axis that ends at `largest`."""
    return _unit(largest, SECOND_UNITS)


def power_of_ten(value: float) -> str:
    """Return the label of 1, 2 or 5 times a power of ten on a logarithmic axis: 0.05, 10⁻⁷, 2·10⁻⁷."""
    power = math.floor(math.log10(value) + 1e-9)
    if -2 <= power <= 3:
        return f"{value:g}"
    mantissa = round(value / 10.0**power)
    ten = f"10{str(power).translate(SUPERSCRIPTS)}"
    return ten if mantissa == 1 else f"{mantissa}·{ten}"


def _unit(value: float, units: tuple[tuple[str, float], ...]) -> tuple[str, float]:
    if value <= 0:
        return next((name, size) for name, size in units if size == 1.0)
    return next(((name, size) for name, size in units if value >= size), units[-1])


def _with_unit(value: float, units: tuple[tuple[str, float], ...]) -> str:
    name, size = _unit(abs(value), units)
    return f"{number(value / size)}\u202f{name}"


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _minus(text: str) -> str:
    return text.replace("-", "−")
