"""How long does a call of a fused kernel take on the host, without the kernel?

    python experiments/triton_tuning/host_cost.py    a minute, on a quiet machine; prints the table

A stub takes the place of each launch. ``torch.nn.functional.layer_norm`` on 64 elements is timed in
turn with it: most of that is the cost of its call. Each number is the least of fifteen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from timeit import timeit
from types import SimpleNamespace
from typing import Any

import click
import torch
from torch.nn.functional import layer_norm

import implementations
from implementations.triton import arguments, launch

CALLS, REPEATS = 2000, 15


class Stub:
    """Stands for a kernel, and for the kernel with its grid."""

    def __getitem__(self, grid: object) -> Stub:
        return self

    def __call__(self, **arguments: object) -> None: ...


def main() -> None:
    """Print the table."""
    names = ("forward_of_tiles", "backward_of_tiles", "add_parts")
    module = SimpleNamespace(**dict.fromkeys(names, Stub()))
    arguments.imported = lambda name: (module, True)  # type: ignore[assignment]
    launch.in_triton = lambda dtype: dtype  # type: ignore[attr-defined]
    fused = implementations.find("triton_recentred").function
    torch.set_num_threads(1)
    x, weight, bias, dy = torch.randn(1, 64), torch.ones(64), torch.zeros(64), torch.randn(1, 64)
    given = x, (64,), weight, bias
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    recorded = leaves[0], (64,), *leaves[1:]

    def both(function: Callable[..., Any]) -> None:
        torch.autograd.grad(function(*recorded), leaves, dy)

    calls: dict[str, Callable[[Callable[..., Any]], object]] = {
        "without gradients": lambda function: function(*given),
        "recorded": lambda function: function(*recorded),
        "recorded, and its backward": both,
    }
    click.echo("| call | F.layer_norm on the CPU | fused, without its kernels | ratio |")
    click.echo("|---|---|---|---|")
    for words, call in calls.items():
        best = dict.fromkeys((layer_norm, fused), float("inf"))
        for _ in range(REPEATS):
            for function in best:
                took_s = timeit(partial(call, function), number=CALLS)
                best[function] = min(best[function], took_s / CALLS * 1e6)
        usual, own = best.values()
        click.echo(f"| {words} | {usual:.1f} us | {own:.1f} us | {own / usual:.1f} |")


if __name__ == "__main__":
    main()
