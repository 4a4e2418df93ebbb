"""What choices are based on, in words: runs, machines, processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.records import Environment, Run
from harness.records.text import percent_text
from harness.selection.choose import Choices
from harness.selection.times import LONG_FLOOR, SHORT_FLOOR

__all__ = ["WIDENED_TEXT", "evidence_lines"]

WIDENED_TEXT = (
    f"An interval over one process is widened by {percent_text(SHORT_FLOOR - 1)} either way, and "
    f"that of a call over 1 ms by {percent_text(LONG_FLOOR - 1)}, because processes differ by as "
    "much."
)
"""How the comparison treats intervals over one process."""


def evidence_lines(choices: Choices, names: Sequence[str]) -> Iterator[str]:
    """Yield the runs that the choices are based on, with their dates and machines."""
    runs = ", ".join(map(_run_text, choices.runs)) or "the run is not known"
    yield f"evidence: {', '.join(names)}: {runs}"
    for environment in choices.environments.values():
        yield f"measured on {_environment_text(environment)}"
    processes = min(
        (
            record.latency.processes
            for choice in choices.choices
            for candidate in choice.candidates
            for record in candidate.timed
            if record.latency is not None
        ),
        default=0,
    )
    if processes == 1:
        yield f"some intervals are over one process only (see `run --processes`). {WIDENED_TEXT}"
    elif processes:
        yield f"intervals are over {processes} processes or more"


def _run_text(run: Run) -> str:
    return f"{run.name} of {run.started_utc} by layernorm-bench {run.version}"


def _environment_text(environment: Environment) -> str:
    packages = dict(environment.packages)
    parts = [f"{environment.cpu}, {environment.cpu_count} CPUs"]
    parts += [gpu.name for gpu in environment.gpus]
    if "torch" in packages:
        parts.append(f"torch {packages['torch']}")
    return f"{', '.join(parts)} (environment {environment.fingerprint})"
