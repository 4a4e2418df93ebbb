"""The axes of the covering array, read from a case, and cases with one axis changed."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from harness.records import Affine, Autograd, Case, Direction
from harness.verify.cases.axes import AXES, BACKWARD_CALLS, EXCLUSIONS, FORWARD_CALLS, factors

__all__ = [
    "DATA_AXES",
    "ORDER",
    "PATH_AXES",
    "SIMPLEST",
    "SIZES",
    "changed",
    "differing",
    "has_data_of",
    "is_possible",
    "value_of",
    "with_data_of",
]

SIMPLEST: dict[str, Any] = {axis: values[0] for axis, values in AXES.items()} | {
    "leading_axes": 1,
    "rows": 6,
    "hidden": 40,  # a multiple of 8, and no power of two
}
SIZES = ("rows", "hidden")
DATA_AXES = ("distribution", "eps", "parameters", "grad_output")
"""The axes of the values: kernels seldom choose a path by them, and values may hide a mistake."""
PATH_AXES = frozenset(SIMPLEST) - {*DATA_AXES}
"""The axes by which kernels choose a path."""
ORDER = (
    *("threads", "param_dtype", "parameters", "grad_output", "layout", "eps", "affine"),
    *("normalized_axes", "leading_axes", "call", "distribution", "rows", "hidden"),
)
"""All axes, in the order in which a failing case is simplified: those that seldom matter first."""


def value_of(case: Case, axis: str) -> Any:
    """Return the value of ``case`` on an axis."""
    match axis:
        case "param_dtype":
            return "same" if case.param_dtype == case.dtype else case.param_dtype
        case "leading_axes":
            return len(case.shape) - case.normalized_dims
        case "normalized_axes":
            return case.normalized_dims
        case "affine":
            return case.affine.value
        case "call" if case.autograd is not Autograd.DEFAULT:
            return case.autograd.value
        case "call":
            is_forward = case.direction is Direction.FORWARD
            return FORWARD_CALLS[0] if is_forward else BACKWARD_CALLS[0]
    return getattr(case, axis)


def is_possible(case: Case) -> bool:
    """Whether x has elements, and no two conditions exclude each other."""
    return bool(case.rows * case.hidden) and not any(
        value_of(case, each.axis) in each.values and value_of(case, each.other) in each.other_values
        for each in EXCLUSIONS
        if {each.axis, each.other} != {"rows", "hidden"}  # these are only slow
    )


def changed(case: Case, axis: str, value: Any) -> Case | None:
    """Return ``case`` with another value on one axis; None if there is no such case."""
    if value_of(case, axis) == value:
        return case
    found = _changed(case, axis, value)
    return found if is_possible(found) and value_of(found, axis) == value else None


def _changed(case: Case, axis: str, value: Any) -> Case:
    leading, normalized = case.shape[: -case.normalized_dims], case.normalized_shape
    match axis:
        case "rows":
            return replace(case, shape=(*factors(value, len(leading)), *normalized))
        case "hidden":
            return replace(case, shape=(*leading, *factors(value, len(normalized))))
        case "leading_axes":
            return replace(case, shape=(*factors(case.rows, value), *normalized))
        case "normalized_axes":
            shape = (*leading, *factors(case.hidden, value))
            return replace(case, shape=shape, normalized_dims=value)
        case "param_dtype":
            return replace(case, param_dtype=case.dtype if value == "same" else value)
        case "affine" if value == "none":
            usual = {"param_dtype": case.dtype, "parameters": SIMPLEST["parameters"]}
            return replace(case, affine=Affine.NONE, **usual)
        case "affine":
            return replace(case, affine=Affine(value))
        case "call":
            is_default = value in {FORWARD_CALLS[0], BACKWARD_CALLS[0]}
            autograd = Autograd.DEFAULT if is_default else Autograd(value)
            if value in BACKWARD_CALLS:
                return replace(case, direction=Direction.BACKWARD, autograd=autograd)
            usual = {"grad_output": SIMPLEST["grad_output"]}
            return replace(case, direction=Direction.FORWARD, autograd=autograd, **usual)
    return replace(case, **{axis: value})


def differing(one: Case, other: Case) -> list[str]:
    """Return the axes on which two cases differ."""
    return [axis for axis in ORDER if value_of(one, axis) != value_of(other, axis)]


def with_data_of(case: Case, other: Case) -> Case:
    """Return ``case`` with the data of another case, on each axis where that is possible."""
    for axis in DATA_AXES:
        case = changed(case, axis, value_of(other, axis)) or case
    return case


@lru_cache(maxsize=1 << 14)  # a search compares the same cases again and again
def has_data_of(case: Case, other: Case) -> bool:
    """Whether two cases have the same kind of data."""
    return with_data_of(case, other) == case
