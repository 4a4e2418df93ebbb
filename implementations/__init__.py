"""LayerNorm implementations behind one signature; usable without the harness.

To add one: a file with a function under ``@implementation``, and its name in :data:`ALL`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch

from implementations.c_recentred import c_recentred
from implementations.contract import (
    Algorithm,
    Implementation,
    Reduction,
    UnsupportedError,
    implementation,
)
from implementations.cpp_recentred import cpp_recentred
from implementations.dispatch import Dispatch
from implementations.from_module import ModuleFunction
from implementations.module import LayerNorm
from implementations.native import native
from implementations.one_pass import one_pass, one_pass_input_dtype
from implementations.peers import PEERS
from implementations.recentred import recentred
from implementations.renaming import OTHER_NAMES, rename_layer_norm_keys
from implementations.replacement import replace_layer_norms
from implementations.shifted import shifted
from implementations.triton_one_pass import triton_one_pass
from implementations.triton_recentred import triton_recentred
from implementations.triton_two_pass import triton_two_pass
from implementations.triton_welford import triton_welford
from implementations.two_pass import two_pass, two_pass_input_dtype
from implementations.welford import welford, welford_chunked

__all__ = [
    "ALL",
    "OTHER_NAMES",
    "PEERS",
    "Algorithm",
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


def find(target: str) -> Implementation:
    """Return the implementation that ``target`` names.

    Args:
        target: a name in :data:`ALL`, in :data:`PEERS` or in the entry-point group
            ``layernorm_bench.implementations``, ``package.module:function``, or
            ``path/to/file.py:function``. A function that is not an :class:`Implementation`
            declares nothing; see :func:`adopt` for what it is held to.

    Raises:
        TargetError: nothing of that name, or what it names cannot be imported or called.
    """
    for each in (*ALL, *PEERS):
        if each.name == target:
            return each
    plugins = {each.name: each for each in entry_points(group=ENTRY_POINT_GROUP)}
    if target in plugins:
        return adopt(_load(target, plugins[target].value), target)
    if ":" in target:
        return adopt(_load(target, target), target)
    known = [each.name for each in (*ALL, *PEERS)] + sorted(plugins)
    near = get_close_matches(target, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)};"
    raise TargetError(
        f"no implementation named {target!r}; {hint} "
        "(or give package.module:function or path/to/file.py:function)"
    )


def _load(target: str, where: str) -> object:
    """Import the object at ``module:attribute`` or ``file.py:attribute``."""
    place, _, attribute = where.rpartition(":")
    try:
        module = _module_from_file(Path(place)) if place.endswith(".py") else _module(place)
    except Exception as error:  # the guest's own import may raise anything
        raise TargetError(f"{target}: cannot import: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise TargetError(f"{target}: {place} has no {attribute!r}")
    found: object = getattr(module, attribute)
    return found


def _module(name: str) -> object:
    return importlib.import_module(name)


def _module_from_file(path: Path) -> object:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    state = path.stat()
    return _module_from_version(path.resolve(), state.st_mtime_ns, state.st_size)


@cache
def _module_from_version(path: Path, *version: int) -> object:
    """Execute a file, once for each version of it."""
    spec = importlib.util.spec_from_file_location(f"layernorm_target_{path.stem}", path)
    if spec is None or spec.loader is None:  # only for a name that does not end in .py
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look the module up by name
    spec.loader.exec_module(module)
    return module


def adopt(found: object, target: str) -> Implementation:
    """Return a function, a module class or an implementation as an implementation.

    What declares nothing is named ``target`` and held to what PyTorch's own kernel keeps: the
    loosest promise of a stable algorithm, since no mistake is made by calling that. What declares
    is decorated: ``@implementation(...)`` over a function, ``implementation(...)(Module)`` of a
    module class.

    Raises:
        TargetError: it cannot be called.
    """
    if isinstance(found, Implementation):
        function = _function(found.function)
        return found if function is found.function else replace(found, function=function)
    if not callable(found):
        raise TargetError(f"{target}: is of type {type(found).__name__}, not a function")
    function = _function(found)
    return replace(native, name=target, function=function, source=target, declared=False)


def _function(found: Callable[..., Any]) -> Callable[..., Any]:
    """Return a module class as a function, and a function as it is."""
    is_module = isinstance(found, type) and issubclass(found, torch.nn.Module)
    return ModuleFunction(found) if is_module else found
