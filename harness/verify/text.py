"""The words of this package: verdicts and explanations, for the terminal and as JSON.

A failed ``assert_layer_norm`` shows the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.records import Affine
from harness.records.finding import SILENT, Finding, Severity
from harness.records.text import count, seconds_text, shape_text, ulp_text
from harness.store import to_plain
from harness.verify.explain import Explanation
from harness.verify.result import Outcome, Verdict
from harness.verify.scope import AFFINE_WORDS

__all__ = ["explanation_lines", "headline", "verdict_as_json", "verdict_lines"]

_SHOWN = 8  # failures of different kinds that a person reads before scrolling
_WITHOUT = {Affine.BOTH: "", Affine.WEIGHT: " without bias", Affine.BIAS: " without weight"}


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return a verdict in words, the outcome first."""
    lines = [f"{verdict.target}: {headline(verdict)}"]
    if verdict.ended and verdict.is_wrong:
        lines.append(f"  the verification was not finished: it {verdict.ended}")
    for cause in verdict.of(Severity.CAUSE):
        text = f"likely mistake: it {cause.text}" if cause.kind == "mistake" else cause.text
        lines.append(f"  {text} ({', '.join(cause.dtypes)})")
    lines += [
        f"  contract violation in {finding.dtypes[0]}: {finding.text}"
        for finding in verdict.violations
    ]
    lines += _failure_lines(verdict)
    if verdict.reproduce:
        lines += ["  reproduce the plainest with:", f"    {verdict.reproduce}"]
    lines += _scope_lines(verdict)
    for remark in verdict.remarks:
        dtypes = f" ({', '.join(remark.dtypes)})" if remark.dtypes else ""
        word = "WARNING" if remark.kind in SILENT else "remark"
        lines.append(f"  {word}: it {remark.text}{dtypes}")
    for grade in verdict.grades:
        if grade.dtype in verdict.right_dtypes:
            limit = grade.condition_limit
            where = "at every condition tried" if limit is None else f"up to condition {limit:.3g}"
            lines.append(
                f"  in {grade.dtype} it keeps two digits {where}, and the error bound of "
                f"{grade.meets or 'no algorithm with statistics in float32 or wider'}"
            )
    lines += _declined_lines(verdict)
    if verdict.cases:
        left = f"; {count(verdict.left, 'case')} left when the time was over"
        took = f"{count(verdict.cases, 'case')} in {seconds_text(verdict.wall_s)}"
        lines.append(f"  {took}{left if verdict.left else ''}")
    return lines


def headline(verdict: Verdict) -> str:
    """Return the outcome in one sentence, without the name of the target."""
    cases = count(verdict.cases, "case")
    if verdict.outcome is Outcome.NOT_VERIFIED:
        if verdict.ended:
            right = f"{verdict.ok + verdict.out_of_guarantee} of {cases}"
            return f"NOT verified: it {verdict.ended}. So far {right} were right"
        if verdict.scope is None and verdict.declined:
            return f"NOT verified: {verdict.declined[0].text}"
        tried = verdict.cases + sum(own.declined for own in verdict.counts)
        return f"NOT verified. It gave a result in {verdict.cases} of {count(tried, 'case')}"
    if verdict.outcome is Outcome.WRONG:
        parts = [f"{verdict.failed} of {cases} failed"]
        if checks := {finding.kind for finding in verdict.violations}:
            parts.append(f"{count(len(checks), 'contract check')} failed")
        return f"{_what_instead(verdict)}. {'; '.join(parts)}"
    beyond = verdict.out_of_guarantee
    outside = f", {beyond} outside its guarantee" if beyond else ""
    unverified = [
        f"{own.dtype} (a result in {own.answered} of {count(own.answered + own.declined, 'case')})"
        for own in verdict.counts
        if not own.is_verified
    ]
    more = f"; not verified in {', '.join(unverified)}" if unverified else ""
    within = f"{verdict.ok:,} of {cases} within the error bound of {verdict.bound}"
    return f"{_layer_norm(verdict)}. {within}{outside}{more}"


def _layer_norm(verdict: Verdict) -> str:
    """Name what it is: the axes, its eps if that is fixed, and the dtypes."""
    dtypes, scope = f"in {', '.join(verdict.right_dtypes)}", verdict.scope
    if scope is None:
        return f"a LayerNorm, {dtypes}"
    eps = "" if scope.eps is None else f", with an eps of {scope.eps:g}"
    affine = _WITHOUT.get(scope.taken("affine")[0], " without weight and bias")
    return f"a LayerNorm{affine} over {scope.axes}{eps}, {dtypes}"


def _what_instead(verdict: Verdict) -> str:
    """Name what a wrong target computes, and in which dtypes it is right."""
    if verdict.instead is not None and verdict.scope is not None:
        return f"NOT a LayerNorm: it computes {verdict.instead} over {verdict.scope.axes}"
    if not verdict.right_dtypes:
        return "NOT a LayerNorm"
    return f"NOT a LayerNorm in {', '.join(verdict.wrong_dtypes)} ({_layer_norm(verdict)})"


def _scope_lines(verdict: Verdict) -> list[str]:
    """Name what was verified, what lies outside the scope, and what was tried."""
    scope, lines = verdict.scope, []
    if scope is not None:
        directions = "forward and backward" if scope.has_gradient else "forward alone"
        affines = ", ".join(AFFINE_WORDS[affine] for affine in scope.taken("affine"))
        default = "" if scope.default_eps is None else f", {scope.default_eps:g} by default"
        eps = f"any eps{default}" if scope.eps is None else f"eps always {scope.eps:g}"
        lines.append(f"  scope: {scope.axes}; {directions}; {affines}; {eps}")
        lines += [f"  outside its scope: {reason}" for reason in scope.reasons]
    if verdict.coverage:
        axes = ", ".join(axis.replace("_", " ") for axis in verdict.coverage)
        values = sum(verdict.coverage.values())
        lines.append(
            f"  tried every combination of {verdict.strength} of {values} conditions in each dtype "
            f"({axes})"
        )
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


def _declined_lines(verdict: Verdict) -> Iterator[str]:
    """One line per reason, for cases that were not tried or that the target declines."""
    by_reason: dict[str, list[Finding]] = {}
    for finding in verdict.declined:
        if finding.kind != "raised" and finding.evidence[1]:
            by_reason.setdefault(finding.text, []).append(finding)
    for reason, declined in list(by_reason.items())[:_SHOWN]:
        cases = count(sum(finding.evidence[1] for finding in declined), "case")
        verb = "leaves out" if declined[0].kind == "left_out" else "declines"
        yield f"  {verb} {cases}, such as {declined[0].evidence[0]}: {reason}"


def verdict_as_json(target: str, verdict: Verdict) -> dict[str, object]:
    """Return the verdict on ``target``, as the user wrote it, as plain values."""
    plain = to_plain(verdict)
    if verdict.scope is not None:
        plain["scope"]["axes"] = verdict.scope.axes
        plain["scope"]["affines"] = to_plain(verdict.scope.taken("affine"))
    implied = ("ok", "out_of_guarantee", "failed", "outcome", "passed", "reproduce")
    plain |= {name: to_plain(getattr(verdict, name)) for name in implied}
    return {**plain, "target": target, "headline": headline(verdict)}


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of an explanation: the outcome, and the steps."""
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


def _numbers(values: Iterable[float]) -> str:
    return "  ".join(f"{value:< 16.9g}" for value in values).rstrip()
