"""What is deterministic, and compared without statistics: verdicts, errors, bytes, operators.

On one machine with the same software all of it comes out the same bit by bit, so that any
difference is the code's. On another machine all but the errors still do: another instruction set
adds in another order.
"""

from __future__ import annotations

from math import inf, isfinite, isnan

from harness.records import Errors, Memory, Mode, OutputErrors, Record, Status
from harness.regression.changes import ChangeKind, Metric
from harness.regression.findings import Finding

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
    "vacuous_elements": "elements about which nothing is promised",
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

# Between instruction sets. The bound of one input and one declared algorithm is the same on every
# machine, and holds for sums in any order; what is left to chance is where below it the error
# lands. f roundings of random sign come to about sqrt(f) of the f the bound allows for, and f is
# 18 or more in a sum of a thousand: a share of 1/sqrt(18), a quarter, is one order's luck. Beyond
# it twice the error is more than another order's. Measured with torch's kernels for no vectors,
# AVX2 and AVX-512, 640 cases from each to each: an error of ten thousand ulp, at condition 1e4,
# became 2.5 times as large and one of 0 ulp became 1e40 where the exact result is 0, both below a
# tenth of the bound; beyond these two rules was none.
_LUCKY_SHARE = 0.25
_ELSEWHERE_FACTOR = 2.0
# Where another algorithm is declared the bound is another one, and the errors themselves count.
_ELSEWHERE_ULP = 1.0


def exact_findings(before: Record, after: Record) -> list[Finding]:
    """Compare all of two records of one case that is deterministic."""
    same_machine = before.environment == after.environment
    status = _status_finding(before, after, same_machine=same_machine)
    found = [status] if status else []
    if not (before.status.is_measured and after.status.is_measured):
        return found
    exactly = same_machine and before.case.device == "cpu"  # on a GPU sums have no fixed order
    both_ok = before.status is after.status is Status.OK
    if before.errors is not None and after.errors is None:
        found.append(_missing(Metric.ERROR, "errors were measured"))
    elif before.errors is not None and after.errors is not None:
        if exactly:
            found.append(_error_finding(before.errors, after.errors))
        elif both_ok:  # where nothing is promised, or all is lost, any order may do anything
            found.append(_error_elsewhere(before.errors, after.errors, same_machine=same_machine))
    if before.memory is not None and after.memory is None:
        found.append(_missing(Metric.PEAK_MEMORY, "memory was counted"))
    elif before.memory is not None and after.memory is not None:
        # kernels may size their buffers by the GPU they find
        is_told = same_machine or before.case.device == "cpu"
        found += _memory_findings(before.memory, after.memory, is_told=is_told)
    if before.operators is not None:
        # a compiler may fuse differently on another machine
        is_told = same_machine or before.case.mode is Mode.EAGER
        found += _operator_findings(before.operators, after.operators, is_told=is_told)
    return found


def _status_finding(before: Record, after: Record, *, same_machine: bool) -> Finding | None:
    """Compare how a case ended; None if it was measured, and ended as before."""
    old, new = before.status, after.status
    if old is new and old.is_measured:
        return None
    if old is new:
        why = f": {after.reason}" if after.reason else ""
        return Finding(
            kind=ChangeKind.UNCHANGED, metric=Metric.STATUS, reason=f"{_words(old)} in both{why}"
        )
    kind = ChangeKind.UNCHANGED
    if _RANK[new] > _RANK[old]:
        elsewhere = not same_machine and new in _OF_THE_MACHINE
        kind = ChangeKind.INCONCLUSIVE if elsewhere else ChangeKind.REGRESSED
    elif _RANK[new] < _RANK[old]:
        kind = ChangeKind.IMPROVED
    why = f": {after.reason}" if after.reason else ""
    text = f"{_words(old)} before, {_words(new)} now{why}"
    if kind is ChangeKind.INCONCLUSIVE:
        text += "; that may be this machine's doing"
    return Finding(kind=kind, metric=Metric.STATUS, reason=text, severity=inf)


def _error_finding(before: Errors, after: Errors) -> Finding:
    """Compare the errors of one machine and one software: equal or not."""
    now = {each.output: each for each in after.outputs}
    worse: list[Finding] = []
    better: list[Finding] = []
    unknown: list[Finding] = []
    for old in before.outputs:
        if old.output not in now:
            worse.append(_error(ChangeKind.REGRESSED, f"{old.output} was returned before", inf))
            continue
        for name, words in _ERROR_FIGURES.items():
            first, second = getattr(old, name), getattr(now[old.output], name)
            if first is None or second is None or first == second:
                continue
            if isnan(first) and isnan(second):
                text = f"{old.output}: {words} was no number before, and is none now"
                unknown.append(_error(ChangeKind.INCONCLUSIVE, text))
                continue
            # a NaN is not below anything, and so is worse
            kind = ChangeKind.IMPROVED if second < first else ChangeKind.REGRESSED
            text = f"{old.output}: {words} {_pair(first, second)}"
            found = _error(kind, text, _factor(first, second))
            (better if kind is ChangeKind.IMPROVED else worse).append(found)
    if worse:
        return _first_of(worse, len(better), "better")
    if unknown:
        return unknown[0]
    if better:
        return _first_of(better, 0, "worse")
    return _error(ChangeKind.UNCHANGED, "errors are equal")


def _error_elsewhere(before: Errors, after: Errors, *, same_machine: bool) -> Finding:
    """Compare errors that may differ by the order of sums."""
    now = {each.output: each for each in after.outputs}
    declared = _declared(before), _declared(after)
    for old in before.outputs:
        if old.output not in now:
            return _error(ChangeKind.REGRESSED, f"{old.output} was returned before", inf)
        new = now[old.output]
        if isnan(old.scaled_max_ulp) and isnan(new.scaled_max_ulp):
            text = f"{old.output}: its error was no number before, and is none now"
            return _error(ChangeKind.INCONCLUSIVE, text)
        if _is_worse_elsewhere(old, new, same_bound=declared[0] == declared[1]):
            text = f"{old.output}: {_ERROR_FIGURES['scaled_max_ulp']} " + _pair(
                old.scaled_max_ulp, new.scaled_max_ulp
            )
            if declared[0] != declared[1]:
                text += f"; declared {declared[0]} before, {declared[1]} now"
            elif old.bound_ratio is not None and new.bound_ratio is not None:
                text += f", {old.bound_ratio:.2g} of its bound before, {new.bound_ratio:.2g} now"
            text += ", more than another order of the same sums explains"
            return _error(
                ChangeKind.REGRESSED, text, _factor(old.scaled_max_ulp, new.scaled_max_ulp)
            )
    where = "sums on a GPU" if same_machine else "another instruction set"
    return _error(ChangeKind.UNCHANGED, f"errors within what {where} may change")


def _is_worse_elsewhere(old: OutputErrors, new: OutputErrors, *, same_bound: bool) -> bool:
    if same_bound and old.bound_ratio is not None and new.bound_ratio is not None:
        allowed = max(_ELSEWHERE_FACTOR * old.bound_ratio, _LUCKY_SHARE)
        return not new.bound_ratio <= allowed
    allowed = max(_ELSEWHERE_FACTOR * old.scaled_max_ulp, old.scaled_max_ulp + _ELSEWHERE_ULP)
    return not new.scaled_max_ulp <= allowed


def _memory_findings(before: Memory, after: Memory, *, is_told: bool) -> list[Finding]:
    """Compare bytes and counts; where they may be the machine's, a difference tells nothing."""
    found = []
    for name, (metric, words) in _MEMORY_FIGURES.items():
        first, second = getattr(before, name), getattr(after, name)
        if first == second or first is None:
            continue
        if second is None:
            found.append(_missing(metric, f"{words} were counted"))
            continue
        kind = ChangeKind.IMPROVED if second < first else ChangeKind.REGRESSED
        text = f"{words}: {_pair(first, second)}"
        if not is_told:
            kind, text = ChangeKind.INCONCLUSIVE, f"{text}; kernels may size buffers by their GPU"
        factor = _factor(first, second)
        found.append(Finding(kind=kind, metric=metric, reason=text, severity=factor))
    if found:
        return found
    return [Finding(kind=ChangeKind.UNCHANGED, metric=Metric.PEAK_MEMORY, reason="memory is equal")]


def _operator_findings(before: int, after: int | None, *, is_told: bool) -> list[Finding]:
    """Compare how many operators a call runs: one more is another pass over the data."""
    if after == before:
        return []
    if after is None:
        return [_missing(Metric.OPERATORS, "operators were counted")]
    kind = ChangeKind.IMPROVED if after < before else ChangeKind.REGRESSED
    text = f"operators of a call: {_pair(before, after)}"
    if not is_told:
        kind, text = ChangeKind.INCONCLUSIVE, f"{text}; another machine may compile differently"
    severity = _factor(before, after)
    return [Finding(kind=kind, metric=Metric.OPERATORS, reason=text, severity=severity)]


def _missing(metric: Metric, what: str) -> Finding:
    return Finding(
        kind=ChangeKind.INCONCLUSIVE, metric=metric, reason=f"{what} before, and not now"
    )


def _error(kind: ChangeKind, reason: str, severity: float = 1.0) -> Finding:
    return Finding(kind=kind, metric=Metric.ERROR, reason=reason, severity=severity)


def _first_of(findings: list[Finding], others: int, how: str) -> Finding:
    """Return the first, in order of weight, with the number of the rest."""
    first = findings[0]
    more = [f"{len(findings) - 1} figures more"] if len(findings) > 1 else []
    more += [f"{others} {how}"] if others else []
    text = f"{first.reason} ({', '.join(more)})" if more else first.reason
    return _error(first.kind, text, first.severity)


def _declared(errors: Errors) -> str:
    return f"{errors.algorithm} ({errors.reduction}, {errors.accumulate_dtype})"


def _pair(before: float, after: float) -> str:
    """Two figures with as many digits as tell them apart."""
    for digits in (3, 6, 9, 12, 17):
        first, second = f"{before:.{digits}g}", f"{after:.{digits}g}"
        if first != second:
            break
    if isinstance(before, int) and isinstance(after, int):
        first, second = str(before), str(after)
    return f"{first} before, {second} now"


def _factor(before: float, after: float) -> float:
    """How many times as much, infinite where before there was none or a figure is no number."""
    if not (before > 0 and isfinite(before) and isfinite(after)):
        return inf
    return after / before


def _words(status: Status) -> str:
    return status.replace("_", " ")
