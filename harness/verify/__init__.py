"""Verify whether a target is a LayerNorm, how accurate it is, and which mistake it makes.

A module is imported when one of its names is used: the parent of a verification imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.records.lazy import names_in

if TYPE_CHECKING:
    from harness.verify.cases import planned_cases
    from harness.verify.explanation import explain
    from harness.verify.result import (
        DTYPES,
        Count,
        Example,
        Explanation,
        Grade,
        Outcome,
        PlannedCase,
        Step,
        Verdict,
        VerifyOptions,
    )
    from harness.verify.scope import Scope
    from harness.verify.self_test import MutantResult, SelfTest, is_found, run_self_test
    from harness.verify.verification import verify, verify_case, verify_target
    from harness.verify.workers import INTERRUPTED, verdicts_of, verify_in_worker

__all__ = [
    "DTYPES",
    "INTERRUPTED",
    "Count",
    "Example",
    "Explanation",
    "Grade",
    "MutantResult",
    "Outcome",
    "PlannedCase",
    "Scope",
    "SelfTest",
    "Step",
    "Verdict",
    "VerifyOptions",
    "explain",
    "is_found",
    "planned_cases",
    "run_self_test",
    "verdicts_of",
    "verify",
    "verify_case",
    "verify_in_worker",
    "verify_target",
]

__getattr__ = names_in(__name__, __file__)
