"""Numbers as people read them: three significant digits, a prefix, a unit."""

from __future__ import annotations

from math import floor, isfinite, isinf, isnan, log10

__all__ = ["bytes_text", "count", "power_of_ten", "rounded", "seconds", "speed", "ulps"]

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NOT_MEASURED = "–"


def rounded(value: float | None, digits: int = 3) -> str:
    """Write ``value`` with so many significant digits; a dash for None or NaN."""
    if value is None or isnan(value):
        return NOT_MEASURED
    if isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    exponent = floor(log10(abs(float(f"{value:.{digits - 1}e}"))))
    if -4 <= exponent < 5:
        decimals = max(0, digits - 1 - exponent)
        text = f"{round(value, digits - 1 - exponent):,.{decimals}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa = f"{value / 10.0**exponent:.{digits - 1}f}".rstrip("0").rstrip(".")
    return f"{mantissa} × 10{str(exponent).translate(_SUPERSCRIPTS)}"


def power_of_ten(value: float) -> str:
    """Write a tick of a logarithmic axis: plain up to 10,000, then as a power."""
    if 1e-2 <= value < 1e4:
        return f"{value:,.10g}"
    exponent = floor(log10(value) + 1e-9)
    mantissa = value / 10.0**exponent
    lead = "" if abs(mantissa - 1) < 1e-9 else f"{mantissa:.3g} × "
    return f"{lead}10{str(exponent).translate(_SUPERSCRIPTS)}"


def _prefixed(value: float | None, steps: tuple[tuple[float, str], ...]) -> str:
    if value is None or not isfinite(value):
        return rounded(value)
    for size, unit in steps:
        if abs(value) >= size:
            return f"{rounded(value / size)} {unit}"
    size, unit = steps[-1]
    return f"{rounded(value / size)} {unit}"


def seconds(value: float | None) -> str:
    """Write a time."""
    if value is not None and value >= 120:
        return f"{round(value) // 60:,} min {round(value) % 60} s"
    return _prefixed(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def bytes_text(value: float | None) -> str:
    """Write an amount of memory, in powers of 1024."""
    steps = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
    return "0 B" if value == 0 else _prefixed(value, steps)


def ulps(value: float | None) -> str:
    """Write an error in units in the last place."""
    if value is not None and isinf(value):
        return "not finite"
    return rounded(value) if value is None or isnan(value) else f"{rounded(value)} ulp"


def speed(value: float | None) -> str:
    """Write a speed relative to the reference; above 1 is faster."""
    if value is None or not isfinite(value):
        return rounded(value)
    return f"{value:.2f}×" if 0.1 <= value < 10 else f"{rounded(value)}×"


def count(number: int, noun: str) -> str:
    """Write a number of things, ``noun`` being one of them."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
