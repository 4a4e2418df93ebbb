"""What to verify of a target, and the verdict: as plain values, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.cases.axes import python_line, unusual
from harness.records import Affine, Direction
from harness.records.finding import SILENT, Finding, Severity
from harness.records.text import count, seconds_text
from harness.store import to_plain
from harness.verify.case_results import Count, Grade
from harness.verify.cases import DEFAULT, QUICKEST
from harness.verify.example import Example
from harness.verify.scope import AFFINE_WORDS, Scope
from implementations import CallOptions

__all__ = ["DTYPES", "Outcome", "Verdict", "VerifyOptions", "verdict_as_json", "verdict_lines"]

DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What to verify of a target, and how; the keyword arguments of ``verify``."""

    quick: bool = False
    """Whether to try every combination of two conditions (seconds) instead of three (minutes)."""
    strength: int | None = None
    """The number of conditions of which every combination is tried, 2 to 4; None for that of
    ``quick``."""
    strict: bool = False
    """Whether remarks fail a target, too."""
    dtypes: Sequence[str] = DTYPES
    """Of x, by name."""
    directions: Sequence[Direction] = tuple(Direction)
    """Passes to try; without a backward one, gradients are not checked."""
    device: str = "cpu"
    """Kind of device."""
    eps: float | None = None
    """The only eps to verify, for a target whose eps is fixed and cannot be measured."""
    normalized_dims: int | None = None
    """The only number of trailing axes to normalise over."""
    channels_first: bool = False
    """Whether x is (batch, channels, ...) and the channels are normalised."""
    init: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the target's constructor, or of the function, by name."""
    fail_fast: bool = False
    """Whether to stop at the first failure, without diagnosis and grades."""
    time_budget_s: float | None = None
    """Seconds after which no case is begun; the first case of every group comes first."""
    huge_bytes: int | None = None
    """Memory for trying more than 2^31 elements too, at most what is free: that takes 10 GiB for a
    forward and 20 GiB for a backward. None leaves them out."""

    @property
    def conditions(self) -> int:
        """The number of conditions of which every combination is tried."""
        return self.strength or (QUICKEST if self.quick else DEFAULT)

    @property
    def call(self) -> CallOptions:
        """How the target is to be called."""
        return CallOptions(
            eps=self.eps,
            normalized_dims=self.normalized_dims,
            channels_first=self.channels_first,
            init=self.init,
        )


class Outcome(StrEnum):
    """The result of a verification."""

    RIGHT = "right"
    """Every result was right within the target's scope."""
    INACCURATE = "inaccurate"
    """The function is LayerNorm, but some results keep too few digits."""
    WRONG = "wrong"
    """A valid call gave a wrong result, or changed something else."""
    NOT_VERIFIED = "not_verified"
    """Too few cases gave a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a target is a LayerNorm, within which scope, and if not, which mistake it makes."""

    target: str
    handle: str
    """The target in Python code: a quoted string, or the name of an object."""
    bound: str
    """The algorithm whose error bound it was held to."""
    options: str = ""
    """How the user wants the target called, as an argument of verify_case."""
    scope: Scope | None = None
    """None if every call raised."""
    instead: str | None = None
    """The known function that it computes instead, such as "RMSNorm"."""
    findings: tuple[Finding, ...] = ()
    """Of failed cases the smallest, smallest first; of causes the best first."""
    example: Example | None = None
    """The smallest example of what is wrong; of an inaccurate target, the worst case."""
    counts: tuple[Count, ...] = ()
    """For each requested dtype, in order."""
    left: int = 0
    """Cases that were not tried because the time was over."""
    strength: int = DEFAULT
    coverage: Mapping[str, int] | None = None
    """Every combination of ``strength`` of these was tried: the number of values by axis, without
    the axes that have one value within the target's scope. None if some were not."""
    grades: tuple[Grade, ...] = ()
    ended: str = ""
    """Why the verification ended early, if it did."""
    wall_s: float = 0.0

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of a severity."""
        return tuple(finding for finding in self.findings if finding.severity is severity)

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The smallest cases with a wrong result or a crash, smallest first."""
        return tuple(own for own in self.of(Severity.WRONG) if own.evidence is not None)

    @property
    def violations(self) -> tuple[Finding, ...]:
        """Contract checks that failed."""
        return tuple(own for own in self.of(Severity.WRONG) if own.evidence is None)

    @property
    def remarks(self) -> tuple[Finding, ...]:
        """What a user should know."""
        return self.of(Severity.REMARK)

    @property
    def declined(self) -> tuple[Finding, ...]:
        """Cases without a result."""
        return self.of(Severity.LIMIT)

    @property
    def ok(self) -> int:
        """Cases within the bound."""
        return sum(count.ok for count in self.counts)

    @property
    def out_of_guarantee(self) -> int:
        """Cases in which the algorithm has no finite bound."""
        return sum(count.out_of_guarantee for count in self.counts)

    @property
    def failed(self) -> int:
        """Cases outside the bound, and cases that crashed."""
        return sum(count.failed for count in self.counts)

    @property
    def cases(self) -> int:
        """Cases that gave a result, or crashed."""
        return sum(count.answered for count in self.counts)

    @property
    def outcome(self) -> Outcome:
        """Wrong if anything was wrong; a LayerNorm only if the verification reached its end."""
        if self.is_wrong:
            return Outcome.WRONG
        is_verified = self.ok > 0 and any(count.is_verified for count in self.counts)
        if not is_verified or self.ended:
            return Outcome.NOT_VERIFIED
        return Outcome.INACCURATE if self.of(Severity.INACCURATE) else Outcome.RIGHT

    @property
    def passed(self) -> bool:
        """Whether the outcome is right."""
        return self.outcome is Outcome.RIGHT

    @property
    def is_wrong(self) -> bool:
        """Whether any result is wrong, or any contract check failed."""
        return bool(self.failed or self.violations)

    @property
    def wrong_dtypes(self) -> tuple[str, ...]:
        """Dtypes in which a case or a contract check failed."""
        violated = {dtype for finding in self.violations for dtype in finding.dtypes}
        return tuple(own.dtype for own in self.counts if own.failed or own.dtype in violated)

    @property
    def right_dtypes(self) -> tuple[str, ...]:
        """Dtypes in which most cases gave a result and nothing was wrong."""
        wrong = self.wrong_dtypes
        return tuple(own.dtype for own in self.counts if own.is_verified and own.dtype not in wrong)

    @property
    def reproduce(self) -> str | None:
        """A line of Python that reproduces the plainest failure; None without one."""
        if not self.failures:
            return None
        case = min((finding.evidence.case for finding in self.failures), key=unusual)
        return python_line(case, self.handle, self.options)


# --- in words -----------------------------------------------------------------------------------


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
