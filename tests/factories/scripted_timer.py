"""A timer of layouts that is scripted, and processes that time with it, die or say nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace

from compiling import Candidate
from timing import Refused, Timed, timed

from implementations.triton.layout import Layout

OWN = Layout(columns=1024, warps=4, stages=3, programs=6)
SLOW, WRONG, TOO_LARGE, POISON = (replace(OWN, programs=number) for number in (1, 2, 3, 4))
FAST = replace(OWN, warps=2)


class Scripted:
    """A timer of which every second round takes twice as long, with any layout."""

    copy_s = 0.5

    def __init__(self) -> None:
        self.called: list[Layout] = []
        self.lost = False

    def agrees(self, layout: Layout) -> bool:
        if layout in (TOO_LARGE, POISON):
            self.lost = layout == POISON
            raise RuntimeError(
                "CUDA error:\nan illegal memory access" if self.lost else "too large"
            )
        return layout != WRONG

    def seconds(self, layout: Layout) -> float:
        self.called.append(layout)
        drift = 1 + (len(self.called) - 1) // 2 % 2
        return drift * {OWN: 1.0, SLOW: 1.5, FAST: 0.8}[layout]

    def is_lost(self) -> bool:
        return self.lost


def scripted(kind: Candidate, tried: Sequence[Layout]) -> Iterator[float | Timed | Refused]:
    """Time with the scripted timer, in a process that one of the layouts ends."""
    yield 1.0
    for layout in tried:
        if layout == TOO_LARGE:
            os._exit(9)
        timer = Scripted()
        yield from timed(timer, OWN, [layout])
        if timer.is_lost():
            return


def fails_at_once(kind: Candidate, tried: Sequence[Layout]) -> Iterator[float]:
    raise RuntimeError("no memory")
    yield 1.0


def silent() -> Iterator[int]:
    yield 1
    signal.pause()
