"""The words of this package: verdicts and explanations, for the terminal.

A failed ``assert_layer_norm`` shows the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.records import Affine, Status
from harness.records.finding import SILENT, Finding
from harness.records.text import count, seconds_text, shape_text, ulp_text
from harness.verify.explain import Explanation
from harness.verify.findings import Outcome, Suspect
from harness.verify.grade import Grade
from harness.verify.result import Verdict
from harness.verify.scope import AFFINE_WORDS
from harness.verify.trigger import trigger_text

__all__ = ["explanation_lines", "headline", "verdict_lines"]

_SHOWN = 8  # failures of different kinds that a person reads before scrolling
_ERROR_GROWTH = {
    None: "is hidden by the rounding of the result",
    0: "does not depend on the condition of its input",
    1: "grows with the condition of its input, as with a mean kept in one word",
    2: "grows with the square of the condition of its input, as E[x^2] - E[x]^2 cancels",
}


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return a verdict in words, the outcome first."""
    lines = [f"{verdict.target}: {headline(verdict)}"]
    if verdict.ended and verdict.is_wrong:
        lines.append(f"  the verification was not finished: it {verdict.ended}")
    if verdict.instead is None:
        lines += [_suspect_line(suspect) for suspect in verdict.suspects]
        is_crash = all(finding.kind == Status.CRASHED for finding in verdict.failures)
        if not is_crash and not verdict.suspects:
            lines.append("  no known mistake explains it")
        lines += [f"  {trigger_text(trigger)}" for trigger in verdict.triggers]
    lines += [
        f"  contract violation in {finding.dtypes[0]}: {finding.text}"
        for finding in verdict.violations
    ]
    lines += _failure_lines(verdict)
    if verdict.failures and all(
        finding.evidence.case.normalized_dims > 1 for finding in verdict.failures
    ):
        lines.append("  over the last axis alone no case failed: --normalized-dims 1 verifies that")
    if verdict.reproduce:
        lines += ["  reproduce the plainest with:", f"    {verdict.reproduce}"]
    for more_lines in (
        _scope_lines,
        _coverage_lines,
        _remark_lines,
        _running_sum_lines,
        _grade_lines,
        _declined_lines,
        _cost_lines,
    ):
        lines += more_lines(verdict)
    return lines


def headline(verdict: Verdict) -> str:
    """Return the outcome in one sentence, without the name of the target."""
    if verdict.outcome is Outcome.NOT_VERIFIED:
        return _not_verified(verdict)
    if verdict.outcome is Outcome.WRONG:
        return _wrong(verdict)
    sums = verdict.running_sums
    bound = verdict.algorithm if sums is None else f"{sums.algorithm} by running sums"
    beyond = verdict.out_of_guarantee
    outside = f", {beyond} outside its guarantee" if beyond else ""
    return (
        f"{_layer_norm(verdict)}. {verdict.ok:,} of {count(verdict.cases, 'case')} within the "
        f"error bound of {bound}{outside}{_unverified(verdict)}"
    )


def _layer_norm(verdict: Verdict) -> str:
    """Name what it is: the axes, its eps if that is fixed, and the dtypes."""
    scope = verdict.scope
    axes = "" if scope is None else f" over {scope.axes}"
    eps = "" if scope is None or scope.eps is None else f", with an eps of {scope.eps:g}"
    first = {Affine.BOTH: "", Affine.WEIGHT: " without bias", Affine.BIAS: " without weight"}
    affine = "" if scope is None else first.get(scope.affines[0], " without weight and bias")
    return f"a LayerNorm{affine}{axes}{eps}, in {', '.join(verdict.right_dtypes)}"


def _wrong(verdict: Verdict) -> str:
    if verdict.instead is not None:
        name = verdict.instead.name
        has_axes = name.startswith(("LayerNorm with", "RMSNorm", "removal", "division"))
        axes = f" over {verdict.instead.axes}" if has_axes else ""
        what = f"NOT a LayerNorm: it computes {name}{axes}"
    else:
        right = verdict.right_dtypes
        where = f" in {', '.join(verdict.wrong_dtypes)}" if right else ""
        also = f" ({_layer_norm(verdict)})" if right else ""
        what = f"NOT a LayerNorm{where}{also}"
    parts = []
    if verdict.failed:
        by_dtype = [f"{own.failed} of {own.dtype}" for own in verdict.counts if own.failed]
        is_even = len({own.failed for own in verdict.counts if own.answered}) < 2
        where = "" if is_even else f" ({', '.join(by_dtype)})"
        parts.append(f"{verdict.failed} of {count(verdict.cases, 'case')} failed{where}")
    if verdict.violations:
        checks = {finding.kind for finding in verdict.violations}
        parts.append(f"{count(len(checks), 'contract check')} failed")
        if not verdict.failed:
            parts.append(f"each of {count(verdict.cases, 'single call')} is right")
    return f"{what}. {'; '.join(parts)}"


def _not_verified(verdict: Verdict) -> str:
    if verdict.ended:
        right = f"{verdict.ok + verdict.out_of_guarantee} of {count(verdict.cases, 'case')}"
        return f"NOT verified: it {verdict.ended}. So far {right} were right"
    if verdict.scope is None and verdict.declined:
        return f"NOT verified: {verdict.declined[0].text}"
    tried = verdict.cases + sum(own.declined for own in verdict.counts)
    if not tried:
        return "NOT verified. No case was tried"
    return f"NOT verified. It gave a result in {verdict.cases} of {count(tried, 'case')}, too few"


def _unverified(verdict: Verdict) -> str:
    """Name the dtypes in which too few cases gave a result."""
    unverified = [
        f"{own.dtype} (a result in {own.answered} of {count(own.answered + own.declined, 'case')})"
        for own in verdict.counts
        if not own.is_verified
    ]
    return f"; not verified in {', '.join(unverified)}" if unverified else ""


def _scope_lines(verdict: Verdict) -> list[str]:
    """Name what was verified, and what lies outside the scope."""
    scope = verdict.scope
    if scope is None:
        return []
    directions = "forward and backward" if scope.has_gradient else "forward alone"
    affines = ", ".join(AFFINE_WORDS[affine] for affine in scope.affines)
    default = "" if scope.default_eps is None else f", {scope.default_eps:g} by default"
    eps = f"any eps{default}" if scope.eps is None else f"eps always {scope.eps:g}"
    lines = [f"  scope: {scope.axes}; {directions}; {affines}; {eps}"]
    lines += [f"  outside its scope: {reason}" for reason in scope.reasons]
    return lines


def _coverage_lines(verdict: Verdict) -> list[str]:
    """Claim what was tried."""
    coverage = verdict.coverage
    if coverage is None:
        return []
    axes = ", ".join(axis.replace("_", " ") for axis in coverage.axes)
    return [
        f"  tried every combination of {coverage.strength} of {coverage.conditions} conditions in "
        f"each dtype ({axes})"
    ]


def _remark_lines(verdict: Verdict) -> list[str]:
    return [
        f"  {'WARNING' if remark.kind in SILENT else 'remark'}: it {remark.text}"
        + (f" ({', '.join(remark.dtypes)})" if remark.dtypes else "")
        for remark in verdict.remarks
    ]


def _grade_text(grade: Grade) -> str:
    """Return how the error grows with the condition of the input."""
    if grade.meets is None:
        return (
            f"in {grade.dtype} it is less accurate than any algorithm with statistics in float32 "
            "or wider may be"
        )
    where = (
        "at every condition tried"
        if grade.condition_limit is None
        else f"up to condition {grade.condition_limit:.3g}"
    )
    return f"in {grade.dtype} its error {_ERROR_GROWTH[grade.order]}; it keeps two digits {where}"


def _grade_lines(verdict: Verdict) -> list[str]:
    """Say how the error grows, and the strictest algorithm whose bound the target meets."""
    lines = []
    met: dict[str, list[str]] = {}
    for grade in verdict.grades:
        if grade.dtype not in verdict.right_dtypes:
            continue
        lines.append(f"  {_grade_text(grade)}")
        if grade.meets is not None:
            met.setdefault(grade.meets, []).append(grade.dtype)
    classes = [f"{name} in {', '.join(dtypes)}" for name, dtypes in met.items()]
    if classes:
        lines.append(f"  strictest algorithm whose bound it meets: {'; '.join(classes)}")
    return lines


def _running_sum_lines(verdict: Verdict) -> list[str]:
    """Say that running sums explain some cases, and how to declare them."""
    sums = verdict.running_sums
    if sums is None:
        return []
    return [
        f"  in {', '.join(sums.dtypes)}: running sums explain {count(sums.cases, 'case')} outside "
        f"the bound of PyTorch's own; the furthest is {sums.worst}",
        "  if it computes running sums, declare them: from layernorm_bench import Algorithm, "
        "Reduction, implementation;",
        f"    @implementation(source=..., algorithm=Algorithm.{sums.algorithm.upper()}, "
        "reduction=Reduction.SEQUENTIAL)",
    ]


def _suspect_line(suspect: Suspect) -> str:
    where = f"in {', '.join(suspect.dtypes)}"
    if len(suspect.outputs) < 4:  # it explains some outputs only
        where = f"{', '.join(suspect.outputs)} {where}"
    return f"  likely mistake ({where}): it {suspect.mistake}"


def _declined_lines(verdict: Verdict) -> list[str]:
    """One line per reason, for cases that were not tried or that the target declines."""
    by_reason: dict[str, list[Finding]] = {}
    for finding in verdict.declined:
        if finding.kind != "raised" and finding.evidence[1]:
            by_reason.setdefault(finding.text, []).append(finding)
    lines = []
    for reason, declined in list(by_reason.items())[:_SHOWN]:
        more = f" and {len(declined) - 1} more" if len(declined) > 1 else ""
        cases = count(sum(finding.evidence[1] for finding in declined), "case")
        verb = "leaves out" if declined[0].kind == "left_out" else "declines"
        lines.append(f"  {verb} {cases} ({declined[0].evidence[0]}{more}): {reason}")
    return lines


def _failure_lines(verdict: Verdict) -> list[str]:
    """One failure of each kind: the smallest of each group of cases and dtype."""
    kinds = {
        (finding.evidence.catches, finding.dtypes): finding
        for finding in reversed(verdict.failures)
    }
    shown = list(reversed(kinds.values()))[:_SHOWN]
    lines = [f"  {finding.kind}: {finding.evidence.case.id}: {finding.text}" for finding in shown]
    if verdict.failed > len(shown):
        lines.append(f"  and {verdict.failed - len(shown)} more")
    return lines


def _cost_lines(verdict: Verdict) -> list[str]:
    """Say how long the cases took; nothing if there is no result."""
    parts = []
    if verdict.cases:
        parts.append(
            f"{count(verdict.cases, 'case')} in {seconds_text(verdict.wall_s)}: "
            f"{seconds_text(verdict.oracle_s)} in the exact reference, "
            f"{seconds_text(verdict.implementation_s)} in {verdict.target}"
        )
    if verdict.left:
        parts.append(f"{count(verdict.left, 'case')} left when the time was over")
    return [f"  {'; '.join(parts)}"] if parts else []


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of an explanation: the outcome, the steps, and the loop by hand."""
    reason = f": {explanation.reason}" if explanation.reason else ""
    yield f"{explanation.case.id}: {explanation.status}{reason}"
    yield (
        f"row {explanation.row} of {explanation.case.rows}; its worst element is "
        f"{explanation.worst_element}, whose error is {ulp_text(explanation.worst_ulp)}"
    )
    for step in explanation.steps:
        yield f"{step.name}, shape {shape_text(step.shape)}"
        yield f"  exact     {_numbers(step.exact)}"
        computed = "not implied by y" if step.computed is None else _numbers(step.computed)
        yield f"  computed  {computed}"
    if explanation.loop:
        yield from ("", "by hand, in float64:", *(f"  {line}" for line in explanation.loop))


def _numbers(values: Iterable[float]) -> str:
    return "  ".join(f"{value:< 16.9g}" for value in values).rstrip()
