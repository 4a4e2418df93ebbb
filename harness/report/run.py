"""A finished run: its table, what was measured, the answer, what was wrong, and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from harness.cases.axes import command_options, is_explainable
from harness.records import Case, Direction, Mode, Record, Status, WarningKind
from harness.records.metrics import metrics_in
from harness.records.refusal import Refusal
from harness.records.text import count, grouped, in_words, interval_text, percent_text, seconds_text
from harness.report.choice import headline_of
from harness.report.document import DASH, Cell, Document, Table, Text, columns, number, pill
from harness.selection import REFERENCE_NAME, choose, geometric_mean, label_of

if TYPE_CHECKING:  # it imports torch
    from harness.run import SessionOutcome

_MOST_ROWS = 40  # trade-off: about a screenful; of more cases only counts are printed
# statuses that a user has to act upon, the most urgent first; --fail-on adds statuses
_PROBLEMS = (Status.WRONG, Status.CRASHED, Status.TIMEOUT, Status.ERROR)
_MOST_GROUPS = 4  # trade-off: the answer stays on the screen; --verbose and the page have all
_LONGEST = 200  # characters of a reason: two or three lines; --verbose has all of it
# trade-off: the overhead of a shorter run is mostly the import of torch, so it is not printed
_LEAST_WALL_S = 30.0
_DEFAULT = Case(implementation="", shape=())


def document_of_run(
    outcome: SessionOutcome, page: Path | None, fail_on: Collection[str], *, verbose: bool
) -> Document:
    """Return the table of a run and what follows from it; the next command comes last.

    Args:
        outcome: of the run.
        page: the page that was made of it, if any.
        fail_on: statuses that fail the run.
        verbose: whether every case has a row, and every one that did not end well its reason.
    """
    records = outcome.results.records
    notes = [Text(line) for line in (*problem_lines(records, fail_on), *warning_lines(records))]
    step = next_step(outcome, fail_on, has_page=page is not None)
    table = _implementation_table(records)
    if verbose or len(records) <= _MOST_ROWS:
        table = _case_table(records, has_reasons=verbose)
    return (
        *([table] if records else []),
        Text(""),
        Text(totals_line(outcome)),
        *map(Text, answer_lines(outcome)),
        *notes,
        Text(f"results: {outcome.path}"),
        *([Text(f"page: {page}")] if page else []),
        *([Text(f"to {step.purpose}:"), Text(step.command, "code")] if step else []),
    )


def run_as_plain(
    outcome: SessionOutcome, page: Path | None, fail_on: Sequence[str]
) -> dict[str, object]:
    """Return the outcome of a run as plain values; arguments as of :func:`document_of_run`."""
    records = outcome.results.records
    step = next_step(outcome, fail_on, has_page=page is not None)
    return {
        "results": outcome.path,
        "page": page,
        "measured": outcome.measured,
        "failed": outcome.failed,
        "left": outcome.left,
        "wall_s": outcome.run.wall_s,
        "overhead_ratio": outcome.run.overhead_ratio,
        "statuses": _status_counts(records),
        "answer": answer_lines(outcome),
        "wrong": [record.case.id for record in records if record.status is Status.WRONG],
        "fail_on": list(fail_on),
        "failed_on": [record.case.id for record in records if record.status in fail_on],
        "next_command": step.command if step else None,
        "cases": [
            {"id": record.case.id, "status": record.status, "reason": record.reason}
            for record in records
        ],
    }


# --- the tables ----------------------------------------------------------------------------------


def _case_table(records: Sequence[Record], *, has_reasons: bool) -> Table:
    """Return a row per case; those that differ in the implementation alone follow each other."""
    metrics = [
        metric
        for metric in metrics_in("terminal")
        if any(metric.get(record) is not None or metric.note(record) for record in records)
    ]
    metrics.sort(key=lambda metric: metric.unit != "speed")
    heads = ["for", "implementation", *(metric.heading("terminal") for metric in metrics)]
    has_status = any(record.status is not Status.OK for record in records)
    heads += ["status"] * has_status
    scenarios = grouped((_scenario_text(record.case), record) for record in records)
    rows = (
        (
            Cell(scenario),
            Cell(
                label_of((record.case.implementation, record.case.mode)),
                note=record.why if has_reasons else "",
            ),
            *(number(metric.text(record, interval=metric.unit == "speed")) for metric in metrics),
            *([replace(pill(record.status), is_long=True)] if has_status else []),
        )
        for scenario, own in scenarios.items()
        for record in own
    )
    return Table(columns=columns(*heads), rows=tuple(rows))


def _scenario_text(case: Case) -> str:
    """Return what a case is besides its implementation: "64x768 float32 cpu forward normal"."""
    _, direction, shape, dtype, distribution, *settings = replace(
        case, device=_DEFAULT.device, mode=_DEFAULT.mode
    ).parts
    return " ".join([shape, dtype, case.device, direction, distribution, *settings])


def _implementation_table(records: Sequence[Record]) -> Table:
    """Return how many cases of each implementation have which status."""
    groups = grouped((record.case.implementation, record.status) for record in records)
    statuses = [status for status in Status if any(status in own for own in groups.values())]
    rows = []
    for name, own in groups.items():
        cells = (Cell(f"{own.count(status):,}" if status in own else DASH) for status in statuses)
        rows.append((Cell(name), Cell(f"{len(own):,}"), *cells))
    heads = ("implementation", "cases", *map(in_words, statuses))
    return Table(columns=columns(*heads), rows=tuple(rows))


# --- the answer ----------------------------------------------------------------------------------


def answer_lines(outcome: SessionOutcome) -> list[str]:
    """Return what to run, as ``choose`` says it; of a run without times, what is right."""
    records = outcome.results.records
    try:
        choices = choose([outcome.results])
    except Refusal:  # nothing was timed
        return _right_lines(records)
    names = dict.fromkeys(one.name for choice in choices.choices for one in choice.candidates)
    if len(names) > 1:
        return headline_of(choices)
    speeds = [*filter(None, (choice.speed(choice.candidates[0]) for choice in choices.choices))]
    (label,) = map(label_of, names)
    if not speeds or label == REFERENCE_NAME:
        return _right_lines(records)
    mean = interval_text(geometric_mean(speeds))
    return [f"{label} has {mean} the speed of {REFERENCE_NAME}.", *_right_lines(records)]


def _right_lines(records: Sequence[Record]) -> list[str]:
    """Return which implementations are right in every case that they support."""
    tried = [record for record in records if record.status is not Status.UNSUPPORTED]
    others = {record.case.implementation for record in tried if record.status is not Status.OK}
    right = dict.fromkeys(record.case.implementation for record in tried)
    names = ", ".join(name for name in right if name not in others)
    return [f"right in every case: {names}"] if names else []


# --- what was not right --------------------------------------------------------------------------


def problem_lines(records: Sequence[Record], fail_on: Collection[str] = ()) -> list[str]:
    """Return a line per status and implementation, the most urgent first, with the worst reason.

    Implementations with the same reason share a line.
    """
    order = [*dict.fromkeys((*_PROBLEMS, *map(Status, fail_on), *Status))]
    cases = Counter(record.case.implementation for record in records)
    bad = [record for record in records if record.status is not Status.OK]
    bad.sort(key=lambda record: order.index(record.status))
    groups = grouped(((record.status, record.case.implementation), record) for record in bad)
    alike: dict[tuple[Status, str, str], dict[str, int]] = {}
    for (status, name), own in groups.items():
        dtypes = ", ".join(dict.fromkeys(record.case.dtype for record in own))
        worst = max(own, key=lambda record: record.worst_ulp or 0.0)
        reason = shorten(worst.reason, _LONGEST, placeholder=" ...")
        alike.setdefault((status, dtypes, reason), {})[name] = len(own)
    lines = []
    for (status, dtypes, reason), held in alike.items():
        every = count(sum(cases[name] for name in held), "case")
        where = f"{', '.join(held)} in {dtypes} ({sum(held.values()):,} of {every})"
        lines.append(f"{in_words(status)}: {where}{reason and ': '}{reason}")
    left = len(lines) - _MOST_GROUPS
    more = [f"and {left:,} more such lines; --verbose has every case"] if left > 0 else []
    return [*lines[:_MOST_GROUPS], *more]


def warning_lines(records: Sequence[Record]) -> list[str]:
    """Return the kinds of measurement warning, and the advice of the most frequent one."""
    found: dict[WarningKind, dict[str, str]] = {}
    for record in records:
        for warning in record.warnings:
            found.setdefault(warning.kind, {})[record.case.id] = warning.advice
    if not found:
        return []
    kinds = sorted(found, key=lambda kind: -len(found[kind]))
    listed = ", ".join(f"{in_words(kind)} in {count(len(found[kind]), 'case')}" for kind in kinds)
    advice = next(iter(found[kinds[0]].values()))
    which = f"; {in_words(kinds[0])}" if len(kinds) > 1 else ""
    return [f"measurement warning: {listed}{which}: {advice}"]


def _status_counts(records: Sequence[Record]) -> dict[str, int]:
    """Return how many cases have each status, the most frequent first."""
    counts = Counter(record.status for record in records)
    return {str(status): cases for status, cases in counts.most_common()}


def statuses_text(records: Sequence[Record]) -> str:
    """Return how many cases have each status, such as "3 ok, 1 wrong"."""
    counts = _status_counts(records)
    return ", ".join(f"{cases:,} {in_words(status)}" for status, cases in counts.items())


def totals_line(outcome: SessionOutcome) -> str:
    """Return what was measured, how the cases ended, and how long the run took."""
    records, wall_s = outcome.results.records, outcome.run.wall_s or 0.0
    statuses = statuses_text(records)
    names = {record.case.implementation for record in records}
    before = f" ({outcome.earlier:,} of them measured earlier)" if outcome.earlier else ""
    line = f"{count(len(records), 'case')} of {count(len(names), 'implementation')}{before}"
    line += f" in {seconds_text(wall_s)}{': ' if statuses else ''}{statuses}"
    overhead = outcome.run.overhead_ratio
    if overhead is not None and wall_s >= _LEAST_WALL_S:
        line += f"; overhead of the benchmark {percent_text(overhead)} of the time"
    return line


# --- the next step -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next."""

    purpose: str
    """The purpose of the command, such as "make a page of these results"."""
    command: str


def next_step(
    outcome: SessionOutcome, fail_on: Collection[str], *, has_page: bool
) -> NextStep | None:
    """Return a look at the most urgent problem or, if there is none, a use of the results.

    Args:
        outcome: of the run.
        fail_on: statuses that fail the run.
        has_page: whether a page was made of it.
    """
    records, results = outcome.results.records, outcome.path
    for status in (*_PROBLEMS, *map(Status, fail_on)):
        for record in records:
            if record.status is status and status is not Status.UNSUPPORTED:
                return look_closer(record)
    if len({record.case.implementation for record in records if record.latency is not None}) > 1:
        return _step("see what every other implementation would cost or gain", "choose", results)
    if any(record.errors is not None for record in records) and not has_page:
        return _step("make a page of these results", "report", results)
    return None


def look_closer(record: Record) -> NextStep:
    """Return the command that shows more of a case that did not end well."""
    case, status = record.case, record.status
    if status in {Status.WRONG, Status.OUT_OF_GUARANTEE} and _can_be_explained(record):
        purpose = f"see exact and computed values of {case.id} step by step"
        options = command_options(case, without=("direction",))
        return _step(purpose, "explain", case.implementation, *options)
    if status is Status.WRONG and case.mode is Mode.EAGER:
        direction = "forward" if case.direction is Direction.FORWARD else "backward"
        options = ["--dtype", case.dtype, "--direction", direction]
        options += ["--device", case.device] if case.device != _DEFAULT.device else []
        purpose = f"see which mistake {case.implementation} makes"
        return _step(purpose, "verify", case.implementation, *options)
    return run_again(case)


def run_again(case: Case) -> NextStep:
    """Return the command that measures one case."""
    words = ("run", "-i", case.implementation, *command_options(case))
    return _step(f"run {case.id} again by itself", *words)


def _step(purpose: str, *arguments: str | Path) -> NextStep:
    return NextStep(purpose, shlex.join(["layernorm-bench", *map(str, arguments)]))


def _can_be_explained(record: Record) -> bool:
    """Whether ``explain``, which computes y of a forward pass, shows what went wrong."""
    if record.errors is None or not is_explainable(record.case):
        return False
    y = record.errors.outputs[0]
    is_beyond = y.vacuous_elements or (y.bound_ratio is not None and not y.bound_ratio <= 1)
    return bool(is_beyond) and all(
        warning.kind is not WarningKind.CACHED_RESULT for warning in record.warnings
    )
