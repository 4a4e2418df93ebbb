"""Identities of LayerNorm that hold among the results of an implementation.

Each compares two or three results with each other, or one with a closed form, and none with the
exact outputs. The exact outputs satisfy the identity, and right results are within their bounds of
them (:mod:`harness.numerics.bounds`). Interval arithmetic over these bounds gives how far a right
implementation may miss the identity, so that no tolerance is chosen. A broken identity proves that
a result is outside its bound.

:mod:`harness.verify.properties` holds what is compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Generator, Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.computed import ContractViolationError, ImplementationError, run_once
from harness.numerics.oracle import ExactRows, Reference, wide_parameter, wide_rows
from harness.numerics.rounding import unit_roundoff
from harness.records import Affine, Case, Direction
from harness.verify.exact_outputs import exact_outputs, wide_outputs
from harness.verify.interval_arithmetic import Enclosed, exactly, statistic
from implementations.contract import Implementation

__all__ = ["IDENTITIES", "PROOFS", "identities_of"]

SHAPE = (40, 67)  # odd rows; more of them than a warp has threads, and no multiple of that
SPLIT = 13  # rows of the first part; no multiple of the rows that kernels take at once
EPS = 0.25  # a fifth of variance + eps, so that a mistake in eps changes the first digit
SHIFT = 16.0  # the largest shift after which bfloat16 still represents eighths
REPEATS = 6  # as in properties
_OVER_ROWS = ("dweight", "dbias")
_GRADIENTS = ("dx", *_OVER_ROWS)

Identity = Callable[[Implementation, Case], bool | None]
"""Whether it holds; None if a result that it uses has no bound."""


def identities_of(implementation: Implementation, case: Case) -> dict[str, bool | None]:
    """Return whether each identity holds, by name; None if that is unknown.

    Args:
        implementation: an identity is unknown if it declines a call or has no gradient.
        case: gives dtypes and device; shape, eps and direction are chosen here.
    """
    found: dict[str, bool | None] = {}
    for each in IDENTITIES:
        found[each.__name__] = None
        if implementation.forward_only and each in _OF_GRADIENTS:
            continue
        try:
            found[each.__name__] = each(implementation, case)
        except (
            ImplementationError,
            ContractViolationError,
        ):  # the contract checks report it
            continue
    return found


def y_is_shift_invariant(implementation: Implementation, case: Case) -> bool | None:
    """y(x + c) = y(x), for c with x + c exact."""
    inputs, _ = _forward(case)
    step = 2**5 * unit_roundoff(inputs.x.dtype)  # x + 16 is below 2^5
    x = _on_grid(inputs.x, step, SHIFT - step)
    here = _call(implementation, case, replace(inputs, x=x))
    there = _call(implementation, case, replace(inputs, x=x + SHIFT))
    return (there["y"] - here["y"]).may_be_zero()


def y_follows_a_permutation(implementation: Implementation, case: Case) -> bool | None:
    """y of permuted features, weight and bias is y permuted."""
    return _follows_a_permutation(implementation, case, _forward(case)[0], ["y"])


def y_is_idempotent(implementation: Implementation, case: Case) -> bool | None:
    """LN(LN(x)) = LN(x), with eps 0, weight 1 and bias 0.

    xhat has mean 0 and mean square 1, so y within B of it has a mean of at most mean(B) and a
    standard deviation within E = rms(B) of 1. So the exact LN(y) is within
    (mean(B) + abs(y) E)/(1 - E) of y, and the second result within its own bound of that.
    """
    case = replace(case, eps=0.0)
    inputs, weight = _forward(case)
    ones = torch.ones_like(weight)
    inputs = replace(inputs, weight=ones, bias=torch.zeros_like(ones))
    once = _call(implementation, case, inputs)["y"]
    if not bool(torch.isfinite(once.value[0]).all()):
        return (once - once).may_be_zero()  # there is no finite y to normalise again
    twice = _call(implementation, case, replace(inputs, x=once.value[0].to(inputs.x)))["y"]
    spread = once.bound.square().mean(-1, keepdim=True).sqrt()
    moved = (once.bound.mean(-1, keepdim=True) + once.size * spread) / (1 - spread)
    moved = torch.where(spread < 1, moved, torch.full_like(moved, float("inf")))
    return (twice - replace(once, bound=moved)).may_be_zero()


def xhat_is_standardised(implementation: Implementation, case: Case) -> bool | None:
    """mean(xhat) = 0 and mean(xhat^2) = rho^2 = 1 - eps rstd^2; xhat is y without parameters."""
    case = replace(case, eps=EPS)
    inputs, _ = _forward(case)
    xhat = _call(implementation, case, replace(inputs, weight=None, bias=None))["y"]
    count = SHAPE[1]
    lost = statistic(count * EPS * _exact_rows(case, inputs).rstd.square())
    squares = (xhat * xhat).row_sums() + lost - exactly(count)
    return _all([xhat.row_sums().may_be_zero(), squares.may_be_zero()])


def gradients_follow_a_permutation(implementation: Implementation, case: Case) -> bool | None:
    """Gradients of permuted features, weight, bias and dy are the gradients permuted."""
    return _follows_a_permutation(implementation, case, _backward(case)[0], _GRADIENTS)


def dx_sums_to_zero(implementation: Implementation, case: Case) -> bool | None:
    """sum(dx) = 0 over each row, since y does not change with the mean of x."""
    return _call(implementation, case, _backward(case)[0])["dx"].row_sums().may_be_zero()


def dx_projects_onto_xhat(implementation: Implementation, case: Case) -> bool | None:
    """sum(dx xhat) = rstd (1 - rho^2) sum(dy weight xhat) over each row; 1 - rho^2 = eps rstd^2."""
    case = replace(case, eps=EPS)
    inputs, dy = _backward(case)
    dx = _call(implementation, case, inputs)["dx"]
    plain = replace(inputs, weight=None, bias=None, dy=None)
    xhat = _call(implementation, case, plain)["y"]
    like = _like(case, inputs)
    weight = exactly(wide_parameter(inputs.weight, 1.0, like))
    scaled = exactly(wide_rows(dy, like, 0, like.rows)) * weight
    expected = statistic(EPS * _exact_rows(case, inputs).rstd ** 3) * (scaled * xhat).row_sums()
    return ((dx * xhat).row_sums() - expected).may_be_zero()


def dx_is_zero_for_constant_dy_weight(implementation: Implementation, case: Case) -> bool | None:
    """dx = 0 for dy = const/weight, a constant for each row."""
    case = replace(case, parameters="power_of_two_weight")  # so that 1/weight is exact
    inputs, weight = _forward(case)
    constants = 1 + torch.arange(SHAPE[0], device=weight.device)[:, None] % 3
    dy = (constants / weight).to(inputs.x.dtype)
    return _call(implementation, case, replace(inputs, dy=dy))["dx"].may_be_zero()


def gradients_scale_with_dy(implementation: Implementation, case: Case) -> bool | None:
    """Gradients of 4 dy are 4 times those of dy, bit by bit.

    They are compared within the bound if the target is not deterministic, and in float16, whose
    normal range the gradients leave.
    """
    inputs, dy = _backward(case)
    plain = _call(implementation, case, inputs)
    scaled = _call(implementation, case, replace(inputs, dy=4 * dy))
    four_times = {name: plain[name] * exactly(4.0) for name in _GRADIENTS}
    if "float16" not in {case.dtype, case.param_dtype}:
        if _same_bits(scaled, four_times):
            return True
        again = (_call(implementation, case, inputs) for _ in range(REPEATS - 1))
        if all(_same_bits(each, plain) for each in again):
            return False
    return _all((scaled[name] - four_times[name]).may_be_zero() for name in _GRADIENTS)


def gradients_add_over_dy(implementation: Implementation, case: Case) -> bool | None:
    """Gradients of dy1 + dy2, where that is exact, are those of dy1 plus those of dy2."""
    inputs, dy = _backward(case)
    _, other = _backward(replace(case, seed=case.seed + 1))
    step = 2**3 * unit_roundoff(dy.dtype)  # the sum is below 2^3
    one, two = (_on_grid(each, step, 4 - step) for each in (dy, other))
    first, second, both = (
        _call(implementation, case, replace(inputs, dy=dy)) for dy in (one, two, one + two)
    )
    return _all((both[name] - (first[name] + second[name])).may_be_zero() for name in _GRADIENTS)


def dx_scales_with_one_over_x(implementation: Implementation, case: Case) -> bool | None:
    """dx(4 x) with 16 eps is dx(x)/4."""
    case = replace(case, eps=EPS)
    inputs, _ = _backward(case)
    plain = _call(implementation, case, inputs)["dx"]
    larger = replace(inputs, x=4 * inputs.x)
    scaled = _call(implementation, replace(case, eps=16 * EPS), larger)["dx"]
    return (scaled * exactly(4.0) - plain).may_be_zero()


def dweight_and_dbias_add_over_rows(implementation: Implementation, case: Case) -> bool | None:
    """dweight and dbias of all rows are those of the first rows plus those of the others."""
    inputs, dy = _backward(case)
    whole, first, others = (
        _call(implementation, case, replace(inputs, x=inputs.x[rows].clone(), dy=dy[rows].clone()))
        for rows in (slice(None), slice(SPLIT), slice(SPLIT, None))
    )
    return _all((whole[name] - (first[name] + others[name])).may_be_zero() for name in _OVER_ROWS)


_OF_Y: tuple[Identity, ...] = (
    y_is_shift_invariant,
    y_follows_a_permutation,
    y_is_idempotent,
    xhat_is_standardised,
)
_OF_GRADIENTS: tuple[Identity, ...] = (
    gradients_follow_a_permutation,
    dx_sums_to_zero,
    dx_projects_onto_xhat,
    dx_is_zero_for_constant_dy_weight,
    gradients_scale_with_dy,
    gradients_add_over_dy,
    dx_scales_with_one_over_x,
    dweight_and_dbias_add_over_rows,
)
IDENTITIES: tuple[Identity, ...] = (*_OF_Y, *_OF_GRADIENTS)
# the other one is compared bit by bit if the target is deterministic, which nothing requires
PROOFS = {
    each.__name__: (each.__doc__ or "").partition("\n")[0]
    for each in IDENTITIES
    if each is not gradients_scale_with_dy
}
"""What the identities that every right target keeps say, by name."""


def _forward(case: Case) -> tuple[Inputs, Tensor]:
    """Return inputs of the case without dy, and their weight."""
    inputs = make_inputs(replace(_shaped(case), direction=Direction.FORWARD))
    assert inputs.weight is not None  # with Affine.BOTH
    return inputs, inputs.weight


def _backward(case: Case) -> tuple[Inputs, Tensor]:
    """Return inputs of the case, and their dy."""
    inputs = make_inputs(replace(_shaped(case), direction=Direction.BACKWARD))
    assert inputs.dy is not None  # of a backward case
    return inputs, inputs.dy


def _shaped(case: Case) -> Case:
    return replace(case, shape=SHAPE, normalized_dims=1, affine=Affine.BOTH)


def _on_grid(values: Tensor, step: float, largest: float) -> Tensor:
    """Return the nearest multiples of ``step`` up to ``largest``."""
    steps = (values.double() / step).round()
    return (steps * step).clamp(-largest, largest).to(values.dtype)


def _like(case: Case, inputs: Inputs) -> Case:
    """Return the case of these inputs, which have both parameters or none."""
    return replace(
        _shaped(case),
        shape=tuple(inputs.x.shape),
        affine=Affine.NONE if inputs.weight is None else Affine.BOTH,
        direction=Direction.FORWARD if inputs.dy is None else Direction.BACKWARD,
    )


def _call(implementation: Implementation, case: Case, inputs: Inputs) -> dict[str, Enclosed]:
    """Return intervals that contain the exact outputs if the results are right.

    Raises:
        ImplementationError: it raised.
        ContractViolationError: it violated the contract.
    """
    like = _like(case, inputs)
    with torch.set_grad_enabled(inputs.dy is not None):
        outputs = run_once(implementation.function, like, inputs)
    bounds = exact_outputs(implementation, like, inputs).bounds
    return {
        name: replace(exactly(value), bound=bounds[name])
        for name, value in wide_outputs(outputs, like).items()
    }


def _exact_rows(case: Case, inputs: Inputs) -> ExactRows:
    (rows,) = Reference(inputs, _like(case, inputs))
    return rows


def _follows_a_permutation(
    implementation: Implementation, case: Case, inputs: Inputs, names: Iterable[str]
) -> bool | None:
    order = torch.randperm(SHAPE[1], generator=Generator().manual_seed(case.seed))
    given = {name: getattr(inputs, name) for name in ("x", "weight", "bias", "dy")}
    permuted = {
        name: each[..., order.to(each.device)].contiguous()
        for name, each in given.items()
        if each is not None
    }
    plain = _call(implementation, case, inputs)
    moved = _call(implementation, case, replace(inputs, **permuted))
    return _all((moved[name] - plain[name].columns(order)).may_be_zero() for name in names)


def _same_bits(a: dict[str, Enclosed], b: dict[str, Enclosed]) -> bool:
    return all(torch.equal(a[name].value[0], b[name].value[0]) for name in _GRADIENTS)


def _all(results: Iterable[bool | None]) -> bool | None:
    """Return False if any is False, else None if any is None, else True."""
    known = set(results)
    return False if False in known else None if None in known else True
