"""Contract checks of memory: results own theirs, and arguments may have any layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from harness.inputs import LAYOUTS, Inputs, make_inputs
from harness.numerics.completeness import copies_of
from harness.numerics.computed import ImplementationError, guarded
from harness.numerics.outputs import GRADIENTS, OUTPUTS
from harness.records import Case, Direction, Status
from harness.verify.checks.graph import Graph, leaves_of, training_case
from harness.verify.checks.outputs import (
    compute,
    compute_y,
    differing_outputs,
    elsewhere,
    forward_case,
    has_bits_of,
)
from harness.verify.checks.settings import (
    BLOCK,
    EVERY_SETTING,
    LONG_TAIL,
    ONE_ROW,
    PATHS,
    SMALL,
    TWO_AXES,
    at,
)
from harness.verify.scope import fitted, scope_of
from implementations.contract import Implementation

__all__ = [
    "accepts_every_layout",
    "elements_do_not_overlap",
    "gradients_do_not_share_dy",
    "gradients_share_no_memory",
    "respects_argument_strides",
    "respects_negative_bit",
    "y_shares_no_memory",
]

Layout = Callable[[Tensor], Tensor]

_NEGATED: dict[str, Layout] = {"negated": LAYOUTS["negated"]}
_STRIDED: dict[str, Layout] = {
    **{name: place for name, place in LAYOUTS.items() if name != "negated"},
    "expanded_scalar": lambda tensor: tensor.new_ones(()).expand_as(tensor),
}


@at(*EVERY_SETTING)
def y_shares_no_memory(implementation: Implementation, case: Case) -> str | None:
    """y shares no memory with x, weight, bias or the y of the call before."""
    case, inputs = forward_case(implementation, case)
    first, second = (compute_y(implementation, case, inputs) for _ in range(2))
    owners = {"x": inputs.x, "weight": inputs.weight, "bias": inputs.bias, "an earlier y": first}
    for name, tensor in owners.items():
        if tensor is not None and _share_memory(tensor, second):
            return f"y shares the memory of {name}"
    return None


@at(*EVERY_SETTING)
def gradients_share_no_memory(implementation: Implementation, case: Case) -> str | None:
    """A gradient changed in place changes no other gradient, nor y, dy or an argument."""
    case, inputs = training_case(implementation, case)
    graph = Graph.of(implementation, case, inputs)
    outputs = graph.gradients()
    gradients = {
        name: gradient for name in GRADIENTS if (gradient := getattr(outputs, name)) is not None
    }
    others = {name: leaf.detach() for name, leaf in graph.leaves.items()}
    others |= {"y": outputs.y, "dy": graph.dy, **gradients}
    for name, gradient in gradients.items():
        before = {other: tensor.clone() for other, tensor in others.items() if other != name}
        with suppress(RuntimeError):  # its elements overlap, which is another check's
            gradient.add_(1)
        for other, values in before.items():
            if not torch.equal(others[other], values):
                return f"{name} shares the memory of {other}"
    return None


@at(ONE_ROW)
def gradients_do_not_share_dy(implementation: Implementation, case: Case) -> str | None:
    """With one row, dbias equals dy, and has its own memory all the same."""
    case, inputs = training_case(implementation, case)
    assert inputs.dy is not None  # a case with gradients has one
    leaves, dy = leaves_of(inputs), inputs.dy.clone()
    graph = Graph.on(leaves, dy, implementation, case)
    guarded(graph.y.backward, dy)()  # autograd copies a gradient that is dy itself, but not a view
    for name, leaf in leaves.items():
        if leaf.grad is not None and _share_memory(leaf.grad, dy):
            return f"{name}.grad shares the memory of dy where x has one row"
    return None


@at(*PATHS)
def elements_do_not_overlap(implementation: Implementation, case: Case) -> str | None:
    """No two elements of y or of a gradient have the same address.

    Apart from that, strides are free. An expanded x is included because a result that copies its
    strides would overlap.
    """
    directions = [Direction.FORWARD]
    if not implementation.forward_only:
        directions.append(Direction.BACKWARD)
    for layout, direction in product((case.layout, "expanded"), directions):
        wanted = replace(case, layout=layout)
        sized = scope_of(implementation).fit(replace(wanted, direction=direction))
        if sized is None:
            continue
        try:
            outputs = compute(implementation, sized, make_inputs(sized))
        except ImplementationError:
            if layout == case.layout:
                raise
            continue  # the scope records which layouts the target declines
        for name in OUTPUTS:
            tensor = getattr(outputs, name)
            if tensor is not None and _overlaps(tensor):
                return f"elements of {name} overlap in memory, for an x in the layout {layout}"
    return None


@at(SMALL, TWO_AXES, BLOCK, LONG_TAIL)
def respects_argument_strides(implementation: Implementation, case: Case) -> str | None:
    """The strides of weight, bias and dy change no result.

    The dy of y.sum() is one number, expanded; the dy behind a transposed y is transposed.
    """
    return _changes_with_layout(implementation, case, _STRIDED)


@at(SMALL, TWO_AXES, BLOCK, LONG_TAIL)
def respects_negative_bit(implementation: Implementation, case: Case) -> str | None:
    """Weight, bias and dy may have the negative bit set, as z.conj().imag has."""
    found = _changes_with_layout(implementation, case, _NEGATED)
    return None if found is None else f"ignores the negative bit of a tensor: {found}"


@at(SMALL, TWO_AXES)
def accepts_every_layout(implementation: Implementation, case: Case) -> str | None:
    """Weight, bias and dy in another layout do not raise; the dy of y.sum() is expanded."""
    case = _with_gradients(implementation, case)
    scope = scope_of(implementation)
    known = {"dy": scope.declined_grad_outputs, "weight or bias": scope.declined_parameters}
    for argument, layout, _, inputs in _in_layouts(make_inputs(case), _STRIDED | _NEGATED):
        if known[argument]:
            continue  # the scope records that the target declines layouts of it
        try:
            compute(implementation, case, inputs)
        except ImplementationError as raised:
            if raised.status is not Status.UNSUPPORTED:
                return f"declines a {argument} in the layout {layout}: {raised}"
    return None


def _with_gradients(implementation: Implementation, case: Case) -> Case:
    """Return ``case`` with gradients if the target has them."""
    direction = Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
    return fitted(implementation, case, direction=direction)


def _in_layouts(
    inputs: Inputs, layouts: Mapping[str, Layout]
) -> Iterator[tuple[str, str, list[str], Inputs]]:
    """Yield the inputs with dy, or weight and bias, in each layout.

    Each comes with the arguments changed (in words), the layout's name and the arguments' names.
    """
    parameters = [name for name in ("weight", "bias") if getattr(inputs, name) is not None]
    groups = [("dy", ["dy"] if inputs.dy is not None else []), ("weight or bias", parameters)]
    for (argument, names), (layout, place) in product(groups, layouts.items()):
        if names:
            placed = {name: place(getattr(inputs, name)) for name in names}
            yield argument, layout, names, replace(inputs, **placed)


def _changes_with_layout(
    implementation: Implementation, case: Case, layouts: Mapping[str, Layout]
) -> str | None:
    """Return which output changes with the layout of which argument."""
    case = _with_gradients(implementation, case)
    for argument, layout, names, inputs in _in_layouts(make_inputs(case), layouts):
        dense = replace(inputs, **{name: elsewhere(getattr(inputs, name)) for name in names})
        try:
            expected = copies_of(compute(implementation, case, dense))
            outputs = compute(implementation, case, inputs)
        except ImplementationError:
            continue  # a layout that raises is declined
        if not has_bits_of(outputs, expected):
            for name in differing_outputs(implementation, case, dense, expected, outputs):
                return f"{name} changes with the layout of {argument}: {layout}"
    return None


def _overlaps(tensor: Tensor) -> bool:
    """Whether two elements have one address."""
    steps: tuple[int, ...] = tensor.stride()
    last = sum((size - 1) * step for size, step in zip(tensor.shape, steps, strict=True))
    addresses = torch.arange(last + 1).as_strided(tensor.shape, steps)
    return len(addresses.unique()) < tensor.numel()


def _share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether the address ranges overlap; side by side in one allocation they do not."""
    first, second = _addresses(one), _addresses(other)
    return max(first.start, second.start) < min(first.stop, second.stop)


def _addresses(tensor: Tensor) -> range:
    """The addresses from its first element to its last."""
    if not tensor.numel():
        return range(0)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * step for size, step in steps)
    start = tensor.data_ptr()
    return range(start, start + (last + 1) * tensor.element_size())
