"""The tables: error and duration of each timer, and the coverage of intervals.

**Error** of a measurement is ``100 * ln(ratio / truth)``: per cent, symmetric for twice and half.
Two figures summarize the errors of a timer and a pair: the root mean square, which one outlier can
dominate, and in brackets 1.4826 times the median magnitude, which no outlier changes. For normally
distributed errors the two are equal. Both contain bias.

**Seconds** are the mean duration of measuring both functions, with calibration, without the start
of Python and imports, for all timers alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import exp, log, sqrt
from random import Random
from statistics import fmean, median, stdev

from pairs import PAIRS
from rows import Row

from harness.measure.sample_statistics import median_estimate, t_quantile
from harness.records import Estimate

__all__ = ["report"]

_NORMAL_MAD = 1.4826  # standard deviation of a normal distribution over its median deviation
_GROUP = 5  # processes that a published interval is formed over
_SHUFFLES = 500  # the share then differs by less than one per cent between seeds
_FEWEST = 4 * _GROUP  # with fewer processes a group is a large part of the whole
_OTHERS = 0.1  # share of the cores that other programs may use on a quiet machine
_AA_MEDIAN, _AA_SPREAD = 0.5, 0.3  # per cent: the project's goals for A/A


def report(rows: Sequence[Row]) -> str:
    """Return all tables as markdown."""
    compared = [row for row in rows if row.experiment == "timers"]
    alone = [row for row in rows if row.experiment == "processes"]
    parts = [_where(rows)]
    for condition in ("quiet", "loaded"):
        if some := [row for row in compared if row.condition == condition]:
            parts += [f"**Errors in %, {_condition(some)}**", _error_table(some)]
    if alone:
        parts += [f"**The harness alone, {_condition(alone)}**", _process_table(alone), _COVERAGE]
    return "\n\n".join(parts) + "\n"


_COVERAGE = (
    f"Coverage: the processes are drawn into disjoint groups of {_GROUP}, {_SHUFFLES} times; of "
    "each group the nominal 95 % interval is formed, and counted if it holds the median of all "
    "processes."
)


# Errors


def _error_table(rows: Sequence[Row]) -> str:
    timers = list(dict.fromkeys(row.timer for row in sorted(rows, key=_timer_place)))
    cases = [case for case in PAIRS if any(row.case == case for row in rows)]
    body = []
    for timer in timers:
        own = [row for row in rows if row.timer == timer]
        by_case = [_errors([row for row in own if row.case == case]) for case in cases]
        seconds = fmean(row.seconds for row in own)
        body.append([
            timer,
            own[0].allocation,
            f"{max(Counter(row.case for row in own).values())}",
            f"{seconds:.2g}",
            *(_two_figures(errors) for errors in by_case),
            _figure(_together(by_case) * sqrt(seconds)),
        ])
    names = ["timer", "allocation", "processes", "seconds"]
    return _table([*names, *cases, "together, times √seconds"], body)


def _errors(rows: Iterable[Row]) -> list[float]:
    """Per cent, of those measurements whose truth is known."""
    return [100 * log(row.ratio / row.truth) for row in rows if row.truth is not None]


def _root_mean_square(errors: Sequence[float]) -> float:
    return sqrt(fmean(error**2 for error in errors))


def _robust(errors: Sequence[float]) -> float:
    return _NORMAL_MAD * median(map(abs, errors))


def _two_figures(errors: Sequence[float]) -> str:
    return f"{_figure(_root_mean_square(errors))} ({_figure(_robust(errors))})"


def _together(by_case: Sequence[Sequence[float]]) -> float:
    """Return the geometric mean over the pairs of the root mean square, in per cent."""
    return exp(fmean(log(_root_mean_square(errors)) for errors in by_case))


# The harness alone


def _process_table(rows: Sequence[Row]) -> str:
    """Centre and spread over processes, and how often an interval over five holds the centre.

    Coverage: the processes are drawn into disjoint groups of five, 500 times; of each group a
    nominal 95 % interval is formed, and counted if it holds the median over *all* processes. Each
    group is part of that "all", which flatters by about one point in a hundred with 40 processes.
    Two intervals: Student's t around the mean of the logarithms, and the one of
    ``harness.measure.sample_statistics.median_estimate``, around their median.
    """
    body = []
    for case in (case for case in PAIRS if any(row.case == case for row in rows)):
        ratios = [row.ratio for row in rows if row.case == case]
        logs = [100 * log(ratio) for ratio in ratios]
        centre = median(logs)
        spread = stdev(logs) if len(logs) > 1 else None
        known = PAIRS[case].truth == 1
        met = spread is not None and abs(centre) <= _AA_MEDIAN and spread <= _AA_SPREAD
        body.append([
            _says(case),
            f"{len(ratios)}",
            f"{exp(centre / 100):.4f}",
            f"{exp(fmean(logs) / 100):.4f}",
            "" if spread is None else _figure(spread),
            ("yes" if met else "no") if known else "",
            _share(_coverage(ratios, _mean_estimate)),
            _share(_coverage(ratios, median_estimate)),
        ])
    goal = f"A/A: median within {_AA_MEDIAN} %, sd within {_AA_SPREAD} %"
    names = ["pair", "processes", "median", "mean", "sd %", goal]
    return _table([*names, "95 % interval (mean) covers", "95 % interval (median) covers"], body)


def _coverage(
    ratios: Sequence[float], interval: Callable[[Sequence[float]], Estimate]
) -> float | None:
    """Share of groups of five whose interval holds the median of all; None for few processes."""
    if len(ratios) < _FEWEST:
        return None
    centre = exp(median(map(log, ratios)))
    random = Random(0)
    held = groups = 0
    for _ in range(_SHUFFLES):
        drawn = random.sample(ratios, len(ratios))
        for start in range(0, len(drawn) - _GROUP + 1, _GROUP):
            found = interval(drawn[start : start + _GROUP])
            held += found.low <= centre <= found.high
            groups += 1
    return held / groups


def _mean_estimate(ratios: Sequence[float]) -> Estimate:
    """Student's t interval of the mean of the logarithms."""
    logs = [log(ratio) for ratio in ratios]
    half = t_quantile(len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    centre = fmean(logs)
    return Estimate(value=exp(centre), low=exp(centre - half), high=exp(centre + half))


# Words


def _where(rows: Sequence[Row]) -> str:
    first, last = rows[0], rows[-1]
    commit = f"{first.commit[:12]}{' with changes' if first.commit.endswith('+') else ''}"
    return (
        f"{len(rows)} ratios, {first.started[:16]} to {last.started[:16]} UTC; {first.cpu}, "
        f"{first.cores} cores; torch {first.torch}; {first.platform}; commit {commit}. "
        "Each error: root mean square, and in brackets the robust figure."
    )


def _condition(rows: Sequence[Row]) -> str:
    """Name the condition, and say how quiet or how loaded it was."""
    loads = [row.load_average for row in rows if row.load_average is not None]
    idle = [row.idle_ratio for row in rows if row.idle_ratio is not None]
    words = f"{rows[0].condition} machine"
    if loads and idle:
        words += f" (median load average {median(loads):.1f}, idle {median(idle):.0%})"
        alone = 1 - 1 / rows[0].cores  # idle with one core in use
        if rows[0].condition == "quiet" and median(idle) < alone - _OTHERS:
            words += f". IT WAS NOT QUIET: {alone:.0%} idle is usual; do not use these figures"
    return words


def _says(case: str) -> str:
    return f"{case}: {PAIRS[case].says}"


def _timer_place(row: Row) -> tuple[bool, str]:
    """Order the harness first, then by name."""
    return row.tool != "harness", row.timer


def _figure(percent: float) -> str:
    return f"{percent:.0f}" if percent >= 10 else f"{percent:.2g}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
