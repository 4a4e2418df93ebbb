"""Contract checks where no error bound holds, and the exact result or PyTorch's own is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from harness.cases.distributions import least_scale
from harness.numerics import Outputs, named_outputs
from harness.records.finding import RemarkKind
from harness.records.text import listed
from harness.run import ImplementationError
from harness.verify.checks.calls import Call
from harness.verify.checks.contract_checks import check

__all__ = ["is_right_at_extremes", "is_the_bias_in_rows_of_one"]

_ROWS = 5
# a larger x is of no use in float16, and PyTorch's own is wrong from 1e4 on in float32
_LARGE = {"float16": "6e4"}
_USUAL_LARGE = "1e6"
_LOST = 1e-2  # of the size of an output, as in a grade: fewer than two digits are of no use


@check(None, remark=RemarkKind.ROWS_OF_ONE)
def is_the_bias_in_rows_of_one(call: Call) -> Iterator[str]:
    """In rows of one element y is the bias, and dx and dweight are 0, however large x is."""
    largest = _LARGE.get(call.case.dtype, _USUAL_LARGE)
    exact = "y is the bias, and dx and dweight are 0"
    with suppress(ImplementationError):  # a remark of its own, if it is one at all
        one = call.changed(shape=(_ROWS, 1), distribution=f"largest_{largest}", eps=1e-5)
        is_judged = one.case.hidden == 1 and one.case.eps
        if is_judged and (wrong := listed(_not_of_rows_of_one(one, one.outputs()))):
            yield f"gives a wrong {wrong} in rows of one element at |x| = {largest}, where {exact}"


@check(None)
def is_right_at_extremes(call: Call) -> Iterator[str]:
    """Results are within their bounds for the smallest eps, x and dy, and for other extreme values.

    Gradients of a subnormal dy are finite, and may be 0.
    """
    if call.case.hidden == 1 or call.wrong():
        return
    for where, eps, name, of in _extremes(getattr(torch, call.case.dtype)):
        with suppress(ImplementationError):
            own = call.changed(eps=call.case.eps if eps is None else eps)
            tensor = getattr(own.inputs, name)
            if tensor is not None and (wrong := own.on(**{name: of(tensor)}).wrong()):
                yield f"gives a wrong {wrong} where {where}"
    if call.inputs.dy is not None:
        tiny = call.on(dy=call.dy * (torch.finfo(call.dy.dtype).tiny / 64)).outputs()
        for output, tensor in named_outputs(tiny):
            if not tensor.isfinite().all():
                yield f"gives a {output} that is not finite where dy is subnormal"


def _with_rows_of(value: float, x: Tensor) -> Tensor:
    is_second = torch.arange(len(x), device=x.device) % 2 == 1
    return x.masked_fill(is_second.view(-1, *(1 for _ in x.shape[1:])), value)


def _whole(largest: float, x: Tensor) -> Tensor:
    wide = x.double()
    return (wide * (largest / wide.abs().amax())).trunc().to(x.dtype)


Extreme = tuple[str, float | None, str, Callable[[Tensor], Tensor]]


def _extremes(dtype: torch.dtype) -> Iterator[Extreme]:
    """Yield extreme values: in words, eps if it is not the usual one, and how to change a tensor.

    They are so far from the ends of the range of the dtype that a kernel may take subnormal numbers
    for 0, and those of eps and dy as far from the ends of float32, which it may use inside.
    """
    limits, single = torch.finfo(dtype), torch.finfo(torch.float32)
    eps, small = max(limits.tiny, single.tiny) ** 0.8, least_scale(dtype)
    least = 64 * max(own.tiny / own.eps for own in (limits, single))
    yield f"eps is {eps:.1g} and x is 0", eps, "x", torch.zeros_like
    yield f"eps is 0 and x is of the size {small:.1g}", 0.0, "x", lambda x: x * small
    for value in ("-inf", "inf", "nan"):
        of = partial(_with_rows_of, float(value))
        yield f"all elements of a row are {value}", None, "x", of
    for power in (31, 53):
        of = partial(_whole, 0.9 * 2.0**power)
        yield f"x holds whole numbers of the size 2^{power}", None, "x", of
    yield f"dy is of the size {least:.1g}", None, "dy", lambda dy: dy * least


def _not_of_rows_of_one(call: Call, outputs: Outputs) -> list[str]:
    """Return the names of the outputs that are off by more than :data:`_LOST` of their terms."""
    zero = torch.zeros(())
    bias = zero if call.inputs.bias is None else call.inputs.bias
    weight = zero + 1 if call.inputs.weight is None else call.inputs.weight
    dy = zero if call.inputs.dy is None else call.inputs.dy
    terms = {  # the exact output, and the size of what it is made of
        "y": (bias, weight.abs() + bias.abs()),
        "dx": (zero, (dy * weight).abs() * call.case.eps**-0.5),
        "dweight": (zero, dy.abs().sum()),
    }
    found = {name: getattr(outputs, name) for name in terms}
    return [
        name
        for name, (exact, size) in terms.items()
        if isinstance(found[name], Tensor)
        and not bool(((found[name] - exact).abs() <= _LOST * size).all())
    ]
