"""Verdicts and the self-test as plain values, which JSON can hold."""

from __future__ import annotations

from harness.store import to_plain
from harness.verify.result import Verdict
from harness.verify.self_test import SelfTest
from harness.verify.text import headline

__all__ = ["self_test_as_json", "verdict_as_json"]


def verdict_as_json(target: str, verdict: Verdict) -> dict[str, object]:
    """Return the verdict on ``target``, as the user wrote it, with the properties it implies."""
    plain = to_plain(verdict)
    del plain["findings"]
    if verdict.scope is not None:
        plain["scope"]["axes"] = verdict.scope.axes
    implied = ("ok", "out_of_guarantee", "failed", "outcome", "passed", "reproduce")
    return {
        **plain,
        **{name: to_plain(getattr(verdict, name)) for name in implied},
        "target": target,
        "headline": headline(verdict),
        "counts": [
            {"dtype": count.dtype, "cases": count.answered, "failed": count.failed}
            for count in verdict.counts
            if count.answered
        ],
        "extents": [
            {"dtype": count.dtype, "answered": count.answered, "declined": count.declined}
            for count in verdict.counts
        ],
        "failures": [
            {**to_plain(finding.evidence), "status": finding.kind, "reason": finding.text}
            for finding in verdict.failures
        ],
        "violations": [
            {"check": finding.kind, "dtype": finding.dtypes[0], "text": finding.text}
            for finding in verdict.violations
        ],
        "remarks": [
            {"kind": finding.kind, "text": finding.text, "dtypes": list(finding.dtypes)}
            for finding in verdict.remarks
        ],
        "declined": [
            {
                "what": finding.evidence[0],
                "cases": finding.evidence[1],
                "reason": finding.text,
                "by_target": finding.kind != "left_out",
                "raised": finding.kind == "raised",
            }
            for finding in verdict.declined
        ],
    }


def self_test_as_json(result: SelfTest) -> dict[str, object]:
    """Return the result of the self-test, and whether it passed."""
    return {**to_plain(result), "passed": result.passed}
