"""What a finished run prints: its table, its answer, its problems and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from factories.choice_records import ran, timed
from factories.figures_factory import make_errors, make_latency, make_memory
from factories.golden import assert_golden
from factories.results_factory import make_run

from harness.records import Case, Direction, MeasurementWarning, Record, Status, WarningKind
from harness.report import document_of_run, run_as_plain, terminal_lines
from harness.run import SessionOutcome
from harness.store import Results

CASE = Case(implementation="one_pass", shape=(64, 768))
OK = Record(case=CASE, environment="here", status=Status.OK)
MEASURED = replace(
    OK, errors=make_errors(CASE), latency=make_latency(CASE), memory=make_memory(CASE)
)
NOISY = MeasurementWarning(kind=WarningKind.NOISY, advice="close other programs")
CACHED = MeasurementWarning(kind=WarningKind.CACHED_RESULT, advice="")


def named(name: str, record: Record = OK, **changes: Any) -> Record:
    return replace(record, case=replace(record.case, implementation=name), **changes)


def ended(status: Status, reason: str = "why", name: str = "one_pass", seed: int = 0) -> Record:
    case = replace(CASE, implementation=name, seed=seed)
    return replace(OK, case=case, status=status, reason=reason)


def outcome_of(records: Sequence[Record]) -> SessionOutcome:
    return SessionOutcome(
        results=Results(records=tuple(records), runs=(), environments={}),
        path=Path("results/mine.parquet"),
        left=0,
        run=make_run(wall_s=62.3, overhead_ratio=0.0614),
        earlier=4,
    )


def printed(records: Sequence[Record], width: int = 100, verbose: bool = False) -> str:
    outcome = outcome_of(records)
    document = document_of_run(outcome, Path("mine.html"), ("out_of_guarantee",), verbose=verbose)
    return "\n".join(line for line, _ in terminal_lines(document, width))


NOT_FINITE = replace(
    make_errors(CASE), outputs=(replace(make_errors(CASE).outputs[0], scaled_max_ulp=inf),)
)
TABLE = [
    MEASURED,
    named("native"),
    named("two_pass", MEASURED, instructions=12345, status=Status.WRONG),
    named("a[bold]/mine.py:norm", errors=NOT_FINITE),
]
LONG = [
    *[replace(MEASURED, case=replace(CASE, seed=seed), warnings=(NOISY,)) for seed in range(3)],
    *[ended(Status.UNSUPPORTED, "no gradient", name) for name in ("native", "welford")],
    *[ended(Status.ERROR, "ValueError: no", "raises", seed) for seed in range(3)],
    *[ended(Status.WRONG, f"y is {seed} ulp off", "mine", seed) for seed in range(4)],
    ended(Status.WRONG, "y has shape [2, 6], expected [/bold]", "other"),
]
RUNS: dict[str, Sequence[Record]] = {
    "many cases": [*[OK] * 38, replace(OK, status=Status.WRONG), *[named("native")] * 2],
    # wrong cases, then failures, then statuses that were asked for
    "every status": [ended(status, name=f"of_{status}") for status in Status],
    "several timed": [*timed("native", 1.0), *timed("quick", 0.5)],
    "errors only": [ran("native"), ran("quick"), ran("mine", status=Status.WRONG)],
}


def test_a_run_reads_as_in_the_golden_file() -> None:
    texts = {f"{width} columns": printed(TABLE, width) for width in (40, 80)}
    texts |= {"long": printed(LONG, 80), "verbose": printed(LONG, 80, verbose=True)}
    texts |= {title: printed(records) for title, records in RUNS.items()}
    text = "\n\n".join(f"# {title}\n{lines}" for title, lines in texts.items())
    assert_golden(text, __file__, "run.txt")


# --- the next step -------------------------------------------------------------------------------


def off(output: str = "y", **axes: Any) -> Record:
    """Return a record in which one output is far off."""
    case = replace(CASE, **axes)
    errors = make_errors(case)
    outputs = tuple(
        replace(found, bound_ratio=9.0 if found.output == output else 0.5, vacuous_elements=0)
        for found in errors.outputs
    )
    return replace(OK, case=case, status=Status.WRONG, errors=replace(errors, outputs=outputs))


def next_command(records: Sequence[Record], page: Path | None = None) -> Any:
    found = run_as_plain(outcome_of(records), page, ("out_of_guarantee",))["next_command"]
    return found and str(found).removeprefix("layernorm-bench ")


OF_Y = "explain one_pass --shape 64x768 --dtype float32 --distribution normal"
VERIFY = "verify one_pass --dtype float32 --direction"


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (off(), OF_Y),
        (off("dx", direction=Direction.BACKWARD), f"{VERIFY} backward"),
        (off(parameters="nan_bias"), f"{VERIFY} forward"),  # explain takes other parameters
        (replace(off(), errors=None), f"{VERIFY} forward"),  # such as a y of another shape
        (replace(off(), warnings=(CACHED,)), f"{VERIFY} forward"),
        (ended(Status.CRASHED), "run -i one_pass"),
        (ended(Status.OUT_OF_MEMORY), "report"),
    ],
)
def test_the_next_step_is_a_look_at_the_first_problem(record: Record, command: str) -> None:
    found = next_command([ended(Status.UNSUPPORTED), ran("native", 1.0), record])
    assert found.startswith(command)


@pytest.mark.parametrize(
    ("names", "page", "command"),
    [
        (("native", "one_pass"), Path("mine.html"), "choose results/mine.parquet"),
        (("native",), None, "report results/mine.parquet"),
        (("native",), Path("mine.html"), None),
    ],
)
def test_without_a_problem_the_next_step_uses_the_results(
    names: tuple[str, ...], page: Path | None, command: str | None
) -> None:
    assert next_command([ran(name, 1.0) for name in names], page) == command
