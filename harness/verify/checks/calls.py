"""A call of a target, made in each way that contract checks need; two results of it, compared.

The exact outputs are held as whole tensors here, with their bounds. Errors of one result, at any
size, are measured block by block in :mod:`harness.numerics.error_measurement`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from harness.cases.inputs import Inputs, copy_in_layout, make_inputs
from harness.numerics import (
    OUTPUTS,
    Compared,
    Outputs,
    Reference,
    bound_ratios,
    compared,
    error_bound_of,
    explanations,
    is_beyond,
    named_outputs,
)
from harness.records import Case, Direction
from harness.run import ContractViolationError, checked, grad_mode, guarded, refuses, run_once
from harness.verify.in_scope import fitted, scope_of
from implementations.contract import Implementation, LayerNormFunction

__all__ = [
    "INPUTS",
    "Call",
    "Graph",
    "elsewhere",
    "gradients_of",
    "has_bits_of",
    "repeat",
]

INPUTS = ("x", "weight", "bias")
"""The inputs that gradients are taken with respect to."""
# of two wrong results, how much worse one may be; another order of summation changes a result by
# about its own error, which makes it at most twice as large
WORSE = 2.0
_LARGE = 1 << 21  # elements; allocators keep small and large blocks apart, from 1 MiB at most


@dataclass(frozen=True, slots=True)
class Call:
    """A target, a case within its scope, and the inputs of the case, which a check may replace."""

    target: Implementation
    case: Case
    inputs: Inputs

    @classmethod
    def of(cls, target: Implementation, case: Case, direction: Direction | None = None) -> Call:
        """Return the call of ``case``; in a direction with gradients, its parameters have some.

        Args:
            target: what is called.
            case: gives all axes but the direction.
            direction: None for a backward if the target has one, else a forward.

        Raises:
            ImplementationError: unsupported, if that lies outside the target's scope.
        """
        if direction is None:
            direction = Direction.FORWARD if target.forward_only else Direction.BACKWARD
        case = fitted(target, case, direction=direction)
        return cls(target, case, make_inputs(case))

    def changed(self, **axes: Any) -> Call:
        """Return the call of another case: the changes are fitted to the target's scope."""
        case = fitted(self.target, self.case, **axes)
        return replace(self, case=case, inputs=make_inputs(case))

    def seeded(self, further: int) -> Call:
        """Return the call with the inputs of a later seed."""
        return self.changed(seed=self.case.seed + further)

    def on(self, **tensors: Any) -> Call:
        """Return the call with other inputs."""
        return replace(self, inputs=replace(self.inputs, **tensors))

    def at(self, tensors: Sequence[Tensor]) -> Call:
        """Return the call with other inputs, in the order of ``inputs.tensors``."""
        return replace(self, inputs=self.inputs.at(tensors))

    def by(self, function: LayerNormFunction) -> Call:
        """Return the call of another function in place of the target's own."""
        return replace(self, target=replace(self.target, function=function))

    def of_case(self, **axes: Any) -> Call:
        """Return the call with the same inputs, as one of a case with other axes."""
        return replace(self, case=replace(self.case, **axes))

    def forward(self) -> Call:
        """Return the call without gradients, in the shape of ``inputs.x``."""
        shape = tuple(self.inputs.x.shape)
        return self.of_case(shape=shape, direction=Direction.FORWARD).on(dy=None)

    def wrong(self) -> str | None:
        """Return the first output that is wrong, without gradients or with them, if any is."""
        with_gradients = () if self.case.direction is Direction.FORWARD else (self,)
        beyond = (own.beyond(own.outputs()) for own in (self.forward(), *with_gradients))
        return next((name for names in beyond for name in OUTPUTS if name in names), None)

    def each_affine(self) -> Iterator[Call]:
        """Yield the call with each combination of weight and bias that has gradients."""
        for affine in scope_of(self.target).taken("affine", backward=True):
            own = self.changed(affine=affine)
            if own.given.keys() & own.case.differentiated:
                yield own

    @property
    def dy(self) -> Tensor:
        """The gradient of y, in a call with gradients."""
        assert self.inputs.dy is not None
        return self.inputs.dy

    @property
    def given(self) -> dict[str, Tensor]:
        """x, and weight and bias unless they are None."""
        named = {name: getattr(self.inputs, name) for name in INPUTS}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Weight and bias unless they are None."""
        return {name: tensor for name, tensor in self.given.items() if name != "x"}

    def leaves(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """Return copies of x, weight and bias in their layouts.

        ``names`` require gradients; None for those that the case does not freeze.
        """
        names = self.case.differentiated if names is None else names
        return {
            name: copy_in_layout(tensor).requires_grad_(name in names)
            for name, tensor in self.given.items()
        }

    def outputs(self) -> Outputs:
        """Return all outputs of the case's direction.

        Raises:
            ImplementationError: the target raised.
            ContractViolationError: an output is missing or not a tensor like its input.
        """
        with grad_mode(self.case):
            return run_once(self.target.function, self.case, self.inputs)

    def y(self) -> Tensor:
        """Return y of a call in the modes that are set now; raises as :meth:`outputs`."""
        return checked("y", guarded(self.y_of, self.inputs.x)(), self.inputs.x)

    def y_for(self, *arguments: Any, **named: Any) -> Outputs:
        """Return y of x and these arguments, without recording; raises as :meth:`outputs`."""
        call = partial(self.target.function, self.inputs.x, *arguments, **named)
        with torch.no_grad():
            return Outputs(y=checked("y", guarded(call)(), self.inputs.x))

    def y_of(self, x: Tensor) -> Tensor:
        """Return y of another x, which may be one of torch.func; raises what the target raises."""
        weight, bias = self.inputs.weight, self.inputs.bias
        return self.target.function(x, self.case.normalized_shape, weight, bias, self.case.eps)

    def is_refused(self, normalized_shape: Sequence[int], **tensors: Tensor | None) -> bool:
        """Whether the target raises for these arguments in place of its own."""
        given = self.on(**tensors).inputs
        arguments = (given.x, normalized_shape, given.weight, given.bias, self.case.eps)
        return refuses(self.target.function, *arguments)

    def graph(
        self, names: Collection[str] | None = None, leaves: dict[str, Tensor] | None = None
    ) -> Graph:
        """Run a forward that autograd records, on copies of the inputs, or on ``leaves`` as given.

        Args:
            names: inputs that require gradients; None for those that the case does not freeze.
            leaves: x, and weight and bias unless they are None, in place of copies.

        Raises:
            ImplementationError: the target raised.
            ContractViolationError: y is not a tensor like x, or has no gradient.
        """
        leaves = self.leaves(names) if leaves is None else leaves
        with torch.enable_grad():
            y = self.on(**leaves).y()
        if not y.requires_grad:
            recorded = " and ".join(name for name, leaf in leaves.items() if leaf.requires_grad)
            raise ContractViolationError(
                f"returned a y without gradient although {recorded} required one"
            )
        return Graph(y, leaves, self.dy)

    def gradients(self) -> Outputs:
        """Return y and all gradients of a recorded call; raises as :meth:`graph`."""
        return self.graph().gradients()

    def differing(self, one: Outputs, other: Outputs) -> list[str]:
        """Return the names of the outputs in which two results of this call differ.

        Two right results are each within the a-priori bound B of the exact value, so they are
        within 2 B of each other, whatever the order of their sums. If one result is right, the
        other may be no further away. If both are wrong, the error check has already failed them,
        and this function only asks whether the target is consistent: B grows to hold the better of
        the two, times :data:`WORSE`.
        """
        if has_bits_of(one, other):
            return []
        of_one, of_other = (
            {name: output.shape for name, output in named_outputs(outputs)}
            for outputs in (one, other)
        )
        in_both = of_one.keys() & of_other.keys()
        if resized := sorted(name for name in in_both if of_one[name] != of_other[name]):
            return resized  # in a later call
        missing: Any = dict.fromkeys({*OUTPUTS} - in_both)  # by one of the two
        bound, reference = error_bound_of(self.target, self.case), Reference(self.inputs, self.case)
        first, again = (
            list(compared(replace(outputs, **missing), self.inputs, self.case, bound, reference))
            for outputs in (one, other)
        )
        pairs = zip(first, again, strict=True)
        return [part.output for part, same in pairs if not _agree(part, same.computed)]

    def gives_another(self, expected: Outputs, found: Outputs, where: str) -> list[str]:
        """Say for each output in which two results of this call differ that it is another one."""
        return [f"gives another {name} {where}" for name in self.differing(expected, found)]

    def beyond(self, outputs: Outputs, reference: Reference | None = None) -> set[str]:
        """Return the names of the outputs that are wrong, if any is; inaccurate ones are not.

        Args:
            outputs: of the call.
            reference: to be shared by several results of the call; made if None.
        """
        reference = reference or Reference(self.inputs, self.case)
        call = self.inputs, self.case, error_bound_of(self.target, self.case), reference
        beyond = {ratio.output for ratio in bound_ratios(outputs, *call) if is_beyond(ratio)}
        return set() if beyond and explanations(outputs, *call, beyond) else beyond


@dataclass(frozen=True, slots=True)
class Graph:
    """A forward that autograd recorded, for some of its inputs."""

    y: Tensor
    leaves: dict[str, Tensor]
    """x, and weight and bias unless they are None, as passed to the implementation."""
    dy: Tensor

    def gradients(self, **modes: bool) -> Outputs:
        """Return y and the gradients, in modes of ``torch.autograd.grad``.

        Raises:
            ImplementationError: the implementation raised.
            ContractViolationError: a gradient is missing, or is not a tensor like its input.
        """
        leaves = {name: leaf for name, leaf in self.leaves.items() if leaf.requires_grad}
        returned = gradients_of(self.y, tuple(leaves.values()), self.dy, **modes)
        gradients = {
            f"d{name}": checked(f"d{name}", gradient, leaf).detach()
            for (name, leaf), gradient in zip(leaves.items(), returned, strict=True)
        }
        return Outputs(y=self.y.detach(), **gradients)

    def stored(self, divisor: float = 1.0) -> Outputs:
        """Return y, and what ``.grad`` of each leaf holds over ``divisor``."""
        stored = {
            f"d{name}": leaf.grad / divisor
            for name, leaf in self.leaves.items()
            if leaf.grad is not None
        }
        return Outputs(y=self.y.detach(), **stored)


def gradients_of(
    y: Tensor, leaves: Sequence[Tensor], dy: Tensor, **modes: bool
) -> tuple[Tensor | None, ...]:
    """Return what ``torch.autograd.grad`` returns, None for a gradient that is missing.

    Raises:
        ImplementationError: the implementation raised.
    """
    call = partial(torch.autograd.grad, y, tuple(leaves), dy, allow_unused=True, **modes)
    returned = guarded(call)()
    assert isinstance(returned, tuple)  # the type that autograd.grad returns
    return returned


def repeat(call: Callable[[], object], most: int, most_s: float) -> int:
    """Call up to ``most`` times and for ``most_s`` seconds; return how often."""
    began, made = perf_counter(), 0
    while made < most and perf_counter() - began < most_s:
        call()
        made += 1
    return made


def elsewhere(tensor: Tensor) -> Tensor:
    """Return a copy at a new address: no other tensor asks for a block of this size."""
    return tensor.new_empty(_LARGE)[: tensor.numel()].view(tensor.shape).copy_(tensor)


def _agree(part: Compared, other: Tensor) -> bool:
    one, bound = part.computed, part.bound
    better = min(_worst(part, one), _worst(part, other))
    allowed = 2 * bound if better <= 1 else 2 * WORSE * better * bound
    same = (one == other) | (torch.isnan(one) & torch.isnan(other)) | ~torch.isfinite(bound)
    return bool((same | ((one - other).abs() <= allowed)).all())  # False for NaN


def _worst(part: Compared, computed: Tensor) -> float:
    """Return the largest finite ratio of an error to its bound."""
    high, low = part.exact
    ratio = ((computed - high) - low).abs() / part.bound
    return float(torch.where(torch.isfinite(ratio), ratio, torch.zeros_like(ratio)).amax())


def has_bits_of(one: Outputs, two: Outputs) -> bool:
    """Whether the outputs that both have are equal bit by bit; NaN equals nothing."""
    pairs = ((getattr(one, name), getattr(two, name)) for name in OUTPUTS)
    return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)
