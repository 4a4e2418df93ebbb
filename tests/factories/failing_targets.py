"""Targets, most of which fail as their names say. Tests copy this file and give its path."""

from __future__ import annotations

import os
import signal
import time
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from implementations import Implementation, adopt


def right(
    x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    return functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)


def small_eps(
    x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-6
) -> Tensor:
    return right(x, normalized_shape, weight, bias, eps)


def find(name: str) -> Implementation:
    """Find another name than a target has."""
    return adopt({"another name": right}[name], name)


forward_only = Implementation(name="forward", function=right, source="", forward_only=True)


class OfDepth(torch.nn.LayerNorm):
    """Is right if it gets the arguments that it requires."""

    def __init__(self, dim: int, depth: Any, kind: Any) -> None:
        super().__init__(dim)
        assert (depth, kind) == (3, "pre")


def prints(*arguments: Any) -> Tensor:
    print("I am no JSON")  # noqa: T201
    os.write(1, b"nor am I\n")
    return right(*arguments)


def warns(*arguments: Any) -> Tensor:
    warnings.warn("this is slow", stacklevel=1)
    return right(*arguments)


def wrong(*arguments: Any) -> Tensor:
    return right(*arguments) + 1


def double(x: Tensor, *arguments: Any) -> Tensor:
    return x * 2


def zeros(x: Tensor, *arguments: Any) -> Tensor:
    return x.detach().clone().zero_()


KEPT: dict[int, Tensor] = {}


def remembers(x: Tensor, *arguments: Any) -> Tensor:
    return KEPT.setdefault(x.data_ptr(), right(x, *arguments))


def raises(*arguments: Any) -> Tensor:
    raise RuntimeError("not today")


def loses_the_device(*arguments: Any) -> Tensor:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore words")


def crashes(*arguments: Any) -> None:
    os.write(2, b"about to fall\n\n")
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(*arguments: Any) -> None:
    time.sleep(1000)
