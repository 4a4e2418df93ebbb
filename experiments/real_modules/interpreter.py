"""Runs published Triton kernels on the CPU, through Triton's own interpreter.

Set TRITON_INTERPRET=1 before Triton is imported. The interpreter executes each kernel's Python
source with NumPy, so indices, masks, strides and sums are those of the kernel; speed, races and
what a compiler does to the arithmetic are not. What is replaced, and why, stands below; no
arithmetic is.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

__all__ = [
    "UNBUILT",
    "CudaMeansCpu",
    "first_configuration",
    "load_file",
    "prepare",
    "rsqrt",
    "skip_init",
]

SITE = Path(sysconfig.get_path("purelib"))
UNBUILT = Path(sys.prefix) / "unbuilt"
"""Packages that insist on CUDA extensions when they are imported: their files alone are used."""


@triton.jit
def rsqrt(x):
    """Stand in for libdevice's rsqrt, which the interpreter does not have."""
    return tl.rsqrt(x)


def prepare() -> None:
    """Make floats what kernels expect them to be; startup/sitecustomize.py replaces the GPU."""
    torch.library.wrap_triton = lambda kernel: kernel  # accepts compiled kernels only
    convert = interpreter._implicit_cvt

    def with_floats(argument: Any) -> Any:
        """Pass a float as a float32 scalar, as the compiler does, so that eps.to() exists."""
        if isinstance(argument, float):
            handle = interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return convert(argument)

    interpreter._implicit_cvt = with_floats


def first_configuration(module: ModuleType) -> None:
    """Use the first configuration of every autotuned kernel: to time them takes a GPU."""
    for kernel in vars(module).values():
        inner = kernel
        while hasattr(inner, "fn"):
            if hasattr(inner, "configs"):
                inner.configs = inner.configs[:1]
            inner = inner.fn


def skip_init(package: str, folder: Path = SITE) -> None:
    """Let modules of a package be imported without running its ``__init__.py``."""
    if package not in sys.modules:
        module = ModuleType(package)
        module.__path__ = [str(folder.joinpath(*package.split(".")))]
        sys.modules[package] = module


def load_file(
    name: str, folder: Path = SITE, replace: Mapping[str, str] | None = None
) -> ModuleType:
    """Import a module without running the ``__init__.py`` of the packages around it.

    Args:
        name: dotted name of the module.
        folder: where its top-level package lies.
        replace: text to replace in its source, for syntax that the interpreter reads otherwise.
    """
    parts = name.split(".")
    for depth in range(1, len(parts)):
        skip_init(".".join(parts[:depth]), folder)
    path = folder.joinpath(*parts).with_suffix(".py")
    if replace:
        source = path.read_text()
        for old, new in replace.items():
            source = source.replace(old, new)
        path = Path(sys.prefix) / "interpreted" / f"{name}.py"  # the interpreter reads the file
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    first_configuration(module)
    return module


class CudaMeansCpu:
    """Is torch to a module that allocates on "cuda:0" by name, and allocates on the CPU."""

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(torch, name)
        if name not in {"empty", "empty_like"}:
            return attribute
        return lambda *args, device=None, **kwargs: attribute(*args, **kwargs)
