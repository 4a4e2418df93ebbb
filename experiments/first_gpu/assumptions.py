"""What the tests on a CPU assume of a GPU, and whether the results of the steps agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.records import Record, Refusal
from harness.store import read

Found = Callable[[Path], Any]
"""Reads a value from the folder of results. Raises LookupError with the reason if there is none."""


def answer(question: str) -> Found:
    """Read one answer of the probe."""

    def find(out: Path) -> Any:
        found = json.loads((out / "probe.out").read_text())[question]
        if isinstance(found, str) and found.startswith("left out: "):
            raise LookupError(found.removeprefix("left out: "))
        return found

    return find


def lone_kernel_ratio(out: Path) -> float:
    took, floor_s = answer("small_kernel_s")(out), answer("event_floor_s")(out)
    return float((took["alone"] - floor_s) / took["among"])


def copies_ratio(out: Path) -> float:
    speeds = answer("bandwidth")(out)
    return float(speeds["copy_"] / speeds["add"])


def ended(step: str) -> Found:
    def find(out: Path) -> str:
        found = json.loads((out / f"{step}.json").read_text())
        if found["state"] == "left out":
            raise LookupError(found["why"])
        return str(found["state"])

    return find


def gated(step: str) -> Found:
    """Read what ``ab`` called its cases."""
    return lambda out: sorted(json.loads((out / f"{step}.out").read_text())["counts"])


def records(out: Path, name: str, implementation: str) -> list[Record]:
    found = read(out / f"{name}.parquet").records
    own = [record for record in found if record.case.implementation.endswith(implementation)]
    if not own:
        raise LookupError(f"no case of {implementation}")
    return own


def statuses(name: str, implementation: str) -> Found:
    return lambda out: " ".join(sorted({one.status for one in records(out, name, implementation)}))


def slower(out: Path) -> list[str]:
    """Read which cases of the fused kernels take over 5 % longer than native."""
    fused = [record for record in records(out, "run", "triton_recentred") if record.latency]
    ratios = {one.case.id: one.latency.reference_ratio for one in fused if one.latency}
    timed = {case: ratio.value for case, ratio in ratios.items() if ratio is not None}
    return [f"{case} {ratio:.2f}" for case, ratio in timed.items() if ratio > 1.05]


def warned(out: Path) -> list[str]:
    kinds = {warning.kind for one in records(out, "run", "") for warning in one.warnings}
    return sorted(map(str, kinds))


# what is read, what is expected, how to read it. Numbers lie between two; a set holds what may be
ASSUMPTIONS: tuple[tuple[str, Any, Found], ...] = (
    ("fields that NVML does not tell", [], answer("unreadable")),
    ("seconds between two events without work", (0, 5e-6), answer("event_floor_s")),
    ("share of idle waits that are late", (0, 1e-3), answer("late_waits_ratio")),
    ("small kernel alone, without that, over one of 100", (0.7, 1.3), lone_kernel_ratio),
    ("bandwidth of copy_ over that of add", (0.9, 1.1), copies_ratio),
    ("read after a flush over one without", (1.3, 100), answer("flush_after_plain_reads")),
    ("the same with evict_last", (1.3, 100), answer("flush_after_evict_last")),
    ("graph captures that ended otherwise", [], answer("captures")),
    ("tests", "done", ended("tests")),
    ("memory checker", "done", ended("sanitizer")),
    ("tuning", "done", ended("tuning")),
    ("run", "done", ended("run")),
    ("statuses of native", "ok", statuses("run", "native")),
    ("statuses of triton_recentred", "ok", statuses("run", "triton_recentred")),
    ("triton_recentred over 5 % slower than native", [], slower),
    ("warnings about times", [], warned),
    ("unchanged code, to ab", ["unchanged"], gated("ab")),
    ("and once more", ["unchanged"], gated("ab-again")),
    ("case that writes out of bounds", {"crashed", "error"}, statuses("blame", "out_of_bounds")),
    ("right case after it", "ok", statuses("blame", "native")),
)


def holds(expected: Any, found: Any) -> bool:
    if isinstance(expected, tuple):  # of a failed question, words are found
        return isinstance(found, float) and expected[0] <= found <= expected[1]
    return bool(found in expected if isinstance(expected, set) else found == expected)


def row(name: str, expected: Any, find: Found, out: Path) -> tuple[str, str, str, str]:
    joined = {tuple: " to ", set: " or ", list: ", "}.get(type(expected))
    assumed = joined.join(map(str, expected)) or "none" if joined else expected
    try:
        found = find(out)
    except (OSError, LookupError, ValueError, Refusal) as error:
        why = "no result" if isinstance(error, (OSError, Refusal)) else error
        return name, assumed, f"not measured ({why})", "?"
    except TypeError:  # arithmetic with the words of a question that failed
        return name, assumed, "failed, see probe.out", "NO"
    listed = ", ".join(found) or "none" if isinstance(found, list) else str(found)
    shown = f"{found:.3g}" if isinstance(found, float) else listed
    return name, assumed, shown, "yes" if holds(expected, found) else "NO"


def device(out: Path) -> str:
    told = answer("environment")(out)
    return str(told["gpus"][0]["name"] if told["gpus"] else told["cpu"])


def page(out: Path) -> str:
    """Return the table in Markdown, what differs first."""
    on = row("", "", device, out)[2]
    rows = sorted((row(*one, out) for one in ASSUMPTIONS), key=lambda row: "N?y".index(row[3][0]))
    head = (("what", "assumed", "found", "holds"), ("---",) * 4)
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in (*head, *rows))
    return f"# Assumptions about a GPU, on {on}\n\n{table}"
