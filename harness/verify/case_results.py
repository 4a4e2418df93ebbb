"""The cases that were tried, by how they ended, and why some results are inaccurate.

A dtype in which a case is wrong is wrong. Where each result beyond the bound is explained by a
looser one (:mod:`harness.numerics.inaccuracy`), the target is inaccurate in that dtype: the fewest
looser bounds that explain all of its cases are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import torch

import implementations
from harness.numerics import (
    OUTPUTS,
    Inaccuracy,
    bound_ratios,
    error_bound_of,
    measure_errors,
    status_of,
)
from harness.records import Case, Direction, OutputErrors, Status
from harness.records.finding import Finding, RemarkKind, Severity, limit, remark
from harness.records.text import count, grouped, listed
from harness.run import Judged, exact_of
from harness.run.attempt import attempt
from harness.verify.cases import first_case
from harness.verify.in_scope import fitted
from harness.verify.raises import raises_in
from harness.verify.result import Count, Grade, PlannedCase
from implementations.contract import Algorithm, Implementation, Reduction

__all__ = ["GRADED_SHAPE", "NOT_WRONG", "CaseResults", "grade"]

_TELLING = 1.5  # times the error of two passes
_MOST_FAILURES = 200  # enough to see a pattern, in a verdict of readable size
NOT_WRONG = {Status.OK, Status.OUT_OF_GUARANTEE, Status.INACCURATE}
_REFUSED = {Status.ERROR, Status.UNSUPPORTED, Status.OUT_OF_MEMORY}
_WRONG = {*Status} - NOT_WRONG - _REFUSED


@dataclass(slots=True)
class CaseResults:
    """Every case that was tried; all counts are derived from them."""

    trials: list[Judged] = field(default_factory=list)
    """Without outputs."""
    catches: dict[Case, str] = field(default_factory=dict)
    """By case: what it is there to catch."""

    def add(self, judged: Judged, catches: str) -> None:
        """Add one case, and what it is there to catch."""
        self.trials.append(replace(judged, outputs=None, function=None))
        self.catches[judged.case] = catches

    @property
    def failures(self) -> list[Judged]:
        """The cases with a wrong result, or a crash."""
        return [trial for trial in self.trials if trial.status in _WRONG]

    @property
    def is_right_on_last_axis(self) -> bool:
        """Whether every wrong case normalises several axes, and none of those over one axis."""
        wrong = {trial.case.normalized_dims for trial in self.failures}
        right = {trial.case.normalized_dims for trial in self.trials if trial.status in NOT_WRONG}
        return bool(wrong) and min(wrong) > 1 and 1 in right

    @property
    def right_dtypes(self) -> tuple[str, ...]:
        """Dtypes with a result that is not wrong, in the order tried."""
        right = (trial.case.dtype for trial in self.trials if trial.status in NOT_WRONG)
        return tuple(dict.fromkeys(right))

    def counts(self, dtypes: tuple[str, ...]) -> tuple[Count, ...]:
        """Count the cases by dtype."""
        ended = Counter((trial.case.dtype, trial.status) for trial in self.trials)
        return tuple(
            Count(
                dtype=dtype,
                ok=ended[dtype, Status.OK],
                out_of_guarantee=ended[dtype, Status.OUT_OF_GUARANTEE],
                inaccurate=ended[dtype, Status.INACCURATE],
                failed=sum(ended[dtype, status] for status in _WRONG),
                declined=sum(ended[dtype, status] for status in _REFUSED),
            )
            for dtype in dtypes
        )

    def findings(self) -> Iterator[Finding]:
        """Yield the smallest failures, smallest first, declined cases, and remarks on both."""
        smallest = sorted(self.failures, key=lambda trial: trial.case.rows * trial.case.hidden)
        for trial in smallest[:_MOST_FAILURES]:
            evidence = PlannedCase(trial.case, self.catches[trial.case])
            dtypes = (trial.case.dtype,)
            yield Finding(trial.status, Severity.WRONG, trial.reason, dtypes, evidence)
        for trial in self.trials:
            if trial.status in _REFUSED:
                kind = "raised" if trial.status is Status.ERROR else "declined"
                yield limit(kind, trial.case.id, trial.reason)
        yield from raises_in(self.trials)
        wrong_dtypes = {trial.case.dtype for trial in smallest}
        for dtype, own in grouped((trial.case.dtype, trial) for trial in self.trials).items():
            if dtype not in wrong_dtypes:
                yield from _inaccuracies(own, self.catches)


# --- inaccurate results --------------------------------------------------------------------------


def _inaccuracies(trials: Sequence[Judged], catches: Mapping[Case, str]) -> Iterator[Finding]:
    """Yield why results in one dtype are beyond their bounds, each reason with its worst case."""
    found = ((kind, (trial, name)) for trial in trials for name, kind in trial.explained_by.items())
    by_kind: dict[Inaccuracy, list[tuple[Judged, str]]] = {kind: [] for kind in Inaccuracy}
    by_kind |= grouped(found)
    if again := {name for _, name in by_kind.pop(Inaccuracy.ROUNDED_AGAIN)}:
        dtype = trials[0].case.dtype
        names = listed(sorted(again, key=OUTPUTS.index))
        text = f"rounds {names} more than once in {dtype}"
        yield remark(RemarkKind.ROUNDED_AGAIN, text, (dtype,))
    of_columns, of_statistics = (by_kind[Inaccuracy.COLUMN_SUMS], by_kind[Inaccuracy.STATISTICS])
    # narrow sums over the rows show in dbias; without it, statistics explain dweight, too
    if of_statistics and "dbias" not in {name for _, name in of_columns}:
        of_statistics += of_columns
        of_columns.clear()
    # running sums explain a part of what the first element does, and not all
    if shifted := by_kind[Inaccuracy.SHIFTED]:
        shifted += by_kind.pop(Inaccuracy.RUNNING_SUMS)
    for kind, explained in by_kind.items():
        if explained:
            yield _inaccuracy(kind, explained, catches)


def _inaccuracy(
    kind: Inaccuracy, found: Sequence[tuple[Judged, str]], catches: Mapping[Case, str]
) -> Finding:
    """Return the finding that one looser bound explains these outputs of cases."""
    worst, output = max(found, key=lambda own: _error_ulp(*own))
    case = worst.case
    narrow, wide = ("float32", "float64") if case.dtype == "float64" else (case.dtype, "float32")
    names = listed(sorted({name for _, name in found}, key=OUTPUTS.index))
    verb = "is" if " " not in names else "are"
    error_ulp, kept_ulp = _error_ulp(worst, output), _two_pass_ulp(case, output)
    # where x has no digit to lose, two passes lose as many ulp, and the bound tells
    is_telling = error_ulp >= _TELLING * kept_ulp
    if is_telling:
        off = f"up to {error_ulp:.3g} ulp off"
    else:
        worst, output = max(found, key=lambda own: _bound_ratio(*own))
        case = worst.case
        off = f"off by {_bound_ratio(worst, output):.3g} times its error bound"
    rows = ((trial, row) for trial, name in found for row in _rows(trial, name))
    infinite = {trial.case for trial, row in rows if row.unexpected_nonfinite}
    if infinite:
        off += f", and not finite in {count(len(infinite), 'case')}"
    if kind is Inaccuracy.RUNNING_SUMS:
        how, better = f"elements are added one after the other: {output} is", "pairwise sums keep"
    elif kind is Inaccuracy.SHIFTED:
        how = f"the first element of a row is subtracted from it: {output} is"
        better = "elements relative to the mean keep"
    elif kind is Inaccuracy.COLUMN_SUMS:
        how, better = f"{names} {verb} summed in {narrow}:", f"sums in {wide} keep"
    else:
        how, better = f"mean and variance are in {narrow}: {output} is", f"{wide} keeps"
    text = f"{how} {off}" + (f", where {better} {kept_ulp:.2g}" if is_telling else "")
    evidence = PlannedCase(case, catches[case])
    # the value: the parent of a worker would import torch for the enumeration
    return Finding(kind.value, Severity.INACCURATE, text, (case.dtype,), evidence)


def _two_pass_ulp(case: Case, output: str) -> float:
    """Return the error of the package's two passes in an output."""
    known = attempt(implementations.find("two_pass"), case, measure=measure_errors)
    return next((_in_ulp_of_x(row, case) for row in _rows(known, output)), 0.0)


def _bound_ratio(trial: Judged, output: str) -> float:
    """Return the error of an output over its bound; 0 if the output has no bound."""
    return max((row.bound_ratio or 0.0 for row in _rows(trial, output)), default=0.0)


def _error_ulp(trial: Judged, output: str) -> float:
    """Return the error of an output in ulp of x's dtype; 0 if it has no digit.

    Then the exact value may be almost 0, and so its ulp.
    """
    most_ulp = 1 / torch.finfo(getattr(torch, trial.case.dtype)).eps
    errors = [_in_ulp_of_x(row, trial.case) for row in _rows(trial, output)]
    return max((ulp for ulp in errors if ulp < most_ulp), default=0.0)


def _rows(trial: Judged, output: str) -> list[OutputErrors]:
    rows = trial.errors.outputs if trial.errors else ()
    return [row for row in rows if row.output == output]


def _in_ulp_of_x(row: OutputErrors, case: Case) -> float:
    """Return an error in ulp of the dtype of x, which parameters may exceed."""
    own = case.param_dtype if row.output in {"dweight", "dbias"} else case.dtype
    eps = {name: torch.finfo(getattr(torch, name)).eps for name in (own, case.dtype)}
    return row.worst_ulp * eps[own] / eps[case.dtype]


# --- grades -------------------------------------------------------------------------------------


_STABLE = (Algorithm.RECENTRED, Algorithm.TWO_PASS, Algorithm.WELFORD)
_ALGORITHMS = (
    *((algorithm, Reduction.TREE) for algorithm in _STABLE),
    # after those: a running sum loses N roundings, cancellation the square of the condition
    *((algorithm, Reduction.SEQUENTIAL) for algorithm in _STABLE),
    (Algorithm.ONE_PASS, Reduction.TREE),
    (Algorithm.ONE_PASS, Reduction.SEQUENTIAL),
)
_SWEEP = ("normal", *(f"offset_1e{exponent}" for exponent in range(1, 8)))
_STRUCTURED = (
    "ramp_offset", "ulp_comb", "one_ulp_spike", "last_digit", "onnxruntime_28463", "outlier_first",
)  # fmt: skip
GRADED_SHAPE = (16, 1000)
_LOST = 1e-2  # of the norm of a row: fewer than two digits are of no use


def grade(implementation: Implementation, dtype: str, device: str) -> Grade:
    """Grade ``implementation`` in one dtype by its forward."""
    first = first_case(implementation.name, dtype, device)
    case = fitted(implementation, first, shape=GRADED_SHAPE, direction=Direction.FORWARD)
    cases = [replace(case, distribution=name) for name in (*_SWEEP, *_STRUCTURED)]
    tried = [attempt(implementation, one, measure=measure_errors) for one in cases]
    # without those that the dtype cannot represent
    trials = [trial for trial in tried if trial.status is not Status.UNSUPPORTED]
    sweep = [trial for trial in trials if trial.case.distribution in _SWEEP]
    meets = _strictest(implementation, trials)
    return Grade(dtype=dtype, meets=meets, condition_limit=_condition_limit(sweep))


def _strictest(implementation: Implementation, trials: list[Judged]) -> str | None:
    """Judge the same results by the bound of each algorithm, and return the strictest one met."""
    calls = [
        (trial.outputs, trial.case, *exact_of(trial.case))
        for trial in trials
        if trial.outputs is not None
    ]
    if not trials or len(calls) < len(trials):
        return None
    plain = replace(implementation, statistics_in_input_dtype=False)
    for algorithm, reduction in _ALGORITHMS:
        declared = replace(plain, algorithm=algorithm, reduction=reduction)
        statuses = (
            status_of(bound_ratios(outputs, inputs, case, error_bound_of(declared, case), exact))
            for outputs, case, inputs, exact in calls
        )
        if Status.WRONG not in statuses:
            return f"{algorithm} ({reduction})"
    return None


def _condition_limit(trials: list[Judged]) -> float | None:
    """Return the condition of the last trial before the first that loses over a hundredth."""
    reached = 1.0
    for trial in trials:
        if trial.errors is None:
            continue
        y = trial.errors.outputs[0]
        if y.unexpected_nonfinite or not y.normwise_ratio <= _LOST:
            return reached
        if isfinite(trial.errors.condition_max_ratio):
            reached = max(reached, trial.errors.condition_max_ratio)
    return None
