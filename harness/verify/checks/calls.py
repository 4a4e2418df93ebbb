"""Contract checks of a call of whatever form: the same result, and nothing else changed by it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.computed import ImplementationError, checked, guarded
from harness.numerics.error_measurement import Outputs
from harness.records import Case, Direction, Status
from harness.verify.checks.answers import first_difference, outputs_beyond, y_of
from harness.verify.checks.graph import Graph, training_case
from harness.verify.scope import InScope, fitted, scope_of
from implementations.contract import Implementation

__all__ = [
    "is_as_right_under_autocast",
    "is_right_under_autocast",
    "is_the_same_in_inference_mode",
    "leaves_the_process_as_it_was",
    "records_nothing_unasked",
    "serves_several_callers_at_once",
    "takes_arguments_as_torch_does",
]

_SMALL = 1 / 256  # ours: of x, so that eps is seen in y
_CALLERS, _CALLS = 2, 50
_MOST_S = 1.0  # for a slow target, fewer calls
_LONG_CALL = (128, 256)  # ours: long enough for another to come between its operations
_SWITCH_S = 1e-6  # ours: between threads, as often as Python can
_OF_BFLOAT16 = 2.0**-4  # of y: sixteen roundings of bfloat16 in a row
_SUBNORMAL = 1e-40  # in float32


def takes_arguments_as_torch_does(implementation: Implementation, case: Case) -> str | None:
    """Arguments may come by name, normalized_shape as a list, eps as an int or not at all."""
    asked = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    inputs = make_inputs(asked)
    inputs = replace(inputs, x=inputs.x * _SMALL)
    scope = scope_of(implementation)
    usual = scope.eps if scope.eps is not None else 1e-5
    unsaid = scope.default_eps if scope.default_eps is not None else 1e-5
    shape, function = asked.normalized_shape, implementation.function
    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    forms: dict[str, tuple[float, partial[Tensor]]] = {
        "a normalized_shape that is a list": (
            usual,
            partial(function, x, list(shape), weight, bias, usual),
        ),
        "arguments by name": (
            usual,
            partial(function, x, normalized_shape=shape, weight=weight, bias=bias, eps=usual),
        ),
        "no eps": (unsaid, partial(function, x, shape, weight, bias)),
    }
    if scope.eps is None:
        forms["an eps that is an int"] = (1.0, partial(function, x, shape, weight, bias, 1))
    for form, (eps, call) in forms.items():
        if not _fits(call):
            continue  # its arguments have names of its own, or all must be given
        of_eps = replace(asked, eps=eps)
        expected = Outputs(y=y_of(implementation, of_eps, inputs).clone())
        with _answering(form), torch.no_grad():
            found = Outputs(y=checked("y", guarded(call)(), x))
            if first_difference(implementation, of_eps, inputs, expected, found):
                return f"gives another y for {form}"
    if asked.normalized_dims > 1:
        return None
    with _answering("an x of one axis"):
        return _of_one_axis(implementation, asked, inputs)
    return None


def _fits(call: partial[Tensor]) -> bool:
    """Whether the arguments are such as the function declares, as far as it does."""
    function: Callable[..., object] = call.func
    function = function.function if isinstance(function, InScope) else function
    try:
        signature(function).bind(*call.args, **call.keywords)
    except TypeError:
        return False
    except ValueError:  # it declares none
        return True
    return True


def _of_one_axis(implementation: Implementation, asked: Case, inputs: Inputs) -> str | None:
    """A row that is alone in x is a row."""
    one_row = replace(inputs, x=inputs.x[:1])
    shape = asked.normalized_shape
    alone = y_of(implementation, replace(asked, shape=shape), replace(inputs, x=inputs.x[0]))
    expected = Outputs(y=y_of(implementation, asked, one_row))
    of_row = replace(asked, shape=(1, *shape))
    if outputs_beyond(implementation, of_row, one_row, expected):
        return None  # it is wrong, and need not be so by the same amount twice
    if first_difference(implementation, of_row, one_row, expected, Outputs(y=alone[None])):
        return "gives another y for an x of one axis"
    return None


@contextmanager
def _answering(form: str) -> Iterator[None]:
    """Say of which form of a call it was that the implementation raised; it may decline one."""
    try:
        yield
    except ImplementationError as ended:
        if ended.status is not Status.UNSUPPORTED:
            raise ImplementationError(ended.status, f"with {form}: {ended.reason}") from ended


def records_nothing_unasked(implementation: Implementation, case: Case) -> str | None:
    """y asks for a gradient only where one of the inputs does, and gradients are recorded."""
    asked = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    inputs = make_inputs(asked)
    leaves = [each.clone().requires_grad_() for each in inputs.tensors]
    if y_of(implementation, asked, inputs.at(leaves)).requires_grad:
        return "y asks for a gradient under torch.no_grad()"
    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    with torch.enable_grad():
        call = guarded(implementation.function, x, asked.normalized_shape, weight, bias, asked.eps)
        if checked("y", call(), x).requires_grad:
            return "y asks for a gradient where no input does"
    return None


def leaves_the_process_as_it_was(implementation: Implementation, case: Case) -> str | None:
    """Random numbers, modes and defaults are the caller's."""
    asked, inputs = training_case(implementation, case)
    calls: list[Callable[[], object]] = [partial(y_of, implementation, asked, inputs)]
    if not implementation.forward_only:
        calls.append(lambda: Graph.of(implementation, asked, inputs).gradients())
    first = _State.now()
    try:
        for call in calls:
            _unsettle()
            before = _State.now()
            call()
            after = _State.now()
            for what in before.values:
                if before.values[what] != after.values[what]:
                    return f"changes {what}, which is the caller's"
    finally:
        first.restore()
    for recording in (False, True):
        with torch.set_grad_enabled(recording):
            x, weight, bias = inputs.x, inputs.weight, inputs.bias
            shape = asked.normalized_shape
            guarded(implementation.function, x, shape, weight, bias, asked.eps)()
            if torch.is_grad_enabled() is not recording:
                return "changes whether gradients are recorded, which is the caller's"
    return None


class _State:
    """What a call can change beside its result."""

    def __init__(self, values: dict[str, object], numbers: Tensor) -> None:
        self.values, self._numbers = values, numbers
        self._of_python, self._of_numpy = random.getstate(), np.random.get_state()

    @classmethod
    def now(cls) -> _State:
        numbers = torch.get_rng_state()
        return cls(
            {
                "torch's random numbers": numbers.numpy().tobytes(),
                "Python's random numbers": random.getstate(),
                "NumPy's random numbers": repr(np.random.get_state()),
                "the default dtype": torch.get_default_dtype(),
                "the number of threads": torch.get_num_threads(),
                "what becomes of subnormal numbers": _flushes(),
                "determinism": torch.are_deterministic_algorithms_enabled(),
            },
            numbers,
        )

    def restore(self) -> None:
        torch.set_rng_state(self._numbers)
        random.setstate(self._of_python)
        np.random.set_state(self._of_numpy)
        torch.set_default_dtype(self.values["the default dtype"])  # type: ignore[arg-type]
        torch.set_num_threads(self.values["the number of threads"])  # type: ignore[arg-type]
        torch.set_flush_denormal(bool(self.values["what becomes of subnormal numbers"]))
        _set_determinism(bool(self.values["determinism"]))


def _unsettle() -> None:
    """Leave the state in which what an earlier call set would look as if it had not been set."""
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)
    torch.set_num_threads(3)
    _set_determinism(False)
    torch.rand(1)
    random.random()
    np.random.rand()


def _set_determinism(wanted: bool) -> None:
    """Set it where it is another: setting it imports the compiler, which takes two seconds."""
    if torch.are_deterministic_algorithms_enabled() is not wanted:
        torch.use_deterministic_algorithms(wanted)


def _flushes() -> bool:
    """Whether the CPU takes a subnormal number for 0."""
    return not float(torch.tensor(_SUBNORMAL, dtype=torch.float32).mul(1.0))


def is_right_under_autocast(implementation: Implementation, case: Case) -> str | None:
    """Under autocast y is still a LayerNorm, to the digits of half precision."""
    if case.dtype != "float32":
        return None
    asked = fitted(implementation, case, shape=(6, 64), direction=Direction.FORWARD)
    inputs = make_inputs(asked)
    plain = y_of(implementation, asked, inputs).clone()
    with torch.autocast(case.device, dtype=torch.bfloat16):
        found = y_of(implementation, asked, inputs)
    if not (plain - found).norm() <= _OF_BFLOAT16 * plain.norm():
        return "y is wrong under torch.autocast, beyond the roundings of bfloat16"
    return None


def is_as_right_under_autocast(implementation: Implementation, case: Case) -> str | None:
    """Autocast, in which models are trained, takes no digits away: torch's computes in float32."""
    if case.dtype != "float32":
        return None
    asked = fitted(implementation, case, shape=(6, 64), direction=Direction.FORWARD)
    inputs = make_inputs(asked)
    plain = Outputs(y=y_of(implementation, asked, inputs).clone())
    with torch.autocast(case.device, dtype=torch.bfloat16):
        found = Outputs(y=y_of(implementation, asked, inputs))
    right, wrong = (outputs_beyond(implementation, asked, inputs, each) for each in (plain, found))
    return "loses digits under torch.autocast, which torch's own keeps" if wrong - right else None


def is_the_same_in_inference_mode(implementation: Implementation, case: Case) -> str | None:
    """torch.inference_mode changes no number."""
    asked = fitted(implementation, case, shape=(6, 64), direction=Direction.FORWARD)
    inputs = make_inputs(asked)
    plain = Outputs(y=y_of(implementation, asked, inputs).clone())
    with torch.inference_mode():
        call = guarded(
            implementation.function,
            inputs.x,
            asked.normalized_shape,
            inputs.weight,
            inputs.bias,
            asked.eps,
        )
        found = Outputs(y=checked("y", call(), inputs.x).clone())
    found = Outputs(y=found.y.clone())
    if first_difference(implementation, asked, inputs, plain, found):
        return "y is another under torch.inference_mode"
    return None


def serves_several_callers_at_once(implementation: Implementation, case: Case) -> str | None:
    """Two Python threads each get the answer to their own question."""
    if case.device != "cpu" or "cpu" not in implementation.devices:
        return None  # a GPU's, interpreted: that is not made for it
    asked = fitted(implementation, case, shape=_LONG_CALL, direction=Direction.FORWARD)
    questions = [make_inputs(replace(asked, seed=asked.seed + each)) for each in range(_CALLERS)]
    began = perf_counter()
    expected = [Outputs(y=y_of(implementation, asked, each).clone()) for each in questions]
    calls = min(_CALLS, max(2, int(_MOST_S / (perf_counter() - began))))

    def ask(place: int) -> list[Tensor]:
        return [y_of(implementation, asked, questions[place]) for _ in range(calls)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with ThreadPoolExecutor(_CALLERS, initializer=partial(torch.set_num_threads, 1)) as callers:
            answers = list(callers.map(ask, range(_CALLERS)))
    finally:
        sys.setswitchinterval(interval)
    for place, found in enumerate(answers):
        for y in found:
            if first_difference(
                implementation, asked, questions[place], expected[place], Outputs(y=y)
            ):
                return "y is another where a second thread of Python calls at the same time"
    return None
