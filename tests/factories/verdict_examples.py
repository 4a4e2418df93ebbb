"""Verdicts of every kind, made by hand, for tests of their properties and words."""

from __future__ import annotations

from dataclasses import replace

from harness.records import Affine, Case, Direction, Status
from harness.verify.findings import (
    Count,
    Coverage,
    Declined,
    Extent,
    Failure,
    Instead,
    Property,
    Remark,
    RemarkKind,
    RunningSums,
    Suspect,
    Trigger,
    Violation,
)
from harness.verify.grade import Grade
from harness.verify.result import Verdict
from harness.verify.scope import Scope
from harness.verify.trigger.conditions import Relation, TriggerCondition

__all__ = ["EXAMPLES"]

_CASE = Case(implementation="norms.py:norm", shape=(5, 64), direction=Direction.BACKWARD)
_FAILURE = Failure(
    case=_CASE,
    status=Status.WRONG,
    reason="y is 405 ulp off, 30 times the error bound of welford with float32 statistics",
    catches="the usual",
)
_CRASH = replace(_FAILURE, status=Status.CRASHED, reason="was ended by SIGSEGV")
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
    ok=261,
    out_of_guarantee=4,
    counts=(Count(dtype="float32", cases=265, failed=0),),
    coverage=Coverage(strength=2, axes=("rows", "leading_axes", "eps"), conditions=12),
    extents=(Extent(dtype="float32", answered=265, declined=0),),
    grades=(_GRADE,),
    properties=(
        Property(name="each_row_alone", dtype="float32", holds=True),
        Property(name="shift_of_x", dtype="float32", holds=True, is_identity=True),
    ),
    wall_s=2.5,
    oracle_s=1.25,
    implementation_s=0.5,
)
_WRONG = replace(
    _RIGHT,
    ok=200,
    failed=65,
    failures=(_FAILURE,),
    counts=(Count(dtype="float32", cases=265, failed=65),),
    grades=(),
    properties=(),
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
        remarks=(
            Remark(kind=RemarkKind.DEFAULT_EPS, text="adds an eps of 1e-06; torch adds 1e-05"),
            Remark(
                kind=RemarkKind.SECOND_DERIVATIVE_WRONG,
                text="has a wrong second derivative",
                dtypes=("float32",),
            ),
        ),
    ),
    "right with a grade of every kind": replace(
        _RIGHT,
        extents=tuple(Extent(dtype=dtype, answered=9, declined=0) for dtype in _GRADES),
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
        extents=(*_RIGHT.extents, Extent(dtype="float16", answered=0, declined=250)),
        declined=(Declined(what="a case", cases=1, reason="TypeError: no halves", raised=True),),
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
                    TriggerCondition(axis="hidden", relation=Relation.AT_LEAST, value=1025),
                    TriggerCondition(axis="is_contiguous", relation=Relation.IS, value=False),
                    TriggerCondition(axis="offset_ratio", relation=Relation.AT_LEAST, value=100.0),
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
                conditions=(
                    TriggerCondition(axis="rows", relation=Relation.NOT_MULTIPLE, value=4),
                ),
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
        violations=(
            Violation(check="y_shares_no_memory", dtype="float32", text="y shares the memory of x"),
        ),
    ),
    "wrong by a crash": replace(_WRONG, failed=1, failures=(_CRASH,), ended="was interrupted"),
    "not verified: every call raises": replace(
        _RIGHT,
        scope=None,
        ok=0,
        out_of_guarantee=0,
        counts=(),
        extents=(Extent(dtype="float32", answered=0, declined=0),),
        grades=(),
        properties=(),
        declined=(Declined(what="every call", cases=0, reason="needs depth: give --init"),),
    ),
    "not verified: most cases are declined": replace(
        _RIGHT,
        ok=2,
        out_of_guarantee=0,
        counts=(Count(dtype="float32", cases=2, failed=0),),
        extents=(Extent(dtype="float32", answered=2, declined=9),),
        declined=(Declined(what="a case", cases=9, reason="takes widths of 32 alone"),),
    ),
    "not verified: the time was over": replace(_RIGHT, left=100, ended="was not done after 2 s"),
}
