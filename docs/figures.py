"""The tables of figures in the documentation, made from the published results.

    python docs/figures.py            name the tables that are stale; exit code 1 if there are any
    python docs/figures.py --write    write them anew

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``. Tables of an
experiment are those that its own ``--report`` prints, on the experiment's page; a page of docs/
shows at most five of their rows beside the claim that they support.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "results" / "published"
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "experiments").rglob("*.md")),
)
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n\n).*?(\n*<!-- end of figures -->)", re.DOTALL)
EXPERIMENTS = (
    "timers", "gates", "estimates", "detection_limits", "history", "red_team", "sizes", "faults",
)  # fmt: skip

for folder in ("", "docs", *(f"experiments/{name}" for name in EXPERIMENTS)):
    sys.path.append(str(ROOT / folder))

import measured_code  # noqa: E402

from harness.records.text import count, shape_text  # noqa: E402 - of this checkout


def speed_table() -> str:
    """Return how many times as fast as native cpu_recentred is."""
    speeds: dict[tuple[int, str], dict[str, list[str]]] = {}
    for record in _records("cpu_recentred"):  # float32, bfloat16, float16 of each shape in turn
        case = record.case
        cells = speeds.setdefault((case.threads, case.direction), {})
        speed = 1 / record.latency.reference_ratio.value
        cells.setdefault(shape_text(case.shape), []).append(f"{speed:.2f}")
    shapes = list(next(iter(speeds.values())))
    lines: list[tuple[str, ...]] = [("", *shapes)]
    for (threads, direction), cells in sorted(speeds.items()):
        what = f"{direction}, {count(threads, 'thread')}"
        lines.append((what, *(" / ".join(cells[shape]) for shape in shapes)))
    return _table(lines)


def copy_table() -> str:
    """Return the share of a copy's speed that cpu_recentred reaches in float32, on one thread."""
    lines: list[tuple[str, ...]] = [("shape", "forward", "backward")]
    shares: dict[str, dict[str, float]] = {}
    for record in _records("cpu_recentred"):
        case = record.case
        if (case.dtype, case.threads) == ("float32", 1):
            shares.setdefault(shape_text(case.shape), {})[case.direction] = (
                record.latency.ceiling_ratio
            )
    lines += [
        (shape, f"{share['forward']:.0%}", f"{share['backward']:.0%}")
        for shape, share in shares.items()
    ]
    return _table(lines)


@cache
def timer_report() -> str:
    """Return what experiments/timers/compare_timers.py reports."""
    from report_timers import report
    from rows import read

    return report(read(PUBLISHED / "timers.parquet"))


def timer_tables() -> str:
    """Return the errors of the timers on a quiet and on a loaded machine."""
    return _sections(timer_report(), "Errors in %, quiet", "Errors in %, loaded")


def process_table() -> str:
    """Return the spread of this project's timer over processes."""
    return timer_report()[timer_report().index("| pair | processes |") :]


def gate_tables() -> str:
    """Return what experiments/gates/live_gates.py reports."""
    from gate_tables import report

    return report(pq.read_table(PUBLISHED / "gates.parquet").to_pandas())


def count_table() -> str:
    """Return what experiments/gates/counts.py reports."""
    from counts import table

    return table(pq.read_table(PUBLISHED / "counts.parquet").to_pandas())


def _reported(module: str, file: str, table: str = "report") -> Callable[[], str]:
    """Return a function that returns what a script of experiments/ reports of its rows."""

    def tables() -> str:
        script = import_module(module)
        rows = pq.read_table(PUBLISHED / f"{file}.parquet").to_pylist()
        return getattr(script, table)([script.Row(**row) for row in rows])

    return tables


detection_limit_tables = _reported("detection_limits", "detection_limits")
compare_fail_tables = _reported("compare_fail", "compare_fail")
coverage_tables = _reported("interval_coverage", "coverage")
uneven_tables = _reported("uneven_calls", "uneven_calls")
history_tables = _reported("detection", "history_detection")


def compare_fail_rows() -> str:
    """Return how often this option fails unchanged code on a quiet machine."""
    return next(part for part in compare_fail_tables().split("\n\n") if part.startswith("|"))


def peer_test_table() -> str:
    """Return the summary of reports/published/peer-tests.md, its first table."""
    report = (ROOT / "reports" / "published" / "peer-tests.md").read_text(encoding="utf-8")
    return report.split("\n\n")[2]


def size_table() -> str:
    """Return what experiments/sizes/sizes.py reports."""
    from sizes import report

    return report()


def query_table() -> str:
    """Return what experiments/sizes/many_files.py reports."""
    from many_files import report

    return report()


def timer_rows() -> str:
    """Return the errors of five timers at two pairs, on a quiet and on a loaded machine."""
    states = [
        {
            row["timer"]: row
            for row in _tables(_sections(timer_report(), f"Errors in %, {state}"))[0]
        }
        for state in ("quiet", "loaded")
    ]
    timers = {
        "harness-0.3": "layernorm-bench, at most 0.3 s",
        "alternating-0.3": "a loop that alternates each millisecond",
        "blocked-1.0": "torch: `blocked_autorange`, 1 s per function",
        "pytest-benchmark-min": "pytest-benchmark, least time",
        "timeit": "timeit",
    }
    lines: list[tuple[str, ...]] = [
        ("timer", "seconds", "A/A, quiet", "A/A, loaded", "5 %, quiet", "5 %, loaded")
    ]
    for timer, name in timers.items():
        cells = [state[timer][pair] for pair in ("aa", "more") for state in states]
        lines.append((name, states[0][timer]["seconds"], *cells))
    return _table(lines)


def gate_rows() -> str:
    """Return what `ab` failed falsely and what it found."""
    unchanged, planted, *_ = _tables(gate_tables())
    lines: list[tuple[str, ...]] = [
        (
            "machine",
            "direction",
            "unchanged cases that failed",
            "3 % slower",
            "10 % slower",
            "others",
        )
    ]
    for row in unchanged:
        machine, direction = row["machine"], row["direction"]
        found = {
            line["planted"]: line["found"]
            for line in planted
            if (line["machine"], line["direction"]) == (machine, direction)
        }
        counts = [map(int, found[name].split(" of ")) for name in OTHER_CHANGES]
        others = " of ".join(str(sum(numbers)) for numbers in zip(*counts, strict=True))
        failed = f"{row['cases that failed']} of {row['cases judged']}"
        lines.append((
            machine,
            direction,
            failed,
            found.get("0.03 slower", ""),
            found.get("0.10 slower", ""),
            others,
        ))
    return _table(lines)


def coverage_rows() -> str:
    """Return the coverage of intervals across at most five processes."""
    return _rows_named(
        coverage_tables(),
        [f"{spread}, at most 5" for spread in ("as recorded", "spread 0.5%", "spread 1.0%")]
        + [f"spread {spread}%, at most 5" for spread in ("2.0", "3.0")],
    )


def uneven_rows() -> str:
    """Return which slow calls are found, of calls that are sampled one by one."""
    *_, table = _tables(uneven_tables())
    shown = (
        ("2 pays", "1.5"),
        ("2 pays", "2"),
        ("4 pays", "2"),
        ("16 pays", "2"),
        ("64 pays", "2"),
    )
    columns = ("one call in", "true time / fast calls", "found", "reported / true")
    lines = [
        tuple(row[column] for column in columns)
        for row in table
        if row["calls per sample"] == "1"
        and (row["one call in"], row["true time / fast calls"]) in shown
    ]
    return _table([columns, *lines])


def history_rows() -> str:
    """Return how often the detector in use is right."""
    report = _sections(history_tables(), "The detector in use")
    noises = ("1 %", "2 %", "4.3 %", "AR(0.3), 1 %", "drift, speed", "drift, time")
    return _rows_named(report, [f"{runs}, {noise}" for runs in (20, 60) for noise in noises])


def limits_by_algorithm() -> str:
    """Return the detection limits of the algorithms in float32."""
    names = ("recentred", "two_pass", "one_pass", "welford", "shifted")
    return _rows_named(detection_limit_tables(), [f"{name}, float32" for name in names])


def limits_by_distribution() -> str:
    """Return the detection limits of a target that declares nothing, for five distributions."""
    names = ["normal", "offset_1e2", "offset_1e4", "outlier", "offset_1e6"]
    return _rows_named(detection_limit_tables(), names)


def limits_by_gradient() -> str:
    """Return the detection limits of a target that declares nothing, for five output gradients."""
    names = ["shifted_normal", "ones", "few_rows", "one_row", "one_column"]
    return _rows_named(detection_limit_tables(), names)


OTHER_CHANGES = ("bfloat16 statistics", "variance over N-1", "extra copy")
# the file that each table is made of, and the function that makes it
TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "speed": ("cpu_recentred.parquet", speed_table),
    "copy": ("cpu_recentred.parquet", copy_table),
    "timers": ("timers.parquet", timer_tables),
    "processes": ("timers.parquet", process_table),
    "gates": ("gates.parquet", gate_tables),
    "counts": ("counts.parquet", count_table),
    "detection-limits": ("detection_limits.parquet", detection_limit_tables),
    "compare-fail": ("compare_fail.parquet", compare_fail_tables),
    "coverage": ("coverage.parquet", coverage_tables),
    "uneven": ("uneven_calls.parquet", uneven_tables),
    "peer-tests": ("peer-tests.json", peer_test_table),
    "red-team": ("red_team.parquet", _reported("red_team", "red_team")),
    "history-detection": ("history_detection.parquet", history_tables),
    "sizes": ("sizes.parquet", size_table),
    "many-files": ("many_files.parquet", query_table),
    "faults": ("faults.parquet", _reported("inject", "faults", "table")),
    "timer-rows": ("timers.parquet", timer_rows),
    "gate-rows": ("gates.parquet", gate_rows),
    "compare-fail-rows": ("compare_fail.parquet", compare_fail_rows),
    "coverage-rows": ("coverage.parquet", coverage_rows),
    "uneven-rows": ("uneven_calls.parquet", uneven_rows),
    "history-rows": ("history_detection.parquet", history_rows),
    "limits-by-algorithm": ("detection_limits.parquet", limits_by_algorithm),
    "limits-by-distribution": ("detection_limits.parquet", limits_by_distribution),
    "limits-by-gradient": ("detection_limits.parquet", limits_by_gradient),
}


def renewed(text: str) -> str:
    """Return the text of a page with its tables as they should be."""
    return BLOCK.sub(
        lambda block: f"{block[1]}{_table_with_origin(block[2])}\n\n{block[3].strip()}", text
    )


def _table_with_origin(name: str) -> str:
    if name == "published":
        return measured_code.published_table()
    file, table = TABLES[name]
    return f"{table().strip()}\n\n{measured_code.origin(file)}"


def stale_tables() -> list[str]:
    """Return the page and name of each table that differs from its published results."""
    return [
        f"{path.relative_to(ROOT)}: {old[2]}"
        for path in PAGES
        for text in [path.read_text(encoding="utf-8")]
        for old, new in zip(BLOCK.finditer(text), BLOCK.finditer(renewed(text)), strict=True)
        if old[0] != new[0]
    ]


@cache
def _records(name: str) -> list[Any]:
    from harness.store import read

    return list(read(PUBLISHED / f"{name}.parquet", samples=False).records)


def _sections(text: str, *headings: str) -> str:
    """Return the paragraphs that begin with a bold heading, each with the table after it."""
    parts = text.split("\n\n")
    found = []
    for part, table in pairwise(parts):
        if any(part.startswith(f"**{heading}") for heading in headings):
            found += [part, table]
    assert len(found) == 2 * len(headings), headings
    return "\n\n".join(found)


def _tables(text: str) -> list[list[dict[str, str]]]:
    """Return the rows of each table in a text, as cells by heading."""
    found = []
    for part in text.split("\n\n"):
        if part.startswith("|"):
            heads, _, *rows = [
                [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()
            ]
            found.append([dict(zip(heads, row, strict=True)) for row in rows])
    return found


def _rows_named(text: str, names: list[str]) -> str:
    """Return the rows of a table whose first cell is one of these names, in their order."""
    for table in _tables(text):
        rows = {next(iter(row.values())): row for row in table}
        if names[0] in rows:
            lines = [tuple(rows[name].values()) for name in names]
            return _table([tuple(table[0]), *lines])
    raise LookupError(names)


def _table(lines: list[tuple[str, ...]]) -> str:
    def row(cells: tuple[str, ...]) -> str:
        return f"| {' | '.join(cells)} |"

    return "\n".join([row(lines[0]), row(("---",) * len(lines[0])), *map(row, lines[1:])])


def main() -> None:
    """Check or write."""
    if "--write" in sys.argv:
        measured_code.renew()
        for path in PAGES:
            path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
    elif stale := stale_tables():
        sys.exit(f"stale: {', '.join(stale)}; run `python docs/figures.py --write`")


if __name__ == "__main__":
    main()
