"""Verdicts of every kind, made by hand, for tests of their properties and words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.records import (
    Affine,
    Case,
    Direction,
    Finding,
    RemarkKind,
    Severity,
    Status,
    limit,
    remark,
)
from harness.verify import Count, Example, Grade, PlannedCase, Scope, Verdict

_CASE = Case(implementation="norms.py:norm", shape=(5, 64), direction=Direction.BACKWARD)
_FAILURE = Finding(
    Status.WRONG,
    Severity.WRONG,
    "y is 405 ulp off, 30 times the error bound of welford with float32 statistics",
    ("float32",),
    PlannedCase(_CASE, "the usual"),
)
_CRASH = replace(
    _FAILURE, kind=Status.CRASHED, text="took its process down, which was ended by SIGSEGV"
)
_AXES = PlannedCase(replace(_CASE, shape=(2, 3, 4), normalized_dims=2), "several axes")
_GRADES = (
    Grade(dtype="float32", condition_limit=1.04e5, meets="two_pass (tree)"),
    Grade(dtype="float64", condition_limit=103.1, meets="one_pass (sequential)"),
    Grade(dtype="bfloat16", condition_limit=None, meets="two_pass (tree)"),
    Grade(dtype="float16", condition_limit=None, meets=None),
)
_ONE_AXIS = Scope(declined={"normalized_axes": (2, 3, 4, 5)}, default_eps=1e-5)
_RIGHT = Verdict(
    target="norms.py:norm",
    handle="'norms.py:norm'",
    bound="welford",
    scope=Scope(default_eps=1e-5),
    counts=(Count(dtype="float32", ok=1261, out_of_guarantee=4),),
    strength=2,
    coverage={"rows": 5, "leading_axes": 4, "eps": 3},
    grades=_GRADES[:1],
    native_grades=(replace(_GRADES[0], condition_limit=4.5e5),),
    wall_s=2.5,
)
_WRONG = replace(
    _RIGHT,
    findings=(_FAILURE,),
    counts=(Count(dtype="float32", ok=200, out_of_guarantee=4, failed=65),),
    grades=(),
)
_COUNTS = tuple(replace(_RIGHT.counts[0], dtype=grade.dtype) for grade in _GRADES)
_IN_ALL = replace(_RIGHT, counts=_COUNTS)
_EXAMPLE = Example(
    case=_CASE,
    output="y",
    shape=(1, 3),
    x=(1.0, 2.0, 4.0),
    weight=(),
    bias=(),
    eps=1e-5,
    computed=(-0.87287, -0.21822, 1.09109),
    exact=(-1.06904, -0.26726, 1.33630),
    error_ulp=1.645e6,
    allowed_ulp=17.9,
    commands="layernorm-bench explain norms.py:norm --shape 1x3",
)


_ONE_FAILED = (Count(dtype="float32", ok=200, failed=1),)
_SHARES = "returns a y that shares the memory of x"


_HALF = ("bfloat16", "float16")
_SUMS = Finding(
    "column_sums",
    Severity.INACCURATE,
    "dweight and dbias are summed in bfloat16: up to 21.9 ulp off, where sums in float32 keep 0.21",
    ("bfloat16",),
)


def _cause(kind: str, text: str) -> Finding:
    return Finding(kind, Severity.CAUSE, text, ("float32",))


def _right(*findings: Finding, **changes: Any) -> Verdict:
    return replace(_RIGHT, findings=findings, **changes)


def _wrong(*findings: Finding, **changes: Any) -> Verdict:
    return replace(_WRONG, findings=(_FAILURE, *findings), **changes)


_UNBIASED = _cause("mistake", "divides the variance by N-1 instead of N")
_EVERYWHERE = _cause("trigger", "wrong at every size, in every layout and mode")
_NARROW = Scope(
    declined={
        "affine": (Affine.BOTH, Affine.NONE, Affine.BIAS),
        "normalized_axes": (2, 3, 4, 5),
    },
    eps=1e-6,
    has_gradient=False,
    reasons=("x of 4 or 5 axes (RuntimeError: not this)", "several normalized axes"),
)
_FROZEN = ("RuntimeError: x must require a gradient", 12)
_OF_32 = "takes widths of 32 alone"
_IN_CASES = "raises in {} cases, such as an x of 1x3 (TypeError: no)"
_NO_WEIGHT = "calls without weight or without bias (TypeError: +)"

EXAMPLES: dict[str, Verdict] = {
    "right": _RIGHT,
    "right with a narrow scope and remarks": _right(
        remark(RemarkKind.DEFAULT_EPS, "adds an eps of 1e-06 if none is given"),
        remark(RemarkKind.MALFORMED_ARGUMENTS, "does not check the shapes of weight and bias"),
        remark(RemarkKind.SECOND_DERIVATIVE_WRONG, "has a wrong second derivative", ("float32",)),
        limit("declined", "a case", _OF_32, cases=2),
        limit("declined", "another case", _OF_32, cases=7),
        limit("left_out", "a case", "it would take about 40 s"),
        scope=_NARROW,
    ),
    "right with a grade of every kind": replace(
        _IN_ALL,
        grades=_GRADES,
        native_grades=tuple(replace(grade, meets=None) for grade in _GRADES),
    ),
    "right with more remarks than fit": _right(
        *(remark(RemarkKind.RAISES, _IN_CASES.format(number)) for number in range(2, 9)),
    ),
    "right, but it raises": _right(
        Finding("autograd", Severity.RAISES, "x is frozen", ("float32",), _FROZEN),
        Finding("layout", Severity.RAISES, "x is transposed", (), ("ValueError: view", 0)),
    ),
    "inaccurate in one dtype": replace(
        _IN_ALL,
        counts=tuple(
            replace(one, inaccurate=813 if one.dtype == "bfloat16" else 0) for one in _COUNTS
        ),
        findings=(
            _SUMS,
            remark(RemarkKind.ROUNDED_AGAIN, "rounds dx more than once", ("bfloat16",)),
        ),
    ),
    "inaccurate in two dtypes and two ways each": replace(
        _IN_ALL,
        counts=tuple(replace(one, inaccurate=813 if one.dtype in _HALF else 0) for one in _COUNTS),
        findings=tuple(
            replace(
                _SUMS,
                kind=kind,
                text=_SUMS.text.replace("bfloat16", dtype) + of_kind,
                dtypes=(dtype,),
            )
            for dtype in _HALF
            for kind, of_kind in (("column_sums", ""), ("statistics", ", and not finite in 19"))
        ),
        example=replace(_EXAMPLE, commands=f"verify_case({'one of many arguments, ' * 12})"),
    ),
    "wrong": _wrong(
        _UNBIASED,
        _EVERYWHERE,
        remark(RemarkKind.MALFORMED_ARGUMENTS, "does not check the shape of normalized_shape"),
        scope=replace(_ONE_AXIS, reasons=(_NO_WEIGHT,)),
        example=_EXAMPLE,
    ),
    "wrong by one of two mistakes, under a trigger": _wrong(
        _UNBIASED,
        _cause("mistake", "divides by the unbiased standard deviation plus eps"),
        _cause("mistake", "is a third suggestion"),
        _cause("trigger", "wrong where N >= 1025 and x is not contiguous"),
        example=replace(
            _EXAMPLE,
            output="dweight",
            shape=(2, 1025),
            x=(),
            weight=None,
            bias=None,
            dy=(1.0, 2.0),
            computed=(0.5,),
            exact=(0.25,),
            error_ulp=float("inf"),
            allowed_ulp=None,
            conditions=("x is transposed", "inference"),
        ),
    ),
    "wrong by an unknown mistake": _WRONG,
    "wrong, inaccurate and right, each in its dtypes": _wrong(
        _UNBIASED,
        _EVERYWHERE,
        _SUMS,
        counts=(*_COUNTS[1:], *_WRONG.counts),
        grades=_IN_ALL.grades,
    ),
    "wrong over several axes": replace(
        _WRONG,
        counts=_ONE_FAILED,
        is_right_on_last_axis=True,
        findings=(
            replace(_FAILURE, evidence=_AXES),
            _cause("mistake", "normalises over the last axis only"),
        ),
    ),
    "wrong: another normalisation": replace(_WRONG, instead="RMSNorm", scope=_ONE_AXIS),
    "wrong in a contract check alone": _right(
        Finding("y_shares_no_memory", Severity.WRONG, _SHARES, ("float32",)),
    ),
    "wrong by a crash": replace(
        _WRONG, counts=_ONE_FAILED, findings=(_CRASH,), ended=f"{_CRASH.text}, for the third time"
    ),
    "not verified: every call raises": _right(
        limit("declined", "every call", "needs depth: give --init", cases=0),
        coverage=None,
        grades=(),
        scope=None,
        counts=(Count(dtype="float32"),),
    ),
    "not verified: most cases are declined": _right(
        limit("declined", "a case", _OF_32, cases=9),
        counts=(Count(dtype="float32", ok=2, declined=9),),
    ),
    "not verified: it hangs": _right(
        left=100,
        coverage=None,
        ended="was not done after 2 s; its last case was norms.py:norm/forward/3x4",
    ),
    "not verified: a mistake in the harness": _right(
        counts=(), coverage=None, ended="could not be judged:\nValueError: so"
    ),
}
