"""What an implementation returns for a case, and whether it wrote all of it before it returned.

Freed memory keeps its values: an output that is allocated and never written may hold the result of
an earlier call. Therefore the memory that a call will get is filled with a pattern beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Outputs:
    """What an implementation returned for a case."""

    y: Tensor
    """Of x's shape."""
    dx: Tensor | None = None
    """Of x's shape; None in a forward case."""
    dweight: Tensor | None = None
    """Of the normalized shape; None where there is no weight."""
    dbias: Tensor | None = None
    """Of the normalized shape; None where there is no bias."""


OUTPUTS = ("y", "dx", "dweight", "dbias")
"""The names of all outputs."""
GRADIENTS = OUTPUTS[1:]
SETTLE_S = 0.02  # several scheduler slices: a thread with work left gets a core in this time
# numbers of blocks per size: earlier calls have freed several, and an implementation allocates
# some before y. Trade-off: large blocks take time to fill, and an allocator holds few of them
_FEWEST, _MOST, _SMALL_BYTES = 3, 8, 1 << 22
# by dtype, an integer of its size and what it is filled with: a NaN whose payload no arithmetic
# gives (all bits set would be what torch's own vectorised maximum gives for NaN)
_FILLED = {
    torch.bfloat16: (torch.int16, 0x7FDE),
    torch.float16: (torch.int16, 0x7EDE),
    torch.float32: (torch.int32, 0x7FDEADDE),
    torch.float64: (torch.int64, 0x7FFDEADDEADDEADD),
}


def fill_free_memory(like: Sequence[Tensor]) -> None:
    """Fill the memory that new tensors of these sizes will probably get."""
    for size, dtype, device in {(tensor.numel(), tensor.dtype, tensor.device) for tensor in like}:
        integer, value = _FILLED[dtype]
        count = min(max(_SMALL_BYTES // max(size * dtype.itemsize, 1), _FEWEST), _MOST)
        blocks = [torch.empty(size, dtype=integer, device=device) for _ in range(count)]
        for block in blocks:
            block.fill_(value)


def copies_of(outputs: Outputs) -> Outputs:
    """Return copies of the outputs, which later calls cannot change."""
    return Outputs(**{name: output.detach().clone() for name, output in named_outputs(outputs)})


def incomplete_output(copies: Outputs, outputs: Outputs) -> str | None:
    """Return which output was not complete when ``copies`` were made, and how; None if all were."""
    for (name, copy), (_, output) in zip(
        named_outputs(copies), named_outputs(outputs), strict=True
    ):
        if not torch.equal(bits_of(copy), bits_of(output.detach())):
            return (
                f"{name} was still written after the call had returned: the call leaves work to "
                "another thread, process or stream; wait for it"
            )
        if bool((bits_of(copy) == _FILLED[copy.dtype][1]).any()):
            return f"{name} has elements that were never written: it returns uninitialised memory"
    return None


def named_outputs(outputs: Outputs) -> Iterator[tuple[str, Tensor]]:
    """Yield the outputs that exist, by name."""
    for name in OUTPUTS:
        output = getattr(outputs, name)
        if output is not None:
            yield name, output


def bits_of(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor as integers: NaN is equal to NaN, and 0 not to -0."""
    flat = tensor.resolve_neg().reshape(-1)
    if flat.stride(0) != 1:  # contiguous() keeps the stride of a single element
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(_FILLED[tensor.dtype][0])
