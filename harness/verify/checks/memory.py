"""Contract checks of memory: results own theirs, arguments may have any layout, nothing is kept.

What the graph keeps while y lives is fine, and so is a cache of parameters.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain, combinations, count, product
from time import perf_counter

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from harness.cases.inputs import Inputs, copy_in_layout
from harness.measure.memory import memory_in_use
from harness.numerics import Outputs, named_outputs
from harness.records import Affine, Direction
from harness.records.finding import RemarkKind
from harness.run import ImplementationError, guarded
from harness.verify.checks.calls import INPUTS, Call
from harness.verify.checks.contract_checks import (
    BLOCK,
    EVERY_SETTING,
    LONG,
    ONE_ELEMENT,
    ONE_ROW,
    PADDED,
    SMALL,
    TAIL,
    TWO_AXES,
    check,
)
from harness.verify.words import case_in_words

__all__ = [
    "SHARES_EARLIER_Y",
    "frees_memory_after_a_call",
    "frees_memory_without_collector",
    "gradients_do_not_share_dy",
    "is_right_where_elements_share_memory",
    "share_memory",
    "writes_only_its_results",
    "y_shares_no_memory",
]

SHARES_EARLIER_Y = "returns a y that shares the memory of an earlier y"

Layout = Callable[[Tensor], Tensor]

_BESIDE = 32  # elements: more than one vector of any CPU, and aligned as a new tensor is
_CALLS = 8  # several: a workspace may be kept once, but nothing per call
_FILLING, _GROUPS = 2, 50  # groups of calls: the first fill caches
_LEAST_BYTES = 16  # per call: the smallest block of the C library
_LEAST_BLOCKS = 1  # per call, of Python
_MORE_THAN_A_KEY = 1024  # bytes per size: what is small may be kept for each
_SHAPES = ((3, 5, 8), 1), ((3, 5, 8), 2), *(((2, 3, 2, 3, 8), dims) for dims in (1, 2, 3))
_MOST_S = 2.0  # a slow target gets fewer calls


@check(Direction.FORWARD, *EVERY_SETTING, *ONE_ELEMENT)
def y_shares_no_memory(call: Call) -> Iterator[str]:
    """y shares no memory with x, weight, bias or the y of the call before, nor do its elements."""
    first, second = (call.outputs().y for _ in range(2))
    yield from _shared(call, Outputs(y=second))
    if share_memory(first, second):
        yield SHARES_EARLIER_Y


def _shared(call: Call, outputs: Outputs, where: str = "") -> Iterator[str]:
    """Say which outputs share memory with an input, or have elements that share memory."""
    for output, tensor in named_outputs(outputs):
        for name, given in call.given.items():
            if share_memory(given, tensor):
                yield f"returns a {output} that shares the memory of {name}{where}"
        if not tensor.is_contiguous():
            places = torch.arange(_extent(tensor)).as_strided(tensor.shape, tensor.stride())
            if places.unique().numel() < tensor.numel():
                yield f"returns a {output} whose elements share memory{where}"


@check(None)
def is_right_where_elements_share_memory(call: Call) -> Iterator[str]:
    """Any axes of x or dy may be expanded, to a stride of 0, and rows may be windows of a signal.

    The results have memory of their own all the same.
    """
    began = perf_counter()
    for (shape, dims), affine in product(_SHAPES, (Affine.BOTH, Affine.NONE)):
        with suppress(ImplementationError):  # the scope records which shapes are declined
            own = call.changed(shape=shape, normalized_dims=dims, affine=affine)
            if perf_counter() - began < _MOST_S:
                yield from _unlike_copies(own)


def _unlike_copies(call: Call) -> Iterator[str]:
    """Compare calls with tensors whose elements share memory with calls of contiguous copies."""
    of_gradients = [] if call.case.direction is Direction.FORWARD else [(call, "x"), (call, "dy")]
    for own, name in ((call.forward(), "x"), *of_gradients):
        for tensor in _with_shared_elements(getattr(own.inputs, name)):
            shared, copied = (own.on(**{name: each}) for each in (tensor, tensor.contiguous()))
            where = f"where the strides of {name} are {tensor.stride()}, for "
            where += case_in_words(own.case)
            with suppress(ImplementationError):  # the scope records which layouts are declined
                found = shared.outputs()
                yield from shared.gives_another(copied.outputs(), found, where)
                yield from _shared(shared, found, f" {where}")


def _with_shared_elements(tensor: Tensor) -> Iterator[Tensor]:
    """Yield views of a shape, with a stride of 0 for any axes, and of 2 for one of the leading."""
    tensor = tensor.contiguous()
    usual, axes = tensor.stride(), range(tensor.dim())
    expanded = chain.from_iterable(combinations(axes, 1 + axis) for axis in axes)
    for changed in (*(dict.fromkeys(own, 0) for own in expanded), *({own: 2} for own in axes[:-1])):
        steps = [min(changed.get(axis, usual[axis]), usual[axis]) for axis in axes]
        yield tensor.as_strided(tensor.shape, steps)


@check(None, SMALL, TAIL, BLOCK, LONG, TWO_AXES)
def writes_only_its_results(call: Call) -> Iterator[str]:
    """A call writes to no argument, to nothing beside one, and to no .grad.

    A backward does not write to y.
    """
    for lay in (_between_rows, _between_columns):
        with suppress(ImplementationError):  # the scope records which layouts the target declines
            yield from _written(call, lay)


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


def _written(call: Call, lay: Layout) -> Iterator[str]:
    call = call.at([lay(tensor) for tensor in call.inputs.tensors])
    before = _bytes_of(call.inputs)
    call.forward().outputs()
    for name in _changed(before, call.inputs):
        yield f"writes to the memory beside {name}"
    if call.case.direction is Direction.FORWARD:
        return
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in call.given.items()}
    for leaf in leaves.values():  # of an earlier backward
        leaf.grad = torch.zeros_like(leaf)
    graph = call.graph(leaves=leaves)
    y = graph.y.detach().clone()
    graph.gradients()
    for name in _changed(before, call.inputs):
        yield f"writes to {name}, or to the memory beside it, in training"
    if not torch.equal(graph.y.detach(), y):
        yield "writes to y in the backward"
    for name, leaf in leaves.items():
        if leaf.grad is None or leaf.grad.count_nonzero():
            yield f"writes to {name}.grad, which is autograd's to write"


def _bytes_of(inputs: Inputs) -> dict[str, Tensor]:
    """Return copies of the whole storages."""
    named = {name: getattr(inputs, name) for name in (*INPUTS, "dy")}
    return {
        name: tensor.new_empty(0, dtype=torch.uint8).set_(tensor.untyped_storage().clone())
        for name, tensor in named.items()
        if tensor is not None
    }


def _changed(before: dict[str, Tensor], inputs: Inputs) -> list[str]:
    now = _bytes_of(inputs)
    return [name for name in before if not torch.equal(before[name], now[name])]


@check(None, SMALL, BLOCK, LONG, PADDED)
def frees_memory_after_a_call(call: Call) -> Iterator[str]:
    """The memory of x, y, dy and gradients is free once the caller has dropped them."""
    yield from _kept(call, collects=True)
    for words, (step, least_bytes) in _STEPS.items():
        if _leaks(partial(step, call), least_bytes):
            yield f"keeps more memory with every {words}"


@check(None, SMALL, LONG, remark=RemarkKind.KEPT_IN_A_CYCLE)
def frees_memory_without_collector(call: Call) -> Iterator[str]:
    """The memory of x, y, dy and gradients is free at once, without Python's cyclic collector."""
    if not _kept(call, collects=True):  # otherwise the collector does not free it either
        for kept in _kept(call, collects=False):
            yield f"{kept} until Python's cyclic collector runs"


def _kept(call: Call, *, collects: bool) -> list[str]:
    with _collector_off():
        memory = _of_a_forward(call.forward())
        if call.case.direction is not Direction.FORWARD:
            memory |= _of_a_backward(call)
        if collects and any(not kept.expired() for kept in memory.values()):
            gc.collect()
        names = [name for name, kept in memory.items() if not kept.expired()]
        return [f"keeps the memory of {name}" for name in names]


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
    unused, graph = call.graph(), call.on(dy=copy_in_layout(call.dy)).graph()
    dx = graph.gradients().dx
    kept = {
        **{"x": graph.leaves["x"], "y": graph.y, "dy": graph.dy, "dx": dx},
        **{f"{name} if no backward follows": own for name, own in unused.leaves.items()},
    }
    return {
        name: StorageWeakRef(tensor.untyped_storage())
        for name, tensor in kept.items()
        if tensor is not None
    }


def _forward(call: Call, number: int) -> None:
    call.forward().on(x=copy_in_layout(call.inputs.x)).outputs()


def _in_inference(call: Call, number: int) -> None:
    with torch.inference_mode():
        call.forward().on(x=copy_in_layout(call.inputs.x)).y()


def _training(call: Call, number: int) -> None:
    if call.case.direction is not Direction.FORWARD:
        call.gradients()


def _of_another_size(call: Call, number: int) -> None:
    rows = call.inputs.x.flatten(0, -1 - call.case.normalized_dims)[:1]
    call.on(x=rows.expand(number + 1, *rows.shape[1:]).contiguous()).forward().outputs()


_STEPS = {
    "call": (_forward, _LEAST_BYTES),
    "call in torch.inference_mode": (_in_inference, _LEAST_BYTES),
    "training step": (_training, _LEAST_BYTES),
    "call of another number of rows": (_of_another_size, _MORE_THAN_A_KEY),
}
"""What may keep memory, in words; a function of a call and its number; bytes that count."""


def _leaks(step: Callable[[int], None], least_bytes: int) -> bool:
    """Whether the memory in use grows with every step."""
    blocks, size_bytes, numbers = 0, 0, count()
    with _collector_off(), ExitStack() as at_the_end:
        if gc.get_freeze_count() == 0:
            at_the_end.callback(gc.unfreeze)
        gc.freeze()  # collections without the objects that exist are a thousand times as fast
        for group in range(_GROUPS):
            before = blocks, size_bytes
            for _ in range(_CALLS):
                step(next(numbers))
            gc.collect()  # also empties the lists of freed objects that CPython keeps
            blocks, size_bytes = memory_in_use()
            grows = size_bytes - before[1] >= _CALLS * least_bytes
            if least_bytes == _LEAST_BYTES:
                grows |= blocks - before[0] >= _CALLS * _LEAST_BLOCKS
            if group > _FILLING and not grows:
                return False
    return True


@check(Direction.BACKWARD, ONE_ROW, remark=RemarkKind.SHARES_DY)
def gradients_do_not_share_dy(call: Call) -> Iterator[str]:
    """With one row, dbias equals dy, and has its own memory all the same."""
    graph = call.on(dy=call.dy.clone()).graph()
    # autograd copies a gradient that is dy itself, but not a view
    guarded(graph.y.backward, graph.dy)()
    for name, leaf in graph.leaves.items():
        if leaf.grad is not None and share_memory(leaf.grad, graph.dy):
            yield f"returns a d{name} that shares the memory of dy where x has one row"


def share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether the address ranges overlap; side by side in one allocation they do not."""
    first, second = _addresses(one), _addresses(other)
    return max(first.start, second.start) < min(first.stop, second.stop)


def _addresses(tensor: Tensor) -> range:
    """The addresses from its first element to its last."""
    start = tensor.data_ptr()
    return range(start, start + _extent(tensor) * tensor.element_size())


def _extent(tensor: Tensor) -> int:
    """From its first element to its last, in elements."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * step for size, step in steps) if tensor.numel() else 0
