"""Contract checks of PyTorch's threads in one call, and of Python threads that call at once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from harness.inputs import make_inputs
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction
from harness.verify.checks.outputs import (
    compute,
    compute_y,
    first_differing_output,
    has_bits_of,
    outputs_beyond,
)
from harness.verify.scope import fitted
from implementations.contract import Implementation

__all__ = ["is_correct_on_several_threads", "is_safe_for_concurrent_callers"]

_THREADS, _REPEATS = 4, 3  # a race shows in some calls only
# 257x256 and 2x20000 fill two threads of PyTorch, which gives each thread 32768 elements; 257 rows
# do not divide evenly, and 2 and 3 rows are fewer than the threads
_SHAPES = ((257, 256), (2, 20_000), (3, 96))
_CALLERS, _CALLS = 2, 50
_MOST_S = 1.0  # a slow target gets fewer calls
# calls that take many of the switch intervals below; one with more rows than a workspace may serve
_LONG_CALLS = ((128, 256), (1030, 32))
_SWITCH_S = 1e-6  # Python then switches threads as often as it can


def is_correct_on_several_threads(implementation: Implementation, case: Case) -> str | None:
    """Results on several CPU threads are as accurate as on one: no thread's part is lost."""
    if case.device != "cpu":
        return None
    direction = Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
    before = torch.get_num_threads()
    try:
        for shape in _SHAPES:
            sized = fitted(implementation, case, shape=shape, direction=direction)
            if name := _wrong_on_several_threads(implementation, sized):
                return f"{name} is right on one thread and wrong on {_THREADS}"
    finally:
        torch.set_num_threads(before)
    return None


def _wrong_on_several_threads(implementation: Implementation, case: Case) -> str | None:
    """Return the name of an output that only one thread computes correctly."""
    inputs = make_inputs(case)
    reference = Reference(inputs, case)
    torch.set_num_threads(1)
    single = compute(implementation, case, inputs)
    torch.set_num_threads(_THREADS)
    for _ in range(_REPEATS):
        several = compute(implementation, case, inputs)
        if has_bits_of(several, single):
            continue
        wrong_on_several = outputs_beyond(implementation, case, inputs, several, reference)
        if not wrong_on_several:
            continue
        wrong_on_one = outputs_beyond(implementation, case, inputs, single, reference)
        for name in sorted(wrong_on_several - wrong_on_one):
            return name
    return None


def is_safe_for_concurrent_callers(implementation: Implementation, case: Case) -> str | None:
    """Two Python threads that call at the same time each get their own result."""
    if case.device != "cpu" or "cpu" not in implementation.devices:
        return None  # a GPU kernel in an interpreter, which is not thread-safe
    for shape in _LONG_CALLS:
        sized = fitted(implementation, case, shape=shape, direction=Direction.FORWARD)
        if _changes_beside_another_caller(implementation, sized):
            return "y changes when a second Python thread calls at the same time"
    return None


def _changes_beside_another_caller(implementation: Implementation, case: Case) -> bool:
    inputs = [make_inputs(replace(case, seed=case.seed + place)) for place in range(_CALLERS)]
    began = perf_counter()
    expected = [Outputs(y=compute_y(implementation, case, own).clone()) for own in inputs]
    calls = min(_CALLS, max(2, int(_MOST_S / (perf_counter() - began))))

    def call_repeatedly(place: int) -> list[Tensor]:
        return [compute_y(implementation, case, inputs[place]) for _ in range(calls)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with ThreadPoolExecutor(_CALLERS, initializer=partial(torch.set_num_threads, 1)) as callers:
            results = list(callers.map(call_repeatedly, range(_CALLERS)))
    finally:
        sys.setswitchinterval(interval)
    return any(
        first_differing_output(implementation, case, own, right, Outputs(y=y))
        for own, right, returned in zip(inputs, expected, results, strict=True)
        for y in returned
    )
