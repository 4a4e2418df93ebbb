"""Which check of one call, or of several, catches a mutant."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache

import torch
from interactions import is_caught_by_interaction
from mutant_cases import case_of, cases_of_many_rows, contiguous_cases, other_layouts
from side_effects import is_caught_by_effect
from torch import Tensor
from torch.nn import functional

from harness.inputs import LAYOUTS, Inputs, make_inputs
from harness.inputs.grad_outputs import LAYOUT_OF
from harness.numerics.bounds import guarantee_of
from harness.numerics.computed import ContractViolationError, grad_mode, run_once
from harness.numerics.error_measurement import measure_errors
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.records import Case
from harness.verify.mutants import CheckKind, Mutant
from harness.verify.mutants.mutant import HALVES
from harness.verify.process_state import process_state_restored
from implementations import Implementation
from implementations.contract import LayerNormFunction


@cache
def arranged(case: Case) -> tuple[Inputs, Reference]:
    """The inputs of a case and its exact result, the same for all mutants."""
    inputs = make_inputs(case)
    lay = LAYOUTS[case.layout]
    laid = {
        name: lay(each)
        for name in ("weight", "bias", "dy")
        if (each := getattr(inputs, name)) is not None
        and (name != "dy" or case.grad_output not in LAYOUT_OF)
    }
    inputs = replace(inputs, **laid)
    return inputs, Reference(inputs, case)


def copied(tensor: Tensor | None) -> Tensor | None:
    """Another tensor in memory of its own, laid out the same."""
    if tensor is not None and tensor.is_neg():  # deepcopy keeps strides, and not that bit
        return torch._neg_view(deepcopy(torch._neg_view(tensor)))
    return deepcopy(tensor)


def undeclared(function: LayerNormFunction) -> Implementation:
    return Implementation(name="mutant", function=function, source="")


def beyond(
    outputs: Outputs,
    inputs: Inputs,
    case: Case,
    implementation: Implementation,
    reference: Reference | None = None,
) -> set[str]:
    """The names of the outputs that exceed their bound."""
    reference = reference or Reference(inputs, case)
    guarantee = guarantee_of(implementation, case)
    errors = measure_errors(outputs, inputs, case, guarantee, reference)
    return {
        each.output
        for each in errors.outputs
        if each.bound_ratio is not None and not each.bound_ratio <= 1
    }


def finding(
    function: LayerNormFunction, case: Case, implementation: Implementation
) -> CheckKind | None:
    """The first kind of check that one call fails, or None."""
    inputs, reference = arranged(case)
    lent = Inputs(*(copied(each) for each in (inputs.x, inputs.weight, inputs.bias, inputs.dy)))
    try:
        with grad_mode(case):
            outputs = run_once(function, case, lent)
    except ContractViolationError:
        return CheckKind.CONTRACT
    broken = beyond(outputs, inputs, case, implementation, reference)
    if broken and case.layout != "contiguous":
        return CheckKind.LAYOUT
    if "y" in broken:
        return CheckKind.VALUES
    return CheckKind.GRADIENT if broken else None


def is_caught_by_repetition(function: LayerNormFunction, dtype: str) -> bool:
    """Whether calls with other data at one address, other parameters, eps or shape are wrong."""
    return any(_is_wrong_again(function, dtype, shape) for shape in ((8, 64), (2, 1088)))


def _is_wrong_again(function: LayerNormFunction, dtype: str, most: tuple[int, int]) -> bool:
    buffers: dict[tuple[int, ...], Tensor] = {}
    earlier: list[tuple[Tensor, Tensor]] = []
    for seed in range(12):  # more than the ten calls for which one mutant is right
        shape = (6, 32) if seed % 3 == 2 else most
        case = case_of(dtype, shape, eps=0.5 if seed % 2 else 1e-5, seed=seed)
        drawn = make_inputs(case)
        inputs = replace(drawn, x=buffers.setdefault(case.shape, drawn.x).copy_(drawn.x))
        outputs = run_once(function, case, inputs)
        if any(not torch.equal(y, kept) for y, kept in earlier):
            return True
        earlier.append((outputs.y, outputs.y.clone()))
        if beyond(outputs, inputs, case, undeclared(function)):
            return True
    return False


def is_caught_by_threads(function: LayerNormFunction, dtype: str) -> bool:
    """Whether the result on two threads is wrong."""
    case = case_of(dtype, (301, 256))
    inputs = make_inputs(case)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        outputs = run_once(function, case, inputs)
    finally:
        torch.set_num_threads(before)
    return bool(beyond(outputs, inputs, case, undeclared(function)))


def is_caught_by_autograd(function: LayerNormFunction, dtype: str) -> bool:
    """Whether gradients are wrong that are computed singly, twice, or after inputs have changed."""
    return any(
        _has_wrong_graph(function, case_of(dtype, shape, **axes))
        for shape, axes in (
            ((8, 65), {}),
            ((2, 3, 1088), {}),
            ((3, 4, 6, 10), {"normalized_dims": 2}),
            ((8, 65), {"layout": "padded_rows"}),
        )
    )


def _has_wrong_graph(function: LayerNormFunction, case: Case) -> bool:
    dtype, wanted, drawn = case.dtype, ("x", "weight", "bias"), make_inputs(case)

    def recorded(*names: str) -> tuple[Tensor, list[Tensor]]:
        copies = make_inputs(case)
        given = [getattr(copies, name).requires_grad_(name in names) for name in wanted]
        y = function(given[0], case.normalized_shape, given[1], given[2], 1e-5)
        return y, [each for each in given if each.requires_grad]

    y, leaves = recorded(*wanted)
    first = torch.autograd.grad(y, leaves, drawn.dy, retain_graph=True)
    kept = [each.clone() for each in first]
    again = [torch.autograd.grad(y, leaves, drawn.dy, retain_graph=True)]
    twice = torch.autograd.grad(y, leaves, 2 * drawn.dy)
    if not all(map(torch.equal, twice, [2 * each for each in kept])):
        return True
    for name, expected in zip(wanted, kept, strict=True):
        y, leaves = recorded(name)
        if not y.requires_grad or not torch.equal(
            torch.autograd.grad(y, leaves, 2 * drawn.dy)[0], 2 * expected
        ):
            return True
    y, leaves = recorded(*wanted)
    with torch.no_grad():
        leaves[0].zero_()
    with suppress(RuntimeError):  # autograd notices it
        again.append(torch.autograd.grad(y, leaves, drawn.dy))
    if dtype not in HALVES and not has_second_derivative(function, drawn.x):
        return True
    y, leaves = recorded(*wanted)
    torch.autograd.grad(y, leaves, 3 * drawn.dy)  # it must not overwrite earlier results
    return any(
        not torch.equal(one, other)
        for found in (first, *again)
        for one, other in zip(found, kept, strict=True)
    )


def has_second_derivative(function: LayerNormFunction, x: Tensor) -> bool:
    """Whether the second derivative of sin(y) agrees with the kernel's own, or is refused."""
    found = []
    for each in (function, functional.layer_norm):
        leaf = x.clone().requires_grad_()
        value = each(leaf, x.shape[-1:], None, None, 1e-5).sin().sum()
        (first,) = torch.autograd.grad(value, leaf, create_graph=True)
        if not first.requires_grad:  # it refuses
            return True
        found += torch.autograd.grad(first.square().sum(), leaf)
    return torch.allclose(*found, rtol=1e-2, atol=1e-2 * float(found[1].abs().amax()))


def catching_check(mutant: Mutant, dtype: str) -> CheckKind | None:
    """The weakest check that catches a mutant; CheckKind lists them from weak to strong."""
    with process_state_restored():
        if caught := wrong_result(mutant, dtype):
            return caught
    has_effect = is_caught_by_effect(mutant.fresh(), getattr(torch, dtype))
    return CheckKind.EFFECT if has_effect else None


def wrong_result(mutant: Mutant, dtype: str) -> CheckKind | None:
    """The weakest check of results that catches a mutant."""
    order = list(CheckKind)
    claimed = undeclared(mutant.function)
    caught: set[CheckKind] = set()
    for case in (*contiguous_cases(dtype), *other_layouts(dtype)):
        if check := finding(mutant.fresh(), case, claimed):
            caught.add(check)
        if check is CheckKind.VALUES:
            return check
    if caught:
        return min(caught, key=order.index)
    if is_caught_by_repetition(mutant.fresh(), dtype):
        return CheckKind.REPETITION
    if is_caught_by_threads(mutant.fresh(), dtype):
        return CheckKind.THREADS
    if is_caught_by_autograd(mutant.fresh(), dtype):
        return CheckKind.GRAPH
    if is_caught_by_interaction(mutant.fresh(), getattr(torch, dtype)):
        return CheckKind.INTERACTION
    # last, because they take longest
    large = (finding(mutant.fresh(), case, claimed) for case in cases_of_many_rows(dtype))
    return min(filter(None, large), key=order.index, default=None)
