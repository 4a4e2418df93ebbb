"""Compare the deterministic metrics, without statistics: status, errors, memory, operators.

On one machine with the same software they repeat bit by bit, so any difference comes from the code.
On another machine errors may differ, because another instruction set adds in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, isfinite, isnan

from harness.records import Errors, Memory, Mode, OutputErrors, Record, Status
from harness.records.text import count
from harness.regression.changes import ChangeKind, Finding, Metric
from harness.regression.text import figures_text, status_text

__all__ = ["exact_findings"]

_RANK = {
    Status.OK: 0,
    Status.OUT_OF_GUARANTEE: 1,
    Status.UNSUPPORTED: 2,  # to decline a case is better than to get it wrong
    Status.WRONG: 3,
    Status.OUT_OF_MEMORY: 4,
    Status.TIMEOUT: 4,
    Status.CRASHED: 4,
    Status.ERROR: 4,
}
_OF_THE_MACHINE = {Status.OUT_OF_MEMORY, Status.TIMEOUT}

# Not raw_max_ulp, which any change moves at random: it is unbounded near zero for good kernels.
_ERROR_FIGURES = {
    "unexpected_nonfinite": "elements not finite",
    "vacuous_elements": "elements without a guarantee",
    "scaled_max_ulp": "largest scaled ulp",
    "scaled_p99_ulp": "99th percentile of scaled ulp",
    "scaled_mean_ulp": "mean scaled ulp",
    "normwise_ratio": "worst row's error over its norm",
    "max_abs": "largest absolute error",
    "bound_ratio": "largest error over its bound",
}
_MEMORY_FIGURES = {
    "peak_extra_bytes": (Metric.PEAK_MEMORY, "bytes at the peak"),
    "allocated_bytes": (Metric.ALLOCATED_MEMORY, "bytes allocated"),
    "allocations": (Metric.ALLOCATED_MEMORY, "allocations"),
    "saved_bytes": (Metric.SAVED_MEMORY, "bytes saved for the backward"),
}

# The limits for errors of two instruction sets. The bound of one input and one declared algorithm
# is the same on every machine and holds for sums in any order; how far below the bound the error
# lies is chance. f roundings of random sign sum to about sqrt(f) of the f that the bound allows
# for, and f is 18 or more in a sum of a thousand. An error up to 1/sqrt(18) of its bound, about a
# quarter, can therefore be due to the order alone. Beyond that share, twice the error is more than
# another order explains. Measured with torch's kernels for no vectors, AVX2 and AVX-512, 640 cases
# from each to each: an error of ten thousand ulp at condition 1e4 became 2.5 times as large, and
# one of 0 ulp became 1e40 where the exact result is 0; both stayed below a tenth of the bound. No
# error exceeded both limits.
_LUCKY_SHARE = 0.25
_ELSEWHERE_FACTOR = 2.0
# Another declared algorithm has another bound, so the errors themselves are compared. Trade-off:
# errors of less than 1 ulp may grow by 1 ulp, because a factor says little about them.
_ELSEWHERE_ULP = 1.0


def exact_findings(before: Record, after: Record) -> list[Finding]:
    """Compare the deterministic metrics of two records of one case."""
    same_machine = before.environment == after.environment
    findings = list(_status_findings(before, after, same_machine=same_machine))
    if not (before.status.is_measured and after.status.is_measured):
        return findings
    on_cpu = before.case.device == "cpu"
    both_ok = before.status is after.status is Status.OK
    if before.errors is not None and after.errors is None:
        findings.append(_missing(Metric.ERROR, "errors were measured"))
    elif before.errors is not None and after.errors is not None:
        if same_machine and on_cpu:  # on a GPU sums have no fixed order
            findings.append(_error_finding(before.errors, after.errors))
        elif both_ok:  # outside the guarantee, another order may change anything
            findings.append(
                _error_finding_elsewhere(before.errors, after.errors, same_machine=same_machine)
            )
    if before.memory is not None and after.memory is None:
        findings.append(_missing(Metric.PEAK_MEMORY, "memory was counted"))
    elif before.memory is not None and after.memory is not None:
        caveat = "" if same_machine or on_cpu else "kernels may size their buffers by the GPU"
        findings += _memory_findings(before.memory, after.memory, caveat)
    if before.operators is not None and after.operators is None:
        findings.append(_missing(Metric.OPERATORS, "operators were counted"))
    elif (
        before.operators is not None
        and after.operators is not None
        and before.operators != after.operators
    ):
        # one operator more is another pass over the data
        is_fixed = same_machine or before.case.mode is Mode.EAGER
        caveat = "" if is_fixed else "another machine may compile differently"
        what = "operators per call"
        findings.append(
            _figure_finding(Metric.OPERATORS, what, before.operators, after.operators, caveat)
        )
    return findings


def _status_findings(before: Record, after: Record, *, same_machine: bool) -> Iterator[Finding]:
    """Compare statuses; yield nothing if the case was measured with the same status in both."""
    old, new = before.status, after.status
    if old is new and old.is_measured:
        return
    why = f": {after.reason}" if after.reason else ""
    if old is new:
        reason = f"{status_text(old)} in both{why}"
        yield Finding(kind=ChangeKind.UNCHANGED, metric=Metric.STATUS, reason=reason)
        return
    reason = f"{status_text(old)} before, {status_text(new)} now{why}"
    kind = ChangeKind.UNCHANGED
    if _RANK[new] < _RANK[old]:
        kind = ChangeKind.IMPROVED
    elif _RANK[new] > _RANK[old]:
        kind = ChangeKind.REGRESSED
        if not same_machine and new in _OF_THE_MACHINE:
            kind = ChangeKind.INCONCLUSIVE
            reason += "; the other machine may be the cause"
    yield Finding(kind=kind, metric=Metric.STATUS, reason=reason, severity=inf)


def _error_finding(before: Errors, after: Errors) -> Finding:
    """Compare errors that must be equal: on the same CPU with the same software."""
    now = {output.output: output for output in after.outputs}
    findings: list[Finding] = []
    for old in before.outputs:
        if old.output not in now:
            findings.append(_not_returned(old))
            continue
        for name, words in _ERROR_FIGURES.items():
            first, second = getattr(old, name), getattr(now[old.output], name)
            if first is None or second is None or first == second:
                continue
            findings.append(_figure_finding(Metric.ERROR, f"{old.output}, {words}", first, second))
    if not findings:
        return _error(ChangeKind.UNCHANGED, "errors are equal")
    kinds = [finding.kind for finding in findings]
    worst = min(kinds, key=list(ChangeKind).index)
    first = findings[kinds.index(worst)]
    others = [count(kinds.count(worst) - 1, "more figure")] if kinds.count(worst) > 1 else []
    if worst is ChangeKind.REGRESSED and ChangeKind.IMPROVED in kinds:
        others.append(f"{kinds.count(ChangeKind.IMPROVED)} improved")
    return replace(first, reason=f"{first.reason} ({', '.join(others)})") if others else first


def _error_finding_elsewhere(before: Errors, after: Errors, *, same_machine: bool) -> Finding:
    """Compare errors that may differ by the order of sums."""
    now = {output.output: output for output in after.outputs}
    declared = _declared(before), _declared(after)
    for old in before.outputs:
        if old.output not in now:
            return _not_returned(old)
        new = now[old.output]
        finding = _figure_finding(
            Metric.ERROR,
            f"{old.output}, {_ERROR_FIGURES['scaled_max_ulp']}",
            old.scaled_max_ulp,
            new.scaled_max_ulp,
        )
        if finding.kind is ChangeKind.INCONCLUSIVE:
            return finding
        if _is_worse_elsewhere(old, new, same_bound=declared[0] == declared[1]):
            text = finding.reason
            if declared[0] != declared[1]:
                text += f"; declared {declared[0]} before, {declared[1]} now"
            elif old.bound_ratio is not None and new.bound_ratio is not None:
                text += f", {old.bound_ratio:.2g} of its bound before, {new.bound_ratio:.2g} now"
            text += ", more than another order of the same sums explains"
            return _error(ChangeKind.REGRESSED, text, finding.severity)
    where = "the order of sums on a GPU" if same_machine else "another instruction set"
    return _error(ChangeKind.UNCHANGED, f"errors within what {where} may change")


def _is_worse_elsewhere(old: OutputErrors, new: OutputErrors, *, same_bound: bool) -> bool:
    if same_bound and old.bound_ratio is not None and new.bound_ratio is not None:
        allowed = max(_ELSEWHERE_FACTOR * old.bound_ratio, _LUCKY_SHARE)
        return not new.bound_ratio <= allowed
    allowed = max(_ELSEWHERE_FACTOR * old.scaled_max_ulp, old.scaled_max_ulp + _ELSEWHERE_ULP)
    return not new.scaled_max_ulp <= allowed


def _memory_findings(before: Memory, after: Memory, caveat: str) -> list[Finding]:
    findings = []
    for name, (metric, what) in _MEMORY_FIGURES.items():
        first, second = getattr(before, name), getattr(after, name)
        if first is not None and second is None:
            findings.append(_missing(metric, f"{what} were counted"))
        elif first is not None and first != second:
            findings.append(_figure_finding(metric, what, first, second, caveat))
    equal = Finding(kind=ChangeKind.UNCHANGED, metric=Metric.PEAK_MEMORY, reason="memory is equal")
    return findings or [equal]


def _figure_finding(
    metric: Metric, what: str, before: float, after: float, caveat: str = ""
) -> Finding:
    """Compare two figures that differ; with a caveat, the difference proves nothing."""
    reason = f"{what}: {figures_text(before, after)}"
    if isnan(before) and isnan(after):
        return Finding(kind=ChangeKind.INCONCLUSIVE, metric=metric, reason=reason)
    # a NaN is below no number, so a figure that became NaN has regressed
    kind = ChangeKind.IMPROVED if after < before else ChangeKind.REGRESSED
    if caveat:
        kind, reason = ChangeKind.INCONCLUSIVE, f"{reason}; {caveat}"
    has_ratio = before > 0 and isfinite(before) and isfinite(after)
    severity = after / before if has_ratio else inf
    return Finding(kind=kind, metric=metric, reason=reason, severity=severity)


def _missing(metric: Metric, what: str) -> Finding:
    reason = f"{what} before, but not now"
    return Finding(kind=ChangeKind.INCONCLUSIVE, metric=metric, reason=reason)


def _not_returned(output: OutputErrors) -> Finding:
    return _error(ChangeKind.REGRESSED, f"{output.output} is no longer returned", inf)


def _error(kind: ChangeKind, reason: str, severity: float = 1.0) -> Finding:
    return Finding(kind=kind, metric=Metric.ERROR, reason=reason, severity=severity)


def _declared(errors: Errors) -> str:
    return f"{errors.algorithm} ({errors.reduction}, {errors.accumulate_dtype})"
