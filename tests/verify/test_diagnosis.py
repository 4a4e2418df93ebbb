"""A known mistake is named, and rounding errors are not diagnosed as a mistake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from other_device import OtherDevice
from torch import Tensor
from torch.nn import functional
from verify_targets import mutant

from harness.mutants import RIGHT, Rows, layer_norm_of
from harness.records import Case, Direction, Status
from harness.run import call as computed
from harness.run.attempt import Judged, attempt
from harness.run.process_state import process_state
from harness.verify import diagnosis
from harness.verify.diagnosis import (
    computed_in_float32,
    diagnose,
    narrow_sums,
    strided_read_as_dense,
)
from implementations import Implementation, adopt, native, two_pass

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


def named(implementation: Implementation, tried: Sequence[Case]) -> set[str]:
    return {each.name for each in diagnose(implementation, failures(implementation, tried))}


def test_the_mutants_that_change_the_process_leave_it_as_it_was() -> None:
    wrong = mutant("eps_ignored")
    found = failures(wrong, cases("float32"))
    before = process_state()
    diagnose(wrong, found)
    assert process_state() == before


def test_a_failure_in_every_layout_is_no_misread_of_strides() -> None:
    strided = [replace(case, layout="transposed") for case in cases("float32")]
    assert "strided_read_as_dense" not in named(mutant("eps_ignored"), strided)
    reads_dense = adopt(
        lambda x, *others: native(x.clone().as_strided(x.shape, DENSE), *others), ""
    )
    assert named(reads_dense, strided) == {"strided_read_as_dense"}


@pytest.mark.parametrize("times", [1e-5, 1.0])
def test_an_error_in_one_layout_that_is_not_that_of_a_misread_is_none(times: float) -> None:
    def inexact(x: Tensor, *others: Any) -> Tensor:
        y = native(x, *others)
        return y if x.is_contiguous() else y * (1 + times)

    strided = [replace(case, layout="transposed") for case in cases("float32")]
    target = adopt(inexact, "")
    assert list(strided_read_as_dense(target, failures(target, strided))) == []


def test_a_weight_that_is_read_as_if_it_were_contiguous_is_named() -> None:
    case = replace(cases("float32", "normal", shape=(5, 8, 12))[0], normalized_dims=2)
    wrong = mutant("parameter_strides_ignored")
    found = failures(wrong, [replace(case, parameters="transposed")])
    (suspect,) = diagnose(wrong, found)
    assert suspect.name == "strided_read_as_dense"
    assert suspect.mistake.startswith("reads a weight or bias that is not contiguous")


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
    assert name in named(mutant(name), tried)


@pytest.mark.parametrize(
    ("target", "dtype", "name"),
    [
        (mutant("unbiased_variance"), "float32", "unbiased_variance"),
        (mutant("eps_ignored"), "float32", "constant_eps"),
        (mutant("one_pass_clamped"), "float32", "one_pass_statistics"),
        (native, "bfloat16", "narrow_sums_in_bfloat16"),
        (native, "bfloat16", "statistics_kept_in_bfloat16"),
        (mutant("float64_in_float32"), "float64", "float64_in_float32"),
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_a_mistake_is_named_on_another_device_than_the_cpu(
    target: Implementation, dtype: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = {"unbiased_variance", "statistics_kept_in_bfloat16"}
    few = tuple(each for each in diagnosis.WRONG if each.name in compared)
    monkeypatch.setattr(diagnosis, "WRONG", few)
    # tensors of the other device are of a subclass, which no output may be
    for module in (computed, diagnosis):
        monkeypatch.setattr(module, "checked", lambda name, output, like: output)
    tried = cases(dtype, "normal", "tiny_variance", "offset_1e2", shape=(17, 33))
    with OtherDevice():
        assert name in named(target, [replace(each, device="meta") for each in tried])


def test_a_mistake_is_named_where_several_normalized_axes_add_another() -> None:
    def last_axis_only(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * (centred.var(-1, keepdim=True) + eps).rsqrt() * weight + bias

    target = adopt(last_axis_only, "implementation")
    on_one_axis = cases("float32", "normal", "tiny_variance", shape=(7, 5, 33))
    on_two_axes = [replace(each, normalized_dims=2) for each in on_one_axis]
    assert "unbiased_variance" in named(target, [*on_two_axes, *on_one_axis])


def test_a_missing_gradient_is_named() -> None:
    target = mutant("dbias_missing")
    (suspect,) = diagnose(target, failures(target, cases("float32")))
    assert (suspect.name, suspect.outputs) == ("missing_gradient", ("dbias",))


@layer_norm_of
def thousands_of_rows(of: Rows) -> Tensor:
    """Right, except that autograd adds partial sums of dweight and dbias in their own dtype."""
    portions = of.x.split(1000)
    return torch.cat([Rows(each, of.weight, of.bias, of.eps).y for each in portions])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_partial_sums_of_any_size_are_named(dtype: str) -> None:
    case = Case(
        implementation="implementation",
        shape=(65_600, 3),
        dtype=dtype,
        param_dtype=dtype,
        grad_output="ones",
        direction=Direction.BACKWARD,
    )
    implementation = adopt(thousands_of_rows, "implementation")
    (suspect,) = diagnose(implementation, failures(implementation, [case]))
    assert suspect.name == "portions_added_in_parameter_dtype"
    assert suspect.outputs == ("dweight", "dbias")
    assert dtype in suspect.mistake


def upcast(
    x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """As in libraries written for float16 and float32."""
    weight, bias = (None if each is None else each.float() for each in (weight, bias))
    return functional.layer_norm(x.float(), tuple(shape), weight, bias, eps).type_as(x)


def test_float64_computed_in_float32_is_named() -> None:
    implementation = adopt(upcast, "implementation")
    (suspect,) = diagnose(implementation, failures(implementation, cases("float64", "normal")))
    assert (suspect.name, suspect.dtypes) == ("float64_in_float32", ("float64",))
    assert suspect.outputs == ("y", "dx", "dweight", "dbias")


def test_pytorchs_own_bfloat16_backward_is_narrow_in_two_ways() -> None:
    found = named(native, cases("bfloat16", "normal", "offset_1e2"))
    assert {"narrow_sums_in_bfloat16", "statistics_kept_in_bfloat16"} <= found


@layer_norm_of
def pivoted(of: Rows) -> Tensor:
    """One pass over x - x[0]: slightly inaccurate if x[0] is far from the rest."""
    moved = of.x - of.x[:, :1].detach()
    mean = moved.mean(-1, keepdim=True)
    variance = (moved.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return of.affine((moved - mean) * torch.rsqrt(variance + of.eps))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_errors_near_the_bound_have_no_diagnosis(dtype: str) -> None:
    implementation = adopt(pivoted, "implementation")
    shape = (3, 1000) if dtype in {"bfloat16", "float16"} else (5, 64)
    tried = cases(dtype, "outlier_first", shape=shape)
    assert diagnose(implementation, failures(implementation, tried)) == ()


def test_one_wrong_element_has_no_diagnosis() -> None:
    def spiked(*arguments: Any) -> Tensor:
        y = two_pass.function(*arguments)
        return y + torch.nn.functional.one_hot(torch.tensor(3), y.shape[-1]).to(y) / 4

    implementation = adopt(spiked, "implementation")
    tried = cases("bfloat16", "normal", shape=(1, 16384))
    assert diagnose(implementation, failures(implementation, tried)) == ()


def test_large_cases_are_not_run_on_every_mutant() -> None:
    implementation = mutant("unbiased_variance")
    large = cases("float64", "normal", shape=(1, (1 << 18) + 1))
    assert diagnose(implementation, failures(implementation, large)) == ()
    small = cases("float64", "normal", shape=(1, 1 << 12))
    assert "unbiased_variance" in named(implementation, [*small, *large])


def test_partial_sums_in_float32_are_not_a_mistake() -> None:
    right = next(known for known in RIGHT if known.name == "rows_in_portions")
    assert list(narrow_sums(right, [attempt(right, cases("bfloat16")[0])])) == []


def test_another_eps_is_not_diagnosed_as_float32() -> None:
    def shifted(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
        return two_pass.function(x, shape, weight, bias, eps * 1.001)

    target = adopt(shifted, "implementation")
    assert list(computed_in_float32(target, [attempt(target, cases("float64")[0])])) == []
