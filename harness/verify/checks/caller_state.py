"""Contract checks of the caller's state: a call leaves it unchanged and respects its modes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from harness.inputs import Inputs
from harness.numerics.computed import checked, guarded
from harness.numerics.error_measurement import Outputs
from harness.records import Case
from harness.verify.checks.graph import Graph, training_case
from harness.verify.checks.outputs import (
    compute_y,
    first_differing_output,
    forward_case,
    outputs_beyond,
)
from implementations.contract import Implementation

__all__ = [
    "is_correct_under_autocast",
    "is_unchanged_in_inference_mode",
    "keeps_accuracy_under_autocast",
    "records_no_unwanted_graph",
    "restores_process_state",
]

_AUTOCAST_LIMIT = 2.0**-4  # of the norm of y: sixteen roundings of bfloat16 (2^-8) in a row
_SUBNORMAL = 1e-40  # in float32


def records_no_unwanted_graph(implementation: Implementation, case: Case) -> str | None:
    """y requires a gradient only if an input does and gradients are being recorded."""
    case, inputs = forward_case(implementation, case, (6, 32))
    leaves = [each.clone().requires_grad_() for each in inputs.tensors]
    if compute_y(implementation, case, inputs.at(leaves)).requires_grad:
        return "y requires a gradient under torch.no_grad()"
    with torch.enable_grad():
        if _called(implementation, case, inputs).requires_grad:
            return "y requires a gradient although no input does"
    return None


def restores_process_state(implementation: Implementation, case: Case) -> str | None:
    """Random number generators, modes and defaults are left as they were."""
    case, inputs = training_case(implementation, case)
    calls: list[Callable[[], object]] = [partial(compute_y, implementation, case, inputs)]
    if not implementation.forward_only:
        calls.append(lambda: Graph.of(implementation, case, inputs).gradients())
    first = _ProcessState.now()
    try:
        for call in calls:
            _set_other_state()
            before = _ProcessState.now()
            call()
            after = _ProcessState.now()
            for name, value in before.values.items():
                if after.values[name] != value:
                    return f"changes {name} of the process"
    finally:
        first.restore()
    for is_recording in (False, True):
        with torch.set_grad_enabled(is_recording):
            x, weight, bias = inputs.x, inputs.weight, inputs.bias
            guarded(implementation.function, x, case.normalized_shape, weight, bias, case.eps)()
            if torch.is_grad_enabled() is not is_recording:
                return "changes the gradient recording of the process"
    return None


class _ProcessState:
    """The state of the process that a call could change."""

    def __init__(self, values: dict[str, object], torch_state: Tensor) -> None:
        self.values, self._torch_state = values, torch_state
        self._python_state, self._numpy_state = random.getstate(), np.random.get_state()

    @classmethod
    def now(cls) -> _ProcessState:
        torch_state = torch.get_rng_state()
        return cls(
            {
                "torch's random generator": torch_state.numpy().tobytes(),
                "Python's random generator": random.getstate(),
                "NumPy's random generator": repr(np.random.get_state()),
                "the default dtype": torch.get_default_dtype(),
                "the number of threads": torch.get_num_threads(),
                "the flushing of subnormal numbers": _flushes_subnormals(),
                "the deterministic mode": torch.are_deterministic_algorithms_enabled(),
            },
            torch_state,
        )

    def restore(self) -> None:
        torch.set_rng_state(self._torch_state)
        random.setstate(self._python_state)
        np.random.set_state(self._numpy_state)
        torch.set_default_dtype(self.values["the default dtype"])  # type: ignore[arg-type]
        torch.set_num_threads(self.values["the number of threads"])  # type: ignore[arg-type]
        torch.set_flush_denormal(bool(self.values["the flushing of subnormal numbers"]))
        _set_determinism(bool(self.values["the deterministic mode"]))


def _set_other_state() -> None:
    """Set a state that differs from what a target is likely to set; an equal one would hide it."""
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)
    torch.set_num_threads(3)
    _set_determinism(False)
    torch.rand(1)
    random.random()
    np.random.rand()


def _set_determinism(wanted: bool) -> None:
    """Set it only if it differs: the call imports torch's compiler, which takes two seconds."""
    if torch.are_deterministic_algorithms_enabled() is not wanted:
        torch.use_deterministic_algorithms(wanted)


def _flushes_subnormals() -> bool:
    """Whether the CPU treats a subnormal number as 0."""
    return not float(torch.tensor(_SUBNORMAL, dtype=torch.float32).mul(1.0))


def is_correct_under_autocast(implementation: Implementation, case: Case) -> str | None:
    """Under autocast, y is a LayerNorm to the accuracy of bfloat16."""
    if case.dtype != "float32":
        return None
    case, inputs = forward_case(implementation, case, (6, 64))
    plain = compute_y(implementation, case, inputs).clone()
    with torch.autocast(case.device, dtype=torch.bfloat16):
        y = compute_y(implementation, case, inputs)
    if not (plain - y).norm() <= _AUTOCAST_LIMIT * plain.norm():
        return "y is wrong under torch.autocast, beyond the rounding of bfloat16"
    return None


def keeps_accuracy_under_autocast(implementation: Implementation, case: Case) -> str | None:
    """Under autocast, y is as accurate as before: torch.nn.functional.layer_norm keeps float32."""
    if case.dtype != "float32":
        return None
    case, inputs = forward_case(implementation, case, (6, 64))
    plain = Outputs(y=compute_y(implementation, case, inputs).clone())
    with torch.autocast(case.device, dtype=torch.bfloat16):
        outputs = Outputs(y=compute_y(implementation, case, inputs))
    wrong_before, wrong_under_autocast = (
        outputs_beyond(implementation, case, inputs, each) for each in (plain, outputs)
    )
    if wrong_under_autocast - wrong_before:
        return "is less accurate under torch.autocast, where PyTorch's own computes in float32"
    return None


def is_unchanged_in_inference_mode(implementation: Implementation, case: Case) -> str | None:
    """torch.inference_mode changes no result."""
    case, inputs = forward_case(implementation, case, (6, 64))
    plain = Outputs(y=compute_y(implementation, case, inputs).clone())
    with torch.inference_mode():
        y = _called(implementation, case, inputs).clone()
    outputs = Outputs(y=y.clone())  # a normal tensor again
    if first_differing_output(implementation, case, inputs, plain, outputs):
        return "y changes under torch.inference_mode"
    return None


def _called(implementation: Implementation, case: Case, inputs: Inputs) -> Tensor:
    """Return y of a call in the modes that are set now."""
    x, shape = inputs.x, case.normalized_shape
    call = guarded(implementation.function, x, shape, inputs.weight, inputs.bias, case.eps)
    return checked("y", call(), x)
