"""Classes of mistakes from public bug reports: each has a target that its cases or check find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
import torch
from factories.verify_targets import case_in, layer_norm, target
from torch import Tensor

from harness.mutants import RIGHT, function_of, named
from harness.mutants.conditions import conditions_of
from harness.mutants.mutant import with_trigger
from harness.records import Direction, Finding, RemarkKind, Severity, Status
from harness.run.attempt import attempt
from harness.verify import Outcome, Verdict
from harness.verify.case_results import Count
from harness.verify.cases import FULL, QUICK, CaseGroup, cases_of
from harness.verify.checks import extremes, gradients, huge, surroundings
from harness.verify.checks.contract_checks import ContractCheck
from implementations import ALL, Implementation, adopt, native

# --- cases --------------------------------------------------------------------------------------


def wrong_groups(implementation: Implementation, groups: Sequence[CaseGroup]) -> set[str]:
    """Return what the groups catch of which a case is wrong, in float32."""
    return {
        group.catches
        for group in groups
        for case in cases_of(group, implementation.name, "float32", "cpu", False)
        if attempt(implementation, case).status is Status.WRONG
    }


SMALL = [group for group in QUICK if all(sizes[0] < 65_600 for sizes in group.axes["shape"])]
LONG = [group for group in FULL if any(sizes[0] == 65_600 for sizes in group.axes["shape"])]


@pytest.mark.parametrize(
    ("name", "catches"),
    [
        ("next_row_read_by_a_tail", "a NaN or an infinity that is hidden"),
        ("weight_of_almost_ones_left_out", "a weight and a bias taken for the initial ones"),
        ("dy_storage_offset_ignored", "a dy that starts within its storage"),
        ("dweight_of_no_rows_unwritten", "a crash for an empty x with several normalized axes"),
    ],
)
def test_a_quick_group_alone_finds_its_mutant(name: str, catches: str) -> None:
    (found,) = wrong_groups(adopt(named(name).fresh(), name), SMALL)
    assert found.startswith(catches)


@pytest.mark.parametrize(
    ("name", "conditions", "catches"),
    [
        ("row_index_of_16_bits", ["several normalized axes"], "several normalized axes"),
        ("row_index_of_16_bits", ["there is a weight alone"], "several normalized axes"),
        ("rows_beyond_16_bits_left_out", ["x is frozen"], "frozen tensors"),
    ],
)
def test_16_bit_row_indices_are_found_with_other_conditions(
    name: str, conditions: list[str], catches: str
) -> None:
    wrong = with_trigger(named(name).fresh(), conditions_of(*conditions))
    (found,) = wrong_groups(
        adopt(wrong, name), [own for own in LONG if own.axes["shape"][0][1] < 9]
    )
    assert catches in found


def test_more_than_2_23_rows_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge, "ROWS", 50)

    def unwritten(x: Tensor, *others: Any) -> Tensor:
        return torch.cat((layer_norm(x[:50], *others), torch.zeros_like(x[50:])))

    def found(function: Callable[..., Tensor]) -> list[str]:
        case = replace(case_in("float32"), direction=Direction.BACKWARD)
        return [own.text for own in huge.many_rows_findings(target(function), case, 1 << 40)]

    assert found(layer_norm) == []
    assert found(unwritten)[0] == "gives a wrong y for more than 2^23 rows"


# --- checks -------------------------------------------------------------------------------------

ROWS_OF_ONE = extremes.is_the_bias_in_rows_of_one
HIGHER = gradients.higher_derivatives_are_correct
OTHER_THREAD = gradients.runs_backward_in_another_thread
OTHER_DTYPE = surroundings.is_unchanged_by_other_dtypes
AUTOCAST = surroundings.keeps_accuracy_under_autocast


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        (ROWS_OF_ONE, "rows_of_one_not_centred", "gives a wrong y and dweight in rows of one"),
        (HIGHER, "third_derivative_wrong", "has a wrong third derivative, without an error"),
        (OTHER_THREAD, "statistics_in_a_ring", "gives another dx if the backward runs in another"),
        (OTHER_THREAD, "statistics_of_this_thread", "gives another dx if the backward runs in"),
        (OTHER_DTYPE, "rounded_after_half_precision", "gives another y after a call of the same"),
        (AUTOCAST, "statistics_rounded_by_autocast", "is less accurate under torch.autocast"),
        (
            gradients.second_derivative_exists,
            "once_differentiable_without_bias",
            "has no second derivative where no bias is given",
        ),
    ],
)
def test_a_check_finds_its_mutant(check: ContractCheck, name: str, text: str) -> None:
    mutant = named(name)
    dtype = "float32" if "float32" in mutant.dtypes else "float64"
    found = check(adopt(mutant.fresh(), name), case_in(dtype))
    assert found is not None
    assert found.startswith(text)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("check", [OTHER_THREAD, OTHER_DTYPE, AUTOCAST], ids=lambda own: own.name)
def test_a_check_leaves_right_ones_alone(check: ContractCheck, dtype: str) -> None:
    known = [own for own in (*ALL, *RIGHT) if "cpu" in own.devices and "triton" not in own.name]
    found = {own.name: check(own, case_in(dtype)) for own in known}
    assert {name: text for name, text in found.items() if text} == {}


def test_native_is_right_with_what_its_users_should_know() -> None:
    assert (found := ROWS_OF_ONE(native, case_in("float32"))) is not None
    assert found.startswith("gives a wrong dweight in rows of one element at |x| = 1e6")
    assert ROWS_OF_ONE(native, case_in("float64")) is None
    assert HIGHER(native, case_in("float32")) is None
    assert (found := HIGHER(native, case_in("float64"))) is not None
    assert found.startswith("has a wrong third derivative, jvp of a jvp")


def test_strict_accepts_the_remarks_on_native_alone() -> None:
    def verdict(kind: RemarkKind) -> Verdict:
        finding = Finding(kind, Severity.REMARK, "")
        counts = (Count(dtype="float32", ok=1),)
        return Verdict(target="", handle="", bound="", findings=(finding,), counts=counts)

    assert verdict(RemarkKind.ROWS_OF_ONE).outcome is Outcome.RIGHT
    assert verdict(RemarkKind.ROWS_OF_ONE).is_accepted(strict=True)
    assert not verdict(RemarkKind.AUTOCAST).is_accepted(strict=True)


def test_a_shared_workspace_of_the_backward_is_found() -> None:
    """One that a second thread overwrites before it is read."""
    kept: dict[Any, Tensor] = {}
    waiting = Event()

    class Shared(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            return y.clone()

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            kept[dy.shape] = dy
            waiting.wait(1e-3)  # another thread runs
            return kept[dy.shape].clone()

    def shared(call: Any) -> Tensor:
        return Shared.apply(call.y) if call.x.requires_grad else call.y

    check = surroundings.is_safe_for_concurrent_callers
    found = check(replace(target(layer_norm), function=function_of(shared)), case_in("float32"))
    assert found == "gives another dx while a second Python thread calls it"
