"""One case to its record: verify first, on the inputs that are timed, then measure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from time import perf_counter

import torch
from torch import Tensor

import implementations
from harness.inputs import Inputs, UnrepresentableError, make_inputs
from harness.measure.allocator import use_steady_allocation
from harness.measure.devices import Device, device_of
from harness.measure.environment import compiler
from harness.measure.latency import Contender, Sampled, measure_latency, relocate
from harness.measure.memory import count_allocations
from harness.records import (
    Allocation,
    ArmRole,
    Budget,
    Case,
    Cost,
    Direction,
    Measurement,
    Memory,
    Mode,
    Record,
    Status,
)
from harness.verify.bounds import guarantee_of
from harness.verify.errors import Outputs, measure_errors
from harness.verify.guest import (
    GuestError,
    Unmet,
    bind,
    bind_recording_forward,
    function_of,
    run_once,
)
from harness.verify.oracle import Reference
from harness.verify.verdict import judge
from implementations.contract import Implementation, LayerNorm

__all__ = ["CaseRunner"]

REFERENCE = implementations.find("native")
# float64 copies, exact values, bounds and errors of a block of rows aside, a case holds x, y, dx,
# dy, their relocated copies and what the implementation saves: a dozen of x at most
_HELD_COPIES = 12
_DRAWN_BYTES = 8  # inputs are drawn in float64


@dataclass(slots=True)
class _Stopwatch:
    """Seconds spent in the guest so far."""

    guest_s: float = 0.0

    @contextmanager
    def guest(self) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self.guest_s += perf_counter() - began


@dataclass(slots=True)
class _Shared:
    """Inputs and exact result that consecutive cases have in common."""

    case: Case
    inputs: Inputs
    reference: Reference


@dataclass(slots=True)
class CaseRunner:
    """Runs cases one after the other in this process."""

    environment: str
    """Fingerprint, for the records."""
    allocation: Allocation = field(default_factory=use_steady_allocation)
    _shared: _Shared | None = None

    def run(self, case: Case, measurements: Collection[Measurement], budget: Budget) -> Record:
        """Run ``case`` to its record. Errors are always measured; the rest as asked.

        What the implementation raises becomes the record's status; an exception in the harness
        is a bug and propagates.
        """
        began = perf_counter()
        watch = _Stopwatch()
        record = Record(case=case, environment=self.environment, status=Status.OK)
        oracle_s = sampling_s = 0.0
        try:
            device = self._ready_device(case)
            inputs, reference = self._inputs(case)
            oracle_before = reference.spent_s
            with torch.set_grad_enabled(case.direction is not Direction.FORWARD):
                implementation = implementations.find(case.implementation)
                function, outputs, compile_s = _first_run(implementation, case, inputs, watch)
                guarantee = guarantee_of(implementation, case)
                errors = measure_errors(outputs, inputs, case, guarantee, reference)
                del outputs
                status, reason = judge(errors, case, guarantee)
                record = replace(record, status=status, reason=reason, errors=errors)
                oracle_s = reference.spent_s - oracle_before
                if Measurement.LATENCY in measurements:
                    sampled = self._latency(function, case, inputs, device, budget, compile_s)
                    record = replace(record, latency=sampled.latency, warnings=sampled.doubts)
                    sampling_s = sampled.sampling_s
                    watch.guest_s += sampled.warming_s
                if Measurement.MEMORY in measurements:
                    with watch.guest():
                        record = replace(record, memory=_memory(function, case, inputs))
        except UnrepresentableError as why:
            record = replace(record, status=Status.UNSUPPORTED, reason=str(why))
        except implementations.TargetError as why:
            record = replace(record, status=Status.ERROR, reason=str(why))
        except GuestError as ended:
            self._shared = None  # it may have written to its inputs before it raised
            record = replace(record, status=ended.status, reason=ended.reason)
        except Unmet as broken:
            self._shared = None  # its inputs may be the very thing that was modified
            record = replace(record, status=Status.WRONG, reason=str(broken))
        cost = Cost(
            total_s=perf_counter() - began,
            guest_s=watch.guest_s,
            oracle_s=oracle_s,
            sampling_s=sampling_s,
        )
        return replace(record, cost=cost)

    def _ready_device(self, case: Case) -> Device:
        """Return the case's device.

        Raises:
            GuestError: the case cannot run here, for a reason known beforehand.
        """
        device = device_of(case.device, case.threads)
        if why := device.unavailable():
            raise GuestError(Status.UNSUPPORTED, why)
        if why := _refusal(implementations.find(case.implementation), case):
            raise GuestError(Status.UNSUPPORTED, why)
        dtype: torch.dtype = getattr(torch, case.dtype)
        needed = case.rows * case.hidden * (_DRAWN_BYTES + _HELD_COPIES * dtype.itemsize)
        free = device.free_bytes()
        if free is not None and needed > free:
            raise GuestError(
                Status.OUT_OF_MEMORY,
                f"needs about {needed / 2**30:.3g} GiB, {free / 2**30:.3g} GiB are free",
            )
        torch.set_num_threads(case.threads)
        return device

    def _inputs(self, case: Case) -> tuple[Inputs, Reference]:
        """Draw the inputs, or take those of the case before if they are the same."""
        backward = case.direction is not Direction.FORWARD
        direction = Direction.BACKWARD if backward else Direction.FORWARD
        asked = replace(case, implementation="", mode=Mode.EAGER, direction=direction, threads=1)
        if self._shared is None or self._shared.case != asked:
            self._shared = None  # free the old ones first
            inputs = make_inputs(case)
            self._shared = _Shared(asked, inputs, Reference(inputs, case))
        return self._shared.inputs, self._shared.reference

    def _latency(
        self,
        function: LayerNorm,
        case: Case,
        inputs: Inputs,
        device: Device,
        budget: Budget,
        compile_s: float | None,
    ) -> Sampled:
        contenders = [
            Contender(ArmRole.SUBJECT, case.implementation, partial(bind, function, case))
        ]
        # where the reference itself refuses the dtypes there is no ratio
        if not _refusal(REFERENCE, case):
            reference = partial(bind, REFERENCE.function, case)
            contenders.append(Contender(ArmRole.REFERENCE, REFERENCE.name, reference))
        contenders.append(Contender(ArmRole.CEILING, "copy", _bind_copy))
        size = inputs.x.numel() * inputs.x.element_size()
        return measure_latency(
            contenders,
            inputs.tensors,
            device,
            budget,
            Random(case.id),
            allocation=self.allocation,
            model_bytes=_model_bytes(case, inputs),
            copied_bytes=2 * size,
            compile_s=compile_s,
        )


def _first_run(
    implementation: Implementation, case: Case, inputs: Inputs, watch: _Stopwatch
) -> tuple[LayerNorm, Outputs, float | None]:
    """Run a case for the first time: the function, its outputs, and seconds to compile it."""
    function = function_of(implementation, case.mode)
    with watch.guest():
        began = perf_counter()
        outputs = run_once(function, case, inputs)
        first_s = perf_counter() - began
        if case.mode is Mode.EAGER:
            return function, outputs, None
        began = perf_counter()
        outputs = run_once(function, case, inputs)
        return function, outputs, max(first_s - (perf_counter() - began), 0.0)


def _refusal(implementation: Implementation, case: Case) -> str | None:
    """Why an implementation cannot run a case, as far as it declares it."""
    if case.device not in implementation.devices:
        return f"{implementation.name} is not written for {case.device}"
    if case.dtype not in implementation.dtypes:
        return f"{implementation.name} does not take {case.dtype}"
    if implementation.forward_only and case.direction is not Direction.FORWARD:
        return f"{implementation.name} has no gradient"
    if case.mode is Mode.COMPILED and case.device == "cpu" and compiler() is None:
        return "torch.compile needs a C++ compiler, and there is none (install g++, or set CXX)"
    return None


def _bind_copy(tensors: Sequence[Tensor]) -> Callable[[], object]:
    """Copy x into memory that is there already."""
    x = tensors[0]
    out = torch.empty_like(x)
    return partial(out.copy_, x)


def _model_bytes(case: Case, inputs: Inputs) -> int:
    """Bytes any implementation must move: each tensor it needs read once, each result written."""
    results = _results(case, inputs)
    read = {
        Direction.FORWARD: (inputs.x, inputs.weight, inputs.bias),
        Direction.BACKWARD: (inputs.x, inputs.dy, inputs.weight),
        # x is read by both passes: between them lies the rest of the model
        Direction.FORWARD_BACKWARD: (
            inputs.x,
            inputs.weight,
            inputs.bias,
            inputs.x,
            inputs.dy,
            inputs.weight,
        ),
    }[case.direction]
    return sum(each.numel() * each.element_size() for each in (*read, *results) if each is not None)


def _results(case: Case, inputs: Inputs) -> tuple[Tensor, ...]:
    """Inputs of the sizes of what the case returns: y like x, and a gradient like each input."""
    gradients = tuple(each for each in (inputs.x, inputs.weight, inputs.bias) if each is not None)
    if case.direction is Direction.FORWARD:
        return (inputs.x,)
    return gradients if case.direction is Direction.BACKWARD else (inputs.x, *gradients)


def _memory(function: LayerNorm, case: Case, inputs: Inputs) -> Memory:
    """Count what one call of the case allocates, and what its forward keeps for the backward."""
    # copies: what the function might write to is nobody else's
    tensors = [relocate(each, Random(case.id)) for each in inputs.tensors]
    call = bind(function, case, tensors)
    call()  # caches and workspaces are made once, and are not the call's
    counted = count_allocations(call, case.device)
    saved = None
    if case.direction is not Direction.FORWARD:
        forward = bind_recording_forward(function, case, tensors)
        y_bytes = inputs.x.numel() * inputs.x.element_size()
        saved = count_allocations(forward, case.device).held_bytes - y_bytes
    return Memory(
        peak_extra_bytes=counted.peak_bytes,
        allocated_bytes=counted.total_bytes,
        allocations=counted.count,
        saved_bytes=saved,
        minimum_bytes=sum(each.numel() * each.element_size() for each in _results(case, inputs)),
    )
