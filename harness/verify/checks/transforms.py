"""Contract checks under what transforms a function: torch.compile, torch.vmap, torch.func.jvp.

Most are made for targets that have a rule of their own for one of them; the rules of PyTorch's
operators are PyTorch's. What a target refuses is no mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from types import FunctionType
from typing import Any
from warnings import catch_warnings

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from harness.numerics import Outputs, copies_of
from harness.records import Direction
from harness.run import ContractViolationError, ImplementationError, checked, guarded
from harness.verify.checks.calls import Call, gradients_of
from harness.verify.checks.contract_checks import SMALL, TWO_AXES, check
from harness.verify.checks.gradients import EXACT, jvp, with_right_gradients
from harness.verify.code import code_of
from harness.verify.in_scope import InScope, adapter_of
from harness.verify.words import cause
from implementations.targets.from_module import ModuleFunction

__all__ = [
    "forward_derivative_is_correct",
    "is_correct_for_batched_gradients",
    "is_correct_under_func_vjp",
    "is_correct_under_vmap",
    "is_correct_where_it_is_compiled",
    "is_correct_where_it_is_traced",
]

_UNUSUAL = 341  # added to N gives one that was not called before
_COMPILING = {"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"}
_TRACING = {"is_tracing", "get_tracing_state", "_get_tracing_state"}
# of its norm: a missing term is above 0.1; bfloat16 is within 0.005, float32 1e-5, float64 1e-14
_FORWARD_LIMIT = {"float16": 0.05, "bfloat16": 0.05, "float32": 1e-2, "float64": 1e-9}


@check(None)
def is_correct_where_it_is_compiled(call: Call) -> Iterator[str]:
    """A branch for torch.compile is right; traced by it, and run by PyTorch's own operators."""
    if not code_of(call.target).names & _COMPILING:
        return
    inside = call.by(torch.compile(call.target.function, backend="eager"))
    for own, other in ((call, inside), (call.forward(), inside.forward())):
        expected = copies_of(own.outputs())
        with suppress(ImplementationError):
            yield from own.gives_another(expected, other.outputs(), "under torch.compile")


@check(Direction.FORWARD)
def is_correct_where_it_is_traced(call: Call) -> Iterator[str]:
    """The same of a branch for torch.jit.trace, and of one of a function for torch.jit.script."""
    names, x = code_of(call.target).names, call.inputs.x
    # torch.jit is deprecated
    with suppress(ImplementationError), torch.no_grad(), catch_warnings(action="ignore"):
        if names & _TRACING:
            traced: Any = guarded(partial(torch.jit.trace, check_trace=False), call.y_of, x)()
            found = Outputs(y=checked("y", guarded(traced, x)(), x))
            yield from call.gives_another(call.outputs(), found, "under torch.jit.trace")
    function = call.target.function
    function = function.function if isinstance(function, InScope) else function
    if "is_scripting" in names and isinstance(function, FunctionType):
        own, where = call.forward(), "under torch.jit.script"
        with suppress(ImplementationError), catch_warnings(action="ignore"):
            scripted: Any = guarded(torch.jit.script, function)()
            yield from own.gives_another(own.outputs(), own.by(scripted).outputs(), where)


@check(Direction.FORWARD, SMALL, TWO_AXES)
def is_correct_under_vmap(call: Call) -> Iterator[str]:
    """Under torch.vmap over some inputs, y is that of each part, or it raises.

    There are as many parts as rows, whose axis a rule may take for that of the parts.
    """
    if not code_of(call.target).names & {"vmap", "register_vmap"}:
        return
    for own in call.each_affine():
        parts = [own.seeded(at) for at in range(own.case.rows)]
        for names, axis in product(_some_of(own), (0, -1)):
            stacked = [torch.stack([part.given[name] for part in parts], axis) for name in names]
            y_of = partial(_y_of, own, names)
            # torch warns where it runs one part after the other
            with suppress(ImplementationError), torch.no_grad(), catch_warnings(action="ignore"):
                mapped: Any = guarded(torch.vmap(y_of, in_dims=axis), *stacked)()
                for part, y in zip(parts, mapped, strict=True):
                    one = own.on(**{name: part.given[name] for name in names})
                    yield from one.gives_another(one.outputs(), Outputs(y=y), "under torch.vmap")


def _y_of(call: Call, names: Sequence[str], *tensors: Tensor) -> Tensor:
    """Return y of a call with other tensors, which may be those of torch.vmap."""
    other = call.on(**dict(zip(names, tensors, strict=True)))
    return other.y_of(other.inputs.x)


def _some_of(call: Call) -> list[tuple[str, ...]]:
    """Return each choice of the inputs that are given, all of them first."""
    counts = range(len(call.given), 0, -1)
    return [names for count in counts for names in combinations(call.given, count)]


@check(Direction.BACKWARD, SMALL, TWO_AXES)
def gradients_per_part_are_correct(call: Call) -> Iterator[str]:
    """Under torch.vmap of torch.func.vjp over x, the gradients are those of each part alone."""
    if not code_of(call.target).names & {"vmap", "register_vmap"}:
        return
    for own in call.each_affine():
        parts = [own.on(x=own.seeded(at).inputs.x) for at in range(own.case.rows)]
        stacked = torch.stack([part.inputs.x for part in parts])
        per_part = torch.vmap(partial(_gradients_at, own))
        with suppress(ImplementationError), catch_warnings(action="ignore"):
            mapped: Any = guarded(per_part, stacked)()
            for at, part in enumerate(parts):
                expected = part.gradients()
                named = zip(part.given, mapped, strict=True)
                found = Outputs(y=expected.y, **{f"d{name}": own[at] for name, own in named})
                where = "under torch.vmap of torch.func.vjp"
                yield from part.gives_another(expected, found, where)


def _gradients_at(call: Call, x: Tensor) -> tuple[Tensor, ...]:
    return _vjp(call.on(x=x), tuple(call.given))


@check(None)
def is_right_after_a_transformed_call(call: Call) -> Iterator[str]:
    """The first call of a row length may be one under torch.vmap or on fake tensors.

    A module is made before, as in a model: buffers made on fake tensors would stay so.
    """
    for number, own in enumerate(call.each_affine()):
        is_right = False
        lengths = range(call.case.hidden + _UNUSUAL + 3 * number, call.case.hidden + 2 * _UNUSUAL)
        plain, mapped, faked = (own.changed(shape=(4, length)) for length in lengths[:3])
        with suppress(ContractViolationError):
            is_right = plain.wrong() is None
        if not is_right:
            continue
        if isinstance(adapter := adapter_of(call.target), ModuleFunction):
            for first in (mapped, faked):
                first.by(adapter.make_only).forward().y()
        with suppress(ImplementationError), catch_warnings(action="ignore"):
            guarded(torch.vmap(mapped.forward().y_of), mapped.inputs.x[:, None])()
        with suppress(ImplementationError), catch_warnings(action="ignore"):
            y_of = partial(_y_of, faked.forward(), tuple(faked.given))
            guarded(make_fx(y_of, tracing_mode="fake"), *faked.given.values())()
        for later, words in ((mapped, "under torch.vmap"), (faked, "on fake tensors")):
            where = f"where the first call of a row length was {words}"
            try:
                wrong = later.wrong()
            except (ImplementationError, ContractViolationError) as raised:
                yield f"raises {where}: {cause(str(raised))}"
            else:
                yield from [f"gives a wrong {wrong} {where}"] if wrong else []


@check(Direction.BACKWARD, SMALL, TWO_AXES)
def forward_derivative_is_correct(call: Call) -> Iterator[str]:
    """The derivative in forward mode, of torch.func.jvp, is right, or raises."""
    if (given := next(with_right_gradients(call), None)) is None:
        return
    exact = replace(given.at([own.double() for own in given.inputs.tensors]), target=EXACT)
    for names in _some_of(given):
        directions = [given.seeded(1).given[name] for name in names]
        with suppress(ImplementationError):
            found: Any = guarded(_along, given, names, directions)()
            expected = _along(exact, names, [own.double() for own in directions])
            limit = _FORWARD_LIMIT[call.case.dtype] * expected.norm()
            if not (found.double() - expected).norm() <= limit:
                yield "has a wrong derivative in forward mode (torch.func.jvp), without an error"


def _along(call: Call, names: Sequence[str], directions: Sequence[Tensor]) -> Tensor:
    """Return the derivative of y along directions of inputs, in forward mode."""
    return jvp(
        partial(_y_of, call.forward(), names), [call.given[name] for name in names], directions
    )


@check(Direction.BACKWARD)
def is_correct_under_func_vjp(call: Call) -> Iterator[str]:
    """The gradients of torch.func.vjp are those of torch.autograd, for all inputs and in part."""
    expected = copies_of(call.gradients())
    for names in (tuple(call.given), ("x",), tuple(call.parameters)):
        with suppress(ImplementationError), catch_warnings(action="ignore"):
            derived: Any = guarded(_vjp, call, names)() if names else ()
            own = {f"d{name}": gradient for name, gradient in zip(names, derived, strict=True)}
            found = Outputs(y=expected.y, **own)
            yield from call.gives_another(expected, found, "under torch.func.vjp")


def _vjp(call: Call, names: Sequence[str]) -> tuple[Tensor, ...]:
    given = [call.given[name] for name in names]
    gradients: tuple[Tensor, ...] = torch.func.vjp(partial(_y_of, call, names), *given)[1](call.dy)
    return gradients


@check(Direction.BACKWARD)
def is_correct_for_batched_gradients(call: Call) -> Iterator[str]:
    """With is_grads_batched=True, as for a Jacobian, the gradients of each dy are right."""
    graph, parts = call.graph(), [call, call.on(dy=call.seeded(1).dy)]
    # torch warns where it runs one part after the other
    with suppress(ImplementationError), catch_warnings(action="ignore"):
        stacked, leaves = torch.stack([part.dy for part in parts]), tuple(graph.leaves.values())
        batched = gradients_of(graph.y, leaves, stacked, is_grads_batched=True)
        named = [*zip((f"d{name}" for name in graph.leaves), batched, strict=True)]
        for at, part in enumerate(parts):
            own = {name: gradient[at] for name, gradient in named if gradient is not None}
            found = Outputs(y=graph.y.detach(), **own)
            yield from part.gives_another(part.gradients(), found, "with is_grads_batched=True")
