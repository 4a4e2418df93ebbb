"""What was measured, and how: every case, those left out, warnings, the method, machines, terms."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from harness.records import Environment, Record, Run, Status, WarningKind
from harness.records.text import bytes_text, count, in_words, percent_text, seconds_text
from harness.report.choice import WIDENED_TEXT
from harness.report.document import (
    DASH,
    Block,
    CaseTable,
    Cell,
    Facts,
    Table,
    Text,
    columns,
    definitions,
    number,
    pill,
    rounded,
)
from harness.report.embedded import case_data, script_json, shown_cases
from harness.report.frame import PageData, mostly_not_converged
from harness.selection import CLOSE_RATIO
from harness.store import Results

__all__ = ["all_cases", "environment_and_method", "not_measured", "terms", "warnings"]

_NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*(?:e[+-]?\d+)?\b", re.IGNORECASE)


def all_cases(data: PageData) -> tuple[Block, ...]:
    """Show every case of the run, measured or not, to be filtered, drawn, sorted and downloaded."""
    shown = shown_cases(data)
    table = CaseTable(len(shown.cases), script_json(case_data(shown)))
    if not shown.grouped_over:
        return (table,)
    left_out = f" {count(shown.left_out, 'case')} are not shown at all." if shown.left_out else ""
    files = f": {', '.join(data.files)}" if data.files else ""
    return (
        Text(
            f"{count(len(data.cases), 'case')} are too many for a page: below, "
            f"{count(len(shown.cases), 'row')} stand for groups of cases that differ only in "
            f"{' and '.join(shown.grouped_over)}. A row has the status, error, id and command of "
            "the case of its group that needs the most attention, and the median times and memory "
            f"of the group.{left_out} The results file has every case{files}."
        ),
        table,
    )


def not_measured(data: PageData) -> tuple[Block, ...]:
    """List the cases that were not measured, with their reasons."""
    statuses = [status.value for status in Status if not status.is_measured]
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for label, record in zip(data.cases["label"], data.records, strict=True):
        if not record.status.is_measured:
            key = (record.status.value, _NUMBER.sub("#", record.reason))
            found.setdefault(key, []).append((label, record.reason))
    blocks: list[Block] = []
    if data.missing:
        blocks.append(
            Text(
                f"{count(data.missing, 'case')} of {data.planned:,} planned have no record: the "
                "run was cut short. To continue it, repeat its command with --resume."
            )
        )
    if not found:
        return (*blocks, Text("Every case with a record was measured."))
    ordered = sorted(found.items(), key=lambda item: (-statuses.index(item[0][0]), -len(item[1])))
    table = Table(
        name="not-measured",
        title=f"{count(sum(map(len, found.values())), 'case')}, by reason",
        caption="The table of all cases has them too.",
        columns=columns("Status", "Reason", "Implementations", "Cases#"),
        rows=tuple(
            (pill(status), *_reasons(rows), number(f"{len(rows):,}"))
            for (status, _), rows in ordered
        ),
    )
    return (*blocks, table)


def _reasons(rows: list[tuple[str, str]]) -> tuple[Cell, Cell]:
    """Return the first reason, how many differ from it only in their numbers, and the labels."""
    others = len({reason for _, reason in rows}) - 1
    note = f"and {others:,} with other numbers" if others else ""
    labels = ", ".join(dict.fromkeys(label for label, _ in rows))
    reason = rows[0][1] or "no reason was recorded"
    return Cell(reason, note=note, is_long=True), Cell(labels, is_long=True)


def warnings(data: PageData) -> tuple[Block, ...]:
    """List the measurement warnings, by kind."""
    found: dict[str, list[tuple[str, str]]] = {}
    cases: Counter[str] = Counter()
    for label, record in zip(data.cases["label"], data.records, strict=True):
        # a case may have two warnings of one kind, one for its warm and one for its cold time
        cases.update({warning.kind for warning in record.warnings})
        for warning in record.warnings:
            found.setdefault(warning.kind, []).append((label, warning.advice))
    if not found:
        return (Text("No measurement has a warning."),)
    blocks: list[Block] = []
    if mostly_not_converged(data.records):
        del found[WarningKind.NOT_CONVERGED]
        timed = sum(1 for record in data.records if record.latency or record.cold)
        blocks.append(
            Text(
                f"Not converged: {cases[WarningKind.NOT_CONVERGED]:,} of "
                f"{count(timed, 'timed case')}. Their intervals did not become as narrow as "
                "required in time. Most cases have this warning, so that the table of all cases "
                "does not repeat it. For narrower intervals give a case more time or more "
                "processes, or stop other work."
            )
        )
    if found:
        blocks.append(
            Table(
                name="warnings",
                title="Warnings, by kind",
                caption="The numbers of these cases may be less certain than their intervals.",
                columns=columns(
                    "Warning", "What was seen, and what to do", "Implementations", "Cases#"
                ),
                rows=tuple(
                    (Cell(in_words(kind)), *_reasons(rows), number(f"{cases[kind]:,}"))
                    for kind, rows in found.items()
                ),
            )
        )
    return tuple(blocks)


# --- how it was measured --------------------------------------------------------------------------

_METHOD = (
    "Error: the distance from the exact result for the inputs as rounded to the dtype, in units in "
    "the last place (ulp) at the scale of the element's row or column; 0.5 is correctly rounded. "
    "Each result is held to a bound that follows from the algorithm that the implementation "
    "declares; a larger error is wrong. Where there is no error bound, the case is out of "
    "guarantee: that is not a pass, however small the error.",
    "Latency: several calls are timed between two readings of the clock. The inputs get a new "
    "place in memory in every epoch. The estimate is the median over epochs of the epoch's 10 % "
    "quantile. The implementation, the reference and a copy of the same bytes are timed in turn, "
    "so that a disturbance affects all of them. Relative speeds compare times of the same epochs.",
    f"Choice: the fastest eligible candidate. {WIDENED_TEXT} If intervals overlap, accuracy "
    f"decides between those within {percent_text(CLOSE_RATIO - 1)} of the fastest, then memory. A "
    "candidate is disqualified if it has no interval, was wrong in any case, or was out of "
    "guarantee or not measured where another was ok. If every candidate is out of guarantee in a "
    "case, the case disqualifies none; a note below the name counts such cases.",
    "Memory: as the allocator counts it, during one call, beyond the inputs, with the results.",
    "Numbers are rounded: in tables to three digits (memory to four), in the maps of speeds to two "
    "decimals, or to two digits below 0.1. The CSV of all cases and the results file have all "
    "digits.",
)


def environment_and_method(data: PageData) -> tuple[Block, ...]:
    """Show the method, what each implementation declares, the environments and the runs."""
    blocks: list[Block] = [Text(paragraph) for paragraph in _METHOD]
    if len(data.results) > 1:
        blocks.append(_overview(data.results))
    declared = Counter(filter(None, map(_declaration, data.records)))
    if declared:
        rows = ((*map(Cell, key), number(f"{cases:,}")) for key, cases in declared.items())
        blocks.append(
            Table(
                name="declarations",
                title="Declarations, which the bounds follow from",
                caption="As the implementation declares; one that declares nothing is held to "
                "those of native.",
                columns=columns(
                    "Implementation", "Algorithm", "Sums", "Statistics in", "Exact reference",
                    "Cases#",
                ),
                rows=tuple(rows),
            )
        )  # fmt: skip
    for letter, own in data.environments.items():
        title = f"Environment {letter}, fingerprint {own.fingerprint}"
        blocks.append(Facts(title, _environment(own)))
    blocks += [Facts(f"Run {run.name}, {run.started_utc}", _run(run)) for run in data.runs]
    return tuple(blocks)


def _declaration(record: Record) -> tuple[str, ...]:
    errors = record.errors
    if errors is None:
        return ()
    declared = (errors.algorithm, errors.reduction, errors.accumulate_dtype, errors.oracle)
    return (record.case.implementation, *map(in_words, declared))


def _overview(results: Iterable[Results]) -> Table:
    """Return a table of the runs side by side."""
    return Table(
        name="runs",
        title=f"{len(tuple(results)):,} runs on this page",
        caption="Runs on different machines, of different packages or of different commits are "
        "never drawn together: each has its own environment, which the headings name.",
        columns=columns(
            "Run", "Machine", "Threads", "torch", "Commit", "Cases#", "Took#", "Statuses"
        ),
        rows=tuple(map(_run_row, results)),
    )


def _run_row(result: Results) -> tuple[Cell, ...]:
    machines = result.environments.values()
    walls = [run.wall_s for run in result.runs if run.wall_s is not None]
    statuses = Counter(in_words(record.status) for record in result.records)
    return (
        Cell(
            _joined(run.name for run in result.runs),
            note=_joined(run.started_utc for run in result.runs),
        ),
        Cell(_joined(", ".join([one.cpu, *(gpu.name for gpu in one.gpus)]) for one in machines)),
        Cell(_joined(map(str, sorted({record.case.threads for record in result.records})))),
        Cell(_joined(dict(one.packages).get("torch", "") for one in machines)),
        Cell(
            _joined(
                f"{(one.git_commit or '')[:10]}{' with changes' if one.git_dirty else ''}"
                for one in machines
            )
        ),
        number(f"{len(result.records):,}"),
        number(seconds_text(sum(walls)) if walls else DASH),
        Cell(", ".join(f"{cases:,} {status}" for status, cases in statuses.items()), is_long=True),
    )


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(filter(None, dict.fromkeys(texts))) or DASH


def _environment(environment: Environment) -> tuple[tuple[str, str], ...]:
    load, memory_bytes = environment.load_average, environment.memory_bytes
    dirty = ", with uncommitted changes" if environment.git_dirty else ""
    gpus = (
        f"{gpu.name}, {bytes_text(gpu.memory_bytes)}, compute capability {gpu.compute_capability}"
        + ("" if gpu.power_limit_w is None else f", limited to {rounded(gpu.power_limit_w)} W")
        + f", {gpu.uuid}"
        for gpu in environment.gpus
    )
    return (
        ("CPU", f"{environment.cpu}, {environment.cpu_count} usable"),
        ("Instruction set", environment.cpu_capability),
        ("Memory", DASH if memory_bytes is None else bytes_text(memory_bytes)),
        ("GPUs", "; ".join(gpus) or "none"),
        ("NVML", environment.nvml),
        ("Platform", environment.platform),
        ("Python", environment.python),
        ("Packages", ", ".join(f"{name} {version}" for name, version in environment.packages)),
        ("C++ compiler", environment.compiler or "none"),
        ("Commit", f"{environment.git_commit}{dirty}" if environment.git_commit else "none"),
        ("Load before", DASH if load is None else f"{rounded(load)} processes"),
    )


def _run(run: Run) -> tuple[tuple[str, str], ...]:
    share = run.overhead_ratio
    return (
        ("Command", run.command),
        ("Version", run.version),
        ("Cases planned", f"{run.planned:,}"),
        ("Took", "was cut short" if run.wall_s is None else seconds_text(run.wall_s)),
        ("Harness's share", DASH if share is None else f"{rounded(share * 100)} % of that time"),
    )


def terms(_: PageData) -> tuple[Block, ...]:
    """Define the terms that captions use."""
    return (Facts("From the glossary", tuple(definitions().items()), is_glossary=True),)
