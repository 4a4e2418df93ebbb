"""The verifier verified: every known mistake must be found, and no right LayerNorm rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.verify.mutants import RIGHT, WRONG, Mutant
from harness.verify.verify import DTYPES, verify
from implementations import adopt

__all__ = ["Matrix", "Row", "is_found", "matrix_lines", "run_self_test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Who finds one mistake in one dtype."""

    mutant: str
    mistake: str
    dtype: str
    is_found: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The kill matrix, and the right LayerNorms that were rejected."""

    rows: tuple[Row, ...]
    rejected: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Every mistake found and nothing right rejected; an empty matrix proves nothing."""
        return bool(self.rows) and all(each.is_found for each in self.rows) and not self.rejected


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
        is_found=is_found(mutant, dtype),
    )


def matrix_lines(matrix: Matrix) -> list[str]:
    """Return the lines that a person reads: how many are accepted, and which."""
    lines = ["wrong LayerNorms accepted:"]
    for dtype in DTYPES:
        of_dtype = [row for row in matrix.rows if row.dtype == dtype]
        accepted = sum(not row.is_found for row in of_dtype)
        lines.append(f"  {dtype:<10}{accepted:>4} of {len(of_dtype)}")
    missed = [f"{row.mutant} in {row.dtype}" for row in matrix.rows if not row.is_found]
    lines.append(f"wrong and accepted: {', '.join(missed) or 'none'}")
    lines.append(f"right and rejected: {', '.join(matrix.rejected) or 'none'}")
    return lines
