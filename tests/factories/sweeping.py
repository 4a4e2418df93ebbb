"""Sweeps expanded where three implementations exist, and sweep files."""

from __future__ import annotations

from pathlib import Path

from harness.cases import NAMED, Planned, Sweep, expand

NAMES = ("native", "one_pass", "two_pass")
TWO_DEVICES: dict[str, str | None] = {"cpu": None, "cuda": None}
ANYWHERE = dict.fromkeys(NAMES, frozenset({"cpu", "cuda"}))


def expanded(
    sweep: Sweep,
    devices: dict[str, str | None] | None = None,
    written_for: dict[str, frozenset[str]] = ANYWHERE,
) -> tuple[Planned, ...]:
    """Expand where three implementations and a CPU exist, and a GPU without driver."""
    devices = devices or {"cpu": None, "cuda": "torch sees no CUDA device"}
    return expand(sweep, implementations=written_for, names=NAMED, devices=devices)


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path
