"""LayerNorm implementations with one signature; usable without the harness.

To add one, write a function decorated with ``@implementation`` and list it in :data:`ALL`.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

import torch

from implementations.contract import (
    Algorithm,
    Implementation,
    Reduction,
    UnsupportedError,
    implementation,
)
from implementations.cpu.cpu_recentred import cpu_recentred
from implementations.dispatch import Dispatch
from implementations.module import LayerNorm
from implementations.native import native
from implementations.one_pass import one_pass, one_pass_input_dtype
from implementations.peers import PEERS
from implementations.recentred import recentred
from implementations.replacement.replace import replace_layer_norms
from implementations.shifted import shifted
from implementations.targets.construct import makes_modules
from implementations.targets.from_function import NamedFunction, needs_adapter
from implementations.targets.from_module import ModuleFunction
from implementations.targets.locate import LocateError, locate
from implementations.targets.meaning import CallOptions
from implementations.triton.triton_one_pass import triton_one_pass
from implementations.triton.triton_recentred import triton_recentred
from implementations.triton.triton_two_pass import triton_two_pass
from implementations.triton.triton_welford import triton_welford
from implementations.two_pass import two_pass, two_pass_input_dtype
from implementations.welford import welford, welford_chunked

__all__ = [
    "ALL",
    "PEERS",
    "Algorithm",
    "CallOptions",
    "Dispatch",
    "Implementation",
    "LayerNorm",
    "Reduction",
    "TargetError",
    "UnsupportedError",
    "adopt",
    "cpu_recentred",
    "find",
    "implementation",
    "native",
    "one_pass",
    "one_pass_input_dtype",
    "recentred",
    "replace_layer_norms",
    "shifted",
    "triton_one_pass",
    "triton_recentred",
    "triton_two_pass",
    "triton_welford",
    "two_pass",
    "two_pass_input_dtype",
    "welford",
    "welford_chunked",
]

ENTRY_POINT_GROUP = "layernorm_bench.implementations"

ALL: tuple[Implementation, ...] = (
    native,
    one_pass,
    one_pass_input_dtype,
    two_pass,
    two_pass_input_dtype,
    welford,
    welford_chunked,
    recentred,
    shifted,
    cpu_recentred,
    triton_one_pass,
    triton_two_pass,
    triton_welford,
    triton_recentred,
)


class TargetError(Exception):
    """A target names no implementation; the message names the places that were searched."""


def find(target: str, options: CallOptions | None = None) -> Implementation:
    """Return the implementation that ``target`` names.

    Args:
        target: a name in :data:`ALL`, in :data:`PEERS` or in the entry-point group
            ``layernorm_bench.implementations``, ``package.module:function``, or
            ``path/to/file.py:function``. A function that is not an :class:`Implementation`
            declares nothing; see :func:`adopt` for the error bound that then applies.
        options: what the user declares about a function or module of another signature.

    Raises:
        TargetError: there is no such name, or the object cannot be imported or called.
    """
    named = {known.name: known for known in (*ALL, *PEERS)}
    if target in named:
        return named[target]
    plugins = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if target in plugins:
        return adopt(_load(target, plugins[target].value), target, options)
    if ":" in target:
        return adopt(_load(target, target), target, options)
    known = [*named, *sorted(plugins)]
    near = get_close_matches(target, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)};"
    raise TargetError(
        f"no implementation named {target!r}; {hint} "
        "(or give package.module:function or path/to/file.py:function)"
    )


def _load(target: str, where: str) -> object:
    """Import the object at ``module:attribute`` or ``file.py:attribute``."""
    try:
        return locate(where)
    except LocateError as error:
        raise TargetError(f"{target}: {error}") from error.__cause__


def adopt(source: object, target: str, options: CallOptions | None = None) -> Implementation:
    """Make an implementation of a function, a module class or a module.

    A source that declares nothing has the declarations of PyTorch's own kernel, the loosest bound
    of a stable algorithm. Declare with ``@implementation(...)`` over a function, or
    ``implementation(...)(Module)`` for a module class.

    Args:
        source: of any signature; see :mod:`implementations.targets.from_module` and
            :mod:`implementations.targets.from_function`. An implementation is returned as it is.
        target: the name of the result.
        options: what the user declares about the source where an experiment cannot tell.

    Raises:
        TargetError: the source cannot be called.
    """
    options = options or CallOptions()
    if isinstance(source, Implementation):
        function = _function(source.function, options)
        return source if function is source.function else replace(source, function=function)
    if not callable(source):
        raise TargetError(f"{target}: is of type {type(source).__name__}, not a function")
    try:
        function = _function(source, options)
    except UnsupportedError as error:
        raise TargetError(f"{target}: {error}") from error
    return replace(native, name=target, function=function, source=target, declared=False)


def _function(source: Any, options: CallOptions) -> Any:
    """Return a module, or a function of another signature, with the contract's signature."""
    if isinstance(source, ModuleFunction | NamedFunction):
        return source
    is_class = isinstance(source, type)
    if isinstance(source, torch.nn.Module) or (
        issubclass(source, torch.nn.Module) if is_class else makes_modules(source)
    ):
        return ModuleFunction(source, options)
    if is_class and not issubclass(source, torch.autograd.Function):
        raise UnsupportedError(
            f"{source.__name__} is a class, and neither a torch.nn.Module nor a "
            "torch.autograd.Function: make an instance in a file and name that"
        )
    if options.init or options.channels_first or needs_adapter(source):
        return NamedFunction(source, options)
    return source
