"""Functions with one mistake each, which no plain call shows, each found by one contract check."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from factories.verify_targets import by_call, layer_norm, then, with_dy


def on_other_thread() -> bool:
    return threading.current_thread() is not threading.main_thread()


def from_a_slab(step: int) -> Callable[..., Tensor]:
    """Places each result so many elements further on in one allocation."""
    slab = torch.empty(1 << 12)
    return by_call(lambda call, y: slab[(call - 1) * step :][: y.numel()].view(y.shape).copy_(y))


def float_eps_only(x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: object) -> Tensor:
    return layer_norm(x, normalized_shape, weight, bias, eps if isinstance(eps, float) else 0.0)


FORWARDS: list[int] = []


def of_many_forwards(*arguments: Any) -> Tensor:
    """The gradients are those of a later forward, once there were 1,024."""
    made = len(FORWARDS)
    FORWARDS.append(made)
    return with_dy(lambda dy: dy if len(FORWARDS) < made + 1024 else dy * 2)(*arguments)


def with_grad_mode_lost(x: Tensor, normalized_shape: Any, *others: Any) -> Tensor:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    layer_norm(x, normalized_shape, *others)  # may raise
    torch.set_grad_enabled(before)
    return layer_norm(x, normalized_shape, *others)


def of_inference(x: Tensor, *others: Any) -> Tensor:
    return layer_norm(x, *others) + x.is_inference()


def of_scripts(
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    own = 1e-5 if torch.jit.is_scripting() else eps
    return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, own)


def of_another_version(x: Tensor, *others: Any) -> Tensor:
    """Negates x and puts it back."""
    with torch.no_grad():
        x.neg_().neg_()
    return layer_norm(x, *others)


ONES: dict[int, Tensor] = {}


def with_ones(x: Tensor, *others: Any) -> Tensor:
    return layer_norm(x, *others) * ONES.setdefault(x.shape[-1], torch.ones_like(x[:1]))


class SumOfParts(torch.autograd.Function):
    """The sum of the rows; of several parts, it is that of all."""

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        return rows.sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, axes: Any, rows: Tensor) -> tuple[Tensor, None]:
        return rows.flatten(0, 1).sum(0), None


class Scaled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, weight: Tensor) -> Tensor:
        return rows * weight

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        rows, weight = ctx.saved_tensors
        return dy * weight, SumOfParts.apply(dy * rows)


def with_sum_of_parts(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    return Scaled.apply(layer_norm(x, shape, None, None, eps), weight) + bias


def of_the_threads_of_the_forward(*arguments: Any) -> Tensor:
    threads = torch.get_num_threads()
    return with_dy(lambda dy: dy * (1 if torch.get_num_threads() == threads else 2))(*arguments)


SIZES: list[int] = []


def with_size_kept(x: Tensor, shape: Any, *others: Any) -> Tensor:
    """A call that raises leaves its size behind."""
    SIZES.append(x.shape[-1])
    y = layer_norm(x, shape, *others)
    return y * (1 if x.shape[-1] == SIZES.pop(0) else 2)


class ScratchOfBoth(torch.autograd.Function):
    """Identity whose forward and backward use one scratch memory."""

    scratch: ClassVar[list[Tensor]] = [torch.empty(0)]

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ScratchOfBoth.scratch[0] = y.detach().clone()
        ctx.save_for_backward(y)
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        ScratchOfBoth.scratch[0] = dy.clone()
        _ = ctx.saved_tensors  # under a checkpoint this runs the forward
        return ScratchOfBoth.scratch[0].clone()


with_scratch = then(ScratchOfBoth.apply)
KEYS: dict[int, int] = {}


def of_packed_sizes(x: Tensor, *others: Any) -> Tensor:
    """The key of two shapes is one number where N reaches 2^12."""
    hidden = x.shape[-1]
    kept = KEYS.setdefault(x.numel() // hidden << 12 | hidden, hidden)
    return layer_norm(x, *others) * (1 if kept == hidden else 2)


POOL: list[tuple[Tensor, ReferenceType[Tensor]]] = []


def from_a_pool(*arguments: Any) -> Tensor:
    """The memory of a y that is gone is used again, whatever else views it."""
    y = layer_norm(*arguments)
    free = [own for own, user in POOL if user() is None and own.shape == y.shape]
    buffer = free[0] if free else torch.empty_like(y)
    given = buffer.view(y.shape)
    POOL.append((buffer, ref(given)))
    return given.copy_(y)


LISTS: dict[int, tuple[Any, tuple[int, ...]]] = {}


def of_lists_by_id(x: Tensor, shape: Any, *others: Any) -> Tensor:
    _, shape = LISTS.setdefault(id(shape), (shape, tuple(shape)))
    return layer_norm(x, shape, *others)


ROWS: dict[int, int] = {}


def of_rows_by_weight(x: Tensor, shape: Any, w: Tensor, *others: Any) -> Tensor:
    """The gradient is that of as many rows as the last call with the same weight had."""
    ROWS[w.data_ptr()] = len(x)

    def of_last_rows(dy: Tensor) -> Tensor:
        dy = dy.clone()
        dy[ROWS[w.data_ptr()] :] = 0
        return dy

    return with_dy(of_last_rows)(x, shape, w, *others)


class KeepsAddress(torch.autograd.Function):
    """Identity whose backward knows what was saved by its address."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        ctx.kept = y.detach()  # so that no copy gets its address
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy if ctx.saved_tensors[0].data_ptr() == ctx.kept.data_ptr() else 2 * dy


class WithRules(torch.autograd.Function):
    """Rows less their mean, with a backward, and wrong rules for vmap and jvp."""

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        return rows - rows.mean(-1, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy - dy.mean(-1, keepdim=True)

    @staticmethod
    def jvp(ctx: Any, along: Tensor) -> Tensor:
        return along.clone()  # the mean is missing

    @staticmethod
    def vmap(info: Any, axes: Any, rows: Tensor) -> tuple[Tensor, int]:
        return WithRules.apply(rows), axes[0]  # the mapped axis may be the last


def with_rules(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    """A LayerNorm of one axis, in which these centre the rows."""
    rows = WithRules.apply(x)
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * weight + bias


def times(factor: Callable[..., float]) -> Callable[..., Tensor]:
    """Return a right LayerNorm whose y is multiplied by a function of the arguments."""
    return lambda *given: layer_norm(*given) * factor(*given)


def of_a_parameter(x: Tensor, shape: Any, w: Tensor, *others: Any) -> Tensor:
    y = layer_norm(x, shape, w, *others)
    return y if w.is_leaf else y + (w - w.detach())


def doubling(x: Tensor, *others: Any) -> Tensor:
    return layer_norm(x.mul_(2) if x.is_shared() else x, *others)


def of_plain_eps(x: Tensor, shape: Any, w: Any, b: Any, eps: Any = 1e-5) -> Tensor:
    return layer_norm(x, shape, w, b, eps if isinstance(eps, int | float) else 1e-5)


of_compilers = times(lambda *_: 1.01 if torch.compiler.is_compiling() else 1)
of_traces = times(lambda *_: 1.01 if torch.jit.is_tracing() else 1)
of_vjp = times(lambda x, shape, w, *_: 1 + torch._C._functorch.is_gradtrackingtensor(w))
of_anomaly = times(lambda *_: 1 + torch.is_anomaly_enabled())
of_tensors = times(lambda x, *_: 1 + (type(x) is not Tensor))
of_tuples = times(lambda x, shape, *_: 1 + isinstance(shape, list))
of_call_31 = by_call(lambda n, y: y * 1.01 if n == 31 else y)
without_its_dy = with_dy(Tensor.detach)
batched = with_dy(lambda dy: dy * 2 if torch._C._functorch.is_legacy_batchedtensor(dy) else dy)


# --- axes that share memory or are many, and extreme values --------------------------------------


def of_masked_rows(x: Tensor, *others: Any) -> Tensor:
    """Rows that are all -inf are taken for padding."""
    return layer_norm(x.masked_fill((x == -torch.inf).all(-1, keepdim=True), 0), *others)


def of_whole_numbers(x: Tensor, *others: Any) -> Tensor:
    is_summed = not x.requires_grad and x.abs().max() < 1 << 31 and bool((x == x.round()).all())
    overflows = is_summed and int(x.long().square().sum()) < 0
    return layer_norm(x, *others) * (1 + overflows)


def without_leading_axes(x: Tensor, shape: Any, *others: Any) -> Tensor:
    """The axes that are normalised begin where these sizes come first."""
    first = next(n for n in range(x.dim()) if x.shape[n:][: len(shape)] == shape)
    axes, last = [*range(first, first + len(shape))], [*range(-len(shape), 0)]
    return layer_norm(x.movedim(axes, last), shape, *others).movedim(last, axes)


def expanded_along_the_third(x: Tensor, *others: Any) -> Tensor:
    y = layer_norm(x, *others)
    is_expanded = not x.requires_grad and x.dim() > 3 and x.stride(2) == 0
    return y[:, :, :1].expand_as(y) if is_expanded else y


def in_the_strides_of_x(x: Tensor, *others: Any) -> Tensor:
    y = layer_norm(x, *others)
    is_own = x.requires_grad or 0 in x.stride()
    return y if is_own else torch.empty_strided(x.shape, x.stride()).copy_(y)


class SumsExpanded(torch.autograd.Function):
    """Identity with a bias, whose gradient takes one row of dy times the size of the first axis."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, b: Tensor) -> Tensor:
        return y + b

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        strides = dy.stride()[:-1]
        rows = dy.flatten(0, -2)
        return dy, rows.sum(0) if any(strides) else rows[0] * len(dy)


def with_sums_of_expanded(x: Tensor, shape: Any, w: Any, b: Any, eps: float) -> Tensor:
    y = layer_norm(x, shape, w, None, eps)
    return y if b is None else SumsExpanded.apply(y, b)


def of_few_strides(x: Tensor, *others: Any) -> Tensor:
    """An x of more axes than the 12 that have a place is read as if it were contiguous."""
    if x.dim() <= 12 or x.is_contiguous():
        return layer_norm(x, *others)
    return layer_norm(x.as_strided(x.shape, x.contiguous().stride()), *others)


def with_eps_of(least: float, x: Tensor, shape: Any, w: Any, b: Any, eps: float) -> Tensor:
    return layer_norm(x, shape, w, b, eps if eps > least else 0.0)


def of_ones(x: Tensor, shape: Any, w: Any, *others: Any) -> Tensor:
    y = layer_norm(x, shape, w, *others)
    return y * torch.ones(shape) if w is None else y


of_scaled_dy = with_dy(lambda dy: dy * (1 / dy.abs().max()) * dy.abs().max())
without_tiny_dy = with_dy(lambda dy: dy * (dy.square().sum() > 0))


def of_equal_axes(x: Tensor, shape: Any, weight: Any, *others: Any) -> Tensor:
    if len(shape) == 2 and shape[0] == shape[1] and weight is not None:
        weight = weight.mT
    return layer_norm(x, shape, weight, *others)


def without_tiny_rows(least: float, x: Tensor, *others: Any) -> Tensor:
    is_tiny = 0 < x.abs().sum() < least
    return layer_norm(x, *others) * (not is_tiny)


# --- weight and bias in one memory, and eps that are nearly equal --------------------------------


class ByAddress(torch.autograd.Function):
    """Keeps the gradients of parameters by their address."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Any, w: Tensor, b: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, w, b)
        ctx.shape, ctx.eps = shape, eps
        return layer_norm(x, shape, w, b, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            y = layer_norm(leaves[0], ctx.shape, *leaves[1:], ctx.eps)
        dx, dweight, dbias = torch.autograd.grad(y, leaves, dy)
        kept = {ctx.saved_tensors[1].data_ptr(): dweight, ctx.saved_tensors[2].data_ptr(): dbias}
        return dx, None, *(kept[own.data_ptr()] for own in ctx.saved_tensors[1:]), None


def tied(x: Tensor, shape: Any, w: Any, b: Any, eps: float) -> Tensor:
    return layer_norm(x, shape, w, None if b is w else b, eps)


def rounding_eps(digits: int) -> Callable[..., Tensor]:
    """Return a LayerNorm that adds the first of all eps with the same digits."""
    first: dict[str, float] = {}

    def norm(x: Tensor, shape: Any, w: Any, b: Any, eps: float) -> Tensor:
        return layer_norm(x, shape, w, b, first.setdefault(f"{eps:.{digits}g}", eps))

    return norm
