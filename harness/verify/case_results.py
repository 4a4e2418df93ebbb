"""The cases that were tried, by how they ended, and whether running sums explain the failures.

A target that declares nothing is first held to the bound of PyTorch's own kernel, whose sums are
trees. A loop that adds one element after another, einsum, and products with ones lose more on long
rows and are right: a running sum of N elements makes N roundings. Results outside the first bound
are therefore judged again as if the target had declared running sums. If such declarations explain
every failure of a dtype, the target is held to the loosest of those that were needed.

A declaration explains a failure only by a finite bound. Two passes have one at any condition number
(``at_any_condition`` in :mod:`harness.numerics.bounds`); Welford has none beyond its limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, isqrt

from harness.numerics.bounds import ErrorBound, error_bound_of
from harness.numerics.error_measurement import bound_ratios, measure_errors, status_of
from harness.records import Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, Severity, limit, remark
from harness.records.text import count
from harness.run.attempt import Judged, attempt, exact_of
from harness.verify.cases import PlannedCase, first_case
from harness.verify.raises import raises_in
from harness.verify.scope import fitted
from implementations.contract import Algorithm, Implementation, Reduction

__all__ = ["GRADED_SHAPE", "CaseResults", "Count", "Grade", "grade"]

_STRICTEST_FIRST = (Algorithm.TWO_PASS, Algorithm.WELFORD)
# half the bound of a declared running sum: partial sums of equal addends grow linearly to the
# total. Even if all roundings go the same way, as for a constant row, they come to N/3 of it
_LANES = 2
# roundings of random addends go both ways and come to about sqrt(N) of the total. Beyond 2^16
# addends, one addend is hardly more than the last digit of a float32 sum, and roundings go one way
_SPREAD = 4
_MOST_RANDOM = 1 << 16
_MOST_FAILURES = 200  # enough to see a pattern, in a verdict of readable size
_REFUSED = {Status.ERROR, Status.UNSUPPORTED, Status.OUT_OF_MEMORY}
_RIGHT = {Status.OK, Status.OUT_OF_GUARANTEE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How the cases of one dtype ended."""

    dtype: str
    ok: int = 0
    """Within the bound."""
    out_of_guarantee: int = 0
    """The algorithm has no finite bound."""
    failed: int = 0
    """Outside the bound, or crashed."""
    declined: int = 0
    """The target raised."""

    @property
    def answered(self) -> int:
        """Cases that gave a result, or crashed."""
        return self.ok + self.out_of_guarantee + self.failed

    @property
    def is_verified(self) -> bool:
        """Whether more cases gave a result than raised."""
        return self.answered > self.declined


@dataclass(slots=True)
class CaseResults:
    """Every case that was tried; all counts are derived from them."""

    declarations: tuple[Implementation, ...] = ()
    """What the target could have declared, strictest first."""
    trials: list[Judged] = field(default_factory=list)
    """Without outputs."""
    catches: dict[Case, str] = field(default_factory=dict)
    """By failed case: what it is there to catch."""
    again: dict[Case, dict[Algorithm, Judged]] = field(default_factory=dict)
    """By failed case: its outputs judged by the declarations that explain them, strictest first."""

    def add(self, judged: Judged, catches: str) -> None:
        """Add one case, and what it is there to catch."""
        case = judged.case
        self.trials.append(replace(judged, outputs=None, function=None))
        if judged.status not in _REFUSED | _RIGHT:
            declarations = () if case.dtype in self._unexplained_dtypes() else self.declarations
            self.again[case] = explanations(judged, declarations)
            self.catches[case] = catches

    def _unexplained_dtypes(self) -> set[str]:
        """Return the dtypes with a failure that running sums do not explain."""
        return {case.dtype for case, again in self.again.items() if not again}

    def _failed(self, *, is_explained: bool) -> list[Judged]:
        dtypes = self._unexplained_dtypes()
        failed = (trial for trial in self.trials if trial.case in self.again)
        return [trial for trial in failed if (trial.case.dtype not in dtypes) is is_explained]

    @property
    def unexplained(self) -> list[Judged]:
        """Failed cases of the dtypes in which no declaration explains all of them."""
        return self._failed(is_explained=False)

    @property
    def explained(self) -> list[Judged]:
        """Failed cases that running sums explain."""
        return self._failed(is_explained=True)

    def declaration_for(
        self, implementation: Implementation, dtype: str | None = None
    ) -> Implementation:
        """Return what the target is held to: its declaration or, if needed, running sums."""
        explained = self.explained
        if not any(dtype in {None, trial.case.dtype} for trial in explained):
            return implementation
        needed = {next(iter(self.again[trial.case])) for trial in explained}
        loosest_first = reversed(self.declarations)
        return next((own for own in loosest_first if own.algorithm in needed), implementation)

    @property
    def is_right_on_last_axis(self) -> bool:
        """Whether every failed case normalises several axes, and others of one axis are right."""
        one = [trial for trial in self.trials if trial.case.normalized_dims == 1]
        failed = self.unexplained
        is_several = all(trial.case.normalized_dims > 1 for trial in failed)
        return bool(failed) and is_several and any(trial.status in _RIGHT for trial in one)

    @property
    def right_dtypes(self) -> tuple[str, ...]:
        """Dtypes with at least one result that is not wrong, in the order tried."""
        right = [trial for trial in self.trials if trial.status in _RIGHT]
        return tuple(dict.fromkeys(trial.case.dtype for trial in (*right, *self.explained)))

    def counts(self, dtypes: tuple[str, ...]) -> tuple[Count, ...]:
        """Count the cases by dtype, by the bound of running sums where those explain them."""
        ended = Counter((trial.case.dtype, trial.status) for trial in self.trials)
        for trial in self.explained:  # by the strictest declaration that explains it
            again = next(iter(self.again[trial.case].values()))
            ended[trial.case.dtype, trial.status] -= 1
            ended[trial.case.dtype, again.status] += 1
        return tuple(
            Count(
                dtype=dtype,
                ok=ended[dtype, Status.OK],
                out_of_guarantee=ended[dtype, Status.OUT_OF_GUARANTEE],
                failed=sum(ended[dtype, status] for status in {*Status} - _REFUSED - _RIGHT),
                declined=sum(ended[dtype, status] for status in _REFUSED),
            )
            for dtype in dtypes
        )

    def findings(self) -> Iterator[Finding]:
        """Yield the smallest failures, smallest first, declined cases, and remarks on both."""
        smallest = sorted(self.unexplained, key=lambda trial: trial.case.rows * trial.case.hidden)
        for trial in smallest[:_MOST_FAILURES]:
            evidence = PlannedCase(trial.case, self.catches[trial.case])
            dtypes = (trial.case.dtype,)
            yield Finding(trial.status, Severity.WRONG, trial.reason, dtypes, evidence)
        for trial in self.trials:
            if trial.status in _REFUSED:
                kind = "raised" if trial.status is Status.ERROR else "declined"
                yield limit(kind, trial.case.id, trial.reason)
        yield from raises_in(self.trials)
        if explained := self.explained:
            worst = max(explained, key=_bound_ratio)
            cases = count(len(explained), "case")
            yield remark(
                RemarkKind.LESS_ACCURATE,
                "is less accurate than PyTorch's own, as plain running sums are, which explain "
                f"{cases} (declare them if it computes them); {worst.case.id}: {worst.reason}",
                tuple(dict.fromkeys(trial.case.dtype for trial in explained)),
            )


def _bound_ratio(trial: Judged) -> float:
    """Return the largest error of a case, as a multiple of its bound."""
    return max((ratio.bound_ratio or 0.0 for ratio in trial.ratios), default=0.0)


# --- running sums ------------------------------------------------------------------------------


def running_sum_declarations(implementation: Implementation) -> tuple[Implementation, ...]:
    """Return what ``implementation`` could have declared, strictest first; none if it declares."""
    if implementation.declared:
        return ()
    return tuple(
        replace(
            implementation,
            algorithm=algorithm,
            reduction=Reduction.BLOCKS,
            lanes=_LANES,
            backward_reduction=None,
            column_reduction=Reduction.SEQUENTIAL,
        )
        for algorithm in _STRICTEST_FIRST
    )


def declared_bound(declaration: Implementation, case: Case) -> ErrorBound:
    """Return the error bound of ``declaration``, as strict as the inputs of ``case`` allow.

    A bound of N roundings would excuse a count of 4097 elements that is kept in float16.
    """
    if case.distribution == "normal" and case.hidden <= _MOST_RANDOM:
        declaration = replace(declaration, lanes=max(_LANES, isqrt(case.hidden) // _SPREAD))
    return replace(error_bound_of(declaration, case), at_any_condition=True)


def explanations(judged: Judged, declarations: Sequence[Implementation]) -> dict[Algorithm, Judged]:
    """Judge wrong outputs by each declaration; return the results of those that explain them."""
    outputs, case = judged.outputs, judged.case
    if judged.status is not Status.WRONG or outputs is None:
        return {}
    if any(ratio.unexpected_nonfinite for ratio in judged.ratios):
        return {}  # no order of sums explains an unexpected NaN or infinity
    inputs, exact = exact_of(case)
    found = {}
    for declaration in declarations:
        ratios = bound_ratios(outputs, inputs, case, declared_bound(declaration, case), exact)
        # a bound that is infinite where the first one is not explains nothing
        pairs = zip(ratios, judged.ratios, strict=True)
        is_as_finite = all(new.vacuous_elements <= old.vacuous_elements for new, old in pairs)
        if status_of(ratios) is not Status.WRONG and is_as_finite:
            found[declaration.algorithm] = Judged(
                case=case, status=status_of(ratios), ratios=ratios
            )
    return found


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """How accurate a function is on ill-conditioned input, in one dtype."""

    dtype: str
    meets: str | None
    """The strictest algorithm and reduction whose bound it meets; None if it meets none."""
    condition_limit: float | None
    """The largest condition at which it keeps two digits; None if it keeps them at all tried."""


def grade(implementation: Implementation, dtype: str, device: str) -> Grade:
    """Grade ``implementation`` in one dtype by its forward."""
    case = fitted(
        implementation,
        first_case(implementation.name, dtype, device),
        shape=GRADED_SHAPE,
        direction=Direction.FORWARD,
    )
    cases = [replace(case, distribution=name) for name in (*_SWEEP, *_STRUCTURED)]
    trials = [attempt(implementation, one, measure=measure_errors) for one in cases]
    # without those that the dtype cannot represent
    trials = [trial for trial in trials if trial.status is not Status.UNSUPPORTED]
    sweep = [trial for trial in trials if trial.case.distribution in _SWEEP]
    return Grade(
        dtype=dtype,
        meets=_strictest(implementation, trials),
        condition_limit=_condition_limit(sweep),
    )


def _strictest(implementation: Implementation, trials: list[Judged]) -> str | None:
    """Judge the same results by the bound of every algorithm, and return the strictest one met."""
    plain = replace(implementation, statistics_in_input_dtype=False)
    declarations = [
        replace(plain, algorithm=algorithm, reduction=reduction)
        for algorithm, reduction in _ALGORITHMS
    ]
    for trial in trials:
        case, outputs = trial.case, trial.outputs
        if outputs is None:
            return None
        inputs, exact = exact_of(case)
        declarations = [
            declaration
            for declaration in declarations
            if status_of(
                bound_ratios(outputs, inputs, case, error_bound_of(declaration, case), exact)
            )
            is not Status.WRONG
        ]
    return (
        f"{declarations[0].algorithm} ({declarations[0].reduction})"
        if trials and declarations
        else None
    )


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
