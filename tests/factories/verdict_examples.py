"""Verdicts of every kind, made by hand, for tests of their properties and words."""

from __future__ import annotations

from dataclasses import replace

from harness.records import Affine, Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, Severity, limit, remark
from harness.verify.case_results import Count, Grade
from harness.verify.cases import PlannedCase
from harness.verify.result import Verdict
from harness.verify.scope import Scope

__all__ = ["EXAMPLES"]

_CASE = Case(implementation="norms.py:norm", shape=(5, 64), direction=Direction.BACKWARD)
_FAILURE = Finding(
    Status.WRONG,
    Severity.WRONG,
    "y is 405 ulp off, 30 times the error bound of welford with float32 statistics",
    ("float32",),
    PlannedCase(_CASE, "the usual"),
)
_CRASH = replace(_FAILURE, kind=Status.CRASHED, text="was ended by SIGSEGV")
_GRADE = Grade(dtype="float32", meets="two_pass (tree)", condition_limit=None)
_GRADES = {
    "float32": (1.04e5, "two_pass (tree)"),
    "float64": (103.1, "one_pass (tree)"),
    "bfloat16": (None, "two_pass (tree)"),
    "float16": (None, None),
}
_RIGHT = Verdict(
    target="norms.py:norm",
    handle="'norms.py:norm'",
    bound="welford",
    scope=Scope(default_eps=1e-5),
    counts=(Count(dtype="float32", ok=261, out_of_guarantee=4),),
    strength=2,
    coverage={"rows": 5, "leading_axes": 4, "eps": 3},
    grades=(_GRADE,),
    wall_s=2.5,
)
_WRONG = replace(
    _RIGHT,
    findings=(_FAILURE,),
    counts=(Count(dtype="float32", ok=200, out_of_guarantee=4, failed=65),),
    grades=(),
)

EXAMPLES: dict[str, Verdict] = {
    "right": _RIGHT,
    "right with a narrow scope and remarks": replace(
        _RIGHT,
        scope=Scope(
            declined={
                "affine": (Affine.BOTH, Affine.NONE, Affine.BIAS),
                "normalized_axes": (2, 3, 4, 5),
            },
            eps=1e-6,
            default_eps=1e-6,
            has_gradient=False,
            reasons=("x of 5 axes: RuntimeError: not this",),
        ),
        findings=(
            remark(RemarkKind.DEFAULT_EPS, "adds an eps of 1e-06; torch adds 1e-05"),
            remark(
                RemarkKind.SECOND_DERIVATIVE_WRONG, "has a wrong second derivative", ("float32",)
            ),
        ),
    ),
    "right with a grade of every kind": replace(
        _RIGHT,
        counts=tuple(replace(_RIGHT.counts[0], dtype=dtype) for dtype in _GRADES),
        grades=tuple(
            replace(_GRADE, dtype=dtype, condition_limit=limit, meets=meets)
            for dtype, (limit, meets) in _GRADES.items()
        ),
    ),
    "right with running sums": replace(
        _RIGHT,
        bound="two_pass by running sums",
    ),
    "right in one dtype of two": replace(
        _RIGHT,
        counts=(*_RIGHT.counts, Count(dtype="float16", declined=250)),
        findings=(limit("raised", "a case", "TypeError: no halves"),),
    ),
    "wrong": replace(
        _WRONG,
        findings=(
            _FAILURE,
            Finding(
                "mistake",
                Severity.CAUSE,
                "divides the variance by N-1 instead of N",
                ("float32", "float64"),
            ),
            Finding(
                "trigger",
                Severity.CAUSE,
                "wrong where N >= 1025 and x is not contiguous",
                ("float32",),
            ),
        ),
    ),
    "wrong by an unknown mistake": _WRONG,
    "wrong: another normalisation": replace(
        _WRONG, instead="RMSNorm", scope=Scope(declined={"normalized_axes": (2, 3, 4, 5)})
    ),
    "wrong in a contract check alone": replace(
        _RIGHT,
        findings=(
            Finding("y_shares_no_memory", Severity.WRONG, "y shares the memory of x", ("float32",)),
        ),
    ),
    "wrong by a crash": replace(
        _WRONG,
        counts=(Count(dtype="float32", ok=200, failed=1),),
        findings=(_CRASH,),
        ended="was interrupted",
    ),
    "not verified: every call raises": replace(
        _RIGHT,
        scope=None,
        counts=(Count(dtype="float32"),),
        grades=(),
        findings=(limit("declined", "every call", "needs depth: give --init", cases=0),),
    ),
    "not verified: most cases are declined": replace(
        _RIGHT,
        counts=(Count(dtype="float32", ok=2, declined=9),),
        findings=(limit("declined", "a case", "takes widths of 32 alone", cases=9),),
    ),
    "not verified: the time was over": replace(_RIGHT, left=100, ended="was not done after 2 s"),
}
