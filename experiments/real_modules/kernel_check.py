"""Compares each public kernel with the same formula in float64, forward and backward.

The same few shapes and layouts for all of them: rows in two axes and in three, a width that is no
power of 2 (a tile has padding), every other column of a larger tensor, and columns stored first.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from math import inf
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from . import kernels

__all__ = ["LAYOUTS", "check"]

SHAPES = ((6, 64), (3, 7), (5, 24))  # rows x columns
TOLERANCE = 1e-3  # float32 against float64 at these sizes: right kernels stay below 2e-5
LAYOUTS: dict[str, Callable[[int, int], Tensor]] = {
    "rows": lambda rows, n: _values(rows, n),
    "(B, T, C)": lambda rows, n: _values(2, rows, n),
    "every other column": lambda rows, n: _values(rows, 2 * n)[:, ::2],
    "columns first": lambda rows, n: _values(n, rows).t(),
}


def _values(*shape: int) -> Tensor:
    return torch.randn(*shape) + 2  # a mean, so that a wrong one shows


def check(kernel: Callable[..., Tensor], *, is_rms_norm: bool) -> dict[str, dict[str, str]]:
    """Return what is wrong, by layout and result: "right", "wrong", "none" or why it refused.

    Each layout is tried in a process of its own: a kernel that writes outside its tensors breaks
    the memory of the process.
    """
    context = multiprocessing.get_context("fork")  # the kernels are imported once
    found = {}
    for layout in LAYOUTS:
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_try, args=(kernel, layout, is_rms_norm, send))
        process.start()
        send.close()
        try:
            found[layout] = receive.recv()
        except EOFError:
            found[layout] = {}
        process.join()
        if process.exitcode:
            found[layout] = {"y": f"the process ended with exit code {process.exitcode}"}
    return found


def _try(kernel: Callable[..., Tensor], layout: str, is_rms_norm: bool, send: Connection) -> None:
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    torch.manual_seed(0)
    shapes = [LAYOUTS[layout](*shape) for shape in SHAPES]
    send.send(_worst([_results(kernel, x, is_rms_norm) for x in shapes]))


def _worst(found: list[dict[str, str]]) -> dict[str, str]:
    """Keep, for each result, the first shape's answer that is not "right"."""
    names = dict.fromkeys(name for verdict in found for name in verdict)
    return {
        name: next(
            (verdict[name] for verdict in found if verdict.get(name, "right") != "right"), "right"
        )
        for name in names
    }


def _results(kernel: Callable[..., Tensor], x: Tensor, is_rms_norm: bool) -> dict[str, str]:
    n = x.shape[-1]
    # from the middle of larger tensors, so that a kernel that leaves its row breaks no memory
    weight, bias = torch.rand(3, 4096)[1, :n] + 0.5, torch.randn(3, 4096)[1, :n]
    parameters = [weight] if is_rms_norm else [weight, bias]
    given = [
        x.detach().requires_grad_(),
        *(parameter.clone().requires_grad_() for parameter in parameters),
    ]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    wanted = _formula(*exact, is_rms_norm=is_rms_norm)
    try:
        y = kernel(given[0], (n,), *given[1:], 1e-5)
    except Exception as error:  # noqa: BLE001 - other people's code may raise anything
        return {"y": _refusal(error)}
    results = {"y": _compare(y, wanted)}
    if not y.requires_grad:
        return results
    grad = torch.randn_like(wanted).float()
    before = grad.clone()
    try:
        gradients = torch.autograd.grad(y, given, grad, allow_unused=True)
    except Exception as error:  # noqa: BLE001 - as above
        return results | {"dx": _refusal(error)}
    exact_gradients = torch.autograd.grad(wanted, exact, before.double())
    for name, found, right in zip(
        ("dx", "dweight", "dbias"), gradients, exact_gradients, strict=False
    ):
        results[name] = "none" if found is None else _compare(found, right)
    results["grad_output"] = "right" if torch.equal(grad, before) else "overwritten"
    return results


def _refusal(error: Exception) -> str:
    return f"refused: {type(error).__name__}: {str(error).splitlines()[-1][:80]}"


def _formula(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, is_rms_norm: bool) -> Tensor:
    centred = x if is_rms_norm else x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    return y if bias is None else y + bias


def _compare(found: Tensor, right: Tensor) -> str:
    worst = float((found.double() - right).abs().max()) if found.shape == right.shape else inf
    return "right" if worst <= TOLERANCE else "wrong"


def main() -> None:
    """Print the results of the kernel named on the command line, or all names, as JSON."""
    if len(sys.argv) == 1:
        found: Any = [
            public_kernel.__name__ for public_kernel in (*kernels.LAYER_NORMS, *kernels.RMS_NORMS)
        ]
    else:
        kernel = getattr(kernels, sys.argv[1])
        found = check(kernel, is_rms_norm=kernel in kernels.RMS_NORMS)
    print(json.dumps(found))  # noqa: T201 - read by the caller


if __name__ == "__main__":
    main()
