"""The self-test: the verification must find every known mistake and reject no right LayerNorm."""

from __future__ import annotations

from collections.abc import Callable

from harness.verify.mutants import RIGHT, WRONG, Mutant
from harness.verify.result import MutantResult, SelfTest
from harness.verify.verify import DTYPES, verify
from implementations import adopt

__all__ = ["is_found", "run_self_test"]


def run_self_test(on_line: Callable[[str], None] = lambda line: None) -> SelfTest:
    """Verify every mutant in each dtype in which it is wrong, and every right one in all dtypes."""
    mutants = []
    total = len(WRONG) + len(RIGHT)
    for number, mutant in enumerate(WRONG, 1):
        on_line(f"[{number}/{total}] verifying a LayerNorm that {mutant.mistake}")
        mutants += [
            MutantResult(
                name=mutant.name,
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
    return SelfTest(mutants=tuple(mutants), rejected=tuple(rejected))


def is_found(mutant: Mutant, dtype: str) -> bool:
    """Whether the quick verification fails ``mutant``, or makes the remark it declares."""
    target = adopt(mutant.fresh(), mutant.name)
    verdict = verify(target, quick=True, dtypes=(dtype,), fail_fast=True)
    if mutant.remark is None:
        return verdict.is_wrong
    return mutant.remark in {each.kind for each in verdict.remarks}
