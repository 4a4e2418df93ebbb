"""From a case to its record: every way in which a case can end, and what is measured of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import implementations
from harness.measure.cpu import CpuDevice
from harness.measure.environment import compiler
from harness.records import (
    Allocation,
    ArmRole,
    Budget,
    Case,
    Direction,
    Measurement,
    Mode,
    Record,
    Status,
)
from harness.run import case as module
from harness.run.case import CaseRunner
from implementations import Implementation

CASE = Case(implementation="native", shape=(16, 32))
BACKWARD = replace(CASE, direction=Direction.BACKWARD)
ONE_EPOCH = Budget(limit_s=0.0, min_epochs=1, max_epochs=1)
ERRORS = (Measurement.ERRORS,)
needs_compiler = pytest.mark.skipif(compiler() is None, reason="torch.compile needs a C++ compiler")


@pytest.fixture
def runner() -> CaseRunner:
    # the allocator of the process that runs the tests stays as it is
    return CaseRunner("here", Allocation.DEFAULT)


def good(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    return functional.layer_norm(x, tuple(shape), weight, bias, eps)


Guest = Callable[..., Case]


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> Guest:
    """Make an implementation known under the name "guest", and return a case of it."""

    def make(function: Callable[..., Any] = good, case: Case = CASE, **declared: Any) -> Case:
        made = Implementation(name="guest", function=function, source="", **declared)
        monkeypatch.setattr(implementations, "ALL", (*implementations.ALL, made))
        return replace(case, implementation="guest")

    return make


def measured(record: Record) -> set[str]:
    return {name for name in ("errors", "latency", "memory") if getattr(record, name) is not None}


# --- what is measured ----------------------------------------------------------------------------


def test_a_good_case_is_ok_and_has_all_that_was_asked(runner: CaseRunner) -> None:
    record = runner.run(CASE, tuple(Measurement), ONE_EPOCH)
    assert (record.status, record.reason) == (Status.OK, "")
    assert (record.case, record.environment) == (CASE, "here")
    assert measured(record) == {"errors", "latency", "memory"}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ((), {"errors"}),
        (ERRORS, {"errors"}),
        ((Measurement.MEMORY,), {"errors", "memory"}),
        ((Measurement.LATENCY,), {"errors", "latency"}),
    ],
    ids=str,
)
def test_errors_are_always_measured_and_the_rest_as_asked(
    runner: CaseRunner, asked: tuple[Measurement, ...], found: set[str]
) -> None:
    assert measured(runner.run(CASE, asked, ONE_EPOCH)) == found


@pytest.mark.parametrize("direction", Direction)
def test_every_direction_is_measured(runner: CaseRunner, direction: Direction) -> None:
    case = replace(CASE, implementation="two_pass", direction=direction)
    record = runner.run(case, tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.OK
    assert record.errors is not None
    assert record.memory is not None
    forward = direction is Direction.FORWARD
    names = [each.output for each in record.errors.outputs]
    assert names == (["y"] if forward else ["y", "dx", "dweight", "dbias"])
    assert (record.memory.saved_bytes is None) is forward


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)], ids=str)
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_an_empty_tensor_is_measured_like_any_other(
    runner: CaseRunner, shape: tuple[int, ...], direction: Direction
) -> None:
    case = Case(implementation="two_pass", shape=shape, direction=direction)
    record = runner.run(case, tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.OK
    assert measured(record) == {"errors", "latency", "memory"}


def test_the_reference_and_a_copy_are_timed_beside_the_case(runner: CaseRunner) -> None:
    case = replace(CASE, implementation="two_pass")
    latency = runner.run(case, (Measurement.LATENCY,), ONE_EPOCH).latency
    assert latency is not None
    assert [(each.role, each.name) for each in latency.arms] == [
        (ArmRole.SUBJECT, "two_pass"),
        (ArmRole.REFERENCE, "native"),
        (ArmRole.CEILING, "copy"),
    ]
    assert latency.allocation is Allocation.DEFAULT
    assert latency.compile_s is None


def test_bytes_that_must_move_are_those_of_each_tensor_once(runner: CaseRunner) -> None:
    x, width = 16 * 32 * 4, 32 * 4
    moved = {}
    for direction in Direction:
        case = replace(CASE, direction=direction)
        latency = runner.run(case, (Measurement.LATENCY,), ONE_EPOCH).latency
        assert latency is not None
        moved[direction] = latency.model_bytes
    assert moved[Direction.FORWARD] == 2 * x + 2 * width
    # x, dy, weight read; dx, dweight, dbias written
    assert moved[Direction.BACKWARD] == 3 * x + 3 * width
    # both, with y written between them
    assert moved[Direction.FORWARD_BACKWARD] == 5 * x + 5 * width


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_a_compiled_case_says_what_compiling_took(runner: CaseRunner) -> None:
    case = replace(CASE, mode=Mode.COMPILED)
    record = runner.run(case, (Measurement.LATENCY,), ONE_EPOCH)
    assert record.status is Status.OK
    assert record.latency is not None
    assert record.latency.compile_s is not None
    assert record.latency.compile_s > 0


# --- how a case can end --------------------------------------------------------------------------


def test_a_result_beyond_its_bound_is_wrong(runner: CaseRunner, guest: Guest) -> None:
    record = runner.run(guest(lambda *a: good(*a) * 1.01), ERRORS, ONE_EPOCH)
    assert record.status is Status.WRONG
    assert "y is" in record.reason
    assert "ulp off" in record.reason
    assert record.errors is not None


def test_a_wrong_result_is_timed_all_the_same(runner: CaseRunner, guest: Guest) -> None:
    record = runner.run(guest(lambda *a: good(*a) * 1.01), tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.WRONG
    assert measured(record) == {"errors", "latency", "memory"}


def test_nan_is_wrong_and_not_right(runner: CaseRunner, guest: Guest) -> None:
    record = runner.run(guest(lambda *a: good(*a) * float("nan")), ERRORS, ONE_EPOCH)
    assert record.status is Status.WRONG
    assert "NaN or infinite" in record.reason


def test_a_broken_contract_is_wrong_and_nothing_is_measured(
    runner: CaseRunner, guest: Guest
) -> None:
    record = runner.run(guest(lambda *a: good(*a)[:3]), tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.WRONG
    assert record.reason == "y has shape [3, 32], expected [16, 32]"
    assert measured(record) == set()


def test_what_the_algorithm_does_not_promise_is_no_pass(runner: CaseRunner) -> None:
    case = Case(implementation="one_pass", shape=(8, 64), distribution="offset_1e4")
    record = runner.run(case, ERRORS, ONE_EPOCH)
    assert record.status is Status.OUT_OF_GUARANTEE
    assert "one_pass with float32 statistics promises nothing beyond condition" in record.reason


def test_a_dtype_that_is_not_taken_is_unsupported(runner: CaseRunner, guest: Guest) -> None:
    case = guest(dtypes=frozenset({"float64"}))
    record = runner.run(case, tuple(Measurement), ONE_EPOCH)
    assert (record.status, record.reason) == (Status.UNSUPPORTED, "guest does not take float32")
    assert measured(record) == set()


def test_a_device_that_it_is_not_written_for_is_unsupported(
    runner: CaseRunner, guest: Guest
) -> None:
    record = runner.run(guest(devices=frozenset({"cuda"})), ERRORS, ONE_EPOCH)
    assert (record.status, record.reason) == (Status.UNSUPPORTED, "guest is not written for cpu")


def test_a_gradient_that_it_does_not_have_is_unsupported(runner: CaseRunner, guest: Guest) -> None:
    case = guest(case=BACKWARD, forward_only=True)
    record = runner.run(case, ERRORS, ONE_EPOCH)
    assert (record.status, record.reason) == (Status.UNSUPPORTED, "guest has no gradient")
    assert runner.run(replace(case, direction=Direction.FORWARD), ERRORS, ONE_EPOCH).status is (
        Status.OK
    )


@pytest.mark.parametrize("missing", ["CXX", "PATH"])
def test_compiling_without_a_compiler_is_unsupported(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch, missing: str, tmp_path: Any
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(missing, str(tmp_path / "nothing-here"))
    record = runner.run(replace(CASE, mode=Mode.COMPILED), ERRORS, ONE_EPOCH)
    assert record.status is Status.UNSUPPORTED
    assert record.reason == (
        "torch.compile needs a C++ compiler, and there is none (install g++, or set CXX)"
    )


def test_values_that_the_dtype_cannot_hold_are_unsupported(runner: CaseRunner) -> None:
    case = replace(CASE, dtype="float16", param_dtype="float16", distribution="offset_1e6")
    record = runner.run(case, tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.UNSUPPORTED
    assert "beyond the largest float16, 65504" in record.reason
    assert measured(record) == set()


def test_a_device_that_is_not_there_is_unsupported(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "unavailable", lambda _: "it went up in smoke")
    record = runner.run(CASE, ERRORS, ONE_EPOCH)
    assert (record.status, record.reason) == (Status.UNSUPPORTED, "it went up in smoke")


def test_a_case_that_does_not_fit_is_not_begun(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda _: 3 << 30)
    case = replace(CASE, shape=(1 << 15, 1 << 15))  # would take gigabytes, and long
    record = runner.run(case, ERRORS, ONE_EPOCH)
    assert record.status is Status.OUT_OF_MEMORY
    assert record.reason == "needs about 56 GiB, 3 GiB are free"


def test_a_device_that_does_not_say_what_is_free_is_tried(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda _: None)
    assert runner.run(CASE, ERRORS, ONE_EPOCH).status is Status.OK


def raises(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (implementations.UnsupportedError("odd rows"), Status.UNSUPPORTED, "odd rows"),
        (MemoryError(), Status.OUT_OF_MEMORY, "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), Status.OUT_OF_MEMORY, "CUDA out of memory"),
        (RuntimeError("first\nsecond"), Status.ERROR, "RuntimeError: first"),
    ],
    ids=repr,
)
def test_what_the_implementation_raises_is_how_the_case_ends(
    runner: CaseRunner, guest: Guest, error: Exception, status: Status, reason: str
) -> None:
    record = runner.run(guest(raises(error)), tuple(Measurement), ONE_EPOCH)
    assert (record.status, record.reason) == (status, reason)
    assert measured(record) == set()


def test_a_guest_that_fails_only_when_timed_keeps_what_was_measured_before(
    runner: CaseRunner, guest: Guest
) -> None:
    calls: list[None] = []

    def tires(*arguments: Any) -> Tensor:
        calls.append(None)
        if len(calls) > 1:
            raise RuntimeError("tired")
        return good(*arguments)

    record = runner.run(guest(tires), tuple(Measurement), ONE_EPOCH)
    assert (record.status, record.reason) == (Status.ERROR, "RuntimeError: tired")
    assert measured(record) == {"errors"}


def test_ctrl_c_in_the_guest_ends_the_run_and_not_the_case(
    runner: CaseRunner, guest: Guest
) -> None:
    with pytest.raises(KeyboardInterrupt):
        runner.run(guest(raises(KeyboardInterrupt())), ERRORS, ONE_EPOCH)


@pytest.mark.parametrize("part", ["measure_errors", "make_inputs", "judge", "measure_latency"])
def test_an_exception_in_the_harness_is_not_the_cases(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(module, part, raises(RuntimeError("a bug in the harness")))
    with pytest.raises(RuntimeError, match="a bug in the harness"):
        runner.run(CASE, tuple(Measurement), ONE_EPOCH)


def test_after_a_failed_case_the_next_one_is_measured(runner: CaseRunner, guest: Guest) -> None:
    runner.run(guest(raises(RuntimeError("no"))), ERRORS, ONE_EPOCH)
    assert runner.run(CASE, ERRORS, ONE_EPOCH).status is Status.OK


# --- what it costs -------------------------------------------------------------------------------


def test_the_parts_of_the_cost_are_within_the_whole(runner: CaseRunner) -> None:
    cost = runner.run(CASE, tuple(Measurement), ONE_EPOCH).cost
    assert cost is not None
    assert min(cost.guest_s, cost.oracle_s, cost.sampling_s) > 0
    assert cost.guest_s + cost.oracle_s + cost.sampling_s <= cost.total_s


def test_what_was_not_done_costs_nothing(runner: CaseRunner) -> None:
    cost = runner.run(CASE, ERRORS, ONE_EPOCH).cost
    assert cost is not None
    assert cost.sampling_s == 0


def test_a_case_that_was_refused_has_its_cost_too(runner: CaseRunner, guest: Guest) -> None:
    cost = runner.run(guest(forward_only=True, case=BACKWARD), ERRORS, ONE_EPOCH).cost
    assert cost is not None
    assert cost.total_s > 0
    assert (cost.guest_s, cost.oracle_s, cost.sampling_s) == (0, 0, 0)


def test_the_exact_result_is_paid_for_once(runner: CaseRunner) -> None:
    costs = [
        runner.run(replace(CASE, implementation=name), ERRORS, ONE_EPOCH).cost
        for name in ("native", "two_pass")
    ]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[0].oracle_s > 0
    assert costs[1].oracle_s == 0


# --- inputs that neighbours share ----------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the cases whose inputs were drawn."""
    ids: list[str] = []
    draw = module.make_inputs

    def counting(case: Case) -> Any:
        ids.append(case.id)
        return draw(case)

    monkeypatch.setattr(module, "make_inputs", counting)
    return ids


@pytest.mark.parametrize(
    "change",
    [
        {"implementation": "two_pass"},
        {"threads": 2},
        {"mode": Mode.EAGER},
    ],
    ids=str,
)
def test_neighbours_share_their_inputs(
    runner: CaseRunner, drawn: list[str], change: dict[str, Any]
) -> None:
    runner.run(CASE, ERRORS, ONE_EPOCH)
    runner.run(replace(CASE, **change), ERRORS, ONE_EPOCH)
    torch.set_num_threads(1)
    assert drawn == [CASE.id]


def test_both_directions_with_a_gradient_share_their_inputs(
    runner: CaseRunner, drawn: list[str]
) -> None:
    runner.run(BACKWARD, ERRORS, ONE_EPOCH)
    runner.run(replace(CASE, direction=Direction.FORWARD_BACKWARD), ERRORS, ONE_EPOCH)
    assert drawn == [BACKWARD.id]


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (4, 32)},
        {"dtype": "bfloat16"},
        {"param_dtype": "float64"},
        {"distribution": "constant"},
        {"layout": "transposed"},
        {"affine": "none"},
        {"seed": 1},
        {"eps": 1e-3},
        {"direction": Direction.BACKWARD},
        {"normalized_dims": 2},
    ],
    ids=str,
)
def test_a_case_with_other_inputs_draws_its_own(
    runner: CaseRunner, drawn: list[str], change: dict[str, Any]
) -> None:
    other = replace(CASE, **change)
    runner.run(CASE, ERRORS, ONE_EPOCH)
    record = runner.run(other, ERRORS, ONE_EPOCH)
    assert drawn == [CASE.id, other.id]
    assert record == replace(
        CaseRunner("here", Allocation.DEFAULT).run(other, ERRORS, ONE_EPOCH), cost=record.cost
    )


def test_a_guest_that_spoils_its_inputs_does_not_spoil_them_for_the_next(
    runner: CaseRunner, guest: Guest, drawn: list[str]
) -> None:
    def spoils(x: Tensor, *rest: Any) -> Tensor:
        y = good(x, *rest)
        x.fill_(1e9)
        return y

    alone = runner.run(CASE, ERRORS, ONE_EPOCH)
    spoiled = runner.run(guest(spoils), ERRORS, ONE_EPOCH)
    after = runner.run(CASE, ERRORS, ONE_EPOCH)
    assert (spoiled.status, spoiled.reason) == (Status.WRONG, "modified one of its inputs")
    assert after.errors == alone.errors
    assert len(drawn) == 2


def test_a_guest_that_spoils_its_inputs_and_then_raises_does_not_spoil_them_for_the_next(
    runner: CaseRunner, guest: Guest
) -> None:
    def spoils(x: Tensor, *_: Any) -> Tensor:
        x.fill_(1e9)
        raise ValueError("after the deed")

    alone = runner.run(CASE, ERRORS, ONE_EPOCH)
    assert runner.run(guest(spoils), ERRORS, ONE_EPOCH).status is Status.ERROR
    assert runner.run(CASE, ERRORS, ONE_EPOCH).errors == alone.errors


def test_a_guest_that_spoils_its_inputs_only_later_does_not_spoil_them_for_the_next(
    runner: CaseRunner, guest: Guest
) -> None:
    calls: list[None] = []

    def spoils(x: Tensor, *rest: Any) -> Tensor:
        y = good(x, *rest)
        calls.append(None)
        if len(calls) > 1:
            x.fill_(1e9)
        return y

    alone = runner.run(CASE, ERRORS, ONE_EPOCH)
    runner.run(guest(spoils), (Measurement.MEMORY,), ONE_EPOCH)
    assert runner.run(CASE, ERRORS, ONE_EPOCH).errors == alone.errors


def test_equal_cases_give_equal_errors_in_any_order(runner: CaseRunner) -> None:
    cases = [replace(CASE, implementation=each) for each in ("native", "one_pass", "two_pass")]
    there = {each.id: runner.run(each, ERRORS, ONE_EPOCH).errors for each in cases}
    back = {each.id: runner.run(each, ERRORS, ONE_EPOCH).errors for each in reversed(cases)}
    assert there == back
