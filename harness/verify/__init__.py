"""Verify whether a target is a LayerNorm, how accurate it is, and which mistake it makes."""

from __future__ import annotations

from harness.verify.case_results import Count, Grade
from harness.verify.cases import PlannedCase, planned_cases
from harness.verify.example import Example
from harness.verify.explain import Explanation, Step, explain
from harness.verify.result import DTYPES, Outcome, Verdict, VerifyOptions
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
