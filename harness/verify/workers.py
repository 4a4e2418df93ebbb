"""Verdicts of targets, each made in a worker process that the target may crash or hang.

What was found before a process ended is kept. After a crash, a case that crashed is wrong, and the
rest of the catalogue is tried in a new process.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING

from harness.records import Case, Status
from harness.records.finding import Finding, Severity
from harness.records.refusal import Refusal
from harness.run import EndedError, Fleet, HarnessError, why_unresolved
from harness.verify.result import Count, Explanation, PlannedCase, Verdict, VerifyOptions

if TYPE_CHECKING:
    from harness.run import CaseRunner

__all__ = [
    "INTERRUPTED",
    "explain_in_worker",
    "verdicts_of",
    "verify_in_worker",
    "why_unverifiable",
]

INTERRUPTED = "was interrupted"
_MOST_CRASHES = 3  # a kernel that corrupts memory crashes anywhere; three cases show that
_REPORT_S = 0.3  # between two verdicts so far: making one takes a millisecond

Init = tuple[tuple[str, object], ...]


def why_unverifiable(runner: CaseRunner, target: tuple[str, Init]) -> str | None:
    """As why_unresolved, once what judges is imported, so that it is known before targets."""
    import_module("harness.verify.verification")
    return why_unresolved(runner, target)


def verify_in_worker(
    runner: CaseRunner, request: tuple[str, VerifyOptions, Mapping[Case, str]]
) -> Verdict:
    """Verify a target; report each case as it begins, and now and then the verdict so far.

    Args:
        runner: of this worker.
        request: the target, what to verify, and the cases that ended an earlier process, and how.
    """
    from harness.verify.verification import verify_target

    target, options, crashed = request
    last_s = monotonic()

    def report_verdict(verdict: Callable[[], Verdict]) -> None:
        nonlocal last_s
        if monotonic() - last_s > _REPORT_S:
            runner.report(verdict())
            last_s = monotonic()

    return verify_target(
        target,
        options,
        crashed=crashed,
        trusted=runner.trusted,
        on_case=runner.report,
        on_progress=report_verdict,
    )


def explain_in_worker(runner: CaseRunner, request: tuple[Case, int | None]) -> Explanation | str:
    """Return an explanation of one row of a case, None for the worst; or why there is none."""
    import implementations
    from harness.cases.inputs import UnrepresentableError
    from harness.verify.explanation import explain

    case, row = request
    try:
        return explain(implementations.find(case.implementation), case, row)
    except (LookupError, UnrepresentableError) as error:
        return str(error.args[0])


def verdicts_of(
    targets: Sequence[str], options: VerifyOptions, timeout_s: float
) -> Iterator[tuple[str, Verdict]]:
    """Yield each target's verdict; an interrupted one, with what was found so far, is the last.

    Args:
        targets: names, ``module:name`` or ``file.py:name``.
        options: the same for all.
        timeout_s: seconds for each target, after which its process is ended.

    Raises:
        Refusal: the device cannot be used, or a target cannot be found.
    """
    left = deque(targets)
    while left:
        with Fleet() as fleet:
            known = {**fleet.info.unavailable, **dict.fromkeys(fleet.info.device_counts)}
            if why_not := known.get(options.device, f"known are {', '.join(known)}"):
                raise Refusal(f"device {options.device!r} cannot be used: {why_not}")
            init = tuple(options.init.items())
            if unresolved := fleet.unresolved(targets, init, why_unverifiable):
                raise Refusal("\n".join(unresolved))
            while left:
                target = left.popleft()
                try:
                    verdict = _verdict_of(fleet, target, options, timeout_s)
                except HarnessError as bug:  # the other targets get a new worker
                    yield target, _empty(target, options, f"could not be judged:\n{bug}")
                    break
                yield target, verdict
                if verdict.ended == INTERRUPTED:
                    return
                if options.huge_bytes is not None:  # a worker process never gives its memory back
                    break


def _verdict_of(fleet: Fleet, target: str, options: VerifyOptions, timeout_s: float) -> Verdict:
    """Verify in a worker and, after a crash, in another one, until one comes to the end."""
    stop_at = monotonic() + timeout_s
    crashed: dict[Case, str] = {}
    last_case, so_far = None, _empty(target, options)

    def on_update(update: Case | Verdict) -> None:
        nonlocal last_case, so_far
        if isinstance(update, Case):
            last_case = update
        elif update.cases >= so_far.cases:  # after a crash a worker begins again
            so_far = update

    while True:
        request = (target, options, dict(crashed))
        left_s = max(stop_at - monotonic(), 0.1)
        try:
            return fleet.call(verify_in_worker, request, left_s, on_update)
        except KeyboardInterrupt:
            return _with_crashes(so_far, crashed, INTERRUPTED)
        except EndedError as ended:
            if ended.timed_out:
                at = "" if last_case is None else f"; its last case was {last_case.id}"
                return _with_crashes(so_far, crashed, f"was not done after {timeout_s:g} s{at}")
            why = str(ended)
            if last_case is None or last_case in crashed:
                return _with_crashes(so_far, crashed, why)
            crashed[last_case] = why
            if len(crashed) == _MOST_CRASHES:
                return _with_crashes(so_far, crashed, f"{why}, for the third time")


def _empty(target: str, options: VerifyOptions, ended: str = "") -> Verdict:
    """Return the verdict of a target of which nothing was found."""
    counts = tuple(Count(dtype=dtype) for dtype in options.dtypes)
    return Verdict(target=target, handle=repr(target), bound="", counts=counts, ended=ended)


def _with_crashes(verdict: Verdict, crashed: Mapping[Case, str], ended: str) -> Verdict:
    """Return a verdict that ended early, with the cases that crashed."""
    known = {finding.evidence.case for finding in verdict.failures}
    new = {case: why for case, why in crashed.items() if case not in known}
    findings = [
        Finding(Status.CRASHED, Severity.WRONG, why, (case.dtype,), PlannedCase(case, "a crash"))
        for case, why in new.items()
    ]
    failed = Counter(case.dtype for case in new)
    counts = tuple(
        replace(count, failed=count.failed + failed[count.dtype]) for count in verdict.counts
    )
    return replace(verdict, findings=(*findings, *verdict.findings), counts=counts, ended=ended)
