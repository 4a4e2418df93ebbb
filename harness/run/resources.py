"""What the cases of one process share: inputs, exact results, and memory held ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.measure.allocator import fault_in
from harness.measure.device import Device
from harness.measure.devices import device_of
from harness.numerics.bounds import Guarantee
from harness.numerics.completeness import bits_of
from harness.numerics.computed import ImplementationError
from harness.numerics.error_measurement import measure_errors
from harness.numerics.oracle import Reference
from harness.numerics.outputs import OUTPUTS, Outputs
from harness.records import Allocation, Case, Direction, Errors, Mode, Status
from harness.records.text import bytes_text
from harness.run.timed_calls import refusal
from implementations.contract import Implementation

__all__ = ["Resources"]

# Tensors of x's size that a case holds at most, beside float64 copies and the exact values, bounds
# and errors of a block of rows. A forward holds x and y, their relocated copies, the inputs of the
# check after the timing, and the implementation's intermediate tensors. A backward holds the same
# for dy and dx, and the tensors that its forward saved.
_HELD_COPIES = {Direction.FORWARD: 8, Direction.BACKWARD: 16, Direction.FORWARD_BACKWARD: 16}
_DRAWN_BYTES = 8  # per element: inputs are drawn in float64
_KNOWN = 1000  # outputs whose errors are kept, in 1 MB: those of a few hundred cases


class Resources:
    """What consecutive cases of a process have in common."""

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self._drawn: dict[Case, tuple[Inputs, Reference]] = {}
        self._known: dict[bytes, Errors] = {}
        self.measured: dict[bytes, Errors] = {}
        """The errors that were measured since this was emptied."""
        self._faulted_in_bytes = 0

    def ready_device(self, case: Case, implementation: Implementation) -> Device:
        """Return the case's device, with as many threads as the case asks for.

        Raises:
            ImplementationError: the case cannot run here, for a reason known beforehand.
        """
        device = device_of(case.device, case.threads)
        if why := device.unavailable() or refusal(implementation, case):
            raise ImplementationError(Status.UNSUPPORTED, why)
        needed = case.rows * case.hidden * _DRAWN_BYTES + _held_bytes(case)
        free = device.free_bytes()
        if free is not None and case.device == "cpu":
            free += self._faulted_in_bytes  # the system counts it as used
        if free is not None and needed > free:
            raise ImplementationError(
                Status.OUT_OF_MEMORY,
                f"needs about {bytes_text(needed)}, {bytes_text(free)} are free",
            )
        torch.set_num_threads(case.threads)
        return device

    def fault_in(self, case: Case) -> None:
        """Have the allocator hold as much memory as a case of this size needs at most."""
        needed = _held_bytes(case)
        if (
            self.allocation is Allocation.STEADY
            and case.device == "cpu"
            and needed > self._faulted_in_bytes
        ):
            fault_in(needed)
            self._faulted_in_bytes = needed

    def inputs(self, case: Case) -> tuple[Inputs, Reference]:
        """Return inputs and exact results; reuse those of an earlier case if they are the same."""
        key = _case_of_inputs(case)
        if key not in self._drawn:
            # a case needs two seeds: its own, and the next one in the check after the timing
            for old in list(self._drawn):
                near = abs(old.seed - key.seed) <= 1
                if not near or replace(old, seed=key.seed) != key:
                    del self._drawn[old]
            inputs = make_inputs(case)
            self._drawn[key] = inputs, Reference(inputs, case)
        return self._drawn[key]

    def errors(
        self,
        outputs: Outputs,
        inputs: Inputs,
        case: Case,
        guarantee: Guarantee,
        reference: Reference,
    ) -> Errors:
        """Measure outputs; with the inputs of the case, equal bits have the errors found before."""
        measure = partial(measure_errors, outputs, inputs, case, guarantee, reference)
        if inputs is not self.inputs(case)[0]:
            return measure()
        key = _digest(outputs, case, guarantee)
        if key not in self._known:
            self.measured[key] = measure()
            self.learn({key: self.measured[key]})
        return self._known[key]

    def learn(self, errors: Mapping[bytes, Errors]) -> None:
        """Take the errors that another process has measured, by their keys there."""
        self._known |= errors
        while len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]  # the oldest


def _digest(outputs: Outputs, case: Case, guarantee: Guarantee) -> bytes:
    """Return a key of the errors of outputs, the same in each process of a run."""
    # with other threads torch adds in another order, so that a mean error has another last bit
    judged = replace(_case_of_inputs(case), threads=case.threads)
    digest = sha256(repr((judged, guarantee)).encode())
    for name in OUTPUTS:
        output: Tensor | None = getattr(outputs, name)
        if output is not None:
            digest.update(name.encode())
            digest.update(bits_of(output.detach()).cpu().numpy().data)
    return digest.digest()


def _case_of_inputs(case: Case) -> Case:
    """Return the same case for all that have the same inputs and exact results."""
    backward = case.direction is not Direction.FORWARD
    direction = Direction.BACKWARD if backward else Direction.FORWARD
    return replace(case, implementation="", mode=Mode.EAGER, direction=direction, threads=1)


def _held_bytes(case: Case) -> int:
    dtype: torch.dtype = getattr(torch, case.dtype)
    return _HELD_COPIES[case.direction] * case.rows * case.hidden * dtype.itemsize
