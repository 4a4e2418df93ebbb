"""The self-test: the verification must find every known mistake and reject no right LayerNorm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.mutants import RIGHT, WRONG, Mutant
from harness.records.finding import RemarkKind
from harness.run import process_state_restored
from harness.verify.result import DTYPES, Outcome
from harness.verify.verification import verify
from implementations import adopt


@dataclass(frozen=True, slots=True)
class MutantResult:
    """Whether the verification finds one known mistake in one dtype."""

    name: str
    mistake: str
    dtype: str
    is_found: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The result of a self-test."""

    mutants: tuple[MutantResult, ...]
    rejected: tuple[str, ...]
    """Right implementations that the verification rejected."""

    @property
    def passed(self) -> bool:
        """Whether every mistake was found and nothing rejected; without mutants it did not pass."""
        is_all_found = bool(self.mutants) and all(result.is_found for result in self.mutants)
        return is_all_found and not self.rejected


def run_self_test(on_line: Callable[[str], None] = lambda line: None) -> SelfTest:
    """Verify every mutant in each dtype in which it is wrong, and every right one in all dtypes."""
    mutants = []
    total = len(WRONG) + len(RIGHT)
    for number, mutant in enumerate(WRONG, 1):
        on_line(f"[{number}/{total}] verifying a LayerNorm that {mutant.sentence}")
        mutants += [
            MutantResult(mutant.name, mutant.sentence, dtype, is_found(mutant, dtype))
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
    """Whether the quick verification gives ``mutant`` the outcome or the remark it declares."""
    target = adopt(mutant.fresh(), mutant.name)
    with process_state_restored():
        verdict = verify(target, quick=True, dtypes=(dtype,), fail_fast=True)
    expected = RemarkKind.ROUNDED_AGAIN if dtype in mutant.rounded else mutant.remark
    if expected is not None:
        return expected in {remark.kind for remark in verdict.remarks}
    wanted = Outcome.INACCURATE if dtype in mutant.inaccurate else Outcome.WRONG
    return verdict.outcome is wanted
