"""Contract checks under what transforms a function: torch.compile, torch.vmap, torch.func.jvp.

They are made for targets that have a rule of their own for one of them; the rules of PyTorch's
operators are PyTorch's. What a target refuses is no mistake.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor

from harness.numerics import Outputs, copies_of
from harness.records import Direction
from harness.run import ImplementationError, guarded
from harness.verify.checks.calls import Call
from harness.verify.checks.contract_checks import SMALL, TWO_AXES, check
from harness.verify.checks.gradients import EXACT, jvp, with_right_gradients
from harness.verify.code import code_of

__all__ = [
    "forward_derivative_is_correct",
    "is_correct_under_vmap",
    "is_correct_where_it_is_compiled",
]

_COMPILING = {"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"}
_PARTS = 2
_FORWARD_LIMIT = 1e-2  # of its norm: float32 is within 1e-5 here, a missing term above 0.1


@check(None)
def is_correct_where_it_is_compiled(call: Call) -> str | None:
    """A branch for torch.compile is right; traced by it, and run by PyTorch's own operators."""
    if not _names(call) & _COMPILING:
        return None
    traced = torch.compile(call.target.function, backend="eager")
    inside = replace(call, target=replace(call.target, function=traced))
    for own, other in ((call, inside), (call.forward(), inside.forward())):
        expected = copies_of(own.outputs())
        with suppress(ImplementationError):
            if name := own.differs(expected, other.outputs()):
                return f"gives another {name} under torch.compile"
    return None


@check(Direction.FORWARD)
def is_correct_under_vmap(call: Call) -> str | None:
    """Under torch.vmap over any axis it returns what it returns for each part, or raises."""
    if not _names(call) & {"vmap", "register_vmap"}:
        return None
    parts = [call.seeded(number) for number in range(_PARTS)]
    returned: object = None
    for axis in (0, -1):
        mapped = torch.vmap(call.y_of, in_dims=axis)
        stacked = torch.stack([part.inputs.x for part in parts], axis)
        with suppress(ImplementationError), torch.no_grad(), catch_warnings():
            simplefilter("ignore")  # of torch, where it runs one part after the other
            returned = guarded(mapped, stacked)()
        if returned is None:
            return None
        assert isinstance(returned, Tensor)  # the type that vmap returns
        for part, y in zip(parts, returned, strict=True):
            own = part.on(weight=call.inputs.weight, bias=call.inputs.bias)
            if own.differs(own.outputs(), Outputs(y=y)):
                return "gives another y under torch.vmap"
    return None


@check(Direction.BACKWARD, SMALL, TWO_AXES)
def forward_derivative_is_correct(call: Call) -> str | None:
    """The derivative in forward mode, of torch.func.jvp, is right, or raises."""
    given = next(with_right_gradients(call), None) if "jvp" in _names(call) else None
    if given is None:
        return None
    exact = replace(given.at([own.double() for own in given.inputs.tensors]), target=EXACT)
    along = given.seeded(1).inputs.x
    try:
        found = guarded(jvp, given.forward().y_of, given.inputs.x, along)()
    except ImplementationError:
        return None
    expected = jvp(exact.forward().y_of, exact.inputs.x, along.double())
    assert isinstance(found, Tensor)  # the type that jvp returns
    if not (found.double() - expected).norm() <= _FORWARD_LIMIT * expected.norm():
        return "has a wrong derivative in forward mode (torch.func.jvp), without an error"
    return None


def _names(call: Call) -> set[str]:
    """Return the names of the target's functions, and those that they use."""
    functions = code_of(call.target).functions
    return {name for own in functions for name in (own.__name__, *own.__code__.co_names)}
