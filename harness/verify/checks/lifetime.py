"""Contract checks of lifetime: after a call, nothing keeps x, y, dy or a gradient in memory.

What the graph keeps while y lives is fine, and so is a cache of parameters.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from harness.inputs import Inputs, copy_in_layout
from harness.numerics.computed import checked, guarded
from harness.records import Case
from harness.verify.checks.graph import Graph, training_case
from harness.verify.checks.outputs import forward_case
from harness.verify.checks.settings import BLOCK, LONG, PADDED, SMALL, at
from implementations.contract import Implementation

__all__ = ["frees_memory_after_a_call", "frees_memory_without_collector"]

_CALLS = 4  # several: a workspace may be kept once, but no tensor per call


@at(SMALL, BLOCK, LONG, PADDED)
def frees_memory_after_a_call(implementation: Implementation, case: Case) -> str | None:
    """The memory of x, y, dy and gradients is free once the caller has dropped them."""
    if kept := _kept(implementation, case, collects=True):
        return kept
    if _keeps_copies(implementation, case):
        return "keeps another tensor as large as x of every call"
    return None


@at(SMALL, LONG)
def frees_memory_without_collector(implementation: Implementation, case: Case) -> str | None:
    """The memory of x, y, dy and gradients is free at once, without Python's cyclic collector."""
    if _kept(implementation, case, collects=True):
        return None  # the collector does not free it either
    kept = _kept(implementation, case, collects=False)
    return None if kept is None else f"{kept} until Python's cyclic collector runs"


def _kept(implementation: Implementation, case: Case, *, collects: bool) -> str | None:
    case, inputs = forward_case(implementation, case)
    with _collector_off():
        memory = _of_a_forward(implementation, case, inputs)
        if not implementation.forward_only:
            memory |= _of_a_backward(implementation, *training_case(implementation, case))
        if collects and any(not each.expired() for each in memory.values()):
            gc.collect()
        return next(
            (f"keeps the memory of {name}" for name, each in memory.items() if not each.expired()),
            None,
        )


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _of_a_forward(
    implementation: Implementation, case: Case, inputs: Inputs
) -> dict[str, StorageWeakRef]:
    """Call without recording; return the memory that the caller has dropped by now."""
    x = copy_in_layout(inputs.x)
    with torch.no_grad():
        y = _called(implementation, case, inputs, x)
    return {name: _memory_of(each) for name, each in {"x": x, "y": y}.items()}


def _of_a_backward(
    implementation: Implementation, case: Case, inputs: Inputs
) -> dict[str, StorageWeakRef]:
    assert inputs.dy is not None  # a case with gradients has one
    copies = inputs.copies()
    graph = Graph.of(implementation, case, copies)
    outputs = graph.gradients()
    kept = {"x": graph.leaves["x"], "y": graph.y, "dy": graph.dy, "dx": outputs.dx}
    return {name: _memory_of(each) for name, each in kept.items() if each is not None}


def _called(implementation: Implementation, case: Case, inputs: Inputs, x: Tensor) -> Tensor:
    arguments = (x, case.normalized_shape, inputs.weight, inputs.bias, case.eps)
    return checked("y", guarded(implementation.function, *arguments)(), x)


def _memory_of(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _keeps_copies(implementation: Implementation, case: Case) -> bool:
    """Whether the number of large tensors grows with every call."""
    case, inputs = forward_case(implementation, case)
    with _collector_off():
        gc.collect(0)  # what exists now is no longer in the youngest generation
        for _ in range(_CALLS):
            with torch.no_grad():
                _called(implementation, case, inputs, copy_in_layout(inputs.x))
        kept = [
            weakref.ref(each)
            for each in gc.get_objects(generation=0)
            if issubclass(type(each), Tensor) and each.numel() >= inputs.x.numel()
        ]
        if len(kept) < _CALLS:
            return False
        gc.collect()
        return sum(each() is not None for each in kept) >= _CALLS
