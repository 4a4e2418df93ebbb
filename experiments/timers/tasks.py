"""Which processes are run, in which order, and how long they are expected to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from pairs import ALONE_PAIRS
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
        each = self.timer.loaded_s if self.condition == "loaded" else self.timer.quiet_s
        return START_S[self.condition] + len(self.pairs) * each


def tasks_of(
    condition: str, timers: Sequence[Timer], pairs: Sequence[str], repeats: int, processes: int
) -> list[Task]:
    """Return the processes of one condition in a random order that is always the same."""
    random = Random(condition)
    drawn: list[tuple[str, Timer, tuple[str, ...]]] = []
    for repeat in range(repeats):
        round_of = [
            ("timers", timer, (pair,))
            for timer in timers
            for pair in timer.pairs
            if pair in pairs and repeat % timer.every == 0
            if condition == "quiet" or not timer.quiet_only
        ]
        drawn += random.sample(round_of, len(round_of))
    if condition == "loaded":
        alone = next(timer for timer in TIMERS if timer.name == ALONE_TIMER)
        for _ in range(processes):
            order = tuple(random.sample(ALONE_PAIRS, len(ALONE_PAIRS)))
            drawn.append(("processes", alone, order))
    return [
        Task(experiment, condition, timer, chosen, number)
        for number, (experiment, timer, chosen) in enumerate(drawn)
    ]
