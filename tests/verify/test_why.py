"""A known mistake is named, and rounding errors are not diagnosed as a mistake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.other_device import OtherDevice
from factories.verify_targets import layer_norm, mutant
from torch import Tensor
from torch.nn import functional

from harness.mutants import Rows, layer_norm_of, named
from harness.records import Case, Direction, Status
from harness.records.finding import Severity
from harness.run import call as computed
from harness.run.attempt import Judged, attempt
from harness.run.integrity import process_state
from harness.verify import diagnosis, verify
from harness.verify.diagnosis import mistakes_of
from implementations import Implementation, adopt, native, two_pass

STRIDES_IGNORED = named("strides_ignored").mistake
ONE_PASS = "computes the variance as E[x^2] - E[x]^2, which"
DENSE = (129, 1)
"""The strides of a contiguous x of :func:`cases`."""


def cases(dtype: str, *distributions: str, shape: tuple[int, ...] = (17, 129)) -> list[Case]:
    return [
        Case(
            implementation="implementation",
            shape=shape,
            dtype=dtype,
            param_dtype=dtype,
            distribution=name,
            direction=Direction.BACKWARD,
        )
        for name in distributions or ("normal", "tiny_variance")
    ]


def failures(implementation: Implementation, tried: Sequence[Case]) -> list[Judged]:
    trials = [attempt(implementation, case) for case in tried]
    found = [trial for trial in trials if trial.status is Status.WRONG]
    assert found
    return found


def mistakes(implementation: Implementation, tried: Sequence[Case]) -> list[str]:
    return [found.text for found in mistakes_of(implementation, failures(implementation, tried))]


def test_the_mutants_that_change_the_process_leave_it_as_it_was() -> None:
    wrong = mutant("eps_ignored")
    found = failures(wrong, cases("float32"))
    before = process_state()
    mistakes_of(wrong, found)
    assert process_state() == before


def test_an_x_that_is_read_as_if_it_were_contiguous_is_named() -> None:
    strided = [replace(case, layout="transposed") for case in cases("float32")]
    assert STRIDES_IGNORED not in mistakes(mutant("eps_ignored"), strided)
    reads_dense = adopt(
        lambda x, *others: native(x.clone().as_strided(x.shape, DENSE), *others), ""
    )
    assert STRIDES_IGNORED in mistakes(reads_dense, strided)


@pytest.mark.parametrize("times", [1e-5, 1.0])
def test_an_error_in_one_layout_that_is_not_that_of_a_misread_is_none(times: float) -> None:
    def inexact(x: Tensor, *others: Any) -> Tensor:
        y = native(x, *others)
        return y if x.is_contiguous() else y * (1 + times)

    strided = [replace(case, layout="transposed") for case in cases("float32")]
    assert STRIDES_IGNORED not in mistakes(adopt(inexact, ""), strided)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("unbiased_variance", "float32"),
        ("eps_ignored", "bfloat16"),
        ("dx_without_projection", "bfloat16"),
        ("mean_in_float16", "float32"),
    ],
)
def test_a_known_mistake_is_named(name: str, dtype: str) -> None:
    tried = cases(dtype, "normal", "tiny_variance", "offset_1e2")
    assert named(name).mistake in mistakes(mutant(name), tried)


@pytest.mark.parametrize(
    ("target", "dtype", "mistake"),
    [
        (mutant("unbiased_variance"), "float32", "N-1"),
        (mutant("one_pass_clamped"), "float32", ONE_PASS),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_mistake_is_named_on_another_device_than_the_cpu(
    target: Implementation, dtype: str, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "WRONG", (named("unbiased_variance"),))
    # tensors of the other device are of a subclass, which no output may be
    monkeypatch.setattr(computed, "checked", lambda name, output, like: output)
    tried = cases(dtype, "normal", "tiny_variance", "offset_1e2", shape=(17, 33))
    with OtherDevice():
        found = mistakes(target, [replace(case, device="meta") for case in tried])
    assert any(mistake in text for text in found)


def test_a_mistake_is_named_where_several_normalized_axes_add_another() -> None:
    def last_axis_only(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * (centred.var(-1, keepdim=True) + eps).rsqrt() * weight + bias

    target = adopt(last_axis_only, "implementation")
    on_one_axis = cases("float32", "normal", "tiny_variance", shape=(7, 5, 33))
    on_two_axes = [replace(case, normalized_dims=2) for case in on_one_axis]
    assert named("unbiased_variance").mistake in mistakes(target, [*on_two_axes, *on_one_axis])


def test_another_eps_is_not_named_as_one_pass() -> None:
    def shifted(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
        return two_pass.function(x, shape, weight, bias, eps * 1.001)

    assert mistakes(adopt(shifted, "implementation"), cases("float64")) == []


@layer_norm_of
def pivoted(of: Rows) -> Tensor:
    """One pass over x - x[0]: slightly inaccurate if x[0] is far from the rest."""
    moved = of.x - of.x[:, :1].detach()
    mean = moved.mean(-1, keepdim=True)
    variance = (moved.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return of.affine((moved - mean) * torch.rsqrt(variance + of.eps))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_near_the_bound_have_no_diagnosis(dtype: str) -> None:
    implementation = adopt(pivoted, "implementation")
    assert mistakes(implementation, cases(dtype, "outlier_first", shape=(5, 64))) == []


def test_one_wrong_element_has_no_diagnosis() -> None:
    def spiked(*arguments: Any) -> Tensor:
        y = two_pass.function(*arguments)
        return y + functional.one_hot(torch.tensor(3), y.shape[-1]).to(y) / 4

    tried = cases("bfloat16", "normal", shape=(1, 16384))
    assert mistakes(adopt(spiked, "implementation"), tried) == []


def test_large_cases_are_not_run_on_every_mutant() -> None:
    implementation = mutant("unbiased_variance")
    large = cases("float64", "normal", shape=(1, (1 << 18) + 1))
    assert mistakes(implementation, large) == []
    small = cases("float64", "normal", shape=(1, 1 << 12))
    assert named("unbiased_variance").mistake in mistakes(implementation, [*small, *large])


def wrong_from_130(x: Tensor, *arguments: Any) -> Tensor:
    """Doubles dx in rows of 130 elements or more."""
    if x.shape[-1] >= 130 and x.requires_grad:
        x = 2 * x - x.detach()
    return layer_norm(x, *arguments)


@pytest.mark.usefixtures("small_catalogue")
def test_the_verdict_names_where_outputs_are_wrong() -> None:
    verdict = verify(wrong_from_130, quick=True, dtypes=("float32",), normalized_dims=1)
    found = [cause.text for cause in verdict.of(Severity.CAUSE) if cause.kind == "trigger"]
    assert found == ["dx wrong where N >= 130"]
