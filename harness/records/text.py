"""Quantities as people read them: counts, durations, amounts of memory, errors, shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from math import inf, isfinite
from typing import TypeVar

from harness.records.record import Estimate

Key = TypeVar("Key")
Value = TypeVar("Value")


def count(number: int, noun: str, plural: str = "") -> str:
    """Return "1 case" or "1,200 cases"; ``plural`` is for nouns that take more than an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the second of each pair by the first, in their order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def listed(words: Iterable[object], word: str = "and") -> str:
    """Return "a, b and c"."""
    *first, last = [*map(str, words)] or [""]
    return f"{', '.join(first)} {word} {last}" if first else last


def first_of(words: Iterable[object], most: int = 3) -> str:
    """Return "a, b, c and 2 more"."""
    every = [*map(str, words)]
    left = len(every) - most
    return ", ".join(every[:most]) + (f" and {left:,} more" if left > 0 else "")


def in_words(name: str) -> str:
    """Return a name such as "out_of_memory" as words: "out of memory"."""
    return name.replace("_", " ")


def seconds_text(value: float) -> str:
    """Return a duration to three digits: "13.6 ms", "4.5 s", "2 min 5 s"."""
    if not isfinite(value):
        return f"{value:g} s"
    for factor, unit, end in ((1e9, "ns", 1e3), (1e6, "µs", 1e3), (1e3, "ms", 1e3), (1, "s", 100)):
        if float(f"{value * factor:.3g}") < end:
            return f"{value * factor:.3g} {unit}"
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


def install_extra(name: str) -> str:
    """Return how to install an extra of this project, which no package index has."""
    return f"pip install -e '.[{name}]' in a checkout of layernorm-bench"


def suggest(name: str, known: Sequence[str]) -> str:
    """Return "; did you mean 'native'?" for the known name nearest to ``name``, or nothing."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


# --- speed: how people read a comparison of times -------------------------------------------------
# A record stores time over the reference's time, so that below 1 is faster. Commands, the page and
# the documents show its inverse: "1.31x" takes 1/1.31 of the time of native.


def as_speed(time_ratio: Estimate) -> Estimate:
    """Return the speed that belongs to a time over the reference's time, with its interval."""
    value, low, high = map(_inverse, (time_ratio.value, time_ratio.high, time_ratio.low))
    return replace(time_ratio, value=value, low=low, high=high)


def speed_text(speed: float, decimals: int = 2) -> str:
    """Return a speed relative to another one: "1.31x", "12.3x", "0.012x".

    Near 1 it has ``decimals``; gates, which judge changes of a few percent, write three.
    """
    if not isfinite(speed):
        return "unknown"
    if 0.095 <= speed < 10:
        return f"{speed:.{decimals}f}x"
    return f"{speed:.3g}x" if speed >= 10 or not speed else f"{speed:#.2g}x"


def interval_text(found: Estimate, write: Callable[[float], str] = speed_text) -> str:
    """Return a number with its interval; of a speed "1.31x [1.28x, 1.34x]"."""
    ends = ", ".join("∞" if end == inf else write(end) for end in (found.low, found.high))
    return f"{write(found.value)} [{ends}]"


def _inverse(value: float) -> float:
    return inf if value == 0 else 1 / value
