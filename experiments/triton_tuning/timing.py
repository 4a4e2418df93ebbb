"""Time layouts on a GPU, each in turn with the layout in use, and end when the GPU is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Protocol

import torch
from compiling import Candidate, present, using
from torch import Tensor

from implementations.triton import launch
from implementations.triton.layout import Layout

DEVICE = "cuda"
BYTES = 128 << 20  # size of x: more than twice the L2 of an H200, so that reads come from memory
MOVED = {"forward": 2, "backward": 3}  # tensors of the size of x: x and y; x, dy and dx
ROUNDS, CALLS = 9, 10  # trade-off: more of them narrow the spread, and take longer
BLOCKING_CYCLES = 10_000_000  # about 5 ms, in which the host issues the calls of a round


@dataclass(frozen=True, slots=True)
class Timed:
    """The time of a layout, divided by that of the layout in use: median and quartiles."""

    ratio: float
    low: float
    high: float
    of_copy: float
    """Bandwidth, divided by that of a copy of x."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a layout has no time."""

    reason: str
    is_wrong: bool = False
    """Whether its results differ from those of the layout in use."""


class Timer(Protocol):
    """Calls one kind of kernel with any layout."""

    copy_s: float
    """Seconds of a copy that moves as many bytes."""

    def agrees(self, layout: Layout) -> bool:
        """Whether the results are those of the layout in use."""

    def seconds(self, layout: Layout) -> float:
        """Return the median seconds of a few calls."""

    def is_lost(self) -> bool:
        """Whether an earlier error makes every further call fail."""


def timed(timer: Timer, own: Layout, tried: Sequence[Layout]) -> Iterator[Timed | Refused]:
    """Yield a result per layout, up to the first after which the GPU is lost to this process."""
    from triton import TritonError

    for layout in tried:
        try:
            if not timer.agrees(layout):
                yield Refused("its results differ from those of the layout in use", is_wrong=True)
                continue
            rounds = [(timer.seconds(own), timer.seconds(layout)) for _ in range(ROUNDS)]
        except (RuntimeError, TritonError) as error:
            yield Refused(why(error))
            if timer.is_lost():
                return
            continue
        low, ratio, high = quantiles([taken / usual for usual, taken in rounds], n=4)
        yield Timed(ratio, low, high, timer.copy_s / median(taken for _, taken in rounds))


def why(error: BaseException) -> str:
    """Return the class of an error and what it says, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


class OnGPU:
    """Times calls with 128 MiB of x on the current CUDA device, without the host's share."""

    def __init__(self, kind: Candidate) -> None:
        dtype = getattr(torch, kind.dtype)
        rows, hidden = BYTES // kind.hidden // kind.itemsize, kind.hidden
        x = torch.randn(rows, hidden, device=DEVICE, dtype=dtype)
        weight, bias, y = torch.randn_like(x[0]), torch.randn_like(x[0]), torch.empty_like(x)
        self.direction = kind.direction
        self.copy_s = median_s(lambda: y.copy_(x)) * MOVED[kind.direction] / 2

        def forward() -> tuple[Tensor, ...]:
            return launch.forward(x, weight, bias, hidden, 1e-5, kind.statistic, saves=True)

        def backward() -> tuple[Tensor, ...]:
            return launch.backward(y, x, weight, moments, hidden, True, dtype, dtype)

        self.call: Callable[[], tuple[Tensor, ...]] = forward
        if kind.direction == "backward":
            moments = forward()[1]
            y.normal_()  # dy
            self.call = backward
        self.expected = self.call()

    def agrees(self, layout: Layout) -> bool:
        with using(self.direction, layout):
            found = self.call()
        return all(
            # another layout adds in another order: some roundings, of sums of some thousand numbers
            torch.allclose(one.float(), other.float(), rtol=1e-2, atol=1e-1)
            for one, other in zip(self.expected, found, strict=True)
        )

    def seconds(self, layout: Layout) -> float:
        with using(self.direction, layout):
            return median_s(self.call)

    def is_lost(self) -> bool:
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False


def median_s(call: Callable[[], Any]) -> float:
    """Return the median seconds of a call on the device."""
    call()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
    torch.cuda.synchronize()
    torch.cuda._sleep(BLOCKING_CYCLES)  # until all is issued: no event waits for the host
    for before, after in pairs:
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return median(before.elapsed_time(after) for before, after in pairs) * 1e-3


def time_on_gpu(kind: Candidate, tried: Sequence[Layout]) -> Iterator[float | Timed | Refused]:
    """Yield the bandwidth of a copy in bytes per second, then a result per layout."""
    own = present(kind.direction, kind.dtype, kind.hidden)
    assert own is not None
    timer = OnGPU(kind)
    yield BYTES * MOVED[kind.direction] / timer.copy_s
    yield from timed(timer, own, tried)


def describe_gpu() -> Iterator[tuple[str, int, int]]:
    """Yield name, compute capability and bytes of shared memory per program, if there is a GPU."""
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        yield found.name, 10 * found.major + found.minor, found.shared_memory_per_block_optin
