"""The scope of a target: found by calling it, and what a case becomes within it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from factories.right_modules import ChannelsOfImages
from factories.verify_targets import layer_norm, quick, raising
from torch import Tensor, nn

from harness.records import Affine, Case, Direction, RemarkKind, Status
from harness.records.finding import OF_NATIVE
from harness.verify import Scope, Verdict, verify_case
from implementations import UnsupportedError

CASE = Case(implementation="target", shape=(6, 35), eps=1e-3)
SEVERAL = replace(CASE, shape=(6, 5, 7), normalized_dims=2)
ONE_AXIS = {"normalized_axes": (2, 3, 4, 5)}
CHANNELS = "the channel axis (axis 1) of x"
TWO_AXES = {"normalized_axes": (1, 3, 4, 5)}


@pytest.mark.parametrize(
    ("scope", "case", "changes"),
    [
        (Scope(eps=1e-6), CASE, {"eps": 1e-6}),
        (Scope(declined={"affine": ("both", "none", "bias")}), CASE, {"affine": Affine.WEIGHT}),
        (
            Scope(normalized_shape=(4, 8), declined=TWO_AXES),
            CASE,
            {"shape": (6, 4, 8), "normalized_dims": 2},
        ),
        (Scope(normalized_shape=(48,)), SEVERAL, {"shape": (6, 48), "normalized_dims": 1}),
        # without parameters, x alone has a dtype
        (
            Scope(declined={"affine": ("both", "weight", "bias"), "param_dtype": ("float32",)}),
            replace(CASE, dtype="bfloat16"),
            {"affine": Affine.NONE, "param_dtype": "bfloat16"},
        ),
        (Scope(declined=ONE_AXIS), SEVERAL, None),
        (Scope(declined={"param_dtype": ("float32",)}), replace(CASE, dtype="bfloat16"), None),
        (Scope(declined={"layout": ("transposed",)}), replace(CASE, layout="transposed"), None),
    ],
)
def test_a_case_is_fitted_to_the_scope_or_outside_it(
    scope: Scope, case: Case, changes: dict[str, Any] | None
) -> None:
    assert scope.fit(case) == (None if changes is None else replace(case, **changes))


# --- each limit of a target is found by calling it, and nothing else is reported as a limit ------

Refused = Callable[[SimpleNamespace], bool]
"""Of the arguments of a call, and dy in a backward."""


def unless(refused: Refused, *, backward: bool = False) -> Callable[..., Tensor]:
    """A right LayerNorm that raises, or whose backward does, if ``refused`` returns True."""

    def limited(
        x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Tensor:
        shape = tuple(normalized_shape)
        call = SimpleNamespace(x=x, shape=shape, weight=weight, bias=bias, eps=eps)

        def refuse(dy: Tensor | None = None) -> None:
            call.dy = dy
            if refused(call):
                raise RuntimeError("not this")

        if not backward:
            refuse()
        y = layer_norm(x, shape, weight, bias, eps)
        if backward and y.requires_grad:
            y.register_hook(refuse)
        return y

    return limited


unless_backward = partial(unless, backward=True)


def verdict_of(target: Any, *dtypes: str, **options: Any) -> Verdict:
    """Find the scope alone: no time is left to try cases."""
    return quick(target, *dtypes, time_budget_s=0.0, **options)


def found(target: Any, *dtypes: str, **options: Any) -> Scope:
    verdict = verdict_of(target, *dtypes, **options)
    assert verdict.scope is not None
    return verdict.scope


def both_required(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return layer_norm(x, shape, weight.clone(), bias.clone(), eps)


def of_rows(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    if x.dim() != 2:
        raise AssertionError("rows alone")
    return layer_norm(x, x.shape[-1:], weight, bias, eps)


declares = raising(
    UnsupportedError("needs a contiguous x"), lambda x: not (x.is_contiguous() and x.numel())
)
NOT_THIS = "(RuntimeError: not this)"


@pytest.mark.parametrize(
    ("target", "declined", "reason"),
    [
        (layer_norm, {}, ""),
        (
            unless(lambda call: call.weight is None and call.bias is not None),
            {"affine": (Affine.BIAS,)},
            f"calls with bias alone {NOT_THIS}",
        ),
        (
            both_required,
            {"affine": (Affine.WEIGHT, Affine.NONE, Affine.BIAS)},
            "calls without weight or without bias (AttributeError: 'NoneType' object has no...)",
        ),
        (
            unless(lambda call: len(call.shape) > 1),
            ONE_AXIS,
            f"2 or more normalized axes {NOT_THIS}",
        ),
        (
            of_rows,
            {"ndim": (1, 3, 4, 5), **ONE_AXIS},
            "x of 3, 4 or 5 axes (AssertionError: rows alone); several normalized axes",
        ),
        (unless(lambda call: call.eps == 0), {"eps": (0.0,)}, f"an eps of 0 {NOT_THIS}"),
        (
            declares,
            {"emptiness": ("an x without rows", "an x whose rows are empty")},
            "an x without rows (needs a contiguous x)",
        ),
    ],
)
def test_a_limit_is_found_with_its_reason_and_no_other(
    target: Callable[..., Tensor], declined: dict[str, tuple[object, ...]], reason: str
) -> None:
    verdict = verdict_of(target)
    found = dict(verdict.scope.declined)
    assert ("layout" in found) is (target is declares)
    found.pop("layout", None)
    assert found == declined
    assert reason in "; ".join(verdict.scope.reasons)
    assert bool(reason) is bool(verdict.scope.reasons)
    assert (verdict.findings, verdict.scope.has_gradient) == ((), True)


@pytest.mark.parametrize(
    ("target", "texts"),
    [
        (unless(lambda call: call.x.numel() == 0), ["remark: declines an x without rows"]),
        (unless(lambda call: 0 in call.shape), ["remark: declines an x whose rows are empty"]),
        (unless(lambda call: not call.x.is_contiguous()), ["raises: x is not contiguous"]),
        (
            unless(lambda call: call.weight is None or call.bias is None),
            ["raises: no weight is given", "raises: no bias is given"],
        ),
        (unless_backward(lambda call: True), ["raises: a gradient is computed"]),
        (
            unless_backward(lambda call: call.weight is None),
            ["raises: a gradient is computed and no weight is given"],
        ),
        (
            unless_backward(lambda call: not call.dy.is_contiguous()),
            ["raises: dy is not contiguous, as in y.sum().backward()"],
        ),
    ],
)
def test_what_raises_is_said_in_words(target: Callable[..., Tensor], texts: list[str]) -> None:
    verdict = verdict_of(target)
    assert verdict.scope.reasons == ()
    assert verdict.scope.has_gradient is (texts != ["raises: a gradient is computed"])
    said = [f"{own.severity}: {own.text}" for own in verdict.findings if own.kind not in OF_NATIVE]
    assert len(said) == len(texts)
    assert all(map(str.startswith, said, texts))


def test_combinations_without_a_gradient_are_left_out_of_the_backward() -> None:
    scope = found(unless_backward(lambda call: call.weight is None))
    declined = {"affine": (Affine.NONE, Affine.BIAS)}
    assert (scope.declined, scope.declined_backward) == ({}, declined)
    case = replace(CASE, affine=Affine.NONE)
    assert scope.fit(case) == case
    backward = replace(case, direction=Direction.BACKWARD)
    assert scope.fit(backward) == replace(backward, affine=Affine.BOTH)


@pytest.mark.parametrize(
    ("shape", "ranks", "given"),
    [
        ((6, 8), (3,), (2, 3, 8)),
        ((2, 3, 5, 8), (2, 3), (6, 5, 8)),
        ((0, 8), (3,), (1, 0, 8)),
    ],
)
def test_x_gets_a_number_of_axes_that_the_target_takes(
    shape: tuple[int, ...], ranks: tuple[int, ...], given: tuple[int, ...]
) -> None:
    seen: list[tuple[int, ...]] = []

    def refused(call: SimpleNamespace) -> bool:
        seen.append(tuple(call.x.shape))
        return call.x.dim() not in ranks

    assert verify_case(unless(refused), shape).status is Status.OK
    assert seen[-1] == given


def test_raising_for_mixed_dtypes_is_a_limit_where_there_are_halves() -> None:
    mixed = unless(lambda call: call.weight is not None and call.weight.dtype != call.x.dtype)
    assert found(mixed, "float32", "bfloat16").declined == {"param_dtype": ("float32",)}
    assert found(mixed, "float32").declined == {}


def test_a_dtype_that_raises_is_no_limit_of_the_others() -> None:
    wide = unless(lambda call: call.x.dtype is not torch.float64)
    assert found(wide, "float32", "float64").declined == {}


def promoting(x: Tensor, shape: Any, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    return layer_norm(x, shape, None, None, eps) * w + b


class OneSize(nn.LayerNorm):
    """Takes any normalized_shape; its forward normalises only the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight + self.bias


@pytest.mark.parametrize(
    ("target", "options", "axes", "fields"),
    [
        (layer_norm, {}, "any number of trailing axes", {"default_eps": 1e-5}),
        (OneSize, {}, "the last axis", {"default_eps": 1e-5}),
        (ChannelsOfImages, {}, CHANNELS, {"eps": 1e-5, "channels_first": True}),
        (layer_norm, {"normalized_dims": 2, "eps": 0.25}, "the last 2 axes", {"eps": 0.25}),
    ],
)
def test_axes_and_eps_are_found_and_named(
    target: Any, options: dict[str, Any], axes: str, fields: dict[str, object]
) -> None:
    scope = found(target, **options)
    assert scope.axes == axes
    assert {name: getattr(scope, name) for name in fields} == fields
    assert (scope.eps is None) is ("eps" not in fields)


def test_what_a_user_should_know_of_a_scope_is_a_remark() -> None:
    promotes, ignores = verdict_of(promoting, "bfloat16"), verdict_of(OneSize)
    assert [own.kind for own in promotes.remarks] == [RemarkKind.PROMOTES]
    assert [own.kind for own in ignores.remarks] == [RemarkKind.SEVERAL_AXES_IGNORED]
