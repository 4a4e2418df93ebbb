"""How much faster a model gets if its LayerNorms are replaced.

The model has the shapes of GPT-2 small: 12 layers, width 768, one sequence of 128 tokens. Two
copies with the same weights, one with torch's LayerNorms and one with ``cpu_recentred``, are timed
in turn. A round gives one ratio of times; printed are the median over rounds and a 95 % interval of
it by bootstrap over rounds, in this process.

    python experiments/drop_in/drop_in_speed.py [--rounds 60]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import click
import numpy as np
import torch
from torch import Tensor, nn

from implementations import replace_layer_norms

LAYERS, WIDTH, HEADS, TOKENS = 12, 768, 12, 128  # GPT-2 small; a short sequence, so that it ends


class Block(nn.Module):
    """A block of GPT-2: attention and MLP, each after a LayerNorm and with a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.attention(self.ln_1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.ln_2(x))


def forward_of(model: nn.Module, x: Tensor) -> Callable[[], object]:
    def call() -> None:
        with torch.no_grad():
            model(x)

    return call


def step_of(model: nn.Module, x: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def call() -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    return call


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    draws = np.random.default_rng(0)
    click.echo(f"torch {torch.__version__}, {options.threads} thread(s), {options.rounds} rounds")
    click.echo("dtype     what           native  replaced  saved")
    for dtype in (torch.float32, torch.bfloat16):
        native = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)).to(dtype)
        replaced = copy.deepcopy(native)
        replace_layer_norms(replaced, "cpu_recentred")
        x = torch.randn(1, TOKENS, WIDTH, dtype=dtype)
        for what, bind in (("forward", forward_of), ("training step", step_of)):
            calls = [bind(native, x), bind(replaced, x)]
            for call in (*calls, *calls):
                call()  # warm
            pairs = []
            for number in range(options.rounds):
                order = (0, 1) if number % 2 else (1, 0)
                times = {which: seconds(calls[which]) for which in order}
                pairs.append((times[0], times[1]))
            saved = 1 - np.array([two / one for one, two in pairs])
            drawn = np.median(draws.choice(saved, (2000, len(saved))), axis=1)
            low, high = np.percentile(drawn, [2.5, 97.5])
            one, two = (statistics.median(times_s) * 1e3 for times_s in zip(*pairs, strict=True))
            click.echo(
                f"{str(dtype)[6:]:9} {what:13} {one:5.1f} ms {two:6.1f} ms"
                f"  {np.median(saved):.1%} [{low:.1%}, {high:.1%}]"
            )


if __name__ == "__main__":
    main()
