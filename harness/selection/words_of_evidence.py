"""What a choice rests on, in words: which runs, where, when, and what their intervals cover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.records import Environment, Run
from harness.selection.choose import Choices
from harness.selection.times import LONG_FLOOR, SHORT_FLOOR

__all__ = ["evidence_lines"]


def evidence_lines(choices: Choices, names: Sequence[str]) -> Iterator[str]:
    """Which runs a choice rests on, where and when they were made, and what intervals cover."""
    runs = ", ".join(map(_run_words, choices.runs)) or "of no known run"
    yield f"evidence: {', '.join(names)}: {runs}"
    for environment in choices.environments.values():
        yield f"measured on {_environment_words(environment)}"
    timed = [
        record.latency
        for choice in choices.choices
        for candidate in choice.candidates
        for record in candidate.timed
        if record.latency is not None
    ]
    least = min((each.processes for each in timed), default=0)
    if least == 1:
        yield (
            "intervals are over one process, and cover less than they say: whatever differs from "
            f"process to process is in none of them, so each counts as {SHORT_FLOOR - 1:.0%} wider "
            f"either way, that of a call over 1 ms as {LONG_FLOOR - 1:.0%}; `run --processes 5` "
            "looks at it"
        )
    elif least:
        yield f"intervals are over {least} processes or more"


def _run_words(run: Run) -> str:
    return f"{run.name} of {run.started_utc} by layernorm-bench {run.version}"


def _environment_words(environment: Environment) -> str:
    packages = dict(environment.packages)
    gpus = [each.name for each in environment.gpus]
    parts = [f"{environment.cpu}, {environment.cpu_count} CPUs", *gpus]
    if "torch" in packages:
        parts.append(f"torch {packages['torch']}")
    return f"{', '.join(parts)} (environment {environment.fingerprint})"
