"""What a target computes, and what it raises, found by calling it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from harness.inputs import make_inputs
from harness.numerics.computed import ContractViolationError, ImplementationError, run_once
from harness.records import Case, Direction
from harness.verify.scope import adapter_of
from harness.verify.trial import exact_of
from implementations.contract import Implementation, UnsupportedError
from implementations.targets.from_module import ModuleFunction
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning

__all__ = ["meaning_of", "normalises_the_last_alone", "what_is_raised"]

_WIDTHS = (32, 64, 768, 1024)  # of the x that it is tried on; some kernels take one alone


def meaning_of(implementation: Implementation, device: str) -> Meaning | None:
    """Return what the target computes; None for what declares its algorithm.

    Raises:
        UnsupportedError: it raises for every x tried, or cannot be built.
    """
    adapter = adapter_of(implementation)
    if adapter is not None:
        return adapter.meaning(torch.device(device))
    if implementation.declared:
        return None
    function: Callable[..., Tensor] = implementation.function
    forms = ((True, True), (True, False), (False, False), (False, True))
    for width, form in product(_WIDTHS, forms):
        probe = Probe(
            call=lambda x, w, b: _with_default_eps(function, x, w, b),
            shape=(width,),
            has_weight=form[0],
            has_bias=form[1],
            takes_eps=True,
            device=torch.device(device),
        )
        try:
            meaning = find_meaning(probe, CallOptions())
            return replace(meaning, width=None if width == _WIDTHS[0] else width)
        except UnsupportedError as error:
            failed = error
    raise failed


def _with_default_eps(
    function: Callable[..., Tensor], x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    try:
        return function(x, tuple(x.shape[-1:]), weight, bias)
    except TypeError:  # eps has to be given
        return function(x, tuple(x.shape[-1:]), weight, bias, 1e-5)


def what_is_raised(implementation: Implementation, case: Case) -> ImplementationError | None:
    """Return what the target raises for a case; None if it answers, however wrong."""
    inputs, _ = exact_of(replace(case, implementation=""))
    try:
        with torch.set_grad_enabled(case.direction is not Direction.FORWARD):
            run_once(implementation.function, case, inputs)
    except ImplementationError as ended:
        return ended
    except ContractViolationError:
        exact_of.cache_clear()  # its inputs may be the very thing that was modified
    return None


def normalises_the_last_alone(implementation: Implementation, case: Case) -> bool:
    """Whether a module class takes several axes for one; of a function that is a mistake."""
    if not isinstance(adapter_of(implementation), ModuleFunction):
        return False
    inputs = make_inputs(case)
    try:
        with torch.no_grad():
            y = run_once(implementation.function, case, inputs).y.double()
    except (ImplementationError, ContractViolationError):
        return False
    last, every = (
        _layer_norm_over(inputs.x, dims, inputs.weight, inputs.bias)
        for dims in (1, case.normalized_dims)
    )
    return bool((y - last).norm() < (y - every).norm())


def _layer_norm_over(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = torch.nn.functional.layer_norm(x.double(), x.shape[x.dim() - dims :])
    y = y if weight is None else y * weight.double()
    return y if bias is None else y + bias.double()
