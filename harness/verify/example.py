"""The smallest example of a mistake: one call in numbers, with what is right beside them.

A failed case is shrunk while it still fails: first each axis to its simplest value, then the rows
and the row length, at last the values: x to small integers, weight to ones, bias to zeros. Only a
clear failure counts, so that rounding does not decide. The number of calls is limited.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from harness.cases.axes import (
    changed,
    command_options,
    is_explainable,
    python_line,
    unusual,
    value_of,
)
from harness.cases.inputs import Inputs, laid_out, make_inputs
from harness.numerics import OUTPUTS, Compared, Reference, compared, error_bound_of, spacing
from harness.records import Case, Status
from harness.run import Judged
from harness.run.attempt import attempt
from harness.verify.result import Example
from harness.verify.trigger import Further, Search
from harness.verify.words import SETTINGS, settings_in_words
from implementations.contract import Implementation

__all__ = ["command_of", "example_of", "worst_of"]

_MOST_CALLS = 100  # of the target, in search of smaller sizes
_MOST_ELEMENTS = 1 << 20  # of all x in these calls, and in those with other values
_MOST_SHOWN = 24  # elements of an x whose values are made by hand
# axes, and their best values: y of two elements is 1 and -1, whatever they are
_SHRUNK: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("normalized_axes", ()), ("leading_axes", ()), ("rows", (1, 2, 3)), ("hidden", (3, 4, 2)),
    ("rows", (1, 2, 3)),
)  # fmt: skip
_CLEAR_RATIO = 3.0  # times the bound
_OF_DATA = {"x": "distribution", "weight": "parameters", "bias": "parameters", "dy": "grad_output"}


def example_of(
    target: Implementation, failures: Sequence[Judged], trials: Sequence[Judged], further: Further
) -> Example:
    """Return the smallest example of failures; without numbers if the target crashed.

    Args:
        target: what failed.
        failures: its failed cases.
        trials: all of its cases.
        further: tries further cases.
    """
    first = failures[0].case.dtype
    failed = [trial for trial in failures if trial.case.dtype == first]
    crashed = [trial.case for trial in failed if trial.status is Status.CRASHED]
    if crashed:
        return _without_numbers(min(crashed, key=unusual))
    names = {name for trial in failed for name in trial.outputs_beyond()}
    name = next((name for name in OUTPUTS if name in names), OUTPUTS[0])
    tried = [trial for trial in trials if trial.case.dtype == first]
    search = Search(tried, further, [name])
    case = search.simple_failure()
    if case is None:  # rounding decides in every case
        return _without_numbers(min((trial.case for trial in failed), key=unusual))
    case = _smallest(case, search)
    inputs = make_inputs(case)
    found = _call(target, case, name, inputs)
    if found is None:  # it depends on earlier calls, or breaks the contract without a result
        return _without_numbers(case)
    return _simplest(target, found, inputs) if _is_small(case) else found


def worst_of(target: Implementation, case: Case, outputs: Collection[str]) -> Example | None:
    """Return the element of some outputs of an inaccurate case that is most ulp off, if any is."""
    calls = (_call(target, case, name, make_inputs(case), least=0.0) for name in outputs)
    return max(filter(None, calls), key=lambda call: call.error_ulp, default=None)


def command_of(case: Case, handle: str, options: str) -> str:
    """Return a line of the command line that repeats a case; of Python for an object.

    Args:
        case: what to repeat.
        handle: the target in Python code: a quoted string, or the name of an object.
        options: how the user wants the target called, as an argument of verify_case.
    """
    is_named = handle[:1] in "'\""
    if is_explainable(case) and is_named and not options:
        words = ["layernorm-bench", "explain", case.implementation, *command_options(case)]
        return shlex.join(words)
    line = python_line(case, handle, options)
    if not is_named:
        return line
    is_plain = not {*line} & {*'"$`\\!'}
    return f'python -c "{line}"' if is_plain else f"python -c {shlex.quote(line)}"


def _without_numbers(case: Case) -> Example:
    conditions = _conditions(case)
    return Example(case=case, output="", shape=case.shape, eps=case.eps, conditions=conditions)


def _conditions(case: Case, replaced: Sequence[str] = ()) -> tuple[str, ...]:
    """Return in words what is not usual in a case, without the values that were replaced."""
    stated = {"eps", *(_OF_DATA[name] for name in replaced)}
    return settings_in_words(case, [axis for axis in SETTINGS if axis not in stated])


# --- sizes ---------------------------------------------------------------------------------------


def _smallest(case: Case, search: Search) -> Case:
    """Return the case with as few rows and elements per row as still fail."""
    calls = elements = 0

    def fails(axis: str, size: int) -> Case | None:
        nonlocal calls, elements
        smaller = changed(case, axis, size)
        if smaller is None or calls >= _MOST_CALLS or elements >= _MOST_ELEMENTS:
            return None
        calls, elements = calls + 1, elements + smaller.rows * smaller.hidden
        return smaller if search.fails(smaller) else None

    for axis, best in _SHRUNK:
        size = value_of(case, axis)
        few = (fails(axis, one) for one in best if one < size)
        if (found := next(filter(None, few), None)) is not None:
            case = found
            continue
        step = size // 2
        while step:
            if size > step and (found := fails(axis, size - step)) is not None:
                case, size = found, size - step
            else:
                step //= 2
    return case


# --- values --------------------------------------------------------------------------------------


def _is_small(case: Case) -> bool:
    return case.rows * case.hidden <= _MOST_SHOWN


def _call(
    target: Implementation,
    case: Case,
    name: str,
    inputs: Inputs,
    *,
    least: float = _CLEAR_RATIO,
    replaced: Sequence[str] = (),
) -> Example | None:
    """Call the target on some values; None unless the output is clearly wrong.

    Args:
        target: what failed.
        case: whose inputs have these values.
        name: of the output.
        inputs: the values.
        least: from how many times the bound on an error is clear.
        replaced: the tensors whose values are not those of the case.
    """
    reference = Reference(inputs, case)
    judged = attempt(target, case, exact=lambda _: (inputs, reference))
    outputs = judged.outputs
    # what is inaccurate is no example of what is wrong
    if outputs is None or (least and judged.status is not Status.WRONG):
        return None
    if name not in judged.outputs_beyond(least):
        return None
    bound = error_bound_of(target, case)
    parts = compared(outputs, inputs, case, bound, reference, scaled=True, only=[name])
    found = ((part, *_errors_in(part)) for part in parts)
    part, error, ratio = max(found, key=lambda own: float(own[2].amax()))
    assert part.scale is not None
    worst, is_small = int(ratio.argmax()), _is_small(case)
    ulp = spacing(part.dtype, part.scale.expand_as(error)).flatten()[worst]
    allowed = float(part.bound.expand_as(error).flatten()[worst] / ulp)
    shown = slice(None) if is_small else slice(worst, worst + 1)
    return Example(
        case=case,
        output=name,
        shape=case.shape,
        x=_numbers(inputs.x, is_small) or (),
        weight=_numbers(inputs.weight, is_small, usual=1.0),
        bias=_numbers(inputs.bias, is_small, usual=0.0),
        dy=_numbers(inputs.dy, is_small),
        eps=case.eps,
        computed=tuple(part.computed.flatten()[shown].tolist()),
        exact=tuple((part.exact[0] + part.exact[1]).flatten()[shown].tolist()),
        error_ulp=float(error.flatten()[worst] / ulp),
        allowed_ulp=allowed if isfinite(allowed) else None,
        conditions=_conditions(case, replaced),
    )


def _errors_in(part: Compared) -> tuple[Tensor, Tensor]:
    """Return the errors, and their ratios to the bounds: infinite if one is not finite."""
    exact = part.exact[0] + part.exact[1]
    is_equal = (part.computed == exact) | (part.computed.isnan() & exact.isnan())
    error = torch.where(is_equal, 0.0, part.error.nan_to_num(inf))
    ratio = torch.where(error > 0, (error / part.bound).nan_to_num(0.0, posinf=inf), 0.0)
    return error, torch.where(is_equal | exact.isfinite(), ratio, inf)


def _numbers(
    tensor: Tensor | None, is_small: bool, usual: float | None = None
) -> tuple[float, ...] | None:
    """Return all elements, or none if they are many or all have the usual value."""
    if tensor is None:
        return None
    is_usual = usual is not None and bool((tensor == usual).all())
    return () if is_usual or not is_small else tuple(tensor.flatten().tolist())


def _simplest(target: Implementation, found: Example, inputs: Inputs) -> Example:
    """Replace the values of each tensor by the simplest with which the call still fails."""
    case = found.case
    replaced: tuple[str, ...] = ()
    # not as they are laid out: rows may share memory
    given: dict[str, Any] = {
        name: None if (own := getattr(inputs, name)) is None else own.flatten()
        for name in ("x", "weight", "bias", "dy")
    }
    for name in ("weight", "bias", "dy", "x", "weight", "bias", "dy"):
        tensor: Tensor | None = getattr(inputs, name)
        if tensor is None or name in replaced:
            continue
        for values in _simpler(name, tensor, case):
            chosen = given | {name: values.to(tensor.dtype)}
            if not bool(chosen[name].isfinite().all()):
                continue
            laid = laid_out(case, **chosen)
            simpler = _call(target, case, found.output, laid, replaced=(*replaced, name))
            if simpler is not None:
                given, inputs, found, replaced = chosen, laid, simpler, (*replaced, name)
                break
    return found


def _simpler(name: str, tensor: Tensor, case: Case) -> Iterator[Tensor]:
    """Yield values for a tensor, simplest first."""
    plain = tensor.detach().cpu().double().flatten()
    if name in {"weight", "bias"}:
        yield torch.full_like(plain, float(name == "weight"))
        yield torch.arange(1.0, case.hidden + 1, dtype=torch.float64)
    else:
        steps = torch.arange(case.rows * case.hidden, dtype=torch.float64)
        row, column = steps // case.hidden, steps % case.hidden
        if name == "dy":
            yield (steps == 0).double()
            yield (column == 0).double()
            yield torch.ones_like(steps)
        at = (column + row) % case.hidden  # 1, 2, 4, 7, ...; 3, 5, ..., 2; and so on
        growing = 1 + at * (at + 1) / 2 + row
        for factor in (1.0, 1e-3, 1e-2, 100.0, 1e4):
            yield growing * factor
        for offset in (10.0, 100.0, 1000.0, 1e4, 1e6):
            yield growing + offset
    if bool(plain.isfinite().all()):
        for digits in (1, 2, 3):
            size = 10 ** (plain.abs().clamp(min=1e-300).log10().floor() - digits + 1)
            yield (plain / size).round() * size
