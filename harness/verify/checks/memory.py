"""Contract checks of where results lie in memory, and arguments may."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from harness.inputs import LAYOUTS, Inputs, make_inputs
from harness.numerics.computed import ImplementationError
from harness.records import Case, Direction, Status
from harness.verify.checks.answers import (
    copies_of,
    differing_outputs,
    elsewhere,
    has_bits_of,
    outputs_of,
    y_of,
)
from harness.verify.scope import fitted, scope_of
from implementations.contract import Implementation

__all__ = [
    "has_memory_for_each_element",
    "reads_what_is_negated",
    "reads_what_lies_anywhere",
    "shares_no_memory",
    "takes_what_lies_anywhere",
]

Layout = Callable[[Tensor], Tensor]

_ANYWHERE: dict[str, Layout] = LAYOUTS | {
    "one number expanded": lambda tensor: tensor.new_ones(()).expand_as(tensor)
}
_NEGATED = {"negated": _ANYWHERE.pop("negated")}


def shares_no_memory(implementation: Implementation, case: Case) -> str | None:
    """y is memory of its own: not that of x, weight or bias, and not that of the y before."""
    case = fitted(implementation, case, shape=(4, 32), direction=Direction.FORWARD)
    inputs = make_inputs(case)
    first, second = (y_of(implementation, case, inputs) for _ in range(2))
    owners = {"x": inputs.x, "weight": inputs.weight, "bias": inputs.bias, "the y before": first}
    for name, tensor in owners.items():
        if tensor is not None and _meet(tensor, second):
            return f"y shares the memory of {name}"
    return None


def has_memory_for_each_element(implementation: Implementation, case: Case) -> str | None:
    """No two elements of y or of a gradient are one place in memory, where writing one writes both.

    Otherwise strides are free; whether they are those of x is a property. An x that is itself
    expanded is where a result becomes so by taking over its strides.
    """
    directions = [Direction.FORWARD]
    if not implementation.forward_only:
        directions.append(Direction.BACKWARD)
    for layout, direction in product(("contiguous", "expanded"), directions):
        wanted = replace(case, shape=(4, 32), normalized_dims=1, layout=layout)
        asked = scope_of(implementation).fit(replace(wanted, direction=direction))
        if asked is None:
            continue
        try:
            outputs = outputs_of(implementation, asked, make_inputs(asked))
        except ImplementationError:
            if layout == "contiguous":
                raise
            continue  # which layouts are taken is for the catalogue to find
        for name in ("y", "dx", "dweight", "dbias"):
            tensor = getattr(outputs, name)
            if tensor is not None and _overlaps(tensor):
                return f"{name}'s elements overlap in memory, for an x that is {layout}"
    return None


def reads_what_lies_anywhere(implementation: Implementation, case: Case) -> str | None:
    """Weight, bias and dy count by their values, as x does, wherever in memory these are.

    The gradient of y.sum() is one number expanded, and that behind a transposed y is transposed.
    """
    return _reads(implementation, case, _ANYWHERE)


def reads_what_is_negated(implementation: Implementation, case: Case) -> str | None:
    """Weight, bias and dy may be kept negated, as the imaginary part of a conjugate is."""
    found = _reads(implementation, case, _NEGATED)
    return None if found is None else f"reads what torch keeps negated as if it were not: {found}"


def takes_what_lies_anywhere(implementation: Implementation, case: Case) -> str | None:
    """Weight, bias and dy in another layout do not raise; y.sum() asks with an expanded dy."""
    for asked in _laid_cases(implementation, case):
        for what, layout, _, laid in _laid_out(make_inputs(asked), _ANYWHERE | _NEGATED):
            try:
                outputs_of(implementation, asked, laid)
            except ImplementationError as ended:
                if ended.status is not Status.UNSUPPORTED:
                    return f"declines a {what} in the layout {layout}: {ended}"
    return None


def _reads(implementation: Implementation, case: Case, layouts: Mapping[str, Layout]) -> str | None:
    for asked in _laid_cases(implementation, case):
        if found := _changes_with_a_layout(implementation, asked, layouts):
            return found
    return None


def _laid_cases(implementation: Implementation, case: Case) -> Iterator[Case]:
    """Yield a case of one normalized axis and one of two: a transposed weight has to have two."""
    direction = Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
    flat = replace(case, shape=(6, 32), normalized_dims=1, direction=direction)
    for wanted in (flat, replace(flat, shape=(4, 6, 8), normalized_dims=2)):
        asked = scope_of(implementation).fit(wanted)
        if asked is not None:
            yield asked


def _laid_out(
    inputs: Inputs, layouts: Mapping[str, Layout]
) -> Iterator[tuple[str, str, list[str], Inputs]]:
    """Yield inputs with dy, or weight and bias, in each layout: of what, which, and their names."""
    given = [name for name in ("weight", "bias") if getattr(inputs, name) is not None]
    moved = [("dy", ["dy"] if inputs.dy is not None else []), ("weight or bias", given)]
    for (what, names), (layout, lay) in product(moved, layouts.items()):
        if names:
            laid = {name: lay(getattr(inputs, name)) for name in names}
            yield what, layout, names, replace(inputs, **laid)


def _changes_with_a_layout(
    implementation: Implementation, asked: Case, layouts: Mapping[str, Layout]
) -> str | None:
    """Return which output changes with the layout of what."""
    inputs = make_inputs(asked)
    for what, layout, names, laid in _laid_out(inputs, layouts):
        plain = replace(inputs, **{name: elsewhere(getattr(laid, name)) for name in names})
        try:
            expected = copies_of(outputs_of(implementation, asked, plain))
            found = outputs_of(implementation, asked, laid)
        except ImplementationError:
            continue  # a layout that raises is declined
        if not has_bits_of(found, expected):
            for name in differing_outputs(implementation, asked, plain, expected, found):
                return f"{name} changes with the layout of {what}: {layout}"
    return None


def _overlaps(tensor: Tensor) -> bool:
    """Whether two elements have one address."""
    steps: tuple[int, ...] = tensor.stride()
    last = sum((size - 1) * step for size, step in zip(tensor.shape, steps, strict=True))
    places = torch.arange(last + 1).as_strided(tensor.shape, steps)
    return len(set(places.flatten().tolist())) < tensor.numel()


def _meet(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie over each other; side by side in one slab they do not."""
    first, second = _places(one), _places(other)
    return max(first.start, second.start) < min(first.stop, second.stop)


def _places(tensor: Tensor) -> range:
    """The addresses from its first element to its last."""
    if not tensor.numel():
        return range(0)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * step for size, step in steps)
    start = tensor.data_ptr()
    return range(start, start + (last + 1) * tensor.element_size())
