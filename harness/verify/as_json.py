"""Verdicts and the self-test as plain values, which JSON can hold."""

from __future__ import annotations

from harness.store.plain import to_plain
from harness.verify.result import Verdict
from harness.verify.self_test_result import SelfTest
from harness.verify.text import headline

__all__ = ["self_test_as_json", "verdict_as_json"]


def verdict_as_json(target: str, verdict: Verdict) -> dict[str, object]:
    """Return the verdict on ``target``, as the user wrote it, with the properties it implies."""
    plain = to_plain(verdict)
    if verdict.scope is not None:
        plain["scope"]["axes"] = verdict.scope.axes
    return {
        **plain,
        "target": target,
        "outcome": verdict.outcome,
        "passed": verdict.passed,
        "headline": headline(verdict),
        "reproduce": verdict.reproduce,
    }


def self_test_as_json(result: SelfTest) -> dict[str, object]:
    """Return the result of the self-test, and whether it passed."""
    return {**to_plain(result), "passed": result.passed}
