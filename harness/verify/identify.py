"""What a target computes, and what it raises, found by calling it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from harness.records import Case, Direction
from harness.verify.guest import GuestError, Unmet, run_once
from harness.verify.scope import adapter_of
from harness.verify.trial import exact_of
from implementations.contract import Implementation, UnsupportedError
from implementations.meaning import CallOptions, Meaning, Probe, find_meaning

__all__ = ["meaning_of", "what_is_raised"]

_WIDTH = 32  # of the x that a function is tried on


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
    for form in ((True, True), (True, False), (False, False), (False, True)):
        probe = Probe(
            call=lambda x, w, b: _with_default_eps(function, x, w, b),
            shape=(_WIDTH,),
            has_weight=form[0],
            has_bias=form[1],
            takes_eps=True,
            device=torch.device(device),
        )
        try:
            return find_meaning(probe, CallOptions())
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


def what_is_raised(implementation: Implementation, case: Case) -> GuestError | None:
    """Return what the target raises for a case; None if it answers, however wrong."""
    inputs, _ = exact_of(replace(case, implementation=""))
    try:
        with torch.set_grad_enabled(case.direction is not Direction.FORWARD):
            run_once(implementation.function, case, inputs)
    except GuestError as ended:
        return ended
    except Unmet:
        exact_of.cache_clear()  # its inputs may be the very thing that was modified
    return None
