"""Which changes in a history are found, and how many are made up?

    python experiments/history/detection.py     seconds; prints the tables
    ... --report                                prints the tables of the stored rows

All of it is simulated, with a fixed seed: series of logarithms of ratios with one planted change,
at least four runs from either end, or with none. A change counts as found if one is reported at
most two runs away; all other reports are false. On a drifting machine the time of every run is
multiplied by a speed that wanders from run to run. The reference, which is timed in turn, wanders
alike; one tenth of the drift is assumed to remain in the speed relative to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from math import log, log1p
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from harness.regression.history import change_points, spread_between

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "history_detection.parquet"
SEED = 1
REPEATS = 400  # a share of 5 % is known to within 1 %
EFFECTS = (0.0, 0.01, 0.02, 0.05)
RUNS = (10, 20, 60)
MARGIN = 4  # runs from either end
NEAR = 2  # runs
NOISE = 0.01  # standard deviation between runs of short calls in one process each

Floats = NDArray[np.float64]
Detector = Callable[[Floats], Sequence[int]]


def _drift(random: np.random.Generator, runs: int) -> Floats:
    """Return a machine's speed: autocorrelated 0.9 from run to run, 2.3 % around its mean."""
    steps = random.standard_normal(runs + 50) * 0.01
    found = np.zeros(runs + 50)
    for place in range(1, runs + 50):
        found[place] = 0.9 * found[place - 1] + steps[place]
    return found[50:]


def _normal(random: np.random.Generator, runs: int) -> Floats:
    return random.standard_normal(runs) * NOISE


CONDITIONS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "steady": _normal,
    "heavy tails": lambda random, runs: random.standard_t(3, runs) * NOISE / np.sqrt(3),
    "drift, speed": lambda random, runs: _normal(random, runs) + 0.1 * _drift(random, runs),
    "drift, time": lambda random, runs: _normal(random, runs) + _drift(random, runs),
}
IN_USE = "PELT, 4 log n"


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
    exact: int
    """Series whose change was found at the right run."""
    false: int
    """Reported changes that are none."""


def detectors() -> dict[str, Detector]:
    """Return the detector in use, and those that it was chosen from."""
    found: dict[str, Detector] = {
        IN_USE: change_points,
        "PELT, 3 log n": lambda values: _pelt(values, 3.0, spread_between(values.tolist())),
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


def simulate(repeats: int = REPEATS) -> Iterator[Row]:
    """Yield all rows; detectors that are not in use only with twenty runs."""
    for name, detector in detectors().items():
        for runs in RUNS if name == IN_USE else (20,):
            for condition, noise in CONDITIONS.items():
                for effect in EFFECTS:
                    random = np.random.default_rng(SEED)  # the same series for every detector
                    found = exact = false = 0
                    for _ in range(repeats):
                        at = int(random.integers(MARGIN, runs - MARGIN + 1))
                        step = log1p(effect) * (np.arange(runs) >= at)
                        places = list(detector(noise(random, runs) + step))
                        hits = [place for place in places if effect and abs(place - at) <= NEAR]
                        found += bool(hits)
                        exact += at in hits
                        false += len(places) - bool(hits)
                    yield Row(
                        detector=name, condition=condition, runs=runs, effect=effect,
                        series=repeats, found=found, exact=exact, false=false,
                    )  # fmt: skip


def report(rows: Sequence[Row]) -> str:
    """Return both tables as Markdown."""
    mine = [row for row in rows if row.detector == IN_USE]
    others = [row for row in rows if row.runs == 20]
    return "\n\n".join([
        f"**The detector in use ({IN_USE})**: recall, precision; "
        f"{rows[0].series} series each, noise of {NOISE:.0%} between runs:",
        _table(mine, "runs", lambda row: f"{row.runs}, {row.condition}"),
        "**Other detectors**, series of 20 runs:",
        _table(others, "detector", lambda row: f"{row.detector}, {row.condition}"),
    ])


def _table(rows: Sequence[Row], heading: str, name_of: Callable[[Row], str]) -> str:
    cells: dict[str, list[str]] = {}
    for row in rows:
        cells.setdefault(name_of(row), []).append(_cell(row))
    heads = [f"{heading}, noise", "false per 100 unchanged series"]
    heads += [f"change of {effect:.0%}" for effect in EFFECTS[1:]]
    lines = [heads, ["---"] * len(heads), *([name, *found] for name, found in cells.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row: Row) -> str:
    """Return recall and precision; for unchanged series the number of false changes."""
    if not row.effect:
        return f"{100 * row.false / row.series:.1f}"
    reported = row.found + row.false
    precision = f"{row.found / reported:.0%}" if reported else "none reported"
    return f"{row.found / row.series:.0%}, {precision}"


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=PUBLISHED)
@click.option(
    "--report", "report_only", is_flag=True, help="Print the tables of --out; simulate nothing."
)
def main(out: Path, report_only: bool) -> None:
    if not report_only:
        pq.write_table(pa.Table.from_pylist([asdict(row) for row in simulate()]), out)
    click.echo(report([Row(**row) for row in pq.read_table(out).to_pylist()]))


if __name__ == "__main__":
    main()
