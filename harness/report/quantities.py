"""Numbers as the page writes them: three significant digits, powers of ten as superscripts."""

from __future__ import annotations

from math import floor, isfinite, isinf, isnan, log10

__all__ = ["DASH", "power_of_ten", "rounded", "speed"]

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
DASH = "–"  # printed where nothing was measured


def rounded(value: float | None, digits: int = 3) -> str:
    """Return ``value`` with that many significant digits; a dash for None or NaN."""
    if value is None or isnan(value):
        return DASH
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


def power_of_ten(value: float, largest: float = 0.0) -> str:
    """Return a tick label of a logarithmic axis: plain up to 10,000, then as a power.

    Args:
        value: above 0.
        largest: of the axis; if it is written as a power, so are all but 1.
    """
    if value == 1 or (1e-2 <= value < 1e4 and largest < 1e4):
        return f"{value:,.10g}"
    exponent = floor(log10(value) + 1e-9)
    mantissa = value / 10.0**exponent
    lead = "" if abs(mantissa - 1) < 1e-9 else f"{mantissa:.3g} × "
    return f"{lead}10{str(exponent).translate(_SUPERSCRIPTS)}"


def speed(value: float | None) -> str:
    """Return a speed relative to the reference; above 1 is faster."""
    if value is None or not isfinite(value):
        return rounded(value)
    return f"{value:.2f}x" if 0.1 <= value < 10 else f"{rounded(value)}x"
