"""The words of a trigger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.records.text import count
from harness.verify.trigger.conditions import Relation, TriggerCondition

if TYPE_CHECKING:
    from harness.verify.findings import Trigger

__all__ = ["condition_text", "trigger_text"]

_QUANTITIES = {
    "hidden": "N",
    "rows": "the number of rows",
    "elements": "the number of elements of x",
    "leading_axes": "the number of leading axes",
    "normalized_axes": "the number of normalized axes",
    "threads": "the number of threads",
    "eps": "eps",
    "offset_ratio": "|mean| / sqrt(variance + eps) of a row",
    "least_variance_ratio": "the smallest variance / eps of a row",
    "largest": "the largest element of x",
    "distribution": "the distribution of x",
    "layout": "the layout of x",
    "affine": "affine",
    "parameters": "the distribution of the parameters",
    "param_dtype": "the dtype of the parameters",
    "grad_output": "the gradient of y",
    "call": "the call",
}
_FACTS = {
    ("is_power_of_two", True): "N is a power of two",
    ("is_power_of_two", False): "N is no power of two",
    ("has_weight", True): "there is a weight",
    ("has_weight", False): "there is no weight",
    ("has_bias", True): "there is a bias",
    ("has_bias", False): "there is no bias",
    ("affine", "both"): "there are weight and bias",
    ("affine", "weight"): "there is a weight and no bias",
    ("affine", "bias"): "there is a bias and no weight",
    ("affine", "none"): "there is neither weight nor bias",
    ("is_backward", True): "there is a backward",
    ("is_backward", False): "there is no backward",
    ("is_recorded", True): "gradients are recorded",
    ("is_recorded", False): "no gradient is recorded",
    ("is_contiguous", True): "x is contiguous",
    ("is_contiguous", False): "x is not contiguous",
    ("is_row_dense", True): "the elements of a row are adjacent in memory",
    ("is_row_dense", False): "the elements of a row are apart in memory",
    ("is_finite", True): "x is finite",
    ("is_finite", False): "x has a NaN or infinity",
    ("param_dtype", "same"): "the parameters have the dtype of x",
    ("param_dtype", "float32"): "the parameters are float32 and x is narrower",
}
_ONE = {
    "hidden": "N is 1",
    "rows": "there is one row",
    "leading_axes": "there is at most one leading axis",
    "normalized_axes": "there is one normalized axis",
    "threads": "there is one thread",
}
_REGARDLESS = {"call": "in forward and backward", "layout": "in any layout"}


def trigger_text(trigger: Trigger) -> str:
    """Return a trigger in one line."""
    subject = "wrong" if "y" in trigger.outputs else f"{', '.join(trigger.outputs)} wrong"
    what = " and ".join(condition_text(each) for each in trigger.conditions)
    dtypes = ", ".join(trigger.dtypes)
    if not trigger.further_cases:
        return (
            f"{subject}: in all {trigger.failed} failed cases and in none of the {trigger.right} "
            f"others, {what} ({dtypes}; not confirmed by further cases)"
        )
    where = f"whenever {what}" if what else "at every size, in every layout and mode"
    cases = count(trigger.hidden, "case")
    hidden = f", unless the data hide it (as in {cases})" if trigger.hidden else ""
    axes = [axis for axis in trigger.regardless if axis != "call" or "y" in trigger.outputs]
    more = "".join(f"; {_REGARDLESS[axis]}" for axis in axes if what)
    confirmed = f"{count(trigger.further_cases, 'further case')} confirm it"
    return f"{subject} {where}{hidden}{more} ({dtypes}; {confirmed})"


def condition_text(condition: TriggerCondition) -> str:
    """Return a condition in words."""
    axis, value = condition.axis, condition.value
    if condition.relation is Relation.IS and (axis, value) in _FACTS:
        return _FACTS[axis, value]
    if (axis, condition.relation) == ("offset_ratio", Relation.AT_LEAST):
        return f"|mean| of a row is at least {_number(value)} sqrt(variance + eps)"
    name = _QUANTITIES.get(axis, axis)
    match condition.relation:
        case Relation.AT_LEAST:
            return f"{name} >= {_number(value)}"
        case Relation.AT_MOST if value == 1 and axis in _ONE:
            return _ONE[axis]
        case Relation.AT_MOST:
            return f"{name} <= {_number(value)}"
        case Relation.MULTIPLE:
            return f"{name} is even" if value == 2 else f"{name} is a multiple of {value}"
        case Relation.NOT_MULTIPLE:
            return f"{name} is odd" if value == 2 else f"{name} is not a multiple of {value}"
        case Relation.IS:
            return f"{name} is {_number(value)}"
        case Relation.IS_NOT:
            return f"{name} is not {_number(value)}"
        case Relation.ONE_OF:
            return f"{name} is {', '.join(value[:-1])} or {value[-1]}"


def _number(value: object) -> str:
    """Return a size in full, and a measured number with three significant digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}"
