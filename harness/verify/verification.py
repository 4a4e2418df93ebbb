"""The verification of one target, step by step: scope, cases, contract checks, diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch

from harness.inputs import make_inputs
from harness.numerics.computed import ImplementationError, guarded
from harness.numerics.outputs import Outputs
from harness.records import Case, Status
from harness.run.integrity import TamperingError, Trusted
from harness.verify.case_results import CaseResults
from harness.verify.cases.plan import PlannedCase, coverage_of, planned_cases
from harness.verify.checks.contract_checks import contract_findings
from harness.verify.checks.huge import huge_findings
from harness.verify.checks.outputs import is_same_result
from harness.verify.diagnosis import diagnose
from harness.verify.find_scope import find_scope
from harness.verify.findings import Declined, Property, Remark, RemarkKind, Violation
from harness.verify.grade import grade
from harness.verify.identify import instead_of, meaning_of, remarks_on, what_is_raised
from harness.verify.identities import PROOFS, identities_of
from harness.verify.properties import properties_of
from harness.verify.result import Verdict
from harness.verify.running_sums import running_sum_claims
from harness.verify.scope import fitted, scope_of, within_scope
from harness.verify.state import VerificationState
from harness.verify.time_budget import TimeBudget
from harness.verify.trial import Trial, first_case, outputs_of, try_case
from harness.verify.trigger.triggers import triggers_of
from implementations import CallOptions
from implementations.contract import Implementation, UnsupportedError

__all__ = ["Verification", "run_verification"]

_CASES_SHARE = 0.7  # of a time budget; the rest is for contract checks
_CALLS_TO_INSPECT = 100  # of about 64x257 elements, for grades, properties and identities
_NOT_WRONG = {Status.OK, Status.OUT_OF_GUARANTEE}
_ENOUGH_FAILURES = 8  # of a target that computes another function; more show nothing new
_NEGATED = Remark(
    kind=RemarkKind.NEGATED_MISREAD,
    text="ignores the negative bit of a tensor, which torch sets in z.conj().imag, for example",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What to verify, and how; :func:`harness.verify.verify` describes the fields."""

    implementation: Implementation
    handle: str
    strength: int
    dtypes: tuple[str, ...]
    device: str
    options: CallOptions
    fail_fast: bool
    budget: TimeBudget
    huge_bytes: int | None
    crashed: Mapping[Case, str]
    trusted: Trusted
    tampering: str | None
    """What the import of the target changed; None if nothing."""
    on_case: Callable[[Case], None]
    on_progress: Callable[[Callable[[], Verdict]], None]

    def first_case(self, dtype: str) -> Case:
        """Return the first case of all, fitted to the target's scope."""
        case = first_case(self.implementation.name, dtype, self.device)
        return fitted(self.implementation, case)


def run_verification(run: Verification) -> Verdict:
    """Find the target's scope, try the cases, check the contract, and explain the failures."""
    state = VerificationState()
    run.trusted.mark_state()
    if tampering := run.tampering or _tampering_of_a_call(run):
        state.add(_violation(run, tampering))  # nothing that it returns can be judged
        return _verdict(run, state)
    try:
        run = _within_scope(run, state)
    except UnsupportedError as error:
        state.add(Declined(what="every call", cases=0, reason=str(error)))
        return _verdict(run, state)
    first_results = {dtype: _first_result(run, dtype) for dtype in run.dtypes}
    _try_cases(run, state)
    run.trusted.mark_state()
    if state.instead is None and not (run.fail_fast and state.cases.unexplained):
        _check_contract(run, state, first_results)
    try:
        run.trusted.check()
    except TamperingError as tampering:
        state.add(_violation(run, str(tampering)))
    if state.instead is None and not run.fail_fast and state.cases.unexplained:
        state.suspects = diagnose(run.implementation, state.cases.unexplained)
        state.triggers = triggers_of(state.cases, partial(_attempt, run))
        with suppress(TamperingError):  # of a mutant: what it changed is put back
            run.trusted.check()
    return _verdict(run, state)


def _tampering_of_a_call(run: Verification) -> str | None:
    """Return what a call changes outside the target; None if nothing."""
    case = first_case(run.implementation.name, run.dtypes[0], run.device)
    if case in run.crashed:
        return None
    run.on_case(case)
    inputs = make_inputs(case)
    call = guarded(
        run.implementation.function, inputs.x, case.normalized_shape, inputs.weight, inputs.bias
    )
    try:
        with torch.no_grad(), suppress(ImplementationError):  # it may decline the case
            call()
        run.trusted.check()
    except TamperingError as tampering:
        return str(tampering)
    return None


def _violation(run: Verification, tampering: str) -> Violation:
    return Violation(check="changes_nothing_outside_itself", dtype=run.dtypes[0], text=tampering)


def _within_scope(run: Verification, state: VerificationState) -> Verification:
    """Find out what the target computes and takes; return the run with the target in that scope.

    Raises:
        UnsupportedError: it raises in every call.
    """
    run.on_case(first_case(run.implementation.name, run.dtypes[0], run.device))
    meaning = meaning_of(run.implementation, run.device)
    scope, remarks = find_scope(
        run.implementation, meaning, run.dtypes, run.device, run.options, partial(_raised, run)
    )
    if run.implementation.forward_only:
        scope = replace(scope, has_gradient=False)
    implementation = within_scope(run.implementation, scope)
    state.scope = scope
    state.instead = instead_of(meaning, scope)
    state.cases = CaseResults(claims=running_sum_claims(implementation))
    for remark in (*remarks, *remarks_on(meaning, scope)):
        state.add(remark)
    return replace(run, implementation=implementation)


def _raised(
    run: Verification, implementation: Implementation, case: Case
) -> ImplementationError | None:
    if case in run.crashed:
        return ImplementationError(Status.CRASHED, run.crashed[case])
    run.on_case(case)
    return what_is_raised(implementation, case)


def _first_result(run: Verification, dtype: str) -> Outputs | None:
    """Return y of the first case, to be compared with its y after all other calls."""
    case = run.first_case(dtype)
    if case in run.crashed:
        return None
    run.on_case(case)
    outputs = outputs_of(run.implementation, case)
    return None if outputs is None else Outputs(y=outputs.y.clone())


def _try_cases(run: Verification, state: VerificationState) -> None:
    for case, reason in run.crashed.items():
        if case.dtype in run.dtypes:
            trial = Trial(case=case, status=Status.CRASHED, reason=reason)
            state.cases.add(trial, "a crash")
    budget_s = run.budget.left_s
    is_limited = budget_s != float("inf")
    planned = planned_cases(
        run.implementation,
        run.strength,
        run.dtypes,
        run.device,
        without=run.crashed,
        in_turns=is_limited,
    )
    stop_at_s = (1 - _CASES_SHARE) * budget_s if is_limited else 0.0
    for place, each in enumerate(planned):
        failed = len(state.cases.unexplained)
        if (run.fail_fast and failed) or (state.instead is not None and failed >= _ENOUGH_FAILURES):
            return
        if run.budget.left_s <= stop_at_s:
            state.cases_left = len(planned) - place
            return
        _try_one(run, state, each)
        run.on_progress(partial(_verdict, run, state))
    if not any(not each.by_target for each in state.left_out):
        state.coverage = coverage_of(run.implementation, run.strength)


def _try_one(run: Verification, state: VerificationState, planned: PlannedCase) -> None:
    case = planned.case
    if run.budget.is_too_slow(case):
        reason = f"it would take about {run.budget.predicted_s(case):.0f} s"
        state.add(Declined(what=case.id, cases=1, reason=reason, by_target=False))
        return
    run.on_case(case)
    claims = state.cases.claims_left(case.dtype)
    trial = try_case(run.implementation, case, claims, run.trusted)
    if not trial.is_representable:
        return
    run.budget.add(trial)
    if trial.status is Status.WRONG and _is_misread_negation(run, case):
        state.add(replace(_NEGATED, dtypes=(case.dtype,)))
        return
    state.cases.add(trial, planned.catches)


def _attempt(run: Verification, case: Case) -> Trial | None:
    """Try a case beyond the catalogue; None where that is outside the scope or too slow."""
    is_outside = scope_of(run.implementation).fit(case) != case
    if is_outside or case in run.crashed or run.budget.is_too_slow(case):
        return None
    run.on_case(case)
    trial = try_case(run.implementation, case)
    is_negation = trial.status is Status.WRONG and _is_misread_negation(run, case)
    return None if is_negation else trial


def _is_misread_negation(run: Verification, case: Case) -> bool:
    """Whether a wrong result is right once neither x nor dy has a negative bit."""
    layout = "contiguous" if case.layout == "negated" else case.layout
    has_negated_dy = case.grad_output == "negated_normal"
    plain = replace(
        case, layout=layout, grad_output="shifted_normal" if has_negated_dy else case.grad_output
    )
    return plain != case and try_case(run.implementation, plain).status in _NOT_WRONG


def _check_contract(
    run: Verification, state: VerificationState, first_results: Mapping[str, Outputs | None]
) -> None:
    for dtype in state.cases.right_dtypes:
        case, held = run.first_case(dtype), state.cases.claim_for(dtype, run.implementation)
        for finding in contract_findings(held, case, lambda: run.budget.left_s <= 0):
            state.add(finding)
            run.on_progress(partial(_verdict, run, state))
            if run.fail_fast and state.violations:
                return
        if not is_same_result(held, case, first_results[dtype], _first_result(run, dtype)):
            text = "the result of the first call changed after later calls"
            state.add(Violation(check="first_result_does_not_change", dtype=dtype, text=text))
        if not run.fail_fast and _has_time_to_inspect(run, case):
            _inspect(run, state, held, case)
    if run.huge_bytes is not None and state.cases.right_dtypes:
        dtype = min(state.cases.right_dtypes, key=lambda name: getattr(torch, name).itemsize)
        held = state.cases.claim_for(dtype, run.implementation)
        for huge_finding in huge_findings(held, run.first_case(dtype), run.huge_bytes):
            state.add(huge_finding)


def _has_time_to_inspect(run: Verification, case: Case) -> bool:
    """Whether the calls for grades, properties and identities fit into the time left."""
    per_call_s = run.budget.predicted_s(replace(case, shape=(64, 257), normalized_dims=1))
    return _CALLS_TO_INSPECT * per_call_s < run.budget.left_s


def _inspect(run: Verification, state: VerificationState, held: Implementation, case: Case) -> None:
    """Add grades and properties, which never fail a target, and identities, which do."""
    state.grades.append(grade(run.implementation, case.dtype, run.device))
    for properties, is_identity in (
        (properties_of(run.implementation, case), False),
        (identities_of(held, case), True),
    ):
        state.properties += [
            Property(name=name, dtype=case.dtype, holds=holds, is_identity=is_identity)
            for name, holds in properties.items()
        ]
        for name, holds in properties.items():
            if holds is False and name in PROOFS:
                text = f"its results break an identity beyond their error bounds: {PROOFS[name]}"
                state.add(Violation(check=name, dtype=case.dtype, text=text))


def _verdict(run: Verification, state: VerificationState) -> Verdict:
    """Return the verdict on what was found so far."""
    cases = state.cases
    failed = len(cases.unexplained)
    return Verdict(
        target=run.implementation.name,
        handle=run.handle,
        algorithm=run.implementation.algorithm,
        instead=state.instead if failed else None,
        scope=state.scope,
        remarks=state.all_remarks(),
        ok=cases.count(Status.OK),
        out_of_guarantee=cases.count(Status.OUT_OF_GUARANTEE),
        failed=failed,
        left=state.cases_left,
        counts=cases.counts(),
        coverage=state.coverage,
        running_sums=cases.running_sums(),
        failures=cases.failures(),
        violations=tuple(state.violations),
        declined=state.declined,
        extents=cases.extents(run.dtypes),
        suspects=state.suspects,
        triggers=state.triggers,
        grades=tuple(state.grades),
        properties=tuple(state.properties),
        options=run.options.as_argument(),
        wall_s=run.budget.elapsed_s,
        oracle_s=sum(each.oracle_s for each in cases.trials),
        implementation_s=sum(each.implementation_s for each in cases.trials),
    )
