"""Verdicts of targets, each made in a worker process that the target may crash or hang.

What was found before a process ended is kept. After a crash, a case that crashed is wrong, and the
rest of the catalogue is tried in a new process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import monotonic

from harness.records import Case, Status
from harness.records.refusal import Refusal
from harness.run.fleet import EndedError, Fleet, HarnessError
from harness.run.messages import WorkerInfo
from harness.verify.findings import Failure
from harness.verify.messages import ResolveToVerify, VerifyProgress, VerifySettings, VerifyTarget
from harness.verify.result import Verdict

__all__ = ["INTERRUPTED", "check_device", "check_targets", "verdicts_of"]

INTERRUPTED = "was interrupted"
_MOST_CRASHES = 3  # a kernel that corrupts memory crashes anywhere; three cases show that


def verdicts_of(
    targets: Sequence[str], settings: VerifySettings, timeout_s: float
) -> Iterator[tuple[str, Verdict]]:
    """Yield each target's verdict; an interrupted one, with what was found so far, is the last.

    Args:
        targets: names, ``module:name`` or ``file.py:name``.
        settings: the same for all.
        timeout_s: seconds for each target, after which its process is ended.

    Raises:
        Refusal: the device cannot be used, or a target cannot be found.
    """
    left = deque(targets)
    while left:
        with Fleet() as fleet:
            check_device(settings.device, fleet.info)
            check_targets(fleet, targets, settings.init)
            while left:
                target = left.popleft()
                try:
                    verdict = _verdict_of(fleet, target, settings, timeout_s)
                except HarnessError as bug:  # the other targets get a new worker
                    yield target, _empty(target, f"could not be judged:\n{bug}")
                    break
                yield target, verdict
                if verdict.ended == INTERRUPTED:
                    return
                if settings.huge:  # a worker process never gives its memory back
                    break


def check_device(device: str, info: WorkerInfo) -> None:
    """Refuse a device that does not exist or cannot be used.

    Raises:
        Refusal: names the devices that exist.
    """
    known = (*info.device_counts, *info.unavailable)
    if device not in known:
        raise Refusal(f"no device named {device!r}; known: {', '.join(known)}")
    if device in info.unavailable:
        raise Refusal(f"device {device!r} cannot be used: {info.unavailable[device]}")


def check_targets(
    fleet: Fleet, targets: Sequence[str], init: tuple[tuple[str, object], ...] = ()
) -> None:
    """Refuse targets that cannot be found or imported.

    Raises:
        Refusal: says why, for each of them.
    """
    if unresolved := fleet.unresolved(targets, init, ResolveToVerify):
        raise Refusal("\n".join(unresolved))


def _verdict_of(fleet: Fleet, target: str, settings: VerifySettings, timeout_s: float) -> Verdict:
    """Verify in a worker and, after a crash, in another one, until one comes to the end."""
    stop_at = monotonic() + timeout_s
    crashed: dict[Case, str] = {}
    last = _LastUpdates()
    while True:
        request = VerifyTarget(target, settings, tuple(crashed.items()))
        try:
            return fleet.ask(request, max(stop_at - monotonic(), 0.1), last.add)
        except KeyboardInterrupt:
            return last.verdict_of(target, crashed, INTERRUPTED)
        except EndedError as ended:
            if ended.timed_out:
                at = "" if last.case is None else f"; its last case was {last.case.id}"
                why = f"was not done after {timeout_s:g} s{at}"
                return last.verdict_of(target, crashed, why)
            case, why = last.case, str(ended)
            if case is None or case in crashed:
                return last.verdict_of(target, crashed, why)
            crashed[case] = why
            if len(crashed) == _MOST_CRASHES:
                return last.verdict_of(target, crashed, f"{why}, for the third time")


def _empty(target: str, ended: str = "") -> Verdict:
    """Return the verdict of a target of which nothing was found."""
    return Verdict(target=target, handle=repr(target), algorithm="", ended=ended)


class _LastUpdates:
    """What the workers of one target reported last."""

    def __init__(self) -> None:
        self.case: Case | None = None
        self._verdict: Verdict | None = None

    def add(self, progress: VerifyProgress) -> None:
        if progress.case is not None:
            self.case = progress.case
        so_far = progress.verdict
        # after a crash a worker begins again: its verdict so far holds less at first
        if so_far is not None and (self._verdict is None or so_far.cases >= self._verdict.cases):
            self._verdict = so_far

    def verdict_of(self, target: str, crashed: dict[Case, str], ended: str) -> Verdict:
        """Return a verdict of what was found, with the cases that crashed."""
        verdict = self._verdict or _empty(target)
        known = {each.case for each in verdict.failures}
        new = tuple(
            Failure(case=case, status=Status.CRASHED, reason=why, catches="a crash")
            for case, why in crashed.items()
            if case not in known
        )
        return replace(
            verdict,
            failures=(*new, *verdict.failures),
            failed=verdict.failed + len(new),
            ended=ended,
        )
