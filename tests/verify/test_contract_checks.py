"""The contract checks: each finds the mistakes it is for, and no right target violates any."""

from __future__ import annotations

import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.verify_targets import (
    CASE,
    by_call,
    case_in,
    layer_norm,
    mutant,
    target,
    then,
)
from torch import Tensor, nn

from harness.cases import make_inputs
from harness.records import Case, Direction, Finding, RemarkKind, Severity
from harness.records.finding import OF_NATIVE
from harness.verify import verify, verify_case
from harness.verify.checks import CHECKS, Call, contract_findings, modules, surroundings
from implementations import ALL, Implementation, adopt, native

CHECK = {check.name: check for check in CHECKS}
NAN = float("nan")


def found_in(*arguments: Any) -> list[Finding]:
    """Return the findings that PyTorch's own does not get, which the targets here call."""
    found = contract_findings(*arguments)
    return [own for own in found if own.kind not in OF_NATIVE]


def said(check: str, implementation: Implementation, case: Case = CASE) -> str:
    """Return what a check says of a target at one setting; "" if nothing."""
    return CHECK[check](implementation, case) or ""


# --- right targets -------------------------------------------------------------------------------


def test_pytorchs_own_passes_all_from_a_case_of_any_shape_and_dtype() -> None:
    assert list(found_in(native, replace(case_in("bfloat16"), shape=(1, 1)))) == []


# welford is a Python loop over the elements of the row
ON_CPU = [known for known in ALL if "cpu" in known.devices and known.name != "welford"]


@pytest.mark.parametrize("implementation", ON_CPU, ids=lambda known: known.name)
def test_every_implementation_here_passes_all(implementation: Implementation) -> None:
    assert list(found_in(implementation, CASE)) == []


def test_a_wrong_but_consistent_result_violates_nothing() -> None:
    assert list(found_in(mutant("unbiased_variance"), CASE)) == []


# --- known mistakes, each found by its check -----------------------------------------------------

MUTANTS = [
    ("writes_only_its_results", "memory_after_x_cleared", ""),
    ("frees_memory_after_a_call", "last_dy_kept", ""),
    ("frees_memory_without_collector", "x_in_a_reference_cycle", ""),
    ("gradients_do_not_share_dy", "dbias_of_one_row_is_dy", ""),
    ("is_correct_on_several_threads", "rows_of_other_threads_unwritten", "dbias"),
    ("restores_process_state", "environment_variable_set", "environment variables"),
    ("is_unchanged_by_modes_of_the_caller", "rounded_to_a_half_default_dtype", ""),
    ("retained_graph_gives_same_gradients", "dweight_of_the_first_backward", "dweight"),
    ("create_graph_gives_same_gradients", "another_gradient_when_recorded", "dx"),
    ("backward_accumulates_gradients", "gradient_added_to_the_last", "dweight"),
    ("detects_in_place_changes", "inputs_kept_unguarded", "wrong dx"),
    ("returned_gradients_stay_unchanged", "gradient_buffer_reused", "dweight"),
    ("graphs_are_independent", "statistics_of_the_latest_forward", "dx"),
    ("trains_after_inference_mode", "weight_cast_in_inference_mode", ""),
    ("second_derivative_is_correct", "second_derivative_of_constant_statistics", "respect to x"),
    ("second_derivative_exists", "used_up_by_the_backward", "no second derivative"),
    ("repeated_calls_agree", "zeros_after_ten_calls", "call 100 "),
    ("repeated_calls_agree", "output_of_the_first_call", "other arguments of the same shape"),
    ("sees_new_values_at_old_addresses", "statistics_of_an_address", "old values of x "),
    ("records_no_unwanted_graph", "recorded_under_no_grad", "torch.no_grad()"),
    ("keeps_accuracy_under_autocast", "products_left_to_autocast", "less accurate under"),
    ("follows_parameter_updates", "weight_once_trained", ""),
]


@pytest.mark.parametrize(("check", "name", "words"), MUTANTS, ids=lambda value: value)
def test_a_known_mistake_is_found_by_its_check(check: str, name: str, words: str) -> None:
    found = [CHECK[check](mutant(name), replace(CASE, **s)) for s in CHECK[check].settings]
    assert any(text is not None and words in text for text in found)


# --- other mistakes ------------------------------------------------------------------------------


def on_other_thread() -> bool:
    return threading.current_thread() is not threading.main_thread()


def from_a_slab(step: int) -> Callable[..., Tensor]:
    """Places each result so many elements further on in one allocation."""
    slab = torch.empty(1 << 12)
    return by_call(lambda call, y: slab[(call - 1) * step :][: y.numel()].view(y.shape).copy_(y))


def float_eps_only(x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: object) -> Tensor:
    return layer_norm(x, normalized_shape, weight, bias, eps if isinstance(eps, float) else 0.0)


FUNCTIONS: list[tuple[str, Callable[..., Any], str]] = [
    ("y_shares_no_memory", lambda x, shape, w, b, eps: x.view_as(x), "memory of x"),
    ("y_shares_no_memory", from_a_slab(6 * 32 - 1), "memory of an earlier y"),
    ("accepts_arguments_like_torch", float_eps_only, "an eps that is an int"),
    (
        "is_safe_for_concurrent_callers",
        then(lambda y: y + (on_other_thread() and len(y) > 1024)),
        "",
    ),
    (
        "is_the_same_while_timed",
        by_call(lambda n, y: y * 1.01 if n == 31 else y),
        "gives another y in a timed call, after 30 calls",
    ),
]


@pytest.mark.parametrize(("check", "function", "words"), FUNCTIONS)
def test_a_mistake_is_found_by_its_check(
    check: str, function: Callable[..., Any], words: str
) -> None:
    found = said(check, target(function, forward_only=check == "is_the_same_while_timed"))
    assert found
    assert words in found


def test_memory_that_was_never_written_is_found() -> None:
    with pytest.raises(Exception, match="y has elements that were never written"):
        said("is_complete_when_it_returns", target(then(torch.empty_like), forward_only=True))


def raising_for_48(x: Tensor, *others: Any) -> Tensor:
    if x.shape[-1] == 48:
        raise RuntimeError("made for one shape")
    return layer_norm(x, *others)


ON_GPUS = target(then(lambda y: y + on_other_thread()), devices=frozenset({"cuda"}))


@pytest.mark.parametrize(
    ("check", "implementation", "case"),
    [
        ("y_shares_no_memory", target(from_a_slab(6 * 32)), CASE),
        ("is_correct_on_several_threads", mutant("unbiased_variance"), CASE),
        ("is_safe_for_concurrent_callers", ON_GPUS, CASE),
    ],
)
def test_a_check_is_quiet_about_what_it_is_not_for(
    check: str, implementation: Implementation, case: Case
) -> None:
    assert said(check, implementation, case) == ""


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (layer_norm, None),
        (lambda x, shape, w, b, eps: layer_norm(x, shape, None, b, eps) * w, " of weight"),
        (lambda x, shape, w, b, eps: layer_norm(x, shape, w, None, eps) + b, " of bias"),
        (lambda x, shape, *others: layer_norm(x, x.shape[-1:], *others), " of normalized_shape"),
        (lambda x, shape, w, b, eps: layer_norm(x, shape, eps=eps) * w + b, "s of weight and bias"),
    ],
)
def test_the_arguments_whose_shapes_are_not_checked_are_named(
    function: Callable[..., Tensor], names: str | None
) -> None:
    text = said("rejects_wrong_shapes", target(function))
    assert text == ("" if names is None else f"does not check the shape{names}")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: torch.manual_seed(3), "torch's random"),
        (lambda: random.seed(3), "Python's random"),
        (lambda: torch.set_default_dtype(torch.float64), "dtype"),
        (lambda: torch.set_num_threads(1), "threads"),
        (lambda: torch.use_deterministic_algorithms(True), "deterministic"),
        (lambda: torch.set_autocast_enabled("cpu", True), "autocast on the CPU"),
        (lambda: warnings.filterwarnings("ignore"), "filters of warnings"),
        (lambda: os.environ.pop("PATH", None), "environment variables"),
    ],
)
def test_a_changed_state_is_found_and_restored(change: Callable[[], object], name: str) -> None:
    def changing(*arguments: Any) -> Tensor:
        y = layer_norm(*arguments)
        change()
        return y

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    environment = dict(os.environ)
    assert name in said("restores_process_state", target(changing, forward_only=True))
    assert os.environ == environment
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)
    assert not torch.are_deterministic_algorithms_enabled()


# --- modules -------------------------------------------------------------------------------------


class Right(nn.Module):
    def __init__(self, size: Any, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class AnotherInEvaluation(Right):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - (0 if self.training else self.bias)


class AnotherByItself(Right):
    """Is wrong where it is called with the parameters that it was made with."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + isinstance(self.weight, nn.Parameter))


class AnotherWhenNew(Right):
    def __init__(self, size: Any, eps: float = 1e-5) -> None:
        super().__init__(size, eps)
        nn.init.zeros_(self.weight)


class ShowsAnotherEps(Right):
    def __init__(self, size: Any, eps: float = 1e-6) -> None:
        super().__init__(size, 1e-5)
        self.added = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.added)


@pytest.mark.parametrize(
    ("module", "kind", "severity"),
    [
        (AnotherInEvaluation, "is_right_as_a_deep_copy", Severity.WRONG),
        (AnotherByItself, "is_right_as_a_deep_copy", Severity.WRONG),
        (AnotherWhenNew, "initial_parameters_match_torch", Severity.WRONG),
    ],
)
def test_a_mistake_in_the_life_of_a_module_is_found(
    module: type, kind: str, severity: Severity
) -> None:
    found = found_in(adopt(module, "module"), CASE)
    assert kind in [own.kind for own in found if own.severity is severity]


@pytest.mark.usefixtures("small_catalogue")
def test_a_module_that_shows_another_eps_than_it_adds_has_a_remark() -> None:
    verdict = verify(ShowsAnotherEps, quick=True, dtypes=["float32"], fail_fast=True)
    remarks = [own.kind for own in verdict.remarks if own.kind not in OF_NATIVE]
    assert remarks == [RemarkKind.DEFAULT_EPS, RemarkKind.SHOWN_EPS]


# --- findings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("implementation", "kind", "text"),
    [
        (
            mutant("output_buffer_reused"),
            "y_shares_no_memory",
            "returns a y that shares the memory of an earlier y",
        ),
        (
            mutant("used_up_by_the_backward_of_several_axes"),
            "retained_graph_gives_same_gradients",
            ", for an x of 3x4x6x10 (two axes are normalised), but not for an x of 6x32",
        ),
    ],
)
def test_a_violation_names_its_check_and_the_settings_if_not_all(
    implementation: Implementation, kind: str, text: str
) -> None:
    violation = next(iter(found_in(implementation, CASE)))
    assert (violation.severity, violation.dtypes) == (Severity.WRONG, ("float32",))
    assert violation.kind == kind
    assert violation.text.endswith(text)


def under_autocast(x: Tensor, *others: Any) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        raise TypeError("halves")
    return layer_norm(x, *others)


AUTOCAST, RAISES = "keeps_accuracy_under_autocast", RemarkKind.RAISES


@pytest.mark.parametrize(
    ("implementation", "severity", "kind", "text"),
    [
        (
            target(raising_for_48),
            Severity.REMARK,
            RAISES,
            "raises in the check sees_new_values_at_old_addresses "
            "(RuntimeError: made for one shape)",
        ),
        (target(under_autocast), Severity.RAISES, AUTOCAST, "torch.autocast is on"),
        (
            target(then(lambda y: (y, None))),  # several checks find it
            Severity.WRONG,
            "y_shares_no_memory",
            "y is of type tuple, expected torch.Tensor itself",
        ),
        (mutant("dbias_of_one_row_is_dy"), Severity.REMARK, RemarkKind.SHARES_DY, ""),
    ],
)
def test_what_raises_or_does_no_harm_is_one_finding_of_its_severity(
    implementation: Implementation, severity: Severity, kind: str, text: str
) -> None:
    (found,) = found_in(implementation, CASE)
    assert (found.severity, found.kind) == (severity, kind)
    assert text in found.text
    assert found.dtypes == ("float32",)


def test_no_setting_is_tried_after_the_time_is_over() -> None:
    shapes: list[torch.Size] = []

    def recording(x: Tensor, *others: Any) -> Tensor:
        shapes.append(x.shape)
        return layer_norm(x, *others)

    assert list(found_in(target(recording), CASE, lambda: len(shapes) > 0)) == []
    assert set(shapes) == {(6, 32)}


# --- two results of a call -----------------------------------------------------------------------

DOUBLE = case_in("float64")  # so that a fraction of a bound can be represented


def one_bound() -> float:
    """Return what added to a right y is as far off as the bound of one element."""
    axes = {"dtype": "float64", "param_dtype": "float64"}
    errors = verify_case(target(then(lambda y: y + 1e-6)), DOUBLE.shape, **axes).errors
    assert errors is not None
    return 1e-6 / errors.outputs[0].bound_ratio


@pytest.mark.parametrize(
    ("first", "again", "differs"),
    [
        (0.9, -0.9, False),
        (0, 3, True),
        (1000, 1000 + 1500, False),  # both wrong: noise of the size of their error
        (NAN, NAN, False),
        (NAN, 0, True),
    ],
)
def test_two_results_agree_within_their_bounds_or_their_errors(
    first: float, again: float, differs: bool
) -> None:
    call, bound = Call.of(native, DOUBLE, Direction.FORWARD), one_bound()
    right = call.outputs()
    one, other = (replace(right, y=right.y + times * bound) for times in (first, again))
    expected = ["y"] if differs else []
    assert call.differing(one, other) == expected
    assert call.differing(other, one) == expected


# --- a GPU, on a machine without one -------------------------------------------------------------


class OnGpu(Call):
    """A call of a case on a GPU, whose tensors are on the CPU."""

    def seeded(self, further: int) -> Call:
        case = replace(self.case, seed=self.case.seed + further)
        return replace(self, inputs=make_inputs(replace(case, device="cpu")))


def of_old_values(x: Tensor) -> Callable[..., Tensor]:
    """Read, in a second call, what the inputs held before the work queued on the stream."""
    return by_call(lambda n, y: y if n == 1 else layer_norm(x, (32,)))


@pytest.mark.parametrize("is_late", [False, True])
def test_work_on_another_stream_than_the_current_one_is_found(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    @contextmanager
    def on(stream: str) -> Iterator[None]:
        done.append(f"begin {stream}")
        yield
        done.append(f"end {stream}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda: "side")
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    monkeypatch.setattr(surroundings, "spin", lambda cycles: done.append("spin"))
    function = of_old_values(make_inputs(replace(CASE, seed=1)).x) if is_late else layer_norm
    call = OnGpu(target(function), replace(CASE, device="cuda"), make_inputs(CASE))
    found = CHECK["works_on_the_current_stream"].find(call)
    before = "computes y before the work queued on the current stream is done"
    assert found == (before if is_late else None)
    assert done == ["wait", "begin side", "spin", "end side", "wait"]


def test_every_check_has_a_test_in_which_it_fails() -> None:
    in_tables = {check for check, *_ in (*MUTANTS, *FUNCTIONS)}
    of_arguments = {"rejects_wrong_shapes", "is_complete_when_it_returns"}
    # tests/verify/checks/test_obtained_modules.py has those
    of_modules = {name for name, own in CHECK.items() if own.find.__module__ == modules.__name__}
    in_cheats = {"is_right_on_unknown_inputs", "normalises_normalised_rows"}
    in_classes = {
        *("higher_derivatives_are_correct", "runs_backward_in_another_thread"),
        *("is_the_bias_in_rows_of_one", "is_unchanged_by_other_dtypes"),
    }
    # tests/verify/test_one_tensor_and_nearby_eps.py has those
    of_values = {"takes_one_tensor_as_weight_and_bias", "tells_nearby_eps_apart"}
    others = (
        of_values
        | of_arguments
        | of_modules
        | in_cheats
        | in_classes
        | {"works_on_the_current_stream"}
    )
    assert in_tables | others == {*CHECK}
