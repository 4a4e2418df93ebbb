"""Which changes in a history are found, and how many are made up?

    python experiments/history/detection.py     prints the tables
    ... --report                                prints the tables of the stored rows

All of it is simulated, with a fixed seed: series of logarithms of ratios with one planted change,
at least four runs from either end, or with none. A change is found if one is reported at most two
runs away. A series without a change is looked at once, and after every run as a CI job does;
changes reported at most two runs apart are one. On a drifting machine the time of every run is
multiplied by a speed that wanders from run to run. The reference, which is timed in turn, wanders
alike; one tenth of the drift is assumed to remain in the speed relative to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise, product
from math import log, log1p
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.regression.history import change_points, spread_between

sys.path.append(str(Path(__file__).parents[1] / "estimates"))

from simulated import command, table

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "history_detection.parquet"
SEED = 1
REPEATS = 20_000
REPEATS_OF_OTHERS = 400
EFFECTS = (0.0, 0.02, 0.05, 0.1)
RUNS = (20, 60)
MARGIN = 4  # runs from either end
NEAR = 2  # runs
LEAST_RUNS = 8  # of the first look

Floats = NDArray[np.float64]
Detector = Callable[[Floats], Sequence[int]]


def _drift(random: np.random.Generator, runs: int) -> Floats:
    """Return a machine's speed: autocorrelated 0.9 from run to run, 2.3 % around its mean."""
    steps = random.standard_normal(runs + 50) * 0.01
    found = np.zeros(runs + 50)
    for place in range(1, runs + 50):
        found[place] = 0.9 * found[place - 1] + steps[place]
    return found[50:]


def _normal(random: np.random.Generator, runs: int, noise: float = 0.01) -> Floats:
    return random.standard_normal(runs) * noise


def _related(random: np.random.Generator, runs: int, noise: float = 0.01) -> Floats:
    """Return noise in which each run has 0.3 of the one before."""
    found = random.standard_normal(runs)
    for place in range(1, runs):
        found[place] = 0.3 * found[place - 1] + np.sqrt(1 - 0.3**2) * found[place]
    return found * noise


CONDITIONS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "1 %": _normal,
    "2 %": partial(_normal, noise=0.02),
    "4.3 %": partial(_normal, noise=0.043),
    "AR(0.3), 1 %": _related,
    "AR(0.3), 2 %": partial(_related, noise=0.02),
    "AR(0.3), 4.3 %": partial(_related, noise=0.043),
    "heavy tails, 1 %": lambda random, runs: random.standard_t(3, runs) * 0.01 / np.sqrt(3),
    "drift, speed": lambda random, runs: _normal(random, runs) + 0.1 * _drift(random, runs),
    "drift, time": lambda random, runs: _normal(random, runs) + _drift(random, runs),
}
OF_OTHERS = ("1 %", "AR(0.3), 1 %")
IN_USE = "PELT, 4 log n, in four looks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One detector under one condition."""

    detector: str
    condition: str
    runs: int
    effect: float
    series: int
    found: int
    """Series whose change was found."""
    false: int
    """Changes reported of unchanged series, which are looked at after every run."""
    false_at_end: int
    """The same, looked at once."""


def detectors() -> dict[str, Detector]:
    """Return the detector in use, and those that it was chosen from."""
    found: dict[str, Detector] = {
        IN_USE: change_points,
        "PELT, 4 log n": lambda values: _pelt(values, 4.0, spread_between(values.tolist())),
        "PELT, 6 log n": lambda values: _pelt(values, 6.0, spread_between(values.tolist())),
        "PELT, 4 log n, median deviation": lambda values: _pelt(values, 4.0, _mad(values)),
    }
    if find_spec("otava"):
        from otava.analysis import compute_change_points

        found["E-divisive, t-test at 0.001 (apache-otava)"] = lambda values: [
            point.index for point in compute_change_points(np.exp(values).tolist())[0]
        ]
    return found


def _pelt(values: Floats, penalty: float, spread: float) -> Sequence[int]:
    from ruptures import KernelCPD

    search = KernelCPD(kernel="linear", min_size=2).fit(values.reshape(-1, 1) / spread)
    places: Sequence[int] = search.predict(pen=penalty * log(len(values)))[:-1]
    return places


def _mad(values: Floats) -> float:
    """Return the spread by the median absolute deviation of successive differences."""
    steps = np.diff(values)
    return float(1.4826 * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2)) or 1e-9


def simulate(repeats: int = REPEATS, of_others: int = REPEATS_OF_OTHERS) -> Iterator[Row]:
    """Yield all rows; detectors that are not in use under two conditions and with twenty runs."""
    for name, detector in detectors().items():
        is_in_use = name == IN_USE
        for runs, condition in product(RUNS, CONDITIONS):
            if not is_in_use and (runs != 20 or condition not in OF_OTHERS):
                continue
            for effect in EFFECTS:
                random = np.random.default_rng(SEED)  # the same series for every detector
                found = false = at_end = 0
                first = runs if effect else LEAST_RUNS
                for _ in range(repeats if is_in_use else of_others):
                    at = int(random.integers(MARGIN, runs - MARGIN + 1))
                    series = CONDITIONS[condition](random, runs)
                    series += log1p(effect) * (np.arange(runs) >= at)
                    looks = [{*detector(series[:seen])} for seen in range(first, runs + 1)]
                    found += bool(effect) and any(abs(place - at) <= NEAR for place in looks[-1])
                    false += 0 if effect else _distinct(set().union(*looks))
                    at_end += 0 if effect else len(looks[-1])
                yield Row(
                    detector=name, condition=condition, runs=runs, effect=effect,
                    series=repeats if is_in_use else of_others,
                    found=found, false=false, false_at_end=at_end,
                )  # fmt: skip


def _distinct(places: Iterable[int]) -> int:
    """Return the number of places that are not near another one."""
    ordered = sorted(places)
    return bool(ordered) + sum(second - first > NEAR for first, second in pairwise(ordered))


def report(rows: Sequence[Row]) -> str:
    """Return both tables as Markdown."""
    mine = [row for row in rows if row.detector == IN_USE]
    others = [row for row in rows if row.runs == 20 and row.condition in OF_OTHERS]
    return "\n\n".join([
        f"**The detector in use ({IN_USE})**, {mine[0].series:,} series each:",
        _table(mine, "runs", lambda row: f"{row.runs}, {row.condition}"),
        f"**Other detectors**, {others[-1].series} series of 20 runs each, below the one in use:",
        _table(others, "detector", lambda row: f"{row.detector}, {row.condition}"),
    ])


def _table(rows: Sequence[Row], heading: str, name_of: Callable[[Row], str]) -> str:
    cells: dict[str, list[str]] = {}
    for row in rows:
        line = cells.setdefault(name_of(row), [])
        if row.effect:
            line.append(f"{row.found / row.series:.0%}")
        else:
            line += [f"{100 * number / row.series:.1f}" for number in (row.false_at_end, row.false)]
    heads = [f"{heading}, noise", "false per 100 unchanged series", "looked at after every run"]
    heads += [f"{effect:.0%} is found" for effect in EFFECTS[1:]]
    return table([heads, ["---"] * len(heads), *([name, *found] for name, found in cells.items())])


if __name__ == "__main__":
    command(__doc__, PUBLISHED, Row, simulate, report)()
