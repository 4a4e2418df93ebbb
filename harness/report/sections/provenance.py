"""How the numbers were measured: the method, the machines, the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.records import Environment, Gpu, Run
from harness.records.text import bytes_text, in_words, percent_text, seconds_text
from harness.report.content import Block, Cell, Column, Facts, Table, Text, number
from harness.report.frame import Findings
from harness.report.quantities import DASH, rounded
from harness.selection.evidence_text import WIDENED_TEXT
from harness.selection.ranking import CLOSE_RATIO
from harness.store import Results

__all__ = ["environment_and_method"]

_METHOD = (
    "Error: the distance from the exact result for the inputs as rounded to the dtype, in units in "
    "the last place (ulp) at the scale of the element's row or column; 0.5 is correctly rounded. "
    "Each result is held to a bound that follows from the algorithm that the implementation "
    "declares; a larger error is wrong. Where the bound is vacuous no error can be expected, and "
    "the case is out of guarantee: that is not a pass, however small the error.",
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


def environment_and_method(findings: Findings) -> tuple[Block, ...]:
    """Show the method, what each implementation declares, the environments and the runs."""
    return (
        *(Text(each) for each in _METHOD),
        *_overview(findings),
        *_declarations(findings),
        *(
            Facts(f"Environment {letter}, fingerprint {each.fingerprint}", _environment(each))
            for letter, each in findings.environments.items()
        ),
        *(Facts(f"Run {each.name}, {each.started_utc}", _run(each)) for each in findings.runs),
    )


def _overview(findings: Findings) -> tuple[Block, ...]:
    """Return a table of the runs side by side; none if there is only one."""
    if len(findings.results) < 2:
        return ()
    headings = ("Run", "Machine", "Threads", "torch", "Commit", "Cases", "Took", "Statuses")
    numbers = {"Cases", "Took"}
    return (
        Table(
            name="runs",
            title=f"{len(findings.results):,} runs on this page",
            caption="Runs on different machines, of different packages or of different commits are "
            "never drawn together: each has its own environment, which the headings name.",
            columns=tuple(Column(each, is_number=each in numbers) for each in headings),
            rows=tuple(map(_run_row, findings.results)),
        ),
    )


def _run_row(result: Results) -> tuple[Cell, ...]:
    machines = result.environments.values()
    cases = [record.case for record in result.records]
    walls = [run.wall_s for run in result.runs if run.wall_s is not None]
    statuses = Counter(in_words(record.status) for record in result.records)
    return (
        Cell(
            _each(run.name for run in result.runs), note=_each(r.started_utc for r in result.runs)
        ),
        Cell(_each(", ".join([each.cpu, *(gpu.name for gpu in each.gpus)]) for each in machines)),
        Cell(_each(str(threads) for threads in sorted({case.threads for case in cases}))),
        Cell(_each(dict(each.packages).get("torch", "") for each in machines)),
        Cell(_each(map(_revision, machines))),
        number(f"{len(cases):,}"),
        number(seconds_text(sum(walls)) if walls else DASH),
        Cell(", ".join(f"{cases:,} {status}" for status, cases in statuses.items()), is_long=True),
    )


def _each(texts: Iterable[str]) -> str:
    return "; ".join(filter(None, dict.fromkeys(texts))) or DASH


def _revision(environment: Environment) -> str:
    changed = " with changes" if environment.git_dirty else ""
    return f"{(environment.git_commit or '')[:10]}{changed}"


def _declarations(findings: Findings) -> tuple[Block, ...]:
    """Return a table of the bounds that the implementations were held to."""
    found: dict[tuple[str, ...], int] = {}
    for record in findings.records:
        if (errors := record.errors) is not None:
            key = (
                record.case.implementation,
                errors.algorithm,
                errors.reduction,
                errors.accumulate_dtype,
                errors.oracle,
            )
            found[key] = found.get(key, 0) + 1
    if not found:
        return ()
    rows = tuple(
        (
            *(Cell(in_words(each) if place else each) for place, each in enumerate(key)),
            number(f"{cases:,}"),
        )
        for key, cases in found.items()
    )
    headings = ("Implementation", "Algorithm", "Sums", "Statistics in", "Exact reference")
    columns = (*map(Column, headings), Column("Cases", is_number=True))
    caption = (
        "As the implementation declares; one that declares nothing is held to those of native."
    )
    return (
        Table(
            name="declarations",
            title="Declarations, which the bounds follow from",
            caption=caption,
            columns=columns,
            rows=rows,
        ),
    )


def _environment(environment: Environment) -> tuple[tuple[str, str], ...]:
    load, memory_bytes = environment.load_average, environment.memory_bytes
    dirty = {None: "", True: ", with uncommitted changes", False: ""}[environment.git_dirty]
    return (
        ("CPU", f"{environment.cpu}, {environment.cpu_count} usable"),
        ("Instruction set", environment.cpu_capability),
        ("Memory", DASH if memory_bytes is None else bytes_text(memory_bytes)),
        ("GPUs", "; ".join(map(_gpu, environment.gpus)) or "none"),
        ("NVML", environment.nvml),
        ("Platform", environment.platform),
        ("Python", environment.python),
        ("Packages", ", ".join(f"{name} {version}" for name, version in environment.packages)),
        ("C++ compiler", environment.compiler or "none"),
        ("Commit", f"{environment.git_commit}{dirty}" if environment.git_commit else "none"),
        ("Load before", DASH if load is None else f"{rounded(load)} processes"),
    )


def _gpu(gpu: Gpu) -> str:
    power = "" if gpu.power_limit_w is None else f", limited to {rounded(gpu.power_limit_w)} W"
    return (
        f"{gpu.name}, {bytes_text(gpu.memory_bytes)}, compute capability "
        f"{gpu.compute_capability}{power}, {gpu.uuid}"
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
