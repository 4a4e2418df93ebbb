"""The verifier verified: every known mistake must be found, and no right LayerNorm rejected.

Beside it, what the acceptance tests of other projects say of the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.verify.mutants import RIGHT, WRONG, Mutant
from harness.verify.peer_checks import PEER_CHECKS
from harness.verify.verify import DTYPES, verify
from implementations import adopt

__all__ = ["Matrix", "Row", "is_found", "matrix_lines", "run_self_test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Who finds one mistake in one dtype."""

    mutant: str
    mistake: str
    dtype: str
    found_by_us: bool
    found_by_peers: dict[str, bool]
    """By name; without those that publish no test for the dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The kill matrix, and the right LayerNorms that were rejected."""

    rows: tuple[Row, ...]
    rejected: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Every mistake found and nothing right rejected; an empty matrix proves nothing."""
        return bool(self.rows) and all(each.found_by_us for each in self.rows) and not self.rejected


def run_self_test(on_line: Callable[[str], None] = lambda line: None) -> Matrix:
    """Verify every mutant in each dtype in which it is wrong, and every right one in all."""
    rows = []
    total = len(WRONG) + len(RIGHT)
    for number, mutant in enumerate(WRONG, 1):
        on_line(f"[{number}/{total}] verifying a LayerNorm that {mutant.mistake}")
        rows += [_row(mutant, dtype) for dtype in DTYPES if dtype in mutant.dtypes]
    rejected = []
    for number, right in enumerate(RIGHT, len(WRONG) + 1):
        on_line(f"[{number}/{total}] verifying {right.name}, which is right")
        if not verify(right, quick=True, fail_fast=True).passed:
            rejected.append(right.name)
    return Matrix(rows=tuple(rows), rejected=tuple(rejected))


def is_found(mutant: Mutant, dtype: str) -> bool:
    """Whether the quick verification calls ``mutant`` wrong, or remarks what it is to remark."""
    target = adopt(mutant.fresh(), mutant.name)
    verdict = verify(target, quick=True, dtypes=(dtype,), fail_fast=True)
    if mutant.remark is None:
        return verdict.is_wrong
    return mutant.remark in {each.kind for each in verdict.remarks}


def _row(mutant: Mutant, dtype: str) -> Row:
    return Row(
        mutant=mutant.name,
        mistake=mutant.mistake,
        dtype=dtype,
        found_by_us=is_found(mutant, dtype),
        found_by_peers={
            each.name: not each.accepts(mutant.fresh(), getattr(torch, dtype))
            for each in PEER_CHECKS
            if dtype in each.dtypes
        },
    )


def matrix_lines(matrix: Matrix) -> list[str]:
    """Return the lines that a person reads: who accepts how many, then mistake by mistake."""
    names = ["ours", *(each.name for each in PEER_CHECKS)]
    lines = ["wrong LayerNorms accepted:", "", _table_row("", names)]
    for dtype in DTYPES:
        of_dtype = [each for each in matrix.rows if each.dtype == dtype]
        accepted = [sum(not each.found_by_us for each in of_dtype)]
        cells = [str(accepted[0])]
        for name in names[1:]:
            told = [each.found_by_peers[name] for each in of_dtype if name in each.found_by_peers]
            cells.append(str(told.count(False)) if told else "-")
        lines.append(_table_row(f"{dtype} (of {len(of_dtype)})", cells))
    lines += ["", "in float32, one by one (x found, . accepted, - no test):", ""]
    lines.append(_table_row("", names))
    for each in matrix.rows:
        if each.dtype == "float32" or "float32" not in _dtypes_of(matrix, each.mutant):
            marks = ["x" if each.found_by_us else "."]
            marks += [
                {True: "x", False: ".", None: "-"}[each.found_by_peers.get(name)]
                for name in names[1:]
            ]
            lines.append(_table_row(each.mutant, marks))
    missed = [f"{each.mutant} in {each.dtype}" for each in matrix.rows if not each.found_by_us]
    lines += ["", f"wrong and accepted by us: {', '.join(missed) or 'none'}"]
    lines.append(f"right and rejected by us: {', '.join(matrix.rejected) or 'none'}")
    return lines


def _dtypes_of(matrix: Matrix, mutant: str) -> set[str]:
    return {each.dtype for each in matrix.rows if each.mutant == mutant}


def _table_row(head: str, cells: list[str]) -> str:
    return (f"{head:<36}" + "".join(f"{each:>16}" for each in cells)).rstrip()
