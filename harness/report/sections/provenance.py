"""Where the numbers come from: the runs, the machines, the method."""

from __future__ import annotations

from harness.records import Environment, Gpu, Run
from harness.records.text import bytes_text, seconds_text
from harness.report.content import Block, Cell, Column, Facts, Table, Text, number
from harness.report.frame import Findings
from harness.report.quantities import DASH, rounded

__all__ = ["environment_and_method"]

_METHOD = (
    "Error: the distance from the exact result for the inputs as rounded to the dtype, in units in "
    "the last place (ulp) at the scale of the element's row or column; 0.5 is correctly rounded. "
    "Each result is held to a bound that follows from the algorithm that the implementation "
    "declares; beyond it the case is wrong. Where the bound is vacuous the algorithm promises "
    "nothing, and the case is out of guarantee: not a pass, whatever the error was.",
    "Latency: several calls between two readings of the clock, in epochs between which the inputs "
    "move to a new place in memory; per epoch the 10 % quantile, then the median over epochs. The "
    "implementation, the reference and a copy of the same bytes take turns, so that a "
    "disturbance meets all of them; relative speeds are formed from times of the same epochs.",
    "Memory: by the allocator's own count, during one call, beyond the inputs; results included.",
    "Relative speed and memory are quotients of recorded numbers. Numbers in tables are rounded to "
    "three digits, in the maps of speeds to two decimals, and to two digits below 0.1; the CSV of "
    "all cases and the results file have all of them.",
)


def environment_and_method(findings: Findings) -> tuple[Block, ...]:
    """Say how, by whom and on what everything above was measured."""
    return (
        *(Text(each) for each in _METHOD),
        *_declarations(findings),
        *(
            Facts(f"Environment {letter}, fingerprint {each.fingerprint}", _environment(each))
            for letter, each in findings.environments.items()
        ),
        *(Facts(f"Run {each.name}, {each.started_utc}", _run(each)) for each in findings.runs),
    )


def _declarations(findings: Findings) -> tuple[Block, ...]:
    """Say to what each implementation was held."""
    found: dict[tuple[str, ...], int] = {}
    for record in findings.records:
        if record.errors is not None:
            of = record.errors
            key = (
                record.case.implementation,
                of.algorithm,
                of.reduction,
                of.accumulate_dtype,
                of.oracle,
            )
            found[key] = found.get(key, 0) + 1
    if not found:
        return ()
    rows = tuple(
        (
            *(Cell(each.replace("_", " ") if place else each) for place, each in enumerate(key)),
            number(f"{cases:,}"),
        )
        for key, cases in found.items()
    )
    headings = ("Implementation", "Algorithm", "Sums", "Statistics in", "Exact reference")
    columns = (*map(Column, headings), Column("Cases", is_number=True))
    caption = "As the implementation declares it, or as native does where it declares nothing."
    return (Table(title="What each was held to", caption=caption, columns=columns, rows=rows),)


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
