"""Contract checks of more than 2^31 elements, where a 32-bit index overflows, and of 2^23 rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from harness.numerics import Outputs
from harness.records import Case, Direction, Status
from harness.records.finding import Finding, Severity, limit
from harness.records.text import bytes_text
from harness.run import ContractViolationError, ImplementationError, checked
from harness.verify.checks.calls import Call, gradients_of
from harness.verify.in_scope import fitted
from implementations.contract import Implementation

__all__ = ["COLUMNS", "ROWS", "huge_findings", "many_rows_findings"]

LIMIT = 1 << 31  # elements; the largest 32-bit int is one less
HIDDEN = 1024
ROWS, COLUMNS = 1 << 23, 3  # of a public bug report: a grid of a block per row
_PATTERN = 4099  # rows that repeat; a prime, so that a row read at a wrong index differs
_SHARE = 0.8  # of the memory there is; the rest is left to other processes
_TENSORS_OF_OPERATIONS = 16  # of the size of x, in a backward of PyTorch's operations
_TENSORS = {Direction.FORWARD: 2, Direction.BACKWARD: 4}  # x and y; dy and dx


def huge_findings(
    implementation: Implementation, case: Case, memory_bytes: int
) -> Iterator[Finding]:
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
        yield limit("left_out", large.id, "its width is fixed")
        return
    memory_bytes = int(_SHARE * memory_bytes)
    size = getattr(torch, case.dtype).itemsize * rows * HIDDEN
    for direction, tensors in _TENSORS.items():
        if implementation.forward_only and direction is Direction.BACKWARD:
            continue
        sized = replace(large, direction=direction)
        if memory_bytes < tensors * size:
            needed, available = bytes_text(tensors * size), bytes_text(memory_bytes)
            yield limit("left_out", sized.id, f"takes {needed}, of {available} that may be used")
            continue
        with _memory_limit(memory_bytes, case.device):
            yield from _findings(
                implementation, sized, "2^31 - 1 elements", "handles_more_than_2_31_elements"
            )


def many_rows_findings(
    implementation: Implementation, case: Case, memory_bytes: int | None
) -> Iterator[Finding]:
    """Yield what is wrong beyond :data:`ROWS` rows, found as :func:`huge_findings` does.

    Args:
        implementation: the target.
        case: gives dtype, device and direction.
        memory_bytes: of the device; None if unknown.
    """
    many = fitted(implementation, case, shape=(ROWS + 3, COLUMNS))
    size = getattr(torch, case.dtype).itemsize * many.rows * COLUMNS
    if many.hidden != COLUMNS or (memory_bytes or 0) * _SHARE < _TENSORS_OF_OPERATIONS * size:
        return
    yield from _findings(implementation, many, "2^23 rows", "handles_more_than_2_23_rows")


def _findings(
    implementation: Implementation, case: Case, words: str, kind: str
) -> Iterator[Finding]:
    """Yield what is wrong for more than so many rows or elements."""
    rows, hidden = case.shape
    try:
        names = _wrong_outputs(implementation, case)
        texts = [f"gives a wrong {name} for more than {words}" for name in names]
    except ImplementationError as raised:
        if raised.status in {Status.UNSUPPORTED, Status.OUT_OF_MEMORY}:
            yield limit("declined", case.id, raised.reason)
            return
        texts = [f"raises for {rows} rows of {hidden}: {raised.reason}"]
    except ContractViolationError as violation:
        texts = [f"{violation} for {rows} rows of {hidden}"]
    for text in texts:
        yield Finding(kind, Severity.WRONG, text, (case.dtype,))


def _wrong_outputs(implementation: Implementation, case: Case) -> list[str]:
    """Return the names of the outputs that differ from those of a few rows alone."""
    rows, hidden = case.shape
    border = rows - 3
    sample = [0, 1, border - 1, border, border + 1, rows - 1]
    few = Call.of(implementation, replace(case, shape=(len(sample), hidden)), case.direction)
    dy = few.inputs.dy
    many = few.on(
        x=_spread(few.inputs.x, sample, rows, fill=True),
        dy=None if dy is None else _spread(dy, sample, rows, fill=False),
    )
    return few.differing(few.outputs(), _rows_of(many, sample))


def _rows_of(many: Call, sample: list[int]) -> Outputs:
    """Return some rows of the outputs, holding as few tensors of the size of x as possible."""
    with torch.set_grad_enabled(many.inputs.dy is not None):
        for leaf in many.given.values():
            leaf.requires_grad_(many.inputs.dy is not None)
        y = many.y()
        if many.inputs.dy is None:
            return Outputs(y=y[sample])
        returned = gradients_of(y, tuple(many.given.values()), many.dy)
    gradients = {
        f"d{name}": checked("a gradient", gradient, leaf)
        for (name, leaf), gradient in zip(many.given.items(), returned, strict=True)
    }
    return Outputs(y=y.detach()[sample], **gradients | {"dx": gradients["dx"][sample]})


def _spread(few: Tensor, rows_of_few: list[int], rows: int, *, fill: bool) -> Tensor:
    """Return ``rows`` rows: ``few`` at its rows, elsewhere a pattern if ``fill``, or zeros."""
    many = few.new_zeros((rows, few.shape[1]))
    if fill:
        generator = torch.Generator().manual_seed(0)
        pattern = torch.randn(_PATTERN, few.shape[1], generator=generator).to(many)
        for first in range(0, rows, _PATTERN):
            part = many[first : first + _PATTERN]
            part.copy_(pattern[: len(part)])
    many[rows_of_few] = few
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
