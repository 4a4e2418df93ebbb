"""Which processes are run, in which order, and how long they are expected to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from pairs import ALONE_PAIRS, COMPARED_PAIRS
from timers import TIMERS, Timer

ALONE_TIMER = "harness-0.3"
# seconds to start a process on two cores of a server of 2024, for the estimate
START_S = {"quiet": 1.8, "loaded": 4.0}


@dataclass(frozen=True, slots=True)
class Task:
    """One process to run."""

    experiment: str
    condition: str
    timer: Timer
    pairs: tuple[str, ...]
    process: int

    @property
    def expected_s(self) -> float:
        return START_S[self.condition] + len(self.pairs) * self.timer.expected_s


def tasks_of(condition: str, timers: Sequence[Timer], repeats: int, processes: int) -> list[Task]:
    """Return the processes of one condition in a random order that is always the same."""
    random = Random(condition)
    drawn: list[tuple[str, Timer, Sequence[str]]] = []
    for _ in range(repeats):
        drawn += [("timers", timer, COMPARED_PAIRS) for timer in random.sample(timers, len(timers))]
    if condition == "loaded":
        alone = next(timer for timer in TIMERS if timer.name == ALONE_TIMER)
        drawn += [("processes", alone, ALONE_PAIRS)] * processes
    return [
        Task(experiment, condition, timer, tuple(random.sample(pairs, len(pairs))), number)
        for number, (experiment, timer, pairs) in enumerate(drawn)
    ]
