"""Named layouts of x, and two of dy too: where values lie in memory, each saying what it breaks."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from implementations.torch_private import negated_view

__all__ = ["LAYOUTS", "OF_DY_TOO"]


def contiguous(x: Tensor) -> Tensor:
    """Row after row, aligned: what kernels are written for."""
    return x.contiguous()


def storage_offset(x: Tensor) -> Tensor:
    """One element into its storage: vector loads are not aligned."""
    buffer = x.new_empty(x.numel() + 1)
    return buffer[1:].view(x.shape).copy_(x)


def padded_rows(x: Tensor) -> Tensor:
    """Three unused elements, NaN, after each row: whoever reads the padding is found out."""
    buffer = x.new_full((*x.shape[:-1], x.shape[-1] + 3), float("nan"))
    return buffer[..., : x.shape[-1]].copy_(x)


def transposed(x: Tensor) -> Tensor:
    """Last axis with the largest stride: elements of a row are far apart."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def every_second(x: Tensor) -> Tensor:
    """Every second element of a buffer whose others are NaN: the innermost stride is 2."""
    buffer = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
    return buffer[..., ::2].copy_(x)


def channels_last(x: Tensor) -> Tensor:
    """Second axis innermost in memory, as images are kept: reading x as if row after row shows."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 2 else x.contiguous()


def sequence_first(x: Tensor) -> Tensor:
    """First two axes swapped in memory: whole rows, but not a step from each to the next."""
    return x.transpose(0, 1).contiguous().transpose(0, 1) if x.dim() > 2 else x.contiguous()


def sliced_middle(x: Tensor) -> Tensor:
    """A slice of a longer second axis, NaN beyond it: no one step leads from row to row."""
    if x.dim() < 3:
        return x.contiguous()
    buffer = x.new_full((x.shape[0], x.shape[1] + 3, *x.shape[2:]), float("nan"))
    return buffer[:, : x.shape[1]].copy_(x)


def expanded(x: Tensor) -> Tensor:
    """The first row for every row, with a stride of 0: what is written beside one is in all.

    The only layout that changes values, since there is memory for one row only.
    """
    return x[:1].contiguous().expand(x.shape)


def negated(x: Tensor) -> Tensor:
    """Kept as -x under the negative bit, as z.conj().imag is: whoever reads memory reads -x."""
    return negated_view(-x)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    each.__name__: each
    for each in (
        contiguous,
        storage_offset,
        padded_rows,
        transposed,
        every_second,
        channels_last,
        sequence_first,
        sliced_middle,
        expanded,
        negated,
    )
}

# What lies so comes back so: the gradient of a transpose is transposed, that of torch.cat sliced.
# The other layouts are older, and what is stored of them is of a contiguous dy.
OF_DY_TOO = frozenset({"sequence_first", "sliced_middle"})
