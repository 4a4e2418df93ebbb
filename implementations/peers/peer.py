"""How a peer is declared: its package, the calls that it supports, and what it calls.

A package is imported by the first call of its peer, and never installed. Calls that it does not
support are refused before the function is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from implementations.contract import (
    Implementation,
    Param,
    UnsupportedError,
    implementation,
    requires_gradient,
    trailing_axes,
)

CUDA = frozenset({"cuda"})
ALL_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

ANY_VERSION = "LNB_ANY_PEER_VERSION"
"""Environment variable: if set, packages are called whose source was not read in their version."""

PeerFunction = Callable[..., Tensor]
"""Returns y for x, the number of normalised axes, weight, bias and eps."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that a peer needs."""

    module: str
    """Name of the module to import."""
    distributions: tuple[str, ...]
    """Its name on PyPI, followed by the packages whose versions affect its results too."""
    install: str
    """How to install it: a command if there is one, else a sentence."""
    read: str = ""
    """Versions whose source was read, after commas; if empty, every version is called."""

    @property
    def is_installed(self) -> bool:
        """Whether a module of this name exists; it may belong to another package."""
        return find_spec(self.module) is not None

    def load(self, module: str = "", *names: str) -> Any:
        """Import ``module``, or the package itself, and check that it has all of ``names``.

        Raises:
            UnsupportedError: the module or a name is missing, or the source of this version was
                not read; the message says what to install or to set.
        """
        path = module or self.module
        try:
            found = import_module(path)
        except ImportError as error:
            if not self.is_installed:
                raise UnsupportedError(f"needs {self.distributions[0]}: {self.install}") from error
            raise UnsupportedError(
                f"{self.distributions[0]} cannot be imported ({error}): {self.install}"
            ) from error
        if why := _unread(self):
            raise UnsupportedError(why)
        missing = [name for name in names if not hasattr(found, name)]
        if missing:
            raise UnsupportedError(
                f"this {self.distributions[0]} has no {path}.{missing[0]}: {self.install}"
            )
        return found


@cache  # reading the metadata takes longer than a small LayerNorm
def _unread(package: Package) -> str | None:
    """Return why the installed version is not called; None if it may be."""
    if not package.read or os.environ.get(ANY_VERSION):
        return None
    name = package.distributions[0]
    try:
        installed = version(name)
    except PackageNotFoundError:
        installed = "of unknown version"
    if installed.partition("+")[0] in package.read.split(", "):  # 2.8.3+cu12 too
        return None
    return (
        f"{name} {installed} is installed, but its adapter is written for {package.read}: "
        f"install one of these, or set {ANY_VERSION}=1 to try this one"
    )


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside a with block; some packages read theirs on import."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def peer(
    package: Package,
    dtypes: Sequence[torch.dtype],
    *,
    devices: frozenset[str] = frozenset({"cpu"}),
    needs: tuple[str, ...] = (),
    param_dtype: torch.dtype | None = None,
    params_like_x: bool = False,
    forward_only: bool = False,
    **declared: Any,
) -> Callable[[PeerFunction], Implementation]:
    """Wrap a function as an :class:`Implementation` that refuses the calls it does not support.

    Args:
        package: the package that the function calls.
        dtypes: supported dtypes of x.
        devices: supported device kinds.
        needs: the required parameters among weight and bias.
        param_dtype: the only supported dtype of weight and bias; None means any.
        params_like_x: whether weight and bias must have x's dtype.
        forward_only: whether it has no gradient.
        declared: other arguments of :func:`implementations.contract.implementation`.
    """

    def decline(why: str) -> None:
        raise UnsupportedError(f"{package.distributions[0]} {why}")

    def check(x: Tensor, weight: Param, bias: Param) -> None:
        if (kind := _device_kind(x)) not in devices:
            decline(f"runs on {', '.join(sorted(devices))}, x is on {kind}")
        if x.dtype not in dtypes:
            decline(f"does not take {_name(x.dtype)}")
        wanted = x.dtype if params_like_x else param_dtype
        for name, parameter in (("weight", weight), ("bias", bias)):
            if parameter is None:
                if name in needs:
                    decline(f"needs a {name}")
            elif wanted is not None and parameter.dtype != wanted:
                decline(f"takes a {name} of {_name(wanted)}, not {_name(parameter.dtype)}")
        if forward_only and requires_gradient(x, weight, bias):
            decline("has no gradient; call it under torch.no_grad()")

    def wrap(function: PeerFunction) -> Implementation:
        @wraps(function)
        def layer_norm(
            x: Tensor,
            normalized_shape: Sequence[int],
            weight: Tensor | None = None,
            bias: Tensor | None = None,
            eps: float = 1e-5,
        ) -> Tensor:
            dims = len(trailing_axes(x, normalized_shape, weight, bias))
            check(x, weight, bias)
            return function(x, dims, weight, bias, eps)

        del layer_norm.__wrapped__  # its signature is the contract's
        declare = implementation(
            devices=devices,
            dtypes=frozenset(map(_name, dtypes)),
            forward_only=forward_only,
            requires=(package.module,),
            **declared,
        )
        return declare(layer_norm)

    return wrap


def _device_kind(x: Tensor) -> str:
    return x.device.type


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
