"""Whether a call wrote all of its outputs, and wrote them before it returned.

Freed memory keeps its values: an output that is allocated and never written may hold the result of
an earlier call. Therefore the memory that a call will get is filled with a pattern beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from harness.numerics.error_measurement import Outputs

__all__ = ["SETTLE_S", "bits_of", "copied", "fill_free_memory", "incomplete_output"]

SETTLE_S = 0.02  # several scheduler slices: a thread with work left gets a core in this time
# blocks of each size: earlier calls have freed several, and an implementation allocates some
# before y. Trade-off: large ones take time to fill, and an allocator holds few of them
_FEWEST, _MOST, _SMALL_BYTES = 3, 16, 1 << 22
_FILLED = 0xFF  # in every byte: a NaN in each dtype, with a payload that arithmetic never gives
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NAMES = ("y", "dx", "dweight", "dbias")


def fill_free_memory(like: Sequence[Tensor]) -> None:
    """Fill the memory that new tensors of these sizes will probably get."""
    for size, device in {each.nbytes: each.device for each in like}.items():
        count = min(max(_SMALL_BYTES // max(size, 1), _FEWEST), _MOST)
        blocks = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(count)]
        for block in blocks:
            block.fill_(_FILLED)


def copied(outputs: Outputs) -> Outputs:
    """Return copies of the outputs, as they are now."""
    return Outputs(**{name: output.detach().clone() for name, output in _named(outputs)})


def incomplete_output(copies: Outputs, outputs: Outputs) -> str | None:
    """Return which output was not complete when ``copies`` were made, and how; None if all were."""
    for (name, copy), (_, output) in zip(_named(copies), _named(outputs), strict=True):
        # not "!=": NaN equals nothing. NaN is replaced by a number on both sides
        if not torch.equal(copy.nan_to_num(), output.detach().nan_to_num()):
            return (
                f"{name} was still written after the call had returned: the call leaves work to "
                "another thread, process or stream; wait for it"
            )
        if _holds_filled(copy):
            return f"{name} has elements that were never written: it returns uninitialised memory"
    return None


def _holds_filled(tensor: Tensor) -> bool:
    """Whether elements hold what :func:`fill_free_memory` wrote."""
    if not tensor.numel() or not bool(torch.isnan(tensor).any()):
        return False
    integers = tensor.resolve_neg().contiguous().view(_INTEGERS[tensor.element_size()])
    return bool((integers == -1).any())


def _named(outputs: Outputs) -> Iterator[tuple[str, Tensor]]:
    for name in _NAMES:
        output = getattr(outputs, name)
        if output is not None:
            yield name, output


def bits_of(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, so that NaN compares equal to NaN."""
    if not tensor.numel():
        return tensor
    flat = tensor.resolve_neg().reshape(-1)
    if flat.stride(0) != 1:  # contiguous() keeps the stride of a single element
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)
