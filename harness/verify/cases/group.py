"""A group of cases: a product of axes, and what it is there to catch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from harness.records import Case, Direction

__all__ = ["BACKWARD", "FORWARD", "Group", "cases_of"]

FORWARD, BACKWARD = (Direction.FORWARD,), (Direction.BACKWARD,)
_UNUSED_GRAD_OUTPUT = "shifted_normal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A product of axes, and what it is there to catch."""

    catches: str
    shapes: tuple[tuple[int, ...], ...]
    normalized_dims: tuple[int, ...] = (1,)
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16", "float64")
    distributions: tuple[str, ...] = ("normal",)
    layouts: tuple[str, ...] = ("contiguous",)
    grad_outputs: tuple[str, ...] = ("shifted_normal",)
    parameters: tuple[str, ...] = ("normal",)
    eps: tuple[float, ...] = (1e-5,)
    directions: tuple[Direction, ...] = BACKWARD + FORWARD
    """Most implementations take another path in inference, which costs less than half to try."""


def cases_of(
    group: Group, target: str, dtype: str, device: str, forward_only: bool
) -> Iterator[Case]:
    """Yield the cases of a group in one dtype; none if the group does not have the dtype."""
    if dtype not in group.dtypes:
        return
    axes = product(
        group.shapes,
        group.normalized_dims,
        group.distributions,
        group.layouts,
        group.grad_outputs,
        group.parameters,
        group.eps,
        group.directions if not forward_only else FORWARD,
    )
    for shape, dims, distribution, layout, grad_output, parameters, eps, way in axes:
        # inference has no grad_output: the first one of the group stands for all
        if way is Direction.FORWARD and grad_output != group.grad_outputs[0]:
            continue
        yield Case(
            implementation=target,
            shape=shape,
            normalized_dims=dims,
            dtype=dtype,
            param_dtype=dtype,
            device=device,
            distribution=distribution,
            layout=layout,
            grad_output=grad_output if way is not Direction.FORWARD else _UNUSED_GRAD_OUTPUT,
            parameters=parameters,
            eps=eps,
            direction=way,
        )
