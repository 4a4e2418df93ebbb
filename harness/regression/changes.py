"""How each metric, and each case, changed between two runs.

Status, errors, memory and operators are compared without statistics. On one machine with the same
software they repeat bit by bit, so any difference comes from the code. On another machine errors
may differ, because another instruction set adds in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite, isnan

from harness.records import Case, Estimate, Mode, OutputErrors, Record, Status
from harness.records.metrics import OUTPUT_METRICS, metrics_in
from harness.records.text import count, in_words, percent_text


class ChangeKind(StrEnum):
    """How a case changed. The order is from worst to best."""

    REGRESSED = "regressed"
    """Worse in a metric that is compared exactly: status, error, memory, operators."""
    SLOWER = "slower"
    """Takes longer, confirmed in fresh processes."""
    INCONCLUSIVE = "inconclusive"
    """Too noisy to judge, or suspected and not confirmed."""
    NOT_COMPARABLE = "not comparable"
    """Measured in both runs, but under conditions that differ."""
    GONE = "gone"
    """In the baseline only."""
    NEW = "new"
    """In the run only."""
    IMPROVED = "improved"
    """Better in a metric that is compared exactly."""
    FASTER = "faster"
    """Takes less time, confirmed in fresh processes."""
    UNCHANGED = "unchanged"
    """No difference beyond what the comparison allows."""

    @property
    def is_failure(self) -> bool:
        """Whether a gate fails because of it."""
        return self in {ChangeKind.REGRESSED, ChangeKind.SLOWER}

    @property
    def is_judged(self) -> bool:
        """Whether both runs were compared and the result is known."""
        no_failures = {ChangeKind.IMPROVED, ChangeKind.FASTER, ChangeKind.UNCHANGED}
        return self.is_failure or self in no_failures


@dataclass(frozen=True, slots=True)
class Change:
    """How one case changed, in one metric or in all."""

    case: Case
    kind: ChangeKind
    reason: str
    """Why it is of this kind, with the figures, in one line."""
    metric: str | None = None
    """``status``, or the title of a metric of a record: what changed most. None if nothing changed
    or nothing can be compared."""
    ratio: Estimate | None = None
    """Latency now over latency before, each as the ratio to the reference where there is one;
    above 1 is slower. None where it was not compared."""
    severity: float = 1.0
    """Orders changes of one kind: now over before, or infinite if that is not a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How all cases changed."""

    changes: tuple[Change, ...]
    """Worst first."""
    baseline: str
    """Name of the earlier file or revision."""
    head: str
    """Name of the later file or revision."""
    notes: tuple[str, ...] = ()
    """Facts about all cases, such as another machine, or a metric that was not compared."""

    @property
    def failed(self) -> bool:
        return any(change.kind.is_failure for change in self.changes)

    @property
    def counts(self) -> dict[ChangeKind, int]:
        """The number of changes of each kind that occurs, worst first."""
        counts = Counter(change.kind for change in self.changes)
        return {kind: counts[kind] for kind in ChangeKind if counts[kind]}


def latency_change(
    case: Case, kind: ChangeKind, reason: str, ratio: Estimate | None = None
) -> Change:
    """Return a change of a latency; the more the latency grew, the more severe it is."""
    severity = ratio.value if ratio else 1.0
    return Change(case, kind, f"latency: {reason}", "latency", ratio, severity)


def change_of(changes: Sequence[Change]) -> Change:
    """Return the change of a case from those of its metrics.

    The worst gives kind and metric; the reason names all but the unchanged.
    """
    ordered = worst_first(changes)
    worst = ordered[0]
    is_unchanged = worst.kind is ChangeKind.UNCHANGED
    named = [one for one in ordered if is_unchanged or one.kind is not ChangeKind.UNCHANGED]
    return replace(
        worst,
        reason="; ".join(one.reason for one in named),
        metric=None if is_unchanged else worst.metric,
        ratio=next((one.ratio for one in ordered if one.ratio is not None), None),
    )


def worst_first(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Order changes by kind and, within a kind, by severity."""
    kinds = list(ChangeKind)
    return tuple(sorted(changes, key=lambda change: (kinds.index(change.kind), -change.severity)))


# --- metrics that repeat exactly -----------------------------------------------------------------

# the best first; to decline a case is better than to get it wrong. All others are equally bad
_BEST_FIRST = (
    Status.OK, Status.OUT_OF_GUARANTEE, Status.INACCURATE, Status.UNSUPPORTED, Status.WRONG,
)  # fmt: skip
_OF_THE_MACHINE = {Status.OUT_OF_MEMORY, Status.TIMEOUT}
# parts of a record, each with the metric that stands for it
_PARTS = {
    "errors": "error",
    "memory": "peak memory",
    "operators": "operators",
    "instructions": "instructions",
}
# Least instructions per call, each with the share by which counts may differ without a change:
# several times what they differed by in experiments/gates/counts.py.
_COUNT_MARGINS = ((1_000_000, 0.002), (0, 0.005))

# The limits for errors of two instruction sets. The bound of one input and one declared algorithm
# is the same on every machine and holds for sums in any order; how far below the bound the error
# lies is chance. f roundings of random sign sum to about sqrt(f) of the f that the bound allows
# for, and f is 18 or more in a sum of a thousand. An error up to 1/sqrt(18) of its bound, about a
# quarter, can therefore be due to the order alone. Beyond that share, twice the error is more than
# another order explains.
_LUCKY_SHARE = 0.25
_ELSEWHERE_FACTOR = 2.0
# Another declared algorithm has another bound, so the errors themselves are compared. Trade-off:
# errors of less than 1 ulp may grow by 1 ulp, because a factor says little about them.
_ELSEWHERE_ULP = 1.0


def exact_changes(before: Record, after: Record, *, counts: bool = True) -> list[Change]:
    """Compare the deterministic metrics of two records of one case.

    Args:
        before: the earlier record.
        after: the later record.
        counts: whether their counts of instructions are of the same software.
    """
    same_machine = before.environment == after.environment
    changes = list(_status_changes(before, after, same_machine=same_machine))
    if not (before.status.is_measured and after.status.is_measured):
        return changes
    for part, metric in _PARTS.items():
        if getattr(before, part) is None or (part == "instructions" and not counts):
            continue
        kind, equal = ChangeKind.UNCHANGED, f"the same {part}"
        if getattr(after, part) is None:
            found = []
            kind, equal = ChangeKind.INCONCLUSIVE, f"{part} measured before, but not now"
        elif part == "instructions":
            found, equal = _instruction_changes(before, after), "instructions within their spread"
        elif part != "errors":
            found = _figure_changes(before, after, part, same_machine=same_machine)
        elif same_machine and before.case.device == "cpu":  # on a GPU sums have no fixed order
            found = _errors_here(before, after)
        elif before.status is after.status is Status.OK:
            found = _errors_elsewhere(before, after)
            equal = "errors within what another order of the same sums explains"
        else:  # beyond the error bound, another order may change anything
            continue
        changes += found or [Change(before.case, kind, equal, metric)]
    return changes


def holds_elsewhere(case: Case, part: str) -> bool:
    """Whether a part of a case's record is the same on every machine, as long as the code is.

    Kernels may size their buffers by the GPU, and compilers fuse by the machine.
    """
    return {"memory": case.device == "cpu", "operators": case.mode is Mode.EAGER}.get(part, False)


def _status_changes(before: Record, after: Record, *, same_machine: bool) -> Iterator[Change]:
    """Compare statuses; yield nothing if the case was measured with the same status in both."""
    old, new = before.status, after.status
    if old is new and old.is_measured:
        return
    kind = ChangeKind.UNCHANGED
    reason = f"{in_words(old)} before, {in_words(new)} now"
    if after.reason:
        reason += f": {after.reason}"
    if _rank(new) < _rank(old):
        kind = ChangeKind.IMPROVED
    elif _rank(new) > _rank(old):
        kind = ChangeKind.REGRESSED
        if not same_machine and new in _OF_THE_MACHINE:
            kind = ChangeKind.INCONCLUSIVE
            reason += "; the other machine may be the cause"
    yield Change(before.case, kind, reason, "status", severity=inf)


def _rank(status: Status) -> int:
    return _BEST_FIRST.index(status) if status in _BEST_FIRST else len(_BEST_FIRST)


def _figure_changes(
    before: Record, after: Record, part: str, *, same_machine: bool
) -> list[Change]:
    """Compare memory or operators."""
    case, changes = before.case, list[Change]()
    caveat = "" if same_machine or holds_elsewhere(case, part) else "it depends on the machine"
    for metric in metrics_in("exact"):
        (first, *_), (second, *_) = metric.numbers(before), metric.numbers(after)
        if metric.part != part or first is None:
            continue
        what = metric.heading("exact")
        if second is None:
            why = f"{what} measured before, but not now"
            changes.append(Change(case, ChangeKind.INCONCLUSIVE, why, metric.title))
        elif first != second:
            changes.append(_figure_change(case, metric.title, what, first, second, caveat))
    return changes


def _instruction_changes(before: Record, after: Record) -> list[Change]:
    """Compare counts of instructions; return nothing if they may differ without a change."""
    first, second = before.instructions, after.instructions
    assert first
    assert second  # both were counted
    margin = _count_margin(first)
    if first / (1 + margin) <= second <= first * (1 + margin):
        return []
    share = second / first - 1
    kind, word = (ChangeKind.REGRESSED, "more") if share > 0 else (ChangeKind.IMPROVED, "fewer")
    reason = f"{percent_text(abs(share))} {word} instructions: {first:,} before, {second:,} now"
    return [Change(before.case, kind, reason, "instructions", severity=second / first)]


def _count_margin(instructions: int) -> float:
    return next(share for least, share in _COUNT_MARGINS if instructions >= least)


def counts_shown(counted: Sequence[int]) -> str:
    """Return how many more instructions fail a case, for cases with these counts."""
    margins = sorted({_count_margin(instructions) for instructions in counted})
    return f"{' or '.join(map(percent_text, margins))} more instructions"


def _errors_here(before: Record, after: Record) -> list[Change]:
    """Compare errors that must be equal: on the same CPU with the same software."""
    changes: list[Change] = []
    for old, new in _outputs(before, after):
        if new is None:
            changes.append(_not_returned(before.case, old))
            continue
        for metric in OUTPUT_METRICS:
            (first, *_), (second, *_) = metric.numbers(old), metric.numbers(new)
            if first is not None and second is not None and first != second:
                what = f"{old.output}, {metric.heading('exact')}"
                changes.append(_figure_change(before.case, "error", what, first, second))
    if len(changes) < 2:
        return changes
    worst = min(changes, key=lambda change: list(ChangeKind).index(change.kind))
    others = count(len(changes) - 1, "more figure")
    return [replace(worst, reason=f"{worst.reason} (and {others})")]


def _errors_elsewhere(before: Record, after: Record) -> list[Change]:
    """Compare errors that may differ by the order of sums; return the first that is worse."""
    for old, new in _outputs(before, after):
        if new is None:
            return [_not_returned(before.case, old)]
        figures = old.scaled_max_ulp, new.scaled_max_ulp
        change = _figure_change(before.case, "error", f"{old.output}, largest scaled ulp", *figures)
        if change.kind is ChangeKind.INCONCLUSIVE:
            return [change]
        if why := _why_worse_elsewhere(old, new, _declared(before), _declared(after)):
            text = f"{change.reason}; {why}, more than another order of the same sums explains"
            return [replace(change, kind=ChangeKind.REGRESSED, reason=text)]
    return []


def _why_worse_elsewhere(
    old: OutputErrors, new: OutputErrors, declared: str, declared_now: str
) -> str:
    """Return the figures that another order of sums does not explain; empty if it may."""
    if declared == declared_now and old.bound_ratio is not None and new.bound_ratio is not None:
        allowed = max(_ELSEWHERE_FACTOR * old.bound_ratio, _LUCKY_SHARE)
        text = f"{old.bound_ratio:.2g} of its bound before, {new.bound_ratio:.2g} now"
        return "" if new.bound_ratio <= allowed else text
    allowed = max(_ELSEWHERE_FACTOR * old.scaled_max_ulp, old.scaled_max_ulp + _ELSEWHERE_ULP)
    text = f"declared {declared} before, {declared_now} now"
    return "" if new.scaled_max_ulp <= allowed else text


def _outputs(before: Record, after: Record) -> Iterator[tuple[OutputErrors, OutputErrors | None]]:
    """Yield the errors of each output, and those now if it is still returned."""
    now = {output.output: output for output in after.errors.outputs} if after.errors else {}
    for output in before.errors.outputs if before.errors else ():
        yield output, now.get(output.output)


def _figure_change(
    case: Case, metric: str, what: str, before: float, after: float, caveat: str = ""
) -> Change:
    """Compare two figures that differ; with a caveat, the difference proves nothing."""
    reason = f"{what}: {_figures_text(before, after)}"
    if isnan(before) and isnan(after):
        return Change(case, ChangeKind.INCONCLUSIVE, reason, metric)
    # a NaN is below no number, so a figure that became NaN has regressed
    kind = ChangeKind.IMPROVED if after < before else ChangeKind.REGRESSED
    if caveat:
        kind, reason = ChangeKind.INCONCLUSIVE, f"{reason}; {caveat}"
    has_ratio = before > 0 and isfinite(before) and isfinite(after)
    severity = after / before if has_ratio else inf
    return Change(case, kind, reason, metric, severity=severity)


def _not_returned(case: Case, output: OutputErrors) -> Change:
    reason = f"{output.output} is no longer returned"
    return Change(case, ChangeKind.REGRESSED, reason, "error", severity=inf)


def _declared(record: Record) -> str:
    errors = record.errors
    return f"{errors.algorithm} ({errors.reduction}, {errors.accumulate_dtype})" if errors else ""


def _figures_text(before: float, after: float) -> str:
    """Return "1 before, 2 now", with as many digits as tell the figures apart."""
    if isinstance(before, int) and isinstance(after, int):
        return f"{before} before, {after} now"
    forms = (f".{digits}g" for digits in (3, 6, 9, 12, 17))
    form = next((one for one in forms if format(before, one) != format(after, one)), ".3g")
    return f"{before:{form}} before, {after:{form}} now"
