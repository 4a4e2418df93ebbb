"""What holds for a whole comparison, and is said once beside the changes of the cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from harness.records import Environment, Record, Status
from harness.store import Results

__all__ = ["notes_on"]

# of an environment, and not part of its fingerprint
_NO_DIFFERENCE = {"memory_bytes", "git_commit", "git_dirty", "load_average"}
_NOT_RIGHT = {Status.WRONG, Status.TIMEOUT, Status.CRASHED, Status.ERROR}

Records = Mapping[str, Record]


def notes_on(
    baseline: Results, head: Results, old: Records, new: Records, least_processes: int
) -> Iterator[str]:
    """Yield what a reader has to know of all cases; ``old`` and ``new`` are the records by id."""
    if baseline.records == head.records:
        yield "both hold the same measurements, which are always equal to themselves"
    both = [(old[each], new[each]) for each in old if each in new]
    moved = [(first, second) for first, second in both if first.environment != second.environment]
    if moved:
        first, second = moved[0]
        what = _differences(
            baseline.environments.get(first.environment),
            head.environments.get(second.environment),
        )
        yield (
            f"another machine or other software ({what}): latency of {_cases(len(moved))} is not "
            "compared, and errors only beyond what another order of the same sums explains"
        )
    few = sum(
        first.latency is not None
        and first.latency.processes < least_processes
        and second.latency is not None
        and first.latency.timer == second.latency.timer
        for first, second in both
        if first.environment == second.environment
    )
    if few:
        yield (
            f"latency of {_cases(few)} is not judged: the baseline timed them in fewer than "
            f"{least_processes} processes; `layernorm-bench check RUN --baseline FILE "
            "--record-baseline` makes one that did"
        )
    gone, added = len(old) - len(both), len(new) - len(both)
    if gone or added:
        yield (
            f"not of one sweep: {_cases(gone)} of the baseline gone, {_cases(added)} of the run new"
        )
    bad = [each for name, each in new.items() if name not in old and each.status in _NOT_RIGHT]
    if bad:
        yield (
            f"of the new cases {len(bad)} did not end well, such as {bad[0].case.id}: "
            f"{bad[0].status}; no baseline says whether that is worse"
        )
    if any(first.cold is not None and second.cold is not None for first, second in both):
        yield "cold latencies are not compared"


def _differences(before: Environment | None, after: Environment | None) -> str:
    if before is None or after is None:
        return "one of the files does not say which"
    changed = [
        f"{each.name} {_shown(getattr(before, each.name))} before, "
        f"{_shown(getattr(after, each.name))} now"
        for each in fields(Environment)
        if each.name not in _NO_DIFFERENCE
        and getattr(before, each.name) != getattr(after, each.name)
    ]
    return "; ".join(changed) or "with the same description"


def _shown(value: object) -> str:
    """A field of an environment, packages as people write them."""
    if not isinstance(value, tuple):
        return str(value)
    return (
        ", ".join(
            " ".join(each) if isinstance(each, tuple) else str(getattr(each, "name", each))
            for each in value
        )
        or "none"
    )


def _cases(number: int) -> str:
    return "1 case" if number == 1 else f"{number} cases"
