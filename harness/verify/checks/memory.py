"""Contract checks of memory: results own theirs, arguments may have any layout, nothing is kept.

What the graph keeps while y lives is fine, and so is a cache of parameters.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from harness.cases.inputs import LAYOUTS, Inputs, copy_in_layout
from harness.numerics.outputs import GRADIENTS, OUTPUTS, copies_of
from harness.records import Direction, Status
from harness.records.finding import RemarkKind
from harness.run.call import ImplementationError
from harness.verify.checks.calls import INPUTS, Call, elsewhere
from harness.verify.checks.contract_checks import (
    BLOCK,
    EVERY_SETTING,
    LONG,
    LONG_TAIL,
    ONE_ROW,
    PADDED,
    PATHS,
    SMALL,
    TAIL,
    TWO_AXES,
    check,
)
from harness.verify.scope import scope_of

__all__ = [
    "SHARES_EARLIER_Y",
    "accepts_every_layout",
    "elements_do_not_overlap",
    "frees_memory_after_a_call",
    "frees_memory_without_collector",
    "gradients_do_not_share_dy",
    "gradients_share_no_memory",
    "respects_argument_strides",
    "respects_negative_bit",
    "writes_only_its_results",
    "y_shares_no_memory",
]

SHARES_EARLIER_Y = "y shares the memory of an earlier y"

Layout = Callable[[Tensor], Tensor]

_NEGATED: dict[str, Layout] = {"negated": LAYOUTS["negated"]}
_STRIDED: dict[str, Layout] = {
    **{name: layout for name, layout in LAYOUTS.items() if name != "negated"},
    "expanded_scalar": lambda tensor: tensor.new_ones(()).expand_as(tensor),
}
_BESIDE = 32  # elements: more than one vector of any CPU, and aligned as a new tensor is
_CALLS = 4  # several: a workspace may be kept once, but no tensor per call


@check(Direction.FORWARD, *EVERY_SETTING)
def y_shares_no_memory(call: Call) -> str | None:
    """y shares no memory with x, weight, bias or the y of the call before."""
    first, second = (call.outputs().y for _ in range(2))
    if _share_memory(first, second):
        return SHARES_EARLIER_Y
    for name, tensor in call.given.items():
        if _share_memory(tensor, second):
            return f"y shares the memory of {name}"
    return None


@check(None, *PATHS)
def elements_do_not_overlap(call: Call) -> str | None:
    """No two elements of y or of a gradient have the same address.

    Apart from that, strides are free. An expanded x is included because a result that copies its
    strides would overlap.
    """
    own, directions = call.case.layout, dict.fromkeys([Direction.FORWARD, call.case.direction])
    for layout, direction in product((own, "expanded"), directions):
        try:
            outputs = call.changed(layout=layout, direction=direction).outputs()
        except ImplementationError:
            if layout == own:
                raise
            continue  # the scope records which layouts the target declines
        for name in OUTPUTS:
            tensor = getattr(outputs, name)
            if tensor is not None and _overlaps(tensor):
                return f"elements of {name} overlap in memory, for an x in the layout {layout}"
    return None


@check(None, SMALL, TAIL, BLOCK, LONG, TWO_AXES)
def writes_only_its_results(call: Call) -> str | None:
    """A call writes to no argument, to nothing beside one, and to no .grad.

    A backward does not write to y.
    """
    for lay in (_between_rows, _between_columns):
        with suppress(ImplementationError):  # the scope records which layouts the target declines
            if found := _written(call, lay):
                return found
    return None


def _between_rows(tensor: Tensor) -> Tensor:
    """Return a copy in the middle of a longer dense buffer."""
    buffer = _filled(tensor, (tensor.numel() + 2 * _BESIDE,))
    return buffer[_BESIDE:-_BESIDE].view(tensor.shape).copy_(tensor)


def _between_columns(tensor: Tensor) -> Tensor:
    """Return a copy in the middle columns of a buffer."""
    buffer = _filled(tensor, (*tensor.shape[:-1], tensor.shape[-1] + 2 * _BESIDE))
    return buffer[..., _BESIDE:-_BESIDE].copy_(tensor)


def _filled(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a buffer of known values, none of them 0."""
    size = torch.Size(shape).numel()
    values = torch.arange(1, size + 1, device=tensor.device) % 97 + 3
    return values.to(tensor.dtype).view(shape)


def _written(call: Call, lay: Layout) -> str | None:
    call = call.at([lay(tensor) for tensor in call.inputs.tensors])
    before = _bytes_of(call.inputs)
    call.forward().outputs()
    if name := _changed(before, call.inputs):
        return f"writes to the memory beside {name}"
    if call.case.direction is Direction.FORWARD:
        return None
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in call.given.items()}
    graph = call.graph(leaves=leaves)
    y = graph.y.detach().clone()
    graph.gradients()
    if name := _changed(before, call.inputs):
        return f"writes to {name}, or to the memory beside it, in training"
    if not torch.equal(graph.y.detach(), y):
        return "writes to y in the backward"
    for name, leaf in leaves.items():
        if leaf.grad is not None:
            return f"writes to {name}.grad, which is autograd's to write"
    return None


def _bytes_of(inputs: Inputs) -> dict[str, Tensor]:
    """Return copies of the whole storages."""
    named = {name: getattr(inputs, name) for name in (*INPUTS, "dy")}
    return {
        name: tensor.new_empty(0, dtype=torch.uint8).set_(tensor.untyped_storage().clone())
        for name, tensor in named.items()
        if tensor is not None
    }


def _changed(before: dict[str, Tensor], inputs: Inputs) -> str | None:
    now = _bytes_of(inputs)
    return next((name for name in before if not torch.equal(before[name], now[name])), None)


@check(None, SMALL, BLOCK, LONG, PADDED)
def frees_memory_after_a_call(call: Call) -> str | None:
    """The memory of x, y, dy and gradients is free once the caller has dropped them."""
    if kept := _kept(call, collects=True):
        return kept
    if _keeps_copies(call.forward()):
        return "keeps another tensor as large as x of every call"
    return None


@check(None, SMALL, LONG, remark=RemarkKind.KEPT_IN_A_CYCLE)
def frees_memory_without_collector(call: Call) -> str | None:
    """The memory of x, y, dy and gradients is free at once, without Python's cyclic collector."""
    if _kept(call, collects=True):
        return None  # the collector does not free it either
    kept = _kept(call, collects=False)
    return None if kept is None else f"{kept} until Python's cyclic collector runs"


def _kept(call: Call, *, collects: bool) -> str | None:
    with _collector_off():
        memory = _of_a_forward(call.forward())
        if call.case.direction is not Direction.FORWARD:
            memory |= _of_a_backward(call)
        if collects and any(not kept.expired() for kept in memory.values()):
            gc.collect()
        names = (name for name, kept in memory.items() if not kept.expired())
        return next((f"keeps the memory of {name}" for name in names), None)


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _of_a_forward(call: Call) -> dict[str, StorageWeakRef]:
    """Call without recording; return the memory that the caller has dropped by now."""
    x = copy_in_layout(call.inputs.x)
    with torch.no_grad():
        y = call.on(x=x).y()
    return {"x": StorageWeakRef(x.untyped_storage()), "y": StorageWeakRef(y.untyped_storage())}


def _of_a_backward(call: Call) -> dict[str, StorageWeakRef]:
    graph = call.on(dy=copy_in_layout(call.dy)).graph()
    dx = graph.gradients().dx
    kept = {"x": graph.leaves["x"], "y": graph.y, "dy": graph.dy, "dx": dx}
    return {
        name: StorageWeakRef(tensor.untyped_storage())
        for name, tensor in kept.items()
        if tensor is not None
    }


def _keeps_copies(call: Call) -> bool:
    """Whether the number of large tensors grows with every call."""
    with _collector_off():
        gc.collect(0)  # what exists now is no longer in the youngest generation
        for _ in range(_CALLS):
            with torch.no_grad():
                call.on(x=copy_in_layout(call.inputs.x)).y()
        kept = [
            weakref.ref(tensor)
            for tensor in gc.get_objects(generation=0)
            if issubclass(type(tensor), Tensor) and tensor.numel() >= call.inputs.x.numel()
        ]
        if len(kept) < _CALLS:
            return False
        gc.collect()
        return sum(reference() is not None for reference in kept) >= _CALLS


@check(None, SMALL, TWO_AXES, BLOCK, LONG_TAIL)
def respects_argument_strides(call: Call) -> str | None:
    """The strides of weight, bias and dy change no result.

    The dy of y.sum() is one number, expanded; the dy behind a transposed y is transposed.
    """
    return _changes_with_layout(call, _STRIDED)


@check(None, SMALL, TWO_AXES, BLOCK, LONG_TAIL, remark=RemarkKind.NEGATED_MISREAD)
def respects_negative_bit(call: Call) -> str | None:
    """Weight, bias and dy may have the negative bit set, as z.conj().imag has."""
    found = _changes_with_layout(call, _NEGATED)
    return None if found is None else f"ignores the negative bit of a tensor: {found}"


@check(None, SMALL, TWO_AXES, remark=RemarkKind.DECLINES_LAYOUT)
def accepts_every_layout(call: Call) -> str | None:
    """Weight, bias and dy in another layout do not raise; the dy of y.sum() is expanded."""
    scope = scope_of(call.target)
    axes = {"dy": "grad_output", "weight or bias": "parameters"}
    for argument, layout, tensors in _in_layouts(call, _STRIDED | _NEGATED):
        if axes[argument] in scope.declined:
            continue  # the scope records that the target declines layouts of it
        try:
            call.on(**tensors).outputs()
        except ImplementationError as raised:
            if raised.status is not Status.UNSUPPORTED:
                return f"declines a {argument} in the layout {layout}: {raised}"
    return None


def _in_layouts(
    call: Call, layouts: Mapping[str, Layout]
) -> Iterator[tuple[str, str, dict[str, Tensor]]]:
    """Yield dy, or weight and bias, in each layout: in words, the layout's name, the tensors."""
    dy = {} if call.inputs.dy is None else {"dy": call.dy}
    groups = {"dy": dy, "weight or bias": call.parameters}
    for (argument, given), (layout, lay) in product(groups.items(), layouts.items()):
        if given:
            yield argument, layout, {name: lay(tensor) for name, tensor in given.items()}


def _changes_with_layout(call: Call, layouts: Mapping[str, Layout]) -> str | None:
    """Return which output changes with the layout of which argument."""
    for argument, layout, tensors in _in_layouts(call, layouts):
        dense = call.on(**{name: elsewhere(tensor) for name, tensor in tensors.items()})
        try:
            expected = copies_of(dense.outputs())
            outputs = call.on(**tensors).outputs()
        except ImplementationError:
            continue  # a layout that raises is declined
        if name := dense.differs(expected, outputs):
            return f"{name} changes with the layout of {argument}: {layout}"
    return None


@check(Direction.BACKWARD, *EVERY_SETTING)
def gradients_share_no_memory(call: Call) -> str | None:
    """A gradient changed in place changes no other gradient, nor y, dy or an argument."""
    graph = call.graph()
    outputs = graph.gradients()
    named = {name: getattr(outputs, name) for name in GRADIENTS}
    gradients = {name: gradient for name, gradient in named.items() if gradient is not None}
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


@check(Direction.BACKWARD, ONE_ROW, remark=RemarkKind.SHARES_DY)
def gradients_do_not_share_dy(call: Call) -> str | None:
    """With one row, dbias equals dy, and has its own memory all the same."""
    graph = call.on(dy=call.dy.clone()).graph()
    graph.run_backward()  # autograd copies a gradient that is dy itself, but not a view
    for name, leaf in graph.leaves.items():
        if leaf.grad is not None and _share_memory(leaf.grad, graph.dy):
            return f"{name}.grad shares the memory of dy where x has one row"
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
