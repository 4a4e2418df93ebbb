"""The contract checks: each finds the mistakes it is for, and no right target violates any."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import sleep
from typing import Any

import pytest
import torch
from factories.right_modules import OnesAsBuffer
from factories.verify_targets import (
    CASE,
    by_call,
    case_in,
    layer_norm,
    leaving,
    mutant,
    quick,
    raising,
    target,
    then,
    with_dy,
)
from factories.wrong_functions import (
    ByAddress,
    KeepsAddress,
    batched,
    doubling,
    expanded_along_the_third,
    float_eps_only,
    from_a_pool,
    from_a_slab,
    in_the_strides_of_x,
    of_a_parameter,
    of_anomaly,
    of_another_version,
    of_call_31,
    of_compilers,
    of_equal_axes,
    of_few_strides,
    of_inference,
    of_lists_by_id,
    of_many_forwards,
    of_masked_rows,
    of_ones,
    of_packed_sizes,
    of_plain_eps,
    of_rows_by_weight,
    of_scaled_dy,
    of_scripts,
    of_tensors,
    of_the_threads_of_the_forward,
    of_traces,
    of_tuples,
    of_vjp,
    of_whole_numbers,
    on_other_thread,
    rounding_eps,
    tied,
    with_eps_of,
    with_grad_mode_lost,
    with_ones,
    with_rules,
    with_scratch,
    with_size_kept,
    with_sum_of_parts,
    with_sums_of_expanded,
    without_its_dy,
    without_leading_axes,
    without_tiny_dy,
    without_tiny_rows,
)
from torch import Tensor, nn

from harness.cases import make_inputs
from harness.mutants import named
from harness.records import Affine, Case, Direction, Finding, RemarkKind, Severity
from harness.records.finding import OF_NATIVE
from harness.run import process_state
from harness.verify import verify_case
from harness.verify.checks import CHECKS, Call, contract_findings, surroundings
from harness.verify.in_scope import within_scope
from harness.verify.scope import Scope
from implementations import Implementation, adopt, find, native, welford_chunked

CHECK = {check.name: check for check in CHECKS}
DOUBLE = case_in("float64")
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


def test_a_target_without_parameters_is_not_asked_for_their_gradients() -> None:
    scope = Scope(declined={"affine": (Affine.BOTH, Affine.WEIGHT, Affine.BIAS)})
    assert list(found_in(within_scope(native, scope), CASE)) == []


# a wrong but consistent result violates nothing
@pytest.mark.parametrize(
    "implementation",
    [welford_chunked, find("cpu_recentred"), mutant("unbiased_variance")],
    ids=lambda known: known.name,
)
def test_a_consistent_result_violates_nothing(implementation: Implementation) -> None:
    assert list(found_in(implementation, CASE)) == []


def test_native_is_right_with_what_its_users_should_know() -> None:
    rows_of_one, higher = "is_the_bias_in_rows_of_one", "higher_derivatives_are_correct"
    assert "wrong dweight in rows of one element at |x| = 1e6" in said(rows_of_one, native)
    assert said(rows_of_one, native, DOUBLE) == ""
    assert said(higher, native) == ""
    assert said(higher, native, DOUBLE).startswith("has a wrong third derivative, jvp of a jvp")


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
    ("sees_new_values_at_old_addresses", "statistics_of_an_address", "old values of x "),
    ("records_no_unwanted_graph", "recorded_under_no_grad", "torch.no_grad()"),
    ("keeps_accuracy_under_autocast", "products_left_to_autocast", "less accurate under"),
    ("follows_parameter_updates", "weight_once_trained", ""),
    # of public bug reports
    ("is_the_bias_in_rows_of_one", "rows_of_one_not_centred", "wrong y and dweight in rows of one"),
    ("higher_derivatives_are_correct", "third_derivative_wrong", "third derivative, without an"),
    ("runs_backward_in_another_thread", "statistics_in_a_ring", "gives another dx if the backward"),
    ("runs_backward_in_another_thread", "statistics_of_this_thread", "gives another dx if"),
    (
        "is_unchanged_by_other_dtypes",
        "rounded_after_half_precision",
        "gives another y after a call",
    ),
    ("keeps_accuracy_under_autocast", "statistics_rounded_by_autocast", "less accurate under"),
    ("second_derivative_exists", "once_differentiable_without_bias", "where no bias is given"),
]


@pytest.mark.parametrize(("check", "name", "words"), MUTANTS, ids=lambda value: value)
def test_a_known_mistake_is_found_by_its_check(check: str, name: str, words: str) -> None:
    case = CASE if "float32" in named(name).dtypes else DOUBLE
    found = [CHECK[check](mutant(name), replace(case, **s)) for s in CHECK[check].settings]
    assert any(text is not None and words in text for text in found)


# --- other mistakes ------------------------------------------------------------------------------


SHARED, EXTREMES = "is_right_where_elements_share_memory", "is_right_at_extremes"
AXES, ONE_TENSOR = "is_correct_with_many_axes", "takes_one_tensor_as_weight_and_bias"
FUNCTIONS: list[tuple[str, Callable[..., Any], str]] = [
    (
        "keeps_calls_of_a_graph_apart",
        of_rows_by_weight,
        "gives another dx after a further call with the same tensors in a graph",
    ),
    (
        "stays_on_the_device_of_x",
        lambda x, *others: layer_norm(x, *others) if x.requires_grad else torch.empty(x.shape),
        "makes its results on another device: y has device meta, expected cpu",
    ),
    ("takes_results_of_other_operations", of_a_parameter, "gives another dweight if x, weight"),
    ("is_correct_under_checkpoint", with_scratch, "gives another dx under torch.utils.checkpoint"),
    (
        "draws_no_random_numbers",
        lambda x, *others: layer_norm(x + 0 * torch.rand(1), *others),
        "advances torch's random generator in its first call of a row length",
    ),
    (
        "second_derivative_is_correct",
        lambda x, *others: (layer_norm if x.requires_grad else without_its_dy)(x, *others),
        "has a wrong second derivative with respect to dy where x is frozen, without an error",
    ),
    ("is_unchanged_by_many_forwards", of_many_forwards, "gives another dx if "),
    ("tells_packed_sizes_apart", of_packed_sizes, "gives a wrong y for N = 4131 after a call with"),
    ("repeated_calls_agree", from_a_pool, "overwrites a y that it has returned, in a later call"),
    ("restores_process_state_where_it_raises", with_grad_mode_lost, "changes the gradient"),
    ("takes_tensors_of_inference_mode", of_inference, "gives another y of"),
    ("takes_copies_of_saved_tensors", then(KeepsAddress.apply), "gives another dx if autograd"),
    ("allows_changes_of_y", then(Tensor.exp), "raises in the backward if y is changed in place"),
    ("is_correct_where_it_is_compiled", of_compilers, "gives another y under torch.compile"),
    ("is_correct_under_vmap", with_rules, "gives another y under torch.vmap"),
    ("is_correct_where_it_is_traced", of_traces, "gives another y under torch.jit.trace"),
    ("is_correct_where_it_is_traced", of_scripts, "gives another y under torch.jit.script"),
    ("is_right_after_a_transformed_call", with_ones, "raises where the first call of a row length"),
    ("gradients_per_part_are_correct", with_sum_of_parts, "gives another dweight under torch.vmap"),
    ("takes_results_of_other_operations", of_another_version, "raises in the backward of the"),
    ("is_correct_for_batched_gradients", batched, "gives another dx with is_grads_batched=True"),
    ("is_correct_under_func_vjp", of_vjp, "gives another dx under torch.func.vjp"),
    ("is_unchanged_by_modes_of_the_caller", of_anomaly, "deterministic and anomaly mode"),
    ("takes_shared_memory_and_subclasses", doubling, "gives another y for an x in shared memory"),
    ("takes_shared_memory_and_subclasses", of_tensors, "gives another y for an x of a subclass"),
    ("is_correct_on_several_threads", of_the_threads_of_the_forward, "has more threads than the"),
    ("is_right_after_a_refusal", with_size_kept, "gives another y after a call that raised"),
    ("takes_a_list_that_has_changed", of_lists_by_id, "raises if the list"),
    (
        "stays_on_the_device_of_x",
        lambda x, *others: torch.empty(x.shape) if x.is_meta else layer_norm(x, *others),
        "makes its results on another device: y has device cpu, expected meta",
    ),
    ("forward_derivative_is_correct", with_rules, "has a wrong derivative in forward mode"),
    ("y_shares_no_memory", lambda x, shape, w, b, eps: x.view_as(x), "memory of x"),
    ("y_shares_no_memory", from_a_slab(6 * 32 - 1), "memory of an earlier y"),
    ("y_shares_no_memory", then(lambda y: y[:1].expand_as(y)), "whose elements share memory"),
    ("accepts_arguments_like_torch", float_eps_only, "an eps that is an int"),
    ("accepts_arguments_like_torch", of_tuples, "a normalized_shape that is a list"),
    ("accepts_arguments_like_torch", of_plain_eps, "an eps that is a numpy.float32"),
    ("is_safe_for_concurrent_callers", then(lambda y: y + on_other_thread()), "gives another y"),
    ("is_the_same_while_timed", of_call_31, "gives another y in a timed call, after 30 calls"),
    (AXES, of_few_strides, "wrong y for an x of 1x1x2x2x2x2x2x2x2x2x2x2x2"),
    (AXES, of_equal_axes, "wrong y for an x of 5x5x5x5"),
    (AXES, without_leading_axes, "wrong y for an x of 3x4x6x3x4x6"),
    (SHARED, in_the_strides_of_x, "gives another y where the strides of x are (2, 8, 1), for an x"),
    (SHARED, expanded_along_the_third, "a y whose elements share memory where the strides of x"),
    (SHARED, with_sums_of_expanded, "another dbias where the strides of dy are (0, 0, 1)"),
    (EXTREMES, partial(with_eps_of, 5e-21), "gives a wrong y where eps is 5e-31 and x is 0"),
    (
        EXTREMES,
        partial(without_tiny_rows, 3e-14),
        "wrong y where eps is 0 and x is of the size 9e-17",
    ),
    (EXTREMES, of_masked_rows, "gives a wrong y where all elements of a row are -inf"),
    (EXTREMES, of_whole_numbers, "gives a wrong y where x holds whole numbers of the size 2^31"),
    (EXTREMES, without_tiny_dy, "gives a wrong dx where dy is of the size 6e-30"),
    (EXTREMES, of_scaled_dy, "gives a dx that is not finite where dy is subnormal"),
    ("is_unchanged_by_modes_of_the_caller", of_ones, "y has dtype torch.float64"),
    (ONE_TENSOR, ByAddress.apply, "gives another dweight if weight and bias share their memory"),
    (ONE_TENSOR, tied, "gives another result if one tensor is both weight and bias"),
    *(
        ("tells_nearby_eps_apart", rounding_eps(digits), "adds the eps of an earlier call if both")
        for digits in (1, 2, 3)
    ),
]


@pytest.mark.parametrize(("check", "function", "words"), FUNCTIONS)
def test_a_mistake_is_found_by_its_check(
    check: str, function: Callable[..., Any], words: str
) -> None:
    tested = target(function, forward_only=check == "is_the_same_while_timed")
    settings = CHECK[check].settings
    found = said(check, tested, replace(CASE, **settings[0]) if len(settings) == 1 else CASE)
    assert found
    assert words in found


def test_a_smallest_x_is_found_in_float64() -> None:
    found = said(EXTREMES, target(partial(without_tiny_rows, 1e-100)), DOUBLE)
    assert found == "gives a wrong y where eps is 0 and x is of the size 1e-148"


def test_a_module_is_made_before_its_first_call_on_fake_tensors() -> None:
    scope = Scope(declined={"affine": (Affine.BIAS,)})
    module = within_scope(adopt(OnesAsBuffer, "module"), scope)
    assert said("is_right_after_a_transformed_call", module) == ""


def test_memory_that_was_never_written_is_found() -> None:
    unwritten = target(lambda x, *others: torch.empty_like(x), forward_only=True)
    # the allocator may also give memory that was freed before
    calls = (said("is_complete_when_it_returns", unwritten) for _ in range(20))
    with pytest.raises(Exception, match="y has elements that were never written"):
        list(calls)


def test_a_shared_workspace_of_the_backward_is_found() -> None:
    """One that a second thread overwrites before it is read."""
    kept: dict[Any, Tensor] = {}

    def through_the_workspace(dy: Tensor) -> Tensor:
        kept[dy.shape] = dy
        sleep(1e-3)  # another thread runs
        return kept[dy.shape].clone()

    shared = target(with_dy(through_the_workspace))
    found = said("is_safe_for_concurrent_callers", shared)
    assert found == "gives another dx while a second Python thread calls it"


ON_GPUS = target(then(lambda y: y + on_other_thread()), devices=frozenset({"cuda"}))


@pytest.mark.parametrize(
    ("check", "implementation"),
    [
        ("y_shares_no_memory", target(from_a_slab(6 * 32))),
        ("is_safe_for_concurrent_callers", ON_GPUS),
    ],
)
def test_a_check_is_quiet_about_what_it_is_not_for(
    check: str, implementation: Implementation
) -> None:
    assert said(check, implementation) == ""


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
        (lambda: torch.set_default_dtype(torch.float64), "dtype"),
        (lambda: torch.set_num_threads(1), "threads"),
        (lambda: torch.set_autocast_enabled("cpu", True), "autocast on the CPU"),
        (lambda: warnings.filterwarnings("ignore"), "filters of warnings"),
        (lambda: os.environ.pop("PATH", None), "environment variables"),
    ],
)
def test_a_changed_state_is_found_and_restored(change: Callable[[], object], name: str) -> None:
    before = process_state()
    assert name in said("restores_process_state", target(leaving(change), forward_only=True))
    assert process_state() == before


class ShowsAnotherEps(nn.LayerNorm):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__(size, 1e-5)
        self.added = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.added)


@pytest.mark.usefixtures("small_catalogue")
def test_a_module_that_shows_another_eps_than_it_adds_has_a_remark() -> None:
    verdict = quick(ShowsAnotherEps, fail_fast=True)
    remarks = [own.kind for own in verdict.remarks if own.kind not in OF_NATIVE]
    assert remarks == [RemarkKind.DEFAULT_EPS, RemarkKind.SHOWN_EPS]


# --- findings ------------------------------------------------------------------------------------


def test_a_violation_names_its_check_and_the_settings_if_not_all() -> None:
    violation = next(iter(found_in(mutant("used_up_by_the_backward_of_several_axes"), CASE)))
    assert (violation.severity, violation.dtypes) == (Severity.WRONG, ("float32",))
    assert violation.kind == "retained_graph_gives_same_gradients"
    assert violation.text.endswith(
        ", for an x of 3x4x6x10 (two axes are normalised), but not for an x of 6x32"
    )


def test_what_is_wrong_is_told_though_another_setting_raises() -> None:
    kept: dict[Any, Tensor] = {}

    def shared(x: Tensor, *others: Any) -> Tensor:
        y = layer_norm(x, *others)
        is_again = x.shape in kept and torch.equal(kept[x.shape], y)
        if is_again and x.shape == (6, 32):
            raise TypeError("six rows again")
        return kept.setdefault(x.shape, y.clone()).copy_(y)

    with torch.no_grad():
        found = {own.kind: own for own in found_in(target(shared, forward_only=True), CASE)}
    assert found["y_shares_no_memory"].text.startswith("returns a y that shares the memory of an")


FOR_48 = raising(RuntimeError("made for one shape"), lambda x: x.shape[-1] == 48)
UNDER_AUTOCAST = raising(TypeError("halves"), lambda x: torch.is_autocast_enabled("cpu"))
AUTOCAST, RAISES = "keeps_accuracy_under_autocast", RemarkKind.RAISES


@pytest.mark.parametrize(
    ("implementation", "severity", "kind", "text"),
    [
        (
            target(FOR_48),
            Severity.REMARK,
            RAISES,
            "raises in the check takes_a_list_that_has_changed (RuntimeError: made for one shape)",
        ),
        (target(UNDER_AUTOCAST), Severity.RAISES, AUTOCAST, "torch.autocast is on"),
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


# --- two results of a call -----------------------------------------------------------------------


def one_bound() -> float:
    """Return what added to a right y is as far off as the bound of one element.

    In float64, so that a fraction of a bound can be represented.
    """
    axes = {"dtype": "float64", "param_dtype": "float64"}
    errors = verify_case(target(then(lambda y: y + 1e-6)), DOUBLE.shape, **axes).errors
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


def test_a_result_that_a_later_call_has_resized_is_another() -> None:
    call = Call.of(native, DOUBLE, Direction.FORWARD)
    right, resized = call.outputs(), call.outputs()
    resized.y.resize_(2, *DOUBLE.shape)
    assert call.differing(right, resized) == ["y"]


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
    found = next(CHECK["works_on_the_current_stream"].find(call), None)
    before = "computes y before the work queued on the current stream is done"
    assert found == (before if is_late else None)
    assert done == ["wait", "begin side", "spin", "end side", "wait"]


def test_every_check_has_a_test_in_which_it_fails() -> None:
    in_tables = {check for check, *_ in (*MUTANTS, *FUNCTIONS)}
    of_arguments = {"rejects_wrong_shapes", "is_complete_when_it_returns"}
    # tests/verify/test_obtained_modules.py has those
    of_modules = {name for name, own in CHECK.items() if own.is_of_modules}
    in_cheats = {"is_right_on_unknown_inputs", "normalises_normalised_rows"}
    others = of_arguments | of_modules | in_cheats | {"works_on_the_current_stream"}
    assert in_tables | others == {*CHECK}
