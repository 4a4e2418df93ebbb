"""The contract checks, which look beyond a single result, and how they are run.

Each module of this package holds the checks of one topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from harness.numerics.computed import ContractViolationError, ImplementationError
from harness.records import Case, Status
from harness.verify.checks.arguments import (
    accepts_arguments_like_torch,
    rejects_parameters_of_wrong_shape,
    rejects_parameters_with_fewer_axes,
    rejects_wrong_normalized_shape,
)
from harness.verify.checks.backward import (
    backward_accumulates_gradients,
    create_graph_gives_same_gradients,
    detects_in_place_changes,
    gradients_do_not_depend_on_requires_grad,
    retained_graph_gives_same_gradients,
    returns_every_gradient,
)
from harness.verify.checks.caller_state import (
    is_correct_under_autocast,
    is_unchanged_by_modes_of_the_caller,
    is_unchanged_in_inference_mode,
    keeps_accuracy_under_autocast,
    records_no_unwanted_graph,
    restores_process_state,
)
from harness.verify.checks.composition import (
    gradients_reach_the_source_of_x,
    hooks_run_once,
    trains_after_inference_mode,
)
from harness.verify.checks.concurrency import (
    is_correct_on_several_threads,
    is_safe_for_concurrent_callers,
)
from harness.verify.checks.honesty import (
    is_complete_when_it_returns,
    is_right_on_unknown_inputs,
    is_the_same_while_timed,
    normalises_normalised_rows,
)
from harness.verify.checks.lifetime import (
    frees_memory_after_a_call,
    frees_memory_without_collector,
)
from harness.verify.checks.memory import (
    accepts_every_layout,
    elements_do_not_overlap,
    gradients_do_not_share_dy,
    gradients_share_no_memory,
    respects_argument_strides,
    respects_negative_bit,
    y_shares_no_memory,
)
from harness.verify.checks.module import (
    initial_parameters_match_torch,
    is_unchanged_in_eval_mode,
    uses_its_eps_attribute,
    uses_its_own_parameters,
)
from harness.verify.checks.repetition import (
    repeated_calls_agree,
    sees_new_values_at_old_addresses,
)
from harness.verify.checks.second_derivative import (
    second_derivative_exists,
    second_derivative_is_correct,
)
from harness.verify.checks.settings import settings_of, words_of
from harness.verify.checks.storages import writes_only_its_results
from harness.verify.checks.streams import works_on_the_current_stream
from harness.verify.checks.training import (
    follows_parameter_updates,
    graphs_are_independent,
    returned_gradients_stay_unchanged,
)
from harness.verify.findings import Remark, RemarkKind, Violation
from harness.verify.scope import scope_of
from implementations.contract import Implementation

__all__ = ["BACKWARD_CHECKS", "CHECKS", "ContractCheck", "contract_findings"]

ContractCheck = Callable[[Implementation, Case], str | None]
"""Returns what is wrong, as a text for the user; None if nothing is.

The case gives shape, normalized axes and layout of x where the check does not choose its own.
"""

_MOST_NAMED = 3  # settings in one sentence


def contract_findings(
    implementation: Implementation,
    case: Case,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[Violation | Remark]:
    """Yield what each check finds at its settings, each fact once.

    Args:
        implementation: the target; a check is skipped if the target declines a call that it needs.
        case: gives dtype, device and direction; each check states its settings.
        is_over: whether to stop before the next check or setting.
    """
    facts: set[str] = set()
    for check in CHECKS if implementation.forward_only else CHECKS + BACKWARD_CHECKS:
        if is_over():
            return
        found: dict[Case, _Found | None] = {}
        for sized in _cases_at_settings(check, implementation, case):
            if found and is_over():
                break
            with suppress(_DeclinedError):
                found[sized] = _found_at(check, implementation, sized)
        first = next(filter(None, found.values()), None)
        if first is None or first.fact in facts:
            continue
        facts.add(first.fact)
        text = first.fact + _where(found)
        if first.kind is None:
            yield Violation(check=check.__name__, dtype=case.dtype, text=text)
        else:
            yield Remark(kind=first.kind, text=text, dtypes=(case.dtype,))


class _DeclinedError(Exception):
    """The target declines a call that the check needs."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What a check found at one setting."""

    fact: str
    kind: RemarkKind | None
    """None for a contract violation."""


def _cases_at_settings(
    check: ContractCheck, implementation: Implementation, case: Case
) -> list[Case]:
    """Return ``case`` at each setting of a check that lies within the target's scope."""
    scope = scope_of(implementation)
    fit = (scope.fit(setting.of(case)) for setting in settings_of(check))
    return list(dict.fromkeys(sized for sized in fit if sized is not None))


def _found_at(check: ContractCheck, implementation: Implementation, case: Case) -> _Found | None:
    try:
        fact = check(implementation, case)
    except ImplementationError as raised:
        if raised.status is Status.UNSUPPORTED:
            raise _DeclinedError from raised
        fact = f"raises in a call like others that succeed: {raised}"
        return _Found(fact, RemarkKind.RAISES)
    except ContractViolationError as violation:
        return _Found(str(violation), None)
    return None if fact is None else _Found(fact, REMARKS.get(check))


def _where(found: Mapping[Case, _Found | None]) -> str:
    """Return the settings at which a check fails, to end a sentence; "" if at all of them."""
    failed, passed = (
        [words_of(case) for case, each in found.items() if (each is None) is is_passed]
        for is_passed in (False, True)
    )
    if not passed:
        return ""
    named = failed[:_MOST_NAMED]
    if len(failed) > len(named):
        named.append(f"{len(failed) - _MOST_NAMED} more")
    return f", for an x of {' and '.join(named)}, but not of {passed[0]}"


CHECKS: tuple[ContractCheck, ...] = (
    y_shares_no_memory,
    elements_do_not_overlap,
    writes_only_its_results,
    frees_memory_after_a_call,
    frees_memory_without_collector,
    rejects_parameters_of_wrong_shape,
    rejects_wrong_normalized_shape,
    rejects_parameters_with_fewer_axes,
    repeated_calls_agree,
    sees_new_values_at_old_addresses,
    respects_argument_strides,
    respects_negative_bit,
    accepts_every_layout,
    is_correct_on_several_threads,
    is_safe_for_concurrent_callers,
    works_on_the_current_stream,
    accepts_arguments_like_torch,
    records_no_unwanted_graph,
    restores_process_state,
    keeps_accuracy_under_autocast,
    is_correct_under_autocast,
    is_unchanged_by_modes_of_the_caller,
    is_unchanged_in_inference_mode,
    is_unchanged_in_eval_mode,
    uses_its_eps_attribute,
    initial_parameters_match_torch,
    uses_its_own_parameters,
    is_complete_when_it_returns,
    is_right_on_unknown_inputs,
    is_the_same_while_timed,
    normalises_normalised_rows,
)
"""Run on every target."""

BACKWARD_CHECKS: tuple[ContractCheck, ...] = (
    returns_every_gradient,
    gradients_do_not_depend_on_requires_grad,
    retained_graph_gives_same_gradients,
    create_graph_gives_same_gradients,
    backward_accumulates_gradients,
    detects_in_place_changes,
    returned_gradients_stay_unchanged,
    graphs_are_independent,
    follows_parameter_updates,
    gradients_share_no_memory,
    gradients_do_not_share_dy,
    gradients_reach_the_source_of_x,
    hooks_run_once,
    trains_after_inference_mode,
    second_derivative_is_correct,
    second_derivative_exists,
)
"""Run on targets with a backward."""

REMARKS: dict[ContractCheck, RemarkKind] = {
    rejects_parameters_of_wrong_shape: RemarkKind.MALFORMED_ARGUMENTS,
    rejects_wrong_normalized_shape: RemarkKind.MALFORMED_ARGUMENTS,
    rejects_parameters_with_fewer_axes: RemarkKind.MALFORMED_ARGUMENTS,
    keeps_accuracy_under_autocast: RemarkKind.AUTOCAST,
    uses_its_eps_attribute: RemarkKind.SHOWN_EPS,
    initial_parameters_match_torch: RemarkKind.INITIAL_PARAMETERS,
    accepts_every_layout: RemarkKind.DECLINES_LAYOUT,
    respects_negative_bit: RemarkKind.NEGATED_MISREAD,
    detects_in_place_changes: RemarkKind.CHANGES_UNNOTICED,
    frees_memory_without_collector: RemarkKind.KEPT_IN_A_CYCLE,
    gradients_do_not_share_dy: RemarkKind.SHARES_DY,
    second_derivative_is_correct: RemarkKind.SECOND_DERIVATIVE_WRONG,
    second_derivative_exists: RemarkKind.SECOND_DERIVATIVE_MISSING,
}
"""Checks that yield a remark of this kind instead of a contract violation."""
