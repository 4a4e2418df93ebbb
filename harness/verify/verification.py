"""Verify a target: is it a LayerNorm, within which scope, how accurate, and if not, why not?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial, update_wrapper
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

import implementations
from harness.cases.axes import is_possible
from harness.cases.inputs import make_inputs
from harness.measure import DEVICES
from harness.numerics import OUTPUTS, OUTPUTS_OF, Inaccuracy, Outputs, measure_errors
from harness.records import Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, Severity, limit, remark
from harness.run import (
    ContractViolationError,
    ImplementationError,
    Judged,
    TamperingError,
    Trusted,
    observed,
    run_once,
    settings_restored,
    threads,
)
from harness.run.attempt import attempt, exact_of
from harness.verify.case_results import GRADED_SHAPE, NOT_WRONG, CaseResults, grade
from harness.verify.cases import coverage_of, first_case, planned_cases
from harness.verify.checks.calls import Call
from harness.verify.checks.contract_checks import CHECKS, contract_findings
from harness.verify.checks.huge import COLUMNS, ROWS, huge_findings, large_findings
from harness.verify.checks.memory import SHARES_EARLIER_Y, share_memory, y_shares_no_memory
from harness.verify.code import code_of
from harness.verify.decisions import Change, Decisions
from harness.verify.diagnosis import causes_of
from harness.verify.example import command_of, example_of, worst_of
from harness.verify.find_scope import find_scope
from harness.verify.in_scope import adapter_of, fitted, scope_of, within_scope
from harness.verify.raises import merged
from harness.verify.result import QUICKEST, Example, Grade, PlannedCase, Verdict, VerifyOptions
from harness.verify.search import Search, effort_of
from implementations import CallOptions
from implementations.contract import Implementation, UnsupportedError
from implementations.native import native
from implementations.targets.from_module import ModuleFunction

__all__ = ["Target", "TimeBudget", "by_keyword", "verify", "verify_case", "verify_target"]

_MOST_S = 30.0  # for one case; the whole catalogue takes about as long on a slow target
_CASES_SHARE = 0.7  # of a time budget; the rest is for contract checks
_CALLS_TO_GRADE = 30  # two of each distribution
_TRIED_ON_LAST_AXIS = 8  # failed cases; those of the catalogue with one axis are right
_ENOUGH_FAILURES = 8  # of a target that computes another function; more show nothing new
_TAMPERS, _ONLY_COMPUTES = "changes_nothing_outside_itself", "only_computes"
_OF_EPS = frozenset({RemarkKind.DEFAULT_EPS, RemarkKind.SHOWN_EPS})
_PLAIN = {"negated": "contiguous", "negated_normal": "shifted_normal"}
_NEGATED = "ignores the negative bit of a tensor, which z.conj().imag has"


class TimeBudget:
    """Predicts a case's time from its rows and elements: interpreters take milliseconds per row.

    The smallest time per row and per element of the cases so far are upper bounds of the two costs.
    The smallest excludes first calls, which include compilation.
    """

    def __init__(self, budget_s: float | None = None) -> None:
        """Start the clock; ``budget_s`` is for the whole verification, None for no limit."""
        self._began_at = monotonic()
        self._stop_at = float("inf") if budget_s is None else self._began_at + budget_s
        self._per_row_s = self._per_element_s = float("inf")

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return monotonic() - self._began_at

    @property
    def left_s(self) -> float:
        """Seconds that are left; infinite without a limit."""
        return self._stop_at - monotonic()

    def add(self, judged: Judged) -> None:
        """Learn from the time of a case."""
        rows, elements = judged.case.rows, judged.case.rows * judged.case.hidden
        if judged.implementation_s and elements:
            self._per_row_s = min(self._per_row_s, judged.implementation_s / rows)
            self._per_element_s = min(self._per_element_s, judged.implementation_s / elements)

    def predicted_s(self, case: Case) -> float:
        """Return the seconds that the target will take for a case; 0 before the first case."""
        if self._per_row_s == float("inf"):
            return 0.0
        return self._per_row_s * case.rows + self._per_element_s * case.rows * case.hidden

    def is_too_slow(self, case: Case) -> bool:
        """Whether a case would take longer than the limit per case, or than the time left."""
        return self.predicted_s(case) > min(_MOST_S, max(self.left_s, 0.0))


@dataclass(slots=True, kw_only=True)
class Verification:
    """A target, what to verify of it, and everything that was found so far."""

    implementation: Implementation
    """As it was given; within its scope as soon as that is known."""
    known: Verdict
    """What is known of the verdict, beside what follows from ``cases`` and ``findings``."""
    options: VerifyOptions
    trusted: Trusted
    """What measures and judges the target, taken before anything of it was imported."""
    crashed: Mapping[Case, str]
    """Cases that ended an earlier process, and how; they count as failed and are not tried."""
    on_case: Callable[[Case], None]
    """Called with each case before it is tried."""
    on_progress: Callable[[Callable[[], Verdict]], None]
    """Called after each case with a function that returns the verdict so far."""
    budget: TimeBudget = field(init=False)
    cases: CaseResults = field(default_factory=CaseResults)
    findings: list[Finding] = field(default_factory=list)
    """Those that do not follow from ``cases``."""
    further: dict[Case, Judged | None] = field(default_factory=dict)
    """Cases beyond the catalogue that were tried for an explanation; None if they could not be."""
    search: Search = field(init=False)
    """Of the target's code, for cases that follow from it."""

    def __post_init__(self) -> None:
        self.budget = TimeBudget(self.options.time_budget_s)
        is_forward = {*self.options.directions} <= {Direction.FORWARD}
        forward_only = self.implementation.forward_only or is_forward
        self.implementation = replace(self.implementation, forward_only=forward_only)
        code, effort = code_of(self.implementation), effort_of(self.options.conditions)
        decisions = Decisions(code.functions, code.tables)
        self.search = Search(self.implementation, code, decisions, effort)

    def run(self, tampering: str | None) -> Verdict:
        """Find the target's scope, try the cases, check the contract, and explain the failures.

        Args:
            tampering: what the import of the target changed; None if nothing.
        """
        self.trusted.mark_state()
        if violation := self._unjudgeable(tampering):
            self._add_violation(*violation, self.options.dtypes[0])
            return self.verdict()
        try:
            self._find_scope()
        except UnsupportedError as error:
            self.findings.append(limit("declined", "every call", str(error), cases=0))
            return self.verdict()
        first_results = {dtype: self._first_result(dtype) for dtype in self.options.dtypes}
        self._try_cases()
        self._search_source()
        self.trusted.mark_state()
        is_enough = self.options.fail_fast and self.cases.failures
        if self.known.instead is None and not is_enough:
            self._check_contract(first_results)
        if not self.cases.failures:
            self.findings += self.search.findings()
        try:
            self.trusted.check()
        except TamperingError as error:
            self._add_violation(_TAMPERS, str(error), self.options.dtypes[0])
        if not self.options.fail_fast:
            self._explain(self.cases.failures)
        return self.verdict()

    def _explain(self, failures: list[Judged]) -> None:
        """Add the causes of failures, and the smallest example of what is wrong or inaccurate."""
        tried = [trial for trial in self.cases.trials if not self._is_copied(trial.case)]
        of_target = self.implementation, failures, tried, self._attempt_further
        if failures and self.known.instead is None:
            self.findings += causes_of(*of_target, self.search.sizes)
        if self.cases.is_right_on_last_axis:
            is_right = self._is_right_if_one_axis_is_normalised(failures)
            self.known = replace(self.known, is_right_on_last_axis=is_right)
        example: Example | None = None
        if failures and self.budget.left_s > 0:
            example = example_of(*of_target)
        with suppress(TamperingError):  # of a mutant: what it changed is put back
            self.trusted.check()
        inaccurate = (own for own in self.cases.findings() if own.severity is Severity.INACCURATE)
        is_right = not failures and all(own.severity is not Severity.WRONG for own in self.findings)
        if is_right and (worst := next(inaccurate, None)) is not None:
            case = worst.evidence.case
            outputs = OUTPUTS_OF.get(Inaccuracy(worst.kind), OUTPUTS)
            example = worst_of(self.implementation, case, outputs)
        if example is not None:
            commands = command_of(example.case, self.known.handle, self.known.options)
            self.known = replace(self.known, example=replace(example, commands=commands))

    def verdict(self) -> Verdict:
        """Return the verdict on what was found so far."""
        known, facts, failures = self.known, self.findings, self.cases.failures
        # an eps that was measured may follow from a wrong variance
        if any("y" in trial.outputs_beyond() for trial in failures):
            facts = [finding for finding in facts if finding.kind not in _OF_EPS]
            scope = known.scope and replace(known.scope, eps=self.options.eps, default_eps=None)
            known = replace(known, scope=scope)
        return replace(
            known,
            instead=known.instead if failures else None,
            findings=merged((*self.cases.findings(), *facts)),
            counts=self.cases.counts(tuple(self.options.dtypes)),
            wall_s=self.budget.elapsed_s,
        )

    def _add_violation(self, check: str, text: str, dtype: str) -> None:
        self.findings.append(Finding(check, Severity.WRONG, text, (dtype,)))

    def _attempt(
        self, case: Case, trusted: Trusted | None = None, *, is_judged: bool = True
    ) -> Judged:
        """Try a case, unless it ended an earlier process."""
        if case in self.crashed:
            return Judged(case=case, status=Status.CRASHED, reason=self.crashed[case])
        self.on_case(case)
        return attempt(self.implementation, case, trusted, is_judged=is_judged)

    def _first_case(self, dtype: str) -> Case:
        """Return the first case of all, fitted to the target's scope."""
        case = first_case(self.implementation.name, dtype, self.options.device)
        return fitted(self.implementation, case)

    def _unjudgeable(self, tampering: str | None) -> tuple[str, str] | None:
        """Return the contract check that fails, and how, if no result can be judged.

        The target changes what judges it, or in a second, equal call it does what no LayerNorm
        needs or returns the memory of the first y. The first call may compile or load.
        """
        if tampering is not None:
            return _TAMPERS, tampering
        case = self._first_case(self.options.dtypes[0])
        inputs, function = make_inputs(case), self.implementation.function
        try:
            first = self._attempt(case, is_judged=False).outputs
            self.trusted.check()
            if first is None:
                return None
            with observed():
                again = run_once(function, case, inputs, on_copies=True)
        except ImplementationError:
            return None
        except TamperingError as found:
            return _TAMPERS, str(found)
        except ContractViolationError as found:
            return _ONLY_COMPUTES, str(found)
        is_shared = share_memory(first.y, again.y)
        return (y_shares_no_memory.name, SHARES_EARLIER_Y) if is_shared else None

    def _find_scope(self) -> None:
        """Find out what the target computes and takes, and put the target in that scope.

        Raises:
            UnsupportedError: it raises in every call.
        """
        target, options = self.implementation, self.options
        self.on_case(first_case(target.name, options.dtypes[0], options.device))
        unjudged = partial(self._attempt, is_judged=False)
        found = find_scope(target, options.dtypes, options.device, options.call, unjudged)
        scope, findings, instead = found
        if target.forward_only:
            scope = replace(scope, has_gradient=False)
        self.known = replace(self.known, scope=scope, instead=instead)
        self.implementation = self.search.implementation = within_scope(target, scope)
        self.findings += findings

    def _first_result(self, dtype: str) -> Outputs | None:
        """Return y of the first case, to be compared with its y after all other calls."""
        outputs = self._attempt(self._first_case(dtype), is_judged=False).outputs
        return None if outputs is None else Outputs(y=outputs.y.clone())

    def _try_cases(self) -> None:
        options = self.options
        for case in self.crashed:
            self.cases.add(self._attempt(case), "a crash")
        budget_s = self.budget.left_s
        is_limited = budget_s != float("inf")
        of_target = self.implementation, options.conditions, options.dtypes, options.device
        planned = planned_cases(*of_target, without=self.crashed, in_turns=is_limited)
        stop_at_s = (1 - _CASES_SHARE) * budget_s if is_limited else 0.0
        for index, next_case in enumerate(planned):
            failed = len(self.cases.failures)
            is_known = self.known.instead is not None and failed >= _ENOUGH_FAILURES
            if (options.fail_fast and failed) or is_known:
                return
            if self.budget.left_s <= stop_at_s:
                self.known = replace(self.known, left=len(planned) - index)
                return
            self._try_one(next_case)
            self.on_progress(self.verdict)
        if all(finding.kind != "left_out" for finding in self.findings):
            self.known = replace(self.known, coverage=coverage_of(self.implementation))

    def _search_source(self) -> None:
        """Try the cases that the target's code suggests, in each dtype, until one fails."""
        search, dtypes = self.search, self.options.dtypes
        for dtype in () if self.cases.failures else dtypes:
            failing: Change | None = None  # its other cases show where it fails
            cases = search.cases if dtype == dtypes[0] else search.again
            for planned, change in cases(dtype, self.options.device):
                if self.known.left or self.budget.left_s <= 0:
                    return
                if failing in {None, change}:
                    if self._try_one(planned):
                        search.turning[change] = None
                    failing = change if self.cases.failures else None
                    self.on_progress(self.verdict)
            if failing is not None:
                return
        search.observe_declined(self._first_case(dtypes[0]))

    def _try_one(self, planned: PlannedCase) -> bool:
        """Try a case; return whether it turned a decision in the target's code."""
        case = planned.case
        if self.budget.is_too_slow(case):
            reason = f"it would take about {self.budget.predicted_s(case):.0f} s"
            self.findings.append(limit("left_out", case.id, reason))
            return False
        judged = self._attempt(case, self.trusted)
        if not judged.is_representable:
            return False
        self.budget.add(judged)
        if self._is_misread_negation(judged):
            self.findings.append(remark(RemarkKind.NEGATED_MISREAD, _NEGATED, (case.dtype,)))
        else:
            self.cases.add(judged, planned.catches)
        # without an error bound, what a decision leads to does not show
        is_bounded = judged.status in NOT_WRONG - {Status.OUT_OF_GUARANTEE}
        is_settled = self.search.decisions.are_settled or self.budget.is_too_slow(case)
        if not is_bounded or is_settled:
            return False
        return self.search.observe(case, exact_of(case)[0])

    def _attempt_further(self, case: Case) -> Judged | None:
        """Try a case beyond the catalogue; None where that is outside the scope or too slow."""
        if case in self.further:
            return self.further[case]
        self.further[case] = None
        is_outside = scope_of(self.implementation).fit(case) != case or self._is_copied(case)
        if not (is_outside or case in self.crashed or self.budget.is_too_slow(case)):
            judged = self._attempt(case)
            if not self._is_misread_negation(judged):
                self.further[case] = replace(judged, outputs=None, function=None)
        return self.further[case]

    def _is_right_if_one_axis_is_normalised(self, failures: Sequence[Judged]) -> bool:
        """Whether failed cases are right once the last axis alone is normalised."""
        cases = (replace(trial.case, normalized_dims=1) for trial in failures)
        possible = [case for case in cases if is_possible(case) and case.hidden > 1]
        tried = map(self._attempt_further, possible[:_TRIED_ON_LAST_AXIS])
        statuses = {own.status for own in tried if own is not None}
        return bool(statuses) and statuses <= NOT_WRONG

    def _is_copied(self, case: Case) -> bool:
        """Whether the target may get a contiguous copy of x, with the number of axes it takes."""
        backward = case.direction is not Direction.FORWARD
        ndims = scope_of(self.implementation).ndims(backward=backward)
        return case.layout != "contiguous" and len(case.shape) not in ndims

    def _is_misread_negation(self, judged: Judged) -> bool:
        """Whether a result is better once neither x nor dy has a negative bit."""
        case = judged.case
        layout, grad_output = (_PLAIN.get(name, name) for name in (case.layout, case.grad_output))
        plain = replace(case, layout=layout, grad_output=grad_output)
        if judged.status not in {Status.WRONG, Status.INACCURATE} or plain == case:
            return False
        return attempt(self.implementation, plain).status in NOT_WRONG - {judged.status}

    def _observe_checks(self, case: Case) -> None:
        """Run contract checks of a module with the code that reports.

        They alone call other methods of a module than forward, such as train.
        """
        checks = [declared for declared in CHECKS if declared.is_of_modules]

        def call(case: Case) -> None:
            for declared in checks:
                with suppress(ImplementationError, ContractViolationError):
                    declared(self.implementation, case)

        decisions = self.search.decisions
        is_module = isinstance(adapter_of(self.implementation), ModuleFunction)
        if is_module and not decisions.are_settled:
            decisions.observe(case, partial(call, case))
            for shape in self.search.shapes if decisions.open else ():
                further = fitted(self.implementation, case, shape=shape)
                decisions.observe(further, partial(call, further))

    def _check_contract(self, first_results: Mapping[str, Outputs | None]) -> None:
        options, target = self.options, self.implementation
        for dtype in self.cases.right_dtypes:
            case, is_over = self._first_case(dtype), lambda: self.budget.left_s <= 0
            self._observe_checks(case)
            for finding in contract_findings(target, case, is_over, self.search.beyond):
                self.findings.append(finding)
                self.on_progress(self.verdict)
                if options.fail_fast and finding.severity is Severity.WRONG:
                    return
            first, again = first_results[dtype], self._first_result(dtype)
            is_missing = (first is None) is not (again is None)
            call = Call(target, case, make_inputs(case))
            if is_missing or (first and again and call.differing(first, again)):
                text = "changes the result of its first call in later calls"
                self._add_violation("first_result_does_not_change", text, dtype)
            graded = replace(case, shape=GRADED_SHAPE, normalized_dims=1)
            grading_s = _CALLS_TO_GRADE * self.budget.predicted_s(graded)
            if not options.fail_fast and grading_s < self.budget.left_s:
                grades = (*self.known.grades, grade(target, dtype, options.device))
                of_native = (*self.known.native_grades, _grade_of_native(dtype, options.device))
                self.known = replace(self.known, grades=grades, native_grades=of_native)
        if options.conditions > QUICKEST and self.cases.right_dtypes:
            direction = Direction.FORWARD if target.forward_only else Direction.BACKWARD
            many = replace(self._first_case(self.cases.right_dtypes[0]), direction=direction)
            if not self.budget.is_too_slow(replace(many, shape=(ROWS, COLUMNS))):
                free_bytes = DEVICES[options.device]().free_bytes()
                self.findings += large_findings(target, many, free_bytes)
        if options.huge_bytes is not None and self.cases.right_dtypes:
            narrow = min(self.cases.right_dtypes, key=lambda name: getattr(torch, name).itemsize)
            free_bytes = DEVICES[options.device]().free_bytes()  # None where that is unknown
            most_bytes = min(options.huge_bytes, free_bytes or options.huge_bytes)
            self.findings += huge_findings(target, self._first_case(narrow), most_bytes)


@cache
def _grade_of_native(dtype: str, device: str) -> Grade:
    return grade(native, dtype, device)


# --- what others call ---------------------------------------------------------------------------


Target = str | Implementation | Callable[..., Any]

Options = ParamSpec("Options")
Returned = TypeVar("Returned")
OfOptions = Callable[[Target, VerifyOptions], Returned]
OfKeywords = Callable[Concatenate[Target, Options], Returned]


def by_keyword(
    make: Callable[Options, VerifyOptions],
) -> Callable[[OfOptions[Returned]], OfKeywords[Options, Returned]]:
    """Let a function of a target and options take the options as keyword arguments."""

    def decorate(function: OfOptions[Returned]) -> OfKeywords[Options, Returned]:
        def called(target: Target, /, *none: Options.args, **options: Options.kwargs) -> Returned:
            return function(target, make(*none, **options))

        update_wrapper(called, function)
        own = inspect.signature(function).parameters["target"]
        keywords = inspect.signature(make).parameters.values()
        vars(called)["__signature__"] = inspect.Signature([own, *keywords])
        return called

    return decorate


@by_keyword(VerifyOptions)
def verify(target: Target, options: VerifyOptions) -> Verdict:
    """Verify one LayerNorm within its scope: by a covering array, case groups, contract checks.

    Args:
        target: an implementation, a function, a ``torch.nn.Module`` class or instance, a
            ``torch.autograd.Function`` class, or what :func:`implementations.find` finds. A
            target that declares nothing is held to the bound of PyTorch's own kernel or, if running
            sums explain every result outside that bound, to the bound of running sums.
        options: keyword arguments, the fields of :class:`harness.verify.result.VerifyOptions`.

    Raises:
        implementations.TargetError: ``target`` is a string that names nothing.
    """
    return verify_target(target, options)


def verify_target(
    target: Target,
    options: VerifyOptions,
    *,
    trusted: Trusted | None = None,
    crashed: Mapping[Case, str] | None = None,
    on_case: Callable[[Case], None] = lambda case: None,
    on_progress: Callable[[Callable[[], Verdict]], None] = lambda verdict: None,
) -> Verdict:
    """Verify a target, and say how far that is.

    Args:
        target: as :func:`verify` takes it.
        options: what to verify.
        trusted: what measures and judges the target, taken before anything of it was imported; None
            to take it now.
        crashed: cases that ended an earlier process, and how; they count as failed and are not
            tried again.
        on_case: called with each case before it is tried.
        on_progress: called after each case with a function that returns the verdict so far.

    Raises:
        implementations.TargetError: ``target`` is a string that names nothing.
    """
    trusted = trusted or Trusted()
    tampering = None
    try:
        find = partial(as_implementation, options=options.call)
        implementation = trusted.imported(target, find)
    except TamperingError as error:
        tampering, implementation = str(error), as_implementation(target, options.call)
    known = Verdict(
        target=implementation.name,
        handle=repr(target) if isinstance(target, str) else implementation.name,
        bound=implementation.algorithm.value,  # plain: the enumeration would import torch
        options=options.call.as_argument(),
        strength=options.conditions,
    )
    with settings_restored(), threads(1):
        return Verification(
            implementation=implementation,
            known=known,
            options=options,
            trusted=trusted,
            crashed=crashed or {},
            on_case=on_case,
            on_progress=on_progress,
        ).run(tampering)


def verify_case(
    target: Target,
    shape: tuple[int, ...],
    *,
    options: CallOptions | None = None,
    **axes: Any,
) -> Judged:
    """Try one case, given as fields of :class:`harness.records.Case`, or as strings.

    Args:
        target: as :func:`verify` takes it.
        shape: of x; its last axes are normalised.
        options: how the target is to be called.
        **axes: other fields of the case.

    Raises:
        implementations.TargetError: ``target`` is a string that names nothing.
    """
    options = options or CallOptions()
    implementation = as_implementation(target, options)
    if "direction" in axes:
        axes["direction"] = Direction(axes["direction"])
    case = Case(implementation=implementation.name, shape=shape, **axes)
    try:
        unjudged = partial(attempt, implementation, is_judged=False)
        scope, *_ = find_scope(implementation, (case.dtype,), case.device, options, unjudged)
    except UnsupportedError as error:  # every call raises
        return Judged(case=case, status=Status.UNSUPPORTED, reason=str(error))
    judged = attempt(within_scope(implementation, scope), case, measure=measure_errors)
    return replace(judged, outputs=None, function=None)


def as_implementation(target: Target, options: CallOptions | None = None) -> Implementation:
    """Return ``target`` as an implementation.

    Raises:
        implementations.TargetError: ``target`` is a string that names nothing.
    """
    if isinstance(target, str):
        return implementations.find(target, options)
    name = getattr(target, "__name__", None) or type(target).__name__
    return implementations.adopt(target, name, options)
