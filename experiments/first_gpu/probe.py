"""Ask a device what the harness assumes of it, one question after the other; prints JSON.

    python experiments/first_gpu/probe.py --device cuda

A question that cannot be asked is answered by "left out: " or "failed: " and the reason.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from time import perf_counter
from typing import Any

import click
import torch

from harness.measure import Device, device_of, read_environment

PACKAGES = ("torch", "triton", "numpy", "pyarrow", "pydantic", "nvidia-ml-py", "pytest-xdist")
PACKAGES += ("quack-kernels", "liger-kernel", "transformer-engine", "flash-attn", "apex")
WAITS = 1000
REPEATS = 31
CALLS = 100
READ_BYTES = 20 << 20  # of an L2 of 50 MiB (H100)
LATE = 3  # times the median, as the harness takes a wait for a late one
Answer = Callable[[Device], Any]


class LeftOutError(Exception):
    """The device has no such thing; the message says which it needs."""


def needs_gpu(device: Device) -> None:
    if device.kind != "cuda":
        raise LeftOutError("needs a GPU")


def versions(device: Device) -> dict[str, str]:
    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def environment(device: Device) -> dict[str, Any]:
    told = asdict(read_environment())
    return {name: told[name] for name in ("gpus", "nvml", "cpu", "commit") if name in told}


def unreadable(device: Device) -> list[str]:
    """What NVML does not tell of the device's condition."""
    needs_gpu(device)
    names = ("clock_hz", "clock_max_hz", "memory_clock_hz", "power_w", "power_limit_w")
    names += ("temperature_c", "throttled_by", "other_processes")
    condition = device.condition()
    return [name for name in names if getattr(condition, name) is None]


def event_floor_s(device: Device) -> float:
    """Time between two events without work between them."""
    needs_gpu(device)

    def nothing() -> None: ...

    return median(device.time(nothing, 1).wall_s for _ in range(WAITS))


def late_waits_ratio(device: Device) -> float:
    """Share of waits for an idle device that take over three times the median."""
    times = []
    device.synchronize()
    for _ in range(WAITS):
        start = perf_counter()
        device.synchronize()
        times.append(perf_counter() - start)
    return sum(time > LATE * median(times) for time in times) / WAITS


def small_kernel_s(device: Device) -> dict[str, float]:
    """Seconds of a small kernel, alone and as one of a hundred in a row."""
    x = torch.zeros(1 << 16, device=device.kind)

    def add_one() -> None:
        x.add_(1)

    def median_s(calls: int) -> float:
        return median(device.time(add_one, calls).wall_s / calls for _ in range(REPEATS))

    return {"alone": median_s(1), "among": median_s(CALLS)}


def bandwidth(device: Device) -> dict[str, float]:
    """Bytes per second, read and written, of two ways to copy."""
    size = 256 << 20 if device.kind == "cuda" else 8 << 20
    x = torch.zeros(size // 2, dtype=torch.bfloat16, device=device.kind)
    y = torch.empty_like(x)
    calls = {"copy_": lambda: y.copy_(x), "add": lambda: torch.add(x, 1, out=y)}
    return {
        name: 2 * size / median(device.time(call, 1).wall_s for _ in range(REPEATS))
        for name, call in calls.items()
    }


def flushed_ratio(device: Device, read: Callable[[], object]) -> float:
    """Time of a read after the caches were overwritten, over that of one right after another."""
    warm, cold = [], []
    for _ in range(REPEATS):
        read()
        warm.append(device.time(read, 1).wall_s)
        device.evict()
        cold.append(device.time(read, 1).wall_s)
    return median(cold) / median(warm)


def flush_after_plain_reads(device: Device) -> float:
    needs_gpu(device)
    return flushed_ratio(device, reading(device, ""))


def flush_after_evict_last(device: Device) -> float:
    needs_gpu(device)
    return flushed_ratio(device, reading(device, "evict_last"))


def reading(device: Device, policy: str) -> Callable[[], object]:
    """Return a call that reads READ_BYTES, which a cache should hold."""
    x = torch.ones(READ_BYTES // 4, device=device.kind)
    from kernels import COLUMNS, read_block

    sums = torch.empty(x.numel() // COLUMNS, device=device.kind)
    return lambda: read_block[(sums.numel(),)](x, sums, POLICY=policy)


def captures(device: Device) -> list[str]:
    """Which captures ended otherwise than they should: one must fail, the next must succeed."""
    needs_gpu(device)
    x = torch.zeros(1 << 16, device=device.kind)
    wrong = []
    if device.replayed(lambda: lambda: x.sum().item()):
        wrong.append("one that waits for a result was recorded")
    replay = device.replayed(lambda: lambda: x.add_(1))
    before = float(x[0])
    if replay:
        replay()
    if float(x[0]) != before + 1:
        wrong.append("the next one was not recorded" if replay is None else "it does not replay")
    return wrong


QUESTIONS: tuple[Answer, ...] = (versions, environment, unreadable, event_floor_s, late_waits_ratio)
QUESTIONS += (small_kernel_s, bandwidth, flush_after_plain_reads, flush_after_evict_last, captures)


def answer(question: Answer, device: Device) -> Any:
    try:
        return question(device)
    except LeftOutError as error:
        return f"left out: {error}"
    except Exception as error:  # noqa: BLE001 - of a driver; the other questions are asked
        return f"failed: {type(error).__name__}: {error}"


@click.command()
@click.option("--device", "kind", type=click.Choice(["cuda", "cpu"]), default="cuda")
def main(kind: str) -> None:
    """Ask all questions."""
    torch.set_num_threads(1)
    device = device_of(kind, 1)
    if why := device.unavailable():
        raise click.ClickException(why)
    device.wake()
    answers = {question.__name__: answer(question, device) for question in QUESTIONS}
    click.echo(json.dumps(answers, indent=1, default=str))


if __name__ == "__main__":
    main()
