"""The scope of a target: found by calling it, and what a case becomes within it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from factories.verify_targets import layer_norm
from torch import Tensor, nn
from torch.nn import functional

from harness.cases import BACKWARD_CALLS
from harness.records import Affine, Case, Direction, Finding, RemarkKind, Severity, Status
from harness.run.attempt import attempt
from harness.verify import Scope, verify
from harness.verify.cases import array_within
from harness.verify.find_scope import find_scope
from harness.verify.scope import InScope, within_scope
from implementations import CallOptions, UnsupportedError, adopt

CASE = Case(implementation="target", shape=(6, 35), eps=1e-3)
SEVERAL = replace(CASE, shape=(6, 5, 7), normalized_dims=2)


@pytest.mark.parametrize(
    ("scope", "case", "fitted"),
    [
        (Scope(), CASE, CASE),
        (Scope(eps=1e-6), CASE, replace(CASE, eps=1e-6)),
        (
            Scope(declined={"affine": ("both", "none", "bias")}),
            CASE,
            replace(CASE, affine=Affine.WEIGHT),
        ),
        (Scope(declined={"normalized_axes": (2, 3, 4, 5)}), SEVERAL, None),
        (
            Scope(declined={"normalized_axes": (1, 3, 4, 5)}),
            CASE,
            replace(CASE, shape=(6, 5, 7), normalized_dims=2),
        ),
        (Scope(declined={"normalized_axes": (3, 4, 5)}), SEVERAL, SEVERAL),
        (
            Scope(normalized_shape=(4, 8), declined={"normalized_axes": (1, 3, 4, 5)}),
            CASE,
            replace(CASE, shape=(6, 4, 8), normalized_dims=2),
        ),
        (Scope(normalized_shape=(48,)), SEVERAL, replace(CASE, shape=(6, 48))),
        (Scope(declined={"is_empty": (True,)}), replace(CASE, shape=(0, 35)), None),
        (Scope(declined={"is_empty": (True,)}), CASE, CASE),
        (Scope(declined={"param_dtype": ("float32",)}), replace(CASE, dtype="bfloat16"), None),
        (Scope(declined={"layout": ("transposed",)}), replace(CASE, layout="transposed"), None),
        (
            Scope(declined={"parameters": ("transposed",)}),
            replace(CASE, parameters="transposed"),
            None,
        ),
        (Scope(declined={"grad_output": ("tiny",)}), replace(CASE, grad_output="tiny"), None),
        (Scope(declined={"eps": (1e-2,)}), CASE, None),
        (Scope(declined={"eps": (1e-2,)}, eps=1e-6), CASE, replace(CASE, eps=1e-6)),
    ],
)
def test_a_case_is_fitted_or_outside(scope: Scope, case: Case, fitted: Case | None) -> None:
    assert scope.fit(case) == fitted


def test_a_case_without_parameters_has_the_dtype_of_x_only() -> None:
    case = replace(CASE, dtype="bfloat16", parameters="normal")
    found = Scope(declined={"affine": ("both", "weight", "bias"), "param_dtype": ("float32",)}).fit(
        case
    )
    assert found is not None
    assert (found.affine, found.param_dtype) == (Affine.NONE, "bfloat16")


@pytest.mark.parametrize(
    ("shape", "ranks", "given"),
    [
        ((6, 8), (1, 2, 3), (6, 8)),
        ((6, 8), (3,), (2, 3, 8)),
        ((7, 8), (3,), (1, 7, 8)),
        ((8,), (2,), (1, 8)),
        ((2, 3, 8), (2,), (6, 8)),
        ((2, 3, 5, 8), (2, 3), (6, 5, 8)),
        ((0, 8), (3,), (1, 0, 8)),
    ],
)
def test_x_gets_a_number_of_axes_that_the_target_takes(
    shape: tuple[int, ...], ranks: tuple[int, ...], given: tuple[int, ...]
) -> None:
    seen: list[torch.Size] = []

    def target(x: Tensor, *others: Any) -> Tensor:
        seen.append(x.shape)
        return x + 1

    x = torch.randn(shape)
    assert torch.equal(InScope(target, only(*ranks))(x, (8,)), x + 1)
    assert seen == [given]


def only(*ndims: int) -> Scope:
    return Scope(declined={"ndim": tuple(ndim for ndim in range(1, 6) if ndim not in ndims)})


def test_a_result_that_is_not_a_tensor_is_passed_on() -> None:
    assert InScope(lambda *given: None, only(3))(torch.ones(2, 3), (3,)) is None


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (Scope(), "any number of trailing axes"),
        (Scope(declined={"normalized_axes": (2, 3, 4, 5)}), "the last axis"),
        (Scope(declined={"normalized_axes": (1, 3, 4, 5)}), "the last 2 axes"),
        (
            Scope(normalized_shape=(4, 8), declined={"normalized_axes": (1, 3, 4, 5)}),
            "the last 2 axes",
        ),
        (Scope(channels_first=True), "the channel axis (axis 1) of x"),
    ],
)
def test_axes_are_named(scope: Scope, words: str) -> None:
    assert scope.axes == words


# === Each limit of a target is found by calling it, and nothing else is reported as a limit


EXPANDED = {"expanded_ones", "expanded_number", "expanded_row"}  # gradients with a stride of 0


def unless(refused: Callable[..., bool]) -> Callable[..., Tensor]:
    """A right LayerNorm that raises if ``refused`` returns True."""

    def limited(
        x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Tensor:
        if refused(x, tuple(normalized_shape), weight, bias, eps):
            raise RuntimeError("not this")
        return layer_norm(x, normalized_shape, weight, bias, eps)

    return limited


def found(target: Any, *dtypes: str, **chosen: Any) -> tuple[Scope, list[RemarkKind]]:
    scope, findings = in_full(target, *dtypes, **chosen)
    return scope, [each.kind for each in findings]


def in_full(target: Any, *dtypes: str, **chosen: Any) -> tuple[Scope, tuple[Finding, ...]]:
    options = CallOptions(**chosen)
    implementation = adopt(target, "target", options)
    scope, findings, _ = find_scope(
        implementation,
        dtypes or ("float32",),
        "cpu",
        options,
        partial(attempt, implementation, is_judged=False),
    )
    return scope, findings


def test_a_right_function_has_no_limit_but_a_default_eps() -> None:
    scope, remarks = found(layer_norm, "float32", "bfloat16")
    assert scope == Scope(default_eps=1e-5)
    assert remarks == []


@pytest.mark.parametrize(
    ("refused", "declined"),
    [
        (lambda x, shape, w, b, eps: w is None, {"affine": (Affine.NONE, Affine.BIAS)}),
        (lambda x, shape, w, b, eps: b is not None, {"affine": (Affine.BOTH, Affine.BIAS)}),
        (lambda x, shape, w, b, eps: len(shape) > 1, {"normalized_axes": (2, 3, 4, 5)}),
        (lambda x, shape, w, b, eps: len(shape) > 2, {"normalized_axes": (3, 4, 5)}),
        (lambda x, shape, w, b, eps: x.numel() == 0, {"is_empty": (True,)}),
        (lambda x, shape, w, b, eps: eps == 0, {"eps": (0.0,)}),
        (lambda x, shape, w, b, eps: eps < 1e-9, {"eps": (0.0, 1e-12)}),
    ],
)
def test_one_limit_is_found_and_no_other(
    refused: Callable[..., bool], declined: dict[str, tuple[object, ...]]
) -> None:
    scope, _ = found(unless(refused))
    assert scope == Scope(default_eps=1e-5, declined=declined, reasons=scope.reasons)


def test_a_missing_gradient_is_found() -> None:
    scope, _ = found(unless(lambda x, *others: x.requires_grad))
    assert scope == Scope(default_eps=1e-5, has_gradient=False, reasons=scope.reasons)


@pytest.mark.parametrize("ranks", [(2,), (3,), (1, 2, 3)])
def test_ranks_that_it_takes_are_found(ranks: tuple[int, ...]) -> None:
    scope, _ = found(unless(lambda x, *others: x.dim() not in ranks))
    assert scope.taken("ndim") == ranks
    assert max(scope.taken("normalized_axes")) <= max(ranks)


def no_bias(x: Tensor, shape: Any, weight: Any, eps: float = 1e-5) -> Tensor:
    return layer_norm(x, shape, weight, None, eps)


def both_required(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return layer_norm(x, shape, weight.clone(), bias.clone(), eps)


def of_rows(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    if x.dim() != 2:
        raise AssertionError("rows alone")
    return layer_norm(x, x.shape[-1:], weight, bias, eps)


@pytest.mark.parametrize(
    ("target", "reasons"),
    [
        (unless(lambda x, *_: x.dim() in {1, 5}), ["x of 5 axes (RuntimeError: not this)"]),
        (unless(lambda x, shape, w, b, eps: eps == 0), ["an eps of 0 (RuntimeError: not this)"]),
        (
            unless(lambda x, shape, w, b, eps: w is None and b is not None),
            ["calls with bias alone (RuntimeError: not this)"],
        ),
        (
            unless(lambda x, shape, *_: len(shape) > 2),
            ["3 or more normalized axes (RuntimeError: not this)"],
        ),
        (of_rows, ["x of 3, 4 or 5 axes (AssertionError: rows alone)", "several normalized axes"]),
        (
            both_required,
            ["calls without weight or without bias (AttributeError: 'NoneType' object has no...)"],
        ),
        (no_bias, []),  # its signature says so
    ],
)
def test_limits_in_words(target: Callable[..., Tensor], reasons: list[str]) -> None:
    scope, findings = in_full(target)
    assert (list(scope.reasons), findings) == (reasons, ())


@pytest.mark.parametrize(
    ("refused", "kinds"),
    [
        (lambda x, *_: x.numel() == 0, ["remark: declines an empty x"]),
        (lambda x, *_: x.is_neg(), ["remark: declines an x that is negated, as z.conj().imag is"]),
        (lambda x, *_: 0 in x.stride(), ["remark: declines an x that is expanded"]),
        (lambda x, *_: not x.is_contiguous(), ["raises: x is not contiguous"]),
        (lambda x, *_: x.stride(-1) > 2, ["raises: x is transposed"]),
        (lambda x, *_: x.stride(-1) == 2, ["raises: x is a slice of another tensor"]),
        (lambda x, shape, w, b, eps: b is None, ["raises: no bias is given"]),
        (lambda x, shape, w, b, eps: w is None, ["raises: no weight is given"]),
        (
            lambda x, shape, w, b, eps: w is None and b is None,
            ["raises: neither weight nor bias is given"],
        ),
        (
            lambda x, shape, w, b, eps: w is None or b is None,
            ["raises: no weight is given", "raises: no bias is given"],
        ),
        (lambda x, *_: x.requires_grad, ["raises: a gradient is computed"]),
        (
            lambda x, shape, w, b, eps: w is not None and not w.is_contiguous(),
            ["remark: declines a weight or bias that is transposed"],
        ),
    ],
)
def test_what_raises_in_words(refused: Callable[..., bool], kinds: list[str]) -> None:
    scope, findings = in_full(unless(refused))
    assert scope.reasons == ()
    texts = [f"{own.severity}: {own.text}" for own in findings]
    assert all(map(str.startswith, texts, kinds))
    assert len(texts) == len(kinds)
    for own in findings:
        if own.severity is Severity.RAISES:
            assert own.evidence[0] == "RuntimeError: not this"
        else:
            assert own.text.endswith("(RuntimeError: not this)")


def test_what_is_declared_unsupported_is_a_limit() -> None:
    def strict(x: Tensor, *others: Any) -> Tensor:
        if not x.is_contiguous() or not x.numel():
            raise UnsupportedError("needs a contiguous x")
        return layer_norm(x, *others)

    scope, findings = in_full(strict)
    assert findings == ()
    assert scope.reasons == (
        "an empty x (needs a contiguous x)",
        "an x that is not contiguous (needs a contiguous x)",
    )


class RefusesGradients(torch.autograd.Function):
    """The identity; its backward raises for what ``refused`` says."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, refused: Callable[[Tensor], bool]) -> Tensor:
        ctx.refused = refused
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        if ctx.refused(dy):
            raise RuntimeError("not this")
        return dy, None


def unless_backward(refused: Callable[..., bool]) -> Callable[..., Tensor]:
    """A right LayerNorm whose backward raises if ``refused`` returns True for x, weight, bias."""

    def limited(
        x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Tensor:
        is_refused = refused(x, weight, bias)
        y: Tensor = RefusesGradients.apply(
            layer_norm(x, shape, weight, bias, eps), lambda _: is_refused
        )
        return y

    return limited


def test_combinations_without_a_gradient_are_found_and_left_out_of_the_backward() -> None:
    scope, remarks = found(unless_backward(lambda x, weight, bias: weight is None))
    assert scope.declined == {}
    assert scope.declined_backward == {"affine": (Affine.NONE, Affine.BIAS)}
    assert (scope.has_gradient, remarks) == (True, ["affine"])
    case = Case(implementation="", shape=(2, 32), affine=Affine.NONE)
    assert scope.fit(case) == case
    backward = replace(case, direction=Direction.BACKWARD)
    assert scope.fit(backward) == replace(backward, affine=Affine.BOTH)
    rows = array_within(scope, 2, forward_only=False)
    assert not any(
        row["call"] in BACKWARD_CALLS and row["affine"] in {"none", "bias"} for row in rows
    )
    assert {row["affine"] for row in rows} == {"both", "weight", "bias", "none"}


def test_ranks_without_a_gradient_are_found_and_avoided_in_the_backward() -> None:
    ranks: list[tuple[int, bool]] = []

    def refused(x: Tensor, *_: Any) -> bool:
        ranks.append((x.dim(), x.requires_grad))
        return x.dim() != 3

    target = unless_backward(refused)
    scope, remarks = found(target)
    assert (scope.declined, scope.declined_backward) == ({}, {"ndim": (1, 2, 4, 5)})
    assert (scope.has_gradient, remarks) == (True, [])
    assert scope.reasons == ("gradients of x of 1, 2, 4 or 5 axes (RuntimeError: not this)",)
    ranks.clear()
    limited = within_scope(adopt(target, "target"), scope)
    for direction in (Direction.FORWARD, Direction.BACKWARD):
        case = Case(implementation="", shape=(2, 3, 4, 32), direction=direction)
        assert attempt(limited, case, is_judged=False).status is Status.OK
    assert ranks == [(4, False), (3, True)]


def test_raising_for_the_gradients_of_an_empty_x_is_a_remark() -> None:
    scope, remarks = found(unless_backward(lambda x, *_: x.numel() == 0))
    assert remarks == [RemarkKind.DECLINES_EMPTY]
    assert scope.accepts("is_empty", True)
    case = Case(implementation="", shape=(0, 32))
    assert scope.fit(case) == case
    assert scope.fit(replace(case, direction=Direction.BACKWARD)) is None


def test_a_target_that_raises_in_every_backward_has_no_gradient() -> None:
    scope, findings = in_full(unless_backward(lambda *_: True))
    assert not scope.has_gradient
    assert (scope.declined_backward, scope.reasons) == ({}, ())
    assert [own.text for own in findings] == ["a gradient is computed"]


@pytest.mark.parametrize(
    ("refused", "declined", "text"),
    [
        (
            Tensor.is_neg,
            {"negated_normal"},
            "declines a dy that is negated, as z.conj().imag is (RuntimeError: not this)",
        ),
        (lambda dy: 0 in dy.stride(), EXPANDED, "dy is expanded, as in y.sum().backward()"),
        (
            lambda dy: not dy.is_contiguous(),
            EXPANDED | {"transposed_normal", "strided_normal"},
            "dy is not contiguous, as in y.sum().backward()",
        ),
    ],
)
def test_layouts_of_dy_that_raise_are_found(
    refused: Callable[[Tensor], bool], declined: set[str], text: str
) -> None:
    def limited(x: Tensor, *others: Any) -> Tensor:
        y: Tensor = RefusesGradients.apply(layer_norm(x, *others), refused)
        return y

    scope, findings = in_full(limited)
    assert set(scope.declined["grad_output"]) == declined
    assert "layout" not in scope.declined
    assert [own.text for own in findings] == [text]


def test_raising_for_mixed_dtypes_is_a_limit() -> None:
    mixed = unless(lambda x, shape, w, b, eps: w is not None and w.dtype != x.dtype)
    assert found(mixed, "float32", "bfloat16")[0].declined == {"param_dtype": ("float32",)}
    assert found(mixed, "float32")[0].declined == {}


def test_a_result_in_the_parameters_dtype_is_a_remark() -> None:
    def promoting(x: Tensor, shape: Any, w: Any = None, b: Any = None, eps: float = 1e-5) -> Tensor:
        y = layer_norm(x, shape, None, None, eps)
        y = y if w is None else y * w
        return y if b is None else y + b

    scope, remarks = found(promoting, "bfloat16")
    assert scope.promotes
    assert remarks == [RemarkKind.PROMOTES]


def test_a_result_in_a_dtype_of_no_argument_is_wrong() -> None:
    def widening(x: Tensor, *others: Any) -> Tensor:
        return layer_norm(x, *others).float()

    forward = (Direction.FORWARD,)
    verdict = verify(widening, quick=True, dtypes=("bfloat16",), directions=forward, fail_fast=True)
    assert verdict.is_wrong
    assert "y has dtype" in verdict.failures[0].text


class OneSize(nn.Module):
    """Takes any normalized_shape; its forward normalises only the last axis."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(normalized_shape))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = functional.layer_norm(x, x.shape[-1:], eps=self.eps)
        return y * self.weight


def test_ignoring_several_axes_is_a_remark() -> None:
    scope, remarks = found(OneSize)
    assert scope.taken("normalized_axes") == (1,)
    assert remarks == [RemarkKind.SEVERAL_AXES_IGNORED]


def test_an_instance_has_one_shape_and_one_eps() -> None:
    scope, _ = found(nn.LayerNorm((4, 8), eps=1e-3))
    assert (scope.normalized_shape, scope.taken("normalized_axes")) == ((4, 8), (2,))
    assert (scope.eps, scope.axes) == (1e-3, "the last 2 axes")


def test_channels_first_is_found() -> None:
    class OfImages(nn.LayerNorm):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    scope, remarks = found(OfImages)
    assert (scope.channels_first, scope.taken("affine")) == (True, (Affine.BOTH,))
    assert (scope.eps, remarks) == (1e-5, [])


def test_call_options_limit_the_scope() -> None:
    scope, _ = found(layer_norm, normalized_dims=2, eps=0.25)
    assert (scope.taken("normalized_axes"), scope.eps) == ((2,), 0.25)
    assert scope.axes == "the last 2 axes"


def test_a_target_that_raises_in_every_form_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="first: RuntimeError: not this"):
        found(unless(lambda *given: True))


def test_a_dtype_that_raises_is_skipped() -> None:
    wide = unless(lambda x, *others: x.dtype is not torch.float64)
    assert found(wide, "float32", "float64")[0].declined == {}
