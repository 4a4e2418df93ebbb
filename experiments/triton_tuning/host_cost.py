"""How long does a call of a fused kernel take on the host, without the kernel?

    python experiments/triton_tuning/host_cost.py    on a quiet machine; prints the table

A stub takes the place of each launch. It is timed in turn with
``torch.nn.functional.layer_norm`` on 64 elements, most of which is the cost of its call, and with a
floor: the least that a function in Python does, which allocates the results, saves four tensors if
the call is recorded, and starts a kernel, with no check and no choice. Times are medians of
processor time over the rounds; ratios are those of each round.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median, quantiles
from time import process_time
from timeit import timeit
from types import SimpleNamespace
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

import implementations
from implementations.triton import arguments, launch

CALLS, ROUNDS = 500, 80


class Stub:
    """Stands for a kernel, and for the kernel with its grid."""

    def __getitem__(self, grid: object) -> Stub:
        return self

    def __call__(self, *tensors: object, **arguments: object) -> None: ...


start = Stub()


class Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y, moments = torch.empty_like(x), torch.empty(4, x.shape[0], device=x.device)
        start(x, weight, bias, y, moments)
        ctx.save_for_backward(x, weight, bias, moments)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        x, weight, bias, moments = ctx.saved_tensors
        gradients = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        parts = torch.empty(2, 1, x.shape[1], device=x.device)
        start(dy, x, weight, moments, parts)
        start(parts, *gradients)
        return gradients


# as in implementations.triton.operators
recorded_floor: Callable[..., Tensor] = super(torch.autograd.Function, Recorded).apply


def floor(x: Tensor, _: object, weight: Tensor, bias: Tensor) -> Tensor:
    if x.requires_grad:
        return recorded_floor(x, weight, bias)
    y = torch.empty_like(x)
    start(x, weight, bias, y)
    return y


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    return timeit(call, timer=process_time, number=CALLS) / CALLS


def main() -> None:
    """Print the table."""
    names = ("forward_of_tiles", "backward_of_tiles", "add_parts")
    module = SimpleNamespace(**dict.fromkeys(names, start))
    arguments.imported = lambda name: (module, True)  # type: ignore[assignment]
    launch.in_triton = lambda dtype: dtype  # type: ignore[attr-defined]
    fused = implementations.find("triton_recentred").function
    torch.set_num_threads(1)
    x, weight, bias, dy = torch.randn(1, 64), torch.ones(64), torch.zeros(64), torch.randn(1, 64)
    given = x, (64,), weight, bias
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    recorded = leaves[0], (64,), *leaves[1:]

    calls: dict[str, Callable[[Callable[..., Any]], object]] = {
        "without gradients": lambda function: function(*given),
        "recorded": lambda function: function(*recorded),
        "recorded, and its backward": lambda function: torch.autograd.grad(
            function(*recorded), leaves, dy
        ),
    }
    functions = (layer_norm, floor, fused)
    heads = ("call", "F.layer_norm on the CPU", "floor", "fused, without its kernels")
    click.echo(f"| {' | '.join(heads)} | floor, ratio | fused, ratio (quartiles) |\n|{'---|' * 6}")
    for words, call in calls.items():
        rounds = [
            [seconds(partial(call, function)) for function in functions] for _ in range(ROUNDS)
        ]
        usual, least, own = (f"{median(times) * 1e6:.1f} us" for times in zip(*rounds, strict=True))
        floors, ratios = ([times[index] / times[0] for times in rounds] for index in (1, 2))
        low, middle, high = quantiles(ratios, n=4)
        click.echo(
            f"| {words} | {usual} | {least} | {own} | {median(floors):.2f} "
            f"| {middle:.2f} ({low:.2f} to {high:.2f}) |"
        )


if __name__ == "__main__":
    main()
