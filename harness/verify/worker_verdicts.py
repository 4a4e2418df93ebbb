"""Verdicts of targets, each from a worker process that it may crash, hang or outlast.

What was found before a process ended is kept. After a crash the rest of the catalogue goes on in
a new process, without the case that crashed, which is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING

from harness.records import Case, Direction
from harness.records.refusal import Refusal
from harness.run.fleet import EndedError, Fleet, HarnessError
from harness.run.worker import Hello, Progress, VerifyTarget

if TYPE_CHECKING:
    from harness.verify.result import Verdict

__all__ = ["INTERRUPTED", "Asked", "check_device", "check_targets", "verdicts_of"]

INTERRUPTED = "was interrupted"
_MOST_CRASHES = 3  # a kernel that corrupts memory crashes anywhere; three cases show that


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to verify of each target."""

    quick: bool
    dtypes: tuple[str, ...]
    directions: tuple[str, ...]
    device: str
    huge: bool = False
    eps: float | None = None
    normalized_dims: int | None = None
    channels_first: bool = False
    init: tuple[tuple[str, object], ...] = ()
    time_budget_s: float | None = None


def verdicts_of(
    targets: Sequence[str], asked: Asked, timeout_s: float
) -> Iterator[tuple[str, Verdict]]:
    """Yield each target's verdict; an interrupted one, with what was found so far, is the last.

    Args:
        targets: names, ``module:name`` or ``file.py:name``.
        asked: the same for all.
        timeout_s: seconds for each target, after which its process is ended.

    Raises:
        Refusal: the device cannot be used, or a target cannot be found.
    """
    left = deque(targets)
    while left:
        with Fleet() as fleet:
            check_device(asked.device, fleet.hello)
            check_targets(fleet, targets, asked.init)
            while left:
                target = left.popleft()
                try:
                    verdict = _verdict_of(fleet, target, asked, timeout_s)
                except HarnessError as bug:  # of this target; the others get a new worker
                    yield target, _empty(target, f"could not be judged:\n{bug}")
                    break
                yield target, verdict
                if verdict.ended == INTERRUPTED:
                    return
                if asked.huge:  # a worker keeps the memory that it has had
                    break


def check_device(device: str, hello: Hello) -> None:
    """Refuse a device that there is not, or that cannot be used.

    Raises:
        Refusal: says which there are.
    """
    known = (*hello.device_counts, *hello.unavailable)
    if device not in known:
        raise Refusal(f"no device named {device!r}; known: {', '.join(known)}")
    if device in hello.unavailable:
        raise Refusal(f"device {device!r} cannot be used: {hello.unavailable[device]}")


def check_targets(
    fleet: Fleet, targets: Sequence[str], init: tuple[tuple[str, object], ...] = ()
) -> None:
    """Refuse targets that cannot be found or imported.

    Raises:
        Refusal: says of each why.
    """
    if unresolved := fleet.unresolved(targets, init):
        raise Refusal("\n".join(unresolved))


def _verdict_of(fleet: Fleet, target: str, asked: Asked, timeout_s: float) -> Verdict:
    """Ask a worker, and after a crash another, until one is done."""
    stop_at = monotonic() + timeout_s
    crashed: dict[Case, str] = {}
    last = _Last()
    while True:
        request = VerifyTarget(
            target,
            asked.quick,
            asked.dtypes,
            tuple(map(Direction, asked.directions)),
            asked.device,
            asked.huge,
            asked.eps,
            asked.normalized_dims,
            asked.channels_first,
            asked.init,
            asked.time_budget_s,
            tuple(crashed.items()),
        )
        try:
            found = fleet.ask(request, max(stop_at - monotonic(), 0.1), last.add)
        except KeyboardInterrupt:
            return last.made(target, asked, crashed, INTERRUPTED)
        except EndedError as ended:
            if ended.timed_out:
                why = f"was not done after {timeout_s:g} s{last.words()}"
                return last.made(target, asked, crashed, why)
            case, why = last.case, str(ended)
            if case is None or case in crashed:
                return last.made(target, asked, crashed, why)
            crashed[case] = why
            if len(crashed) == _MOST_CRASHES:  # as the next line says
                return last.made(target, asked, crashed, f"{why}, for the third time")
            continue
        from harness.verify.result import Verdict

        assert isinstance(found, Verdict)  # what a VerifyTarget is answered with
        return found


def _empty(target: str, ended: str = "") -> Verdict:
    """Return the verdict of a target of which nothing was found."""
    from harness.verify.result import Verdict

    return Verdict(target=target, handle=repr(target), algorithm="", ended=ended)


class _Last:
    """What a worker has told last."""

    def __init__(self) -> None:
        self.case: Case | None = None
        self.verdict: Verdict | None = None

    def add(self, progress: Progress) -> None:
        from harness.verify.result import Verdict

        if progress.case is not None:
            self.case = progress.case
        if isinstance(progress.verdict, Verdict) and (
            self.verdict is None or progress.verdict.cases >= self.verdict.cases
        ):
            self.verdict = progress.verdict

    def words(self) -> str:
        """Name the case that was begun last, if there is one."""
        return "" if self.case is None else f"; its last case was {self.case.id}"

    def made(self, target: str, asked: Asked, crashed: dict[Case, str], ended: str) -> Verdict:
        """Return a verdict of what was found, with the cases that crashed."""
        from harness.records import Status
        from harness.verify.findings import Failure

        verdict = self.verdict or _empty(target)
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
