"""Contract checks, which look beyond a single result: their order, arguments, repetition.

The others are in the modules named ``*_contract``, after what they check, and in
:mod:`harness.verify.checks.second_derivative`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from harness.inputs import make_inputs
from harness.numerics.computed import ContractViolationError, ImplementationError, refuses
from harness.numerics.error_measurement import Outputs
from harness.records import Affine, Case, Direction, Status
from harness.verify.checks.answers import (
    differing_outputs,
    elsewhere,
    has_bits_of,
    outputs_beyond,
    outputs_of,
    y_of,
)
from harness.verify.checks.backward import (
    adds_to_what_there_is,
    gives_each_gradient,
    gives_the_gradients_asked_for,
    gives_the_same_recorded,
    gives_them_again,
    notices_what_has_changed,
)
from harness.verify.checks.calls import (
    is_as_right_under_autocast,
    is_right_under_autocast,
    is_the_same_in_inference_mode,
    leaves_the_process_as_it_was,
    records_nothing_unasked,
    serves_several_callers_at_once,
    takes_arguments_as_torch_does,
)
from harness.verify.checks.memory import (
    has_memory_for_each_element,
    reads_what_is_negated,
    reads_what_lies_anywhere,
    shares_no_memory,
    takes_what_lies_anywhere,
)
from harness.verify.checks.module import (
    adds_the_eps_it_shows,
    is_the_same_in_evaluation,
    starts_as_torchs_does,
    uses_its_own_parameters,
)
from harness.verify.checks.second_derivative import (
    differentiates_again_correctly,
    differentiates_again_without_error,
)
from harness.verify.checks.training import (
    follows_its_parameters,
    keeps_graphs_apart,
    leaves_given_gradients_alone,
)
from harness.verify.findings import Remark, RemarkKind
from harness.verify.scope import fitted, scope_of
from implementations.contract import Implementation

__all__ = ["BACKWARD_CHECKS", "CHECKS", "contract_findings"]

CALLS = 100  # a cache of the first few results is found out
_MOST_S = 2.0  # for a slow target, fewer calls
_THREADS, _RACES = 4, 3
# Enough for two threads of PyTorch, which gives each 32768 elements, and a row over; and fewer rows
# than threads.
_SHARED = ((257, 256), (2, 20_000), (3, 96))

Check = Callable[[Implementation, Case], str | None]
"""Returns what it found, or None."""


def contract_findings(
    implementation: Implementation,
    case: Case,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[str | Remark]:
    """Yield what each check finds, once: a text for a contract violation, or a remark.

    Args:
        implementation: what is checked; a check that needs a call which it declines finds nothing.
        case: gives dtype, device and direction; shapes are chosen here.
        is_over: whether to stop before the next check.
    """
    seen: set[str] = set()
    for check in CHECKS if implementation.forward_only else CHECKS + BACKWARD_CHECKS:
        if is_over():
            return
        kind = REMARKS.get(check)
        try:
            found = check(implementation, case)
        except ImplementationError as ended:
            if ended.status is Status.UNSUPPORTED:
                continue
            kind, found = (
                RemarkKind.RAISES,
                f"raises in a call like others that it answers: {ended}",
            )
        except ContractViolationError as broken:
            kind, found = None, str(broken)
        if found and found not in seen:
            seen.add(found)
            yield found if kind is None else Remark(kind=kind, text=found)


def refuses_wrong_parameters(implementation: Implementation, case: Case) -> str | None:
    """A weight or bias of another shape is an error, not something to broadcast."""
    asked = fitted(implementation, case, shape=(4, 6), direction=Direction.FORWARD)
    inputs, shape = make_inputs(asked), asked.normalized_shape
    for name in ("weight", "bias"):
        parameter = getattr(inputs, name)
        if parameter is None:
            continue
        half = parameter[: shape[0] // 2]
        for wrong in (
            parameter[:1],
            half,
            parameter.repeat(2, *(1 for _ in shape[1:])),
            parameter.expand(4, *shape),
        ):
            given = {"weight": inputs.weight, "bias": inputs.bias, name: wrong}
            arguments = (inputs.x, shape, given["weight"], given["bias"], asked.eps)
            if wrong.shape == shape or refuses(implementation.function, *arguments):
                continue
            return (
                f"accepts a {name} of shape {list(wrong.shape)} for a normalized_shape of "
                f"{list(shape)}"
            )
    return None


def refuses_a_wrong_shape(implementation: Implementation, case: Case) -> str | None:
    """A normalized_shape that x does not end in is an error."""
    if scope_of(implementation).normalized_shape is not None:
        return None
    asked = fitted(implementation, case, shape=(4, 6), direction=Direction.FORWARD)
    inputs = make_inputs(asked)
    for wrong in ((4,), (2, 6), (4, 3), (3, 4, 6)):
        count = len(wrong)
        parameters: list[Tensor | None] = [None, None]
        if Affine.NONE not in scope_of(implementation).affines:
            given = (inputs.weight, inputs.bias)
            parameters = [None if each is None else each.new_ones(wrong) for each in given]
        if count in scope_of(implementation).normalized_dims and not refuses(
            implementation.function, inputs.x, wrong, *parameters, asked.eps
        ):
            return f"accepts a normalized_shape of {list(wrong)} for an x of shape [4, 6]"
    return None


def refuses_parameters_of_fewer_axes(implementation: Implementation, case: Case) -> str | None:
    """Of several normalized axes weight and bias have all."""
    asked = replace(case, shape=(3, 5, 7), normalized_dims=2, direction=Direction.FORWARD)
    asked = fitted(implementation, asked)
    inputs, shape = make_inputs(asked), asked.normalized_shape
    if inputs.weight is None or inputs.bias is None or len(shape) < 2:
        return None
    y_of(implementation, asked, inputs)  # what declines two axes declines this check
    for weight, bias in ((inputs.weight[0], inputs.bias), (inputs.weight, inputs.bias[0])):
        if not refuses(implementation.function, inputs.x, shape, weight, bias, asked.eps):
            return (
                f"accepts a weight or bias of shape {list(shape[1:])} for a normalized_shape of "
                f"{list(shape)}"
            )
    return None


def answers_alike_every_time(implementation: Implementation, case: Case) -> str | None:
    """The hundredth call gives what the first gave, with other calls between them."""
    case = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    inputs = make_inputs(case)
    given = y_of(implementation, case, inputs)
    first, kept = Outputs(y=given.clone()), [(given, given.clone())]
    other = fitted(implementation, case, seed=case.seed + 1, eps=0.25)
    began = perf_counter()
    others = make_inputs(other)
    expected = Outputs(y=y_of(implementation, other, others).clone())
    # with its check of the inputs, a call of a slow target: the fewer of them
    calls = min(CALLS, max(4, int(_MOST_S / (perf_counter() - began))))
    for call in range(2, calls + 1):
        again = Outputs(y=y_of(implementation, case, inputs))
        kept.append((again.y, again.y.clone()))
        if call in (2, calls) and differing_outputs(implementation, case, inputs, first, again):
            return f"call {call} gives another answer than the first, for the same arguments"
    again = Outputs(y=y_of(implementation, other, others))
    if differing_outputs(implementation, other, others, expected, again):
        return "an answer changes when other calls have come between"
    # bit by bit: no two random inputs have the same LayerNorm
    if torch.equal(first.y, expected.y):
        return "gives the same answer for other arguments of the same shape"
    if not all(torch.equal(y, copy) for y, copy in kept):
        return "y changes after it was returned, when later calls are made"
    return None


def sees_new_data(implementation: Implementation, case: Case) -> str | None:
    """New numbers at the old address, and a new weight or shape, are not taken for the old ones."""
    case = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    inputs = make_inputs(case)
    held = inputs.at([each.clone() for each in inputs.tensors])
    y_of(implementation, case, held)
    later = make_inputs(replace(case, seed=case.seed + 1))
    for name in ("x", "weight", "bias"):
        tensor, new = getattr(held, name), getattr(later, name)
        if tensor is None:
            continue
        tensor.copy_(new)
        fresh = replace(held, **{name: elsewhere(new)})
        of_held = Outputs(y=y_of(implementation, case, held).clone())
        of_fresh = Outputs(y=y_of(implementation, case, fresh))
        if differing_outputs(implementation, case, fresh, of_fresh, of_held):
            return f"takes new numbers in {name} at an old address for the old ones"
    longer = fitted(implementation, case, shape=(4, 48))
    y_of(implementation, longer, make_inputs(longer))  # another shape must not stop it
    return None


def is_right_on_several_threads(implementation: Implementation, case: Case) -> str | None:
    """Several threads of the CPU are as right as one, each time: none's rows or sums are lost."""
    if case.device != "cpu":
        return None
    direction = Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
    for shape in _SHARED:
        asked = fitted(implementation, case, shape=shape, direction=direction)
        if found := _loses_what_is_shared(implementation, asked):
            return found
    return None


def _loses_what_is_shared(implementation: Implementation, asked: Case) -> str | None:
    """Return what is right on one thread alone."""
    inputs = make_inputs(asked)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = outputs_of(implementation, asked, inputs)
        torch.set_num_threads(_THREADS)
        for _ in range(_RACES):
            shared = outputs_of(implementation, asked, inputs)
            if has_bits_of(shared, alone):
                continue
            right, wrong = (
                outputs_beyond(implementation, asked, inputs, each) for each in (alone, shared)
            )
            for name in sorted(wrong - right):
                return f"{name} is right on one thread and wrong on {_THREADS}"
    finally:
        torch.set_num_threads(before)
    return None


CHECKS: tuple[Check, ...] = (
    shares_no_memory,
    has_memory_for_each_element,
    refuses_wrong_parameters,
    refuses_a_wrong_shape,
    refuses_parameters_of_fewer_axes,
    answers_alike_every_time,
    sees_new_data,
    reads_what_lies_anywhere,
    reads_what_is_negated,
    takes_what_lies_anywhere,
    is_right_on_several_threads,
    serves_several_callers_at_once,
    takes_arguments_as_torch_does,
    records_nothing_unasked,
    leaves_the_process_as_it_was,
    is_as_right_under_autocast,
    is_right_under_autocast,
    is_the_same_in_inference_mode,
    is_the_same_in_evaluation,
    adds_the_eps_it_shows,
    starts_as_torchs_does,
    uses_its_own_parameters,
)
"""Of a forward, and of a backward where there is one."""

BACKWARD_CHECKS: tuple[Check, ...] = (
    gives_each_gradient,
    gives_the_gradients_asked_for,
    gives_them_again,
    gives_the_same_recorded,
    adds_to_what_there_is,
    notices_what_has_changed,
    leaves_given_gradients_alone,
    keeps_graphs_apart,
    follows_its_parameters,
    differentiates_again_correctly,
    differentiates_again_without_error,
)
"""Of a backward, asked of those that have one."""

REMARKS: dict[Check, RemarkKind] = {
    refuses_wrong_parameters: RemarkKind.MALFORMED_ARGUMENTS,
    refuses_a_wrong_shape: RemarkKind.MALFORMED_ARGUMENTS,
    refuses_parameters_of_fewer_axes: RemarkKind.MALFORMED_ARGUMENTS,
    is_as_right_under_autocast: RemarkKind.AUTOCAST,
    adds_the_eps_it_shows: RemarkKind.SHOWN_EPS,
    starts_as_torchs_does: RemarkKind.INITIAL_PARAMETERS,
    takes_what_lies_anywhere: RemarkKind.DECLINES_LAYOUT,
    reads_what_is_negated: RemarkKind.NEGATED_MISREAD,
    notices_what_has_changed: RemarkKind.CHANGES_UNNOTICED,
    differentiates_again_correctly: RemarkKind.SECOND_DERIVATIVE_WRONG,
    differentiates_again_without_error: RemarkKind.SECOND_DERIVATIVE_MISSING,
}
"""Checks whose finding does not make a LayerNorm wrong."""
