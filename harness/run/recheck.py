"""Check an implementation again after its timing, in a call like those that were timed.

New values are written where the timed inputs lie. A timed call must then return their result:
results that were cached by address, by shape or by the number of calls, and those of calls that
know that they are timed, are wrong. It must also take as long as with the timed values: a result
that was cached by its inputs' values is found by the time. The last of several calls without a
pause must return that result too.

The new values are such that their exact results follow bit by bit from those of the timed values
(the equivariance check). In a forward pass the rows are shifted by one, and the rows of y with
them. In a backward pass x and dy are negated: this negates dx and dbias and leaves dweight as it
is. Rounding is the same either way, unless the result of a row depends on its position or its sign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from random import Random
from statistics import median

import torch
from torch import Tensor

from harness.cases.inputs import LAYOUTS, Inputs
from harness.measure.latency import Sampler
from harness.measure.memory import overwrite
from harness.numerics.outputs import (
    GRADIENTS,
    Outputs,
    copies_of,
    fill_free_memory,
    incomplete_output,
)
from harness.records import Case, Direction, Mode, Status
from harness.run.attempt import ExactResults, Judged
from harness.run.call import ContractViolationError, checked, run_once
from harness.run.integrity import observed
from implementations.contract import LayerNormFunction

_REUSED = 1.25  # trade-off: from this ratio of times on, results count as reused
_SIGNS = {"dx": -1, "dweight": 1, "dbias": -1}
_NEGATED = dict.fromkeys(GRADIENTS, -1)  # where dy alone is
_PAIRS = 7  # of calls; the fastest call with new values is compared with the median of the others
_SURE = 28  # pairs that results are called reused after: other processes slow down seven by chance


@dataclass(frozen=True, slots=True)
class Timed:
    """What was timed."""

    case: Case
    function: LayerNormFunction
    """The implementation's, or its compiled version."""
    subject: Sampler
    """The timed calls, on ``placed``."""
    placed: Inputs
    """The inputs, at the timed addresses."""
    inputs: Inputs
    """The values that were timed."""


def wrong_again(
    timed: Timed,
    first: Outputs,
    exact: ExactResults,
    judge: Callable[[Case, Outputs, Inputs], Judged],
) -> str | None:
    """Return what is wrong with calls on new values at the timed addresses; None if nothing is.

    Args:
        timed: what was timed.
        first: outputs of a call before the timing.
        exact: inputs of cases, and their exact results.
        judge: judges a case by these outputs, for these inputs.

    Raises:
        ImplementationError: the implementation raised.
        ContractViolationError: it violated its contract.
    """
    case = timed.case
    other = shifted_or_negated(timed.inputs, case)
    if other is not None:
        in_timer, alone = run_again(timed, other)
        signs = _NEGATED if case.direction is Direction.BACKWARD else _SIGNS
        is_same = all(are_equivariant(first, outputs, case, signs) for outputs in in_timer)
        if is_same and are_equivariant(first, alone, case):
            return None
    # a right result may depend on a row's index or sign: judge results of new values
    fresh = replace(case, seed=case.seed + 1)
    inputs, _ = exact(fresh)
    in_timer, alone = run_again(timed, inputs)
    judged = judge(fresh, alone, inputs)
    if judged.status is Status.WRONG:
        return f"right before the timing, wrong after it: {judged.reason}"
    if case.direction is Direction.BACKWARD:  # its graph is of the first x
        inputs = replace(timed.inputs, dy=inputs.dy)
    for outputs in in_timer:
        if case.direction is Direction.BACKWARD:
            outputs = replace(outputs, y=first.y)
        elif case.direction is Direction.FORWARD_BACKWARD:  # which returns no y
            outputs = replace(outputs, y=alone.y)
        judged = judge(fresh, outputs, inputs)
        if judged.status is Status.WRONG:
            return f"right in a call by itself, wrong in a timed call: {judged.reason}"
    return None


def run_again(timed: Timed, new: Inputs) -> tuple[tuple[Outputs, ...], Outputs]:
    """Make timed calls, then an untimed one, with the values of ``new`` at the timed addresses.

    A timed backward goes through the graph of the first x, so that only dy is new to it.

    Returns:
        The outputs of a timed call and of the last of several, without y of a backward; and the
        outputs of the untimed call.

    Raises:
        ImplementationError: the implementation raised.
        ContractViolationError: it violated its contract.
    """
    case, placed = timed.case, timed.placed
    # first the timed calls: an untimed one would fill a cache of results
    is_backward = case.direction is Direction.BACKWARD
    _write(placed, replace(timed.inputs, dy=new.dy) if is_backward else new)
    in_timer = _timed_outputs(timed, 1)
    # a sample has many calls without a pause; an implementation may know how many
    most = max(2, timed.subject.calls)
    last = _timed_outputs(timed, Random().randint(max(2, most // 2), most))
    _write(placed, new)
    # torch's compiler reads frames and files
    with nullcontext() if case.mode is Mode.COMPILED else observed():
        alone = run_once(timed.function, case, placed, is_judged=True)
    return (in_timer, last), alone


def _write(placed: Inputs, new: Inputs) -> None:
    """Write the values of ``new`` to the memory of ``placed``."""
    for old, tensor in zip(placed.tensors, new.tensors, strict=True):
        overwrite(old, tensor)


def _timed_outputs(timed: Timed, calls: int) -> Outputs:
    """Make calls as the timing does; return the outputs of the last, without y of a backward."""
    case, placed = timed.case, timed.placed
    fill_free_memory(placed.tensors)
    result, _ = timed.subject.timed_result(calls)
    if case.direction is Direction.FORWARD:
        returned = Outputs(y=checked("y", result, placed.x))
    else:
        assert isinstance(result, tuple)  # the type that autograd.grad returns
        given = [name for name in ("x", "weight", "bias") if getattr(placed, name) is not None]
        leaves = [name for name in given if name in case.differentiated]
        gradients = {
            f"d{name}": checked(f"d{name}", gradient, getattr(placed, name))
            for name, gradient in zip(leaves, result, strict=True)
        }
        returned = Outputs(y=placed.x, **gradients)  # y is not returned, and not used
    outputs = copies_of(returned)
    if incomplete := incomplete_output(outputs, returned):
        raise ContractViolationError(f"in a timed call, {incomplete}")
    return outputs


def reuse(timed: Timed, per_call_s: float = 0.0) -> str | None:
    """Return a text if calls take longer with new values in their inputs; None if they do not.

    Args:
        timed: what was timed.
        per_call_s: seconds per timed call, with the same values in each; if the first call with
            new values takes about as long, the check ends there.

    Raises:
        ImplementationError: the implementation raised.
    """
    case, placed, subject = timed.case, timed.placed, timed.subject
    # the graph that a timed backward goes through belongs to the first x: dy alone may change
    changed = placed.dy if case.direction is Direction.BACKWARD else placed.x
    if changed is None or not changed.numel():
        return None
    new_s, old_s = list[float](), list[float]()
    for pair in range(_SURE):
        _scale(changed, 1 - (pair + 1) / 64)  # other values each time, in any dtype
        new_s.append(subject.timed_result()[1])
        if pair == 0 and new_s[0] <= _REUSED * per_call_s:
            return None
        _scale(changed, 1)  # written again, so that they are equally near in the caches
        old_s.append(subject.timed_result()[1])
        again_s, fresh_s = median(old_s), min(new_s)
        if pair + 1 >= _PAIRS and not fresh_s > _REUSED * again_s:
            return None
    return (
        "returns results of earlier calls whose inputs had the same values: with new values a "
        f"call takes {fresh_s / max(again_s, 1e-9):.1f} times as long"
    )


def _scale(tensor: Tensor, factor: float) -> None:
    """Scale the values of ``tensor`` in its memory, unnoticed by autograd."""
    storage = tensor.new_empty(0).set_(tensor.untyped_storage())
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in steps)
    storage[tensor.storage_offset() : tensor.storage_offset() + extent].mul_(factor)


def shifted_or_negated(inputs: Inputs, case: Case) -> Inputs | None:
    """Return the inputs of the check, in the layout of ``inputs``; None if they would be equal."""
    if case.direction is not Direction.FORWARD:
        assert inputs.dy is not None  # a backward case has one
        return replace(inputs, x=LAYOUTS[case.layout](-inputs.x), dy=-inputs.dy)
    if case.layout == "expanded" or case.rows < 2 or case.shape[0] < 2:
        return None
    return replace(inputs, x=LAYOUTS[case.layout](inputs.x.roll(1, 0)))


def are_equivariant(
    first: Outputs, outputs: Outputs, case: Case, signs: Mapping[str, int] = _SIGNS
) -> bool:
    """Whether ``outputs``, of shifted or negated inputs, follow from ``first``; False if NaN."""
    if case.direction is Direction.FORWARD:
        return torch.equal(outputs.y, first.y.roll(1, 0))
    return all(
        _is_equal(getattr(outputs, name), getattr(first, name), sign)
        for name, sign in signs.items()
    )


def _is_equal(output: Tensor | None, like: Tensor | None, sign: int = 1) -> bool:
    if output is None or like is None:
        return output is like
    return torch.equal(output, like if sign == 1 else -like)
