"""The self-test: the verification must find every known mistake and reject no right LayerNorm.

It must also find mistakes that nobody thought of: known ones, made only where a random trigger
holds (:mod:`harness.verify.red_team`).
"""

from __future__ import annotations

from collections.abc import Callable

from harness.verify.cases.plan import DEFAULT
from harness.verify.mutants import RIGHT, WRONG, Mutant
from harness.verify.mutants.compound import ORDERS
from harness.verify.process_state import process_state_restored
from harness.verify.red_team import run_red_team
from harness.verify.self_test_result import MutantResult, SelfTest
from harness.verify.verify import DTYPES, verify
from implementations import adopt

__all__ = ["is_found", "run_self_test"]

_COMPOUNDS = 60  # of each order, in about two minutes; experiments/red_team has more


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
    compounds = len(ORDERS) * _COMPOUNDS

    def on_compound(number: int) -> None:
        if number % _COMPOUNDS == 1:
            on_line(f"[{number}/{compounds}] looking for mistakes behind random triggers")

    red_team = run_red_team(_COMPOUNDS, DEFAULT, on_compound=on_compound)
    return SelfTest(mutants=tuple(mutants), rejected=tuple(rejected), red_team=red_team)


def is_found(mutant: Mutant, dtype: str) -> bool:
    """Whether the quick verification fails ``mutant``, or makes the remark it declares."""
    target = adopt(mutant.fresh(), mutant.name)
    with process_state_restored():
        verdict = verify(target, quick=True, dtypes=(dtype,), fail_fast=True)
    if mutant.remark is None:
        return verdict.is_wrong
    return mutant.remark in {each.kind for each in verdict.remarks}
