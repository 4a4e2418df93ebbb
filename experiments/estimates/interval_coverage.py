"""How often do the intervals of this project hold what they estimate?

    python experiments/estimates/interval_coverage.py     prints the tables
    ... --report                                          prints the tables of the stored rows

All of it is simulated: normal logarithms, one per process, a fixed seed. ``stopping`` adds
processes until the interval is narrower than 1 %, as ``run --processes`` does. ``change`` forms the
interval of a change between a baseline and a later run. Both are shown with the rule in use and
with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from simulated import command, table

from harness.measure.sample_statistics import (
    LEAST_SPREAD,
    median_quantile,
    median_ratio,
    t_quantile,
)
from harness.records import Budget
from harness.regression import BASELINE_PROCESSES, CONFIRMING_PROCESSES, spread_of
from harness.regression import process_ratios as ratios_of
from harness.run.fleet import ENOUGH_PROCESSES
from harness.store import read

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "coverage.parquet"
RECORDED = (
    ROOT / "results" / "baselines" / "ci-epyc.parquet",
    ROOT / "results" / "published" / "cpu_recentred.parquet",
)
REPEATS = 200_000  # a coverage of 95 % is known to within 0.1 %
SEED = 1
SPREADS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03)
# The first process from which sampling may stop, and the least spread that is assumed.
RULES = ((3, 0.0), (5, 0.0), (ENOUGH_PROCESSES, LEAST_SPREAD))
CHANGES = ((BASELINE_PROCESSES, CONFIRMING_PROCESSES), (5, 5), (10, 10), (10, 1))

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The coverage of one kind of interval under one condition."""

    question: str
    """"stopping" or "change"."""
    rule: str
    condition: str
    coverage: float
    """Share of the intervals that hold the true value."""
    narrow: float | None = None
    """Share of the runs that stopped because the interval was narrow."""
    narrow_coverage: float | None = None
    """Coverage of those."""
    processes: float | None = None
    """Mean number of processes."""


def recorded_spreads() -> Floats:
    """Return the standard deviation between processes of each recorded case, as a logarithm."""
    records = [record for path in RECORDED for record in read(path).records]
    found = [ratios_of(record.latency) for record in records]
    return np.array([spread_of(ratios) for ratios in found if len(ratios) > 3])


def stopping(
    name: str, spreads: Floats, most: int, first: int, least: float, random: np.random.Generator
) -> Row:
    """Return the coverage where processes are added from ``first`` to ``most``."""
    values = random.standard_normal((REPEATS, most)) * random.choice(spreads, (REPEATS, 1))
    left = np.ones(REPEATS, bool)
    held, narrow, used = np.zeros(REPEATS, bool), np.zeros(REPEATS, bool), np.zeros(REPEATS)
    for number in range(first, most + 1):
        some = values[:, :number]
        half = (
            median_quantile(number) * np.maximum(some.std(axis=1, ddof=1), least) / np.sqrt(number)
        )
        is_narrow = np.expm1(half) < Budget().target_ratio
        stops = left & (is_narrow | (number == most))
        held[stops] = (np.abs(np.median(some, axis=1)) <= half)[stops]
        narrow[stops], used[stops] = is_narrow[stops], number
        left &= ~stops
    words = f"from {first}" + (f", least spread {least:.1%}" if least else "")
    return Row(
        question="stopping",
        rule=words,
        condition=f"{name}, at most {most}",
        coverage=float(held.mean()),
        narrow=float(narrow.mean()),
        narrow_coverage=float(held[narrow].mean()) if narrow.any() else None,
        processes=float(used.mean()),
    )


def change(
    before: int,
    after: int,
    rule: str,
    ratio: Callable[[int], float],
    random: np.random.Generator,
) -> Row:
    """Return the coverage of Welch's interval of the difference of two medians."""
    first = random.standard_normal((REPEATS, before))
    second = random.standard_normal((REPEATS, after))
    moved = np.median(second, axis=1) - np.median(first, axis=1)
    spread = first.std(axis=1, ddof=1)
    errors = [(ratio(before) * spread) ** 2 / before]
    degrees = np.full(REPEATS, before - 1)
    if after == 1:  # assumed to spread as the processes before
        errors.append(spread**2)
    else:
        errors.append((ratio(after) * second.std(axis=1, ddof=1)) ** 2 / after)
        parts = errors[0] ** 2 / (before - 1) + errors[1] ** 2 / (after - 1)
        degrees = np.round((errors[0] + errors[1]) ** 2 / parts).astype(int)
    quantiles = np.array([t_quantile(freedom) for freedom in range(before + after)])
    held = np.abs(moved) <= quantiles[degrees] * np.sqrt(errors[0] + errors[1])
    condition = f"{before} processes before, {after} now"
    return Row(question="change", rule=rule, condition=condition, coverage=float(held.mean()))


def simulate() -> Iterator[Row]:
    """Yield all rows."""
    random = np.random.default_rng(SEED)
    conditions = [(f"spread {spread:.1%}", np.array([spread])) for spread in SPREADS]
    conditions.append(("as recorded", recorded_spreads()))
    for most in (5, 10):
        for name, spreads in conditions:
            for first, least in RULES:
                yield stopping(name, spreads, most, first, least, random)
    for before, after in CHANGES:
        yield change(before, after, "t of a mean", lambda _: 1.0, random)
        yield change(before, after, "t of a median", median_ratio, random)


def report(rows: Sequence[Row]) -> str:
    """Return all tables as Markdown."""
    stops = [row for row in rows if row.question == "stopping"]
    changes = [row for row in rows if row.question == "change"]
    rules = list(dict.fromkeys(row.rule for row in stops))
    heads = ["processes", *(f"{rule}: narrow, coverage there" for rule in rules)]
    lines = [heads, ["---"] * len(heads)]
    for condition in dict.fromkeys(row.condition for row in stops):
        cells = [row for row in stops if row.condition == condition]
        lines.append([condition, *map(_narrow, cells)])
    kinds = list(dict.fromkeys(row.rule for row in changes))
    more = [["change of a median", *kinds], ["---"] * (len(kinds) + 1)]
    for condition in dict.fromkeys(row.condition for row in changes):
        cells = [row for row in changes if row.condition == condition]
        more.append([condition, *(f"{row.coverage:.1%}" for row in cells)])
    return f"{table(lines)}\n\n{table(more)}\n"


def _narrow(row: Row) -> str:
    """Return how often the interval was narrow, and its coverage there."""
    if row.narrow is None or row.narrow_coverage is None:
        return "never"
    return f"{row.narrow:.0%}, {row.narrow_coverage:.0%}"


if __name__ == "__main__":
    command(__doc__, PUBLISHED, Row, simulate, report)()
