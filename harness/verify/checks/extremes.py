"""Contract checks where no error bound holds, and the exact result or PyTorch's own is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor

from harness.numerics import Outputs
from harness.records.finding import RemarkKind
from harness.records.text import listed
from harness.run import ImplementationError
from harness.verify.checks.calls import Call
from harness.verify.checks.contract_checks import check

__all__ = ["is_the_bias_in_rows_of_one"]

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
        one = call.changed(shape=(_ROWS, 1), distribution=f"largest_{largest}")
        is_judged = one.case.hidden == 1 and one.case.eps
        if is_judged and (wrong := listed(_not_of_rows_of_one(one, one.outputs()))):
            yield f"gives a wrong {wrong} in rows of one element at |x| = {largest}, where {exact}"


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
