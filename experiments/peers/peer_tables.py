"""The findings on peers, and the Markdown tables made of them and of their times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from harness.records import Clock, Direction, Latency, Record
from harness.records.text import as_speed, interval_text, seconds_text
from harness.store import Results

__all__ = ["DIRECTIONS", "DTYPES", "SHAPES", "TIMED_DTYPES", "Finding", "tables"]

DTYPES = ("float32", "bfloat16", "float16", "float64")
TIMED_DTYPES = ("float32", "bfloat16")
SHAPES = ((64, 1024), (512, 768), (4096, 1024))  # in one cache, in the next, and beyond
DIRECTIONS = (Direction.FORWARD, Direction.BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of verifying a peer in one dtype."""

    peer: str
    version: str
    dtype: str
    forward_only: bool
    ok: int = 0
    out_of_guarantee: int = 0
    failed: int = 0
    inaccurate: int | None = None
    """Cases with too few digits; None where they were stored as failed."""
    outputs: tuple[str, ...] = ()
    """Outputs that were wrong in at least one case."""
    why: str = ""
    """The likely mistake, or one failure, or why no case was run."""
    condition_limit: float | None = None
    """Largest condition number with two correct digits; None if every one tried has them."""

    @property
    def cases(self) -> int:
        return self.ok + self.out_of_guarantee + self.failed + (self.inaccurate or 0)


def tables(findings: Sequence[Finding], timed: Results) -> str:
    """Return the tables as Markdown."""
    parts = [
        "# LayerNorms of other packages",
        f"Made by `tox run -e peers`. {_where(timed)}",
        _caption(findings, timed),
        "\n".join(_verification(findings)),
        "\n".join(_reasons(findings)),
        "Speed relative to native, interleaved with it (higher is faster), with the 95 % "
        "interval within one process; one thread; conversion from and to torch is included:",
        *("\n".join(_times(timed.records, direction)) for direction in DIRECTIONS),
    ]
    return "\n\n".join(parts) + "\n"


def _caption(findings: Sequence[Finding], timed: Results) -> str:
    """Return what a cell holds, and whether inaccurate cases were told apart from wrong ones."""
    right = "✓ n: n cases are within the error bound."
    if any(finding.inaccurate is None for finding in findings):
        commit = (timed.runs[0].git_commit or "")[:10]
        return (
            f"{right} **✗** n of m: n of m cases are beyond it, in the outputs named. The rules of "
            f"commit {commit} did not tell wrong cases from inaccurate ones."
        )
    return (
        f"{right} **✗** n of m: n of m cases are wrong, in the outputs named. **inaccurate** n of "
        "m: n of m cases are inaccurate, and none is wrong."
    )


def _where(timed: Results) -> str:
    environment = next(iter(timed.environments.values()))
    packages = ", ".join(f"{name} {number}" for name, number in environment.packages)
    started = timed.runs[0].started_utc.partition("T")[0]
    return (
        f"{environment.cpu}, {environment.cpu_count} CPUs, {environment.cpu_capability}; "
        f"{packages}; {started}, load {environment.load_average or 0:.1f} before it began."
    )


def _verification(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a row per peer: the verdict per dtype, and the condition limit in float32."""
    last = "largest condition number at which y in float32 keeps two digits"
    yield f"| | version | {' | '.join(DTYPES)} | {last} |"
    yield "|---|---|" + "---|" * (len(DTYPES) + 1)
    by_peer: dict[str, dict[str, Finding]] = {}
    for finding in findings:
        by_peer.setdefault(finding.peer, {})[finding.dtype] = finding
    for name, of_dtype in by_peer.items():
        first = of_dtype[DTYPES[0]]
        alone = " (forward only)" if first.forward_only else ""
        cells = [first.version, *(_verdict_cell(of_dtype[dtype]) for dtype in DTYPES)]
        yield f"| {name}{alone} | {' | '.join(cells)} | {_condition_cell(first)} |"


def _condition_cell(finding: Finding) -> str:
    """Return the condition limit, to two digits."""
    if not finding.cases:
        return "–"
    if finding.condition_limit is None:
        return "all tried"
    return f"{float(f'{finding.condition_limit:.2g}'):,.0f}"


def _verdict_cell(finding: Finding) -> str:
    if not finding.cases:
        return "–"
    if finding.failed:
        return f"**✗** {finding.failed} of {finding.cases}: {', '.join(finding.outputs)}"
    if finding.inaccurate:
        return f"**inaccurate** {finding.inaccurate} of {finding.cases}"
    if finding.why:
        return "**✗** a contract check"
    beyond = finding.out_of_guarantee
    return f"✓ {finding.ok}" + (f", {beyond} out of guarantee" if beyond else "")


def _reasons(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a line per failure, with the dtypes in which it occurs."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        if finding.cases and finding.why:
            by_reason.setdefault((finding.peer, finding.why), []).append(finding.dtype)
    for (peer, why), dtypes in by_reason.items():
        yield f"- **{peer}**, {', '.join(dtypes)}: {why}"


def _times(records: Sequence[Record], direction: Direction) -> Iterator[str]:
    """Yield a row per implementation that was timed in this direction."""
    timed = {
        (record.case.implementation, record.case.dtype, record.case.shape): record
        for record in records
        if record.case.direction is direction and record.latency
    }
    columns = [*product(TIMED_DTYPES, SHAPES)]
    heads = [f"{dtype} {'×'.join(map(str, shape))}" for dtype, shape in columns]
    yield f"| {direction} | {' | '.join(heads)} |"
    yield "|---|" + "---|" * len(columns)
    for name in dict.fromkeys(name for name, *_ in timed):
        cells = [_time(timed.get((name, *column))) for column in columns]
        yield f"| {name} | {' | '.join(cells)} |"


def _time(record: Record | None) -> str:
    if record is None or record.latency is None:
        return "–"
    latency, remarks = record.latency, []
    if record.status.is_incorrect:
        remarks.append(record.status)
    if latency.clock is Clock.PROCESS_CPU:
        remarks.append("all threads")
    if not latency.is_valid:
        remarks.append("invalid")
    return " ".join((_figure(record.case.implementation, latency), *remarks))


def _figure(name: str, latency: Latency) -> str:
    ratio = latency.reference_ratio
    if ratio is None or name == latency.reference:
        return seconds_text(latency.per_call_s.value)
    return interval_text(as_speed(ratio))
