"""What the tests of sweeps share: where three implementations exist, and files with mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.inputs import DISTRIBUTIONS, GRAD_OUTPUTS, LAYOUTS, PARAMETERS
from harness.sweep import (
    Planned,
    Sweep,
    SweepError,
    expand,
    load_sweep,
)

NAMES = ("native", "one_pass", "two_pass")
TWO_DEVICES: dict[str, str | None] = {"cpu": None, "cuda": None}
ANYWHERE = dict.fromkeys(NAMES, frozenset({"cpu", "cuda"}))


def expanded(
    sweep: Sweep,
    devices: dict[str, str | None] | None = None,
    written_for: dict[str, frozenset[str]] = ANYWHERE,
) -> tuple[Planned, ...]:
    """Expand where three implementations and a CPU exist, and a GPU without driver."""
    return expand(
        sweep,
        implementations=written_for,
        distributions=DISTRIBUTIONS,
        layouts=LAYOUTS,
        grad_outputs=GRAD_OUTPUTS,
        parameters=PARAMETERS,
        devices=devices or {"cpu": None, "cuda": "torch sees no CUDA device"},
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def mistakes(folder: Path, text: str) -> list[str]:
    """What is said of a sweep file, line by line, without its name."""
    path = written(folder, text)
    with pytest.raises(SweepError) as refused:
        load_sweep(path)
    lines = str(refused.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]
