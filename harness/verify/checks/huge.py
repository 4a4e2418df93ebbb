"""Contract check of more than 2^31 elements, where a kernel's 32-bit index overflows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.computed import ContractViolationError, ImplementationError, checked, guarded
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction, Status
from harness.records.text import bytes_text
from harness.verify.checks.outputs import compute, differing_outputs
from harness.verify.findings import Declined, Violation
from harness.verify.scope import fitted
from implementations.contract import Implementation

__all__ = ["huge_findings"]

LIMIT = 1 << 31  # elements; the largest 32-bit int is one less
HIDDEN = 1024
_PATTERN = 4099  # rows that repeat; a prime, so that a row read at a wrong index differs
_SHARE = 0.8  # of the memory there is; the rest is left to other processes
_TENSORS = {Direction.FORWARD: 2, Direction.BACKWARD: 4}  # x and y; dy and dx


def huge_findings(
    implementation: Implementation, case: Case, memory_bytes: int
) -> Iterator[Violation | Declined]:
    """Yield what is wrong beyond :data:`LIMIT` elements, and what could not be tried.

    Rows at the start, on both sides of the limit and at the end are compared with a call of these
    rows alone. All other rows have a dy of zero, so that dweight and dbias are comparable too.

    Args:
        implementation: the target.
        case: gives dtype and device.
        memory_bytes: memory of the device, of which four fifths are used; an x of float16 or
            bfloat16 takes 4 GiB.
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
        sized = replace(large, direction=direction)
        if memory_bytes < tensors * size:
            needed, available = bytes_text(tensors * size), bytes_text(memory_bytes)
            reason = f"takes {needed}, of {available} that may be used"
            yield Declined(what=sized.id, cases=1, reason=reason, by_target=False)
            continue
        try:
            with _memory_limit(memory_bytes, case.device):
                for name in _wrong_outputs(implementation, sized):
                    yield _violation(case, f"{name} is wrong for more than 2^31 - 1 elements")
        except ImplementationError as raised:
            if raised.status not in {Status.UNSUPPORTED, Status.OUT_OF_MEMORY}:
                yield _violation(case, f"raises for {rows} rows of {HIDDEN}: {raised.reason}")
                continue
            yield Declined(what=sized.id, cases=1, reason=raised.reason)
        except ContractViolationError as violation:
            yield _violation(case, f"{violation} for {rows} rows of {HIDDEN}")


def _violation(case: Case, text: str) -> Violation:
    return Violation(check="handles_more_than_2_31_elements", dtype=case.dtype, text=text)


def _wrong_outputs(implementation: Implementation, case: Case) -> list[str]:
    """Return the names of the outputs that differ from those of a few rows alone."""
    limit = LIMIT // HIDDEN
    sample = [0, 1, limit - 1, limit, limit + 1, case.shape[0] - 1]
    few = replace(case, shape=(len(sample), HIDDEN))
    inputs = make_inputs(few)
    dy = None if inputs.dy is None else _spread(inputs.dy, sample, case.shape[0], fill=False)
    many = replace(inputs, x=_spread(inputs.x, sample, case.shape[0], fill=True), dy=dy)
    expected = compute(implementation, few, inputs)
    rows = _rows_of(implementation, case, many, sample)
    return differing_outputs(implementation, few, inputs, expected, rows)


def _rows_of(
    implementation: Implementation, case: Case, inputs: Inputs, sample: list[int]
) -> Outputs:
    """Return some rows of the outputs, holding as few tensors of the size of x as possible."""
    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    leaves = [each for each in (x, weight, bias) if each is not None]
    with torch.set_grad_enabled(inputs.dy is not None):
        for each in leaves:
            each.requires_grad_(inputs.dy is not None)
        call = guarded(implementation.function, x, case.normalized_shape, weight, bias, case.eps)
        y = checked("y", call(), x)
        if inputs.dy is None:
            return Outputs(y=y[sample])
        returned = guarded(torch.autograd.grad, y, leaves, inputs.dy)()
    assert isinstance(returned, tuple)  # the type that autograd.grad returns
    dx, dweight, dbias = (
        checked("a gradient", gradient, leaf)
        for gradient, leaf in zip(returned, leaves, strict=True)
    )
    return Outputs(y=y.detach()[sample], dx=dx[sample], dweight=dweight, dbias=dbias)


def _spread(few: Tensor, places: list[int], rows: int, *, fill: bool) -> Tensor:
    """Return ``rows`` rows: ``few`` at ``places``, elsewhere a pattern if ``fill``, or zeros."""
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
def _memory_limit(memory_bytes: int, device: str) -> Iterator[None]:
    """Make larger allocations on the CPU fail, before the system ends the process for them."""
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
