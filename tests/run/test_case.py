"""A case is run to its record: calls, how it ends, what is measured, and cached results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from factories.fake_device import FakeDevice, steady
from factories.small_cases import BACKWARD, CASE, ONE_EPOCH
from factories.verify_targets import layer_norm, raising, target, then
from torch import Tensor

import implementations
from harness.cases import LAYOUTS, make_inputs
from harness.measure import CpuDevice, Sampler, compiler
from harness.records import (
    Affine,
    Allocation,
    Cache,
    Case,
    Direction,
    Measurement,
    MeasurementWarning,
    Mode,
    Record,
    Status,
    WarningKind,
)
from harness.run import (
    CaseRunner,
    ContractViolationError,
    ExactResults,
    ImplementationError,
    Timed,
    bind,
    grad_mode,
    reuse,
    run_once,
    time_case,
)
from implementations import UnsupportedError

ALL_OF_IT = {"errors", "latency", "cold", "memory"}
HALF = replace(CASE, dtype="float16", param_dtype="float16", distribution="offset_1e6")
COMPILED = replace(CASE, mode=Mode.COMPILED)
LARGE = replace(CASE, shape=(1 << 15, 1 << 15))  # would take gigabytes, and long
EVERYTHING, LATENCY = tuple(Measurement), (Measurement.LATENCY,)
Run = Callable[..., Record]


@pytest.fixture
def run() -> Run:
    """Return a function that runs a case in one epoch, of a function if it is given one."""
    runner = CaseRunner("here", Allocation.DEFAULT)  # the allocator of this process stays as it is

    def run_case(
        case: Case,
        asked: Sequence[Measurement] = (),
        function: Any = None,
        time: Any = time_case,
        **declared: Any,
    ) -> Record:
        if function is None:
            return runner.run(case, asked, ONE_EPOCH, implementations.find, time)
        case, found = replace(case, implementation="target"), target(function, **declared)
        return runner.run(case, asked, ONE_EPOCH, lambda _: found, time)

    return run_case


def measured(record: Record) -> set[str]:
    """Return the names of the measurements that the record holds."""
    return {name for name in ALL_OF_IT if getattr(record, name) is not None}


# --- what is measured ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",  # instructions are counted by the session
    [(), *((one,) for one in Measurement if one is not Measurement.INSTRUCTIONS)],
    ids=str,
)
def test_errors_are_always_measured_and_the_rest_if_asked_for(
    run: Run, asked: tuple[Measurement, ...]
) -> None:
    assert measured(run(CASE, asked)) == {"errors", *asked}


def test_a_timing_knows_its_cache_and_warnings_about_cold_times_are_marked(run: Run) -> None:
    def warning_about(*arguments: Any, cache: Cache, **more: Any) -> Any:
        warning = MeasurementWarning(kind=WarningKind.NOISY, advice=str(cache))
        sampled = time_case(*arguments, cache=cache, **more)
        latency = None if cache is Cache.WARM else sampled.latency  # its clock stood still
        return replace(sampled, latency=latency, warnings=(warning,))

    record = run(CASE, (Measurement.LATENCY, Measurement.COLD), time=warning_about)
    assert [warning.advice for warning in record.warnings] == ["warm", "cold: rotate"]
    assert (record.status, record.latency) == (Status.OK, None)
    assert record.cold.cache is Cache.ROTATE


@pytest.mark.skipif(compiler() is None, reason="torch.compile needs a C++ compiler")
def test_the_time_of_compiling_is_that_of_the_first_call_beyond_the_second(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    def compiles_in_its_first_call(*arguments: Any) -> torch.Tensor:
        calls.append(None)
        return layer_norm(*arguments)

    # the first call takes five seconds, each later one takes one
    clock = "harness.run.attempt.perf_counter"
    monkeypatch.setattr(clock, lambda: len(calls) + 4.0 * bool(calls))
    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiles_in_its_first_call)
    latency = run(COMPILED, LATENCY, raising(AssertionError())).latency
    assert latency.compile_s == 4.0


def test_the_parts_of_the_cost_are_within_the_whole_and_equal_inputs_cost_once(run: Run) -> None:
    cases = (CASE, replace(CASE, implementation="two_pass"))
    cost, again = (run(case, EVERYTHING).cost for case in cases)
    assert min(cost.implementation_s, cost.oracle_s, cost.sampling_s) > 0
    assert cost.implementation_s + cost.oracle_s + cost.sampling_s <= cost.total_s
    assert again.oracle_s == 0


# --- how a case can end --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "status", "why", "kept"),
    [
        (layer_norm, Status.OK, "", ALL_OF_IT),
        (then(lambda y: y * torch.nan), Status.WRONG, "512 of 512 elements", ALL_OF_IT),
        (then(lambda y: y[:3]), Status.WRONG, "[3, 32]", set()),
        (raising(UnsupportedError("odd rows")), Status.UNSUPPORTED, "odd rows", set()),
        (raising(RuntimeError("tired")), Status.ERROR, "RuntimeError: tired", set()),
    ],
)
def test_how_an_implementation_behaves_is_the_status_of_its_case_alone(
    run: Run, function: Callable[..., Any], status: Status, why: str, kept: set[str]
) -> None:
    record = run(CASE, EVERYTHING, function)
    assert record.status is status
    assert why in record.reason
    assert measured(record) == kept
    assert run(CASE).status is Status.OK


@pytest.mark.parametrize(
    ("declared", "case", "status", "why"),
    [
        ({}, HALF, Status.UNSUPPORTED, "65504"),  # the largest float16
        ({"devices": frozenset({"cuda"})}, CASE, Status.UNSUPPORTED, "cpu"),
        ({"forward_only": True}, BACKWARD, Status.UNSUPPORTED, "gradient"),
        ({"outside_torch": True}, COMPILED, Status.UNSUPPORTED, "outside torch"),
        ({}, COMPILED, Status.UNSUPPORTED, "g++"),
        ({}, LARGE, Status.OUT_OF_MEMORY, "40 GiB"),
    ],
)
def test_a_case_that_cannot_run_here_is_not_started(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    declared: dict[str, Any],
    case: Case,
    status: Status,
    why: str,
) -> None:
    monkeypatch.setenv("CXX", "nothing-here")
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda _: 3 << 30)
    record = run(case, EVERYTHING, layer_norm, **declared)
    assert record.status is status
    assert why in record.reason
    assert measured(record) == set()


def test_an_implementation_that_fails_after_the_timing_keeps_earlier_measurements(
    run: Run,
) -> None:
    tired: list[None] = []

    def tires(*arguments: Any) -> Tensor:
        if tired:
            raise RuntimeError("tired")
        return layer_norm(*arguments)

    def tiring(*arguments: Any, **more: Any) -> Any:
        sampled = time_case(*arguments, **more)
        tired.append(None)
        return sampled

    record = run(CASE, EVERYTHING, tires, tiring)
    assert (record.status, record.reason) == (Status.ERROR, "RuntimeError: tired")
    assert measured(record) == {"errors", "latency"}


# --- memory that torch does not see is never counted as none --------------------------------------


Y_BYTES, PARAMETER_BYTES = 16 * 32 * 4, 32 * 4  # of CASE
MEMORY = (Measurement.MEMORY,)


def in_numpy(tensor: Tensor) -> Tensor:
    return torch.from_numpy(tensor.numpy().copy())


def gradient_in_numpy(x: Tensor, *rest: Any) -> Tensor:
    x = x.view_as(x)
    x.register_hook(in_numpy)
    return layer_norm(x, *rest)


def on_a_new_thread(*arguments: Any) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(layer_norm, *arguments).result()


@pytest.mark.parametrize(
    ("function", "case", "why"),
    [
        (then(in_numpy), CASE, "of which torch allocated 0 B"),
        (gradient_in_numpy, BACKWARD, "of which torch allocated 256 B"),
        (on_a_new_thread, CASE, ""),
    ],
)
def test_work_in_memory_or_on_threads_that_torch_does_not_see_is_not_counted(
    run: Run, function: Any, case: Case, why: str
) -> None:
    record = run(case, MEMORY, function)
    assert (record.memory, record.operators) == (None, None)
    (warning,) = record.warnings
    assert warning.kind is WarningKind.MEMORY_NOT_COUNTED
    assert why in warning.advice


@pytest.mark.parametrize(
    ("direction", "least"),
    [
        (Direction.FORWARD, Y_BYTES),
        (Direction.BACKWARD, Y_BYTES + 2 * PARAMETER_BYTES),
        (Direction.FORWARD_BACKWARD, 2 * Y_BYTES + 2 * PARAMETER_BYTES),
    ],
)
def test_what_torch_allocates_is_counted(run: Run, direction: Direction, least: int) -> None:
    record = run(replace(CASE, direction=direction), MEMORY)
    assert record.warnings == ()
    assert record.memory.peak_extra_bytes >= record.memory.minimum_bytes == least
    assert (record.memory.saved_bytes is None) is (direction is Direction.FORWARD)


@pytest.mark.parametrize("affine", ["both", "weight", "bias", "none"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 32, 3), (0, 5), (5, 0)])
@pytest.mark.parametrize("name", ["native", "two_pass"])  # two_pass: dbias of one row may be dy
def test_memory_of_few_rows_is_counted(
    run: Run, name: str, shape: tuple[int, ...], affine: str
) -> None:
    dims = max(len(shape) - 1, 1)
    case = replace(BACKWARD, implementation=name, shape=shape, affine=affine, normalized_dims=dims)
    record = run(case, MEMORY)
    assert (record.memory_not_counted, record.memory is None) == (None, False)


# --- equal inputs are drawn once ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "is_equal"),
    [
        ({"implementation": "two_pass", "threads": 2}, True),
        ({"direction": Direction.FORWARD_BACKWARD}, True),
        *(({"shape": (4, 32)}, False), ({"dtype": "bfloat16"}, False), ({"seed": 1}, False)),
        *(({"distribution": "constant"}, False), ({"layout": "transposed"}, False)),
        *(({"affine": "none"}, False), ({"eps": 1e-3}, False), ({"normalized_dims": 2}, False)),
        *(({"param_dtype": "float64"}, False), ({"direction": Direction.FORWARD}, False)),
    ],
)
def test_cases_with_equal_inputs_and_no_others_share_exact_results(
    change: dict[str, Any], is_equal: bool
) -> None:
    exact = ExactResults()
    assert (exact(BACKWARD) is exact(replace(BACKWARD, **change))) is is_equal


# --- the check after the timing detects cached results, and passes right implementations ----------


AFTER = 3  # calls, of which there are more in any epoch


def remembering(key: Callable[[Tensor], object]) -> Callable[..., Tensor]:
    """Return a LayerNorm that returns a cached result after some calls with the same key."""
    results: dict[object, list[Tensor]] = {}

    def function(x: Tensor, *rest: Any) -> Tensor:
        found = results.setdefault(key(x), [])
        if len(found) < AFTER:
            found.append(layer_norm(x, *rest))
        return found[-1]

    return function


def is_detected(record: Record) -> bool:
    warned = WarningKind.CACHED_RESULT in {warning.kind for warning in record.warnings}
    return warned and record.status is Status.WRONG


@pytest.mark.parametrize("key", [Tensor.data_ptr, lambda _: None], ids=["address", "count"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_implementation_that_caches_results_is_wrong_after_the_timing(
    run: Run, key: Any, layout: str
) -> None:
    case = replace(CASE, shape=(3, 4, 8), layout=layout, seed=7)
    record = run(case, LATENCY, remembering(key))
    assert is_detected(record)
    assert measured(record) == {"errors", "latency"}  # from before it was wrong


def test_cached_gradients_are_detected(run: Run) -> None:
    kept: dict[object, Tensor] = {}

    def function(x: Tensor, *rest: Any) -> Tensor:
        x = x.view_as(x)
        x.register_hook(lambda dx: kept.setdefault(dx.shape, dx.clone()))
        return layer_norm(x, *rest)

    assert is_detected(run(BACKWARD, LATENCY, function))


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_right_implementation_is_right_after_the_timing(
    run: Run, direction: Direction, layout: str
) -> None:
    case = replace(CASE, shape=(3, 4, 8), direction=direction, layout=layout)
    assert run(case, LATENCY).status is Status.OK


def test_a_result_that_returns_to_one_buffer_is_right(run: Run) -> None:
    in_one_buffer = then(torch.empty(CASE.shape).copy_)
    assert run(CASE, LATENCY, in_one_buffer).status is Status.OK


# --- the times of calls with new values ----------------------------------------------------------


NEW = 1.3e-6
"""Seconds of a call with new values, where one with the same values takes 1e-6."""
Script = Callable[[str, int], float]


def scripted(script: Script) -> tuple[Timed, FakeDevice]:
    """Return calls whose number n takes as long as the script says."""
    device, inputs = FakeDevice(script), make_inputs(CASE)
    subject = Sampler(*device.timed_calls("subject"), device, Cache.WARM)
    placed = inputs.at([tensor.clone() for tensor in inputs.tensors])
    subject.bind([placed.tensors])
    return Timed(CASE, layer_norm, subject, placed, inputs), device


def alternating(name: str, number: int) -> float:
    """Take longer for each call with new values: one alone, then one of a pair, in turn first."""
    return NEW if number % 4 < 2 else 1e-6


@pytest.mark.parametrize(
    ("script", "per_call_s", "is_reuse", "calls"),
    [
        (alternating, NEW / 1.3, True, 114),
        (alternating, NEW / 1.2, False, 2),  # the first sample is as fast as the timed ones
        (steady, 0.0, False, 30),
        (lambda name, n: 1e-6 if n == 4 else alternating(name, n), 0.0, False, 30),
        (lambda name, n: 1e-6 if n % 4 < 2 else NEW, 0.0, False, 30),
    ],
)
def test_calls_that_take_longer_with_new_values_reuse_results(
    script: Script, per_call_s: float, is_reuse: bool, calls: int
) -> None:
    timed, device = scripted(script)
    said = reuse(timed, per_call_s)
    assert (said or "").endswith("a call takes 1.3 times as long") is is_reuse
    assert (said is None) is not is_reuse
    assert len(device.sampled) == calls


def test_reuse_of_results_by_one_element_is_found_in_a_single_row() -> None:
    inputs, known = make_inputs(replace(CASE, shape=(1, 32))), set[float]()
    inputs.x.fill_(1)

    def timed_result(calls: int, change: Callable[[], object]) -> tuple[None, float]:
        before = len(known)
        for _ in range(calls):
            change()
            known.add(float(inputs.x[0, 0]))
        return None, NEW if len(known) > before else 1e-6

    subject: Any = SimpleNamespace(calls=2, timed_result=timed_result)
    assert reuse(Timed(CASE, layer_norm, subject, inputs, inputs)) is not None


# --- one call, whose contract is kept ------------------------------------------------------------

TRAINING = replace(CASE, direction=Direction.FORWARD_BACKWARD)
every_direction = pytest.mark.parametrize("case", [CASE, BACKWARD, TRAINING])
with_gradients = pytest.mark.parametrize("case", [BACKWARD, TRAINING])


def test_a_forward_returns_only_y() -> None:
    case = replace(CASE, affine=Affine.BIAS, eps=0.25)
    inputs = make_inputs(case)
    outputs = run_once(layer_norm, case, inputs)
    assert torch.equal(outputs.y, layer_norm(inputs.x, (32,), None, inputs.bias, 0.25))
    assert (outputs.dx, outputs.dweight, outputs.dbias) == (None, None, None)


@with_gradients
@pytest.mark.parametrize("affine", Affine)
def test_a_backward_gives_each_existing_input_the_gradient_of_autograd(
    case: Case, affine: Affine
) -> None:
    case = replace(case, affine=affine)
    inputs = make_inputs(case)
    outputs = run_once(layer_norm, case, inputs)
    leaves = [tensor.detach().requires_grad_() for tensor in inputs.tensors[:-1]]
    names = [name for name in ("weight", "bias") if getattr(inputs, name) is not None]
    y = layer_norm(leaves[0], (32,), **dict(zip(names, leaves[1:], strict=True)))
    found = [outputs.dx, *(getattr(outputs, f"d{name}") for name in names)]
    assert all(map(torch.equal, found, torch.autograd.grad(y, leaves, inputs.dy)))
    assert (outputs.dweight is None) == ("weight" not in names)
    assert (outputs.dbias is None) == ("bias" not in names)
    assert not outputs.y.requires_grad


# --- a contract that is broken -------------------------------------------------------------------


def negates_zeros_of_x(x: Tensor, *others: Any) -> Tensor:
    y = layer_norm(x.clone(), *others)
    with torch.no_grad():
        x.copy_(torch.where(x == 0, -x, x))
    return y


@every_direction
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (then(lambda y: y[None]), "y has shape [1, 16, 32], expected [16, 32]"),
        (then(Tensor.double), "y has dtype torch.float64, expected torch.float32"),
        (then(lambda y: y.to("meta")), "y has device meta, expected cpu"),
        (then(lambda y: (y, y)), "y is of type tuple, expected torch.Tensor itself"),
        (negates_zeros_of_x, "modified one of its inputs"),
    ],
)
def test_a_call_that_breaks_the_contract_is_named(
    case: Case, function: Callable[..., Any], words: str
) -> None:
    inputs = make_inputs(case)
    inputs.x[0, 0] = 0
    with pytest.raises(ContractViolationError) as found:
        run_once(function, case, inputs)
    assert str(found.value) == words


def detaching(place: int) -> Callable[..., Tensor]:
    def function(*arguments: Any) -> Tensor:
        return layer_norm(*arguments[:place], arguments[place].detach(), *arguments[place + 1 :])

    return function


@with_gradients
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (then(Tensor.detach), "returned a y without gradient"),
        (detaching(0), "dx is None"),
        (detaching(2), "dweight is None"),
        (detaching(3), "dbias is None"),
    ],
)
def test_a_missing_gradient_is_named(case: Case, function: Any, words: str) -> None:
    with pytest.raises(ContractViolationError, match=words):
        run_once(function, case, make_inputs(case))


# --- exceptions of an implementation become a status and one line; others pass through -----------


NO_MEMORY = "CPUAllocator: can't allocate memory"


def failing_backward(*arguments: Any) -> Tensor:
    y, error = layer_norm(*arguments), UnsupportedError("no gradient here")
    if not y.requires_grad:
        raise error
    y.register_hook(raising(error))
    return y


@every_direction
@pytest.mark.parametrize(
    ("function", "status", "reason"),
    [
        (failing_backward, Status.UNSUPPORTED, "no gradient here"),
        (raising(torch.OutOfMemoryError("3 GiB")), Status.OUT_OF_MEMORY, "3 GiB"),
        (raising(RuntimeError(NO_MEMORY)), Status.OUT_OF_MEMORY, NO_MEMORY),
        (raising(ValueError("\n\n  shapes\nmore")), Status.ERROR, "ValueError: shapes"),
    ],
)
def test_an_exception_becomes_a_status_and_one_line(
    case: Case, function: Callable[..., Any], status: Status, reason: str
) -> None:
    with pytest.raises(ImplementationError) as alone:
        run_once(function, case, make_inputs(case))
    with grad_mode(case), pytest.raises(ImplementationError) as bound:
        bind(function, case, make_inputs(case).tensors)()
    for found in (alone.value, bound.value):
        assert (found.status, found.reason, str(found)) == (status, reason, reason)
