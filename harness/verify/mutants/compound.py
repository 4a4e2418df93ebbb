"""Compound mutants: a mistake behind a trigger, the conjunction of one to three conditions.

Real kernels have the same mistakes as other mutants, but only on one of their paths: where the row
is long, x is strided and there is no weight. A compound mutant is right wherever its trigger does
not hold. Compounds are drawn at random, so that no cases can be written to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from harness.verify.mutants import gradient, kernel, layout, precision, semantics
from harness.verify.mutants.analytic import Gradients, Terms, analytic
from harness.verify.mutants.arguments import LayerNormCall, Rows
from harness.verify.mutants.conditions import CONDITIONS, CallCondition, CallFacts
from harness.verify.mutants.mutant import RECORDING, CheckKind, Mutant, mutant, on_rows
from implementations.contract import LayerNormFunction

__all__ = ["BASES", "ORDERS", "Compound", "draw_compounds", "with_callback", "with_trigger"]

ORDERS = (1, 2, 3)
"""Numbers of conditions in a trigger."""


@on_rows()
def last_element_left_out(rows: Rows) -> Tensor:
    """Leaves the last element of each row out of the statistics."""
    return rows.with_statistics_of(rows.x[:, : max(rows.hidden - 1, 1)])


@mutant(directions=RECORDING, caught_by=CheckKind.GRADIENT)
@analytic
def one_pass_in_the_backward(terms: Terms) -> Gradients:
    """Computes the variance for the backward as E[x^2] - E[x]^2."""
    variance = terms.x.square().mean(-1, keepdim=True) - terms.mean.square()
    return replace(terms, rstd=torch.rsqrt(variance.clamp(min=0) + terms.eps)).right


BASES: tuple[Mutant, ...] = (
    semantics.unbiased_variance,
    semantics.eps_outside_the_root,
    semantics.eps_ignored,
    semantics.eps_always_1e_6,
    semantics.eps_squared,
    semantics.eps_is_a_floor,
    semantics.no_root,
    semantics.sum_of_squares,
    semantics.absolute_deviation,
    semantics.root_mean_square,
    semantics.uncentred_denominator,
    semantics.constant_rows_are_zero,
    semantics.bias_before_weight,
    semantics.weight_ignored,
    semantics.bias_ignored,
    semantics.weight_and_bias_swapped,
    semantics.first_weight_for_all,
    semantics.one_plus_weight,
    semantics.weight_twice,
    semantics.statistics_of_all_rows,
    semantics.statistics_over_the_batch,
    precision.statistics_in_bfloat16,
    precision.mean_in_float16,
    precision.newton_step_missing,
    precision.one_pass_in_disguise,
    precision.one_pass_clamped,
    precision.normalised_in_bfloat16,
    precision.parameters_in_bfloat16,
    precision.truncated_to_bfloat16,
    kernel.lane_lost,
    kernel.weight_off_by_one,
    kernel.row_off_by_one,
    kernel.pairs_share_statistics,
    layout.nan_spreads,
    layout.nan_hidden,
    layout.nan_skipped,
    layout.dy_nan_hidden,
    gradient.dx_without_mean_of_dy,
    gradient.dx_without_projection,
    gradient.dx_with_unbiased_projection,
    gradient.dx_without_weight,
    gradient.dx_without_eps,
    gradient.dx_of_rstd_in_bfloat16,
    gradient.statistics_kept_in_bfloat16,
    gradient.dweight_of_deviations,
    gradient.dweight_averaged,
    gradient.dbias_averaged,
    gradient.dweight_summed_in_bfloat16,
    gradient.last_row_left_out,
    gradient.dbias_zero,
    gradient.dbias_of_scaled_dy,
    last_element_left_out,
    one_pass_in_the_backward,
    gradient.dweight_of_products_in_bfloat16,
)
"""Mistakes that are made on every path, although not all data show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compound:
    """A mistake behind a trigger."""

    base: Mutant
    trigger: tuple[CallCondition, ...]

    @property
    def text(self) -> str:
        """Such as "weight_ignored where N > 1024 and x is not contiguous"."""
        return f"{self.base.name} where {' and '.join(each.text for each in self.trigger)}"

    @property
    def function(self) -> LayerNormFunction:
        """The LayerNorm that makes the mistake where the trigger holds, and only there."""
        return with_trigger(self.base.function, self.trigger)


def draw_compounds(count: int, seed: int = 0) -> tuple[Compound, ...]:
    """Draw ``count`` compounds of each order, none twice.

    Mistakes, the axes of conditions and conditions on one axis are all equally likely.
    """
    random = Random(seed)
    by_axis: dict[str, list[CallCondition]] = {}
    for condition in CONDITIONS:
        by_axis.setdefault(condition.axis, []).append(condition)
    drawn: dict[tuple[str, frozenset[str]], Compound] = {}
    for order in ORDERS:
        wanted = len(drawn) + count
        while len(drawn) < wanted:
            axes = random.sample(sorted(by_axis), order)
            trigger = tuple(random.choice(by_axis[axis]) for axis in axes)
            compound = Compound(base=random.choice(BASES), trigger=trigger)
            key = compound.base.name, frozenset(each.text for each in trigger)
            drawn.setdefault(key, compound)
    return tuple(drawn.values())


def with_trigger(base: LayerNormFunction, trigger: Sequence[CallCondition]) -> LayerNormFunction:
    """Return a right LayerNorm that calls ``base`` where all conditions hold.

    If a condition reads dy, then y is right, and the gradients are those of ``base``.
    """
    before = [each for each in trigger if not each.reads_dy]
    on_dy = [each for each in trigger if each.reads_dy]

    def layer_norm(
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        call = LayerNormCall(x, normalized_shape, weight, bias, eps)
        facts = CallFacts(call)
        if not all(each.holds(facts) for each in before):
            return call.y
        if not on_dy:
            return call.by(base)
        right = call.y
        if not right.requires_grad:
            return right

        def is_wrong(dy: Tensor) -> bool:
            facts = CallFacts(call, dy)
            return all(each.holds(facts) for each in on_dy)

        chosen: Tensor = _ChosenByDy.apply(right, call.by(base), is_wrong)  # type: ignore[no-untyped-call]
        return chosen

    return layer_norm


def with_callback(on_call: Callable[[CallFacts], None]) -> LayerNormFunction:
    """Return a right LayerNorm that calls ``on_call`` in each forward and, with dy, backward."""

    def layer_norm(
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        call = LayerNormCall(x, normalized_shape, weight, bias, eps)
        on_call(CallFacts(call))
        right = call.y
        if not right.requires_grad:
            return right

        def is_wrong(dy: Tensor) -> bool:
            on_call(CallFacts(call, dy))
            return False

        chosen: Tensor = _ChosenByDy.apply(right, right, is_wrong)  # type: ignore[no-untyped-call]
        return chosen

    return layer_norm


class _ChosenByDy(torch.autograd.Function):
    """Returns the right y, and passes dy to the graph of the right or of the wrong one."""

    @staticmethod
    def forward(
        ctx: Any, right: Tensor, wrong: Tensor, is_wrong: Callable[[Tensor], bool]
    ) -> Tensor:
        ctx.is_wrong = is_wrong
        return right.view_as(right)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        return (None, dy, None) if ctx.is_wrong(dy) else (dy, None, None)
