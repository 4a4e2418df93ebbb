"""Runs of three cases in files, and the command check on them."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import Result

from factories.commanding import call
from factories.compared_runs import HERE, STEADY, make_case, make_record, results_of
from harness.records import Environment
from harness.store import Results, write

ONE, TWO, THREE = (make_case(rows=rows) for rows in (1, 2, 3))
BASELINE = results_of(*(make_record(case, STEADY) for case in (ONE, TWO, THREE)))


def run_of(*ratios: float, environment: Environment = HERE) -> Results:
    """Return a run of the baseline's first cases, with these ratios."""
    timed = zip((ONE, TWO, THREE), ratios, strict=False)
    records = (make_record(case, (ratio,), environment=environment) for case, ratio in timed)
    return results_of(*records)


def store(head: Results, baseline: Results = BASELINE) -> None:
    write(head, Path("run.parquet"))
    write(baseline, Path("base.parquet"))


def gate(*more: str, code: int | None = None) -> Result:
    return call("check", "run.parquet", "--baseline", "base.parquet", *more, code=code)


def counts(result: Result) -> str:
    """Return the number of changes of each kind."""
    line = next(line for line in result.stdout.splitlines() if re.match(r"[\d,]+ cases?: ", line))
    return line.partition(": ")[2]
