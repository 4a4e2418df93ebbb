"""LayerNorm implementations behind one signature; usable without the harness.

To add one: a file with a function under ``@implementation``, and its name in :data:`ALL`.
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
from implementations.cpu.c_recentred import c_recentred
from implementations.cpu.cpp_recentred import cpp_recentred
from implementations.dispatch import Dispatch
from implementations.module import OTHER_NAMES, LayerNorm, rename_layer_norm_keys
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
    "OTHER_NAMES",
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
    "c_recentred",
    "cpp_recentred",
    "find",
    "implementation",
    "native",
    "one_pass",
    "one_pass_input_dtype",
    "recentred",
    "rename_layer_norm_keys",
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
    c_recentred,
    cpp_recentred,
    triton_one_pass,
    triton_two_pass,
    triton_welford,
    triton_recentred,
)


class TargetError(Exception):
    """A target names no implementation; the message says what was looked for and where."""


def find(target: str, options: CallOptions | None = None) -> Implementation:
    """Return the implementation that ``target`` names.

    Args:
        target: a name in :data:`ALL`, in :data:`PEERS` or in the entry-point group
            ``layernorm_bench.implementations``, ``package.module:function``, or
            ``path/to/file.py:function``. A function that is not an :class:`Implementation`
            declares nothing; see :func:`adopt` for what it is held to.
        options: what the user says of a function or module of another form.

    Raises:
        TargetError: nothing of that name, or what it names cannot be imported or called.
    """
    for each in (*ALL, *PEERS):
        if each.name == target:
            return each
    plugins = {each.name: each for each in entry_points(group=ENTRY_POINT_GROUP)}
    if target in plugins:
        return adopt(_load(target, plugins[target].value), target, options)
    if ":" in target:
        return adopt(_load(target, target), target, options)
    known = [each.name for each in (*ALL, *PEERS)] + sorted(plugins)
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


def adopt(found: object, target: str, options: CallOptions | None = None) -> Implementation:
    """Return a function, a module class, a module or an implementation as an implementation.

    What declares nothing is named ``target`` and held to what PyTorch's own kernel keeps, the
    loosest bound of a stable algorithm. What declares is decorated: ``@implementation(...)`` over
    a function, ``implementation(...)(Module)`` of a module class.

    Args:
        found: of any signature; see :mod:`implementations.targets.from_module` and
            :mod:`implementations.targets.from_function`.
        target: its name.
        options: what the user says of it where an experiment cannot tell.

    Raises:
        TargetError: it cannot be called.
    """
    options = options or CallOptions()
    if isinstance(found, Implementation):
        function = _function(found.function, options)
        return found if function is found.function else replace(found, function=function)
    if not callable(found):
        raise TargetError(f"{target}: is of type {type(found).__name__}, not a function")
    try:
        function = _function(found, options)
    except UnsupportedError as error:
        raise TargetError(f"{target}: {error}") from error
    return replace(native, name=target, function=function, source=target, declared=False)


def _function(found: Any, options: CallOptions) -> Any:
    """Return a module, or a function of another signature, behind the contract's."""
    is_module = isinstance(found, type) and issubclass(found, torch.nn.Module)
    is_module = is_module or (not isinstance(found, type) and makes_modules(found))
    if is_module or isinstance(found, torch.nn.Module):
        return ModuleFunction(found, options)
    if isinstance(found, ModuleFunction | NamedFunction):
        return found
    if isinstance(found, type) and not issubclass(found, torch.autograd.Function):
        raise UnsupportedError(
            f"{found.__name__} is a class, and neither a torch.nn.Module nor a "
            "torch.autograd.Function: make an instance in a file and name that"
        )
    if options.init or options.channels_first or needs_adapter(found):
        return NamedFunction(found, options)
    return found
