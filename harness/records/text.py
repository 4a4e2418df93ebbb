"""Quantities as people read them: counts, durations, amounts of memory, errors, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from math import isfinite

__all__ = [
    "bytes_text",
    "count",
    "in_words",
    "percent_text",
    "seconds_text",
    "shape_text",
    "suggest",
    "ulp_text",
]


def count(number: int, noun: str, plural: str = "") -> str:
    """Return "1 case" or "1,200 cases"; ``plural`` is for nouns that take more than an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def in_words(name: str) -> str:
    """Return a name such as "out_of_memory" as words: "out of memory"."""
    return name.replace("_", " ")


def seconds_text(value: float) -> str:
    """Return a duration to three digits: "13.6 ms", "4.5 s", "2 min 5 s"."""
    if not isfinite(value):
        return f"{value:g} s"
    for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")):
        if float(f"{value * factor:.3g}") < 1000:
            return f"{value * factor:.3g} {unit}"
    if float(f"{value:.3g}") < 100:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes:,} min {rest} s"


def bytes_text(value: float) -> str:
    """Return an amount of memory to four digits, in powers of 1024: "1.5 MiB"."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:g} B"


def ulp_text(error: float) -> str:
    """Return an error to three digits: "4.99 ulp", or "not finite"."""
    return f"{error:.3g} ulp" if isfinite(error) else "not finite"


def percent_text(share: float) -> str:
    """Return a share to two digits: 0.25 is "25 %"."""
    percent = share * 100
    return f"{percent:,.0f} %" if abs(percent) >= 99.5 else f"{percent:.2g} %"


def shape_text(shape: Sequence[int]) -> str:
    """Return "64x768"; a tensor without axes is "scalar"."""
    return "x".join(map(str, shape)) or "scalar"


def suggest(name: str, known: Sequence[str]) -> str:
    """Return "; did you mean 'native'?" for the known name nearest to ``name``, or nothing."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
