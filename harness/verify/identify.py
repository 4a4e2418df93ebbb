"""Find out what a target computes and what it raises, by calling it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from harness.inputs import make_inputs
from harness.numerics.computed import (
    ContractViolationError,
    ImplementationError,
    grad_mode,
    run_once,
)
from harness.records import Case
from harness.verify.findings import Instead, Remark, RemarkKind
from harness.verify.scope import Scope, adapter_of
from harness.verify.trial import exact_of
from implementations.contract import Implementation, UnsupportedError
from implementations.targets.from_module import ModuleFunction
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning
from implementations.targets.recognise import LAYER_NORM

__all__ = [
    "instead_of",
    "meaning_of",
    "normalises_the_last_alone",
    "remarks_on",
    "scope_from_meaning",
    "what_is_raised",
]

_WIDTHS = (32, 64, 768, 1024)  # of x; some kernels take one width only
_USUAL_EPS = 1e-5  # of torch.nn.functional.layer_norm


def meaning_of(implementation: Implementation, device: str) -> Meaning | None:
    """Return what the target computes; None if it declares its algorithm.

    Raises:
        UnsupportedError: it raises for every x tried, or its module cannot be constructed.
    """
    adapter = adapter_of(implementation)
    if adapter is not None:
        return adapter.meaning(torch.device(device))
    if implementation.declared:
        return None
    function: Callable[..., Tensor] = implementation.function
    forms = ((True, True), (True, False), (False, False), (False, True))
    for width, (has_weight, has_bias) in product(_WIDTHS, forms):
        probe = Probe(
            call=lambda x, w, b: _with_default_eps(function, x, w, b),
            shape=(width,),
            has_weight=has_weight,
            has_bias=has_bias,
            takes_eps=True,
            device=torch.device(device),
        )
        try:
            meaning = find_meaning(probe, CallOptions())
            return replace(meaning, width=None if width == _WIDTHS[0] else width)
        except UnsupportedError as error:
            last_error = error
    raise last_error


def _with_default_eps(
    function: Callable[..., Tensor], x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    try:
        return function(x, tuple(x.shape[-1:]), weight, bias)
    except TypeError:  # eps has no default
        return function(x, tuple(x.shape[-1:]), weight, bias, _USUAL_EPS)


def scope_from_meaning(
    implementation: Implementation, meaning: Meaning | None, options: CallOptions
) -> Scope:
    """Return what is known of the scope before any case is tried."""
    scope = Scope(eps=options.eps)
    if meaning is not None:
        eps = meaning.eps if meaning.eps is not None else options.eps
        scope = replace(scope, eps=eps, default_eps=meaning.default_eps)
        adapter = adapter_of(implementation)
        if adapter is not None:
            shape = adapter.normalized_shape
            dims = scope.normalized_dims if adapter.takes_several_axes else (1,)
            scope = replace(
                scope,
                normalized_shape=shape,
                normalized_dims=dims if shape is None else (len(shape),),
                channels_first=meaning.channels_first,
            )
        if meaning.width is not None:
            scope = replace(scope, normalized_shape=(meaning.width,), normalized_dims=(1,))
    if options.normalized_dims is not None:
        scope = replace(scope, normalized_dims=(options.normalized_dims,))
    return scope


def remarks_on(meaning: Meaning | None, scope: Scope) -> list[Remark]:
    """Return the remarks that follow from what the target computes."""
    remarks = []
    if scope.default_eps is not None and scope.default_eps != _USUAL_EPS:
        text = f"adds an eps of {scope.default_eps:g} if none is given; torch adds {_USUAL_EPS:g}"
        remarks.append(Remark(kind=RemarkKind.DEFAULT_EPS, text=text))
    if meaning is not None and meaning.also_channels_first:
        text = (
            "also normalises axis 1 of an x with its channels there; that was not verified: "
            "--channels-first verifies it"
        )
        remarks.append(Remark(kind=RemarkKind.ALSO_CHANNELS_FIRST, text=text))
    return remarks


def instead_of(meaning: Meaning | None, scope: Scope) -> Instead | None:
    """Return which other known function the target computes; None for a LayerNorm."""
    name = None if meaning is None else meaning.normalization
    # without its weight or bias it is a LayerNorm with a mistake, which the diagnosis names
    if name is None or name == LAYER_NORM or "without its" in name:
        return None
    return Instead(name=name, axes=scope.axes)


def what_is_raised(implementation: Implementation, case: Case) -> ImplementationError | None:
    """Return what the target raises for a case; None if it returns, even a wrong result."""
    inputs, _ = exact_of(replace(case, implementation=""))
    try:
        with grad_mode(case):
            run_once(implementation.function, case, inputs, on_copies=True)
    except ImplementationError as raised:
        return raised
    except ContractViolationError:
        pass
    return None


def normalises_the_last_alone(implementation: Implementation, case: Case) -> bool:
    """Whether a module class, given several axes, normalises only the last one.

    For a function that is a mistake, for a module class a limit of its scope.
    """
    if not isinstance(adapter_of(implementation), ModuleFunction):
        return False
    inputs = make_inputs(case)
    try:
        with torch.no_grad():
            y = run_once(implementation.function, case, inputs).y.double()
    except (ImplementationError, ContractViolationError):
        return False
    over_last, over_all = (
        _layer_norm_over(inputs.x, dims, inputs.weight, inputs.bias)
        for dims in (1, case.normalized_dims)
    )
    return bool((y - over_last).norm() < (y - over_all).norm())


def _layer_norm_over(x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = torch.nn.functional.layer_norm(x.double(), x.shape[x.dim() - dims :])
    y = y if weight is None else y * weight.double()
    return y if bias is None else y + bias.double()
