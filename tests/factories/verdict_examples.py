"""Verdicts of every kind, made by hand, for tests of their properties and words."""

from __future__ import annotations

from dataclasses import replace

from harness.cases import Condition, Relation
from harness.records import Affine, Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, Severity, limit, remark
from harness.verify.cases.plan import PlannedCase
from harness.verify.findings import Count, Coverage, Instead, RunningSums, Suspect, Trigger
from harness.verify.grade import Grade
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
_GRADE = Grade(
    dtype="float32", meets="two_pass (tree)", order=0, condition_limit=None, lost_bits=0.5
)
_GRADES = {
    "float32": (1, 1.04e5, "two_pass (tree)"),
    "float64": (2, 103.1, "one_pass (tree)"),
    "bfloat16": (None, None, "two_pass (tree)"),
    "float16": (0, None, None),
}
_RIGHT = Verdict(
    target="norms.py:norm",
    handle="'norms.py:norm'",
    algorithm="welford",
    scope=Scope(default_eps=1e-5),
    counts=(Count(dtype="float32", ok=261, out_of_guarantee=4),),
    coverage=Coverage(strength=2, axes=("rows", "leading_axes", "eps"), conditions=12),
    grades=(_GRADE,),
    wall_s=2.5,
    oracle_s=1.25,
    implementation_s=0.5,
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
            affines=(Affine.WEIGHT,),
            eps=1e-6,
            default_eps=1e-6,
            normalized_dims=(1,),
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
            replace(_GRADE, dtype=dtype, order=order, condition_limit=limit, meets=meets)
            for dtype, (order, limit, meets) in _GRADES.items()
        ),
    ),
    "right with running sums": replace(
        _RIGHT,
        running_sums=RunningSums(
            algorithm="two_pass", dtypes=("float32",), cases=1, worst="that case: 4 times"
        ),
    ),
    "right in one dtype of two": replace(
        _RIGHT,
        counts=(*_RIGHT.counts, Count(dtype="float16", declined=250)),
        findings=(limit("raised", "a case", "TypeError: no halves"),),
    ),
    "wrong": replace(
        _WRONG,
        suspects=(
            Suspect(
                name="unbiased_variance",
                mistake="divides the variance by N-1 instead of N",
                dtypes=("float32",),
                outputs=("y", "dx", "dweight", "dbias"),
                unexplained_ratio=0.01,
            ),
        ),
    ),
    "wrong by an unknown mistake": _WRONG,
    "wrong on one path": replace(
        _WRONG,
        triggers=(
            Trigger(
                dtypes=("float32", "float64"),
                outputs=("y", "dx"),
                conditions=(
                    Condition(axis="hidden", relation=Relation.AT_LEAST, value=1025),
                    Condition(axis="is_contiguous", relation=Relation.IS, value=False),
                    Condition(axis="offset_ratio", relation=Relation.AT_LEAST, value=100.0),
                ),
                regardless=("call",),
                failed=65,
                right=204,
                hidden=3,
                further_cases=70,
            ),
            Trigger(
                dtypes=("float32",),
                outputs=("dweight",),
                conditions=(),
                regardless=(),
                failed=65,
                right=0,
                hidden=0,
                further_cases=40,
            ),
            Trigger(
                dtypes=("float32",),
                outputs=("y",),
                conditions=(Condition(axis="rows", relation=Relation.NOT_MULTIPLE, value=4),),
                regardless=(),
                failed=65,
                right=204,
                hidden=0,
                further_cases=0,
            ),
        ),
    ),
    "wrong: another normalisation": replace(
        _WRONG, instead=Instead(name="RMSNorm", axes="the last axis")
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
