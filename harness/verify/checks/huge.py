"""More elements than 31 bits count: where a kernel's index wraps around, rows are left out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.computed import ContractViolationError, ImplementationError, checked, guarded
from harness.numerics.error_measurement import Outputs
from harness.records import Case, Direction, Status
from harness.verify.checks.answers import differing_outputs, outputs_of
from harness.verify.findings import Declined
from harness.verify.scope import fitted
from implementations.contract import Implementation

__all__ = ["huge_findings"]

LIMIT = 1 << 31  # elements; an int's largest is one below
HIDDEN = 1024
_PATTERN = 4099  # rows that repeat: a prime, so that a row read in another's place is seen
_SHARE = 0.8  # ours: of the memory there is, which other processes want some of
_TENSORS = {Direction.FORWARD: 2, Direction.BACKWARD: 4}  # x and y; dy and dx


def huge_findings(
    implementation: Implementation, case: Case, memory_bytes: int
) -> Iterator[str | Declined]:
    """Yield what goes wrong beyond :data:`LIMIT` elements, and what could not be asked.

    Rows at the start, on both sides of the limit and at the end have to come out as in a call of
    these alone. All others have a dy of zero, so that dweight and dbias have to as well.

    Args:
        implementation: what is asked.
        case: gives dtype and device.
        memory_bytes: what there is, of which four fifths may be used; an x of float16 or bfloat16
            takes 4 GiB.
    """
    rows = LIMIT // HIDDEN + 3
    large = fitted(implementation, case, shape=(rows, HIDDEN))
    if large.hidden != HIDDEN:
        yield Declined(what=large.id, cases=1, reason="its width is fixed", by_target=False)
        return
    memory_bytes = int(_SHARE * memory_bytes)
    size = getattr(torch, case.dtype).itemsize * rows * HIDDEN
    for direction, tensors in _TENSORS.items():
        if implementation.forward_only and direction is Direction.BACKWARD:
            continue
        asked = replace(large, direction=direction)
        if memory_bytes < tensors * size:
            why = f"takes {_gib(tensors * size)}, of {_gib(memory_bytes)} that may be used"
            yield Declined(what=asked.id, cases=1, reason=why, by_target=False)
            continue
        try:
            with _at_most(memory_bytes, case.device):
                yield from _asked(implementation, asked)
        except ImplementationError as ended:
            if ended.status not in {Status.UNSUPPORTED, Status.OUT_OF_MEMORY}:
                yield f"raises for {rows} rows of {HIDDEN}: {ended.reason}"
                continue
            yield Declined(what=asked.id, cases=1, reason=ended.reason)
        except ContractViolationError as broken:
            yield f"{broken} for {rows} rows of {HIDDEN}"


def _asked(implementation: Implementation, case: Case) -> Iterator[str]:
    limit = LIMIT // HIDDEN
    sample = [0, 1, limit - 1, limit, limit + 1, case.shape[0] - 1]
    few = replace(case, shape=(len(sample), HIDDEN))
    inputs = make_inputs(few)
    dy = None if inputs.dy is None else _with(inputs.dy, sample, case.shape[0], fill=False)
    many = replace(inputs, x=_with(inputs.x, sample, case.shape[0], fill=True), dy=dy)
    expected = outputs_of(implementation, few, inputs)
    rows = _rows_of(implementation, case, many, sample)
    for name in differing_outputs(implementation, few, inputs, expected, rows):
        yield f"{name} is wrong where there are more than 2^31 - 1 elements"


def _rows_of(
    implementation: Implementation, case: Case, inputs: Inputs, sample: list[int]
) -> Outputs:
    """Return some rows of the outputs; nothing of the size of x is held that need not be."""
    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    leaves = [each for each in (x, weight, bias) if each is not None]
    with torch.set_grad_enabled(inputs.dy is not None):
        for each in leaves:
            each.requires_grad_(inputs.dy is not None)
        call = guarded(implementation.function, x, case.normalized_shape, weight, bias, case.eps)
        y = checked("y", call(), x)
        if inputs.dy is None:
            return Outputs(y=y[sample])
        found = guarded(torch.autograd.grad, y, leaves, inputs.dy)()
    assert isinstance(found, tuple)  # what autograd.grad returns
    dx, dweight, dbias = (checked("a gradient", *each) for each in zip(found, leaves, strict=True))
    return Outputs(y=y.detach()[sample], dx=dx[sample], dweight=dweight, dbias=dbias)


def _with(few: Tensor, places: list[int], rows: int, *, fill: bool) -> Tensor:
    """Return so many rows, those at ``places`` being ``few``, others a pattern or zeros."""
    many = few.new_zeros((rows, few.shape[1]))
    if fill:
        generator = torch.Generator().manual_seed(0)
        pattern = torch.randn(_PATTERN, few.shape[1], generator=generator).to(many)
        for first in range(0, rows, _PATTERN):
            part = many[first : first + _PATTERN]
            part.copy_(pattern[: len(part)])
    many[places] = few
    return many


@contextmanager
def _at_most(memory_bytes: int, device: str) -> Iterator[None]:
    """Have an allocation on the CPU fail beyond that, before the system ends a process for it."""
    if device != "cpu" or not sys.platform.startswith("linux"):
        yield
        return
    import resource

    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (min(now + memory_bytes, sys.maxsize), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
