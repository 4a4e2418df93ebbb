"""The verifier's own test: it must find every mutant and reject no right LayerNorm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.verify.mutants import RIGHT, WRONG, Mutant
from harness.verify.verify import DTYPES, verify
from implementations import adopt

__all__ = ["Matrix", "Row", "is_found", "matrix_lines", "run_self_test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Whether the verifier finds one mutant in one dtype."""

    mutant: str
    mistake: str
    dtype: str
    is_found: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Which mutants were found, and which right LayerNorms were rejected."""

    rows: tuple[Row, ...]
    rejected: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """All mutants found and nothing right rejected; an empty matrix does not pass."""
        return bool(self.rows) and all(row.is_found for row in self.rows) and not self.rejected


def run_self_test(on_line: Callable[[str], None] = lambda line: None) -> Matrix:
    """Verify every mutant in each dtype in which it is wrong, and every right one in all dtypes."""
    rows = []
    total = len(WRONG) + len(RIGHT)
    for number, mutant in enumerate(WRONG, 1):
        on_line(f"[{number}/{total}] verifying a LayerNorm that {mutant.mistake}")
        rows += [
            Row(
                mutant=mutant.name,
                mistake=mutant.mistake,
                dtype=dtype,
                is_found=is_found(mutant, dtype),
            )
            for dtype in DTYPES
            if dtype in mutant.dtypes
        ]
    rejected = []
    for number, right in enumerate(RIGHT, len(WRONG) + 1):
        on_line(f"[{number}/{total}] verifying {right.name}, which is right")
        if not verify(right, quick=True, fail_fast=True).passed:
            rejected.append(right.name)
    return Matrix(rows=tuple(rows), rejected=tuple(rejected))


def is_found(mutant: Mutant, dtype: str) -> bool:
    """Whether the quick verification calls ``mutant`` wrong, or makes the remark that it names."""
    target = adopt(mutant.fresh(), mutant.name)
    verdict = verify(target, quick=True, dtypes=(dtype,), fail_fast=True)
    if mutant.remark is None:
        return verdict.is_wrong
    return mutant.remark in {remark.kind for remark in verdict.remarks}


def matrix_lines(matrix: Matrix) -> list[str]:
    """Return the terminal output: how many mutants were accepted, and which."""
    lines = ["wrong LayerNorms accepted:"]
    for dtype in DTYPES:
        found = [row.is_found for row in matrix.rows if row.dtype == dtype]
        lines.append(f"  {dtype:<10}{found.count(False):>4} of {len(found)}")
    missed = [f"{row.mutant} in {row.dtype}" for row in matrix.rows if not row.is_found]
    lines.append(f"wrong and accepted: {', '.join(missed) or 'none'}")
    lines.append(f"right and rejected: {', '.join(matrix.rejected) or 'none'}")
    return lines
