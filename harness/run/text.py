"""What a finished run prints below its table, and the same as plain values for machines."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cases.axes import command_options
from harness.records import Case, Direction, Mode, Record, Status, WarningKind
from harness.records.text import count, percent_text, seconds_text
from harness.run.session import SessionOutcome

MOST_ROWS = 40  # trade-off: about a screenful; of more cases only counts are printed
# statuses that a user has to act upon, the most urgent first; --fail-on adds statuses
_PROBLEMS = (Status.WRONG, Status.CRASHED, Status.TIMEOUT, Status.ERROR)
# lines per status. Trade-off: the step to take stays on the screen; --verbose and the page have all
_MOST_PROBLEMS, _MOST_NOTES = 10, 3
# trade-off: the overhead of a shorter run is mostly the import of torch, so it is not printed
_LEAST_WALL_S = 30.0
_DEFAULT = Case(implementation="", shape=())
# fields of a case that `explain` has no option for
_NOT_EXPLAINED = ("mode", "parameters", "threads")


def outcome_lines(
    outcome: SessionOutcome, page: Path | None, fail_on: Collection[str], *, verbose: bool
) -> Iterator[str]:
    """Yield the lines below the table of a run; the next step comes last.

    Args:
        outcome: of the run.
        page: the page that was made of it, if any.
        fail_on: statuses that fail the run.
        verbose: whether all cases are named that did not end well.
    """
    records = outcome.results.records
    problems = problems_of(records, fail_on)
    most_notes = _MOST_PROBLEMS if len(records) <= MOST_ROWS else _MOST_NOTES
    others = {Status.OK, *(record.status for record in problems)}
    notes = [record for record in records if record.status not in others]
    yield from case_lines(notes, None if verbose else most_notes)
    yield from warning_lines(records)
    yield totals_line(outcome)
    yield f"results: {outcome.path}"
    if page:
        yield f"page:    {page}"
    yield from case_lines(problems, None if verbose else _MOST_PROBLEMS)
    step = next_step(records, problems, outcome.path, has_page=page is not None)
    if step is not None:
        yield f"to {step.purpose}:"
        yield f"  {step.command}"


def outcome_as_plain(
    outcome: SessionOutcome, page: Path | None, fail_on: Sequence[str]
) -> dict[str, object]:
    """Return the outcome of a run as values that JSON can hold; arguments as outcome_lines."""
    records = outcome.results.records
    problems = problems_of(records, fail_on)
    step = next_step(records, problems, outcome.path, has_page=page is not None)
    return {
        "results": str(outcome.path),
        "page": str(page) if page else None,
        "measured": outcome.measured,
        "failed": outcome.failed,
        "left": outcome.left,
        "wall_s": outcome.run.wall_s,
        "overhead_ratio": outcome.run.overhead_ratio,
        "statuses": status_counts(records),
        "wrong": [record.case.id for record in records if record.status is Status.WRONG],
        "fail_on": list(fail_on),
        "failed_on": [record.case.id for record in records if record.status in fail_on],
        "next_command": step.command if step else None,
        "cases": [
            {"id": record.case.id, "status": record.status, "reason": record.reason}
            for record in records
        ],
    }


def problems_of(records: Sequence[Record], fail_on: Collection[str] = ()) -> tuple[Record, ...]:
    """Return the cases to act upon: wrong ones, then failed ones, then those of ``fail_on``."""
    order = dict.fromkeys((*_PROBLEMS, *map(Status, fail_on)))
    return tuple(record for status in order for record in records if record.status is status)


def case_lines(records: Sequence[Record], most: int | None = None) -> Iterator[str]:
    """Name cases and reasons below each status, in at most ``most`` lines per status.

    Cases of one implementation with the same reason share a line. Wrong cases do not, since the
    inputs that give wrong results are worth knowing.
    """
    for status in dict.fromkeys(record.status for record in records):
        chosen = [record for record in records if record.status is status and record.reason]
        if not chosen:
            continue
        yield f"{status} ({count(len(chosen), 'case')}):"
        groups: dict[tuple[str, str, str], list[Record]] = {}
        for record in chosen:
            own = record.case.id if status is Status.WRONG else ""
            key = record.case.implementation, record.reason, own
            groups.setdefault(key, []).append(record)
        lines = [*groups.values()]
        for first, *others in lines[:most]:
            more = f" and {count(len(others), 'more case')}" if others else ""
            yield f"  {first.case.id}{more}: {first.reason}"
        if hidden := sum(map(len, lines[most:] if most else ())):
            yield f"  and {count(hidden, 'more case')}: --verbose or the page lists all"


def warning_lines(records: Sequence[Record]) -> list[str]:
    """Return a line per kind of measurement warning: how many cases, and the first's advice."""
    found: dict[str, list[tuple[str, str]]] = {}
    for record in records:
        for warning in record.warnings:
            found.setdefault(warning.kind, []).append((record.case.id, warning.advice))
    return [
        f"measurement warning: {kind.replace('_', ' ')} ({count(len(dict(rows)), 'case')}), "
        f"such as {rows[0][0]}: {rows[0][1]}"
        for kind, rows in found.items()
    ]


def status_counts(records: Sequence[Record]) -> dict[str, int]:
    """Return how many cases have each status, the most frequent first."""
    counts = Counter(record.status for record in records)
    return {str(status): number for status, number in counts.most_common()}


def statuses_text(records: Sequence[Record]) -> str:
    """Return how many cases have each status, such as "3 ok, 1 wrong"."""
    return ", ".join(f"{number} {status}" for status, number in status_counts(records).items())


def totals_line(outcome: SessionOutcome) -> str:
    """Return how many cases ended in which status, and how long the run took."""
    records, wall_s = outcome.results.records, outcome.run.wall_s or 0.0
    statuses = statuses_text(records)
    before = f" ({outcome.earlier} of them measured earlier)" if outcome.earlier else ""
    parts = [f"{count(len(records), 'case')}{before} in {seconds_text(wall_s)}"]
    parts[0] += f": {statuses}" if statuses else ""
    warned = sum(bool(record.warnings) for record in records)
    if warned:
        parts.append(f"{count(warned, 'case')} with a measurement warning")
    overhead = outcome.run.overhead_ratio
    if overhead is not None and wall_s >= _LEAST_WALL_S:
        parts.append(f"overhead of the benchmark {percent_text(overhead)} of the time")
    return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next."""

    purpose: str
    """The purpose of the command, such as "make a page of these results"."""
    command: str


def next_step(
    records: Sequence[Record], problems: Sequence[Record], results: Path, *, has_page: bool
) -> NextStep | None:
    """Return a look at the first problem or, if there is none, a use of the results.

    Args:
        records: of the run.
        problems: those to act upon, the most urgent first.
        results: the results file.
        has_page: whether a page was made of it.
    """
    for record in problems:
        if step := look_closer(record):
            return step
    if len({record.case.implementation for record in records if record.latency is not None}) > 1:
        return NextStep("choose an implementation from these results", _command("choose", results))
    if any(record.errors is not None for record in records) and not has_page:
        return NextStep("make a page of these results", _command("report", results))
    return None


def look_closer(record: Record) -> NextStep | None:
    """Return the command that shows more of a case that did not end well, if there is one."""
    case, status = record.case, record.status
    if status is Status.UNSUPPORTED:
        return None
    if status in {Status.WRONG, Status.OUT_OF_GUARANTEE} and _can_be_explained(record):
        options = command_options(case, without=("direction",))
        command = _command("explain", case.implementation, *options)
        return NextStep(f"see exact and computed values of {case.id} step by step", command)
    if status is Status.WRONG and case.mode is Mode.EAGER:
        direction = "forward" if case.direction is Direction.FORWARD else "backward"
        options = ["--dtype", case.dtype, "--direction", direction]
        options += ["--device", case.device] if case.device != _DEFAULT.device else []
        command = _command("verify", case.implementation, *options)
        return NextStep(f"see which mistake {case.implementation} makes", command)
    command = _command("run", "-i", case.implementation, *command_options(case))
    return NextStep(f"run {case.id} again by itself", command)


def _command(*arguments: str | Path) -> str:
    return shlex.join(["layernorm-bench", *map(str, arguments)])


def _can_be_explained(record: Record) -> bool:
    """Whether ``explain``, which computes y of a forward pass, shows what went wrong."""
    case = record.case
    if case.direction is not Direction.FORWARD or record.errors is None:
        return False
    y = record.errors.outputs[0]
    is_beyond = y.vacuous_elements or (y.bound_ratio is not None and not y.bound_ratio <= 1)
    return (
        bool(is_beyond)
        and all(warning.kind is not WarningKind.CACHED_RESULT for warning in record.warnings)
        and all(getattr(case, name) == getattr(_DEFAULT, name) for name in _NOT_EXPLAINED)
    )
