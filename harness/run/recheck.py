"""Check an implementation again, in calls like those that are timed, during and after the timing.

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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from random import Random
from statistics import median

import torch
from torch import Tensor

from harness.cases.inputs import LAYOUTS, Inputs
from harness.measure import Sampler, overwrite
from harness.numerics import (
    GRADIENTS,
    Outputs,
    copies_of,
    fill_free_memory,
    incomplete_output,
    named_outputs,
)
from harness.records import Case, Direction, Mode
from harness.run.call import ContractViolationError, checked, run_once
from harness.run.integrity import observed
from implementations.contract import LayerNormFunction

_REUSED = 1.25  # trade-off: from this ratio of times on, results count as reused
_SIGNS = {"dx": -1, "dweight": 1, "dbias": -1}
_NEGATED = dict.fromkeys(GRADIENTS, -1)  # where dy alone is
_PAIRS = 7  # of samples; the fastest with new values is compared with the median of the others
_MOST_JUDGED = 2  # results in the timing; of a target whose results vary, all would have to be
_SURE = 28  # pairs that results are called reused after: other processes slow down seven by chance


class Draws:
    """Judges the results of calls that are drawn at random inside the timing.

    Before such a call a row of x gets the values of another one, and so does dy; in a backward
    pass, whose graph belongs to the first x, a row of dy is negated. The result of this row then
    follows bit by bit from that of the judged call. Results that do not are judged.
    """

    wrong: str | None = None
    """What is wrong with a result."""

    def __init__(
        self,
        case: Case,
        first: Outputs | None,
        inputs: Inputs,
        judge: Callable[[Outputs, Inputs], str | None],
    ) -> None:
        """Judge with ``judge``, which returns what is wrong with outputs of inputs."""
        self._case, self._first, self._inputs, self._judge = case, first, inputs, judge
        self._random = Random()  # with a seed that no target knows
        self._left = _MOST_JUDGED if case.rows and case.hidden else 0

    def __call__(self, subject: Sampler, tensors: Sequence[Tensor]) -> None:
        """Draw one call of a sample that does not count."""
        if self._first is None or not self._left:
            return
        case, placed, random = self._case, self._inputs.at(tensors), self._random
        is_backward = case.direction is Direction.BACKWARD
        changed = [placed.dy] if is_backward else [placed.x, placed.dy]
        memory = [_written(_rows(tensor, case)) for tensor in changed if tensor is not None]
        at, other = (random.randrange(memory[0].shape[0]) for _ in range(2))
        before = [rows[at].clone() for rows in memory]
        kept: list[Outputs] = []

        def change(all_rows: Sequence[Tensor]) -> None:
            for rows in all_rows:
                rows[at].neg_() if is_backward else rows[at].copy_(rows[other])

        def keep(result: object) -> None:
            kept[:] = [copies_of(_outputs_of(result, case, placed))]

        try:
            subject.drawn_result(random.randrange(subject.calls), partial(change, memory), keep)
            (found,) = kept
            if self._follows(found, at, other):
                return
            if case.direction is not Direction.FORWARD:  # a timed call returns no y
                y = self._first.y.clone()
                if not is_backward:
                    change([_rows(y, case)])
                found = replace(found, y=y)
            self.wrong = self._judge(found, placed)
            self._left = 0 if self.wrong else self._left - 1
        finally:
            for rows, old in zip(memory, before, strict=True):
                rows[at].copy_(old)

    def _follows(self, found: Outputs, at: int, other: int) -> bool:
        """Whether outputs follow from those of the judged call, but for dweight and dbias."""
        case, first = self._case, self._first
        assert first is not None  # by __call__
        name = "y" if case.direction is Direction.FORWARD else "dx"
        now, then = getattr(found, name), getattr(first, name)
        if now is None or then is None:
            return True
        now, then = _rows(now, case), _rows(then, case)
        moved = -then[at] if case.direction is Direction.BACKWARD else then[other]
        rest = slice(at), slice(at + 1, None)
        return torch.equal(now[at], moved) and all(torch.equal(now[i], then[i]) for i in rest)


# --- after the timing -----------------------------------------------------------------


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
    returned = _outputs_of(result, case, placed)
    outputs = copies_of(returned)
    if incomplete := incomplete_output(outputs, returned):
        raise ContractViolationError(f"in a timed call, {incomplete}")
    return outputs


def _outputs_of(result: object, case: Case, placed: Inputs) -> Outputs:
    """Return what a timed call returned as outputs; y of a backward is x, and not to be used."""
    if case.direction is Direction.FORWARD:
        return Outputs(y=checked("y", result, placed.x))
    assert isinstance(result, tuple)  # the type that autograd.grad returns
    leaves = [name for name in case.differentiated if getattr(placed, name) is not None]
    gradients = {
        f"d{name}": checked(f"d{name}", gradient, getattr(placed, name))
        for name, gradient in zip(leaves, result, strict=True)
    }
    return Outputs(y=placed.x, **gradients)


def reuse(timed: Timed, per_call_s: float = 0.0) -> str | None:
    """Return a text if calls take longer with new values in their inputs; None if they do not.

    Args:
        timed: what was timed.
        per_call_s: seconds per timed call, with the same values in each; if the first calls with
            new values take about as long, the check ends there.

    Raises:
        ImplementationError: the implementation raised.
    """
    case, placed, subject = timed.case, timed.placed, timed.subject
    # the graph that a timed backward goes through belongs to the first x: dy alone may change
    changed = placed.dy if case.direction is Direction.BACKWARD else placed.x
    if changed is None or not changed.numel():
        return None
    rows, random = _written(_rows(changed, case)), Random()
    new, old = _factors(random), repeat(1.0)

    def seconds(factors: Iterator[float]) -> float:
        row = rows[random.randrange(rows.shape[0])]
        return subject.timed_result(subject.calls, partial(next, map(row.mul_, factors)))[1]

    if seconds(new) <= _REUSED * per_call_s:
        return None
    new_s, old_s = list[float](), list[float]()
    for pair in range(_SURE):
        sides = (new_s, new), (old_s, old)
        # in turn first: the first is slower, since other code ran before it
        for used_s, factors in reversed(sides) if pair % 2 else sides:
            used_s.append(seconds(factors))
        again_s, fresh_s = median(old_s), min(new_s)
        if pair + 1 >= _PAIRS and not fresh_s > _REUSED * again_s:
            return None
    return (
        "returns results of earlier calls whose inputs had the same values: with new values a "
        f"call takes {fresh_s / max(again_s, 1e-9):.1f} times as long"
    )


def _factors(random: Random) -> Iterator[float]:
    """Yield factors that give a row values which it never had: its scale is drawn each time."""
    last = 1.0
    while True:
        scale = random.uniform(0.5, 1.0)
        yield scale / last
        last = scale


def _rows(tensor: Tensor, case: Case) -> Tensor:
    """Return a tensor whose changes autograd does not notice, in the same memory.

    Its first axis is not normalised: it has one index if all axes of ``tensor`` are.
    """
    place = tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    alias = tensor.new_empty(0).set_(*place)
    return alias if tensor.dim() > len(case.normalized_shape) else alias[None]


def _written(rows: Tensor) -> Tensor:
    """Return a view in which no two elements of a row share memory, as in expanded axes."""
    lasting = [slice(None) if stride else slice(1) for stride in rows.stride()[1:]]
    return rows[(slice(None), *lasting)]


def shifted_or_negated(inputs: Inputs, case: Case) -> Inputs | None:
    """Return the inputs of the check, in the layout of ``inputs``; None if they would be equal."""
    if case.direction is not Direction.FORWARD:
        assert inputs.dy is not None  # a backward case has one
        return replace(inputs, x=LAYOUTS[case.layout](-inputs.x), dy=-inputs.dy)
    if case.layout.startswith("expanded") or case.rows < 2 or case.shape[0] < 2:
        return None
    return replace(inputs, x=LAYOUTS[case.layout](inputs.x.roll(1, 0)))


def _follow(first: Outputs, outputs: Outputs, case: Case, signs: Mapping[str, int]) -> bool:
    if case.direction is Direction.FORWARD:
        return torch.equal(outputs.y, first.y.roll(1, 0))
    earlier = dict(named_outputs(first))
    return all(
        torch.equal(output, signs[name] * earlier[name])
        for name, output in named_outputs(outputs)
        if name in signs
    )


def all_follow(first: Outputs, in_timer: Iterable[Outputs], alone: Outputs, case: Case) -> bool:
    """Whether the outputs of :func:`run_again` all follow from ``first``; False if NaN."""
    signs = _NEGATED if case.direction is Direction.BACKWARD else _SIGNS
    timed_follow = all(_follow(first, outputs, case, signs) for outputs in in_timer)
    return timed_follow and _follow(first, alone, case, _SIGNS)
