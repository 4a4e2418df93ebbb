"""Right implementations pass every contract check; findings become violations or remarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.verify_targets import CASE, case_in, layer_norm, mutant, target, then
from torch import Tensor

from harness.records import RemarkKind, Severity
from harness.records.finding import OF_NATIVE, Finding
from harness.run.integrity import process_state_restored
from harness.verify.checks import contract_checks
from harness.verify.checks.contract_checks import SMALL
from implementations import ALL, Implementation, UnsupportedError, native


def contract_findings(*arguments: Any) -> list[Finding]:
    """Return the findings that PyTorch's own does not get, which the targets here call."""
    found = contract_checks.contract_findings(*arguments)
    return [own for own in found if own.kind not in OF_NATIVE]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_pytorchs_own_passes_all_from_a_case_of_any_shape(dtype: str) -> None:
    assert list(contract_findings(native, replace(case_in(dtype), shape=(1, 1)))) == []


@pytest.mark.parametrize(
    "implementation", [each for each in ALL if "cpu" in each.devices], ids=lambda each: each.name
)
def test_every_implementation_here_passes_all(
    implementation: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    if implementation.name == "welford":  # a Python loop over the elements of the row
        monkeypatch.setattr(contract_checks, "settings_of", lambda *_: (SMALL,))
    assert list(contract_findings(implementation, CASE)) == []


def test_a_violation_names_its_check() -> None:
    (violation,) = contract_findings(mutant("rows_of_other_threads_unwritten"), CASE)
    assert violation.severity is Severity.WRONG
    assert violation.kind == "is_correct_on_several_threads"
    assert violation.dtypes == ("float32",)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        (
            "output_buffer_reused_for_long_rows",
            ", for an x of 3x2048 and an x of 2x3x4099, but not for an x of 6x32",
        ),
        (
            "used_up_by_the_backward_of_several_axes",
            ", for an x of 3x4x6x10 (two axes are normalised), but not for an x of 6x32",
        ),
    ],
)
def test_a_mistake_in_some_settings_alone_is_found_and_names_them(name: str, where: str) -> None:
    violation = next(contract_findings(mutant(name), CASE))
    assert violation.text.endswith(where)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("memory_after_x_cleared", "writes_only_its_results"),
        ("memory_after_dy_cleared", "writes_only_its_results"),
        ("bias_grad_written", "writes_only_its_results"),
        ("last_dy_kept", "frees_memory_after_a_call"),
        ("every_x_copied", "frees_memory_after_a_call"),
        ("dweight_of_the_first_backward", "retained_graph_gives_same_gradients"),
        ("weight_cast_in_inference_mode", "trains_after_inference_mode"),
        ("environment_variable_set", "restores_process_state"),
        ("rounded_to_a_half_default_dtype", "is_unchanged_by_modes_of_the_caller"),
        ("unbiased_in_the_deterministic_mode", "is_unchanged_by_modes_of_the_caller"),
    ],
)
def test_a_side_effect_is_a_violation(name: str, check: str) -> None:
    with process_state_restored():
        findings = list(contract_findings(mutant(name), CASE))
    assert check in {each.kind for each in findings if each.severity is Severity.WRONG}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x_in_a_reference_cycle", RemarkKind.KEPT_IN_A_CYCLE),
        ("dbias_of_one_row_is_dy", RemarkKind.SHARES_DY),
    ],
)
def test_a_harmless_effect_is_a_remark(name: str, kind: RemarkKind) -> None:
    (remark,) = contract_findings(mutant(name), CASE)
    assert remark.severity is Severity.REMARK
    assert remark.kind is kind


def test_a_mistake_in_every_setting_names_none() -> None:
    violation = next(contract_findings(mutant("output_buffer_reused"), CASE))
    assert violation.text == "returns a y that shares the memory of an earlier y"


def test_more_settings_than_a_sentence_holds_are_counted() -> None:
    def batch_of_one(x: Tensor, *others: Any) -> Tensor:
        return layer_norm(x, *others) if x.shape[0] == 6 else x.view_as(x)

    violation = next(contract_findings(target(batch_of_one, forward_only=True), CASE))
    assert violation.text.endswith(
        ", for an x of 131x37 and an x of 2x35x64 and an x of 3x2048 and 5 more, but not for "
        "an x of 6x32"
    )


def test_no_setting_is_tried_after_the_time_is_over() -> None:
    shapes: list[torch.Size] = []

    def recording(x: Tensor, *others: Any) -> Tensor:
        shapes.append(x.shape)
        return layer_norm(x, *others)

    assert list(contract_findings(target(recording), CASE, lambda: len(shapes) > 0)) == []
    assert set(shapes) == {(6, 32)}


def test_a_call_that_raises_is_a_remark() -> None:
    def one_shape(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] == 48:
            raise RuntimeError("made for one shape")
        return layer_norm(x, *others)

    (remark,) = contract_findings(target(one_shape), CASE)
    assert remark.severity is Severity.REMARK
    assert (remark.kind, remark.dtypes) == (RemarkKind.RAISES, ("float32",))
    in_check = "in the check sees_new_values_at_old_addresses"
    assert remark.text == f"raises {in_check} (RuntimeError: made for one shape)"


def under_autocast(x: Tensor, *others: Any) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        raise TypeError("halves")
    return layer_norm(x, *others)


class Accumulating(torch.autograd.Function):
    """The identity; its backward raises if x has a gradient already."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor) -> Tensor:
        ctx.x = x
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        if ctx.x.grad is not None:
            raise RuntimeError("second backward")
        return dy, None


@pytest.mark.parametrize(
    ("function", "where", "reason"),
    [
        (under_autocast, "torch.autocast is on", "TypeError: halves"),
        (
            lambda x, *others: Accumulating.apply(layer_norm(x, *others), x),
            "gradients are accumulated",
            "RuntimeError: second backward",
        ),
    ],
)
def test_a_call_of_models_that_raises_is_named(
    function: Callable[..., Tensor], where: str, reason: str
) -> None:
    (finding,) = contract_findings(target(function), CASE)
    assert (finding.severity, finding.text) == (Severity.RAISES, where)
    assert finding.evidence == (reason, 0)


def test_one_finding_of_several_checks_is_yielded_once() -> None:
    (violation,) = contract_findings(target(then(lambda y: (y, None))), CASE)
    assert "y is of type tuple" in violation.text


def test_a_wrong_but_consistent_target_violates_no_contract() -> None:
    assert list(contract_findings(mutant("unbiased_variance"), CASE)) == []


def test_a_target_with_random_errors_violates_no_contract() -> None:
    generator = torch.Generator().manual_seed(0)
    # of one size, so that no order of the checks' threads draws errors that another order lacks
    noisy = then(lambda y: y + 1e-3 * (2 * torch.randint(2, y.shape, generator=generator) - 1))
    assert list(contract_findings(target(noisy), CASE)) == []


def test_a_forward_only_target_is_not_checked_for_gradients() -> None:
    detached = target(then(torch.detach), forward_only=True)
    assert list(contract_findings(detached, CASE)) == []


def test_a_target_that_declines_every_call_violates_no_contract() -> None:
    def declining(*arguments: Any) -> Tensor:
        raise UnsupportedError("not here")

    assert list(contract_findings(target(declining), CASE)) == []
