"""Named layouts of x in memory; two are also layouts of dy. Each docstring says what it breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from types import MappingProxyType
from typing import TypeVar

from torch import Tensor

from implementations.torch_private import negated_view

Named = TypeVar("Named", bound=Callable[..., object])


class Registry(dict[str, Named]):
    """Functions by their names, and families of them, such as "largest_65504" of "largest"."""

    families: Mapping[str, Callable[[float], Named]]

    def __missing__(self, name: str) -> Named:
        family, _, number = name.rpartition("_")
        with suppress(KeyError, ValueError):
            return self.families[family](float(number))
        raise KeyError(name)


def by_name(*functions: Named, **families: Callable[[float], Named]) -> Registry[Named]:
    """Return functions by their names, as users write them.

    Args:
        functions: whose names are known.
        families: make the function for a number, which follows the name of the family and "_".
    """
    registry = Registry({function.__name__: function for function in functions})
    registry.families = MappingProxyType(families)
    return registry


def contiguous(x: Tensor) -> Tensor:
    """Row after row, aligned: the layout that kernels are written for."""
    return x.contiguous()


def storage_offset(x: Tensor) -> Tensor:
    """Starts one element into its storage: vector loads are not aligned."""
    buffer = x.new_empty(x.numel() + 1)
    return buffer[1:].view(x.shape).copy_(x)


def padded_rows(x: Tensor) -> Tensor:
    """Three unused NaN after each row: a kernel that reads the padding returns NaN."""
    return _apart(x, x.shape[-1] + 3)


def transposed(x: Tensor) -> Tensor:
    """Last axis with the largest stride: the elements of a row are far apart."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def every_second(x: Tensor) -> Tensor:
    """Every second element of a buffer, like z.imag, NaN in between: the innermost stride is 2."""
    buffer = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
    return buffer[..., 1::2].copy_(x)


def channels_last(x: Tensor) -> Tensor:
    """Second axis innermost in memory, as for images: shows x read as if it were contiguous."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 2 else x.contiguous()


def channels_first(x: Tensor) -> Tensor:
    """Last axis second in memory, as images (N, C, H, W) permuted: shows one pitch for all."""
    return x.movedim(-1, 1).contiguous().movedim(1, -1) if x.dim() > 2 else x.contiguous()


def sequence_first(x: Tensor) -> Tensor:
    """First two axes swapped in memory: rows are whole, but not in order."""
    return x.transpose(0, 1).contiguous().transpose(0, 1) if x.dim() > 2 else x.contiguous()


def heads_first(x: Tensor) -> Tensor:
    """Second and third axes swapped in memory, as heads of attention: rows are not in order."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 3 else x.contiguous()


def reversed_axes(x: Tensor) -> Tensor:
    """All axes but the last in reverse order in memory: shows leading axes taken for one."""
    order = (*reversed(range(x.dim() - 1)), x.dim() - 1)
    return x.permute(order).contiguous().permute(order)


def sliced_middle(x: Tensor) -> Tensor:
    """A slice of a longer second axis, NaN beyond it: the distance between rows varies."""
    if x.dim() < 3:
        return x.contiguous()
    buffer = x.new_full((x.shape[0], x.shape[1] + 3, *x.shape[2:]), float("nan"))
    return buffer[:, : x.shape[1]].copy_(x)


def any_view(x: Tensor, drawn_from: str = "x") -> Tensor:
    """Another view of a larger tensor for each shape: axes in any order, slices, steps up to 4.

    NaN lies beyond the slices. It shows strides and offsets of which a kernel takes some for known.
    """
    draw = Random(f"{drawn_from} {tuple(x.shape)}")
    axes = range(x.dim())
    leading = draw.sample(axes[:-1], len(axes[:-1]))
    order = draw.choice([[*axes], [*leading, *axes[-1:]], draw.sample(axes, len(axes))])
    sliced = draw.sample(axes, draw.randint(order == sorted(order), min(2, len(axes))))
    sizes, slices = list(x.shape), [slice(None)] * x.dim()
    for axis in sliced:
        begin, step = draw.randint(1, 9), draw.choice([1, 1, 2, 3, 4])
        end = begin + step * x.shape[axis]
        sizes[axis], slices[axis] = end + draw.randint(0, 3), slice(begin, end, step)
    buffer = x.new_full([sizes[axis] for axis in order], float("nan"))
    return buffer.permute([order.index(axis) for axis in axes])[tuple(slices)].copy_(x)


def expanded(x: Tensor) -> Tensor:
    """The first row for every row, with a stride of 0: a write to one row changes all rows.

    It changes values, because all rows share the memory of one.
    """
    return x[:1].contiguous().expand(x.shape)


def expanded_second(x: Tensor) -> Tensor:
    """The second axis expanded, with a stride of 0: shows a stride that is taken for the first's.

    It changes values as :func:`expanded` does.
    """
    return x[:, :1].contiguous().expand(x.shape) if x.dim() > 2 else x.contiguous()


def expanded_windows(x: Tensor) -> Tensor:
    """Each row begins one element after the one before, as of Tensor.unfold: rows overlap.

    It changes values as :func:`expanded` does.
    """
    if x.dim() != 2 or not x.numel():
        return x.contiguous()
    rows, hidden = x.shape
    return x.reshape(-1)[: hidden + rows - 1].clone().unfold(0, hidden, 1)


def negated(x: Tensor) -> Tensor:
    """Stored as -x with the negative bit set, like z.conj().imag: shows a bit that is ignored."""
    return negated_view(-x)


def chunk(tensor: Tensor, start: int = 2) -> Tensor:
    """Starts within a longer tensor: shows that the offset is lost, or that there is one."""
    buffer = tensor.new_full((tensor.numel() + start + 1,), float("nan"))
    return buffer[start:-1].view(tensor.shape).copy_(tensor)


def _offset(elements: float) -> Callable[[Tensor], Tensor]:
    """Starts so many elements into a longer tensor: shows an alignment or offset that decides."""
    return partial(chunk, start=int(elements))


def _pitch(elements: float) -> Callable[[Tensor], Tensor]:
    """Each row begins so many elements after the one before: shows a distance that is cut off."""

    return lambda x: _apart(x, max(int(elements), x.shape[-1]))


def _apart(x: Tensor, pitch: int) -> Tensor:
    """Lay rows out so that each begins ``pitch`` elements after the one before, NaN in between."""
    return x.new_full((*x.shape[:-1], pitch), float("nan"))[..., : x.shape[-1]].copy_(x)


LAYOUTS: Registry[Callable[[Tensor], Tensor]] = by_name(
    contiguous, storage_offset, padded_rows, transposed, every_second, any_view, channels_last,
    channels_first, sequence_first, heads_first, reversed_axes, sliced_middle, expanded,
    expanded_second, expanded_windows, chunk, negated, offset=_offset, pitch=_pitch,
)  # fmt: skip

# In these layouts dy occurs too: the gradient of a transpose is transposed, that of a convolution
# has channels first, that of torch.cat is a slice. For the other layouts dy stays contiguous, as in
# the records stored so far.
OF_DY_TOO = frozenset({"channels_first", "sequence_first", "heads_first", "sliced_middle"})
