"""Contract checks of more than 2^31 elements, where a 32-bit index overflows, and of 2^24 in a row.

float32 holds no odd number beyond 2^24: a size or an index that is computed in it is rounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from harness.numerics import Outputs, named_outputs
from harness.records import Case, Direction, Status
from harness.records.finding import Finding, Severity, limit
from harness.records.text import bytes_text, seconds_text
from harness.run import ContractViolationError, ImplementationError, checked
from harness.verify.checks.calls import Call, gradients_of
from harness.verify.in_scope import fitted
from implementations.contract import Implementation

__all__ = ["COLUMNS", "ROWS", "huge_findings", "large_findings"]

LIMIT = 1 << 31  # elements; the largest 32-bit int is one less
HIDDEN = 1024
ROWS, COLUMNS = 1 << 24, 3  # twice those of a public bug report, with a block of a grid per row
_MORE_ROWS = 5  # beyond ROWS: their odd number is rounded down
_PATTERN = 4099  # rows or columns that repeat; a prime, so that what is read elsewhere differs
_STEP = 4  # between sizes whose times predict that of a case
_MOST_S = 60.0  # for a case
_PERIODS = 4095  # of columns in a row: more than 2^24 of them, an odd number that is rounded down
_ROUNDING = 1e-8  # in float64: 2^24 units in the last place, five times
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
                implementation,
                sized,
                "2^31 - 1 elements",
                "handles_more_than_2_31_elements",
                _wrong_in_many_rows,
            )


def large_findings(
    implementation: Implementation, case: Case, memory_bytes: int | None
) -> Iterator[Finding]:
    """Yield what is wrong for more than 2^24 rows, found as :func:`huge_findings` does, or columns.

    The columns of a long row repeat, and have the results of those that repeat.

    Args:
        implementation: the target.
        case: gives dtype, device and direction.
        memory_bytes: of the device; None if unknown.
    """
    for shape, words, wrong_outputs in (
        ((ROWS + _MORE_ROWS, COLUMNS), "2^24 rows", _wrong_in_many_rows),
        ((1, _PERIODS * _PATTERN), "2^24 columns", _wrong_in_long_rows),
    ):
        large = fitted(implementation, case, shape=shape)
        size = getattr(torch, case.dtype).itemsize * large.rows * large.hidden
        if large.shape != shape or (memory_bytes or 0) * _SHARE < _TENSORS_OF_OPERATIONS * size:
            continue
        if (predicted_s := _predicted_s(implementation, large)) > _MOST_S:
            yield limit("left_out", large.id, f"takes about {seconds_text(predicted_s)}")
            continue
        kind = f"handles_more_than_{words.replace('^', '_').replace(' ', '_')}"
        yield from _findings(implementation, large, words, kind, wrong_outputs)


def _predicted_s(implementation: Implementation, case: Case) -> float:
    """Return how long a call takes, by two smaller ones: a loop over slices may be quadratic."""
    times_s = []
    for part in (_STEP**3, _STEP**2):
        shape = tuple(size // part or size for size in case.shape)
        call = Call.of(implementation, replace(case, shape=shape), case.direction)
        began = perf_counter()
        with suppress(ImplementationError, ContractViolationError):  # the case itself shows it
            call.outputs()
        times_s.append(perf_counter() - began)
    least, more = times_s
    return more * max(more / least, _STEP) ** 2


def _findings(
    implementation: Implementation,
    case: Case,
    words: str,
    kind: str,
    wrong_outputs: Callable[[Implementation, Case], list[str]],
) -> Iterator[Finding]:
    """Yield what is wrong for more than so many rows, columns or elements."""
    rows, hidden = case.shape
    try:
        texts = [
            f"gives a wrong {name} for more than {words}"
            for name in wrong_outputs(implementation, case)
        ]
    except ImplementationError as raised:
        if raised.status in {Status.UNSUPPORTED, Status.OUT_OF_MEMORY}:
            yield limit("declined", case.id, raised.reason)
            return
        texts = [f"raises for {rows} rows of {hidden}: {raised.reason}"]
    except ContractViolationError as violation:
        texts = [f"{violation} for {rows} rows of {hidden}"]
    for text in texts:
        yield Finding(kind, Severity.WRONG, text, (case.dtype,))


def _wrong_in_long_rows(implementation: Implementation, case: Case) -> list[str]:
    """Return the names of the outputs that differ from those of one period of columns."""
    few = Call.of(implementation, replace(case, shape=(1, _PATTERN)), case.direction)
    repeated = [own.repeat(*[1] * (own.dim() - 1), _PERIODS) for own in few.inputs.tensors]
    expected, found = few.outputs(), replace(few.at(repeated), case=case).outputs()
    parts = [_columns_of(found, first) for first in (0, case.hidden - _PATTERN)]
    return [
        output
        for part in parts
        for output in few.differing(expected, part)
        if not _is_rounding(getattr(expected, output), getattr(part, output))
    ]


def _is_rounding(expected: Tensor | None, found: Tensor | None) -> bool:
    """Whether results differ by no more than sums in order may, in float64, over so long a row."""
    if expected is None or found is None:
        return False
    return bool((found - expected).abs().max() <= _ROUNDING * expected.abs().max())


def _columns_of(outputs: Outputs, first: int) -> Outputs:
    own = {name: tensor[..., first : first + _PATTERN] for name, tensor in named_outputs(outputs)}
    return Outputs(**own)


def _wrong_in_many_rows(implementation: Implementation, case: Case) -> list[str]:
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
