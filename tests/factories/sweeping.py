"""Sweeps expanded where three implementations exist, and sweep files with mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.cases import (
    NAMED,
    Planned,
    Sweep,
    expand,
    load_sweep,
)
from harness.records import Refusal

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
        names=NAMED,
        devices=devices or {"cpu": None, "cuda": "torch sees no CUDA device"},
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def mistakes(folder: Path, text: str) -> list[tuple[str, str]]:
    """Return the key, such as ``grids[0].seeds``, and the message of each mistake of a file."""
    path = written(folder, text)
    with pytest.raises(Refusal) as refused:
        load_sweep(path)
    found = []
    for line in str(refused.value).splitlines():
        match = re.fullmatch(rf"{re.escape(str(path))}: ([^:]+): (.*)", line)
        assert match, line
        found.append((match[1], match[2]))
    return found
