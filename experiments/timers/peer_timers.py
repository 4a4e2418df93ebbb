"""Timers of other tools that run inside this process, each used as its documentation says.

None of them measures a ratio: each times one function, then the other. The order is drawn for each
process, so that no function always warms the machine up for the other.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from random import Random
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch.utils.benchmark
from pairs import ROLES, Pair

from harness.records import ArmRole

__all__ = ["Measured", "alternating", "blocked", "order_of_arms", "repeated"]

_BLOCK_S = 1e-3  # far above the cost of the clock, below a scheduler slice (4 ms)


class Measured(NamedTuple):
    """What a timer found of a pair."""

    ratio: float
    """Time of the subject over that of the reference."""
    seconds: float
    """To time both arms, calibration included; without starting Python or drawing inputs."""


def order_of_arms(random: Random) -> list[ArmRole]:
    return random.sample(ROLES, len(ROLES))


def blocked(pair: Pair, random: Random, *, min_run_time: float) -> Measured:
    """Run ``torch.utils.benchmark.Timer.blocked_autorange``; the median, as it prints."""
    return _in_sequence(
        pair, random, lambda call: _timer(call).blocked_autorange(min_run_time=min_run_time).median
    )


def repeated(pair: Pair, random: Random) -> Measured:
    """Run timeit as ``python -m timeit`` does: autorange, then the best of five repeats."""

    def best(call: Callable[[], object]) -> float:
        timer = timeit.Timer(call)
        number, _ = timer.autorange()
        return min(timer.repeat(repeat=5, number=number)) / number

    return _in_sequence(pair, random, best)


def alternating(pair: Pair, random: Random, *, run_s: float) -> Measured:
    """Alternate blocks of 1 ms of both arms: the median of the ratios of neighbours.

    It belongs to no tool and uses no code of the harness: it is the simplest loop that drift of
    the machine does not bias.
    """
    calls = pair.calls()
    began = perf_counter()
    numbers = {}
    for role, call in calls.items():
        best_s = min(timeit.repeat(call, number=1, repeat=5))
        numbers[role] = max(1, round(_BLOCK_S / best_s))
    ratios = []
    while perf_counter() - began < run_s:
        per_call_s = {
            role: timeit.timeit(calls[role], number=numbers[role]) / numbers[role]
            for role in order_of_arms(random)
        }
        ratios.append(per_call_s[ArmRole.SUBJECT] / per_call_s[ArmRole.REFERENCE])
    return Measured(median(ratios), perf_counter() - began)


def _in_sequence(
    pair: Pair, random: Random, per_call_s: Callable[[Callable[[], object]], float]
) -> Measured:
    """Time one arm, then the other."""
    calls = pair.calls()
    order = order_of_arms(random)
    began = perf_counter()
    found = {role: per_call_s(calls[role]) for role in order}
    seconds = perf_counter() - began
    return Measured(found[ArmRole.SUBJECT] / found[ArmRole.REFERENCE], seconds)


def _timer(call: Callable[[], object]) -> torch.utils.benchmark.Timer:
    return torch.utils.benchmark.Timer("call()", globals={"call": call}, num_threads=1)
